"""What the rules of accounts allow: against other sums, at extremes, under random charges."""

from __future__ import annotations

import itertools
import math
import random
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import pytest
from ledger_stores import (
    CERTIFIED,
    DENSITIES,
    ONE,
    THREE,
    TWO,
    UNIT,
    shows_part,
)

from pyro_mbde import BudgetExceededError, Guarantee, Ledger, TotalCost, compose, compose_fits, epsilon_per_draw
from pyro_mbde.ledger.accounts import Tally, is_affordable, make_account, spent_by
from pyro_mbde.privacy.placement import placed_total_variation


def test_sums_are_those_of_decimals(ledger: Ledger) -> None:
    """In floats, three times 0.1 is above 0.3, and ten certificates of 1e-7 need not be 1e-6."""
    ledger.open_account("third", 0.3, 0.0)
    ledger.charge("third", UNIT, 3, fingerprint=ONE)
    assert ledger.spent("third") == TotalCost(0.3, 0.0, "pure composition")
    assert ledger.affordable("third", UNIT, ONE) == 0
    ledger.open_account("certificates", 100.0, 1e-6)
    for density in DENSITIES[1:11]:
        ledger.charge("certificates", Guarantee(0.1, 1e-7), 1, fingerprint=density)
    assert ledger.spent("certificates").delta == 1e-6
    assert ledger.affordable("certificates", Guarantee(0.1, 1e-7), DENSITIES[11]) == 0
    assert ledger.affordable("certificates", Guarantee(0.1, 1e-7), TWO) == 990
    with pytest.raises(BudgetExceededError, match="have used all of it, and .* has delta=1e-12"):
        ledger.charge("certificates", Guarantee(0.1, 1e-12), 1, fingerprint=DENSITIES[11])


@pytest.mark.parametrize(("rule", "num_draws"), [("pure", 10), ("zcdp", 10), ("placement", 10), ("iid", 10)])
def test_certificates_take_nothing_of_epsilon(ledger: Ledger, rule: str, num_draws: int) -> None:
    """Ten draws at 1 fit into an account of 10, as people add up; so does a plan of ten."""
    ledger.open_account("ten", 10.0, 1e-6, rule)
    charge = ledger.charge("ten", Guarantee(1.0, 1e-9, 1.0), num_draws, fingerprint=ONE)
    assert charge.spent is not None and charge.spent.epsilon <= 10.0
    assert rule != "pure" or ledger.affordable("ten", Guarantee(1.0, 1e-9, 1.0), ONE) == 0
    assert epsilon_per_draw(10.0, 10, 1e-6).epsilon == 1.0
    assert epsilon_per_draw(10.0, 6, 1e-6).epsilon == 1.66666  # rounded down


def test_a_certificate_counts_once_for_a_density(ledger: Ledger) -> None:
    ledger.open_account("pure", 10.0, 3e-8)
    for _ in range(5):
        ledger.charge("pure", CERTIFIED, 2, fingerprint=ONE)
    ledger.charge("pure", CERTIFIED, 2, fingerprint=TWO)
    assert ledger.spent("pure") == compose_fits([(CERTIFIED, 10), (CERTIFIED, 2)])
    assert ledger.affordable("pure", CERTIFIED, THREE) == 88
    assert ledger.affordable("pure", Guarantee(0.1, 2e-8), THREE) == 0


def test_pure_accounts_pay_no_certificate_without_delta(ledger: Ledger) -> None:
    ledger.open_account("pure", 10.0, 0.0)
    assert ledger.affordable("pure", CERTIFIED, ONE) == 0
    assert ledger.affordable("pure", UNIT, ONE) == 100


