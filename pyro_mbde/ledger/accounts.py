"""Accounts of a privacy budget and the rules that they are charged by."""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from typing import Any, NamedTuple

from pyro_mbde._checks import argument_error, check_choice, check_epsilon, check_number
from pyro_mbde.names import normal_name
from pyro_mbde.privacy.accounting import (
    EXACT,
    PLACEMENT,
    PURE,
    ZCDP,
    TotalCost,
    compose,
    exact_decimal,
    round_up,
    sum_of_epsilons,
    to_float,
    zcdp_of_draw,
)
from pyro_mbde.privacy.guarantee import Guarantee
from pyro_mbde.privacy.iid import MOST_DRAWS, is_within
from pyro_mbde.privacy.placement import MAX_DRAWS, is_within_placement, placement_epsilon
from pyro_mbde.privacy.zcdp import zcdp_epsilon

RULES = ("pure", "zcdp", "placement", "iid")
#: Default of an account: it pays for a thousand certificates of 1e-9, and is far below 1 divided by the number of
#: people in most tables.
DEFAULT_DELTA = 1e-6
#: The largest number of draws of one density that is counted.
MAX_COUNTED = 10**12
#: Relative reserve for the rounding of zCDP.
_RESERVE = 1e-12
#: Largest epsilon of a draw for which placement is computed; beyond, floats overflow and nothing is gained.
_MAX_PLACED = 700.0
_MAX_NAME, _MAX_TEXT = 200, 2000  # characters


class BudgetExceededError(ValueError):
    """A charge that an account cannot afford. Nothing was charged, and nothing may be drawn.

    Its message holds public numbers only: those of the account, of earlier charges, and of the charge requested.
    """


@dataclass(frozen=True)
class Account:
    r"""A limit on what draws from one table may cost together, whoever draws them and on whatever grounds.

    Suppose that the settings of fits, and the charges, depend only on earlier draws and on public facts, and that
    nothing is drawn that was not charged. Then everything handed out is
    :math:`(\epsilon, \delta)`-integrally private, with the limits of the account. Proof: docs/proofs.md, *Accounts*.

    At every charge the rule requires the following, where :math:`k_i` is the number of draws of the i-th fitted
    density, C the part of delta set aside for certificates, and each certificate's :math:`\delta_i` is counted once,
    however many draws follow it:

    .. math::
        \text{pure:} \quad & \textstyle\sum k_i \epsilon_i \le \epsilon , \quad \sum \delta_i \le C = \delta \\
        \text{zcdp:} \quad & \epsilon_{\rho}(\textstyle\sum k_i \rho_i, \; \delta - C) \le \epsilon , \quad
            \sum \delta_i \le C \\
        \text{placement:} \quad & \epsilon_{\tau}(\textstyle\sum k_i, \; \delta - C) \le \epsilon , \quad
            \sum \delta_i \le C , \quad \text{one } (\epsilon_1, \tau) \text{ for all fits} \\
        \text{iid:} \quad & \epsilon_{k}(k, \; \delta - C) \le \epsilon , \quad \delta_1 \le C , \quad
            \text{one density only,}

    with :math:`\rho_i = \min(\epsilon_i^2/2, r_i^2/8)`, :math:`\epsilon_\rho` by
    :func:`~pyro_mbde.privacy.zcdp.zcdp_epsilon`, :math:`\epsilon_\tau` the smaller of
    :func:`~pyro_mbde.privacy.placement.placement_epsilon` and :math:`\sum k_i \epsilon_1`, and :math:`\epsilon_k` the
    smallest of the bounds of :func:`~pyro_mbde.compose` for k draws of one density, by epsilon and range.

    Under ``placement`` the first charge fixes what all fits are to have: epsilon, and the total variation
    :math:`\tau`, which follows from epsilon and the skew. Both are public settings, and no row was drawn before. Each
    certificate may have another delta. Two values that agree when rounded up to nine digits are the same.

    The rule and the split of delta cannot change, because the proof needs the same limit for every possible sequence of
    draws and charges. Whether a charge is refused depends on public numbers alone. Sums of epsilons and deltas are
    exact; each number is read as the decimal that Python prints for it: a hundred draws at 0.1 cost 10. zCDP
    and the exact curve are rounded up.

    One table should have one account. Charges to several accounts of one table, and anything learned from the table by
    other means, add up; the total can exceed the limit of each account.

    Attributes:
        name: name of the account, unique in its ledger.
        epsilon: limit in nats, above 0.
        delta: limit, in [0, 1).
        rule: ``pure``, ``zcdp``, ``placement`` or ``iid``.
        certificate_delta: C, the part of delta that the certificates of all fits together may use.
        opened: when, in UTC.
        closed: when the account was closed, which is possible only if it was never charged; ``None`` for an account
            that is open.

    References:
        Rogers, Roth, Ullman, Vadhan. Privacy Odometers and Filters. 2016 (pure). Feldman, Zrnic. Individual Privacy
        Accounting via a Rényi Filter. 2021. Theorem 3.1 (zCDP). Zhu, Dong, Wang. Optimal Accounting of Differential
        Privacy via Characteristic Function. 2022. Theorem 10 (placement).
    """

    name: str
    epsilon: float
    delta: float
    rule: str
    certificate_delta: float
    opened: datetime
    closed: datetime | None = None


