"""Columns of every kind: cells as people have them, their codes, and cells again; what a schema may say of them."""

from __future__ import annotations

import re
import warnings
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_mbde import Column, Schema
from pyro_mbde.tables.columns import KINDS

NA: Any = pd.NA
REAL = Column("x", -1, 5, missing="level")
WHOLE = Column("x", 0, 50, "integer", missing="level")
WARD = Column("x", kind="category", levels=["A", "größe", "01"], missing="level")
CODED = Column("x", kind="category", levels=[1, 2, 3.5], missing="level")
STAGE = Column("x", kind="ordered", levels=["I", "II", "III"], missing="level")
SMOKER = Column("x", kind="boolean", missing="level")
JA = Column("x", kind="boolean", levels=["nein", "ja"], missing="level")
ONE_TWO = Column("x", kind="boolean", levels=[1, 2], missing="level")
DAY = Column("x", "2020-01-01", date(2024, 12, 31), "date", missing="level")
MONTH = Column("x", "2020-01", "2024-12-31", "date", resolution="month", missing="level")
YEAR = Column("x", "1950", "2030", "date", resolution="year", missing="level")
MINUTE = Column("x", "2020-01-01", "2020-12-31 23:59", "datetime", missing="level")
HOUR = Column("x", "2020-01-01", "2020-12-31 23:59", "datetime", resolution="hour", missing="level")
PARIS = Column("x", "2020-01-01", "2020-12-31", "date", timezone="Europe/Paris", missing="level")
UTC_MINUTE = Column("x", "2020-01-01", "2020-12-31 23:59", "datetime", timezone="UTC", missing="level")

