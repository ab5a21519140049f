"""Where a fit takes its batches from: rows that are held, and rows that are read window by window."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from pyro_mbde._checks import argument_error
from pyro_mbde.ranks import ALONE, Ranks
from pyro_mbde.training.fallback import ReadingError
from pyro_mbde.training.windows import WINDOW_SLICES, Begun, Position, Windows, shared_out


@runtime_checkable
class Slices(Protocol):
    """A table that is read in slices of a few thousand rows, such as :class:`pyro_mbde.tables.streams.TableStream`.

    Attributes:
        num_slices: how many.
        fingerprint: another for another table.
    """

    num_slices: int
    fingerprint: str

    def read(self, slices: Sequence[int], *, is_counted: bool = True) -> Tensor:
        """Returns the rows of slices one below another, shape ``(n, *event_shape)``, always the same ones.

        Args:
            slices: their numbers.
            is_counted: False where another process may have counted them for :meth:`warn`.
        """
        ...

    def warn(self, ranks: Ranks = ALONE) -> None:
        """Tells the owner once, at the end of a fit, what became of the rows read; called by all processes.

        Args:
            ranks: the processes that each read some of the slices; the first one speaks for all.
        """
        ...


class RowSource(ABC):
    """Batches of rows as networks take them: floating, shape ``(n, d)``.

    Privacy:
        Rows of the table.

    Attributes:
        like: no rows, shape ``(0, d)``, in the dtype and on the device of all others.
        is_whole: whether all rows are held.
    """

    like: Tensor
    is_whole: bool = False

    @property
    @abstractmethod
    def held(self) -> Tensor:
        """Rows in memory now, shape ``(n, d)``: all, or those of the window at hand. None if the table has none."""

    @abstractmethod
    def batch(self, size: int | None) -> Tensor:
        """Returns the next rows.

        Args:
            size: how many; ``None`` for those held, again and again.

        Raises:
            ValueError: the table has no rows.
        """

    def is_short(self, size: int) -> bool:
        """Returns whether fewer rows are in memory than two batches take, and more can be read ahead."""
        return False

    def read_ahead(self) -> None:
        """Reads the rows that will be needed next, where that can be done."""
        return

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the table, or of what is known of it at the start."""

    @abstractmethod
    def position(self) -> dict[str, Any]:
        """Returns plain numbers that tell which rows come next; no rows."""

    @abstractmethod
    def go_to(self, positions: Sequence[dict[str, Any]]) -> None:
        """Goes on where other sources stopped.

        Args:
            positions: as :meth:`position` returned them, of all ranks in order. There may be more or fewer ranks now.

        Raises:
            ValueError: they are those of another kind of source.
        """


class HeldRows(RowSource):
    """Rows that are all in memory; batches are drawn from them with replacement, by torch's global generator.

    Args:
        rows: shape ``(n, d)``.
        fingerprint: of the table, if one is known; by default a hash of the rows.

    Example:
        >>> HeldRows(torch.zeros(5, 2)).batch(8).shape
        torch.Size([8, 2])
    """

    is_whole = True

    def __init__(self, rows: Tensor, fingerprint: str | None = None) -> None:
        self._rows, self._fingerprint = rows, fingerprint
        self.like = rows[:0]

    @property
    def held(self) -> Tensor:
        """All rows."""
        return self._rows

    def batch(self, size: int | None) -> Tensor:
        """Returns rows drawn with replacement, or all of them."""
        check_rows(self._rows)
        if size is None:
            return self._rows
        return self._rows[torch.randint(len(self._rows), (size,), device=self._rows.device)]

    @property
    def fingerprint(self) -> str:
        """A hash of the table."""
        if self._fingerprint is None:
            self._fingerprint = hash_of_rows(self._rows)
        return self._fingerprint

    def position(self) -> dict[str, Any]:
        """Returns that nothing is read in order: what comes next is the generator's matter."""
        return {"kind": "held"}

    def go_to(self, positions: Sequence[dict[str, Any]]) -> None:
        """Checks the kind."""
        check_kind(positions, "held")


