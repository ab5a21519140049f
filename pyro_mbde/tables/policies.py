"""What becomes of values that a column cannot hold, and of missing ones: clipped, dropped or refused. Private."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyro_mbde._checks import counted
from pyro_mbde.tables.cells import Flags, Numbers, as_floats
from pyro_mbde.tables.columns import Column

if TYPE_CHECKING:
    import pandas as pd

#: A column is called rounded if it has at least so many values, at most so many digits, and floats so much finer.
_MIN_ROUNDED, _MAX_ROUNDED_DIGITS, _MIN_FINER = 10, 4, 16


class Cells(NamedTuple):
    """One column after its policies.

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


def apply_policies(column: Column, series: pd.Series[Any]) -> Cells:
    """Returns a column's cells as numbers that it may hold, by its policies ``outside`` and ``missing``.

    Args:
        column: of the schema.
        series: the table's column of that name, n cells of any dtype; checked by ``cells.check_form``.
    """
    values, (low, high) = as_floats(series), _ends(column, series)
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
    said = f"all values have at most {counted(digits[0], 'digit')} after the point, but released ones will have more."
    return f"{said} If the codebook says so, declare decimals = {digits[0]}."
