"""The public base distribution Q0: closed boxes, copies in another dtype or on another device, draws, spread."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import MixtureSameFamilyConstraint

from pyro_mbde._checks import argument_error
from pyro_mbde._torch_state import seeded
from pyro_mbde.density.finite import FinitePoints, finite_points
from pyro_mbde.density.mixed_base import MixedBase
from pyro_mbde.density.row_batch import RowBatch
from pyro_mbde.serialization import UnknownDistributionError, decode, encode, map_tensors, register_distribution

#: Rows that a location, a spread or an interior point of the base is computed from; seeded, so always the same. Batches
#: hold as many rows in all, and number at least the second.
_NUM_REFERENCE_DRAWS, _MIN_REFERENCE_BATCHES = 4096, 64
#: Of these, as many as a description of the base is compared on.
_NUM_COMPARED_DRAWS = 512
#: Attribute of a base that holds the schema it was made from.
_NOTED_SCHEMA = "_pyro_mbde_schema"


@register_distribution
class ClosedUniform(dist.Uniform):
    """Uniform distribution on [low, high] with both edges in the support.

    PyTorch's density is 0 on the upper edge although its support holds it; a row at the top of a column's public range
    must have one.

    Example:
        >>> ClosedUniform(0.0, 2.0).log_prob(torch.tensor([0.0, 2.0]))
        tensor([-0.6931, -0.6931])
    """

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density at ``value``; finite on both edges, -inf outside them when validation is off."""
        if self._validate_args:
            self._validate_sample(value)
        inside = (self.low <= value) & (value <= self.high)
        return torch.where(inside, -(self.high - self.low).log(), -torch.inf)


@dataclass(frozen=True, eq=False)
class PreparedBase:
    """A base with what is derived from it, each computed once.

    Build it with :func:`prepare`, which checks the base and copies it; :meth:`of` derives
    the same from a base that has been prepared before.

    Attributes:
        distribution: the base, boxes closed and argument checks off.
    """

    distribution: Distribution

    @classmethod
    def of(cls, base: Distribution | PreparedBase) -> PreparedBase:
        """Wraps ``base`` without copying or checking it; returns a :class:`PreparedBase` unchanged."""
        return base if isinstance(base, PreparedBase) else cls(base)

    @cached_property
    def draws(self) -> Tensor:
        """The :func:`reference_draws`."""
        return reference_draws(self.distribution)

    @cached_property
    def row(self) -> PreparedBase:
        """The base of one row: of a batch, that of its rows, and otherwise this one."""
        base = self.distribution
        return PreparedBase(base.row) if isinstance(base, RowBatch) else self

    @property
    def num_rows(self) -> int | None:
        """Rows of a batch; None for single rows."""
        return self.distribution.num_rows if isinstance(self.distribution, RowBatch) else None

    @cached_property
    def example(self) -> Tensor:
        """One draw, shape ``event_shape``."""
        with torch.inference_mode(False):
            return self.draws[0].clone()  # a copy: a view would keep all of them

    @cached_property
    def dtype(self) -> torch.dtype:
        """Floating-point type that values are given to networks in: that of the draws, or of log_prob."""
        example = self.draws[:1]
        return example.dtype if example.is_floating_point() else self.distribution.log_prob(example).dtype

    @cached_property
    def location_scale(self) -> LocationScale:
        """Median and scale of each coordinate of a row's draws (:func:`location_scale_of_draws`). Public."""
        return location_scale_of_draws(self.row.draws.reshape(_NUM_REFERENCE_DRAWS, -1))

    @property
    def feature_scale(self) -> LocationScale:
        """Location and scale of what networks see of a row (:func:`as_features`). Public."""
        base = self.row.distribution
        if isinstance(base, MixedBase):  # whose features are standardised
            return LocationScale(torch.zeros(base.num_features), torch.ones(base.num_features))
        return self.location_scale

    @cached_property
    def wide(self) -> Distribution | None:
        """The base in float64, or None where it cannot be described."""
        try:
            return convert_base(self.distribution, dtype=torch.float64, draws=self.draws)
        except UnknownDistributionError:
            return None

    @cached_property
    def finite(self) -> FinitePoints | None:
        """The points of a finite base with the exact law of its draws, or None where they cannot be listed.

        Raises:
            ValueError: its probabilities do not sum to 1.
        """
        return finite_points(self.distribution, self.wide)


