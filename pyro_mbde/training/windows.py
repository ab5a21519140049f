"""Which slices of a table are read when, and by which rank: arithmetic on whole numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_mbde._checks import argument_error
from pyro_mbde.tables.slices import SLICE_ROWS

#: Slices of a window; and its rows at most.
WINDOW_SLICES, WINDOW_ROWS = 32, 32 * SLICE_ROWS
#: What a seed is used for: the order of slices in a pass, of rows in a window, and pulls of blocks.
SLICES, ROWS, BLOCKS = range(3)


def derived_seed(*numbers: int) -> int:
    """Returns a seed of 63 bits that is a pure function of non-negative whole numbers, in their order.

    Example:
        >>> derived_seed(0, 1) == derived_seed(0, 1), derived_seed(0, 1) == derived_seed(1, 0)
        (True, False)
    """
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass(frozen=True)
class Windows:
    """The windows of a table in slices, numbered through over all passes.

    A pass is a permutation of all slices, a pure function of the seed and its number; its windows are consecutive runs
    of 32 slices, of which the last may be shorter.

    Attributes:
        num_slices: slices of the table, at least 1.
        seed: of all permutations.

    Example:
        >>> windows = Windows(70, seed=0)
        >>> windows.per_pass, [len(windows.slices(window)) for window in range(4)]
        (3, [32, 32, 6, 32])
    """

    num_slices: int
    seed: int

    @property
    def per_pass(self) -> int:
        """Windows of one pass."""
        return -(-self.num_slices // WINDOW_SLICES)

    def slices(self, window: int) -> list[int]:
        """Returns the slices of a window, in ascending order: those of one row group are read together."""
        number, place = divmod(window, self.per_pass)
        order = _slice_order(self.num_slices, self.seed, number)
        return sorted(int(one) for one in order[place * WINDOW_SLICES : (place + 1) * WINDOW_SLICES])

    def order(self, window: int, num_rows: int) -> Tensor:
        """Returns the order in which the rows of a window are handed out, shape ``(num_rows,)``."""
        return row_order(self.seed, window, num_rows)


def row_order(seed: int, window: int, num_rows: int) -> Tensor:
    """Returns a permutation of the rows of a window, a pure function of the arguments, shape ``(num_rows,)``."""
    generator = torch.Generator().manual_seed(derived_seed(seed, ROWS, window))
    return torch.randperm(num_rows, generator=generator)


@lru_cache(maxsize=2)  # the pass at hand, and the one that leftovers come from
def _slice_order(num_slices: int, seed: int, number: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng((seed, SLICES, number)).permutation(num_slices)


class Begun(NamedTuple):
    """A window and how many of its rows have been handed out."""

    window: int
    offset: int


@dataclass(frozen=True)
class Position:
    """What a rank reads next: windows left over, then every ``stride``-th window from ``next_window`` on.

    Attributes:
        leftovers: windows that are read first, each from its offset.
        next_window: number of the next fresh window.
        stride: from one fresh window to the next: how many ranks read.
    """

    leftovers: tuple[Begun, ...]
    next_window: int
    stride: int

    @classmethod
    def first(cls, rank: int, size: int) -> Position:
        """Returns where a rank starts that nothing was read before."""
        return cls((), rank, size)

    def taken(self) -> tuple[Begun, Position]:
        """Returns the window to read now, and what follows it."""
        if self.leftovers:
            return self.leftovers[0], Position(self.leftovers[1:], self.next_window, self.stride)
        return Begun(self.next_window, 0), Position((), self.next_window + self.stride, self.stride)

    def with_begun(self, begun: Begun) -> Position:
        """Returns this position with the rest of a window in front."""
        return Position((begun, *self.leftovers), self.next_window, self.stride)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain numbers, for a file."""
        leftovers = [[begun.window, begun.offset] for begun in self.leftovers]
        return {"leftovers": leftovers, "next_window": self.next_window, "stride": self.stride}

    @classmethod
    def from_dict(cls, numbers: dict[str, Any]) -> Position:
        """Returns the position that :meth:`to_dict` described.

        Raises:
            ValueError: the numbers describe none.
        """
        try:
            leftovers = tuple(Begun(int(window), int(offset)) for window, offset in numbers["leftovers"])
            return cls(leftovers, int(numbers["next_window"]), int(numbers["stride"]))
        except (KeyError, TypeError, ValueError) as error:
            remedy = "The checkpoint is damaged: start from the beginning."
            raise ValueError(argument_error("position", "hold windows and a stride", type(numbers), remedy)) from error


def shared_out(positions: Sequence[Position], size: int) -> list[Position]:
    """Returns the positions of ``size`` ranks that go on where others, of any number, stopped.

    With as many ranks as before, each goes on where it was. Otherwise windows that were begun and not finished, and
    those below the highest begun one that no rank began, are left over and dealt out in turn; fresh ones follow the
    highest that was begun. So each row is still used exactly once a pass.

    Args:
        positions: of all ranks that stopped, in order.
        size: ranks that go on, at least 1.

    Example:
        >>> shared_out([Position((Begun(0, 7),), 2, 2), Position((), 3, 2)], 1)
        [Position(leftovers=(Begun(window=0, offset=7),), next_window=2, stride=1)]
    """
    if len(positions) == size:
        return list(positions)
    highest = max(position.next_window - position.stride for position in positions)
    left = [begun for position in positions for begun in position.leftovers]
    for position in positions:
        left += [Begun(window, 0) for window in range(position.next_window, highest + 1, position.stride)]
    left.sort()
    return [Position(tuple(left[rank::size]), highest + 1 + rank, size) for rank in range(size)]
