"""What is publicly known of one column, as a distribution with an inverse distribution function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions import TorchDistribution, constraints
from torch import Tensor

from pyro_mbde._checks import argument_error, check_choice, check_number
from pyro_mbde.serialization import register_distribution

#: Kinds of columns: numbers on an interval, whole numbers, levels with and without an order.
KINDS = ("real", "integer", "ordered", "category")
#: Pieces that the density of a column is made of, at most.
MAX_CELLS = 4096


class ColumnSupport(constraints.Constraint):
    """The values of columns: an interval or its whole numbers, and the value that stands for a missing one.

    Args:
        low: smallest values, shape ``(...)``.
        high: largest values.
        discrete: where only whole numbers are values, bool of the same shape.
        missing_value: what stands for a missing value.
        has_missing: where there may be missing values, bool.
    """

    def __init__(self, low: Tensor, high: Tensor, discrete: Tensor, missing_value: Tensor, has_missing: Tensor) -> None:
        self.low, self.high, self.discrete = low, high, discrete
        self.missing_value, self.has_missing = missing_value, has_missing
        self.is_discrete = bool((discrete | has_missing).any())
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """Whether values may be those of a column, bool of the broadcast shape."""
        inside: Tensor = (self.low <= value) & (value <= self.high) & (~self.discrete | (value == value.round()))
        return inside | (self.has_missing & (value == self.missing_value))

    def __repr__(self) -> str:
        """Shows the ranges, which are public."""
        return f"ColumnSupport(low={self.low.tolist()}, high={self.high.tolist()}, discrete={self.discrete.tolist()})"


@register_distribution
class Marginal(TorchDistribution):
    r"""The public distribution of one column: a density that is linear between edges.

    A whole number n stands for the cell [n, n + 1) and has its mass; so does the code of a level, 0 to L - 1. A missing
    value is one more point, of mass ``missing_share``.

    Args:
        edges: rising, shape ``(K + 1,)``; of a column of numbers in modelled units.
        left: density at the lower edge of each cell, at least 0, shape ``(K,)``. What the density integrates to is
            divided out.
        right: density at the upper edge of each cell.
        kind: ``real``, ``integer``, ``ordered`` or ``category``.
        missing_share: probability of a missing value, in [0, 1).
        periods: of a date: after how many of its units the season, the week or the day begins again.
        validate_args: as for any distribution.

    Example:
        >>> edges, left, right = torch.tensor([0.0, 20.0, 111.0]), torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.0])
        >>> age = Marginal(edges, left, right, "integer")
        >>> age.log_prob(torch.tensor([0.0, 110.0])).exp()
        tensor([1.5267e-02, 8.3886e-05])
    """

    arg_constraints: dict[str, Any] = {}

    def __init__(
        self,
        edges: Tensor,
        left: Tensor,
        right: Tensor,
        kind: str = "real",
        missing_share: float = 0.0,
        periods: Sequence[float] = (),
        validate_args: bool | None = None,
    ) -> None:
        self.edges, self.left, self.right = edges, left, right
        self.kind = check_choice("kind", kind, KINDS)
        self.missing_share = check_number("missing_share", missing_share, "be in [0, 1)", lambda share: 0 <= share < 1)
        self.periods = list(periods)
        if edges.dim() != 1 or not 2 <= len(edges) <= MAX_CELLS + 1 or not bool((edges.diff() > 0).all()):
            raise ValueError(argument_error("edges", f"rise, 2 to {MAX_CELLS + 1} of them", tuple(edges.shape)))
        if left.shape != right.shape or len(left) != len(edges) - 1:
            shapes = tuple(left.shape), tuple(right.shape)
            raise ValueError(argument_error("left and right", f"have shape ({len(edges) - 1},)", shapes))
        densities = torch.cat([left, right]).double()
        bad = (~((densities >= 0) & torch.isfinite(densities))).nonzero()
        if len(bad) or not bool(densities.any()):
            found = "0 everywhere"
            if len(bad):
                side, place = divmod(int(bad[0]), len(left))
                found = f"{('left', 'right')[side]}[{place}]={float(densities[bad[0]])}"
            raise ValueError(f"left and right must be finite, at least 0, and not all 0, got {found}.")
        if self.is_discrete and not bool((edges == edges.round()).all()):
            raise ValueError(argument_error("edges", "be whole numbers for discrete values", edges))
        super().__init__(torch.Size(), torch.Size(), validate_args=validate_args)
        self._table = MarginalTable([self])

    @property
    def is_discrete(self) -> bool:
        """Whether values are whole numbers or codes of levels."""
        return self.kind != "real"

    @property
    def low(self) -> float:
        """Smallest value."""
        return float(self.edges[0])

    @property
    def high(self) -> float:
        """Largest value."""
        return float(self.edges[-1]) - self.is_discrete

    @property
    def missing_value(self) -> float:
        """What stands for a missing value: as far below the range as it is wide."""
        return float(self.edges[0] - (self.edges[-1] - self.edges[0]))

    @property
    def num_values(self) -> int | None:
        """Number of values, a missing one included; None for a column of real numbers."""
        return round(self.high - self.low) + 1 + (self.missing_share > 0) if self.is_discrete else None

    @property
    def is_flat(self) -> bool:
        """Whether the density is the same everywhere."""
        return bool((self.left == self.left[0]).all() and (self.right == self.left[0]).all())

    @constraints.dependent_property
    def support(self) -> Any:
        """Its values."""
        support = self._table.support
        return ColumnSupport(*(part.squeeze(0) for part in vars(support).values() if isinstance(part, Tensor)))

    def cdf_interval(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what the distribution function rises from and to at values; equal for a point of an interval.

        Args:
            value: shape ``(...)``, in the support.

        Returns:
            Two float64 tensors of shape ``(...)`` in [0, 1].
        """
        low, high = self._table.cdf_intervals(value.unsqueeze(-1))
        return low.squeeze(-1), high.squeeze(-1)

    def from_uniforms(self, uniforms: Tensor) -> Tensor:
        """Returns the values at points of the unit interval; uniform points give draws."""
        return self._table.from_uniforms(uniforms.unsqueeze(-1)).squeeze(-1)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008  # torch's own signature
        """Returns draws of shape ``sample_shape``."""
        shape = torch.Size(sample_shape)
        return self.from_uniforms(torch.rand(shape, dtype=torch.float64, device=self.edges.device))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of real numbers, log-probability of points; -inf elsewhere where validation is off."""
        if self._validate_args:
            self._validate_sample(value)
        return self._table.log_prob(value.unsqueeze(-1)).squeeze(-1).to(self.edges.dtype)


class MarginalTable:
    """The marginals of several columns, evaluated together in float64.

    Args:
        marginals: d of them.
    """

    def __init__(self, marginals: Sequence[Marginal]) -> None:
        self.dtype = marginals[0].edges.dtype
        device = marginals[0].edges.device
        self.num_cells = torch.tensor([len(one.left) for one in marginals], device=device)
        size = int(self.num_cells.max())
        like = torch.zeros(len(marginals), size, dtype=torch.float64, device=device)
        # Beyond a column's last cell: edges and cumulative masses that no value reaches.
        self._edges = torch.cat([like, like[:, :1]], 1) + torch.inf
        self._cumulative = self._edges.clone()
        self._left, self._right, self._widths = like.clone(), like.clone(), like + 1
        for index, one in enumerate(marginals):
            edges, left, right = one.edges.double(), one.left.double(), one.right.double()
            widths = edges.diff()
            masses = widths * (left + right) / 2
            total, count = masses.sum(), len(left)
            self._edges[index, : count + 1] = edges
            self._left[index, :count], self._right[index, :count] = left / total, right / total
            self._widths[index, :count] = widths
            self._cumulative[index, 0] = 0
            self._cumulative[index, 1 : count + 1] = (masses / total).cumsum(0).clamp(max=1)
            self._cumulative[index, count] = 1

        def of(values: list[Any], dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        self.discrete = of([one.is_discrete for one in marginals], torch.bool)
        self.missing_share = of([one.missing_share for one in marginals])
        self.missing_value = of([one.missing_value for one in marginals])
        self.low, self.high = of([one.low for one in marginals]), of([one.high for one in marginals])
        # Made once: what it looks up in tensors cannot be traced.
        self.support = ColumnSupport(self.low, self.high, self.discrete, self.missing_value, self.missing_share > 0)

    def from_uniforms(self, uniforms: Tensor) -> Tensor:
        """Returns values, in the columns' dtype, at points of the unit cube; both of shape ``(..., d)``."""
        flat = uniforms.reshape(-1, uniforms.shape[-1]).T.double()
        share = self.missing_share.unsqueeze(1)
        missing = flat < share
        level = ((flat - share) / (1 - share)).clamp(0, 1).contiguous()
        cell = self._cell(self._cumulative, level)
        left, right = self._left.gather(1, cell), self._right.gather(1, cell)
        width = self._widths.gather(1, cell)
        # The mass m of the first share s of a cell of width w is w (l s + (r - l) s^2 / 2).
        mass = ((level - self._cumulative.gather(1, cell)) / width).clamp(min=0)
        root = (left.square() + 2 * (right - left) * mass).clamp(min=0).sqrt()
        part = (2 * mass / (left + root).clamp(min=1e-300)).clamp(max=1)
        value = self._edges.gather(1, cell) + part * width
        value = torch.where(self.discrete.unsqueeze(1), value.floor(), value)
        value = torch.minimum(torch.maximum(value, self.low.unsqueeze(1)), self.high.unsqueeze(1))
        value = torch.where(missing, self.missing_value.unsqueeze(1), value)
        return value.T.reshape(uniforms.shape).to(self.dtype)

    def cdf_intervals(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Returns :meth:`Marginal.cdf_interval` of each column, float64 of shape ``(..., d)``."""
        wide = value.double()
        share = self.missing_share
        low = share + (1 - share) * self._cdf(wide)
        high = share + (1 - share) * self._cdf(torch.where(self.discrete, wide + 1, wide))
        missing = self.is_missing(value)
        return torch.where(missing, 0.0, low), torch.where(missing, share, high)

    def is_missing(self, value: Tensor) -> Tensor:
        """Which values stand for missing ones, bool ``(..., d)``."""
        return (value == self.missing_value) & (self.missing_share > 0)

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the log-density of each column, float64 of shape ``(..., d)``; -inf outside the support."""
        low, high = self.cdf_intervals(value)
        has_mass = self.discrete | self.is_missing(value)
        inside = self.support.check(value)
        usable_mass = torch.where(inside & has_mass, high - low, 1.0)
        log_density = torch.where(has_mass, usable_mass.clamp(min=0).log(), self.log_density(value))
        return torch.where(inside, log_density, -torch.inf)

    def log_density(self, value: Tensor) -> Tensor:
        """Returns the log-density of values of columns of real numbers, float64 of shape ``(..., d)``."""
        flat, cell, part = self._place(value.double())
        left, right = self._left.gather(1, cell), self._right.gather(1, cell)
        density = (1 - self.missing_share.unsqueeze(1)) * (left + (right - left) * part)
        positive = density > 0
        log_density = torch.where(positive, torch.where(positive, density, 1.0).log(), -torch.inf)
        return log_density.T.reshape(value.shape)

    def _cdf(self, value: Tensor) -> Tensor:
        _, cell, part = self._place(value)
        left, right, width = (table.gather(1, cell) for table in (self._left, self._right, self._widths))
        below, above = self._cumulative.gather(1, cell), self._cumulative.gather(1, cell + 1)
        rising = below + width * part * (left + (right - left) * part / 2)
        return torch.where(part >= 1, above, torch.minimum(rising, above)).T.reshape(value.shape)

    def _place(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values with columns first, their cells, and the shares of the cells below them."""
        flat = value.reshape(-1, value.shape[-1]).T.contiguous()
        cell = self._cell(self._edges, flat.detach())
        part = (flat - self._edges.gather(1, cell)) / self._widths.gather(1, cell)
        return flat, cell, part.clamp(0, 1)

    def _cell(self, edges: Tensor, value: Tensor) -> Tensor:
        if _in_transform():  # where torch.vmap lays the values out in a way that searchsorted warns of
            columns = (one.clone(memory_format=torch.contiguous_format) for one in value)
            cell = torch.stack([torch.searchsorted(*pair, right=True) for pair in zip(edges, columns, strict=True)]) - 1
        else:
            cell = torch.searchsorted(edges, value, right=True) - 1
        return torch.minimum(cell.clamp(min=0), (self.num_cells - 1).unsqueeze(1))


def _in_transform() -> bool:
    """Whether torch.vmap or another transform of torch.func is running."""
    functorch: Any = torch._C._functorch
    return not torch.compiler.is_compiling() and functorch.peek_interpreter_stack() is not None
