"""Associations of columns, against SciPy and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2_contingency, spearmanr

from pyro_mbde.releases.associations import (
    LEVELS,
    MIXED,
    RANKS,
    Association,
    Ordered,
    Recovered,
    associations,
    recovered,
)
from pyro_mbde.releases.distances import COLUMN_LEVELS, Array, Samples, cells_of

NAN = np.nan


def column(name: str, values: Array, *, levels: int | None = None, table: Array | None = None) -> Ordered:
    samples = Samples(table, values, np.full(len(values), 1 / len(values)))
    return Ordered(name, samples, None if levels is None else cells_of(samples, COLUMN_LEVELS, num_levels=levels))


def test_ranks_are_scipys() -> None:
    generator = np.random.default_rng(0)
    one = generator.integers(0, 6, 500).astype(float)
    other = one + generator.normal(0, 3, 500)
    exact = spearmanr(one, other).statistic
    (found,) = associations([column("a", one, table=one), column("b", other, table=other)])
    assert found == Association(("a", "b"), RANKS, *[pytest.approx(exact)] * 3)
    weights = generator.integers(1, 4, 500)
    repeated = (np.repeat(values, weights) for values in (one, other))
    samples = [Samples(None, values, weights / weights.sum()) for values in (one, other)]
    (found,) = associations([Ordered("a", samples[0], None), Ordered("b", samples[1], None)])
    assert (found.density, found.base) == (pytest.approx(spearmanr(*repeated).statistic), pytest.approx(exact))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1.0, 2.0, 30.0, NAN], [3.0, 2.0, 0.5, 9.0], -1.0),
        ([1.0, 1.0], [1.0, 2.0], None),
        ([NAN, 1.0], [2.0, NAN], None),
        ([1.0], [2.0], None),
        ([NAN, NAN], [1.0, 2.0], None),
    ],
)
def test_missing_and_constant_values(one: list[float], other: list[float], expected: float | None) -> None:
    (found,) = associations([column("a", np.array(one)), column("b", np.array(other))])
    assert found.base == (None if expected is None else pytest.approx(expected))


def test_cramers_v() -> None:
    """Without the correction it is that of chi squared; the correction is small for many rows."""
    generator = np.random.default_rng(0)
    one = generator.integers(0, 3, 20_000)
    other = np.where(generator.random(20_000) < 0.5, one, generator.integers(0, 3, 20_000))
    counts = np.histogram2d(one, other, bins=3)[0]
    exact = np.sqrt(chi2_contingency(counts, correction=False).statistic / 20_000 / 2)
    (found,) = associations([column("a", one.astype(float), levels=3), column("b", other.astype(float), levels=3)])
    assert found.measure == LEVELS
    assert found.base == pytest.approx(exact, abs=0.001)
    assert found.density == pytest.approx(found.base)
    assert found.table is None


def test_chance_is_taken_off() -> None:
    """Of 200 rows of 20 levels each; chi squared alone would give 0.3."""
    generator = np.random.default_rng(1)
    one, other = generator.integers(0, 20, (2, 200)).astype(float)
    numbers = generator.normal(size=200)
    columns = [column("a", one, levels=20), column("b", other, levels=20), column("c", numbers)]
    found = associations(columns)
    assert [one.measure for one in found] == [LEVELS, MIXED, MIXED]
    assert all(one.base is not None and one.base < 0.15 for one in found)


def test_correlation_ratio() -> None:
    levels = np.repeat([0.0, 1.0], 5000)
    (found,) = associations([column("a", levels, levels=2), column("b", np.where(levels == 1, 7.0, 3.0))])
    assert (found.measure, found.base) == (MIXED, pytest.approx(1.0))
    numbers = np.tile([1.0, 2.0, NAN, 4.0], 2500)
    (found,) = associations([column("b", numbers), column("a", levels, levels=2)])
    assert (found.measure, found.base) == (MIXED, pytest.approx(0.0, abs=0.02))


def test_missing_levels_are_one_more() -> None:
    one = np.tile([0.0, 1.0, NAN], 4000)
    (found,) = associations([column("a", one, levels=2), column("b", one, levels=2)])
    assert found.base == pytest.approx(1.0)


def test_recovered() -> None:
    found = [
        Association(("a", "b"), RANKS, 0.5, 0.42, 0.0),
        Association(("a", "c"), RANKS, -0.6, -0.2, -0.55),
        Association(("b", "c"), RANKS, 0.2, 0.2, 0.2),
        Association(("a", "d"), RANKS, None, 0.2, 0.2),
    ]
    assert recovered(found) == Recovered(2, 1, 1)
    assert recovered(found[3:]) is None