#: A column, cells of a table, and their codes; None is a missing value.
CELLS: list[tuple[Column, Any, list[float | None]]] = [
    (REAL, [1.5, np.nan, -1], [1.5, None, -1]),
    (REAL, pd.Series([1.5, NA, -1], dtype="Float64"), [1.5, None, -1]),
    (REAL, pd.Series([1.5, NA], dtype="float[pyarrow]"), [1.5, None]),
    (REAL, pd.Series([Decimal("1.5"), None, np.float32(2)], dtype=object), [1.5, None, 2]),
    (REAL, pd.Series([True, False]), [1, 0]),
    (REAL, pd.Series(pd.arrays.SparseArray([0.0, 1.5, np.nan])), [0, 1.5, None]),
    (REAL, pd.Series([1.5, 2.0, None]).astype("category"), [1.5, 2, None]),
    (WHOLE, pd.Series([3, NA], dtype="Int64"), [3, None]),
    (WHOLE, pd.Series([3, NA], dtype="UInt8"), [3, None]),
    (WHOLE, pd.Series([3, NA], dtype="int64[pyarrow]"), [3, None]),
    (WHOLE, pd.Series([True, NA], dtype="boolean"), [1, None]),
    (WHOLE, np.array([3, 50], dtype=np.uint64), [3, 50]),
    (WARD, ["A", " A ", "größe", "gro\u0308ße", None, "", "  ", "01", 1, 1.0], [0, 0, 1, 1, None, None, None, 2, 2, 2]),
    (WARD, pd.Series(["A", NA], dtype="string"), [0, None]),
    (WARD, pd.Series(["A", NA], dtype="string[pyarrow]"), [0, None]),
    (WARD, pd.Series(["A", np.nan], dtype="str"), [0, None]),
    (WARD, pd.Categorical(["A", None, "01"], categories=["unused", "01", "A"]), [0, None, 2]),
    (CODED, [1, "1", 1.0, "1.0", " 2 ", 3.5, "3.5", np.int8(2), Decimal("3.5"), True], [0, 0, 0, 0, 1, 2, 2, 1, 2, 0]),
    (CODED, pd.Series([1.0, 2.0, np.nan]), [0, 1, None]),
    (STAGE, pd.Categorical(["III", "I", None], categories=["III", "I"], ordered=True), [2, 0, None]),
    (SMOKER, [True, False, None], [1, 0, None]),
    (SMOKER, pd.Series([True, NA], dtype="boolean"), [1, None]),
    (SMOKER, pd.Series([True, NA], dtype="bool[pyarrow]"), [1, None]),
    (SMOKER, [1, 0, 1.0, np.nan, np.bool_(False)], [1, 0, 1, None, 0]),
    (SMOKER, ["Yes", "NO", "y", "n", "T", "f", "true", "False", "1", "0", "1.0", ""], [1, 0] * 5 + [1, None]),
    (JA, ["ja", " nein", True, None], [1, 0, 1, None]),
    (ONE_TWO, [1, 2, "2", np.nan], [0, 1, 1, None]),
    (ONE_TWO, pd.Series([True, False]), [1, 0]),
    (DAY, ["2020-01-02", "2020-02-01 10:30", "20200103", "", None], [1, 31, 2, None, None]),
    (DAY, pd.to_datetime(["2020-01-02 23:59:59.999", None]), [1, None]),
    (DAY, pd.Series(pd.to_datetime(["2020-01-02", None])).astype("datetime64[s]"), [1, None]),
    (DAY, pd.Series(pd.to_datetime(["2020-01-02", None])).astype("timestamp[us][pyarrow]"), [1, None]),
    (DAY, pd.Series([date(2020, 1, 2), None]).astype("date32[pyarrow]"), [1, None]),
    (DAY, [date(2020, 1, 2), datetime(2020, 1, 3, 4), np.datetime64("2020-01-04"), pd.NaT], [1, 2, 3, None]),
    (DAY, pd.Series(pd.period_range("2020-01-02", periods=2)), [1, 2]),
    (DAY, pd.Categorical(["2020-01-02", None]), [1, None]),
    (MONTH, ["2020-03", "2021-01-31", date(2020, 1, 9)], [2, 12, 0]),
    (YEAR, [1950, 1951.0, "1952", "1953.0", "1954-05-06", date(1955, 1, 1), np.nan], [0, 1, 2, 3, 4, 5, None]),
    (MINUTE, ["2020-01-01 00:01", "2020-01-01T01:00:59", None], [1, 60, None]),
    (HOUR, pd.to_datetime(["2020-01-01 00:59", "2020-01-02 00:00"]), [0, 24]),
    (PARIS, pd.Series(pd.to_datetime(["2020-01-01 23:30"], utc=True)), [1]),
    (PARIS, ["2020-06-01T22:30:00Z", "2020-06-01"], [153, 152]),
    (
        UTC_MINUTE,
        pd.Series(pd.to_datetime(["2020-01-01 00:30"])).dt.tz_localize("Asia/Kolkata") + pd.Timedelta("6h"),
        [60],
    ),
]


