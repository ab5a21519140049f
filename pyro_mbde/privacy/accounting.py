"""What several draws cost together."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pyro_mbde._runtime import check_count
from pyro_mbde.privacy.guarantee import Guarantee


@dataclass(frozen=True)
class TotalCost:
    r"""What a release of several draws costs, with no condition attached.

    For any two tables :math:`D, D'` and any set S of releases,
    :math:`\Pr[A(D) \in S] \le e^{\epsilon} \Pr[A(D') \in S] + \delta`.

    Attributes:
        epsilon: in nats.
        delta: in [0, 1).
        rule: how it was added up.
    """

    epsilon: float
    delta: float
    rule: str


def compose(guarantee: Guarantee, num_draws: int) -> TotalCost:
    r"""Returns what several draws of one fitted density cost, taken together.

    Given the fitted density the draws are independent, so under its certificate G the log-ratios of their laws add up
    to at most :math:`k \epsilon`. G, which bounds the log-ratio of *any* two certified
    densities, fails with probability at most :math:`\delta`, once for the density. For any set S
    of releases, with primes for the other table,

    .. math::
        \Pr[S] \le \Pr[S \mid G] + \Pr[\bar G] \le e^{k\epsilon} \Pr[S' \mid G'] + \delta
        \le e^{k\epsilon} \frac{\Pr[S']}{\Pr[G']} + \delta \le e^{k \epsilon + \log 1/(1-\delta)} \Pr[S'] + \delta .

    Args:
        guarantee: guarantee of one draw.
        num_draws: number k of draws of the same fitted density; at least 1.

    Returns:
        The total: epsilon :math:`k \epsilon + \log 1/(1 - \delta)`, delta :math:`\delta`.

    Raises:
        TypeError: ``num_draws`` is not a whole number.
        ValueError: ``num_draws`` is below 1.

    References:
        Dwork, Roth. The Algorithmic Foundations of Differential Privacy. 2014. Theorem 3.14 (sequential composition).

    Example:
        >>> compose(Guarantee(epsilon=0.5, log_ratio_range=0.5), num_draws=20)
        TotalCost(epsilon=10.0, delta=0.0, rule='pure composition')
    """
    num_draws = check_count("num_draws", num_draws)
    epsilon = num_draws * guarantee.epsilon - math.log1p(-guarantee.delta)
    return TotalCost(epsilon, guarantee.delta, "pure composition")
