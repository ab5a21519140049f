"""What was edited, deleted, swapped or inserted in a ledger is found and named."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from ledger_stores import (
    ONE,
    UNIT,
    Store,
    admin,
    filled,
    rehash,
)
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from pyro_mbde import BudgetExceededError, Ledger, LedgerError
from pyro_mbde.ledger.schema import triggers

Execute = Callable[..., list[Any]]


def swap_numbers(execute: Execute) -> None:
    for old, new in ((5, 99), (6, 5), (99, 6)):
        execute("UPDATE mbde_charges SET number = ? WHERE number = ?", new, old)


def swap_contents(execute: Execute) -> None:
    columns = ["charged", "fingerprint", "num_draws", "purpose"]
    five, six = (execute(f"SELECT {', '.join(columns)} FROM mbde_charges WHERE number = ?", n)[0] for n in (5, 6))
    for number, values in ((5, six), (6, five)):
        sets = ", ".join(f"{column} = ?" for column in columns)
        execute(f"UPDATE mbde_charges SET {sets} WHERE number = ?", *values, number)


def insert_charge(execute: Execute, number: int) -> None:
    """Copies charge 10 to another number, chained to the head, hash and all."""
    (row,) = execute(
        "SELECT account, charged, fingerprint, num_draws, epsilon, delta, log_ratio_range, purpose, who, hash "
        "FROM mbde_charges WHERE number = 10"
    )
    names = ("account", "charged", "fingerprint", "num_draws", "epsilon", "delta", "log_ratio_range", "purpose", "who")
    fields = {**dict(zip((*names, "previous"), row, strict=True)), "number": number}
    fields["hash"] = rehash("charge", fields)
    marks = ", ".join("?" for _ in fields)
    execute(f"INSERT INTO mbde_charges ({', '.join(fields)}) VALUES ({marks})", *fields.values())


def edit_with_hash(execute: Execute, number: int) -> None:
    names = ("number", "account", "charged", "fingerprint", "num_draws", "epsilon", "delta", "log_ratio_range")
    names = (*names, "purpose", "who", "previous")
    (row,) = execute(f"SELECT {', '.join(names)} FROM mbde_charges WHERE number = ?", number)
    fields = {**dict(zip(names, row, strict=True)), "num_draws": 1}
    forged = rehash("charge", fields)
    execute("UPDATE mbde_charges SET num_draws = 1, hash = ? WHERE number = ?", forged, number)


def one_statement(query: str) -> Callable[[Execute], None]:
    return lambda execute: [execute(part) for part in query.split(";")] and None


TAMPERINGS: dict[str, tuple[Callable[[Execute], None], list[str]]] = {
    "draws": (
        one_statement("UPDATE mbde_charges SET num_draws = 1 WHERE number = 5"),
        ["entry 5, the charge to account 'a' was edited", "sum of account 'a'.*has 5 draws.*its charges have 1"],
    ),
    "letter": (
        one_statement("UPDATE mbde_charges SET purpose = 'look 7' WHERE number = 8"),
        ["entry 8, the charge to account 'b' was edited"],
    ),
    "time": (
        one_statement("UPDATE mbde_charges SET charged = '2020-01-01T00:00:00+00:00' WHERE number = 8"),
        ["entry 8, .* was edited"],
    ),
    "last bit": (
        one_statement("UPDATE mbde_charges SET epsilon = 0.09999999999999999 WHERE number = 4"),
        ["entry 4, .* was edited"],
    ),
    "hash": (one_statement("UPDATE mbde_charges SET hash = previous WHERE number = 4"), ["entry 4, .* was edited"]),
    "own hash too": (
        lambda execute: edit_with_hash(execute, 5),
        ["entry 6, .* does not follow on entry 5, .*: one of the two was edited, and its hash with it"],
    ),
    "own hash of the last": (
        lambda execute: edit_with_hash(execute, 10),
        ["entry 10, .* is not the last entry that the ledger names"],
    ),
    "deleted": (one_statement("DELETE FROM mbde_charges WHERE number = 5"), ["^entry 5 was deleted$"]),
    "two deleted": (
        one_statement("DELETE FROM mbde_charges WHERE number IN (6, 7)"),
        ["^entry 6 was deleted$", "^entry 7 was deleted$"],
    ),
    "last deleted": (one_statement("DELETE FROM mbde_charges WHERE number = 10"), ["^entry 10 was deleted$"]),
    "account deleted": (
        one_statement(
            "DELETE FROM mbde_charges WHERE account = 'a'; DELETE FROM mbde_tallies WHERE account = 'a'; "
            "DELETE FROM mbde_accounts WHERE name = 'a'"
        ),
        ["^entry 1 was deleted$", "^entry 3 was deleted$", "^entry 9 was deleted$"],
    ),
    "swapped": (
        swap_numbers,
        [
            "entry 5, the charge to account 'b' was swapped: it belongs at 6",
            "entry 6, the charge to account 'a' was swapped: it belongs at 5",
        ],
    ),
    "contents swapped": (swap_contents, ["entry 5, .* was edited", "entry 6, .* was edited"]),
    "inserted": (
        lambda execute: insert_charge(execute, 11),
        ["entry 11, the charge to account 'b' was inserted: the ledger names 10 as its last"],
    ),
    "inserted far off": (lambda execute: insert_charge(execute, 10**6), ["entry 1000000, .* was inserted"]),
    "inserted before": (lambda execute: insert_charge(execute, -4), ["entry -4, .* was inserted"]),
    "inserted beside": (lambda execute: insert_charge(execute, 1), ["entry 1, .*charge.* was inserted: there are two"]),
    "limit": (
        one_statement("UPDATE mbde_accounts SET epsilon = 1000 WHERE name = 'a'"),
        ["entry 1, the opening of account 'a' was edited"],
    ),
    "rule": (
        one_statement("UPDATE mbde_accounts SET rule = 'zcdp' WHERE name = 'a'"),
        ["entry 1, the opening of account 'a' was edited"],
    ),
    "head": (
        one_statement("UPDATE mbde_ledger SET hash = '00'"),
        ["entry 10, .* is not the last entry that the ledger names"],
    ),
    "head set back": (
        one_statement("UPDATE mbde_ledger SET number = 9, hash = (SELECT hash FROM mbde_charges WHERE number = 9)"),
        ["entry 10, .* was inserted: the ledger names 9 as its last"],
    ),
    "sum": (
        one_statement("UPDATE mbde_tallies SET num_draws = 1 WHERE num_draws = 7"),
        ["the sum of account 'a' has 1 draws of the density of entry 7, its charges have 7"],
    ),
    "sum deleted": (
        one_statement("DELETE FROM mbde_tallies WHERE num_draws = 7"),
        ["the sum of account 'a' has 0 draws of the density of entry 7, its charges have 7"],
    ),
    "impossible": (
        one_statement("UPDATE mbde_charges SET log_ratio_range = 5 WHERE number = 5"),
        ["entry 5, .* is not a possible charge", "entry 5, .* was edited"],
    ),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_what_was_tampered_with_is_named(store: Store, name: str) -> None:
    tamper, expected = TAMPERINGS[name]
    filled(store.url)
    with store.raw() as execute:
        tamper(execute)
    with Ledger(store.url) as ledger:
        verification = ledger.verify()
    assert not verification.ok
    for pattern in expected:
        assert any(re.search(pattern, problem) for problem in verification.problems), verification.problems


def test_who_is_charged_next_is_told_of_an_edited_account_and_of_a_missing_end(store: Store) -> None:
    filled(store.url)
    with store.raw() as execute:
        execute("UPDATE mbde_accounts SET epsilon = 1000 WHERE name = 'a'")
    with Ledger(store.url) as ledger:
        with pytest.raises(LedgerError, match="Account 'a' was tampered with"):
            ledger.charge("a", UNIT, 200, fingerprint=ONE)
        with store.raw() as execute:
            execute("UPDATE mbde_accounts SET epsilon = 10 WHERE name = 'a'")
            execute("DELETE FROM mbde_charges WHERE number = 10")
        with pytest.raises(LedgerError, match="last row was tampered with"):
            ledger.charge("a", UNIT, 1, fingerprint=ONE)
        assert len(ledger.charges("a")) == 4


@pytest.mark.parametrize("edited", ["charge", "account"])
def test_nothing_is_charged_after_an_edited_last_row(store: Store, edited: str) -> None:
    filled(store.url)
    with Ledger(store.url) as ledger:
        if edited == "account":
            ledger.open_account("c", 1.0)
        with store.raw() as execute:  # the hash left as it was
            if edited == "account":
                execute("UPDATE mbde_accounts SET epsilon = 1000 WHERE name = 'c'")
            else:
                execute("UPDATE mbde_charges SET num_draws = 1 WHERE number = 10")
        head = ledger.head()
        with pytest.raises(LedgerError, match="last row was tampered with.* Nothing was charged"):
            ledger.charge("a", UNIT, 1, fingerprint=ONE)
        with pytest.raises(LedgerError, match="last row was tampered with"):
            ledger.open_account("d", 1.0)
        assert ledger.head() == head


def test_what_became_of_a_charge_is_told_and_nothing_of_it_where_one_reads(store: Store) -> None:
    filled(store.url)
    with store.raw() as execute:
        execute("UPDATE mbde_accounts SET epsilon = 1000 WHERE name = 'a'")
    with Ledger(store.url) as ledger:
        for read in (lambda: ledger.account("a"), lambda: ledger.spent("a"), lambda: ledger.accounts()):
            with pytest.raises(LedgerError, match="tampered with. Run verify") as caught:
                read()
            assert "charged" not in str(caught.value)
        with pytest.raises(LedgerError, match="tampered with.* Nothing was charged"):
            ledger.charge("a", UNIT, 1, fingerprint=ONE)
    with store.raw() as execute:
        execute("ALTER TABLE mbde_tallies RENAME COLUMN num_draws TO elsewhere")
    with Ledger(store.url) as ledger:
        with pytest.raises(LedgerError, match="could not be used") as caught:
            ledger.spent("b")
        assert "charged" not in str(caught.value)
        with pytest.raises(LedgerError, match="Nothing was charged, and what"):
            ledger.charge("b", UNIT, 1, fingerprint=ONE)


@pytest.mark.parametrize(
    ("name", "known"), [("SQLITE_IOERR_FSYNC", False), ("SQLITE_IOERR_WRITE", True), ("SQLITE_FULL", True), ("", False)]
)
def test_an_error_at_commit(file: Store, name: str, known: bool) -> None:
    def fail(connection: Any) -> None:
        error = sqlite3.OperationalError("it failed")
        if name:
            error.sqlite_errorname = name
        raise DBAPIError.instance("COMMIT", None, error, sqlite3.Error)

    with Ledger(file.url) as ledger:
        engine = ledger._database._own_engine()
        event.listen(engine, "commit", fail)
        with pytest.raises(LedgerError) as caught:
            ledger.charge("large", UNIT, 1, fingerprint=ONE)
        event.remove(engine, "commit", fail)
        assert ("Nothing was charged" in str(caught.value)) == known
        assert ("not known whether" in str(caught.value)) != known
        assert ledger.charges("large") == []


def test_triggers_forbid_changes(store: Store) -> None:
    filled(store.url)
    statements = [
        "UPDATE mbde_charges SET purpose = ''",
        "DELETE FROM mbde_charges",
        "UPDATE mbde_accounts SET epsilon = 1000",
        "DELETE FROM mbde_accounts",
        "DELETE FROM mbde_ledger",
        "UPDATE mbde_ledger SET number = 1",
        "DELETE FROM mbde_tallies",
        "UPDATE mbde_tallies SET num_draws = 1",
        "UPDATE mbde_tallies SET epsilon = 0.01",
        "UPDATE mbde_tallies SET total_variation = 0.01",
        "UPDATE mbde_ledger SET hash = '00'",
        "UPDATE mbde_ledger SET identity = '00'",
        "UPDATE mbde_ledger SET number = number + 2",
    ]
    if store.path is not None:
        charge = "account, charged, fingerprint, 1, epsilon, delta, log_ratio_range, purpose, who, previous, hash, NULL"
        account = "10000, delta, rule, certificate_delta, opened, previous, hash FROM mbde_accounts"
        tally = "epsilon, delta, log_ratio_range, 1, NULL FROM mbde_tallies"
        columns = "number, account, charged, fingerprint, num_draws, epsilon, delta, log_ratio_range, purpose, who"
        statements += [
            f"REPLACE INTO mbde_charges SELECT number, {charge} FROM mbde_charges",
            f"INSERT OR REPLACE INTO mbde_charges SELECT CAST(number AS TEXT), {charge} FROM mbde_charges",
            f"INSERT OR IGNORE INTO mbde_charges SELECT 0.0 + number, {charge} FROM mbde_charges",
            f"REPLACE INTO mbde_charges (rowid, {columns.split(', ', 1)[1]}, previous, hash, total_variation) "
            f"SELECT rowid, {charge} FROM mbde_charges",
            f"REPLACE INTO mbde_accounts SELECT number, name, {account}",
            f"REPLACE INTO mbde_accounts SELECT number + 100, name, {account}",
            f"REPLACE INTO mbde_accounts SELECT number, 'c', {account}",
            f"REPLACE INTO mbde_tallies SELECT account, fingerprint, {tally}",
            "UPDATE OR REPLACE mbde_tallies SET account = 'a', fingerprint = (SELECT fingerprint FROM mbde_tallies)",
            "REPLACE INTO mbde_ledger SELECT id, version, identity, created, 1, hash FROM mbde_ledger",
        ]
    for statement in statements:
        with pytest.raises(Exception, match="rows of a ledger are only ever added"):
            if store.path is not None:
                connection = sqlite3.connect(store.path)
                try:
                    connection.execute(statement)
                finally:
                    connection.close()
            else:
                with admin(store.url) as execute:
                    execute(statement)
    with Ledger(store.url) as ledger:
        assert ledger.verify().ok
        if store.path is not None:
            connection = sqlite3.connect(store.path)
            connection.execute("DROP TRIGGER mbde_charges_no_update")
            connection.close()
        else:
            with admin(store.url) as execute:
                execute("ALTER TABLE mbde_charges DISABLE TRIGGER mbde_charges_no_update")
        problems = ledger.verify().problems
    assert problems == ["the trigger mbde_charges_no_update, which prevents changes to rows, is missing"]


def test_altered_triggers_are_named(store: Store) -> None:
    filled(store.url)
    harmless = "mbde_charges_no_update BEFORE UPDATE ON mbde_charges FOR EACH ROW WHEN (NEW.number < 0)"
    if store.path is not None:
        connection = sqlite3.connect(store.path)
        connection.execute("DROP TRIGGER mbde_charges_no_update")
        connection.execute(f"CREATE TRIGGER {harmless} BEGIN SELECT 1; END")
        connection.close()
    else:
        with admin(store.url) as execute:
            execute("DROP TRIGGER mbde_charges_no_update ON mbde_charges")
            execute(f"CREATE TRIGGER {harmless} EXECUTE FUNCTION mbde_refuse()")
    with Ledger(store.url) as ledger:
        altered = "the trigger mbde_charges_no_update, which prevents changes to rows, was altered"
        assert ledger.verify().problems == [altered]
        if store.path is None:
            with admin(store.url) as execute:
                execute(
                    "CREATE OR REPLACE FUNCTION mbde_refuse() RETURNS trigger LANGUAGE plpgsql AS "
                    "$$ BEGIN RETURN NEW; END $$"
                )
            problems = ledger.verify().problems
            assert len(problems) == len(triggers("postgresql")) and altered in problems
            assert "the trigger mbde_ledger_no_truncate, which prevents changes to rows, was altered" in problems


def rewrite(store: Store, edit: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """What a forger does who rewrites the whole chain: valid hashes, sums and head."""
    (head,) = store.rows("mbde_ledger")
    rows = edit(store.rows("mbde_charges"))
    accounts = store.rows("mbde_accounts")
    previous, number = accounts[-1]["hash"], accounts[-1]["number"]
    with store.raw() as execute:
        execute("DELETE FROM mbde_charges")
        execute("DELETE FROM mbde_tallies")
        for row in rows:
            number += 1
            row.update(number=number, previous=previous)
            previous = row["hash"] = rehash("charge", row)
            marks = ", ".join("?" for _ in row)
            execute(f"INSERT INTO mbde_charges ({', '.join(row)}) VALUES ({marks})", *row.values())
            names = ("account", "fingerprint", "epsilon", "delta", "log_ratio_range", "num_draws", "total_variation")
            execute(
                f"INSERT INTO mbde_tallies ({', '.join(names)}) VALUES (?, ?, ?, ?, ?, ?, ?)",
                *(row[name] for name in names),
            )
        execute("UPDATE mbde_ledger SET number = ?, hash = ?", number, previous)
    assert head["number"] == 10


def test_only_a_head_kept_elsewhere_finds_a_rewritten_chain(store: Store) -> None:
    filled(store.url)
    with Ledger(store.url) as ledger:
        head = ledger.head()
        ledger.charge("a", UNIT, 1, fingerprint=ONE)
        assert ledger.verify(head).ok  # grown since
        assert ledger.verify(ledger.verify().head).ok
    refilled = Store(store.url, store.path)
    with refilled.raw() as execute:
        execute("DELETE FROM mbde_charges WHERE number = 11")
        execute("DELETE FROM mbde_tallies WHERE fingerprint = ?", ONE)
        execute("UPDATE mbde_ledger SET number = 10, hash = ?", head)
    with Ledger(store.url) as ledger:
        assert ledger.verify(head).ok
    rewrite(store, lambda rows: [*rows[:2], *rows[3:]])
    with Ledger(store.url) as ledger:
        assert ledger.verify().ok
        problems = ledger.verify(head).problems
        assert len(problems) == 1 and "the expected head is in no entry" in problems[0]
        with pytest.raises(TypeError, match="expected_head must be a string"):
            ledger.verify(5)  # type: ignore[arg-type]  # which is the trouble


def test_a_forged_charge_beyond_the_limit_is_named(store: Store) -> None:
    filled(store.url)
    rewrite(store, lambda rows: [{**row, "num_draws": 90 if row["number"] == 5 else row["num_draws"]} for row in rows])
    with Ledger(store.url) as ledger:
        (problem,) = ledger.verify().problems
        assert problem.startswith("charges to account 'a' exceed its limits, from entry 9, the charge to account 'a'")
        with pytest.raises(BudgetExceededError, match="account 'a' is spent: epsilon 10.9 of 10"):
            ledger.charge("a", UNIT, 1, fingerprint=ONE)


def test_the_entries_that_were_edited_come_before_the_triggers(file: Store) -> None:
    """Whoever edits an entry drops the triggers: what is read first is the entry."""
    filled(file.url)
    connection = sqlite3.connect(str(file.path))
    for name in triggers("sqlite"):
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute("UPDATE mbde_charges SET purpose = 'else' WHERE number = (SELECT min(number) FROM mbde_charges)")
    connection.commit()
    connection.close()
    with Ledger(file.url) as ledger:
        problems = ledger.verify().problems
    assert problems[0].startswith("entry ") and "charge" in problems[0]
    assert all("trigger" in problem for problem in problems[-len(triggers("sqlite")) :])


@pytest.mark.parametrize("head", ["3f0c", "", "g" * 64, "0" * 63, "0" * 65])
def test_a_head_that_is_not_a_whole_hash_is_refused(file: Store, head: str) -> None:
    with Ledger(file.url) as ledger:
        with pytest.raises(ValueError, match="expected_head must be 64 hexadecimal digits, .*Pass the whole head"):
            ledger.verify(head)
        assert ledger.verify(f" {ledger.head().upper()}\n").ok
