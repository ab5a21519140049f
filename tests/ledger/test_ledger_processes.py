"""A ledger under many at once, kills, forks and clocks: the sum is exact, every draw has its charge."""

from __future__ import annotations

import json
import os
import random
import threading
import time
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path

import ledger_stores
import pytest
from ledger_stores import (
    ONE,
    UNIT,
    Store,
    processes,
    start,
)

from pyro_mbde import BudgetExceededError, Ledger, TotalCost
from pyro_mbde.ledger import ledger as ledger_module


def test_many_at_once_in_short(store: Store, tmp_path: Path) -> None:
    many_at_once(store, tmp_path, num_processes=4, seconds=1)


@pytest.mark.slow
def test_many_at_once(store: Store, tmp_path: Path) -> None:
    many_at_once(store, tmp_path, num_processes=16, seconds=20)


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
    killed(store, tmp_path / "drawn", 6)


@pytest.mark.slow
def test_killed(store: Store, tmp_path: Path) -> None:
    """A moment that one kill in fifty hits is hit with a chance of 99 per cent."""
    killed(store, tmp_path / "drawn", 250)


def killed(store: Store, path: Path, num_kills: int) -> None:
    """Whatever the moment, every draw has its charge, and the ledger opens and is whole.

    Every other child is killed while it opens the ledger, the rest at any moment of a few draws after their first,
    however long this machine takes for either. A file is opened by a symbolic link in turn, after which the next one
    undoes by the other path what was interrupted.
    """
    generator = random.Random(0)
    path.touch()
    urls = [store.url]
    if store.path is not None:
        urls.append(str(path.with_name("link.db")))
        Path(urls[1]).symlink_to(store.path)
    with Ledger(store.url) as ledger:
        ledger.open_account("large", 1e6)
    opening = 0.1
    for kill in range(num_kills):
        begun = path.with_name(f"{path.name}.begun")
        begun.unlink(missing_ok=True)
        child = start(ledger_stores.charge_and_draw, urls[kill // 2 % len(urls)], str(path))
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


def test_a_fork_has_its_own_connections(ledger: Ledger) -> None:
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
