"""Previews measure and draw as the owner's report does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from densities import make_density

from pyro_mbde import Column, Schema
from pyro_mbde.releases import comparison
from pyro_mbde.releases.associations import MIXED, RANKS
from pyro_mbde.releases.histograms import Bars, LevelShares
from pyro_mbde.releases.preview import Preview, draw_preview, preview

WARDS = ["A", "B", "C", "D"]
SCHEMA = Schema(
    (
        Column("ward", kind="category", levels=WARDS, missing="level", shares=dict.fromkeys(WARDS, 0.25)),
        Column("sex", kind="category", levels=["F", "M"]),
        Column("smoker", kind="boolean"),
        Column("stage", kind="ordered", levels=["I", "II", "III"]),
        Column("age", 0, 99, kind="integer"),
        Column("stay", 0, 100, scale="log1p", missing="level", missing_share=0.25),
        Column("seen", "2018-03-01", "2023-12-31", kind="date"),
    ),
    correlations=[
        {"columns": ["smoker", "age"], "value": -0.8},
        {"columns": ["sex", "stage"], "value": 0.7},
    ],
    constraints=["age < 18 where ward = A", "age >= 60 where ward = B"],
)


@pytest.fixture(scope="module")
def shown() -> Preview:
    return preview(SCHEMA)


def test_associations_are_those_of_the_report(shown: Preview, monkeypatch: pytest.MonkeyPatch) -> None:
    """Correlations of booleans keep their sign, and a missing level is one of them."""
    told = {(one, other): value for one, other, value in shown.pairs}
    assert told["smoker", "age"] < -0.4
    assert told["sex", "stage"] > 0.3
    assert told["ward", "age"] > 0.3
    monkeypatch.setattr(comparison, "_NUM_DRAWS", 2**13)
    pairs = comparison.compare(make_density(SCHEMA.base()), None).pairs
    reported = {pair.names: pair.association for pair in pairs}
    assert reported["ward", "age"].measure == MIXED
    assert reported["sex", "smoker"].measure == RANKS
    for names, value in told.items():
        assert value == pytest.approx(reported[names].base, abs=0.05), names


def test_columns_are_drawn_as_the_report_draws_them(shown: Preview, tmp_path: Path) -> None:
    ward, *_, stay, seen = shown.histograms
    assert isinstance(ward, LevelShares) and isinstance(stay, Bars) and isinstance(seen, Bars)
    assert ward.names == [*WARDS, "missing"]
    assert stay.missing is not None and stay.missing.base == pytest.approx(0.25, abs=0.02)
    assert [mark.text for mark in seen.marks] == ["2020", "2022"]
    assert stay.edges[-1] == 100
    assert sum(seen.base) == pytest.approx(1)
    draw_preview(shown, tmp_path / "base.svg")
    assert all(f"<!-- {text} -->" in (tmp_path / "base.svg").read_text() for text in ("missing", "2022", "ward"))


def test_whole_numbers_are_told_as_whole_numbers() -> None:
    shown = preview(Schema((Column("visits", 0, 99, kind="integer", scale="log1p"),)))
    assert "." not in shown.columns[0].law


def test_a_column_that_does_not_vary_goes_with_none() -> None:
    schema = Schema((Column("a", 0, 1), Column("b", 5, 5, kind="integer")))
    shown = preview(schema)
    assert shown.pairs == ()
    assert np.isfinite(shown.histograms[1].base).all()
