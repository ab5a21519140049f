"""A damped density: what Hamiltonian kernels follow where a density, or a sum of several, is too rough itself."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import biject_to

from pyro_mbde._torch_state import seeded
from pyro_mbde.density.base import location_scale_of_draws, reference_draws, support_of
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.mixed_base import MixedBase
from pyro_mbde.density.row_batch import RowBatch
from pyro_mbde.mcmc.target import spread_of

_NUM_FREQUENCIES = 128
#: Smallest and largest frequency, in radians per standard deviation of the base; their directions are random.
_FREQUENCIES = 0.5, 4.0
#: Width of the normal that is averaged over, in standard deviations of the base.
_WIDTH = 0.3
#: Ridge penalty, added to the mean squared residual.
_RIDGE = 1e-3
#: Log-ratios to the start are held to this many nats around their median: they are fitted, not trusted.
_MAX_LOG_RATIO = 10.0


def has_jumps(q: MollifiedExpFamily) -> bool:
    """Returns whether the base's own density may have jumps: that of columns has, at stated quantiles for instance."""
    base = q.base
    return isinstance(base.row if isinstance(base, RowBatch) else base, MixedBase)


class DampedDensity:
    r"""A smooth approximation of a density: a start times random cosines, fitted by ridge regression and damped.

    .. math::
        \log h(x) = \log h_0(x) + a_0 + a^\top x
            + \sum_j e^{-\tau^2 \|\omega_j\|^2 / 2}\, b_j \cos(\omega_j^\top x + c_j)

    in coordinates in which the base has unit scale. The start is the base or, where that has jumps, a normal of its
    location and scale in unconstrained coordinates. The weights are fitted to the log-ratio of the density to the start
    at draws of the base, half of them resampled by :math:`e^f`. The exponential is what averaging over
    :math:`N(x, \tau^2 I)` makes of a cosine: finer ripples go, and what is left changes slowly enough to be followed.

    Privacy:
        As sensitive as the density's networks. It is never part of the density's own ``log_prob``.

    Args:
        q: the fitted density, of any batch shape.

    References:
        Rahimi, Recht. Random features for large-scale kernel machines. 2007.
    """

    def __init__(self, q: MollifiedExpFamily) -> None:
        with seeded(0), torch.no_grad():
            draws = reference_draws(q.base)
            self._transform: Any = biject_to(support_of(q.base)) if has_jumps(q) else None
            if self._transform is not None:
                self._spread = spread_of(self._transform.inv(draws))
            tilts = q.tilt(draws)
            base: Any = q.base
            log_ratios = base.log_prob(draws).double() + tilts - self._log_start(q, draws).double()
            middle = log_ratios.median()
            log_ratios = log_ratios.clamp(middle - _MAX_LOG_RATIO, middle + _MAX_LOG_RATIO)
            likely = torch.multinomial((tilts - tilts.max()).exp(), len(draws), replacement=True)
            chosen = torch.cat([torch.arange(len(draws), device=draws.device), likely])
            features = self._features(q, draws)
            self._loc, self._scale = location_scale_of_draws(features)
            points = ((features - self._loc) / self._scale)[chosen]
            low, high = _FREQUENCIES
            sizes = low * (high / low) ** torch.rand(_NUM_FREQUENCIES)
            self._frequencies = (torch.randn(points.shape[1], _NUM_FREQUENCIES) * sizes).to(points)
            self._phases = (2 * math.pi * torch.rand(_NUM_FREQUENCIES)).to(points)
            design = torch.cat([torch.ones_like(points[:, :1]), points, self._cosines(points)], 1)
            gram = design.T @ design / len(points)
            gram.diagonal().add_(_RIDGE)
            weights = torch.linalg.solve(gram, design.T @ log_ratios[chosen] / len(points))
        self._slope = weights[1 : 1 + points.shape[1]]
        damping = (-(_WIDTH**2) / 2 * self._frequencies.square().sum(0)).exp()
        self._weights = weights[1 + points.shape[1] :] * damping
        self._constant = weights[0]

    def _log_start(self, q: MollifiedExpFamily, value: Tensor) -> Tensor:
        base: Any = q.base
        if self._transform is None:
            log_prob: Tensor = base.log_prob(value)
            return log_prob
        point = self._transform.inv(value)
        scores = (point - self._spread.loc) / self._spread.scale
        jacobian: Tensor = self._transform.log_abs_det_jacobian(point, value)
        log_normal: Tensor = -scores.square().flatten(value.dim() - len(q.event_shape)).sum(-1) / 2
        return log_normal - jacobian

    @staticmethod
    def _features(q: MollifiedExpFamily, value: Tensor) -> Tensor:
        """Features of values, float64, those of all rows of a batch side by side."""
        features = q.features(value).double()
        return features.flatten(-2) if isinstance(q.base, RowBatch) else features

    def _cosines(self, points: Tensor) -> Tensor:
        return (points @ self._frequencies + self._phases).cos()

    def __call__(self, q: MollifiedExpFamily, value: Tensor) -> Tensor:
        """Returns log h of values of shape ``(..., *event_shape)``, float64 of shape ``(...)``."""
        points = (self._features(q, value) - self._loc) / self._scale
        smooth: Tensor = self._constant + points @ self._slope + self._cosines(points) @ self._weights
        return self._log_start(q, value) + smooth
