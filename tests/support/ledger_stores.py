"""Databases for the tests of the ledger, a way to tamper with them, and what child processes do to them."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import resource
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from sqlalchemy import Connection, create_engine, insert, make_url, text
from sqlalchemy.pool import NullPool

from pyro_mbde import BudgetExceededError, Guarantee, Ledger, LedgerError
from pyro_mbde.cli import main
from pyro_mbde.ledger import schema
from pyro_mbde.ledger.chain import entry_hash

POSTGRESQL = os.environ.get("PYRO_MBDE_TEST_POSTGRESQL", "")
DENSITIES = [hashlib.sha256(bytes([number])).hexdigest() for number in range(40)]
ONE, TWO, THREE = DENSITIES[:3]
UNIT, CERTIFIED = Guarantee(0.1, log_ratio_range=0.1), Guarantee(0.1, 1e-8, 0.2)
PLACED = Guarantee(0.1, 1e-8, 0.2, 0.01)

#: Its server has imported what takes long, so that its processes begin at once, and runs no other thread.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["pyro_mbde", "pytest"])


class Store:
    """A database that may hold a ledger."""

    def __init__(self, url: str, path: Path | None = None) -> None:
        self.url, self.path = url, path

    @contextmanager
    def raw(self) -> Iterator[Callable[..., list[Any]]]:
        """A function that executes SQL, with triggers and foreign keys out of the way."""
        if self.path is not None:
            connection = sqlite3.connect(self.path, isolation_level=None)
            query = "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'"
            triggers = connection.execute(query).fetchall()
            for name, _, _ in triggers:
                connection.execute(f"DROP TRIGGER {name}")
            yield lambda query, *values: connection.execute(query, values).fetchall()
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for _, table, definition in triggers:
                if table in tables:
                    connection.execute(definition)
            connection.close()
            return
        with admin(self.url) as execute:
            execute("SET session_replication_role = replica")
            yield execute

    def rows(self, table: str) -> list[dict[str, Any]]:
        columns = {
            "mbde_charges": "number account charged fingerprint num_draws epsilon delta log_ratio_range purpose who "
            "previous hash total_variation",
            "mbde_accounts": "number name epsilon delta rule certificate_delta opened previous hash",
            "mbde_closings": "number account closed who previous hash",
            "mbde_ledger": "version identity created number hash",
        }[table].split()
        with self.raw() as execute:
            found = execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY number")
        return [dict(zip(columns, row, strict=True)) for row in found]


@contextmanager
def admin(url: str) -> Iterator[Callable[..., list[Any]]]:
    """A function that executes SQL on a PostgreSQL server, each statement by itself; values as in SQLite."""
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), poolclass=NullPool)
    with engine.connect() as connection:
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")

        def execute(query: str, *values: Any) -> list[Any]:
            named = "".join(f"{part}:v{i}" for i, part in enumerate(query.split("?")[:-1])) + query.split("?")[-1]
            result = connection.execute(text(named), {f"v{i}": value for i, value in enumerate(values)})
            return [tuple(row) for row in result] if result.returns_rows else []

        yield execute


def rehash(kind: str, row: dict[str, Any]) -> str:
    """What a forger computes who knows the format."""
    return entry_hash(kind, row)


def charge_until(url: str, worker: int, seconds: float, folder: str, begin: Barrier) -> None:
    """Charges to two accounts for some time, and until one draw is refused, and writes what was granted."""
    generator, granted, refused, filled = random.Random(worker), {"small": 0, "large": 0}, 0, False
    begin.wait()
    stop = time.monotonic() + seconds
    with Ledger(url) as ledger:
        while time.monotonic() < stop or not filled:
            name = generator.choice(["small", "large", "large"])
            num_draws = generator.randint(1, 3)
            density = DENSITIES[generator.randrange(3) + (3 if name == "large" else 0)]
            try:
                ledger.charge(name, UNIT, num_draws, fingerprint=density, purpose=f"{worker}")
                granted[name] += num_draws
            except BudgetExceededError:
                refused += 1
                filled = filled or num_draws == 1
    Path(folder, f"{worker}.json").write_text(json.dumps({**granted, "refused": refused}))


def charge_and_draw(url: str, path: str) -> None:
    """Charges, then "draws": appends the number of the charge to a file; another file tells that it has begun."""
    Path(f"{path}.begun").touch()
    with Ledger(url) as ledger, open(path, "ab", buffering=0) as file:
        while True:
            charge = ledger.charge("large", UNIT, 1, fingerprint=DENSITIES[0])
            file.write(b"%d\n" % charge.number)
            os.fsync(file.fileno())


def charge_small(path: str, report: str, begin: Barrier) -> None:
    """Charges one draw at a time to the small account until it refuses, and writes how many were granted."""
    granted, told = 0, ""
    begin.wait()
    try:
        with Ledger(path) as ledger:
            while True:
                ledger.charge("small", UNIT, 1, fingerprint=ONE)
                granted += 1
                time.sleep(0.005)
    except (LedgerError, BudgetExceededError) as error:
        told = str(error)
    Path(report).write_text(json.dumps({"granted": granted, "error": told}))


def die_in_a_commit(path: str) -> None:
    """Is killed with some pages of a transaction in the file, more in memory, and the journal beside it."""
    ledger = Ledger(path)

    def work(connection: Connection) -> None:
        connection.exec_driver_sql("PRAGMA cache_size = 4")
        row = dict.fromkeys(["previous", "hash", "charged", "who"], "x") | {"log_ratio_range": 0.1, "delta": 0.0}
        row |= {"account": "large", "fingerprint": ONE, "num_draws": 1, "epsilon": 0.1, "purpose": "x" * 900}
        for number in range(100, 200):
            connection.execute(insert(schema.charges).values(number=number, **row))
        os.kill(os.getpid(), signal.SIGKILL)

    ledger._database.write(work)


def charge_into_a_log(path: str) -> None:
    """Charges as an older release did, with a write-ahead log, and is killed before the log is carried over."""
    with Ledger(path) as ledger:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN")  # a reader in the way of carrying over
        connection.execute("SELECT count(*) FROM mbde_charges").fetchone()
        for _ in range(5):
            ledger.charge("large", UNIT, 1, fingerprint=ONE)
        os.kill(os.getpid(), signal.SIGKILL)


def fill_disk(path: str, limit: int, report: str) -> None:
    """Charges until no file may grow any more (``limit`` above 0) or the disk is full; and then once more."""
    ledger, num_charges, errors = Ledger(path), 0, []
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    for _ in range(20_000):
        try:
            ledger.charge("large", UNIT, 1, fingerprint=DENSITIES[0], purpose="x" * 1500)
            num_charges += 1
        except LedgerError as error:
            errors.append(str(error))
            if len(errors) == 2:
                break
    Path(report).write_text(json.dumps({"num_charges": num_charges, "errors": errors}))


def use_as_nobody(path: str, report: str) -> None:
    """Reads a ledger, by the library and at the command line, and tries to charge, without the right to write it."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    told: dict[str, Any] = {}
    try:
        with Ledger(path, timeout=1) as ledger:
            told["verified"] = ledger.verify().ok
            told["charges"] = len(ledger.charges("large"))
            ledger.charge("large", UNIT, 1, fingerprint=DENSITIES[0])
    except LedgerError as error:
        told["error"] = str(error)
    for words in (["verify"], ["show"], ["show", "large"]):
        result = CliRunner().invoke(main, ["budget", *words, "--ledger", path])
        told[" ".join(words)] = (result.exit_code, result.output)
    Path(report).write_text(json.dumps(told))


