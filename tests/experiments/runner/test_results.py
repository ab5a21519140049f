"""Files of results: torn, damaged, full, and written by one at a time."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from sweep_jobs import jobs_of, measure
from sweeps import lines, sweep

from pyro_mbde.experiments.results import ResultsFile, SweepError, read_results


class TestFile:
    def test_a_torn_line_is_dropped(self, path: Path) -> None:
        sweep(jobs_of(3), measure, path)
        whole = path.read_text()
        path.write_text(whole[:-20])
        assert len(read_results(path)) == 2  # also while a line is being written
        table = sweep(jobs_of(3), measure, path)
        assert table["error"].isna().all()
        assert [json.loads(line)["repeat"] for line in lines(path)] == [0, 1, 2]

    def test_a_row_that_cannot_be_written_leaves_nothing(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class FullDisk(io.FileIO):
            room = 30

            def write(self, data: Any, /) -> int:
                if not self.room:
                    raise OSError(28, "No space left on device")
                part = bytes(data)[: self.room]
                self.room -= len(part)
                return super().write(part)

        sweep(jobs_of(1), measure, path)
        before = path.read_bytes()
        monkeypatch.setattr(Path, "open", lambda self, *_, **__: FullDisk(self, "a+"))
        with ResultsFile(path) as results:
            with pytest.raises(OSError, match="No space left"):
                results.append({"key": "new", "error": None, "word": "x" * 100})
            assert "new" not in results.rows
        monkeypatch.undo()
        assert path.read_bytes() == before
        assert sweep(jobs_of(2), measure, path)["error"].isna().all()

    def test_an_interrupt_keeps_a_row_that_is_written(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(_: int) -> None:
            raise KeyboardInterrupt

        with ResultsFile(path) as results, monkeypatch.context() as patch:
            results.append({"key": "first", "error": None})
            patch.setattr(os, "fsync", interrupt)
            with pytest.raises(KeyboardInterrupt):
                results.append({"key": "second", "error": None})
        assert list(read_results(path)["key"]) == ["first", "second"]

    @pytest.mark.parametrize("line", ["{", "[1]", "7", '{"key": "a"}', "\x00\x00", ""])
    def test_a_damaged_line_is_an_error(self, path: Path, line: str) -> None:
        sweep(jobs_of(3), measure, path)
        first, *others = lines(path)
        path.write_text("\n".join([first, line, *others]) + "\n")
        before = path.read_bytes()
        for read in (lambda: read_results(path), lambda: sweep(jobs_of(4), measure, path)):
            with pytest.raises(ValueError, match=r"line 2 of '.*sweep.jsonl' must hold a row of results"):
                read()
        assert path.read_bytes() == before

    def test_one_writer_at_a_time(self, path: Path) -> None:
        with ResultsFile(path), pytest.raises(SweepError, match=r"another sweep writes to '.*sweep.jsonl'"):
            sweep(jobs_of(1), measure, path)
        sweep(jobs_of(1), measure, path)

    def test_keys_without_a_row(self, path: Path) -> None:
        sweep(jobs_of(1), measure, path)
        with pytest.raises(ValueError, match="keys must be of rows in the file, got 'other'"):
            read_results(path, keys=["other"])
        with pytest.raises(FileNotFoundError):
            read_results(path.with_name("none"))
