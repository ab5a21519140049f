"""Projections: phi is 0, monotone roots, and inputs that are as wide as can be."""

from __future__ import annotations

import math

import pytest
import torch

from pyro_mbde.calibration.projection import project, project_a_priori, rank_last
from pyro_mbde.density.bounds import Bounds, clip_score, skewed_bounds


def phi(log_ratio: torch.Tensor, log_weights: torch.Tensor, shift: float, bounds: Bounds) -> float:
    """The log-normaliser, summed plainly."""
    weights = torch.softmax(log_weights.double(), 0)
    return math.log(float((weights * clip_score(log_ratio, shift, bounds).exp()).sum()))


SCORES = {
    "normal": lambda: torch.randn(5000, dtype=torch.float64),
    "wide": lambda: 1e4 * torch.randn(5000, dtype=torch.float64),
    "two values": lambda: torch.tensor([1e6, -1e6], dtype=torch.float64).repeat(500),
    "one far away": lambda: torch.cat([torch.zeros(999), torch.tensor([1e8])]).double(),
    "infinite": lambda: torch.cat([torch.randn(997), torch.tensor([math.inf, -math.inf, math.nan])]).double(),
    "narrow": lambda: 1e-9 * torch.randn(1000, dtype=torch.float64),
}


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("skew", [0.01, 0.3, 0.5, 0.99])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 30.0])
def test_roots(name: str, epsilon: float, skew: float) -> None:
    score, bounds = SCORES[name](), skewed_bounds(epsilon, skew)
    log_weights = torch.randn(len(score))
    shift = project(score, log_weights, bounds)
    reached = phi(score, log_weights, shift, bounds)
    # Where the score has no values to pass through, phi jumps over 0 within the resolution of the search.
    before, after = (phi(score, log_weights, shift + sign * 1e-6 * (1 + abs(shift)), bounds) for sign in (-1, 1))
    if name != "infinite" or epsilon <= 1:  # one point in a thousand at the top of a wide interval outweighs the rest
        assert after <= 0 <= before
    if name in ("normal", "narrow") or (name == "infinite" and epsilon <= 1):
        assert reached == pytest.approx(0, abs=1e-9)
    half = Bounds(-epsilon / 4, epsilon / 4)
    shift = project_a_priori(score, log_weights, half)
    reached = phi(score, log_weights, shift, half)
    assert -half.high <= shift <= -half.low
    if name in ("normal", "narrow", "infinite"):
        assert shift == pytest.approx(-reached, abs=1e-9)


def test_a_score_without_information_changes_nothing() -> None:
    score = torch.full((100,), 3.7, dtype=torch.float64)
    bounds = skewed_bounds(1.0, 0.3)
    assert float(clip_score(score, project(score, torch.zeros(100), bounds), bounds).abs().max()) < 1e-9


def test_points_that_the_target_never_visits_rank_last() -> None:
    score = torch.cat([torch.zeros(100), torch.full((900,), -torch.inf)]).double()
    bounds = Bounds(-0.5, 0.5)
    score = rank_last(score, bounds)
    shift = project(score, torch.zeros(1000), bounds)
    assert phi(score, torch.zeros(1000), shift, bounds) == pytest.approx(0, abs=1e-9)
    assert float(clip_score(score[:1], shift, bounds)) == 0.5


def test_clip() -> None:
    clipped = clip_score(torch.tensor([math.nan, math.inf, -math.inf, 1.2]), 1.0, Bounds(-0.25, 0.75))
    assert clipped.tolist() == pytest.approx([0.25, 0.75, -0.25, 0.2], abs=1e-6)
    assert clipped.dtype == torch.float64


@pytest.mark.parametrize("bounds", [Bounds(0.0, 1.0), Bounds(-1.0, 0.0)])
def test_bounds_without_room(bounds: Bounds) -> None:
    with pytest.raises(ValueError, match="bounds must hold 0 strictly between them"):
        project(torch.zeros(3), torch.zeros(3), bounds)
