"""Plain words on public numbers: when a total is weak, and how many rows could just as well be draws of the base."""

from __future__ import annotations

import math

from pyro_mbde._checks import check_number

#: From this total on a promise is called weak: e^4 = 55, so that even odds on which of two tables it is can become 99
#: to 1. At 3 they can become 96 to 4, at 1 they stay at 74 to 26. Odds are rounded up: they are what can be promised.
WEAK_EPSILON = 4.0

#: Rows are said to look like the base if at least nine in ten of them could just as well be draws of it, whatever
#: the table: below epsilon 0.48 at skew 0.3. The best rows at 0.3, 0.5, 1 and 2 close 10, 17, 30 and 52 per cent of the
#: distance (total variation) from N(0, 1) to N(1, 1/2), and 11, 18, 33 and 55 per cent of that to an even mixture of
#: N(-1, 0.3) and N(1, 0.3).
LOOKS_LIKE_BASE = 0.1

#: Odds above this are written as a power of ten.
_LARGEST_ODDS = 1e6


def advise(
    total: float | None = None,
    *,
    row: float | None = None,
    batch: float | None = None,
    skew: float = 0.5,
    calibrated: bool = True,
) -> list[str]:
    """Returns what a privacy expert would say about an epsilon: about a weak total, and about what a row can show.

    Privacy:
        Public: it depends on its arguments alone, which are public.

    Args:
        total: epsilon of all rows together, in nats, at least 0; ``None`` where it is not known.
        row: epsilon of one row, in nats, at least 0; ``None`` where it is not known.
        batch: epsilon of one batch of rows, in nats, at least 0; ``None`` where there is none, or a total is known.
        skew: of the density, in [0, 1].
        calibrated: whether its guarantee is calibrated, or a priori.

    Raises:
        TypeError: an argument is not a number.
        ValueError: a number is out of its range.

    Example:
        >>> print(*advise(2.0, row=0.5, skew=0.3))
        At epsilon 0.5 a row, at least 89 in 100 rows could just as well have been drawn from the public base, whatever
        the table.
        >>> for remark in advise(10.0, row=0.1, skew=0.3):
        ...     print(remark)
        A total epsilon of 10 is a weak promise: even odds on which of two tables the rows come from can become 22,027
        to 1. Totals of 1 to 3 can be defended.
        At epsilon 0.1 a row, at least 97 in 100 rows could just as well have been drawn from the public base, whatever
        the table. So the rows will look like the public base. Fewer rows, or narrower public ranges, would show more.
    """
    remarks = []
    if total is not None and _check(total, "total") >= WEAK_EPSILON:
        remarks.append(f"A total epsilon of {total:g} is a weak promise: {_odds('the rows come', total)}")
    if row is not None and total is None and _check(row, "row") >= WEAK_EPSILON:
        remarks.append(f"Epsilon {row:g} for a single row is a weak promise: {_odds('it comes', row)}")
    if batch is not None and total is None and _check(batch, "batch") >= WEAK_EPSILON:
        remarks.append(f"An epsilon of {batch:g} for one batch is a weak promise: {_odds('its rows come', batch)}")
    if row is not None:
        distance = distance_from_base(row, skew, calibrated=calibrated)
        share = math.floor(100 * (1 - distance))
        remark = (
            f"At epsilon {row:.4g} a row, at least {share} in 100 rows could just as well have been drawn from the "
            f"public base, whatever the table."
        )
        if distance < LOOKS_LIKE_BASE:
            remedy = "Fewer rows, or narrower public ranges, would show more."
            remark += f" So the rows will look like the public base. {remedy}"
        remarks.append(remark)
    return remarks


def distance_from_base(epsilon: float, skew: float = 0.5, *, calibrated: bool = True) -> float:
    r"""Returns the largest total variation between the base and any density of a guarantee.

    That is the largest share of rows that a table can change: the others could just as well be draws of the base.

    .. math::
        \mathrm{TV}(q, q_0) \le \frac{(1 - a)(b - 1)}{b - a}, \quad
        a = e^{-\text{skew}\,\epsilon},\; b = a e^{\epsilon}

    for a calibrated density, whose :math:`q / q_0` lies in [a, b] with mean 1 under the base: total variation is the
    mean of a convex function of it, so that it is largest where the ratio is a or b alone. A priori the ratio of any
    two values of :math:`q / q_0` is at most :math:`e^{\epsilon / 2}`, wherever they lie, and the bound is
    :math:`\tanh(\epsilon / 8)`.

    Privacy:
        Public.

    Args:
        epsilon: of one row, in nats, at least 0.
        skew: of a calibrated density, in [0, 1].
        calibrated: whether the guarantee is calibrated, or a priori.

    Raises:
        TypeError: an argument is not a number.
        ValueError: a number is out of its range.

    Example:
        >>> round(distance_from_base(0.5, 0.3), 3), round(distance_from_base(0.5, calibrated=False), 3)
        (0.105, 0.062)
    """
    epsilon = _check(epsilon, "epsilon")
    skew = check_number("skew", skew, "be in [0, 1]", lambda value: 0 <= value <= 1)
    if not calibrated:
        return math.tanh(epsilon / 8)
    if epsilon == 0:
        return 0.0
    # (1 - a)(b - 1)/(b - a), with numerator and denominator divided by b: no overflow for a large epsilon.
    below, above = -math.expm1(-skew * epsilon), -math.expm1(-(1 - skew) * epsilon)
    return below * above / -math.expm1(-epsilon)


def _check(value: float, name: str) -> float:
    return check_number(name, value, "be at least 0, in nats", lambda number: number >= 0)


def _odds(subject: str, epsilon: float) -> str:
    """What becomes of even odds on which of two tables it is; rounded up."""
    if math.isinf(epsilon):
        become = "certainty"
    elif epsilon > math.log(_LARGEST_ODDS):
        become = f"10^{math.ceil(epsilon / math.log(10))} to 1"
    else:
        become = f"{math.ceil(math.exp(epsilon)):,} to 1"
    return f"even odds on which of two tables {subject} from can become {become}. Totals of 1 to 3 can be defended."
