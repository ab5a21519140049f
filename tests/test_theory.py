"""The paper's bounds against exact computations."""

from __future__ import annotations

import math

import pyro.distributions as dist
import pytest
import torch

from pyro_mbde.metrics import quadrature_grid
from pyro_mbde.mollifier import LOG_2
from pyro_mbde.theory import best_a_priori_gain, boosting_regime, kl_drop_bound


def test_regimes() -> None:
    assert boosting_regime(1 / 3) == "high"
    assert boosting_regime(0.33) == "low"


@pytest.mark.parametrize("theta", [0.05, 0.3, 1.0, 2.0])
def test_never_above_the_true_drop(theta: float) -> None:
    """Attack: random classifiers on a finite space, with the exact drop theta E_P c - log E_Q exp(theta c)."""
    p = torch.rand(500, 6, dtype=torch.float64).pow(3)
    q = torch.rand(500, 6, dtype=torch.float64).pow(3)
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    c = (p / q).log().clamp(-LOG_2, LOG_2)
    drop = theta * (p * c).sum(-1) - (q * (theta * c).exp()).sum(-1).log()
    for c_max in (LOG_2, float(c.abs().max())):
        gamma_p, gamma_q = (p * c).sum(-1) / c_max, -(q * c).sum(-1) / c_max
        for index in range(500):
            bound = kl_drop_bound(theta, float(gamma_p[index]), float(gamma_q[index]), c_max)
            assert bound <= float(drop[index]) + 1e-12


def test_goldens() -> None:
    # low regime: theta c* (gP + gQ - c* theta / 2); high: theta (c* gP + log(4 / (5 - 3 gQ)))
    assert kl_drop_bound(0.5, 0.2, 0.1) == pytest.approx(0.5 * LOG_2 * (0.3 - LOG_2 / 4))
    assert kl_drop_bound(0.5, 0.2, 0.6) == pytest.approx(0.5 * (LOG_2 * 0.2 + math.log(4 / 3.2)))


@pytest.mark.parametrize(
    "arguments",
    [
        (-0.1, 0.5, 0.5),
        (math.nan, 0.5, 0.5),
        (0.5, 1.1, 0.5),
        (0.5, 0.5, -1.1),
        (0.5, 0.5, 0.5, 0.7),
        (0.5, 0.5, 0.5, 0.0),
    ],
)
def test_out_of_range(arguments: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="must be"):
        kl_drop_bound(*arguments)


def test_best_gain_on_two_values_in_closed_form() -> None:
    """P uniform on a tenth of a uniform base: f is R/2 there and -R/2 elsewhere."""
    base, target = dist.Uniform(0.0, 1.0), dist.Uniform(0.0, 0.1, validate_args=False)
    width = 0.5
    expected = width / 2 - math.log(0.1 * math.exp(width / 2) + 0.9 * math.exp(-width / 2))
    assert best_a_priori_gain(target, base, 1.0, (0.0, 1.0)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 5.0])
def test_nothing_in_the_interval_gains_more(epsilon: float) -> None:
    """Attack: random tilts around the best one, on the grid itself."""
    target, base, box = dist.Normal(1.0, 0.3), dist.Normal(0.0, 1.0), (-6.0, 6.0)
    best = best_a_priori_gain(target, base, epsilon, box)
    points, volume = quadrature_grid(box, torch.Size([]))
    p, q0 = target.log_prob(points).double().exp() * volume, base.log_prob(points).double().exp() * volume
    log_ratio = target.log_prob(points).double() - base.log_prob(points).double()
    for shift in torch.linspace(-2, 2, 41).tolist():
        for slope in (0.3, 1.0, 30.0):
            tilt = (slope * (log_ratio - shift)).clamp(-epsilon / 4, epsilon / 4)
            gain = float((p * tilt).sum() / p.sum() - ((q0 * tilt.exp()).sum() / q0.sum()).log())
            assert gain <= best + 1e-9
    assert best <= epsilon / 2


def test_best_gain_where_epsilon_is_no_limit() -> None:
    target, base = dist.Normal(1.0, 1.0), dist.Normal(0.0, 1.0)
    for epsilon in (1e9, math.inf):
        assert best_a_priori_gain(target, base, epsilon, (-7.0, 8.0)) == pytest.approx(0.5, abs=1e-3)


def test_best_gain_where_both_densities_vanish() -> None:
    target, base = dist.Uniform(0.0, 1.0, validate_args=False), dist.Uniform(-1.0, 2.0, validate_args=False)
    expected = 0.25 - math.log(math.exp(0.25) / 3 + 2 * math.exp(-0.25) / 3)
    assert best_a_priori_gain(target, base, 1.0, (-3.0, 3.0)) == pytest.approx(expected, abs=1e-3)
