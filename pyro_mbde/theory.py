"""The paper's results as functions."""

from __future__ import annotations

import math

from pyro_mbde.mollifier import LOG_2


def boosting_regime(gamma_q: float) -> str:
    """Returns ``high`` where gamma_Q is at least 1/3, else ``low`` (Theorem 5)."""
    return "high" if gamma_q >= 1 / 3 else "low"


def kl_drop_bound(theta: float, gamma_p: float, gamma_q: float, c_max: float = LOG_2) -> float:
    r"""Returns the drop in KL(P, Q) that one boosting round is guaranteed to make.

    With :math:`\gamma_P = E_P[c]/c^*` and :math:`\gamma_Q = E_{Q_{t-1}}[-c]/c^*`, the drop is
    :math:`\theta E_P[c] - \log E_{Q_{t-1}} e^{\theta c}`. Two bounds on the last term hold:

    high boosting regime (:math:`\gamma_Q \ge 1/3` and :math:`\theta \le 1`)
        :math:`\theta\,(c^* \gamma_P + \log\frac{4}{5 - 3\gamma_Q})`, by convexity of exp on [-log 2, log 2] (here
        :math:`\gamma_Q` is taken against log 2) and Jensen's inequality.
    low boosting regime
        :math:`\theta\, c^* (\gamma_P + \gamma_Q - c^* \theta / 2)`, by Hoeffding's lemma. The paper's statement drops
        the factor :math:`c^*` that its proof has; this is the proof's bound. It holds for every theta above 0 and is
        used for theta above 1 as well.

    Args:
        theta: natural parameter of the round, above 0.
        gamma_p: weak-learning constant against P, at most 1.
        gamma_q: weak-learning constant against Q_{t-1}, at most 1.
        c_max: the bound c* on :math:`|c|` that both constants are taken against, in (0, log 2].

    Returns:
        The guaranteed drop in nats; negative where the classifier promises none.

    References:
        Husain, Cranko, Nock. Integral Privacy for Sampling. Theorem 5 and its proof.

    Example:
        >>> round(kl_drop_bound(theta=0.25, gamma_p=0.5, gamma_q=0.6), 4)
        0.1424
    """
    if boosting_regime(gamma_q) == "high" and theta <= 1:
        # The chord bound on exp is stated against log 2; a gamma_Q against a smaller c* is rescaled to it.
        return theta * (c_max * gamma_p + math.log(4 / (5 - 3 * gamma_q * c_max / LOG_2)))
    return theta * c_max * (gamma_p + gamma_q - c_max * theta / 2)
