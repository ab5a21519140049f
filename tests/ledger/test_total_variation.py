"""The total variation of a charge: kept, hashed, guarded, and never lowered for a density that was charged before."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from ledger_stores import CERTIFIED, DENSITIES, ONE, PLACED, TWO, UNIT, Store, admin, as_version, filled, rehash

from pyro_mbde import BudgetExceededError, Guarantee, Ledger, LedgerError
from pyro_mbde.ledger.arguments import check_guarantee

RULES = ("pure", "zcdp", "iid")


def test_it_comes_back(store: Store) -> None:
    with Ledger(store.url) as ledger:
        ledger.open_account("a", 10.0, 1e-6)
        charged = [ledger.charge("a", one, 1, fingerprint=ONE) for one in (PLACED, UNIT, Guarantee(0.3))]
    with Ledger(store.url) as ledger:
        assert ledger.charges("a") == charged
        assert [charge.guarantee for charge in charged] == [PLACED, UNIT, Guarantee(0.3)]
        assert ledger.verify().ok
    found = [row["total_variation"] for row in store.rows("mbde_charges")]
    assert found == [0.01, None, None]  # empty where the range says as much


def test_an_entry_is_hashed_as_before_where_there_is_none(store: Store) -> None:
    filled(store.url)
    with Ledger(store.url) as ledger:
        ledger.charge("a", PLACED, 1, fingerprint=ONE)
    *old, new = store.rows("mbde_charges")
    for row in old:
        del row["total_variation"]
        assert rehash("charge", row) == row["hash"]
    for other in (None, 0.02, 0.01 * (1 + 1e-15)):
        assert rehash("charge", {**new, "total_variation": other}) != new["hash"] == rehash("charge", new)


def test_processors_that_disagree_on_the_last_digit_agree_on_the_charge() -> None:
    for found in (0.2591817793182, 0.25918177931821, 0.25918177931820999):
        assert check_guarantee(Guarantee(1.0, total_variation=found)).total_variation == 0.25918178
    for exact in (0.25, 0.01, 0.0):
        assert check_guarantee(Guarantee(1.0, total_variation=exact)).total_variation == exact
    assert check_guarantee(Guarantee(1.0)) == Guarantee(1.0)
    assert check_guarantee(Guarantee(float("inf"))) == Guarantee(float("inf"))


@pytest.mark.parametrize("version", [1, 2])
def test_an_old_charge_has_the_largest_that_its_range_allows(store: Store, version: int) -> None:
    """The same density that is charged again counts with that: what was drawn before had no better guarantee."""
    with Ledger(store.url) as ledger:
        for rule in RULES:
            ledger.open_account(rule, 10.0, 1e-6, rule)
            ledger.charge(rule, CERTIFIED, 3, fingerprint=DENSITIES[RULES.index(rule)])
        head = ledger.head()
        spent = [ledger.spent(rule) for rule in RULES]
    as_version(store, version)
    with Ledger(store.url) as ledger:
        verification = ledger.verify(head)
        assert verification.ok, verification.problems
        assert [ledger.spent(rule) for rule in RULES] == spent
        assert ledger.charges("pure")[0].guarantee.total_variation == CERTIFIED.total_variation > 0.04
        for rule in RULES:
            density = DENSITIES[RULES.index(rule)]
            assert ledger.affordable(rule, PLACED, density) == ledger.affordable(rule, CERTIFIED, density) > 0
            assert ledger.charge(rule, PLACED, 2, fingerprint=density).guarantee == CERTIFIED
        ledger.charge("pure", PLACED, 1, fingerprint=DENSITIES[9])
        assert ledger.spent("pure").delta == 2 * CERTIFIED.delta  # one certificate a density
        verification = ledger.verify(head)
        assert verification.ok, verification.problems


@pytest.mark.parametrize("rule", RULES)
def test_attack_by_one_density_with_two(ledger: Ledger, rule: str) -> None:
    """Neither order of the two buys what the smaller alone would."""
    ledger.open_account("a", 10.0, 1e-6, rule)
    ledger.charge("a", PLACED, 1, fingerprint=ONE)
    for larger in (replace(PLACED, total_variation=0.010001), CERTIFIED):
        assert ledger.affordable("a", larger, ONE) == 0
        with pytest.raises(BudgetExceededError, match="total variation that this density was charged with, which is"):
            ledger.charge("a", larger, 1, fingerprint=ONE)
    smaller = replace(PLACED, total_variation=0.009)
    assert ledger.charge("a", smaller, 1, fingerprint=ONE).guarantee == PLACED
    assert len(ledger.charges("a")) == 2
    assert ledger.verify().ok


LOWER = "UPDATE {} SET total_variation = 0.001 WHERE total_variation = 0.01"
NO_MORE = "UPDATE {} SET total_variation = NULL WHERE total_variation = 0.01"
INVENTED = "UPDATE {} SET total_variation = 0.001 WHERE total_variation IS NULL AND num_draws = 7"


@pytest.mark.parametrize("statement", [LOWER, NO_MORE, INVENTED])
def test_what_was_tampered_with_is_found(store: Store, statement: str) -> None:
    filled(store.url)
    with Ledger(store.url) as ledger:
        ledger.charge("a", PLACED, 3, fingerprint=ONE)
    entry = 7 if statement == INVENTED else 11
    for table in ("mbde_charges", "mbde_tallies"):
        with store.raw() as execute:
            before = execute(f"SELECT fingerprint, total_variation FROM {table}")
            execute(statement.format(table))
        with Ledger(store.url) as ledger:
            problems = " | ".join(ledger.verify().problems)
            assert f"the density of entry {entry}, its charges have" in problems
            assert bool(re.search(f"entry {entry}, .* was edited", problems)) == (table == "mbde_charges")
            with pytest.raises(LedgerError, match=r"sums are not those|last row was tampered with"):
                ledger.charge("a", UNIT, 1, fingerprint=TWO)
        with store.raw() as execute:
            for fingerprint, value in before:
                execute(f"UPDATE {table} SET total_variation = ? WHERE fingerprint = ?", value, fingerprint)
        with Ledger(store.url) as ledger:
            assert ledger.verify().ok


@pytest.mark.parametrize("statement", [LOWER, NO_MORE, INVENTED])
@pytest.mark.parametrize("version", [2, 3])
def test_triggers_guard_it(store: Store, statement: str, version: int) -> None:
    filled(store.url)
    if version == 2:
        as_version(store, 2)
    with Ledger(store.url) as ledger:
        ledger.charge("a", PLACED, 3, fingerprint=ONE)
        for table in ("mbde_charges", "mbde_tallies"):
            with pytest.raises(Exception, match="rows of a ledger are only ever added"):
                change(store, statement.format(table))
        ledger.charge("a", PLACED, 3, fingerprint=ONE)  # which sums up in the same row
        assert ledger.verify().ok


def change(store: Store, statement: str) -> None:
    if store.path is None:
        with admin(store.url) as execute:
            execute(statement)
        return
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute(statement)


def test_a_forged_charge_with_another_is_found(store: Store) -> None:
    """Chained and hashed as it should be, by somebody who knows the format."""
    filled(store.url)
    with Ledger(store.url) as ledger:
        ledger.charge("a", CERTIFIED, 3, fingerprint=ONE)
    (head,) = store.rows("mbde_ledger")
    row = store.rows("mbde_charges")[-1]
    row.update(number=head["number"] + 1, previous=head["hash"], total_variation=0.001)
    row["hash"] = rehash("charge", row)
    with store.raw() as execute:
        marks = ", ".join("?" for _ in row)
        execute(f"INSERT INTO mbde_charges ({', '.join(row)}) VALUES ({marks})", *row.values())
        execute("UPDATE mbde_tallies SET num_draws = 6 WHERE fingerprint = ?", ONE)
        execute("UPDATE mbde_ledger SET number = ?, hash = ?", row["number"], row["hash"])
    with Ledger(store.url) as ledger:
        problems = ledger.verify().problems
        assert any("has 6 draws of the density of entry 11, its charges have 3" in problem for problem in problems)
        assert any("has 0 draws of the density of entry 12, its charges have 3" in problem for problem in problems)
        with pytest.raises(LedgerError, match="sums are not those"):
            ledger.charge("a", UNIT, 1, fingerprint=TWO)
