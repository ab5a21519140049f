"""Samplers of histograms: closed forms, what they guarantee, attacked over all tables of few cells."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from pyro_mbde.calibration.projection import project
from pyro_mbde.density.bounds import clip_score, skewed_bounds
from pyro_mbde.experiments.baselines.histogram import HistogramDensity, LinearMixture, MinimaxSampler
from pyro_mbde.experiments.problems import find_problem
from pyro_mbde.experiments.systems import Setting, Table, fit
from pyro_mbde.privacy.placement import filled_share_skew


def table_of(counts: Any) -> Tensor:
    """Rows in the middle of cells of [0, 1]."""
    places = (torch.arange(len(counts)) + 0.5) / len(counts)
    return places.repeat_interleave(torch.tensor(counts))


def law(sampler: type[Any], counts: Any, epsilon: float, **options: Any) -> HistogramDensity:
    fitted = sampler(0.0, 1.0, epsilon, num_bins=len(counts), progress=False, **options).fit(table_of(counts))
    assert isinstance(fitted, HistogramDensity)
    return fitted


def tables(num_cells: int) -> list[tuple[int, ...]]:
    return [counts for counts in itertools.product((0, 1, 300), repeat=num_cells) if sum(counts) > 1]


@pytest.mark.parametrize(("epsilon", "num_cells"), [(1e-4, 3), (0.1, 3), (1.0, 4), (3.0, 3), (20.0, 3)])
@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        (MinimaxSampler, {}),
        (MinimaxSampler, {"filled_share": 0.02}),
        (MinimaxSampler, {"filled_share": 0.9}),
        (LinearMixture, {}),
        (LinearMixture, {"largest_ratio": 1.5}),
        (LinearMixture, {"largest_ratio": 30.0}),
    ],
)
def test_no_two_tables_differ_by_more_than_the_guarantee(
    sampler: type[Any], options: dict[str, float], epsilon: float, num_cells: int
) -> None:
    densities = [law(sampler, counts, epsilon, **options) for counts in tables(num_cells)]
    log_shares = torch.stack([density.shares for density in densities]).log()
    promised = {density.guarantee.epsilon for density in densities}
    assert len(promised) == 1
    distances = [float((one.exp() - log_shares.exp()).abs().sum(1).max()) / 2 for one in log_shares]
    assert max(distances) <= densities[0].guarantee.total_variation + 1e-12
    largest = float((log_shares.amax(0) - log_shares.amin(0)).max())
    [bound] = promised
    assert largest <= bound * (1 + 1e-12) + 1e-14
    if bound < math.inf and "filled_share" not in options:  # attained, by tables on one cell
        assert largest >= 0.998 * bound


def test_believed_ratios_are_protected_as_asked() -> None:
    """Histograms within the believed ratios have log-ratios of at most epsilon, the most of them attained."""
    gamma, epsilon, m = 2.0, 1.0, 4
    mixture = LinearMixture(0.0, 1.0, epsilon, largest_ratio=gamma, num_bins=m)
    of_table, of_uniform = mixture.weights
    highest, lowest = (of_table * ratio + of_uniform for ratio in (gamma, 1 / gamma))
    assert math.log(highest / lowest) == pytest.approx(epsilon)
    assert law(LinearMixture, (1, 1, 1, 5), epsilon, largest_ratio=gamma).guarantee.epsilon > epsilon
    assert LinearMixture(0.0, 1.0, 2 * math.log(gamma) + 0.01, largest_ratio=gamma, num_bins=m).weights == (1.0, 0.0)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_the_closed_form(epsilon: float) -> None:
    """Of a table on one cell both are randomised response, which is optimal for such tables."""
    m = 6
    kept = math.exp(epsilon) / (math.exp(epsilon) + m - 1)
    for sampler in (MinimaxSampler, LinearMixture):
        shares = law(sampler, (0, 9, 0, 0, 0, 0), epsilon).shares
        assert float(shares[1]) == pytest.approx(kept, rel=1e-8)
        assert shares[[0, 2, 3, 4, 5]].numpy() == pytest.approx((1 - kept) / (m - 1), rel=1e-8)


def test_the_clip_is_nearest_to_the_table() -> None:
    """In the divergence KL(p, q), among all laws between its bounds; found again by a general optimiser."""
    counts, epsilon = (5, 1, 30, 10), 1.5
    shares = law(MinimaxSampler, counts, epsilon).shares.numpy()
    p = np.array(counts) / sum(counts)
    low = 1 / (math.exp(epsilon) + 3)
    found = minimize(
        lambda q: -float(p @ np.log(q)),
        np.full(4, 0.25),
        method="SLSQP",
        bounds=[(low, low * math.exp(epsilon))] * 4,
        constraints={"type": "eq", "fun": lambda q: q.sum() - 1},
        options={"ftol": 1e-12},
    )
    assert shares == pytest.approx(found.x, abs=1e-5)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize("filled_share", [0.1, 0.4])
def test_the_clip_is_our_projection_at_the_skew_of_a_filled_share(epsilon: float, filled_share: float) -> None:
    counts = (3, 1, 40, 10, 6)
    bounds = skewed_bounds(epsilon, filled_share_skew(epsilon, filled_share))
    ratio = torch.tensor(counts, dtype=torch.float64) / sum(counts) * 5
    shift = project(ratio.log(), torch.zeros(5), bounds)
    expected = clip_score(ratio.log(), shift, bounds).exp() / 5
    assert torch.allclose(law(MinimaxSampler, counts, epsilon, filled_share=filled_share).shares, expected, atol=1e-8)


def test_the_clip_is_nearer_than_the_mixture() -> None:
    counts = (50, 30, 15, 5, 0, 0, 0, 0)
    p = torch.tensor(counts) / 100
    clip, mixture = (
        float((law(sampler, counts, 1.0).shares - p).abs().sum()) for sampler in (MinimaxSampler, LinearMixture)
    )
    assert clip < mixture


@pytest.mark.parametrize("system", ["minimax", "mixture"])
def test_as_systems(system: str) -> None:
    problem = find_problem("ring-box")
    rows = problem.target.sample(torch.Size([500]))
    low, high = torch.full((2,), -8.0), torch.full((2,), 8.0)
    density = fit(system, Table(rows, problem.base, low, high, (-8.0, 8.0)), Setting(2.0, 1e-5, 1, 0, quick=True))
    assert isinstance(density, HistogramDensity)
    assert density.guarantee.epsilon == 2.0
    gain = (density.log_prob(rows) - problem.base.log_prob(rows)).mean()
    assert 0 < float(gain) < 2.0
