"""Charges on both databases: what comes back, who charged, and fingerprints that nothing shows."""

from __future__ import annotations

import dataclasses
import os
import traceback
from datetime import UTC, datetime

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

from pyro_mbde import Account, BudgetExceededError, Charge, Ledger, LedgerError, TotalCost, compose_fits
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
            execute("INSERT INTO mbde_tallies VALUES (?, ?, ?, ?, ?, ?, NULL)", "a", TWO, 0.3, 0.0, 0.3, 1)
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
        monkeypatch.setattr(ledger_module.rows, "read_tallies", lambda connection, name: [])
        with pytest.raises(LedgerError, match="contradict one another.*Nothing was charged") as caught:
            ledger.charge("a", UNIT, 1, fingerprint=ONE)
    assert not shows_part("".join(traceback.format_exception(caught.value)), ONE)


def test_a_charge_tells_what_is_spent_by_then(ledger: Ledger) -> None:
    for rule, density in zip(("pure", "zcdp", "placement", "iid"), DENSITIES, strict=False):
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
