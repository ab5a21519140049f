"""Columns with stated facts, and what their densities say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pyro_mbde import Column
from pyro_mbde.tables import marginals
from pyro_mbde.tables.facts import range_of
from pyro_mbde.tables.marginals import DensityTable, density_table
from pyro_mbde.tables.maximum_entropy import quadrature

Numbers = np.ndarray[Any, np.dtype[np.float64]]
LEVELS = ["I", "II", "III"]


def real(low: float = 0, high: float = 10, **facts: Any) -> Column:
    return Column("x", low, high, **facts)


def integer(low: int = 0, high: int = 10, **facts: Any) -> Column:
    return Column("n", low, high, "integer", **facts)


def category(**shares: float) -> Column:
    return Column("stage", kind="ordered", levels=LEVELS, shares=shares)


def unmixed(column: Column) -> DensityTable:
    """The stated law without the uniform share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(marginals, "UNIFORM_SHARE", 0.0)
        return density_table(column)


def below(table: DensityTable, points: Any) -> Numbers:
    """The distribution function of the density that is linear between edges."""
    points = np.asarray(points, dtype=np.float64)
    cell = np.clip(np.searchsorted(table.edges, points, side="right") - 1, 0, len(table.left) - 1)
    width = np.diff(table.edges)[cell]
    part = np.clip((points - table.edges[cell]) / width, 0, 1)
    left, right = table.left[cell], table.right[cell]
    before = np.concatenate([[0.0], table.masses().cumsum()])[cell]
    return np.asarray(before + width * part * (left + (right - left) * part / 2))


def probabilities(table: DensityTable, edges: Any) -> Numbers:
    return np.diff(below(table, edges))


def pmf(column: Column) -> Numbers:
    """Probabilities of all whole numbers, without the uniform share where something is stated."""
    span = range_of(column)
    return probabilities(unmixed(column), np.arange(span.low, span.high + 2))


def moments(column: Column) -> tuple[float, float]:
    """Mean and standard deviation in the table's units of the density as it is, by quadrature in each cell."""
    table, span = unmixed(column), range_of(column)
    if span.whole:
        if span.high - span.low > 1e7:
            raise AssertionError("too many to sum")
        values, weights = np.arange(span.low, span.high + 1), pmf(column)
    else:
        nodes, sizes = quadrature(table.edges, False)
        part = (nodes - table.edges[:-1, None]) / np.diff(table.edges)[:, None]
        weights = (sizes * (table.left[:, None] * (1 - part) + table.right[:, None] * part)).ravel()
        values = np.asarray(span.natural(nodes)).ravel()
    weights = weights / weights.sum()
    mean = float(values @ weights)
    return mean, math.sqrt(float((values - mean) ** 2 @ weights))


def on_scale(values: Any, scale: str) -> Any:
    return np.log1p(values) if scale == "log1p" else values


def natural(values: Any, scale: str) -> Any:
    return np.expm1(values) if scale == "log1p" else values
