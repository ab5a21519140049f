"""Parquet files, read a few thousand rows at a time."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

from pyro_mbde.tables.csv_text import check_repeats
from pyro_mbde.tables.slices import SLICE_ROWS, Stamp, changed, check_unchanged
from pyro_mbde.tables.table_errors import naming_the_file

if TYPE_CHECKING:
    import pandas as pd

#: Slices that are decoded at once: fewer take longer, and more take more memory.
_BATCH_SLICES = 4
#: Bytes of a column that are read at once. Without this, all of a row group's columns are in memory.
_BUFFER_BYTES = 2**16


@dataclass(frozen=True)
class ParquetSlices:
    """A Parquet file as slices of :data:`~pyro_mbde.tables.slices.SLICE_ROWS` rows of one row group each.

    Attributes:
        path: of the file.
        stamp: size and time of the file.
        names: of its columns.
        group_rows: numbers of rows in its row groups.
    """

    path: str
    stamp: Stamp
    names: tuple[str, ...]
    group_rows: tuple[int, ...]

    @classmethod
    def find(cls, path: str) -> ParquetSlices:
        """Reads the footer of a file."""
        stamp = Stamp.of(path)
        with naming_the_file(path, ""), closing(_opened(path)) as file:
            check_repeats(file.schema_arrow.names)
            columns = file.schema_arrow.empty_table().to_pandas().columns  # without those that pandas takes as index
            groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
            return cls(path, stamp, tuple(map(str, columns)), tuple(groups))

    @property
    def num_rows(self) -> int:
        """Of all row groups."""
        return sum(self.group_rows)

    @property
    def num_slices(self) -> int:
        """Of all row groups."""
        return self._starts[-1]

    @property
    def layout(self) -> tuple[object, ...]:
        """The row groups."""
        return ("parquet", *self.group_rows)

    @property
    def _starts(self) -> list[int]:
        """How many slices there are before each row group, and in all."""
        return list(accumulate((-(-rows // SLICE_ROWS) for rows in self.group_rows), initial=0))

    def place(self, number: int) -> str:
        """The row group and row of a slice."""
        group, first = self._located([number])[0]
        return f"row group {group + 1}, rows from {first * SLICE_ROWS + 1:,}"

    def _located(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Row group, and number within it, of each slice; numbers ascend."""
        starts, group, found = self._starts, 0, []
        for number in numbers:
            while starts[group + 1] <= number:
                group += 1
            found.append((group, number - starts[group]))
        return found

    def frames(self, numbers: Sequence[int], columns: Collection[str] | None) -> Iterator[tuple[int, pd.DataFrame]]:
        """Decodes each row group once, up to the last slice that is wanted, in memory of a few slices."""
        check_unchanged(self.path, self.stamp)
        names = [name for name in self.names if columns is None or name in columns]
        with naming_the_file(self.path, ""):
            file = _opened(self.path)
        with closing(file):
            if file.num_row_groups != len(self.group_rows):
                raise changed(self.path)
            for group, located in groupby(zip(self._located(numbers), numbers, strict=True), lambda one: one[0][0]):
                wanted = {within: number for (_, within), number in located}
                with naming_the_file(self.path, "", f"Its row group {group + 1} cannot be read."):
                    yield from self._of_group(file, group, wanted, names)
        check_unchanged(self.path, self.stamp)

    def _of_group(
        self, file: Any, group: int, wanted: dict[int, int], names: list[str]
    ) -> Iterator[tuple[int, pd.DataFrame]]:
        batches = file.iter_batches(_BATCH_SLICES * SLICE_ROWS, [group], names, use_threads=False)
        for within, table in enumerate(_of_slice_rows(batches)):
            if within in wanted:
                yield wanted.pop(within), table.to_pandas()
            if not wanted:
                return
        raise changed(self.path)  # the group has fewer rows than its file said


def _of_slice_rows(batches: Iterable[Any]) -> Iterator[Any]:
    """Tables of :data:`SLICE_ROWS` rows each, except the last, from batches of any length: pyarrow promises none."""
    arrow: Any = importlib.import_module("pyarrow")
    parts: list[Any] = []
    num_rows = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, SLICE_ROWS - num_rows)
            parts, num_rows, start = [*parts, part], num_rows + part.num_rows, start + part.num_rows
            if num_rows == SLICE_ROWS:
                yield arrow.Table.from_batches(parts)
                parts, num_rows = [], 0
    if parts:
        yield arrow.Table.from_batches(parts)


def _opened(path: str) -> Any:
    parquet: Any = importlib.import_module("pyarrow.parquet")  # an extra
    return parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
