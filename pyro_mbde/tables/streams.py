"""Tables larger than memory: rows of files through a schema, a few thousand at a time."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from functools import reduce
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from pyro_mbde.names import same_names
from pyro_mbde.ranks import ALONE, Ranks
from pyro_mbde.tables.cells import TABLE, check_form
from pyro_mbde.tables.notes import Note, add_notes
from pyro_mbde.tables.row_files import Places, RowFiles, find_paths, is_pattern, is_table
from pyro_mbde.tables.slices import SLICE_ROWS

if TYPE_CHECKING:
    import pandas as pd

    from pyro_mbde.tables.schema import Schema

#: Up to which size a table is read whole: rows of Parquet files, 32 slices of 4,096; bytes of CSV files.
MAX_WHOLE_ROWS, MAX_WHOLE_BYTES = 32 * SLICE_ROWS, 2**25
#: Slices that are converted together; those that a sample is taken from, and about how many rows it has.
_JOINED_SLICES, _SAMPLE_SLICES, _SAMPLE_ROWS = 8, 512, 131_072
_NUMBER = "number"


class TableStream:
    """The rows of a table in files, as a schema converts them, read a few thousand at a time.

    Slices are read in any order and give the rows that :meth:`pyro_mbde.Schema.to_tensor` makes of them. What is done
    to values that the schema does not allow is added up, and told by :meth:`warn`. Whether stated facts equal
    statistics of the table, of which ``to_tensor`` warns, is not found out: that needs whole columns.

    Privacy:
        Rows, warnings, errors and the fingerprint depend on the table: for its owner alone.

    Args:
        files: of the table.
        schema: of the table.

    Attributes:
        files: of the table.
        schema: of the table.

    Raises:
        ValueError: a file lacks a column of the schema.
    """

    def __init__(self, files: RowFiles, schema: Schema) -> None:
        self.files, self.schema = files, schema
        self._columns: set[str] = set()
        for file in files.files:
            _check_names(file.path, file.names, schema)
            renamed = same_names(schema.names, file.names)
            self._columns |= {name for name in file.names if renamed.get(name, name) in schema.names}
        self._notes: tuple[Note, ...] | None = None
        self._counted: set[int] = set()
        self._num_rows = self._num_kept = 0

    @property
    def num_slices(self) -> int:
        """How many slices there are."""
        return self.files.num_slices

    @property
    def num_rows(self) -> int | None:
        """How many rows the files have; None for CSV files, which do not say. Private."""
        return self.files.num_rows

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the files' fingerprint and the schema. Private."""
        content = json.dumps([self.files.fingerprint, self.schema.to_dict()], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return self.schema.dtype

    @property
    def num_rows_read(self) -> int:
        """How many rows the slices have that were read so far. Private."""
        return self._num_rows

    @property
    def num_rows_kept(self) -> int:
        """How many of them the schema does not leave out. Private."""
        return self._num_kept

    def read(self, slices: Sequence[int], *, is_counted: bool = True) -> Tensor:
        """Returns the rows of slices, without those that the schema leaves out.

        Args:
            slices: their numbers, from 0 to ``num_slices - 1``.
            is_counted: whether slices that were not read before are counted for :meth:`warn`; of several processes,
                one may count a slice.

        Returns:
            Tensor of shape ``(n, d)`` and type :attr:`dtype`: the slices in the given order, rows in the order of the
            file.

        Raises:
            ChangedFileError: a file has changed since its slices were counted.
            TypeError: a column holds something of another kind.
            ValueError: a file is damaged, or a column has values that it refuses.
        """
        parts = [torch.zeros(0, len(self.schema.columns), dtype=self.dtype)]
        for first in range(0, len(slices), _JOINED_SLICES):
            numbers = list(slices[first : first + _JOINED_SLICES])
            frames = dict(self.files.frames(numbers, self._columns))
            # Rows of equal types are converted together: it takes a fraction of the time.
            keys = {number: (number in self._counted, _types(frames[number])) for number in frames}
            for (was_counted, _), alike in groupby(numbers, keys.__getitem__):
                chosen = [(number, frames[number]) for number in alike]
                parts.append(self._converted(chosen, is_counted=is_counted and not was_counted))
            if is_counted:
                self._counted.update(numbers)
        return torch.cat(parts)

    def warn(self, ranks: Ranks = ALONE) -> None:
        """Warns once of what was done to the rows counted so far, each slice counted once; silent if that is nothing.

        Args:
            ranks: processes that each counted other slices of the same table, and all call this; the first one warns
                of all of them together.
        """
        counts = ranks.gather((self._notes, self._num_rows, self._num_kept))
        if not ranks.is_first:
            return
        found = [notes for notes, _, _ in counts if notes is not None]
        notes = reduce(add_notes, found) if found else ()
        num_rows, num_kept = sum(rows for _, rows, _ in counts), sum(kept for _, _, kept in counts)
        of = f" of {self.num_rows:,}" if self.num_rows is not None else ""
        extent = f"These counts are of the {num_rows:,}{of} rows that have been read."
        self.schema._warn(notes, num_kept, num_rows, TABLE, [extent], stacklevel=3)

    def _converted(self, frames: list[tuple[int, pd.DataFrame]], *, is_counted: bool) -> Tensor:
        import pandas as pd

        joined = pd.concat([frame for _, frame in frames], ignore_index=True)
        try:
            rows, notes, num_rows = self._as_rows(joined)
        except (TypeError, ValueError):
            for number, frame in frames:
                self._check(number, frame)
            raise
        if is_counted:
            self._notes = notes if self._notes is None else add_notes(self._notes, notes)
            self._num_rows, self._num_kept = self._num_rows + num_rows, self._num_kept + len(rows)
        return rows

    def _as_rows(self, frame: pd.DataFrame) -> tuple[Tensor, tuple[Note, ...], int]:
        return self.schema._converted(self.schema._read(frame, TABLE, is_whole=False))

    def _check(self, number: int, frame: pd.DataFrame) -> None:
        """Raises what the rows of one slice raise, with their place."""
        try:
            self._as_rows(frame)
        except (TypeError, ValueError) as error:
            path, place = self.files.where(number)
            kind = TypeError if isinstance(error, TypeError) else ValueError  # subclasses may take other arguments
            raise kind(f"In the file {path!r}, {place}, with rows counted from there: {error}") from None


def _types(frame: pd.DataFrame) -> tuple[object, ...]:
    """Types of the columns; int64 and float64, which join without a change of meaning, are one."""
    names = [str(label) for label in frame.columns]
    types = [_NUMBER if dtype in ("int64", "float64") else dtype for dtype in frame.dtypes]
    return (*names, *types)


class TableCheck(NamedTuple):
    """What a schema makes of a table. Private.

    Attributes:
        names: of the table's columns.
        num_rows: how many there are.
        num_kept: how many of them the schema keeps.
    """

    names: tuple[str, ...]
    num_rows: int
    num_kept: int


def open_table(places: Places, schema: Schema, **csv_format: Any) -> Tensor | TableStream:
    """Returns the rows of a table if it is small, and a stream of them otherwise.

    Small are up to 131,072 rows of Parquet files and up to 32 MiB of CSV files, however many files there are.

    Privacy:
        Rows, warnings and errors depend on the table: for its owner alone.

    Args:
        places: a file, a folder, a pattern or several of these, as for :meth:`RowFiles.find`.
        schema: of the table.
        csv_format: ``sep``, ``decimal`` and ``encoding`` of CSV files.

    Returns:
        Tensor of shape ``(n, d)``, as :meth:`pyro_mbde.Schema.to_tensor` gives it, or a stream.

    Raises:
        FileNotFoundError: there is nothing at one of the places.
        TypeError: a column of a small table holds something of another kind.
        ValueError: files are of several kinds, one is damaged or lacks a column of the schema, or a small table has
            values that the schema refuses.
    """
    files = _large_files(places, csv_format)
    return schema.to_tensor(_whole(places, schema, csv_format)) if files is None else TableStream(files, schema)


def check_table(places: Places, schema: Schema, *, progress: bool = False, **csv_format: Any) -> TableCheck:
    """Reads a whole table, of any size, and warns once of what its schema makes of it.

    A table that is too large to be held is read a few slices at a time.

    Privacy:
        Counts, warnings and errors depend on the table: for its owner alone.

    Args:
        places: as for :func:`open_table`.
        schema: of the table.
        progress: whether to show a progress bar.
        csv_format: as for :func:`open_table`.

    Returns:
        The names of all columns of the table, and how many rows there are and are kept.

    Raises:
        FileNotFoundError: there is nothing at one of the places.
        ChangedFileError: a file changed while it was read.
        TypeError: a column holds something of another kind.
        ValueError: files are of several kinds, one is damaged or lacks a column, or a column has values that it
            refuses.
    """
    files = _large_files(places, csv_format)
    if files is None:
        frame = _whole(places, schema, csv_format)
        return TableCheck(tuple(map(str, frame.columns)), len(frame), len(schema.to_tensor(frame)))
    stream = TableStream(files, schema)
    _read_all(stream, range(stream.num_slices), progress=progress)
    stream.warn()
    return TableCheck(files.names, stream.num_rows_read, stream.num_rows_kept)


def check_refused(stream: TableStream, *, ranks: Ranks = ALONE, progress: bool = False) -> None:
    """Raises if a table holds what its schema refuses; reads all rows, or none if no column refuses anything.

    A fit reads some slices of a large table, by chance: whether it meets such a value would be chance too.

    Privacy:
        Errors depend on the table: for its owner alone.

    Args:
        stream: the table. Its counts stay as they are.
        ranks: the processes that share out the slices; what one of them finds, that one raises.
        progress: whether to show a progress bar.

    Raises:
        ChangedFileError: a file has changed since its slices were counted.
        TypeError: a column holds something of another kind.
        ValueError: a file is damaged, or a column has values that it refuses.
    """
    if any("refuse" in (column.outside, column.missing) for column in stream.schema.columns):
        first, end = (stream.num_slices * rank // ranks.size for rank in (ranks.rank, ranks.rank + 1))
        _read_all(TableStream(stream.files, stream.schema), range(first, end), progress=progress)


def _read_all(stream: TableStream, slices: range, *, progress: bool) -> None:
    """Reads slices a few at a time, for what is counted and raised."""
    with tqdm(total=len(slices), desc="table", unit="slice", disable=not progress) as bar:
        for start in range(0, len(slices), _JOINED_SLICES):
            part = slices[start : start + _JOINED_SLICES]
            stream.read(part)
            bar.update(len(part))


def read_sample(places: Places, schema: Schema | None = None, **csv_format: Any) -> tuple[pd.DataFrame, bool]:
    """Returns a table as a DataFrame: whole if it is small, and otherwise some 100,000 of its rows.

    These are a few rows of each of many slices, chosen at random: rows of one slice are alike where a file is sorted.

    Privacy:
        Rows and errors depend on the table: for its owner alone.

    Args:
        places: as for :func:`open_table`.
        schema: of the table, if its files should be joined by the names there.
        csv_format: as for :func:`open_table`.

    Returns:
        The rows, and whether they are all of the table.

    Raises:
        FileNotFoundError: there is nothing at one of the places.
        ChangedFileError: a file changed while it was read.
        ValueError: files are of several kinds, or one is damaged or lacks a column of the schema.
    """
    import pandas as pd

    files = _large_files(places, csv_format)
    if files is None:
        return _whole(places, schema, csv_format), True
    chosen = np.random.default_rng(0).choice(files.num_slices, min(_SAMPLE_SLICES, files.num_slices), replace=False)
    rows_of_slice = SLICE_ROWS if files.num_rows is None else files.num_rows / files.num_slices
    share = min(1.0, _SAMPLE_ROWS / (rows_of_slice * len(chosen)))
    parts = [frame.sample(frac=share, random_state=number) for number, frame in files.frames(chosen.tolist())]
    return pd.concat(parts, ignore_index=True), False


def _large_files(places: Places, csv_format: dict[str, Any]) -> RowFiles | None:
    """The files of a table that is too large to be read whole; None for a small one."""
    single = places if isinstance(places, str | os.PathLike) else places[0] if len(places) == 1 else None
    if single is not None and not os.path.isdir(single) and not is_pattern(single) and not is_table(single):
        return None  # reading it says what is wrong
    paths = find_paths(places)
    if not paths[0].lower().endswith(".parquet"):
        num_bytes = sum(os.path.getsize(path) for path in paths)
        return RowFiles.find(paths, **csv_format) if num_bytes > MAX_WHOLE_BYTES else None
    files = RowFiles.find(paths, **csv_format)
    return files if files.num_rows is None or files.num_rows > MAX_WHOLE_ROWS else None


def _whole(places: Places, schema: Schema | None, csv_format: dict[str, str]) -> pd.DataFrame:
    """All rows of a small table."""
    import pandas as pd

    from pyro_mbde.tables.files import read_table

    several = [places] if isinstance(places, str | os.PathLike) else list(places)
    if len(several) == 1 and not os.path.isdir(several[0]) and not is_pattern(several[0]):
        return read_table(several[0], **csv_format)
    paths = find_paths(places)
    frames = [read_table(path, **csv_format) for path in paths]
    if schema is None or len(frames) == 1:
        return pd.concat(frames, ignore_index=True)
    for path, frame in zip(paths, frames, strict=True):
        _check_names(path, tuple(map(str, frame.columns)), schema)
    named = [frame.set_axis([str(label) for label in frame.columns], axis=1) for frame in frames]
    same = [frame.rename(columns=same_names(schema.names, list(frame.columns))) for frame in named]
    full = [frame for frame in same if len(frame)]  # empty ones have columns of any type
    return pd.concat(full or same[:1], ignore_index=True)


def _check_names(path: str, names: Sequence[str], schema: Schema) -> None:
    """Raises if a file lacks a column of the schema, or has it twice."""
    import pandas as pd

    try:
        renamed = same_names(schema.names, names)
        check_form(pd.DataFrame(columns=[renamed.get(name, name) for name in names]), schema.names)
    except ValueError as error:
        raise ValueError(f"In the file {path!r}: {error}") from None
