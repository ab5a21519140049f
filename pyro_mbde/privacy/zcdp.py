"""Zero-concentrated differential privacy, and its conversion to epsilon and delta."""

from __future__ import annotations

import functools
import math

from pyro_mbde._checks import check_epsilon, check_number

#: What floats can still divide by; a smaller rho counts as this, on the safe side.
_SMALLEST_RHO = 1e-290
#: Epsilon beyond which none is spent: rho is as good as without limit.
_LARGEST_EPSILON = 1e100


def zcdp_epsilon(rho: float, delta: float) -> float:
    r"""Returns the epsilon that rho-zCDP guarantees at a delta.

    A rho-zCDP mechanism has Rényi divergence at most :math:`\rho\alpha` at every order :math:`\alpha > 1`, so

    .. math::
        \epsilon = \inf_{\alpha > 1} \; \rho \alpha +
        \frac{\log(1/\delta) + (\alpha - 1) \log(1 - 1/\alpha) - \log \alpha}{\alpha - 1} .

    Every order gives a valid epsilon: what a search misses of the infimum is on the safe side.

    Args:
        rho: at least 0.
        delta: in (0, 1).

    Returns:
        Epsilon in nats, at least 0.

    References:
        Canonne, Kamath, Steinke. The Discrete Gaussian for Differential Privacy. 2020. Proposition 12.

    Example:
        >>> round(zcdp_epsilon(0.5, 1e-6), 3)
        5.222
    """
    rho = check_number("rho", rho, "be finite and at least 0", lambda value: 0 <= value < math.inf)
    delta = check_number("delta", delta, "be in (0, 1)", lambda value: 0 < value < 1)
    if rho == 0:
        return 0.0
    rho = max(rho, _SMALLEST_RHO)
    log_term = -math.log(delta)

    def epsilon(log_order: float) -> float:
        excess = math.exp(log_order)  # alpha - 1
        alpha = 1 + excess
        return rho * alpha + (log_term - math.log(alpha)) / excess - math.log1p(1 / excess)

    # Coarse, then twice finer about the best: the minimum lies near alpha - 1 = sqrt(log(1/delta) / rho).
    centre, reach = (math.log(log_term / rho)) / 2, 8.0
    for _ in range(6):
        orders = [centre + reach * step / 20 for step in range(-20, 21)]
        centre, reach = min(orders, key=epsilon), reach / 10
    return max(epsilon(centre), 0.0)


def zcdp_rho(epsilon: float, delta: float) -> float:
    """Returns the largest rho whose zCDP guarantees an epsilon at a delta; rounded down, towards more privacy.

    Args:
        epsilon: in nats, finite and above 0.
        delta: in (0, 1).

    Returns:
        rho, at least 0.

    Example:
        >>> rho = zcdp_rho(1.0, 1e-5)
        >>> round(rho, 4), zcdp_epsilon(rho, 1e-5) <= 1
        (0.0306, True)
    """
    epsilon = check_epsilon(epsilon)
    check_number("epsilon", epsilon, "be finite", math.isfinite)
    return _largest_rho(min(epsilon, _LARGEST_EPSILON), delta)


@functools.lru_cache(maxsize=256)
def _largest_rho(epsilon: float, delta: float) -> float:
    low, high = 0.0, epsilon
    while zcdp_epsilon(high, delta) <= epsilon:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        if middle in (low, high):  # neighbours: no step would change them
            break
        if zcdp_epsilon(middle, delta) <= epsilon:
            low = middle
        else:
            high = middle
    return low
