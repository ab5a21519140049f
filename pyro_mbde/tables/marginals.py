r"""From what a schema states about a column to its public density, linear between edges.

The law of a column of which nothing is stated is uniform in the modelled units. What is stated of a column of numbers
is mixed with :data:`UNIFORM_SHARE` of that law, so that no allowed value is impossible.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch

from pyro_mbde._checks import argument_error
from pyro_mbde.tables.facts import (
    LEVEL_KINDS,
    WAYS,
    Numbers,
    Range,
    range_of,
    read_histogram,
    read_level_shares,
    read_mean,
    read_number_shares,
    read_quantiles,
    ways_of,
)
from pyro_mbde.tables.maximum_entropy import MaximumEntropy, check_moments
from pyro_mbde.tables.stated_laws import read_distribution

if TYPE_CHECKING:
    from pyro_mbde.tables.columns import Column

#: Cells of a table, at most.
MAX_CELLS = 4096
#: Least width of a cell of a real column, as a share of the range.
MIN_WIDTH = 2.0**-40
#: Share of the uniform law in what is stated of a column of numbers.
UNIFORM_SHARE = 2.0**-10
#: Cells of the law of whole numbers that is uniform in ln(1 + x), where there are more numbers than cells.
_LOGARITHMIC_CELLS = 2048
#: Levels at which a law has edges, besides edges of equal width: evenly spread, and closer and closer to both ends.
_EQUAL = 480
_TAILS = 2.0 ** -np.arange(9.0, 41.0)
_LEVELS = np.sort(np.concatenate([np.linspace(0, 1, _EQUAL + 1)[1:-1], _TAILS, 1 - _TAILS]))


class DensityTable(NamedTuple):
    """A density that is linear between edges; it integrates to 1.

    Attributes:
        edges: rising, float64 ``(K + 1,)``: of real numbers in modelled units; a whole number, or the code of a date or
            level, is the cell [n, n + 1).
        left: density at the lower edge of each cell, float64 ``(K,)``.
        right: density at the upper edge of each cell.
    """

    edges: Numbers
    left: Numbers
    right: Numbers

    def masses(self) -> Numbers:
        """Returns the mass of each cell."""
        return np.diff(self.edges) * (self.left + self.right) / 2


class _Law(Protocol):
    def densities(self, values: Numbers) -> Numbers: ...

    def masses(self, edges: Numbers) -> Numbers: ...

    def quantiles(self, levels: Numbers) -> Numbers: ...


def check_facts(column: Column) -> None:
    """Raises unless what a column states of its distribution is one way, possible, and fits its kind.

    Args:
        column: its kind, range and levels are checked already.

    Raises:
        TypeError: something is not a number, a date or a table.
        ValueError: two ways are stated, or one that the column cannot have.
    """
    stated = [way for way in WAYS if getattr(column, way) is not None]
    if column.sd is not None and column.mean is None:
        raise ValueError(argument_error("sd", "come with a mean", column.sd, "State both, or leave both out."))
    if len(stated) > 1:
        remedy = "Keep the one that is known best."
        found = " and ".join(stated)
        raise ValueError(f"column must state its distribution in one way, got {found}. {remedy}")
    if not stated:
        return
    way = stated[0]
    allowed = ways_of(column.kind)
    if way not in allowed:
        remedy = f"A column of kind {column.kind} may state {' or '.join(allowed)}."
        raise ValueError(argument_error(way, f"be left out for the kind {column.kind}", getattr(column, way), remedy))
    if way == "mean":
        check_moments(range_of(column), *read_mean(column))
    elif way == "quantiles":
        read_quantiles(column)
    elif way == "histogram":
        read_histogram(column)
    elif way == "distribution":
        read_distribution(column)
    elif column.kind in LEVEL_KINDS:
        read_level_shares(column)
    else:
        read_number_shares(column)


def density_table(column: Column) -> DensityTable:
    r"""Returns the public density of a column, from what its schema states.

    A mean, with or without a standard deviation, gives the law of most entropy on the range; quantiles and histograms
    are uniform, in modelled units, between their edges; what is not stated is uniform. See docs/marginals.md.

    Privacy:
        Public, as all of a schema.

    Args:
        column: a column of a schema.

    Returns:
        Its density, of at most :data:`MAX_CELLS` cells.

    Example:
        >>> from pyro_mbde import Column
        >>> density_table(Column("smoker", kind="boolean", shares={"yes": 0.2, "no": 0.8})).left
        array([0.8, 0.2])
    """
    if column.kind in LEVEL_KINDS:
        return _levels(column)
    span = range_of(column)
    if column.shares is not None:
        return _single_numbers(span, *read_number_shares(column))
    if column.mean is not None:
        return _mixed(span, _law_table(column, span, MaximumEntropy(span, *read_mean(column))))
    if column.distribution is not None:
        return _mixed(span, _law_table(column, span, read_distribution(column)))
    if column.quantiles is not None:
        levels, values = read_quantiles(column)
        return _mixed(span, _filled(column, span, values, np.diff(levels)))
    if column.histogram is not None:
        return _mixed(span, _filled(column, span, *read_histogram(column)))
    return _uniform(span, _plain_edges(span))


def _levels(column: Column) -> DensityTable:
    count = 2 if column.kind == "boolean" else len(column.levels or ())
    if count > MAX_CELLS and column.shares is None:
        return DensityTable(np.array([0.0, count]), np.array([1 / count]), np.array([1 / count]))
    shares = np.full(count, 1 / count) if column.shares is None else read_level_shares(column)
    return DensityTable(np.arange(count + 1.0), shares, shares.copy())


def _single_numbers(span: Range, shares: dict[int, float], other: float) -> DensityTable:
    """Some whole numbers with shares, and one share for each other."""
    numbers = np.array(sorted(shares), dtype=np.float64)
    edges = np.unique(np.concatenate([span.ends, numbers, numbers + 1]))
    density = np.full(len(edges) - 1, other)
    density[np.searchsorted(edges, numbers)] = [shares[int(number)] for number in numbers]
    return DensityTable(edges, density, density.copy())


def _plain_edges(span: Range) -> Numbers:
    """Edges that the uniform law needs."""
    low, high = span.ends
    if not (span.whole and span.logarithmic):
        return np.array([low, high])
    if high - low <= _LOGARITHMIC_CELLS:
        return np.arange(low, high + 1)
    grid = np.expm1(np.linspace(math.log1p(low), math.log1p(high), _LOGARITHMIC_CELLS + 1))
    return np.unique(np.concatenate([[low, high], np.rint(grid).clip(low, high)]))


def _uniform(span: Range, edges: Numbers) -> DensityTable:
    """The law of a column of which nothing is stated, on some edges: uniform in modelled units."""
    if not (span.whole and span.logarithmic):
        density = np.full(len(edges) - 1, 1 / (edges[-1] - edges[0]))
        return DensityTable(edges, density, density.copy())
    # P(n) ~ ln(2 + n) - ln(1 + n): the density 1 / (1 + x), so that a cell's mass is exact and its slope is that of it.
    masses = np.log1p(np.diff(edges) / (1 + edges[:-1]))
    return _shaped(edges, masses / masses.sum(), 1 / (1 + edges[:-1]), 1 / (1 + edges[1:]))


def _filled(column: Column, span: Range, bins: Numbers, shares: Numbers) -> DensityTable:
    """A law with given masses of bins, uniform in modelled units within each."""
    modelled = _in_floats(column, span, np.asarray(span.modelled(bins)))
    bins = bins if span.whole else _apart(column, span, modelled)
    # A bin whose lower edge is not kept joins the one before it.
    place = np.searchsorted(bins, modelled[:-1], side="right").clip(1, len(bins) - 1) - 1
    masses = np.bincount(place, shares, len(bins) - 1)
    uniform = _uniform(span, np.union1d(_plain_edges(span), bins))
    bin_of = np.searchsorted(bins, uniform.edges[:-1], side="right") - 1
    factor = masses / np.bincount(bin_of, uniform.masses(), len(masses))
    return DensityTable(uniform.edges, uniform.left * factor[bin_of], uniform.right * factor[bin_of])


def _law_table(column: Column, span: Range, law: _Law) -> DensityTable:
    """A law on edges that follow it: half of them of equal width, half at equal steps of probability."""
    low, high = span.ends
    points = law.quantiles(_LEVELS)
    points = points[(points >= span.low) & (points <= span.high)]
    if span.whole and high - low <= MAX_CELLS:
        edges: Numbers = np.arange(low, high + 1)
    elif span.whole:
        even = np.linspace(low, high, _EQUAL + 1)
        if span.logarithmic:
            even = np.expm1(np.linspace(math.log1p(low), math.log1p(high), _EQUAL + 1))
        # A number and its neighbours: a law may be as narrow as that.
        whole = np.floor(points)
        edges = np.unique(np.concatenate([[low, high], np.rint(even), whole, whole + 1]).clip(low, high))
    else:
        edges = np.concatenate([np.linspace(low, high, _EQUAL + 1), span.modelled(points)])
        edges = _apart(column, span, _in_floats(column, span, edges))
    natural = np.asarray(span.natural(edges))
    if not span.whole:
        natural[[0, -1]] = span.low, span.high
    masses = law.masses(natural)
    if span.whole:
        left, right = law.densities(natural[:-1]), law.densities(natural[1:] - 1)
    else:
        scale = 1 + natural if span.logarithmic else np.ones_like(natural)  # dx / d ln(1 + x)
        density = law.densities(natural) * scale
        left, right = density[:-1], density[1:]
    return _shaped(edges, masses / masses.sum(), left, right)


def _in_floats(column: Column, span: Range, points: Numbers) -> Numbers:
    """Points as the floats of a real column's type that are nearest."""
    return points if span.whole or column.dtype != torch.float32 else points.astype(np.float32).astype(np.float64)


