"""Rows of a ledger, read and written within a transaction of the caller's."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Connection, Select, cast, func, insert, select, text, update

from pyro_mbde._checks import argument_error
from pyro_mbde.ledger import schema
from pyro_mbde.ledger.accounts import Account, Charge, Tally
from pyro_mbde.ledger.chain import entry_hash
from pyro_mbde.ledger.errors import LedgerError
from pyro_mbde.names import find_look_alike, look_alike_hint, near_miss_hint, normal_name
from pyro_mbde.privacy.guarantee import Guarantee


def read_rows(connection: Connection, query: Select[Any]) -> list[dict[str, Any]]:
    """Reads rows as dicts, all at once: a query that an error leaves half read holds SQLite's lock while that lives."""
    return [dict(row) for row in connection.execute(query).mappings()]


def stream_rows(connection: Connection, query: Select[Any]) -> Generator[dict[str, Any], None, None]:
    """Reads rows as dicts, a thousand at a time; the caller closes it, however it ends."""
    with connection.execute(query.execution_options(yield_per=1000)) as rows:
        yield from map(dict, rows.mappings())


def read_head(connection: Connection, *, lock: bool = False) -> dict[str, Any]:
    """Reads the end of the chain; if locked, it cannot be moved by others until the transaction ends."""
    query = select(schema.heads)
    found = read_rows(connection, query.with_for_update() if lock else query)
    if not found:
        raise LedgerError("The ledger has lost its head: someone deleted it. Restore the ledger from a copy.")
    return found[0]


def check_last(connection: Connection, head: Mapping[str, Any]) -> None:
    """Raises if the end of the chain does not agree with the head."""
    if head["number"] == 0:
        return
    for kind, table in schema.ENTRIES.items():
        for row in read_rows(connection, select(table).where(table.c.number == head["number"])):
            if row["hash"] == head["hash"] == entry_hash(kind, row):
                return
    raise LedgerError("The ledger's last row was tampered with. Run verify() for details.")


def check_whole(connection: Connection, head: Mapping[str, Any]) -> None:
    """Raises if entries or sums are lost, as in a file that was moved away from an interrupted commit.

    Reads all charges: once for each opened ledger, before its first charge.
    """
    whole = connection.dialect.name != "sqlite" or connection.scalar(text("PRAGMA quick_check(1)")) == "ok"
    counts = (connection.scalar(select(func.count()).select_from(table)) for table in schema.ENTRIES.values())
    counted = sum(count or 0 for count in counts)
    same = [schema.charges.c[name] for name in schema.SHARED]
    charged = select(*same, cast(func.sum(schema.charges.c.num_draws), BigInteger)).group_by(*same)
    noted = select(*(schema.tallies.c[name] for name in (*schema.SHARED, "num_draws")))
    differ = [connection.execute(query.limit(1)).all() for query in (charged.except_(noted), noted.except_(charged))]
    if not whole or counted != head["number"] or any(differ):
        raise LedgerError(
            "The ledger is damaged or was tampered with: it has lost entries, or its sums are not those of its "
            "charges. Run verify() for details, and restore it from a copy."
        )


def append(connection: Connection, head: Mapping[str, Any], kind: str, row: dict[str, Any]) -> dict[str, Any]:
    """Chains a row to the end, and makes it the end; returns it with its number and hashes."""
    row = {**row, "number": head["number"] + 1, "previous": head["hash"]}
    row["hash"] = entry_hash(kind, row)
    connection.execute(insert(schema.ENTRIES[kind]).values(row))
    connection.execute(update(schema.heads).values(number=row["number"], hash=row["hash"]))
    return row


def check_new(connection: Connection, name: str) -> None:
    """Raises ValueError if an account has that name or one that looks like it."""
    names = list(connection.scalars(select(schema.accounts.c.name).order_by(schema.accounts.c.number)))
    if name in names:
        remedy = "Accounts are permanent, closed ones too: a name must never stand for a second limit."
        raise ValueError(argument_error("name", "be new to the ledger", name, f"{remedy} Choose another name."))
    other = find_look_alike(name, names)
    if other is not None:
        constraint = f"not look like that of another account, {ascii(other)}"
        raise ValueError(
            f"name must {constraint}, got name={ascii(name)}. Charge that account, or choose another name."
        )


def read_account(connection: Connection, name: str) -> Account:
    """Reads an account by its name, in whatever form of Unicode, or raises ValueError if there is none of that name."""
    rows = read_rows(connection, _accounts.where(schema.accounts.c.name.in_([name, normal_name(name)])))
    if not rows:
        names = [account.name for account in read_accounts(connection) if account.closed is None]
        listed = ", ".join(map(repr, names[:20])) or "none is open"
        hint = look_alike_hint([name], names).strip() or near_miss_hint(name, names)
        raise ValueError(argument_error("name", f"be that of an account ({listed})", name, hint))
    # An older release may have opened both.
    return to_account(next((row for row in rows if row["name"] == name), rows[0]))


