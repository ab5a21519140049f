"""Metrics in closed form, by quadrature and by Monte Carlo."""

from __future__ import annotations

import math
from collections.abc import Callable

import pyro.distributions as dist
import pytest
import torch
from densities import make_density, normal
from scipy import stats

from pyro_mbde import MollifiedExpFamily
from pyro_mbde.metrics import (
    Estimate,
    compare,
    kl_divergence,
    kl_gain,
    mode_coverage,
    negative_log_likelihood,
    quadrature_grid,
    total_variation,
)


def test_gain_of_normals() -> None:
    """KL between normals in closed form."""
    target, base, density = dist.Normal(1.0, 0.5), dist.Normal(0.0, 1.0), dist.Normal(1.0, 1.0)
    # E_P[log q - log q0] = (E x^2 - E (x - 1)^2) / 2
    assert kl_gain(target, base, density, (-5.0, 7.0)).value == pytest.approx((1.25 - 0.25) / 2, abs=1e-4)


@pytest.mark.parametrize("num_dims", [1, 2])
def test_gain_of_vectors(num_dims: int) -> None:
    target = dist.Normal(torch.ones(num_dims), torch.ones(num_dims)).to_event(1)
    # KL(N(1, I), N(0, I)) = d / 2
    assert kl_gain(target, normal(num_dims), target, (-7.0, 8.0)).value == pytest.approx(num_dims / 2, abs=1e-4)


def test_grids() -> None:
    points, volume = quadrature_grid((0.0, 2.0), torch.Size([2]), points_per_dim=4)
    assert points.shape == (16, 2)
    assert volume == 0.25
    assert points.mean(0).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="event_shape must be"):
        quadrature_grid((0.0, 1.0), torch.Size([3]))


BOX = (-9.0, 10.0)
P, Q = dist.Normal(1.0, 1.0), dist.Normal(0.0, 1.0)
#: Of N(1, 1) against N(0, 1).
CLOSED = {
    kl_divergence: 0.5,
    negative_log_likelihood: 0.5 * math.log(2 * math.pi) + 0.5 * (1 + 1),
    total_variation: 2 * stats.norm.cdf(0.5) - 1,
}


@pytest.mark.parametrize("metric", CLOSED, ids=lambda metric: metric.__name__)
def test_closed_forms(metric: Callable[..., Estimate]) -> None:
    exact = metric(P, Q, BOX)
    assert exact.standard_error == 0
    assert exact.value == pytest.approx(CLOSED[metric], abs=1e-4)
    estimate = metric(P, Q, num_draws=200_000)
    assert 0 < estimate.standard_error < 0.01
    assert abs(estimate.value - CLOSED[metric]) < 4.5 * estimate.standard_error


def test_mode_coverage_of_a_wider_target() -> None:
    """The smallest region with 95% of N(0, 1) is [-1.96, 1.96]; N(0, 2) has 67% there."""
    estimate = mode_coverage(dist.Normal(0.0, 2.0), dist.Normal(0.0, 1.0))
    expected = 2 * stats.norm.cdf(stats.norm.ppf(0.975) / 2) - 1
    assert abs(estimate.value - expected) < 4.5 * estimate.standard_error
    assert estimate.standard_error < 0.005


def test_mode_coverage_finds_missing_modes() -> None:
    """Q covers one of two equal modes: half of P's mass is outside."""
    target = dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), dist.Normal(torch.tensor([-5.0, 5.0]), 1.0))
    estimate = mode_coverage(target, dist.Normal(5.0, 1.0))
    assert abs(estimate.value - 0.475) < 4.5 * estimate.standard_error


@pytest.mark.parametrize("mass", [0.5, 0.8, 0.95])
@pytest.mark.parametrize(
    "density",
    [dist.Uniform(0.0, 1.0), dist.Categorical(torch.ones(3)), dist.Categorical(torch.tensor([0.6, 0.3, 0.1]))],
    ids=["uniform", "equal", "steps"],
)
def test_mode_coverage_on_plateaus(density: dist.TorchDistribution, mass: float) -> None:
    """A density covers exactly the requested mass of itself, even if many points are equally likely."""
    estimate = mode_coverage(density, density, mass=mass)
    assert abs(estimate.value - mass) < 4.5 * estimate.standard_error + 1e-3


def test_standard_error_of_coverage() -> None:
    """Over repetitions the estimates vary as their standard errors say, the error of the level included."""
    estimates = [mode_coverage(P, Q, num_draws=2000) for _ in range(200)]
    scatter = torch.tensor([estimate.value for estimate in estimates]).std()
    claimed = torch.tensor([estimate.standard_error for estimate in estimates]).square().mean().sqrt()
    assert 0.8 < float(claimed / scatter) < 1.25


def test_compare() -> None:
    density = make_density(dist.Normal(0.0, 1.0), epsilon=2.0)
    table = compare(P, {"base": Q, "fit": density}, BOX, num_draws=4000)
    assert table.index.tolist() == ["base", "fit"]
    assert table.loc["base", "kl"] == pytest.approx(0.5, abs=1e-4)
    assert table.loc["fit", "kl"] == pytest.approx(
        table.loc["base", "kl"] - kl_gain(P, Q, density, BOX).value, abs=1e-4
    )
    assert (table.filter(like="_se") >= 0).all(axis=None)
    assert compare(P, density, num_draws=400).shape == (1, 8)
    assert compare(P, [Q, density], num_draws=400).index.tolist() == [0, 1]
    assert isinstance(density, MollifiedExpFamily)


def test_more_dimensions_than_a_grid_has() -> None:
    with pytest.raises(ValueError, match="Use Monte Carlo"):
        kl_divergence(normal(3), normal(3), BOX)
    assert kl_divergence(normal(3), normal(3)).value == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("mass", [0.0, 1.0, float("nan")])
def test_mass_is_a_probability(mass: float) -> None:
    with pytest.raises(ValueError, match="mass must be in"):
        mode_coverage(P, Q, mass=mass)


@pytest.mark.parametrize("width", [0.5, 1.0, 2.0])
def test_mode_coverage_by_quadrature(width: float) -> None:
    """The central 95 per cent of a normal covers a mass of the standard normal given by the error function."""
    target, density = (torch.distributions.Normal(torch.tensor(0.0), torch.tensor(scale)) for scale in (1.0, width))
    exact = math.erf(1.959964 * width / math.sqrt(2))
    assert mode_coverage(target, density, (-12.0, 12.0)).value == pytest.approx(exact, abs=1e-3)
    drawn = mode_coverage(target, density)
    assert drawn.value == pytest.approx(exact, abs=5 * drawn.standard_error)


def test_mode_coverage_of_a_plateau_by_quadrature() -> None:
    """The smallest region with mass 0.95 of a uniform density is not unique: it counts as 0.95 of the mass inside."""
    uniform = torch.distributions.Uniform(torch.tensor(-2.0), torch.tensor(2.0), validate_args=False)
    normal = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(0.1))
    assert mode_coverage(normal, uniform, (-4.0, 4.0)).value == pytest.approx(0.95, abs=1e-3)
