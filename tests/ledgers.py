"""A ledger in memory with the surface that a release needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyro_mbde import Guarantee, TotalCost, compose_fits


@dataclass(frozen=True)
class Account:
    """An account."""

    name: str
    epsilon: float
    delta: float
    rule: str
    certificate_delta: float | None
    opened: datetime


@dataclass(frozen=True)
class Charge:
    """A charge."""

    number: int
    account: str
    when: datetime
    fingerprint: str
    num_draws: int
    guarantee: Guarantee
    purpose: str
    who: str
    hash: str


class BudgetExceededError(ValueError):
    """The account cannot bear it."""


@dataclass
class MemoryLedger:
    """Adds up by pure composition or zCDP; notes every call."""

    name: str = "clinic"
    epsilon: float = 10.0
    delta: float = 0.0
    rule: str = "pure"
    charges: list[Charge] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    when: datetime = datetime(2026, 1, 31, 12, tzinfo=UTC)

    def account(self, name: str) -> Account:
        self.calls.append("account")
        if name != self.name:
            raise ValueError(f"name must be an account's, got name={name!r}.")
        return Account(self.name, self.epsilon, self.delta, self.rule, None, self.when)

    def charge(
        self,
        account_name: str,
        guarantee: Guarantee,
        num_draws: int,
        *,
        fingerprint: str,
        purpose: str = "",
        who: str | None = None,
    ) -> Charge:
        self.calls.append("charge")
        number = len(self.charges) + 1
        secret = f"{fingerprint}:{number}"
        charge = Charge(
            number, account_name, self.when, fingerprint, num_draws, guarantee, purpose, who or "login-name", secret
        )
        if self._total([*self.charges, charge]).epsilon > self.epsilon:
            raise BudgetExceededError("num_draws must be at most what is left.")
        self.charges.append(charge)
        return charge

    def spent(self, name: str) -> TotalCost:
        self.calls.append("spent")
        return self._total(self.charges)

    def _total(self, charges: list[Charge]) -> TotalCost:
        paid: dict[Any, int] = {}
        for charge in charges:
            paid[charge.guarantee] = paid.get(charge.guarantee, 0) + charge.num_draws
        delta = self.delta if self.rule == "zcdp" else None
        return compose_fits(list(paid.items()), delta, "zcdp" if self.rule == "zcdp" else "pure")
