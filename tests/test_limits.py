"""The best reachable density: closed forms, known values, and attacks by random members of the set."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from densities import Remembered

from pyro_mbde.calibration.projection import project
from pyro_mbde.density.bounds import Bounds, clip_score
from pyro_mbde.experiments.problems import Problem, mixture_1d, ring, ring_tight
from pyro_mbde.limits import best_reachable
from pyro_mbde.metrics import quadrature_grid
from pyro_mbde.theory import gain_limit


def test_best_gain_on_two_values_in_closed_form() -> None:
    """P uniform on a tenth of a uniform base: f is R/2 there and -R/2 elsewhere."""
    base, target = dist.Uniform(0.0, 1.0), dist.Uniform(0.0, 0.1, validate_args=False)
    width = 0.5
    expected = width / 2 - math.log(0.1 * math.exp(width / 2) + 0.9 * math.exp(-width / 2))
    assert best_reachable(target, base, 1.0, guarantee="a-priori", box=(0.0, 1.0)).gain == pytest.approx(
        expected, abs=1e-4
    )


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 5.0])
def test_nothing_in_the_interval_gains_more(epsilon: float) -> None:
    """Attack: random tilts around the best one, on the same grid."""
    target, base, box = dist.Normal(1.0, 0.3), dist.Normal(0.0, 1.0), (-6.0, 6.0)
    best = best_reachable(target, base, epsilon, guarantee="a-priori", box=box).gain
    points, volume = quadrature_grid(box, torch.Size([]), 40_000)
    p, q0 = target.log_prob(points).double().exp() * volume, base.log_prob(points).double().exp() * volume
    log_ratio = target.log_prob(points).double() - base.log_prob(points).double()
    for shift in torch.linspace(-2, 2, 41).tolist():
        for slope in (0.3, 1.0, 30.0):
            tilt = (slope * (log_ratio - shift)).clamp(-epsilon / 4, epsilon / 4)
            gain = float((p * tilt).sum() / p.sum() - ((q0 * tilt.exp()).sum() / q0.sum()).log())
            assert gain <= best + 1e-9
    assert best <= epsilon / 2


def test_best_gain_at_a_large_epsilon() -> None:
    target, base = dist.Normal(1.0, 1.0), dist.Normal(0.0, 1.0)
    for epsilon in (1e9, math.inf):
        assert best_reachable(target, base, epsilon, guarantee="a-priori", box=(-7.0, 8.0)).gain == pytest.approx(
            0.5, abs=1e-3
        )


def test_best_gain_where_both_densities_vanish() -> None:
    target, base = dist.Uniform(0.0, 1.0, validate_args=False), dist.Uniform(-1.0, 2.0, validate_args=False)
    expected = 0.25 - math.log(math.exp(0.25) / 3 + 2 * math.exp(-0.25) / 3)
    assert best_reachable(target, base, 1.0, guarantee="a-priori", box=(-3.0, 3.0)).gain == pytest.approx(
        expected, abs=1e-3
    )


@pytest.mark.parametrize(
    ("problem", "gains"),
    [
        pytest.param(
            ring,
            {0.05: 0.930, 0.1: 0.893, 0.2: 0.798, 0.3: 0.700, 0.4: 0.600, 0.5: 0.500, 0.7: 0.300},
            marks=pytest.mark.slow,
        ),
        (ring_tight, {0.05: 0.239, 0.1: 0.381, 0.2: 0.537, 0.3: 0.575, 0.4: 0.545, 0.5: 0.480, 0.7: 0.299}),
        (mixture_1d, {0.05: 0.127, 0.1: 0.209, 0.2: 0.331, 0.3: 0.413, 0.4: 0.460, 0.5: 0.453, 0.7: 0.298}),
    ],
)
def test_known_gains(problem: Callable[[], Problem], gains: dict[float, float]) -> None:
    """Computed independently, by quadrature, for these targets at epsilon = 1."""
    _, target, base, box, _ = problem()
    target, base = Remembered(target), Remembered(base)
    for skew, gain in gains.items():
        assert best_reachable(target, base, 1.0, skew, box=box).gain == pytest.approx(gain, abs=1.1e-3)
        assert gain <= gain_limit(1.0, skew)


@pytest.mark.parametrize(
    ("problem", "likelihoods"),
    [
        pytest.param(
            ring,
            {0.1: 10.288, 0.25: 10.213, 0.5: 10.088, 1.0: 9.838, 2.0: 9.338, 5.0: 7.853, 10.0: 5.683},
            marks=pytest.mark.slow,
        ),
        (mixture_1d, {0.1: 1.043, 0.25: 0.971, 0.5: 0.853, 1.0: 0.639, 2.0: 0.376, 5.0: 0.205, 10.0: 0.177}),
    ],
)
def test_known_likelihoods(problem: Callable[[], Problem], likelihoods: dict[float, float]) -> None:
    _, target, base, box, _ = problem()
    target, base = Remembered(target), Remembered(base)
    for epsilon, nll in likelihoods.items():
        assert best_reachable(target, base, epsilon, box=box).nll == pytest.approx(nll, abs=2e-3)


@pytest.mark.parametrize("guarantee", ["calibrated", "a-priori"])
def test_draws_agree_with_quadrature(guarantee: str) -> None:
    _, target, base, box, _ = ring_tight()
    exact = best_reachable(target, base, 1.0, 0.3, guarantee=guarantee, box=box)
    estimate = best_reachable(target, base, 1.0, 0.3, guarantee=guarantee)
    assert 0 < estimate.standard_error < 2e-3
    assert abs(estimate.gain - exact.gain) < 4.5 * estimate.standard_error
    assert abs(estimate.nll - exact.nll) < 4.5 * estimate.nll_standard_error
    assert 0 < estimate.nll_standard_error < 0.01


@pytest.mark.parametrize("skew", [0.05, 0.5, 0.9])
def test_a_large_epsilon_at_any_skew(skew: float) -> None:
    target, base = dist.Normal(1.0, 1.0), dist.Normal(0.0, 1.0)
    assert best_reachable(target, base, 1000.0, skew, box=(-7.0, 8.0)).gain == pytest.approx(0.5, abs=1e-3)


def test_no_support_in_common() -> None:
    target, base = (dist.Uniform(low, low + 1.0, validate_args=False) for low in (0.0, 2.0))
    with pytest.raises(ValueError, match="target must share a part of its support"):
        best_reachable(target, base, 1.0, box=(0.0, 3.0))


@pytest.mark.parametrize("skew", [0.1, 0.3, 0.5, 0.8])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_no_calibrated_density_gains_more(epsilon: float, skew: float) -> None:
    """Attack: other clips, shifted to integrate to 1, and mixtures of them, all inside the set."""
    target, base, box = dist.Normal(1.0, 0.3), dist.Normal(0.0, 1.0), (-6.0, 6.0)
    best = best_reachable(target, base, epsilon, skew, box=box).gain
    points, volume = quadrature_grid(box, torch.Size([]), 40_000)
    p, q0 = target.log_prob(points).double().exp() * volume, base.log_prob(points).double().exp() * volume
    p, q0 = p / p.sum(), q0 / q0.sum()
    score = target.log_prob(points).double() - base.log_prob(points).double()
    bounds = Bounds(-skew * epsilon, (1 - skew) * epsilon)
    members = []
    for slope in (0.2, 0.7, 1.0, 1.5, 30.0):
        for noise in (0.0, 0.5, 5.0):
            tried = slope * score + noise * (5 * points.double()).sin()
            u = clip_score(tried, project(tried, q0.log(), bounds), bounds).exp()
            assert float((q0 * u).sum()) == pytest.approx(1, abs=1e-9)
            members.append(u)
    members += [0.5 * (first + second) for first, second in zip(members, members[1:], strict=False)]
    for u in members:
        assert float((p * u.log()).sum()) <= best + 1e-6


def test_a_target_that_vanishes_where_the_base_does_not() -> None:
    """P fills a tenth of the base: there the tilt is at the top of the interval, so the gain is (1 - skew) epsilon."""
    base, target = dist.Uniform(0.0, 1.0), dist.Uniform(0.0, 0.1, validate_args=False)
    assert best_reachable(target, base, 1.0, box=(0.0, 1.0)).gain == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"skew": 1.0}, "skew must be"),
        ({"guarantee": "none"}, "guarantee must be"),
    ],
)
def test_arguments(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        best_reachable(dist.Normal(0.0, 1.0), dist.Normal(0.0, 1.0), **{"epsilon": 1.0, **options})
