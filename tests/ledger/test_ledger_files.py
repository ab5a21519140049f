"""Damaged, full, read-only, locked and foreign databases: a clear error, and nothing lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ledger_stores
import pytest
from ledger_stores import (
    ONE,
    POSTGRESQL,
    UNIT,
    Store,
    admin,
    as_version,
    filled,
    run,
    start,
)
from sqlalchemy import create_engine, make_url, text

from pyro_mbde import Ledger, LedgerError
from pyro_mbde.ledger import schema


def test_a_flipped_byte_of_the_file_changes_nothing_unseen(tmp_path: Path) -> None:
    """At a byte that is used, the ledger does not verify; at any other, it tells the same as before."""
    path, damaged = tmp_path / "budget.db", tmp_path / "damaged.db"
    filled(str(path))
    content, generator, found = path.read_bytes(), random.Random(0), 0
    with Ledger(path) as ledger:
        truth = (ledger.accounts(), ledger.charges("a"), ledger.charges("b"), ledger.head())
    used = [place for place, byte in enumerate(content) if byte]
    for place in [*generator.sample(used, 90), *generator.sample(range(len(content)), 10)]:
        flipped = bytearray(content)
        flipped[place] ^= 1 << generator.randrange(8)
        damaged.write_bytes(flipped)
        try:
            with Ledger(damaged) as ledger:
                if ledger.verify().ok:
                    told = (ledger.accounts(), ledger.charges("a"), ledger.charges("b"), ledger.head())
                    assert told == truth
                else:
                    found += 1
        except LedgerError:
            found += 1
        for leftover in tmp_path.glob("damaged.db*"):
            leftover.unlink()
    assert found > 40


def test_a_truncated_file_is_found(file: Store) -> None:
    assert file.path is not None
    with Ledger(file.url) as ledger:
        for _ in range(30):
            ledger.charge("large", UNIT, 1, fingerprint=ONE, purpose="x" * 1500)
    content = file.path.read_bytes()
    for share in (0.3, 0.6, 0.9):
        file.path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(LedgerError, match="damaged|not a database"), Ledger(file.url) as ledger:
            assert not ledger.verify().ok
            raise LedgerError("damaged, as verify told")


def check_full(path: Path, report: Path, problem: str) -> None:
    told = json.loads(report.read_text())
    assert told["num_charges"] > 0
    for error in told["errors"]:
        assert problem in error and str(path) in error and "Nothing was charged" in error
    assert len(told["errors"]) == 2
    with Ledger(path) as ledger:
        verification = ledger.verify()
        assert verification.ok, verification.problems
        assert verification.num_charges == told["num_charges"]


def test_a_file_that_may_not_grow_loses_nothing(file: Store, tmp_path: Path) -> None:
    assert file.path is not None
    run(ledger_stores.fill_disk, file.url, 300_000, str(tmp_path / "report"))
    check_full(file.path, tmp_path / "report", "lets no more be written")
    with Ledger(file.url) as ledger:
        ledger.charge("large", UNIT, 1, fingerprint=ONE)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)]
    if os.getuid() or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no right to mount a small disk")
    try:
        with Ledger(disk / "budget.db") as ledger:
            ledger.open_account("large", 1e6)
        run(ledger_stores.fill_disk, str(disk / "budget.db"), 0, str(tmp_path / "report"))
        shutil.copytree(disk, tmp_path / "copy")
        told = json.loads((tmp_path / "report").read_text())
        assert "its disk is full. Make room and try again." in told["errors"][0]
        with Ledger(tmp_path / "copy" / "budget.db") as ledger:
            verification = ledger.verify()
        assert verification.ok and verification.num_charges == told["num_charges"] > 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)


class Readable(NamedTuple):
    """A ledger that others may read, and what a process without the right to write it tells."""

    path: Path
    use: Callable[[], dict[str, Any]]


@pytest.fixture(params=[False, True], ids=["file", "folder too"])
def readable(request: pytest.FixtureRequest) -> Iterator[Readable]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # one that everybody can enter, up to the root
        path, report = Path(folder, "sub", "budget.db"), Path(folder, "report")
        path.parent.mkdir()
        report.touch()
        with Ledger(path) as ledger:
            ledger.open_account("large", 1.0)
            ledger.charge("large", UNIT, 1, fingerprint=ONE)

        def use() -> dict[str, Any]:
            for place in path.parent.iterdir():
                place.chmod(0o444)
            for place, mode in ((report, 0o666), (path.parent, 0o555 if request.param else 0o777), (folder, 0o755)):
                os.chmod(place, mode)
            before = {place.name: place.read_bytes() for place in path.parent.iterdir()}
            run(ledger_stores.use_as_nobody, str(path), str(report))
            assert {place.name: place.read_bytes() for place in path.parent.iterdir() if place.suffix == ".db"} == {
                "budget.db": before["budget.db"]
            }
            for place in (path, path.parent):
                place.chmod(0o777)
            told: dict[str, Any] = json.loads(report.read_text())
            assert str(path) in told["error"]
            return told

        yield Readable(path, use)


class TestAuditors:
    """Who may read a ledger and not write it."""

    def test_they_verify_and_do_not_charge(self, readable: Readable) -> None:
        told = readable.use()
        assert told["verified"] and told["charges"] == 1
        assert "it cannot be written. Make the file and its folder writable. Nothing was charged" in told["error"]
        assert told["verify"][0] == told["show"][0] == told["show large"][0] == 0
        assert told["verify"][1].startswith("ok: 1 charge, head ")
        assert "0.1 of 1" in told["show"][1] and "0.1 of 1" in told["show large"][1]
        with Ledger(readable.path) as ledger:
            assert ledger.verify().num_charges == 1

    def test_after_an_interrupted_charge(self, readable: Readable) -> None:
        child = start(ledger_stores.die_in_a_commit, str(readable.path))
        child.join(60)
        told = readable.use()
        assert "its last charge was interrupted and has to be undone" in told["error"]
        assert "Have its owner open it once: pyro-mbde budget show does." in told["error"]
        assert told["verify"][0] == 1 and told["error"] in told["verify"][1]
        with Ledger(readable.path) as ledger:
            assert ledger.verify().ok

    def test_a_ledger_of_an_older_release(self, readable: Readable) -> None:
        connection = sqlite3.connect(readable.path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.close()
        told = readable.use()
        assert "an older release made it. Have its owner open it once with this release" in told["error"]
        assert told["verify"][0] == 1


def test_locked_for_too_long(store: Store) -> None:
    filled(store.url)
    with Ledger(store.url, timeout=0.2) as ledger:
        if store.path is not None:
            connection = sqlite3.connect(store.path, isolation_level=None)
            connection.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerError, match="locked for too long.*Try again"):
                ledger.charge("a", UNIT, 1, fingerprint=ONE)
            assert ledger.verify().ok  # readers are not in the way
            connection.close()
        else:
            engine_url = make_url(store.url).set(drivername="postgresql+psycopg")
            engine = create_engine(engine_url)
            with engine.begin() as holder:
                holder.execute(text("SELECT * FROM mbde_ledger FOR UPDATE"))
                with pytest.raises(LedgerError, match="locked for too long.*Try again"):
                    ledger.charge("a", UNIT, 1, fingerprint=ONE)
                assert ledger.verify().ok
            engine.dispose()
        assert ledger.charge("a", UNIT, 1, fingerprint=ONE).number == 11


def test_what_is_not_a_ledger_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Not a database, but long enough to be taken for one at first sight. " * 20)
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE patients (name TEXT)")
    connection.commit()
    connection.close()
    for place, match in ((path, "it is not a database"), (other, "a database of something else.*left as it is")):
        before = place.read_bytes()
        with pytest.raises(LedgerError, match=match):
            Ledger(place)
        assert place.read_bytes() == before
    with pytest.raises(LedgerError, match="cannot be opened.*Check that its folder exists"):
        Ledger(tmp_path / "nowhere" / "budget.db")
    with pytest.raises(LedgerError, match="it is a folder, not a regular file"):
        Ledger(tmp_path)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["notes.txt", "other.db"]


def version_of(store: Store) -> int:
    return int(store.rows("mbde_ledger")[0]["version"])


def test_migration(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(store.url)
    migrations, version = list(schema.MIGRATIONS), version_of(store)
    assert version == schema.newest_version() == 1 + len(migrations)

    def add_column(connection: Any) -> None:
        connection.execute(text("ALTER TABLE mbde_charges ADD COLUMN note TEXT"))

    def fail(connection: Any) -> None:
        add_column(connection)
        connection.execute(text("SELECT * FROM nowhere"))

    monkeypatch.setattr(schema, "MIGRATIONS", [*migrations, fail])
    with pytest.raises(LedgerError):
        Ledger(store.url)
    assert version_of(store) == version
    monkeypatch.setattr(schema, "MIGRATIONS", [*migrations, add_column])
    with Ledger(store.url) as ledger:
        assert version_of(store) == version + 1
        ledger.charge("a", UNIT, 1, fingerprint=ONE)
        assert ledger.verify().ok
    monkeypatch.setattr(schema, "MIGRATIONS", migrations)
    match = f"a newer release of pyro_mbde wrote it, in version {version + 1}.*update pyro_mbde"
    with pytest.raises(LedgerError, match=match):
        Ledger(store.url)
    assert version_of(store) == version + 1


@pytest.mark.parametrize("old", [1, 2])
def test_a_ledger_of_an_old_version_is_brought_to_the_newest(store: Store, old: int) -> None:
    filled(store.url)
    as_version(store, old)
    with Ledger(store.url) as ledger:
        assert version_of(store) == schema.newest_version()
        verification = ledger.verify()
        assert verification.ok, verification.problems
        ledger.open_account("c", 1.0)
        ledger.close_account("c")
        ledger.charge("a", UNIT, 1, fingerprint=ONE)
        assert ledger.verify(verification.head).ok
    with pytest.raises(Exception, match="rows of a ledger are only ever added"):
        delete_closings(store)


def delete_closings(store: Store) -> None:
    if store.path is None:
        with admin(store.url) as execute:
            execute("DELETE FROM mbde_closings")
        return
    connection = sqlite3.connect(store.path)
    try:
        connection.execute("DELETE FROM mbde_closings")
    finally:
        connection.close()


def test_a_ledger_of_version_1_opens(tmp_path: Path) -> None:
    """Written by the first release that had ledgers: its tables, floats and hashes are for good."""
    path = tmp_path / "budget.db"
    connection = sqlite3.connect(path)
    connection.executescript((Path(__file__).parent / "ledger_version_1.sql").read_text())
    connection.close()
    with Ledger(path) as ledger:
        verification = ledger.verify()
        assert verification.ok, verification.problems
        assert verification.num_charges == 8
        assert verification.head == (Path(__file__).parent / "ledger_version_1.sql").read_text().split()[1]
        assert ledger.charge("a", UNIT, 1, fingerprint=ONE).number == 11
        assert ledger.verify(verification.head).ok


@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
class TestPostgreSQL:
    def test_neither_repr_nor_errors_show_the_password(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        url = make_url(store.url)
        with Ledger(store.url) as ledger:
            assert str(url.password) not in repr(ledger) and "***" in repr(ledger)
        wrong = [
            (url.set(password="wrong-secret"), "password authentication failed"),
            (url.set(database="nowhere"), "does not exist"),
            (url.set(port=1), "no connection.*Check that the server runs"),
        ]
        for other, match in wrong:
            with pytest.raises(LedgerError, match=match) as caught:
                Ledger(other.render_as_string(hide_password=False), timeout=30)
            assert str(other.password) not in str(caught.value)

    def test_what_the_server_refuses(self, store: Store) -> None:
        filled(store.url)
        name = make_url(store.url).database
        with admin(store.url) as execute:
            execute(
                "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100'; END $$"
            )
            execute("CREATE TRIGGER fail BEFORE UPDATE ON mbde_ledger FOR EACH ROW EXECUTE FUNCTION fail()")
            with Ledger(store.url) as ledger:
                with pytest.raises(LedgerError, match="its disk is full"):
                    ledger.charge("a", UNIT, 1, fingerprint=ONE)
                execute("DROP TRIGGER fail ON mbde_ledger")
                assert ledger.verify().ok
            execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            with Ledger(store.url) as ledger:
                assert ledger.verify().num_charges == 8
                with pytest.raises(LedgerError, match="it cannot be written"):
                    ledger.charge("a", UNIT, 1, fingerprint=ONE)
            execute("SET default_transaction_read_only = off")
            execute(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
            role = f"auditor_{uuid.uuid4().hex}"
            execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p'")
            execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
            auditor = make_url(store.url).set(username=role, password="p").render_as_string(hide_password=False)
            with Ledger(auditor) as ledger:
                assert ledger.verify().ok
                assert [account.name for account in ledger.accounts()] == ["a", "b"]
                with pytest.raises(LedgerError, match="its user may not do this.*to charge"):
                    ledger.charge("a", UNIT, 1, fingerprint=ONE)
            as_version(store, 1)
            with pytest.raises(LedgerError, match="an older release made it. Have its owner open it once"):
                Ledger(auditor)
            execute(f"DROP OWNED BY {role}")
            execute(f"DROP ROLE {role}")

    def test_a_serialization_failure_is_tried_again(self, store: Store) -> None:
        filled(store.url)
        with admin(store.url) as execute:
            execute("CREATE SEQUENCE attempts")
            execute(
                "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('attempts') < 4 THEN "
                "RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END IF; RETURN NEW; END $$"
            )
            execute("CREATE TRIGGER fail BEFORE UPDATE ON mbde_ledger FOR EACH ROW EXECUTE FUNCTION fail()")
            with Ledger(store.url) as ledger:
                assert ledger.charge("a", UNIT, 1, fingerprint=ONE).number == 11
                assert ledger.verify().num_charges == 9
            assert execute("SELECT last_value FROM attempts") == [(4,)]

    def test_a_lost_connection(self, store: Store) -> None:
        filled(store.url)
        with Ledger(store.url) as ledger, admin(POSTGRESQL) as execute:
            ledger.head()
            end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = ? AND pid <> pg_backend_pid()"
            execute(end, make_url(store.url).database)
            assert ledger.charge("a", UNIT, 1, fingerprint=ONE).number == 11  # a new connection was made

    def test_another_programs_table_of_that_name(self, store: Store) -> None:
        with admin(store.url) as execute:
            execute("CREATE TABLE patients (name TEXT)")
            Ledger(store.url).close()  # beside other tables
            execute("DROP TABLE mbde_ledger")
            execute("CREATE TABLE mbde_ledger (name TEXT)")
        with pytest.raises(LedgerError, match="its table mbde_ledger has no version.*left as it is"):
            Ledger(store.url)


def test_a_copy_of_the_file_alone_has_every_charge(tmp_path: Path) -> None:
    """Also while the ledger is open, as after a kill: what lies beside the file is carried over with each charge."""
    with Ledger(tmp_path / "budget.db") as ledger:
        ledger.open_account("a", 10.0)
        for _ in range(5):
            ledger.charge("a", UNIT, 1, fingerprint=ONE)
            shutil.copy(tmp_path / "budget.db", tmp_path / "copy.db")
            with Ledger(tmp_path / "copy.db") as copy:
                assert copy.verify().ok
                assert copy.head() == ledger.head()
            for path in tmp_path.glob("copy.db*"):
                path.unlink()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_taken_away_takes_no_charge(file: Store, replaced: bool) -> None:
    """What is written to it is gone when it is closed."""
    assert file.path is not None
    aside = file.path.with_name("aside.db")
    with Ledger(file.url) as ledger:
        ledger.charge("large", UNIT, 1, fingerprint=ONE)
        file.path.rename(aside)
        if replaced:
            shutil.copy(aside, file.path)
        with pytest.raises(LedgerError, match="taken away or replaced. Put it back.* Nothing was charged"):
            ledger.charge("large", UNIT, 1, fingerprint=ONE)
        aside.rename(file.path)
        assert [charge.number for charge in ledger.charges("large")] == [2]
        assert ledger.charge("large", UNIT, 1, fingerprint=ONE).number == 3


@pytest.mark.parametrize(("kind", "said"), [("folder", "a folder"), ("pipe", "a pipe"), ("device", "a device")])
def test_what_is_not_a_regular_file(kind: str, said: str, tmp_path: Path) -> None:
    """A pipe would otherwise be waited at for good."""
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path = Path("/dev/null")
    with pytest.raises(LedgerError, match=f"it is .*{said}.* not a regular file. Name a file"):
        Ledger(path)
