"""The columns of a release: their names, and their ranges as the public base has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._checks import argument_error
from pyro_mbde.density.base import PreparedBase, noted_schema, support_of
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.marginals import Marginal
from pyro_mbde.density.mixed_base import MixedBase
from pyro_mbde.names import check_distinct
from pyro_mbde.tables.columns import Column
from pyro_mbde.tables.dates import iso_text
from pyro_mbde.tables.earlier import SpreadSchema, read_noted
from pyro_mbde.tables.schema import Schema

Codes = NDArray[np.float64]

#: Facts of a column that all cards have.
_ON_ALL_CARDS = ("name", "low", "high", "whole", "scale", "decimals")

#: Edges that differ by rounding alone are at most this share of the range apart: an edge x in float32 is off by at most
#: 2^-24 |x|, which is 1e-5 of a range as narrow as |x| / 168.
_SAME_EDGE = 1e-5


class ReleasedColumn(NamedTuple):
    """A column of released rows. All of it follows from the base and its schema, and is public.

    Attributes:
        name: its name.
        low: its least possible value, of dates as text; None where there is none, and for levels.
        high: its largest possible value; None where there is none, and for levels.
        whole: whether its values are whole numbers.
        scale: ``linear``, or ``log1p`` where ln(1 + x) is modelled.
        decimals: digits after the point that values are rounded to; None where they are not.
        kind: ``real``, ``integer``, ``category``, ``ordered``, ``boolean``, ``date`` or ``datetime``.
        levels: words for the levels, in order; None for numbers and dates.
        resolution: of dates: ``year`` to ``second``.
        may_be_missing: whether a value may be missing.
    """

    name: str
    low: float | str | None
    high: float | str | None
    whole: bool
    scale: str = "linear"
    decimals: int | None = None
    kind: str = "real"
    levels: tuple[str, ...] | None = None
    resolution: str | None = None
    may_be_missing: bool = False

    def on_a_card(self) -> dict[str, Any]:
        """Returns what a card says of the column; of numbers, what cards always said."""
        shown = self._asdict() | {"levels": None if self.levels is None else list(self.levels)}
        if self.kind in ("real", "integer"):
            del shown["kind"]
        return {key: value for key, value in shown.items() if key in _ON_ALL_CARDS or value}

    @property
    def is_date(self) -> bool:
        """Whether it holds dates, with or without a time."""
        return self.kind in ("date", "datetime")

    @property
    def is_unordered(self) -> bool:
        """Whether it has three levels or more without an order; of two, the second counts as the higher one."""
        return self.kind == "category" and len(self.levels or ()) > 2


def row_base(q: MollifiedExpFamily) -> Distribution:
    """Returns the public base of one row: that of the density, or of a batch's rows."""
    return PreparedBase.of(q.base).row.distribution


def schema_of(q: MollifiedExpFamily, columns: Sequence[str] | Schema | None) -> Schema | None:
    """Returns the schema that brings rows of a density into the units of its table; None where there is none.

    It is the one given, or the one that the density's base was made from: no list of names takes its place, which
    would leave whole numbers with fractions and amounts as logarithms.

    Args:
        q: the fitted density.
        columns: a schema, names, or ``None``; ValueError if they are not those of the density's own schema.

    Example:
        >>> from pyro_mbde import BoundedClassifiers, Column
        >>> base = Schema((Column("visits", 0, 100, "integer", "log1p"),)).base()
        >>> q = MollifiedExpFamily(base, BoundedClassifiers(1, 1), torch.tensor([0.1]), 0.0)
        >>> schema_of(q, None).names
        ('visits',)
    """
    noted = noted_schema(q.base)
    own = None if noted is None else read_noted(noted)
    if own is None or columns is None:
        return _in_its_form(columns, q) if isinstance(columns, Schema) else own and _in_its_form(own, q)
    if isinstance(columns, Schema):
        if _units(columns) != _units(own):
            _check_schema(row_base(q), columns)  # names an edge, if one differs
            names = list(columns.names)
            remedy = f"Its columns are {list(own.names)}. Leave columns out to use them."
            raise ValueError(
                argument_error("columns", "be the schema that the density's base was made from", names, remedy)
            )
        for rule in ("constraints", "condition"):
            if getattr(columns, rule) != getattr(own, rule):
                remedy = "It was fixed by the fit. Leave columns out to use the density's own schema."
                raise ValueError(
                    argument_error(f"columns.{rule}", "be that of the fit", getattr(columns, rule), remedy)
                )
        if own.predicates and [one.decimals for one in columns.columns] != [one.decimals for one in own.columns]:
            remedy = "Rows rounded otherwise could break the constraints. Leave columns out."
            raise ValueError(argument_error("columns", "round as the fit did", list(columns.names), remedy))
        return _in_its_form(replace(own, columns=columns.columns), q)
    if not isinstance(columns, Sequence) or list(columns) != list(own.names):
        remedy = "Leave columns out: rows then come in the table's own units. Rename columns in the table that comes."
        raise ValueError(
            argument_error("columns", f"be those of the density's table, {list(own.names)}", columns, remedy)
        )
    return _in_its_form(own, q)


