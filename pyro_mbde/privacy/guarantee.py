"""The guarantee of one draw."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pyro_mbde._checks import check_number


@dataclass(frozen=True)
class Guarantee:
    r"""The integral-privacy guarantee of one draw.

    Let :math:`q_D` be the density that is fitted to table :math:`D` and from which a draw is made. For *any* two tables
    :math:`D, D'`, of any sizes and with nothing in common, and whatever randomness their fits used, at every x

    .. math::
        \left| \log \frac{q_D(x)}{q_{D'}(x)} \right| \le \epsilon ,

    if both densities are in the set that they are certified to be in; a certificate fails with probability at most
    :math:`\delta`. A-priori guarantees need none: there :math:`\delta = 0`.
    :func:`~pyro_mbde.privacy.accounting.compose` turns this into a statement on releases, without conditions.

    With two neighbouring tables this would be differential privacy; here the tables are arbitrary, so groups of every
    size are protected. What anyone computes from the draw is covered as well (post-processing).

    Args:
        epsilon: largest log-ratio between the laws of a draw under two tables, in nats; in [0, inf].
        delta: probability that the certificate fails, counted once per fitted density (not per draw); in [0, 1).
        log_ratio_range: largest minus smallest log-ratio over the outcomes, for any one pair of tables, in nats; in
            [0, 2 epsilon]. The cost of many draws depends on it. ``None`` stands for 2 epsilon, the largest it can be.
        total_variation: largest total variation between the laws of a draw under two tables, in [0, 1]. Less than
            epsilon and range allow, if it is public where the density is placed. ``None`` stands for
            tanh(log_ratio_range/4), the largest it can be (docs/proofs.md, *Placement*).

    References:
        Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018. Definitions 2 (integral
        privacy) and 3 (mollifiers).

    Example:
        >>> Guarantee(epsilon=1.0, log_ratio_range=1.0, total_variation=0.2)
        Guarantee(epsilon=1.0, delta=0.0, log_ratio_range=1.0, total_variation=0.2)
    """

    epsilon: float
    delta: float = 0.0
    log_ratio_range: float = None  # type: ignore[assignment]  # filled in by __post_init__: never None afterwards
    total_variation: float = None  # type: ignore[assignment]  # as above

    def __post_init__(self) -> None:
        """Checks the ranges and fills in what was not stated."""
        epsilon = check_number("epsilon", self.epsilon, "be at least 0", lambda value: value >= 0)
        delta = check_number("delta", self.delta, "be in [0, 1)", lambda value: 0 <= value < 1)
        largest = 2 * epsilon
        log_ratio_range = largest
        if self.log_ratio_range is not None:
            constraint = f"be in [0, 2 epsilon = {largest:g}]"
            log_ratio_range = check_number(
                "log_ratio_range", self.log_ratio_range, constraint, lambda value: 0 <= value <= largest
            )
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)
        object.__setattr__(self, "log_ratio_range", log_ratio_range)
        total_variation = largest = _unplaced_total_variation(log_ratio_range)
        if self.total_variation is not None:
            total_variation = check_number(
                "total_variation", self.total_variation, "be in [0, 1]", lambda v: 0 <= v <= 1
            )
        object.__setattr__(self, "total_variation", min(total_variation, largest))

    def __repr__(self) -> str:
        """Leaves out a total variation that says no more than the range does."""
        text = f"Guarantee(epsilon={self.epsilon!r}, delta={self.delta!r}, log_ratio_range={self.log_ratio_range!r}"
        return f"{text}, total_variation={self.total_variation!r})" if self.is_placed else f"{text})"

    @property
    def is_placed(self) -> bool:
        """Whether the total variation says more than the range does: the density lies at a public place."""
        return self.total_variation < _unplaced_total_variation(self.log_ratio_range)


def _unplaced_total_variation(log_ratio_range: float) -> float:
    """The largest that a range allows: of two laws on two points, with log-ratios of half of it either way."""
    return math.tanh(log_ratio_range / 4)
