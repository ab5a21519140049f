"""Attacks on plans: whatever a plan allows is drawn from the worst pair of densities, and costs at most the total."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pyro_mbde.privacy.accounting import DrawBudget, epsilon_per_draw
from pyro_mbde.privacy.release_plan import plan_release

#: Masses of the point of a two-point base that one table makes as likely as possible, and the other as unlikely.
MASSES = np.concatenate([np.geomspace(1e-6, 0.3, 9), np.linspace(0.35, 0.99, 8)])


def worst_pair(budget: DrawBudget, mass: float) -> tuple[float, float]:
    """Chances of the point under the densities of two tables, at the ends of what bounds and calibration allow."""
    epsilon = budget.epsilon
    if budget.form == "calibrated":  # q/q0 in [a, b], with mean 1
        low = math.exp(-budget.skew * epsilon)
        high = low * math.exp(epsilon)
        most = min(high, (1 - low * (1 - mass)) / mass)
        least = max(low, (1 - high * (1 - mass)) / mass)
        return mass * most, mass * least
    width = epsilon / 2
    up, down = mass * math.exp(width), mass * math.exp(-width)
    return up / (up + 1 - mass), down / (down + 1 - mass)


def excess(chance: float, other: float, num_draws: int, total: float) -> float:
    """Largest Pr[S] - e^total Pr'[S] over sets S of outcomes of independent draws: exact, by the number of hits."""
    assert other > 0 and chance < 1, "within its bounds no density has a probability of 0 or 1"
    counts = np.arange(num_draws + 1)
    law, prime = (stats.binom.logpmf(counts, num_draws, share) for share in (chance, other))
    return float(np.maximum(np.exp(law) - np.exp(np.minimum(total + prime, 700)), 0).sum())


@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-3])
@pytest.mark.parametrize("num_draws", [1, 3, 100])
@pytest.mark.parametrize("skew", [0.05, 0.5])
def test_no_pair_of_densities_exceeds_what_a_plan_was_made_for(delta: float, num_draws: int, skew: float) -> None:
    """Attack on docs/proofs.md, *Accounts*, through the plan, both ways; the next test says how sharp it is."""
    for total in (1.0, 10.0):
        budget = epsilon_per_draw(total, num_draws, delta, skew=skew)
        allowed = budget.total.delta - budget.delta
        for mass in MASSES:
            chance, other = worst_pair(budget, float(mass))
            for one, two in ((chance, other), (other, chance), (1 - chance, 1 - other), (1 - other, 1 - chance)):
                assert excess(one, two, num_draws, total) <= allowed * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("delta", [1e-6, 1e-3])
def test_the_attack_bites(delta: float) -> None:
    """At four fifths of the total the same pairs are found out: the plans of a few draws are not wasteful."""
    budget = epsilon_per_draw(3.0, 20, delta, skew=0.3)
    pairs = [worst_pair(budget, float(mass)) for mass in MASSES]
    assert max(excess(*pair, 20, 0.8 * 3.0) for pair in pairs) > delta


@pytest.mark.parametrize(("total", "num_rows"), [(1.0, 1), (3.0, 20), (30.0, 60)])
def test_a_release_as_planned_costs_at_most_its_total(total: float, num_rows: int) -> None:
    plan = plan_release(total, num_rows)
    for mass in MASSES:
        chance, other = worst_pair(plan.budget, float(mass))
        for one, two in ((chance, other), (1 - other, 1 - chance)):
            assert excess(one, two, plan.num_batches, total) <= plan.budget.total.delta - plan.budget.delta + 1e-12
