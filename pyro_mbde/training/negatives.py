"""Draws of the base for the steps of a fit, made for several steps at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyro_mbde._torch_state import seeded
from pyro_mbde.training.windows import derived_seed

#: Steps whose draws are made together. A call costs as much time as some hundred draws do.
_NUM_STEPS = 16


class Negatives:
    """Draws of the base, as networks take them: a pure function of a seed, the process and the number of the step.

    A fit that is resumed gets the draws that it would have got, without anything in its checkpoint.

    Args:
        draw: returns as many draws as it is asked for, shape ``(n, d)``, by torch's global generator.
        seed: of all draws; the same in all processes.
        rank: number of this process.
        step: number of steps that were made before.

    Example:
        >>> first = Negatives(lambda num_draws: torch.randn(num_draws, 2), seed=0)
        >>> [len(first(3)) for _ in range(2)]
        [3, 3]
        >>> bool((first(3) == Negatives(lambda num_draws: torch.randn(num_draws, 2), seed=0, step=2)(3)).all())
        True
    """

    def __init__(self, draw: Callable[[int], Tensor], seed: int, rank: int = 0, step: int = 0) -> None:
        self._draw, self._seed, self._rank, self._step = draw, seed, rank, step
        self._held: tuple[Tensor, ...] = ()

    def __call__(self, num_draws: int) -> Tensor:
        """Returns the draws of the next step; their number must be the same in all steps."""
        block, place = divmod(self._step, _NUM_STEPS)
        if not self._held or place == 0:
            with seeded(derived_seed(self._seed, self._rank, block)):
                self._held = torch.split(self._draw(_NUM_STEPS * num_draws), num_draws)
        self._step += 1
        return self._held[place]
