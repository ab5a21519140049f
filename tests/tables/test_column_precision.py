"""Columns of any size and width: what goes in comes out again, through base, networks, draws and table."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_mbde import Column, DensityRatio, Schema, WeakLearner, private_draws
from pyro_mbde.density.base import prepare_base


def random_columns(count: int) -> list[Column]:
    """Columns of random size, width, kind, scale and decimals, without those that are refused."""
    generator = np.random.default_rng(0)
    columns: list[Column] = []
    while len(columns) < count:
        size = float(10.0 ** generator.uniform(-20, 40)) * generator.choice([-1, 1])
        width = float(abs(size) * 10.0 ** generator.uniform(-12, 2))
        scale = "log1p" if generator.random() < 0.4 else "linear"
        kind = "integer" if generator.random() < 0.4 else "real"
        decimals = int(generator.integers(-12, 13)) if kind == "real" and generator.random() < 0.6 else None
        low, high = (math.floor(size), math.floor(size + width)) if kind == "integer" else (size, size + width)
        if decimals is not None:  # as the ends of a rounded column must be
            low, high = float(np.round(low, decimals)), float(np.round(high, decimals))
        try:
            columns.append(Column("x", low, high, kind, scale, decimals))
        except ValueError:
            continue
    return columns


@pytest.mark.parametrize("column", random_columns(300), ids=str)
def test_values_come_back_to_the_columns_resolution(column: Column) -> None:
    schema, generator = Schema((column,)), np.random.default_rng(1)
    values = np.concatenate([[column.low, column.high], generator.uniform(column.low, column.high, 500)])
    if column.kind == "integer":
        values = np.rint(values)
    elif column.decimals is not None:
        values = values.round(column.decimals).clip(column.low, column.high)
    rows = schema.to_tensor(pd.DataFrame({"x": values}).astype(np.float64))
    assert bool(schema.base().support.check(rows).all())
    back = schema.to_frame(rows)["x"].to_numpy(dtype=np.float64)
    if column.kind == "integer":
        assert np.array_equal(back, values)
    elif column.decimals is not None:
        assert np.abs(back - values)[2:].max() <= 1e-3 * 10.0**-column.decimals + 1e-15 * abs(values).max()
    else:
        low, high = column.modelled_range
        modelled = np.log1p(values) if column.scale == "log1p" else values
        again = np.log1p(back) if column.scale == "log1p" else back
        assert np.abs(again - modelled).max() <= (high - low) * 2.0**-15


@pytest.mark.parametrize(("place", "column"), list(enumerate(random_columns(300))), ids=str)
def test_the_base_fills_the_range(place: int, column: Column) -> None:
    """Draws of the base are many values in the table, not a few; a fit takes it, of which every third is checked."""
    schema = Schema((column,))
    base = schema.base()
    draws = (base if place % 3 else prepare_base(base)).sample((2000,))
    back = schema.to_frame(draws)["x"].to_numpy(dtype=np.float64)
    assert column.low <= back.min() <= back.max() <= column.high
    step = {"integer": 1.0}.get(column.kind, 0.0 if column.decimals is None else 10.0**-column.decimals)
    if column.scale == "linear":
        possible = math.inf if step == 0 else (column.high - column.low) / step + 1
        expected = 2000 if possible == math.inf else possible * -math.expm1(-2000 / possible)  # distinct of 2000 draws
        assert len(np.unique(back)) >= 0.9 * expected


@pytest.mark.parametrize(
    "column",
    [
        Column("x", 1600000000, 1600000100),
        Column("x", -1e15 - 1e5, -1e15),
        Column("x", 0, 1e39),
        Column("x", -1e150, 1e150),
        Column("x", 0, 1e-30),
        Column("x", 1e6, 1e6 + 1, decimals=3),
        Column("x", 2**31, 2**31 + 40, "integer"),
    ],
    ids=str,
)
def test_a_fit_follows_the_table(column: Column) -> None:
    """Networks tell the lower quarter of a far, narrow or huge range from the rest, and draws come from there."""
    schema = Schema((column,))
    width = column.high - column.low
    generator = np.random.default_rng(0)
    values = column.low + width * (0.02 + 0.23 * generator.random(2000))
    values = np.rint(values) if column.kind == "integer" else values
    learner = WeakLearner(hidden_sizes=(16,), num_frequencies=8, num_steps=60, batch_size=256)
    trainer = DensityRatio(schema.base(), weak_learner=learner, ensemble_size=1, seed=0, progress=False)
    density = trainer.fit(schema.to_tensor(pd.DataFrame({"x": values}))).mollify(3.0, delta=0)
    torch.manual_seed(0)
    released = schema.to_frame(private_draws(density, 2000, progress=False))["x"].to_numpy(dtype=np.float64)
    share = float((released < column.low + width * 0.26).mean())
    assert share > 0.5  # 0.26 of the base, at most 0.61 here
    assert len(np.unique(released)) > (10 if column.kind == "integer" else 150)


def test_rows_that_cannot_be_written_to() -> None:
    rows = np.array([[0.25], [0.5]])
    rows.flags.writeable = False
    assert Schema((Column("x", 0, 1),)).to_frame(rows)["x"].tolist() == [0.25, 0.5]
