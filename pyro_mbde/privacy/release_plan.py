"""How to hand out rows within a total: one batch, several, or single rows; what they can show, and what it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pyro_mbde._checks import argument_error, check_count, check_number, in_nats
from pyro_mbde.privacy.accounting import DrawBudget, epsilon_per_draw
from pyro_mbde.privacy.advice import distance_from_base

#: Largest epsilon of a batch: at 12 a constant-time draw takes six million proposals, and each is a batch.
MAX_BATCH_EPSILON = 12.0
#: Tolerance of a batch's certificate, as a share of epsilon, of which twice as much is lost to it; at most the second
#: share of the shorter side of the interval, and at least the third, in nats.
BATCH_TOLERANCE, _LARGEST_SHARE, _MIN_TOLERANCE = 0.009, 0.25, 2e-5
#: Rows that a certificate may be expected to take, about ten minutes on one core; and of a bet, as in certificates.
MAX_CERTIFIED_ROWS, _LARGEST_BET = 10**8, 0.9
#: Rows that a release should score at most, under an hour on one core; and rows that can be planned.
_MAX_SCORED, _MAX_ROWS = 5 * 10**8, 10**5
#: Natural logarithm of the largest weight that the base may have in the law of a constant-time draw: 2^-53, one step of
#: a 53-bit uniform number. sampling/plan.py and releases/card.py name the same number.
_LOG_LARGEST_WEIGHT = -53 * math.log(2)
#: With g the most that a row can gain on average, rows are called almost draws of the table if the base is within g/2
#: of it, and hardly different from the base if it is more than 6 g away. Total variation to the target that is left, in
#: shares of the base's own, measured at 0.4 g: 7 per cent; 0.6 g: 5; 1 g: 20 to 26; 1.6 g: 37; 4 g: 68 to 79; 12 g: 82.
_ALMOST_TABLE, _ALMOST_BASE = 0.5, 6.0
#: Of that many batches in 100 or more that could be draws of the base, none is called almost a draw of the table.
_MANY_FROM_BASE = 20


def constant_time_count(width: float) -> int:
    r"""Returns the public number of proposals that makes constant-time draws as good as exact ones.

    The smallest N with :math:`(1 - e^{-R})^N \le 2^{-53}`; about :math:`37 e^R` for a large R.

    Args:
        width: R, of the interval of the tilt, in nats; in [0, 700].

    Example:
        >>> [constant_time_count(width) for width in (0.05, 0.5, 1.0, 2.5)]
        [13, 40, 81, 429]
    """
    width = check_number("width", width, "be in [0, 700]", lambda value: 0 <= value <= 700)
    if width == 0:
        return 1  # every proposal is accepted
    # log(1 - e^-R), in the form that is accurate on either side of log 2.
    log_miss = math.log(-math.expm1(-width)) if width < math.log(2) else math.log1p(-math.exp(-width))
    return max(math.ceil(_LOG_LARGEST_WEIGHT / log_miss), 1)


def batch_tolerance(epsilon: float, skew: float) -> float:
    """Returns the tolerance of a batch's certificate, in nats: a public share of epsilon."""
    return min(BATCH_TOLERANCE, _LARGEST_SHARE * skew, _LARGEST_SHARE * (1 - skew)) * epsilon


def certified_rows(epsilon: float, skew: float, delta: float, num_rows: int) -> float:
    r"""Returns about how many rows the certificate of a batch takes; infinity if it is out of reach.

    A bet has to reach :math:`\log 1/\delta`. By range it grows by no more than :math:`0.9\, \eta\, e^{-hi}` a batch; by
    scatter by :math:`\eta^2/(2V)`, with :math:`V \le (e^{hi} - 1)(1 - e^{lo})` and what averages over partitions save,
    about :math:`1 + e^{hi}/12`.

    Args:
        epsilon: of the batch, in nats.
        skew: where the interval lies, in (0, 1).
        delta: of the certificate, in (0, 1).
        num_rows: rows of a batch.
    """
    tolerance, low, high = batch_tolerance(epsilon, skew), -skew * epsilon, (1 - skew) * epsilon
    if tolerance <= _MIN_TOLERANCE:
        return math.inf
    by_range = math.exp(high) / (_LARGEST_BET * tolerance)
    by_scatter = 2 * math.expm1(high) * -math.expm1(low) / tolerance**2 / (1 + math.exp(high) / 12)
    return -math.log(delta) * max(by_range, by_scatter) * num_rows