@dataclass(frozen=True)
class Charge:
    """Draws that an account has paid for.

    Everything except the fingerprint and the hash is public. Without the model file, the fingerprint and the hash say
    nothing about the table (see :class:`~pyro_mbde.Ledger`). Even so, both are only for the data owner and auditors,
    and the fingerprint is not printed.

    Attributes:
        number: number of its entry in the ledger; openings and closings of accounts are numbered too.
        account: name of the account.
        when: what the clock said, in UTC; the order of charges is that of their numbers.
        fingerprint: name of the fitted density, in hexadecimal digits; random to anyone without the model file.
        num_draws: how many draws it pays for.
        guarantee: of one draw.
        purpose: what it was for, in the words of the person who charged it.
        who: who charged it.
        hash: SHA-256 of all the above and of the previous entry's hash.
        spent: what the account has spent, this charge included, if the object was returned by
            :meth:`~pyro_mbde.Ledger.charge`; ``None`` in lists of charges. Neither hashed nor compared.
    """

    number: int
    account: str
    when: datetime
    fingerprint: str = field(repr=False)
    num_draws: int
    guarantee: Guarantee
    purpose: str
    who: str
    hash: str
    spent: TotalCost | None = field(default=None, compare=False)


class Tally(NamedTuple):
    """All draws of one density at one guarantee that an account has paid for."""

    fingerprint: str
    guarantee: Guarantee
    num_draws: int

    def __repr__(self) -> str:
        """Leaves the fingerprint out."""
        return f"Tally(guarantee={self.guarantee!r}, num_draws={self.num_draws!r})"


def make_account(name: Any, epsilon: Any, delta: Any, rule: Any, certificate_delta: Any, opened: datetime) -> Account:
    """Checks every argument and returns an account whose delta is split as its rule requires.

    Args:
        name: the account's name; it is normalised to Unicode's form NFKC.
        epsilon: limit in nats, finite and above 0.
        delta: limit, in [0, 1).
        rule: ``pure``, ``zcdp``, ``placement`` or ``iid``.
        certificate_delta: the part of delta that is reserved for certificates. Under ``pure`` it is all of delta
            (``None``, or delta itself); otherwise it is in [0, delta), and ``None`` means a tenth.
        opened: when, in UTC.
    """
    name = check_text("name", normal_name(check_text("name", name)), _MAX_NAME)
    if not name:
        raise ValueError(argument_error("name", "be at least one character long", name))
    epsilon = check_epsilon(epsilon)
    check_number("epsilon", epsilon, "be finite", math.isfinite, remedy="An account needs a limit.")
    # Adding 0.0 turns -0.0 into 0.0, which is what databases give back.
    delta = check_number("delta", delta, "be in [0, 1)", lambda value: 0 <= value < 1) + 0.0
    check_choice("rule", rule, RULES)
    if rule == "pure":
        if certificate_delta is not None and certificate_delta != delta:
            remedy = "Leave it out: under this rule certificates may take all of delta."
            raise ValueError(
                argument_error("certificate_delta", "equal delta under the rule 'pure'", certificate_delta, remedy)
            )
        return Account(name, epsilon, delta, rule, delta, opened)
    if not delta > 0:
        raise ValueError(
            argument_error(
                "delta", f"be above 0 under the rule {rule!r}", delta, "Raise delta, or use the rule 'pure'."
            )
        )
    if certificate_delta is None:
        certificate_delta = delta / 10
    constraint = f"be at least 0 and below delta, {delta:g}"
    certificate_delta = check_number("certificate_delta", certificate_delta, constraint, lambda c: 0 <= c < delta) + 0.0
    check_number("certificate_delta", certificate_delta, constraint, lambda c: _conversion_delta(delta, c) > 0)
    return Account(name, epsilon, delta, rule, certificate_delta, opened)


