"""Batches over a finite row base, whose law and log-normaliser can be summed over all tuples of rows."""

from __future__ import annotations

import functools
import itertools
import math

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pyro_mbde import MollifiedExpFamily
from pyro_mbde.calibration.placement import Calibrator
from pyro_mbde.calibration.plan import plan_calibration
from pyro_mbde.density.base import PreparedBase, prepare
from pyro_mbde.density.bounds import Bounds
from pyro_mbde.density.clipped_ratio import RATIO_SCALE

#: Scores of the four rows of a base, and their probabilities.
SCORES = torch.tensor([-1.5, -0.4, 0.3, 1.7], dtype=torch.float64)
PROBABILITIES = torch.tensor([0.45, 0.3, 0.15, 0.1], dtype=torch.float64)


class Lookup(nn.Module):
    """The score of a row, by its number."""

    def __init__(self, scores: Tensor = SCORES) -> None:
        super().__init__()
        self._scores = scores

    def forward(self, features: Tensor) -> Tensor:
        return self._scores[features.squeeze(-1).long()].unsqueeze(-1) / RATIO_SCALE


def finite_rows(dtype: torch.dtype = torch.float32) -> PreparedBase:
    return prepare(dist.Categorical(PROBABILITIES.to(dtype)))


def finite_batch(
    epsilon: float, num_rows: int, delta: float = 1e-6, skew: float = 0.3, dtype: torch.dtype = torch.float32
) -> MollifiedExpFamily:
    """A batch density over the four rows."""
    base = finite_rows(dtype)
    natural_params = torch.tensor([RATIO_SCALE], dtype=torch.float64)
    bounds, certificate = plan_calibration(base, epsilon, delta, skew, num_rows)
    return Calibrator(base, Lookup(), natural_params, progress=False).density(bounds, certificate, num_rows)


@functools.cache
def all_batches(num_rows: int, num_points: int = 4) -> Tensor:
    """Every tuple of rows, shape ``(num_points ** num_rows, num_rows)``."""
    return torch.tensor(list(itertools.product(range(num_points), repeat=num_rows)))


def exact_phi(num_rows: int, shift: float, bounds: Bounds, scores: Tensor = SCORES) -> float:
    """The log-normaliser of a batch, summed over all tuples."""
    batches = all_batches(num_rows)
    masses = PROBABILITIES[batches].prod(1)
    tilts = (scores[batches].sum(1) - shift).clamp(*bounds)
    return math.log(float((masses * tilts.exp()).sum()))


@functools.cache
def shift_of(num_rows: int, bounds: Bounds, phi: float) -> float:
    """The shift that gives a log-normaliser, to its last digits."""
    low, high = -50.0, 50.0
    for _ in range(70):
        shift = (low + high) / 2
        low, high = (shift, high) if exact_phi(num_rows, shift, bounds) > phi else (low, shift)
    return low


def exact_law(q: MollifiedExpFamily) -> Tensor:
    """Probabilities of :func:`all_batches` under the density, from the definition."""
    num_rows = q.event_shape[0]
    batches = all_batches(num_rows)
    tilts = q.shrinkage * (SCORES[batches].sum(1) - q.offset).clamp(*q.bounds)
    masses = PROBABILITIES[batches].prod(1) * tilts.exp()
    return masses / masses.sum()
