"""Schedules, guarantees and the log-normaliser against closed forms."""

from __future__ import annotations

import math

import pyro.distributions as dist
import pytest
import torch
from densities import normal
from torch import Tensor

from pyro_mbde import Bounds, Guarantee, LogNormalizer
from pyro_mbde.density.bounds import (
    LOG_2,
    a_priori_guarantee,
    paper_natural_params,
    spending_natural_params,
    tilt_bounds,
)
from pyro_mbde.density.normalizer import estimate_log_normalizer

EPSILONS = [1e-300, 1e-12, 0.1, 0.3, 1.0, 5.0, 10.0, 1e6, 1e300]


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("num_rounds", [1, 3, 10, 1000])
def test_paper_schedule(epsilon: float, num_rounds: int) -> None:
    params = paper_natural_params(epsilon, num_rounds)
    ratio = epsilon / (epsilon + 4 * math.log(2))
    for index in (0, num_rounds - 1):
        assert float(params[index]) == pytest.approx(ratio ** (index + 1), rel=1e-10)
    # the sum of the geometric series, and the theorem on it
    if epsilon < 1e5:
        assert a_priori_guarantee(tilt_bounds(params)).epsilon <= epsilon


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("num_rounds", [1, 2, 3, 10, 1000])
def test_spending_schedule(epsilon: float, num_rounds: int) -> None:
    params = spending_natural_params(epsilon, num_rounds)
    assert params.shape == (num_rounds,)
    assert bool((params >= 0).all())
    assert bool((params <= 1).all())
    assert bool((params.diff() <= 0).all())
    spent = a_priori_guarantee(tilt_bounds(params)).epsilon
    assert spent <= epsilon
    assert spent >= min(epsilon, 4 * num_rounds * LOG_2) * (1 - 1e-12)


def test_no_limit() -> None:
    for schedule in (paper_natural_params, spending_natural_params):
        assert torch.equal(schedule(math.inf, 3), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, -math.inf])
def test_epsilon_out_of_range(bad: float) -> None:
    for schedule in (paper_natural_params, spending_natural_params):
        with pytest.raises(ValueError, match="epsilon must be above 0"):
            schedule(bad, 3)


@pytest.mark.parametrize("bad", ["1", None, True, torch.ones(2)])
def test_epsilon_of_the_wrong_kind(bad: object) -> None:
    with pytest.raises(TypeError, match="epsilon must be a real number"):
        paper_natural_params(bad, 3)  # type: ignore[arg-type]


def test_rounds_out_of_range() -> None:
    with pytest.raises(ValueError, match="num_rounds must be at least 1, got num_rounds=0"):
        paper_natural_params(1.0, 0)
    with pytest.raises(TypeError, match="num_rounds must be a whole number"):
        paper_natural_params(1.0, 2.5)  # type: ignore[arg-type]


def test_guarantee_of_a_width() -> None:
    assert a_priori_guarantee(Bounds(-0.1, 0.3)) == Guarantee(0.8, 0.0, 0.8)
    assert a_priori_guarantee(tilt_bounds(torch.tensor([0.5, -0.5]))).epsilon == 4 * LOG_2


@pytest.mark.parametrize("bounds", [(0.1, 0.2), (-0.2, -0.1), (-math.inf, 0.0), (0.0, math.inf), (math.nan, 1.0)])
def test_bounds_that_guarantee_nothing(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="bounds"):
        a_priori_guarantee(Bounds(*bounds))


def test_a_priori_bound_against_random_tilts() -> None:
    """Attack on docs/proofs.md, *Bounds: the a-priori guarantee*: random two-valued tilts, exactly."""
    low, high = -0.3, 0.9
    mass = torch.rand(200, 1, dtype=torch.float64) ** 4
    f = torch.tensor([low, high], dtype=torch.float64)
    g = torch.tensor([high, low], dtype=torch.float64)
    weights = torch.cat([mass, 1 - mass], -1)
    phi_f, phi_g = ((weights * tilt.exp()).sum(-1, keepdim=True).log() for tilt in (f, g))
    log_ratio = (f - phi_f) - (g - phi_g)
    guarantee = a_priori_guarantee(Bounds(low, high))
    assert float(log_ratio.abs().max()) <= guarantee.epsilon
    assert float((log_ratio[:, 1] - log_ratio[:, 0]).abs().max()) <= guarantee.log_ratio_range + 1e-12
    assert float(log_ratio.abs().max()) > 0.95 * guarantee.epsilon


class TestLogNormalizer:
    @pytest.mark.parametrize("slope", [0.1, 1.0])
    def test_against_the_normals_moment_generating_function(self, slope: float) -> None:
        base = normal(2)
        estimate = estimate_log_normalizer(lambda x: slope * x.double()[:, 0], base, Bounds(-50, 50))
        assert estimate.standard_error < 1e-3
        assert abs(estimate.value - slope**2 / 2) < 5 * estimate.standard_error + 1e-7

    def test_stated_error_is_honest(self) -> None:
        """Standardised errors over many estimates have unit size, with plain draws and with Sobol points."""
        component = dist.Normal(torch.zeros(1), torch.ones(1))
        mixture = dist.MixtureSameFamily(dist.Categorical(torch.ones(1)), component)  # has no inverse
        for base in (dist.Normal(0.0, 1.0), mixture):
            estimates = [
                estimate_log_normalizer(lambda x: 0.5 * x.double(), base, Bounds(-50, 50), num_draws=512)
                for _ in range(100)
            ]
            errors = torch.tensor([(e.value - 0.125) / e.standard_error for e in estimates])
            # Student t with 15 degrees of freedom has variance 15/13
            assert 0.7 < float(errors.std()) < 1.5
            assert abs(float(errors.mean())) < 0.35

    def test_exact_where_the_base_is_finite(self) -> None:
        base = dist.Categorical(torch.tensor([0.25, 0.75]))
        estimate = estimate_log_normalizer(lambda x: x.double(), base, Bounds(0, 1))
        assert estimate.standard_error == 0
        assert estimate.value == pytest.approx(math.log(0.25 + 0.75 * math.e), abs=1e-7)

    def test_huge_tilts_do_not_overflow(self) -> None:
        def tilt(x: Tensor) -> Tensor:
            return torch.where(x > 0, 1e4, -1e4).double()

        estimate = estimate_log_normalizer(tilt, dist.Normal(0.0, 1.0), Bounds(-1e4, 1e4))
        assert estimate.value == pytest.approx(1e4 + math.log(0.5), abs=1e-3)

    def test_a_tilt_at_its_lower_end(self) -> None:
        estimate = estimate_log_normalizer(
            lambda x: torch.full_like(x, -1e4).double(), dist.Normal(0.0, 1.0), Bounds(-1e4, 1e4)
        )
        assert estimate.value == -1e4

    def test_out_of_range(self) -> None:
        with pytest.raises(ValueError, match="standard_error must be finite"):
            LogNormalizer(0.0, -1.0)