def prepare(base: Distribution | PreparedBase) -> PreparedBase:
    """Checks a base and returns it as the densities here use it: a copy, boxes closed, its own argument checks off.

    The checks are off because the density checks values against the base's support itself, once, in a form that
    ``torch.vmap`` can trace. A distribution that cannot be described (see :func:`pyro_mbde.serialization.encode`) is
    used as it is, and checked every time. Any other base that is already prepared is copied without another check.

    Args:
        base: any Pyro or torch distribution with empty batch shape and event shape () or (d,), or a
            :class:`~pyro_mbde.density.row_batch.RowBatch` of one.

    Raises:
        TypeError: ``base`` is not a distribution.
        ValueError: it has a batch shape, or an event of two or more dimensions; it is or holds a fitted density; it is
            masked, or finite with probabilities that do not sum to 1; or its own draws are infinite, outside its
            support or without a density.
    """
    if isinstance(base, PreparedBase):
        if base.wide is None:  # not a copy: it may have been changed since
            return prepare(base.distribution)
        with torch.inference_mode(False):
            again = PreparedBase(copy.deepcopy(base.distribution))
        vars(again).update({name: value for name, value in vars(base).items() if name != "distribution"})
        return again
    if not isinstance(base, Distribution):
        raise TypeError(argument_error("base", "be a Pyro or torch distribution", base))
    if base.batch_shape:
        remedy = f"Declare its dimensions dependent: base.to_event({len(base.batch_shape)})."
        raise ValueError(argument_error("base", "have an empty batch shape", tuple(base.batch_shape), remedy))
    if len(base.event_shape) > (2 if isinstance(base, RowBatch) and len(base.row.event_shape) == 1 else 1):
        raise ValueError(argument_error("base", "have event shape () or (d,)", tuple(base.event_shape)))
    for part in _parts_of(base):
        if isinstance(part, dist.Empirical):
            remedy = "It draws the rows it was made from, and nothing between them. Choose one without a table."
            raise ValueError(argument_error("base", "have a density, of any row", type(part).__name__, remedy))
        if hasattr(part, "guarantee"):
            remedy = "Its guarantee would not count what the first fit cost. Fit both over a public base."
            raise ValueError(argument_error("base", "be public, not a density fitted to a table", base, remedy))
        if isinstance(part, dist.MaskedDistribution) and not torch.as_tensor(part._mask).all():
            remedy = "Where the mask is False its density is 1, which is not the law of its draws. Take the mask off."
            raise ValueError(argument_error("base", "be a normalised distribution, without a mask", base, remedy))
    try:
        with torch.inference_mode(False):  # a copy whose gradients can be taken, wherever it is made
            prepared = PreparedBase(decode(_close(describe_base(base))))
    except UnknownDistributionError:
        prepared = PreparedBase(base)
    note_schema(prepared.distribution, noted_schema(base))
    _check_draws(prepared)
    _ = prepared.finite  # raises for probabilities that do not sum to 1
    return prepared


def prepare_base(base: Distribution) -> Distribution:
    """Returns the ``distribution`` of :func:`prepare`."""
    return prepare(base).distribution


def _check_draws(prepared: PreparedBase) -> None:
    """Raises if the base's own draws cannot be repeated, are infinite, outside its support or without a density."""
    base = prepared.distribution
    try:
        draws, support = prepared.draws, cast("Any", base.support)
        repeated = torch.equal(draws, reference_draws(base))
        inside = bool(torch.isfinite(draws).all() and support.check(draws).all())
        log_prob = base.log_prob(draws) if inside else None
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise ValueError(argument_error("base", "have draws, a support and a density", base, str(error))) from error
    if not repeated:
        raise ValueError(
            argument_error("base", "draw from torch's generators, the only ones that private draws control", base)
        )
    if log_prob is None:
        remedy = "A mixture's components must share their support, and scales must suit the dtype."
        raise ValueError(argument_error("base", "make finite draws inside its support", base, remedy))
    usable = log_prob.shape == draws.shape[:1] and bool(torch.isfinite(log_prob).any() and not log_prob.isnan().any())
    if not usable:
        raise ValueError(argument_error("base", "give its own draws a density", base, "Transforms must not saturate."))


def _parts_of(value: object, seen: set[int] | None = None) -> Iterator[Any]:
    """The distributions and transforms that one is made of, itself among them."""
    seen = set() if seen is None else seen
    if id(value) in seen:  # a transform and its inverse hold each other
        return
    seen.add(id(value))
    if isinstance(value, Distribution | torch.distributions.Transform):
        yield value
        yield from _parts_of(vars(value), seen)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _parts_of(item, seen)
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from _parts_of(item, seen)


def describe_base(base: Distribution, draws: Tensor | None = None) -> dict[str, Any]:
    """Returns the base as a plain dict, checked to describe it.

    Raises:
        UnknownDistributionError: what :func:`~pyro_mbde.serialization.encode` makes of it is another distribution, or
            it cannot be encoded.
    """
    description: dict[str, Any] = encode(base)
    draws = (reference_draws(base) if draws is None else draws)[:_NUM_COMPARED_DRAWS]
    try:
        with pyro.validation_enabled(False):  # else a mixture refuses draws that not all of its components can make
            same = torch.allclose(decode(description).log_prob(draws), base.log_prob(draws))
    except (ValueError, RuntimeError):  # its arguments do not rebuild it, or what they build cannot score its draws
        same = False
    if not same:
        raise UnknownDistributionError(
            argument_error("base", "be rebuilt by its arguments to be converted or saved", base)
        )
    return description


