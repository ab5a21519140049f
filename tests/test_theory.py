"""The paper's bounds against exact computations."""

from __future__ import annotations

import math

import pytest
import torch

from pyro_mbde.mollifier import LOG_2
from pyro_mbde.theory import boosting_regime, kl_drop_bound


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