@dataclass(frozen=True)
class ReleasePlan:
    """How to hand out rows within a total. Public: it follows from public numbers alone.

    Attributes:
        num_batches: draws to make and pay for.
        rows_per_batch: rows of each; 1 for single rows.
        budget: what each draw may cost, and the density to fit.
        divergence: what is believed of the divergence of the table from the base, in nats a row; None if nothing is.
        wanted: rows that were asked for, if that is known.
    """

    num_batches: int
    rows_per_batch: int
    budget: DrawBudget
    divergence: float | None = None
    wanted: int | None = None

    @property
    def num_rows(self) -> int:
        """Rows in all, at least as many as were asked for."""
        return self.num_batches * self.rows_per_batch

    @property
    def width(self) -> float:
        """Width of the interval of the tilt, in nats."""
        if self.budget.form != "calibrated":
            return self.budget.epsilon / 2
        lost = 2 * batch_tolerance(self.budget.epsilon, self.budget.skew) if self.rows_per_batch > 1 else 0.0
        return self.budget.epsilon - lost

    @property
    def largest_gain(self) -> float:
        """The most that a row can come nearer to the table than the base is, on average, in nats: log q/q0 over k."""
        share = 1 - self.budget.skew if self.budget.form == "calibrated" else 0.5
        return share * self.budget.epsilon / self.rows_per_batch

    @property
    def num_scored(self) -> int:
        """Rows that a constant-time release scores."""
        return self.num_rows * constant_time_count(min(self.width, 700.0))

    def remarks(self) -> list[str]:
        """Returns what the rows will look like, in words, and what they take."""
        batches = self.rows_per_batch > 1
        what, gain, found = "batches" if batches else "rows", self.largest_gain, self.divergence
        near, far = _ALMOST_TABLE * gain, _ALMOST_BASE * gain
        calibrated = self.budget.form == "calibrated"
        distance = distance_from_base(self.budget.epsilon, self.budget.skew, calibrated=calibrated)
        from_base = math.floor(100 * (1 - distance))
        remarks = []
        if from_base >= _MANY_FROM_BASE:
            remarks.append(
                f"At least {from_base} in 100 such {what} could just as well have been drawn from the public base."
            )
        elif found is None:
            remarks.append(f"Rows are almost draws of the table's density if the base is within {in_nats(near)} of it.")
        nearer = f"a row comes at most {in_nats(_rounded_up(gain))} nearer to the table"
        if found is None:
            remarks.append(
                f"Where the base is more than {in_nats(far)} a row from the table (Kullback-Leibler divergence), rows "
                f"hardly differ from the base: {nearer}."
            )
        else:
            likeness = self._likeness(found, from_base)
            remarks.append(f"With a base {in_nats(found)} a row from the table, {likeness}: {nearer}.")
        remarks = [" ".join(remarks)]
        if batches:
            remarks.append(
                "Rows of a batch depend on one another: take them for a sample of a density, not for a count of people."
            )
        if self.wanted is not None and self.num_rows > self.wanted:
            remarks.append(f"These are {self.num_rows:,} rows, not {self.wanted:,}: all batches have equally many.")
        return remarks

    def _likeness(self, divergence: float, from_base: int) -> str:
        """What rows are like over a base at a divergence, in words."""
        if divergence >= _ALMOST_BASE * self.largest_gain:
            return "rows hardly differ from draws of the base"
        if divergence <= _ALMOST_TABLE * self.largest_gain and from_base < _MANY_FROM_BASE:
            return "rows are almost draws of the table's density"
        return "rows lie between table and base"


