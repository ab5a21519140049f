"""Sound fits that take a tenth of a second each, and the disguises in which faults are planted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from densities import normal
from torch import Tensor

from pyro_mbde import MBDE, DensityRatio, MollifiedExpFamily, WeakLearner
from pyro_mbde._torch_state import seeded
from pyro_mbde.training.density_ratio import LogRatio

EPSILON = 1.0
QUICK = WeakLearner(hidden_sizes=(16,), num_frequencies=4, num_steps=80, batch_size=256)
BASE, LINE = normal(2), normal(1)
BATCH_ROWS = 4

_MADE: dict[tuple[object, ...], Any] = {}


def once(table: Any, name: str, make: Callable[[], Any]) -> Any:
    """A copy of what is made once from a table, whatever test asks first: from a seed of its own."""
    key = (name, table.numpy().tobytes()) if isinstance(table, Tensor) else None
    with seeded(0):
        if key is None:
            return make()
        if key not in _MADE:
            _MADE[key] = make()
        return copy.deepcopy(_MADE[key])


def quick_fit(table: Any, epsilon: float = EPSILON, base: Any = BASE, **options: Any) -> MollifiedExpFamily:
    """A sound fit that takes a tenth of a second; without options made once for each table."""
    trainer = MBDE(base, epsilon, 2, weak_learner=QUICK, num_samples=1000, progress=False, **options)
    if base is BASE and not options:
        return once(table, f"fit at {epsilon}", lambda: trainer.fit(table))
    return trainer.fit(table)


def quick_ratio(table: Tensor) -> LogRatio:
    """A learned log-ratio, made once for each table."""
    trainer = DensityRatio(BASE, weak_learner=QUICK, ensemble_size=2, progress=False)
    return once(table, "ratio", lambda: trainer.fit(table))


def quick_batch(table: Tensor, epsilon: float = EPSILON) -> MollifiedExpFamily:
    """A sound batch density."""
    return quick_ratio(table).mollify(epsilon, 1e-4, num_rows=BATCH_ROWS)


def disguise(q: MollifiedExpFamily, kind: type[MollifiedExpFamily], **arguments: Any) -> MollifiedExpFamily:
    """The same density as another class, which overrides a part of it."""
    return kind(q.base, q.statistics, q.natural_params, q.log_normalizer, **arguments)


class Overridden:
    """A density with other draws."""

    def __init__(self, q: MollifiedExpFamily, draw: Callable[[MollifiedExpFamily, int], Tensor]) -> None:
        self._q, self._draw = q, draw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._q, name)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self._draw(self._q, torch.Size(sample_shape).numel())


class DrawsAlone:
    """A density that tells nothing but draws."""

    def __init__(self, draw: Callable[[int], Tensor]) -> None:
        self._draw = draw

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self._draw(torch.Size(sample_shape).numel())
