"""The paper's results as functions.

Theorems are those of Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from pyro_mbde._checks import argument_error, check_count, check_epsilon, check_number
from pyro_mbde.density.bounds import LOG_2, check_skew, paper_natural_params


def boosting_regime(gamma_q: float) -> str:
    """Returns ``high`` where gamma_Q, taken against log 2, is at least 1/3, else ``low`` (Theorem 5)."""
    return "high" if gamma_q >= 1 / 3 else "low"


def kl_drop_bound(theta: float, gamma_p: float, gamma_q: float, c_max: float = LOG_2) -> float:
    r"""Returns the drop in KL(P, Q) that one boosting round is guaranteed to make.

    With :math:`\gamma_P = E_P[c]/c^*` and :math:`\gamma_Q = E_{Q_{t-1}}[-c]/c^*`, the drop is at least

    high boosting regime (:math:`\gamma_Q \ge 1/3` against log 2, and :math:`\theta \le 1`)
        :math:`\theta\,(c^* \gamma_P + \log\frac{4}{5 - 3\gamma_Q})`, where :math:`\gamma_Q` is taken against log 2;
    low boosting regime, and every :math:`\theta > 1`
        :math:`\theta\, c^* (\gamma_P + \gamma_Q - c^* \theta / 2)`. The paper's statement drops the factor
        :math:`c^*` that its proof has.

    Proof: docs/proofs.md, *The drop of one round*.

    Args:
        theta: natural parameter of the round, at least 0.
        gamma_p: weak-learning constant against P, in [-1, 1].
        gamma_q: weak-learning constant against Q_{t-1}, in [-1, 1].
        c_max: the bound c* on :math:`|c|` that both constants are taken against, in (0, log 2].

    Returns:
        The guaranteed drop in nats; negative where the classifier promises none.

    References:
        Husain, Cranko, Nock. 2018. Theorem 5 and its proof.

    Example:
        >>> round(kl_drop_bound(theta=0.25, gamma_p=0.5, gamma_q=0.6), 4)
        0.1424
    """
    check_number("theta", theta, "be at least 0", lambda value: value >= 0)
    for name, gamma in (("gamma_p", gamma_p), ("gamma_q", gamma_q)):
        check_number(name, gamma, "be in [-1, 1]", lambda value: -1 <= value <= 1)
    check_number("c_max", c_max, "be in (0, log 2]", lambda value: 0 < value <= LOG_2)
    gamma_q_against_log_2 = gamma_q * c_max / LOG_2
    if boosting_regime(gamma_q_against_log_2) == "high" and theta <= 1:
        return theta * (c_max * gamma_p + math.log(4 / (5 - 3 * gamma_q_against_log_2)))
    return theta * c_max * (gamma_p + gamma_q - c_max * theta / 2)


class Interval(NamedTuple):
    """An estimate and the ends of its confidence interval."""

    estimate: float
    low: float
    high: float


def weak_learning_constants(
    c_p: Tensor, c_q: Tensor, *, confidence: float = 0.95, c_max: float = LOG_2
) -> tuple[Interval, Interval]:
    r"""Returns the weak-learning constants of a classifier, from samples, each with a confidence interval.

    .. math::
        \gamma_P = \frac{\mathbb{E}_P[c]}{c^*}, \qquad \gamma_Q = \frac{\mathbb{E}_Q[-c]}{c^*} .

    The intervals hold for every sample size: by the empirical Bernstein bound, with :math:`\alpha` = 1 - confidence, n
    values in an interval of length :math:`2c^*` with sample variance V have a mean that is off by more than
    :math:`\sqrt{2V \log(4/\alpha)/n} + 14 c^* \log(4/\alpha)/(3(n-1))` with probability at most :math:`\alpha`.

    Privacy:
        Private where P is the table.

    Args:
        c_p: the classifier at draws of P that it was not trained on, shape ``(n,)``, in [-c_max, c_max].
        c_q: at such draws of Q, shape ``(m,)``.
        confidence: of each interval, in (0, 1).
        c_max: c*, or any upper bound of it, in (0, log 2].

    Returns:
        gamma_P and gamma_Q.

    Raises:
        ValueError: a value is outside the bound, or a sample has fewer than two values.

    References:
        Husain, Cranko, Nock. 2018. Definition 1. Maurer, Pontil. Empirical Bernstein Bounds and Sample Variance
        Penalization. 2009. Theorem 4.

    Example:
        >>> import torch
        >>> gamma_p, _ = weak_learning_constants(torch.full((10_000,), 0.5), torch.full((10_000,), -0.5))
        >>> round(gamma_p.estimate, 3), round(gamma_p.low, 3), round(gamma_p.high, 3)
        (0.721, 0.719, 0.723)
    """
    alpha = 1 - check_number("confidence", confidence, "be in (0, 1)", lambda value: 0 < value < 1)
    c_max = check_number("c_max", c_max, "be in (0, log 2]", lambda value: 0 < value <= LOG_2)

    def interval(name: str, values: Tensor) -> Interval:
        values = values.double().flatten() / c_max
        if len(values) < 2:
            raise ValueError(argument_error(name, "hold at least two values", tuple(values.shape)))
        if not bool((values.abs() <= 1 + 1e-6).all()):  # float32's log 2 is above log 2
            raise ValueError(argument_error(name, "be in [-c_max, c_max]", "values outside it"))
        log_term = math.log(4 / alpha)
        mean, count = float(values.mean()), len(values)
        error = math.sqrt(2 * float(values.var()) * log_term / count) + 14 * log_term / (3 * (count - 1))
        return Interval(mean, max(mean - error, -1.0), min(mean + error, 1.0))

    return interval("c_p", c_p), interval("c_q", -c_q)


def gain_limit(epsilon: float, skew: float = 0.5) -> float:
    r"""Returns, in nats, the most that any density of the set can be nearer to any target than the base is.

    Where :math:`\log q/q_0 \le (1 - \text{skew})\,\epsilon` everywhere,

    .. math::
        \Delta(Q) = \mathrm{KL}(P, Q_0) - \mathrm{KL}(P, Q) = \mathbb{E}_P\Bigl[\log \frac{q}{q_0}\Bigr]
        \le (1 - \text{skew})\,\epsilon .

    Skew 1/2 is the paper's set, with its limit epsilon/2.

    Args:
        epsilon: privacy parameter of one draw, in nats; above 0.
        skew: where the interval lies, in (0, 1).

    References:
        Husain, Cranko, Nock. 2018. Theorem 6, upper bound.

    Example:
        >>> gain_limit(1.0), gain_limit(1.0, skew=0.25)
        (0.5, 0.75)
    """
    return (1 - check_skew(skew)) * _check_finite_epsilon(epsilon)


def boosted_gain_bound(epsilon: float, num_rounds: int, gamma_p: float, gamma_q: float) -> float:
    r"""Returns, in nats, what the paper's algorithm gains at least if it stays in the high-boosting regime.

    .. math::
        \Delta(Q_T) \ge \frac{\epsilon}{4}\,\bigl(1 - \theta_T\bigr)
        \Bigl(\gamma_P + \frac{\Gamma(\gamma_Q)}{\log 2}\Bigr), \qquad \Gamma(z) = \log\frac{4}{5 - 3z},

    which tends to epsilon/2 as the constants tend to 1. The paper's statement has :math:`\gamma_Q` for
    :math:`\Gamma(\gamma_Q)/\log 2`, by :math:`\Gamma(z) \ge z \log 2`, which is false below 1. Proof: docs/proofs.md,
    *The gain of boosting*.

    Args:
        epsilon: privacy parameter of one draw, in nats; above 0.
        num_rounds: T, at least 1.
        gamma_p: weak-learning constant against P in every round, in [-1, 1], taken against log 2.
        gamma_q: against Q, in [1/3, 1], taken against log 2.

    References:
        Husain, Cranko, Nock. 2018. Theorem 6, lower bound, as its proof allows.

    Example:
        >>> round(boosted_gain_bound(1.0, num_rounds=3, gamma_p=1.0, gamma_q=1.0), 3)
        0.491
    """
    last = float(paper_natural_params(_check_finite_epsilon(epsilon), num_rounds)[-1])
    return epsilon / 2 * (1 - last) * _average_edge(gamma_p, gamma_q)


def _average_edge(gamma_p: float, gamma_q: float) -> float:
    """The paper's average of the two constants, with Gamma(gamma_Q)/log 2 for gamma_Q, as its proofs allow."""
    check_number("gamma_p", gamma_p, "be in [-1, 1]", lambda value: -1 <= value <= 1)
    check_number("gamma_q", gamma_q, "be in [1/3, 1], the high-boosting regime", lambda value: 1 / 3 <= value <= 1)
    return (gamma_p + math.log(4 / (5 - 3 * gamma_q)) / LOG_2) / 2


