"""Rows that are handed over block by block, by an iterable or a DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count, islice
from typing import Any

import torch
from torch import Tensor

from pyro_mbde._checks import argument_error
from pyro_mbde._torch_state import seeded
from pyro_mbde.ranks import ALONE, Ranks
from pyro_mbde.training.fallback import ReadingError, warn_owner
from pyro_mbde.training.row_source import ShuffledRows, check_kind, hash_of_rows
from pyro_mbde.training.windows import BLOCKS, ROWS, WINDOW_ROWS, derived_seed, row_order

_END = object()


class IteratedRows(ShuffledRows):
    """Rows that are handed over block by block, in windows that are filled in this order and shuffled each.

    At the end the iterable is started again. An iterator, which cannot be, ends; from then on rows are drawn with
    replacement from the last window's worth that was held, and a :class:`~pyro_mbde.FitWarning` says so. Of R ranks,
    each takes every R-th block; blocks of more rows than a window are cut. Blocks are made under a generator that is
    seeded by the seed, the pass and the block, so that all ranks see the same ones. A rank whose blocks hold no rows
    takes them all.

    Args:
        blocks: an iterable of blocks.
        to_rows: from a block to a tensor of rows, unchecked.
        usable: see :class:`WindowedRows`.
        to_features: see :class:`WindowedRows`.
        like: see :class:`RowSource`.
        seed: of every order.
        ranks: the processes that share the blocks.

    Raises:
        TypeError: several processes are to share an iterator.
    """

    def __init__(
        self,
        blocks: Iterable[Any],
        to_rows: Callable[[Any], Tensor],
        usable: Callable[[Tensor, bool], Tensor],
        to_features: Callable[[Tensor], Tensor],
        like: Tensor,
        seed: int,
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__(to_features, like, seed, ranks)
        self._blocks, self._to_rows, self._usable = blocks, to_rows, usable
        self._is_one_shot = iter(blocks) is blocks if isinstance(blocks, Iterator) else False
        if self._is_one_shot and ranks.size > 1:  # a rank that finds no block could not begin again
            remedy = "Pass an iterable that can be started again: a list, a DataLoader, an object with __iter__."
            raise TypeError(argument_error("data", "not be an iterator in several processes", type(blocks), remedy))
        self._fingerprint, self._has_told = "", False
        self._restart(0)

    def _restart(self, number: int) -> None:
        self._pass, self._window, self._takes_all, self._is_over = number, -1, False, False
        self._carry = self._recent = self._rows = self.like
        self._offset, self._has_ended, self._is_empty_pass = 0, False, True
        self._own = self._own_pieces()

    def _pieces(self, number: int) -> Iterator[Tensor]:
        """The blocks of a pass as rows, cut to windows."""
        iterator: Iterator[Any] | None = None
        for index in count():
            try:
                with seeded(derived_seed(self._seed, BLOCKS, number, index)):
                    iterator = iter(self._blocks) if iterator is None else iterator
                    block = next(iterator, _END)
                if block is _END:
                    return
                rows = self._to_rows(block)
            except Exception as error:
                raise ReadingError(str(error)) from error
            yield from torch.split(rows, WINDOW_ROWS) if rows.dim() else [rows]

    def begin(self, usable: Callable[[Tensor, bool], Tensor]) -> Tensor | None:
        """Reads until a window is full; returns all rows, as the base has them, if there are no more than fit one.

        Args:
            usable: as for the constructor.
        """
        pieces, taken, parts, num_rows = self._pieces(0), [], [], 0
        for piece in pieces:
            taken.append(piece)
            try:
                parts.append(usable(piece, True))
            except Exception as error:
                raise ReadingError(str(error)) from error
            num_rows += len(parts[-1])
            if num_rows > WINDOW_ROWS:
                break
        else:
            return torch.cat(parts) if parts else None
        self._fingerprint = hash_of_rows(self._to_features(torch.cat(parts)))
        self._own = islice(chain(taken, pieces), self._ranks.rank, None, self._ranks.size)
        return None

    def _own_pieces(self) -> Iterator[Tensor]:
        """This rank's blocks of the pass."""
        if self._takes_all:
            return self._pieces(self._pass)
        return islice(self._pieces(self._pass), self._ranks.rank, None, self._ranks.size)

    def _next_piece(self) -> Tensor | None:
        """The next block that holds rows which can be used, as features; None at the end of a pass."""
        for rows in self._own:
            try:
                rows = self._usable(rows, self._pass == 0)
            except Exception as error:
                raise ReadingError(str(error)) from error
            if len(rows):
                self._is_empty_pass = False
                return self._to_features(rows)
        return None

    def _next_window(self) -> bool:
        self._window, self._offset = self._window + 1, 0
        parts, num_rows = [self._carry], len(self._carry)
        if not self._is_one_shot:
            self._rows = self.like  # so that two windows are never held
        while num_rows < WINDOW_ROWS and not self._is_over:
            piece = self._next_piece()
            if piece is not None:
                parts.append(piece)
                num_rows += len(piece)
            elif self._is_one_shot:
                self._is_over = True
            else:
                if self._is_empty_pass:
                    if self._takes_all or self._ranks.size == 1:
                        return False
                    self._takes_all = True
                self._pass, self._is_empty_pass = self._pass + 1, True
                self._own = self._own_pieces()
                if num_rows:
                    break
        rows = torch.cat(parts)
        self._carry = rows[WINDOW_ROWS:].clone()
        if len(rows):
            rows = rows[:WINDOW_ROWS]
            self._recent = torch.cat([self._recent, rows])[-WINDOW_ROWS:] if self._is_one_shot else self.like
            self._rows = rows[row_order(self._seed, self._window, len(rows)).to(rows.device)]
            return True
        if not len(self._recent):
            return False
        if not self._has_told:
            self._has_told = True
            text = "The table was handed over by an iterator, which has ended: from here on its last"
            warn_owner(f"{text} {len(self._recent):,} rows are drawn from, with replacement.")
        generator = torch.Generator().manual_seed(derived_seed(self._seed, ROWS, self._window))
        chosen = torch.randint(len(self._recent), (len(self._recent),), generator=generator)
        self._rows = self._recent[chosen.to(self._recent.device)]
        return True

    @property
    def fingerprint(self) -> str:
        """A hash of the first rows, about a window of them."""
        return self._fingerprint

    def position(self) -> dict[str, Any]:
        """Returns the number of the window at hand and how many of its rows were used."""
        place = {"window": self._window, "offset": self._offset, "pass": self._pass}
        return {"kind": "blocks", "seed": self._seed, "stride": self._ranks.size, **place}

    def go_to(self, positions: Sequence[dict[str, Any]]) -> None:
        """Reads on until the same rows come next, which takes as long as reading took before.

        With another number of ranks, they begin the pass after the last that was begun; an iterator is read from where
        it stands.
        """
        check_kind(positions, "blocks")
        seed = int(positions[0]["seed"])
        if seed != self._seed and not self._is_one_shot:
            self._seed = seed
            self._restart(0)
        self._seed = seed
        if len(positions) != self._ranks.size:
            if not self._is_one_shot:
                self._restart(1 + max(int(position["pass"]) for position in positions))
            return
        mine = positions[self._ranks.rank]
        while self._window < int(mine["window"]) and self._advance():
            pass
        self._offset = min(int(mine["offset"]), len(self._rows))
