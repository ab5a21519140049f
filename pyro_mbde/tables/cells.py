"""A table's cells as numbers, each brought to what its column may hold. As sensitive as the table, all of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyro_mbde.names import look_alike_hint
from pyro_mbde.tables.columns import Column

if TYPE_CHECKING:
    import pandas as pd

Numbers = np.ndarray[Any, np.dtype[np.float64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

OWNER = "This message depends on the table, counts included: it is for the table's owner alone."
#: Names of columns to list in a message.
_MAX_NAMES = 20
#: Fewest values, most digits after the point, and how much finer floats must be, for a column to be called rounded.
_MIN_ROUNDED, _MAX_ROUNDED_DIGITS, _MIN_FINER = 10, 4, 16
_DATES, _COMMAS, _POINTS, _TEXT = "dates", "numbers with a comma", "numbers kept as text", "text"
_PATTERNS = {  # of ASCII digits: others are text
    _DATES: re.compile(r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([ T].*)?\s*", re.ASCII),
    _COMMAS: re.compile(r"\s*[-+]?[\d.'\u2019\u00a0\u202f ]*,[\d.,'\u2019\u00a0\u202f ]*\d\s*", re.ASCII),
    _POINTS: re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII),
}
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
        values: all that the column may hold; anything where ``kept`` is false.
        kept: which rows stay.
        moved: whether values were moved to the lower end, and to the upper.
        notes: what was done, and what looks wrong.
        refused: what the schema refuses.
    """

    values: Numbers
    kept: Flags
    moved: tuple[bool, bool]
    notes: tuple[str, ...]
    refused: tuple[str, ...]


def check_form(frame: pd.DataFrame, names: Sequence[str]) -> None:
    """Raises if a column of the schema is not in the table, is there twice, or holds anything but real numbers.

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
        has = f"Its columns are {_listed(there)}." if there else "It has no columns."
        if there and all(map(reads_as_number, there)):  # a row of the table may stand in the header's place
            has = "Its columns are named by numbers: a file's first line must name them."
        remedy = "A schema names columns as the table does, spaces and capitals too."
        has += look_alike_hint(missing, there)
        raise ValueError(f"The table must have columns named {_listed(missing)}. {has} {remedy} {OWNER}")
    repeated = [name for name in names if there.count(name) > 1]
    if repeated:
        raise ValueError(f"The table must have each column once, got several named {_listed(repeated)}. {OWNER}")
    found = [f"column {name!r}: {problem}" for name in names if (problem := _not_numbers(frame[name])) is not None]
    if found:
        raise TypeError("\n  ".join(["The table must hold real numbers in the columns of its schema:", *found, OWNER]))


def bring_in(column: Column, series: pd.Series[Any]) -> Cells:
    """Returns a column's cells as numbers that the column may hold, by its policies.

    Args:
        column: of the schema.
        series: of the table; checked by :func:`check_form`.
    """
    values, (low, high) = _as_floats(series), _ends(column, series)
    missing = np.isnan(values)
    below, above = (values < low) | np.isneginf(values), (values > high) | np.isposinf(values)
    beyond = below | above
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
    moved_to = (bool(below.any()), bool(above.any())) if column.outside == "clip" else (False, False)
    said = [tuple(f"column {column.name!r}: {one}" for one in each) for each in (notes, refused)]
    return Cells(brought, kept, moved_to, *said)


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
        return 'all values are whole, released ones will not be. If its codebook says so, declare kind = "integer".'
    many = "1 digit" if digits[0] == 1 else f"{digits[0]} digits"
    said = f"all values have at most {many} after the point, released ones will have more."
    return f"{said} If its codebook says so, declare decimals = {digits[0]}."


def _as_floats(series: pd.Series[Any]) -> Numbers:
    """A column of numbers in float64; what is missing as NaN."""
    if _is_numeric(series):
        values: Numbers = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return values
    cells = zip(series, series.notna(), strict=True)
    return np.array([_as_float(cell) if present else np.nan for cell, present in cells], dtype=np.float64)


def _as_float(cell: Any) -> float:
    try:
        return float(cell)
    except OverflowError:  # of a whole number or a fraction
        return np.inf if cell > 0 else -np.inf


def _is_numeric(series: pd.Series[Any]) -> bool:
    import pandas as pd

    return pd.api.types.is_numeric_dtype(series.dtype) and not pd.api.types.is_complex_dtype(series.dtype)


def _not_numbers(series: pd.Series[Any]) -> str | None:
    """What a column holds in place of real numbers, each with what to do; None if nothing else."""
    if not len(series) or _is_numeric(series):  # an empty table has columns of any type
        return None
    if str(series.dtype) == "category":
        return f"categories. {_ENCODE}"
    rows: dict[str, list[int]] = {}
    for row, (cell, present) in enumerate(zip(series, series.notna(), strict=True), 1):
        if present and not isinstance(cell, Real | Decimal | np.bool_):
            rows.setdefault(_kind_of(cell), []).append(row)
    if len(rows) > 1:  # the odd cells made text of the good ones
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


def reads_as_number(name: Any) -> bool:
    """Returns whether the name of a column is text that reads as a number, with a point or a comma."""
    return isinstance(name, str) and any(_PATTERNS[kind].fullmatch(name) for kind in (_COMMAS, _POINTS))


def _listed(names: Sequence[Any]) -> str:
    listed = ", ".join(map(repr, names[:_MAX_NAMES]))
    return listed if len(names) <= _MAX_NAMES else f"{listed} and {len(names) - _MAX_NAMES:,} more"