def _check_finite_epsilon(epsilon: float) -> float:
    return check_number("epsilon", epsilon, "be finite and above 0", lambda value: 0 < value < math.inf)


def _check_probability(name: str, value: float) -> float:
    return check_number(name, value, "be in [0, 1]", lambda number: 0 <= number <= 1)


def mode_mass_bound(mass: float, kl_in_mode: float, gain: float, epsilon: float, skew: float = 0.5) -> float:
    r"""Returns how much of a region the fitted density holds at least; negative where nothing follows.

    .. math::
        m(B, Q) \ge (1 + hi)\, m(B, P) - hi - \mathrm{KL}(P, Q_0; B) + \Delta(Q), \qquad
        hi = (1 - \text{skew})\,\epsilon,

    where :math:`m(B, \cdot)` is the mass of B and :math:`\mathrm{KL}(P, Q_0; B) = \int_B \log(p/q_0)\, dP`. Skew 1/2 is
    the paper's set. Proof: docs/proofs.md, *The mass of a mode*.

    Args:
        mass: m(B, P), in [0, 1].
        kl_in_mode: KL(P, Q0; B), in nats.
        gain: Delta(Q), in nats.
        epsilon: privacy parameter of one draw, in nats; above 0.
        skew: where the interval lies, in (0, 1).

    References:
        Husain, Cranko, Nock. 2018. Proof of Theorem 7.

    Example:
        >>> round(mode_mass_bound(mass=0.9, kl_in_mode=0.3, gain=0.25, epsilon=1.0), 3)
        0.8
    """
    high = gain_limit(epsilon, skew)
    return (1 + high) * _check_probability("mass", mass) - high - kl_in_mode + gain


