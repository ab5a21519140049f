"""Converts a table's cells to numbers in the range of their column. Private."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyro_mbde.names import is_similar, look_alike_hint
from pyro_mbde.tables.columns import Column

if TYPE_CHECKING:
    import pandas as pd

Numbers = np.ndarray[Any, np.dtype[np.float64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

OWNER = "This message, with its counts, depends on the table: it is for the table's owner alone."
#: Names of columns to list in a message.
_MAX_NAMES = 20
#: A column is called rounded if it has at least so many values, at most so many digits, and floats so much finer.
_MIN_ROUNDED, _MAX_ROUNDED_DIGITS, _MIN_FINER = 10, 4, 16
_DATES, _COMMAS, _POINTS, _TEXT = "dates", "numbers with a comma", "numbers kept as text", "text"
_PATTERNS = {  # ASCII digits only; other digits count as text
    _DATES: re.compile(r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([ T].*)?\s*", re.ASCII),
    _COMMAS: re.compile(r"\s*[-+]?[\d.'\u2019\u00a0\u202f ]*,[\d.,'\u2019\u00a0\u202f ]*\d\s*", re.ASCII),
    _POINTS: re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII),
}
#: Numbers, dates, times and amounts, whatever sign or blank is before them.
_BEGINS_WITH_DIGIT = re.compile(r"[\W_]*\d")
_ENCODE = "Encode them as numbers, by a public rule."
_REMEDIES = {
    _DATES: "Count days or years since a public date.",
    _COMMAS: "Read a decimal comma with decimal=',' (--decimal ,); take out a comma between thousands.",
    _POINTS: "Convert the column to numbers; for a CSV file with decimal points, pass decimal='.' (--decimal .).",
    _TEXT: "Write numbers in plain digits, without units; encode words by a public rule; leave what is missing empty.",
}


class Cells(NamedTuple):
    """The cells of one column as its schema takes them.

    Attributes:
        values: float64 ``(n,)``, in the range of the column where ``kept`` is true; anything elsewhere.
        kept: which rows stay, bool ``(n,)``.
        notes: what was done, and what looks wrong; any number of sentences.
        refused: what the schema refuses; any number of sentences.
    """

    values: Numbers
    kept: Flags
    notes: tuple[str, ...]
    refused: tuple[str, ...]


def check_form(frame: pd.DataFrame, names: Sequence[str]) -> None:
    """Raises if a column of the schema is not in the table, is there twice, or holds anything but real numbers.

    If a file has no header, its first row is read as the names. So an error shows the table's names only if they look
    like a header: at least one equals or resembles (:func:`~pyro_mbde.names.is_similar`) a name in the schema, and none
    begins with a digit, as numbers, dates, times and amounts do. Otherwise it gives only the number of columns, and any
    name that looks like one in the schema.

    Args:
        frame: the table.
        names: of the schema's columns.

    Raises:
        TypeError: a column holds something else.
        ValueError: a column is missing or repeated.
    """
    there = list(frame.columns)
    missing = [name for name in names if name not in there]
    if missing:
        if not there:
            has = "It has no columns."
        elif _is_header(there, names):
            has = f"Its columns are {_listed(there)}."
        else:
            has = f"It has {_counted(len(there), 'column')}. A file's first line must name them."
        remedy = "Names must match exactly, including spaces and capitals."
        has += look_alike_hint(missing, [label for label in there if not _BEGINS_WITH_DIGIT.match(str(label))])
        raise ValueError(f"The table must have columns named {_listed(missing)}. {has} {remedy} {OWNER}")
    repeated = [name for name in names if there.count(name) > 1]
    if repeated:
        raise ValueError(f"The table must have each column once, but several are named {_listed(repeated)}. {OWNER}")
    found = [f"column {name!r}: {problem}" for name in names if (problem := _not_numbers(frame[name])) is not None]
    if found:
        raise TypeError("\n  ".join(["The table must hold real numbers in the columns of its schema:", *found, OWNER]))


def _is_header(labels: Sequence[Any], names: Sequence[str]) -> bool:
    """Whether labels are plausibly names of columns and no row of the table; the rule is that of :func:`check_form`."""
    texts = [str(label) for label in labels]
    return any(is_similar(name, texts) for name in names) and not any(map(_BEGINS_WITH_DIGIT.match, texts))


def bring_in(column: Column, series: pd.Series[Any]) -> Cells:
    """Returns a column's cells as numbers that the column may hold, by its policies.

    Args:
        column: of the schema.
        series: the table's column of that name, n cells of any dtype; checked by :func:`check_form`.

    Returns:
        The n cells, with what was done to them.
    """
    values, (low, high) = _as_floats(series), _ends(column, series)
    missing = np.isnan(values)
    beyond = (values < low) | (values > high) | np.isinf(values)
    whole = np.rint(values)
    fractions = ~missing & ~beyond & (values != whole) & (column.kind == "integer")
    hint = _rounding(column, values[np.isfinite(values)])

    notes, refused, kept = [], [], np.ones(len(values), dtype=np.bool_)
    for wrong, what, policy, moved in (
        (beyond, f"outside {column._described_range()}", column.outside, "moved to the nearest end"),
        (fractions, "not whole", column.outside, "rounded"),
        (missing, "missing", column.missing, f"replaced by {column.missing}"),
    ):
        if not wrong.any():
            continue
        verb = "is" if wrong.sum() == 1 else "are"
        found = f"{int(wrong.sum()):,} of {len(values):,} values {verb} {what}"
        if policy == "refuse":
            refused.append(f"{found}.")
        elif policy == "drop":
            kept &= ~wrong
            notes.append(f"{found}: rows left out.")
        else:
            notes.append(f"{found}: {moved}.")
    filled = np.where(missing, column.low if isinstance(column.missing, str) else column.missing, values)
    brought = (np.rint(filled) if column.kind == "integer" else filled).clip(column.low, column.high)
    notes += [] if hint is None else [hint]
    said = [tuple(f"column {column.name!r}: {one}" for one in each) for each in (notes, refused)]
    return Cells(brought, kept, *said)


def _ends(column: Column, series: pd.Series[Any]) -> tuple[float, float]:
    """The column's ends in the precision that the table has them in: float32's 0.1 is above float64's."""
    dtype = getattr(series.dtype, "numpy_dtype", series.dtype)
    if not isinstance(dtype, np.dtype) or dtype.kind != "f":
        return column.low, column.high
    with np.errstate(over="ignore"):
        low, high = np.array([column.low, column.high]).astype(dtype).astype(np.float64)
    return float(low), float(high)


