"""Exact draws: goodness of fit, the envelope, the cap, and what is handed out."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from densities import BASES, make_density, normal
from scipy import stats
from torch import Tensor, nn

from pyro_mbde import Bounds, MollifiedExpFamily
from pyro_mbde.density.base_draws import TorchSource
from pyro_mbde.density.rejection import EnvelopeError, rejection_sample

LINES = [
    ("normal-scalar", (-14.0, 15.0)),
    ("uniform-scalar", (-1.0, 3.0)),
    ("log-normal", (0.0, 30.0)),
    ("student-t", (-400.0, 400.0)),
    ("exponential", (0.0, 20.0)),
]
PLANES = ["normal-2d", "uniform-box"]
EPSILONS = [0.5, 5.0]
ACCEPTANCE_RATES = [1.0, 0.5, 1e-3]
#: Chance that a correct sampler fails any of the goodness-of-fit tests of this file, shared among them: on lines and in
#: planes at each epsilon, for each wrong acceptance rate, on a finite set, and of an extreme width.
SUITE_FAILURE_RATE = 1e-3
LEVEL = SUITE_FAILURE_RATE / ((len(LINES) + len(PLANES)) * len(EPSILONS) + len(ACCEPTANCE_RATES) + 2)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("name", "box"), LINES)
def test_fit_on_a_line(name: str, box: tuple[float, float], epsilon: float) -> None:
    """Kolmogorov-Smirnov against the distribution function integrated from log_prob."""
    density = make_density(BASES[name](), epsilon=epsilon)
    grid = torch.linspace(*box, 40_001)
    middle = (grid[1:] + grid[:-1]) / 2
    mass = density.log_prob(middle).double().exp() * (grid[1:] - grid[:-1]).double()
    cumulative = np.concatenate([[0.0], (mass.cumsum(0) / mass.sum()).numpy()])
    draws = density.sample((20_000,)).double().numpy()
    result = stats.kstest(draws, lambda x: np.interp(x, grid.double().numpy(), cumulative))
    assert result.pvalue > LEVEL


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("name", PLANES)
def test_fit_in_the_plane(name: str, epsilon: float) -> None:
    """Chi-square on cells of equal base probability, with their exact masses by quadrature within the cell."""
    density = make_density(BASES[name](), epsilon=epsilon)
    cells, inner = 12, 24
    uniforms = (torch.arange(cells * inner) + 0.5) / (cells * inner)
    points = torch.cartesian_prod(uniforms, uniforms)
    base = density.base.base_dist
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


def test_proposals_are_accepted_at_the_stated_rate() -> None:
    density = make_density(normal(2), epsilon=5.0, num_draws=2**16)
    proposals = density.base.sample((200_000,))
    accepted = torch.rand(200_000, dtype=torch.float64) < (density.tilt(proposals) - density.bounds.high).exp()
    rate = float(accepted.double().mean())
    assert abs(rate - density.acceptance_rate) < 5 * math.sqrt(rate * (1 - rate) / 200_000)
    # one draw asked for with one proposal a batch takes 1 / rate of them on average
    source = TorchSource(density.base)
    runs = [rejection_sample(source, density.tilt, density.bounds, 1) for _ in range(150)]
    counts = torch.tensor([run.num_proposals for run in runs])
    # batches of int(1.1 + 4 + 1) = 6: the number of batches is geometric with success 1 - (1 - rate)^6
    success = 1 - (1 - rate) ** 6
    expected, deviation = 6 / success, 6 * math.sqrt(1 - success) / success
    assert bool((counts % 6 == 0).all())
    assert abs(float(counts.double().mean()) - expected) < 5 * deviation / math.sqrt(150)


@pytest.mark.parametrize("acceptance_rate", ACCEPTANCE_RATES)
def test_draws_do_not_depend_on_a_wrong_rate(acceptance_rate: float) -> None:
    density = make_density(normal(1), epsilon=5.0)
    source = TorchSource(density.base)
    draws = rejection_sample(source, density.tilt, density.bounds, 4000, acceptance_rate=acceptance_rate).values
    reference = density.sample((4000,))
    assert stats.ks_2samp(draws[:, 0].numpy(), reference[:, 0].numpy()).pvalue > LEVEL


def test_acceptance_is_exact_to_53_bits() -> None:
    """Attack: the law of acceptance, against docs/proofs.md, *Rejection: the law in floating point*.

    A proposal is accepted where u < p with u on the multiples of 2^-53, so with probability ceil(p 2^53) / 2^53.
    """
    for width in (1e-12, 0.5, 2.5, 20.0):
        log_acceptance = torch.linspace(-width, 0, 10_001, dtype=torch.float64)
        for accepted in log_acceptance.exp().tolist():
            probability = Fraction(accepted)
            on_the_grid = Fraction(math.ceil(probability * 2**53), 2**53)
            assert probability <= on_the_grid <= 1
            excess = float(on_the_grid / probability - 1)
            assert excess <= 2.0**-53 * math.exp(width) * (1 + 1e-12)


def test_uniforms_are_multiples_of_two_to_the_minus_53() -> None:
    uniforms = TorchSource(normal(1)).uniforms(1000)
    scaled = uniforms * 2**53
    assert bool((scaled == scaled.round()).all())
    assert bool((scaled.long() % 2 == 1).any())
    assert bool((uniforms < 1).all())


def test_a_rate_that_underflows_gives_the_clear_error() -> None:
    class Needle(nn.Module):
        """Accepts nothing."""

        def forward(self, value: Tensor) -> Tensor:
            return torch.full((*value.shape[:-1], 1), -1e30)

    density = MollifiedExpFamily(normal(2), Needle(), torch.tensor([2000.0]), -1386.0)
    assert density.acceptance_rate == 0
    with pytest.raises(RuntimeError, match="max_proposals must allow 1 draws"):
        density.rejection_draws(1, max_proposals=1000)


@pytest.mark.parametrize(("option", "bad"), [("max_proposals", 0), ("max_proposals", -5), ("acceptance_rate", 1.5)])
def test_options(option: str, bad: float) -> None:
    density = make_density(normal(1))
    with pytest.raises(ValueError, match=f"{option} must be"):
        rejection_sample(TorchSource(normal(1)), density.tilt, density.bounds, 1, **{option: bad})


def test_no_draws() -> None:
    assert make_density(normal(2)).rejection_draws(0).values.shape == (0, 2)


@pytest.mark.parametrize("excess", [1e-12, 1.0, math.nan])
def test_a_broken_envelope_raises(excess: float) -> None:
    def tilt(value: Tensor) -> Tensor:
        return torch.full(value.shape[:1], 0.5 + excess, dtype=torch.float64)

    with pytest.raises(EnvelopeError, match="tilt must be at most its upper bound"):
        rejection_sample(TorchSource(normal(2)), tilt, Bounds(-0.5, 0.5), 10)


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


def test_scalar_plates_of_draws() -> None:
    density = make_density(dist.Normal(0.0, 1.0)).expand([4])
    assert density.sample((2,)).shape == (2, 4)