class TestRoundTrip:
    @pytest.mark.parametrize(("column", "cells", "codes"), CELLS, ids=range(len(CELLS)))
    def test_cells_to_codes_and_back(self, column: Column, cells: Any, codes: list[float | None]) -> None:
        if "pyarrow" in str(getattr(cells, "dtype", "")):
            pytest.importorskip("pyarrow")
        schema = Schema((column,))
        low, high = column.modelled_range
        expected = [low - (high - low) if code is None else code for code in codes]
        rows = schema.to_tensor(pd.DataFrame({"x": cells}))
        assert rows.dtype == schema.dtype
        assert rows[:, 0].tolist() == pytest.approx(expected)
        assert bool(schema.base().support.check(rows).all())
        frame = schema.to_frame(rows)
        assert frame["x"].isna().tolist() == [code is None for code in codes]
        assert torch.equal(schema.to_tensor(frame), rows)

    @pytest.mark.parametrize(
        ("column", "dtype", "with_missing"),
        [
            (REAL, "float64", "float64"),
            (WHOLE, "int64", "Int64"),
            (WARD, "category", "category"),
            (STAGE, "category", "category"),
            (SMOKER, "bool", "boolean"),
            (JA, "bool", "boolean"),
            (DAY, "datetime64[s]", "datetime64[s]"),
            (MINUTE, "datetime64[s]", "datetime64[s]"),
        ],
        ids=lambda value: getattr(value, "kind", ""),
    )
    def test_natural_types(self, column: Column, dtype: str, with_missing: str) -> None:
        plain = Schema((Column(**{**column.to_dict(), "missing": "drop", "missing_share": None}),))
        assert str(plain.to_frame(np.zeros((2, 1)))["x"].dtype) == dtype
        frame = Schema((column,)).to_frame(np.array([[0.0], [column.modelled_range[0] - column.modelled_range[1]]]))
        assert str(frame["x"].dtype) == with_missing
        if column.levels is not None and dtype == "category":
            assert frame["x"].cat.categories.tolist() == list(column.levels)
            assert frame["x"].cat.ordered == (column.kind == "ordered")

    def test_all_codes_of_300_levels(self) -> None:
        levels = [f"Level {number} ☃" for number in range(300)]
        schema = Schema((Column("x", kind="category", levels=levels),))
        frame = pd.DataFrame({"x": levels[::-1]})
        rows = schema.to_tensor(frame)
        assert rows[:, 0].tolist() == list(range(299, -1, -1))
        assert schema.to_frame(rows)["x"].tolist() == levels[::-1]

    @pytest.mark.parametrize(
        "column", [column for column, *_ in CELLS if column.kind != "real"], ids=lambda one: one.kind
    )
    def test_draws_of_the_base_are_cells_of_the_table(self, column: Column) -> None:
        schema = Schema((column,))
        torch.manual_seed(0)
        rows = schema.base().sample((500,))
        assert torch.equal(schema.to_tensor(schema.to_frame(rows)), rows)
        assert 0.05 < float((rows < column.modelled_range[0]).double().mean()) < 0.15

    def test_every_kind_is_tested(self) -> None:
        assert {column.kind for column, *_ in CELLS} == set(KINDS)


class TestNames:
    @pytest.mark.parametrize("label", [0, 2020, 1.5, pd.Timestamp("2020-01-01"), ("a", "b"), None])
    def test_names_that_are_no_texts(self, label: Any) -> None:
        schema = Schema((Column(str(label), 0, 9, "integer"),))
        frame = pd.DataFrame([[3], [4]])
        frame.columns = pd.Index([label], tupleize_cols=False)
        assert schema.to_tensor(frame).tolist() == [[3], [4]]

    def test_a_number_and_its_text(self) -> None:
        frame = pd.DataFrame([[3, 4]], columns=pd.Index([0, "0"]))
        with pytest.raises(ValueError, match="each column once, but several are named '0'"):
            Schema((Column("0", 0, 9),)).to_tensor(frame)

    def test_frames_of_others(self) -> None:
        class Frame:
            def to_pandas(self) -> None: ...

        with pytest.raises(TypeError, match="frame must be a DataFrame, got frame='Frame'. Pass frame.to_pandas()"):
            Schema((REAL,)).to_tensor(Frame())  # type: ignore[arg-type]

    def test_any_index(self) -> None:
        frame = pd.DataFrame({"x": ["A", "01"]}, index=pd.MultiIndex.from_tuples([(1, 1), (1, 1)]))
        assert Schema((WARD,)).to_tensor(frame).tolist() == [[0], [2]]


