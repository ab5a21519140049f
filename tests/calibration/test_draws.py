"""Draws of the base with their scores."""

from __future__ import annotations

import torch
from densities import make_density, normal
from tqdm import tqdm

from pyro_mbde.calibration.draws import ScoredDraws
from pyro_mbde.calibration.scores import SampledScores
from pyro_mbde.density.base import prepare


def test_the_bar_moves_while_draws_are_scored() -> None:
    """In steps that change no bit of the scores."""
    draws = ScoredDraws(prepare(normal(2)), make_density(normal(2))._tilt)
    moved: list[int] = []

    class Bar(tqdm):  # type: ignore[type-arg]  # the bar iterates over nothing
        def update(self, n: float | None = 1) -> bool | None:
            moved.append(int(n or 0))
            return None

    values = torch.randn(20_000, 2)
    scores, cells = draws._scored(values, None, Bar(disable=True))
    assert moved == [8192, 8192, 3616]
    assert torch.equal(scores, draws.scores(values))
    assert len(cells) == 20_000


def test_joined_draws_have_equal_weights() -> None:
    blocks = [(torch.randn(64, dtype=torch.float64), torch.zeros(64, dtype=torch.int32)) for _ in range(2)]
    first, second = (SampledScores.of_blocks([block]) for block in blocks)
    joined = first.joined(second)
    assert joined.scores.shape[1] == 2 * first.scores.shape[1]
    for scores in (first, joined):
        assert torch.equal(scores.weighted()[1], torch.zeros(scores.scores.numel(), dtype=torch.float64))
    first.log_weights.add_(1.0)
    assert float(second.log_weights) == float(joined.log_weights) == 0
