r"""From a privacy parameter to bounds and back.

A density :math:`q = q_0 \exp(f - \phi)` with :math:`f` in a public interval :math:`[lo, hi]`, whatever the table was,
is private to sample from: only the interval matters, not how :math:`f` was learned. Nothing here trains or reads a
table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_mbde._checks import argument_error, check_count, check_epsilon, check_number
from pyro_mbde.privacy.guarantee import Guarantee
from pyro_mbde.privacy.placement import placed_total_variation

#: Bound of every classifier, :math:`|c_t(x)| \le \log 2`. As a double it lies below the real number log 2.
LOG_2 = math.log(2)


class Bounds(NamedTuple):
    """Public interval that holds the tilt f whatever the table was, in nats; ``low <= 0 <= high``."""

    low: float
    high: float

    def clamp(self, value: float) -> float:
        """Returns the point of the interval nearest to ``value``."""
        return min(max(value, self.low), self.high)

    @property
    def width(self) -> float:
        """R = high - low, in nats."""
        return self.high - self.low


def paper_natural_params(epsilon: float, num_rounds: int) -> Tensor:
    r"""Returns the natural parameters of the paper's schedule.

    .. math::
        \theta_t = \left(\frac{\epsilon}{\epsilon + 4 \log 2}\right)^t, \qquad
        \sum_{t=1}^T \theta_t < \frac{\epsilon}{4 \log 2} \text{ for every } T.

    The series is geometric with ratio :math:`r = \epsilon / (\epsilon + 4 \log 2)` and limit
    :math:`r / (1 - r) = \epsilon / (4 \log 2)`. Hence :math:`|f| \le \log 2 \sum_t \theta_t < \epsilon/4`.

    Args:
        epsilon: privacy parameter of one draw, in nats; in (0, inf]. ``inf`` gives the limit theta_t = 1, boosting
            without a privacy constraint.
        num_rounds: number of boosting rounds T; at least 1.

    Returns:
        Tensor of shape ``(num_rounds,)``, float64, in [0, 1]; 0 only where a power is below the smallest double.

    References:
        Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018. Algorithm 1 and the lemma
        that sums theta_t.

    Example:
        >>> paper_natural_params(epsilon=1.0, num_rounds=3)
        tensor([0.2651, 0.0703, 0.0186], dtype=torch.float64)
    """
    epsilon = check_epsilon(epsilon)
    num_rounds = check_count("num_rounds", num_rounds)
    ratio = 1 / (1 + 4 * LOG_2 / epsilon)
    return ratio ** torch.arange(1, num_rounds + 1, dtype=torch.float64)


def spending_natural_params(epsilon: float, num_rounds: int) -> Tensor:
    r"""Returns the paper's schedule scaled to spend the whole privacy parameter.

    Only :math:`\sum_t |\theta_t|` matters for privacy, so what the paper's schedule leaves over is free:

    .. math::
        \theta_t = \min(1, s\, r^t), \qquad s \text{ such that } 4 \log 2 \sum_t \theta_t = \epsilon .

    No :math:`\theta_t` goes above 1, the value at which a perfect classifier completes the density (and up to which
    Theorem 5's high-boosting bound holds); where :math:`\epsilon \ge 4 T \log 2` all are 1 and the guarantee is
    :math:`4 T \log 2`, better than asked.

    Args:
        epsilon: privacy parameter of one draw, in nats; in (0, inf].
        num_rounds: number of boosting rounds T; at least 1.

    Returns:
        Tensor of shape ``(num_rounds,)``, float64, in [0, 1]; :func:`a_priori_guarantee` of its :func:`tilt_bounds` is
        at most epsilon.

    Example:
        >>> params = spending_natural_params(epsilon=5.0, num_rounds=3)
        >>> params
        tensor([0.8767, 0.5639, 0.3628], dtype=torch.float64)
        >>> a_priori_guarantee(tilt_bounds(params)).epsilon
        5.0
    """
    params = paper_natural_params(epsilon, num_rounds)
    budget = epsilon / (4 * LOG_2)
    if budget >= num_rounds:
        return torch.ones_like(params)
    # The parameters fall with t, so those held at 1 are the first few: take the fewest that leave the rest below 1.
    for num_full in range(num_rounds):
        rest = params[num_full:]
        scaled = rest * ((budget - num_full) / rest.sum())
        if scaled[0] <= 1:
            params = torch.cat([torch.ones_like(params[:num_full]), scaled])
            break
    # Rounding may leave the sum a few units in the last place too large: round towards more privacy.
    while a_priori_guarantee(tilt_bounds(params)).epsilon > epsilon:
        params = params * (1 - 2**-53 * 2)
    return params


def tilt_bounds(natural_params: Tensor) -> Bounds:
    r"""Returns the interval that holds :math:`f = \langle \theta, c \rangle` for every classifier in [-log 2, log 2].

    .. math::
        |f(x)| \le \sum_t |\theta_t|\,|c_t(x)| \le B = \log 2 \sum_t |\theta_t| .

    The natural parameters must be public for the interval to be.

    Args:
        natural_params: theta, shape ``(T,)``.

    Returns:
        ``Bounds(-B, B)`` in nats.

    Example:
        >>> tilt_bounds(torch.tensor([1.0, 0.5]))
        Bounds(low=-1.0397207708399179, high=1.0397207708399179)
    """
    try:
        half_width = LOG_2 * math.fsum(abs(theta) for theta in natural_params.tolist())
    except OverflowError:
        half_width = math.inf
    if not math.isfinite(half_width):
        raise ValueError(argument_error("natural_params", "be finite", natural_params.tolist()))
    return Bounds(-half_width, half_width)


def a_priori_guarantee(bounds: Bounds) -> Guarantee:
    r"""Returns the guarantee of a draw from any density whose tilt stays in public bounds.

    For the densities q, q' fitted to any two tables, with tilts in an interval of width R,

    .. math::
        \left|\log \frac{q(x)}{q'(x)}\right| \le 2R ,

    and for one pair of tables the log-ratio ranges over at most 2R, with delta 0. Proof: docs/proofs.md, *Bounds: the
    a-priori guarantee*. Against the base, :math:`|\log q/q_0| \le R`: with :math:`R = \epsilon/2` this is the paper's
    set :math:`\mathcal{M}_\epsilon`.

    Args:
        bounds: public interval of the tilt, ``low <= 0 <= high``, in nats.

    Returns:
        ``Guarantee(epsilon=2 R, delta=0, log_ratio_range=2 R)``.

    References:
        Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018. Theorem 4 (Q_T is in
        M_epsilon) and the lemma on mollifiers.

    Example:
        >>> a_priori_guarantee(Bounds(-0.25, 0.25))
        Guarantee(epsilon=1.0, delta=0.0, log_ratio_range=1.0)
    """
    width = _checked_width(bounds)
    return Guarantee(epsilon=2 * width, delta=0.0, log_ratio_range=2 * width)


def _checked_width(bounds: Bounds) -> float:
    low = check_number("bounds.low", bounds.low, "be finite and at most 0", lambda value: -math.inf < value <= 0)
    high = check_number("bounds.high", bounds.high, "be finite and at least 0", lambda value: 0 <= value < math.inf)
    return high - low


@dataclass(frozen=True)
class Certificate:
    r"""What is certified of a density whose tilt stays in public bounds [lo, hi].

    .. math::
        \log \frac{q}{q_0} \in [lo - \eta,\, hi + \eta] \text{ everywhere}

    for the density that is handed on, whatever the table, except with probability delta over the randomness of
    certification (:func:`~pyro_mbde.calibration.certificate.certify`). As :math:`\log q/q_0 = f - \phi`, it is enough
    that :math:`|\phi| \le \eta`.

    Both numbers are public: they follow from epsilon, skew and delta.

    Args:
        tolerance: eta, in nats; at least 0.
        delta: probability that the certificate is wrong, in [0, 1); 0 where phi is summed exactly.

    Example:
        >>> Certificate(tolerance=0.002, delta=1e-9)
        Certificate(tolerance=0.002, delta=1e-09)
    """

    tolerance: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        """Checks the ranges."""
        check_number("tolerance", self.tolerance, "be finite and at least 0", lambda value: 0 <= value < math.inf)
        check_number("delta", self.delta, "be in [0, 1)", lambda value: 0 <= value < 1)


def calibrated_guarantee(bounds: Bounds, certificate: Certificate) -> Guarantee:
    r"""Returns the guarantee of a draw from a density whose log-normaliser is certified to be near 0.

    Under the certificates of both tables' densities

    .. math::
        \left|\log \frac{q(x)}{q'(x)}\right| \le R + 2\eta ,

    where the a-priori guarantee has 2R: the same epsilon buys almost twice the width. The log-ratio ranges over at most
    2R, certificate or not. Proof: docs/proofs.md, *Bounds: the calibrated guarantee*. As q/q_0 of both lies in the same
    public interval [lo - eta, hi + eta], their total variation is at most
    :func:`~pyro_mbde.privacy.placement.placed_total_variation`.

    Args:
        bounds: public interval [lo, hi] of the tilt, ``low <= 0 <= high``, in nats.
        certificate: eta and delta.

    Returns:
        ``Guarantee(epsilon=R + 2 eta, delta, log_ratio_range=2 R)``, or the a-priori one where R is below 2 eta.

    References:
        Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018. Definition 3 and the lemma
        on mollifiers; the set is {exp(lo - eta) <= q/q0 <= exp(hi + eta)}.

    Example:
        >>> guarantee = calibrated_guarantee(Bounds(-0.25, 0.5), Certificate(tolerance=0.125, delta=1e-9))
        >>> guarantee.epsilon, guarantee.log_ratio_range, round(guarantee.total_variation, 4)
        (1.0, 1.5, 0.3127)
    """
    width = _checked_width(bounds)
    epsilon = width + 2 * certificate.tolerance
    if epsilon >= 2 * width:
        return a_priori_guarantee(bounds)
    skew = (certificate.tolerance - bounds.low) / epsilon
    return Guarantee(epsilon, certificate.delta, 2 * width, placed_total_variation(epsilon, skew))


def skewed_bounds(width: float, skew: float) -> Bounds:
    r"""Returns the interval of a given width that lies at a public place around 0.

    .. math::
        lo = -\text{skew} \cdot R, \qquad hi = (1 - \text{skew}) R .

    Skew 1/2 is the paper's set :math:`\mathcal{M}_\epsilon`, in which nothing gains more than R/2 nats on the base; a
    lower skew raises that limit to :math:`(1 - \text{skew}) R` and pays where the target fills a small part of the
    base. It must be chosen without looking at the table.

    Args:
        width: R, in nats; finite and at least 0.
        skew: in (0, 1).

    Example:
        >>> skewed_bounds(1.0, skew=0.25)
        Bounds(low=-0.25, high=0.75)
    """
    width = check_number("width", width, "be finite and at least 0", lambda value: 0 <= value < math.inf)
    skew = check_skew(skew)
    return Bounds(-skew * width, (1 - skew) * width)


def check_skew(value: object) -> float:
    """Returns ``value`` as a float, or raises if it is not in (0, 1)."""
    return check_number("skew", value, "be in (0, 1)", lambda skew: 0 < skew < 1)


def clip_score(score: Tensor, shift: float, bounds: Bounds) -> Tensor:
    """Returns clip(score - shift, low, high) in float64; NaN becomes the middle of the interval."""
    middle = (bounds.low + bounds.high) / 2
    return torch.nan_to_num(score.double() - shift, nan=middle).clamp(bounds.low, bounds.high)