def _close(node: object) -> object:
    """Replaces every uniform distribution in an encoded one by its closed form."""
    if isinstance(node, dict):
        closed = {key: _close(value) for key, value in node.items()}
        if closed.get("distribution") in ("pyro.Uniform", "torch.Uniform"):
            closed["distribution"] = "pyro_mbde.ClosedUniform"
        return closed
    return [_close(value) for value in node] if isinstance(node, list) else node


def convert_base(
    base: Distribution,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    draws: Tensor | None = None,
) -> Distribution:
    """Returns a copy of the base with its floating-point parameters in ``dtype`` and all of them on ``device``."""

    def convert(tensor: Tensor) -> Tensor:
        return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)

    converted: Distribution = decode(map_tensors(convert, describe_base(base, draws)))
    note_schema(converted, noted_schema(base))
    return converted


def note_schema(base: Distribution, schema: Mapping[str, Any] | None) -> None:
    """Attaches a schema to a base, so that rows of a density over it can be converted back to the table's units.

    Args:
        base: its copies keep the note, which is not part of the distribution or of a fingerprint. Of a batch, the base
            of a row keeps it.
        schema: as :meth:`pyro_mbde.Schema.to_dict` returns it; ``None`` to note nothing.
    """
    if schema is not None:
        vars(base.row if isinstance(base, RowBatch) else base)[_NOTED_SCHEMA] = schema


def noted_schema(base: Distribution) -> Mapping[str, Any] | None:
    """Returns the schema that a base, or the rows of a batch, was made from; None where none was noted."""
    noted: Mapping[str, Any] | None = vars(base.row if isinstance(base, RowBatch) else base).get(_NOTED_SCHEMA)
    return noted


def as_features(value: Tensor, base: Distribution, dtype: torch.dtype) -> Tensor:
    """Returns values of the base as networks take them: floating-point, with a last dimension of d, 1 for a scalar.

    Of a :class:`~pyro_mbde.density.mixed_base.MixedBase` they are its features. Of a batch, the result has shape
    ``(..., k, d)``.
    """
    row = base.row if isinstance(base, RowBatch) else base
    if isinstance(row, MixedBase):
        return row.features(value).to(dtype)
    return (value if row.event_shape else value.unsqueeze(-1)).to(dtype)


def support_of(base: Distribution) -> Any:
    """Returns the support of a distribution, a torch constraint; of a mixture, the one that its components share.

    PyTorch wraps a mixture's support in a constraint that it has no bijection for, so that neither a Markov chain nor a
    guide could use it. A mixture whose components have bounds that differ keeps the wrapped one.
    """
    support: Any = base.support
    inner = getattr(support, "base_constraint", None)
    if isinstance(support, MixtureSameFamilyConstraint) and not any(
        isinstance(bound, Tensor) and bound.dim()
        for part in (inner, getattr(inner, "base_constraint", inner))
        for bound in vars(part).values()
    ):
        return inner
    return support


class LocationScale(NamedTuple):
    """Where the base lies and how wide, coordinate by coordinate; shapes ``(d,)``, with d = 1 for a scalar event."""

    loc: Tensor
    scale: Tensor


def base_location_scale(base: Distribution) -> LocationScale:
    """Returns :attr:`PreparedBase.location_scale` of a base."""
    return PreparedBase.of(base).location_scale


def location_scale_of_draws(draws: Tensor) -> LocationScale:
    """Returns the median of each column and its interquartile range in units of a normal's deviation, in float64.

    These are robust: a heavy tail need not have a mean or a variance. A column that does not vary gets scale 1; a
    column whose median is infinite gets location 0.

    Args:
        draws: shape ``(n, d)``.
    """
    draws = draws.double()
    quartiles = torch.quantile(draws, draws.new_tensor([0.25, 0.5, 0.75]), dim=0)
    # Quartiles of the standard normal lie at +-0.6745.
    scale = (quartiles[2] - quartiles[0]) / (2 * 0.6745)
    deviation = draws.std(0)
    usable = (scale > 0) & torch.isfinite(scale)
    scale = torch.where(usable, scale, torch.where(deviation > 0, deviation, torch.ones_like(scale)))
    return LocationScale(torch.nan_to_num(quartiles[1], 0.0, 0.0, 0.0), scale)


def reference_draws(base: Distribution) -> Tensor:
    """Returns a fixed set of draws of the base, shape ``(n, *event_shape)``; the global generator is not touched.

    n is 4096 for rows, and smaller for batches.
    """
    num_draws = _NUM_REFERENCE_DRAWS
    if isinstance(base, RowBatch):
        num_draws = max(num_draws // base.num_rows, _MIN_REFERENCE_BATCHES)
    with seeded(0), torch.inference_mode(False), torch.no_grad():
        return base.sample(torch.Size([num_draws]))
