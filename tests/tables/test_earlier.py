"""Models saved before schemas had a version: whole numbers are spread over a box, and released rounded down."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from densities import make_density

from pyro_mbde import Column, Ledger, MollifiedExpFamily, Schema, private_report, release
from pyro_mbde.density.base import noted_schema
from pyro_mbde.density.copula import GaussianCopula
from pyro_mbde.experiments.medical import SCHEMA as MEDICAL
from pyro_mbde.serialization import read_file, write_file
from pyro_mbde.tables.correlations import Correlation
from pyro_mbde.tables.earlier import SpreadSchema, read_noted
from pyro_mbde.tables.files import TableModel

AGE = Column("age", 0, 110, decimals=1)
VISITS = Column("visits", 0, 99, kind="integer", scale="log1p")
SCHEMA = SpreadSchema((AGE, VISITS))
FRAME = pd.DataFrame({"age": [30.0, 41.5, 0.0, 110.0], "visits": [0, 99, 7, 3]})
INTEGERS = [
    Column("n", 0, 1, "integer"),
    Column("n", 5, 5, "integer"),
    Column("n", -40, 4095, "integer"),
    Column("n", 0, 4095, "integer", "log1p"),
    Column("n", -(2**32), 2**32, "integer"),
    Column("n", 0, 2**32, "integer", "log1p"),
]


@pytest.mark.parametrize("column", INTEGERS, ids=str)
def test_whole_numbers_come_back(column: Column) -> None:
    schema = SpreadSchema((column,))
    ends = np.array([column.low, column.high])
    inside = np.random.default_rng(0).integers(int(column.low), int(column.high) + 1, 20_000)
    frame = pd.DataFrame({"n": np.concatenate([ends, inside]).astype(np.int64)})
    rows = schema.to_tensor(frame, seed=0)
    assert bool(schema.base().support.check(rows).all())
    pd.testing.assert_frame_equal(schema.to_frame(rows), frame)


def test_whole_numbers_fill_their_unit_evenly() -> None:
    schema = SpreadSchema((Column("n", 0, 9, "integer"),))
    rows = schema.to_tensor(pd.DataFrame({"n": [3] * 50_000}), seed=0).double()
    assert bool(((rows > 3) & (rows < 4)).all())
    shares = torch.histc(rows, 10, 3, 4) / len(rows)
    assert bool(((shares - 0.1).abs() < 0.007).all())


def test_the_seed_is_the_callers() -> None:
    assert torch.equal(SCHEMA.to_tensor(FRAME, seed=3), SCHEMA.to_tensor(FRAME, seed=3))
    state = torch.get_rng_state()
    SCHEMA.to_tensor(FRAME, seed=3)
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(SCHEMA.to_tensor(FRAME), SCHEMA.to_tensor(FRAME))


def test_the_type_resolves_what_is_spread() -> None:
    assert SCHEMA.dtype is torch.float32
    assert SpreadSchema((AGE, Column("n", 0, 50_000, "integer"))).dtype is torch.float64


def test_the_base_is_a_box() -> None:
    base = SCHEMA.base()
    assert float(base.log_prob(torch.tensor([1.0, 1.0]))) == pytest.approx(-math.log(110 * math.log(101)))
    high = MEDICAL.base().base_dist.high
    assert high.tolist() == pytest.approx([math.log(101), math.log(102), 60.0])


@pytest.mark.parametrize(
    "stated",
    [
        {"correlations": (Correlation(("age", "visits"), 0.5),)},
        {"constraints": ("visits <= age",)},
        {"condition": "age > 3"},
    ],
    ids=str,
)
def test_what_a_box_cannot_state_is_refused(stated: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(stated))} must be left out.*use Schema for all else"):
        SpreadSchema(SCHEMA.columns, **stated)


def test_a_box_has_no_dependence() -> None:
    with pytest.raises(ValueError, match="dependence must be left out"):
        SCHEMA.base(GaussianCopula(torch.eye(2)))


def test_policies_hold_too() -> None:
    frame = pd.DataFrame({"age": [None, 200.0, 3.0], "visits": [1, 3.6, 2]})
    with pytest.warns(UserWarning, match="2 of 3 rows are left"):
        rows = SCHEMA.to_tensor(frame)
    assert SCHEMA.to_frame(rows).values.tolist() == [[110, 4], [3, 2]]


class TestFiles:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """A model as it was saved: its schema has columns alone, with the keys of that time."""
        path = tmp_path / "model.pt"
        TableModel(make_density(SCHEMA.base()), SCHEMA).save(path)
        content = read_file(path, "MollifiedExpFamily", (4,))
        keys = ("name", "low", "high", "kind", "scale", "decimals")
        columns = [{key: one[key] for key in keys if key in one} for one in SCHEMA.to_dict()["columns"]]
        write_file(path, "MollifiedExpFamily", 4, content | {"schema": {"columns": columns}})
        return path

    def test_loaded(self, path: Path) -> None:
        model = TableModel.load(path)
        assert model.schema == SCHEMA
        assert model.schema != Schema(SCHEMA.columns)

    def test_rows_are_released(self, path: Path, tmp_path: Path) -> None:
        model = TableModel.load(path)
        with Ledger(tmp_path / "budget.db") as ledger:
            ledger.open_account("clinic", epsilon=300.0)
            for columns in (None, model.schema, Schema(SCHEMA.columns)):  # each gives whole visits below 100
                density = MollifiedExpFamily.load(path)
                rows = release(density, 50, ledger, "clinic", columns=columns, progress=False).rows
                assert rows["visits"].dtype == np.int64
                assert rows["visits"].between(0, 99).all()
                assert rows["visits"].max() > 5  # e^visits - 1 of what is modelled

    def test_a_report_compares_a_table(self, path: Path) -> None:
        model = TableModel.load(path)
        frame = pd.concat([FRAME] * 20)
        report = private_report(model.density, frame, columns=model.schema)
        assert report == private_report(model.density, frame, columns=model.schema)
        assert report["comparison"]["columns"][1]["name"] == "visits"


def test_what_is_noted() -> None:
    assert read_noted(SCHEMA.to_dict()) == SCHEMA
    assert read_noted(Schema(SCHEMA.columns).to_dict()) == Schema(SCHEMA.columns)
    noted = noted_schema(Schema(SCHEMA.columns).base())
    assert noted is not None and noted["version"] == 2
