"""What trainers by private gradient descent share: their settings, and the table as they train on it."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._checks import check_count
from pyro_mbde.density.base import base_location_scale
from pyro_mbde.experiments.baselines.common import Density, Trainer, continuous_base
from pyro_mbde.experiments.baselines.dp_sgd import PrivateTraining
from pyro_mbde.training.data import to_network_rows


class PrivateTrainer(Trainer[Density]):
    """Fits a density to a table by private gradient descent.

    Subclasses say what is trained.
    """

    _description: ClassVar[str]

    def __init__(
        self, base: Distribution, training: PrivateTraining, *, num_samples: int, seed: int | None, progress: bool
    ) -> None:
        super().__init__(seed=seed, progress=progress)
        self.base = continuous_base(base)
        self.training = training
        self.num_samples = check_count("num_samples", num_samples, minimum=2)
        #: Opacus's accountant after the last fit; None before. It is of one row, and its default orders overstate what
        #: is spent where that is below about 0.4.
        self.accountant: Any = None

    def _bar(self) -> dict[str, Any]:
        return {"total": self.training.num_steps, "desc": self._description, "unit": "step"}

    def _rows(self, data: Any) -> Tensor:
        return to_network_rows(data, self.base, self.num_samples)

    def _fit(self, rows: Tensor, on_step: Callable[[], object]) -> Density:
        loc, scale = (part.to(rows) for part in base_location_scale(self.base))
        return self._train((rows - loc) / scale, on_step)

    @abstractmethod
    def _train(self, rows: Tensor, on_step: Callable[[], object]) -> Density:
        """Trains on standardised rows of shape ``(n, d)``, and leaves the steps' accountant in ``accountant``."""

    def _decay(self, index: int) -> float:
        """What the learning rate is multiplied by in a step, from 0 on: it falls to 0 along a cosine."""
        return (1 + math.cos(math.pi * index / self.training.num_steps)) / 2
