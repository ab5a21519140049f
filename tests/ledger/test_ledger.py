"""Accounts and charges, on both databases: limits, refusals, what comes back."""

from __future__ import annotations

import dataclasses
import math
import os
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from ledger_stores import (
    CERTIFIED,
    DENSITIES,
    ONE,
    TWO,
    UNIT,
    Store,
    shows_part,
)
from sqlalchemy import event

from pyro_mbde import Account, BudgetExceededError, Charge, Guarantee, Ledger, LedgerError, TotalCost, compose_fits
from pyro_mbde.ledger import ledger as ledger_module
from pyro_mbde.ledger.accounts import Tally


def test_no_error_and_nothing_printed_shows_a_fingerprint(store: Store) -> None:
    with Ledger(store.url) as ledger:
        ledger.open_account("a", 1.0)
        charge = ledger.charge("a", UNIT, 1, fingerprint=ONE)
        told = [repr(charge), str(ledger.charges("a")), repr(Tally(ONE, UNIT, 1))]
        for wrong in (ONE[:31], ONE + " ", "x" + ONE, ONE.encode()):
            with pytest.raises((TypeError, ValueError), match="fingerprint must be") as caught:
                ledger.charge("a", UNIT, 1, fingerprint=wrong)  # type: ignore[arg-type]  # which is the trouble
            told.append(str(caught.value))
        assert "got one of 31 characters." in told[3] and "got one of type bytes." in told[-1]
        with pytest.raises(BudgetExceededError) as refused:
            ledger.charge("a", UNIT, 100, fingerprint=ONE)
        told.append(str(refused.value))
        with store.raw() as execute:  # a sum that no charge made, in the way of the next charge
            execute("INSERT INTO mbde_tallies VALUES (?, ?, ?, ?, ?, ?)", "a", TWO, 0.3, 0.0, 0.3, 1)
            execute("DELETE FROM mbde_tallies WHERE fingerprint = ?", ONE)
        told.append(repr(ledger.verify()))
        for part in ("0 draws of the density of entry 2", "1 draws of a density that no charge names"):
            assert part in told[-1]
    assert charge.fingerprint == ONE
    for one in told:
        assert not shows_part(one, ONE) and not shows_part(one, TWO), one