def check_text(name: str, value: Any, max_length: int = _MAX_TEXT) -> str:
    """Returns ``value``, or raises if it is not a printable string or is too long."""
    if not isinstance(value, str):
        raise TypeError(argument_error(name, "be a string", value))
    if len(value) > max_length:
        raise ValueError(argument_error(name, f"be at most {max_length} characters long", value[:20] + "..."))
    if not value.isprintable() or value != value.strip():
        constraint = "consist of printable characters on one line, with no spaces at either end"
        raise ValueError(argument_error(name, constraint, value))
    return str(value)


def spent_by(account: Account, tallies: Sequence[Tally]) -> TotalCost:
    """Returns the total cost of draws under an account's rule; 0 if there are none.

    If there are draws, the delta returned under ``zcdp``, ``placement`` and ``iid`` is the account's whole delta.
    """
    if not tallies:
        rules = {"pure": PURE, "zcdp": ZCDP, "placement": PLACEMENT, "iid": EXACT}
        return TotalCost(0.0, 0.0, rules[account.rule])
    if any(math.isinf(tally.guarantee.epsilon) for tally in tallies):
        return TotalCost(math.inf, account.delta, PURE)
    if account.rule == "pure":
        # The exact sum is at most the limit's decimal, so the sum, rounded to the nearest float, is at most the limit.
        return TotalCost(to_float(_epsilons(tallies)), to_float(_certificates(tallies)), PURE)
    if account.rule == "zcdp":
        return TotalCost(_zcdp_epsilon(account, tallies), account.delta, ZCDP)
    if account.rule == "placement":
        return _spent_by_placement(account, tallies)
    first, num_draws = tallies[0], sum(tally.num_draws for tally in tallies)
    uncertified = Guarantee(first.guarantee.epsilon, log_ratio_range=first.guarantee.log_ratio_range)
    total = compose(uncertified, num_draws, _conversion_delta(account.delta, account.certificate_delta))
    epsilon = total.epsilon
    # is_affordable may succeed by a bound that the search in compose does not use.
    if epsilon > account.epsilon and is_affordable(account, tallies):
        epsilon = account.epsilon
    return TotalCost(epsilon, account.delta, total.rule)


def is_affordable(account: Account, tallies: Sequence[Tally]) -> bool:
    """Returns whether the draws, taken together, are within an account's limits, under its rule."""
    if any(tally.num_draws > MAX_COUNTED or math.isinf(tally.guarantee.epsilon) for tally in tallies):
        return False
    if certificates_left(account, tallies) < 0:
        return False
    if account.rule == "pure":
        return _epsilons(tallies) <= exact_decimal(account.epsilon)
    if account.rule == "zcdp":
        return not tallies or _zcdp_epsilon(account, tallies) <= account.epsilon
    if account.rule == "placement":
        return _placement_holds(account, tallies)
    if len({tally[:2] for tally in tallies}) > 1:
        return False
    return all(_iid_holds(account, tally.guarantee, tally.num_draws) for tally in tallies)


def certificates_left(account: Account, tallies: Sequence[Tally]) -> Fraction:
    """Returns how much of an account's ``certificate_delta`` is left, exactly; below 0 if it is exceeded."""
    return exact_decimal(account.certificate_delta) - _certificates(tallies)


def add_draws(tallies: Sequence[Tally], more: Tally) -> list[Tally]:
    """Returns tallies with draws added to those of the same density and guarantee."""
    rest = [tally for tally in tallies if tally[:2] != more[:2]]
    before = sum(tally.num_draws for tally in tallies if tally[:2] == more[:2])
    return [*rest, more._replace(num_draws=before + more.num_draws)]


def as_counted(tallies: Sequence[Tally], asked: Tally) -> Tally:
    """Returns draws with the total variation that they count with: at least that of earlier draws of their density.

    A charge by an earlier version of this library has none, and counts with the largest that its range allows.
    """
    for tally in tallies:
        if _key(tally) == _key(asked) and tally.guarantee.total_variation > asked.guarantee.total_variation:
            asked = asked._replace(guarantee=tally.guarantee)
    return asked


def contradicts(tallies: Sequence[Tally], asked: Tally) -> bool:
    """Returns whether draws of the same density were charged with a smaller total variation."""
    larger = asked.guarantee.total_variation
    return any(_key(tally) == _key(asked) and tally.guarantee.total_variation < larger for tally in tallies)


