"""Whether one step of a kernel leaves a law unchanged, from exact draws; and kernels with a fault planted in one."""

from __future__ import annotations

import functools
import inspect
import math
import textwrap
from typing import Any, NamedTuple

import torch
from densities import normal
from scipy import stats
from torch import Tensor, nn

from pyro_mbde import MollifiedExpFamily

#: Half of the range of the tilt, in nats.
HEIGHT = 2.5
#: Edges of cells of both coordinates: finer around the step of the tilt.
EDGES = (torch.tensor([-0.6, 0.3, 0.9, 1.3, 1.6, 2.0]), torch.tensor([-1.0, -0.2, 0.5, 1.3]))
NUM_CELLS = 7 * 5


def tilt(x: Tensor) -> Tensor:
    """A steep step, off centre and bent, of 5 nats from side to side; ``x`` of shape ``(..., 2)``."""
    return HEIGHT * torch.tanh(8 * (x[..., 0] + 0.5 * (2 * x[..., 1]).sin() - 1.5))


class Steep(nn.Module):
    """The tilt as a statistic, of rows of two features."""

    def forward(self, features: Tensor) -> Tensor:
        return math.log(2) / HEIGHT * tilt(features).unsqueeze(-1)


def steep_density() -> MollifiedExpFamily:
    """The tilted normal as a density."""
    return MollifiedExpFamily.normalized(normal(2), Steep(), torch.tensor([HEIGHT / math.log(2)]))


def smooth_energy(params: dict[str, Tensor]) -> Tensor:
    """A standard normal's."""
    return params["x"].square().sum(-1) / 2


def exact_energy(params: dict[str, Tensor]) -> Tensor:
    """Of the tilted normal."""
    return smooth_energy(params) - tilt(params["x"])


@functools.cache
def exact_draws(num_draws: int) -> Tensor:
    """By rejection, written here; the same each time."""
    generator = torch.Generator().manual_seed(num_draws)
    kept: list[Tensor] = []
    while sum(map(len, kept)) < num_draws:
        x = torch.randn(2**18, 2, generator=generator)
        kept.append(x[torch.rand(len(x), generator=generator).log() < tilt(x) - HEIGHT])
    return torch.cat(kept)[:num_draws]


def cells(x: Tensor) -> Tensor:
    """The number of the cell of each row, below ``NUM_CELLS``."""
    first, second = (torch.bucketize(x[:, index].contiguous(), EDGES[index]) for index in (0, 1))
    return first * 5 + second


@functools.cache
def cell_shares() -> Tensor:
    """Probabilities of the cells, by quadrature."""
    axis = -6 + 12 * (torch.arange(1200, dtype=torch.float64) + 0.5) / 1200
    points = torch.cartesian_prod(axis, axis)
    masses = (-exact_energy({"x": points})).softmax(0)
    return torch.zeros(NUM_CELLS, dtype=torch.float64).index_add_(0, cells(points.float()), masses)


class Verdict(NamedTuple):
    """P values of one step from exact draws.

    Attributes:
        fit: the law after the step is the target, by chi-square on the cells.
        homogeneity: it is the law before the step, from the pairs of cells (Stuart and Maxwell).
        symmetry: as many go from each cell to another as come back (Bowker).
        moved: share of states that moved.
    """

    fit: float
    homogeneity: float
    symmetry: float
    moved: float


def judge(before: Tensor, after: Tensor) -> Verdict:
    """Compares states of shape ``(n, 2)`` before and after a step; cells with few states are one cell."""
    shares = cell_shares()
    groups = torch.where(shares * len(after) < 20, NUM_CELLS, torch.arange(NUM_CELLS)).unique(return_inverse=True)[1]
    size = int(groups.max()) + 1
    counts = torch.bincount(groups[cells(before)] * size + groups[cells(after)], minlength=size**2)
    counts = counts.reshape(size, size).double()
    expected = torch.zeros(size, dtype=torch.float64).index_add_(0, groups, shares * len(after))
    fit = float(((counts.sum(0) - expected).square() / expected).sum())
    both = counts + counts.T
    pairs = (both >= 20).triu(1)
    symmetry = float(((counts - counts.T)[pairs].square() / both[pairs]).sum())
    difference = (counts.sum(1) - counts.sum(0))[:-1]
    covariance = torch.diag(counts.sum(0) + counts.sum(1)) - both
    homogeneity = float(difference @ torch.linalg.lstsq(covariance[:-1, :-1], difference.unsqueeze(-1)).solution[:, 0])
    return Verdict(
        float(stats.chi2.sf(fit, size - 1)),
        float(stats.chi2.sf(homogeneity, size - 1)),
        float(stats.chi2.sf(symmetry, int(pairs.sum()))) if bool(pairs.any()) else 1.0,
        float((before != after).any(-1).double().mean()),
    )


def with_fault(kernel: type, method: str, right: str, wrong: str) -> type:
    """A subclass whose method has a piece of its source replaced.

    Args:
        kernel: the class.
        method: name of its method.
        right: the piece, which occurs once in the method.
        wrong: what stands in its place.
    """
    function = inspect.unwrap(getattr(kernel, method))
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(right) == 1, (method, right)
    scope: dict[str, Any] = dict(function.__globals__)
    exec(compile("from __future__ import annotations\n" + source.replace(right, wrong), "fault", "exec"), scope)
    return type(f"Faulty{kernel.__name__}", (kernel,), {method: scope[method]})


def min_p(verdict: Verdict) -> float:
    """The smallest of its p values."""
    values = verdict[:3]
    assert all(math.isfinite(value) for value in values)
    return min(values)
