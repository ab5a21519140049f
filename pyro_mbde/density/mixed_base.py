"""The public base of a table with columns of all kinds: a push-forward of the unit cube."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import torch
from pyro.distributions import TorchDistribution, constraints
from pyro.distributions.util import broadcast_shape
from torch import Tensor

from pyro_mbde._checks import argument_error
from pyro_mbde._torch_state import seeded
from pyro_mbde.density.column_features import ColumnFeatures
from pyro_mbde.density.copula import Copula, GaussianCopula
from pyro_mbde.density.marginals import ColumnSupport, Marginal, MarginalTable
from pyro_mbde.density.predicates import evaluate
from pyro_mbde.serialization import UnknownDistributionError, canonical_digest, encode, register_distribution

#: Points that a base without real numbers may have to be listed: independent columns, and columns with a dependence,
#: whose probabilities take longer.
MAX_POINTS, _MAX_DEPENDENT_POINTS = 10**6, 2**14
#: Points of the unit cube that the acceptance rate of a restricted base is computed from, and the least rate.
_NUM_TRIED, MIN_ACCEPTANCE = 2**17, 1e-3
#: Acceptance rates, by the digest of all that a base is made from, which is rebuilt each time that it is checked,
#: converted or saved; and how many are kept.
_RATES: dict[str, float] = {}
_MAX_RATES = 1000

_broadcast_shape: Any = broadcast_shape  # Pyro leaves it unannotated; torch's own imports sympy
_SobolEngine: Any = torch.quasirandom.SobolEngine  # torch leaves it unannotated


class MixedSupport(constraints.Constraint):
    """The rows of a mixed base: each value in its column's support, and every predicate holds."""

    event_dim = 1

    def __init__(self, columns: ColumnSupport, predicates: Sequence[list[Any]]) -> None:
        self.columns, self.predicates = columns, predicates
        self.is_discrete = columns.is_discrete
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """Whether rows are in the support, bool of shape ``(...)`` for rows of shape ``(..., d)``."""
        inside: Tensor = self.columns.check(value).all(-1)
        return inside & holds(self.predicates, value) if self.predicates else inside

    def __repr__(self) -> str:
        """Shows the columns' ranges and how many predicates there are."""
        return f"MixedSupport({self.columns!r}, predicates={len(self.predicates)})"


def holds(predicates: Sequence[list[Any]], value: Tensor) -> Tensor:
    """Returns whether all predicates hold, bool of shape ``(...)`` for rows of shape ``(..., d)``."""
    flat = value.reshape(-1, value.shape[-1])
    inside = torch.ones(len(flat), dtype=torch.bool, device=value.device)
    for predicate in predicates:
        inside = inside & evaluate(predicate, flat)
    return inside.reshape(value.shape[:-1])


class RareRowsError(ValueError):
    """Too few rows of a base satisfy its predicates.

    Args:
        text: what is wrong.
        index: of the predicate that, alone, leaves the fewest rows.
    """

    def __init__(self, text: str, index: int = 0) -> None:
        super().__init__(text)
        self.index = index


