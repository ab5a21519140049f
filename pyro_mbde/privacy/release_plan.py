"""How to hand out rows within a total: one batch, several, or single rows; what they can show, and what it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pyro_mbde._checks import check_count, check_number, in_nats
from pyro_mbde.privacy.accounting import DrawBudget, epsilon_per_draw
from pyro_mbde.privacy.advice import LOOKS_LIKE_BASE, distance_from_base

#: Largest epsilon of a batch: at 12 a constant-time draw takes six million proposals, and each is a batch.
MAX_BATCH_EPSILON = 12.0
#: Tolerance of a batch's certificate, as a share of epsilon: 1.8 per cent of epsilon is lost to it.
BATCH_TOLERANCE = 0.009
#: The largest number of rows that a release should score; about forty minutes on one core.
_MAX_SCORED = 5 * 10**8
#: Natural logarithm of the largest weight that the base may have in the law of a constant-time draw: 2^-53, one step of
#: a 53-bit uniform number. sampling/plan.py and releases/card.py name the same number.
_LOG_LARGEST_WEIGHT = -53 * math.log(2)
#: Rows are called almost draws of the table where the base is nearer to it than this share of the epsilon of a row, and
#: hardly different from the base where it is further away than the second. Total variation to the table, in shares of
#: the base's own, where the divergence of the base is 1/4, 1/2, 4/3 and 3 times epsilon a row: 7, 15, 30 and 80 per
#: cent.
_ALMOST_TABLE, _ALMOST_BASE = 0.5, 4.0


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


@dataclass(frozen=True)
class ReleasePlan:
    """How to hand out rows within a total. Public: it follows from public numbers alone.

    Attributes:
        num_batches: draws to make and pay for.
        rows_per_batch: rows of each; 1 for single rows.
        budget: what each draw may cost, and the density to fit.
        divergence: what is believed of the divergence of the table from the base, in nats a row; None if nothing is.
    """

    num_batches: int
    rows_per_batch: int
    budget: DrawBudget
    divergence: float | None = None

    @property
    def num_rows(self) -> int:
        """Rows in all, at least as many as were asked for."""
        return self.num_batches * self.rows_per_batch

    @property
    def width(self) -> float:
        """Width of the interval of the tilt, in nats."""
        lost = 2 * BATCH_TOLERANCE if self.rows_per_batch > 1 else 0.0
        return self.budget.epsilon * ((1 - lost) if self.budget.form == "calibrated" else 0.5)

    @property
    def largest_gain(self) -> float:
        """The most that a row can come nearer to the table than the base is, on average, in nats."""
        share = 1 - self.budget.skew if self.budget.form == "calibrated" else 1.0
        return share * self.width / self.rows_per_batch

    @property
    def num_scored(self) -> int:
        """Rows that a constant-time release scores."""
        return self.num_rows * constant_time_count(min(self.width, 700.0))

    def remarks(self) -> list[str]:
        """Returns what the rows will look like, in words, and what they take."""
        row, found = self.budget.epsilon / self.rows_per_batch, self.divergence
        near, far = _ALMOST_TABLE * row, _ALMOST_BASE * row
        believed = "" if found is None else f"With a base that is {in_nats(found)} from the table, rows"
        if found is None:
            looks = (
                f"Rows are almost draws of the table's density if the public base is within {in_nats(near)} of it, and "
                f"hardly differ from the base if that is more than {in_nats(far)} away."
            )
        elif found <= near:
            looks = f"{believed} are almost draws of the table's density."
        elif found >= far:
            looks = f"{believed} hardly differ from draws of the base."
        else:
            looks = f"{believed} lie between table and base."
        gain = f"A row can come at most {in_nats(self.largest_gain)} nearer to the table than the base is."
        remarks = [f"{looks} {gain}"]
        if self.rows_per_batch > 1:
            remarks.append(
                "Rows of a batch depend on one another: take them for a sample of a density, not for a count of people."
            )
        calibrated = self.budget.form == "calibrated"
        distance = distance_from_base(self.budget.epsilon, self.budget.skew, calibrated=calibrated)
        if distance < LOOKS_LIKE_BASE:
            what = "batches" if self.rows_per_batch > 1 else "rows"
            share = math.floor(100 * (1 - distance))
            remarks.append(
                f"At least {share} in 100 such {what} could just as well have been drawn from the public base."
            )
        return remarks


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
    (docs/choosing.md): a batch spends its epsilon where it changes the rows most, while single rows are
    each clipped alone. Several
    batches are planned where one would cost more than :data:`MAX_BATCH_EPSILON`, or take too long.

    Args:
        total_epsilon: of all rows together, in nats; finite and above 0.
        num_rows: rows wanted, at least 1.
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
    delta = check_number("delta", delta, "be in [0, 1)", lambda value: 0 <= value < 1)
    if divergence is not None:
        divergence = check_number("divergence", divergence, "be at least 0, in nats", lambda value: value >= 0)
    num_batches = 1
    # Of a million rows and more even narrow tilts score more.
    most_scored = max(_MAX_SCORED, constant_time_count(0.5) * num_rows)
    while True:
        rows_per_batch = math.ceil(num_rows / num_batches)
        budget = epsilon_per_draw(
            total_epsilon,
            num_batches,
            min(delta, certificate_delta) if num_batches == 1 else delta,  # one draw costs what it says
            certificate_delta=certificate_delta,
            skew=skew,
            filled_share=filled_share,
        )
        plan = ReleasePlan(num_batches, rows_per_batch, budget, divergence)
        if rows_per_batch == 1 or (budget.epsilon <= MAX_BATCH_EPSILON and plan.num_scored <= most_scored):
            return plan
        # The next number of batches that makes them smaller.
        num_batches = math.ceil(num_rows / (rows_per_batch - 1)) if num_rows < 50 else num_batches + 1
