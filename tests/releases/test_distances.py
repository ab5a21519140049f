"""Cells of columns of all kinds, and distances on them."""

from __future__ import annotations

import numpy as np
import pytest

from pyro_mbde.releases.distances import (
    COLUMN_LEVELS,
    MAX_PAIR_CELLS,
    Samples,
    cells_of,
    distances,
    grouped,
    joint,
    largest_gap,
    missing_shares,
)

NAN = np.nan


def evenly(size: int) -> np.ndarray:
    return np.full(size, 1 / size)


def test_levels_have_a_cell_each_and_missing_values_one() -> None:
    samples = Samples(np.array([0.0, 2.0, NAN, 2.0]), np.array([0.0, 1.0, 2.0, NAN]), np.array([0.5, 0.0, 0.5, 0.0]))
    found = distances(cells_of(samples, COLUMN_LEVELS, num_levels=3), samples.weights)
    assert found.table_to_base == pytest.approx(0.25)
    assert found.table_to_density == pytest.approx(0.25)
    assert found.density_to_base == pytest.approx(0.5)


def test_few_whole_numbers_have_a_cell_each() -> None:
    """Between tenths, a rare number would share a cell with its neighbour."""
    table, base = np.repeat([0.0, 1.0, 2.0], [96, 4, 0]), np.repeat([0.0, 1.0, 2.0], [96, 2, 2])
    samples = Samples(table, base, evenly(100))
    assert distances(cells_of(samples, COLUMN_LEVELS, whole=True), samples.weights).table_to_base == pytest.approx(0.02)
    assert distances(cells_of(samples, COLUMN_LEVELS), samples.weights).table_to_base == 0


def test_many_whole_numbers_lie_between_quantiles() -> None:
    numbers = np.arange(1000.0)
    cells = cells_of(Samples(numbers, numbers, evenly(1000)), COLUMN_LEVELS, whole=True)
    assert cells.size == 11  # ten, and one for missing values


@pytest.mark.parametrize("table", [None, np.array([NAN, NAN])])
def test_columns_of_missing_values_alone(table: np.ndarray | None) -> None:
    samples = Samples(table, np.array([NAN, NAN, NAN]), evenly(3))
    found = distances(cells_of(samples, COLUMN_LEVELS), samples.weights)
    assert found.density_to_base == 0
    assert largest_gap(samples) is None
    assert missing_shares(samples)[1:] == pytest.approx((1.0, 1.0))


def test_the_rarest_of_many_levels_share_a_cell() -> None:
    base = np.concatenate([np.arange(100.0), np.arange(10.0)])
    cells = cells_of(Samples(None, base, evenly(110)), COLUMN_LEVELS, num_levels=100)
    few = grouped(cells)
    assert few.size == MAX_PAIR_CELLS
    counts = np.bincount(few.base, minlength=few.size)
    assert counts.max() == 110 - counts[:-1].sum() and counts[-1] > 50
    assert joint(few, few).size == MAX_PAIR_CELLS**2


def test_the_largest_gap_is_scipys() -> None:
    from scipy.stats import ks_2samp

    generator = np.random.default_rng(0)
    table, base = generator.normal(0.3, 1, 400).round(1), generator.normal(0, 1, 900).round(1)
    table[::7] = NAN
    found = largest_gap(Samples(table, base, evenly(900)))
    assert found is not None
    assert found == pytest.approx([ks_2samp(table[~np.isnan(table)], base).statistic] * 2)
    doubled = np.repeat(base, 2)
    weighted = largest_gap(Samples(table, base, evenly(900)))
    assert weighted == pytest.approx(largest_gap(Samples(table, doubled, evenly(1800))))
