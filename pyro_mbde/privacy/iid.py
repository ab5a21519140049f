"""What draws of one fitted density cost together, exactly: the worst pair of laws that a guarantee leaves possible."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from pyro_mbde._checks import check_count, check_number
from pyro_mbde.privacy.guarantee import Guarantee

Array = np.ndarray[Any, np.dtype[np.float64]]

#: Draws up to which the exact curve is computed; beyond, zCDP is as good.
MOST_DRAWS = 10_000
#: Share by which an epsilon that a search found is raised before it is proved, and the factor by which that share grows
#: where the proof fails.
_SLACK, _GROWTH = 5e-5, 2.0
#: Relative error of sums of floats here, counted on the safe side.
_ROUNDING = 1e-9
_CELLS, _DEEPEST = 32, 40
#: Where a draw costs more, the least total of k of them is within 0.01 per cent of their sum: a t that is log(k) nats
#: below the largest leaves p^k above 1/e, at a log-ratio of k t.
_LARGE = 1e6


class _Pair(NamedTuple):
    """k draws from each of two laws on two points, with log-ratios t and t - r."""

    num_draws: int
    epsilon: float
    spread: float  # r


def iid_epsilon(guarantee: Guarantee, num_draws: int, delta: float) -> float:
    r"""Returns the least epsilon that k draws of one fitted density guarantee at a delta, without its certificate.

    Let r be the range of the guarantee. The least epsilon at a delta is that of the worst pair of laws on two points
    with log-ratios t and t - r,

    .. math::
        \delta_k(t) = \sum_{j=0}^{k} \binom{k}{j} p^j (1 - p)^{k - j}
        \bigl[1 - e^{\epsilon_k - k t + (k - j) r}\bigr]_+ , \qquad p = \frac{1 - e^{t - r}}{1 - e^{-r}} ,

    over t in :math:`[\max(0, r - \epsilon), \min(r, \epsilon)]`. The supremum over t is bounded, not only searched.
    Proof: docs/proofs.md, *The exact curve of i.i.d. draws*.

    Args:
        guarantee: of one draw; its delta is not used.
        num_draws: k, from 1 to :data:`MOST_DRAWS`.
        delta: in (0, 1).

    Returns:
        Epsilon in nats, within 0.01 per cent of the least, never below it; at most k times that of one draw.

    References:
        Dong, Durfee, Rogers. Optimal Differential Privacy Composition for Exponential Mechanisms. 2020. Kairouz, Oh,
        Viswanath. The Composition Theorem for Differential Privacy. 2015 (a pair as a function of the worst pair).

    Example:
        >>> round(iid_epsilon(Guarantee(0.1, log_ratio_range=0.1), 1000, 1e-6), 3)
        8.301
    """
    num_draws = check_count("num_draws", num_draws)
    check_number("num_draws", num_draws, f"be at most {MOST_DRAWS:,}", lambda value: value <= MOST_DRAWS)
    delta = check_number("delta", delta, "be in (0, 1)", lambda value: 0 < value < 1)
    spread = guarantee.log_ratio_range
    pure = num_draws * guarantee.epsilon
    if not math.isfinite(pure) or spread < 1e-12:  # below, floats do not tell the points apart
        return pure
    pair = _Pair(num_draws, guarantee.epsilon, spread)
    # What pure composition leaves of delta: at epsilon = k t - r only j = k is left, with p^k.
    low, high = 0.0, pure
    if _largest(pair, low) <= delta and is_within(guarantee, num_draws, 0.0, delta):
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _largest(pair, middle) <= delta else (middle, high)
        if high - low <= 1e-6 * high:
            break
    slack = _SLACK
    while high * (1 + slack) < pure:
        epsilon = high * (1 + slack)
        if is_within(guarantee, num_draws, epsilon, delta):
            return epsilon
        slack *= _GROWTH
    return pure


def largest_iid_epsilon(total_epsilon: float, num_draws: int, delta: float, range_share: float) -> float:
    """Returns the epsilon that each of k draws of one density may have within a total: :func:`iid_epsilon` inverted.

    Args:
        total_epsilon: of all draws together, certificates apart; finite and above 0.
        num_draws: k, from 1 to :data:`MOST_DRAWS`.
        delta: in (0, 1).
        range_share: range of the log-ratio over epsilon; 1 of an a-priori guarantee, 2 of a calibrated one.

    Returns:
        Epsilon in nats, within 0.01 per cent of the largest, never above it; at least the total over k.
    """
    low, high = total_epsilon / num_draws, total_epsilon
    if low > _LARGE:
        return low

    def holds(epsilon: float) -> bool:
        return _largest(_Pair(num_draws, epsilon, range_share * epsilon), total_epsilon) <= delta

    while holds(high):
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = math.sqrt(low * high) if low else high / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    slack = _SLACK
    while low * (1 - slack) > total_epsilon / num_draws:
        epsilon = low * (1 - slack)
        if is_within(Guarantee(epsilon, log_ratio_range=range_share * epsilon), num_draws, total_epsilon, delta):
            return epsilon
        slack *= _GROWTH
    return total_epsilon / num_draws


def is_within(guarantee: Guarantee, num_draws: int, total_epsilon: float, delta: float) -> bool:
    """Returns whether it is proved that k draws cost at most an epsilon at a delta, see :func:`iid_epsilon`.

    Args:
        guarantee: of one draw; its delta is not used.
        num_draws: k.
        total_epsilon: of all draws together.
        delta: in (0, 1).
    """
    if num_draws * guarantee.epsilon <= total_epsilon:
        return True
    spread = guarantee.log_ratio_range
    pair = _Pair(num_draws, guarantee.epsilon, spread)
    low, high = _interval(pair)
    edges = np.linspace(low, high, _CELLS + 1)
    cells = np.stack([edges[:-1], edges[1:]])
    for _ in range(_DEEPEST):
        bounds = _excess(pair, total_epsilon, cells[0], cells[1])
        cells = cells[:, bounds > delta * (1 - _ROUNDING)]
        if not cells.size:
            return True
        if _excess(pair, total_epsilon, cells[0], cells[0]).max() > delta * (1 - _ROUNDING):
            return False
        middles = cells.mean(0)
        if cells.shape[1] > 4096 or (middles <= cells[0]).any():
            return False
        cells = np.concatenate([np.stack([cells[0], middles]), np.stack([middles, cells[1]])], 1)
    return False


def _interval(pair: _Pair) -> tuple[float, float]:
    return max(0.0, pair.spread - pair.epsilon), min(pair.spread, pair.epsilon)


def _largest(pair: _Pair, total_epsilon: float) -> float:
    """The largest delta_k(t) that a search finds; on a scale that is fine near both ends, where it may lie."""
    start, stop = _interval(pair)
    best, low, high = 0.0, -30.0, 30.0
    for _ in range(8):
        scale = np.linspace(low, high, 65)
        places = start + (stop - start) / (1 + np.exp(-scale))
        values = _excess(pair, total_epsilon, places, places)
        best = max(best, float(values.max()))
        step, centre = (high - low) / 64, float(scale[int(values.argmax())])
        low, high = centre - 2 * step, centre + 2 * step
    return best


def _excess(pair: _Pair, total_epsilon: float, lower: Array, upper: Array) -> Array:
    """Upper bounds of delta_k(t) for t from ``lower`` to ``upper``; delta_k(t) itself where these are equal.

    The probability p is that of the lower end, the bracket that of the upper end (docs/proofs.md, *The exact curve of
    i.i.d. draws*). Summed over the terms j that matter; what is left is bounded.
    """
    num_draws, _, spread = pair
    log_p, log_not_p = _log_probabilities(lower, spread)
    first, last = _summed_terms(pair, total_epsilon, upper, log_p)
    offsets = np.arange(int((last - first).max(initial=-1)) + 1)
    if not len(offsets):
        return np.zeros_like(lower)
    j = first[:, None] + offsets
    log_mass = _log_binomial(num_draws, j)
    log_mass += _times(j, log_p[:, None]) + _times(num_draws - j, log_not_p[:, None])
    mass = np.where(j <= num_draws, np.exp(np.minimum(log_mass, 0.0)), 0.0)
    bracket = -np.expm1(np.minimum(total_epsilon - num_draws * upper[:, None] + (num_draws - j) * spread, 0.0))
    rest = _bound_on_later_terms(num_draws, j[:, -1], mass[:, -1], log_p - log_not_p)
    excess: Array = np.minimum((mass * bracket).sum(1) + rest, 1.0)
    return excess


def _log_probabilities(t: Array, spread: float) -> tuple[Array, Array]:
    """Logarithms of p = (1 - e^(t - r)) / (1 - e^-r) and of 1 - p = (e^(t - r) - e^-r) / (1 - e^-r)."""
    with np.errstate(divide="ignore"):
        log_p = np.log(np.expm1(t - spread) / np.expm1(-spread))
        return log_p, t - spread + np.log(np.expm1(-t) / math.expm1(-spread))


def _summed_terms(pair: _Pair, total_epsilon: float, upper: Array, log_p: Array) -> tuple[Array, Array]:
    """The first and the last j to sum: 8 deviations above the mean, or 5 and 60 terms above the first."""
    num_draws, _, spread = pair
    # The least j whose log-ratio k t - (k - j) r is above epsilon: the bracket is positive from there on.
    first = np.clip(np.floor((total_epsilon - num_draws * upper) / spread + num_draws) + 1, 0, num_draws + 1)
    mean = num_draws * np.exp(log_p)
    deviation = np.sqrt(mean * -np.expm1(log_p))
    last = np.minimum(np.ceil(np.maximum(mean + 8 * deviation, first + 5 * deviation) + 60), num_draws)
    return first, last


def _bound_on_later_terms(num_draws: int, j: Array, mass: Array, log_odds: Array) -> Array:
    """A bound on all binomial terms after j, whose own is ``mass``: they fall at least as fast as they do there."""
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = np.where(j < num_draws, (num_draws - j) / (j + 1) * np.exp(log_odds), 0.0)
        bound: Array = np.where(ratio < 1, mass * ratio / (1 - ratio), 1.0)
    return bound


def _log_binomial(num_draws: int, j: Array) -> Array:
    """Logarithms of k over j; those of j = 0 where j is above k."""
    table = _log_factorials(num_draws)
    places = np.where(j <= num_draws, j, 0).astype(np.int64)
    log_binomial: Array = table[num_draws] - table[places] - table[num_draws - places]
    return log_binomial


def _times(count: Array, log_value: Array) -> Array:
    """Products that are 0 for no count, whatever the logarithm."""
    with np.errstate(invalid="ignore"):
        products: Array = np.where(count > 0, count * log_value, 0.0)
    return products


@functools.lru_cache(maxsize=8)
def _log_factorials(largest: int) -> Array:
    """Logarithms of 0! to ``largest``!."""
    return np.array([math.lgamma(count + 1) for count in range(largest + 1)])