@pytest.mark.parametrize("rule", ["pure", "zcdp", "placement", "iid"])
def test_an_account_bears_default_densities_unless_told_otherwise(ledger: Ledger, rule: str) -> None:
    """100 and 1,000 certificates of 1e-9, the default of a fit."""
    account = ledger.open_account("a", 1e3, rule=rule)
    assert account.delta == 1e-6
    tallies = [Tally(str(number), Guarantee(0.01, 1e-9), 1) for number in range(1000)]
    assert is_affordable(account, tallies[: {"pure": 1000, "zcdp": 100, "placement": 100, "iid": 1}[rule]])


@pytest.mark.parametrize("certificate_delta", [0.0, 3e-8])
def test_zcdp_as_several_fits(ledger: Ledger, certificate_delta: float) -> None:
    account = ledger.open_account("zcdp", 7.0, 1e-6, "zcdp", certificate_delta)
    guarantees = [CERTIFIED, Guarantee(0.3, 2e-8, 0.6)] if certificate_delta else [UNIT, Guarantee(0.3)]
    ledger.charge("zcdp", guarantees[0], 20, fingerprint=ONE)
    ledger.charge("zcdp", guarantees[1], 5, fingerprint=TWO)
    ledger.charge("zcdp", guarantees[0], 10, fingerprint=ONE)
    expected = compose_fits([(guarantees[0], 30), (guarantees[1], 5)], 1e-6, "zcdp")
    spent = ledger.spent("zcdp")
    assert expected.epsilon <= spent.epsilon <= expected.epsilon * (1 + 1e-9)
    assert (spent.delta, spent.rule) == (1e-6, "zCDP")
    more = ledger.affordable("zcdp", guarantees[0], ONE)
    assert compose_fits([(guarantees[0], 30 + more), (guarantees[1], 5)], 1e-6, "zcdp").epsilon <= account.epsilon
    assert compose_fits([(guarantees[0], 31 + more), (guarantees[1], 5)], 1e-6, "zcdp").epsilon > account.epsilon
    ledger.charge("zcdp", guarantees[0], more, fingerprint=ONE)
    assert ledger.affordable("zcdp", guarantees[0], ONE) == 0
    assert ledger.spent("zcdp").epsilon <= account.epsilon


def test_iid_is_the_exact_curve_of_one_density(ledger: Ledger) -> None:
    account = ledger.open_account("iid", 3.0, 1e-6, "iid", CERTIFIED.delta)
    more = ledger.affordable("iid", CERTIFIED, ONE)
    assert compose(CERTIFIED, more, 1e-6).epsilon <= account.epsilon * (1 + 1e-4)
    assert compose(CERTIFIED, more + 1, 1e-6).epsilon > account.epsilon
    assert more > 1.05 * ledger.affordable("iid", Guarantee(0.1, 0.0, 0.2), ONE) or more >= 30
    ledger.charge("iid", CERTIFIED, 10, fingerprint=ONE)
    assert ledger.spent("iid").epsilon == pytest.approx(compose(CERTIFIED, 10, 1e-6).epsilon, rel=1e-4)
    assert ledger.affordable("iid", CERTIFIED, ONE) == more - 10
    assert ledger.affordable("iid", CERTIFIED, TWO) == 0
    match = "fingerprint must name the one density .* 'iid' is for, got another density. Nothing was .*rule 'zcdp'"
    with pytest.raises(BudgetExceededError, match=match) as caught:
        ledger.charge("iid", CERTIFIED, 1, fingerprint=TWO)
    assert not shows_part(str(caught.value), ONE) and not shows_part(str(caught.value), TWO)
    with pytest.raises(BudgetExceededError, match="guarantee must be that of account 'iid'.* Nothing was charged"):
        ledger.charge("iid", UNIT, 1, fingerprint=ONE)
    assert len(ledger.charges("iid")) == 1
    ledger.charge("iid", CERTIFIED, more - 10, fingerprint=ONE)
    assert ledger.spent("iid").epsilon <= account.epsilon
    with pytest.raises(BudgetExceededError, match="account 'iid' is spent: epsilon 2.* of 3. No more rows"):
        ledger.charge("iid", CERTIFIED, 1, fingerprint=ONE)


