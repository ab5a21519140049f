"""Draws of the base with their scores."""

from __future__ import annotations

import pytest
import torch
from densities import make_density, normal
from tqdm import tqdm

from pyro_mbde.calibration import scores as sampled_scores
from pyro_mbde.calibration.control import CellMeans
from pyro_mbde.calibration.draws import ScoredDraws
from pyro_mbde.calibration.scores import SampledScores
from pyro_mbde.density.base import prepare
from pyro_mbde.density.bounds import Bounds
from pyro_mbde.density.normalizer import NUM_REPLICATES


def test_the_bar_moves_while_draws_are_scored() -> None:
    """In steps that change no bit of the scores."""
    draws = ScoredDraws(prepare(normal(2)), make_density(normal(2))._tilt)
    moved: list[int] = []

    class Bar(tqdm):  # type: ignore[type-arg]  # the bar iterates over nothing
        def update(self, n: float | None = 1) -> bool | None:
            moved.append(int(n or 0))
            return None

    values = torch.randn(20_000, 2)
    scores, points = draws._scored(values, None, Bar(disable=True))
    assert moved == [8192, 8192, 3616]
    assert torch.equal(scores, draws.scores(values))
    assert points is None


def some_draws(num_draws: int = 64, num_dims: int = 3) -> SampledScores:
    points = torch.rand(num_draws, num_dims, dtype=torch.float64)
    return SampledScores.of_blocks([(points.sum(1), points)])


def test_joined_draws_have_equal_weights() -> None:
    first, second = some_draws(), some_draws()
    joined = first.joined(second)
    assert joined.scores.shape[1] == 2 * first.scores.shape[1]
    for scores in (first, joined):
        assert torch.equal(scores.weighted()[1], torch.zeros(scores.scores.numel(), dtype=torch.float64))
        assert scores.points is not None
        torch.testing.assert_close(scores.points.double().sum(-1), scores.scores, atol=1e-6, rtol=0)
    first.log_weights.add_(1.0)
    assert float(second.log_weights) == float(joined.log_weights) == 0


def test_points_are_kept_of_the_first_draws_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as memory has room for, in one set of draws or in several."""
    monkeypatch.setattr(sampled_scores, "_MAX_COORDINATES", 6 * 64)
    first, large = some_draws(), some_draws(256)
    assert large.points is not None
    assert large.points.shape == (NUM_REPLICATES, 8, 3)
    torch.testing.assert_close(large.points.double().sum(-1), large.scores[:, :8], atol=1e-6, rtol=0)
    twice = first.joined(some_draws())
    assert twice.points is not None
    assert twice.points.shape[1] == twice.scores.shape[1] == 8
    for joined in (twice.joined(some_draws()), first.joined(large)):
        assert joined.points is not None
        assert joined.points.shape[1] < joined.scores.shape[1]
        points = joined.points.flatten(0, 1)
        assert joined.controlled(CellMeans(points, points.sum(1).double())) is joined


def test_weights_give_a_control_variate_its_known_mean() -> None:
    """In every replicate; and what is near it is then known far better."""
    draws = some_draws(2**14)
    weighted = draws.with_known_mean(draws.scores, 1.5)
    assert float((draws.scores.mean(1) - 1.5).abs().max()) > 1e-3
    torch.testing.assert_close((weighted.log_weights.exp() * draws.scores).mean(1), torch.full((16,), 1.5).double())
    torch.testing.assert_close(weighted.log_weights.exp().mean(1), torch.ones(16).double())
    bounds = Bounds(-1.0, 1.0)
    errors = [each.log_normalizer(1.5, bounds).standard_error for each in (weighted, draws)]
    assert errors[0] < errors[1] / 3
    constant = draws.with_known_mean(torch.ones_like(draws.scores), 1.0)
    assert torch.equal(constant.log_weights, torch.zeros_like(draws.scores))
