"""Statistics that are the true log density ratio of a target, so that a fit adds no error of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pyro_mbde.calibration.placement import Calibrator
from pyro_mbde.calibration.plan import plan_calibration
from pyro_mbde.density.base import prepare
from pyro_mbde.density.clipped_ratio import RATIO_SCALE
from pyro_mbde.density.distribution import MollifiedExpFamily


class KnownRatio(nn.Module):
    """Maps rows of shape ``(n, d)`` to log p/q0, over the scale that a natural parameter of 1024 undoes."""

    def __init__(self, target: Any, base: Any) -> None:
        super().__init__()
        self._target, self._base = target, base

    def forward(self, features: Tensor) -> Tensor:
        values = features.double()
        values = values if self._base.event_shape else values.squeeze(-1)
        log_ratio = self._target.log_prob(values) - self._base.log_prob(values)
        return (log_ratio / RATIO_SCALE).unsqueeze(-1)


def known_density(
    target: Any, base: Any, epsilon: float, num_rows: int | None = None, *, delta: float = 1e-9, skew: float = 0.3
) -> MollifiedExpFamily:
    """The calibrated density of a known target: of a row, or of a batch."""
    prepared = prepare(base)
    bounds, certificate = plan_calibration(prepared, epsilon, delta, skew, num_rows)
    natural_params = torch.tensor([RATIO_SCALE], dtype=torch.float64)
    calibrator = Calibrator(prepared, KnownRatio(target, base), natural_params, progress=False)
    return calibrator.density(bounds, certificate, num_rows)