def plan_release(
    total_epsilon: float,
    num_rows: int,
    delta: float = 1e-6,
    *,
    certificate_delta: float = 1e-9,
    skew: float = 0.3,
    filled_share: float | None = None,
    divergence: float | None = None,
) -> ReleasePlan:
    """Returns how to hand out rows within a total.

    One batch of all rows comes closest to the table, in total variation, in every case that was measured
    (docs/choosing.md): a batch spends its epsilon where it changes the rows most, while single rows are each clipped
    alone. Several batches are planned where one would cost more than :data:`MAX_BATCH_EPSILON`, or take too long.

    Args:
        total_epsilon: of all rows together, in nats; finite and above 0.
        num_rows: rows wanted, from 1 to 100,000.
        delta: of all rows together, in [0, 1); 0 leaves the a-priori form, of half the width.
        certificate_delta: the part of delta that the certificate may use, in (0, 1).
        skew: where the density is placed, in (0, 1).
        filled_share: share of the base's mass that the table is believed to fill, in (0, 1); sets the skew. Meant for
            single rows: with a batch it closes far less of the distance at large epsilon, and a skew of 0.3 was best in
            measurements (docs/experiments.md, *Where to place a batch*).
        divergence: what is believed of the divergence of the table from the base, in nats a row, at least 0: a public
            guess, which changes the remarks alone.

    Returns:
        The plan.

    Example:
        >>> plan = plan_release(10.0, 20)
        >>> plan.num_batches, plan.rows_per_batch, plan.budget.epsilon
        (1, 20, 10.0)
        >>> plan = plan_release(30.0, 100)
        >>> plan.num_batches, plan.rows_per_batch, plan.budget.epsilon
        (3, 34, 10.0)
    """
    num_rows = check_count("num_rows", num_rows)
    check_number("num_rows", num_rows, f"be at most {_MAX_ROWS:,}", lambda value: value <= _MAX_ROWS)
    delta = check_number("delta", delta, "be in [0, 1)", lambda value: 0 <= value < 1)
    if divergence is not None:
        constraint = "be finite and at least 0, in nats"
        divergence = check_number("divergence", divergence, constraint, lambda value: 0 <= value < math.inf)
    rows_per_batch = num_rows
    while True:
        num_batches = -(-num_rows // rows_per_batch)
        rows_per_batch = -(-num_rows // num_batches)  # of batches of one size, no larger than they need be
        budget = epsilon_per_draw(
            total_epsilon,
            num_batches,
            min(delta, certificate_delta) if num_batches == 1 else delta,  # one draw costs what it says
            certificate_delta=certificate_delta,
            skew=skew,
            filled_share=filled_share,
        )
        plan = ReleasePlan(num_batches, rows_per_batch, budget, divergence, num_rows)
        needed = 0.0
        if rows_per_batch > 1 and budget.form == "calibrated":
            needed = certified_rows(budget.epsilon, budget.skew, budget.delta, rows_per_batch)
        affordable = rows_per_batch == 1 or budget.epsilon <= MAX_BATCH_EPSILON
        if affordable and needed <= MAX_CERTIFIED_ROWS and plan.num_scored <= _MAX_SCORED:
            return plan
        if rows_per_batch == 1:
            remedy = f"A row at epsilon {budget.epsilon:.4g} takes too long to draw. Lower it, or release more rows."
            raise ValueError(argument_error("total_epsilon", f"suit {num_rows:,} rows", total_epsilon, remedy))
        if math.isinf(needed):  # of smaller batches too, which cost less each
            rows_per_batch = 1
        else:
            rows_per_batch = min(rows_per_batch - 1, max(49, rows_per_batch * 4 // 5))


def _rounded_up(number: float) -> float:
    """To two digits, towards more."""
    scale = 10.0 ** (1 - math.floor(math.log10(number))) if number > 0 else 1.0
    return math.ceil(number * scale - 1e-9) / scale
