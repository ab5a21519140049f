"""What several draws cost together."""

from __future__ import annotations

import math

from pyro_mbde._runtime import check_count
from pyro_mbde.privacy.guarantee import Guarantee


def compose(guarantee: Guarantee, num_draws: int) -> Guarantee:
    r"""Returns the guarantee of several draws of one fitted density, taken together.

    The draws are independent given the density, so the log-ratios of their laws add up: :math:`k` draws are
    :math:`k \epsilon`-integrally private, and their log-ratio ranges over :math:`k` times as much. The delta belongs to
    the density (the probability that it is not in the set it was certified to be in) and is counted once. If the
    certificate held only with probability :math:`1 - \delta`, conditioning on it costs at most
    :math:`\log 1/(1-\delta)` more.

    Args:
        guarantee: guarantee of one draw.
        num_draws: number of draws of the same fitted density; at least 1.

    Returns:
        The guarantee of the draws as one release.

    Raises:
        TypeError: ``num_draws`` is not a whole number.
        ValueError: ``num_draws`` is below 1.

    References:
        Dwork, Roth. The Algorithmic Foundations of Differential Privacy. 2014, Theorem 3.14 (sequential composition).

    Example:
        >>> compose(Guarantee(epsilon=0.5, log_ratio_range=0.5), num_draws=20)
        Guarantee(epsilon=10.0, delta=0.0, log_ratio_range=10.0)
    """
    num_draws = check_count("num_draws", num_draws)
    return Guarantee(
        epsilon=num_draws * guarantee.epsilon - math.log1p(-guarantee.delta),
        delta=guarantee.delta,
        log_ratio_range=num_draws * guarantee.log_ratio_range,
    )
