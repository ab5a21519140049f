"""Why an account refuses a charge: public numbers only, and which of them is exceeded."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_FLOOR, Context, Decimal

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
    left = shown(to_float(certificates_left(account, tallies)))
    constraint = (
        f"be at most {left} for a further certificate in account {account.name!r}, which has "
        f"delta={shown(account.certificate_delta)} for the certificates of all its densities"
    )
    if account.rule == "placement" and tallies:  # without a certificate a density has another total variation
        remedy = "Draw from a density that it has paid for before"
        remedy += "." if left == "0" else f", or fit with a delta of at most {left}."
        return argument_error("delta", constraint, asked.guarantee.delta, f"{_NOTHING} {remedy}")
    remedy = "Fit with delta=0, which needs no certificate"
    remedy += "" if left == "0" else f", or with a delta of at most {left}"
    remedy += "." if asked.guarantee.epsilon <= most else f"; and at an epsilon of at most {_rounded_down(most)}."
    return argument_error("delta", constraint, asked.guarantee.delta, f"{_NOTHING} {remedy}")


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
        constraint = f"be the only account charged for this density, and {other!r} is charged already"
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