def start(function: Callable[..., None], *arguments: Any) -> BaseProcess:
    process = processes.Process(target=function, args=arguments)
    process.start()
    return process


def run(function: Callable[..., None], *arguments: Any) -> None:
    process = start(function, *arguments)
    process.join(300)
    assert process.exitcode == 0


def filled(url: str) -> None:
    """Entries 1 and 2 open accounts a and b; charges 3 to 10 go to a (odd) and b (even)."""
    with Ledger(url) as ledger:
        ledger.open_account("a", 10.0, 1e-6)
        ledger.open_account("b", 10.0, 1e-6, "zcdp")
        for number in range(3, 11):
            name = "a" if number % 2 else "b"
            ledger.charge(name, UNIT, number, fingerprint=DENSITIES[number], purpose=f"look {number}", who="Ann")
        assert ledger.verify().ok


def as_version(store: Store, version: int) -> None:
    """What an earlier release would have made of a ledger."""
    kept = ("account", "fingerprint", "epsilon", "delta", "log_ratio_range")
    changed = " OR ".join(f"NEW.{name} <> OLD.{name}" for name in kept) + " OR NEW.num_draws < OLD.num_draws"
    then = "BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END"
    guard, on_table = "mbde_tallies_no_update", ""
    if store.path is None:
        then, on_table = "EXECUTE FUNCTION mbde_refuse()", " ON mbde_tallies"

    with store.raw() as execute:
        if version == 1:
            execute("DROP TABLE mbde_closings")
        execute("UPDATE mbde_ledger SET version = ?", version)
    with admin(store.url) if store.path is None else closing(sqlite3.connect(store.path)) as opened:
        execute = opened if store.path is None else opened.execute
        execute(f"DROP TRIGGER {guard}{on_table}")
        for table in ("mbde_charges", "mbde_tallies"):
            execute(f"ALTER TABLE {table} DROP COLUMN total_variation")
        execute(f"CREATE TRIGGER {guard} BEFORE UPDATE ON mbde_tallies FOR EACH ROW WHEN ({changed}) {then}")


def share_a_density(store: Store) -> None:
    """Charges the density of entry 10, of account b, to account a, as older releases let it happen."""
    (head,) = store.rows("mbde_ledger")
    row = store.rows("mbde_charges")[-1]
    row.update(account="a", number=head["number"] + 1, previous=head["hash"])
    row["hash"] = rehash("charge", row)
    sums = ("account", "fingerprint", "epsilon", "delta", "log_ratio_range", "num_draws")
    with store.raw() as execute:
        for table, values in (("mbde_charges", row), ("mbde_tallies", {name: row[name] for name in sums})):
            marks = ", ".join("?" for _ in values)
            execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", *values.values())
        execute("UPDATE mbde_ledger SET number = ?, hash = ?", row["number"], row["hash"])


def shows_part(told: str, fingerprint: str) -> bool:
    return any(fingerprint[place : place + 6] in told.lower() for place in range(len(fingerprint) - 5))
