"""A table beside the density that was fitted to it and beside the base, column by column and pair by pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_mbde._torch_state import seeded, single_thread
from pyro_mbde.calibration.batches import BatchScores
from pyro_mbde.calibration.scores import SampledScores
from pyro_mbde.density.base import PreparedBase
from pyro_mbde.density.bounds import clip_score
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.releases.columns import ReleasedColumn, released_columns, row_base, schema_of, to_numbers
from pyro_mbde.tables.schema import Schema

Array = NDArray[np.float64]

#: Draws of the base, which stand for the density too, each with its density ratio as a weight.
_NUM_DRAWS, _CHUNK = 2**17, 2**15
#: Distances are of histograms between these quantiles, of the table's and of the base's values.
_COLUMN_LEVELS, _PAIR_LEVELS = np.arange(1, 10) / 10, np.arange(1, 4) / 4
#: Scores at which the ratio of a batch's row is computed, and the tolerance, in nats, of the law of the others' scores.
_NUM_NODES, _GRID_TOLERANCE = 129, 0.05
#: Bars of a picture. Without ends, a column is shown between quantiles.
_NUM_BARS, _SHOWN = 30, (0.001, 0.999)


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


class Bars(NamedTuple):
    """A histogram of k bars for a picture.

    Attributes:
        edges: k + 1, of the bars, in the table's own units; a bar holds its left edge, and the last one its right edge
            too.
        places: k + 1, of the edges on a picture's axis, from 0 to 1: on the scale that the column is modelled on.
        table: k shares of the table's rows, in [0, 1]; None without a table.
        density: k shares of the density's.
        base: k shares of the base's.
    """

    edges: list[float]
    places: list[float]
    table: list[float] | None
    density: list[float]
    base: list[float]


class ColumnComparison(NamedTuple):
    """One column.

    Attributes:
        name: of the column.
        distances: of its law.
        bars: to draw it.
        whole: whether its values are whole numbers.
    """

    name: str
    distances: Distances
    bars: Bars
    whole: bool


class PairComparison(NamedTuple):
    """Two columns together.

    Attributes:
        names: of the columns.
        distances: of their joint law.
    """

    names: tuple[str, str]
    distances: Distances


class Comparison(NamedTuple):
    """A table, the density and the base; of a density of batches, one row by itself. As sensitive as the table.

    Attributes:
        verdict: what rows will look like, in a sentence.
        density_to_base: total variation between whole rows of the density and of the base.
        columns: one by one.
        pairs: two by two, those first whose density is furthest from the table; without a table, from the base.
    """

    verdict: str
    density_to_base: float
    columns: tuple[ColumnComparison, ...]
    pairs: tuple[PairComparison, ...]


class _Samples(NamedTuple):
    """Values of one column, in the table's own units.

    Attributes:
        table: float64 ``(n,)``; None without a table.
        base: of m draws of the base, float64 ``(m,)``.
        weights: of these draws for the density, which sum to 1, float64 ``(m,)``.
    """

    table: Array | None
    base: Array
    weights: Array


def compare(q: MollifiedExpFamily, rows: Tensor | None, columns: Sequence[str] | Schema | None = None) -> Comparison:
    """Compares a table with the density that was fitted to it, in the table's own units.

    Privacy:
        As sensitive as the table: not for release.

    Args:
        q: the fitted density.
        rows: of the table, in the support, shape ``(n,)`` or ``(n, d)``; ``None``, or none of them, for no table.
        columns: names of the columns, or the schema that the base was made from, as for
            :func:`~pyro_mbde.release`.
    """
    named = released_columns(q, columns)
    schema = schema_of(q, columns)
    rows_of_batch = PreparedBase.of(q.base).num_rows
    with seeded(0), single_thread(), torch.no_grad():
        draws = row_base(q).sample(torch.Size([_NUM_DRAWS]))
        if rows_of_batch is None:
            tilts = torch.cat([q.tilt(part).double() for part in torch.split(draws, _CHUNK)])
        else:
            tilts = _log_ratios_of_a_row(q, draws, rows_of_batch)
        log_ratio = tilts - q.log_normalizer.value
    weights = log_ratio.softmax(0).cpu().numpy()
    table = None if rows is None or not len(rows) else to_numbers(rows, named, schema)
    base = to_numbers(draws, named, schema)
    samples = {
        name: _Samples(None if table is None else _values(table[name]), _values(base[name]), weights)
        for name, *_ in named
    }
    compared = tuple(
        ColumnComparison(
            column.name,
            _distances([samples[column.name]], _COLUMN_LEVELS),
            _bars(column, samples[column.name]),
            column.whole,
        )
        for column in named
    )
    pairs = [
        PairComparison((one, other), _distances([samples[one], samples[other]], _PAIR_LEVELS))
        for one, other in combinations(samples, 2)
    ]
    distance = 0.5 * float(abs(weights - 1 / len(weights)).sum())
    pairs.sort(key=lambda pair: _furthest_first(pair.distances))
    return Comparison(_verdict(compared, pairs, distance), distance, compared, tuple(pairs))


def _log_ratios_of_a_row(q: MollifiedExpFamily, draws: Tensor, num_rows: int) -> Tensor:
    r"""Of one row of a batch, whatever the others are: the log of its law's ratio to the base, up to a constant.

    With u the score of the row and S that of the k - 1 others, which are draws of the base, it is
    :math:`\log E\, e^{f(u + S)}`, computed at some u and interpolated between them.
    """
    scores = q.row_scores(draws).cpu()
    others, log_weights = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    if num_rows > 1:
        sampled = SampledScores(scores.unsqueeze(0), None, log_weights)
        others, log_weights = BatchScores(sampled, num_rows - 1, _GRID_TOLERANCE).weighted()
        log_weights = log_weights - log_weights.logsumexp(0)
    values, levels = scores.numpy(), np.linspace(0, 1, _NUM_NODES)
    even = values.min() + levels * (values.max() - values.min())
    nodes = np.unique(np.concatenate([np.quantile(values, levels), even]))
    tilts = [q.shrinkage * clip_score(others + float(node), q.offset, q.bounds) for node in nodes]
    log_ratios = [float((tilt + log_weights).logsumexp(0)) for tilt in tilts]
    return torch.from_numpy(np.interp(values, nodes, log_ratios))


def _furthest_first(distances: Distances) -> float:
    return -(distances.density_to_base if distances.table_to_density is None else distances.table_to_density)


def _values(column: Any) -> Array:
    values: Array = column.to_numpy(dtype=np.float64)
    return values


def _distances(samples: Sequence[_Samples], levels: Array) -> Distances:
    """Of one column or of several together, on the cells of a grid between quantiles."""
    grids = [_grid(sample, levels) for sample in samples]
    weights, draws = samples[0].weights, [sample.base for sample in samples]
    base, density = _shares(draws, grids), _shares(draws, grids, weights)
    moved = _total_variation(density, base)
    tables = [sample.table for sample in samples if sample.table is not None]
    if not tables:
        return Distances(None, None, moved, None)
    table, num_rows = _shares(tables, grids), len(tables[0])
    # A share p of n rows is off by sqrt(2 p (1 - p) / (pi n)) on average; weights w are as good as 1 / sum w^2 rows.
    variance = density * (1 - density) * (1 / num_rows + float((weights**2).sum()))
    chance = 0.5 * float(np.sqrt(2 / math.pi * variance).sum())
    return Distances(_total_variation(table, base), _total_variation(table, density), moved, chance)


def _grid(sample: _Samples, levels: Array) -> Array:
    """The edges of a grid: quantiles of the table and of the base."""
    of = [sample.base] if sample.table is None else [sample.table, sample.base]
    edges: Array = np.unique(np.concatenate([np.quantile(values, levels) for values in of]))
    return edges


def _shares(columns: Sequence[Array], grids: Sequence[Array], weights: Array | None = None) -> Array:
    """Shares of rows, or of their weights, in each cell of a grid, of which each column has some edges."""
    cells, size = np.zeros(len(columns[0]), dtype=np.int64), 1
    for values, edges in zip(columns, grids, strict=True):
        cells = cells * (len(edges) + 1) + np.searchsorted(edges, values, "left")
        size *= len(edges) + 1
    counts: Array = np.bincount(cells, weights, minlength=size).astype(np.float64)
    shares: Array = counts / counts.sum()
    return shares


def _total_variation(one: Array, other: Array) -> float:
    return min(0.5 * float(abs(one - other).sum()), 1.0)


def _bars(column: ReleasedColumn, sample: _Samples) -> Bars:
    """Equal widths on the scale that a column is modelled on, or as nearly equal as whole numbers allow."""
    values = sample.base if sample.table is None else np.concatenate([sample.base, sample.table])
    low, high = (
        float(np.quantile(values, level)) if end is None else end
        for end, level in zip((column.low, column.high), _SHOWN, strict=True)
    )
    if column.whole:  # a whole number fills the unit above it
        low, high = math.floor(low), math.floor(high) + 1.0
    elif high <= low:
        low, high = low - 0.5, high + 0.5

    def on_scale(values: Array) -> Array:
        return np.log1p(values) if column.scale == "log1p" else values

    first, last = on_scale(np.array([low, high]))
    edges = np.linspace(first, last, _NUM_BARS + 1)
    edges = np.expm1(edges) if column.scale == "log1p" else edges
    edges[0], edges[-1] = low, high
    if column.whole:
        edges = np.unique(np.round(edges))
    places = (on_scale(edges) - first) / (last - first)

    def shares(of: Array, weights: Array | None = None) -> list[float]:
        counts = np.histogram(of, edges, weights=weights)[0].astype(float)
        total = float(len(of)) if weights is None else float(weights.sum())
        return list(map(float, counts / total))

    return Bars(
        list(map(float, edges)),
        list(map(float, places)),
        None if sample.table is None else shares(sample.table),
        shares(sample.base, sample.weights),
        shares(sample.base),
    )


def closed_share(distances: Sequence[Distances]) -> float | None:
    """Returns what share of the way from the base to the table a density has gone, on average over columns or pairs.

    None without a table, or where the base is as near to it as chance allows.

    Example:
        >>> round(closed_share([Distances(0.4, 0.3, 0.1, 0.01), Distances(0.2, 0.15, 0.05, 0.01)]), 3)
        0.259
    """
    # By how much chance alone makes a distance larger, it is counted smaller: the table's rows are finitely many.
    whole = sum(max((one.table_to_base or 0.0) - (one.chance or 0.0), 0.0) for one in distances)
    left = sum(max((one.table_to_density or 0.0) - (one.chance or 0.0), 0.0) for one in distances)
    if whole <= 0.02 * len(distances):  # as without a table
        return None
    return 1 - left / whole


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
