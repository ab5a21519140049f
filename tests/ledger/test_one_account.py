"""One table has one account: names that can be told apart, densities in one account alone, closings."""

from __future__ import annotations

import traceback

import pytest
from ledger_stores import ONE, TWO, UNIT, Store, filled, share_a_density, shows_part

from pyro_mbde import BudgetExceededError, Guarantee, Ledger, LedgerError
from pyro_mbde.ledger.chain import entry_hash

HYPHEN = "clinic\u20102026"

COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"


class TestNames:
    @pytest.mark.parametrize(
        "name", [HYPHEN, "Clinic-2026", "clinic\u22122026", "сlinic-2026", "ｃｌｉｎｉｃ-2026\ufe0f"]
    )
    def test_what_looks_like_an_account_is_refused(self, ledger: Ledger, name: str) -> None:
        ledger.open_account("clinic-2026", 1.0)
        with pytest.raises(
            ValueError, match="name must not look like that of another account, 'clinic-2026'"
        ) as caught:
            ledger.open_account(name, 1.0)
        assert str(caught.value).isascii()
        assert len(ledger.accounts()) == 1

    def test_what_is_the_same_in_another_form_of_unicode(self, ledger: Ledger) -> None:
        account = ledger.open_account(DECOMPOSED, 1.0)
        assert account.name == COMPOSED
        for name in (COMPOSED, DECOMPOSED):
            with pytest.raises(ValueError, match="name must be new to the ledger"):
                ledger.open_account(name, 1.0)
            charge = ledger.charge(name, UNIT, 1, fingerprint=ONE)
            assert charge.account == COMPOSED
            assert ledger.account(name) == account
            assert len(ledger.charges(name)) == len(ledger.charges(COMPOSED))
            assert ledger.spent(name).epsilon == ledger.spent(COMPOSED).epsilon > 0
            assert ledger.affordable(name, UNIT, ONE) == ledger.affordable(COMPOSED, UNIT, ONE) > 0
        assert ledger.open_account("２０２６", 1.0).name == "2026"
        assert ledger.verify().ok

    def test_a_name_that_is_not_there_is_compared_with_those_that_are(self, ledger: Ledger) -> None:
        ledger.open_account("clinic-2026", 1.0)
        match = r"There is 'clinic-2026', which looks like 'clinic\\u20102026' and differs from it\."
        with pytest.raises(ValueError, match=match):
            ledger.charge(HYPHEN, UNIT, 1, fingerprint=ONE)
        with pytest.raises(ValueError) as caught:
            ledger.account("another")
        assert "looks like" not in str(caught.value) and "Did you mean" not in str(caught.value)

    def test_a_typing_error_is_answered_with_the_open_account(self, ledger: Ledger) -> None:
        for name in ("patient-2026", "patients-2026", "survey"):
            ledger.open_account(name, 1.0)
        ledger.close_account("patient-2026")
        for slip in ("patints-2026", "Patients 2026", "patients-202"):
            with pytest.raises(ValueError) as caught:
                ledger.account(slip)
            assert f"('patients-2026', 'survey'), got name={slip!r}. Did you mean 'patients-2026'?" in str(caught.value)

    def test_accounts_of_older_releases_keep_their_names(self, store: Store) -> None:
        """Which they did not compare; each is found by its own."""
        filled(store.url)
        older = [COMPOSED, DECOMPOSED, HYPHEN, "clinic-2026"]
        with store.raw() as execute:
            (number, previous), *_ = execute("SELECT number, hash FROM mbde_ledger")
            for name in older:
                number += 1
                row = dict(zip(("number", "name", "epsilon", "delta"), (number, name, 1.0, 0.0), strict=True))
                row |= {"rule": "pure", "certificate_delta": 0.0, "opened": "2026-01-01T00:00:00+00:00"}
                row |= {"previous": previous}
                previous = row["hash"] = entry_hash("account", row)
                execute(
                    f"INSERT INTO mbde_accounts ({', '.join(row)}) VALUES ({', '.join('?' for _ in row)})",
                    *row.values(),
                )
            execute("UPDATE mbde_ledger SET number = ?, hash = ?", number, previous)
        with Ledger(store.url) as ledger:
            assert [account.name for account in ledger.accounts()][2:] == older
            for index, name in enumerate(older):
                assert ledger.account(name).name == name
                assert ledger.charge(name, UNIT, 1, fingerprint=f"{index:032x}").account == name
                assert ledger.spent(name).epsilon == 0.1
            assert ledger.verify().ok


