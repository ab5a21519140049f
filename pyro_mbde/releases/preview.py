"""What rows will look like before anything is spent: draws of the public base, its columns and pairs of columns."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from pyro_mbde._checks import check_count
from pyro_mbde._torch_state import seeded
from pyro_mbde.density.mixed_base import MixedBase
from pyro_mbde.pictures import new_figure, write_picture
from pyro_mbde.tables.columns import Column
from pyro_mbde.tables.schema import Schema

#: Draws of the base that summaries are made of; always the same.
_NUM_DRAWS = 2**14
#: Pairs are told from this association on, the strongest first.
LEAST_ASSOCIATION, _MAX_PAIRS = 0.1, 10
#: Levels and bars that are told of a column, at most.
_MAX_TOLD, _NUM_BARS = 5, 30
_INK = "#0072b2"


class ColumnPreview(NamedTuple):
    """One column of the base, in words.

    Attributes:
        name: of the column.
        kind: of the column.
        scale: on which it is modelled, ``linear`` or ``log1p``.
        law: its most frequent levels with their shares, or its 10, 50 and 90 per cent quantiles.
        stated: whether the schema states more of it than its range or levels.
        is_unordered: whether it has levels without an order, more than two: its associations have no sign.
    """

    name: str
    kind: str
    scale: str
    law: str
    stated: bool
    is_unordered: bool


class Preview(NamedTuple):
    """A schema's base. Public: no table enters.

    Attributes:
        rows: some draws of the base, as a release would write rows.
        columns: one by one.
        pairs: names of two columns and their association, the strongest first: the rank correlation where both have an
            order, else the largest share of one's variance that the other explains, as a root.
        acceptance_rate: share of the base that constraints and condition leave.
        sample: the draws that all of this was made of.
    """

    rows: pd.DataFrame
    columns: tuple[ColumnPreview, ...]
    pairs: tuple[tuple[str, str, float], ...]
    acceptance_rate: float
    sample: pd.DataFrame


def preview(schema: Schema, num_rows: int = 8, *, base: MixedBase | None = None) -> Preview:
    """Draws from a schema's base and describes it.

    Privacy:
        Public: it depends on the schema alone. Rows that are released differ from these only by what epsilon allows.

    Args:
        schema: what is public about the table.
        num_rows: rows to show, at least 1.
        base: the schema's, where it was made already or follows public rows; ``None`` makes it.

    Example:
        >>> from pyro_mbde import Column
        >>> shown = preview(Schema((Column("age", 18, 99, "integer", mean=45, sd=15),)))
        >>> len(shown.rows), shown.columns[0].law
        (8, '26 to 66, half below 44')
    """
    num_rows = check_count("num_rows", num_rows)
    base = schema.base() if base is None else base
    with seeded(0):
        draws = base.sample(torch.Size([max(_NUM_DRAWS, num_rows)]))
    sample = schema.to_frame(draws)
    columns = tuple(
        ColumnPreview(
            column.name,
            column.kind,
            column.scale,
            _law(sample[column.name], column.kind),
            _is_stated(column),
            _is_unordered(column),
        )
        for column in schema.columns
    )
    codes = {column.name: (draws[:, index].double().numpy(), column) for index, column in enumerate(schema.columns)}
    pairs = [(one, other, _association(codes[one], codes[other])) for one, other in combinations(codes, 2)]
    pairs = [pair for pair in pairs if abs(pair[2]) >= LEAST_ASSOCIATION]
    pairs.sort(key=lambda pair: -abs(pair[2]))
    return Preview(sample.head(num_rows), columns, tuple(pairs[:_MAX_PAIRS]), base.acceptance_rate, sample)


def draw_preview(shown: Preview, path: str | Path) -> None:
    """Draws the columns of a base into a picture. Public.

    Args:
        shown: of :func:`preview`.
        path: of a PNG, PDF or SVG file.
    """
    num_columns = min(len(shown.columns), 4)
    num_lines = -(-len(shown.columns) // num_columns)
    figure = new_figure(3.2 * num_columns, 2.4 * num_lines + 0.6)
    axes: Any = np.atleast_1d(figure.subplots(num_lines, num_columns)).flatten()
    for axis, column in zip(axes, shown.columns, strict=False):
        cells = shown.sample[column.name]
        if _has_levels(cells):
            counts = cells.astype(object).where(cells.notna(), "missing").value_counts(normalize=True, sort=False)
            shares = counts.sort_values(ascending=False).head(_NUM_BARS // 2)
            axis.barh([str(level) for level in shares.index][::-1], shares.to_numpy()[::-1], color=_INK)
            axis.set_xlabel("share")
        else:
            _draw_numbers(axis, cells.dropna(), column)
            axis.set_yticks([])
            axis.tick_params(axis="x", labelrotation=30)
        axis.set_title(column.name if column.stated else f"{column.name}\nnothing stated: spread evenly", fontsize=9)
        axis.tick_params(labelsize=8)
    for axis in axes[len(shown.columns) :]:
        axis.set_axis_off()
    figure.suptitle("The public base: what rows look like before a table is seen", fontsize=11)
    write_picture(figure, path, dpi=130)


def _draw_numbers(axis: Any, values: pd.Series[Any], column: ColumnPreview) -> None:
    """Bars of numbers or dates: of whole numbers each where they are few, and even on the scale that is modelled."""
    if column.kind in ("date", "datetime"):
        axis.hist(values.to_numpy(), _NUM_BARS, color=_INK)
        return
    numbers = values.astype(float).to_numpy()
    low, high = float(numbers.min()), float(numbers.max())
    if column.scale == "log1p":
        edges = np.expm1(np.linspace(np.log1p(low), np.log1p(high), _NUM_BARS + 1))
    elif column.kind == "integer":
        edges = np.arange(low, high + 2, max(1.0, np.ceil((high - low) / _NUM_BARS))) - 0.5
    else:
        edges = np.linspace(low, high, _NUM_BARS + 1)
    counts, edges = np.histogram(numbers, np.unique(edges))
    places = np.log1p(edges) if column.scale == "log1p" else edges
    axis.stairs(counts / np.diff(places), places, fill=True, color=_INK)
    if column.scale == "log1p":
        ticks = np.linspace(places[0], places[-1], 4)
        axis.set_xticks(ticks, [f"{value:.3g}" for value in np.expm1(ticks)])


def _has_levels(cells: pd.Series[Any]) -> bool:
    return isinstance(cells.dtype, pd.CategoricalDtype) or pd.api.types.is_bool_dtype(cells.dtype)


def _law(cells: pd.Series[Any], kind: str) -> str:
    """What a column's draws are like, in words."""
    missing = float(cells.isna().mean())
    tail = f", missing {missing:.0%}" if missing else ""
    present = cells.dropna()
    if _has_levels(cells):
        shares = present.astype(object).value_counts(normalize=True) * (1 - missing)
        told = [f"{level} {share:.0%}" for level, share in shares.head(_MAX_TOLD).items()]
        others = len(shares) - len(told)
        return ", ".join(told) + (f", {others} more" if others else "") + tail
    if kind in ("date", "datetime"):
        quantiles: list[Any] = [present.quantile(level) for level in (0.1, 0.5, 0.9)]
        low, middle, high = (moment.strftime("%Y-%m-%d") for moment in quantiles)
    else:
        low, middle, high = (f"{present.astype(float).quantile(level):.4g}" for level in (0.1, 0.5, 0.9))
    return f"{low} to {high}, half below {middle}{tail}"