def test_iid_and_zcdp_bear_more_than_pure_and_iid_most(ledger: Ledger) -> None:
    numbers = {}
    for rule in ("pure", "zcdp", "iid"):
        ledger.open_account(rule, 8.0, 1e-6, rule)
        numbers[rule] = ledger.affordable(rule, UNIT, ONE)
    assert numbers["pure"] == 80
    assert numbers["pure"] < numbers["zcdp"] < numbers["iid"]


def test_certificates_are_set_aside_at_opening(ledger: Ledger) -> None:
    """What was not used for certificates does not buy draws."""
    account = ledger.open_account("zcdp", 8.0, 1e-3, "zcdp")
    assert account.certificate_delta == pytest.approx(1e-4)
    ledger.charge("zcdp", UNIT, 1, fingerprint=ONE)
    expected = compose_fits([(UNIT, 1)], 9e-4, "zcdp").epsilon
    assert ledger.spent("zcdp").epsilon == pytest.approx(expected, rel=1e-9)
    with pytest.raises(BudgetExceededError):
        ledger.charge("zcdp", Guarantee(0.1, 2e-4), 1, fingerprint=TWO)


@pytest.mark.parametrize("rule", ["pure", "zcdp", "iid"])
@pytest.mark.parametrize("seed", range(2))
def test_attack_by_random_charges(ledger: Ledger, rule: str, seed: int) -> None:
    """What was granted, added up again by other code, is never past the limit; and a little more would have been."""
    generator = random.Random(seed)
    delta = generator.choice([1e-7, 1e-4])
    epsilon = generator.choice([0.5, 3.0])
    account = ledger.open_account("attacked", epsilon, delta, rule)
    granted: list[tuple[str, Guarantee, int]] = []
    refusals = 0
    for _ in range(30):
        size, certificate = 10 ** generator.uniform(-3, 0), generator.choice([0.0, delta / 35, delta / 300])
        density, guarantee = generator.choice(DENSITIES), Guarantee(size, certificate, size * generator.choice([1, 2]))
        if rule == "iid" and granted:
            density, guarantee = granted[0][:2]
        affordable = ledger.affordable("attacked", guarantee, density)
        num_draws = generator.choice([1, max(affordable // 4, 1), affordable + 1])
        try:
            ledger.charge("attacked", guarantee, num_draws, fingerprint=density)
            assert num_draws <= affordable
            granted.append((density, guarantee, num_draws))
        except BudgetExceededError:
            assert num_draws > affordable
            refusals += 1
    assert granted and refusals
    certificates = sum(Fraction(repr(g.delta)) for g in {(density, g): g for density, g, _ in granted}.values())
    spent = ledger.spent("attacked")
    assert certificates <= Fraction(repr(account.certificate_delta))
    assert spent.epsilon <= epsilon and spent.delta <= delta
    if rule == "pure":
        exact = sum(num_draws * Fraction(repr(g.epsilon)) for _, g, num_draws in granted)
        assert exact <= Fraction(repr(epsilon))
        total = float(exact)
    elif rule == "zcdp":
        rho = sum(k * min(g.epsilon**2 / 2, (g.log_ratio_range or 0) ** 2 / 8) for _, g, k in granted)
        orders = [1 + 10 ** (step / 200) for step in range(-800, 1200)]
        rest = math.log(1 / (delta - account.certificate_delta))
        total = min(rho * a + (rest - math.log(a)) / (a - 1) + math.log1p(-1 / a) for a in orders)
        assert total <= epsilon * (1 + 1e-3)
    else:
        num_draws = sum(k for *_, k in granted)
        uncertified = Guarantee(granted[0][1].epsilon, 0.0, granted[0][1].log_ratio_range)
        total = compose(uncertified, num_draws, delta - account.certificate_delta).epsilon
        assert total <= epsilon * (1 + 1e-4)
    assert spent.epsilon == pytest.approx(total, rel=1e-3)
    assert ledger.verify().ok


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        ({"epsilon": 0}, ValueError, "epsilon must be above 0"),
        ({"epsilon": -1.0}, ValueError, "epsilon must be above 0"),
        ({"epsilon": math.nan}, ValueError, "epsilon must be above 0"),
        ({"epsilon": math.inf}, ValueError, "epsilon must be finite"),
        ({"epsilon": True}, TypeError, "epsilon must be a real number"),
        ({"epsilon": "1"}, TypeError, "epsilon must be a real number"),
        ({"delta": -1e-9}, ValueError, r"delta must be in \[0, 1\)"),
        ({"delta": 1.0}, ValueError, r"delta must be in \[0, 1\)"),
        ({"delta": math.nan}, ValueError, r"delta must be in \[0, 1\)"),
        ({"delta": False}, TypeError, "delta must be a real number"),
        ({"rule": "zcdp", "delta": 0}, ValueError, "delta must be above 0 under the rule 'zcdp'"),
        ({"rule": "renyi"}, ValueError, "rule must be one of pure, zcdp, placement, iid"),
        ({"rule": None}, TypeError, "rule must be a string"),
        ({"delta": 1e-6, "certificate_delta": 1e-7}, ValueError, "must equal delta under the rule 'pure'"),
        ({"rule": "iid", "delta": 1e-6, "certificate_delta": 1e-6}, ValueError, "be at least 0 and below delta"),
        ({"rule": "iid", "delta": 1e-6, "certificate_delta": -1e-7}, ValueError, "be at least 0 and below delta"),
        ({"rule": "iid", "delta": 1e-6, "certificate_delta": math.nan}, ValueError, "be at least 0 and below delta"),
        ({"rule": "iid", "delta": 1e-6, "certificate_delta": "0"}, TypeError, "must be a real number"),
        ({"rule": "zcdp", "delta": 1e-323, "certificate_delta": 5e-324}, ValueError, "be at least 0 and below delta"),
        ({"name": ""}, ValueError, "name must be at least one character"),
        ({"name": "a" * 201}, ValueError, "name must be at most 200 characters"),
        ({"name": "a\nb"}, ValueError, "name must consist of printable"),
        ({"name": " a"}, ValueError, "name must consist of printable"),
        ({"name": "a\0"}, ValueError, "name must consist of printable"),
        ({"name": "\ud800"}, ValueError, "name must consist of printable"),
        ({"name": b"a"}, TypeError, "name must be a string"),
        ({"name": "taken"}, ValueError, "name must be new to the ledger"),
        ({"name": "TAKEN"}, ValueError, "name must not look like that of another account, 'taken', got name='TAKEN'"),
        (
            {"name": "tak\u0435n"},
            ValueError,
            r"'taken', got name='tak\\u0435n'. Charge that account, or",
        ),
    ],
)
def test_odd_accounts_are_refused(ledger: Ledger, arguments: dict[str, Any], kind: type[Exception], match: str) -> None:
    ledger.open_account("taken", 1.0)
    with pytest.raises(kind, match=match):
        ledger.open_account(**{"name": "new", "epsilon": 1.0, **arguments})
    assert len(ledger.accounts()) == 1


def test_extremes(ledger: Ledger) -> None:
    ledger.open_account("a", 1e300, 0.5)
    assert ledger.affordable("a", Guarantee(0.0), ONE) == 10**12
    ledger.charge("a", Guarantee(-0.0), 10**12, fingerprint=ONE)
    assert ledger.affordable("a", Guarantee(0.0), ONE) == 0
    assert ledger.affordable("a", Guarantee(1e299, 5e-324), TWO) == 10
    ledger.charge("a", Guarantee(1e299, 5e-324), 10, fingerprint=TWO)
    ledger.open_account("tiny", 5e-324, 5e-324)
    ledger.charge("tiny", Guarantee(5e-324), 1, fingerprint=THREE)
    assert ledger.spent("tiny").epsilon == 5e-324
    assert ledger.verify().ok
    for name in ("a", "tiny"):
        assert len(ledger.charges(name)) == len({charge.number for charge in ledger.charges(name)})


@pytest.mark.parametrize(
    ("total", "num_draws", "delta"), [(3.0, 15, 1e-6), (10.0, 3, 0.0), (1.0, 500, 1e-6), (2.0, 10**6, 1e-6)]
)
def test_the_account_that_a_plan_names_bears_it(ledger: Ledger, total: float, num_draws: int, delta: float) -> None:
    plan = epsilon_per_draw(total, num_draws, delta)
    certificate_delta = None if plan.account_rule == "pure" else plan.delta
    ledger.open_account("a", total, plan.total.delta, plan.account_rule, certificate_delta)
    if plan.form == "calibrated":
        placed = placed_total_variation(plan.epsilon, plan.skew)
        guarantee = Guarantee(plan.epsilon, plan.delta, total_variation=placed)
    else:
        guarantee = Guarantee(plan.epsilon, plan.delta, plan.epsilon)
    assert ledger.charge("a", guarantee, num_draws, fingerprint=ONE).spent.epsilon <= total  # type: ignore[union-attr]  # which a charge tells


@pytest.mark.parametrize("fails", [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.3, 0.7)])
@pytest.mark.parametrize("rule", ["pure", "zcdp", "placement", "iid"])
@pytest.mark.parametrize("failure", [1e-3, 0.05])
def test_attack_by_certificates_that_fail(rule: str, failure: float, fails: tuple[float, float]) -> None:
    """Each fit is anything at all with some probability; a second one follows the first's row, except under iid.

    It may fail on one table more often than on the other, up to ``failure``. The largest Pr[S] - e^epsilon Pr[S'] over
    events S, by the positive parts over all paths, is within delta.

    Proof: docs/proofs.md, *Accounts*.
    """
    epsilon, spread = 0.4, 0.8
    p = math.expm1(-epsilon) / math.expm1(-spread)  # two points with log-ratios epsilon and epsilon - spread
    good, good_other = (p, 1 - p, 0.0, 0.0), (p * math.exp(-epsilon), 1 - p * math.exp(-epsilon), 0.0, 0.0)
    bad, bad_other = (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0)  # places that no fit reaches otherwise
    guarantee, delta = Guarantee(epsilon, failure, spread), 4 * failure
    num_fits, set_aside = 1 if rule == "iid" else 2, None if rule == "pure" else 2 * failure
    account = make_account("a", 50.0, delta, rule, set_aside, datetime(2026, 1, 1, tzinfo=UTC))
    tallies = [Tally(DENSITIES[index], guarantee, 2 // num_fits) for index in range(num_fits)]
    assert is_affordable(account, tallies)
    total = spent_by(account, tallies)

    def law(fine: tuple[float, ...], wild: tuple[float, ...], fails: float) -> dict[tuple[int, ...], float]:
        paths = list(itertools.product(range(4), repeat=2))
        fits = [(1 - fails, fine), (fails, wild)]
        if rule == "iid":  # two rows of one fit, which failed or did not
            return {path: sum(share * math.prod(fit[x] for x in path) for share, fit in fits) for path in paths}
        return {path: math.prod(sum(share * fit[x] for share, fit in fits) for x in path) for path in paths}

    ours, others = law(good, bad, fails[0] * failure), law(good_other, bad_other, fails[1] * failure)
    pairs = ((ours, others), (others, ours))
    excess = [sum(max(one[path] - math.exp(total.epsilon) * other[path], 0.0) for path in one) for one, other in pairs]
    assert max(excess) <= total.delta * (1 + 1e-12)
    assert rule != "pure" or max(excess) > 0.6 * total.delta  # the attack bites
