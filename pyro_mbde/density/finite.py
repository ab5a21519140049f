"""Finite bases: their points, and the exact probabilities of their draws."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._checks import argument_error
from pyro_mbde.density.mixed_base import MixedBase

#: Draws are made of integers below this: 53 bits, as many as a double holds.
NUM_STEPS = 2**53
#: How far probabilities may be from a sum of 1, by what they are computed in: a log-density in float32 may be off by as
#: much over many points.
_SLACK = {torch.float64: 1e-6}
_FLOAT32_SLACK = 1e-3
#: Probabilities under a copula are integrals, computed to about three digits.
_DEPENDENT_SLACK = 0.02


class FinitePoints(NamedTuple):
    r"""The points of a finite base and the law of its draws, exact.

    A draw takes an integer r, uniform on :math:`\{0, \dots, 2^{53} - 1\}`, and gives the first point whose cumulative
    count is above r. So point i has probability :math:`(K_i - K_{i-1})/2^{53}` to the last bit, and what is summed over
    the points with these weights is the expectation under the draws themselves.

    Attributes:
        points: shape ``(n, *event_shape)``.
        cumulative: K, int64 of shape ``(n,)``, rising to 2^53.
        log_weights: logarithms of the probabilities, float64 of shape ``(n,)``; -inf for points below 2^-53.
    """

    points: Tensor
    cumulative: Tensor
    log_weights: Tensor

    def draw(self, uniforms: Tensor) -> Tensor:
        """Returns the points that uniforms stand for."""
        integers = (uniforms.to(self.cumulative.device) * NUM_STEPS).to(torch.int64)
        return self.points[torch.searchsorted(self.cumulative, integers, right=True)]


def enumerate_points(base: Distribution) -> Tensor | None:
    """Returns all points of a finite base, shape ``(n, *event_shape)``, or None where they cannot be listed."""
    if (base.event_shape and not isinstance(base, MixedBase)) or not base.has_enumerate_support:
        return None
    try:
        return base.enumerate_support(expand=False)
    except NotImplementedError:  # an infinite support, or one that differs over the batch
        return None


def finite_points(base: Distribution, wide_base: Distribution | None = None) -> FinitePoints | None:
    """Returns the points of a finite base with the law of its draws, or None where they cannot be listed."""
    points = enumerate_points(base)
    if points is None:
        return None
    scored = base if wide_base is None else wide_base
    with torch.no_grad():
        log_prob = scored.log_prob(points.double() if wide_base is not None and points.is_floating_point() else points)
        weights = log_prob.double().exp()
    total = float(weights.sum())
    slack = _SLACK.get(log_prob.dtype, _FLOAT32_SLACK)
    if isinstance(base, MixedBase) and (base.dependence is not None or base.predicates):
        slack = _DEPENDENT_SLACK
    if not abs(total - 1) <= slack:
        remedy = "A mask, or a log_prob that is not normalised, gives another law than its draws have."
        raise ValueError(argument_error("base", "have probabilities that sum to 1", total, remedy))
    cumulative = (weights.cumsum(0) / total * NUM_STEPS).round().to(torch.int64).clamp(max=NUM_STEPS)
    # Past the last point of positive weight nothing may be left over by rounding.
    last = int(weights.nonzero().max())
    cumulative[last:] = NUM_STEPS
    counts = torch.diff(cumulative, prepend=cumulative.new_zeros(1))
    return FinitePoints(points, cumulative, counts.double().log() - 53 * math.log(2))
