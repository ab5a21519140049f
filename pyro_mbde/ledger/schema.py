"""The tables of a ledger, what the databases forbid to do to them, and how a database becomes a ledger."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Double,
    ForeignKey,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    insert,
    inspect,
    text,
    update,
)

from pyro_mbde.ledger.chain import entry_hash

metadata = MetaData()

#: What a charge shares with the sum that it enters: the key of the sum, and the one total variation of that key.
DENSITY = ("account", "fingerprint", "epsilon", "delta", "log_ratio_range")
SHARED = (*DENSITY, "total_variation")


def _column(name: str, kind: Any = Text, *constraints: Any, **options: Any) -> Column[Any]:
    return Column(name, kind, *constraints, nullable=False, **options)


def _total_variation() -> Column[Any]:
    """Empty where it is the largest that the range allows, and in rows of older releases; last, as if added later."""
    return Column("total_variation", Double)


def _entry_table(name: str, *columns: Any, later: tuple[Column[Any], ...] = ()) -> Table:
    """A table that the chain runs through."""
    # In SQLite the rowid itself (64 bits), so that a row cannot be replaced through a separate rowid.
    number = BigInteger().with_variant(Integer(), "sqlite")
    key = Column("number", number, primary_key=True, autoincrement=False)
    return Table(name, metadata, key, *columns, _column("previous"), _column("hash"), *later)


#: One row: what the ledger is, and where its chain ends. Whoever writes holds a lock on it.
heads = Table(
    "mbde_ledger",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    _column("version", Integer),
    _column("identity"),
    _column("created"),
    _column("number", BigInteger),
    _column("hash"),
    CheckConstraint("id = 1"),
)

accounts = _entry_table(
    "mbde_accounts",
    _column("name", unique=True),
    _column("epsilon", Double),
    _column("delta", Double),
    _column("rule"),
    _column("certificate_delta", Double),
    _column("opened"),
)

charges = _entry_table(
    "mbde_charges",
    _column("account", Text, ForeignKey(accounts.c.name), index=True),
    _column("charged"),
    _column("fingerprint"),
    _column("num_draws", BigInteger),
    _column("epsilon", Double),
    _column("delta", Double),
    _column("log_ratio_range", Double),
    _column("purpose"),
    _column("who"),
    CheckConstraint("num_draws > 0"),
    later=(_total_variation(),),
)

#: Accounts that were never charged and never will be.
closings = _entry_table(
    "mbde_closings",
    _column("account", Text, ForeignKey(accounts.c.name), unique=True),
    _column("closed"),
    _column("who"),
)

#: The tables that the chain runs through, by the kinds of their entries.
ENTRIES = {"account": accounts, "charge": charges, "closing": closings}

#: Draws added up, so that a charge need not read all charges before it.
tallies = Table(
    "mbde_tallies",
    metadata,
    _column("account", Text, ForeignKey(accounts.c.name)),
    _column("fingerprint"),
    _column("epsilon", Double),
    _column("delta", Double),
    _column("log_ratio_range", Double),
    _column("num_draws", BigInteger),
    _total_variation(),
    PrimaryKeyConstraint(*DENSITY),
    sqlite_with_rowid=False,
)

#: What is never done to a table. Entries are only ever added; the head and the tallies only ever grow.
_FORBIDDEN: dict[str, dict[str, str]] = {
    "mbde_accounts": {"UPDATE": "", "DELETE": ""},
    "mbde_charges": {"UPDATE": "", "DELETE": ""},
    "mbde_closings": {"UPDATE": "", "DELETE": ""},
    "mbde_ledger": {
        "UPDATE": "NEW.id <> OLD.id OR NEW.version < OLD.version OR NEW.identity <> OLD.identity "
        "OR NEW.created <> OLD.created OR NEW.number < OLD.number OR NEW.number > OLD.number + 1 "
        "OR (NEW.number = OLD.number AND NEW.hash <> OLD.hash)",
        "DELETE": "",
    },
    "mbde_tallies": {
        "UPDATE": " OR ".join(f"NEW.{name} <> OLD.{name}" for name in SHARED)
        + " OR (NEW.total_variation IS NULL) <> (OLD.total_variation IS NULL) OR NEW.num_draws < OLD.num_draws",
        "DELETE": "",
    },
}
#: Rows that SQLite's INSERT OR REPLACE would replace without calling the trigger on deletions.
#: PostgreSQL has no such statement: keys refuse an INSERT, and ON CONFLICT DO UPDATE is an update.
_REPLACED: dict[str, str] = {
    "mbde_accounts": "number = NEW.number OR name = NEW.name",
    "mbde_charges": "number = NEW.number",
    "mbde_closings": "number = NEW.number OR account = NEW.account",
    "mbde_ledger": "id = NEW.id",
    "mbde_tallies": " AND ".join(f"{name} = NEW.{name}" for name in DENSITY),
}
_REFUSAL = "rows of a ledger are only ever added"
_POSTGRESQL_BODY = f" BEGIN RAISE EXCEPTION '{_REFUSAL}'; END "


def _add_closings(connection: Connection) -> None:
    closings.create(connection)
    _forbid(connection, [closings.name])


def _add_total_variation(connection: Connection) -> None:
    """Adds empty columns, which are not hashed, and guards them."""
    for table in (charges.name, tallies.name):
        connection.execute(text(f"ALTER TABLE {table} ADD COLUMN total_variation {_double(connection)}"))
    on_table = f" ON {tallies.name}" if connection.dialect.name == "postgresql" else ""
    guard = f"{tallies.name}_no_update"
    connection.exec_driver_sql(f"DROP TRIGGER {guard}{on_table}")
    connection.exec_driver_sql(triggers(connection.dialect.name, [tallies.name])[guard])


def _double(connection: Connection) -> str:
    return str(Double().compile(dialect=connection.dialect))


#: The n-th turns a ledger of version n into one of version n + 1. None may touch what is hashed.
MIGRATIONS: list[Callable[[Connection], None]] = [_add_closings, _add_total_variation]


class NotALedgerError(Exception):
    """A database that holds something else, or a ledger that a newer release has written."""


def newest_version() -> int:
    """Returns the version of the ledgers that are made here."""
    return 1 + len(MIGRATIONS)


def read_version(connection: Connection) -> int:
    """Returns the version of the ledger in a database, 0 if it holds nothing; raises where it holds something else."""
    inspector = inspect(connection)
    if not inspector.has_table(heads.name):
        names = set(inspector.get_table_names())
        if names & set(metadata.tables):
            raise NotALedgerError(f"its table {heads.name} is missing")
        # A server's database may hold other tables beside; a file that does is another program's.
        if names and connection.dialect.name == "sqlite":
            raise NotALedgerError("it is a database of something else")
        return 0
    # Whatever columns it has: it may be of another version, or another program's.
    row = connection.execute(text(f"SELECT * FROM {heads.name}")).mappings().first()
    version = row.get("version") if row is not None else None
    if not isinstance(version, int) or version < 1:
        raise NotALedgerError(f"its table {heads.name} has no version: it is another program's, or damaged")
    if version > newest_version():
        raise NotALedgerError(
            f"a newer release of pyro_mbde wrote it, in version {version}, and this one reads up to "
            f"{newest_version()}; update pyro_mbde"
        )
    return version


def prepare(connection: Connection, now: datetime) -> None:
    """Makes a database a ledger of the newest version: makes it from nothing, or migrates it.

    To be called within a transaction that writes.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(7235140421)"))  # one at a time; any fixed number
    version = read_version(connection)
    if version == 0:
        metadata.create_all(connection)
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(
                f"CREATE FUNCTION mbde_refuse() RETURNS trigger LANGUAGE plpgsql AS $${_POSTGRESQL_BODY}$$"
            )
        _forbid(connection, _FORBIDDEN)
        first = {"identity": uuid.uuid4().hex, "created": now.isoformat()}
        row = {"id": 1, "version": newest_version(), **first, "number": 0, "hash": genesis_hash(first)}
        connection.execute(insert(heads).values(row))
        return
    for migration in MIGRATIONS[version - 1 :]:
        migration(connection)
    if version < newest_version():
        connection.execute(update(heads).values(version=newest_version()))