@register_distribution
class MixedBase(TorchDistribution):
    r"""A public base over columns of all kinds: numbers, whole numbers, levels, dates, missing values.

    Rows are the push-forward of the unit cube: uniform numbers, made dependent by a copula if there is one, go through
    the columns' inverse distribution functions. Rows that break a public predicate are drawn again. So the density is
    one over a mixed measure: Lebesgue's for real numbers, counting for points.

    Networks see :meth:`features` of a row, the same for all that the column does not tell apart.

    Privacy:
        Public, all of it: no argument may come from the table.

    Args:
        marginals: one for each of the d columns.
        dependence: such as :class:`~pyro_mbde.density.copula.GaussianCopula`; ``None`` for independent columns.
        predicates: compiled by :mod:`pyro_mbde.tables.constraints`; all of them hold for every row. Proof that a
            restricted base is a base like any other: docs/proofs.md, *Restricted bases*.
        validate_args: as for any distribution.

    Raises:
        TypeError: the dependence is not a copula.
        ValueError: there is no column, shapes differ, or fewer than one in 1,000 rows satisfies the predicates.

    Example:
        >>> shares, one = torch.tensor([0.51, 0.49]), torch.ones(1)
        >>> sex = Marginal(torch.tensor([0.0, 1.0, 2.0]), shares, shares, "category")
        >>> share = Marginal(torch.tensor([0.0, 1.0]), one, one)
        >>> base = MixedBase([sex, share])
        >>> base.sample((3,)).shape, base.log_prob(torch.tensor([0.0, 0.3])).exp()
        (torch.Size([3, 2]), tensor(0.5100))
    """

    arg_constraints: dict[str, Any] = {}

    def __init__(
        self,
        marginals: Sequence[Marginal],
        dependence: Copula | None = None,
        predicates: Sequence[list[Any]] = (),
        validate_args: bool | None = None,
    ) -> None:
        self.marginals, self.dependence, self.predicates = list(marginals), dependence, list(predicates)
        if not self.marginals or not all(isinstance(one, Marginal) for one in self.marginals):
            raise ValueError(argument_error("marginals", "be Marginals, one or more", type(marginals).__name__))
        num_columns = len(self.marginals)
        if dependence is not None and not isinstance(dependence, Copula):
            remedy = "Pass a GaussianCopula, a FlowCopula or another Copula: it needs probabilities of cells."
            raise TypeError(argument_error("dependence", "be a Copula or None", type(dependence).__name__, remedy))
        if dependence is not None and dependence.event_shape != (num_columns,):
            shape = tuple(dependence.event_shape)
            raise ValueError(argument_error("dependence", f"have event shape ({num_columns},)", shape))
        self._table = MarginalTable(self.marginals)
        self._features = ColumnFeatures(self.marginals)
        super().__init__(torch.Size(), torch.Size([num_columns]), validate_args=validate_args)
        if self.predicates and not self.acceptance_rate >= MIN_ACCEPTANCE:
            raise self._too_rare()

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of rows."""
        return self._table.dtype

    @constraints.dependent_property
    def support(self) -> Any:
        """Values of the columns for which the predicates hold; a closed box if all are real numbers."""
        columns = self._table.support
        if columns.is_discrete or self.predicates:
            return MixedSupport(columns, self.predicates)
        unannotated: Any = constraints
        low, high = columns.low.to(self.dtype), columns.high.to(self.dtype)
        return unannotated.independent(unannotated.interval(low, high), 1)

    @property
    def num_features(self) -> int:
        """Number of features that networks see."""
        return self._features.num_features

    def features(self, value: Tensor) -> Tensor:
        """Returns what networks see of rows.

        Args:
            value: rows of shape ``(..., d)``, in the support.

        Returns:
            float64 tensor of shape ``(..., num_features)``, of numbers near [-3, 3]; the same for a row whatever is
            beside it.
        """
        return self._features(value)

    def from_uniforms(self, uniforms: Tensor) -> Tensor:
        """Returns rows at points of the unit cube, shape ``(n, d)``, before the predicates are applied."""
        points = uniforms if self.dependence is None else self.dependence.from_uniforms(uniforms)
        return self._table.from_uniforms(points)

    def cdf_intervals(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Returns :meth:`Marginal.cdf_interval` of each column of rows ``(..., d)``, without the dependence."""
        return self._table.cdf_intervals(value)

    def allowed(self, value: Tensor) -> Tensor:
        """Returns which rows satisfy the predicates, bool ``(...)``."""
        return holds(self.predicates, value)

    @cached_property
    def acceptance_rate(self) -> float:
        """Probability that a row drawn without the predicates satisfies them: public, an average over fixed points."""
        made_from = self._made_from()
        if made_from is None:
            return self._share_that_meets(self.predicates)
        if made_from not in _RATES:
            if len(_RATES) >= _MAX_RATES:
                _RATES.clear()
            _RATES[made_from] = self._share_that_meets(self.predicates)
        return _RATES[made_from]

    def _made_from(self) -> str | None:
        """A digest of all that the acceptance rate follows from, None where that is not known to be all."""
        if not self.predicates or type(self.dependence) not in (type(None), GaussianCopula):
            return None
        try:
            description = encode(self)
        except UnknownDistributionError:  # a class of somebody else's
            return None
        device = str(self.marginals[0].edges.device)
        return canonical_digest({"base": description, "device": device, "listed": self.has_enumerate_support})

    def _share_that_meets(self, predicates: Sequence[list[Any]]) -> float:
        if not predicates:
            return 1.0
        points = self._all_points()
        with torch.no_grad():
            if points is not None:
                return float(self._free_log_prob(points[holds(predicates, points)]).exp().sum())
            return float(holds(predicates, self.from_uniforms(self._fixed_points())).double().mean())

    def _too_rare(self) -> RareRowsError:
        def found(share: float) -> str:
            if self.has_enumerate_support:
                return f"a probability of {share:.2g}"
            return f"{round(share * _NUM_TRIED):,} of {_NUM_TRIED:,} tried"

        alone = [self._share_that_meets([predicate]) for predicate in self.predicates]
        index = min(range(len(alone)), key=alone.__getitem__)
        fewest = f" Alone, predicate {index + 1} leaves the fewest: {found(alone[index])}." if len(alone) > 1 else ""
        least = f"1 row in {round(1 / MIN_ACCEPTANCE):,} of the base"
        text = f"constraints and condition must be met by at least {least}, got "
        remedy = "Drop or widen a constraint, or state what is public about its columns."
        return RareRowsError(f"{text}{found(self.acceptance_rate)}.{fewest} {remedy}", index)

    def _fixed_points(self) -> Tensor:
        num_columns = len(self.marginals)
        device = self.marginals[0].edges.device
        with seeded(0):
            if num_columns > _SobolEngine.MAXDIM:
                return torch.rand(_NUM_TRIED, num_columns, dtype=torch.float64).to(device)
            points: Tensor = _SobolEngine(num_columns, scramble=True, seed=0).draw(_NUM_TRIED, dtype=torch.float64)
        return points.to(device)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008  # torch's own signature
        """Returns draws of shape ``sample_shape + batch_shape + (d,)``."""
        shape = torch.Size(sample_shape) + self.batch_shape

        def uniforms(num_draws: int, num_dims: int) -> Tensor:
            return torch.rand(num_draws, num_dims, dtype=torch.float64, device=self.marginals[0].edges.device)

        with torch.no_grad():
            return self.draw(shape.numel(), uniforms).reshape(shape + self.event_shape)

    def draw(self, num_draws: int, cube_points: Any) -> Tensor:
        """Returns draws, shape ``(num_draws, d)``, made from points of the unit cube that a function supplies.

        Args:
            num_draws: number of draws.
            cube_points: called with numbers of points and of dimensions; returns float64 points.
        """
        num_columns = len(self.marginals)
        if not self.predicates:
            return self.from_uniforms(cube_points(num_draws, num_columns))
        device = self.marginals[0].edges.device
        parts, missing = [torch.empty(0, num_columns, dtype=self.dtype, device=device)], num_draws
        while missing > 0:
            proposed = self.from_uniforms(
                cube_points(math.ceil(1.1 * missing / self.acceptance_rate) + 16, num_columns)
            )
            kept = proposed[self.allowed(proposed)][:missing]
            parts.append(kept)
            missing -= len(kept)
        return torch.cat(parts)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of rows over the mixed measure, shape ``(...)``; -inf outside the support.

        Exact for independent columns. With a copula, the probability of points in two or more columns is computed to
        about three digits; with predicates, so is the share of the base that they leave.
        """
        if self._validate_args:
            self._validate_sample(value)
        log_density = self._free_log_prob(value)
        if self.predicates:
            log_density = torch.where(self.allowed(value), log_density - math.log(self.acceptance_rate), -torch.inf)
        log_density = log_density.to(self.dtype)
        if not self.batch_shape:
            return log_density
        return log_density.expand(_broadcast_shape(value.shape[:-1], self.batch_shape))

    def _free_log_prob(self, value: Tensor) -> Tensor:
        if self.dependence is None:
            return self._table.log_prob(value).sum(-1)
        inside = self._table.support.check(value).all(-1)
        low, high = self._table.cdf_intervals(value)
        is_point = ~(self._table.discrete | self._table.is_missing(value))
        if self._table.support.is_discrete:
            log_density = self.dependence.log_prob_of_cells(low, torch.where(is_point, low, high))
        else:
            log_density = self.dependence.log_prob(low)
        log_density = log_density + torch.where(is_point, self._table.log_density(value), 0.0).sum(-1)
        return torch.where(inside, log_density, -torch.inf)

    @property
    def num_points(self) -> int | None:
        """Number of points without the predicates; None if a column has real numbers."""
        counts = [one.num_values for one in self.marginals]
        return None if None in counts else math.prod(count or 0 for count in counts)

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]  # a property here, a class attribute in torch
        """Whether there are finitely many points, few enough to list."""
        most = MAX_POINTS if self.dependence is None else _MAX_DEPENDENT_POINTS
        return self.num_points is not None and self.num_points <= most

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Returns all points, shape ``(n, d)`` for an empty batch shape."""
        points = self._all_points()
        if points is None:
            raise NotImplementedError("The base has no finite support, or one that is too large to list.")
        points = points[self.allowed(points)] if self.predicates else points
        points = points.reshape((-1,) + (1,) * len(self.batch_shape) + self.event_shape)
        return points.expand((-1, *self.batch_shape, *self.event_shape)) if expand else points

    def _all_points(self) -> Tensor | None:
        if not self.has_enumerate_support:
            return None
        values = []
        for one in self.marginals:
            codes = torch.arange(one.low, one.high + 1, dtype=self.dtype, device=one.edges.device)
            values.append(torch.cat([codes.new_tensor([one.missing_value]), codes]) if one.missing_share else codes)
        return torch.cartesian_prod(*values).reshape(-1, len(values))

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        """Returns the base over a larger batch shape; this one is left as it is."""
        new = copy.copy(self)
        new._batch_shape = torch.Size(batch_shape)
        return new