def _is_stated(column: Any) -> bool:
    from pyro_mbde.tables.columns import FACTS

    return any(getattr(column, fact) is not None for fact in FACTS)


def _is_unordered(column: Column) -> bool:
    return column.kind == "category" and len(column.levels or ()) > 2


def _association(one: tuple[NDArray[np.float64], Any], other: tuple[NDArray[np.float64], Any]) -> float:
    """Of two columns' codes: the rank correlation, or the correlation ratio where levels have no order."""
    unordered = [pair for pair in (one, other) if _is_unordered(pair[1])]
    ranks = [pd.Series(codes).rank().to_numpy() for codes, _ in (one, other)]
    if not unordered:
        with np.errstate(invalid="ignore"):
            correlations: NDArray[np.float64] = np.corrcoef(ranks[0], ranks[1])
        return float(np.nan_to_num(correlations[0, 1]))
    groups, values = (one[0], ranks[1]) if unordered[0] is one else (other[0], ranks[0])
    if len(unordered) == 2:
        return _cramers_v(one[0], other[0])
    means = pd.Series(values).groupby(groups).transform("mean")
    variance = float(values.var())
    return float(np.sqrt(means.var(ddof=0) / variance)) if variance else 0.0


def _cramers_v(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    table = pd.crosstab(one, other).to_numpy().astype(float)
    expected = np.outer(table.sum(1), table.sum(0)) / table.sum()
    squared = float(((table - expected) ** 2 / expected).sum()) / table.sum()
    smaller = min(table.shape) - 1
    return float(np.sqrt(squared / smaller)) if smaller else 0.0
