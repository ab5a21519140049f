"""The rules of accounting against brute force on two points, against other accountants, and inverted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pyro_mbde import DrawBudget, Guarantee, TotalCost, compose, compose_fits, epsilon_per_draw
from pyro_mbde.privacy.accounting import EXACT, PURE, ZCDP
from pyro_mbde.privacy.iid import iid_epsilon, is_within
from pyro_mbde.privacy.placement import placed_total_variation

EPSILONS, COUNTS, DELTAS = (0.01, 0.1, 1.0, 5.0), (1, 2, 10, 100, 1000), (1e-9, 1e-6, 1e-3)
LONGEST_SHARES = [pytest.param(10_000, share, marks=pytest.mark.slow) for share in (1.0, 1.5, 2.0)]
LONGEST = pytest.param(10_000, marks=pytest.mark.slow)


def worst_delta(epsilon: float, spread: float, num_draws: int, total: float) -> float:
    """The largest Pr[S] - e^total Pr[S'] over pairs on two points and over S, by scipy's binomial tails."""
    low, high = max(0.0, spread - epsilon), min(spread, epsilon)
    shares = np.concatenate([np.linspace(0, 1, 1001), 1 - np.logspace(-7, -1, 500), np.logspace(-7, -1, 500)])
    t = low + (high - low) * shares
    p = np.expm1(t - spread) / np.expm1(-spread)
    j = np.floor((total - num_draws * t) / spread + num_draws) + 1
    tail: Any = stats.binom.sf
    with np.errstate(over="ignore", invalid="ignore"):
        deltas = tail(j - 1, num_draws, p) - math.exp(total) * tail(j - 1, num_draws, p * np.exp(-t))
    return float(np.nanmax(deltas))


@pytest.mark.parametrize(
    ("num_draws", "share"),
    [*((count, share) for count in COUNTS for share in (1.0, 2.0)), (100, 1.5), *LONGEST_SHARES],
)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_exact_curve_against_brute_force(epsilon: float, num_draws: int, share: float) -> None:
    """Never below the truth, and within 0.1 per cent of it."""
    guarantee = Guarantee(epsilon, log_ratio_range=share * epsilon)
    for delta in DELTAS:
        total = iid_epsilon(guarantee, num_draws, delta)
        assert total <= num_draws * epsilon
        if total > 600:  # e^total is past what floats hold
            continue
        # Differences of tails lose digits: 1e-12 of the tails is more than the deltas asked of at k = 10,000.
        assert worst_delta(epsilon, share * epsilon, num_draws, total) <= delta * (1 + 1e-6) + 1e-15
        if total < num_draws * epsilon * (1 - 1e-9) and total > 0:
            assert worst_delta(epsilon, share * epsilon, num_draws, total * (1 - 1e-3)) > delta


def test_check_values() -> None:
    for epsilon, num_draws, exact, zcdp in [(0.1, 10, 0.629, 0.700), (0.1, 100, 2.25, 2.42), (0.1, 1000, 8.301, 8.846)]:
        guarantee = Guarantee(epsilon, log_ratio_range=epsilon)
        assert compose(guarantee, num_draws, 1e-6).epsilon == pytest.approx(exact, rel=2e-3)
        assert compose_fits([(guarantee, num_draws)], 1e-6, "zcdp").epsilon == pytest.approx(zcdp, rel=1e-3)


@pytest.mark.parametrize("num_points", [2, 3, 4])
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 10))])
def test_no_pair_of_laws_costs_more(seed: int, num_points: int) -> None:
    """Attack: random laws within the guarantee, often at its edges; all events of up to 8 draws, by multinomials.

    On docs/proofs.md, *The exact curve of i.i.d. draws*.
    """
    generator = np.random.default_rng(seed)
    for _ in range(10):
        law = generator.dirichlet(np.full(num_points, 0.3)) + 1e-12
        tilt = np.where(generator.random(num_points) < 0.7, generator.choice([0.0, 1.0], num_points), 0.3)
        other = law * np.exp(tilt)
        law, other = law / law.sum(), other / other.sum()
        log_ratios = np.log(law / other)
        guarantee = Guarantee(
            float(np.abs(log_ratios).max()),
            log_ratio_range=float(min(np.ptp(log_ratios), 2 * np.abs(log_ratios).max())),
        )
        num_draws = int(generator.integers(1, 9))
        delta = float(10 ** generator.uniform(-4, -0.5))
        total = compose(guarantee, num_draws, delta)
        laws = [stats.multinomial(num_draws, one / one.sum()) for one in (law, other)]
        counts = np.indices([num_draws + 1] * num_points).reshape(num_points, -1).T
        counts = counts[counts.sum(1) == num_draws]
        first, second = (one.pmf(counts) for one in laws)
        for left, right in ((first, second), (second, first)):
            assert np.maximum(left - math.exp(total.epsilon) * right, 0).sum() <= delta * (1 + 1e-9)


@pytest.mark.parametrize(("epsilon", "num_draws"), [(0.1, 1000), (0.1, 100), (1.0, 10)])
def test_against_another_accountant(epsilon: float, num_draws: int) -> None:
    """Google's dp-accounting: zCDP through RDP, and the privacy-loss distribution of one pair on two points."""
    accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import privacy_loss_distribution
    from dp_accounting.rdp import RdpAccountant

    guarantee = Guarantee(epsilon, log_ratio_range=epsilon)
    rdp = RdpAccountant(orders=1 + np.exp(np.linspace(-4, 8, 2000)))
    rdp.compose(accounting.ZCDpEvent(epsilon**2 / 8), num_draws)
    assert compose_fits([(guarantee, num_draws)], 1e-6, "zcdp").epsilon == pytest.approx(
        rdp.get_epsilon(1e-6), rel=1e-5
    )
    others = []
    for t in np.linspace(0.05, 0.95, 19 if num_draws < 1000 else 7) * epsilon:
        p = math.expm1(t - epsilon) / math.expm1(-epsilon)
        laws = ({"a": p, "b": 1 - p}, {"a": p * math.exp(-t), "b": 1 - p * math.exp(-t)})
        logs = [{point: math.log(mass) for point, mass in law.items()} for law in laws]
        pair = privacy_loss_distribution.from_two_probability_mass_functions(
            *logs,
            value_discretization_interval=epsilon / 1000,
        )
        others.append(pair.self_compose(num_draws).get_epsilon_for_delta(1e-6))
    # Ours is the worst of all t, not only of these.
    exact = iid_epsilon(guarantee, num_draws, 1e-6)
    assert exact == pytest.approx(max(others), rel=0.01)  # which are rounded up


@pytest.mark.parametrize("delta", [0.0, 1e-9, 1e-3])
@pytest.mark.parametrize(
    "num_draws",
    [1, 10, LONGEST, 10**12, *(pytest.param(number, marks=pytest.mark.slow) for number in (3, 1000, 10**6))],
)
@pytest.mark.parametrize("total", [1e-3, 0.5, 10.0, 300.0])
def test_inverse(total: float, num_draws: int, delta: float) -> None:
    budget = epsilon_per_draw(total, num_draws, delta)
    assert (1 - 1e-3) * total <= budget.total.epsilon <= total
    assert budget.total.delta <= delta
    assert budget.epsilon >= (1 - 1e-5) * total / num_draws
    if budget.form == "a priori":
        guarantee = Guarantee(budget.epsilon, budget.delta, budget.epsilon)
    else:
        variation = placed_total_variation(budget.epsilon, budget.skew)
        guarantee = Guarantee(budget.epsilon, budget.delta, total_variation=variation)
    pure = compose(guarantee, num_draws)  # which is preferred: it takes less of delta
    assert budget.total == (pure if pure.epsilon <= total else compose(guarantee, num_draws, delta))


@pytest.mark.parametrize("total", [1e7, 1e18, 1e154, 1e300])
@pytest.mark.parametrize("num_draws", [1, 3, 10_000])
def test_inverse_of_huge_totals(total: float, num_draws: int) -> None:
    budget = epsilon_per_draw(total, num_draws, 1e-6)
    assert budget.total.epsilon <= total
    assert budget.epsilon >= total / num_draws * (1 - 1e-3)


def test_form_and_skew() -> None:
    assert epsilon_per_draw(1.0, 1) == DrawBudget(
        pytest.approx(1.0), 0.0, "a priori", 0.3, TotalCost(pytest.approx(1.0), 0.0, PURE)
    )
    assert epsilon_per_draw(1.0, 1, 1e-6).form == "calibrated"
    assert epsilon_per_draw(1.0, 1000, 1e-6).form == "calibrated"  # as its place is public
    # Where a share a is filled, the tilt that gains most has log-normaliser 0.
    for share in (1e-3, 0.2, 0.9):
        budget = epsilon_per_draw(2.0, 1, 1e-6, filled_share=share)
        assert budget.form == "calibrated"
        low, high = -budget.skew * budget.epsilon, (1 - budget.skew) * budget.epsilon
        if 0.01 < budget.skew < 0.99:
            assert share * math.exp(high) + (1 - share) * math.exp(low) == pytest.approx(1, rel=1e-6)


def test_every_rule_is_the_least_somewhere() -> None:
    guarantee = Guarantee(1.0, log_ratio_range=1.0)
    assert compose(guarantee, 2).rule == PURE
    assert compose(guarantee, 100, 1e-6).rule == EXACT
    assert compose(guarantee, 10**6, 1e-6).rule == ZCDP


def test_certificates_enter_the_sum() -> None:
    certified = Guarantee(0.1, 1e-7, 0.2)
    total = compose(certified, 1000, 1e-6)
    assert total.delta == 1e-6
    assert total.epsilon == pytest.approx(iid_epsilon(certified, 1000, 9e-7), rel=1e-4)  # the same pair of laws
    fits = compose_fits([(certified, 10), (certified, 20)])
    assert fits.delta == pytest.approx(2e-7)
    assert fits.epsilon == 3.0
    with pytest.raises(ValueError, match="delta must be at least that of the certificates"):
        compose(certified, 10, 1e-8)
    with pytest.raises(ValueError, match="delta must be above that of the certificates"):
        compose_fits([(certified, 10)], 1e-7, "zcdp")


def test_fits_of_one_table_do_not_use_the_exact_curve() -> None:
    """Two fits, the second chosen by the first's draws: the worst pair of each draw may differ."""
    guarantee = Guarantee(0.1, log_ratio_range=0.1)
    two = compose_fits([(guarantee, 500), (guarantee, 500)], 1e-6, "zcdp")
    assert two.epsilon > compose(guarantee, 1000, 1e-6).epsilon
    assert compose_fits([(guarantee, 2), (guarantee, 3)]).epsilon == pytest.approx(0.5)
    assert compose_fits([]) == TotalCost(0.0, 0.0, PURE)


@pytest.mark.parametrize("rule", ["pure", "zcdp"])
def test_attack_by_adaptive_fits(rule: str) -> None:
    """The second draw's law is chosen by the first: of two laws at the edges, the one that makes the event worse.

    Every event over the two outcomes is covered, by the positive parts over the tree.
    """
    epsilon = 0.7
    t_values = np.linspace(0.05, 0.65, 13)

    def pair(t: float) -> tuple[tuple[float, float], tuple[float, float]]:
        p = math.expm1(t - epsilon) / math.expm1(-epsilon)
        return (p, 1 - p), (p * math.exp(-t), 1 - p * math.exp(-t))

    guarantee = Guarantee(epsilon, log_ratio_range=epsilon)
    total = compose_fits([(guarantee, 1), (guarantee, 1)], 0.05 if rule == "zcdp" else 0.0, rule)
    worst = 0.0
    for first in t_values:
        law, other = pair(first)
        excess = 0.0
        for outcome in (0, 1):
            excess += max(
                sum(
                    max(law[outcome] * a - math.exp(total.epsilon) * other[outcome] * b, 0.0)
                    for a, b in zip(*pair(t), strict=True)
                )
                for t in t_values
            )
        worst = max(worst, excess)
    assert worst <= total.delta + 1e-12


@pytest.mark.parametrize("epsilon", [0.0, 1e-300, 1e-13, 1e-9, 700.0, 1e200, math.inf])
@pytest.mark.parametrize("num_draws", [1, 7, LONGEST])
def test_extremes(epsilon: float, num_draws: int) -> None:
    for share in (0.0, 1e-9, 1.0, 2.0):
        spread = None if math.isinf(epsilon) else share * epsilon
        total = compose(Guarantee(epsilon, log_ratio_range=spread), num_draws, 1e-6)
        assert 0 <= total.epsilon <= num_draws * epsilon or (epsilon == 0 and total.epsilon == 0)
        assert not math.isnan(total.epsilon)


def test_proof_refuses_what_is_too_little() -> None:
    guarantee = Guarantee(0.1, log_ratio_range=0.1)
    exact = iid_epsilon(guarantee, 100, 1e-6)
    assert is_within(guarantee, 100, exact, 1e-6)
    assert not is_within(guarantee, 100, 0.999 * exact, 1e-6)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0.0, 1), "epsilon must be above 0"),
        ((math.inf, 1), "total_epsilon must be finite"),
        ((math.nan, 1), "epsilon must be above 0"),
        ((1.0, 0), "num_draws must be at least 1"),
        ((1.0, 1, 1.0), r"delta must be in \[0, 1\)"),
    ],
)
def test_arguments(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        epsilon_per_draw(*arguments)
