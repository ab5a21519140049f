"""A damped tilt: what Hamiltonian kernels follow where the tilts of several draws of densities add up."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_mbde._torch_state import seeded
from pyro_mbde.density.base import location_scale_of_draws, reference_draws
from pyro_mbde.density.distribution import MollifiedExpFamily

_NUM_FREQUENCIES = 128
#: Smallest and largest frequency, in radians per standard deviation of the base; their directions are random.
_FREQUENCIES = 0.5, 4.0
#: Width of the normal that the tilt is averaged over, in standard deviations of the base: about a leapfrog step.
_WIDTH = 0.3
#: Penalty on the squared weights, in units of the mean squared residual.
_RIDGE = 1e-3


class DampedTilt:
    r"""A smooth approximation of a density's tilt: ridge regression on random cosines, averaged over a normal.

    .. math::
        g(x) = a_0 + a^\top x + \sum_j e^{-\tau^2 \|\omega_j\|^2 / 2}\, b_j \cos(\omega_j^\top x + c_j)

    in coordinates in which the base has unit scale, with weights fitted to the tilt at draws of the base, half of them
    resampled by :math:`e^f`. The exponential is what averaging over :math:`N(x, \tau^2 I)` makes of a cosine: ripples
    finer than a leapfrog step go, and what is left changes slowly enough to be followed.

    Privacy:
        As sensitive as the density's networks. It is never part of a ``log_prob``.

    Args:
        q: the fitted density, of any batch shape.

    References:
        Rahimi, Recht. Random features for large-scale kernel machines. 2007.
    """

    def __init__(self, q: MollifiedExpFamily) -> None:
        with seeded(0), torch.no_grad():
            draws = reference_draws(q.base)
            tilts = q.tilt(draws)
            likely = torch.multinomial((tilts - tilts.max()).exp(), len(draws), replacement=True)
            chosen = torch.cat([torch.arange(len(draws), device=draws.device), likely])
            features = self._flat(q, draws).double()
            self._loc, self._scale = location_scale_of_draws(features)
            points = ((features - self._loc) / self._scale)[chosen]
            low, high = _FREQUENCIES
            sizes = low * (high / low) ** torch.rand(_NUM_FREQUENCIES)
            self._frequencies = (torch.randn(points.shape[1], _NUM_FREQUENCIES) * sizes).to(points)
            self._phases = (2 * math.pi * torch.rand(_NUM_FREQUENCIES)).to(points)
            design = torch.cat([torch.ones_like(points[:, :1]), points, self._cosines(points)], 1)
            gram = design.T @ design / len(points)
            gram.diagonal().add_(_RIDGE)
            weights = torch.linalg.solve(gram, design.T @ tilts[chosen] / len(points))
        self._slope = weights[1 : 1 + points.shape[1]]
        damping = (-(_WIDTH**2) / 2 * self._frequencies.square().sum(0)).exp()
        self._weights = weights[1 + points.shape[1] :] * damping
        self._constant = weights[0]

    @staticmethod
    def _flat(q: MollifiedExpFamily, value: Tensor) -> Tensor:
        """Features of values, those of all rows of a batch side by side."""
        features = q.features(value)
        return features.flatten(-2) if features.dim() > value.dim() - len(q.event_shape) + 1 else features

    def _cosines(self, points: Tensor) -> Tensor:
        return (points @ self._frequencies + self._phases).cos()

    def __call__(self, q: MollifiedExpFamily, value: Tensor) -> Tensor:
        """Returns g of values of shape ``(..., *event_shape)``, float64 of shape ``(...)``."""
        points = (self._flat(q, value).double() - self._loc) / self._scale
        tilt: Tensor = self._constant + points @ self._slope + self._cosines(points) @ self._weights
        return tilt
