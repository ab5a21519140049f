"""CSV files: their options, header, numbers, and files called .csv that are not CSV."""

from __future__ import annotations

import codecs
import csv
import gzip
import math
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyro_mbde._checks import argument_error
from pyro_mbde.tables.cells import as_float

if TYPE_CHECKING:
    import pandas as pd

_SEPARATORS = (",", ";", "\t", "|")
#: What stands for a missing value in a CSV file; pandas has the same by default.
_MISSING = frozenset(
    ["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"]
    + ["NULL", "NaN", "None", "n/a", "nan", "null"]
)
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?inf(?:inity)?", re.IGNORECASE)
#: First bytes of files that often are called .csv, and what to do about each.
_MARKS = (
    (b"\x1f\x8b", "It is compressed by gzip. Let its name end in .csv.gz, or unpack it."),
    (b"PK\x03\x04", "It is a zip archive, or an Excel workbook, and not text. Unpack it, or save the sheet as CSV."),
    (b"\xd0\xcf\x11\xe0", "It is an Excel workbook and not text. Save the sheet as CSV."),
    (b"PAR1", "It is a Parquet file. Let its name end in .parquet."),
)


class UnusableTableError(Exception):
    """What is wrong with a file that could be parsed; its text goes into the error of ``read_table``."""


def check_repeats(names: Sequence[str]) -> None:
    """Raises if columns have the same name; tells which, not the name: a row may stand in the header's place."""
    for name, count in Counter(names).items():
        if name and count > 1:
            first, *_, last = (str(number) for number, other in enumerate(names, 1) if other == name)
            remedy = "Name each differently; the first line of a CSV file must name the columns."
            raise UnusableTableError(f"Columns {first} and {last} have the same name. {remedy}")


def csv_format(sep: Any, decimal: Any, encoding: Any) -> tuple[str, str]:
    """Checks the options of a CSV file; returns the separator and the codec."""
    for name, value in (("sep", sep), ("decimal", decimal), ("encoding", encoding)):
        if not isinstance(value, str):
            raise TypeError(argument_error(name, "be a string", value))
    sep = "\t" if sep in ("tab", "\\t") else sep
    if len(sep) != 1 or not sep.isascii() or sep.isalnum() or sep in "\"'\r\n.+-":
        raise ValueError(argument_error("sep", "be one character such as , or ; or |, or 'tab'", sep))
    if decimal not in (".", ","):
        raise ValueError(argument_error("decimal", "be . or ,", decimal))
    if sep == decimal:
        raise ValueError(
            argument_error("decimal", "differ from sep", decimal, "Say what separates the columns: sep (--sep).")
        )
    try:
        codec = codecs.lookup(encoding).name
        "".encode(codec)  # some codecs are not of text
    except LookupError:
        known = "be one that Python knows, such as utf-8, latin-1, cp1252 or utf-16"
        raise ValueError(argument_error("encoding", known, encoding)) from None
    return sep, "utf-8-sig" if codec == "utf-8" else codec  # also reads what has no byte-order mark


def read_csv(name: str, sep: str, decimal: str, encoding: str) -> pd.DataFrame:
    """Returns the table in a CSV file."""
    import pandas as pd

    with open(name, "rb") as file:
        if (other := _other_format(file.read(8), encoding)) is not None and not name.lower().endswith(".gz"):
            raise UnusableTableError(other)
    how: dict[str, Any] = {"sep": sep, "encoding": encoding, "skipinitialspace": True}
    # Read as a row: as a header, pandas would give repeated names numbers.
    header = pd.read_csv(name, header=None, nrows=1, dtype=str, keep_default_na=False, **how)
    names = [cell.strip() for cell in header.iloc[0]]
    _check_header(names, sep)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
            frame: pd.DataFrame = pd.read_csv(name, low_memory=False, index_col=False, decimal=decimal, **how)
    except pd.errors.ParserWarning:
        raise UnusableTableError(longer_rows(_first_longer_line(name, sep, encoding))) from None
    frame.columns = pd.Index(names)
    for number, column in enumerate(names):
        cells = frame.iloc[:, number]
        if column and not pd.api.types.is_numeric_dtype(cells.dtype):
            frame[column] = _as_written(cells, decimal)
    return frame


def _check_header(names: list[str], sep: str) -> None:
    if len(names) == 1 and (other := [mark for mark in _SEPARATORS if mark != sep and mark in names[0]]):
        found = max(other, key=names[0].count)
        shown = "tab" if found == "\t" else found
        remedy = f"Pass sep={shown!r} (--sep '{shown}')."
        raise UnusableTableError(f"Separated by {sep!r}, its first line is one name with {shown!r} in it. {remedy}")
    check_repeats(names)


def longer_rows(where: str) -> str:
    """Says that rows have more cells than the header."""
    causes = "a title or comment above the header, a decimal comma (--decimal), an unquoted separator in a cell (--sep)"
    return f"There are more cells in {where} than names in its first line, the header. Look for {causes}."


def _as_written(cells: pd.Series[Any], decimal: str) -> pd.Series[Any]:
    """A column with each cell that is a number in the file's notation as that number, infinite beyond floats.

    pandas converts whole columns only: none with other cells in it, with whole numbers that no integer type holds
    beside fractions, or with hundreds of digits.
    """
    import pandas as pd

    read = [_read(cell, decimal) for cell in cells]
    known = [cell for cell in read if isinstance(cell, str)]
    if len(known) == len(read):  # text, all of it
        return cells
    return pd.Series(read, index=cells.index, dtype=object if known else None)


def _read(cell: Any, decimal: str) -> Any:
    if isinstance(cell, int) and not isinstance(cell, bool):
        return as_float(cell)
    if not isinstance(cell, str):
        return cell
    text = cell.strip()
    if text in _MISSING:
        return math.nan
    if decimal != ".":
        text = text.replace(".", "?").replace(decimal, ".")  # a point is nothing in a number then
    return float(text) if _NUMBER.fullmatch(text) else cell


def _other_format(start: bytes, encoding: str) -> str | None:
    """What a file called .csv is by its first bytes, if not text in this encoding, and what to do."""
    for mark, found in _MARKS:
        if start.startswith(mark):
            return found
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and not encoding.startswith(("utf-16", "utf-32")):
        return "It is UTF-16 text. Read it with encoding='utf-16' (--encoding utf-16), or save it as UTF-8."
    return None


def _first_longer_line(path: str, sep: str, encoding: str) -> str:
    """Which line has more cells than the header, in words."""
    with suppress(OSError, EOFError, ValueError, csv.Error):
        opened: Any = gzip.open if path.lower().endswith(".gz") else open
        with opened(path, "rt", encoding=encoding, newline="") as file:
            reader = csv.reader(file, delimiter=sep)
            width = len(next(reader, []))
            for row in reader:
                if len(row) > width:
                    return f"line {reader.line_num}"
    return "its rows"
