"""What a schema may state, learned from a table that is public: shares, histograms and correlations.

Nothing here may see the private table, nor anything that was computed from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from scipy.special import ndtri  # type: ignore[import-untyped]  # SciPy ships no types
from torch import Tensor

from pyro_mbde._checks import argument_error, check_choice, counted
from pyro_mbde.density.marginals import MarginalTable
from pyro_mbde.tables.cells import PUBLIC_ROWS
from pyro_mbde.tables.columns import Column
from pyro_mbde.tables.correlations import possible_factor, smallest_eigenvalue
from pyro_mbde.tables.facts import (
    DATE_KINDS,
    LEVEL_KINDS,
    WAYS,
    Numbers,
    range_of,
)

if TYPE_CHECKING:
    import pandas as pd

    from pyro_mbde.density.mixed_base import MixedBase
    from pyro_mbde.tables.schema import Schema

#: Bins of equal mass of a learned histogram, besides those of single numbers and of the ends; and bins of half the mass
#: of the bin before towards each end, as long as so many rows are beyond.
MAX_BINS, _MAX_TAIL_BINS, _MIN_ROWS_BEYOND = 40, 5, 5
#: Added to the count of each level and bin, so that what the public table lacks is possible.
_SMOOTHING = 0.5
#: Least eigenvalue of a matrix of learned correlations.
_LEARNED_EIGENVALUE = 1e-2
#: Learned correlations are within these; smaller ones are left out, as are those below one standard error.
_LARGEST, _SMALLEST = 0.99, 0.01
#: Correlations are learned as if so many rows more had none: a few rows may be perfectly ordered by chance.
_ROWS_WITHOUT = 4
_HERMITE_TERMS = 64
_DIGITS = 4


class Learned(NamedTuple):
    """What public rows say.

    Attributes:
        columns: as given, with shares and histograms where they stated nothing.
        correlations: ``{"columns": [one, other], "value": r}`` for pairs of columns with an order; of the latent normal
            scores.
    """

    columns: tuple[Column, ...]
    correlations: list[dict[str, Any]]


def learn_from_public_rows(columns: Sequence[Column], frame: pd.DataFrame) -> Learned:
    """Returns columns that state the distribution of public rows, and the correlations of these.

    Use it for a table that anybody may have: the public use file of a census, an open survey, a published sample. What
    a column states already is kept. All numbers are rounded to 4 significant digits and plain values of Python, to be
    written into a schema file and read by people.

    Privacy:
        The rows must be public. Never pass the private table, a part of it, or anything that was computed from it:
        what is learned becomes part of the base and has no protection at all.

    Args:
        columns: kinds, ranges and levels of the columns.
        frame: the public table, with a column of each name.

    Raises:
        ValueError: no row is left after the columns' policies.
    """
    from pyro_mbde.tables.schema import Schema

    return learn_from_public_codes(columns, Schema(tuple(columns))._to_tensor(frame, PUBLIC_ROWS))


def learn_from_public_codes(columns: Sequence[Column], codes: Tensor) -> Learned:
    """Returns :func:`learn_from_public_rows` of rows that are numbers already, as ``Schema.to_tensor`` returns them.

    Privacy:
        The rows must be public, as there.

    Args:
        columns: d of them.
        codes: shape ``(n, d)``: real numbers in modelled units, whole numbers, codes of dates and levels; a missing
            value is anything below a column's range.

    Raises:
        ValueError: the shape is another, or there is no row.
    """
    values = np.asarray(codes.detach().cpu().double().numpy())
    if values.ndim != 2 or values.shape[1] != len(columns):
        raise ValueError(argument_error("codes", f"have shape (n, {len(columns)})", values.shape))
    if not len(values):
        raise ValueError("public rows must be at least 1, got none that fits the columns.")
    if not np.isfinite(values).all():
        raise ValueError("codes must be finite, got NaN or infinite values.")
    learned = tuple(_with_facts(column, values[:, place]) for place, column in enumerate(columns))
    ordered = [place for place, column in enumerate(columns) if not _is_unordered(column)]
    return Learned(learned, _correlations([columns[place].name for place in ordered], values[:, ordered]))


def _with_facts(column: Column, values: Numbers) -> Column:
    """A column with what its values say, where it states nothing."""
    facts: dict[str, Any] = {}
    lowest = 0.0 if column.kind in LEVEL_KINDS else range_of(column).ends[0]
    # A missing value is as far below the range as it is wide; float32 may put an end a little lower.
    width = 1.0 if column.kind in LEVEL_KINDS else range_of(column).ends[1] - lowest
    present = values >= lowest - width / 2
    if column.keeps_missing and column.missing_share is None:
        missing = len(values) - int(present.sum())
        facts["missing_share"] = _short((missing + _SMOOTHING) / (len(values) + 2 * _SMOOTHING))
    if all(getattr(column, way) is None for way in WAYS) and present.any():
        if column.kind in LEVEL_KINDS:
            facts["shares"] = _level_shares(column, values[present])
        else:
            facts["histogram"] = _histogram(column, values[present])
    return replace(column, **facts) if facts else column


def _is_unordered(column: Column) -> bool:
    return column.kind == "category" and len(column.levels or ()) > 2


def _level_shares(column: Column, values: Numbers) -> dict[str, float]:
    levels = ("false", "true") if column.kind == "boolean" else tuple(map(str, column.levels or ()))
    counts = np.bincount(values.astype(np.int64), minlength=len(levels))
    return dict(zip(levels, _smoothed(counts), strict=True))


def _histogram(column: Column, modelled: Numbers) -> dict[str, Any]:
    """Bins between quantiles, of single numbers that are frequent, and of what is below and above all values."""
    span = range_of(column)
    values = np.asarray(span.natural(modelled)).clip(span.low, span.high)
    num_bins = int(np.clip(round(2 * len(values) ** 0.4), 1, MAX_BINS))
    found, counts = np.unique(values, return_counts=True)
    frequent = found[counts >= max(2, len(values) / num_bins)][:MAX_BINS]
    tails = 0.5 ** np.arange(1, _MAX_TAIL_BINS + 1) / num_bins
    tails = tails[tails * len(values) >= _MIN_ROWS_BEYOND]
    levels = np.concatenate([np.linspace(0, 1, num_bins + 1), tails, 1 - tails])
    quantiles = np.quantile(values, levels, method="inverted_cdf")
    if span.whole:
        inner = np.concatenate([quantiles + 1, found[:1], frequent, frequent + 1])
    elif column.decimals is not None:  # a rounded number stands for what is rounded to it
        half = 10.0**-column.decimals / 2
        inner = np.concatenate([quantiles, frequent - half, frequent + half])
    else:
        inner = quantiles
    last = span.high + span.whole
    # Edges that floats, or float32, could mix up are one.
    inner = np.unique(inner[(inner > span.low) & (inner < last)])
    least = 1.0 if span.whole else (span.high - span.low) * 2.0**-16
    edges = _rounded_edges(_apart(np.concatenate([[span.low], inner, [last]]), least, span.logarithmic), span.whole)
    shares = _smoothed(np.histogram(values, edges)[0])
    if span.whole and edges[-2] < span.high:
        edges[-1] = span.high  # the last bin holds it
    if column.kind in DATE_KINDS:
        return {"edges": [column.of_kind.value(column, edge) for edge in edges.tolist()], "shares": shares}
    return {"edges": [int(edge) if span.whole else float(edge) for edge in edges], "shares": shares}


def _apart(edges: Numbers, least: float, logarithmic: bool) -> Numbers:
    """Edges without those that are closer to the one before, or to the last, than a least distance."""
    kept = [float(edges[0])]
    for edge in edges[1:-1]:
        distance = least * (1 + abs(edge)) / (1 + abs(edges[-1])) if logarithmic else least
        if edge - kept[-1] >= distance and edges[-1] - edge >= distance:
            kept.append(float(edge))
    return np.array([*kept, float(edges[-1])])


def _rounded_edges(edges: Numbers, whole: bool) -> Numbers:
    """Edges with few digits, which stay apart: none moves by more than a quarter of the way to its neighbours."""
    gaps = np.diff(edges)
    rounded = edges.copy()
    for place in range(1, len(edges) - 1):
        for digits in range(_DIGITS, 17):
            short = float(f"{edges[place]:.{digits}g}")
            if abs(short - edges[place]) <= min(gaps[place - 1], gaps[place]) / 4 and (not whole or short.is_integer()):
                rounded[place] = short
                break
    return rounded


def _smoothed(counts: Any) -> list[float]:
    total = counts.sum() + _SMOOTHING * len(counts)
    return [_short((count + _SMOOTHING) / total) for count in counts.tolist()]


def _short(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


def _correlations(names: Sequence[str], values: Numbers) -> list[dict[str, Any]]:
    """Correlations of the latent normal scores, shrunk towards 0 by how uncertain they are."""
    num_rows, num_columns = values.shape
    if num_rows < 3 or num_columns < 2:
        return []
    scores, coefficients = zip(*(_normal_scores(column) for column in values.T), strict=True)
    moments = np.cov(np.stack(scores), bias=True).reshape(num_columns, num_columns)
    rows, others = np.triu_indices(num_columns, 1)
    products = np.stack(coefficients)[rows] * np.stack(coefficients)[others]
    found = _latent(products, moments[rows, others])
    # Schaefer and Strimmer (2005): the share of noise in what the squares of the correlations add up to.
    noise = ((1 - found**2) ** 2).sum() / (num_rows - 1)
    found = found * max(0.0, 1 - noise / max((found**2).sum(), 1e-300)) * num_rows / (num_rows + _ROWS_WITHOUT)
    found[np.abs(found) < max(_SMALLEST, num_rows**-0.5)] = 0
    matrix = np.eye(num_columns)
    matrix[rows, others] = matrix[others, rows] = found
    factor = min(1.0, possible_factor(smallest_eigenvalue(torch.from_numpy(matrix)), _LEARNED_EIGENVALUE))
    return [
        {"columns": [names[row], names[other]], "value": _short(factor * value)}
        for row, other, value in zip(rows.tolist(), others.tolist(), found.tolist(), strict=True)
        if value
    ]


def _normal_scores(values: Numbers) -> tuple[Numbers, Numbers]:
    """Normal scores of mid-ranks, and the coefficients of that step function of a normal variable in Hermite's basis.

    The k-th is the integral of the score with h_k phi, h_k = He_k / sqrt(k!). From a to b, h_k phi integrates to
    (h_{k-1}(a) phi(a) - h_{k-1}(b) phi(b)) / sqrt(k).
    """
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    above = counts.cumsum() / len(values)
    steps = ndtri(above - counts / (2 * len(values)))
    ends = ndtri(above[:-1])  # between neighbouring values; at both infinite ends, phi is 0
    rises = np.diff(steps) * np.exp(-(ends**2) / 2) / math.sqrt(2 * math.pi)
    coefficients, before, now = np.empty(_HERMITE_TERMS), np.zeros_like(ends), np.ones_like(ends)
    for order in range(1, _HERMITE_TERMS + 1):
        coefficients[order - 1] = (rises * now).sum() / math.sqrt(order)
        before, now = now, (ends * now - math.sqrt(order - 1) * before) / math.sqrt(order)
    return steps[inverse], coefficients


def _latent(products: Numbers, moments: Numbers) -> Numbers:
    """Correlations of two normal variables whose steps have given covariances: sum_k c_k d_k r^k, rising in r."""
    low, high = np.full(len(moments), -_LARGEST), np.full(len(moments), _LARGEST)
    orders = np.arange(1, _HERMITE_TERMS + 1)
    for _ in range(40):
        middle = (low + high) / 2
        short = (products * middle[:, None] ** orders).sum(1) < moments
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    constant = np.abs(products[:, 0]) < 1e-12
    return np.where(constant, 0.0, (low + high) / 2)


def follow_public_rows(
    schema: Schema, frame: pd.DataFrame, *, source: str, dependence: str = "copula"
) -> tuple[Schema, MixedBase]:
    """Returns a schema that states what public rows say, with its base.

    What the schema states already is kept, and the schema notes the source. With a flow the schema states no
    correlations.

    Privacy:
        The rows must be public, as for :func:`learn_from_public_rows`. The base may then be published too.

    Args:
        schema: columns, and what holds for all rows.
        frame: the public table, with the schema's columns.
        source: what to call it in the schema's note: a file's name, a citation.
        dependence: how columns go together: ``copula`` for correlations, or ``flow`` for a flow of neural networks,
            which needs the extra ``flows``.

    Raises:
        ValueError: no row is left after the columns' policies, or the schema states correlations, for a flow.
    """
    check_choice("dependence", dependence, ("copula", "flow"))
    if dependence == "flow" and schema.correlations:
        pairs = [list(one.columns) for one in schema.correlations]
        remedy = "A flow learns how all columns go together: take them out, or learn a copula, which keeps them."
        raise ValueError(argument_error("correlations", "be left out of a schema for a flow", pairs, remedy))
    codes = schema._to_tensor(frame, PUBLIC_ROWS)
    learned = learn_from_public_codes(schema.columns, codes)
    stated = {frozenset(one.columns) for one in schema.correlations}
    more = [one for one in learned.correlations if frozenset(one["columns"]) not in stated]
    note = f"{counted(len(codes), 'public row')} of {source}, {dependence}"
    correlations: list[Any] = [*schema.correlations, *more] if dependence == "copula" else []
    told = replace(schema, columns=learned.columns, correlations=tuple(correlations), public_rows=note)
    if dependence == "copula":
        return told, told.base()
    from pyro_mbde.density.flow_copula import fit_flow_copula

    low, high = MarginalTable(told.base().marginals).cdf_intervals(codes)
    return told, told.base(fit_flow_copula(low, high, seed=0))
