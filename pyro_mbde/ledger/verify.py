"""The verification of a whole ledger: what was changed since it was written."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

from sqlalchemy import Connection, select, text
from sqlalchemy.exc import SQLAlchemyError

from pyro_mbde.ledger import schema
from pyro_mbde.ledger.accounts import Account, Tally, is_affordable
from pyro_mbde.ledger.chain import Entry, Verification, chain_problems
from pyro_mbde.ledger.errors import LedgerError
from pyro_mbde.ledger.rows import read_head, read_rows, read_tallies, stream_rows, to_account, to_tally
from pyro_mbde.privacy.guarantee import Guarantee

#: Draws by account, and in it by density and guarantee.
Sums = defaultdict[str, Counter[tuple[str, Guarantee]]]
#: The number of the first charge to an account for a density and guarantee, which names it without its fingerprint.
Firsts = dict[tuple[str, str, Guarantee], int]


def verify(connection: Connection, expected_head: str | None) -> Verification:
    """Goes through a ledger, see :meth:`~pyro_mbde.Ledger.verify`; within a transaction of the caller's."""
    problems: list[str] = []
    triggers: list[str] = []  # reported after the entries, which are what somebody changed
    sums: Sums = defaultdict(Counter)
    firsts: Firsts = {}
    head = read_head(connection)
    genesis = schema.genesis_hash(head)
    seen, num_charges = expected_head in (None, genesis), 0

    def look(entries: Iterator[Entry]) -> Iterator[Entry]:
        """Collects draws from entries on their way to the check of the chain."""
        nonlocal seen, num_charges
        for entry in entries:
            row = entry.row
            seen = seen or row["hash"] == expected_head
            if entry.kind == "charge":
                num_charges += 1
                try:
                    tally = to_tally(row)
                    sums[row["account"]][tally[:2]] += tally.num_draws
                    firsts.setdefault((row["account"], *tally[:2]), row["number"])
                except (TypeError, ValueError):
                    problems.append(f"{entry} is not a possible charge")
            yield entry

    try:
        if connection.dialect.name == "sqlite":
            found = connection.scalars(text("PRAGMA integrity_check(20)")).all()
            problems.extend(f"the file is damaged: {line}" for line in found if line != "ok")
        triggers.extend(schema.trigger_problems(connection))
        with closing(stream_rows(connection, select(schema.charges).order_by(schema.charges.c.number))) as charges:
            entries = _entries(connection, charges)
            problems.extend(chain_problems(look(entries), genesis, head["number"], head["hash"]))
        if not seen:
            problems.append("the expected head is in no entry: the ledger was cut off or rewritten, or is another one")
        problems.extend(_account_problems(connection, sums, firsts))
        problems.extend(_shared_densities(firsts))
    except SQLAlchemyError as error:
        if not problems and not triggers:
            raise
        problems.append(f"the rest cannot be read: {getattr(error, 'orig', None) or error}")
    problems.extend(triggers)
    return Verification(not problems, num_charges, str(head["hash"]), problems)


def _entries(connection: Connection, charges: Iterator[dict[str, Any]]) -> Iterator[Entry]:
    """All entries by their numbers: the charges, with the few openings and closings of accounts between."""
    others = {kind: table for kind, table in schema.ENTRIES.items() if kind != "charge"}
    few = [Entry(kind, row) for kind, table in others.items() for row in read_rows(connection, select(table))]
    return heapq.merge(sorted(few, key=_number), (Entry("charge", row) for row in charges), key=_number)


def _number(entry: Entry) -> float:
    number = entry.row["number"]
    return number if isinstance(number, int) else float("inf")


def _account_problems(connection: Connection, sums: Sums, firsts: Firsts) -> Iterator[str]:
    """Compares what was charged with the limits, and with the sums that are kept."""
    rows = read_rows(connection, select(schema.accounts).order_by(schema.accounts.c.number))
    names = [row["name"] for row in rows]
    yield from (f"charges name the account {name!r}, which is missing" for name in sums if name not in names)
    for row in read_rows(connection, select(schema.closings)):
        if row["account"] in sums:
            yield f"charges name the account {row['account']!r}, which {Entry('closing', row)} says has none"
    for row in rows:
        charged, noted = sums[row["name"]], Counter[tuple[str, Guarantee]]()
        with suppress(LedgerError):
            noted.update({tally[:2]: tally.num_draws for tally in read_tallies(connection, row["name"])})
        for density in charged.keys() | noted.keys():
            if charged[density] != noted[density]:
                first = firsts.get((row["name"], *density))
                which = "a density that no charge names" if first is None else f"the density of entry {first}"
                yield (
                    f"the sum of account {row['name']!r} has {noted[density]} draws of {which}, its charges have "
                    f"{charged[density]}"
                )
        try:
            account = to_account(row)
        except (LedgerError, ValueError, TypeError):
            continue  # reported by the chain
        if not is_affordable(account, [Tally(*density, number) for density, number in charged.items()]):
            yield f"charges to account {row['name']!r} exceed its limits, from {_first_beyond(connection, account)} on"


def _shared_densities(firsts: Firsts) -> Iterator[str]:
    """Names densities that were charged to several accounts: what two accounts guarantee adds up beyond either."""
    places: dict[str, dict[str, int]] = {}
    for (account, fingerprint, _), number in firsts.items():
        numbers = places.setdefault(fingerprint, {})
        numbers[account] = min(number, numbers.get(account, number))
    for numbers in places.values():
        (account, number), *others = sorted(numbers.items(), key=lambda item: item[1])
        for other, later in others:
            yield (
                f"the density of entry {number}, the charge to account {account!r}, was charged to account {other!r} "
                f"too, in entry {later}: the limits of the two add up"
            )


def _first_beyond(connection: Connection, account: Account) -> Entry:
    """The first charge that an account could not afford."""
    query = select(schema.charges).where(schema.charges.c.account == account.name).order_by(schema.charges.c.number)
    rows = read_rows(connection, query)

    def exceeds(length: int) -> bool:
        sums = Counter[tuple[str, Guarantee]]()
        for tally in map(to_tally, rows[:length]):
            sums[tally[:2]] += tally.num_draws
        return not is_affordable(account, [Tally(*density, number) for density, number in sums.items()])

    return Entry("charge", rows[bisect_left(range(1, len(rows)), True, key=exceeds)])
