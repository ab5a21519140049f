r"""The certificate that a log-normaliser is near 0, by betting against the contrary.

Given the tilt, :math:`\phi = \log E_{Q_0} e^f` is one fixed number, of which
fresh draws of the base are evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_mbde._checks import argument_error, check_epsilon, check_number
from pyro_mbde.density.bounds import Bounds, Certificate, check_skew

#: Draws that the tolerance is sized for: plain ones of the tilt that is hardest to certify.
_DRAWS_PLANNED = 2**22
#: Part of the tolerance kept back, in nats: networks compute in float32, where the size of a batch moves the last
#: digits of a tilt by some 1e-7, and so phi.
ROUNDING_RESERVE = 1e-5
#: The smallest delta, whose half is far from underflow.
SMALLEST_DELTA = 1e-300
#: A bet is at most this share of the largest that cannot lose everything.
_LARGEST_BET = 0.9
#: How far from 0 a gambler expects the log-normaliser: standard deviation, as a share of the tolerance.
_EXPECTED_ERROR = 1 / 6


def plan_certificate(epsilon: float, delta: float, skew: float) -> tuple[Bounds, Certificate]:
    r"""Splits a privacy parameter into the width of the tilt and the tolerance of its certificate.

    .. math::
        \epsilon = R + 2\eta, \qquad \eta = 10^{-5} + \sqrt{\frac{2 V \log(1/\delta)}{n}}, \qquad
        V = (e^{hi} - 1)(1 - e^{lo}), \qquad
        [lo - \eta,\, hi + \eta] = [-\text{skew}\,\epsilon,\, (1 - \text{skew})\,\epsilon],

    with n = 2^22. V is the largest variance that :math:`e^f \in [e^{lo}, e^{hi}]` of mean 1 can have (Bhatia & Davis
    2000), so that n plain draws are about what certifying takes at worst. The smallest eta that satisfies this is
    found by bisection. Everything here is public. The price is small: at delta = 1e-9 the tolerance is below one per
    cent of epsilon/2 for every epsilon up to 5, at skews from 0.3 to 0.7.

    Args:
        epsilon: privacy parameter of one draw, in nats; above 0 and finite.
        delta: probability that the certificate is wrong; in [1e-300, 1).
        skew: place of the interval, in (0, 1), with more than 2e-5 nats on either side of 0.

    Returns:
        The bounds of the tilt and the certificate to be proved; their
        :func:`~pyro_mbde.density.bounds.calibrated_guarantee` is at most epsilon.

    References:
        Bhatia, Davis. A better bound on the variance. American Mathematical Monthly, 2000.

    Example:
        >>> bounds, certificate = plan_certificate(1.0, delta=1e-9, skew=0.5)
        >>> round(bounds.width, 4), round(certificate.tolerance, 5)
        (0.9968, 0.00159)
        >>> from pyro_mbde.density.bounds import calibrated_guarantee
        >>> calibrated_guarantee(bounds, certificate).epsilon <= 1.0
        True
    """
    epsilon = check_finite_epsilon(epsilon)
    delta = check_number("delta", delta, "be in [1e-300, 1)", lambda value: SMALLEST_DELTA <= value < 1)
    skew = check_skew(skew)
    low, high = ROUNDING_RESERVE, min(skew, 1 - skew) * epsilon
    if high <= 2 * low:
        constraint = f"leave both sides of the interval {2 * low:g} nats at least, for rounding"
        raise ValueError(argument_error("skew and epsilon", constraint, (skew, epsilon)))
    for _ in range(60):
        tolerance = (low + high) / 2
        if tolerance < _tolerance(shrunk_bounds(epsilon, skew, tolerance), delta):
            low = tolerance
        else:
            high = tolerance
    return shrunk_bounds(epsilon, skew, high), Certificate(high, delta)


def shrunk_bounds(epsilon: float, skew: float, tolerance: float) -> Bounds:
    r"""Returns the interval of a calibrated tilt: [-skew epsilon, (1 - skew) epsilon], less the tolerance at both ends.

    Rounded towards more privacy: its width and twice the tolerance are at most epsilon.

    Args:
        epsilon: privacy parameter of one draw, in nats.
        skew: where the interval lies, in (0, 1).
        tolerance: eta, in nats; at most ``min(skew, 1 - skew) * epsilon``.

    Returns:
        The bounds, in nats.
    """
    low, high = min(tolerance - skew * epsilon, 0.0), max((1 - skew) * epsilon - tolerance, 0.0)
    while high > 0 and (high - low) + 2 * tolerance > epsilon:
        high = math.nextafter(high, 0.0)
    return Bounds(low, high)


def check_finite_epsilon(value: object) -> float:
    """Returns ``value`` as a float, or raises if it is not in (0, 700): beyond, the exponentials overflow."""
    epsilon = check_epsilon(value)
    return check_number("epsilon", epsilon, "be below 700", lambda number: number < 700)


def _tolerance(bounds: Bounds, delta: float) -> float:
    variance = math.expm1(bounds.high) * -math.expm1(bounds.low)
    return ROUNDING_RESERVE + math.sqrt(2 * variance * -math.log(delta) / _DRAWS_PLANNED)


class SampleBounds(NamedTuple):
    r"""Bounds of independent unbiased samples Y of :math:`E_{Q_0} e^f`, and a guess at their variance.

    Attributes:
        smallest: lower bound of Y.
        largest: upper bound of Y.
        variance: a guess, on which the proof does not depend.
    """

    smallest: float
    largest: float
    variance: float


def expected_draws(limits: SampleBounds, certificate: Certificate) -> float:
    r"""Returns about how many samples certifying takes; for planning only.

    With bets of gap over variance the log-capital grows by :math:`\eta^2/(2V)` a sample on average; and no bet can
    exceed one over the largest possible loss, so it grows by no more than about :math:`\eta/(Y_{max} - e^\eta)`. It has
    to reach :math:`\log 1/\delta`.
    """
    target, gap = -math.log(certificate.delta), math.expm1(certificate.tolerance)
    by_scatter = 2 * target * limits.variance / gap**2
    by_range = target * max(limits.largest - 1 - gap, 1 - gap - limits.smallest, 0.0) / (_LARGEST_BET * gap)
    return max(by_scatter, by_range)


def certify(blocks: Iterable[Tensor], limits: SampleBounds, certificate: Certificate) -> bool:
    r"""Returns whether :math:`|\phi| \le \eta` is proved; says so wrongly with probability at most delta.

    Two gamblers bet on independent samples :math:`Y_i` of mean :math:`e^\phi`, one against :math:`\phi \ge \eta`, one
    against :math:`\phi \le -\eta`. Each starts with 1, and by Ville's inequality reaches :math:`1/\delta` with
    probability at most delta if what they bet against is true. The claim is made once both have reached it, each at any
    time. No variance and no sample size is assumed, delta need not be split, and draws may be added until it succeeds.
    Proof: docs/proofs.md, *The certificate*.

    A bet of about gap over variance lets the capital grow fastest, where the gap is from the end of the interval that
    is bet on to the true mean. Both are taken from the blocks before. The variance is guessed in the first, and the
    mean shrunk towards 1, as if there was a normal prior of deviation eta/6 on it. Were the gap taken to be eta, a
    gambler would overbet where :math:`\phi \ne 0`, and from about :math:`|\phi| = \eta/2` on lose in the long run; so
    what is true beyond can be proved too.

    Args:
        blocks: independent unbiased samples of :math:`E_{Q_0} e^f`, in blocks of shape ``(n,)``, float64, made of
            draws that neither the tilt nor the limits depend on.
        limits: a and b, and the guess at the variance.
        certificate: eta and delta; of eta, :data:`ROUNDING_RESERVE` is kept back for the rounding of f.

    Returns:
        True as soon as it is proved, False if the blocks end first.

    Raises:
        ValueError: a sample is outside its bounds, the tolerance is no more than the reserve, or delta is 0.

    References:
        Waudby-Smith, Ramdas. Estimating means of bounded random variables by betting. JRSS B, 2024. Ville. Étude
        critique de la notion de collectif. 1939. In place of the empirical Bernstein bound of Maurer, Pontil (2009),
        which needs a sample size fixed beforehand, and delta split in two.

    Example:
        >>> bounds, certificate = plan_certificate(1.0, delta=1e-6, skew=0.5)
        >>> copies = torch.ones(4096, dtype=torch.float64)  # f = 0 everywhere
        >>> limits = SampleBounds(math.exp(bounds.low), math.exp(bounds.high), variance=0.01)
        >>> certify([copies] * 4, limits, certificate)
        True
        >>> certify([copies + 0.01] * 4, limits, certificate)  # phi = log(1.01), well above eta
        False
    """
    constraint = f"be above {ROUNDING_RESERVE}"
    check_number("certificate.tolerance", certificate.tolerance, constraint, lambda value: value > ROUNDING_RESERVE)
    check_number("certificate.delta", certificate.delta, "be above 0", lambda value: value > 0)
    smallest, largest, variance = limits
    tolerance = certificate.tolerance - ROUNDING_RESERVE
    upper, lower = math.exp(tolerance), math.exp(-tolerance)
    slack = 1e-12 * (1 + abs(smallest) + abs(largest))
    target = -math.log(certificate.delta)
    log_wealth_above = log_wealth_below = most_above = most_below = 0.0
    count, total, total_square = 0, 0.0, 0.0
    for block in blocks:
        if not len(block):
            continue
        if not bool(((block >= smallest - slack) & (block <= largest + slack)).all()):
            # The error shows neither the bounds nor the samples: they may come from a table.
            raise ValueError("blocks must hold copies between the limits, got others.")
        # The posterior mean of Y - 1: the prior is worth as many draws as tell the mean to its own deviation.
        excess = total / (count + variance / (_EXPECTED_ERROR * tolerance) ** 2) if count else 0.0
        bet_above = _bet(upper - 1 - excess, variance, largest - upper)
        bet_below = _bet(1 + excess - lower, variance, lower - smallest)
        path_above = log_wealth_above + torch.log1p(bet_above * (upper - block)).cumsum(0)
        path_below = log_wealth_below + torch.log1p(bet_below * (block - lower)).cumsum(0)
        log_wealth_above, log_wealth_below = float(path_above[-1]), float(path_below[-1])
        most_above = max(most_above, float(path_above.max()))
        most_below = max(most_below, float(path_below.max()))
        if most_above >= target and most_below >= target:
            return True
        count += len(block)
        total += float((block - 1).sum())
        total_square += float((block - 1).square().sum())
        # A little more than what was seen, so that blocks without scatter do not bet everything.
        variance = total_square / count - (total / count) ** 2 + (largest - smallest) ** 2 / count
    return False


def _bet(gap: float, variance: float, largest_loss: float) -> float:
    """Gap over variance, never so much that one copy could lose all, and finite where copies do not scatter."""
    if gap <= 0:  # what is bet against seems to be true
        return 0.0
    wanted = gap / variance if variance > 0 else math.inf
    return min(wanted, _LARGEST_BET / largest_loss if largest_loss > 0 else math.inf, 1 / gap)
