"""Which files a table is in, and their slices."""

from __future__ import annotations

import gzip
import itertools
import os
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pyro_mbde import ChangedFileError, RowFiles
from pyro_mbde.tables import csv_slices
from pyro_mbde.tables.files import read_table

NUM_ROWS = 10_000


def table(num_rows: int = NUM_ROWS, seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    words = np.array(["a", 'quo"ted', "two\nlines", "with, comma", "é"])
    return pd.DataFrame(
        {
            "age": generator.uniform(0, 110, num_rows),
            "word": words[generator.integers(0, 5, num_rows)],
            "visits": generator.integers(0, 9, num_rows),
        }
    )


def joined(files: RowFiles) -> pd.DataFrame:
    return pd.concat([frame for _, frame in files.frames(range(files.num_slices))], ignore_index=True)


def paths(files: RowFiles) -> list[str]:
    return [file.path for file in files.files]


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """CSV files of few rows have many slices, and blocks end anywhere."""
    monkeypatch.setattr(csv_slices, "SLICE_BYTES", 1000)
    monkeypatch.setattr(csv_slices, "_BLOCK_BYTES", 777)


class TestParquet:
    def test_slices(self, tmp_path: Path) -> None:
        pytest.importorskip("pyarrow")
        path, frame = tmp_path / "t.parquet", table()
        frame.to_parquet(path, row_group_size=4500)
        files = RowFiles.find(path)
        assert (files.num_slices, files.num_rows) == (5, NUM_ROWS)
        assert [len(part) for _, part in files.frames(range(5))] == [4096, 404, 4096, 404, 1000]
        pd.testing.assert_frame_equal(joined(files), frame)
        ((number, part),) = files.frames([2], ["visits"])
        assert number == 2
        assert part.columns.tolist() == ["visits"]
        assert part["visits"].tolist() == frame["visits"][4500:8596].tolist()

    def test_slices_come_once_and_in_order(self, tmp_path: Path) -> None:
        pytest.importorskip("pyarrow")
        table().to_parquet(tmp_path / "t.parquet", row_group_size=4500)
        files = pickle.loads(pickle.dumps(RowFiles.find(tmp_path)))
        assert [number for number, _ in files.frames([4, 1, 4, 0])] == [0, 1, 4]
        with pytest.raises(ValueError, match="slices must be below num_slices = 5"):
            list(files.frames([5]))
        assert list(files.frames([])) == []

    @pytest.mark.parametrize("lengths", [[1], [100, 4096, 3], [5000], [4095, 2], [20_000]])
    def test_batches_of_any_length(self, lengths: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """pyarrow promises batches of at most so many rows, and no more."""
        parquet = pytest.importorskip("pyarrow.parquet")
        path, frame = tmp_path / "t.parquet", table()
        frame.to_parquet(path, row_group_size=9500)
        iter_batches = parquet.ParquetFile.iter_batches

        def odd_batches(self: object, *args: object, **options: object) -> Iterator[Any]:
            for batch in iter_batches(self, *args, **options):
                start = 0
                for length in itertools.cycle(lengths):
                    if start >= batch.num_rows:
                        break
                    yield batch.slice(start, length)
                    start += length

        files = RowFiles.find(path)
        monkeypatch.setattr(parquet.ParquetFile, "iter_batches", odd_batches)
        assert [len(part) for _, part in files.frames(range(4))] == [4096, 4096, 1308, 500]
        pd.testing.assert_frame_equal(joined(files), frame)
        ((_, part),) = files.frames([2])
        pd.testing.assert_frame_equal(part, frame[8192:9500].reset_index(drop=True))

    def test_names_with_points_and_an_index(self, tmp_path: Path) -> None:
        pytest.importorskip("pyarrow")
        frame = pd.DataFrame({"a": [1, 2], "a.b": [3, 4]}, index=pd.Index([7, 8], name="key"))
        frame.to_parquet(tmp_path / "t.parquet")
        files = RowFiles.find(tmp_path)
        assert files.files[0].names == ("a", "a.b")
        assert joined(files).to_dict("list") == {"a": [1, 2], "a.b": [3, 4]}

    def test_a_damaged_row_group_is_named(self, tmp_path: Path) -> None:
        parquet = pytest.importorskip("pyarrow.parquet")
        path = tmp_path / "t.parquet"
        table().to_parquet(path, row_group_size=5000)
        content = path.read_bytes()
        column = parquet.read_metadata(path).row_group(1).column(0)
        start = column.dictionary_page_offset or column.data_page_offset
        path.write_bytes(content[:start] + b"\xff" * 200 + content[start + 200 :])
        files = RowFiles.find(path)
        with pytest.raises(
            ValueError, match=re.escape(f"got path={str(path)!r}. Its row group 2 cannot be read. It is")
        ):
            list(files.frames(range(files.num_slices)))
        path.write_bytes(content[: len(content) - 9])
        with pytest.raises(ValueError, match="path must hold a table.*It is damaged"):
            RowFiles.find(path)

    def test_without_pyarrow(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
        (tmp_path / "t.parquet").touch()
        with pytest.raises(ImportError, match=r"pip install 'pyro_mbde\[parquet\]'"):
            RowFiles.find(tmp_path)


@pytest.mark.usefixtures("small_slices")
class TestCsv:
    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "mac-roman"])
    def test_slices(self, end: str, encoding: str, tmp_path: Path) -> None:
        path, frame = tmp_path / "t.csv", table(2000)
        frame.to_csv(path, index=False, lineterminator=end, encoding=encoding)
        files = RowFiles.find(path, encoding=encoding)
        assert files.num_slices > 40
        assert files.num_rows is None
        pd.testing.assert_frame_equal(joined(files), read_table(path, encoding=encoding))
        assert max(np.diff(files.files[0].cuts)) < 1200  # type: ignore[attr-defined]  # a CSV file's

    @pytest.mark.parametrize("num_rows", [99, 100, 101, 1234])
    def test_short_rows_are_cut_by_their_number(
        self, num_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(csv_slices, "SLICE_ROWS", 100)
        path = tmp_path / "t.csv"
        cells = ["1", "2", '"\n\n"', '""'] * num_rows
        path.write_text("word\n" + "".join(f"{cell}\n" for cell in cells[:num_rows]) + "\n" * 150)
        files = RowFiles.find(path)
        frames = [frame for _, frame in files.frames(range(files.num_slices))]
        assert [len(frame) for frame in frames if len(frame)] == [
            *[100] * (num_rows // 100),
            *([num_rows % 100] if num_rows % 100 else []),
        ]
        assert sum(map(len, frames)) == len(read_table(path)) == num_rows

    def test_ends_of_lines_of_old_macs(self, tmp_path: Path) -> None:
        path, frame = tmp_path / "t.csv", table(500).drop(columns="word")
        frame.to_csv(path, index=False, lineterminator="\r")
        files = RowFiles.find(path)
        assert files.num_slices > 5
        pd.testing.assert_frame_equal(joined(files), read_table(path))

    def test_random_texts_are_cut_where_rows_end(self, tmp_path: Path) -> None:
        generator, path = np.random.default_rng(1), tmp_path / "t.csv"
        for _ in range(20):
            cells = generator.choice(["", '"', '""', "\n", "\n\n", ",", "x", "\r\n", '"\n"'], (200, 3))
            frame = pd.DataFrame(["".join(row) for row in cells], columns=["text"])
            frame["number"] = np.arange(200)
            frame.to_csv(path, index=False)
            files = RowFiles.find(path)
            assert joined(files)["number"].tolist() == list(range(200))

    @pytest.mark.parametrize("end", ["", "\n", "\n\n\n"])
    def test_blank_lines_and_no_last_end(self, end: str, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        path.write_text("\n \nage, visits\n" + "\n".join(f"{row},1\n" for row in range(700)) + end)
        files = RowFiles.find(path)
        pd.testing.assert_frame_equal(joined(files), read_table(path))

    @pytest.mark.parametrize("content", ["age,visits\n", "age,visits"])
    def test_a_header_alone(self, content: str, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        path.write_text(content)
        assert RowFiles.find(path).num_slices == 0

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            (b"", "It is empty."),
            (b"\n\n", "It is empty."),
            (b"age;visits\n1;2\n", "Pass sep=';' (--sep ';')."),
            (b"age,age\n1,2\n", "Columns 1 and 2 have the same name."),
            (b"PAR1\x15\x04", "It is a Parquet file."),
            ("age,visits\n1,2\n".encode("utf-16"), "It is UTF-16 text."),
            (b"age,gr\xf6\xdfe\n1,2\n", "It is not utf-8 text."),
        ],
        ids=range(7),
    )
    def test_refused(self, content: bytes, text: str, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=re.escape(text)) as caught:
            RowFiles.find(path)
        assert str(caught.value).startswith(f"path must hold a table, got path={str(path)!r}. ")

    def test_longer_rows_are_named_by_their_line(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        lines = ["age,visits", *["31337,1"] * 900]
        lines[700] = "31337,1,1"
        path.write_text("\n".join(lines))
        files = RowFiles.find(path)
        with pytest.raises(ValueError, match="There are more cells in line 701 than names") as caught:
            list(files.frames(range(files.num_slices)))
        assert "31337" not in str(caught.value)
        with pytest.raises(ValueError, match="more cells in line 701 than"):
            read_table(path)

    def test_other_encodings_and_compressed_files_are_not_read_in_parts(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        for encoding in ("utf-16", "utf-32", "gbk", "shift_jis", "iso2022_jp", "utf-7", "cp037"):
            path.write_text("age,visits\n1,2\n", encoding=encoding)
            with pytest.raises(ValueError, match="text, which cannot be read in parts. Save it as UTF-8."):
                RowFiles.find(path, encoding=encoding)
        (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"age,visits\n1,2\n"))
        with pytest.raises(ValueError, match="It is compressed, so that it cannot be read in parts. Unpack it."):
            RowFiles.find(tmp_path / "t.csv.gz")

    def test_a_quotation_mark_that_is_not_closed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(csv_slices, "MAX_ROW_BYTES", 5000)
        path = tmp_path / "t.csv"
        path.write_text('age,visits\n1,"2\n' + "1,2\n" * 5000)
        with pytest.raises(ValueError, match="a quotation mark before it is not closed"):
            RowFiles.find(path)
        path.write_text('age,"visits\n' + "1,2\n" * 5000)
        with pytest.raises(ValueError, match="a quotation mark before it is not closed"):
            RowFiles.find(path)


class TestPlaces:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in ("b.csv", "a.csv", "below/c.CSV", "_old.csv", ".hidden.csv", "_old/d.csv", "notes.txt"):
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"name,x\n{name[0]},1\n")
        return tmp_path

    def test_files_folders_and_patterns(self, folder: Path) -> None:
        everything = [str(folder / name) for name in ("a.csv", "b.csv", "below/c.CSV")]
        assert paths(RowFiles.find(folder)) == everything
        assert paths(RowFiles.find(str(folder / "*.csv"))) == [str(folder / "_old.csv"), *everything[:2]]
        assert paths(RowFiles.find([folder / "b.csv", folder / "a.csv"])) == everything[:2]
        assert paths(RowFiles.find([folder, folder / "a.csv", str(folder / "[ab].csv")])) == everything
        assert joined(RowFiles.find(folder))["name"].tolist() == ["a", "b", "b"]

    def test_one_file_by_two_names_counts_once(self, folder: Path) -> None:
        os.link(folder / "a.csv", folder / "again.csv")
        (folder / "linked.csv").symlink_to(folder / "a.csv")
        assert len(paths(RowFiles.find(str(folder / "*a*.csv")))) == 1

    def test_a_name_with_signs_of_a_pattern(self, tmp_path: Path) -> None:
        (tmp_path / "visits[1].csv").write_text("age\n1\n")
        assert len(paths(RowFiles.find(tmp_path / "visits[1].csv"))) == 1

    def test_refused(self, folder: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"z\.csv"):
            RowFiles.find(folder / "z.csv")
        with pytest.raises(ValueError, match="places must match a file, .*No file matches this pattern."):
            RowFiles.find(str(folder / "*.parquet"))
        with pytest.raises(ValueError, match=r"places must match .csv, .csv.gz, .parquet.*It matches 'notes.txt'"):
            RowFiles.find(str(folder / "*.txt"))
        with pytest.raises(ValueError, match=r"places must end in .csv, .csv.gz, .parquet"):
            RowFiles.find(folder / "notes.txt")
        with pytest.raises(ValueError, match="places must name a file"):
            RowFiles.find([])
        with pytest.raises(TypeError, match="places must be paths"):
            RowFiles.find([3])  # type: ignore[list-item]  # refused
        (folder / "empty").mkdir()
        with pytest.raises(ValueError, match="places must hold files that end in .*This folder has none."):
            RowFiles.find(folder / "empty")
        (folder / "t.parquet").touch()
        with pytest.raises(ValueError, match="A table must be in files of one kind"):
            RowFiles.find(folder)


class TestChanges:
    @pytest.mark.parametrize("ending", ["csv", "parquet"])
    def test_a_changed_file_is_named(self, ending: str, tmp_path: Path) -> None:
        if ending == "parquet":
            pytest.importorskip("pyarrow")
        path, frame = tmp_path / f"t.{ending}", table(50)

        def write(rows: pd.DataFrame) -> None:
            rows.to_parquet(path) if ending == "parquet" else rows.to_csv(path, index=False)

        write(frame)
        files = RowFiles.find(path)
        before = os.stat(path)
        write(frame[:-1])
        with pytest.raises(ChangedFileError, match=re.escape(f"The file {str(path)!r} has changed")):
            list(files.frames([0]))
        write(frame)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        with pytest.raises(ChangedFileError):
            list(files.frames([0]))
        assert RowFiles.find(path).fingerprint != files.fingerprint
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert RowFiles.find(path).fingerprint == files.fingerprint
        path.unlink()
        with pytest.raises(FileNotFoundError):
            list(files.frames([0]))

    @pytest.mark.parametrize("ending", ["csv", "parquet"])
    def test_a_file_that_changes_while_it_is_read(self, ending: str, tmp_path: Path) -> None:
        if ending == "parquet":
            pytest.importorskip("pyarrow")
        path, frame = tmp_path / f"t.{ending}", table(9000)
        frame.to_parquet(path) if ending == "parquet" else frame.to_csv(path, index=False)
        files = RowFiles.find(path)
        assert files.num_slices == 3
        frames = files.frames(range(3))
        next(frames)
        os.utime(path, ns=(0, 0))
        with pytest.raises(ChangedFileError):
            list(frames)
