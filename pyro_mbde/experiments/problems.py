"""Targets with exact densities and draws: the paper's, several scales at once, more dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_mbde._checks import argument_error, check_choice


class Problem(NamedTuple):
    """A target P with the public base Q0 it is learned from.

    Attributes:
        name: as in the figures.
        target: P.
        base: Q0, the standard normal of the paper.
        box: lower and upper edge of a cube that holds both, for quadrature; None beyond two dimensions.
        bounds: lower and upper edge of a cube that holds P, the public range of baselines on a box; None where none is
            compared.
    """

    name: str
    target: dist.TorchDistribution
    base: dist.TorchDistribution
    box: tuple[float, float] | None
    bounds: tuple[float, float] | None = None


def _ring(radius: float, scale: float) -> dist.TorchDistribution:
    """Eight equal normals on a circle."""
    angles = torch.arange(8) * (2 * math.pi / 8)
    centres = radius * torch.stack([angles.cos(), angles.sin()], -1)
    return _normals([1.0] * 8, centres.tolist(), [[scale] * 2] * 8)


def _standard_normal(num_dims: int) -> dist.TorchDistribution:
    normal: Any = dist.Normal(torch.zeros(num_dims), torch.ones(num_dims))
    base: dist.TorchDistribution = normal.to_event(1)
    return base


def ring() -> Problem:
    """Eight normals of covariance 0.5 I at radius 4: the base hardly meets them, so the privacy barrier decides."""
    return Problem("ring", _ring(4.0, math.sqrt(0.5)), _standard_normal(2), (-9.0, 9.0), (-8.0, 8.0))


def ring_tight() -> Problem:
    """Eight normals of deviation 0.2 at radius 1.5, inside the base: learning decides."""
    return Problem("ring-tight", _ring(1.5, 0.2), _standard_normal(2), (-7.0, 7.0), (-3.0, 3.0))


def mixture_1d() -> Problem:
    """The paper's 1-D mixture: means 0.3, 0.5, 0.7, variances 0.01, 0.1, 0.1."""
    variances: Tensor = torch.tensor([0.01, 0.1, 0.1])
    target = dist.MixtureSameFamily(
        dist.Categorical(torch.ones(3)), dist.Normal(torch.tensor([0.3, 0.5, 0.7]), variances.sqrt())
    )
    return Problem("mixture-1d", target, dist.Normal(0.0, 1.0), (-9.0, 9.0), (-2.0, 3.0))


def random_1d(num_modes: int, seed: int) -> Problem:
    """The paper's random normals: centres even in [0, 1], variance 0.01, equal weights."""
    centres = torch.rand(num_modes, generator=torch.Generator().manual_seed(seed))
    target = dist.MixtureSameFamily(dist.Categorical(torch.ones(num_modes)), dist.Normal(centres, torch.tensor(0.1)))
    return Problem(f"random-1d-{num_modes}", target, dist.Normal(0.0, 1.0), (-9.0, 9.0), (-0.7, 1.7))


def random_2d(seed: int) -> Problem:
    """Eight normals of the ring's width, centres even in [-4, 4]^2. How many there are, the paper does not say."""
    centres = 8 * torch.rand(8, 2, generator=torch.Generator().manual_seed(seed)) - 4
    target = _normals([1.0] * 8, centres.tolist(), [[math.sqrt(0.5)] * 2] * 8)
    return Problem("random-2d", target, _standard_normal(2), (-9.0, 9.0), (-8.0, 8.0))


def _normals(weights: list[float], centres: list[list[float]], scales: list[list[float]]) -> dist.TorchDistribution:
    """A mixture of normals with independent coordinates."""
    modes: Any = dist.Normal(torch.tensor(centres), torch.tensor(scales))
    mixture: dist.TorchDistribution = dist.MixtureSameFamily(dist.Categorical(torch.tensor(weights)), modes.to_event(1))
    return mixture


def spikes() -> Problem:
    """Five spikes of deviation 0.08 on a broad hump: two scales, ten times apart."""
    centres = [[0.0, 0.0], [1.0, 0.0], [-1.0, 0.5], [0.0, 1.2], [0.5, -1.0], [-1.2, -1.0]]
    target = _normals([0.5, 0.1, 0.1, 0.1, 0.1, 0.1], centres, [[0.8] * 2] + [[0.08] * 2] * 5)
    return Problem("spikes", target, _standard_normal(2), (-6.0, 6.0))


