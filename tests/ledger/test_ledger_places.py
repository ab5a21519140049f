"""Where a ledger is: paths, URLs and their passwords."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from pyro_mbde import Ledger, LedgerError


def test_a_new_file_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Ledger(tmp_path / "new.db") as ledger:
            modes = {}

            def look(connection: Any) -> None:
                modes.update({path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()})

            event.listen(ledger._database._own_engine(), "commit", look)
            ledger.open_account("a", 1.0)
            assert modes == dict.fromkeys(["new.db", "new.db-journal"], 0o600)
        (tmp_path / "new.db").chmod(0o640)
        (tmp_path / "empty.db").touch(0o644)
        for name, mode in (("new.db", 0o640), ("empty.db", 0o644)):
            with Ledger(tmp_path / name) as ledger:
                assert ledger.verify().ok
            assert (tmp_path / name).stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("path", "kind", "match"),
    [
        ("", ValueError, "path_or_url must be the path of a file"),
        (":memory:", ValueError, "outlive the process"),
        ("sqlite://", ValueError, "name a file"),
        ("sqlite:///:memory:", ValueError, "name a file"),
        ("sqlite:///a.db?mode=memory", ValueError, "name a file"),
        ("sqlite://u:secret@h/d?y=1", ValueError, "name a file and nothing else, got path_or_url='sqlite'"),
        ("postgresql://u:secret@h/d\0", ValueError, "be the path of a file"),
        ("mysql://u:secret@h/d", ValueError, "be of SQLite or PostgreSQL, got path_or_url='mysql'"),
        ("postgresql://u:secret@h:port/d", ValueError, "must be a valid URL"),
        (1, TypeError, "be a path or a URL"),
        (None, TypeError, "be a path or a URL"),
    ],
)
def test_odd_places_are_refused(path: Any, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match) as caught:
        Ledger(path)
    assert "secret" not in str(caught.value)


def test_a_password_among_the_options_of_a_url_is_not_shown() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(LedgerError, match="no connection") as caught:
        Ledger("postgresql://u:secret@127.0.0.1:1/d?password=secret&sslpassword=secret", timeout=2)
    assert "secret" not in str(caught.value)


def test_places(tmp_path: Path) -> None:
    path = tmp_path / "a bü?.db"
    with Ledger(path) as ledger:
        ledger.open_account("a", 1.0)
        assert repr(ledger) == f"Ledger({str(path)!r})"
    with Ledger(str(path)) as ledger:
        assert len(ledger.accounts()) == 1
    path.rename(tmp_path / "aü.db")
    with Ledger(f"sqlite:///{tmp_path}/aü.db") as ledger:
        assert len(ledger.accounts()) == 1
    for timeout in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match="timeout must be above 0"):
            Ledger(path, timeout=timeout)


def test_a_closed_ledger_opens_again(ledger: Ledger) -> None:
    ledger.open_account("a", 1.0)
    ledger.close()
    assert [account.name for account in ledger.accounts()] == ["a"]
