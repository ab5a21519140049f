"""CSV files, read a few thousand rows at a time: ranges of bytes that end where rows do."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from pyro_mbde.tables.csv_text import check_start, first_longer_line, parse, read_header
from pyro_mbde.tables.slices import SLICE_BYTES, SLICE_ROWS, Stamp, changed, check_unchanged
from pyro_mbde.tables.table_errors import UnusableTableError, longer_rows, naming_the_file

if TYPE_CHECKING:
    import pandas as pd

_BLOCK_BYTES = 2**22
#: Longest row in bytes. A longer one is the sign of a quotation mark that is not closed.
MAX_ROW_BYTES = 2**23
_UNCLOSED = (
    f"A row seems to go on for over {MAX_ROW_BYTES:,} bytes from byte {{}}: a quotation mark before it is not closed, "
    "or stands within a cell. Write it twice and put the cell in quotation marks, or take it out."
)


@dataclass(frozen=True)
class CsvSlices:
    """A CSV file as ranges of about :data:`~pyro_mbde.tables.slices.SLICE_BYTES` bytes that end where rows do.

    None has more than :data:`~pyro_mbde.tables.slices.SLICE_ROWS` rows.

    Attributes:
        path: of the file.
        stamp: size and time of the file.
        names: of its columns.
        header: the bytes before its first row.
        cuts: where slices begin, and where the last one ends, in bytes.
        sep: what separates the columns.
        decimal: what stands before the decimals.
        encoding: the codec.
    """

    path: str
    stamp: Stamp
    names: tuple[str, ...]
    header: bytes
    cuts: tuple[int, ...]
    sep: str
    decimal: str
    encoding: str

    num_rows = None

    @classmethod
    def find(cls, path: str, sep: str, decimal: str, encoding: str) -> CsvSlices:
        """Reads the header, and then all bytes of a file once, for the ends of its rows; no cell is decoded."""
        stamp = Stamp.of(path)
        with naming_the_file(path, encoding), open(path, "rb") as file:
            check_start(path, encoding)
            _check_encoding(path, encoding)
            start = file.read(MAX_ROW_BYTES)
            mark = b"\r" if b"\n" not in start and b"\r" in start else b"\n"
            header = _first_line(start, mark)
            names = read_header(io.BytesIO(header), sep, encoding)
            file.seek(len(header))
            cuts = tuple(_cuts(file, len(header), mark))
        return cls(path, stamp, tuple(names), header, cuts, sep, decimal, encoding)

    @property
    def num_slices(self) -> int:
        """How many ranges of bytes there are."""
        return len(self.cuts) - 1

    @property
    def layout(self) -> tuple[object, ...]:
        """Where slices begin, and the format."""
        return ("csv", self.sep, self.decimal, self.encoding, *self.cuts)

    def place(self, number: int) -> str:
        """The byte at which a slice begins."""
        return f"rows from byte {self.cuts[number]:,}"

    def frames(self, numbers: Sequence[int], columns: Collection[str] | None) -> Iterator[tuple[int, pd.DataFrame]]:
        """Reads the slices of these numbers, ascending, each with the header."""
        check_unchanged(self.path, self.stamp)
        places = [place for place, name in enumerate(self.names) if columns is None or name in columns]
        with open(self.path, "rb") as file:
            for number in numbers:
                first, end = self.cuts[number : number + 2]
                file.seek(first)
                content = file.read(end - first)
                if len(content) < end - first:
                    raise changed(self.path)
                yield number, self._parsed(content, number, places)
        check_unchanged(self.path, self.stamp)

    def _parsed(self, content: bytes, number: int, places: list[int]) -> pd.DataFrame:
        import pandas as pd

        content, format_ = self.header + content, (self.sep, self.decimal, self.encoding)
        with naming_the_file(self.path, self.encoding, f"In its {self.place(number)}:"):
            try:
                return parse(io.BytesIO(content), self.names, *format_, places)
            except (pd.errors.ParserWarning, pd.errors.ParserError) as error:
                lines = io.StringIO(content.decode(self.encoding), newline="")
                if (line := first_longer_line(lines, self.sep)) is None:
                    raise
                line += self._lines_before(number)
                raise UnusableTableError(longer_rows(f"line {line}")) from error

    def _lines_before(self, number: int) -> int:
        """How many lines of the file are not seen by a slice with the header before it."""
        mark = b"\n" if b"\n" in self.header else b"\r"
        count, left = 0, self.cuts[number] - len(self.header)
        with open(self.path, "rb") as file:
            file.seek(len(self.header))
            while left > 0 and (block := file.read(min(left, _BLOCK_BYTES))):
                count, left = count + block.count(mark), left - len(block)
        return count


def _check_encoding(path: str, encoding: str) -> None:
    """Raises where the bytes of a line's end or a quotation mark may be part of another character."""
    if path.lower().endswith(".gz"):
        raise UnusableTableError("It is compressed, so that it cannot be read in parts. Unpack it.")
    if not _is_by_byte(encoding):
        raise UnusableTableError(f"It is {encoding} text, which cannot be read in parts. Save it as UTF-8.")


def _is_by_byte(encoding: str) -> bool:
    """Whether a line's end and a quotation mark are always one byte, which is never part of another character."""
    if encoding.startswith("utf-8") or encoding in ("ascii", "iso8859-1"):
        return True
    with suppress(ImportError):  # a codec from elsewhere
        table = vars(import_module(f"encodings.{encoding.replace('-', '_')}")).get("decoding_table")
        return isinstance(table, str) and table[:128].encode("ascii", "replace") == bytes(range(128))
    return False


def _first_line(start: bytes, mark: bytes) -> bytes:
    """The bytes up to the first row: the first line that is not blank, with its end."""
    end = 0
    while (found := start.find(mark, end)) >= 0:
        end = found + 1
        if start[:end].strip() and start[:end].count(b'"') % 2 == 0:
            return start[:end]
    if len(start) == MAX_ROW_BYTES:
        raise UnusableTableError(_UNCLOSED.format("1"))
    return start


def _cuts(file: BinaryIO, first: int, mark: bytes) -> Iterator[int]:
    """Where slices begin, and the end of the file: ends of lines at which all quotation marks before are closed.

    Args:
        file: at its first row.
        first: the byte of that row.
        mark: the last byte of a line.
    """
    yield first
    # place is the first byte not looked at, last the latest cut, num_rows the rows that ended since.
    place, last, num_rows, is_open = first, first, 0, False
    while block := file.read(_BLOCK_BYTES):
        content = np.frombuffer(block, np.uint8)
        quotes, marks = (np.flatnonzero(content == sign[0]) for sign in (b'"', mark))
        is_within = (np.searchsorted(quotes, marks) + is_open) % 2 == 1
        ends, used = place + 1 + marks[~is_within], 0
        while True:
            full = int(np.searchsorted(ends, last + SLICE_BYTES, "right"))
            at = min(full, used + SLICE_ROWS - 1 - num_rows)
            if at >= len(ends):
                break
            last, used, num_rows = int(ends[at]), at + 1, 0
            yield last
        num_rows += len(ends) - used
        place, is_open = place + len(block), is_open ^ (len(quotes) % 2 == 1)
        if place - last > MAX_ROW_BYTES + SLICE_BYTES:
            raise UnusableTableError(_UNCLOSED.format(f"{last + SLICE_BYTES:,}"))
    if place > last:
        yield place
