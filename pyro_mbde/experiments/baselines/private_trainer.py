"""What trainers by private gradient descent share: their settings, and the table as they train on it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor
from torch.distributions import Distribution
from tqdm import tqdm

from pyro_mbde._checks import check_count, check_flag, check_seed
from pyro_mbde._torch_state import seeded, single_thread, with_gradients
from pyro_mbde.density.base import base_location_scale
from pyro_mbde.experiments.baselines.common import FittedDensity, continuous_base, require_rows
from pyro_mbde.experiments.baselines.dp_sgd import PrivateTraining
from pyro_mbde.training.data import to_network_rows

_Density = TypeVar("_Density", bound=FittedDensity)


class PrivateTrainer(ABC, Generic[_Density]):
    """Fits a density to a table by private gradient descent.

    Subclasses say what is trained.

    Args:
        base: public continuous base distribution, whose spread standardises the rows.
        training: how long, and with which guarantee.
        num_samples: rows to draw where ``fit`` is given a distribution, at least 2.
        seed: for a reproducible fit; ``None`` draws from torch's global generator.
        progress: whether to show a progress bar.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: an argument is out of its range.
    """

    _description: ClassVar[str]

    def __init__(
        self, base: Distribution, training: PrivateTraining, *, num_samples: int, seed: int | None, progress: bool
    ) -> None:
        self.base = continuous_base(base)
        self.training = training
        self.num_samples = check_count("num_samples", num_samples, minimum=2)
        self.seed = check_seed(seed)
        self.progress = check_flag("progress", progress)
        #: Opacus's accountant after the last fit; None before. It tells of one row, and by its default orders more
        #: than is spent where that is below about 0.4.
        self.accountant: Any = None

    def fit(self, data: Any) -> _Density:
        """Fits the density to a table.

        Args:
            data: tensor or array of shape ``(n, *event_shape)``, DataFrame of numbers, Dataset or DataLoader of rows,
                or a Distribution to draw ``num_samples`` rows from.

        Returns:
            The density, with its ``guarantee``.

        Raises:
            ImportError: Opacus is not installed.
            TypeError: ``data`` is of the wrong kind.
            ValueError: ``data`` has the wrong shape, fewer than two rows, or values that are NaN or infinite; or
                epsilon is too small, or a learning rate too high, for what floats hold.
        """
        num_steps = self.training.num_steps
        bar = tqdm(total=num_steps, desc=self._description, unit="step", disable=not self.progress)
        with bar, seeded(self.seed), single_thread(), with_gradients():
            rows = require_rows(to_network_rows(data, self.base, self.num_samples))
            loc, scale = (part.to(rows) for part in base_location_scale(self.base))
            return self._train((rows - loc) / scale, bar.update)

    @abstractmethod
    def _train(self, rows: Tensor, on_step: Callable[[], object]) -> _Density:
        """Trains on standardised rows of shape ``(n, d)``, and leaves the steps' accountant in ``accountant``."""

    def _decay(self, index: int) -> float:
        """What the learning rate is multiplied by in a step, from 0 on: it falls to 0 along a cosine."""
        return (1 + math.cos(math.pi * index / self.training.num_steps)) / 2
