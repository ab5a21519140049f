"""What becomes of values that a column cannot hold, by its policies; and of rounded columns."""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pyro_mbde import Column, Schema

AGE = Column("age", 0, 110, decimals=1)
VISITS = Column("visits", 0, 99, kind="integer", scale="log1p")
SCHEMA = Schema((AGE, VISITS))


def table(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"age": [30.0, 41.5, 0.0], "visits": [0, 99, 7], **columns})


#: Values that columns cannot hold, and what becomes of them by default.
OUT_OF_RANGE = table(age=[-math.inf, 1e300, 3], visits=[-5, 3.6, 7.5])


class TestPolicies:
    def test_the_default_moves_values_to_the_nearest(self) -> None:
        with pytest.warns(UserWarning) as caught:
            back = SCHEMA.to_frame(SCHEMA.to_tensor(OUT_OF_RANGE))
        assert back["age"].tolist() == [0, 110, 3]
        assert back["visits"].tolist() == [0, 4, 8]
        assert str(caught[0].message).splitlines() == [
            "Notes on the table and its schema:",
            "  column 'age': 2 of 3 values are outside [0, 110]: moved to the nearest end of the range.",
            "  column 'visits': 1 of 3 values is outside [0, 99]: moved to the nearest end of the range.",
            "  column 'visits': 2 of 3 values are not whole: rounded.",
            "  If a public source (the codebook) says otherwise, correct the schema by it and fit again; never fit the "
            "schema to these counts.",
            "  This message, with its counts, depends on the table: it is for the table's owner alone.",
        ]
        assert caught[0].filename == __file__

    def test_the_default_leaves_out_rows_with_missing_values(self) -> None:
        frame = table(age=[None, 2.0, 3.0], visits=pd.array([1, None, 3], dtype="Int64"))
        with pytest.warns(UserWarning, match="1 of 3 rows are left"):
            rows = SCHEMA.to_tensor(frame)
        assert SCHEMA.to_frame(rows).values.tolist() == [[3, 3]]

    def test_drop(self) -> None:
        schema = Schema(tuple(dataclasses.replace(column, outside="drop") for column in SCHEMA.columns))
        with pytest.warns(UserWarning, match="2 of 3 values are not whole: 2 rows left out.\n  0 of 3 rows are left."):
            assert schema.to_tensor(OUT_OF_RANGE).shape == (0, 2)
        with pytest.warns(UserWarning, match="1 of 2 rows are left."):
            rows = schema.to_tensor(pd.DataFrame({"age": [111, 3], "visits": [1, 2]}))
        assert schema.to_frame(rows).values.tolist() == [[3, 2]]

    def test_a_number_stands_in(self) -> None:
        schema = Schema((dataclasses.replace(AGE, missing=50), dataclasses.replace(VISITS, missing=0)))
        frame = table(age=[None, 2.0, 3.0], visits=[1, 2, np.nan])
        with pytest.warns(UserWarning, match="'age': 1 of 3 values is missing: replaced by 50.0.\n.*replaced by 0.0."):
            rows = schema.to_tensor(frame)
        assert schema.to_frame(rows).values.tolist() == [[50, 1], [2, 2], [3, 0]]

    def test_refuse(self) -> None:
        refusing = {"outside": "refuse", "missing": "refuse"}
        schema = Schema(tuple(dataclasses.replace(column, **refusing) for column in SCHEMA.columns))
        frame = table(age=[77.777, -31337.5, math.nan], visits=[424242, 0.125, math.inf])
        with pytest.raises(ValueError, match="must hold what its schema allows") as caught:
            schema.to_tensor(frame)
        assert str(caught.value).splitlines()[1:-2] == [
            "  column 'age': 1 of 3 values is outside [0, 110].",
            "  column 'age': 1 of 3 values is missing.",
            "  column 'visits': 2 of 3 values are outside [0, 99].",
            "  column 'visits': 1 of 3 values is not whole.",
        ]
        assert "owner alone" in str(caught.value)
        assert not re.search(r"77\.7|31337|424242|0\.125", str(caught.value))
        schema.to_tensor(table())

    @pytest.mark.parametrize("outside", ["clip", "drop"])
    @pytest.mark.parametrize("missing", ["drop", 1.0])
    def test_no_table_decides_whether_it_is_taken(self, outside: str, missing: str | float) -> None:
        """Any numbers at all, in tables of any size, give rows of the base's support."""
        columns = (
            Column("n", 1, 1, "integer"),
            Column("n", -(2**32), 2**32, "integer"),
            Column("n", 0, 2**32, "integer", "log1p"),
            Column("x", -0.999, 1e9, scale="log1p", decimals=3),
            Column("x", 0, 1e39),
            Column("x", 1, 1 + 1e-6),
        )
        policies = {"outside": outside, "missing": missing}
        schema = Schema(
            tuple(dataclasses.replace(column, name=str(number), **policies) for number, column in enumerate(columns))
        )
        generator = np.random.default_rng(0)
        odd = [0.0, -0.0, 0.5, 1, 5, 1e-320, 1e16, -1e300, math.inf, -math.inf, math.nan, 4095.999]
        for num_rows in (0, 1, 2, 50):
            frame = pd.DataFrame({name: generator.choice(odd, num_rows) for name in schema.names}, dtype=np.float64)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                rows = schema.to_tensor(frame)
            assert len(rows) == num_rows or "drop" in (outside, missing)
            assert not len(rows) or bool(schema.base().support.check(rows).all())

    @pytest.mark.parametrize("end", [0.1, 0.3, -0.7, 16777217.0])
    @pytest.mark.parametrize("dtype", ["float16", "float32", "Float32", "float64", "float[pyarrow]"])
    def test_values_at_an_end_are_compared_in_the_tables_precision(self, end: float, dtype: str) -> None:
        if "pyarrow" in dtype:
            pytest.importorskip("pyarrow")
        with np.errstate(over="ignore"):
            values = np.array([end]).astype(dtype if dtype == "float16" else "float32" if "32" in dtype else "float64")
        frame = pd.DataFrame({"x": pd.Series(values[np.isfinite(values)]).astype(dtype)})
        for column in (Column("x", end - 100, end, outside="refuse"), Column("x", end, end + 100, outside="refuse")):
            rows = Schema((column,)).to_tensor(frame)
            assert rows.tolist() == [[pytest.approx(end, rel=1e-3)]] * len(frame)

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_infinite_values_are_outside(self, dtype: str) -> None:
        """Also where an end is infinite in the table's precision."""
        with pytest.raises(ValueError, match="2 of 3 values are outside"):
            Schema((Column("x", -1e39, 1e39, outside="refuse"),)).to_tensor(
                pd.DataFrame({"x": np.array([math.inf, -math.inf, 1.0], dtype=dtype)})
            )

    def test_what_is_beyond_an_end_in_the_tables_precision_is_refused(self) -> None:
        beyond = np.nextafter(np.float32(0.1), np.float32(1))
        with pytest.raises(ValueError, match="1 of 1 values is outside"):
            Schema((Column("x", 0, 0.1, outside="refuse"),)).to_tensor(pd.DataFrame({"x": [beyond]}))