def _in_its_form(schema: Schema, q: MollifiedExpFamily) -> Schema:
    """The schema of a base; where that is not a mixed one, of a box in which whole numbers are spread."""
    if isinstance(schema, SpreadSchema) or isinstance(row_base(q), MixedBase):
        return schema
    if others := [column.name for column in schema.columns if column.kind not in ("real", "integer")]:
        raise _not_its_schema(f"levels or dates in {others} for a base that has none")
    return SpreadSchema(schema.columns)


def _units(schema: Schema) -> list[tuple[Any, ...]]:
    keys = ("name", "low", "high", "kind", "scale", "levels", "resolution", "keeps_missing")
    return [tuple(getattr(one, key) for key in keys) for one in schema.columns]


def released_columns(q: MollifiedExpFamily, names: Sequence[str] | Schema | None) -> list[ReleasedColumn]:
    """Returns the columns of rows drawn from a density.

    Args:
        q: the fitted density.
        names: one for each column; ``None`` for ``x`` or ``x0``, ``x1`` and so on. A schema, the density's or this one,
            gives names and ranges in the table's units.

    Example:
        >>> import pyro.distributions as dist
        >>> from pyro_mbde import BoundedClassifiers
        >>> base = dist.Uniform(torch.tensor([0.0, 18.0]), torch.tensor([1.0, 100.0])).to_event(1)
        >>> q = MollifiedExpFamily(base, BoundedClassifiers(1, 2), torch.tensor([0.1]), 0.0)
        >>> for column in released_columns(q, ["share", "age"]):
        ...     print(*column[:4])
        share 0.0 1.0 False
        age 18.0 100.0 False
    """
    base = row_base(q)
    num_columns = base.event_shape.numel()
    schema = schema_of(q, names)
    if schema is not None:
        _check_schema(base, schema)
        return list(map(column_of_schema, schema.columns))
    assert not isinstance(names, Schema)
    if names is None:
        names = [f"x{index}" for index in range(num_columns)] if base.event_shape else ["x"]
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise TypeError(argument_error("columns", "be a list of strings", names))
    if len(names) != num_columns:
        raise ValueError(argument_error("columns", f"be {num_columns} as a row of q has", list(names)))
    if len(set(names)) != len(names) or not all(name and name.isprintable() for name in names):
        raise ValueError(argument_error("columns", "be printable and differ from one another", list(names)))
    check_distinct("columns", names)
    if isinstance(base, MixedBase):
        return [_of_marginal(name, one) for name, one in zip(names, base.marginals, strict=True)]
    low, high, whole = _edges(support_of(base))
    columns = zip(names, _spread(low, num_columns), _spread(high, num_columns), strict=True)
    kind = "integer" if whole else "real"
    return [ReleasedColumn(name, least, largest, whole, kind=kind) for name, least, largest in columns]


def column_of_schema(column: Column) -> ReleasedColumn:
    """Returns what released values of a schema's column are.

    Example:
        >>> column_of_schema(Column("smoker", kind="boolean")).levels
        ('false', 'true')
    """
    low, high = column.low, column.high
    if column.kind in ("date", "datetime"):
        low, high = (iso_text(end, str(column.resolution)) for end in (low, high))
    levels = column.levels if column.kind != "boolean" or column.levels else ("false", "true")
    return ReleasedColumn(
        column.name,
        low,
        high,
        column.kind == "integer",
        column.scale,
        column.decimals,
        column.kind,
        None if levels is None else tuple(map(str, levels)),
        column.resolution,
        column.keeps_missing,
    )


def _of_marginal(name: str, marginal: Marginal) -> ReleasedColumn:
    """A column of which only the distribution is known: levels go by their numbers."""
    whole, kind = marginal.kind == "integer", marginal.kind
    missing = marginal.missing_share > 0
    if kind in ("category", "ordered"):
        levels = tuple(map(str, range(round(marginal.high) + 1)))
        return ReleasedColumn(name, None, None, whole, kind=kind, levels=levels, may_be_missing=missing)
    low, high = (readable(torch.tensor(end, dtype=marginal.edges.dtype)) for end in (marginal.low, marginal.high))
    return ReleasedColumn(name, low, high, whole, kind=kind, may_be_missing=missing)


