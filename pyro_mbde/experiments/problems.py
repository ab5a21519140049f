"""The paper's targets, with exact densities and draws, each beside its base."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from torch import Tensor


class Problem(NamedTuple):
    """A target P with the public base Q0 it is learned from.

    Attributes:
        name: as in the figures.
        target: P.
        base: Q0, the standard normal of the paper.
        box: lower and upper edge of a cube that holds both, for quadrature.
    """

    name: str
    target: dist.TorchDistribution
    base: dist.TorchDistribution
    box: tuple[float, float]


def _ring(radius: float, scale: float) -> dist.TorchDistribution:
    """Eight equal normals on a circle."""
    angles = torch.arange(8) * (2 * math.pi / 8)
    centres = radius * torch.stack([angles.cos(), angles.sin()], -1)
    modes: Any = dist.Normal(centres, scale * torch.ones(8, 2))
    mixture: dist.TorchDistribution = dist.MixtureSameFamily(dist.Categorical(torch.ones(8)), modes.to_event(1))
    return mixture


def _standard_normal(num_dims: int) -> dist.TorchDistribution:
    normal: Any = dist.Normal(torch.zeros(num_dims), torch.ones(num_dims))
    base: dist.TorchDistribution = normal.to_event(1)
    return base


def ring() -> Problem:
    """Eight normals of covariance 0.5 I at radius 4: the base hardly meets them, so the privacy barrier decides."""
    return Problem("ring", _ring(4.0, math.sqrt(0.5)), _standard_normal(2), (-9.0, 9.0))


def ring_tight() -> Problem:
    """Eight normals of deviation 0.2 at radius 1.5, inside the base: learning decides."""
    return Problem("ring-tight", _ring(1.5, 0.2), _standard_normal(2), (-7.0, 7.0))


def mixture_1d() -> Problem:
    """The paper's 1-D mixture: means 0.3, 0.5, 0.7, variances 0.01, 0.1, 0.1."""
    variances: Tensor = torch.tensor([0.01, 0.1, 0.1])
    target = dist.MixtureSameFamily(
        dist.Categorical(torch.ones(3)), dist.Normal(torch.tensor([0.3, 0.5, 0.7]), variances.sqrt())
    )
    return Problem("mixture-1d", target, dist.Normal(0.0, 1.0), (-9.0, 9.0))


PROBLEMS = {problem().name: problem for problem in (ring, ring_tight, mixture_1d)}
