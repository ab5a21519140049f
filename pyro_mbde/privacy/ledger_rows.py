"""Rows of a ledger, read and written within a transaction of the caller's."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Connection, Select, Table, cast, func, insert, select, text, update

from pyro_mbde._runtime import message
from pyro_mbde.privacy import ledger_schema as schema
from pyro_mbde.privacy.accounts import Account, Charge, Tally
from pyro_mbde.privacy.guarantee import Guarantee
from pyro_mbde.privacy.ledger_chain import entry_hash
from pyro_mbde.privacy.ledger_errors import LedgerError


def read_rows(connection: Connection, query: Select[Any]) -> list[dict[str, Any]]:
    """Reads rows as dicts, all at once: a query that an error leaves half read holds SQLite's lock while that lives."""
    return [row._asdict() for row in connection.execute(query)]


def stream_rows(connection: Connection, query: Select[Any]) -> Generator[dict[str, Any], None, None]:
    """Reads rows as dicts, a thousand at a time; the caller closes it, however it ends."""
    with connection.execute(query.execution_options(yield_per=1000)) as rows:
        for row in rows:
            yield row._asdict()


def _first_row(connection: Connection, query: Select[Any]) -> dict[str, Any] | None:
    row = connection.execute(query).first()
    return None if row is None else row._asdict()


def read_head(connection: Connection, *, lock: bool = False) -> dict[str, Any]:
    """Reads the end of the chain; if it is locked, nobody else can move it until the transaction ends."""
    query = select(schema.heads)
    row = _first_row(connection, query.with_for_update() if lock else query)
    if row is None:
        raise LedgerError("The ledger has lost its head: someone deleted it. Restore the ledger from a copy.")
    return row


def check_last(connection: Connection, head: Mapping[str, Any]) -> None:
    """Refuses to go on where the end of the chain is not what the head tells."""
    if head["number"] == 0:
        return
    for kind, table in (("charge", schema.charges), ("account", schema.accounts)):
        row = _first_row(connection, select(table).where(table.c.number == head["number"]))
        if row is not None and row["hash"] == head["hash"] == entry_hash(kind, row):
            return
    raise LedgerError("The ledger's last row was tampered with. See what verify() tells.")


def check_whole(connection: Connection, head: Mapping[str, Any]) -> None:
    """Refuses to charge where entries or sums are lost, as in a file that was moved away from an interrupted commit.

    It reads all charges: once for a ledger that is opened, before its first charge.
    """
    whole = connection.dialect.name != "sqlite" or connection.scalar(text("PRAGMA quick_check(1)")) == "ok"
    tables = (schema.accounts, schema.charges)
    counted = sum(connection.scalar(select(func.count()).select_from(table)) or 0 for table in tables)
    names = [column for column in schema.tallies.c if column.name != "num_draws"]
    same = [schema.charges.c[column.name] for column in names]
    charged = select(*same, cast(func.sum(schema.charges.c.num_draws), BigInteger)).group_by(*same)
    noted = select(*names, schema.tallies.c.num_draws)
    differ = [connection.execute(query.limit(1)).all() for query in (charged.except_(noted), noted.except_(charged))]
    if not whole or counted != head["number"] or any(differ):
        raise LedgerError(
            "The ledger is damaged or was tampered with: it has lost entries, or its sums are not those of its "
            "charges. See what verify() tells, and restore it from a copy."
        )


def append(
    connection: Connection, head: Mapping[str, Any], kind: str, table: Table, row: dict[str, Any]
) -> dict[str, Any]:
    """Chains a row to the end, and makes it the end; returns it with its number and hashes."""
    row = {**row, "number": head["number"] + 1, "previous": head["hash"]}
    row["hash"] = entry_hash(kind, row)
    connection.execute(insert(table).values(row))
    connection.execute(update(schema.heads).values(number=row["number"], hash=row["hash"]))
    return row


def read_account(connection: Connection, name: str) -> Account:
    """Reads an account, or raises ValueError if there is none of that name."""
    row = _first_row(connection, select(schema.accounts).where(schema.accounts.c.name == name))
    if row is None:
        names = ", ".join(repr(other) for other in connection.scalars(select(schema.accounts.c.name).limit(20)))
        raise ValueError(message("name", f"be that of an account ({names or 'there is none yet'})", name))
    return to_account(row)


def to_account(row: Mapping[str, Any]) -> Account:
    """Returns the account that a row tells of, or raises LedgerError if it was tampered with."""
    if entry_hash("account", row) != row["hash"]:
        raise LedgerError(f"Account {row['name']!r} was tampered with. See what verify() tells.")
    opened = datetime.fromisoformat(row["opened"])
    return Account(row["name"], row["epsilon"], row["delta"], row["rule"], row["certificate_delta"], opened)


def to_charge(row: Mapping[str, Any]) -> Charge:
    """Returns the charge that a row tells of, or raises LedgerError if it was tampered with."""
    if entry_hash("charge", row) != row["hash"]:
        raise LedgerError(f"Charge {row['number']} was tampered with. See what verify() tells.")
    when = datetime.fromisoformat(row["charged"])
    tally = to_tally(row)
    return Charge(
        row["number"], row["account"], when, *tally[::2], tally.guarantee, row["purpose"], row["who"], row["hash"]
    )


def to_tally(row: Mapping[str, Any]) -> Tally:
    """Returns the draws that a charge or a sum tells of."""
    return Tally(row["fingerprint"], Guarantee(row["epsilon"], row["delta"], row["log_ratio_range"]), row["num_draws"])


def read_tallies(connection: Connection, name: str) -> list[Tally]:
    """Reads what was charged to an account, summed up for each density and guarantee."""
    query = select(schema.tallies).where(schema.tallies.c.account == name)
    try:
        return [to_tally(row) for row in read_rows(connection, query)]
    except (TypeError, ValueError) as error:
        raise LedgerError(f"The sums of account {name!r} were tampered with. See what verify() tells.") from error


def density_row(name: str, fingerprint: str, guarantee: Guarantee) -> dict[str, Any]:
    """Returns the columns that a charge shares with the sum it enters."""
    return {
        "account": name,
        "fingerprint": fingerprint,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "log_ratio_range": guarantee.log_ratio_range,
    }


def write_tally(connection: Connection, density: dict[str, Any], num_draws: int, *, is_new: bool) -> None:
    """Writes the sum for a density and guarantee."""
    table = schema.tallies
    if is_new:
        connection.execute(insert(table).values(**density, num_draws=num_draws))
        return
    same = [table.c[name] == value for name, value in density.items()]
    if connection.execute(update(table).where(*same).values(num_draws=num_draws)).rowcount != 1:
        raise LedgerError(f"The sums of account {density['account']!r} were tampered with. See what verify() tells.")
