"""Tables and fitted models in files."""

from __future__ import annotations

import gzip
import re
import stat
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from densities import make_density, normal

from pyro_mbde import Column, MollifiedExpFamily, PrivacyLeakWarning, Schema
from pyro_mbde.serialization import read_file, write_file
from pyro_mbde.tables.files import TableModel, read_table

SCHEMA = Schema((Column("age", 0, 110), Column("visits", 0, 9, "integer")))


class TestTables:
    @pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet", "CSV"])
    def test_read(self, ending: str, tmp_path: Path) -> None:
        frame, path = pd.DataFrame({"age": [1.5, 2.0], "name": ["a", "b"]}), tmp_path / f"table.{ending}"
        if ending == "parquet":
            pytest.importorskip("pyarrow")
            frame.to_parquet(path)
        else:
            frame.to_csv(path, index=False)
        pd.testing.assert_frame_equal(read_table(path), frame)

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            (b"", "It is empty. A table has at least a line with the names of its columns."),
            (b"\n\n", "It is empty."),
            (b"age,visits\n1,2\n31337,424242,9\n", "There are more cells in line 3 than names in its first line"),
            (b"age,visits\n31337,424242,9\n31337,2,9\n", "There are more cells in line 2 than names in its first line"),
            (
                b"# 31337\nage,visits\n31337,2\n",
                "in line 2 than names in its first line, the header. Look for a title or",
            ),
            (b"A survey\n\nage,visits\n31337,2\n", "There are more cells in line 3 than names in its first line"),
            (b"age\n\xff31337\xfe\n", "It is not utf-8 text. Name its encoding, for example encoding='latin-1'"),
            ("age,größe\n1,2\n".encode("latin-1"), "It is not utf-8 text."),
            (
                "age,visits\n1,2\n".encode("utf-16"),
                "It is UTF-16 text. Read it with encoding='utf-16' (--encoding utf-16)",
            ),
            (gzip.compress(b"age\n31337\n"), "It is compressed by gzip. Let its name end in .csv.gz, or unpack it."),
            (b"PK\x03\x04\x14\x00", "It is a zip archive, or an Excel workbook, and not text."),
            (b"\xd0\xcf\x11\xe0\xa1\xb1", "It is an Excel workbook and not text. Save the sheet as CSV."),
            (b"PAR1\x15\x04", "It is a Parquet file. Let its name end in .parquet."),
            (b"age;visits\n31337;4,24242\n", "its first line is one name with ';' in it. Pass sep=';' (--sep ';')."),
            (b"31337;424242\n1;2\n", "its first line is one name with ';' in it. Pass sep=';' (--sep ';')."),
            (b"age\tvisits\n31337\t4\n", "its first line is one name with 'tab' in it. Pass sep='tab' (--sep 'tab')."),
            (b"age|visits\n31337|4\n", "Pass sep='|' (--sep '|')."),
            (b"age,visits,age\n1,2,31337\n", "Columns 1 and 3 have the same name. Name each differently;"),
            (b"age, visits,visits \n1,2,31337\n", "Columns 2 and 3 have the same name."),
            (
                b"31337,31337,1.5\n1,2,3\n",
                "Columns 1 and 2 have the same name. Name each differently; the first line of",
            ),
            (b"Alice,31337,Alice,31337\n", "Columns 1 and 3 have the same name."),
            (b'age,visits\n1,"31337\n2,3\n', "A quotation mark in it is not closed."),
        ],
        ids=range(22),  # the folder's name is in the message
    )
    def test_refused(self, content: bytes, text: str, tmp_path: Path) -> None:
        path = tmp_path / "table.csv"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=re.escape(text)) as caught:
            read_table(path)
        assert str(caught.value).startswith(f"path must hold a table, got path={str(path)!r}. ")
        assert not re.search("31337|424242|Alice", str(caught.value))

    @pytest.mark.parametrize(
        ("content", "options"),
        [
            ("größe;kosten\n180;12,5\n175;7\n".encode("latin-1"), {"sep": ";", "decimal": ",", "encoding": "latin-1"}),
            ("größe;kosten\n180;12,5\n175;7\n".encode("cp1252"), {"sep": ";", "decimal": ",", "encoding": "cp1252"}),
            ("größe\tkosten\n180\t12.5\n175\t7\n".encode("utf-16"), {"sep": "tab", "encoding": "UTF-16"}),
            ("größe|kosten\n180|12.5\n175|7\n".encode(), {"sep": "|", "encoding": "utf8"}),
            ("größe\tkosten\n180\t12.5\n175\t7\n".encode("utf-8-sig"), {"sep": "\\t"}),
            ('\ufeff"größe" , kosten\n 180, 12.5\n175 ,7,\n'.encode(), {}),
        ],
        ids=["latin-1", "cp1252", "utf-16", "bars", "byte-order mark", "blanks"],
    )
    def test_formats(self, content: bytes, options: dict[str, str], tmp_path: Path) -> None:
        path = tmp_path / "table.csv"
        path.write_bytes(content)
        if not options:
            path.write_bytes(content.replace(b"7,\n", b"7\n"))
        frame = read_table(path, **options)
        pd.testing.assert_frame_equal(frame, pd.DataFrame({"größe": [180, 175], "kosten": [12.5, 7.0]}))

    @pytest.mark.parametrize(
        ("options", "error", "text"),
        [
            ({"sep": ""}, ValueError, "sep must be one character"),
            ({"sep": ", "}, ValueError, "sep must be one character"),
            ({"sep": "a"}, ValueError, "sep must be one character"),
            ({"sep": "§"}, ValueError, "sep must be one character"),
            ({"sep": '"'}, ValueError, "sep must be one character"),
            ({"sep": 3}, TypeError, "sep must be a string"),
            ({"decimal": ";"}, ValueError, "decimal must be . or ,"),
            ({"decimal": ","}, ValueError, "decimal must differ from sep"),
            ({"encoding": "klingon"}, ValueError, "encoding must be one that Python knows"),
            ({"encoding": "base64"}, ValueError, "encoding must be one that Python knows"),
        ],
    )
    def test_formats_that_there_are_not(
        self, options: dict[str, Any], error: type[Exception], text: str, tmp_path: Path
    ) -> None:
        with pytest.raises(error, match=text):
            read_table(tmp_path / "table.csv", **options)

    def test_a_header_without_rows(self, tmp_path: Path) -> None:
        path = tmp_path / "table.csv"
        path.write_text("age,visits\n")
        assert SCHEMA.to_tensor(read_table(path)).shape == (0, 2)

    @pytest.mark.parametrize(
        "cells",
        [
            ["99999999999999999999", "1", ""],
            ["18446744073709551615", "-1", "3"],
            ["-99999999999999999999", "99999999999999999999", "5"],
        ],
    )
    def test_numbers_of_twenty_digits(self, cells: list[str], tmp_path: Path) -> None:
        path = tmp_path / "table.csv"
        path.write_text("\n".join(["age,visits", *(f"{cell},1" for cell in cells)]) + "\n")
        frame = read_table(path)
        assert frame["age"].tolist() == [pytest.approx(float(cell or "nan"), nan_ok=True) for cell in cells]

    @pytest.mark.parametrize("odd", ["", '""', "NA", " "])
    @pytest.mark.parametrize("huge", ["18446744073709551616", "9" * 25, "9" * 309, "9" * 400, "9" * 5000, "1e400"])
    def test_no_number_decides_whether_a_table_is_read(self, huge: str, odd: str, tmp_path: Path) -> None:
        """Whole numbers that no integer type holds, beside fractions, empty cells and one another."""
        path, cells = tmp_path / "table.csv", [huge, f"-{huge}", "30.5", "-2", odd, ".5", "1e400", "7"]
        path.write_text("\n".join(["age,visits", *(f"{cell},1" for cell in cells)]) + "\n")
        read = read_table(path)["age"]
        expected = [float("nan") if cell == odd else float(cell) for cell in cells]
        assert read.dtype == np.float64
        assert read.tolist() == pytest.approx(expected, nan_ok=True)
        with pytest.warns(UserWarning, match="'age': 4 of 8 values are outside .*\n.*1 of 8 values is missing"):
            assert len(SCHEMA.to_tensor(read_table(path))) == 7

    def test_random_numbers_are_read_as_they_are_written(self, tmp_path: Path) -> None:
        generator, path = np.random.default_rng(0), tmp_path / "table.csv"
        pool = ["1", "30.5", "-2", "", "NA", "-1e400", "1e-400", "9" * 19, "-" + "9" * 20, "9" * 309, "1" * 400 + ".5"]
        pool += ["0" * 400 + "1", "5.", "+4", "inf", "-Infinity", "18446744073709551615", "-9223372036854775809", " 7 "]
        for _ in range(200):
            cells = generator.choice(pool, generator.integers(1, 6)).tolist()
            path.write_text("\n".join(["age,visits", *(f"{cell},1" for cell in cells)]) + "\n")
            expected = [float("nan") if cell in ("", "NA") else float(cell) for cell in cells]
            assert read_table(path)["age"].astype(float).tolist() == pytest.approx(expected, rel=1e-14, nan_ok=True)

    def test_huge_numbers_with_a_decimal_comma(self, tmp_path: Path) -> None:
        path = tmp_path / "table.csv"
        path.write_text(f"age;visits\n{'9' * 30};1\n30,5;1\n30.5;1\n")
        assert read_table(path, sep=";", decimal=",")["age"].tolist() == [1e30, 30.5, "30.5"]

    @pytest.mark.parametrize("odd", ["-", "3%", "1_000", "0x1F", "\uff13\uff10", "unknown"])
    def test_odd_cells_alone_are_counted(self, odd: str, tmp_path: Path) -> None:
        path = tmp_path / "table.csv"
        path.write_text("age,visits\n" + "30.5,1\n" * 20 + f"{odd},1\n" + "7,1\n" * 20)
        with pytest.raises(TypeError) as caught:
            SCHEMA.to_tensor(read_table(path))
        (line,) = (line for line in str(caught.value).splitlines() if "column 'age'" in line)
        assert line.startswith(
            "  column 'age': text in 1 of 41 cells, the first in row 21. Write numbers in plain digits"
        )
        assert odd == "-" or odd not in str(caught.value)
        assert "pandas" not in str(caught.value)

    def test_decimals_in_parquet(self, tmp_path: Path) -> None:
        pytest.importorskip("pyarrow")
        path = tmp_path / "table.parquet"
        pd.DataFrame({"age": [Decimal("1.5"), Decimal("3")], "visits": 1}).to_parquet(path)
        assert SCHEMA.to_tensor(read_table(path))[:, 0].tolist() == [1.5, 3]

    def test_repeated_columns_in_parquet(self, tmp_path: Path) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        path = tmp_path / "table.parquet"
        parquet.write_table(pyarrow.table([[1], [2]], names=["age", "age"]), path)
        with pytest.raises(ValueError, match="Columns 1 and 2 have the same name"):
            read_table(path)

    @pytest.mark.parametrize("ending", ["csv.gz", "parquet"])
    @pytest.mark.parametrize("damage", ["cut", "changed", "other"])
    def test_damaged_files(self, ending: str, damage: str, tmp_path: Path) -> None:
        """Wherever a file is cut or changed, it is read, or one error names it and its state."""
        if ending == "parquet":
            pytest.importorskip("pyarrow")
        path, generator = tmp_path / f"table.{ending}", np.random.default_rng(0)
        frame = pd.DataFrame({"age": generator.uniform(0, 100, 200), "visits": 3})
        frame.to_parquet(path) if ending == "parquet" else frame.to_csv(path, index=False)
        whole, outcomes = path.read_bytes(), set()
        for place in generator.integers(0, len(whole), 60).tolist():
            changed = whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]
            path.write_bytes({"cut": whole[:place], "changed": changed, "other": bytes(place % 3)}[damage])
            try:
                read_table(path)
                outcomes.add("read")
            except ValueError as error:
                assert str(error).startswith(f"path must hold a table, got path={str(path)!r}. It ")
                outcomes.add(str(error).partition("It ")[2])
        assert outcomes != {"read"}
        assert damage == "changed" or "read" not in outcomes
        if (ending, damage) == ("csv.gz", "cut"):
            assert "ends too early: it was cut off. Copy it again." in outcomes

    def test_files_that_are_not_tables(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="path must end in .csv, .csv.gz, .parquet"):
            read_table(tmp_path / "table.xlsx")
        with pytest.raises(FileNotFoundError):
            read_table(tmp_path / "table.csv")
        with pytest.raises(IsADirectoryError):
            (tmp_path / "folder.csv").mkdir()
            read_table(tmp_path / "folder.csv")

    def test_parquet_without_pyarrow(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
        with pytest.raises(ImportError, match=r"pip install 'pyro_mbde\[parquet\]'"):
            read_table(tmp_path / "table.parquet")


class TestModels:
    def test_save_and_load(self, tmp_path: Path) -> None:
        model = TableModel(make_density(SCHEMA.base()), SCHEMA, {"method": "ratio", "epsilon": 1.0})
        path = tmp_path / "model.pt"
        model.save(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        loaded = TableModel.load(path)
        assert (loaded.schema, loaded.settings) == (SCHEMA, model.settings)
        rows = SCHEMA.base().sample((5,))
        assert torch.equal(loaded.density.log_prob(rows), MollifiedExpFamily.load(path).log_prob(rows))

    def test_policies_are_kept(self, tmp_path: Path) -> None:
        schema = Schema((Column("age", 0, 110, outside="drop", missing=40), Column("x", 0, 1, missing="refuse")))
        TableModel(make_density(schema.base()), schema).save(tmp_path / "model.pt")
        assert TableModel.load(tmp_path / "model.pt").schema == schema

    def test_a_schema_without_policies(self, tmp_path: Path) -> None:
        """As files had it before there were any."""
        path = tmp_path / "model.pt"
        TableModel(make_density(SCHEMA.base()), SCHEMA).save(path)
        content = read_file(path, "MollifiedExpFamily", (4,))
        for column in content["schema"]["columns"]:
            del column["outside"], column["missing"]
        write_file(path, "MollifiedExpFamily", 4, content)
        assert TableModel.load(path).schema == SCHEMA

    def test_a_density_saved_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "density.pt"
        make_density(normal(2)).save(path)
        loaded = TableModel.load(path)
        assert loaded.schema is None
        assert not loaded.settings

    @pytest.mark.parametrize("damage", [{"schema": 3}, {"settings": 3}])
    def test_damaged(self, damage: dict[str, int], tmp_path: Path) -> None:
        path = tmp_path / "model.pt"
        TableModel(make_density(SCHEMA.base()), SCHEMA).save(path)
        content = read_file(path, "MollifiedExpFamily", (4,))
        write_file(path, "MollifiedExpFamily", 4, content | damage)
        with pytest.raises(ValueError, match="undamaged"):
            TableModel.load(path)


def test_a_model_beside_a_release_card_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "rows.card.json").touch()
    with pytest.warns(PrivacyLeakWarning, match="as sensitive as the table.*holds a release card"):
        TableModel(make_density(SCHEMA.base()), SCHEMA).save(tmp_path / "model.pt")