def unequal() -> Problem:
    """Four modes of unequal mass and width, the smallest with 3 per cent."""
    centres = [[0.0, 0.0], [1.5, 1.5], [-1.5, 1.0], [1.0, -1.8]]
    target = _normals([0.7, 0.2, 0.07, 0.03], centres, [[scale] * 2 for scale in (0.5, 0.3, 0.15, 0.1)])
    return Problem("unequal", target, _standard_normal(2), (-6.0, 6.0))


def stripes() -> Problem:
    """Nine stripes of deviation 0.06 along one coordinate, as wide as the base along the other."""
    places = [-3 + 0.75 * index for index in range(9)]
    weights = [math.exp(-place * place / 2) for place in places]
    target = _normals(weights, [[place, 0.0] for place in places], [[0.06, 1.0]] * 9)
    return Problem("stripes", target, _standard_normal(2), (-6.0, 6.0))


def claw() -> Problem:
    """The claw of Marron and Wand (1992): five narrow normals on a standard one."""
    target = dist.MixtureSameFamily(
        dist.Categorical(torch.tensor([0.5] + [0.1] * 5)),
        dist.Normal(torch.tensor([0.0, -1.0, -0.5, 0.0, 0.5, 1.0]), torch.tensor([1.0] + [0.1] * 5)),
    )
    return Problem("claw", target, dist.Normal(0.0, 1.0), (-8.0, 8.0))


def _mixture(num_dims: int) -> Problem:
    """Four normals of deviation 0.6 whose centres have every coordinate at +-0.8, in patterns that differ by halves."""
    patterns = [[1 if (index >> (bit % 2)) & 1 else -1 for bit in range(num_dims)] for index in range(4)]
    centres = [[0.8 * sign * (1 if place % 3 else -1) for place, sign in enumerate(signs)] for signs in patterns]
    target = _normals([0.4, 0.3, 0.2, 0.1], centres, [[0.6] * num_dims] * 4)
    return Problem(f"mixture-{num_dims}d", target, _standard_normal(num_dims), None)


#: Where figures are measured.
EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
#: The three domains of the figures; targets of several scales at once; more dimensions.
DOMAINS = {problem().name: problem for problem in (ring, ring_tight, mixture_1d)}
SCALES = {problem().name: problem for problem in (spikes, unequal, stripes, claw)}
DIMENSIONS = {f"mixture-{num_dims}d": partial(_mixture, num_dims) for num_dims in (5, 10)}
PROBLEMS: dict[str, Callable[[], Problem]] = {**DOMAINS, **SCALES, **DIMENSIONS}
#: The paper's, whose places depend on a seed.
RANDOM: dict[str, Callable[[int], Problem]] = {
    **{f"random-1d-{num_modes}": partial(random_1d, num_modes) for num_modes in range(1, 11)},
    "random-2d": random_2d,
}


def find_problem(name: str, seed: int = 0) -> Problem:
    """Returns a problem by its name.

    Args:
        name: of :data:`PROBLEMS` or :data:`RANDOM`. With ``-box`` added, the base is uniform on the public range that
            baselines on a box are told: the same public knowledge for all.
        seed: of the places of a random one.

    Example:
        >>> find_problem("mixture-1d-box").base
        Uniform(low: -2.0, high: 3.0)
    """
    check_choice("name", name.removesuffix("-box"), (*PROBLEMS, *RANDOM))
    if not name.endswith("-box"):
        return RANDOM[name](seed) if name in RANDOM else PROBLEMS[name]()
    problem = find_problem(name.removesuffix("-box"), seed)
    if problem.bounds is None:
        raise ValueError(argument_error("name", "be of a problem with public bounds", name))
    low, high = (torch.full(problem.base.event_shape, edge) for edge in problem.bounds)
    uniform: Any = dist.Uniform  # Pyro leaves it unannotated
    return Problem(name, problem.target, uniform(low, high).to_event(low.dim()), problem.bounds, problem.bounds)
