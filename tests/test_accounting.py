"""Several draws: closed forms, and attacks by exact enumeration on a finite base."""

from __future__ import annotations

import itertools
import math

import pytest

from pyro_mbde import Guarantee, TotalCost, compose
from pyro_mbde.mollifier import Bounds, a_priori_guarantee


def two_point_law(mass: float, tilts: tuple[float, float]) -> tuple[float, float]:
    """The law q0 e^f / e^phi on two points, q0 giving ``mass`` to the first."""
    weights = mass * math.exp(tilts[0]), (1 - mass) * math.exp(tilts[1])
    return weights[0] / sum(weights), weights[1] / sum(weights)


def test_closed_forms() -> None:
    assert compose(Guarantee(0.5, 0.0, 0.5), 20) == TotalCost(10.0, 0.0, "pure composition")
    calibrated = compose(Guarantee(0.1, 1e-3, 0.2), 20)
    assert calibrated.epsilon == pytest.approx(2.0 + math.log(1 / (1 - 1e-3)))
    assert calibrated.delta == 1e-3


@pytest.mark.parametrize("count", [0, -3])
def test_counts(count: int) -> None:
    with pytest.raises(ValueError, match="num_draws must be at least 1"):
        compose(Guarantee(1.0), count)


@pytest.mark.parametrize("num_draws", [1, 2, 5])
@pytest.mark.parametrize("mass", [1e-9, 0.01, 0.5, 1 - 1e-9])
@pytest.mark.parametrize("bounds", [(-0.25, 0.25), (-0.3, 1.7), (0.0, 1.0)])
def test_attack_on_pure_composition(num_draws: int, mass: float, bounds: tuple[float, float]) -> None:
    """The worst log-ratio over all outcomes of k draws stays within the total, for the most hostile pair of tilts."""
    low, high = bounds
    law, other = two_point_law(mass, (high, low)), two_point_law(mass, (low, high))
    total = compose(a_priori_guarantee(Bounds(low, high)), num_draws)
    for outcome in itertools.product((0, 1), repeat=num_draws):
        log_ratio = sum(math.log(law[point]) - math.log(other[point]) for point in outcome)
        assert abs(log_ratio) <= total.epsilon * (1 + 1e-12)


def test_the_attack_comes_close() -> None:
    low, high = -0.25, 0.25
    law, other = two_point_law(1e-9, (high, low)), two_point_law(1e-9, (low, high))
    assert math.log(law[0] / other[0]) > 0.999 * a_priori_guarantee(Bounds(low, high)).epsilon


@pytest.mark.parametrize("delta", [1e-6, 0.01, 0.3])
@pytest.mark.parametrize("num_draws", [1, 3])
def test_attack_on_the_failing_certificate(delta: float, num_draws: int) -> None:
    """With probability delta the density is anything at all: the total, with its delta, still covers every event.

    The largest Pr[S] - e^epsilon Pr[S'] over events S is the sum of the positive parts over outcomes.
    """
    epsilon = 0.4
    good, good_other = (0.4, 0.6), (0.4 * math.exp(-epsilon), 1 - 0.4 * math.exp(-epsilon))
    bad, bad_other = (1.0, 0.0), (0.0, 1.0)
    total = compose(Guarantee(epsilon, delta), num_draws)
    excess = 0.0
    for outcome in itertools.product((0, 1), repeat=num_draws):
        law, other = (
            (1 - delta) * math.prod(fine[point] for point in outcome)
            + delta * math.prod(wild[point] for point in outcome)
            for fine, wild in ((good, bad), (good_other, bad_other))
        )
        excess += max(law - math.exp(total.epsilon) * other, 0.0)
    assert excess <= total.delta * (1 + 1e-12)
