"""How far the laws of columns are apart: total variation on cells, and the Kolmogorov-Smirnov distance. Private."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Cells = NDArray[np.int64]

#: Probabilities of the quantiles, of the table's and of the base's values, that cells of numbers and dates lie between:
#: of a column by itself, and of one of a pair.
COLUMN_LEVELS, PAIR_LEVELS = np.arange(1, 10) / 10, np.arange(1, 4) / 4
#: Whole numbers, and levels of one column of a pair, that have a cell each, at most. The rarest levels share one.
MAX_WHOLE_CELLS, MAX_PAIR_CELLS = 30, 40


class Samples(NamedTuple):
    """Values of one column, as numbers; NaN where missing.

    Attributes:
        table: float64 ``(n,)``; None without a table.
        base: of m draws of the base, float64 ``(m,)``.
        weights: of these draws for the density, which sum to 1, float64 ``(m,)``.
    """

    table: Array | None
    base: Array
    weights: Array


class ColumnCells(NamedTuple):
    """The cells that values of one column lie in.

    Attributes:
        table: of the table's values, int64 ``(n,)``; None without a table.
        base: of the values of draws of the base, int64 ``(m,)``.
        size: number of cells.
    """

    table: Cells | None
    base: Cells
    size: int


class Distances(NamedTuple):
    """Total variation, in [0, 1], between the laws of one column or two: the share of rows that must be changed.

    Attributes:
        table_to_base: None without a table.
        table_to_density: None without a table.
        density_to_base: how far the table has moved the density.
        chance: expected ``table_to_density`` if the table were drawn from the density; None without a table.
    """

    table_to_base: float | None
    table_to_density: float | None
    density_to_base: float
    chance: float | None


def cells_of(samples: Samples, levels: Array, *, num_levels: int | None = None, whole: bool = False) -> ColumnCells:
    """Returns the cells of a column: of levels and few whole numbers, one each; else between quantiles.

    Missing values have a cell for themselves.

    Privacy:
        As sensitive as the table, if it is in there.

    Args:
        samples: the column.
        levels: probabilities of the quantiles, of the table's and of the base's values.
        num_levels: of a column of levels, whose values are 0, 1 and so on; None for others.
        whole: whether values are whole numbers.

    Example:
        >>> values = np.array([0.0, 2.0, np.nan, 1.0])
        >>> cells_of(Samples(None, values, np.full(4, 0.25)), COLUMN_LEVELS, num_levels=3).base
        array([0, 2, 3, 1])
    """
    table, base = samples.table, samples.base
    present = base[~np.isnan(base)] if table is None else np.concatenate([base, table])
    present = present[~np.isnan(present)]
    if not len(present):
        edges = np.zeros(1)
    elif num_levels is not None:
        edges = np.arange(num_levels - 1.0)
    elif whole and present.max() - present.min() < MAX_WHOLE_CELLS:
        edges = np.arange(present.min(), present.max())
    else:
        of = [base] if table is None else [table, base]
        edges = np.unique(np.concatenate([np.nanquantile(one, levels) for one in of if not np.isnan(one).all()]))

    def cells(values: Array) -> Cells:
        found = np.searchsorted(edges, values, "left").astype(np.int64)
        placed: Cells = np.where(np.isnan(values), len(edges) + 1, found)
        return placed

    return ColumnCells(None if table is None else cells(table), cells(base), len(edges) + 2)


def grouped(cells: ColumnCells) -> ColumnCells:
    """Returns cells of one column of a pair: of very many, the rarest in one."""
    if cells.size <= MAX_PAIR_CELLS:
        return cells
    counts = np.bincount(cells.base, minlength=cells.size) / len(cells.base)
    if cells.table is not None and len(cells.table):
        counts = counts + np.bincount(cells.table, minlength=cells.size) / len(cells.table)
    places = np.full(cells.size, MAX_PAIR_CELLS - 1)
    places[np.argsort(-counts, kind="stable")[: MAX_PAIR_CELLS - 1]] = np.arange(MAX_PAIR_CELLS - 1)
    return ColumnCells(None if cells.table is None else places[cells.table], places[cells.base], MAX_PAIR_CELLS)


def joint(one: ColumnCells, other: ColumnCells) -> ColumnCells:
    """Returns the cells of two columns together."""
    table = None if one.table is None or other.table is None else one.table * other.size + other.table
    return ColumnCells(table, one.base * other.size + other.base, one.size * other.size)


def shares_in(cells: Cells, size: int, weights: Array | None = None) -> Array:
    """Returns the shares of rows, or of their weights, in each cell."""
    counts = np.bincount(cells, weights, minlength=size).astype(np.float64)
    shares: Array = counts / counts.sum()
    return shares


def distances(cells: ColumnCells, weights: Array) -> Distances:
    """Returns the distances of table, density and base on cells.

    Privacy:
        As sensitive as the table.

    Args:
        cells: of one column, or of two (:func:`joint`).
        weights: of draws of the base for the density.

    Example:
        >>> found = distances(ColumnCells(np.array([0, 0]), np.array([0, 1]), 2), np.array([0.75, 0.25]))
        >>> found.table_to_base, found.table_to_density, found.density_to_base
        (0.5, 0.25, 0.25)
    """
    base, density = shares_in(cells.base, cells.size), shares_in(cells.base, cells.size, weights)
    moved = total_variation(density, base)
    if cells.table is None:
        return Distances(None, None, moved, None)
    table, num_rows = shares_in(cells.table, cells.size), len(cells.table)
    # A share p of n rows is off by sqrt(2 p (1 - p) / (pi n)) on average; weights w are as good as 1 / sum w^2 rows.
    variance = density * (1 - density) * (1 / num_rows + float((weights**2).sum()))
    chance = 0.5 * float(np.sqrt(2 / math.pi * variance).sum())
    return Distances(total_variation(table, base), total_variation(table, density), moved, chance)


def total_variation(one: Array, other: Array) -> float:
    """Returns half the sum of the differences of shares."""
    return min(0.5 * float(abs(one - other).sum()), 1.0)


def largest_gap(samples: Samples) -> tuple[float, float] | None:
    """Returns the Kolmogorov-Smirnov distance of the table to the density and to the base; None without values.

    It is the largest difference of their distribution functions. Missing values are left out.

    Privacy:
        As sensitive as the table.

    Example:
        >>> low, high = np.array([0.0, 1.0]), np.array([0.0, 1.0, 2.0, 3.0])
        >>> largest_gap(Samples(low, high, np.array([0.5, 0.5, 0.0, 0.0])))
        (0.0, 0.5)
    """
    if samples.table is None:
        return None
    table = np.sort(samples.table[~np.isnan(samples.table)])
    there = ~np.isnan(samples.base)
    if not len(table) or not there.any():
        return None
    order = np.argsort(samples.base[there], kind="stable")
    base, weights = samples.base[there][order], samples.weights[there][order]
    points = np.unique(np.concatenate([table, base]))
    of_table = np.searchsorted(table, points, "right") / len(table)
    places = np.searchsorted(base, points, "right")
    gaps = [
        float(abs(np.concatenate([np.zeros(1), mass.cumsum()])[places] / mass.sum() - of_table).max())
        for mass in (weights, np.ones(len(base)))
    ]
    return gaps[0], gaps[1]


def missing_shares(samples: Samples) -> tuple[float | None, float, float]:
    """Returns the shares of missing values of table, density and base."""
    absent: Any = np.isnan(samples.base)
    table = None if samples.table is None else float(np.isnan(samples.table).mean())
    return table, float(samples.weights[absent].sum()), float(absent.mean())


def closed_share(found: Sequence[Distances]) -> float | None:
    """Returns what share of the way from the base to the table a density has gone, on average over columns or pairs.

    None without a table, or where the base is as near to it as chance allows.

    Privacy:
        As sensitive as the table.

    Example:
        >>> round(closed_share([Distances(0.4, 0.3, 0.1, 0.01), Distances(0.2, 0.15, 0.05, 0.01)]), 3)
        0.259
    """
    # By how much chance alone makes a distance larger, it is counted smaller: the table's rows are finitely many.
    whole = sum(max((one.table_to_base or 0.0) - (one.chance or 0.0), 0.0) for one in found)
    left = sum(max((one.table_to_density or 0.0) - (one.chance or 0.0), 0.0) for one in found)
    if whole <= 0.02 * len(found):  # as without a table
        return None
    return 1 - left / whole
