"""The paper's results as functions."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._runtime import check_epsilon, check_number
from pyro_mbde.metrics import quadrature_grid
from pyro_mbde.mollifier import LOG_2


def boosting_regime(gamma_q: float) -> str:
    """Returns ``high`` where gamma_Q, taken against log 2, is at least 1/3, else ``low``.

    References:
        Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018. Theorem 5.
    """
    return "high" if gamma_q >= 1 / 3 else "low"


def kl_drop_bound(theta: float, gamma_p: float, gamma_q: float, c_max: float = LOG_2) -> float:
    r"""Returns the drop in KL(P, Q) that one boosting round is guaranteed to make.

    With :math:`\gamma_P = E_P[c]/c^*` and :math:`\gamma_Q = E_{Q_{t-1}}[-c]/c^*`, the drop is
    :math:`\theta E_P[c] - \log E_{Q_{t-1}} e^{\theta c}`. Two bounds on the last term hold:

    high boosting regime (:math:`\gamma_Q \ge 1/3` against log 2, and :math:`\theta \le 1`)
        :math:`\theta\,(c^* \gamma_P + \log\frac{4}{5 - 3\gamma_Q})`, by convexity of exp on [-log 2, log 2] and
        Jensen's inequality; in the logarithm :math:`\gamma_Q` is taken against log 2.
    low boosting regime
        :math:`\theta\, c^* (\gamma_P + \gamma_Q - c^* \theta / 2)`, by Hoeffding's lemma. The paper's statement
        drops the factor :math:`c^*` that its proof has; this is the proof's bound. It holds for every theta above 0 and
        is used for theta above 1 as well.

    Args:
        theta: natural parameter of the round, at least 0.
        gamma_p: weak-learning constant against P, in [-1, 1].
        gamma_q: weak-learning constant against Q_{t-1}, in [-1, 1].
        c_max: the bound c* on :math:`|c|` that both constants are taken against, in (0, log 2].

    Returns:
        The guaranteed drop in nats; negative where the classifier promises none.

    Raises:
        TypeError: an argument is not a number.
        ValueError: an argument is out of its range.

    References:
        Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018. Theorem 5 and its proof.

    Example:
        >>> round(kl_drop_bound(theta=0.25, gamma_p=0.5, gamma_q=0.6), 4)
        0.1424
    """
    check_number("theta", theta, "be at least 0", lambda value: value >= 0)
    check_number("gamma_p", gamma_p, "be in [-1, 1]", lambda value: -1 <= value <= 1)
    check_number("gamma_q", gamma_q, "be in [-1, 1]", lambda value: -1 <= value <= 1)
    check_number("c_max", c_max, "be in (0, log 2]", lambda value: 0 < value <= LOG_2)
    gamma_q_against_log_2 = gamma_q * c_max / LOG_2
    if boosting_regime(gamma_q_against_log_2) == "high" and theta <= 1:
        return theta * (c_max * gamma_p + math.log(4 / (5 - 3 * gamma_q_against_log_2)))
    return theta * c_max * (gamma_p + gamma_q - c_max * theta / 2)


def best_a_priori_gain(target: Distribution, base: Distribution, epsilon: float, box: tuple[float, float]) -> float:
    r"""Returns the most nats that any density with an a-priori guarantee of epsilon gains on the base, by quadrature.

    The tilt is free in an interval of width :math:`R = \epsilon/2`, say :math:`[-R/2, R/2]`, since shifting it changes
    nothing. The gain :math:`E_P[f] - \log E_{Q_0} e^f` is concave in f. Where f is inside the interval its derivative
    vanishes: :math:`p = q_0 e^{f - \phi}`. So :math:`f = \mathrm{clip}(\log p/q_0 - s, -R/2, R/2)` with
    :math:`s = -\phi`. As :math:`\phi` falls with s no faster than s grows, :math:`s + \phi(s)` has one root, found by
    bisection.

    Args:
        target: P, with event shape (), (1,) or (2,), known in full.
        base: Q0.
        epsilon: privacy parameter of one draw, in nats; above 0.
        box: lower and upper edge of a cube that holds almost all of P and Q0.

    Returns:
        The largest KL(P, Q0) - KL(P, Q), in nats.

    Raises:
        TypeError: epsilon is not a number.
        ValueError: epsilon is not above 0, or the event has more than two dimensions.

    References:
        Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018. Theorem 6, whose limit
        epsilon/2 is that of the wider set :math:`\mathcal{M}_\epsilon`.

    Example:
        >>> import pyro.distributions as dist
        >>> round(best_a_priori_gain(dist.Normal(2.0, 0.5), dist.Normal(0.0, 1.0), 1.0, (-6.0, 6.0)), 3)
        0.401
    """
    points, volume = quadrature_grid(box, target.event_shape)
    log_p, log_q0 = target.log_prob(points).double(), base.log_prob(points).double()
    held = (log_p > -math.inf) | (log_q0 > -math.inf)
    p, q0, log_ratio = log_p[held].exp() * volume, log_q0[held].exp() * volume, (log_p - log_q0)[held]
    # A wider interval than twice the log-ratio's range changes nothing, and would overflow.
    half_width = min(check_epsilon(epsilon) / 4, 2 * float(log_ratio[torch.isfinite(log_ratio)].abs().max()))

    def tilt_and_normalizer(shift: float) -> tuple[Tensor, float]:
        tilt = (log_ratio - shift).clamp(-half_width, half_width)
        return tilt, float(torch.logsumexp(tilt + (q0 / q0.sum()).log(), 0))

    low, high = -half_width, half_width
    for _ in range(60):  # halves the interval to the resolution of a double
        shift = (low + high) / 2
        if shift + tilt_and_normalizer(shift)[1] < 0:
            low = shift
        else:
            high = shift
    tilt, log_normalizer = tilt_and_normalizer((low + high) / 2)
    return float((p * tilt).sum() / p.sum()) - log_normalizer
