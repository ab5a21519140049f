"""Numbers as CSV files write them, and files called .csv that are not CSV."""

from __future__ import annotations

import codecs
import csv
import gzip
import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

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


def as_written(cells: pd.Series[Any], decimal: str) -> pd.Series[Any]:
    """Returns a column of a CSV file with each cell that is a number in the file's notation as that number.

    pandas does so with whole columns, and not with columns of other cells beside them, or of whole numbers that no
    integer type holds beside fractions, or of hundreds of digits. What no float holds becomes infinite.

    Args:
        cells: of one column, as pandas read them.
        decimal: what stands before the decimals.
    """
    import pandas as pd

    read = [_read(cell, decimal) for cell in cells]
    known = [cell for cell in read if isinstance(cell, str)]
    if len(known) == len(read):  # text, all of it
        return cells
    return pd.Series(read, index=cells.index, dtype=object if known else None)


def _read(cell: Any, decimal: str) -> Any:
    if isinstance(cell, int) and not isinstance(cell, bool):
        try:
            return float(cell)
        except OverflowError:
            return math.inf if cell > 0 else -math.inf
    if not isinstance(cell, str):
        return cell
    text = cell.strip()
    if text in _MISSING:
        return math.nan
    if decimal != ".":
        text = text.replace(".", "?").replace(decimal, ".")  # a point is nothing in a number then
    return float(text) if _NUMBER.fullmatch(text) else cell


def other_format(start: bytes, encoding: str) -> str | None:
    """Returns what a file called .csv is in place of text in an encoding, and what to do; None if nothing is seen.

    Args:
        start: its first bytes.
        encoding: that it is to be read in.
    """
    for mark, found in _MARKS:
        if start.startswith(mark):
            return found
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and not encoding.startswith(("utf-16", "utf-32")):
        return "It is UTF-16 text. Read it with encoding='utf-16' (--encoding utf-16), or save it as UTF-8."
    return None


def first_longer_line(path: str, sep: str, encoding: str) -> str:
    """Returns which line has more cells than the header, in words."""
    with suppress(OSError, EOFError, ValueError, csv.Error):
        opened: Any = gzip.open if path.lower().endswith(".gz") else open
        with opened(path, "rt", encoding=encoding, newline="") as file:
            reader = csv.reader(file, delimiter=sep)
            width = len(next(reader, []))
            for row in reader:
                if len(row) > width:
                    return f"line {reader.line_num}"
    return "its rows"