def test_a_key_that_is_taken_is_not_shown(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL tells the whole row that is in the way."""
    with Ledger(store.url) as ledger:
        ledger.open_account("a", 1.0)
        ledger.charge("a", UNIT, 1, fingerprint=ONE)
        monkeypatch.setattr(ledger_module, "read_tallies", lambda connection, name: [])
        with pytest.raises(LedgerError, match="contradict one another.*Nothing was charged") as caught:
            ledger.charge("a", UNIT, 1, fingerprint=ONE)
    assert not shows_part("".join(traceback.format_exception(caught.value)), ONE)


def test_a_charge_tells_what_is_spent_by_then(ledger: Ledger) -> None:
    for rule, density in zip(("pure", "zcdp", "iid"), DENSITIES, strict=False):
        ledger.open_account(rule, 5.0, 1e-6, rule)
        for num_draws in (1, 3):
            charge = ledger.charge(rule, UNIT, num_draws, fingerprint=density)
            assert charge.spent == ledger.spent(rule)
        listed = ledger.charges(rule)
        assert listed[-1] == charge
        assert [charge.spent for charge in listed] == [None, None]
    assert [field.name for field in dataclasses.fields(Charge)][-2:] == ["hash", "spent"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ann", "ann"), ("  ann b ", "ann b"), ("a\nb", r"'a\nb'"), ("a" * 500, "a" * 200), (" ", "unknown")],
)
def test_the_name_of_a_user(file: Store, monkeypatch: pytest.MonkeyPatch, name: str, expected: str) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: name)
    with Ledger(file.url) as ledger:
        assert ledger.charge("large", UNIT, 1, fingerprint=ONE).who == expected


@pytest.mark.parametrize("windows", [False, True])
def test_a_user_without_a_name(file: Store, monkeypatch: pytest.MonkeyPatch, windows: bool) -> None:
    def fail() -> str:
        raise KeyError

    monkeypatch.setattr("getpass.getuser", fail)
    with Ledger(file.url) as ledger:
        user = os.getuid()
        if windows:
            monkeypatch.delattr("os.getuid")
        who = ledger.charge("large", UNIT, 1, fingerprint=ONE).who
    assert who == ("unknown" if windows else f"user {user}")


def test_a_new_file_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Ledger(tmp_path / "new.db") as ledger:
            modes = {}

            def look(connection: Any) -> None:
                modes.update({path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()})

            event.listen(ledger._database._own_engine(), "commit", look)
            ledger.open_account("a", 1.0)
            assert modes == dict.fromkeys(["new.db", "new.db-journal"], 0o600)
        (tmp_path / "new.db").chmod(0o640)
        (tmp_path / "empty.db").touch(0o644)
        for name, mode in (("new.db", 0o640), ("empty.db", 0o644)):
            with Ledger(tmp_path / name) as ledger:
                assert ledger.verify().ok
            assert (tmp_path / name).stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)


def test_accounts_and_charges_come_back(store: Store) -> None:
    before = datetime.now(UTC)
    with Ledger(store.url) as ledger:
        first = ledger.open_account("clinic", 10.0, 1e-6)
        second = ledger.open_account("größe 数", 2, 1e-6, "zcdp", 1e-8)
        assert ledger.spent("clinic") == TotalCost(0.0, 0.0, "pure composition")
        charge = ledger.charge("clinic", CERTIFIED, 3, fingerprint=ONE.upper(), purpose="naïve look 数", who="Ann")
        other = ledger.charge("clinic", UNIT, 2, fingerprint=TWO)
        head = ledger.head()
    assert isinstance(first, Account) and isinstance(charge, Charge)
    assert (first.name, first.epsilon, first.delta, first.rule, first.certificate_delta) == (
        *("clinic", 10.0, 1e-6, "pure"),
        1e-6,
    )
    assert (charge.number, charge.account, charge.fingerprint, charge.num_draws) == (3, "clinic", ONE, 3)
    assert (charge.guarantee, charge.purpose, charge.who) == (CERTIFIED, "naïve look 数", "Ann")
    assert before <= first.opened <= charge.when <= datetime.now(UTC)
    assert other.who and other.hash == head and len(head) == 64
    with Ledger(store.url) as ledger:
        assert ledger.accounts() == [first, second]
        assert ledger.account("größe 数") == second
        assert ledger.charges("clinic") == [charge, other]
        assert ledger.charges("größe 数") == []
        assert ledger.spent("clinic") == compose_fits([(CERTIFIED, 3), (UNIT, 2)])
        verification = ledger.verify()
    assert verification == type(verification)(True, 2, head, [])


def test_a_refusal_charges_nothing_and_tells_public_numbers(ledger: Ledger) -> None:
    ledger.open_account("clinic", 10.0, 1e-6)
    ledger.charge("clinic", UNIT, 95, fingerprint=ONE)
    head = ledger.head()
    with pytest.raises(BudgetExceededError) as caught:
        ledger.charge("clinic", Guarantee(0.2), 3, fingerprint=TWO)
    for part in ("at most 2", "epsilon=10", "delta=1e-06", "epsilon=9.5", "num_draws=3", "epsilon=0.2", "'clinic'"):
        assert part in str(caught.value)
    assert ledger.head() == head
    assert ledger.affordable("clinic", Guarantee(0.2), TWO) == 2
    ledger.charge("clinic", Guarantee(0.2), 2, fingerprint=TWO)
    ledger.charge("clinic", UNIT, 1, fingerprint=ONE)
    assert ledger.spent("clinic").epsilon == 10.0
    assert ledger.affordable("clinic", Guarantee(1e-300), TWO) == 0
    assert ledger.verify().ok


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        ({"num_draws": 0}, ValueError, "num_draws must be at least 1"),
        ({"num_draws": -1}, ValueError, "num_draws must be at least 1"),
        ({"num_draws": 10**13}, ValueError, "num_draws must be at most 1,000,000,000,000"),
        ({"num_draws": 1.0}, TypeError, "num_draws must be a whole number"),
        ({"num_draws": True}, TypeError, "num_draws must be a whole number"),
        ({"guarantee": 0.1}, TypeError, "guarantee must be a Guarantee"),
        ({"guarantee": Guarantee(math.inf)}, BudgetExceededError, "bears no draw of this density.*of at most [01]"),
        ({"guarantee": Guarantee(1e308), "num_draws": 10**12}, BudgetExceededError, "bears no draw"),
        ({"fingerprint": "xyz"}, ValueError, "fingerprint must be 32 to 128 hexadecimal digits"),
        ({"fingerprint": "ab"}, ValueError, "fingerprint must be 32 to 128 hexadecimal digits"),
        ({"fingerprint": None}, TypeError, "fingerprint must be a string"),
        ({"purpose": "a\nb"}, ValueError, "purpose must be printable"),
        ({"purpose": "a" * 2001}, ValueError, "purpose must be at most"),
        ({"purpose": 1}, TypeError, "purpose must be a string"),
        ({"who": 1}, TypeError, "who must be a string"),
        ({"account_name": "other"}, ValueError, r"name must be that of an account \('a', 'b'\)"),
        ({"account_name": 1}, TypeError, "account_name must be a string"),
    ],
)
@pytest.mark.parametrize("rule", ["pure", "zcdp"])
def test_odd_charges_are_refused(
    ledger: Ledger, rule: str, arguments: dict[str, Any], kind: type[Exception], match: str
) -> None:
    ledger.open_account("a", 1.0, 1e-6, rule)
    ledger.open_account("b", 1.0)
    given = {"account_name": "a", "guarantee": UNIT, "num_draws": 1, "fingerprint": ONE, **arguments}
    with pytest.raises(kind, match=match):
        ledger.charge(**given)
    assert ledger.charges("a") == []
    assert ledger.verify().ok


@pytest.mark.parametrize(
    ("path", "kind", "match"),
    [
        ("", ValueError, "path_or_url must be the path of a file"),
        (":memory:", ValueError, "outlive the process"),
        ("sqlite://", ValueError, "name a file"),
        ("sqlite:///:memory:", ValueError, "name a file"),
        ("sqlite:///a.db?mode=memory", ValueError, "name a file"),
        ("sqlite://u:secret@h/d?y=1", ValueError, "name a file and nothing else, got path_or_url='sqlite'"),
        ("postgresql://u:secret@h/d\0", ValueError, "be the path of a file"),
        ("mysql://u:secret@h/d", ValueError, "be of SQLite or PostgreSQL, got path_or_url='mysql'"),
        ("postgresql://u:secret@h:port/d", ValueError, "must be a valid URL"),
        (1, TypeError, "be a path or a URL"),
        (None, TypeError, "be a path or a URL"),
    ],
)
def test_odd_places_are_refused(path: Any, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match) as caught:
        Ledger(path)
    assert "secret" not in str(caught.value)


def test_a_password_among_the_options_of_a_url_is_not_shown() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(LedgerError, match="no connection") as caught:
        Ledger("postgresql://u:secret@127.0.0.1:1/d?password=secret&sslpassword=secret", timeout=2)
    assert "secret" not in str(caught.value)


def test_places(tmp_path: Path) -> None:
    path = tmp_path / "a bü?.db"
    with Ledger(path) as ledger:
        ledger.open_account("a", 1.0)
        assert repr(ledger) == f"Ledger({str(path)!r})"
    with Ledger(str(path)) as ledger:
        assert len(ledger.accounts()) == 1
    path.rename(tmp_path / "aü.db")
    with Ledger(f"sqlite:///{tmp_path}/aü.db") as ledger:
        assert len(ledger.accounts()) == 1
    for timeout in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match="timeout must be above 0"):
            Ledger(path, timeout=timeout)


def test_a_closed_ledger_opens_again(ledger: Ledger) -> None:
    ledger.open_account("a", 1.0)
    ledger.close()
    assert [account.name for account in ledger.accounts()] == ["a"]
