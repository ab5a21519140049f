"""What draws cost together where the place of their densities is public: by total variation as well as epsilon."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pyro_mbde._checks import check_count, check_number
from pyro_mbde.privacy.guarantee import Guarantee

Array = np.ndarray[Any, np.dtype[np.float64]]

#: Draws up to which the curve is computed; beyond, zCDP is as good.
MAX_DRAWS = 100_000
#: Relative error of sums of floats here, counted on the safe side.
_ROUNDING = 1e-9
#: Tails of the law of the sum that may be left out, as a share of delta. They are counted as if all were lost.
_TAIL = 1e-10


def placed_total_variation(epsilon: float, skew: float) -> float:
    r"""Returns the largest total variation between two densities in one public interval.

    Let :math:`a \le q/q_0 \le a e^{\epsilon}` with :math:`a = e^{-\text{skew}\,\epsilon}`, for every table. Then the
    densities of two tables differ by at most

    .. math::
        \mathrm{TV}(q, q') \le \tau = \min(1 - a,\; a e^{\epsilon} - 1) .

    Proof: docs/proofs.md, *Placement*.

    Args:
        epsilon: width of the interval, in nats, at least 0.
        skew: where it lies, in [0, 1].

    Returns:
        tau, in [0, 1].

    Example:
        >>> round(placed_total_variation(1.0, 0.3), 4), round(placed_total_variation(1.0, 0.05), 4)
        (0.2592, 0.0488)
    """
    below, above = -math.expm1(-skew * epsilon), (1 - skew) * epsilon
    return below if above > 1 else min(below, math.expm1(above))


def filled_share_skew(epsilon: float, filled_share: float) -> float:
    r"""Returns the skew that is best for single rows of a table that fills a given share of the base.

    .. math::
        \text{skew} = \frac{\log(1 + \alpha (e^{\epsilon} - 1))}{\epsilon} ,

    minimax for every f-divergence among tables with :math:`p \le q_0 / \alpha`. Where the ratio :math:`p/q_0` is
    believed to lie in :math:`[1/\gamma, \gamma]`, take :math:`\alpha = 1/(\gamma + 1)`. For batches a skew of 0.3 was
    best in measurements (docs/experiments.md, *Where to place a batch*).

    Args:
        epsilon: width of the interval, in nats, above 0.
        filled_share: alpha, in (0, 1): a public guess, made without the table.

    Returns:
        The skew, in (0, 1).

    References:
        Park, Asoodeh, Lee. Exactly Minimax-Optimal Locally Differentially Private Sampling. 2024. Theorem 3.1.
        Ghoukasian, Lee, Asoodeh. Locally Private Sampling with Public Data. 2025 (gamma).

    Example:
        >>> round(filled_share_skew(1.0, 0.2), 3), round(filled_share_skew(10.0, 0.2), 3)
        (0.295, 0.839)
    """
    if epsilon < 500:
        return math.log1p(filled_share * math.expm1(epsilon)) / epsilon
    return 1 + math.log(filled_share) / epsilon


def placement_epsilon(guarantee: Guarantee, num_draws: int, delta: float) -> float:
    r"""Returns an epsilon that k draws guarantee at a delta, by the total variation of one; certificates apart.

    A draw of epsilon :math:`\epsilon` and total variation :math:`\tau` has

    .. math::
        E_\gamma(q, q') \le \tau \frac{e^{\epsilon} - \gamma}{e^{\epsilon} - 1} , \qquad 1 \le \gamma \le e^{\epsilon} ,

    which a pair of laws on three points attains for every gamma: with :math:`m = \tau/(e^{\epsilon} - 1)`, its loss is
    :math:`\epsilon` with probability :math:`m e^{\epsilon}`, :math:`-\epsilon` with probability m, and 0 otherwise. k
    draws cost at most what k draws of that pair do. This holds adaptively: each draw may be of another density, fitted
    after a look at earlier draws, as long as its epsilon and total variation are at most these. Proof:
    docs/proofs.md, *Placement*.

    Args:
        guarantee: of one draw; its delta is not used.
        num_draws: k, from 1 to :data:`MAX_DRAWS`.
        delta: in (0, 1).

    Returns:
        Epsilon in nats, rounded up in the ninth digit; at most k times that of one draw.

    References:
        Zhu, Dong, Wang. Optimal Accounting of Differential Privacy via Characteristic Function. 2022. Theorem 10
        (dominating pairs compose adaptively). Ghazi, Issa. Total Variation Meets Differential Privacy. 2024.

    Example:
        >>> placed = Guarantee(0.1, total_variation=placed_total_variation(0.1, 0.1))
        >>> round(placement_epsilon(placed, 1000, 1e-6), 2)
        7.28
    """
    num_draws = check_count("num_draws", num_draws)
    check_number("num_draws", num_draws, f"be at most {MAX_DRAWS:,}", lambda value: value <= MAX_DRAWS)
    delta = check_number("delta", delta, "be in (0, 1)", lambda value: 0 < value < 1)
    pure = num_draws * guarantee.epsilon
    if not math.isfinite(pure) or not guarantee.epsilon:
        return pure
    losses = _sum_of_losses(guarantee.epsilon, guarantee.total_variation, num_draws, delta * _TAIL)
    if losses.excess(0.0) <= delta:
        return 0.0
    low, high = 0.0, pure
    while high - low > _ROUNDING * high:
        middle = (low + high) / 2
        low, high = (low, middle) if losses.excess(middle) <= delta else (middle, high)
    return high


def is_within_placement(guarantee: Guarantee, num_draws: int, total_epsilon: float, delta: float) -> bool:
    """Returns whether k draws cost at most an epsilon at a delta, by :func:`placement_epsilon`.

    Args:
        guarantee: of one draw; its delta is not used.
        num_draws: k.
        total_epsilon: of all draws together, in nats.
        delta: in (0, 1).
    """
    if num_draws > MAX_DRAWS or not math.isfinite(guarantee.epsilon):
        return False
    losses = _sum_of_losses(guarantee.epsilon, guarantee.total_variation, num_draws, delta * _TAIL)
    return losses.excess(total_epsilon) <= delta


def largest_placed_epsilon(total_epsilon: float, num_draws: int, delta: float, skew: Callable[[float], float]) -> float:
    """Returns the largest epsilon of one draw, of which k cost at most a total; :func:`placement_epsilon` inverted.

    Args:
        total_epsilon: of all draws together, in nats.
        num_draws: k, from 1 to :data:`MAX_DRAWS`.
        delta: in (0, 1).
        skew: of a density with a given epsilon.

    Returns:
        Epsilon in nats, rounded down in the ninth digit.

    Example:
        >>> round(largest_placed_epsilon(10.0, 20, 1e-6, lambda epsilon: 0.1), 3)
        0.887
    """

    def holds(epsilon: float) -> bool:
        guarantee = Guarantee(epsilon, total_variation=placed_total_variation(epsilon, skew(epsilon)))
        return is_within_placement(guarantee, num_draws, total_epsilon, delta)

    low, high = total_epsilon / num_draws * (1 - _ROUNDING), total_epsilon / num_draws
    while high <= total_epsilon and holds(high):
        low, high = high, 2 * high
    while high - low > _ROUNDING * high:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


class _Losses(NamedTuple):
    """The law of a sum of losses, each a whole number of epsilons.

    Attributes:
        epsilon: of one draw, in nats.
        first: the smallest sum.
        masses: probabilities of ``first``, ``first + 1`` and so on.
        lost: probability of the sums that were left out, at most.
    """

    epsilon: float
    first: int
    masses: Array
    lost: float

    def excess(self, total_epsilon: float) -> float:
        """The least delta at which the draws cost ``total_epsilon``; rounded up."""
        losses = (self.first + np.arange(len(self.masses))) * self.epsilon
        shares = -np.expm1(np.minimum(total_epsilon - losses, 0.0))
        return float((self.masses * shares).sum()) * (1 + _ROUNDING) + self.lost

    def plus(self, other: _Losses, tail: float) -> _Losses:
        """The law of the sum of independent losses, without tails of at most ``tail`` on either side."""
        masses, first = np.convolve(self.masses, other.masses), self.first + other.first
        start = int(np.searchsorted(np.cumsum(masses), tail, side="right"))
        stop = len(masses) - int(np.searchsorted(np.cumsum(masses[::-1]), tail, side="right"))
        dropped = float(masses[:start].sum() + masses[stop:].sum()) * (1 + _ROUNDING)
        return _Losses(self.epsilon, first + start, masses[start:stop], self.lost + other.lost + dropped)


@functools.lru_cache(maxsize=256)
def _sum_of_losses(epsilon: float, total_variation: float, num_draws: int, tail: float) -> _Losses:
    """The law of k losses of the three-point pair, by repeated doubling."""
    down = total_variation / math.expm1(epsilon) if epsilon < 700 else 0.0
    up = -total_variation / math.expm1(-epsilon)
    doubled = _Losses(epsilon, -1, np.array([down, max(1 - down - up, 0.0), up]), 0.0)
    total = _Losses(epsilon, 0, np.ones(1), 0.0)
    tail /= 8 * num_draws  # a tail that is left out early is lost in every copy
    while num_draws:
        if num_draws % 2:
            total = total.plus(doubled, tail)
        doubled, num_draws = doubled.plus(doubled, tail), num_draws // 2
    return total
