"""A density that is constant on the cells of a grid and whose columns depend on each other along a tree."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_mbde.experiments.baselines.box import BoxDensity, to_unit
from pyro_mbde.experiments.baselines.common import describe_epsilon
from pyro_mbde.privacy.group import GroupGuarantee

Pair = tuple[int, int]


class MSTDensity(BoxDensity):
    r"""A tree-shaped Markov random field over bins, uniform inside each cell.

    With b the bins of a point, r the column at the root, E the edges from parents to children and u the share of the
    uniform density,

    .. math::
        q(x) = \frac{1}{\mathrm{volume}} \Bigl( u + (1 - u) \prod_j k \cdot
        P(b_r) \prod_{(i, j) \in E} P(b_j \mid b_i) \Bigr) ,

    k being the number of bins of each of the columns j. Draws and log-densities are exact. The gradient is 0, also on
    the edges of cells, where the density jumps.

    Args:
        low: lower edges of the box, shape () or (d,).
        high: upper edges.
        root: P of the first column, which is the root; float64 of shape ``(k,)``.
        edges: pairs of a parent and a child, each child once, after what leads to its parent.
        tables: for each edge the joint weights of the bins of parent and child, float64 of shape ``(k, k)``.
        uniform_share: u, in [0, 1).
        guarantee: of the density, all draws of it together.
    """

    def __init__(
        self,
        low: Tensor,
        high: Tensor,
        root: Tensor,
        edges: tuple[Pair, ...],
        tables: tuple[Tensor, ...],
        *,
        uniform_share: float,
        guarantee: GroupGuarantee,
    ) -> None:
        self.edges = edges
        self.uniform_share = uniform_share
        self._root = _normalize(root)
        self._conditionals = tuple(_normalize(table) for table in tables)
        super().__init__(low, high, guarantee)

    @property
    def num_bins(self) -> int:
        """Bins k of each column."""
        return len(self._root)

    def marginal(self, column: int) -> Tensor:
        """Returns the probabilities of a column's bins, float64 of shape ``(k,)``; the uniform share is in them."""
        marginals = {0: self._root}
        for (parent, child), table in zip(self.edges, self._conditionals, strict=True):
            marginals[child] = marginals[parent] @ table
        return self.uniform_share / self.num_bins + (1 - self.uniform_share) * marginals[column]

    def _log_density(self, rows: Tensor) -> Tensor:
        bins = bins_of(rows, self.low, self.high, self.num_bins)
        log_cells = self._root.log()[bins[:, 0]] + rows.shape[1] * math.log(self.num_bins)
        for (parent, child), table in zip(self.edges, self._conditionals, strict=True):
            log_cells = log_cells + table.log()[bins[:, parent], bins[:, child]]
        if self.uniform_share:
            share = log_cells.new_tensor(self.uniform_share)
            log_cells = torch.logaddexp(torch.log1p(-share) + log_cells, share.log())
        # Where it is constant its gradient is 0: said, so that what differentiates densities takes this one too.
        return log_cells - self._log_volume + (0.0 * rows).sum(1)

    def _draw(self, num_draws: int) -> Tensor:
        size = self.num_bins
        num_dims = len(self.edges) + 1
        bins = torch.empty(num_draws, num_dims, dtype=torch.long)
        if num_draws:
            bins[:, 0] = torch.multinomial(self._root, num_draws, replacement=True)
            for (parent, child), table in zip(self.edges, self._conditionals, strict=True):
                bins[:, child] = torch.multinomial(table[bins[:, parent]], 1).squeeze(1)
        uniform = torch.rand(num_draws, 1, dtype=torch.float64) < self.uniform_share
        bins = torch.where(uniform, torch.randint(size, bins.shape), bins)
        return self._from_unit((bins + torch.rand(bins.shape, dtype=torch.float64)) / size)

    def __repr__(self) -> str:
        """Shows the guarantee and public numbers."""
        return (
            f"MSTDensity({describe_epsilon(self.guarantee)}, num_bins={self.num_bins}, edges={self.edges}, "
            f"event_shape={tuple(self.event_shape)})"
        )


def bins_of(rows: Tensor, low: Tensor, high: Tensor, num_bins: int) -> Tensor:
    """Returns the bins of rows, those outside the box in its outermost ones.

    Example:
        >>> bins_of(torch.tensor([[-1.0], [0.3], [1.0]]), torch.tensor(0.0), torch.tensor(1.0), 4).flatten()
        tensor([0, 1, 3])
    """
    return (to_unit(rows, low, high) * num_bins).long().clamp(max=num_bins - 1)


def directed(pairs: list[Pair], num_dims: int) -> tuple[Pair, ...]:
    """Returns the edges of a tree from parents to children, column 0 at the root.

    Example:
        >>> directed([(1, 2), (0, 2)], 3)
        ((0, 2), (2, 1))
    """
    edges: list[Pair] = []
    reached, left = {0}, list(pairs)
    while len(reached) < num_dims:
        first, second = next(pair for pair in left if (pair[0] in reached) != (pair[1] in reached))
        left.remove((first, second))
        edges.append((first, second) if first in reached else (second, first))
        reached |= {first, second}
    return tuple(edges)


def _normalize(weights: Tensor) -> Tensor:
    """Probabilities along the last dimension; uniform ones where nothing has weight."""
    weights = weights.clamp(min=0)
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / torch.where(total > 0, total, 1.0), 1 / weights.shape[-1])
