"""Tables whose columns are missing, repeated or no numbers, and the many ways to write a number."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
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


class TestForm:
    """Tables without a column, with one twice, or with something else than numbers in it."""

    @pytest.mark.parametrize(
        ("frame", "error", "text"),
        [
            ([[1.0, 2.0]], TypeError, "frame must be a DataFrame"),
            (
                table().drop(columns="visits"),
                ValueError,
                "named 'visits'. Its columns are 'age'. Names must match",
            ),
            (table().rename(columns={"age": " Age"}), ValueError, "named 'age'. Its columns are ' Age', 'visits'."),
            (pd.DataFrame(), ValueError, "named 'age', 'visits'. It has no columns."),
            (
                pd.DataFrame(np.zeros((1, 30)), columns=["Age", *map(chr, range(97, 126))]),
                ValueError,
                "'s' and 10 more.",
            ),
            (pd.concat([table(), table()], axis=1), ValueError, "but several are named 'age', 'visits'"),
            (
                table(age=["30", ".5e3", "12"]),
                TypeError,
                "'age': numbers kept as text in 3 of 3 cells, the first in row 1",
            ),
            (
                table(age=["30", "n/a", "12"]),
                TypeError,
                "'age': text in 1 of 3 cells, the first in row 2. Write numbers",
            ),
            (table(age=["30", "\uff13", "12"]), TypeError, "'age': text in 1 of 3 cells, the first in row 2."),
            (table(age=[None, "secret", 12]), TypeError, "'age': text in 1 of 3 cells, the first in row 2"),
            (
                table(age=["3,5", "-1.234,5", "7"]),
                TypeError,
                "numbers with a comma in 2 of 3 cells, the first",
            ),
            (table(age=["2020-01-31", "1.2.2020", "2020-01-31 10:00"]), TypeError, "dates in 3 of 3 cells"),
            (
                table(age=pd.to_datetime(["2020-01-01"] * 3)),
                TypeError,
                "dates in 3 of 3 cells, the first in row 1. Declare kind",
            ),
            (table(age=pd.to_timedelta([1, 2, 3])), TypeError, "values of type Timedelta in 3 of 3 cells"),
            (table(age=pd.Categorical(["a", "b", "b"])), TypeError, "column 'age': text in 3 of 3 cells"),
            (table(age=[1j, 2, 3]), TypeError, "values of type complex in 3 of 3 cells"),
            (table(age=[[1], 2, 3]), TypeError, "values of type list in 1 of 3 cells"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_refused(self, frame: Any, error: type[Exception], text: str) -> None:
        with pytest.raises(error, match=re.escape(text)) as caught:
            SCHEMA.to_tensor(frame)
        assert error is TypeError and "DataFrame" in text or "owner alone" in str(caught.value)
        assert not re.search("31337|42,5|secret|1.234", str(caught.value))

    @pytest.mark.parametrize(
        "line",
        [
            ["Alice", "34", "12.5"],
            ["age", "31337", "12,5"],
            ["visits", "Alice", "1970-01-31"],
            ["age", "-12.5"],
            ["age", "12:30"],
            ["age", "$ 31337"],
            ["Agnes", "Alice"],
            ["Alice", ""],
            ["O", "0"],
        ],
        ids=",".join,
    )
    def test_a_row_in_the_place_of_the_header_is_not_shown(self, line: list[str]) -> None:
        schema = Schema((*SCHEMA.columns, Column("o", 0, 1)))
        with pytest.raises(
            ValueError, match=rf"It has {len(line)} columns. A file's first line must name them"
        ) as caught:
            schema.to_tensor(pd.DataFrame([[1] * len(line)], columns=line))
        assert not re.search("Alice|Agnes|'[^a-zA-Z]*[0-9]", str(caught.value))

    @pytest.mark.parametrize("line", [["agee", "sex"], ["sex", " Vists"], ["", "VISITS", "sex"], ["age", "sex", "BMI"]])
    def test_a_header_is_shown(self, line: list[str]) -> None:
        with pytest.raises(ValueError, match=re.escape(f"Its columns are {', '.join(map(repr, line))}.")):
            SCHEMA.to_tensor(pd.DataFrame([[1] * len(line)], columns=line))

    def test_all_columns_at_once(self) -> None:
        with pytest.raises(TypeError, match="column 'age': text.*\n.*column 'visits': dates"):
            SCHEMA.to_tensor(pd.DataFrame({"age": ["x"], "visits": ["2020-01-31"]}))

    @pytest.mark.parametrize(
        "cells",
        [
            [Decimal("1.5"), 2, None],
            [Fraction(3, 2), 2.0, pd.NA],
            [np.float32(1.5), np.int8(2), np.nan],
            [1.5, Decimal(2), Decimal("NaN")],
            [1.5, Decimal(2), Decimal("sNaN")],
        ],
        ids=str,
    )
    def test_numbers_as_objects(self, cells: list[Any]) -> None:
        with pytest.warns(UserWarning, match="column 'age': 1 of 3 values is missing: 1 row left out."):
            rows = SCHEMA.to_tensor(pd.DataFrame({"age": pd.Series(cells, dtype=object), "visits": 1}))
        assert rows[:, 0].tolist() == [1.5, 2]

    def test_numbers_that_no_float_holds(self) -> None:
        cells = pd.Series([10**400, -(10**400), 99999999999999999999, Decimal("1e999")], dtype=object)
        with pytest.warns(UserWarning, match="column 'age': 4 of 4 values are outside"):
            rows = SCHEMA.to_tensor(pd.DataFrame({"age": cells, "visits": 1}))
        assert rows[:, 0].tolist() == [110, 0, 110, 110]

    def test_a_table_without_rows_has_columns_of_any_type(self) -> None:
        assert SCHEMA.to_tensor(table(age=["a", "b", "c"]).iloc[:0]).shape == (0, 2)
        assert SCHEMA.to_tensor(pd.DataFrame({"age": [], "visits": pd.to_datetime([])})).shape == (0, 2)

    @pytest.mark.parametrize("dtype", ["object", "str", "Float64"])
    def test_a_column_without_values(self, dtype: str) -> None:
        with pytest.warns(UserWarning, match="3 of 3 values are missing: 3 rows left out.\n  0 of 3 rows are left."):
            assert SCHEMA.to_tensor(table(age=pd.Series([None] * 3, dtype=dtype))).shape == (0, 2)
