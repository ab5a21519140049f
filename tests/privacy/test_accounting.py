"""Several draws: closed forms, and attacks by exact enumeration on a finite base."""

from __future__ import annotations

import itertools
import math

import pytest

from pyro_mbde import Guarantee, TotalCost, compose
from pyro_mbde.density.bounds import Bounds, a_priori_guarantee


def two_point_law(mass: float, tilts: tuple[float, float]) -> tuple[float, float]:
    """The law q0 e^f / e^phi on two points, q0 giving ``mass`` to the first."""
    weights = mass * math.exp(tilts[0]), (1 - mass) * math.exp(tilts[1])
    return weights[0] / sum(weights), weights[1] / sum(weights)


def test_closed_forms() -> None:
    assert compose(Guarantee(0.5, 0.0, 0.5), 20) == TotalCost(10.0, 0.0, "pure composition")
    assert compose(Guarantee(0.1, 1e-3, 0.2), 20) == TotalCost(2.0, 1e-3, "pure composition")
    assert compose(Guarantee(0.1), 3).epsilon == 0.3  # which three floats of 0.1 exceed
    assert compose(Guarantee(math.inf), 2).epsilon == math.inf


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


@pytest.mark.parametrize("extra_delta", [0.0, 0.02])
@pytest.mark.parametrize("delta", [1e-6, 0.01, 0.3])
@pytest.mark.parametrize("num_draws", [1, 3])
def test_attack_on_the_failing_certificate(delta: float, num_draws: int, extra_delta: float) -> None:
    """With probability up to delta the density is anything at all: the total, with its delta, covers every event.

    On docs/proofs.md, *Composition under a certificate that may fail*. How often it fails may differ between the
    tables. The largest Pr[S] - e^epsilon Pr[S'] over events S is the sum of the positive parts over outcomes: of
    places 0 and 1, and of 2 and 3, which no good fit reaches.
    """
    epsilon = 0.4
    p = math.expm1(-epsilon) / math.expm1(-2 * epsilon)  # two points with log-ratios epsilon and -epsilon
    edge = ((p, 1 - p, 0, 0), (p * math.exp(-epsilon), 1 - p * math.exp(-epsilon), 0, 0))
    sure = ((1, 0, 0, 0), (math.exp(-epsilon), 1 - math.exp(-epsilon), 0, 0))
    anywhere = [tuple(float(place == where) for place in range(4)) for where in range(4)]
    total = compose(Guarantee(epsilon, delta), num_draws, delta + extra_delta)
    worst = 0.0
    for good, good_other in (edge, sure):
        if extra_delta and good is sure[0]:
            continue  # its second place is within e^epsilon in one direction alone, where only pure composition holds
        for bad, bad_other in itertools.product(anywhere, repeat=2):
            for failure, other_failure in itertools.product((0.0, delta), repeat=2):
                excess = 0.0
                for outcome in itertools.product(range(4), repeat=num_draws):
                    law, other = (
                        (1 - fails) * math.prod(fine[point] for point in outcome)
                        + fails * math.prod(wild[point] for point in outcome)
                        for fine, wild, fails in ((good, bad, failure), (good_other, bad_other, other_failure))
                    )
                    excess += max(law - math.exp(total.epsilon) * other, 0.0)
                worst = max(worst, excess)
    assert worst <= total.delta + 1e-15
    assert worst > 0.9 * delta  # the attack bites
