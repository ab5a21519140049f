"""Public numbers of a calibrated fit: the interval of the tilt, and the tolerance of its certificate."""

from __future__ import annotations

import math

from torch.distributions import Distribution

from pyro_mbde._checks import argument_error, check_epsilon, check_number
from pyro_mbde.calibration.certificate import ROUNDING_RESERVE
from pyro_mbde.density.base import PreparedBase
from pyro_mbde.density.base_draws import num_uniforms
from pyro_mbde.density.bounds import Bounds, Certificate, check_skew, skewed_bounds
from pyro_mbde.density.row_batch import MAX_ROWS
from pyro_mbde.privacy.release_plan import MAX_BATCH_EPSILON, MAX_CERTIFIED_ROWS, batch_tolerance, certified_rows

#: The smallest delta, whose half is far from underflow.
SMALLEST_DELTA = 1e-300
#: Draws that the tolerance is sized for, plain ones of the tilt that is hardest to certify. On a base that is inverted
#: from few uniform numbers, where control variates leave hardly any scatter, the first number. Elsewhere the second,
#: where the tolerance is then at most this share of epsilon, else more, up to the first.
_MOST_DRAWS_PLANNED, _DRAWS_PLANNED, _TOLERANCE_SHARE = 2**22, 2**20, 0.005
#: The most uniform numbers that are few.
_FEW_UNIFORMS = 3
#: Share of epsilon that an exactly summed log-normaliser is allowed to be off by.
_EXACT_TOLERANCE = 1e-6


def plan_calibration(
    base: Distribution | PreparedBase, epsilon: float, delta: float, skew: float, num_rows: int | None = None
) -> tuple[Bounds, Certificate | None]:
    """Returns the public bounds of a tilt, and what is to be proved of it.

    On a finite base the log-normaliser is a sum, exact up to rounding. The tolerance is then a millionth of epsilon
    plus a reserve for rounding (:data:`~pyro_mbde.calibration.certificate.ROUNDING_RESERVE`), and the certificate's
    delta is 0. On any other base a positive delta gives :func:`plan_certificate`. For a batch, on every base, the
    tolerance is a public share of epsilon, :data:`~pyro_mbde.privacy.release_plan.BATCH_TOLERANCE`, or of the shorter
    side of the interval where that is less.

    There is no certificate, and the width is epsilon/2 with the a-priori guarantee, in three cases: delta is 0 on a
    base that is not finite; the certified interval would not be wider than epsilon/2, at a very large epsilon; or one
    side of the interval is too narrow for rounding.

    Args:
        base: public base distribution.
        epsilon: privacy parameter of one draw, in nats; in (0, 700).
        delta: probability that a certificate is wrong, in [0, 1).
        skew: where the interval lies, in (0, 1).
        num_rows: rows of a batch; ``None`` for single rows. A batch has an epsilon of at most
            :data:`~pyro_mbde.privacy.release_plan.MAX_BATCH_EPSILON`.
    """
    epsilon, skew = check_finite_epsilon(epsilon), check_skew(skew)
    if num_rows is not None:
        remedy = "A batch takes about 37 e^epsilon proposals. Lower epsilon, or draw several smaller batches."
        limit = f"be at most {MAX_BATCH_EPSILON:g} for a batch"
        check_number("epsilon", epsilon, limit, lambda value: value <= MAX_BATCH_EPSILON, remedy=remedy)
        check_number("num_rows", num_rows, f"be at most {MAX_ROWS:,}", lambda value: value <= MAX_ROWS)
    constraint = f"be 0, or in [{SMALLEST_DELTA:g}, 1)"
    delta = check_number("delta", delta, constraint, lambda value: value == 0 or SMALLEST_DELTA <= value < 1)
    if num_rows is not None and delta:
        _check_effort(epsilon, delta, skew, num_rows)
    planned: tuple[Bounds, Certificate] | None = None
    if min(skew, 1 - skew) * epsilon > 2 * ROUNDING_RESERVE + _EXACT_TOLERANCE * epsilon:
        if num_rows is not None:
            if delta:
                bounds = shrunk_bounds(epsilon, skew, batch_tolerance(epsilon, skew))
                # What rounding left over, so that a batch costs what was asked to the last digit.
                planned = bounds, Certificate((epsilon - bounds.width) / 2, delta)
        elif PreparedBase.of(base).finite is not None:
            tolerance = ROUNDING_RESERVE + _EXACT_TOLERANCE * epsilon
            planned = shrunk_bounds(epsilon, skew, tolerance), Certificate(tolerance)
        elif delta:
            uniforms = num_uniforms(base)
            few = uniforms is not None and uniforms <= _FEW_UNIFORMS
            planned = plan_certificate(epsilon, delta, skew, _MOST_DRAWS_PLANNED if few else _DRAWS_PLANNED)
    if planned is not None and planned[0].width > epsilon / 2:
        return planned
    return skewed_bounds(epsilon / 2, 0.5), None


