"""Tables larger than memory: rows of files are those of the whole table."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_mbde import Column, PrivacyLeakWarning, Schema, TableStream
from pyro_mbde.ranks import ALONE, Ranks
from pyro_mbde.tables import csv_slices, parquet_slices, streams
from pyro_mbde.tables.files import read_table
from pyro_mbde.tables.streams import check_refused, open_table

SCHEMA = Schema(
    (
        Column("size", 0, 110, missing="level"),
        Column("weight", 0, 1, outside="drop", scale="log1p"),
        Column("price", 0, 9, decimals=2),
        Column("visits", 0, 9, "integer", missing=3),
        Column("ward", kind="category", levels=("A", "b", "true", "3"), missing="level"),
        Column("stage", kind="ordered", levels=(1, 2, 3.5)),
        Column("smoker", kind="boolean", missing="level"),
        Column("agrees", kind="boolean", levels=("no", "yes"), missing="no"),
        Column("born", "1990-01-01", "2020-12-31", kind="date", missing="level"),
        Column("seen", "2020-01-01", "2020-12-31", kind="datetime", resolution="hour", timezone="UTC"),
        Column("year", "1990-01-01", "2020-01-01", kind="date", resolution="year"),
    ),
    constraints=("visits <= 8",),
    condition="price >= 0.01",
)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables have many slices."""
    monkeypatch.setattr(csv_slices, "SLICE_BYTES", 300)
    monkeypatch.setattr(parquet_slices, "SLICE_ROWS", 64)


