"""Slices of a table's file: a few thousand rows that lie together, and what all kinds of files share about them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyro_mbde.tables.table_errors import ChangedFileError

if TYPE_CHECKING:
    import pandas as pd

#: Most rows of a slice. All slices of a Parquet file have as many, except the last of a row group.
SLICE_ROWS = 4096
#: Bytes of a slice of a CSV file, up to the end of a row.
SLICE_BYTES = 2**18


class Stamp(NamedTuple):
    """Size in bytes and modification time in nanoseconds: a file that differs in either has changed."""

    size: int
    modified: int

    @classmethod
    def of(cls, path: str) -> Stamp:
        """Returns the stamp that a file has now."""
        state = os.stat(path)
        return cls(state.st_size, state.st_mtime_ns)


class SlicedFile(Protocol):
    """A table's file as slices.

    Attributes:
        path: of the file.
        stamp: as it was when the slices were counted.
        names: of its columns.
        num_slices: how many slices there are.
        num_rows: how many rows there are; None where the file does not say.
    """

    @property
    def path(self) -> str: ...  # noqa: D102  # under Attributes
    @property
    def stamp(self) -> Stamp: ...  # noqa: D102  # under Attributes
    @property
    def names(self) -> tuple[str, ...]: ...  # noqa: D102  # under Attributes
    @property
    def num_slices(self) -> int: ...  # noqa: D102  # under Attributes
    @property
    def num_rows(self) -> int | None: ...  # noqa: D102  # under Attributes
    @property
    def layout(self) -> tuple[object, ...]:
        """Plain numbers and texts that fix where each slice lies and how it is read."""

    def frames(self, numbers: Sequence[int], columns: Collection[str] | None) -> Iterator[tuple[int, pd.DataFrame]]:
        """The slices of these numbers, ascending, with those of the columns that the file has."""

    def place(self, number: int) -> str:
        """Where a slice lies in its file, in words."""


def check_unchanged(path: str, stamp: Stamp) -> None:
    """Raises a :class:`ChangedFileError` if a file is not what it was."""
    if Stamp.of(path) != stamp:
        raise changed(path)


def changed(path: str) -> ChangedFileError:
    """Returns the error for a file that is not what it was."""
    remedy = "Let nothing write to a table while it is read, and start again."
    return ChangedFileError(f"The file {path!r} has changed since its rows were counted. {remedy}")