class TestUnreadable:
    @pytest.mark.parametrize(
        ("column", "cells", "text"),
        [
            (
                DAY,
                ["31.01.2020", "1/31/2020", None],
                "dates in another form than 2020-01-31 in 2 cells of 3, the first in",
            ),
            (
                DAY,
                ["January 31, 2020"],
                "dates in another form than 2020-01-31 in 1 cell of 1, the first in row 1. Write",
            ),
            (DAY, ["2020-02-30"], "dates in another form than"),
            (DAY, ["2020-01-01", "soon"], "text in 1 cell of 2, the first in row 2. Write dates as 2020-01-31"),
            (DAY, [43831], "values of type int in 1 cell of 1"),
            (DAY, ["2020"], 'dates without a day in 1 cell of 1, the first in row 1. Declare resolution = "month"'),
            (MONTH, [2020], "values of type int in 1 cell of 1"),
            (YEAR, [99999], "dates outside the years 1 to 9999 in 1 cell of 1"),
            (
                DAY,
                pd.Series(pd.to_datetime(["2020-01-01"], utc=True)),
                "times with a time zone in 1 cell of 1, the first",
            ),
            (MINUTE, ["2020-01-01T10:00+02:00"], 'Declare timezone = "UTC" or that of the place, into which they'),
            (REAL, ["31337.5"], "numbers kept as text in 1 of 1 cells"),
            (REAL, pd.Categorical(["secret"]), "text in 1 of 1 cells"),
        ],
    )
    def test_one_error_names_the_column(self, column: Column, cells: Any, text: str) -> None:
        schema = Schema((column, Column("other", kind="boolean")))
        with pytest.raises(TypeError, match=re.escape(text)) as caught:
            schema.to_tensor(pd.DataFrame({"x": cells, "other": True}))
        assert "column 'x': " in str(caught.value)
        assert not re.search("31337|secret|soon|31.01|43831|99999", str(caught.value))


