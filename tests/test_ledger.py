"""The ledger, on both databases: limits kept by many at once, nothing lost when killed, what was changed is named."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import re
import shutil
import sqlite3
import subprocess
import tempfile
import threading
import time
import traceback
import uuid
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import ledger_stores
import pytest
from ledger_stores import DENSITIES, POSTGRESQL, UNIT, Store, admin, processes, rehash, run, start
from sqlalchemy import create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError

from pyro_mbde import (
    Account,
    BudgetExceededError,
    Charge,
    Guarantee,
    Ledger,
    LedgerError,
    TotalCost,
    compose,
    compose_fits,
)
from pyro_mbde.privacy import ledger as ledger_module
from pyro_mbde.privacy import ledger_schema as schema
from pyro_mbde.privacy.accounts import Tally

ONE, TWO, THREE = DENSITIES[:3]
CERTIFIED = Guarantee(0.1, 1e-8, 0.2)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        yield Store(str(tmp_path / "budget.db"), tmp_path / "budget.db")
        return
    if not POSTGRESQL:
        pytest.skip("PYRO_MBDE_TEST_POSTGRESQL names no server: see .ci/postgresql")
    name = f"test_{uuid.uuid4().hex}"
    with admin(POSTGRESQL) as execute:
        execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
    yield Store(make_url(POSTGRESQL).set(database=name).render_as_string(hide_password=False))
    with admin(POSTGRESQL) as execute:
        execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def ledger(store: Store) -> Iterator[Ledger]:
    with Ledger(store.url) as ledger:
        yield ledger


@pytest.fixture
def file(tmp_path: Path) -> Store:
    """SQLite only, with an account."""
    store = Store(str(tmp_path / "budget.db"), tmp_path / "budget.db")
    with Ledger(store.url) as ledger:
        ledger.open_account("large", 1e6)
    return store


def shows_part(told: str, fingerprint: str) -> bool:
    return any(fingerprint[place : place + 6] in told.lower() for place in range(len(fingerprint) - 5))


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
    for rule in ("pure", "zcdp", "iid"):
        ledger.open_account(rule, 5.0, 1e-6, rule)
        for num_draws in (1, 3):
            charge = ledger.charge(rule, UNIT, num_draws, fingerprint=ONE)
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
            ledger.open_account("a", 1.0)
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
            assert modes == dict.fromkeys(["new.db", "new.db-wal", "new.db-shm"], 0o600)
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


def test_sums_are_those_of_decimals(ledger: Ledger) -> None:
    """In floats, three times 0.1 is above 0.3, and ten certificates of 1e-7 need not be 1e-6."""
    ledger.open_account("third", 0.3, 0.0)
    ledger.charge("third", UNIT, 3, fingerprint=ONE)
    assert ledger.spent("third") == TotalCost(0.3, 0.0, "pure composition")
    assert ledger.affordable("third", UNIT, ONE) == 0
    ledger.open_account("certificates", 100.0, 1e-6)
    for density in DENSITIES[:10]:
        ledger.charge("certificates", Guarantee(0.1, 1e-7), 1, fingerprint=density)
    assert ledger.spent("certificates").delta == 1e-6
    assert ledger.affordable("certificates", Guarantee(0.1, 1e-7), DENSITIES[10]) == 0
    assert ledger.affordable("certificates", Guarantee(0.1, 1e-7), ONE) == 989
    with pytest.raises(BudgetExceededError, match="at most 0"):
        ledger.charge("certificates", Guarantee(0.1, 1e-12), 1, fingerprint=DENSITIES[10])


def test_a_certificate_counts_once_for_a_density(ledger: Ledger) -> None:
    ledger.open_account("pure", 10.0, 3e-8)
    for _ in range(5):
        ledger.charge("pure", CERTIFIED, 2, fingerprint=ONE)
    ledger.charge("pure", CERTIFIED, 2, fingerprint=TWO)
    assert ledger.spent("pure") == compose_fits([(CERTIFIED, 10), (CERTIFIED, 2)])
    assert ledger.affordable("pure", CERTIFIED, THREE) == 87
    assert ledger.affordable("pure", Guarantee(0.1, 2e-8), THREE) == 0


def test_pure_accounts_pay_no_certificate_without_delta(ledger: Ledger) -> None:
    ledger.open_account("pure", 10.0)
    assert ledger.affordable("pure", CERTIFIED, ONE) == 0
    assert ledger.affordable("pure", UNIT, ONE) == 100


@pytest.mark.parametrize("certificate_delta", [0.0, 3e-8])
def test_zcdp_as_several_fits(ledger: Ledger, certificate_delta: float) -> None:
    account = ledger.open_account("zcdp", 7.0, 1e-6, "zcdp", certificate_delta)
    guarantees = [CERTIFIED, Guarantee(0.3, 2e-8, 0.6)] if certificate_delta else [UNIT, Guarantee(0.3)]
    ledger.charge("zcdp", guarantees[0], 20, fingerprint=ONE)
    ledger.charge("zcdp", guarantees[1], 5, fingerprint=TWO)
    ledger.charge("zcdp", guarantees[0], 10, fingerprint=ONE)
    expected = compose_fits([(guarantees[0], 30), (guarantees[1], 5)], 1e-6, "zcdp")
    spent = ledger.spent("zcdp")
    assert expected.epsilon <= spent.epsilon <= expected.epsilon * (1 + 1e-9)
    assert (spent.delta, spent.rule) == (1e-6, "zCDP")
    more = ledger.affordable("zcdp", guarantees[0], ONE)
    assert compose_fits([(guarantees[0], 30 + more), (guarantees[1], 5)], 1e-6, "zcdp").epsilon <= account.epsilon
    assert compose_fits([(guarantees[0], 31 + more), (guarantees[1], 5)], 1e-6, "zcdp").epsilon > account.epsilon
    ledger.charge("zcdp", guarantees[0], more, fingerprint=ONE)
    assert ledger.affordable("zcdp", guarantees[0], ONE) == 0
    assert ledger.spent("zcdp").epsilon <= account.epsilon


def test_iid_is_the_exact_curve_of_one_density(ledger: Ledger) -> None:
    account = ledger.open_account("iid", 3.0, 1e-6, "iid", CERTIFIED.delta)
    more = ledger.affordable("iid", CERTIFIED, ONE)
    assert compose(CERTIFIED, more, 1e-6).epsilon <= account.epsilon * (1 + 1e-4)
    assert compose(CERTIFIED, more + 1, 1e-6).epsilon > account.epsilon
    assert more > 1.05 * ledger.affordable("iid", Guarantee(0.1, 0.0, 0.2), ONE) or more >= 30
    ledger.charge("iid", CERTIFIED, 10, fingerprint=ONE)
    assert ledger.spent("iid").epsilon == pytest.approx(compose(CERTIFIED, 10, 1e-6).epsilon, rel=1e-4)
    assert ledger.affordable("iid", CERTIFIED, ONE) == more - 10
    assert ledger.affordable("iid", CERTIFIED, TWO) == 0
    match = "fingerprint must name the one density .* 'iid' is for, got another density. Nothing was .*rule 'zcdp'"
    with pytest.raises(BudgetExceededError, match=match) as caught:
        ledger.charge("iid", CERTIFIED, 1, fingerprint=TWO)
    assert not shows_part(str(caught.value), ONE) and not shows_part(str(caught.value), TWO)
    with pytest.raises(BudgetExceededError, match="guarantee must be that of account 'iid'.* Nothing was charged"):
        ledger.charge("iid", UNIT, 1, fingerprint=ONE)
    assert len(ledger.charges("iid")) == 1
    ledger.charge("iid", CERTIFIED, more - 10, fingerprint=ONE)
    assert ledger.spent("iid").epsilon <= account.epsilon
    with pytest.raises(BudgetExceededError, match="at most 0"):
        ledger.charge("iid", CERTIFIED, 1, fingerprint=ONE)


def test_iid_and_zcdp_bear_more_than_pure_and_iid_most(ledger: Ledger) -> None:
    numbers = {}
    for rule in ("pure", "zcdp", "iid"):
        ledger.open_account(rule, 8.0, 1e-6, rule)
        numbers[rule] = ledger.affordable(rule, UNIT, ONE)
    assert numbers["pure"] == 80
    assert numbers["pure"] < numbers["zcdp"] < numbers["iid"]


def test_certificates_are_set_aside_at_opening(ledger: Ledger) -> None:
    """What was not used for certificates does not buy draws."""
    account = ledger.open_account("zcdp", 8.0, 1e-3, "zcdp")
    assert account.certificate_delta == pytest.approx(1e-4)
    ledger.charge("zcdp", UNIT, 1, fingerprint=ONE)
    expected = compose_fits([(UNIT, 1)], 9e-4, "zcdp").epsilon - math.log1p(-1e-4)
    assert ledger.spent("zcdp").epsilon == pytest.approx(expected, rel=1e-9)
    with pytest.raises(BudgetExceededError):
        ledger.charge("zcdp", Guarantee(0.1, 2e-4), 1, fingerprint=TWO)


@pytest.mark.parametrize("rule", ["pure", "zcdp", "iid"])
@pytest.mark.parametrize("seed", range(2))
def test_attack_by_random_charges(ledger: Ledger, rule: str, seed: int) -> None:
    """What was granted, added up anew by other code, is never past the limit; and a little more would have been."""
    generator = random.Random(seed)
    delta = generator.choice([1e-7, 1e-4])
    epsilon = generator.choice([0.5, 3.0])
    account = ledger.open_account("attacked", epsilon, delta, rule)
    granted: list[tuple[str, Guarantee, int]] = []
    refusals = 0
    for _ in range(40):
        size, certificate = 10 ** generator.uniform(-3, 0), generator.choice([0.0, delta / 35, delta / 300])
        density, guarantee = generator.choice(DENSITIES), Guarantee(size, certificate, size * generator.choice([1, 2]))
        if rule == "iid" and granted:
            density, guarantee = granted[0][:2]
        affordable = ledger.affordable("attacked", guarantee, density)
        num_draws = generator.choice([1, max(affordable // 4, 1), affordable + 1])
        try:
            ledger.charge("attacked", guarantee, num_draws, fingerprint=density)
            assert num_draws <= affordable
            granted.append((density, guarantee, num_draws))
        except BudgetExceededError:
            assert num_draws > affordable
            refusals += 1
    assert granted and refusals
    certificates = sum(Fraction(repr(g.delta)) for g in {(density, g): g for density, g, _ in granted}.values())
    spent = ledger.spent("attacked")
    assert certificates <= Fraction(repr(account.certificate_delta))
    assert spent.epsilon <= epsilon and spent.delta <= delta
    shares = math.fsum(-math.log1p(-g.delta) for g in {(density, g): g for density, g, _ in granted}.values())
    if rule == "pure":
        total = float(sum(num_draws * Fraction(repr(g.epsilon)) for _, g, num_draws in granted)) + shares
        assert total <= epsilon * (1 + 1e-15)
    elif rule == "zcdp":
        rho = sum(k * min(g.epsilon**2 / 2, (g.log_ratio_range or 0) ** 2 / 8) for _, g, k in granted)
        orders = [1 + 10 ** (step / 200) for step in range(-800, 1200)]
        rest = math.log(1 / (delta - account.certificate_delta))
        total = min(rho * a + (rest - math.log(a)) / (a - 1) + math.log1p(-1 / a) for a in orders)
        total += -math.log1p(-account.certificate_delta)
        assert total <= epsilon * (1 + 1e-3)
    else:
        num_draws = sum(k for *_, k in granted)
        uncertified = Guarantee(granted[0][1].epsilon, 0.0, granted[0][1].log_ratio_range)
        total = compose(uncertified, num_draws, delta - account.certificate_delta).epsilon
        total += -math.log1p(-account.certificate_delta)
        assert total <= epsilon * (1 + 1e-4)
    assert spent.epsilon == pytest.approx(total, rel=1e-3)
    assert ledger.verify().ok


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        ({"epsilon": 0}, ValueError, "epsilon must be above 0"),
        ({"epsilon": -1.0}, ValueError, "epsilon must be above 0"),
        ({"epsilon": math.nan}, ValueError, "epsilon must be above 0"),
        ({"epsilon": math.inf}, ValueError, "epsilon must be finite"),
        ({"epsilon": True}, TypeError, "epsilon must be a real number"),
        ({"epsilon": "1"}, TypeError, "epsilon must be a real number"),
        ({"delta": -1e-9}, ValueError, r"delta must be in \[0, 1\)"),
        ({"delta": 1.0}, ValueError, r"delta must be in \[0, 1\)"),
        ({"delta": math.nan}, ValueError, r"delta must be in \[0, 1\)"),
        ({"delta": False}, TypeError, "delta must be a real number"),
        ({"rule": "zcdp"}, ValueError, "delta must be above 0 under the rule 'zcdp'"),
        ({"rule": "renyi"}, ValueError, "rule must be one of pure, zcdp, iid"),
        ({"rule": None}, TypeError, "rule must be a string"),
        ({"delta": 1e-6, "certificate_delta": 1e-7}, ValueError, "must be delta under the rule 'pure'"),
        ({"rule": "iid", "delta": 1e-6, "certificate_delta": 1e-6}, ValueError, "be at least 0 and below delta"),
        ({"rule": "iid", "delta": 1e-6, "certificate_delta": -1e-7}, ValueError, "be at least 0 and below delta"),
        ({"rule": "iid", "delta": 1e-6, "certificate_delta": math.nan}, ValueError, "be at least 0 and below delta"),
        ({"rule": "iid", "delta": 1e-6, "certificate_delta": "0"}, TypeError, "must be a real number"),
        ({"rule": "zcdp", "delta": 0.9, "epsilon": 0.01}, ValueError, "epsilon must be above what certificates take"),
        ({"name": ""}, ValueError, "name must be at least one character"),
        ({"name": "a" * 201}, ValueError, "name must be at most 200 characters"),
        ({"name": "a\nb"}, ValueError, "name must be printable"),
        ({"name": " a"}, ValueError, "name must be printable"),
        ({"name": "a\0"}, ValueError, "name must be printable"),
        ({"name": "\ud800"}, ValueError, "name must be printable"),
        ({"name": b"a"}, TypeError, "name must be a string"),
        ({"name": "taken"}, ValueError, "name must be new to the ledger"),
    ],
)
def test_odd_accounts_are_refused(ledger: Ledger, arguments: dict[str, Any], kind: type[Exception], match: str) -> None:
    ledger.open_account("taken", 1.0)
    with pytest.raises(kind, match=match):
        ledger.open_account(**{"name": "new", "epsilon": 1.0, **arguments})
    assert len(ledger.accounts()) == 1


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        ({"num_draws": 0}, ValueError, "num_draws must be at least 1"),
        ({"num_draws": -1}, ValueError, "num_draws must be at least 1"),
        ({"num_draws": 10**13}, ValueError, "num_draws must be at most 1,000,000,000,000"),
        ({"num_draws": 1.0}, TypeError, "num_draws must be a whole number"),
        ({"num_draws": True}, TypeError, "num_draws must be a whole number"),
        ({"guarantee": 0.1}, TypeError, "guarantee must be a Guarantee"),
        ({"guarantee": Guarantee(math.inf)}, BudgetExceededError, "at most 0"),
        ({"guarantee": Guarantee(1e308), "num_draws": 10**12}, BudgetExceededError, "at most 0"),
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


def test_extremes(ledger: Ledger) -> None:
    ledger.open_account("a", 1e300, 0.5)
    assert ledger.affordable("a", Guarantee(0.0), ONE) == 10**12
    ledger.charge("a", Guarantee(-0.0), 10**12, fingerprint=ONE)
    assert ledger.affordable("a", Guarantee(0.0), ONE) == 0
    ledger.charge("a", Guarantee(1e299, 5e-324), 9, fingerprint=TWO)  # 10 and a certificate are too many
    ledger.open_account("tiny", 5e-324, 5e-324)
    ledger.charge("tiny", Guarantee(5e-324), 1, fingerprint=ONE)
    assert ledger.spent("tiny").epsilon == 5e-324
    assert ledger.verify().ok
    for name in ("a", "tiny"):
        assert len(ledger.charges(name)) == len({charge.number for charge in ledger.charges(name)})


@pytest.mark.parametrize(
    ("path", "kind", "match"),
    [
        ("", ValueError, "path_or_url must be the path of a file"),
        (":memory:", ValueError, "outlive the process"),
        ("sqlite://", ValueError, "name a file"),
        ("sqlite:///:memory:", ValueError, "name a file"),
        ("sqlite:///a.db?mode=memory", ValueError, "name a file"),
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


def test_many_at_once_in_short(store: Store, tmp_path: Path) -> None:
    many_at_once(store, tmp_path, num_processes=8, seconds=2)


@pytest.mark.slow
def test_many_at_once(store: Store, tmp_path: Path) -> None:
    many_at_once(store, tmp_path, num_processes=16, seconds=60)


def many_at_once(store: Store, folder: Path, num_processes: int, seconds: float) -> None:
    """The small account is filled to the last draw, and all was granted that is counted."""
    with Ledger(store.url) as ledger:
        ledger.open_account("small", 6.0)
        ledger.open_account("large", 1e6, 1e-6, "zcdp")
        begin = processes.Barrier(num_processes)
        children = [
            start(ledger_stores.charge_until, store.url, worker, seconds, str(folder), begin)
            for worker in range(num_processes)
        ]
        for child in children:
            child.join(seconds + 120)
            assert child.exitcode == 0
        told = [json.loads((folder / f"{worker}.json").read_text()) for worker in range(num_processes)]
        assert sum(one["small"] for one in told) == 60
        assert sum(one["refused"] for one in told) > 0
        for name in ("small", "large"):
            charges = ledger.charges(name)
            assert sum(charge.num_draws for charge in charges) == sum(one[name] for one in told)
            for worker, one in enumerate(told):
                assert sum(c.num_draws for c in charges if c.purpose == str(worker)) == one[name]
        assert ledger.spent("small") == TotalCost(6.0, 0.0, "pure composition")
        assert ledger.affordable("small", UNIT, ONE) == 0
        verification = ledger.verify()
        assert verification.ok, verification.problems
        num_charges = verification.num_charges
        print(f"{num_charges / seconds:.0f} charges/s by {num_processes} processes, {num_charges} in all")
        numbers = sorted(charge.number for name in ("small", "large") for charge in ledger.charges(name))
        assert numbers == list(range(3, 3 + num_charges))


def test_killed_in_short(store: Store, tmp_path: Path) -> None:
    killed(store, tmp_path / "drawn", 15)


@pytest.mark.slow
def test_killed(store: Store, tmp_path: Path) -> None:
    killed(store, tmp_path / "drawn", 500)


def killed(store: Store, path: Path, num_kills: int) -> None:
    """Whatever the moment, every draw has its charge, and the ledger opens and is whole.

    Every other child is killed while it opens the ledger, the rest at any moment of a few draws after their first,
    however long this machine takes for either.
    """
    generator = random.Random(0)
    path.touch()
    with Ledger(store.url) as ledger:
        ledger.open_account("large", 1e6)
    opening = 0.1
    for kill in range(num_kills):
        begun = path.with_name(f"{path.name}.begun")
        begun.unlink(missing_ok=True)
        child = start(ledger_stores.charge_and_draw, store.url, str(path))
        while not begun.exists():
            assert child.is_alive()
            time.sleep(0.001)
        if kill % 2:
            time.sleep(generator.uniform(0, opening))
        else:
            size, start_of_opening = path.stat().st_size, time.monotonic()
            while path.stat().st_size == size:
                assert child.is_alive()
                time.sleep(0.001)
            opening = time.monotonic() - start_of_opening
            time.sleep(generator.uniform(0, 0.03))
        child.kill()
        child.join()
        with Ledger(store.url) as ledger:
            ledger.head()
            if kill % 25 == 24 or kill == num_kills - 1:
                verification = ledger.verify()
                assert verification.ok, verification.problems
                drawn = [int(line) for line in path.read_text().splitlines()]
                charged = [charge.number for charge in ledger.charges("large")]
                assert set(drawn) <= set(charged)
                assert len(drawn) == len(set(drawn)) and sorted(charged) == list(range(2, 2 + len(charged)))
    assert len(drawn) >= num_kills / 2
    print(f"{num_kills} kills, {len(charged)} charges, {len(drawn)} drawn")


def test_threads(ledger: Ledger) -> None:
    ledger.open_account("small", 3.0)
    granted: list[int] = []

    def work() -> None:
        for _ in range(5):
            try:
                granted.append(ledger.charge("small", UNIT, 1, fingerprint=ONE).number)
            except BudgetExceededError:
                return

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(granted) == list(range(2, 32))
    assert ledger.verify().ok


def test_a_fork_has_connections_of_its_own(ledger: Ledger) -> None:
    ledger.open_account("a", 10.0)
    ledger.charge("a", UNIT, 1, fingerprint=ONE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        children = []
        for _ in range(4):
            if not (child := os.fork()):
                try:
                    for _ in range(5):
                        ledger.charge("a", UNIT, 1, fingerprint=ONE)
                    ledger.close()
                finally:
                    os._exit(0)
            children.append(child)
    for _ in range(5):
        ledger.charge("a", UNIT, 1, fingerprint=ONE)
    for child in children:
        os.waitpid(child, 0)
    assert ledger.verify().num_charges == 26
    assert ledger.verify().ok


def test_a_clock_that_runs_backwards(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    times = [datetime(2030, 1, 1, tzinfo=UTC) - timedelta(days=day) for day in range(5)]
    monkeypatch.setattr(ledger_module, "_now", lambda: times.pop(0))
    ledger.open_account("a", 1.0)
    for _ in range(4):
        ledger.charge("a", UNIT, 1, fingerprint=ONE)
    charges = ledger.charges("a")
    assert [charge.number for charge in charges] == [2, 3, 4, 5]
    assert charges[0].when == datetime(2029, 12, 31, tzinfo=UTC) and charges[-1].when < charges[0].when
    assert ledger.verify().ok


def filled(url: str) -> None:
    """Entries 1 and 2 open accounts a and b; charges 3 to 10 go to a (odd) and b (even)."""
    with Ledger(url) as ledger:
        ledger.open_account("a", 10.0, 1e-6)
        ledger.open_account("b", 10.0, 1e-6, "zcdp")
        for number in range(3, 11):
            name = "a" if number % 2 else "b"
            ledger.charge(name, UNIT, number, fingerprint=DENSITIES[number], purpose=f"look {number}", who="Ann")
        assert ledger.verify().ok


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
        ["entry 5, the charge to account 'a' was edited", "sum of account 'a'.*tells of 5 draws.*its charges of 1"],
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
        ["the sum of account 'a' tells of 1 draws of the density of entry 7, its charges of 7"],
    ),
    "sum deleted": (
        one_statement("DELETE FROM mbde_tallies WHERE num_draws = 7"),
        ["the sum of account 'a' tells of 0 draws of the density of entry 7, its charges of 7"],
    ),
    "impossible": (
        one_statement("UPDATE mbde_charges SET log_ratio_range = 5 WHERE number = 5"),
        ["entry 5, .* tells of no charge that can be", "entry 5, .* was edited"],
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
            with pytest.raises(LedgerError, match="tampered with. See what verify") as caught:
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
        "UPDATE mbde_ledger SET hash = '00'",
        "UPDATE mbde_ledger SET identity = '00'",
        "UPDATE mbde_ledger SET number = number + 2",
    ]
    if store.path is not None:
        charge = "account, charged, fingerprint, 1, epsilon, delta, log_ratio_range, purpose, who, previous, hash"
        account = "10000, delta, rule, certificate_delta, opened, previous, hash FROM mbde_accounts"
        tally = "epsilon, delta, log_ratio_range, 1 FROM mbde_tallies"
        columns = "number, account, charged, fingerprint, num_draws, epsilon, delta, log_ratio_range, purpose, who"
        statements += [
            f"REPLACE INTO mbde_charges SELECT number, {charge} FROM mbde_charges",
            f"INSERT OR REPLACE INTO mbde_charges SELECT CAST(number AS TEXT), {charge} FROM mbde_charges",
            f"INSERT OR IGNORE INTO mbde_charges SELECT 0.0 + number, {charge} FROM mbde_charges",
            f"REPLACE INTO mbde_charges (rowid, {columns.split(', ', 1)[1]}, previous, hash) "
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
    assert problems == ["the trigger mbde_charges_no_update is missing, which forbids to change rows"]


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
        altered = "the trigger mbde_charges_no_update was altered, which forbids to change rows"
        assert ledger.verify().problems == [altered]
        if store.path is None:
            with admin(store.url) as execute:
                execute(
                    "CREATE OR REPLACE FUNCTION mbde_refuse() RETURNS trigger LANGUAGE plpgsql AS "
                    "$$ BEGIN RETURN NEW; END $$"
                )
            problems = ledger.verify().problems
            assert len(problems) == 12 and altered in problems
            assert "the trigger mbde_ledger_no_truncate was altered, which forbids to change rows" in problems


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
            names = ("account", "fingerprint", "epsilon", "delta", "log_ratio_range", "num_draws")
            execute(
                f"INSERT INTO mbde_tallies ({', '.join(names)}) VALUES (?, ?, ?, ?, ?, ?)",
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
    filled_anew = Store(store.url, store.path)
    with filled_anew.raw() as execute:
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
        with pytest.raises(BudgetExceededError, match="at most 0"):
            ledger.charge("a", UNIT, 1, fingerprint=ONE)


def test_a_flipped_byte_of_the_file_changes_nothing_unseen(tmp_path: Path) -> None:
    """At a byte that is used, the ledger does not verify; at any other, it tells the same as before."""
    path, damaged = tmp_path / "budget.db", tmp_path / "damaged.db"
    filled(str(path))
    content, generator, found = path.read_bytes(), random.Random(0), 0
    with Ledger(path) as ledger:
        truth = (ledger.accounts(), ledger.charges("a"), ledger.charges("b"), ledger.head())
    used = [place for place, byte in enumerate(content) if byte]
    for place in [*generator.sample(used, 90), *generator.sample(range(len(content)), 10)]:
        flipped = bytearray(content)
        flipped[place] ^= 1 << generator.randrange(8)
        damaged.write_bytes(flipped)
        try:
            with Ledger(damaged) as ledger:
                if ledger.verify().ok:
                    told = (ledger.accounts(), ledger.charges("a"), ledger.charges("b"), ledger.head())
                    assert told == truth
                else:
                    found += 1
        except LedgerError:
            found += 1
        for leftover in tmp_path.glob("damaged.db*"):
            leftover.unlink()
    assert found > 40


def test_a_truncated_file_is_found(file: Store) -> None:
    assert file.path is not None
    with Ledger(file.url) as ledger:
        for _ in range(30):
            ledger.charge("large", UNIT, 1, fingerprint=ONE, purpose="x" * 1500)
    content = file.path.read_bytes()
    for share in (0.3, 0.6, 0.9):
        file.path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(LedgerError, match="damaged|no database"), Ledger(file.url) as ledger:
            assert not ledger.verify().ok
            raise LedgerError("damaged, as verify told")


def check_full(path: Path, report: Path, problem: str) -> None:
    told = json.loads(report.read_text())
    assert told["num_charges"] > 0
    for error in told["errors"]:
        assert problem in error and str(path) in error and "Nothing was charged" in error
    assert len(told["errors"]) == 2
    with Ledger(path) as ledger:
        verification = ledger.verify()
        assert verification.ok, verification.problems
        assert verification.num_charges == told["num_charges"]


def test_a_file_that_may_not_grow_loses_nothing(file: Store, tmp_path: Path) -> None:
    assert file.path is not None
    run(ledger_stores.fill_disk, file.url, 400_000, str(tmp_path / "report"))
    check_full(file.path, tmp_path / "report", "lets no more be written")
    with Ledger(file.url) as ledger:
        ledger.charge("large", UNIT, 1, fingerprint=ONE)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.getuid() or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no right to mount a small disk")
    try:
        with Ledger(disk / "budget.db") as ledger:
            ledger.open_account("large", 1e6)
        run(ledger_stores.fill_disk, str(disk / "budget.db"), 0, str(tmp_path / "report"))
        shutil.copytree(disk, tmp_path / "copy")
        told = json.loads((tmp_path / "report").read_text())
        assert "its disk is full. Make room and try again." in told["errors"][0]
        with Ledger(tmp_path / "copy" / "budget.db") as ledger:
            verification = ledger.verify()
        assert verification.ok and verification.num_charges == told["num_charges"] > 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("folder_too", [False, True])
def test_a_file_that_may_not_be_written(folder_too: bool) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # one that everybody can enter, up to the root
        path, report = Path(folder, "sub", "budget.db"), Path(folder, "report")
        path.parent.mkdir()
        with Ledger(path) as ledger:
            ledger.open_account("large", 1.0)
        report.touch()
        for place, mode in ((report, 0o666), (path, 0o444), (path.parent, 0o555 if folder_too else 0o777)):
            place.chmod(mode)
        Path(folder).chmod(0o755)
        before = path.read_bytes()
        run(ledger_stores.use_as_nobody, str(path), str(report))
        (error,) = json.loads(report.read_text())
        assert "writable" in error and str(path) in error
        assert path.read_bytes() == before
        for place in (path, path.parent):
            place.chmod(0o777)
        with Ledger(path) as ledger:
            assert ledger.verify().ok


def test_locked_for_too_long(store: Store) -> None:
    filled(store.url)
    with Ledger(store.url, timeout=0.2) as ledger:
        if store.path is not None:
            connection = sqlite3.connect(store.path, isolation_level=None)
            connection.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerError, match="locked for too long.*Try again"):
                ledger.charge("a", UNIT, 1, fingerprint=ONE)
            assert ledger.verify().ok  # readers are not in the way
            connection.close()
        else:
            engine_url = make_url(store.url).set(drivername="postgresql+psycopg")
            engine = create_engine(engine_url)
            with engine.begin() as holder:
                holder.execute(text("SELECT * FROM mbde_ledger FOR UPDATE"))
                with pytest.raises(LedgerError, match="locked for too long.*Try again"):
                    ledger.charge("a", UNIT, 1, fingerprint=ONE)
                assert ledger.verify().ok
            engine.dispose()
        assert ledger.charge("a", UNIT, 1, fingerprint=ONE).number == 11


def test_what_is_no_ledger_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Not a database, but long enough to be taken for one at first sight. " * 20)
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE patients (name TEXT)")
    connection.commit()
    connection.close()
    for place, match in ((path, "it is no database"), (other, "a database of something else.*left as it is")):
        before = place.read_bytes()
        with pytest.raises(LedgerError, match=match):
            Ledger(place)
        assert place.read_bytes() == before
    with pytest.raises(LedgerError, match="cannot be opened.*Check that its folder exists"):
        Ledger(tmp_path / "nowhere" / "budget.db")
    with pytest.raises(LedgerError, match="cannot be opened"):
        Ledger(tmp_path)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["notes.txt", "other.db"]


def version_of(store: Store) -> int:
    return int(store.rows("mbde_ledger")[0]["version"])


def test_migration(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(store.url)
    assert version_of(store) == 1

    def add_column(connection: Any) -> None:
        connection.execute(text("ALTER TABLE mbde_charges ADD COLUMN note TEXT"))

    def fail(connection: Any) -> None:
        add_column(connection)
        connection.execute(text("SELECT * FROM nowhere"))

    monkeypatch.setattr(schema, "MIGRATIONS", [fail])
    with pytest.raises(LedgerError):
        Ledger(store.url)
    assert version_of(store) == 1
    monkeypatch.setattr(schema, "MIGRATIONS", [add_column])
    with Ledger(store.url) as ledger:
        assert version_of(store) == 2
        ledger.charge("a", UNIT, 1, fingerprint=ONE)
        assert ledger.verify().ok
    monkeypatch.setattr(schema, "MIGRATIONS", [])
    with pytest.raises(LedgerError, match="a newer release of pyro_mbde wrote it, in version 2.*update pyro_mbde"):
        Ledger(store.url)
    assert version_of(store) == 2


def test_a_ledger_of_version_1_opens(tmp_path: Path) -> None:
    """Written by the first release that had ledgers: its tables, floats and hashes are for good."""
    path = tmp_path / "budget.db"
    connection = sqlite3.connect(path)
    connection.executescript((Path(__file__).parent / "ledger_version_1.sql").read_text())
    connection.close()
    with Ledger(path) as ledger:
        verification = ledger.verify()
        assert verification.ok, verification.problems
        assert verification.num_charges == 8
        assert verification.head == (Path(__file__).parent / "ledger_version_1.sql").read_text().split()[1]
        assert ledger.charge("a", UNIT, 1, fingerprint=ONE).number == 11
        assert ledger.verify(verification.head).ok


@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
class TestPostgreSQL:
    def test_neither_repr_nor_errors_show_the_password(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        url = make_url(store.url)
        with Ledger(store.url) as ledger:
            assert str(url.password) not in repr(ledger) and "***" in repr(ledger)
        wrong = [
            (url.set(password="wrong-secret"), "password authentication failed"),
            (url.set(database="nowhere"), "does not exist"),
            (url.set(port=1), "no connection.*Check that the server runs"),
        ]
        for other, match in wrong:
            with pytest.raises(LedgerError, match=match) as caught:
                Ledger(other.render_as_string(hide_password=False), timeout=2)
            assert str(other.password) not in str(caught.value)

    def test_what_the_server_refuses(self, store: Store) -> None:
        filled(store.url)
        name = make_url(store.url).database
        with admin(store.url) as execute:
            execute(
                "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100'; END $$"
            )
            execute("CREATE TRIGGER fail BEFORE UPDATE ON mbde_ledger FOR EACH ROW EXECUTE FUNCTION fail()")
            with Ledger(store.url) as ledger:
                with pytest.raises(LedgerError, match="its disk is full"):
                    ledger.charge("a", UNIT, 1, fingerprint=ONE)
                execute("DROP TRIGGER fail ON mbde_ledger")
                assert ledger.verify().ok
            execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            with Ledger(store.url) as ledger:
                assert ledger.verify().num_charges == 8
                with pytest.raises(LedgerError, match="it cannot be written"):
                    ledger.charge("a", UNIT, 1, fingerprint=ONE)
            execute("SET default_transaction_read_only = off")
            execute(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
            role = f"auditor_{uuid.uuid4().hex}"
            execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p'")
            execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
            auditor = make_url(store.url).set(username=role, password="p").render_as_string(hide_password=False)
            with Ledger(auditor) as ledger:
                assert ledger.verify().ok
                with pytest.raises(LedgerError, match="its user may not do this"):
                    ledger.charge("a", UNIT, 1, fingerprint=ONE)
            execute(f"DROP OWNED BY {role}")
            execute(f"DROP ROLE {role}")

    def test_a_serialization_failure_is_tried_again(self, store: Store) -> None:
        filled(store.url)
        with admin(store.url) as execute:
            execute("CREATE SEQUENCE attempts")
            execute(
                "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('attempts') < 4 THEN "
                "RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END IF; RETURN NEW; END $$"
            )
            execute("CREATE TRIGGER fail BEFORE UPDATE ON mbde_ledger FOR EACH ROW EXECUTE FUNCTION fail()")
            with Ledger(store.url) as ledger:
                assert ledger.charge("a", UNIT, 1, fingerprint=ONE).number == 11
                assert ledger.verify().num_charges == 9
            assert execute("SELECT last_value FROM attempts") == [(4,)]

    def test_a_lost_connection(self, store: Store) -> None:
        filled(store.url)
        with Ledger(store.url) as ledger, admin(POSTGRESQL) as execute:
            ledger.head()
            end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = ? AND pid <> pg_backend_pid()"
            execute(end, make_url(store.url).database)
            assert ledger.charge("a", UNIT, 1, fingerprint=ONE).number == 11  # a new connection was made

    def test_another_programs_table_of_that_name(self, store: Store) -> None:
        with admin(store.url) as execute:
            execute("CREATE TABLE patients (name TEXT)")
            Ledger(store.url).close()  # beside other tables
            execute("DROP TABLE mbde_ledger")
            execute("CREATE TABLE mbde_ledger (name TEXT)")
        with pytest.raises(LedgerError, match="its table mbde_ledger tells no version.*left as it is"):
            Ledger(store.url)


def test_a_copy_of_the_file_alone_has_every_charge(tmp_path: Path) -> None:
    """Also while the ledger is open, as after a kill: what lies beside the file is carried over with each charge."""
    with Ledger(tmp_path / "budget.db") as ledger:
        ledger.open_account("a", 10.0)
        for _ in range(5):
            ledger.charge("a", UNIT, 1, fingerprint=ONE)
            shutil.copy(tmp_path / "budget.db", tmp_path / "copy.db")
            with Ledger(tmp_path / "copy.db") as copy:
                assert copy.verify().ok
                assert copy.head() == ledger.head()
            for path in tmp_path.glob("copy.db*"):
                path.unlink()
