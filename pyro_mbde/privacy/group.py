"""Guarantees of a whole fitted density, for groups of a given size: what differentially private baselines give."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pyro_mbde._checks import argument_error, check_count, check_epsilon, check_flag, check_number

#: Kept back of a budget that is divided, as a share of it, for the rounding of floats.
_RESERVE = 1e-12


@dataclass(frozen=True)
class GroupGuarantee:
    r"""The differential-privacy guarantee of a fitted density, all draws of it together.

    Let the mechanism A fit a density to a table. For any two tables that differ in at most ``group_size`` rows, and any
    set S of densities,

    .. math::
        \Pr[A(D) \in S] \le e^{\epsilon} \Pr[A(D') \in S] + \delta .

    So the density itself may be handed out, and any number of draws with it. That is where it differs from
    :class:`~pyro_mbde.privacy.guarantee.Guarantee`, which is of one draw and holds for any two tables.

    Args:
        epsilon: in nats, in [0, inf]; ``inf`` says that there is no guarantee.
        delta: in [0, 1).
        group_size: rows that may differ, at least 1; ``None`` for any number of them.
        replaced: whether rows are exchanged for others, the number of rows being public; else they are added or left
            out.

    References:
        Dwork, Roth. The Algorithmic Foundations of Differential Privacy. 2014. Definition 2.4.

    Example:
        >>> GroupGuarantee(epsilon=0.1).for_group(10)
        GroupGuarantee(epsilon=1.0, delta=0.0, group_size=10, replaced=True)
    """

    epsilon: float
    delta: float = 0.0
    group_size: int | None = 1
    replaced: bool = True

    def __post_init__(self) -> None:
        """Checks the ranges."""
        epsilon = check_number("epsilon", self.epsilon, "be at least 0", lambda value: value >= 0)
        delta = check_number("delta", self.delta, "be in [0, 1)", lambda value: 0 <= value < 1)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)
        object.__setattr__(self, "replaced", check_flag("replaced", self.replaced))
        if self.group_size is not None:
            object.__setattr__(self, "group_size", check_group_size("group_size", self.group_size))

    def for_group(self, size: int) -> GroupGuarantee:
        r"""Returns what the guarantee says about groups of another size.

        :math:`s = \lceil g / \text{group size} \rceil` steps of at most ``group_size`` rows each lead from a table to
        one that differs in g rows. Chaining the inequality,

        .. math::
            \Pr[S] \le e^{\epsilon} \Pr[S_1] + \delta \le \dots \le e^{s \epsilon} \Pr[S_s] +
            \delta\,\bigl(1 + e^{\epsilon} + \dots + e^{(s-1)\epsilon}\bigr)
            = e^{s \epsilon} \Pr[S_s] + \delta\,\frac{e^{s \epsilon} - 1}{e^{\epsilon} - 1} .

        Args:
            size: rows that may differ, at least 1.

        Returns:
            This guarantee, if it covers such groups already; otherwise that of the chain.

        Raises:
            TypeError: ``size`` is not a whole number.
            ValueError: it is below 1; or delta would be 1 or more, which guarantees nothing.

        References:
            Vadhan. The Complexity of Differential Privacy. 2017. Lemma 2.2.
        """
        size = check_group_size("size", size)
        if self.group_size is None or size <= self.group_size:
            return self
        if math.isinf(self.epsilon):  # promises nothing, to no group
            return GroupGuarantee(math.inf, self.delta, size, self.replaced)
        steps = -(-size // self.group_size)
        delta = self.delta * _sum_of_powers(self.epsilon, steps) if self.delta else 0.0
        if delta >= 1:
            raise ValueError(argument_error("size", "be small enough for a delta below 1", size))
        return GroupGuarantee(steps * self.epsilon, delta, size, self.replaced)


def record_budget(epsilon: float, delta: float, group_size: int) -> tuple[float, float]:
    r"""Returns the epsilon and delta for one row that give a group those asked for.

    :meth:`GroupGuarantee.for_group` read backwards: :math:`\epsilon_1 = \epsilon/g` and
    :math:`\delta_1 = \delta\,(e^{\epsilon/g} - 1)/(e^{\epsilon} - 1)`.

    Args:
        epsilon: for the group, in nats, in (0, inf].
        delta: for the group, in [0, 1).
        group_size: g, at least 1.

    Returns:
        Epsilon in nats, and delta; both rounded down, towards more privacy.

    Example:
        >>> record_budget(1.0, 1e-5, 1)
        (1.0, 1e-05)
        >>> epsilon, delta = record_budget(1.0, 1e-5, 100)
        >>> round(epsilon, 6), round(1e8 * delta, 3)
        (0.01, 5.849)
    """
    epsilon = check_epsilon(epsilon)
    delta = check_number("delta", delta, "be in [0, 1)", lambda value: 0 <= value < 1)
    group_size = check_group_size("group_size", group_size)
    if group_size == 1:
        return epsilon, delta
    # Rounded towards more privacy, beyond what float64 loses on the way back.
    share = epsilon / group_size * (1 - _RESERVE)
    return share, delta / _sum_of_powers(share, group_size) * (1 - _RESERVE)


def check_group_size(name: str, size: Any) -> int:
    """Returns a number of rows as an int.

    Args:
        name: of the argument, for the error.
        size: the number.

    Raises:
        TypeError: it is not a whole number.
        ValueError: it is not from 1 to 2^53, what a float counts exactly.
    """
    count = check_count(name, size)
    if count > 2**53:
        raise ValueError(argument_error(name, "be at most 2^53", count))
    return count


def _sum_of_powers(epsilon: float, steps: int) -> float:
    """1 + exp(epsilon) + ... + exp((steps - 1) epsilon)."""
    if epsilon == 0:
        return float(steps)
    if steps * epsilon > 700:  # beyond what a float holds
        return math.inf
    return math.expm1(steps * epsilon) / math.expm1(epsilon)