def mode_condition(epsilon: float, num_rounds: int, gamma_p: float, gamma_q: float, alpha: float) -> float:
    r"""Returns the mass, at most 1, from which on a region is certain to be captured in the high-boosting regime.

    .. math::
        m(B, P) \ge \frac{\epsilon\,\bigl(\epsilon + (1 - g) T K\bigr)}{(\epsilon + 2\alpha)(\epsilon + T K)}
        \;\Longrightarrow\; m(B, Q_T) \ge (1 - \alpha)\, m(B, P) - \mathrm{KL}(P, Q_0; B),

    with :math:`K = 4 \log 2` and :math:`g = (\gamma_P + \Gamma(\gamma_Q)/\log 2)/2`: :func:`mode_mass_bound` with the
    gain of :func:`boosted_gain_bound`. The paper's statement has 2 for K, and :math:`\gamma_Q` for
    :math:`\Gamma(\gamma_Q)/\log 2`. Proof: docs/proofs.md, *The mass of a mode*.

    Args:
        epsilon: privacy parameter of one draw, in nats; above 0.
        num_rounds: T, at least 1.
        gamma_p: weak-learning constant against P, in [-1, 1], with g at least 0.
        gamma_q: against Q, in [1/3, 1].
        alpha: share of the region that may be missed, in [0, 1].

    References:
        Husain, Cranko, Nock. 2018. Theorem 7, as proven.

    Example:
        >>> round(mode_condition(1.0, num_rounds=3, gamma_p=0.9, gamma_q=0.9, alpha=0.5), 3)
        0.121
    """
    alpha = _check_probability("alpha", alpha)
    epsilon = _check_finite_epsilon(epsilon)
    steps = check_count("num_rounds", num_rounds) * 4 * LOG_2
    edge = _average_edge(gamma_p, gamma_q)
    if edge < 0:
        remedy = "Nothing follows below."
        raise ValueError(argument_error("gamma_p", "be at least -Gamma(gamma_q) / log 2", gamma_p, remedy))
    return epsilon * (epsilon + (1 - edge) * steps) / ((epsilon + 2 * alpha) * (epsilon + steps))


def captured_mode_bound(mass: float, kl_in_mode: float, alpha: float) -> float:
    """Returns (1 - alpha) m(B, P) - KL(P, Q0; B), what Theorem 7 concludes where :func:`mode_condition` is met."""
    return (1 - _check_probability("alpha", alpha)) * _check_probability("mass", mass) - kl_in_mode