def read_accounts(connection: Connection) -> list[Account]:
    """Reads all accounts, in the order in which they were opened."""
    return [to_account(row) for row in read_rows(connection, _accounts.order_by(schema.accounts.c.number))]


def to_account(row: Mapping[str, Any]) -> Account:
    """Returns the account of a row, or raises LedgerError if it was tampered with."""
    if entry_hash("account", row) != row["hash"]:
        raise LedgerError(f"Account {row['name']!r} was tampered with. Run verify() for details.")
    opened, closed = datetime.fromisoformat(row["opened"]), row.get("closed")
    closed = None if closed is None else datetime.fromisoformat(closed)
    return Account(row["name"], row["epsilon"], row["delta"], row["rule"], row["certificate_delta"], opened, closed)


def account_row(account: Account) -> dict[str, Any]:
    """Returns the columns of an account's opening."""
    row = asdict(account) | {"opened": account.opened.isoformat()}
    del row["closed"]  # which another table holds
    return row


#: Accounts, with when they were closed.
_accounts = select(schema.accounts, schema.closings.c.closed).outerjoin(
    schema.closings, schema.closings.c.account == schema.accounts.c.name
)


def to_charge(row: Mapping[str, Any]) -> Charge:
    """Returns the charge of a row, or raises LedgerError if it was tampered with."""
    if entry_hash("charge", row) != row["hash"]:
        raise LedgerError(f"Charge {row['number']} was tampered with. Run verify() for details.")
    fingerprint, guarantee, num_draws = to_tally(row)
    what = (fingerprint, num_draws, guarantee, row["purpose"], row["who"])
    return Charge(row["number"], row["account"], datetime.fromisoformat(row["charged"]), *what, row["hash"])


def to_tally(row: Mapping[str, Any]) -> Tally:
    """Returns the draws of a charge or a sum."""
    guarantee = Guarantee(row["epsilon"], row["delta"], row["log_ratio_range"], row["total_variation"])
    return Tally(row["fingerprint"], guarantee, row["num_draws"])


def read_tallies(connection: Connection, name: str) -> list[Tally]:
    """Reads what was charged to an account, summed up for each density and guarantee."""
    query = select(schema.tallies).where(schema.tallies.c.account == name)
    try:
        return [to_tally(row) for row in read_rows(connection, query)]
    except (TypeError, ValueError) as error:
        raise LedgerError(f"The sums of account {name!r} were tampered with. Run verify() for details.") from error


def read_charges(connection: Connection, name: str) -> list[Charge]:
    """Reads all charges to an account, in their order."""
    table = schema.charges
    query = select(table).where(table.c.account == name).order_by(table.c.number)
    return [to_charge(row) for row in read_rows(connection, query)]


def read_shared_densities(connection: Connection) -> list[tuple[str, ...]]:
    """Reads which accounts are charged for draws of one density: sets of their names."""
    table = schema.tallies
    names: dict[str, set[str]] = {}
    for fingerprint, account in connection.execute(select(table.c.fingerprint, table.c.account)).all():
        names.setdefault(fingerprint, set()).add(account)
    return sorted({tuple(sorted(shared)) for shared in names.values() if len(shared) > 1})


def account_charged_before(connection: Connection, name: str, fingerprint: str) -> str | None:
    """Reads which other account a density was charged to, if any."""
    table = schema.tallies
    query = select(table.c.account).where(table.c.fingerprint == fingerprint, table.c.account != name)
    return connection.scalar(query.order_by(table.c.account).limit(1))


def density_row(name: str, fingerprint: str, guarantee: Guarantee) -> dict[str, Any]:
    """Returns the columns that a charge shares with the sum it enters.

    A total variation that says no more than the range is left empty, as older releases left it.
    """
    row = {"account": name, "fingerprint": fingerprint, **asdict(guarantee)}
    return row if guarantee.is_placed else {**row, "total_variation": None}


def write_tally(connection: Connection, density: dict[str, Any], num_draws: int, *, is_new: bool) -> None:
    """Writes the sum for a density and guarantee."""
    table = schema.tallies
    if is_new:
        connection.execute(insert(table).values(**density, num_draws=num_draws))
        return
    same = [table.c[name] == density[name] for name in schema.DENSITY]
    if connection.execute(update(table).where(*same).values(num_draws=num_draws)).rowcount != 1:
        raise LedgerError(f"The sums of account {density['account']!r} were tampered with. Run verify() for details.")