class TestDensities:
    def test_a_density_is_charged_to_one_account(self, ledger: Ledger) -> None:
        """Otherwise each of two accounts of 1 would pay for ten rows of one density, at 2 in all."""
        ledger.open_account("a", 1.0)
        ledger.open_account("b", 1.0)
        ledger.charge("a", UNIT, 5, fingerprint=ONE)
        for guarantee in (UNIT, Guarantee(0.2)):
            with pytest.raises(
                BudgetExceededError, match="must be 'a', which is charged for this density already.*Nothing was charged"
            ) as caught:
                ledger.charge("b", guarantee, 1, fingerprint=ONE.upper())
            assert not shows_part("".join(traceback.format_exception(caught.value)), ONE)
        assert ledger.affordable("b", UNIT, ONE) == 0
        assert ledger.affordable("b", UNIT, TWO) == 10
        assert ledger.charges("b") == []
        ledger.charge("a", Guarantee(0.2), 1, fingerprint=ONE)
        ledger.charge("b", UNIT, 1, fingerprint=TWO)
        assert ledger.shared_densities() == []
        assert ledger.verify().ok

    def test_where_it_already_happened(self, store: Store) -> None:
        filled(store.url)
        share_a_density(store)
        with Ledger(store.url) as ledger:
            assert ledger.shared_densities() == [("a", "b")]
            (problem,) = ledger.verify().problems
            assert problem == (
                "the density of entry 10, the charge to account 'b', was charged to account 'a' too, in entry 11: the "
                "limits of the two add up"
            )
            (fingerprint,) = {charge.fingerprint for charge in ledger.charges("b") if charge.number == 10}
            for name, other in (("a", "b"), ("b", "a")):
                with pytest.raises(
                    BudgetExceededError, match=f"must be '{other}', which is charged for this density already"
                ):
                    ledger.charge(name, UNIT, 1, fingerprint=fingerprint)
            assert ledger.charge("a", UNIT, 1, fingerprint=ONE).number == 12


class TestClosing:
    def test_a_closed_account_stays_closed(self, ledger: Ledger) -> None:
        opened = ledger.open_account("mistake", 3.0, 0.0)
        ledger.open_account("clinic", 3.0)
        closed = ledger.close_account("mistake", who="Ann")
        assert opened.closed is None and closed.closed is not None and closed.closed >= opened.opened
        assert ledger.accounts() == [closed, ledger.account("clinic")]
        assert ledger.account("mistake") == closed
        assert ledger.affordable("mistake", UNIT, ONE) == 0
        with pytest.raises(BudgetExceededError, match="that of an open account, and 'mistake' was closed on .*Nothing"):
            ledger.charge("mistake", UNIT, 1, fingerprint=ONE)
        with pytest.raises(ValueError, match="be that of an open account.*It is closed already"):
            ledger.close_account("mistake")
        for name in ("mistake", "Mistake"):
            with pytest.raises(ValueError, match="be new to the ledger.*closed ones too|not look like"):
                ledger.open_account(name, 3.0)
        ledger.charge("clinic", UNIT, 1, fingerprint=ONE)
        verification = ledger.verify(ledger.head())
        assert verification.ok, verification.problems
        assert verification.num_charges == 1
        with pytest.raises(ValueError, match="be that of an account without charges.*stays charged"):
            ledger.close_account("clinic")
        with pytest.raises(ValueError, match="name must be that of an account"):
            ledger.close_account("nobody")
        for wrong in ({"name": 5}, {"name": "clinic", "who": 5}):
            with pytest.raises(TypeError, match="must be a string"):
                ledger.close_account(**wrong)  # type: ignore[arg-type]  # which is the trouble

    def test_a_closing_is_the_last_entry(self, ledger: Ledger) -> None:
        ledger.open_account("mistake", 3.0)
        ledger.close_account("mistake")
        head = ledger.head()
        assert ledger.open_account("clinic", 3.0).closed is None
        assert ledger.verify(head).ok

    @pytest.mark.parametrize(
        ("statement", "expected"),
        [
            ("DELETE FROM mbde_closings", "entry 12 was deleted"),
            (
                "UPDATE mbde_closings SET who = 'Bob'",
                "entry 12, the closing of account 'mistake' was edited",
            ),
            ("UPDATE mbde_closings SET number = 9", "there are two of that number"),
            ("UPDATE mbde_closings SET account = 'a'", "charges name the account 'a', which entry 12, the closing of"),
        ],
    )
    def test_what_was_tampered_with_is_named(self, store: Store, statement: str, expected: str) -> None:
        filled(store.url)
        with Ledger(store.url) as ledger:
            ledger.open_account("mistake", 1.0)
            ledger.close_account("mistake")
        with store.raw() as execute:
            execute(statement)
        with Ledger(store.url) as ledger:
            problems = ledger.verify().problems
            assert any(expected in problem for problem in problems), problems
            with pytest.raises(LedgerError, match="Nothing was charged"):
                ledger.charge("a", UNIT, 1, fingerprint=ONE)
