"""Why an account refuses a charge: public numbers only, and the one that stands in the way is named."""

from __future__ import annotations

from collections.abc import Iterable

from pyro_mbde._runtime import message, shown
from pyro_mbde.privacy.accounting import to_float
from pyro_mbde.privacy.accounts import (
    Account,
    Tally,
    add_draws,
    affordable_draws,
    bears_certificates,
    certificates_left,
    spent_by,
)

_NOTHING = "Nothing was charged, and nothing may be drawn."


def beyond_limits(account: Account, tallies: Iterable[Tally], asked: Tally) -> str:
    """Returns why draws go beyond an account's delta or epsilon, whichever it is.

    Args:
        account: which cannot bear them.
        tallies: what it has paid for.
        asked: the draws.
    """
    tallies = list(tallies)
    if not bears_certificates(account, add_draws(tallies, asked)):
        return _beyond_delta(account, tallies, asked)
    spent = spent_by(account, tallies)
    affordable = affordable_draws(account, tallies, asked.guarantee, asked.fingerprint)
    constraint = (
        f"be at most {affordable:,} in account {account.name!r}: epsilon={shown(spent.epsilon)} of its "
        f"epsilon={shown(account.epsilon)} are spent, added up by the rule {account.rule!r} at "
        f"delta={shown(account.delta)}, and one draw of this density has epsilon={shown(asked.guarantee.epsilon)}"
    )
    remedy = "Ask for fewer." if affordable else "What is left may bear a density that is fitted at a smaller epsilon."
    return message("num_draws", constraint, asked.num_draws, f"{_NOTHING} {remedy}")


def _beyond_delta(account: Account, tallies: list[Tally], asked: Tally) -> str:
    left = shown(to_float(certificates_left(account, tallies)))
    constraint = (
        f"be at most {left} for a further certificate in account {account.name!r}, which has "
        f"delta={shown(account.certificate_delta)} for the certificates of all its densities"
    )
    remedy = "Fit with delta=0, which needs no certificate"
    remedy += "." if left == "0" else f", or with a delta of at most {left}."
    return message("delta", constraint, asked.guarantee.delta, f"{_NOTHING} {remedy}")


def closed_or_elsewhere(account: Account, other: str | None) -> str:
    """Returns why an account cannot be charged for a density at all, or nothing.

    Args:
        account: any.
        other: name of another account that the density was charged to, if any.
    """
    if account.closed is not None:
        constraint = f"be that of an open account, and {account.name!r} was closed on {account.closed.date()}"
        return message("account_name", constraint, account.name, f"{_NOTHING} Open another account.")
    if other is not None:
        constraint = f"be the only account that bears this density, and {other!r} bears it already"
        remedy = "What its rows cost adds up in one account alone."
        return message("account_name", constraint, account.name, f"{_NOTHING} {remedy}")
    return ""


def other_density(account: Account, tallies: Iterable[Tally], asked: Tally) -> str:
    """Returns why an account for draws of one density does not bear these, or nothing.

    Args:
        account: any.
        tallies: what it has paid for.
        asked: the draws.
    """
    if account.rule != "iid":
        return ""
    remedy = f"{_NOTHING} Open another account for it, or one with the rule 'zcdp', which bears several densities."
    for tally in tallies:
        if tally.fingerprint != asked.fingerprint:
            constraint = f"name the one density that account {account.name!r} is for"
            return f"fingerprint must {constraint}, got another density. {remedy}"
        if tally.guarantee != asked.guarantee:
            constraint = f"be that of account {account.name!r}, {tally.guarantee}"
            return message("guarantee", constraint, asked.guarantee, remedy)
    return ""