def _apart(column: Column, span: Range, points: Numbers) -> Numbers:
    """Edges at both ends of a real column, and at points that are not closer to one another than allowed."""
    low, high = span.ends
    least = (high - low) * MIN_WIDTH
    first, last = _in_floats(column, span, np.array(span.ends))
    points = np.unique(points[(points > first) & (points < last)])
    points = points[(points - low >= least) & (high - points >= least)]
    points = points[np.diff(points, prepend=low) >= least]
    return np.concatenate([[low], points, [high]])


def _shaped(edges: Numbers, masses: Numbers, left: Numbers, right: Numbers) -> DensityTable:
    """Cells of given masses, with densities in the ratio of ``left`` to ``right``; flat where that is not a number."""
    mean = masses / np.diff(edges)
    with np.errstate(all="ignore"):
        share = left / (left + right)
    share = np.where(np.isfinite(left + right) & np.isfinite(share), share, 0.5)
    return DensityTable(edges, 2 * mean * share, 2 * mean * (1 - share))


def _mixed(span: Range, law: DensityTable) -> DensityTable:
    uniform = _uniform(span, law.edges)
    left, right = (
        (1 - UNIFORM_SHARE) * stated + UNIFORM_SHARE * flat
        for stated, flat in ((law.left, uniform.left), (law.right, uniform.right))
    )
    return DensityTable(law.edges, left, right)
