"""Warnings for an owner whose schema states what was computed from the table."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pyro_mbde import Column, PrivacyLeakWarning, Schema

GENERATOR = np.random.default_rng(0)
COST = pd.Series(GENERATOR.gamma(2.0, 1000.0, 501).clip(0, 99_999))
WARD = pd.Series(GENERATOR.choice(["A", "B"], 501, p=[0.3, 0.7]))
SHARE = float((WARD == "A").mean())
EDGES = [0, 1000, 2500, 100_000]
COUNTS = np.histogram(COST, EDGES)[0] / 501


def cost(**facts: Any) -> tuple[Column, pd.Series]:
    return Column("x", 0, 100_000, **facts), COST


LEAKS: dict[str, tuple[Column, pd.Series]] = {
    "mean": cost(mean=float(COST.mean()), sd=1500.0),
    "mean to six digits": cost(mean=float(f"{COST.mean():.6g}")),
    "sd": cost(mean=2000.0, sd=float(COST.std())),
    "quantiles": cost(quantiles={0.25: float(COST.quantile(0.25)), 0.9: 4000.0}),
    "histogram": cost(histogram={"edges": EDGES, "shares": COUNTS.tolist()}),
    "shares": (Column("x", kind="category", levels=["A", "B"], shares={"A": SHARE, "B": 1 - SHARE}), WARD),
    "missing_share": (Column("x", 0, 100_000, missing="level", missing_share=10 / 501), COST.where(COST.index > 9)),
}


@pytest.mark.parametrize("name", LEAKS)
def test_the_tables_own_statistics_are_noticed(name: str) -> None:
    column, values = LEAKS[name]
    with pytest.warns(PrivacyLeakWarning, match=f"The schema's {name.split()[0]} of column 'x' equals") as caught:
        Schema((column,)).to_tensor(pd.DataFrame({"x": values}))
    assert not any(character.isdigit() for character in str(caught[0].message))
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("column", "values"),
    [
        cost(mean=float(f"{COST.mean():.3g}"), sd=1500.0),
        cost(quantiles={0.25: float(COST.quantile(0.25)) * 1.001}),
        cost(),
        (Column("x", kind="category", levels=["A", "B"], shares={"A": 0.3, "B": 0.7}), WARD),
        (Column("x", kind="boolean", shares={"yes": 0.5, "no": 0.5}), pd.Series([True, False] * 5)),
        (Column("x", 0, 200, "integer", quantiles={0.5: 123}), pd.Series([123] * 9)),
        (Column("x", 0, 100, mean=1.234567), pd.Series([1.234567] * 7)),
    ],
    ids=["rounded", "another", "nothing", "public shares", "round shares", "a whole median", "few rows"],
)
def test_nothing_to_say(column: Column, values: pd.Series) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyLeakWarning)
        Schema((column,)).to_tensor(pd.DataFrame({"x": values}))