def _check_effort(epsilon: float, delta: float, skew: float, num_rows: int) -> None:
    """Raises if the certificate of a batch would take too many rows; depends only on public numbers."""
    needed = certified_rows(epsilon, skew, delta, num_rows)
    if needed > MAX_CERTIFIED_ROWS:
        amount = "more than any number of rows" if math.isinf(needed) else f"about {needed:.1e} rows"
        remedy = (
            f"It would take {amount}, and at most {MAX_CERTIFIED_ROWS:.0e} are drawn. Take fewer rows in a batch, a "
            f"skew nearer 0.3, or delta=0, which needs no certificate."
        )
        found = f"epsilon={epsilon:g}, delta={delta:g}, skew={skew:g}, num_rows={num_rows}"
        raise ValueError(f"A certificate for such a batch must be in reach, got {found}. {remedy}")


def plan_certificate(
    epsilon: float, delta: float, skew: float, num_draws: int = _MOST_DRAWS_PLANNED
) -> tuple[Bounds, Certificate]:
    r"""Splits a privacy parameter into the width of the tilt and the tolerance of its certificate.

    .. math::
        \epsilon = R + 2\eta, \qquad \eta = 10^{-5} + \sqrt{\frac{2 V \log(1/\delta)}{n}}, \qquad
        V = (e^{hi} - 1)(1 - e^{lo}), \qquad
        [lo - \eta,\, hi + \eta] = [-\text{skew}\,\epsilon,\, (1 - \text{skew})\,\epsilon],

    with n = ``num_draws``; where eta would exceed 0.5 per cent of epsilon, with the n that makes it so, but at most
    2^22. V is the largest variance that :math:`e^f \in [e^{lo}, e^{hi}]` of mean 1 can have (Bhatia & Davis 2000), so
    that n plain draws are about what certifying takes at worst. The smallest eta that satisfies this is found by
    bisection. Everything here is public. The price is small: at delta = 1e-9 and with 2^20 draws or more, the tolerance
    is at most 0.5 per cent of epsilon for every epsilon from 0.01 to 5, at skews from 0.3 to 0.7.

    Args:
        epsilon: privacy parameter of one draw, in nats; above 0 and finite.
        delta: probability that the certificate is wrong; in [1e-300, 1).
        skew: place of the interval, in (0, 1), with more than 2e-5 nats on either side of 0.
        num_draws: plain draws that the tolerance is sized for. 2^22 for bases that are inverted from up to three
            uniform numbers, where a certificate takes far fewer; 2^20 for others.

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
        if tolerance < _provable_tolerance(epsilon, shrunk_bounds(epsilon, skew, tolerance), delta, num_draws):
            low = tolerance
        else:
            high = tolerance
    return shrunk_bounds(epsilon, skew, high), Certificate(high, delta)


def shrunk_bounds(epsilon: float, skew: float, tolerance: float) -> Bounds:
    r"""Returns the interval of a calibrated tilt: [-skew epsilon, (1 - skew) epsilon], less the tolerance at both ends.

    Rounded towards more privacy: its width plus twice the tolerance is at most epsilon. The tolerance must be at most
    ``min(skew, 1 - skew) * epsilon``.
    """
    low, high = min(tolerance - skew * epsilon, 0.0), max((1 - skew) * epsilon - tolerance, 0.0)
    while high > 0 and (high - low) + 2 * tolerance > epsilon:
        high = math.nextafter(high, 0.0)
    return Bounds(low, high)


def check_finite_epsilon(value: object) -> float:
    """Returns ``value`` as a float, or raises if it is not in (0, 700): beyond, the exponentials overflow."""
    epsilon = check_epsilon(value)
    return check_number("epsilon", epsilon, "be below 700", lambda number: number < 700)


def _provable_tolerance(epsilon: float, bounds: Bounds, delta: float, num_draws: int) -> float:
    variance = math.expm1(bounds.high) * -math.expm1(bounds.low)
    squared = 2 * variance * -math.log(delta)
    least, most = math.sqrt(squared / max(num_draws, _MOST_DRAWS_PLANNED)), math.sqrt(squared / num_draws)
    return max(ROUNDING_RESERVE + least, min(ROUNDING_RESERVE + most, _TOLERANCE_SHARE * epsilon))