def genesis_hash(row: dict[str, str]) -> str:
    """Returns what the first entry of a ledger is chained to, from its identity and when it was made."""
    return entry_hash("ledger", {"number": 0, "identity": row["identity"], "created": row["created"]})


def triggers(dialect: str, tables: Iterable[str] = tuple(_FORBIDDEN)) -> dict[str, str]:
    """Returns the statements that make the triggers which forbid changes, by their names."""
    postgresql = dialect == "postgresql"
    then = "EXECUTE FUNCTION mbde_refuse()" if postgresql else f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
    statements = {}
    for table in tables:
        if postgresql:
            actions = {**_FORBIDDEN[table], "TRUNCATE": ""}
        else:
            actions = {**_FORBIDDEN[table], "INSERT": f"EXISTS (SELECT 1 FROM {table} WHERE {_REPLACED[table]})"}
        for action, condition in actions.items():
            name = f"{table}_no_{'replace' if action == 'INSERT' else action.lower()}"
            each = "STATEMENT" if action == "TRUNCATE" else "ROW"
            when = f" WHEN ({condition})" if condition else ""
            statements[name] = f"CREATE TRIGGER {name} BEFORE {action} ON {table} FOR EACH {each}{when} {then}"
    return statements


def trigger_problems(connection: Connection) -> Iterator[str]:
    """Tells which triggers are not there, are switched off, or forbid something else."""
    postgresql = connection.dialect.name == "postgresql"
    if postgresql:
        query = (
            "SELECT tgname, pg_get_triggerdef(pg_trigger.oid, true), prosrc FROM pg_trigger "
            "JOIN pg_class ON pg_class.oid = tgrelid JOIN pg_proc ON pg_proc.oid = tgfoid "
            "WHERE tgenabled IN ('O', 'A') AND pg_table_is_visible(pg_class.oid)"
        )
    else:
        query = "SELECT name, sql, '' FROM sqlite_master WHERE type = 'trigger'"
    present = {name: (statement, body) for name, statement, body in connection.execute(text(query))}
    for name, statement in triggers(connection.dialect.name).items():
        if name not in present:
            yield f"the trigger {name}, which prevents changes to rows, is missing"
            continue
        found, body = present[name]
        same = (
            _normalised(found) == _normalised(statement) and body == _POSTGRESQL_BODY
            if postgresql
            else found == statement
        )
        if not same:
            yield f"the trigger {name}, which prevents changes to rows, was altered"


def _normalised(statement: str) -> str:
    """A statement without blanks, parentheses and letter case: PostgreSQL adds its own."""
    return re.sub(r"[\s()]+", "", statement).lower()


def _forbid(connection: Connection, tables: Iterable[str]) -> None:
    for statement in triggers(connection.dialect.name, tables).values():
        connection.exec_driver_sql(statement)
