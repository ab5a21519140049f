"""What rows will look like before anything is spent: draws of the public base, its columns and pairs of columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from pyro_mbde._checks import check_count
from pyro_mbde._torch_state import seeded
from pyro_mbde.density.mixed_base import MixedBase
from pyro_mbde.pictures import new_figure, write_picture
from pyro_mbde.releases.associations import Ordered, associations
from pyro_mbde.releases.columns import column_codes, column_of_schema
from pyro_mbde.releases.distances import COLUMN_LEVELS, Samples, cells_of
from pyro_mbde.releases.histograms import Bars, LevelShares, bars, level_shares
from pyro_mbde.releases.picture import axis_labels
from pyro_mbde.tables.columns import FACTS, Column
from pyro_mbde.tables.schema import Schema

#: Draws of the base that summaries are made of; always the same.
_NUM_DRAWS = 2**14
#: Pairs are told from this association on, the strongest first.
LEAST_ASSOCIATION, _MAX_PAIRS = 0.1, 10
#: By how much constraints have to change a level's share, at least, for a preview to tell it.
_MOVED_SHARE = 0.01
#: Levels that are told of a column, at most.
_MAX_TOLD = 5
#: Quantiles that are told of a column of numbers or dates.
_LEVELS = (0.01, 0.1, 0.5, 0.9, 0.99)
#: Left and right edge of the bar of missing values, beside an axis from 0 to 1.
_MISSING = (1.1, 1.18)
_INK = "#0072b2"


class ColumnPreview(NamedTuple):
    """One column of the base, in words.

    Attributes:
        name: of the column.
        kind: of the column.
        scale: on which it is modelled, ``linear`` or ``log1p``.
        law: its most frequent levels with their shares, or its 1, 10, 50, 90 and 99 per cent quantiles.
        stated: whether the schema states more of it than its range or levels.
        is_unordered: whether it has levels without an order: its associations have no sign.
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
        pairs: names of two columns and their association, the strongest first: a rank correlation, Cramér's V or a
            correlation ratio (:func:`~pyro_mbde.releases.associations.associations`).
        acceptance_rate: share of the base that constraints and condition leave.
        moved: what these do to the columns, in words: shares and medians of the schema, and those of the base.
        histograms: of the columns, one by one.
    """

    rows: pd.DataFrame
    columns: tuple[ColumnPreview, ...]
    pairs: tuple[tuple[str, str, float], ...]
    acceptance_rate: float
    moved: tuple[str, ...]
    histograms: tuple[Bars | LevelShares, ...]


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
        (8, '26 to 66, half below 44, 2 in 100 outside 19 to 83')
    """
    num_rows = check_count("num_rows", num_rows)
    base = schema.base() if base is None else base
    with seeded(0):
        draws = base.sample(torch.Size([max(_NUM_DRAWS, num_rows)]))
    sample = schema.to_frame(draws)
    released = [column_of_schema(column) for column in schema.columns]
    columns = tuple(
        ColumnPreview(
            column.name,
            column.kind,
            column.scale,
            _law(sample[column.name], column.kind),
            _is_stated(column),
            one.is_unordered,
        )
        for column, one in zip(schema.columns, released, strict=True)
    )
    moved: tuple[str, ...] = ()
    if base.predicates:
        with seeded(0):
            free = schema.to_frame(MixedBase(base.marginals, base.dependence).sample(torch.Size([_NUM_DRAWS])))
        moved = tuple(text for name in sample for text in _moved(str(name), free[name], sample[name]))
    weights = np.full(len(draws), 1 / len(draws))
    samples = [Samples(None, codes, weights) for codes in column_codes(draws, base, released, schema)]
    compared = []
    for one, of in zip(released, samples, strict=True):
        cells = cells_of(of, COLUMN_LEVELS, num_levels=len(one.levels or ())) if one.is_unordered else None
        compared.append(Ordered(one.name, of, cells))
    found = [(*pair.names, pair.base) for pair in associations(compared) if pair.base is not None]
    pairs = [pair for pair in found if abs(pair[2]) >= LEAST_ASSOCIATION]
    pairs.sort(key=lambda pair: -abs(pair[2]))
    histograms = tuple(
        bars(one, of) if one.levels is None else level_shares(one, of)
        for one, of in zip(released, samples, strict=True)
    )
    return Preview(sample.head(num_rows), columns, tuple(pairs[:_MAX_PAIRS]), base.acceptance_rate, moved, histograms)


