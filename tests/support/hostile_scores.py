"""Densities of the worst scores that tables might lead to, over bases of columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pyro_mbde import MollifiedExpFamily
from pyro_mbde.calibration.placement import Calibrator
from pyro_mbde.calibration.plan import plan_calibration
from pyro_mbde.density.clipped_ratio import RATIO_SCALE


class Scored(nn.Module):
    """A score that depends on the features of a row alone, as hostile as one likes."""

    def __init__(self, score: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._score = score

    def forward(self, features: Tensor) -> Tensor:
        return self._score(features.double()).unsqueeze(-1) / RATIO_SCALE


#: Scores that two hostile tables might lead to, of a row's features.
HOSTILE: dict[str, Callable[[Tensor], Tensor]] = {
    "high": lambda features: 9 * features.sum(-1),
    "low": lambda features: -9 * features.sum(-1),
    "missing alone": lambda features: torch.where(features[..., 0] > 0, 30.0, -1.0),
    "waves": lambda features: 5 * (1e3 * features.sum(-1)).sin(),
    "infinite": lambda features: torch.where(features[..., -1] > 0, math.inf, 0.0),
    "NaN": lambda features: torch.where(features[..., -1] > 0, math.nan, -1.0),
    "zero": lambda features: 0 * features.sum(-1),
}


def density_of(
    base: Any, score: Callable[[Tensor], Tensor], epsilon: float, num_rows: int | None
) -> MollifiedExpFamily:
    plan = plan_calibration(base, epsilon, 1e-9, 0.3, num_rows)
    natural_params = torch.tensor([RATIO_SCALE], dtype=torch.float64)
    return Calibrator(base, Scored(score), natural_params, progress=False).density(*plan, num_rows)