def _check_schema(base: Distribution, schema: Schema) -> None:
    """Raises unless a row's base is the one that a schema makes; names the first thing that differs."""
    if isinstance(base, MixedBase):
        _check_marginals(base, schema)
        return
    *edges, whole = _edges(support_of(base))
    *wanted, _ = _edges(SpreadSchema(schema.columns).base().support)
    num_columns = len(schema.columns)
    if base.event_shape != (num_columns,) or whole:
        kind = "discrete" if whole else "continuous"
        raise _not_its_schema(f"{num_columns} columns for a {kind} base of event shape {tuple(base.event_shape)}")
    ours = zip(*(_spread(edge, num_columns) for edge in edges), strict=True)
    theirs = zip(*(edge.tolist() for edge in wanted), strict=True)
    for column, found, (low, high) in zip(schema.columns, ours, theirs, strict=True):
        for end, edge, other in zip(("lower", "upper"), found, (low, high), strict=True):
            if edge is None or not abs(edge - other) <= _SAME_EDGE * (high - low):
                has = "none" if edge is None else f"{edge:.12g}"
                raise _not_its_schema(
                    f"{other:.12g} for the {end} edge of {column.name!r}, of which the base has {has}"
                )


def _check_marginals(base: MixedBase, schema: Schema) -> None:
    if len(schema.columns) != len(base.marginals):
        raise _not_its_schema(f"{len(schema.columns)} columns for a base of {len(base.marginals)}")
    for column, marginal in zip(schema.columns, base.marginals, strict=True):
        if column.of_kind.distribution != marginal.kind:
            raise _not_its_schema(
                f"the kind {column.kind!r} for {column.name!r}, which the base has as {marginal.kind}"
            )
        if column.keeps_missing != (marginal.missing_share > 0):
            has = "has missing values" if marginal.missing_share else "has no missing values"
            raise _not_its_schema(f"missing={column.missing!r} for {column.name!r}, which {has} in the base")
        low, high = column.modelled_range
        ends = float(marginal.edges[0]), float(marginal.edges[-1])
        if column.levels is not None and high != ends[1]:
            raise _not_its_schema(f"{high:g} levels for {column.name!r}, of which the base has {ends[1]:g}")
        for end, edge, wanted in zip(("lower", "upper"), ends, (low, high), strict=True):
            # Edges of points are whole numbers: they are the same, or others.
            if not abs(edge - wanted) <= (0.5 if marginal.is_discrete else _SAME_EDGE * (high - low)):
                raise _not_its_schema(
                    f"{wanted:.12g} for the {end} edge of {column.name!r}, of which the base has {edge:.12g}"
                )


def _not_its_schema(found: str) -> ValueError:
    remedy = "Edges are in modelled units. Pass the schema whose base() the density was fitted on."
    return ValueError(f"columns must be the schema that the density's base was made from, got {found}. {remedy}")


def _edges(support: Any) -> tuple[Any, Any, bool]:
    """Lower and upper edges of a support, and whether it holds whole numbers alone."""
    whole = bool(support.is_discrete)
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    kinds = torch.distributions.constraints
    if support in (kinds.simplex, kinds.one_hot, kinds.boolean):
        return 0.0, 1.0, whole
    return getattr(support, "lower_bound", None), getattr(support, "upper_bound", None), whole


def _spread(edge: Any, num_columns: int) -> list[float | None]:
    if edge is None:
        return [None] * num_columns
    edges = torch.as_tensor(edge)
    if edges.numel() not in (1, num_columns):
        return [None] * num_columns
    return list(map(readable, edges.detach().cpu().reshape(-1).expand(num_columns)))


def readable(number: Tensor) -> float:
    """Returns the number in a tensor as people write it: the float32 nearest to 0.1 as 0.1."""
    return float(str(number.detach().cpu().numpy()))


def column_codes(
    values: Tensor, base: Distribution, columns: Sequence[ReleasedColumn], schema: Schema | None
) -> list[Codes]:
    """Returns rows column by column as numbers: places of levels, units since the first date; NaN where missing.

    Numbers are in the table's own units if there is a schema.

    Privacy:
        As sensitive as the rows.

    Args:
        values: rows, shape ``(n,)`` or ``(n, d)``.
        base: of one row.
        columns: of its rows.
        schema: of its rows; None where there is none.

    Returns:
        d arrays of float64, shape ``(n,)``.
    """
    if not isinstance(base, MixedBase):
        frame = to_frame(values, columns, schema)
        return [frame[column.name].to_numpy(dtype=np.float64) for column in columns]
    codes = []
    for place, marginal in enumerate(base.marginals):
        one = values[:, place].detach().cpu()
        natural: Codes = one.double().numpy()
        if marginal.kind == "real" and schema is not None:
            column: Any = schema.columns[place]
            natural = column.of_kind.from_modelled(column, natural)
        missing = (one == marginal.missing_value).numpy() & (marginal.missing_share > 0)
        codes.append(np.where(missing, np.nan, natural))
    return codes


def to_frame(values: Tensor, columns: Sequence[ReleasedColumn], schema: Schema | None = None) -> pd.DataFrame:
    """Returns rows, of shape ``(n,)`` or ``(n, d)``, as a table, in its own units if there is a schema."""
    if schema is not None:
        return schema.to_frame(values)
    return pd.DataFrame(values.detach().cpu().reshape(len(values), -1).numpy(), columns=[c.name for c in columns])
