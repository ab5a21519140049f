"""CSV files: their options, header, numbers, and files called .csv that are not CSV."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from pyro_mbde._checks import argument_error
from pyro_mbde.tables.cells import as_float
from pyro_mbde.tables.table_errors import UnusableTableError, longer_rows

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

    check_start(name, encoding)
    names = read_header(name, sep, encoding)
    try:
        return parse(name, names, sep, decimal, encoding)
    except pd.errors.ParserWarning:
        raise UnusableTableError(longer_rows(_line_in_file(name, sep, encoding))) from None


def check_start(name: str, encoding: str) -> None:
    """Raises if a file is something else than text in this encoding, by its first bytes."""
    with open(name, "rb") as file:
        if (other := _other_format(file.read(8), encoding)) is not None and not name.lower().endswith(".gz"):
            raise UnusableTableError(other)


def read_header(source: str | io.BytesIO, sep: str, encoding: str) -> list[str]:
    """Returns the names in the first line of CSV text; a row in place of the names is an error where it shows.

    Args:
        source: the name of a file, or its bytes.
        sep: what separates the columns.
        encoding: the codec.
    """
    import pandas as pd

    # Read as a row: as a header, pandas would give repeated names numbers.
    how: dict[str, Any] = {"sep": sep, "encoding": encoding, "skipinitialspace": True}
    header = pd.read_csv(source, header=None, nrows=1, dtype=str, keep_default_na=False, **how)
    names = [cell.strip() for cell in header.iloc[0]]
    _check_header(names, sep)
    return names


def parse(
    source: str | io.BytesIO,
    names: Sequence[str],
    sep: str,
    decimal: str,
    encoding: str,
    places: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Returns the table in CSV text with a header; pandas' ``ParserWarning`` is raised for rows longer than it.

    Args:
        source: the name of a file, or its bytes.
        names: of all columns.
        sep: what separates them.
        decimal: what stands before the decimals.
        encoding: the codec.
        places: of the columns that are wanted, in order; all by default.
    """
    import pandas as pd

    wanted = range(len(names)) if places is None else places
    how: dict[str, Any] = {"sep": sep, "encoding": encoding, "skipinitialspace": True, "decimal": decimal}
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
        frame: pd.DataFrame = pd.read_csv(source, low_memory=False, index_col=False, **how)
    cells = [frame.iloc[:, place] for place in wanted]
    numeric = pd.api.types.is_numeric_dtype
    read = [
        one if not names[place] or numeric(one.dtype) else _as_written(one, decimal)
        for place, one in zip(wanted, cells, strict=True)
    ]
    frame = pd.DataFrame(dict(enumerate(read)), index=frame.index)
    frame.columns = pd.Index([names[place] for place in wanted])
    return frame


def _check_header(names: list[str], sep: str) -> None:
    if len(names) == 1 and (other := [mark for mark in _SEPARATORS if mark != sep and mark in names[0]]):
        found = max(other, key=names[0].count)
        shown = "tab" if found == "\t" else found
        remedy = f"Pass sep={shown!r} (--sep '{shown}')."
        raise UnusableTableError(f"Separated by {sep!r}, its first line is one name with {shown!r} in it. {remedy}")
    check_repeats(names)


def _as_written(cells: pd.Series[Any], decimal: str) -> pd.Series[Any]:
    """A column with each cell that is a number in the file's notation as that number, infinite beyond floats.

    pandas converts whole columns only: none with other cells in it, with whole numbers that no integer type holds
    beside fractions, or with hundreds of digits.
    """
    import pandas as pd

    if cells.dtype != object or pd.api.types.infer_dtype(cells) == "string":  # each distinct text once
        places, distinct = pd.factorize(cells)
        found = [_read(cell, decimal) for cell in distinct]
        if all(isinstance(cell, str) for cell in found):
            return cells
        read: Any = np.array([*found, math.nan], dtype=object)[places]
    else:
        read = [_read(cell, decimal) for cell in cells]
    known = any(isinstance(cell, str) for cell in read)
    return pd.Series(read if known else list(read), index=cells.index, dtype=object if known else None)


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


def _line_in_file(path: str, sep: str, encoding: str) -> str:
    """Which line of a file has more cells than the header, in words."""
    with suppress(OSError, EOFError, ValueError, csv.Error):
        opened: Any = gzip.open if path.lower().endswith(".gz") else open
        with opened(path, "rt", encoding=encoding, newline="") as file:
            if (number := first_longer_line(file, sep)) is not None:
                return f"line {number}"
    return "its rows"


def first_longer_line(lines: Iterable[str], sep: str) -> int | None:
    """Returns which line of CSV text has more cells than the first, from 1; None where none has.

    Args:
        lines: with their ends.
        sep: what separates the columns.
    """
    reader = csv.reader(lines, delimiter=sep)
    width = len(next(reader, []))
    return next((reader.line_num for row in reader if len(row) > width), None)
