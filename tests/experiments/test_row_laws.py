"""The law of a row of a batch: known figures, and the same from draws of a real density."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from known_ratio import known_density
from torch import Tensor

from pyro_mbde.calibration.plan import plan_calibration
from pyro_mbde.density.base import prepare
from pyro_mbde.density.bounds import Bounds, clip_score, skewed_bounds
from pyro_mbde.experiments.row_laws import (
    RowLaw,
    histogram_distance,
    marginal_distances,
    total_variation_to,
)

_LEVELS = (torch.arange(2**16, dtype=torch.float64) + 0.5) / 2**16
NORMAL = torch.special.ndtri(_LEVELS)


def scores(mean: float, scale: float) -> tuple[Tensor, Tensor]:
    """Log p/q0 of N(mean, scale) over N(0, 1), at quantiles of either."""

    def score(x: Tensor) -> Tensor:
        return x.square() / 2 - ((x - mean) / scale).square() / 2 - math.log(scale)

    return score(NORMAL), score(mean + scale * NORMAL)


@pytest.mark.parametrize(
    ("total", "num_rows", "nats", "distance"),
    [(10, 10, 0.678, 0.148), (10, 20, 0.350, 0.289), (3, 3, 0.614, 0.274), (3, 10, 0.210, 0.428)],
)
def test_known_figures(total: float, num_rows: int, nats: float, distance: float) -> None:
    """Of N(1, .5) over N(0, 1) at skew .3, found elsewhere by simulating released rows."""
    at_base, at_target = scores(1.0, 0.5)
    law = RowLaw(at_base, num_rows, skewed_bounds(total, 0.3))
    assert law.gain(at_target) == pytest.approx(nats, abs=1e-3)
    assert total_variation_to(at_target, law.log_ratio(at_target)) == pytest.approx(distance, abs=3e-3)


@pytest.mark.parametrize("calibrated", [True, False])
@pytest.mark.parametrize("num_rows", [1, 2, 20])
def test_densities_integrate_to_one(num_rows: int, *, calibrated: bool) -> None:
    at_base, _ = scores(1.0, 0.5)
    law = RowLaw(at_base, num_rows, skewed_bounds(3.0, 0.3), calibrated=calibrated)
    assert float(law.log_ratio(at_base).exp().mean()) == pytest.approx(1.0, abs=1e-4)
    assert (abs(law.phi) < 1e-9) == calibrated


def test_a_single_row_is_clipped() -> None:
    at_base, at_target = scores(1.0, 0.5)
    law = RowLaw(at_base, 1, skewed_bounds(1.0, 0.3))
    expected = clip_score(at_target, law.shift, law.bounds) - law.phi
    assert torch.allclose(law.log_ratio(at_target), expected, atol=1e-9)
    assert law.gain(at_target) == pytest.approx(float(expected.mean()), abs=1e-9)


def test_rows_of_a_density_follow_the_law() -> None:
    """Drawn exactly from a certified batch density, and counted: as many above each place as the law says."""
    target, base = dist.Normal(1.0, 0.5), dist.Normal(0.0, 1.0)
    density = known_density(target, base, 3.0, 4)
    at_base, at_target = scores(1.0, 0.5)
    law = RowLaw(at_base, 4, plan_calibration(prepare(base), 3.0, 1e-9, 0.3, 4)[0])
    weights = law.log_ratio(at_base).exp()
    torch.manual_seed(0)
    drawn = density.sample((20_000,))
    for place in (-0.5, 0.0, 0.5, 1.0, 1.5):
        shares = (drawn > place).double().mean(1)  # rows of a batch depend on one another
        expected = float((weights * (place < NORMAL)).mean())
        assert float(shares.mean()) == pytest.approx(expected, abs=5 * float(shares.std()) / 20_000**0.5)
    known: Any = target
    batches = known.sample((50_000, 4))
    gains = density.log_prob(batches) - base.log_prob(batches).sum(-1)
    error = float(gains.std()) / 50_000**0.5
    assert 4 * law.gain(at_target) == pytest.approx(float(gains.mean()), abs=5 * error + 0.03)  # eta is .027


def test_accepted_batches_follow_the_law() -> None:
    at_base, _ = scores(1.0, 0.5)
    law = RowLaw(at_base, 4, skewed_bounds(3.0, 0.3))
    torch.manual_seed(0)
    places = torch.randint(len(at_base), (200_000, 4))
    kept = places[law.accepts(at_base[places])]
    rate = math.exp(-law.bounds.high)
    assert len(kept) / 200_000 == pytest.approx(rate, abs=5 * (rate / 200_000) ** 0.5)
    shares = (NORMAL[kept] > 0.5).double().mean(1)
    expected = float((law.log_ratio(at_base).exp() * (NORMAL > 0.5)).mean())
    assert float(shares.mean()) == pytest.approx(expected, abs=5 * float(shares.std()) / len(kept) ** 0.5)


def test_scores_far_out_do_not_overflow() -> None:
    far = torch.tensor([-300.0, 0.0, 300.0], dtype=torch.float64)
    law = RowLaw(far, 3, Bounds(-0.3, 0.7))
    found = law.log_ratio(far)
    assert bool(torch.isfinite(found).all())
    assert float(found.exp().mean()) == pytest.approx(1.0, abs=1e-3)


def test_total_variation_of_two_normals() -> None:
    at_base, at_target = scores(0.5, 1.0)
    assert total_variation_to(at_target, torch.zeros_like(at_target)) == pytest.approx(0.1974, abs=1e-3)
    assert histogram_distance(at_target, at_base) == pytest.approx(0.1974, abs=5e-3)


def test_weights_make_rows_count() -> None:
    generator = np.random.default_rng(0)
    table, rows = generator.uniform(0, 0.5, (4000, 2)), generator.uniform(0, 1, (8000, 2))
    weights = (rows < 0.5).all(1).astype(float)
    columns, pairs = marginal_distances(table, rows)
    assert columns == pytest.approx(0.5, abs=0.03)
    assert pairs == pytest.approx(0.75, abs=0.03)
    assert max(marginal_distances(table, rows, weights)) < 0.08  # chance
    assert math.isnan(marginal_distances(table[:, :1], rows[:, :1])[1])