def odd_texts(num_rows: int, seed: int) -> pd.DataFrame:
    """Cells as people write them, odd ones in stretches: columns are numbers in some slices and texts in others."""
    generator = np.random.default_rng(seed)
    usual: dict[str, list[str]] = {
        "size": ["0", "30.5", "110", "7"],
        "weight": ["0.25", "1", "0.1", "1e-3"],
        "price": ["1.25", "9", "0.5"],
        "visits": ["0", "3", "9"],
        "ward": ["3", "3.0"],
        "stage": ["1", "2"],
        "smoker": ["True", "False"],
        "agrees": ["True", "False"],
        "born": ["2001-05-06", "1999-12-31"],
        "seen": ["2020-05-06 10:30", "2020-05-06T23:00Z"],
        "year": ["1999", "2005"],
    }
    odd: dict[str, list[str]] = {
        "size": ["", "NA", " ", "inf", "9" * 30, "9" * 400, "18446744073709551615", "-5"],
        "weight": ["", "2", "-1e400", "0.10000000000000001"],
        "price": ["1e400", "", "null"],
        "visits": ["", "3.5", "-2", "99999999999999999999"],
        "ward": ["A", "b", "true", "TRUE", "False", "unknown", "", " A ", "03"],
        "stage": ["3.5", "03.50", "x", ""],
        "smoker": ["yes", "n", "", "1", "0", "maybe"],
        "agrees": ["no", "yes", "", "true"],
        "born": ["", "1980-01-01", "2001-05"[:0]],
        "seen": ["", "2020-05-06", "2021-01-01"],
        "year": ["", "1999-05", "1980", "2005-06-07"],
    }
    columns = {}
    for name, cells in usual.items():
        column = generator.choice(cells, num_rows).astype(object)
        is_odd = (np.arange(num_rows) // 50 % 2 == generator.integers(2)) & (generator.random(num_rows) < 0.4)
        column[is_odd] = generator.choice(odd[name], int(is_odd.sum()))
        columns[name] = column
    return pd.DataFrame({"unused": [f'"{row}\n' for row in range(num_rows)], **columns})


def whole(frame: pd.DataFrame, schema: Schema = SCHEMA) -> tuple[torch.Tensor, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows = schema.to_tensor(frame)
    return rows, str(caught[0].message).splitlines() if caught else []


def said(stream: TableStream, ranks: Ranks = ALONE) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stream.warn(ranks)
    assert all(one.filename == __file__ for one in caught)
    return str(caught[0].message).splitlines() if caught else []


def check_same(stream: TableStream, frame: pd.DataFrame, schema: Schema = SCHEMA) -> None:
    """Rows and warnings of a stream are those of the whole table, bit by bit."""
    rows, told = whole(frame, schema)
    assert stream.num_slices > 8
    read = stream.read(range(stream.num_slices))
    assert read.dtype == rows.dtype == stream.dtype
    assert torch.equal(read, rows)
    assert [line for line in said(stream) if "have been read" not in line] == told


class TestSameRows:
    @pytest.mark.parametrize("seed", range(4))
    def test_csv(self, seed: int, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        odd_texts(250, seed).to_csv(path, index=False)
        check_same(SCHEMA.stream(path), read_table(path))

    def test_csv_in_another_format(self, tmp_path: Path) -> None:
        path, how = tmp_path / "t.csv", {"sep": ";", "decimal": ",", "encoding": "latin-1"}
        frame = odd_texts(250, 0).replace(r"(\d)\.(\d)", r"\1,\2", regex=True)
        frame["unused"] = "größe"
        frame.to_csv(path, index=False, sep=";", encoding="latin-1")
        check_same(SCHEMA.stream(path, **how), read_table(path, **how))

    @pytest.mark.parametrize("form", ["numpy", "nullable", "objects"])
    def test_parquet(self, form: str, tmp_path: Path) -> None:
        pytest.importorskip("pyarrow")
        num_rows, path = 1500, tmp_path / "t.parquet"
        generator = np.random.default_rng(0)
        gaps = [generator.random(num_rows) < 0.1 * (np.arange(num_rows) > 300) for _ in range(4)]
        moments = pd.Timestamp("2020-01-01") + pd.to_timedelta(generator.integers(0, 9000, num_rows), unit="h")
        columns: dict[str, Any] = {
            "size": pd.Series(generator.normal(50, 40, num_rows)).mask(gaps[0]),
            "weight": generator.uniform(0, 1.01, num_rows).astype(np.float32),
            "price": generator.uniform(0, 9, num_rows),
            "visits": pd.Series(generator.integers(0, 11, num_rows)).mask(gaps[1]),
            "ward": pd.Series(generator.choice(["A", " b", "3", "true", "x"], num_rows)).mask(gaps[2]),
            "stage": generator.choice([1.0, 2.0, 3.5], num_rows),
            "smoker": pd.Series(generator.random(num_rows) < 0.5, dtype=object).mask(gaps[3], None),
            "agrees": generator.choice(["no", "yes"], num_rows),
            "born": [moment.date() if moment.hour else None for moment in moments],
            "seen": pd.Series(moments).dt.tz_localize("Europe/Paris"),
            "year": generator.integers(1985, 2025, num_rows),
        }
        if form == "nullable":
            columns["visits"] = columns["visits"].astype("Int64")
            columns["ward"] = columns["ward"].astype("category")
            columns["smoker"] = columns["smoker"].astype("boolean")
            columns["seen"] = moments
            columns["stage"] = pd.Categorical(columns["stage"])
        if form == "objects":
            columns["price"] = [Decimal(round(100 * value)) / 100 for value in columns["price"]]
            columns["year"] = pd.Series(columns["year"]).astype(str)
            columns["size"] = columns["size"].round(1)
            columns["born"] = pd.Series(pd.to_datetime(columns["born"]))
        frame = pd.DataFrame({**columns, "unused": "text"})
        frame.to_parquet(path, row_group_size=400)
        check_same(SCHEMA.stream(path), read_table(path))

    @pytest.mark.parametrize("words", [["True", "False"], ["true", "false"], ["TRUE", "FALSE"]])
    def test_words_that_pandas_reads_as_booleans(self, words: list[str], tmp_path: Path) -> None:
        """Slices of true and false alone, in a column that has other words as well."""
        path = tmp_path / "t.csv"
        cells = [*words * 100, *["maybe"] * 100, *words * 100]
        pd.DataFrame({"answer": cells, "agrees": [*words * 150, *["yes"] * 200]}).to_csv(path, index=False)
        answer = Column("answer", kind="category", levels=(*words, "maybe"))
        schema = Schema((answer, Column("agrees", kind="boolean", levels=("no", "yes"))))
        check_same(schema.stream(path), read_table(path), schema)
        assert schema.stream(path).read([0]).shape[0] > 20

    def test_given_order_and_twice(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        pd.DataFrame({"age": np.arange(900.0) / 9}).to_csv(path, index=False)
        stream = Schema((Column("age", 0, 110),)).stream(path)
        parts = [stream.read([number]) for number in range(stream.num_slices)]
        order = torch.randperm(stream.num_slices, generator=torch.Generator().manual_seed(0)).tolist()
        order = [*order, 2, 2, 1]
        assert torch.equal(stream.read(order), torch.cat([parts[number] for number in order]))
        assert stream.read([]).shape == (0, 1)

    def test_several_files_with_columns_in_another_order(self, tmp_path: Path) -> None:
        frame = odd_texts(600, 3)
        frame[:300].to_csv(tmp_path / "a.csv", index=False)
        frame[frame.columns[::-1]][300:].to_csv(tmp_path / "b.csv", index=False)
        check_same(SCHEMA.stream(tmp_path), pd.concat([read_table(tmp_path / name) for name in ("a.csv", "b.csv")]))

    def test_rounded_columns_are_told_as_of_the_whole_table(self, tmp_path: Path) -> None:
        path, schema = tmp_path / "t.csv", Schema((Column("x", 0, 1e6), Column("y", 0, 1e6), Column("z", 0, 1e6)))
        numbers = np.arange(900)
        frame = pd.DataFrame({"x": numbers * 1.0, "y": np.where(numbers < 890, numbers, numbers + 0.25)})
        frame.assign(z=np.where(numbers < 890, numbers, np.pi)).to_csv(path, index=False)
        check_same(schema.stream(path), read_table(path), schema)
        stream = schema.stream(path)
        stream.read([0])
        assert sum("whole numbers" in line for line in said(stream)) == 3


class TestNotes:
    def test_each_slice_counts_once(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        pd.DataFrame({"age": [30.5, 111] * 300, "x": 1}).to_csv(path, index=False)
        stream = Schema((Column("age", 0, 110),)).stream(path)
        assert said(stream) == []
        for _ in range(3):
            stream.read(range(stream.num_slices))
        assert said(stream)[:3] == [
            "Notes on the table and its schema:",
            "  column 'age': 300 of 600 values are outside [0, 110]: moved to the nearest end of the range.",
            "  column 'age': all values have at most 1 digit after the point, but released values will have more. If "
            "the codebook says that values have at most 1 digit after the point, declare decimals = 1.",
        ]
        assert said(stream)[3] == "  These counts are of the 600 rows that have been read."

    def test_rows_of_parquet_are_told(self, tmp_path: Path) -> None:
        pytest.importorskip("pyarrow")
        pd.DataFrame({"age": [30.55555, 111] * 300}).to_parquet(tmp_path / "t.parquet")
        stream = Schema((Column("age", 0, 110, outside="drop"),)).stream(tmp_path)
        assert stream.files.names == ("age",)
        stream.read([0, 3])
        assert (stream.num_rows_read, stream.num_rows_kept) == (128, 64)
        assert said(stream)[1:4] == [
            "  column 'age': 64 of 128 values are outside [0, 110]: 64 rows left out.",
            "  64 of 128 rows are left.",
            "  These counts are of the 128 of 600 rows that have been read.",
        ]


class TestErrors:
    def test_refused_values_are_placed(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        pd.DataFrame({"age": [*[30.0] * 500, 31337]}).to_csv(path, index=False)
        stream = Schema((Column("age", 0, 110, outside="refuse"),)).stream(path)
        stream.read([0, 1])
        begins = re.escape(f"In the file {str(path)!r}, rows from byte ")
        with pytest.raises(
            ValueError,
            match=f"{begins}[0-9,]+, with rows counted from there: The table must hold what its schema allows",
        ) as caught:
            stream.read(range(stream.num_slices))
        assert "31337" not in str(caught.value)

    def test_values_of_another_kind_are_placed(self, tmp_path: Path) -> None:
        pytest.importorskip("pyarrow")
        path = tmp_path / "t.parquet"
        pd.DataFrame({"age": [*["3"] * 200, "Alice"]}).to_parquet(path, row_group_size=150)
        stream = Schema((Column("age", 0, 110),)).stream(path)
        with pytest.raises(
            TypeError, match="row group 2, rows from 1, with rows counted from there: The table must hold .*"
        ) as caught:
            stream.read([3])
        assert "Alice" not in str(caught.value)

    def test_errors_of_any_class_are_placed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "t.csv"
        path.write_text("age\n1\n")
        stream = Schema((Column("age", 0, 110),)).stream(path)

        def undecodable(frame: pd.DataFrame) -> None:
            b"\xff".decode()

        monkeypatch.setattr(stream, "_as_rows", undecodable)
        with pytest.raises(ValueError, match="rows from byte 4, with rows counted from there: 'utf-8' codec"):
            stream.read([0])

    @pytest.mark.parametrize("policy", [{"outside": "refuse"}, {"missing": "refuse"}, {}])
    def test_what_is_refused_is_found_beforehand(self, policy: dict[str, str], tmp_path: Path) -> None:
        """By the process that reads it."""
        path = tmp_path / "t.csv"
        pd.DataFrame({"age": [*[30.5] * 500, None if "missing" in policy else 111], "x": 1}).to_csv(path, index=False)
        stream = Schema((Column("age", 0, 110, **policy),)).stream(path)  # type: ignore[arg-type]  # one of two policies
        assert stream.num_slices > 8
        check_refused(stream, ranks=Ranks(0, 2))
        for ranks in (Ranks(1, 2), ALONE):
            if policy:
                with pytest.raises(ValueError, match="The table must hold what its schema allows"):
                    check_refused(stream, ranks=ranks)
            else:
                check_refused(stream, ranks=ranks)
        assert stream.num_rows_read == 0

    def test_processes_share_out_what_is_checked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "t.csv"
        pd.DataFrame({"age": np.arange(700.0) / 7}).to_csv(path, index=False)
        stream = Schema((Column("age", 0, 110, outside="refuse"),)).stream(path)
        read: list[int] = []
        monkeypatch.setattr(TableStream, "read", lambda _, slices: read.extend(slices))
        for rank in range(3):
            check_refused(stream, ranks=Ranks(rank, 3))
        assert read == list(range(stream.num_slices))

    def test_a_file_that_lacks_a_column_is_named(self, tmp_path: Path) -> None:
        schema = Schema((Column("age", 0, 110), Column("visits", 0, 9)))
        (tmp_path / "a.csv").write_text("age,visits\n1,2\n")
        (tmp_path / "b.csv").write_text("age,visit\n1,2\n")
        text = re.escape(f"In the file {str(tmp_path / 'b.csv')!r}: The table must have columns named 'visits'.")
        for read in (schema.stream, lambda places: open_table(places, schema)):
            with pytest.raises(ValueError, match=text):
                read(tmp_path)


class TestSeveralProcesses:
    def test_the_first_one_tells_of_the_rows_of_all(self, tmp_path: Path) -> None:
        path, schema = tmp_path / "t.csv", Schema((Column("age", 0, 110), Column("visits", 0, 9, missing="drop")))
        frame = pd.DataFrame({"age": np.linspace(0.001, 119, 1000), "visits": np.linspace(0.001, 9, 1000)})
        frame.loc[::7, "visits"] = np.nan
        frame.to_csv(path, index=False)
        alone, *several = (schema.stream(path) for _ in range(4))
        num_slices = alone.num_slices
        alone.read(range(num_slices))
        for rank, stream in enumerate(several):
            stream.read(range(rank, num_slices, 3))
            stream.read(range(num_slices), is_counted=False)
        held: list[Any] = []

        class Held(Ranks):
            def gather(self, value: Any) -> list[Any]:
                held.append(value)
                return held

        for rank in (2, 1):
            assert said(several[rank], Held(rank, 3)) == []
        told = said(several[0], Held(0, 3))
        assert told == said(alone)
        assert "These counts are of the 1,000 rows that have been read." in "\n".join(told)

    def test_one_that_read_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text("age\n" + "111\n" * 300)
        streams = [Schema((Column("age", 0, 110),)).stream(tmp_path / "t.csv") for _ in range(2)]
        streams[0].read([0])

        class Held(Ranks):
            def gather(self, value: Any) -> list[Any]:
                return [(None, 0, 0), value]

        assert any("values are outside" in line for line in said(streams[0], Held(0, 2)))
        assert said(streams[1], Held(0, 2)) == []


class TestFingerprint:
    def test_files_and_schema(self, tmp_path: Path) -> None:
        path, schema = tmp_path / "t.csv", Schema((Column("age", 0, 110),))
        pd.DataFrame({"age": [1, 2]}).to_csv(path, index=False)
        first = schema.stream(path).fingerprint
        assert schema.stream(str(path)).fingerprint == first
        assert Schema((Column("age", 0, 111),)).stream(path).fingerprint != first
        os.utime(path, ns=(0, 0))
        assert schema.stream(path).fingerprint != first


class TestOpenTable:
    @pytest.fixture
    def small_limits(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(streams, "MAX_WHOLE_ROWS", 200)
        monkeypatch.setattr(streams, "MAX_WHOLE_BYTES", 2000)
        return iter(())

    @pytest.mark.parametrize("ending", ["csv", "parquet"])
    @pytest.mark.usefixtures("small_limits")
    def test_small_tables_are_read_whole(self, ending: str, tmp_path: Path) -> None:
        if ending == "parquet":
            pytest.importorskip("pyarrow")
        schema = Schema((Column("age", 0, 110),))
        for num_rows, kind in ((100, torch.Tensor), (1000, TableStream)):
            frame = pd.DataFrame({"age": np.linspace(0.001, 99, num_rows)})
            path = tmp_path / f"t{num_rows}.{ending}"
            frame.to_parquet(path) if ending == "parquet" else frame.to_csv(path, index=False)
            opened = open_table(path, schema)
            assert isinstance(opened, kind)
            rows = opened if isinstance(opened, torch.Tensor) else opened.read(range(opened.num_slices))
            assert torch.equal(rows, schema.to_tensor(read_table(path)))
        assert isinstance(open_table(str(tmp_path / f"*.{ending}"), schema), TableStream)

    def test_a_small_table_in_many_slices(self, tmp_path: Path) -> None:
        """Whose stated mean is noticed to be that of the table itself."""
        pytest.importorskip("pyarrow")
        schema = Schema((Column("age", 0, 110, mean=50.123456, sd=9),))
        for number in range(40):
            pd.DataFrame({"age": [49.123456, 51.123456] * 10}).to_parquet(
                tmp_path / f"{number}.parquet", row_group_size=7
            )
        with pytest.warns(PrivacyLeakWarning):
            rows = open_table(tmp_path, schema)
        assert isinstance(rows, torch.Tensor)
        assert schema.stream(tmp_path).num_slices == 120
        assert schema.stream(tmp_path).num_rows == len(rows) == 800

    def test_small_files_are_joined(self, tmp_path: Path) -> None:
        schema = Schema((Column("age", 0, 110), Column("ward", kind="category", levels=("A", "B"))))
        (tmp_path / "a.csv").write_text("age,ward,unused\n1,A,3\n2,B,3\n")
        (tmp_path / "b.csv").write_text("ward,age\nA,3\n")
        (tmp_path / "c.csv").write_text("ward,age\n")
        assert open_table(tmp_path, schema).tolist() == [[1, 0], [2, 1], [3, 0]]  # type: ignore[union-attr]  # a tensor
        assert open_table(tmp_path / "c.csv", schema).shape == (0, 2)  # type: ignore[union-attr]  # a tensor

    @pytest.mark.usefixtures("small_limits")
    def test_formats_that_are_read_whole_alone(self, tmp_path: Path) -> None:
        schema, frame = Schema((Column("age", 0, 110),)), pd.DataFrame({"age": np.linspace(0.001, 99, 5)})
        frame.to_csv(tmp_path / "a.csv.gz", index=False)
        frame.to_csv(tmp_path / "b.csv", index=False, encoding="utf-16")
        assert len(open_table(tmp_path / "a.csv.gz", schema)) == 5  # type: ignore[arg-type]  # a tensor
        assert len(open_table(tmp_path / "b.csv", schema, encoding="utf-16")) == 5  # type: ignore[arg-type]  # a tensor
        pd.concat([frame] * 200).to_csv(tmp_path / "c.csv", index=False, encoding="utf-16")
        with pytest.raises(ValueError, match="utf-16 text, which cannot be read in parts. Save it as UTF-8."):
            open_table(tmp_path / "c.csv", schema, encoding="utf-16")

    def test_one_file_is_read_as_ever(self, tmp_path: Path) -> None:
        schema = Schema((Column("age", 0, 110),))
        (tmp_path / "t.csv").write_text("31337;1\n1;2\n")
        (tmp_path / "t.xlsx").touch()
        for name in ("t.csv", "t.xlsx", "none.csv"):
            with pytest.raises((ValueError, FileNotFoundError)) as expected:
                read_table(tmp_path / name)
            with pytest.raises(type(expected.value)) as caught:
                open_table(tmp_path / name, schema)
            assert str(caught.value) == str(expected.value)
        (tmp_path / "t.csv").write_text("age\n" + "111\n" * 3)
        with pytest.warns(UserWarning, match="3 of 3 values are outside") as warned:
            open_table([tmp_path / "t.csv"], schema)
        assert "have been read" not in str(warned[0].message)


def test_a_sample_of_a_sorted_table_is_spread_over_it(tmp_path: Path) -> None:
    """Whole slices would show a sorted column as a comb."""
    path = tmp_path / "sorted.parquet"
    pd.DataFrame({"age": np.linspace(0, 1, 400_000)}).to_parquet(path, row_group_size=50_000)
    frame, is_whole = streams.read_sample(path)
    assert not is_whole
    assert (np.histogram(frame["age"], np.linspace(0, 1, 51))[0] > 0).all()
