"""Histograms of a column, for a picture: numbers and dates along an axis, levels by name. Private."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from pyro_mbde.releases.columns import ReleasedColumn
from pyro_mbde.releases.distances import Array, Samples, missing_shares, shares_in
from pyro_mbde.tables.dates import RESOLUTIONS

#: Bars of a picture. Without ends, a column is shown between quantiles.
_NUM_BARS, _SHOWN = 30, (0.001, 0.999)
#: Levels of a picture, at most; the rarest of more share the last bar.
MAX_LEVELS = 12
#: Marks on an axis of dates: in units that give at least the first, and every so many, so that there are at most four.
_LEAST_MARKS, _MOST_MARKS = 2, 4
_UNITS = ("Y", "M", "D", "h", "m", "s")
_STEPS = {"Y": (1, 2, 5, 10, 20, 25, 50, 100, 250, 500, 1000), "M": (1, 2, 3, 6), "D": (1, 2, 5, 10)}
_STEPS_OF_TIMES = (1, 2, 3, 5, 6, 10, 12, 15, 20, 30)


class Shares(NamedTuple):
    """A share of rows, in [0, 1].

    Attributes:
        table: of the table's rows; None without a table.
        density: of the density's.
        base: of the base's.
    """

    table: float | None
    density: float
    base: float


class Mark(NamedTuple):
    """A text below the axis of dates.

    Attributes:
        place: on the axis, from 0 to 1.
        text: a year, a month, a day or a time.
    """

    place: float
    text: str


class Bars(NamedTuple):
    """A histogram of k bars for a picture.

    Attributes:
        edges: k + 1, of the bars, in the table's own units; of dates, in units since the first. A bar holds its left
            edge, and the last one its right edge too.
        places: k + 1, of the edges on a picture's axis, from 0 to 1: on the scale that the column is modelled on.
        table: k shares of the table's rows, in [0, 1]; None without a table.
        density: k shares of the density's.
        base: k shares of the base's.
        missing: shares of missing values; None where there are none.
        marks: texts below an axis of dates.
    """

    edges: list[float]
    places: list[float]
    table: list[float] | None
    density: list[float]
    base: list[float]
    missing: Shares | None = None
    marks: tuple[Mark, ...] = ()


class LevelShares(NamedTuple):
    """Shares of levels.

    Attributes:
        names: of the levels, a missing one included; the last of very many stands for the rarest.
        table: shares of the table's rows; None without a table.
        density: shares of the density's.
        base: shares of the base's.
    """

    names: list[str]
    table: list[float] | None
    density: list[float]
    base: list[float]


def level_shares(column: ReleasedColumn, samples: Samples) -> LevelShares:
    """Returns the shares of a column's levels, in their order; of many, those of the most frequent, and the rest.

    Privacy:
        As sensitive as the table, if it is in there; public for draws of the base alone.

    Args:
        column: with levels.
        samples: places of the levels, from 0.

    Example:
        >>> smoker = ReleasedColumn("smoker", None, None, False, kind="boolean", levels=("false", "true"))
        >>> level_shares(smoker, Samples(None, np.array([0.0, 0.0, 1.0, 0.0]), np.full(4, 0.25))).base
        [0.75, 0.25]
    """
    levels = list(column.levels or ())
    size = len(levels)

    def shares(values: Array, weights: Array | None = None) -> Array:
        return shares_in(np.where(np.isnan(values), size, values).astype(np.int64), size + 1, weights)

    table = None if samples.table is None else shares(samples.table)
    laws = [shares(samples.base, samples.weights), shares(samples.base)] + ([] if table is None else [table])
    chosen, rest = list(range(size)), None
    if size > MAX_LEVELS:
        frequent = np.argsort(-np.sum(laws, 0)[:size], kind="stable")
        chosen, rest = sorted(frequent[: MAX_LEVELS - 1].tolist()), frequent[MAX_LEVELS - 1 :]

    def shown(law: Array) -> list[float]:
        others = [] if rest is None else [float(law[rest].sum())]
        return [*map(float, law[chosen]), *others, *([float(law[size])] if column.may_be_missing else [])]

    names = [levels[place] for place in chosen]
    names += [] if rest is None else [f"{len(rest):,} others"]
    names += ["missing"] if column.may_be_missing else []
    return LevelShares(names, None if table is None else shown(table), shown(laws[0]), shown(laws[1]))


def bars(column: ReleasedColumn, samples: Samples) -> Bars:
    """Returns a histogram of numbers or dates.

    Bars have equal widths on the scale that a column is modelled on, or as nearly equal as whole numbers allow.

    Privacy:
        As sensitive as the table, if it is in there; public for draws of the base alone.

    Args:
        column: of numbers or dates.
        samples: its values; of dates, in units since the first.

    Example:
        >>> visits = ReleasedColumn("visits", 0.0, 1.0, True, kind="integer")
        >>> shown = bars(visits, Samples(None, np.array([0.0, 0.0, 1.0, 0.0]), np.full(4, 0.25)))
        >>> shown.edges, shown.base
        ([0.0, 1.0, 2.0], [0.75, 0.25])
    """
    absent = missing_shares(samples)
    values = samples.base if samples.table is None else np.concatenate([samples.base, samples.table])
    values = values[~np.isnan(values)]
    whole = column.whole or column.is_date
    if column.is_date:
        low, high = 0.0, float(count_of_units(column))
    else:
        low, high = (
            float(np.quantile(values, level)) if end is None else float(end)
            for end, level in zip((column.low, column.high), _SHOWN, strict=True)
        )
    if whole:  # a whole number fills the unit above it
        low, high = math.floor(low), math.floor(high) + 1.0
    elif high <= low:
        low, high = low - 0.5, high + 0.5

    def on_scale(values: Array) -> Array:
        return np.log1p(values) if column.scale == "log1p" else values

    first, last = on_scale(np.array([low, high]))
    edges = np.linspace(first, last, _NUM_BARS + 1)
    edges = np.expm1(edges) if column.scale == "log1p" else edges
    edges[0], edges[-1] = low, high
    if whole:
        edges = np.unique(np.round(edges))
    places = (on_scale(edges) - first) / (last - first)

    def shares(of: Array, weights: Array | None = None) -> list[float]:
        there = ~np.isnan(of)
        total = float(len(of)) if weights is None else float(weights.sum())
        counts = np.histogram(of[there], edges, weights=None if weights is None else weights[there])[0]
        return list(map(float, counts.astype(float) / total))

    return Bars(
        list(map(float, edges)),
        list(map(float, places)),
        None if samples.table is None else shares(samples.table),
        shares(samples.base, samples.weights),
        shares(samples.base),
        Shares(*absent) if column.may_be_missing else None,
        _marks(column) if column.is_date else (),
    )


def count_of_units(column: ReleasedColumn) -> int:
    """Returns how many units of its resolution a column's last date lies after its first.

    Example:
        >>> count_of_units(ReleasedColumn("born", "1990-01", "1992-03", False, kind="date", resolution="month"))
        26
    """
    low, high, _ = _span(column)
    return int((high - low).astype(np.int64))


def _span(column: ReleasedColumn) -> tuple[Any, Any, str]:
    code = RESOLUTIONS[str(column.resolution)].code
    moment: Any = np.datetime64  # whose units numpy lists one by one
    low, high = (moment(str(end).replace(" ", "T"), code) for end in (column.low, column.high))
    return low, high, code


def _marks(column: ReleasedColumn) -> tuple[Mark, ...]:
    """Beginnings of years, months, days or hours: of the coarsest unit that begins twice at least in the range."""
    low, high, code = _span(column)
    end = high + 1
    for unit in _UNITS[: _UNITS.index(code) + 1]:
        first = low.astype(f"datetime64[{unit}]")
        first = first if first.astype(low.dtype) == low else first + 1
        begins = np.arange(first, end.astype(f"datetime64[{unit}]") + 1)
        begins = begins[begins.astype(low.dtype) < end]
        if len(begins) >= _LEAST_MARKS or unit == code:
            break
    numbers = begins.astype(np.int64) + (1970 if unit == "Y" else 0)
    for step in _STEPS.get(unit, _STEPS_OF_TIMES):
        kept = begins[numbers % step == 0]
        if len(kept) <= _MOST_MARKS:
            break
    if not len(kept):
        kept = begins[:1]
    length = float((end - low).astype(np.int64))

    def text(moment: Any) -> str:
        if unit in ("Y", "M", "D"):
            return str(moment)
        day, time = str(moment.astype("datetime64[s]")).split("T")
        time = time if unit == "s" else time[:5]
        return time if len(set(begins.astype("datetime64[D]"))) == 1 else f"{day[5:]} {time}"

    return tuple(Mark(float((one.astype(low.dtype) - low).astype(np.int64)) / length, text(one)) for one in kept)
