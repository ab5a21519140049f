"""A table's columns as numbers, and errors for tables of another form. Private."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyro_mbde._checks import counted, listed
from pyro_mbde.names import is_similar, look_alike_hint

if TYPE_CHECKING:
    import pandas as pd

Numbers = np.ndarray[Any, np.dtype[np.float64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

OWNER = "This message, with its counts, depends on the table: it is for the table's owner alone."


class Source(NamedTuple):
    """Where rows come from, in messages.

    Attributes:
        name: what the rows are called, at the start of a sentence.
        possessive: the pronoun for it.
        closing: last sentence of a message, or nothing.
    """

    name: str
    possessive: str
    closing: str


TABLE, PUBLIC_ROWS = Source("The table", "its", OWNER), Source("The public rows", "their", "")
#: Names of columns to list in a message.
_MAX_NAMES = 20
_DATES, _COMMAS, _POINTS, _TEXT = "dates", "numbers with a comma", "numbers kept as text", "text"
_PATTERNS = {  # ASCII digits only; other digits count as text
    _DATES: re.compile(r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([ T].*)?\s*", re.ASCII),
    _COMMAS: re.compile(r"\s*[-+]?[\d.'\u2019\u00a0\u202f ]*,[\d.,'\u2019\u00a0\u202f ]*\d\s*", re.ASCII),
    _POINTS: re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII),
}
#: Numbers, dates, times and amounts, whatever sign or blank is before them.
BEGINS_WITH_DIGIT = re.compile(r"[\W_]*\d")
_ENCODE = "Encode them as numbers, by a public rule."
_REMEDIES = {
    _DATES: 'Declare kind = "date" or "datetime" in the schema.',
    _COMMAS: "Read a decimal comma with decimal=',' (--decimal ,); take out commas and points between thousands.",
    _POINTS: "Convert the column to numbers; for a CSV file with decimal points, pass decimal='.' (--decimal .).",
    _TEXT: 'Write numbers in plain digits, without units; of words, declare kind = "category" and its levels; leave '
    "what is missing empty.",
}


def check_form(frame: pd.DataFrame, names: Sequence[str], source: Source = TABLE) -> None:
    """Raises if a column of the schema is not in the table, or is there twice.

    If a file has no header, its first row is read as the names. So an error shows the table's names only if they look
    like a header: at least one equals or resembles (:func:`~pyro_mbde.names.is_similar`) a name in the schema, and none
    begins with a digit, as numbers, dates, times and amounts do. Otherwise it gives only the number of columns, and any
    name that looks like one in the schema.

    Args:
        frame: the table, with names that are texts.
        names: of the schema's columns.
        source: what messages call the table.
    """
    there = list(frame.columns)
    missing = [name for name in names if name not in there]
    if missing:
        if not there:
            has = "It has no columns."
        elif _is_header(there, names):
            has = f"Its columns are {listed(there, _MAX_NAMES)}."
        else:
            has = f"It has {counted(len(there), 'column')}. A file's first line must name them."
        remedy = "Names must match exactly, including spaces and capitals."
        has += look_alike_hint(missing, [label for label in there if not BEGINS_WITH_DIGIT.match(str(label))])
        text = f"{source.name} must have columns named {listed(missing, _MAX_NAMES)}. {has} {remedy} {source.closing}"
        raise ValueError(text.rstrip())
    repeated = [name for name in names if there.count(name) > 1]
    if repeated:
        several = f"several are named {listed(repeated, _MAX_NAMES)}"
        text = f"{source.name} must have each column once, but {several}. {source.closing}"
        raise ValueError(text.rstrip())


def _is_header(labels: Sequence[Any], names: Sequence[str]) -> bool:
    """Whether labels are plausibly names of columns and no row of the table; the rule is that of :func:`check_form`."""
    texts = [str(label) for label in labels]
    return any(is_similar(name, texts) for name in names) and not any(map(BEGINS_WITH_DIGIT.match, texts))


def as_floats(series: pd.Series[Any]) -> Numbers:
    """Returns a column of numbers in float64; missing values as NaN."""
    if _is_numeric(series):
        values: Numbers = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return values
    cells = zip(series, present_cells(series), strict=True)
    return np.array([as_float(cell) if present else np.nan for cell, present in cells], dtype=np.float64)


def present_cells(series: pd.Series[Any]) -> Flags:
    """Returns which cells have a value; a decimal's signalling NaN, which cannot even be compared, is missing."""
    import pandas as pd

    if series.dtype != object:
        there: Flags = series.notna().to_numpy(dtype=np.bool_)
        return there
    quiet = [math.nan if isinstance(cell, Decimal) and cell.is_nan() else cell for cell in series]
    present: Flags = pd.Series(quiet, dtype=object).notna().to_numpy()
    return present


def as_float(cell: Any) -> float:
    """Returns a real number as a float, infinite where no float is so large."""
    try:
        return float(cell)
    except OverflowError:  # of a whole number or a fraction
        return np.inf if cell > 0 else -np.inf


def _is_numeric(series: pd.Series[Any]) -> bool:
    import pandas as pd

    return pd.api.types.is_numeric_dtype(series.dtype) and not pd.api.types.is_complex_dtype(series.dtype)


def not_numbers(series: pd.Series[Any]) -> str | None:
    """Returns what a column holds beside real numbers, with a remedy for each; None if it holds nothing else."""
    if not len(series) or _is_numeric(series):  # an empty table has columns of any type
        return None
    rows: dict[str, list[int]] = {}
    for row, (cell, present) in enumerate(zip(series, present_cells(series), strict=True), 1):
        if present and not isinstance(cell, Real | Decimal | np.bool_):
            rows.setdefault(kind_of(cell), []).append(row)
    if len(rows) > 1:  # the odd cells made pandas read the good ones as text
        rows.pop(_POINTS, None)
    found = [
        f"{kind} in {len(where):,} of {len(series):,} cells, the first in row {where[0]:,}. "
        f"{_REMEDIES.get(kind, _ENCODE)}"
        for kind, where in rows.items()
    ]
    return " ".join(found) or None


def kind_of(cell: Any) -> str:
    """Returns what a cell is that is of another kind than its column, in words, without the cell."""
    if not isinstance(cell, str):
        return _DATES if isinstance(cell, date) else f"values of type {type(cell).__name__}"
    return next((kind for kind, pattern in _PATTERNS.items() if pattern.fullmatch(cell)), _TEXT)
