"""Quadrature and gains in closed form."""

from __future__ import annotations

import pyro.distributions as dist
import pytest
import torch
from densities import normal

from pyro_mbde.metrics import kl_gain, quadrature_grid


def test_gain_of_normals() -> None:
    """KL between normals in closed form."""
    target, base, density = dist.Normal(1.0, 0.5), dist.Normal(0.0, 1.0), dist.Normal(1.0, 1.0)
    # E_P[log q - log q0] = (E x^2 - E (x - 1)^2) / 2
    assert kl_gain(target, base, density, (-5.0, 7.0)) == pytest.approx((1.25 - 0.25) / 2, abs=1e-4)


@pytest.mark.parametrize("num_dims", [1, 2])
def test_gain_of_vectors(num_dims: int) -> None:
    target = dist.Normal(torch.ones(num_dims), torch.ones(num_dims)).to_event(1)
    # KL(N(1, I), N(0, I)) = d / 2
    assert kl_gain(target, normal(num_dims), target, (-7.0, 8.0)) == pytest.approx(num_dims / 2, abs=1e-4)


def test_grids() -> None:
    points, volume = quadrature_grid((0.0, 2.0), torch.Size([2]), points_per_dim=4)
    assert points.shape == (16, 2)
    assert volume == 0.25
    assert points.mean(0).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="event_shape must be"):
        quadrature_grid((0.0, 1.0), torch.Size([3]))
