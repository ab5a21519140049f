"""The chain of hashes through a ledger, and the rows that it shows to be tampered with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

#: Columns that an entry's hash is made of, by kind, and those that are hashed only where they hold something: they were
#: added later, and hashes of entries without them are as they were.
_FIELDS = {
    "ledger": ("number", "identity", "created"),
    "account": ("number", "name", "epsilon", "delta", "rule", "certificate_delta", "opened", "previous"),
    "charge": (
        "number", "account", "charged", "fingerprint", "num_draws", "epsilon", "delta", "log_ratio_range", "purpose",
        "who", "previous",
    ),
    "closing": ("number", "account", "closed", "who", "previous"),
}  # fmt: skip
_LATER_FIELDS = {"charge": ("total_variation",)}
_CALLED = {"account": "the opening of", "charge": "the charge to", "closing": "the closing of"}
#: Rows whose hash is wrong are compared with one another up to this many, to tell which were swapped.
_MAX_COMPARED = 1000


@dataclass(frozen=True)
class Verification:
    """What the verification of a whole ledger found.

    Attributes:
        ok: whether nothing is wrong.
        num_charges: how many charges there are.
        head: hash of the last entry that the ledger names; to be noted elsewhere, and passed to the next verification.
        problems: what is wrong, one string for each row.
    """

    ok: bool
    num_charges: int
    head: str
    problems: list[str]


class Entry(NamedTuple):
    """A row of the chain: the opening of an account, a charge to it, or its closing."""

    kind: str
    row: Mapping[str, Any]

    def __str__(self) -> str:
        """Names the row."""
        account = self.row["name" if self.kind == "account" else "account"]
        return f"entry {self.row['number']}, {_CALLED[self.kind]} account {account!r}"


def entry_hash(kind: str, row: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of an entry, as JSON with sorted keys.

    Floats are written by their shortest decimals that read back as the same float, other characters than ASCII escaped.

    Args:
        kind: ``ledger``, ``account``, ``charge`` or ``closing``.
        row: its columns; others are left out.
    """
    fields = {"kind": kind, **{name: row[name] for name in _FIELDS[kind]}}
    fields |= {name: row[name] for name in _LATER_FIELDS.get(kind, ()) if row.get(name) is not None}
    # What is not JSON comes from a damaged row, whose hash will not fit.
    content = json.dumps(fields, sort_keys=True, separators=(",", ":"), default=repr)
    return hashlib.sha256(content.encode("ascii")).hexdigest()


def chain_problems(entries: Iterable[Entry], genesis: str, number: int, head: str) -> Iterator[str]:
    """Names what is wrong with the chain: rows edited, swapped, deleted or inserted, by their numbers.

    Args:
        entries: all of them, by their numbers.
        genesis: what the first is chained to.
        number: of the last entry, as the ledger names it.
        head: its hash.
    """
    wrong: list[Entry] = []
    before, previous, last = 0, genesis, "the beginning"
    for entry in entries:
        row = entry.row
        if not isinstance(row["number"], int) or not 1 <= row["number"] <= number:
            yield f"{entry} was inserted: the ledger names {number} as its last entry"
            continue
        if row["number"] == before:
            yield f"{entry} was inserted: there are two of that number"
            continue
        yield from _deleted(before + 1, row["number"])
        if entry_hash(entry.kind, row) != row["hash"]:
            wrong.append(entry)
        elif row["previous"] != previous and row["number"] == before + 1 and not _is_wrong(wrong, before):
            yield f"{entry} does not follow on {last}: one of the two was edited, and its hash with it"
        before, previous, last = row["number"], row["hash"], str(entry)
    yield from _deleted(before + 1, number + 1)
    if before == number and previous != head and not _is_wrong(wrong, number):
        yield f"{last} is not the last entry that the ledger names: it was edited, and its hash with it"
    for entry in wrong:
        place = _place_of(entry, wrong)
        yield f"{entry} was edited" if place is None else f"{entry} was swapped: it belongs at {place}"


def _deleted(start: int, stop: int) -> Iterator[str]:
    """Names missing numbers; only the first and the last where they are many."""
    if stop - start > 20:
        yield f"entries {start} to {stop - 1} were deleted"
    else:
        yield from (f"entry {number} was deleted" for number in range(start, stop))


def _is_wrong(wrong: list[Entry], number: int) -> bool:
    return bool(wrong) and wrong[-1].row["number"] == number


def _place_of(entry: Entry, wrong: list[Entry]) -> int | None:
    """The number with which an entry's hash is right, of those whose own entries are wrong."""
    if len(wrong) > _MAX_COMPARED:
        return None
    for other in wrong:
        number: int = other.row["number"]
        if entry_hash(entry.kind, {**entry.row, "number": number}) == entry.row["hash"]:
            return number
    return None
