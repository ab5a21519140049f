"""SQLite or PostgreSQL under a ledger: commits that reach the disk, writers one after the other, clear errors."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from pyro_mbde._runtime import message
from pyro_mbde.privacy.ledger_schema import NotALedgerError, newest_version, prepare, read_version

Result = TypeVar("Result")

#: PostgreSQL's codes for a transaction that may be tried again: serialization failure, deadlock.
_AGAIN, _MOST_TRIES = ("40001", "40P01"), 20
_NOTHING_LOST = "Nothing was charged, and what was charged before is safe."
_NOT_KNOWN = "It is not known whether what was written last was recorded: see charges()."

#: What goes wrong, by the beginnings of SQLite's names and PostgreSQL's codes of errors; and what to do then.
_TROUBLES: list[tuple[tuple[str, ...], str, str]] = [
    (("SQLITE_FULL", "53100"), "its disk is full.", "Make room and try again."),
    (("SQLITE_READONLY", "25006"), "it cannot be written.", "Make the file and its folder writable."),
    (
        ("SQLITE_BUSY", "SQLITE_LOCKED", "55P03", "57014"),
        "it was locked for too long.",
        "Try again, or find what holds it.",
    ),
    (("SQLITE_NOTADB",), "it is no database.", "Check the path."),
    (
        ("SQLITE_CORRUPT", "SQLITE_FORMAT", "XX00"),
        "it is damaged.",
        "Restore it from a copy, and charge what was drawn since again.",
    ),
    (
        ("SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH"),
        "it cannot be opened.",
        "Check that its folder exists and that folder and file are readable and writable.",
    ),
    (
        ("SQLITE_IOERR",),
        "its disk fails or lets no more be written.",
        "Check the disk, its room and the file size limit.",
    ),
    (("42501",), "its user may not do this.", "Grant it SELECT, INSERT and UPDATE on the tables of the ledger."),
    (("28", "3D000"), "the server refuses the user or has no such database.", "Check the URL."),
    (("53300", "57P03"), "the server takes no more connections now.", "Try again later."),
    (_AGAIN, "others charged at the same time, again and again.", "Try again."),
]


class LedgerError(RuntimeError):
    """A ledger that cannot be read or written: damaged, locked, full, too new, or no ledger at all.

    A charge that ends in it was not made, unless the message says that this is not known.
    """


@dataclass
class Stage:
    """How far a transaction came, which tells what an error in it leaves behind."""

    writes: bool = False
    commits: bool = False


class Database:
    """The database of a ledger.

    Args:
        path_or_url: path of an SQLite file, or URL of either database.
        timeout: seconds to wait for a lock.
    """

    def __init__(self, path_or_url: str | os.PathLike[str], timeout: float) -> None:
        self._url = _parse(path_or_url)
        self._timeout = timeout
        self._engine = self._make_engine()
        self._process = os.getpid()
        try:
            if self.is_sqlite:
                _create_private(str(self))
            if self.read(read_version) != newest_version():
                self.write(lambda connection: prepare(connection, datetime.now(UTC)))
            if self.is_sqlite:
                self._write_ahead()
        except BaseException:
            self.close()
            raise

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file of SQLite's."""
        return self._url.get_backend_name() == "sqlite"

    def __str__(self) -> str:
        """Path or URL, without a password."""
        return self._url.database or "" if self.is_sqlite else self._url.render_as_string(hide_password=True)

    def close(self) -> None:
        """Closes all connections."""
        if self._process == os.getpid():
            self._engine.dispose()

    def read(self, work: Callable[[Connection], Result]) -> Result:
        """Runs work that only reads, all of it on one state of the database.

        Raises:
            LedgerError: the database cannot be read.
        """
        with self._clear_errors(Stage()), self._own_engine().connect() as connection:
            if not self.is_sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                return work(connection)

    def write(self, work: Callable[[Connection], Result]) -> Result:
        """Runs work that writes, all or nothing of it; what it returns has reached the disk.

        Raises:
            LedgerError: the database cannot be written.
        """
        for attempt in range(_MOST_TRIES):
            stage = Stage(writes=True)
            try:
                with self._clear_errors(stage), self._own_engine().connect() as connection:
                    with connection.execution_options(writes=True).begin():
                        result = work(connection)
                        self._check_file(connection)
                        stage.commits = True
                    return result
            except LedgerError as error:
                if attempt == _MOST_TRIES - 1 or _code(error.__cause__) not in _AGAIN:
                    raise
                time.sleep(random.uniform(0, 0.01 * 2 ** min(attempt, 6)))
        raise AssertionError  # the last try raises or returns

    def _check_file(self, connection: Connection) -> None:
        """Refuses to write to a file that has lost its name: what is written there is gone when it is closed."""
        if self.is_sqlite and connection.info[_FILE] != _identity(str(self)):
            remedy = "Put it back, or open the ledger anew."
            raise LedgerError(f"The ledger {self} could not be used: its file was taken away or replaced. {remedy}")

    def _own_engine(self) -> Engine:
        """The engine, made anew in a forked process: connections of the parent's must not even be closed there."""
        if self._process != os.getpid():
            _LEFT_ALONE.append(self._engine)
            self._engine, self._process = self._make_engine(), os.getpid()
        return self._engine

    def _make_engine(self) -> Engine:
        if self.is_sqlite:
            engine = create_engine(self._url, hide_parameters=True, connect_args={"timeout": self._timeout})

            def note_file(connection: Any, record: Any) -> None:
                record.info[_FILE] = _identity(str(self))

            event.listen(engine, "connect", note_file)
            event.listen(engine, "connect", _set_up_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            return engine
        try:
            engine = create_engine(
                self._url,
                hide_parameters=True,
                pool_pre_ping=True,
                isolation_level="READ COMMITTED",  # in which a row that was waited for is read anew
                connect_args={"connect_timeout": max(2, round(self._timeout)), **self._url.query},
            )
        except ImportError as error:
            raise ImportError(
                "A ledger on PostgreSQL needs psycopg: install it with `pip install 'pyro_mbde[postgresql]'`."
            ) from error

        def set_up(connection: Any, record: object) -> None:
            with connection.cursor() as cursor:
                cursor.execute("SELECT set_config('lock_timeout', %s, false)", (f"{round(1000 * self._timeout)}ms",))
                # A commit that the server has answered must have reached its disk.
                cursor.execute(
                    "SELECT set_config('synchronous_commit', 'on', false) "
                    "WHERE current_setting('synchronous_commit') = 'off'"
                )
            connection.commit()

        event.listen(engine, "connect", set_up)
        return engine

    def _write_ahead(self) -> None:
        """Turns on SQLite's write-ahead log, for good; while others use the file they may be in the way."""
        deadline = time.monotonic() + self._timeout
        while True:
            connection = self._own_engine().raw_connection()
            try:
                cursor = connection.cursor()
                if cursor.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
                    return
                cursor.execute("PRAGMA journal_mode = WAL")
            except (sqlite3.Error, SQLAlchemyError) as error:
                if not (_code(error).startswith("SQLITE_BUSY") and time.monotonic() < deadline):
                    raise _to_ledger_error(str(self), error, Stage()) from error
                time.sleep(random.uniform(0, 0.05))
            finally:
                connection.close()

    @contextmanager
    def _clear_errors(self, stage: Stage) -> Iterator[None]:
        try:
            yield
        except LedgerError as error:
            if not stage.writes:
                raise
            raise LedgerError(f"{error} Nothing was charged.") from error.__cause__
        except IntegrityError as error:
            raise _to_ledger_error(str(self), error, stage) from None  # PostgreSQL's text shows the row
        except (SQLAlchemyError, NotALedgerError, UnicodeError) as error:
            raise _to_ledger_error(str(self), error, stage) from error


#: Under what a connection notes which file it was opened on.
_FILE = "file"
#: Engines of parent processes.
_LEFT_ALONE: list[Engine] = []


def _parse(path_or_url: str | os.PathLike[str]) -> URL:
    """The URL of a database, of the kinds that are known; the text of a URL never gets into an error."""
    if not isinstance(path_or_url, str | os.PathLike):
        raise TypeError(message("path_or_url", "be a path or a URL", path_or_url))
    text = os.fspath(path_or_url)
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(message("path_or_url", "be the path of a file", path_or_url))
    if "://" not in text or isinstance(path_or_url, Path):
        if text == ":memory:":
            raise ValueError(message("path_or_url", "outlive the process", text, "Name a file."))
        return URL.create("sqlite", database=os.path.abspath(text))
    kind = text.split(":", 1)[0]
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise ValueError(f"path_or_url must be a valid URL, got one that begins with {kind!r}.") from None
    if kind in ("postgresql", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    if kind != "sqlite":
        remedy = "Use the path of a file, sqlite:///PATH or postgresql://USER@HOST/DATABASE."
        raise ValueError(message("path_or_url", "be of SQLite or PostgreSQL", kind, remedy))
    if not url.database or url.database == ":memory:" or url.query:
        raise ValueError(message("path_or_url", "name a file and nothing else", text, "Use sqlite:///PATH."))
    return URL.create("sqlite", database=os.path.abspath(url.database))


def _create_private(path: str) -> None:
    """Creates a file for its owner alone, as its write-ahead log then is too; one that is there is left alone."""
    try:
        os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:
        return  # it is there, or SQLite will tell why it cannot be made


def _identity(path: str) -> tuple[int, int] | None:
    """What tells the file of a path from any other, or None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _set_up_sqlite(connection: Any, record: object) -> None:
    connection.isolation_level = None  # transactions begin where they are told to, below
    # A damaged text must be readable, to be named.
    connection.text_factory = lambda content: content.decode("utf-8", "surrogateescape")
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA synchronous = FULL")
    # Each commit is carried over into the file itself as soon as no reader is in the way: who copies it has it all.
    cursor.execute("PRAGMA wal_autocheckpoint = 1")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # At once, as a lock that is only asked for at the first write can fail without waiting.
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _code(error: BaseException | None) -> str:
    """SQLite's name or PostgreSQL's code of an error; empty if it has none."""
    origin = getattr(error, "orig", None) or error
    return str(getattr(origin, "sqlite_errorname", None) or getattr(origin, "sqlstate", None) or "")


def _to_ledger_error(place: str, error: BaseException, stage: Stage) -> LedgerError:
    begin = f"The ledger {place} could not be used:"
    if isinstance(error, NotALedgerError):
        return LedgerError(f"{begin} {error}. It was left as it is.")
    code = _code(error)
    detail = " ".join(str(getattr(error, "orig", None) or error).split())
    known = [(what, remedy) for beginnings, what, remedy in _TROUBLES if code.startswith(beginnings)]
    what, remedy = detail, "See what verify() tells."
    if known:
        what, remedy = known[0]
    elif isinstance(error, PoolTimeoutError):
        what, remedy = "too many threads use it at once.", "Try again."
    elif isinstance(error, IntegrityError) or code == "P0001":
        what = "its tables contradict one another."
    elif isinstance(error, UnicodeError):
        what, remedy = "its encoding lacks a character.", "Use a database in UTF-8."
    elif _is_lost(error):
        what, remedy = f"no connection, or it was lost: {detail}", "Check that the server runs."
    return LedgerError(f"{begin} {what} {remedy} {_left_behind(error, stage)}".rstrip())


def _left_behind(error: BaseException, stage: Stage) -> str:
    """What became of what was to be written."""
    if not stage.writes:
        return ""
    # What was written before its commit is rolled back; and so is it if the commit was answered by a refusal. A disk
    # that fails to sync may have the commit's last page.
    unsynced = _code(error).startswith("SQLITE_IOERR") and _code(error) != "SQLITE_IOERR_WRITE"
    return _NOT_KNOWN if stage.commits and (_is_lost(error) or unsynced) else _NOTHING_LOST


def _is_lost(error: BaseException) -> bool:
    """Whether the connection was lost, so that an answer to a commit may be too."""
    code = _code(error)
    # 08: connection exception. 40003: statement completion unknown. 57P: the server shuts down.
    return isinstance(error, DBAPIError) and (
        error.connection_invalidated or not code or code.startswith(("08", "40003", "57P"))
    )
