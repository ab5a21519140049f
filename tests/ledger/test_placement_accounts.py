"""Accounts by placement: one setting, any number of fits; against other sums, and under attack."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime

import numpy as np
import pytest
from ledger_stores import DENSITIES, ONE, THREE, TWO, Store, rehash, shows_part

from pyro_mbde import BudgetExceededError, Guarantee, Ledger, TotalCost, compose, epsilon_per_draw
from pyro_mbde.calibration.plan import plan_certificate
from pyro_mbde.density.bounds import calibrated_guarantee
from pyro_mbde.ledger.accounts import (
    Account,
    Tally,
    affordable_draws,
    is_affordable,
    make_account,
    setting,
    spent_by,
)
from pyro_mbde.privacy.placement import placed_total_variation, placement_epsilon


def placed(epsilon: float, skew: float = 0.3, delta: float = 1e-9) -> Guarantee:
    return Guarantee(epsilon, delta, total_variation=placed_total_variation(epsilon, skew))


def account_of(epsilon: float, delta: float, certificate_delta: float | None = None) -> Account:
    return make_account("a", epsilon, delta, "placement", certificate_delta, datetime(2026, 1, 1, tzinfo=UTC))


def test_any_number_of_fits_of_one_setting(ledger: Ledger) -> None:
    """They cost what as many draws of one density do, whatever the deltas of their certificates."""
    account = ledger.open_account("a", 10.0, 1e-6, "placement")
    assert (account.rule, account.certificate_delta) == ("placement", 1e-7)
    assert ledger.spent("a") == TotalCost(0.0, 0.0, "placement")
    for number, density in enumerate(DENSITIES[:20]):
        charge = ledger.charge("a", placed(0.5, 0.1, 1e-9 * (1 + number % 3)), 2, fingerprint=density)
        assert charge.spent == ledger.spent("a")
    expected = placement_epsilon(placed(0.5, 0.1), 40, 9e-7)
    assert ledger.spent("a").epsilon == pytest.approx(expected, rel=1e-8)
    assert (ledger.spent("a").delta, ledger.spent("a").rule) == (1e-6, "placement")
    more = ledger.affordable("a", placed(0.5, 0.1), DENSITIES[30])
    assert more == ledger.affordable("a", placed(0.5, 0.1), ONE) > 0
    assert (
        placement_epsilon(placed(0.5, 0.1), 40 + more, 9e-7)
        <= 10
        < placement_epsilon(placed(0.5, 0.1), 41 + more, 9e-7)
    )
    with pytest.raises(BudgetExceededError, match=f"num_draws must be at most {more} in account 'a'"):
        ledger.charge("a", placed(0.5, 0.1), more + 1, fingerprint=ONE)
    ledger.charge("a", placed(0.5, 0.1), more, fingerprint=DENSITIES[30])
    assert ledger.spent("a").epsilon <= 10
    with pytest.raises(BudgetExceededError, match=r"account 'a' is spent: epsilon 9\.\d+ of 10"):
        ledger.charge("a", placed(0.5, 0.1), 1, fingerprint=ONE)
    assert ledger.verify().ok


def test_it_bears_more_than_other_rules_that_allow_several_fits(ledger: Ledger) -> None:
    numbers = {}
    for rule in ("pure", "zcdp", "placement"):
        ledger.open_account(rule, 10.0, 1e-6, rule)
        numbers[rule] = ledger.affordable(rule, placed(0.5, 0.1), ONE)
    assert numbers["pure"] == 20
    assert numbers["placement"] > 3 * numbers["zcdp"]


def test_few_draws_add_up_as_people_do(ledger: Ledger) -> None:
    ledger.open_account("a", 0.3, 1e-9, "placement")
    guarantee = Guarantee(0.1)
    assert ledger.affordable("a", guarantee, ONE) == 3
    charge = ledger.charge("a", guarantee, 3, fingerprint=ONE)
    assert charge.spent is not None and charge.spent.epsilon <= 0.3
    assert ledger.affordable("a", guarantee, ONE) == 0


@pytest.mark.parametrize(
    ("other", "number"),
    [
        (placed(0.4), "epsilon=0.4 and total variation 0.113"),
        (placed(0.6), "epsilon=0.6 and total variation 0.164"),
        (placed(0.5, 0.31), "epsilon=0.5 and total variation 0.143"),
        (placed(0.5, 0.29), "epsilon=0.5 and total variation 0.134"),
        (Guarantee(0.5), "epsilon=0.5 and total variation 0.244"),
        (Guarantee(0.5, log_ratio_range=0.5), "epsilon=0.5 and total variation 0.124"),
    ],
)
def test_another_setting_is_refused(ledger: Ledger, other: Guarantee, number: str) -> None:
    ledger.open_account("a", 10.0, 1e-6, "placement")
    ledger.charge("a", placed(0.5), 1, fingerprint=ONE)
    assert ledger.affordable("a", other, TWO) == 0
    with pytest.raises(BudgetExceededError) as caught:
        ledger.charge("a", other, 1, fingerprint=TWO)
    text = str(caught.value)
    assert text.startswith("guarantee must have epsilon=0.5 and total variation 0.139") and number in text
    assert "the first charge to account 'a' fixed" in text
    assert "Nothing was charged" in text and "an account with the rule 'zcdp'" in text
    assert not shows_part(text, ONE) and not shows_part(text, TWO)
    assert len(ledger.charges("a")) == 1
    assert ledger.verify().ok


@pytest.mark.parametrize("skew", [0.07, 0.3, 0.5, 0.83])
@pytest.mark.parametrize("epsilon", [0.1, 0.162442, 1.0, 3.7])
def test_fits_at_other_deltas_have_the_same_setting(epsilon: float, skew: float) -> None:
    """Their tolerances differ, and with them the last digits of epsilon and total variation."""
    account, tallies = account_of(100.0, 1e-3, 5e-4), []
    for number, delta in enumerate([1e-12, 1e-9, 3e-8, 1e-6, 1e-5]):
        guarantee = calibrated_guarantee(*plan_certificate(epsilon, delta, skew))
        tallies.append(Tally(DENSITIES[number], guarantee, 1))
    assert len({setting(tally.guarantee) for tally in tallies}) == 1
    assert is_affordable(account, tallies)
    expected = placement_epsilon(placed(epsilon, skew), 5, 5e-4)
    assert spent_by(account, tallies).epsilon == pytest.approx(min(expected, 5 * epsilon), rel=1e-7)


def test_certificates_have_their_part(ledger: Ledger) -> None:
    ledger.open_account("a", 10.0, 1e-6, "placement", 3e-9)
    for density in (ONE, TWO):
        ledger.charge("a", placed(0.5), 3, fingerprint=density)
    with pytest.raises(BudgetExceededError) as caught:
        ledger.charge("a", placed(0.5, delta=2e-9), 3, fingerprint=THREE)
    assert "the densities charged before have left 1e-09 of it" in str(caught.value)
    assert "needs no further certificate, or fit with a delta of at most 1e-09." in str(caught.value)
    ledger.charge("a", placed(0.5), 3, fingerprint=THREE)
    with pytest.raises(
        BudgetExceededError, match="Draw again from a density charged before, which needs no further certificate.$"
    ):
        ledger.charge("a", placed(0.5), 3, fingerprint=DENSITIES[5])
    ledger.charge("a", placed(0.5), 3, fingerprint=THREE)
    assert ledger.verify().ok


@pytest.mark.parametrize(("total", "num_draws"), [(0.5, 2), (3.0, 20), (10.0, 100), (1.0, 5000), (30.0, 3)])
@pytest.mark.parametrize("skew", [0.05, 0.3, 0.5])
def test_the_account_that_a_plan_names_bears_it(total: float, num_draws: int, skew: float) -> None:
    """As many draws, of one fit or several, with the guarantee that fits at the plan have."""
    plan = epsilon_per_draw(total, num_draws, 1e-6, skew=skew)
    if plan.account_rule != "placement":
        assert plan.account_rule == "pure" or plan.form == "a priori"
        return
    account = account_of(total, plan.total.delta, plan.delta)
    guarantee = calibrated_guarantee(*plan_certificate(plan.epsilon, plan.delta, skew))
    tallies = [Tally(ONE, guarantee, num_draws)]
    assert is_affordable(account, tallies)
    assert spent_by(account, tallies).epsilon <= total
    assert affordable_draws(account, [], guarantee, ONE) < 1.02 * num_draws + 1


def test_extremes() -> None:
    for guarantee in (Guarantee(0.0), Guarantee(1e-300), Guarantee(699.0), Guarantee(1e308), Guarantee(5.0, 0, 10, 0)):
        account = account_of(10.0, 1e-6)
        most = affordable_draws(account, [], guarantee, ONE)
        assert (most == 0) == (guarantee.epsilon > 10)
        assert spent_by(account, [Tally(ONE, guarantee, max(most, 1))]).epsilon <= (10.0 if most else math.inf)
    assert affordable_draws(account_of(10.0, 1e-6), [], Guarantee(0.0), ONE) == 10**12
    assert not is_affordable(account_of(1e6, 1e-6), [Tally(ONE, Guarantee(math.inf), 1)])


def test_a_forged_charge_of_another_setting_is_named(store: Store) -> None:
    with Ledger(store.url) as ledger:
        ledger.open_account("a", 10.0, 1e-6, "placement")
        for density in (ONE, TWO):
            ledger.charge("a", placed(0.5), 2, fingerprint=density)
    row = store.rows("mbde_charges")[-1]
    row.update(total_variation=0.001)
    row["hash"] = rehash("charge", row)
    with store.raw() as execute:
        change = "SET total_variation = 0.001, hash = ? WHERE fingerprint = ?"
        execute(f"UPDATE mbde_charges {change}", row["hash"], TWO)
        execute("UPDATE mbde_tallies SET total_variation = 0.001 WHERE fingerprint = ?", TWO)
        execute("UPDATE mbde_ledger SET hash = ?", row["hash"])
    with Ledger(store.url) as ledger:
        (problem,) = ledger.verify().problems
        assert problem.startswith("charges to account 'a' exceed its limits, from entry 3, the charge to account 'a'")
        assert ledger.spent("a").epsilon == 2.0
        with pytest.raises(BudgetExceededError, match="guarantee must have epsilon=0.5"):
            ledger.charge("a", placed(0.5), 1, fingerprint=THREE)


def random_law(rng: np.random.Generator, base: np.ndarray, low: float, high: float) -> np.ndarray:
    """Ratios to the base in [low, high] of mean 1, at the ends where possible."""
    ratio = np.where(rng.random(len(base)) < rng.random(), low, high)
    mean = float((ratio * base).sum())
    end = low if mean > 1 else high
    return ratio + (1 - mean) / (end - mean) * (end - ratio)


class HostileOwner:
    """Grows both laws of everything handed out, path by path; each path charges an account of its own.

    After every draw it may fit to another base, draw again from a density that it has, or stop, as what was drawn
    tells it. The worst pair, on which the bound is attained, is among its bases.
    """

    def __init__(self, seed: int, epsilon: float, skew: float, account: Account, failure: float, larger: float) -> None:
        self.rng, self.epsilon, self.skew, self.account = np.random.default_rng(seed), epsilon, skew, account
        self.failure, self.larger = failure, larger

    def pair(self) -> tuple[np.ndarray, np.ndarray]:
        low, high = math.exp(-self.skew * self.epsilon), math.exp((1 - self.skew) * self.epsilon)
        if self.rng.random() < 0.7:  # the three points
            tau = self.larger * placed_total_variation(self.epsilon, self.skew)
            down = tau / math.expm1(self.epsilon)
            p = np.array([down * math.exp(self.epsilon), down, 1 - down * (math.exp(self.epsilon) + 1)])
            q = p[[1, 0, 2]]
        else:
            base = self.rng.dirichlet(np.full(3, 0.7))
            p, q = (base * random_law(self.rng, base, low, high) for _ in range(2))
        return (p, q) if self.rng.random() < 0.5 else (q, p)

    def paths(self) -> list[tuple[float, float]]:
        """The masses of all paths under two tables; a certificate that fails shows which of the two it is."""
        guarantee = Guarantee(
            self.epsilon, self.failure, total_variation=placed_total_variation(self.epsilon, self.skew)
        )
        ended: list[tuple[float, float]] = []
        open_paths: list[tuple[float, float, list[Tally], tuple[np.ndarray, np.ndarray] | None]] = [(1, 1, [], None)]
        while open_paths:
            p, q, tallies, pair = open_paths.pop()
            new = pair is None or self.rng.random() < 0.5
            fingerprint = DENSITIES[len(tallies)] if new else tallies[-1].fingerprint
            more = Tally(fingerprint, guarantee, 1)
            after = [*tallies, more] if new else [*tallies[:-1], more._replace(num_draws=tallies[-1].num_draws + 1)]
            if not is_affordable(self.account, after) or self.rng.random() < 0.02:
                ended.append((p, q))
                continue
            if new:
                pair = self.pair()
                ended += [(p * self.failure, 0.0), (0.0, q * self.failure)]
                p, q = p * (1 - self.failure), q * (1 - self.failure)
            assert pair is not None
            open_paths += [(p * x, q * y, after, pair) for x, y in zip(*pair, strict=True) if x or y]
        return ended


def worst_excess(account: Account, epsilon: float, skew: float, failure: float, larger: float = 1.0) -> float:
    """The largest Pr[S] - e^epsilon Pr[S'] that many owners find, over all events S of what is handed out."""
    worst = 0.0
    for seed in range(30):
        p, q = np.array(HostileOwner(seed, epsilon, skew, account, failure, larger).paths()).T
        assert p.sum() == pytest.approx(1) and q.sum() == pytest.approx(1)
        for one, other in ((p, q), (q, p)):
            worst = max(worst, float(np.maximum(one - math.exp(account.epsilon) * other, 0).sum()))
    return worst


@pytest.mark.parametrize(("epsilon", "skew", "total"), [(0.7, 0.3, 1.6), (1.2, 0.1, 1.3), (0.4, 0.5, 1.25)])
@pytest.mark.parametrize("failure", [0.0, 0.004])
def test_attack_by_fits_chosen_on_the_way(epsilon: float, skew: float, total: float, failure: float) -> None:
    """Whatever is looked at, everything handed out is within the account's epsilon and delta; and nearly uses them.

    Proof: docs/proofs.md, *Accounts*.
    """
    guarantee = Guarantee(epsilon, total_variation=placed_total_variation(epsilon, skew))
    rest = next(d for d in np.geomspace(1e-4, 0.5, 400) if placement_epsilon(guarantee, 4, d) <= total)
    account = account_of(total, rest + 4 * failure, 4 * failure)
    worst = worst_excess(account, epsilon, skew, failure)
    assert worst <= account.delta * (1 + 1e-9)
    assert worst > 0.9 * account.delta


def test_the_attack_finds_laws_that_are_further_apart_than_was_charged() -> None:
    epsilon, skew, total = 0.7, 0.3, 1.6
    guarantee = Guarantee(epsilon, total_variation=placed_total_variation(epsilon, skew))
    rest = next(d for d in np.geomspace(1e-4, 0.5, 400) if placement_epsilon(guarantee, 4, d) <= total)
    account = account_of(total, rest, 0.0)
    assert worst_excess(account, epsilon, skew, 0.0, larger=1.1) > 1.05 * account.delta


@pytest.mark.parametrize("seed", range(3))
def test_attack_by_random_charges(ledger: Ledger, seed: int) -> None:
    """What was granted, added up again by other code, is never past the limit."""
    generator = random.Random(seed)
    epsilon, delta, size = generator.choice([1.0, 4.0]), generator.choice([1e-7, 1e-3]), generator.choice([0.05, 0.3])
    account = ledger.open_account("a", epsilon, delta, "placement")
    num_draws, certificates, seen, refused = 0, 0.0, set(), 0
    for _ in range(30):
        skew, certificate = generator.choice([0.2, 0.2, 0.2, 0.4]), generator.choice([delta / 50, delta / 400])
        one, density = placed(size, skew, certificate), generator.choice(DENSITIES)
        affordable = ledger.affordable("a", one, density)
        asked = generator.choice([1, max(affordable // 4, 1), affordable + 1])
        try:
            ledger.charge("a", one, asked, fingerprint=density)
        except BudgetExceededError:
            assert asked > affordable
            refused += 1
            continue
        assert asked <= affordable
        num_draws += asked
        certificates += certificate if (density, certificate) not in seen else 0.0
        seen.add((density, certificate))
        fixed = one
    assert refused and num_draws
    assert certificates <= account.certificate_delta * (1 + 1e-12)
    rest = delta - account.certificate_delta
    total = compose(Guarantee(fixed.epsilon, total_variation=fixed.total_variation), num_draws, rest).epsilon
    assert total <= epsilon * (1 + 1e-8)
    assert ledger.verify().ok