def _moved(name: str, free: pd.Series[Any], restricted: pd.Series[Any]) -> list[str]:
    """How constraints move a column: levels whose share changes by half and a hundredth, medians of numbers."""
    if _has_levels(free):
        before, after = (one.astype(object).value_counts(normalize=True) for one in (free, restricted))
        shares = [(level, float(before[level]), float(after.get(level, 0.0))) for level in before.index]
        return [
            f"{name} = {level}: {old:.1%} as stated, {new:.1%} with the constraints"
            for level, old, new in shares
            if abs(new - old) > max(_MOVED_SHARE, old / 2)
        ]
    if not pd.api.types.is_numeric_dtype(free):
        return []
    old, low, high = (float(free.dropna().astype(float).quantile(level)) for level in (0.5, 0.25, 0.75))
    new = float(restricted.dropna().astype(float).median())
    return [] if low <= new <= high else [f"{name}: half below {old:.4g} as stated, {new:.4g} with the constraints"]


def draw_preview(shown: Preview, path: str | Path) -> None:
    """Draws the columns of a base into a picture.

    Privacy:
        Public, as the preview is.

    Args:
        shown: of :func:`preview`.
        path: of a PNG, PDF or SVG file.
    """
    num_columns = min(len(shown.columns), 4)
    num_lines = -(-len(shown.columns) // num_columns)
    figure = new_figure(3.2 * num_columns, 2.4 * num_lines + 0.6)
    axes: Any = np.atleast_1d(figure.subplots(num_lines, num_columns)).flatten()
    for axis, column, histogram in zip(axes, shown.columns, shown.histograms, strict=False):
        if isinstance(histogram, LevelShares):
            axis.barh(histogram.names[::-1], histogram.base[::-1], color=_INK)
            axis.set_xlabel("share")
        else:
            _draw_bars(axis, histogram, whole=column.kind == "integer")
        axis.set_title(column.name if column.stated else f"{column.name}\nnothing stated: spread evenly", fontsize=9)
        axis.tick_params(labelsize=8)
    for axis in axes[len(shown.columns) :]:
        axis.set_axis_off()
    figure.suptitle("The public base: what rows look like before a table is seen", fontsize=11)
    write_picture(figure, path, dpi=130)


def _draw_bars(axis: Any, histogram: Bars, *, whole: bool) -> None:
    """Bars of numbers or dates, with areas that are shares, on the scale that is modelled; missing values beside."""
    places = np.array(histogram.places)
    axis.stairs(np.array(histogram.base) / np.diff(places), places, fill=True, color=_INK)
    ticks = [(label.place, label.text) for label in axis_labels(histogram, 1.0, whole=whole)]
    if histogram.missing is not None:
        left, right = _MISSING
        axis.stairs([histogram.missing.base / (right - left)], _MISSING, fill=True, color=_INK)
        ticks.append(((left + right) / 2, "missing"))
    axis.set_xticks(*zip(*ticks, strict=True))
    axis.set_yticks([])
    axis.tick_params(axis="x", labelrotation=30)


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
        moments: list[Any] = [present.quantile(level) for level in _LEVELS]
        told = [moment.strftime("%Y-%m-%d") for moment in moments]
    else:
        between: Any = "lower" if kind == "integer" else "linear"
        numbers = present.astype(float)
        told = [f"{numbers.quantile(level, between):.4g}" for level in _LEVELS]
    least, low, middle, high, most = told
    return f"{low} to {high}, half below {middle}, 2 in 100 outside {least} to {most}{tail}"


def _is_stated(column: Column) -> bool:
    return any(getattr(column, fact) is not None for fact in FACTS)
