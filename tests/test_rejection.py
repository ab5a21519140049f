"""Exact draws: goodness of fit, the envelope, the cap, and what is handed out."""

from __future__ import annotations

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from densities import BASES, make_density, normal
from scipy import stats
from torch import Tensor, nn

from pyro_mbde import Bounds, MollifiedExpFamily, private_draws
from pyro_mbde.sampling.rejection import EnvelopeError, rejection_sample

#: Chance that a correct sampler fails any of the goodness-of-fit tests of this file, shared among them.
SUITE_FAILURE_RATE = 1e-3
NUM_FIT_TESTS = 15
LEVEL = SUITE_FAILURE_RATE / NUM_FIT_TESTS


@pytest.mark.parametrize("epsilon", [0.5, 5.0])
@pytest.mark.parametrize(
    ("name", "box"),
    [
        ("normal-scalar", (-14.0, 15.0)),
        ("uniform-scalar", (-1.0, 3.0)),
        ("log-normal", (0.0, 30.0)),
        ("student-t", (-400.0, 400.0)),
        ("exponential", (0.0, 20.0)),
    ],
)
def test_fit_on_a_line(name: str, box: tuple[float, float], epsilon: float) -> None:
    """Kolmogorov-Smirnov against the distribution function integrated from log_prob."""
    density = make_density(BASES[name](), epsilon=epsilon)
    grid = torch.linspace(*box, 400_001)
    middle = (grid[1:] + grid[:-1]) / 2
    mass = density.log_prob(middle).double().exp() * (grid[1:] - grid[:-1]).double()
    cumulative = np.concatenate([[0.0], (mass.cumsum(0) / mass.sum()).numpy()])
    draws = density.sample((20_000,)).double().numpy()
    result = stats.kstest(draws, lambda x: np.interp(x, grid.double().numpy(), cumulative))
    assert result.pvalue > LEVEL


@pytest.mark.parametrize("epsilon", [0.5, 5.0])
@pytest.mark.parametrize("name", ["normal-2d", "uniform-box"])
def test_fit_in_the_plane(name: str, epsilon: float) -> None:
    """Chi-square on cells of equal base probability, with their exact masses by quadrature within the cell."""
    density = make_density(BASES[name](), epsilon=epsilon)
    cells, inner = 12, 40
    uniforms = (torch.arange(cells * inner) + 0.5) / (cells * inner)
    points = torch.cartesian_prod(uniforms, uniforms)
    base = density.base_dist.base_dist
    value = base.icdf(points)
    weights = (density.tilt(value)).exp().reshape(cells, inner, cells, inner).mean((1, 3))
    expected = (weights / weights.sum()).flatten().numpy()
    draws = density.sample((40_000,))
    index = (base.cdf(draws) * cells).long().clamp(0, cells - 1)
    counts = torch.bincount(index[:, 0] * cells + index[:, 1], minlength=cells**2).numpy()
    assert stats.chisquare(counts, expected * counts.sum()).pvalue > LEVEL


def test_fit_on_a_finite_set() -> None:
    density = make_density(BASES["categorical"](), epsilon=5.0)
    expected = density.log_prob(density.enumerate_support()).double().exp().numpy()
    counts = torch.bincount(density.sample((40_000,)), minlength=4).numpy()
    assert stats.chisquare(counts, expected / expected.sum() * counts.sum()).pvalue > LEVEL


def test_draws_are_independent() -> None:
    draws = make_density(normal(1), epsilon=5.0).sample((20_000,)).squeeze(1)
    centred = draws - draws.mean()
    correlation = float((centred[1:] * centred[:-1]).mean() / centred.square().mean())
    assert abs(correlation) < 4.5 / math.sqrt(20_000)


def test_number_of_proposals_matches_the_acceptance_rate() -> None:
    density = make_density(normal(2), epsilon=5.0)
    result = rejection_sample(density.base_dist, density.tilt, density.bounds, 1, acceptance_rate=1e-5)
    assert result.num_proposals >= 1
    accepted = sum(bool(density.rejection_draws(1, max_proposals=10**6).num_proposals) for _ in range(3))
    assert accepted == 3
    uniforms = torch.rand(200_000, dtype=torch.float64)
    proposals = density.base_dist.sample((200_000,))
    rate = float((uniforms.log() < density.tilt(proposals) - density.bounds.high).double().mean())
    assert abs(rate - density.acceptance_rate) < 5 * math.sqrt(rate * (1 - rate) / 200_000)


def test_batches_do_not_depend_on_a_wrong_rate() -> None:
    density = make_density(normal(1), epsilon=5.0)
    for acceptance_rate in (1.0, 0.5, 1e-3):
        draws = rejection_sample(
            density.base_dist, density.tilt, density.bounds, 4000, acceptance_rate=acceptance_rate
        ).values
        reference = density.sample((4000,))
        assert stats.ks_2samp(draws[:, 0].numpy(), reference[:, 0].numpy()).pvalue > LEVEL


def test_no_draws() -> None:
    assert make_density(normal(2)).rejection_draws(0).values.shape == (0, 2)


@pytest.mark.parametrize("excess", [1e-12, 1.0, math.nan])
def test_a_broken_envelope_raises(excess: float) -> None:
    def tilt(value: Tensor) -> Tensor:
        return torch.full(value.shape[:1], 0.5 + excess, dtype=torch.float64)

    with pytest.raises(EnvelopeError, match="tilt must be at most its upper bound"):
        rejection_sample(normal(2), tilt, Bounds(-0.5, 0.5), 10)


def test_the_cap_says_what_to_do_and_nothing_private() -> None:
    class Needle(nn.Module):
        """Accepts almost nothing."""

        def forward(self, value: Tensor) -> Tensor:
            return torch.where(value[..., :1] > 8, 1e30, -1e30)

    density = MollifiedExpFamily(normal(2), Needle(), torch.tensor([20.0]), -13.8)
    with pytest.raises(RuntimeError, match="max_proposals must allow 5 draws, got max_proposals=1000") as caught:
        density.rejection_draws(5, max_proposals=1000)
    assert "raise max_proposals, draw fewer, lower epsilon, or run a Markov chain" in str(caught.value)
    assert str(density.acceptance_rate) not in str(caught.value)


def test_extreme_widths_draw_from_the_base() -> None:
    density = make_density(normal(1), epsilon=1e-12)
    draws = density.sample((20_000,)).squeeze(1).numpy()
    assert stats.kstest(draws, "norm").pvalue > LEVEL


class TestPrivateDraws:
    def test_fresh_randomness(self) -> None:
        density = make_density(normal(2))
        torch.manual_seed(0)
        state = torch.get_rng_state()
        first = private_draws(density, 5)
        torch.manual_seed(0)
        second = private_draws(density, 5)
        assert first.shape == (5, 2)
        assert not torch.equal(first, second)
        assert torch.equal(torch.get_rng_state(), state)

    def test_a_seed_is_said_aloud(self) -> None:
        density = make_density(normal(2))
        with pytest.warns(UserWarning, match="not private"):
            first = private_draws(density, 5, seed=1)
        with pytest.warns(UserWarning, match="not private"):
            assert torch.equal(private_draws(density, 5, seed=1), first)

    @pytest.mark.parametrize("count", [0, -1])
    def test_count(self, count: int) -> None:
        with pytest.raises(ValueError, match="num_draws must be at least 1"):
            private_draws(make_density(normal(2)), count)


def test_scalar_plates_of_draws() -> None:
    density = make_density(dist.Normal(0.0, 1.0)).expand([4])
    assert density.sample((2,)).shape == (2, 4)