class ShuffledRows(RowSource):
    """Rows handed out window by window, each in a random order, without replacement.

    Args:
        to_features: from rows of the base to rows as networks take them.
        like: see :class:`RowSource`.
        seed: of every order.
        ranks: the processes that share the rows.
    """

    def __init__(self, to_features: Callable[[Tensor], Tensor], like: Tensor, seed: int, ranks: Ranks) -> None:
        self.like, self._to_features = like, to_features
        self._seed, self._ranks = seed, ranks
        self._rows, self._offset, self._has_ended = like, 0, False

    @abstractmethod
    def _next_window(self) -> bool:
        """Brings the next rows into ``_rows`` and ``_offset``; False if the table has no rows."""

    def _advance(self) -> bool:
        if not self._has_ended:
            self._has_ended = not self._next_window()
        if self._has_ended:
            self._rows, self._offset = self.like, 0
        return not self._has_ended

    @property
    def held(self) -> Tensor:
        """Rows of the window at hand."""
        if not len(self._rows):
            self._advance()
        return self._rows

    def batch(self, size: int | None) -> Tensor:
        """Returns the next rows of the window at hand, and of those after it."""
        if size is None:
            check_rows(self.held)
            return self._rows
        parts, missing = [], size
        while missing:
            if self._offset == len(self._rows) and not self._advance():
                check_rows(self._rows)
            parts.append(self._rows[self._offset : self._offset + missing])
            self._offset += len(parts[-1])
            missing -= len(parts[-1])
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class WindowedRows(ShuffledRows):
    """Rows of a table in slices, read a window at a time (:class:`~pyro_mbde.training.windows.Windows`).

    Which rows the n-th batch holds is a pure function of the seed, the table and n.

    Args:
        slices: the table.
        usable: checks rows: from those read to those of the base. Its second argument tells whether they are counted.
        to_features: from rows of the base to rows as networks take them.
        like: see :class:`RowSource`.
        seed: of every order.
        ranks: the processes that share the windows.
    """

    def __init__(
        self,
        slices: Slices,
        usable: Callable[[Tensor, bool], Tensor],
        to_features: Callable[[Tensor], Tensor],
        like: Tensor,
        seed: int,
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__(to_features, like, seed, ranks)
        self._slices, self._usable = slices, usable
        self._windows = Windows(slices.num_slices, seed)
        self._position, self._window = Position.first(ranks.rank, ranks.size), 0
        self._counted_pass, self._found_some = 0, False
        #: A window that was read ahead, where it begins, and the position after it.
        self._next: tuple[Tensor, Begun, Position] | None = None

    @property
    def fingerprint(self) -> str:
        """The table's."""
        return self._slices.fingerprint

    def _read(self, slices: Sequence[int], counted: bool) -> Tensor:
        # Within a pass no two ranks read the same slice; over several passes a table tells only its own reader apart.
        is_counted = counted or self._ranks.size == 1
        try:
            return self._usable(self._slices.read(slices, is_counted=is_counted), counted)
        except Exception as error:
            raise ReadingError(str(error)) from error

    def is_short(self, size: int) -> bool:
        """Returns whether fewer rows of the window are left than two batches take, and the next one is not read yet."""
        return self._next is None and not self._has_ended and len(self._rows) - self._offset < 2 * size

    def read_ahead(self) -> None:
        """Reads the next window while this one is still in use: processes that wait for one another read together."""
        if self._next is None and not self._has_ended:
            begun, position = self._position.taken()
            self._next = self._window_of(begun), begun, position

    def _window_of(self, begun: Begun) -> Tensor:
        """The rows of a window as networks take them, in the order in which they are handed out."""
        is_counted = begun.window // self._windows.per_pass == self._counted_pass
        rows = self._read(self._windows.slices(begun.window), is_counted)
        return self._to_features(rows[self._windows.order(begun.window, len(rows)).to(rows.device)])

    def _next_window(self) -> bool:
        num_empty = 0
        while True:
            self._rows = self.like  # so that two windows are held only where one was read ahead
            if self._next is None:
                begun, self._position = self._position.taken()
                rows = self._window_of(begun)
            else:
                rows, begun, self._position = self._next
                self._next = None
            if begun.offset < len(rows):
                self._rows, self._window, self._offset = rows, begun.window, begun.offset
                self._found_some = True
                return True
            num_empty += 1
            if num_empty >= self._windows.per_pass and not self._has_rows():
                return False

    def _has_rows(self) -> bool:
        """Whether any slice holds a row, looked for in one pass over all of them."""
        if not self._found_some:
            starts = range(0, self._slices.num_slices, WINDOW_SLICES)
            parts = (range(start, min(start + WINDOW_SLICES, self._slices.num_slices)) for start in starts)
            self._found_some = any(len(self._read(part, False)) for part in parts)
        return self._found_some

    def position(self) -> dict[str, Any]:
        """Returns the windows to be read next."""
        position = self._position
        if self._offset < len(self._rows):
            position = position.with_begun(Begun(self._window, self._offset))
        return {"kind": "windows", "seed": self._seed, **position.to_dict()}

    def go_to(self, positions: Sequence[dict[str, Any]]) -> None:
        """Goes on; with another number of ranks, no row is lost or doubled."""
        check_kind(positions, "windows")
        self._seed = int(positions[0]["seed"])
        self._windows = Windows(self._slices.num_slices, self._seed)
        ranks = self._ranks
        stopped = [Position.from_dict(one) for one in positions]
        self._position = shared_out(stopped, ranks.size)[ranks.rank]
        # The same in all ranks: the pass of the first window after the last that any has begun.
        first = max(position.next_window - position.stride for position in stopped) + 1
        self._counted_pass = first // self._windows.per_pass
        self._rows, self._offset, self._has_ended, self._next = self.like, 0, False, None


def check_rows(rows: Tensor) -> None:
    """Raises if there are no rows to train on."""
    if not len(rows):
        raise ValueError("positives must have at least one row, got 0. Check which rows were left out.")


def check_kind(positions: Sequence[dict[str, Any]], kind: str) -> None:
    """Raises if positions are those of another kind of source."""
    kinds = sorted({str(position.get("kind")) for position in positions})
    if kinds != [kind]:
        remedy = "The table is read in another way than before: start from the beginning."
        raise ValueError(argument_error("position", f"be of kind {kind}", kinds, remedy))


def hash_of_rows(rows: Tensor) -> str:
    """Returns a hash of rows, of 64 hexadecimal digits. Private."""
    array = rows.detach().cpu().contiguous().numpy()
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(array.data if array.size else b"")
    return digest.hexdigest()
