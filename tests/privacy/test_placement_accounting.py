"""Accounting by placement: tight, never below a brute force, and valid for fits chosen on the way."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from pyro_mbde.privacy.accounting import PLACEMENT, compose, epsilon_per_draw
from pyro_mbde.privacy.guarantee import Guarantee
from pyro_mbde.privacy.placement import (
    filled_share_skew,
    is_within_placement,
    largest_placed_epsilon,
    placed_total_variation,
    placement_epsilon,
)


def placed(epsilon: float, skew: float, delta: float = 0.0) -> Guarantee:
    return Guarantee(epsilon, delta, total_variation=placed_total_variation(epsilon, skew))


def excess(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def random_law(rng: np.random.Generator, base: np.ndarray, low: float, high: float) -> np.ndarray:
    """A law with ratios to the base in [low, high], mostly at the ends."""
    extreme = rng.random() < 0.7
    ratio = np.where(rng.random(len(base)) < 0.5, low, high) if extreme else rng.uniform(low, high, len(base))
    mean = float((ratio * base).sum())
    end = low if mean > 1 else high  # mixed with that end until the mean is 1
    return ratio + (1 - mean) / (end - mean) * (end - ratio)


@pytest.mark.parametrize(
    ("epsilon", "num_draws", "totals"),
    [
        (0.1, 1000, (19.05, 13.93, 7.28, 4.91)),
        (0.5, 100, (31.26, 23.45, 12.77, 8.87)),
        (1.0, 100, (74.94, 57.14, 30.79, 20.93)),
        (0.5, 20, (9.89, 8.05, 5.13, 3.93)),
    ],
)
def test_totals_of_several_places(epsilon: float, num_draws: int, totals: tuple[float, ...]) -> None:
    found = [placement_epsilon(placed(epsilon, skew), num_draws, 1e-6) for skew in (0.5, 0.3, 0.1, 0.05)]
    assert [round(total, 2) for total in found] == list(totals)


@pytest.mark.parametrize(
    ("total", "num_draws", "widths"),
    [(10.0, 20, (0.505, 0.600, 0.887, 1.118)), (10.0, 100, (0.194, 0.247, 0.408, 0.557))],
)
def test_widths_within_a_total(total: float, num_draws: int, widths: tuple[float, ...]) -> None:
    def largest(skew: float) -> float:
        return largest_placed_epsilon(total, num_draws, 1e-6, lambda epsilon: skew)

    assert [largest(skew) for skew in (0.5, 0.3, 0.1, 0.05)] == pytest.approx(list(widths), abs=6e-4)


@pytest.mark.parametrize("skew", [0.02, 0.3, 0.5, 0.9])
def test_one_draw_against_random_bases(skew: float) -> None:
    """For laws in one public interval neither total variation nor the curve of the pair is ever exceeded.

    Attack on docs/proofs.md, *Placement*.
    """
    rng = np.random.default_rng(round(100 * skew))
    closest = 0.0
    for _ in range(1000):
        epsilon = float(rng.uniform(0.05, 4))
        low = math.exp(-skew * epsilon)
        base = rng.dirichlet(np.full(rng.integers(2, 6), 0.7))
        p, q = (base * random_law(rng, base, low, low * math.exp(epsilon)) for _ in range(2))
        tau = placed_total_variation(epsilon, skew)
        for gamma in (0.0, epsilon / 3, epsilon * 0.9):
            bound = tau * (math.exp(epsilon) - math.exp(gamma)) / math.expm1(epsilon)
            assert excess(p, q, gamma) <= bound + 1e-12
            closest = max(closest, excess(p, q, gamma) / bound)
    assert closest > 0.9


@pytest.mark.parametrize(("epsilon", "skew", "num_draws"), [(0.5, 0.3, 4), (1.5, 0.1, 3), (0.2, 0.6, 5)])
def test_several_draws_against_a_sum_over_all_outcomes(epsilon: float, skew: float, num_draws: int) -> None:
    guarantee = placed(epsilon, skew)
    tau = guarantee.total_variation
    down = tau / math.expm1(epsilon)
    pair = [(1, down * math.exp(epsilon)), (-1, down), (0, 1 - down * (math.exp(epsilon) + 1))]
    for total in (0.0, epsilon, 1.7 * epsilon):
        delta = 0.0
        for outcome in itertools.product(pair, repeat=num_draws):
            loss = epsilon * sum(sign for sign, _ in outcome)
            delta += math.prod(mass for _, mass in outcome) * max(-math.expm1(total - loss), 0.0)
        assert is_within_placement(guarantee, num_draws, total, delta * (1 + 1e-6))
        assert not is_within_placement(guarantee, num_draws, total, delta * (1 - 1e-6))


@pytest.mark.parametrize(("epsilon", "skew"), [(0.7, 0.3), (1.2, 0.1), (0.4, 0.5)])
def test_fits_chosen_on_the_way(epsilon: float, skew: float) -> None:
    """A hostile owner picks each pair of densities, on another base, by what was drawn before."""
    rng = np.random.default_rng(3)
    low, guarantee, num_draws = math.exp(-skew * epsilon), placed(epsilon, skew), 3
    limits = {
        total: [
            delta for delta in np.geomspace(1e-6, 1, 60) if is_within_placement(guarantee, num_draws, total, delta)
        ][0]
        for total in (0.3 * epsilon, epsilon, 1.8 * epsilon)
    }
    closest = 0.0
    for _ in range(400):
        p, q = np.ones(1), np.ones(1)
        for _ in range(num_draws):
            pairs = []
            for _ in p:  # one base, and one pair of laws, for each outcome so far
                base = rng.dirichlet(np.full(3, 0.7))
                pairs.append([base * random_law(rng, base, low, low * math.exp(epsilon)) for _ in range(2)])
            p = np.concatenate([mass * pair[0] for mass, pair in zip(p, pairs, strict=True)])
            q = np.concatenate([mass * pair[1] for mass, pair in zip(q, pairs, strict=True)])
        for total, delta in limits.items():
            assert excess(p, q, total) <= delta
            closest = max(closest, excess(p, q, total) / delta)
    assert closest > 0.2


@pytest.mark.parametrize("skew", [0.02, 0.3, 0.5])
@pytest.mark.parametrize(("epsilon", "num_draws"), [(1e-9, 1000), (1e-3, 100_000), (3.0, 50), (650.0, 3)])
def test_extremes(skew: float, epsilon: float, num_draws: int) -> None:
    total = placement_epsilon(placed(epsilon, skew), num_draws, 1e-12)
    assert 0 <= total <= num_draws * epsilon
    assert placement_epsilon(placed(epsilon, skew), num_draws, 1e-300) >= total


@pytest.mark.parametrize(("total", "num_draws"), [(0.5, 2), (3.0, 20), (10.0, 100), (1.0, 5000), (30.0, 3)])
@pytest.mark.parametrize("filled_share", [None, 0.01, 0.2, 0.9])
def test_a_budget_costs_at_most_its_total(total: float, num_draws: int, filled_share: float | None) -> None:
    budget = epsilon_per_draw(total, num_draws, 1e-6, filled_share=filled_share)
    assert budget.total.epsilon <= total
    if budget.form == "calibrated":
        guarantee = placed(budget.epsilon, budget.skew, budget.delta)
        pure = compose(guarantee, num_draws)
        assert budget.total == (pure if pure.epsilon <= total else compose(guarantee, num_draws, 1e-6))
    assert budget.epsilon >= total / num_draws * (1 - 1e-5)


def test_compose_takes_the_place_into_account() -> None:
    total = compose(placed(0.1, 0.1, 1e-9), 1000, 1e-6)
    assert total.rule == PLACEMENT
    assert total.epsilon < compose(Guarantee(0.1, 1e-9), 1000, 1e-6).epsilon


def test_an_unstated_total_variation_is_the_largest_that_the_range_allows() -> None:
    """Two laws on two points, log-ratios r/2 and -r/2: tanh(r/4)."""
    for spread in (0.1, 1.0, 5.0):
        p = 1 / (1 + math.exp(-spread / 2))
        assert Guarantee(spread, log_ratio_range=spread).total_variation == pytest.approx(2 * p - 1)
    assert Guarantee(1.0, total_variation=0.9).total_variation == pytest.approx(math.tanh(0.5))


def test_filled_share_places_the_two_level_density() -> None:
    for epsilon, share in itertools.product((0.1, 1.0, 10.0, 600.0), (0.001, 0.2, 0.9)):
        skew = filled_share_skew(epsilon, share)
        assert 0 < skew < 1
        if epsilon < 100:
            mean = share * math.exp((1 - skew) * epsilon) + (1 - share) * math.exp(-skew * epsilon)
            assert mean == pytest.approx(1)
