"""The files of a release: written whole or not at all, nothing overwritten."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from pyro_mbde import (
    Ledger,
    MollifiedExpFamily,
    UnwrittenReleaseError,
    release,
)
from pyro_mbde.releases import release as releasing
from pyro_mbde.releases import writing as files
from pyro_mbde.releases.writing import encode_rows, write_together


@pytest.fixture
def watched(ledger: Ledger) -> Mock:
    """The ledger, every call to which is noted."""
    return Mock(wraps=ledger)


class TestFiles:
    def test_csv(self, plane: MollifiedExpFamily, ledger: Ledger, tmp_path: Path) -> None:
        released = release(plane, 5, ledger, "clinic", path=tmp_path / "rows.csv", columns=["a", "b"])
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["rows.card.html", "rows.card.json", "rows.csv"]
        read = pd.read_csv(tmp_path / "rows.csv", dtype=np.float32)
        pd.testing.assert_frame_equal(read, released.rows)

    def test_parquet(self, plane: MollifiedExpFamily, ledger: Ledger, tmp_path: Path) -> None:
        pytest.importorskip("pyarrow")
        released = release(plane, 5, ledger, "clinic", path=str(tmp_path / "rows.parquet"))
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "rows.parquet"), released.rows)

    def test_without_pyarrow(
        self, plane: MollifiedExpFamily, watched: Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "find_spec", lambda name: None)
        with pytest.raises(ImportError, match=re.escape("pip install 'pyro_mbde[parquet]'")):
            release(plane, 5, watched, "clinic", path=tmp_path / "rows.parquet")
        assert watched.mock_calls == []

    @pytest.mark.parametrize("name", ["rows.csv", "rows.card.json", "rows.card.html"])
    def test_nothing_is_overwritten(self, plane: MollifiedExpFamily, watched: Mock, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_text("mine")
        with pytest.raises(FileExistsError, match="A release is never overwritten"):
            release(plane, 1, watched, "clinic", path=tmp_path / "rows.csv")
        assert watched.mock_calls == []
        assert (tmp_path / name).read_text() == "mine"

    def test_a_file_that_appears_meanwhile(
        self, plane: MollifiedExpFamily, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rows that are paid for are not lost, and no card is left without them."""

        def draw(q: MollifiedExpFamily, plan: object, num_draws: int, **options: object) -> Tensor:
            (tmp_path / "rows.csv").write_text("another's")
            return torch.zeros(num_draws, 2)

        monkeypatch.setattr(releasing, "draw_rows", draw)
        with pytest.raises(UnwrittenReleaseError, match="paid for and drawn, but were not written") as caught:
            release(plane, 2, ledger, "clinic", path=tmp_path / "rows.csv")
        assert caught.value.release.rows.shape == (2, 2)
        assert ledger.charges("clinic") == [caught.value.release.charge]
        assert [entry.name for entry in tmp_path.iterdir()] == ["rows.csv"]
        assert (tmp_path / "rows.csv").read_text() == "another's"

    @pytest.mark.parametrize("fails_at", range(3))
    @pytest.mark.parametrize("call", ["fsync", "link"])
    def test_all_or_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int, call: str) -> None:
        real, count = getattr(os, call), iter(range(100))

        def fail(*arguments: object) -> None:
            if next(count) == fails_at:
                raise KeyboardInterrupt
            real(*arguments)

        monkeypatch.setattr(files.os, call, fail)
        with pytest.raises(KeyboardInterrupt):
            write_together([(tmp_path / name, b"x") for name in "abc"])
        assert list(tmp_path.iterdir()) == []

    def test_file_systems_without_links(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*arguments: object) -> None:
            raise PermissionError("no links here")

        monkeypatch.setattr(files.os, "link", refuse)
        write_together([(tmp_path / name, name.encode()) for name in "ab"])
        assert [(tmp_path / name).read_text() for name in "ab"] == ["a", "b"]
        with pytest.raises(FileExistsError):
            write_together([(tmp_path / name, b"x") for name in "cab"])
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a", "b"]
        assert (tmp_path / "a").read_text() == "a"

    def test_a_folder_that_cannot_be_written_to(
        self, plane: MollifiedExpFamily, watched: Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*arguments: object) -> int:
            raise PermissionError("read-only")

        monkeypatch.setattr(files.os, "open", refuse)
        with pytest.raises(PermissionError):
            release(plane, 1, watched, "clinic", path=tmp_path / "rows.csv")
        assert watched.mock_calls == []


def test_what_a_killed_release_left_is_removed_by_the_next(
    plane: MollifiedExpFamily, make_ledger: Callable[..., Ledger], tmp_path: Path
) -> None:
    """Of its own name and an hour old: another may be at work on a young one, and other files are not ours."""
    random, hour_ago = "0123456789abcdef", datetime.now(UTC).timestamp() - 4000
    stale = [tmp_path / f".r.{kind}.{random}.tmp" for kind in ("csv", "card.html", "card.json")]
    kept = [tmp_path / name for name in (f".s.csv.{random}.tmp", ".r.csv.tmp", f".r.csv.{random}.tmp.bak", "r.csv.tmp")]
    for path in (*stale, *kept):
        path.write_text("")
        os.utime(path, (hour_ago, hour_ago))
    young = tmp_path / f".r.csv.{random[::-1]}.tmp"
    young.write_text("")
    release(plane, 1, make_ledger(), "clinic", path=tmp_path / "r.csv", progress=False)
    assert not any(path.exists() for path in stale)
    assert all(path.exists() for path in (*kept, young))


def test_a_csv_file_has_months_and_years_as_such() -> None:
    moments = pd.to_datetime(pd.Series(["2020-03-01", None]))
    rows = pd.DataFrame({"month": moments, "year": moments, "day": moments})
    text = encode_rows(rows, ".csv", {"month": "month", "year": "year", "day": "day"}).decode()
    assert text == "month,year,day\n2020-03,2020,2020-03-01\n,,\n"
    assert encode_rows(rows, ".parquet", {"month": "month"}) == encode_rows(rows, ".parquet")
