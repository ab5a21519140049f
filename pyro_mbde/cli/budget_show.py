"""``pyro-mbde budget show``: accounts, what is spent of them, and their charges."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pyro_mbde.cli.console import Console, aligned

_OF_A_CHARGE = ("number", "when", "num_draws", "guarantee", "purpose", "who", "fingerprint", "hash")


def describe(account: Any) -> dict[str, Any]:
    """Returns an account for JSON."""
    return asdict(account)


def limits(account: Any) -> str:
    """Returns the limits of an account as people read them."""
    from pyro_mbde._checks import shown

    limits = f"epsilon {shown(account.epsilon)}, delta {shown(account.delta)}, rule {account.rule}"
    if account.rule != "pure":
        limits += f", delta {shown(account.certificate_delta)} of it for certificates"
    return limits


def show_all(console: Console, opened: Any) -> None:
    """Shows all accounts of a ledger."""
    accounts = opened.accounts()
    spent = [opened.spent(account.name) for account in accounts]
    document = {
        "accounts": [
            {**describe(account), "spent": {"epsilon": cost.epsilon, "delta": cost.delta}}
            for account, cost in zip(accounts, spent, strict=True)
        ],
        "shared_densities": opened.shared_densities(),
        "head": opened.head(),
    }
    rows = [("account", "rule", "epsilon spent", "delta spent", "opened")]
    rows += [
        (account.name, account.rule, *_standing(account, cost), _days(account))
        for account, cost in zip(accounts, spent, strict=True)
    ]
    _warn_of_shared(console, document["shared_densities"])
    console.answer(document, aligned(rows))


def show_one(console: Console, opened: Any, name: str, density: Any) -> None:
    """Shows an account, its charges, and how many more rows of a density it can afford."""
    from pyro_mbde._checks import shown
    from pyro_mbde.ledger.accounts import setting

    account, cost, charges = opened.account(name), opened.spent(name), opened.charges(name)
    shared = [names for names in opened.shared_densities() if account.name in names]
    document: dict[str, Any] = {
        **describe(account),
        "spent": {"epsilon": cost.epsilon, "delta": cost.delta},
        "shared_densities": shared,
        "charges": [{name: asdict(charge)[name] for name in _OF_A_CHARGE} for charge in charges],
    }
    epsilon, delta = _standing(account, cost)
    lines = [f"{account.name}, rule {account.rule}, opened {_days(account)}"]
    lines += [f"epsilon {epsilon} spent, delta {delta}"]
    if account.rule == "placement" and charges:
        fixed = setting(charges[0].guarantee)
        document["setting"] = {"epsilon": fixed.epsilon, "total_variation": fixed.total_variation}
        kind = f"epsilon {shown(fixed.epsilon)} and total variation {shown(fixed.total_variation)}"
        lines += [f"for models of {kind}, as the first charge fixed"]
    if density is not None:
        affordable = opened.affordable(name, density.guarantee, density.fingerprint)
        shortage = None if affordable else opened.shortage(name, density.guarantee, density.fingerprint)
        document["affordable"] = affordable
        document["shortage"] = None if shortage is None else shortage._asdict()
        line = (
            f"{affordable:,} more {_draws_of(density, affordable)} of this model, at epsilon {shown(density.epsilon)}"
        )
        lines += [line if affordable == 1 else f"{line} each"]
        lines += [] if shortage is None else [f"because {shortage.reason}"]
    if charges:
        rows = [("entry", "when", "draws", "epsilon of one", "model", "who", "purpose")]
        rows += [
            (
                str(charge.number),
                str(charge.when.date()),
                f"{charge.num_draws:,}",
                shown(charge.guarantee.epsilon),
                charge.fingerprint[:8],
                charge.who,
                charge.purpose,
            )
            for charge in charges
        ]
        lines += ["", aligned(rows)]
    _warn_of_shared(console, shared)
    console.answer(document, "\n".join(lines))


def _draws_of(density: Any, number: int) -> str:
    from pyro_mbde._checks import counted
    from pyro_mbde.density.base import PreparedBase

    num_rows = PreparedBase.of(density.base).num_rows
    if num_rows is None:
        return "row" if number == 1 else "rows"
    return f"{'batch' if number == 1 else 'batches'} of {counted(num_rows, 'row')}"


def _standing(account: Any, cost: Any) -> tuple[str, str]:
    from pyro_mbde._checks import shown

    return f"{shown(cost.epsilon)} of {shown(account.epsilon)}", f"{shown(cost.delta)} of {shown(account.delta)}"


def _days(account: Any) -> str:
    return f"{account.opened.date()}" + ("" if account.closed is None else f", closed {account.closed.date()}")


def _warn_of_shared(console: Console, shared: list[tuple[str, ...]]) -> None:
    for names in shared:
        console.warn(
            f"the accounts {', '.join(names)} are charged for rows of one density: their limits add up. "
            "See budget verify."
        )