def kl_bound_for_any_table(kl: float, epsilon: float) -> float:
    r"""Returns how far from P the density of *any* table is at most, if that of one table is within ``kl``.

    .. math::
        \mathrm{KL}(P, Q_D) = \mathrm{KL}(P, Q_{D'}) + \mathbb{E}_P\Bigl[\log\frac{q_{D'}}{q_D}\Bigr]
        \le \mathrm{KL}(P, Q_{D'}) + \epsilon .

    It is a limit too: if some table gives a density that is far from P, no table gives a near one.

    Args:
        kl: KL(P, Q_{D'}), in nats; at least 0.
        epsilon: privacy parameter of one draw, in nats; above 0.

    References:
        Husain, Cranko, Nock. 2018. Additional formal results, first lemma.

    Example:
        >>> kl_bound_for_any_table(0.25, epsilon=0.5)
        0.75
    """
    return check_number("kl", kl, "be at least 0", lambda value: value >= 0) + check_epsilon(epsilon)


def kl_bound_under_differential_privacy(kl: float, epsilon: float, num_rows: int) -> float:
    r"""Returns how far from P the densities of a differentially private sampler stay at least.

    The sampler's output is one draw, and epsilon bounds the log-ratio of the densities of any two tables of m rows that
    differ in one. If some table gives a density with :math:`\mathrm{KL}(P, Q) \ge \Delta`, then every table has
    :math:`\mathrm{KL}(P, Q_D) \ge \Delta - m\,\epsilon`: it is at most m rows away.

    Args:
        kl: Delta, in nats; at least 0.
        epsilon: of differential privacy, for one row, in nats; above 0.
        num_rows: m, at least 1.

    Returns:
        The bound in nats, 0 where it says nothing.

    References:
        Husain, Cranko, Nock. 2018. Additional formal results, second lemma.

    Example:
        >>> kl_bound_under_differential_privacy(5.0, epsilon=0.01, num_rows=100)
        4.0
    """
    kl = check_number("kl", kl, "be at least 0", lambda value: value >= 0)
    return max(kl - check_count("num_rows", num_rows) * check_epsilon(epsilon), 0.0)


def post_processing_bounds(probability: float, epsilon: float, delta: float = 0.0) -> tuple[float, float]:
    r"""Returns between what the probability of a decision may lie under any other table.

    Let a decision be taken from what was released by any procedure, fair or not, with probability p. Under any other
    table its probability p' satisfies :math:`p' \le e^\epsilon p + \delta` and, as the same holds for its opposite and
    with the tables exchanged,

    .. math::
        \max\bigl(e^{-\epsilon}(p - \delta),\; 1 - e^{\epsilon}(1 - p) - \delta,\; 0\bigr) \le p' \le
        \min\bigl(e^{\epsilon} p + \delta,\; 1 - e^{-\epsilon}(1 - p - \delta),\; 1\bigr) .

    So no group in the table can have moved it further: a bound on the bias that the data bring in.

    Args:
        probability: p, in [0, 1].
        epsilon: of the whole release (:func:`~pyro_mbde.privacy.accounting.compose`), in nats; finite, at least 0.
        delta: of the whole release, in [0, 1).

    Returns:
        Least and largest probability.

    References:
        Husain, Cranko, Nock. 2018. Section 6, lemma on post-processing.

    Example:
        >>> tuple(round(bound, 3) for bound in post_processing_bounds(0.5, epsilon=1.0))
        (0.184, 0.816)
    """
    p = _check_probability("probability", probability)
    delta = check_number("delta", delta, "be in [0, 1)", lambda value: 0 <= value < 1)
    epsilon = check_number("epsilon", epsilon, "be finite and at least 0", lambda value: 0 <= value < math.inf)

    def grown(probability: float) -> float:
        """At most 1, by logarithms, since the exponential may overflow."""
        log_grown = math.log(probability) + epsilon if probability else -math.inf
        return math.exp(log_grown) if log_grown < 0 else 1.0

    shrink = math.exp(-epsilon)
    low = max(shrink * (p - delta), 1 - grown(1 - p) - delta, 0.0)
    high = min(grown(p) + delta, 1 - shrink * (1 - p - delta), 1.0)
    return low, high
