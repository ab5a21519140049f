"""How rows are drawn is decided once, from public numbers."""

from __future__ import annotations

import math

import pytest
from densities import make_batch, make_density, normal

from pyro_mbde import fresh_chains, total_variation_bound
from pyro_mbde.sampling import plan as plans
from pyro_mbde.sampling.constant_time import constant_time_proposals
from pyro_mbde.sampling.plan import DrawPlan, check_num_draws, draws_of_rows, plan_draws


def test_plans_of_one_density() -> None:
    q = make_density(normal(2))
    assert plan_draws(q) == DrawPlan("constant-time", constant_time_proposals(q.bounds), 2.0**-53, q.guarantee)
    assert plan_draws(q, constant_time=False) == DrawPlan("exact", None, 0.0, q.guarantee)
    chains = fresh_chains(q, 1, 6, progress=False)
    assert plan_draws(q, num_steps=6) == DrawPlan("fresh chains", 6, chains.total_variation, chains.guarantee)
    assert chains.total_variation == total_variation_bound(q.bounds, 6)


def test_chains_that_would_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draw that a chain starts at counts as well."""
    q = make_density(normal(2))
    monkeypatch.setattr(plans, "MAX_PROPOSALS", 70)
    assert check_num_draws(q, plan_draws(q, num_steps=6), 10) == 10
    with pytest.raises(ValueError, match="num_draws must be at most 10 in constant time"):
        check_num_draws(q, plan_draws(q, num_steps=6), 11)


def test_rows_of_batches_are_whole_batches_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    q = make_batch(normal(2), 5, epsilon=1.0)
    plan = plan_draws(q)
    assert plan.guarantee == q.guarantee
    assert plan.count is not None
    assert [draws_of_rows(q, plan, rows) for rows in (5, 15)] == [1, 3]
    assert draws_of_rows(make_density(normal(2)), plan_draws(make_density(normal(2))), 7) == 7
    with pytest.raises(ValueError, match="num_rows must be a multiple of 5.*got num_rows=12. .* Ask for 10 or 15."):
        draws_of_rows(q, plan, 12)
    with pytest.raises(ValueError, match="got num_rows=4. .* Ask for 5."):
        draws_of_rows(q, plan, 4)
    monkeypatch.setattr(plans, "MAX_PROPOSALS", 2 * plan.count * 5)
    assert draws_of_rows(q, plan, 10) == check_num_draws(q, plan, 2) == 2
    with pytest.raises(ValueError, match=r"num_rows must be at most 10 in constant time.*a batch of 5 rows each"):
        draws_of_rows(q, plan, 15)
    with pytest.raises(ValueError, match="num_draws must be at most 2 in constant time"):
        check_num_draws(q, plan, 3)
    exact = plan_draws(q, constant_time=False)
    monkeypatch.setattr(plans, "MAX_PROPOSALS", 2.1 * math.exp(q.bounds.width) * 5)
    assert draws_of_rows(q, exact, 10) == 2
    with pytest.raises(ValueError, match=r"num_rows must be at most .* / e\^R, got num_rows=15"):
        draws_of_rows(q, exact, 15)
