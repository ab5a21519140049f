"""A table of any kind, opened for a fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.utils.data import DataLoader, Dataset, IterableDataset

from pyro_mbde.density.base import PreparedBase, as_features
from pyro_mbde.ranks import ALONE, Ranks
from pyro_mbde.tables.slices import SLICE_ROWS
from pyro_mbde.training.data import (
    RowChecks,
    block_rows,
    dataset_length,
    is_frame,
    one_row,
    stacked,
    unchecked_rows,
)
from pyro_mbde.training.fallback import ReadingError
from pyro_mbde.training.iterated_rows import IteratedRows
from pyro_mbde.training.row_source import HeldRows, RowSource, Slices, WindowedRows, hash_of_rows
from pyro_mbde.training.windows import WINDOW_SLICES


class OpenedTable(NamedTuple):
    """A table for a fit.

    Attributes:
        source: its batches.
        rows: all rows as the base has them, or None if they are not all held.
        warn: tells its owner once, at the end of a fit, which rows were left out.
    """

    source: RowSource
    rows: Tensor | None
    warn: Callable[[], None]


def open_table(data: Any, base: Distribution | PreparedBase, num_samples: int, *, ranks: Ranks = ALONE) -> OpenedTable:
    """Opens a table of any kind for a fit over a base.

    What fits one window (131,072 rows, or 32 slices of files) is held whole; other tables are read as a fit goes.

    Args:
        data: as for :func:`~pyro_mbde.training.data.to_rows`; or a table in slices
            (:class:`~pyro_mbde.training.row_source.Slices`), or an iterable of blocks of rows.
        base: the public base distribution.
        num_samples: rows to draw where ``data`` is a distribution.
        ranks: the processes that share the table. They have the same torch generator and the same data.

    Raises:
        TypeError: ``data`` is of no such kind, or its first block does not hold numbers of the base's kind.
        ValueError: its first block has the wrong shape.
    """
    prepared = PreparedBase.of(base)
    checks = RowChecks(prepared)

    def features(rows: Tensor) -> Tensor:
        # A copy: rows may be a view of what their owner goes on to change.
        return as_features(rows, prepared.distribution, prepared.dtype).clone()

    def to_features(rows: Tensor) -> Tensor:
        # In parts, because features are computed in several times their memory.
        return torch.cat([features(part) for part in torch.split(rows, SLICE_ROWS)]) if len(rows) else features(rows)

    def usable(rows: Tensor, is_counted: bool) -> Tensor:
        return checks.usable(rows, counted=is_counted)

    like = features(prepared.draws[:0])

    def held(rows: Tensor, fingerprint: str | None = None, warn: Callable[[], None] = lambda: None) -> OpenedTable:
        return OpenedTable(HeldRows(features(rows), fingerprint), rows, warn)

    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        data = _DatasetSlices(data)
    if isinstance(data, Slices):
        is_whole = data.num_slices <= WINDOW_SLICES

        def warn() -> None:
            _warn_of_all(checks, ranks, are_same=is_whole)
            if not is_whole:
                data.warn(ranks)
            elif ranks.is_first:  # all have the same rows
                data.warn()

        if is_whole:
            rows = usable(data.read(range(data.num_slices)), True)
            return held(rows, None if isinstance(data, _DatasetSlices) else data.fingerprint, warn)
        return OpenedTable(WindowedRows(data, usable, to_features, like, new_seed(), ranks), None, warn)
    if isinstance(data, IterableDataset):
        data = _StreamBlocks(data)
    if isinstance(data, DataLoader | _StreamBlocks) or _holds_blocks(data, prepared):
        first = RowChecks(prepared)
        source = IteratedRows(data, block_rows, usable, to_features, like, new_seed(), ranks)
        try:
            whole = source.begin(lambda rows, is_counted: first.usable(rows, counted=is_counted))
        except ReadingError as error:
            raise (error.__cause__ or error) from None
        if source.fingerprint:
            return OpenedTable(source, None, lambda: _warn_of_all(checks, ranks))
        whole = prepared.draws[:0] if whole is None else whole
        return held(whole, None, lambda: _warn_of_all(first, ranks, are_same=True))
    rows = usable(unchecked_rows(data, prepared, num_samples), True)
    _warn_of_all(checks, ranks, are_same=True)
    return held(rows)


def new_seed() -> int:
    """Returns a seed from torch's global generator."""
    return int(torch.randint(2**62, ()))


def _warn_of_all(checks: RowChecks, ranks: Ranks, *, are_same: bool = False) -> None:
    """Warns the owner once of rows left out, of all processes together, or of one where all have the same rows."""
    counts = [checks.counts] if are_same else ranks.gather(checks.counts)
    if ranks.is_first:
        checks.warn(counts)


def _holds_blocks(data: Any, prepared: PreparedBase) -> bool:
    """Whether data are an iterable of blocks: a list of tensors with rows, or what is not an array, a table or text."""
    if isinstance(data, Sequence):
        first = data[0] if len(data) else None
        num_dims = 1 + len(prepared.draws.shape[1:])
        return is_frame(first) or (isinstance(first, Tensor | np.ndarray) and first.ndim == num_dims)
    if is_frame(data) or hasattr(data, "__array__") or isinstance(data, Mapping | Set):
        return False
    return isinstance(data, Iterable) and not isinstance(data, Tensor | Distribution)


class _DatasetSlices:
    """A Dataset with a length, read by index."""

    def __init__(self, data: Dataset[Any]) -> None:
        self._data, self._num_rows = data, dataset_length(data)
        self.num_slices = -(-self._num_rows // SLICE_ROWS)
        first = hash_of_rows(one_row(data[0])) if self._num_rows else ""
        self.fingerprint = f"{type(data).__name__} of {self._num_rows} rows: {first}"

    def read(self, slices: Sequence[int], *, is_counted: bool = True) -> Tensor:
        """Returns the rows of slices."""
        starts = (number * SLICE_ROWS for number in slices)
        places = (place for start in starts for place in range(start, min(start + SLICE_ROWS, self._num_rows)))
        return stacked([one_row(self._data[place]) for place in places], self._data)

    def warn(self, ranks: Ranks = ALONE) -> None:
        """Says nothing: rows are not changed here."""


class _StreamBlocks:
    """A Dataset that is a stream of rows, in blocks of them."""

    def __init__(self, data: IterableDataset[Any]) -> None:
        self._data = data

    def __iter__(self) -> Any:
        rows: list[Tensor] = []
        for item in self._data:
            rows.append(one_row(item))
            if len(rows) == SLICE_ROWS:
                yield stacked(rows, self._data)
                rows = []
        if rows:
            yield stacked(rows, self._data)