class TestRoundedColumns:
    @pytest.mark.parametrize(
        ("values", "text"),
        [
            (
                np.arange(20.0),
                "all values are whole numbers, but released values will not be. If the codebook says that the column "
                'holds whole numbers, declare kind = "integer".',
            ),
            (np.arange(20) / 10, "all values have at most 1 digit after the point, but released values will have more"),
            (
                np.arange(20) / 100,
                "released values will have more. If the codebook says that values have at most 2 digits after the "
                "point, declare decimals = 2.",
            ),
        ],
    )
    def test_said_to_the_owner(self, values: Any, text: str) -> None:
        with pytest.warns(UserWarning, match=f"column 'x': .*{re.escape(text)}") as caught:
            Schema((Column("x", 0, 100),)).to_tensor(pd.DataFrame({"x": values}))
        assert "owner alone" in str(caught[0].message)

    @pytest.mark.parametrize(
        ("column", "values"),
        [
            (Column("x", 0, 100, decimals=1), np.arange(20.0)),
            (Column("x", 0, 100, "integer"), np.arange(20.0)),
            (Column("x", 0, 100), np.arange(5.0)),
            (Column("x", 0, 100), np.arange(20) / 3),
        ],
        ids=["rounded", "whole", "few", "not rounded"],
    )
    def test_nothing_to_say(self, column: Column, values: Any) -> None:
        Schema((column,)).to_tensor(pd.DataFrame({"x": values}))
