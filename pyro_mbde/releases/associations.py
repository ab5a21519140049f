"""How strongly columns go together: in the table, in the density and in the base. Private."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pyro_mbde.releases.distances import Array, Cells, ColumnCells, Samples, shares_in

#: Measures: of two columns with an order, of two columns of levels, of one of each.
RANKS, LEVELS, MIXED = "rank correlation", "Cramér's V", "correlation ratio"
#: From which size in the table on an association is strong, and how near to it the density must come.
STRONG, NEAR = 0.3, 0.1


class Association(NamedTuple):
    """How strongly two columns go together.

    Attributes:
        names: of the columns.
        measure: :data:`RANKS`, in [-1, 1]; :data:`LEVELS` or :data:`MIXED`, in [0, 1].
        table: in the table; None where it is not known.
        density: in the density.
        base: in the base.
    """

    names: tuple[str, str]
    measure: str
    table: float | None
    density: float | None
    base: float | None


class Recovered(NamedTuple):
    """Of the associations that are strong in the table, those that are about as strong elsewhere.

    Attributes:
        strong: how many are above 0.3 in size in the table.
        by_density: how many of them the density has within 0.1.
        by_base: how many of them the base has within 0.1, without the table.
    """

    strong: int
    by_density: int
    by_base: int


class Ordered(NamedTuple):
    """A column for an association.

    Attributes:
        name: of the column.
        samples: its values.
        levels: its cells, where it is of levels without an order; None for others.
    """

    name: str
    samples: Samples
    levels: ColumnCells | None


def associations(columns: Sequence[Ordered]) -> list[Association]:
    """Returns the associations of all pairs of columns.

    Numbers, dates and ordered levels count by their ranks, among the rows that have both values. Levels count by their
    shares, a missing value as one more level. What chance alone makes of Cramér's V and of the correlation ratio is
    taken off (Bergsma. A bias-correction for Cramér's V and Tschuprow's T. 2013).

    Args:
        columns: one by one.
    """
    return [_association(one, other) for place, one in enumerate(columns) for other in columns[place + 1 :]]


def recovered(found: Sequence[Association]) -> Recovered | None:
    """Returns how many strong associations are kept; None without a table."""
    if all(one.table is None for one in found):
        return None
    strong = [one for one in found if abs(one.table or 0.0) > STRONG]

    def near(one: Association, other: float | None) -> bool:
        return abs((one.table or 0.0) - (other or 0.0)) <= NEAR

    return Recovered(
        len(strong), sum(near(one, one.density) for one in strong), sum(near(one, one.base) for one in strong)
    )


def _association(one: Ordered, other: Ordered) -> Association:
    names = one.name, other.name
    weights = one.samples.weights
    if one.levels is not None and other.levels is not None:
        sizes = one.levels.size, other.levels.size
        at_table, at_base = (one.levels.table, other.levels.table), (one.levels.base, other.levels.base)
        table = None if at_table[0] is None or at_table[1] is None else _cramers_v(at_table[0], at_table[1], sizes)
        return Association(names, LEVELS, table, _cramers_v(*at_base, sizes, weights), _cramers_v(*at_base, sizes))
    if one.levels is None and other.levels is None:
        first, second = one.samples, other.samples
        table = None if first.table is None or second.table is None else rank_correlation(first.table, second.table)
        density = rank_correlation(first.base, second.base, weights)
        return Association(names, RANKS, table, density, rank_correlation(first.base, second.base))
    levels, numbers = (one.levels, other.samples) if one.levels is not None else (other.levels, one.samples)
    assert levels is not None
    table = None
    if levels.table is not None and numbers.table is not None:
        table = _correlation_ratio(levels.table, levels.size, numbers.table)
    density = _correlation_ratio(levels.base, levels.size, numbers.base, weights)
    return Association(names, MIXED, table, density, _correlation_ratio(levels.base, levels.size, numbers.base))


def rank_correlation(one: Array, other: Array, weights: Array | None = None) -> float | None:
    """Returns Spearman's correlation of the rows that have both values; None where one does not vary.

    Example:
        >>> rank_correlation(np.array([1.0, 2.0, 30.0, np.nan]), np.array([3.0, 2.0, 0.5, 9.0]))
        -1.0
    """
    weights = np.ones(len(one)) if weights is None else weights
    there = ~np.isnan(one) & ~np.isnan(other) & (weights > 0)
    if there.sum() < 2:
        return None
    mass = weights[there] / weights[there].sum()
    ranks = [_ranks(values[there], mass) for values in (one, other)]
    centred = [rank - mass @ rank for rank in ranks]
    variances = [float(mass @ rank**2) for rank in centred]
    if min(variances) < 1e-12:
        return None
    found = float(mass @ (centred[0] * centred[1])) / math.sqrt(variances[0] * variances[1])
    return min(max(found, -1.0), 1.0)


def _ranks(values: Array, mass: Array) -> Array:
    """Places in the distribution: what is below, and half of what is equal."""
    _, inverse = np.unique(values, return_inverse=True)
    shares = np.bincount(inverse, mass)
    ranks: Array = (shares.cumsum() - shares / 2)[inverse]
    return ranks


def _num_rows(mass: Array) -> float:
    """As many rows of equal weight are as good."""
    return 1 / float((mass**2).sum())


def _cramers_v(one: Cells, other: Cells, sizes: tuple[int, int], weights: Array | None = None) -> float | None:
    mass = np.full(len(one), 1 / len(one)) if weights is None else weights
    shares = shares_in(one * sizes[1] + other, sizes[0] * sizes[1], mass).reshape(sizes)
    rows, columns = shares.sum(1), shares.sum(0)
    seen = rows > 0, columns > 0
    shares, rows, columns = shares[np.ix_(*seen)], rows[seen[0]], columns[seen[1]]
    count = (len(rows), len(columns))
    if min(count) < 2:
        return None
    rest = max(_num_rows(mass) - 1, 1.0)
    square = float((shares**2 / np.outer(rows, columns)).sum()) - 1
    square = max(square - (count[0] - 1) * (count[1] - 1) / rest, 0.0)
    least = min(size - (size - 1) ** 2 / rest for size in count) - 1
    return min(math.sqrt(square / least), 1.0) if least > 0 else None


def _correlation_ratio(levels: Cells, size: int, numbers: Array, weights: Array | None = None) -> float | None:
    mass = np.ones(len(levels)) if weights is None else weights
    there = ~np.isnan(numbers) & (mass > 0)
    if there.sum() < 2:
        return None
    mass = mass[there] / mass[there].sum()
    ranks, levels = _ranks(numbers[there], mass), levels[there]
    shares = np.bincount(levels, mass, minlength=size)
    means = np.bincount(levels, mass * ranks, minlength=size)[shares > 0] / shares[shares > 0]
    mean = float(mass @ ranks)
    variance = float(mass @ (ranks - mean) ** 2)
    num_levels, num_rows = len(means), _num_rows(mass)
    if variance < 1e-12 or num_levels < 2 or num_rows <= num_levels:
        return None
    within = 1 - float(shares[shares > 0] @ (means - mean) ** 2) / variance
    return math.sqrt(min(max(1 - within * (num_rows - 1) / (num_rows - num_levels), 0.0), 1.0))
