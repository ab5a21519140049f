"""SQLite or PostgreSQL under a ledger: commits that reach the disk, writers one after the other, clear errors."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError

from pyro_mbde._checks import argument_error
from pyro_mbde.ledger import file as ledger_file
from pyro_mbde.ledger.errors import (
    MOVED,
    NOT_WRITABLE,
    TRY_AGAIN,
    LedgerError,
    TransactionProgress,
    error_code,
    to_ledger_error,
    unusable,
)
from pyro_mbde.ledger.schema import NotALedgerError, newest_version, prepare, read_version

Result = TypeVar("Result")

_MAX_TRIES = 20
_OLDER = "an older release made it. Have its owner open it once with this release: pyro-mbde budget show does."
#: Under what a connection notes which file it was opened on.
_FILE = "file"
#: Engines of parent processes.
_LEFT_ALONE: list[Engine] = []


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
                ledger_file.create_private(os.path.realpath(str(self)))
                ledger_file.check_one_name(str(self))
            version = self._read_version()
            if version != newest_version():
                self._prepare(version)
        except BaseException:
            self.close()
            raise

    @property
    def is_sqlite(self) -> bool:
        """Whether it is an SQLite file."""
        return self._url.get_backend_name() == "sqlite"

    def __str__(self) -> str:
        """Path or URL, without a password, be it before the host or among the options."""
        if self.is_sqlite:
            return self._url.database or ""
        hidden = {name: "***" for name in self._url.query if "password" in name}
        return self._url.update_query_dict(hidden).render_as_string(hide_password=True)

    def close(self) -> None:
        """Closes all connections."""
        if self._process == os.getpid():
            self._engine.dispose()

    def read(self, work: Callable[[Connection], Result]) -> Result:
        """Runs work that only reads, all of it on one state of the database."""
        with self._clear_errors(TransactionProgress()), self._own_engine().connect() as connection:
            if not self.is_sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                return work(connection)

    def write(self, work: Callable[[Connection], Result]) -> Result:
        """Runs work that writes, all or nothing of it; what it returns has reached the disk."""
        for attempt in range(_MAX_TRIES):
            progress = TransactionProgress(writes=True)
            try:
                with self._clear_errors(progress), self._own_engine().connect() as connection:
                    with connection.execution_options(writes=True).begin():
                        result = work(connection)
                        self._check_file(connection)
                        progress.commits = True
                    return result
            except LedgerError as error:
                if attempt == _MAX_TRIES - 1 or error_code(error.__cause__) not in TRY_AGAIN:
                    raise
                time.sleep(random.uniform(0, 0.01 * 2 ** min(attempt, 6)))
        raise AssertionError  # the last try raises or returns

    def _check_file(self, connection: Connection) -> None:
        """Refuses to write to a file that has lost its name, or got a second one."""
        if not self.is_sqlite:
            return
        if connection.info[_FILE] != ledger_file.file_identity(str(self)):
            # What is written there is gone when it is closed.
            raise unusable(str(self), " ".join(MOVED))
        ledger_file.check_one_name(str(self))

    def _read_version(self) -> int:
        """Reads it, and replaces the write-ahead log of an older release."""
        try:
            version = self.read(read_version)
            if self.is_sqlite:
                self._leave_write_ahead()
            return version
        except LedgerError as error:
            if self.is_sqlite and ledger_file.needs_its_owner(str(self)):
                raise unusable(str(self), _OLDER) from error.__cause__
            raise

    def _prepare(self, version: int) -> None:
        """Makes it a ledger, or brings one of an older version to the newest."""
        try:
            self.write(lambda connection: prepare(connection, datetime.now(UTC)))
        except LedgerError as error:
            if version and error_code(error.__cause__).startswith(NOT_WRITABLE):
                raise unusable(str(self), _OLDER) from error.__cause__
            raise

    def _leave_write_ahead(self) -> None:
        """Gives a ledger of an older release a rollback journal permanently; waits for others that have it open."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                connection = self._own_engine().raw_connection()
                try:
                    cursor = connection.cursor()
                    if cursor.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
                        cursor.execute("PRAGMA journal_mode = DELETE")
                    return
                finally:
                    connection.close()
            except (sqlite3.Error, SQLAlchemyError) as error:
                if not (error_code(error).startswith("SQLITE_BUSY") and time.monotonic() < deadline):
                    raise to_ledger_error(str(self), error, TransactionProgress()) from error
                time.sleep(random.uniform(0, 0.05))

    def _own_engine(self) -> Engine:
        """The engine, made again in a forked process: connections of the parent's must not even be closed there."""
        if self._process != os.getpid():
            _LEFT_ALONE.append(self._engine)
            self._engine, self._process = self._make_engine(), os.getpid()
        return self._engine

    def _make_engine(self) -> Engine:
        return self._make_sqlite_engine() if self.is_sqlite else self._make_postgresql_engine()

    def _make_sqlite_engine(self) -> Engine:
        path = os.path.realpath(str(self))  # beside which the journal lies, whatever links lead there
        engine = create_engine(
            self._url.set(database=path), hide_parameters=True, connect_args={"timeout": self._timeout}
        )

        def note_file(connection: Any, record: Any) -> None:
            record.info[_FILE] = ledger_file.file_identity(path)

        event.listen(engine, "connect", note_file)
        event.listen(engine, "connect", ledger_file.set_up)
        event.listen(engine, "begin", ledger_file.begin)
        return engine

    def _make_postgresql_engine(self) -> Engine:
        try:
            engine = create_engine(
                self._url,
                hide_parameters=True,
                pool_pre_ping=True,
                isolation_level="READ COMMITTED",  # in which a row that was waited for is read again
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

    @contextmanager
    def _clear_errors(self, progress: TransactionProgress) -> Iterator[None]:
        try:
            yield
        except LedgerError as error:
            if not progress.writes:
                raise
            raise LedgerError(f"{error} Nothing was charged.") from error.__cause__
        except IntegrityError as error:
            raise to_ledger_error(str(self), error, progress) from None  # PostgreSQL's text shows the row
        except (SQLAlchemyError, NotALedgerError, UnicodeError) as error:
            raise to_ledger_error(str(self), error, progress) from error


def _parse(path_or_url: str | os.PathLike[str]) -> URL:
    """The URL of a database, of the kinds that are known; no error shows the text of a URL."""
    if not isinstance(path_or_url, str | os.PathLike):
        raise TypeError(argument_error("path_or_url", "be a path or a URL", path_or_url))
    text = os.fspath(path_or_url)
    if not isinstance(text, str) or not text or "\0" in text:
        constraint = "be the path of a file: text, not empty and without NUL characters"
        raise ValueError(argument_error("path_or_url", constraint, type(text).__name__))
    if "://" not in text or isinstance(path_or_url, Path):
        if text == ":memory:":
            raise ValueError(argument_error("path_or_url", "outlive the process", text, "Name a file."))
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
        raise ValueError(argument_error("path_or_url", "be of SQLite or PostgreSQL", kind, remedy))
    if not url.database or url.database == ":memory:" or url.query:
        raise ValueError(argument_error("path_or_url", "name a file and nothing else", kind, "Use sqlite:///PATH."))
    return URL.create("sqlite", database=os.path.abspath(url.database))