def _rounding(column: Column, values: Numbers) -> str | None:
    """What to say if all values are rounded, and released ones will not be."""
    if column.kind == "integer" or column.decimals is not None or len(values) < _MIN_ROUNDED:
        return None
    finest = np.spacing(np.abs(values).max())  # which rounds large values by itself
    counts = [count for count in range(_MAX_ROUNDED_DIGITS + 1) if 10.0**-count > _MIN_FINER * finest]
    digits = [count for count in counts if np.array_equal(values.round(count), values)]
    if not digits:
        return None
    if digits[0] == 0:
        return 'all values are whole, but released ones will not be. If the codebook says so, declare kind = "integer".'
    said = f"all values have at most {_counted(digits[0], 'digit')} after the point, but released ones will have more."
    return f"{said} If the codebook says so, declare decimals = {digits[0]}."


def _as_floats(series: pd.Series[Any]) -> Numbers:
    """A column of numbers in float64; missing values as NaN."""
    if _is_numeric(series):
        values: Numbers = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return values
    cells = zip(series, _present(series), strict=True)
    return np.array([_as_float(cell) if present else np.nan for cell, present in cells], dtype=np.float64)


def _present(series: pd.Series[Any]) -> Flags:
    """Which cells have a value; a decimal's signalling NaN, which cannot even be compared, is none."""
    import pandas as pd

    quiet = [math.nan if isinstance(cell, Decimal) and cell.is_nan() else cell for cell in series]
    present: Flags = pd.Series(quiet, dtype=object).notna().to_numpy()
    return present


def _as_float(cell: Any) -> float:
    try:
        return float(cell)
    except OverflowError:  # of a whole number or a fraction
        return np.inf if cell > 0 else -np.inf


def _is_numeric(series: pd.Series[Any]) -> bool:
    import pandas as pd

    return pd.api.types.is_numeric_dtype(series.dtype) and not pd.api.types.is_complex_dtype(series.dtype)


def _not_numbers(series: pd.Series[Any]) -> str | None:
    """Says what a column holds beside real numbers, with a remedy for each kind; None if it holds nothing else."""
    if not len(series) or _is_numeric(series):  # an empty table has columns of any type
        return None
    if str(series.dtype) == "category":
        return f"categories. {_ENCODE}"
    rows: dict[str, list[int]] = {}
    for row, (cell, present) in enumerate(zip(series, _present(series), strict=True), 1):
        if present and not isinstance(cell, Real | Decimal | np.bool_):
            rows.setdefault(_kind_of(cell), []).append(row)
    if len(rows) > 1:  # the odd cells made pandas read the good ones as text
        rows.pop(_POINTS, None)
    found = [
        f"{kind} in {len(where):,} of {len(series):,} cells, the first in row {where[0]:,}. "
        f"{_REMEDIES.get(kind, _ENCODE)}"
        for kind, where in rows.items()
    ]
    return " ".join(found) or None


def _kind_of(cell: Any) -> str:
    if not isinstance(cell, str):
        return _DATES if isinstance(cell, date) else f"values of type {type(cell).__name__}"
    return next((kind for kind, pattern in _PATTERNS.items() if pattern.fullmatch(cell)), _TEXT)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun if number == 1 else f'{noun}s'}"


def _listed(names: Sequence[Any]) -> str:
    listed = ", ".join(map(repr, names[:_MAX_NAMES]))
    return listed if len(names) <= _MAX_NAMES else f"{listed} and {len(names) - _MAX_NAMES:,} more"