def _key(tally: Tally) -> tuple[str, float, float, float]:
    """What a ledger keeps one sum of."""
    guarantee = tally.guarantee
    return tally.fingerprint, guarantee.epsilon, guarantee.delta, guarantee.log_ratio_range


def affordable_draws(account: Account, tallies: Sequence[Tally], guarantee: Guarantee, fingerprint: str) -> int:
    """Returns how many more draws of a density an account can afford; at most :data:`MAX_COUNTED`.

    Args:
        account: the account.
        tallies: what it has paid for.
        guarantee: the guarantee of one draw.
        fingerprint: name of the density.
    """

    def exceeds(num_draws: int) -> bool:
        return not is_affordable(account, add_draws(tallies, Tally(fingerprint, guarantee, num_draws)))

    high = 1
    while high <= MAX_COUNTED and not exceeds(high):
        high *= 2
    low = high // 2
    return low + bisect_left(range(low + 1, min(high, MAX_COUNTED + 1)), True, key=exceeds)


def _certificates(tallies: Sequence[Tally]) -> Fraction:
    """Counts delta once for each guarantee of a density.

    Two guarantees that rest on one certificate count its delta twice, which errs on the safe side.
    """
    return sum((exact_decimal(tally.guarantee.delta) for tally in tallies), Fraction(0))


def _epsilons(tallies: Sequence[Tally]) -> Fraction:
    return sum_of_epsilons((tally.guarantee, tally.num_draws) for tally in tallies)


def _zcdp_epsilon(account: Account, tallies: Sequence[Tally]) -> float:
    try:
        rho = math.fsum(tally.num_draws * zcdp_of_draw(tally.guarantee) for tally in tallies) * (1 + _RESERVE)
    except OverflowError:
        return math.inf
    delta = _conversion_delta(account.delta, account.certificate_delta)
    return zcdp_epsilon(rho, delta) * (1 + _RESERVE) if rho < math.inf else math.inf


def setting(guarantee: Guarantee) -> Guarantee:
    """Returns what all fits of an account by placement have in common: epsilon and total variation, rounded up."""
    return Guarantee(round_up(guarantee.epsilon), total_variation=min(round_up(guarantee.total_variation), 1.0))


def _placement_holds(account: Account, tallies: Sequence[Tally]) -> bool:
    """Whether all draws have one setting, and are within the limit by placement or by pure composition."""
    if len({setting(tally.guarantee) for tally in tallies}) != 1:
        return not tallies
    common, num_draws = setting(tallies[0].guarantee), sum(tally.num_draws for tally in tallies)
    if sum_of_epsilons([(common, num_draws)]) <= exact_decimal(account.epsilon):
        return True
    delta = _conversion_delta(account.delta, account.certificate_delta)
    return common.epsilon <= _MAX_PLACED and is_within_placement(common, num_draws, account.epsilon, delta)


def _spent_by_placement(account: Account, tallies: Sequence[Tally]) -> TotalCost:
    common, num_draws = setting(tallies[0].guarantee), sum(tally.num_draws for tally in tallies)
    if any(setting(tally.guarantee) != common for tally in tallies):  # somebody wrote it: no charge leads to it
        return TotalCost(to_float(_epsilons(tallies)), account.delta, PURE)
    epsilon, rule = to_float(sum_of_epsilons([(common, num_draws)])), PURE
    if num_draws <= MAX_DRAWS and common.epsilon <= _MAX_PLACED:
        placed = placement_epsilon(common, num_draws, _conversion_delta(account.delta, account.certificate_delta))
        epsilon, rule = min((epsilon, rule), (placed, PLACEMENT))
    if epsilon > account.epsilon and is_affordable(account, tallies):  # the search rounds up
        epsilon = account.epsilon
    return TotalCost(epsilon, account.delta, rule)


@functools.lru_cache(maxsize=1024)
def _iid_holds(account: Account, guarantee: Guarantee, num_draws: int) -> bool:
    """Whether any of the three bounds of ``compose`` is within what the account has; the slowest to compute last."""
    if sum_of_epsilons([(guarantee, num_draws)]) <= exact_decimal(account.epsilon):
        return True
    if _zcdp_epsilon(account, [Tally("", guarantee, num_draws)]) <= account.epsilon:
        return True
    delta = _conversion_delta(account.delta, account.certificate_delta)
    return num_draws <= MOST_DRAWS and is_within(guarantee, num_draws, account.epsilon, delta)


def _conversion_delta(delta: float, certificate_delta: float) -> float:
    """What certificates leave of delta; rounded down, unless they take nothing."""
    return math.nextafter(delta - certificate_delta, 0.0) if certificate_delta else delta
