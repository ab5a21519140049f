"""How rows are drawn is decided once, from public numbers."""

from __future__ import annotations

import pytest
from densities import make_density, normal

from pyro_mbde import fresh_chains, total_variation_bound
from pyro_mbde.sampling import plan as plans
from pyro_mbde.sampling.constant_time import constant_time_proposals
from pyro_mbde.sampling.plan import DrawPlan, check_num_draws, plan_draws


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