class TestPolicies:
    @pytest.mark.parametrize(
        ("column", "cells", "note"),
        [
            (
                WARD,
                ["secret", "A"],
                "1 of 2 values is not one of 'A', 'größe', '01': 1 row left out.\n  1 of 2 rows are",
            ),
            (CODED, [1.5, 7, 1, [1]], "3 of 4 values are not one of 1, 2, 3.5: 3 rows left out."),
            (SMOKER, ["maybe", 2, True], "2 of 3 values are not true or false: 2 rows left out."),
            (JA, ["yes", "ja"], "1 of 2 values is not one of 'nein', 'ja': 1 row left out."),
        ],
    )
    def test_unknown_levels_are_left_out(self, column: Column, cells: list[Any], note: str) -> None:
        with pytest.warns(UserWarning, match=re.escape(note)) as caught:
            assert len(Schema((column,)).to_tensor(pd.DataFrame({"x": cells}))) == 1
        assert "secret" not in str(caught[0].message) and "maybe" not in str(caught[0].message)

    def test_dates_outside(self) -> None:
        frame = pd.DataFrame({"x": ["1019-12-31", "9999-01-01", "2020-01-02"]})
        with pytest.warns(
            UserWarning, match=r"2 of 3 values are outside \[2020-01-01, 2024-12-31\]: moved to the near"
        ):
            rows = Schema((DAY,)).to_tensor(frame)
        assert rows[:, 0].tolist() == [0, 1826, 1]

    @pytest.mark.parametrize("column", [WARD, SMOKER, DAY], ids=lambda one: one.kind)
    def test_refuse(self, column: Column) -> None:
        refusing = Column(**{**column.to_dict(), "outside": "refuse", "missing": "refuse", "missing_share": None})
        odd = "1999-01-01" if column.kind == "date" else "?"
        with pytest.raises(
            ValueError, match=r"column 'x': 1 of 2 values is (not|outside).*\n.*1 of 2 values is missing"
        ):
            Schema((refusing,)).to_tensor(pd.DataFrame({"x": [odd, None]}))

    @pytest.mark.parametrize(
        ("column", "stand_in", "code"),
        [(WARD, "01", 2), (CODED, "3.5", 2), (SMOKER, False, 0), (JA, "ja", 1), (DAY, "2020-01-03", 2), (WHOLE, 7, 7)],
        ids=str,
    )
    def test_a_value_stands_in(self, column: Column, stand_in: Any, code: float) -> None:
        schema = Schema((Column(**{**column.to_dict(), "missing": stand_in, "missing_share": None}),))
        assert Schema.from_dict(schema.to_dict()) == schema
        with pytest.warns(UserWarning, match="1 of 1 values is missing: replaced by"):
            assert schema.to_tensor(pd.DataFrame({"x": [None]})).tolist() == [[code]]

    def test_a_kept_missing_value_is_not_noted(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rows = Schema((WARD, Column("y", 0, 1))).to_tensor(pd.DataFrame({"x": [None, "A"], "y": [0.5, 0.25]}))
        assert rows.tolist() == [[-3, 0.5], [0, 0.25]]

    @pytest.mark.parametrize("column", [column for column, *_ in CELLS], ids=lambda one: one.kind)
    def test_tables_without_rows_or_values(self, column: Column) -> None:
        schema = Schema((column,))
        for dtype in ("object", "float64", "str", "category", "datetime64[s]"):
            assert schema.to_tensor(pd.DataFrame({"x": pd.Series([], dtype=dtype)})).shape == (0, 1)
        missing = schema.to_tensor(pd.DataFrame({"x": pd.Series([None] * 3, dtype="object")}))
        assert len(set(missing[:, 0].tolist())) == 1
        assert schema.to_frame(missing)["x"].isna().all()


class TestColumn:
    @pytest.mark.parametrize(
        ("options", "error", "text"),
        [
            ({"kind": "category"}, ValueError, "column 'x': levels must be given for the kind category."),
            (
                {"kind": "category", "levels": "AB"},
                TypeError,
                "levels must be a list of texts or numbers, got levels='AB'",
            ),
            (
                {"kind": "category", "levels": ["A"]},
                ValueError,
                "levels must be 2 to 10,000 texts or numbers, got 1 level. Leave",
            ),
            (
                {"kind": "category", "levels": range(20_000)},
                ValueError,
                "got 20,000 levels. Group them by a public rule.",
            ),
            (
                {"kind": "category", "levels": ["A", " A"]},
                ValueError,
                "levels must differ from one another, got 'A' and",
            ),
            (
                {"kind": "category", "levels": [1, 1.0]},
                ValueError,
                "levels must differ from one another, got 1 and 1.0.",
            ),
            ({"kind": "category", "levels": ["1", 1]}, ValueError, "levels must differ from one another"),
            (
                {"kind": "category", "levels": ["A", " "]},
                ValueError,
                "levels must not be blank, got levels=''. Blank cells",
            ),
            ({"kind": "category", "levels": [True, False]}, TypeError, 'Declare kind = "boolean" and leave levels out'),
            (
                {"kind": "category", "levels": ["A", None]},
                TypeError,
                "levels must be texts or numbers, got levels=None",
            ),
            ({"kind": "category", "levels": [1, float("nan")]}, ValueError, 'missing values, write missing = "level".'),
            (
                {"kind": "category", "levels": [1, 2], "low": 0},
                ValueError,
                "low must be left out for the kind category",
            ),
            (
                {"kind": "category", "levels": [1, 2], "missing": 3},
                ValueError,
                "level or a value that the column may hold,",
            ),
            (
                {"kind": "boolean", "levels": ["a", "b", "c"]},
                ValueError,
                "levels must be two words, the one for false and then",
            ),
            ({"kind": "boolean", "scale": "log1p"}, ValueError, "scale must be left out for the kind boolean"),
            ({"kind": "date", "low": "2020-01-01"}, ValueError, "high must be given for the kind date."),
            ({"kind": "date", "low": 0, "high": 9}, TypeError, "low must be a date such as 2020-01-31, got low=0."),
            (
                {"kind": "date", "low": "1.2.2020", "high": "2021"},
                ValueError,
                "day and which the month is not guessed.",
            ),
            (
                {"kind": "date", "low": "2021-01-01", "high": "2020-01-01"},
                ValueError,
                "high must be at least low = 2021-01",
            ),
            ({"kind": "date", "low": "2020", "high": "2021"}, ValueError, 'Declare resolution = "month" or "year"'),
            (
                {"kind": "date", "low": "2020-01-01", "high": "2021-01-01", "resolution": "hour"},
                ValueError,
                "resolution must be one of day, month, year",
            ),
            (
                {"kind": "date", "low": "2020-01-01", "high": "2021-01-01", "timezone": "Mars/North"},
                ValueError,
                "timezone must be a name that the system knows, such as UTC or Europe/Paris",
            ),
            (
                {"kind": "datetime", "low": "1000-01-01", "high": "2021-01-01", "resolution": "second"},
                ValueError,
                "high must be less than 2^32 seconds after low, got 32,219,683,200. Take a coarser resolution",
            ),
            (
                {"kind": "datetime", "low": datetime(2020, 1, 1, tzinfo=UTC), "high": "2021-01-01"},
                ValueError,
                "Declare timezone",
            ),
            ({"low": 0, "high": 1, "levels": ["A", "B"]}, ValueError, "levels must be left out for the kind real"),
            (
                {"kind": "date", "low": "2020-01-01", "high": "2020-12-31", "quantiles": {0.5: "31.3.2020"}},
                ValueError,
                "got quantiles[0.5]='31.3.2020'. Write dates as 2020-01-31",
            ),
            (
                {"low": 0, "high": 1, "missing_share": 0.2},
                ValueError,
                "missing_share must be left out, got missing_share=0.2",
            ),
            (
                {"low": 0, "high": 1, "missing": "level", "missing_share": 1},
                ValueError,
                "missing_share must be in (0, 1)",
            ),
        ],
    )
    def test_refused(self, options: dict[str, Any], error: type[Exception], text: str) -> None:
        with pytest.raises(error, match=re.escape(text)):
            Column("x", **options)

    def test_both_ends_are_the_beginnings_of_units(self) -> None:
        assert (MONTH.low, MONTH.high) == (date(2020, 1, 1), date(2024, 12, 1))
        assert MONTH.modelled_range == (0, 60)
        assert MINUTE.low == datetime(2020, 1, 1)

    def test_a_default_share_of_missing_values(self) -> None:
        assert [float(Schema((one,)).base().marginals[0].missing_share) for one in (REAL, Column("x", 0, 1))] == [
            0.1,
            0,
        ]

    def test_a_stated_share_differs_from_the_default(self) -> None:
        stated = Column("x", 0, 1, missing="level", missing_share=0.1)
        assert stated != Column("x", 0, 1, missing="level")
        assert "missing_share" not in Column("x", 0, 1, missing="level").to_dict()
        assert Column(**stated.to_dict()) == stated

    def test_what_is_shown(self) -> None:
        assert repr(Column("x", 0, 1, decimals=2)) == "Column(name='x', low=0.0, high=1.0, kind='real', decimals=2)"
        assert repr(SMOKER) == "Column(name='x', kind='boolean', missing='level')"

    def test_codes_of_public_values(self) -> None:
        assert WARD.code("größe") == 1
        assert DAY.code(datetime(2020, 1, 2, 23)) == 1
        assert JA.code("ja") == JA.code(True) == 1
        with pytest.raises(ValueError, match="column 'x': value must be one of 'A', 'größe', '01', got value='B'"):
            WARD.code("B")
        with pytest.raises(ValueError, match=r"value must be in \[2020-01-01, 2024-12-31\]"):
            DAY.code("2019-12-31")


@pytest.mark.parametrize("text", ["two\nlines", "a\tb"])
def test_names_and_levels_are_on_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="name must be printable, on one line"):
        Column(text, 0, 1)
    with pytest.raises(ValueError, match="levels must be printable, on one line"):
        Column("x", kind="category", levels=["a", text])


def test_levels_within_one_pair_of_quotation_marks() -> None:
    with pytest.raises(ValueError, match="Put each level in quotation marks"):
        Column("sex", kind="category", levels=("F, M",))
