"""A table beside the density that was fitted to it and beside the base, column by column and pair by pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_mbde._torch_state import seeded, single_thread
from pyro_mbde.calibration.row_law import row_log_ratio, sum_law
from pyro_mbde.density.base import PreparedBase
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.releases.associations import RANKS, Association, Ordered, Recovered, associations, recovered
from pyro_mbde.releases.columns import ReleasedColumn, column_codes, released_columns, row_base, schema_of
from pyro_mbde.releases.distances import (
    COLUMN_LEVELS,
    PAIR_LEVELS,
    ColumnCells,
    Distances,
    Samples,
    cells_of,
    closed_share,
    distances,
    grouped,
    joint,
    largest_gap,
    missing_shares,
)
from pyro_mbde.releases.histograms import Bars, LevelShares, bars, level_shares
from pyro_mbde.tables.schema import Schema

#: Draws of the base, which stand for the density too, each with its density ratio as a weight.
_NUM_DRAWS, _CHUNK = 2**17, 2**15
#: Tolerance, in nats, of the law of the scores of a batch's other rows; and what a score is held to there.
_GRID_TOLERANCE, _MAX_SCORE = 0.05, 300.0
_LEVELS = ("category", "ordered", "boolean")


class Similarity(NamedTuple):
    """How like the table a density is, from 0 to 1; the names are those of SDMetrics, where it measures the same.

    Attributes:
        name: ``TVComplement``, ``KSComplement``, ``MissingValueSimilarity``, ``ContingencySimilarity`` or
            ``CorrelationSimilarity``.
        density: to the table.
        base: to the table.
    """

    name: str
    density: float
    base: float


class ColumnComparison(NamedTuple):
    """One column.

    Attributes:
        name: of the column.
        kind: of the column.
        distances: of its law.
        similarities: of its law; none without a table.
        bars: to draw numbers and dates; None for levels.
        levels: to draw levels; None for others.
        whole: whether its values are whole numbers.
    """

    name: str
    kind: str
    distances: Distances
    similarities: tuple[Similarity, ...]
    bars: Bars | None
    levels: LevelShares | None
    whole: bool


class PairComparison(NamedTuple):
    """Two columns together.

    Attributes:
        names: of the columns.
        distances: of their joint law.
        association: how strongly they go together.
        similarity: of their joint law or association; None without a table, and where SDMetrics has no such measure.
    """

    names: tuple[str, str]
    distances: Distances
    association: Association
    similarity: Similarity | None


class Comparison(NamedTuple):
    """A table, the density and the base; of a density of batches, one row by itself. As sensitive as the table.

    Attributes:
        verdict: what rows will look like, in a sentence.
        density_to_base: total variation between whole rows of the density and of the base.
        columns: one by one.
        pairs: two by two, those first whose density is furthest from the table; without a table, from the base.
        recovered: how many strong associations of the table are kept; None without a table.
        similarities: averages over columns or pairs, by name; none without a table.
    """

    verdict: str
    density_to_base: float
    columns: tuple[ColumnComparison, ...]
    pairs: tuple[PairComparison, ...]
    recovered: Recovered | None
    similarities: tuple[Similarity, ...]


class Weighted(NamedTuple):
    """Draws of the base, and the weights with which they stand for the density. Private.

    Attributes:
        draws: rows of the base, shape ``(m,)`` or ``(m, d)``.
        weights: which sum to 1, float64 ``(m,)``.
    """

    draws: Tensor
    weights: Tensor


class _Column(NamedTuple):
    column: ReleasedColumn
    samples: Samples
    cells: ColumnCells
    pair_cells: ColumnCells


def weighted_draws(q: MollifiedExpFamily) -> Weighted:
    """Returns draws of the base with the weights of a density; of a batch, of one of its rows by itself.

    Args:
        q: the fitted density.
    """
    num_rows = PreparedBase.of(q.base).num_rows
    with seeded(0), single_thread(), torch.no_grad():
        draws = row_base(q).sample(torch.Size([_NUM_DRAWS]))
        if num_rows is None:
            tilts = torch.cat([q.tilt(part).double() for part in torch.split(draws, _CHUNK)])
        else:
            scores = q.row_scores(draws).clamp(-_MAX_SCORE, _MAX_SCORE).cpu()
            others = sum_law(scores, num_rows - 1, _GRID_TOLERANCE)
            tilts = row_log_ratio(scores, others, q.offset, q.bounds, q.shrinkage)
    return Weighted(draws, tilts.softmax(0).cpu())


def compare(
    q: MollifiedExpFamily,
    rows: Tensor | None,
    columns: Sequence[str] | Schema | None = None,
    drawn: Weighted | None = None,
) -> Comparison:
    """Compares a table with the density that was fitted to it, in the table's own units.

    Privacy:
        As sensitive as the table: not for release.

    Args:
        q: the fitted density.
        rows: of the table, in the support, shape ``(n,)`` or ``(n, d)``; ``None``, or none of them, for no table.
        columns: names of the columns, or the schema that the base was made from, as for
            :func:`~pyro_mbde.release`.
        drawn: :func:`weighted_draws`, made here by default.
    """
    named, schema, of_row = released_columns(q, columns), schema_of(q, columns), row_base(q)
    draws, log_weights = drawn or weighted_draws(q)
    weights = log_weights.numpy()
    with_table = rows is not None and len(rows) > 0
    table = column_codes(rows, of_row, named, schema) if rows is not None and with_table else [None] * len(named)
    base = column_codes(draws, of_row, named, schema)
    prepared = [
        _prepared(column, Samples(of_table, of_base, weights))
        for column, of_table, of_base in zip(named, table, base, strict=True)
    ]
    compared = tuple(map(_column, prepared))
    found = associations(
        [Ordered(one.column.name, one.samples, one.cells if one.column.is_unordered else None) for one in prepared]
    )
    places = {one.column.name: one for one in prepared}
    pairs = [_pair(places[one.names[0]], places[one.names[1]], one) for one in found]
    distance = 0.5 * float(abs(weights - 1 / len(weights)).sum())
    pairs.sort(key=lambda pair: _furthest_first(pair.distances))
    return Comparison(
        _verdict(compared, pairs, distance),
        distance,
        compared,
        tuple(pairs),
        recovered(found) if with_table else None,
        _averages([one for column in compared for one in column.similarities], pairs),
    )


def _prepared(column: ReleasedColumn, samples: Samples) -> _Column:
    num_levels = len(column.levels or ()) if column.kind in _LEVELS else None
    by_itself, paired = (
        cells_of(samples, levels, num_levels=num_levels, whole=column.whole) for levels in (COLUMN_LEVELS, PAIR_LEVELS)
    )
    return _Column(column, samples, by_itself, grouped(paired))


def _column(of: _Column) -> ColumnComparison:
    column, samples = of.column, of.samples
    of_levels = column.kind in _LEVELS
    found = distances(of.cells, samples.weights)
    similarities = []
    if of_levels and found.table_to_density is not None and found.table_to_base is not None:
        similarities.append(Similarity("TVComplement", 1 - found.table_to_density, 1 - found.table_to_base))
    elif not of_levels and (gaps := largest_gap(samples)) is not None:
        similarities.append(Similarity("KSComplement", 1 - gaps[0], 1 - gaps[1]))
    in_table, in_density, in_base = missing_shares(samples)
    if column.may_be_missing and in_table is not None:
        missing = 1 - abs(in_table - in_density), 1 - abs(in_table - in_base)
        similarities.append(Similarity("MissingValueSimilarity", *missing))
    return ColumnComparison(
        column.name,
        column.kind,
        found,
        tuple(similarities),
        None if of_levels else bars(column, samples),
        level_shares(column, samples) if of_levels else None,
        column.whole,
    )


def _pair(one: _Column, other: _Column, association: Association) -> PairComparison:
    found = distances(joint(one.pair_cells, other.pair_cells), one.samples.weights)
    similarity = None
    table, density, base = association.table, association.density, association.base
    kinds = {one.column.kind, other.column.kind}
    if kinds <= set(_LEVELS):
        if found.table_to_density is not None and found.table_to_base is not None:
            similarity = Similarity("ContingencySimilarity", 1 - found.table_to_density, 1 - found.table_to_base)
    elif kinds & {"category", "boolean"} or association.measure != RANKS:
        similarity = None  # SDMetrics has correlations of numbers and dates alone
    elif table is not None and density is not None and base is not None:
        similarity = Similarity("CorrelationSimilarity", 1 - abs(table - density) / 2, 1 - abs(table - base) / 2)
    return PairComparison(association.names, found, association, similarity)


def _averages(of_columns: Sequence[Similarity], pairs: Sequence[PairComparison]) -> tuple[Similarity, ...]:
    by_name: dict[str, list[Similarity]] = {}
    for one in [*of_columns, *(pair.similarity for pair in pairs if pair.similarity is not None)]:
        by_name.setdefault(one.name, []).append(one)
    return tuple(
        Similarity(name, sum(one.density for one in all_) / len(all_), sum(one.base for one in all_) / len(all_))
        for name, all_ in by_name.items()
    )


def _furthest_first(found: Distances) -> float:
    return -(found.density_to_base if found.table_to_density is None else found.table_to_density)


def _verdict(columns: Sequence[ColumnComparison], pairs: Sequence[PairComparison], density_to_base: float) -> str:
    """What rows will look like."""
    common = math.floor(100 * (1 - density_to_base))
    like_base = f"{common} in 100 could just as well have been drawn from the public base"
    if all(column.distances.table_to_base is None for column in columns):
        return f"Of your rows, {like_base}. How far they are from your table, only the table can tell."
    ways = [
        (closed_share([column.distances for column in columns]), "in single columns"),
        (closed_share([pair.distances for pair in pairs]), "in pairs of columns"),
    ]
    closed = [(max(share, 0.0), how) for share, how in ways if share is not None]
    if not closed:
        return f"Your table looks like the public base, and so will your rows: {like_base}."
    way = " and ".join(f"{round(100 * share)}% {how}" for share, how in closed)
    worst, _ = min(closed)
    if worst < 0.1:
        like = "like the public base, hardly like your table"
    elif worst < 0.5:
        like = "more like the public base than like your table"
    elif worst < 0.9:
        like = "like a blurred copy of your table"
    else:
        like = "much like your table"
    distance = f"they cover {way} of the distance from the public base to your table"
    return f"Your rows will look {like}: {distance}; {like_base}."
