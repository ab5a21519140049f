"""A ledger, releases, reports and audits in memory, to test the command line without the real ones."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pandas as pd

from pyro_mbde import Guarantee, MollifiedExpFamily, Schema, TotalCost, private_draws

WHEN = datetime(2026, 1, 2, tzinfo=UTC)


class LedgerError(RuntimeError):
    """A ledger that cannot be read."""


class BudgetExceededError(ValueError):
    """A charge beyond the limit."""


class Account(NamedTuple):
    name: str
    epsilon: float
    delta: float
    rule: str
    certificate_delta: float
    opened: datetime


class Charge(NamedTuple):
    number: int
    account: str
    when: datetime
    fingerprint: str
    num_draws: int
    guarantee: Guarantee
    purpose: str
    who: str
    hash: str


class Verification(NamedTuple):
    ok: bool
    num_charges: int
    head: str
    problems: list[str]


@dataclass
class State:
    accounts: dict[str, Account] = field(default_factory=dict)
    charges: list[Charge] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


#: The ledgers' content by path.
STATES: dict[str, State] = {}


class Ledger:
    def __init__(self, path: str) -> None:
        if "broken" in path:
            raise LedgerError("The ledger is broken.")
        Path(path).touch()
        self.state = STATES.setdefault(path, State())

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def open_account(
        self, name: str, epsilon: float, delta: float = 0.0, rule: str = "pure", certificate_delta: float | None = None
    ) -> Account:
        self.state.accounts[name] = Account(name, epsilon, delta, rule, certificate_delta or delta, WHEN)
        return self.state.accounts[name]

    def accounts(self) -> list[Account]:
        return list(self.state.accounts.values())

    def account(self, name: str) -> Account:
        if name not in self.state.accounts:
            raise ValueError(f"name must be of an account, got name={name!r}.")
        return self.state.accounts[name]

    def charges(self, name: str) -> list[Charge]:
        return [charge for charge in self.state.charges if charge.account == name]

    def spent(self, name: str) -> TotalCost:
        epsilon = sum(charge.num_draws * charge.guarantee.epsilon for charge in self.charges(name))
        return TotalCost(epsilon, max((charge.guarantee.delta for charge in self.charges(name)), default=0.0), "pure")

    def affordable(self, name: str, guarantee: Guarantee, fingerprint: str) -> int:
        return int((self.account(name).epsilon - self.spent(name).epsilon) // guarantee.epsilon)

    def head(self) -> str:
        return f"{len(self.state.charges):064x}"

    def verify(self, expected_head: str | None = None) -> Verification:
        problems = [*self.state.problems]
        if expected_head not in (None, self.head()):
            problems.append("the head is another")
        return Verification(not problems, len(self.state.charges), self.head(), problems)

    def charge(self, name: str, q: MollifiedExpFamily, num_draws: int, purpose: str, who: str | None) -> Charge:
        if num_draws > self.affordable(name, q.guarantee, ""):
            raise BudgetExceededError(f"num_draws must be at most what account {name!r} bears, got {num_draws}.")
        number = len(self.state.charges) + 1
        charge = Charge(number, name, WHEN, "5e" * 32, num_draws, q.guarantee, purpose, who or "me", "h" * 64)
        self.state.charges.append(charge)
        return charge


class Release(NamedTuple):
    rows: pd.DataFrame
    card: dict[str, Any]
    charge: Charge


def release(
    q: MollifiedExpFamily,
    num_draws: int,
    ledger: Ledger,
    account: str,
    *,
    path: Path,
    purpose: str = "",
    who: str | None = None,
    columns: Schema | None = None,
    seed: int | None = None,
    constant_time: bool = True,
    progress: bool = True,
) -> Release:
    assert not progress
    if path.exists():
        raise FileExistsError(f"path must name new files, got path={str(path)!r}.")
    charge = ledger.charge(account, q, num_draws, purpose, who)
    draws = private_draws(q, num_draws, seed=seed, progress=False)
    rows = pd.DataFrame(draws.numpy()) if columns is None else columns.to_frame(draws)
    rows.to_csv(path, index=False)
    card = {
        "guarantee": {"epsilon": q.epsilon, "delta": q.guarantee.delta},
        "constant_time": constant_time,
        "columns": [{"name": name, "kind": "real"} for name in rows],
        "tags": ["a", "b"],
    }
    path.with_name(f"{path.stem}.card.json").write_text(json.dumps(card))
    return Release(rows, card, charge)


def private_report(q: MollifiedExpFamily, data: Any = None, *, path: Path) -> None:
    path.write_text(f"{q!r} {None if data is None else tuple(data.shape)}")


class AuditReport(NamedTuple):
    passed: bool
    claimed_epsilon: float
    proven_epsilon: float

    def to_json(self) -> str:
        return json.dumps(self._asdict())

    def __str__(self) -> str:
        return f"audit: claimed {self.claimed_epsilon:g}, proven {self.proven_epsilon:g}"


def module() -> ModuleType:
    """The stand-in for ``pyro_mbde.privacy.ledger``."""
    stand_in: Any = ModuleType("pyro_mbde.privacy.ledger")
    stand_in.Ledger, stand_in.LedgerError, stand_in.BudgetExceededError = Ledger, LedgerError, BudgetExceededError
    return stand_in
