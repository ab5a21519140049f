"""Histograms of dates, of levels and of columns with missing values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyro_mbde.releases.columns import ReleasedColumn
from pyro_mbde.releases.distances import Samples
from pyro_mbde.releases.histograms import MAX_LEVELS, bars, count_of_units, level_shares
from pyro_mbde.releases.picture import HEIGHT, WIDTH, level_picture, picture

NAN = np.nan


def dates(low: str, high: str, resolution: str) -> ReleasedColumn:
    kind = "datetime" if resolution in ("hour", "minute", "second") else "date"
    return ReleasedColumn("when", low, high, False, kind=kind, resolution=resolution)


def samples(base: Any, table: Any = None) -> Samples:
    base = np.asarray(base, dtype=float)
    return Samples(None if table is None else np.asarray(table, dtype=float), base, np.full(len(base), 1 / len(base)))


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        (dates("2018-03-01", "2023-12-31", "day"), ["2020", "2022"]),
        (dates("2018", "2023", "year"), ["2018", "2020", "2022"]),
        (dates("2020-03", "2020-09", "month"), ["2020-03", "2020-05", "2020-07", "2020-09"]),
        (dates("2020-01-30", "2020-03-02", "day"), ["2020-02", "2020-03"]),
        (dates("2020-01-05", "2020-01-12", "day"), ["2020-01-05", "2020-01-07", "2020-01-09", "2020-01-11"]),
        (dates("2020-01-01 08:00", "2020-01-01 12:00", "minute"), ["08:00", "10:00", "12:00"]),
        (
            dates("2020-01-01 18:00", "2020-01-02 05:00", "hour"),
            ["01-01 18:00", "01-01 21:00", "01-02 00:00", "01-02 03:00"],
        ),
        (dates("2020-01-01", "2020-01-01", "day"), ["2020-01-01"]),
        (dates("1900-01-01", "2020-01-01", "day"), ["1900", "1950", "2000"]),
    ],
)
def test_axes_of_dates(column: ReleasedColumn, texts: list[str]) -> None:
    drawn = bars(column, samples(range(count_of_units(column) + 1)))
    assert [mark.text for mark in drawn.marks] == texts
    assert all(0 <= mark.place < 1 for mark in drawn.marks)
    assert drawn.edges[-1] == count_of_units(column) + 1
    labels = picture(drawn, whole=column.whole).labels
    assert [label.text for label in labels] == texts


def test_missing_values_have_a_bar() -> None:
    column = ReleasedColumn("bmi", 0.0, 30.0, False, may_be_missing=True)
    drawn = bars(column, samples([NAN, *np.arange(0.5, 30)[:29]], [NAN, 1.0]))
    assert drawn.missing == pytest.approx((0.5, 1 / 30, 1 / 30))
    assert sum(drawn.density) == pytest.approx(29 / 30)
    assert sum(drawn.table or []) == pytest.approx(0.5)
    shown = picture(drawn, whole=False)
    assert shown.labels[-1].text == "missing"
    assert shown.density.count("M") == 2
    assert shown.table.endswith(f"V{HEIGHT}H{WIDTH - 24}Z")


def test_levels_in_order() -> None:
    column = ReleasedColumn("stage", None, None, False, kind="ordered", levels=("I", "II"), may_be_missing=True)
    found = level_shares(column, samples([0, 0, 1, NAN], [1, 1]))
    assert (found.names, found.table, found.density) == (["I", "II", "missing"], [0, 1, 0], [0.5, 0.25, 0.25])
    drawn = level_picture(found)
    assert drawn.names == ("I", "II", "missing")
    assert drawn.labels[-1].text == "100%"


def test_of_many_levels_the_most_frequent_are_shown() -> None:
    levels = tuple(f"ward {number}" for number in range(100))
    column = ReleasedColumn("ward", None, None, False, kind="category", levels=levels)
    found = level_shares(column, samples([*range(100), *([77] * 50)], [99, 99]))
    assert len(found.names) == MAX_LEVELS
    assert {"ward 77", "ward 99"} < set(found.names)
    assert found.names[-1] == "89 others"
    assert sum(found.density) == pytest.approx(1) and sum(found.table or []) == pytest.approx(1)


def test_long_names_are_cut() -> None:
    column = ReleasedColumn("ward", None, None, False, kind="category", levels=("Paediatrics and neonatology", "B"))
    assert level_picture(level_shares(column, samples([0, 1]))).names[0] == "Paediatrics and…"
