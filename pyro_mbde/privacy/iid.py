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
#: By how much of it an epsilon found without proof is raised before it is proved; and more, where that fails.
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
    r"""Returns the least epsilon that k draws of one fitted density guarantee at a delta, its certificate apart.

    Let q, q' be the densities of two tables, r the range of the guarantee. Their log-ratio lies in [t - r, t] for some
    t, and in :math:`[-\epsilon, \epsilon]`, so t can be taken in :math:`[\max(0, r - \epsilon), \min(r, \epsilon)]`.
    Let U, V be laws on two points with log-ratios t and t - r,

    .. math::
        U = (p, 1 - p), \quad V = (p e^{-t}, 1 - p e^{-t}), \quad p = \frac{1 - e^{t - r}}{1 - e^{-r}} .

    Any pair with a log-ratio in [t - r, t] is a random function of (U, V): at x, send the first point on with density
    :math:`q_1(x)`, the second with :math:`q_2(x)`, where :math:`(q_1, q_2)` solves :math:`q = p q_1 + (1 - p) q_2`,
    :math:`q' = p e^{-t} q_1 + (1 - p e^{-t}) q_2`; both are densities, as the ratio q/q' lies between those of the two
    points. So k draws of each are a function of k draws of U and of V, and for every set S of outcomes

    .. math::
        \Pr[S] - e^{\epsilon_k} \Pr[S'] \le \delta_k(t) = \sum_{j=0}^{k} \binom{k}{j} p^j (1 - p)^{k - j}
        \bigl[1 - e^{\epsilon_k - k t + (k - j) r}\bigr]_+ .

    U and V are themselves such a pair, so the supremum over t is what k draws cost, neither more nor less. Fits that
    use randomness are mixtures of such pairs, to which the bound extends by convexity. The supremum is bounded, not
    only searched: p falls with t, so over an interval :math:`[t_1, t_2]` the sum is at most that with
    :math:`p(t_1)` as probability and :math:`t_2` in the bracket, which grows in j; intervals are halved until the bound
    is below delta.

    Args:
        guarantee: of one draw; its delta is not used.
        num_draws: k, from 1 to :data:`MOST_DRAWS`.
        delta: in (0, 1).

    Returns:
        Epsilon in nats, within 0.01 per cent of the least, never below it; at most k times that of one draw.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: an argument is out of its range.

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
    """The bound on delta_k(t) over intervals, which is its value where both ends are one."""
    num_draws, _, spread = pair
    with np.errstate(divide="ignore"):
        log_p = np.log(np.expm1(lower - spread) / np.expm1(-spread))
        # 1 - p = (e^(t - r) - e^-r) / (1 - e^-r)
        log_not_p = lower - spread + np.log(np.expm1(-lower) / math.expm1(-spread))
    # Least j whose log-ratio k t - (k - j) r exceeds epsilon, at the upper ends.
    first = np.clip(np.floor((total_epsilon - num_draws * upper) / spread + num_draws) + 1, 0, num_draws + 1)
    # 8 deviations above the mean, or 5 and 60 terms above the first, little is left, and that is bounded below.
    p = np.exp(log_p)
    mean, deviation = num_draws * p, np.sqrt(num_draws * p * -np.expm1(log_p))
    last = np.minimum(np.ceil(np.maximum(mean + 8 * deviation, first + 5 * deviation) + 60), num_draws)
    offsets = np.arange(int((last - first).max(initial=-1)) + 1)
    if not len(offsets):
        return np.zeros_like(lower)
    counts = first[:, None] + offsets
    missing = num_draws - counts
    valid = missing >= 0
    table = _log_factorials(num_draws)
    places = np.where(valid, counts, 0).astype(np.int64)
    log_mass = table[num_draws] - table[places] - table[num_draws - places]
    log_mass += _times(counts, log_p[:, None]) + _times(missing, log_not_p[:, None])
    share = -np.expm1(np.minimum(total_epsilon - num_draws * upper[:, None] + missing * spread, 0.0))
    mass = np.where(valid, np.exp(np.minimum(log_mass, 0.0)), 0.0)
    # Beyond the last column the terms fall at least as fast as they do there.
    end = counts[:, -1]
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = np.where(end < num_draws, (num_draws - end) / (end + 1) * np.exp(log_p - log_not_p), 0.0)
        rest = np.where(ratio < 1, mass[:, -1] * ratio / (1 - ratio), 1.0)
    excess: Array = np.minimum((mass * share).sum(1) + rest, 1.0)
    return excess


def _times(count: Array, log_value: Array) -> Array:
    """Products that are 0 for no count, whatever the logarithm."""
    with np.errstate(invalid="ignore"):
        products: Array = np.where(count > 0, count * log_value, 0.0)
    return products


@functools.lru_cache(maxsize=8)
def _log_factorials(largest: int) -> Array:
    """Logarithms of 0! to ``largest``!."""
    return np.array([math.lgamma(count + 1) for count in range(largest + 1)])
