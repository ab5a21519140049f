"""The rollback journal of an SQLite file: one file has one path, and an interrupted commit is undone or found."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import ledger_stores
import pytest
from ledger_stores import ONE, UNIT, Store, die_in_a_commit, processes, start

from pyro_mbde import Ledger, LedgerError
from pyro_mbde.ledger import file as ledger_file


def journal_mode(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("PRAGMA journal_mode").fetchone()[0])
    finally:
        connection.close()


def interrupted(path: Path) -> None:
    """Leaves a file half-written, with its journal beside it."""
    child = start(die_in_a_commit, str(path))
    child.join(60)
    assert child.exitcode == -9


def test_a_commit_reaches_the_disk_and_leaves_nothing_beside_the_file(file: Store) -> None:
    assert file.path is not None
    with Ledger(file.url) as ledger:
        ledger.charge("large", UNIT, 1, fingerprint=ONE)
        assert [path.name for path in file.path.parent.iterdir()] == ["budget.db"]
        engine = ledger._database._own_engine()
        with engine.connect() as connection:
            told = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")]
        assert told == ["delete", 3]  # EXTRA: the folder too


class TestNames:
    def test_two_processes_on_two_hard_links(self, file: Store, tmp_path: Path) -> None:
        """With write-ahead logs, each of which lies beside its own name, both would spend the whole account."""
        assert file.path is not None
        with Ledger(file.url) as ledger:
            ledger.open_account("small", 6.0)
        other = tmp_path / "elsewhere" / "other.db"
        other.parent.mkdir()
        os.link(file.path, other)
        begin = processes.Barrier(2)
        children = [
            start(ledger_stores.charge_small, str(path), str(tmp_path / f"{number}.json"), begin)
            for number, path in enumerate((file.path, other))
        ]
        for child in children:
            child.join(60)
            assert child.exitcode == 0
        for number in range(2):
            told = json.loads((tmp_path / f"{number}.json").read_text())
            assert told["granted"] == 0
            assert "its file has 2 names (hard links)" in told["error"] and "find DIRECTORY -samefile" in told["error"]
        other.unlink()
        with Ledger(file.url) as ledger:
            assert ledger.spent("small").epsilon == 0
            assert ledger.affordable("small", UNIT, ONE) == 60

    def test_a_second_name_is_found_at_the_next_charge(self, file: Store, tmp_path: Path) -> None:
        assert file.path is not None
        with Ledger(file.url) as ledger:
            ledger.charge("large", UNIT, 1, fingerprint=ONE)
            os.link(file.path, tmp_path / "other.db")
            for work in (lambda: ledger.charge("large", UNIT, 1, fingerprint=ONE), lambda: ledger.open_account("b", 1)):
                with pytest.raises(LedgerError, match="2 names.*Nothing was charged"):
                    work()
            with pytest.raises(LedgerError, match="2 names"):
                Ledger(tmp_path / "other.db")
            (tmp_path / "other.db").unlink()
            assert ledger.charge("large", UNIT, 1, fingerprint=ONE).number == 3
            assert ledger.verify().num_charges == 2

    def test_a_symbolic_link_is_followed(self, file: Store, tmp_path: Path) -> None:
        """The journal lies beside the file itself, whichever path the interrupted process and the next one use."""
        assert file.path is not None
        link = tmp_path / "links" / "link.db"
        link.parent.mkdir()
        link.symlink_to(file.path)
        for first, second in ((link, file.path), (file.path, link)):
            interrupted(first)
            assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
                "budget.db",
                "budget.db-journal",
            ]
            assert os.listdir(link.parent) == ["link.db"]
            with Ledger(second) as ledger:
                verification = ledger.verify()
                assert verification.ok, verification.problems
                assert verification.num_charges == 0
            assert not Path(f"{file.path}-journal").exists()

    def test_a_symbolic_link_that_leads_elsewhere_now(self, file: Store, tmp_path: Path) -> None:
        assert file.path is not None
        shutil.copy(file.path, tmp_path / "copy.db")
        link = tmp_path / "link.db"
        link.symlink_to(file.path)
        with Ledger(link) as ledger:
            link.unlink()
            link.symlink_to(tmp_path / "copy.db")
            for _ in range(2):
                with pytest.raises(LedgerError, match="taken away or replaced.*Nothing was charged"):
                    ledger.charge("large", UNIT, 1, fingerprint=ONE)
                ledger.close()  # new connections lead to the first file too

    def test_a_file_that_is_mounted_alone(self, file: Store, tmp_path: Path) -> None:
        assert file.path is not None
        target = tmp_path / "mounted alone.db"
        target.touch()
        mount = ["mount", "--bind", str(file.path), str(target)]
        if os.getuid() or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("no right to mount a file")
        try:
            with pytest.raises(LedgerError, match="mounted without its folder.*Mount the folder instead"):
                Ledger(target)
            with Ledger(file.url) as ledger:
                ledger.charge("large", UNIT, 1, fingerprint=ONE)
        finally:
            subprocess.run(["umount", str(target)], check=True)

    def test_how_mounts_are_listed(self, file: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert file.path is not None
        path = tmp_path / "a b\\c.db"
        file.path.rename(path)
        monkeypatch.setattr(ledger_file, "MOUNTS", tmp_path / "mountinfo")
        Ledger(path).close()  # no such list, as on other systems
        listed = str(path).replace("\\", "\\134").replace(" ", "\\040")
        for point, refused in ((str(tmp_path), False), (listed, True)):
            (tmp_path / "mountinfo").write_text(f"36 35 98:0 /one {point} rw,noatime - ext4 /dev/root rw\n")
            if refused:
                with pytest.raises(LedgerError, match="mounted without its folder"):
                    Ledger(path)
            else:
                Ledger(path).close()


class TestInterrupts:
    def test_a_commit_is_undone(self, file: Store) -> None:
        assert file.path is not None
        before = file.path.read_bytes()
        interrupted(file.path)
        assert file.path.read_bytes() != before
        with Ledger(file.url) as ledger:
            assert ledger.charge("large", UNIT, 1, fingerprint=ONE).number == 2
            assert ledger.verify().ok

    def test_a_file_that_was_moved_without_its_journal_takes_no_charge(self, file: Store, tmp_path: Path) -> None:
        assert file.path is not None
        with Ledger(file.url) as ledger:
            ledger.charge("large", UNIT, 1, fingerprint=ONE)
        interrupted(file.path)
        moved = tmp_path / "elsewhere" / "budget.db"
        moved.parent.mkdir()
        file.path.rename(moved)
        with Ledger(moved) as ledger:
            assert not ledger.verify().ok
            for work in (lambda: ledger.charge("large", UNIT, 1, fingerprint=ONE), lambda: ledger.open_account("b", 1)):
                with pytest.raises(LedgerError, match="damaged.*Nothing was charged"):
                    work()

    @pytest.mark.parametrize(
        "statement",
        [
            "DELETE FROM mbde_charges WHERE number = 5",
            "DELETE FROM mbde_tallies WHERE num_draws = 7",
            "UPDATE mbde_tallies SET num_draws = 1 WHERE num_draws = 7",
            "UPDATE mbde_tallies SET total_variation = 0.001 WHERE num_draws = 7",
            "UPDATE mbde_charges SET total_variation = 0.001 WHERE number = 7",
            "INSERT INTO mbde_tallies SELECT 'b', fingerprint, 1, 0, 1, 1, NULL FROM mbde_tallies LIMIT 1",
        ],
    )
    def test_a_ledger_that_is_not_whole_takes_no_charge(self, store: Store, statement: str) -> None:
        ledger_stores.filled(store.url)
        with store.raw() as execute:
            execute(statement)
        with Ledger(store.url) as ledger, pytest.raises(LedgerError, match="lost entries, or its sums.*verify"):
            ledger.charge("a", UNIT, 1, fingerprint=ONE)


class TestWriteAheadLogs:
    """What an older release left."""

    def test_all_of_it_is_taken_over(self, file: Store) -> None:
        assert file.path is not None
        child = start(ledger_stores.charge_into_a_log, str(file.path))
        child.join(60)
        assert child.exitcode == -9
        assert Path(f"{file.path}-wal").stat().st_size > 0
        with Ledger(file.url) as ledger:
            verification = ledger.verify()
            assert verification.ok and verification.num_charges == 5
            assert ledger.charge("large", UNIT, 1, fingerprint=ONE).number == 7
        assert os.listdir(file.path.parent) == ["budget.db"]
        assert journal_mode(file.path) == "delete"

    def test_nobody_else_may_have_it_open(self, file: Store) -> None:
        assert file.path is not None
        other = sqlite3.connect(file.path)
        assert other.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
        assert other.execute("SELECT count(*) FROM mbde_charges").fetchone() == (0,)
        with pytest.raises(LedgerError, match="locked for too long"):
            Ledger(file.url, timeout=0.2)
        other.close()
        with Ledger(file.url) as ledger:
            assert ledger.verify().ok
        assert journal_mode(file.path) == "delete"

    def test_under_two_names(self, file: Store, tmp_path: Path) -> None:
        assert file.path is not None
        connection = sqlite3.connect(file.path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.close()
        os.link(file.path, tmp_path / "other.db")
        with pytest.raises(LedgerError, match="2 names"):
            Ledger(tmp_path / "other.db")
        assert journal_mode(file.path) == "wal"


def test_readers_and_writers_wait_for_one_another(file: Store, tmp_path: Path) -> None:
    """A charge waits for a reader to finish, and one that cannot is refused whole."""
    assert file.path is not None
    reader = sqlite3.connect(file.path, isolation_level=None)
    with Ledger(file.url, timeout=0.2) as ledger:
        ledger.charge("large", UNIT, 1, fingerprint=ONE)
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM mbde_charges").fetchone() == (1,)
        with pytest.raises(LedgerError, match="locked for too long.*Nothing was charged"):
            ledger.charge("large", UNIT, 1, fingerprint=ONE)
        assert [charge.number for charge in ledger.charges("large")] == [2]
        reader.execute("COMMIT")
        assert ledger.charge("large", UNIT, 1, fingerprint=ONE).number == 3
    reader.close()


def test_an_error_leaves_no_lock(file: Store) -> None:
    """A query that is half read holds its lock for as long as its error, in a variable or a debugger, lives."""
    with Ledger(file.url) as ledger:
        for _ in range(3):
            ledger.charge("large", UNIT, 1, fingerprint=ONE)
        with file.raw() as execute:
            execute("UPDATE mbde_charges SET who = 'x' WHERE number = 2")
        errors = []
        for work in (lambda: ledger.charges("large"), lambda: ledger.charges("none")):
            try:
                work()
            except (LedgerError, ValueError) as error:
                errors.append(error)
        assert len(errors) == 2
        with Ledger(file.url, timeout=0.2) as other:
            assert other.open_account("b", 1.0).name == "b"
