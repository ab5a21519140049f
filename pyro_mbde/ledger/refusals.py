"""Why an account refuses a charge: public numbers only, and which of them is exceeded."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_FLOOR, Context, Decimal
from typing import NamedTuple

from pyro_mbde._checks import argument_error, shown
from pyro_mbde.ledger.accounts import (
    Account,
    Tally,
    add_draws,
    affordable_draws,
    certificates_left,
    contradicts,
    is_affordable,
    setting,
    spent_by,
)
from pyro_mbde.privacy.accounting import exact_decimal, to_float
from pyro_mbde.privacy.guarantee import Guarantee

_NOTHING = "Nothing was charged, and nothing may be drawn."
#: Share of an account's epsilon that counts as nothing.
_NO_EPSILON = 1e-6
_HALVINGS = 60


def beyond_limits(account: Account, tallies: Sequence[Tally], asked: Tally) -> str:
    """Returns why draws exceed an account's delta or epsilon, and what it would afford.

    Args:
        account: the account that cannot afford them.
        tallies: what it has paid for.
        asked: the draws.
    """
    spent = spent_by(account, tallies)
    most = _most_epsilon(account, tallies, asked)
    if most <= _NO_EPSILON * account.epsilon:
        total = f"{shown(spent.epsilon)} of {shown(account.epsilon)}"
        what = "No more rows of this table may be released from it"
        return f"The account {account.name!r} is spent: epsilon {total}. {what}. {_NOTHING}"
    if certificates_left(account, add_draws(tallies, asked)) < 0:
        return _beyond_delta(account, tallies, asked, most)
    affordable = affordable_draws(account, tallies, asked.guarantee, asked.fingerprint)
    standing = (
        f"epsilon={shown(spent.epsilon)} of its epsilon={shown(account.epsilon)} are spent, added up by the rule "
        f"{account.rule!r} at delta={shown(account.delta)}, and one draw of this density has "
        f"epsilon={shown(asked.guarantee.epsilon)}"
    )
    if not affordable:
        smaller = _smaller(account, tallies, asked, most)
        return f"The account {account.name!r} cannot afford a draw of this density: {standing}. {_NOTHING} {smaller}"
    constraint = f"be at most {affordable:,} in account {account.name!r}: {standing}"
    return argument_error("num_draws", constraint, asked.num_draws, f"{_NOTHING} Ask for fewer.")


def _smaller(account: Account, tallies: Sequence[Tally], asked: Tally, most: float) -> str:
    """Which density an account could still afford a draw of, if it were fitted again."""
    row = f"One draw of a density that is fitted at an epsilon of at most {_rounded_down(most)} is within what is left"
    if asked.guarantee.delta == 0:
        return f"{row}."
    left = to_float(certificates_left(account, tallies))
    if left > 0:
        return f"{row}, if its delta is at most {shown(left)}."
    return f"{row}, if it has delta=0: nothing is left of delta for the certificate of another density."


def _most_epsilon(account: Account, tallies: Sequence[Tally], asked: Tally) -> float:
    """The largest epsilon of one more draw, certificates apart; where the first charge fixed it, that, or 0."""
    if account.rule in ("iid", "placement") and tallies:
        density = tallies[0]
        more = affordable_draws(account, tallies, density.guarantee, density.fingerprint)
        return density.guarantee.epsilon if more else 0.0
    if account.rule == "pure":  # as people add up decimals
        return max(to_float(exact_decimal(account.epsilon) - exact_decimal(spent_by(account, tallies).epsilon)), 0.0)
    spread = 1.0 if asked.guarantee.log_ratio_range <= asked.guarantee.epsilon else 2.0  # a priori, or calibrated

    def bears(epsilon: float) -> bool:
        return is_affordable(account, [*tallies, Tally("", Guarantee(epsilon, 0.0, spread * epsilon), 1)])

    low, high = 0.0, 2 * account.epsilon
    while bears(high):
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if bears(middle) else (low, middle)
    return low


def _rounded_down(epsilon: float) -> str:
    """At most six digits, and no more than the number unless it is above by a rounding of floats."""
    down = Context(prec=6, rounding=ROUND_FLOOR).plus(Decimal(epsilon * (1 + 1e-12)))
    return shown(float(down))


def _beyond_delta(account: Account, tallies: Sequence[Tally], asked: Tally, most: float) -> str:
    """Why a certificate cannot be paid for, and the ways out: the one that needs no other fit first."""
    remedies = []
    if any(is_affordable(account, add_draws(tallies, tally._replace(num_draws=1))) for tally in tallies):
        which = (
            "the density already charged"
            if len({tally.fingerprint for tally in tallies}) == 1
            else "a density charged before"
        )
        remedies.append(f"draw again from {which}, which needs no further certificate")
    left = to_float(certificates_left(account, tallies))
    if account.rule == "placement" and tallies:  # without a certificate a density has another total variation
        remedies += [f"fit with a delta of at most {shown(left)}"] if left else []
    else:
        fit = "fit with delta=0 (a-priori), which needs none"
        fit += f", or with a delta of at most {shown(left)}" if left else ""
        fit += "" if asked.guarantee.epsilon <= most else f"; and at an epsilon of at most {_rounded_down(most)}"
        remedies.append(fit)
    ways = ", or ".join(remedies)
    return f"{_certificate_cause(account, tallies, asked)}. {_NOTHING} {ways[:1].upper()}{ways[1:]}."


def _certificate_cause(account: Account, tallies: Sequence[Tally], asked: Tally) -> str:
    """What an account pays for certificates, what is left of it, and what one more would take."""
    needed = f"that of this density has delta={shown(asked.guarantee.delta)}"
    if not account.certificate_delta:
        return f"The account {account.name!r} pays for no certificates, and {needed}"
    left = to_float(certificates_left(account, tallies))
    most = f"The account {account.name!r} pays for certificates of at most delta={shown(account.certificate_delta)}"
    if left == account.certificate_delta:
        return f"{most} in all, and {needed}"
    used = "used all of it" if left <= 0 else f"left {shown(left)} of it"
    return f"{most} in all, the densities charged before have {used}, and {needed}"


class Shortage(NamedTuple):
    """Why an account cannot afford one more draw of a density.

    Attributes:
        limit: ``epsilon``, ``certificates`` (the delta for them), ``rule`` (how the account adds up) or ``account`` (it
            is closed, or the density was charged to another).
        reason: in words.
    """

    limit: str
    reason: str


def find_shortage(account: Account, tallies: Sequence[Tally], asked: Tally, other: str | None) -> Shortage | None:
    """Returns why an account cannot afford one draw of a density; None if it can.

    Args:
        account: the account.
        tallies: what it has paid for.
        asked: one draw.
        other: name of another account that the density was charged to, if any.
    """
    if account.closed is not None:
        return Shortage("account", "the account is closed")
    if other is not None:
        return Shortage("account", f"the account {other!r} is charged for this density already")
    if contradicts(tallies, asked):
        return Shortage("rule", "this density was charged with a smaller total variation")
    if refusal_reason(account, tallies, asked, other):
        same = "one density" if account.rule == "iid" else "densities of one epsilon and total variation"
        return Shortage("rule", f"by the rule {account.rule!r} the account is for {same}, which the first charge fixed")
    after = add_draws(tallies, asked)
    if is_affordable(account, after):
        return None
    spent = f"epsilon {shown(spent_by(account, tallies).epsilon)} of {shown(account.epsilon)} is spent"
    if _most_epsilon(account, tallies, asked) <= _NO_EPSILON * account.epsilon:
        return Shortage("epsilon", spent)
    if certificates_left(account, after) < 0:
        cause = _certificate_cause(account, tallies, asked)
        return Shortage("certificates", f"{cause[:1].lower()}{cause[1:]}")
    return Shortage("epsilon", f"{spent}, and one more draw of epsilon {shown(asked.guarantee.epsilon)} exceeds it")


def refusal_reason(account: Account, tallies: Sequence[Tally], asked: Tally, other: str | None) -> str:
    """Returns why an account cannot be charged for a density at all; empty if it can.

    Args:
        account: the account.
        tallies: what it has paid for.
        asked: the draws.
        other: name of another account that the density was charged to, if any.
    """
    if account.closed is not None:
        constraint = f"be that of an open account, and {account.name!r} was closed on {account.closed.date()}"
        return argument_error("account_name", constraint, account.name, f"{_NOTHING} Open another account.")
    if other is not None:
        constraint = f"be {other!r}, which is charged for this density already"
        remedy = "What its rows cost adds up in one account alone."
        return argument_error("account_name", constraint, account.name, f"{_NOTHING} {remedy}")
    if contradicts(tallies, asked):
        constraint = "have the total variation that this density was charged with, which is smaller"
        found = asked.guarantee.total_variation
        return argument_error("guarantee", constraint, found, f"{_NOTHING} Fit again: a density has one guarantee.")
    if account.rule == "placement":
        return _other_setting(account, tallies, asked)
    if account.rule != "iid":
        return ""
    remedy = f"{_NOTHING} Open another account for it, or one with the rule 'zcdp', which takes several densities."
    for tally in tallies:
        if tally.fingerprint != asked.fingerprint:
            constraint = f"name the one density that account {account.name!r} is for"
            return f"fingerprint must {constraint}, got another density. {remedy}"
        if tally.guarantee != asked.guarantee:
            constraint = f"be that of account {account.name!r}, {tally.guarantee}"
            return argument_error("guarantee", constraint, asked.guarantee, remedy)
    return ""


def _other_setting(account: Account, tallies: Sequence[Tally], asked: Tally) -> str:
    """Why an account by placement cannot be charged for a density with another epsilon or total variation."""
    found = setting(asked.guarantee)
    for fixed in {setting(tally.guarantee) for tally in tallies} - {found}:
        kept = f"epsilon={shown(fixed.epsilon)} and total variation {shown(fixed.total_variation)}"
        got = f"epsilon={shown(found.epsilon)} and total variation {shown(found.total_variation)}"
        return (
            f"guarantee must have {kept}, which the first charge to account {account.name!r} fixed, got {got}. "
            f"{_NOTHING} Fit with the epsilon and the skew of that first density, or open an account with the rule "
            "'zcdp', which takes any mixture."
        )
    return ""
