"""The unbounded variant: its schedule, normalisation and draws, and that it leaves the mollifier."""

from __future__ import annotations

import math

import pyro.distributions as dist
import pytest
import torch
from densities import normal

from pyro_mbde import MBDE, WeakLearner
from pyro_mbde.density.statistics import BoundedClassifiers
from pyro_mbde.experiments.baselines.unbounded import UnboundedDensity, UnboundedMBDE, published_natural_params
from pyro_mbde.metrics import quadrature_grid

QUICK = WeakLearner(hidden_sizes=(25, 25), activation="tanh", num_frequencies=0, num_steps=40, batch_size=256)


def quick(base: torch.distributions.Distribution, epsilon: float = 1.0, num_rounds: int = 2) -> UnboundedMBDE:
    """A trainer that takes a second."""
    return UnboundedMBDE(
        base, epsilon, num_rounds, box=(-7.0, 7.0), weak_learner=QUICK, num_samples=1000, seed=0, progress=False
    )


def random_density(base: torch.distributions.Distribution, gain: float = 3.0) -> UnboundedDensity:
    """A density with random networks."""
    num_dims = max(base.event_shape.numel(), 1)
    networks = BoundedClassifiers(2, num_dims).requires_grad_(False)
    networks.scale_logits(gain)
    theta = torch.tensor([1.0, 0.5], dtype=torch.float64)
    return UnboundedDensity(base, networks, theta, (-8.0, 8.0), base.sample((10,)).reshape(10, num_dims))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_the_published_schedule(epsilon: float) -> None:
    theta = published_natural_params(epsilon, 3)
    assert theta.dtype == torch.float64
    ratio = epsilon / (4 + epsilon)
    assert theta.tolist() == pytest.approx([ratio, ratio**2, ratio**3], rel=1e-12)
    # Right for statistics bounded by 1: 2 sum theta_t, the half-width doubled, is at most epsilon / 2.
    assert 2 * float(theta.sum()) < epsilon / 2


@pytest.mark.parametrize("base", [dist.Normal(0.0, 1.0), normal(1), normal(2)], ids=["scalar", "1d", "2d"])
def test_densities_integrate_to_one(base: torch.distributions.Distribution) -> None:
    density = random_density(base)
    points, volume = quadrature_grid((-8.0, 8.0), base.event_shape, points_per_dim=333)
    assert float(density.log_prob(points).double().exp().sum() * volume) == pytest.approx(1, abs=1e-3)
    assert density.sample((3, 2)).shape == (3, 2, *base.event_shape)


def test_log_density_is_the_tilted_base() -> None:
    density = random_density(normal(2))
    points = torch.randn(50, 2)
    ratio = density.networks.logits(points).double() @ density.natural_params - density.log_normalizer
    torch.testing.assert_close(density.log_prob(points), (normal(2).log_prob(points).double() + ratio).float())


def test_draws_have_the_density() -> None:
    """Counts in 16 cells of the line against their masses."""
    density = random_density(dist.Normal(0.0, 1.0), gain=10.0)
    draws = density.sample((40_000,))
    edges = torch.linspace(-4, 4, 17)
    grid = torch.linspace(-4, 4, 16_001)
    masses = density.log_prob((grid[1:] + grid[:-1]) / 2).double().exp().reshape(16, 1000).sum(1) * 8 / 16_000
    counts = torch.histogram(draws, edges).hist.double()
    errors = (counts - 40_000 * masses) / (40_000 * masses).sqrt().clamp(min=1)
    assert float(errors.abs().max()) < 4.5


def test_draws_stay_in_the_support() -> None:
    base = dist.Exponential(1.0)
    density = random_density(base)
    draws = density.sample((2000,))
    assert bool((draws >= 0).all())
    assert torch.isfinite(density.log_prob(draws)).all()
    assert density.log_prob(torch.tensor([-0.5, torch.nan])).tolist() == [-math.inf, -math.inf]


def test_the_range_is_that_of_the_log_ratio() -> None:
    """Between what draws of the base see and what the whole box shows."""
    density = random_density(normal(2))
    draws = normal(2).sample((2000,))
    points, _ = quadrature_grid((-8.0, 8.0), torch.Size([2]), points_per_dim=200)
    seen, whole = (density.tilt(x.double()) for x in (draws, points))
    assert 0.9 * float(seen.max() - seen.min()) < density.log_ratio_range
    assert density.log_ratio_range <= float(whole.max() - whole.min()) * 1.001


def test_rows_far_off_the_base_count_for_the_range() -> None:
    networks = BoundedClassifiers(1, 1).requires_grad_(False)
    networks.scale_logits(20.0)
    theta = torch.ones(1, dtype=torch.float64)
    near, far = (
        UnboundedDensity(dist.Normal(0.0, 1.0), networks, theta, (-30.0, 30.0), torch.tensor([[row]]))
        for row in (0.0, 25.0)
    )
    at_far = near.tilt(torch.tensor([[25.0]]).double())
    assert far.log_ratio_range >= float((at_far - near.tilt(torch.zeros(1, 1).double())).abs())
    assert far.log_ratio_range >= near.log_ratio_range


def test_it_leaves_the_mollifier() -> None:
    """On a target far off the base the log-ratio ranges over more than epsilon, which the bounded fit never does."""
    base, epsilon = normal(2), 0.1
    rows = 0.3 * torch.randn(1000, 2) + torch.tensor([3.0, 0.0])
    density = quick(base, epsilon).fit(rows)
    assert density.log_ratio_range > epsilon
    bounded = MBDE(base, epsilon, 2, weak_learner=QUICK, schedule="paper", sharpen=False, seed=0, progress=False)
    tilts = bounded.fit(rows).tilt(torch.cat([rows, base.sample((2000,))]))
    assert float(tilts.max() - tilts.min()) <= epsilon


def test_the_fit_moves_to_the_target() -> None:
    rows = 0.3 * torch.randn(1000) + 1
    losses = [-float(quick(dist.Normal(0.0, 1.0), epsilon).fit(rows).log_prob(rows).mean()) for epsilon in (0.1, 1, 10)]
    assert losses == sorted(losses, reverse=True)


def test_the_papers_network_is_the_default() -> None:
    learner = UnboundedMBDE(normal(2), 1.0, box=(-9.0, 9.0)).weak_learner
    paper = MBDE.paper(normal(2), 1.0).weak_learner
    assert learner == paper


@pytest.mark.parametrize("box", [(5.0, 6.0), (-0.5, 0.5)])
def test_a_box_that_misses_the_base(box: tuple[float, float]) -> None:
    learner = WeakLearner(hidden_sizes=(4,), num_frequencies=0, num_steps=1, batch_size=8)
    trainer = UnboundedMBDE(dist.Normal(0.0, 1.0), 1.0, 1, box=box, weak_learner=learner, seed=0, progress=False)
    with pytest.raises(ValueError, match="box must hold nearly all of the base"):
        trainer.fit(torch.randn(50))
