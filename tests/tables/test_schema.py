"""Schemas: round trips between tables and rows, edges of the public ranges, and tables that do not fit."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from densities import make_batch
from schemas import TOML

from pyro_mbde import Column, Schema, private_draws

AGE = Column("age", 0, 110, decimals=1)
VISITS = Column("visits", 0, 99, kind="integer", scale="log1p")
SCHEMA = Schema((AGE, VISITS))

INTEGERS = [
    Column("n", 0, 1, "integer"),
    Column("n", 5, 5, "integer"),
    Column("n", -40, 4095, "integer"),
    Column("n", 0, 4095, "integer", "log1p"),
    Column("n", -(2**32), 2**32, "integer"),
    Column("n", 0, 2**32, "integer", "log1p"),
]
REALS = [
    Column("x", -1.5, 1.5, decimals=2),
    Column("x", 0, 1310.72, scale="log1p", decimals=2),
    Column("x", -0.999, 1e9, scale="log1p", decimals=3),
    Column("x", 0, 2e6, decimals=-3),
    Column("x", 1e8, 1e8 + 1, decimals=4),
]


def table(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"age": [30.0, 41.5, 0.0], "visits": [0, 99, 7], **columns})


class TestRoundTrip:
    @pytest.mark.parametrize("column", INTEGERS, ids=str)
    def test_whole_numbers_come_back(self, column: Column) -> None:
        schema = Schema((column,))
        ends = np.array([column.low, column.high])
        inside = np.random.default_rng(0).integers(int(column.low), int(column.high) + 1, 20_000)
        frame = pd.DataFrame({"n": np.concatenate([ends, inside]).astype(np.int64)})
        rows = schema.to_tensor(frame)
        assert bool(schema.base().support.check(rows).all())
        pd.testing.assert_frame_equal(schema.to_frame(rows), frame)

    @pytest.mark.parametrize("column", REALS, ids=str)
    def test_rounded_numbers_come_back(self, column: Column) -> None:
        schema, decimals = Schema((column,)), column.decimals or 0
        inside = np.random.default_rng(0).uniform(column.low, column.high, 20_000).round(decimals)
        values = np.concatenate([[column.low, column.high], inside.clip(column.low, column.high)])
        rows = schema.to_tensor(pd.DataFrame({"x": values}))
        assert bool(schema.base().support.check(rows).all())
        back = schema.to_frame(rows)["x"]
        assert np.allclose(
            back, values.round(decimals).clip(column.low, column.high), rtol=0, atol=10.0**-decimals / 1e6
        )

    def test_whole_numbers_are_themselves(self) -> None:
        """Also where ln(1 + x) is spread evenly; nothing is random."""
        assert SCHEMA.to_tensor(table()).tolist() == [[30, 0], [41.5, 99], [0, 7]]

    @pytest.mark.parametrize(
        ("schema", "dtype"),
        [
            (SCHEMA, torch.float32),
            (Schema((AGE, Column("n", 0, 2**24, "integer"))), torch.float64),
            (Schema((AGE, Column("x", 1600000000, 1600000100))), torch.float64),
            (Schema((AGE, Column("x", 0, 1e39))), torch.float64),
            (Schema((AGE, Column("x", 0, 1e6, decimals=2))), torch.float64),
            (Schema((AGE, Column("x", 0, 1e6))), torch.float32),
        ],
        ids=["small", "large whole numbers", "narrow and far", "large", "fine decimals", "not rounded"],
    )
    def test_the_type_resolves_the_table(self, schema: Schema, dtype: torch.dtype) -> None:
        assert schema.base().sample().dtype is schema.dtype is dtype

    @pytest.mark.parametrize("dtype", ["int8", "uint16", "Int64", "float32", "Float64", "bool", "int64[pyarrow]"])
    def test_types_of_numbers(self, dtype: str) -> None:
        if "pyarrow" in dtype:
            pytest.importorskip("pyarrow")
        schema = Schema((Column("n", 0, 5, "integer"),))
        rows = schema.to_tensor(pd.DataFrame({"n": pd.Series([0, 1, 1]).astype(dtype)}))
        assert schema.to_frame(rows)["n"].tolist() == [0, 1, 1]

    def test_rows_of_batches_come_one_below_another(self) -> None:
        rows = SCHEMA.base().sample((6,))
        flat = SCHEMA.to_frame(rows)
        pd.testing.assert_frame_equal(SCHEMA.to_frame(rows.reshape(2, 3, 2)), flat)
        pd.testing.assert_frame_equal(SCHEMA.to_frame(rows.reshape(2, 3, 2).numpy()), flat)
        assert len(SCHEMA.to_frame(torch.zeros(0, 3, 2))) == 0
        batch = make_batch(SCHEMA.base(), 3)
        assert SCHEMA.to_frame(private_draws(batch, 2, progress=False)).shape == (6, 2)

    def test_an_empty_table(self) -> None:
        rows = SCHEMA.to_tensor(table().iloc[:0])
        assert rows.shape == (0, 2)
        assert list(SCHEMA.to_frame(rows)) == ["age", "visits"]


class TestBase:
    def test_shape_and_density(self) -> None:
        base = SCHEMA.base()
        assert base.event_shape == (2,)
        flat = float(base.log_prob(torch.tensor([1.0, 1.0])))
        assert flat == pytest.approx(-math.log(110 * math.log(101)) + math.log(math.log(3 / 2)), rel=1e-5)

    def test_draws_stay_in_range(self) -> None:
        low, high = (torch.tensor([getattr(one, end) for one in SCHEMA.base().marginals]) for end in ("low", "high"))
        edges = SCHEMA.to_frame(torch.stack([low, high]))
        assert edges["age"].tolist() == [0, 110]
        assert edges["visits"].tolist() == [0, 99]
        assert edges["visits"].dtype == np.int64

    @pytest.mark.parametrize(
        ("low", "high", "decimals"), [(0.3, 0.7, 1), (-0.1, 1.1, 1), (0.1, 0.7, 3), (-3, 8, 0), (-700, 1900, -2)]
    )
    def test_released_values_are_rounded_and_in_the_range(self, low: float, high: float, decimals: int) -> None:
        """Ends and all: a value of more digits than any other tells where the range ends."""
        schema = Schema((Column("x", low, high, decimals=decimals),))
        values = np.linspace(low, high, 1001)[:, None]
        back = schema.to_frame(np.concatenate([[[low], [high], [-1e-9]], values]))["x"]
        assert back.between(low, high).all()
        assert (back.round(decimals) == back).all()
        assert {low, high} <= set(back)
        assert not np.signbit(back[back == 0]).any()


class TestHostileRows:
    @pytest.mark.parametrize(
        ("rows", "text"),
        [
            (np.zeros((2, 3)), "shape"),
            (np.zeros(2), "shape"),
            (np.zeros((2, 2, 3)), r"\(n, 2\), or \(n, k, 2\) for batches"),
            (np.zeros((1, 2, 2, 2)), "shape"),
            (np.full((1, 2), np.nan), "finite"),
            (np.full((1, 3, 2), np.nan), "finite"),
        ],
    )
    def test_rows_that_are_none(self, rows: Any, text: str) -> None:
        with pytest.raises(ValueError, match=text):
            SCHEMA.to_frame(rows)


class TestColumn:
    @pytest.mark.parametrize(
        ("options", "error", "text"),
        [
            ({"name": ""}, ValueError, "name must not be empty"),
            ({"name": 3}, TypeError, "name must be a string"),
            ({"low": "0"}, TypeError, "column 'x': low must be a real number"),
            ({"low": True}, TypeError, "low must be a real number"),
            ({"high": math.inf}, ValueError, "high must be finite"),
            ({"low": math.nan}, ValueError, "low must be finite"),
            ({"low": 1, "high": 1}, ValueError, "high must be above low = 1"),
            ({"low": 2, "high": 1, "kind": "integer"}, ValueError, "high must be at least low = 2"),
            ({"high": 1.5, "kind": "integer"}, ValueError, "high must be a whole number"),
            ({"high": 2**33, "kind": "integer"}, ValueError, "high must be a whole number between"),
            ({"kind": "integer", "decimals": 0}, ValueError, "decimals must be left out for the kind integer, got"),
            ({"kind": "money"}, ValueError, "kind must be one of real, integer, category, ordered, boolean, date"),
            ({"low": None}, ValueError, "column 'x': low must be given for the kind real."),
            ({"kind": ["real"]}, TypeError, "kind must be a string"),
            ({"scale": "log"}, ValueError, "scale must be one of linear, log1p"),
            ({"low": -1, "scale": "log1p"}, ValueError, "low must be above -1"),
            ({"decimals": 1.5}, TypeError, "decimals must be a whole number"),
            ({"decimals": 13}, ValueError, "decimals must be at most 12"),
            ({"decimals": -13}, ValueError, "decimals must be at least -12"),
            ({"decimals": -2}, ValueError, "decimals must round less than from low to high"),
            (
                {"low": 0.55, "high": 0.7, "decimals": 1},
                ValueError,
                "column 'x': low must have no more digits after the point than decimals = 1, got low=0.55. Round low,",
            ),
            ({"high": 0.69, "decimals": 1}, ValueError, "high must have no more digits after the point than decimals"),
            ({"low": 50, "high": 300, "decimals": -2}, ValueError, "low must be a multiple of 100 with decimals = -2"),
            ({"low": "0"}, TypeError, "got low='0'. Write it without quotation marks."),
            (
                {"low": date(2020, 1, 31)},
                TypeError,
                "low must be a number, got low='2020-01-31'. Of dates, declare kind",
            ),
            ({"high": datetime(2020, 1, 31, 12)}, TypeError, "got high='2020-01-31 12:00:00'. Of dates"),
            ({"high": time(12)}, TypeError, "got high='12:00:00'. Of dates, declare"),
            ({"low": "2020-01-31"}, TypeError, "got low='2020-01-31'. Of dates, declare"),
            ({"high": 1e151}, ValueError, "high must be between -1e+150 and 1e+150"),
            ({"outside": "error"}, ValueError, "outside must be one of clip, drop, refuse"),
            (
                {"missing": "fill"},
                TypeError,
                "missing must be drop, refuse, level or a value that the column may hold, [0, 10], got missing='fill'",
            ),
            (
                {"missing": 11},
                ValueError,
                "missing must be drop, refuse, level or a value that the column may hold, [0, 10]",
            ),
            ({"missing": 0.5, "kind": "integer"}, ValueError, "missing must be drop, refuse, level or a value that"),
            ({"missing": math.nan}, ValueError, "missing must be drop, refuse, level or a value that"),
            ({"missing": None}, TypeError, "missing must be drop, refuse, level or a value that"),
        ],
    )
    def test_refused(self, options: dict[str, Any], error: type[Exception], text: str) -> None:
        with pytest.raises(error, match=re.escape(text)):
            Column(**{"name": "x", "low": 0, "high": 10, **options})

    @pytest.mark.parametrize(
        "options",
        [
            {"low": 1e16, "high": 1e16 + 2},
            {"low": 1e15, "high": 1e15 + 1, "scale": "log1p"},
            {"high": 1e-160},
            {"low": 1e12, "high": 1e12 + 1, "decimals": 6},
            {"high": 1e9, "decimals": 12},
            {"high": 1e12, "decimals": 2, "scale": "log1p"},
        ],
        ids=str,
    )
    def test_what_float64_cannot_resolve_is_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="column 'x': .*float64.*Take a public number off the column"):
            Column(**{"name": "x", "low": 0, **options})

    def test_frozen(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            AGE.low = 1.0  # type: ignore[misc]
        assert hash(SCHEMA) == hash(Schema((AGE, VISITS)))


class TestFiles:
    def test_toml_and_dict(self, tmp_path: Path) -> None:
        path = tmp_path / "schema.toml"
        path.write_text(TOML)
        assert Schema.from_toml(path) == SCHEMA == Schema.from_dict(SCHEMA.to_dict())

    @pytest.mark.parametrize(
        ("content", "error", "text"),
        [
            ([], TypeError, "schema must be a table of columns"),
            (
                {},
                ValueError,
                "schema must have the key 'columns', which is not there. Write each column as [[columns]]",
            ),
            (
                {"columns": [], "epsilon": 1},
                ValueError,
                "schema must not have the key 'epsilon'. Its keys are version, columns, ",
            ),
            (
                {"columns": {"name": "age"}},
                TypeError,
                "columns must be a list of tables, got one table. In TOML, write",
            ),
            ({"columns": []}, ValueError, "columns must name at least one"),
            ({"columns": ["age"]}, TypeError, "column 1 must be a table"),
            ({"columns": [{"name": "x", "low": 0}]}, ValueError, "column 'x': high must be given for the"),
            (
                {"columns": [{"name": "x", "low": 0, "high": 1, "max": 2}]},
                ValueError,
                "column 'x' must not have the key 'max'. Its keys are name, low, high, ",
            ),
            ({"columns": [{"low": 0, "high": 1}]}, ValueError, "the key 'name', which is not there. Write name = "),
            (
                {"columns": [{"name": "x", "decimal": 2}]},
                ValueError,
                "must not have the key 'decimal'. Did you mean 'decimals'?",
            ),
            ({"column": []}, ValueError, "must not have the key 'column'. Did you mean 'columns'?"),
            ({"columns": [{"name": "x", "low": 0, "high": 1}] * 2}, ValueError, "different names"),
        ],
    )
    def test_refused(self, content: Any, error: type[Exception], text: str) -> None:
        with pytest.raises(error, match=re.escape(text)):
            Schema.from_dict(content)

    def test_all_mistakes_at_once(self) -> None:
        columns = [
            {"name": "age", "low": 0, "high": "110"},
            {"name": "visits", "low": 0, "high": 9},
            {"name": "cost", "low": 5, "high": 1},
            {"name": "x", "low": 0},
        ]
        with pytest.raises(TypeError, match="The schema has 3 mistakes:") as caught:
            Schema.from_dict({"columns": columns})
        lines = str(caught.value).splitlines()[1:]
        assert [line.partition(":")[0] for line in lines[:2]] == ["  column 'age'", "  column 'cost'"]
        assert lines[2] == "  column 'x': high must be given for the kind real. Take it from the codebook."

    def test_policies_are_kept(self, tmp_path: Path) -> None:
        schema = Schema((Column("age", 0, 110, outside="drop", missing=3), Column("x", 0, 1, missing="refuse")))
        again = Schema.from_dict(json.loads(json.dumps(schema.to_dict())))
        assert again == schema
        assert schema.to_dict()["columns"][0]["missing"] == 3

    def test_a_byte_order_mark(self, tmp_path: Path) -> None:
        path = tmp_path / "schema.toml"
        path.write_text(TOML, encoding="utf-8-sig")
        assert Schema.from_toml(path) == SCHEMA

    @pytest.mark.parametrize(
        ("name", "content", "text"),
        [
            ("schema.yaml", "- name: age\n  low: 0\n", "It is YAML. Write each column as [[columns]]"),
            ("schema.toml", "# ranges\ncolumns:\n  - name: age\n", "It is YAML."),
            (
                "schema.toml",
                "# A draft: names\n[[columns]]\nname = 'a'\nname = 'b'\n",
                "A key stands twice in a column",
            ),
            ("schema.toml", "# A draft: names\n\n[[columns]]\nlow = 0,5\n", "Write decimals with a point"),
            ("schema.toml", "---\ncolumns: []\n", "It is YAML."),
            ("schema.json", '{"columns": []}', "It is JSON. Write each column as [[columns]]"),
            ("schema.toml", "[[columns]]\nname: 'age'\n", "Expected '=' after a key"),
            ("schema.toml", "[[columns]]\nlow = 18,0\n", "(at line 2, column 9). Write decimals with a point, as 0.5."),
            ("schema.toml", "[[columns]]\nlow = 18 0\n", "(at line 2, column 10)."),
            ("schema.toml", "[[columns]]\nname = 'gr\xf6sse'\n", "It is not UTF-8 text. Save it as UTF-8."),
        ],
    )
    def test_another_format(self, name: str, content: str, text: str, tmp_path: Path) -> None:
        (tmp_path / name).write_text(content, encoding="latin-1")
        with pytest.raises(ValueError, match=re.escape(text)):
            Schema.from_toml(tmp_path / name)

    def test_a_schema_without_columns(self) -> None:
        with pytest.raises(TypeError, match="columns must be Columns"):
            Schema(("age",))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="columns must be Columns"):
            Schema(3)  # type: ignore[arg-type]

    @pytest.mark.parametrize("content", [b"columns = [", b"\xff\xfe"])
    def test_files_that_are_not_toml(self, content: bytes, tmp_path: Path) -> None:
        path = tmp_path / "schema.toml"
        path.write_bytes(content)
        with pytest.raises(ValueError, match="path must hold TOML"):
            Schema.from_toml(path)
        with pytest.raises(FileNotFoundError):
            Schema.from_toml(tmp_path / "other.toml")
