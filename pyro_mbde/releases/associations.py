"""How strongly columns go together: in the table, in the density and in the base. Private."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
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
        levels: its cells, where it has three levels or more without an order; None for others.
    """

    name: str
    samples: Samples
    levels: ColumnCells | None


def associations(columns: Sequence[Ordered]) -> list[Association]:
    """Returns the associations of all pairs of columns.

    Numbers, dates, ordered levels, booleans and categories of two levels count by their ranks, which are found among
    the values of the column that are there, on the rows that have both values. Other levels count by their shares, a
    missing value as one more level. What chance alone makes of Cramér's V and of the correlation ratio is taken off
    (Bergsma. A bias-correction for Cramér's V and Tschuprow's T. 2013).

    Privacy:
        As sensitive as the table, if there is one; public for draws of the base alone.

    Args:
        columns: one by one.

    Example:
        >>> x = Samples(None, np.array([0.0, 1.0, 2.0]), np.full(3, 1 / 3))
        >>> (found,) = associations([Ordered("a", x, None), Ordered("b", x, None)])
        >>> found.measure, found.table, round(found.base, 6)
        ('rank correlation', None, 1.0)
    """
    ranks = [None if one.levels is not None else _ranks_of(one.samples) for one in columns]
    return [
        _association(columns[one], columns[other], ranks[one], ranks[other])
        for one, other in combinations(range(len(columns)), 2)
    ]


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


class _Ranks(NamedTuple):
    """Ranks of a column's values, NaN where missing: in the table, in the density and in the base."""

    table: Array | None
    density: Array
    base: Array


def _ranks_of(samples: Samples) -> _Ranks:
    table = None if samples.table is None else _ranks(samples.table, np.ones(len(samples.table)))
    return _Ranks(table, _ranks(samples.base, samples.weights), _ranks(samples.base, np.ones(len(samples.base))))


def _ranks(values: Array, weights: Array) -> Array:
    """Places in the distribution: what is below, and half of what is equal."""
    there = ~np.isnan(values)
    ranks = np.full(len(values), np.nan)
    if there.any():
        _, inverse = np.unique(values[there], return_inverse=True)
        shares = np.bincount(inverse, weights[there])
        ranks[there] = (shares.cumsum() - shares / 2)[inverse] / shares.sum()
    return ranks


def _association(one: Ordered, other: Ordered, by_rank: _Ranks | None, other_by_rank: _Ranks | None) -> Association:
    names, weights = (one.name, other.name), one.samples.weights
    alike = np.full(len(weights), 1 / len(weights))
    num_rows = 0 if one.samples.table is None else len(one.samples.table)
    of_table = np.full(num_rows, 1 / max(num_rows, 1))
    if by_rank is not None and other_by_rank is not None:
        table = None if by_rank.table is None else _correlation(by_rank.table, other_by_rank.table, of_table)
        density = _correlation(by_rank.density, other_by_rank.density, weights)
        return Association(names, RANKS, table, density, _correlation(by_rank.base, other_by_rank.base, alike))
    if one.levels is not None and other.levels is not None:
        sizes, base = (one.levels.size, other.levels.size), (one.levels.base, other.levels.base)
        table = None
        if one.levels.table is not None and other.levels.table is not None:
            table = _cramers_v(one.levels.table, other.levels.table, sizes, of_table)
        return Association(names, LEVELS, table, _cramers_v(*base, sizes, weights), _cramers_v(*base, sizes, alike))
    levels, ranks = (one.levels, other_by_rank) if one.levels is not None else (other.levels, by_rank)
    assert levels is not None and ranks is not None
    table = None
    if levels.table is not None and ranks.table is not None:
        table = _correlation_ratio(levels.table, levels.size, ranks.table, of_table)
    density = _correlation_ratio(levels.base, levels.size, ranks.density, weights)
    return Association(names, MIXED, table, density, _correlation_ratio(levels.base, levels.size, ranks.base, alike))


def _correlation(one: Array, other: Array | None, weights: Array) -> float | None:
    """Of the rows that have both values; None where one does not vary."""
    assert other is not None
    product = one * other
    there = ~np.isnan(product)
    if not there.all():
        one, other, weights = one[there], other[there], weights[there]
    if len(one) < 2 or not weights.sum() > 0:
        return None
    mass = weights / weights.sum()
    centred = [rank - mass @ rank for rank in (one, other)]
    variances = [float(mass @ rank**2) for rank in centred]
    if min(variances) < 1e-12:
        return None
    found = float(mass @ (centred[0] * centred[1])) / math.sqrt(variances[0] * variances[1])
    return min(max(found, -1.0), 1.0)


def _num_rows(mass: Array) -> float:
    """As many rows of equal weight are as good."""
    return 1 / float((mass**2).sum())


def _cramers_v(one: Cells, other: Cells, sizes: tuple[int, int], mass: Array) -> float | None:
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


def _correlation_ratio(levels: Cells, size: int, ranks: Array, weights: Array) -> float | None:
    there = ~np.isnan(ranks)
    if not there.all():
        levels, ranks, weights = levels[there], ranks[there], weights[there]
    if len(ranks) < 2 or not weights.sum() > 0:
        return None
    mass = weights / weights.sum()
    shares = np.bincount(levels, mass, minlength=size)
    means = np.bincount(levels, mass * ranks, minlength=size)[shares > 0] / shares[shares > 0]
    mean = float(mass @ ranks)
    variance = float(mass @ (ranks - mean) ** 2)
    num_levels, num_rows = len(means), _num_rows(mass)
    if variance < 1e-12 or num_levels < 2 or num_rows <= num_levels:
        return None
    within = 1 - float(shares[shares > 0] @ (means - mean) ** 2) / variance
    return math.sqrt(min(max(1 - within * (num_rows - 1) / (num_rows - num_levels), 0.0), 1.0))
