"""A table in one file or many, of which a few thousand rows at a time are read."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

from pyro_mbde._checks import argument_error, check_count, listed
from pyro_mbde.tables.csv_slices import CsvSlices
from pyro_mbde.tables.csv_text import csv_format
from pyro_mbde.tables.parquet_slices import ParquetSlices
from pyro_mbde.tables.slices import SlicedFile

if TYPE_CHECKING:
    import pandas as pd

#: Endings of the tables that can be read and written.
TABLE_ENDINGS = (".csv", ".csv.gz", ".parquet")
Places = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class RowFiles:
    """The rows of a table in Parquet or CSV files, as numbered slices that are read in any order.

    A slice is 4,096 rows of one row group of a Parquet file (the last of a group has fewer), or of a CSV file up to
    4,096 rows in about 256 KiB. They are numbered by the files' names, and then by their place in the file.

    Privacy:
        Frames are rows of the table, and numbers of rows and the fingerprint depend on it: for its owner alone.

    Attributes:
        files: each as slices, in order.

    Example:
        >>> import pandas as pd, tempfile
        >>> table = os.path.join(tempfile.mkdtemp(), "visits.csv")
        >>> pd.DataFrame({"age": [30, 44]}).to_csv(table, index=False)
        >>> files = RowFiles.find(table)
        >>> files.num_slices, [frame["age"].tolist() for _, frame in files.frames([0])]
        (1, [[30, 44]])
    """

    files: tuple[SlicedFile, ...]

    @classmethod
    def find(cls, places: Places, *, sep: str = ",", decimal: str = ".", encoding: str = "utf-8") -> RowFiles:
        """Finds the files of a table, and counts their slices.

        Footers of Parquet files are read, and all bytes of CSV files once. A file that is named twice counts once.

        Args:
            places: a file ending in .csv or .parquet, a folder with such files (those below it too; hidden ones, and
                those that begin with an underscore, are passed over), a pattern such as ``visits/*.parquet``, or
                several of these.
            sep: what separates the columns of CSV files, one character; ``tab`` for tabs.
            decimal: what stands before the decimals in CSV files, one character.
            encoding: of CSV files, as Python names it.

        Raises:
            FileNotFoundError: there is nothing at one of the places.
            ValueError: files are of several kinds, a folder or pattern gives none, or one of the files is damaged or
                cannot be read in parts.
        """
        sep, encoding = csv_format(sep, decimal, encoding)
        paths = find_paths(places)
        if paths[0].lower().endswith(".parquet"):
            return cls(tuple(ParquetSlices.find(path) for path in paths))
        return cls(tuple(CsvSlices.find(path, sep, decimal, encoding) for path in paths))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of all files, in the order in which they are met."""
        return tuple(dict.fromkeys(name for file in self.files for name in file.names))

    @property
    def num_slices(self) -> int:
        """How many slices there are in all files."""
        return self._starts[-1]

    @property
    def num_rows(self) -> int | None:
        """How many rows there are; None for CSV files, which do not say."""
        numbers = [file.num_rows for file in self.files]
        return sum(number for number in numbers if number is not None) if None not in numbers else None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the files' names, sizes, times and slices. It changes when a file changes. Private."""
        content = [[os.path.basename(file.path), *file.stamp, *file.layout] for file in self.files]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @cached_property
    def _starts(self) -> list[int]:
        """How many slices there are before each file, and in all."""
        return list(accumulate((file.num_slices for file in self.files), initial=0))

    def frames(
        self, slices: Sequence[int], columns: Collection[str] | None = None
    ) -> Iterator[tuple[int, pd.DataFrame]]:
        """Reads slices, in ascending order, each once, whatever the order they are given in.

        Each row group is decoded once, up to the last slice that is wanted of it; a few slices are in memory.

        Args:
            slices: their numbers, from 0 to ``num_slices - 1``.
            columns: names of those that are wanted; a file may lack some. All by default.

        Returns:
            An iterator over the number of each slice and its rows.

        Raises:
            ChangedFileError: a file is not what it was when its slices were counted.
            ValueError: a file is damaged.
        """
        wanted = sorted({check_count("slices", number, minimum=0) for number in slices})
        if wanted and wanted[-1] >= self.num_slices:
            raise ValueError(argument_error("slices", f"be below num_slices = {self.num_slices:,}", wanted[-1]))
        for place, numbers in groupby(wanted, self._file_of):
            first = self._starts[place]
            for number, frame in self.files[place].frames([one - first for one in numbers], columns):
                yield first + number, frame

    def where(self, number: int) -> tuple[str, str]:
        """Returns the file of a slice, and its place there in words."""
        place = self._file_of(number)
        return self.files[place].path, self.files[place].place(number - self._starts[place])

    def _file_of(self, number: int) -> int:
        return bisect_right(self._starts, number) - 1


def find_paths(places: Places) -> list[str]:
    """Returns the files at some places, sorted, each once; all of one kind.

    Args:
        places: files, folders or patterns, as for :meth:`RowFiles.find`.

    Returns:
        Names of files. One that is named twice, also by a link, is there once.

    Raises:
        FileNotFoundError: there is nothing at one of the places.
        TypeError: a place is not a path.
        ValueError: files are of several kinds, a file has another ending, or a folder or pattern gives none.
    """
    several = [places] if isinstance(places, str | os.PathLike) else list(places)
    if not several:
        raise ValueError(argument_error("places", "name a file, a folder or a pattern", several))
    found: dict[tuple[int, int], str] = {}
    for path in sorted(path for place in several for path in _files_at(place)):
        state = os.stat(path)
        found.setdefault((state.st_dev, state.st_ino), path)
    kinds = {_ending(path).removesuffix(".gz"): path for path in found.values()}
    if len(kinds) > 1:
        examples = " and ".join(repr(path) for path in kinds.values())
        raise ValueError(
            f"A table must be in files of one kind, got {examples}. Convert the CSV files to Parquet, or name one kind."
        )
    return list(found.values())


def is_pattern(place: str | os.PathLike[str]) -> bool:
    """Returns whether a place is a pattern such as ``*.csv``, and not the name of a file."""
    return glob.has_magic(os.fspath(place)) and not os.path.exists(place)


def is_table(place: str | os.PathLike[str]) -> bool:
    """Returns whether there is a file at a place whose name ends as a table's does."""
    return bool(_ending(os.fspath(place))) and os.path.isfile(place)


def _files_at(place: str | os.PathLike[str]) -> list[str]:
    if not isinstance(place, str | os.PathLike):
        raise TypeError(argument_error("places", "be paths", place))
    name = os.fspath(place)
    if os.path.isdir(name):
        paths = list(_files_below(name))
        if not paths:
            ends = " or ".join(TABLE_ENDINGS)
            raise ValueError(argument_error("places", f"hold files that end in {ends}", name, "This folder has none."))
        return paths
    if is_pattern(name):
        matching = [path for path in glob.glob(name, recursive=True) if os.path.isfile(path)]
        if not matching:
            raise ValueError(argument_error("places", "match a file", name, "No file matches this pattern."))
        paths = [path for path in matching if _ending(path)]
        if not paths:
            some = listed([os.path.basename(path) for path in sorted(matching)], 3)
            raise ValueError(argument_error("places", f"match {', '.join(TABLE_ENDINGS)}", name, f"It matches {some}."))
        return paths
    if not _ending(name):
        raise ValueError(argument_error("places", f"end in {', '.join(TABLE_ENDINGS)}", name))
    if not os.path.exists(name):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return [name]


def _files_below(folder: str) -> Iterator[str]:
    for path, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        for name in names:
            if not name.startswith((".", "_")) and _ending(name):
                yield os.path.join(path, name)


def _ending(path: str) -> str:
    """The ending of a table's file, in small letters; nothing if it is another file."""
    return next((ending for ending in TABLE_ENDINGS if path.lower().endswith(ending)), "")
