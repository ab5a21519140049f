"""Plans of releases: what they buy, what they say, and that a fit and a release can follow them."""

from __future__ import annotations

import math

import pytest

from pyro_mbde.privacy.release_plan import (
    MAX_BATCH_EPSILON,
    MAX_CERTIFIED_ROWS,
    batch_tolerance,
    certified_rows,
    plan_release,
)


@pytest.mark.parametrize(
    "num_rows", [1, 7, 50, *(pytest.param(number, marks=pytest.mark.slow) for number in (2, 10, 49, 333, 1000))]
)
@pytest.mark.parametrize("total", [0.01, 1.0, 12.0, 12.1, 30.0, 200.0])
def test_a_plan_gives_what_is_wanted_and_little_more(total: float, num_rows: int) -> None:
    try:
        plan = plan_release(total, num_rows)
    except ValueError as error:
        assert total / num_rows > MAX_BATCH_EPSILON and "takes too long to draw" in str(error)
        return
    assert num_rows <= plan.num_rows < num_rows + plan.num_batches
    assert plan.num_batches <= num_rows
    assert plan.budget.total.epsilon <= total
    if plan.rows_per_batch > 1:
        assert plan.budget.epsilon <= MAX_BATCH_EPSILON
    if plan.rows_per_batch > 1 and plan.budget.form == "calibrated":
        needed = certified_rows(plan.budget.epsilon, plan.budget.skew, plan.budget.delta, plan.rows_per_batch)
        assert needed <= MAX_CERTIFIED_ROWS


def test_a_certificate_out_of_reach_gives_single_rows() -> None:
    assert math.isinf(certified_rows(0.001, 0.3, 1e-9, 2))
    plan = plan_release(0.001, 300)
    assert (plan.num_batches, plan.rows_per_batch) == (300, 1)


@pytest.mark.parametrize(("skew", "share"), [(0.3, 0.009), (0.02, 0.005), (0.98, 0.005)])
def test_tolerance(skew: float, share: float) -> None:
    assert batch_tolerance(2.0, skew) == pytest.approx(2 * share)
    plan = plan_release(2.0, 5, skew=skew)
    assert plan.width == pytest.approx(2 * (1 - 2 * share))
    assert plan.largest_gain == pytest.approx((1 - skew) * 2 / 5)


def test_a_harder_certificate_takes_more_rows() -> None:
    usual = certified_rows(3.0, 0.3, 1e-9, 10)
    assert certified_rows(3.0, 0.3, 1e-9, 20) == pytest.approx(2 * usual)
    assert certified_rows(3.0, 0.3, 1e-18, 10) == pytest.approx(2 * usual)
    assert certified_rows(12.0, 0.3, 1e-9, 10) > usual
    assert certified_rows(3.0, 0.01, 1e-9, 10) > usual


def test_words_follow_form_skew_and_belief() -> None:
    assert "almost draws of the table's density if the base is within" in plan_release(10.0, 20).remarks()[0]
    for options in ({"skew": 0.999}, {"delta": 0.0}, {"skew": 0.01}):
        said = " ".join(plan_release(3.0, 10, **options).remarks())
        assert "almost draws" not in said and "could just as well have been drawn from the public base" in said
    assert "rows are almost draws" in plan_release(10.0, 20, divergence=0.1).remarks()[0]
    assert "rows lie between" in plan_release(10.0, 20, divergence=0.5).remarks()[0]
    assert "rows hardly differ" in plan_release(10.0, 20, divergence=5.0).remarks()[0]
    assert "These are 12 rows, not 10" in plan_release(30.0, 10).remarks()[-1]
