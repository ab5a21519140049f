"""What becomes of values that a column cannot hold, and of missing ones.

The former are clipped (a fraction in a column of whole numbers is rounded), dropped or refused; the latter are dropped,
replaced or refused. Everything here depends on the table and is private.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyro_mbde._checks import counted
from pyro_mbde.tables.cells import Flags, Numbers, as_floats
from pyro_mbde.tables.columns import Column

if TYPE_CHECKING:
    import pandas as pd

#: A column counts as rounded if it has at least this many values, at most this many digits after the point, and if the
#: last digit's unit is more than this many times the spacing of floats at its largest value (without its sign).
_MIN_ROUNDED, _MAX_ROUNDED_DIGITS, _MIN_FINER = 10, 4, 16


class Cells(NamedTuple):
    """One column after its policies.

    Attributes:
        values: float64 ``(n,)``, in the range of the column where ``kept`` is true; arbitrary elsewhere.
        kept: which rows stay, bool ``(n,)``.
        notes: what was done, and what looks wrong; any number of sentences.
        refused: what the schema refuses; any number of sentences.
    """

    values: Numbers
    kept: Flags
    notes: tuple[str, ...]
    refused: tuple[str, ...]


def apply_policies(column: Column, series: pd.Series[Any]) -> Cells:
    """Returns a column's cells as numbers that it may hold, according to its policies ``outside`` and ``missing``.

    Args:
        column: a column of the schema.
        series: the table's column of that name, n cells of any dtype; already checked by ``cells.check_form``.
    """
    values, (low, high) = as_floats(series), _ends(column, series)
    missing = np.isnan(values)
    beyond = (values < low) | (values > high) | np.isinf(values)
    whole = np.rint(values)
    fractions = ~missing & ~beyond & (values != whole) & (column.kind == "integer")
    hint = _rounding(column, values[np.isfinite(values)])

    notes, refused, kept = [], [], np.ones(len(values), dtype=np.bool_)
    for wrong, what, policy, moved in (
        (beyond, f"outside {column._described_range()}", column.outside, "moved to the nearest end of the range"),
        (fractions, "not whole", column.outside, "rounded"),
        (missing, "missing", column.missing, f"replaced by {column.missing}"),
    ):
        if not wrong.any():
            continue
        num_wrong = int(wrong.sum())
        found = f"{num_wrong:,} of {len(values):,} values {'is' if num_wrong == 1 else 'are'} {what}"
        if policy == "refuse":
            refused.append(f"{found}.")
        elif policy == "drop":
            kept &= ~wrong
            notes.append(f"{found}: {counted(num_wrong, 'row')} left out.")
        else:
            notes.append(f"{found}: {moved}.")
    filled = np.where(missing, column.low if isinstance(column.missing, str) else column.missing, values)
    brought = (np.rint(filled) if column.kind == "integer" else filled).clip(column.low, column.high)
    notes += [] if hint is None else [hint]
    said = [tuple(f"column {column.name!r}: {one}" for one in each) for each in (notes, refused)]
    return Cells(brought, kept, *said)


def _ends(column: Column, series: pd.Series[Any]) -> tuple[float, float]:
    """The column's ends, rounded to the floating-point type of the table's column.

    They are rounded because 0.1 in float32 is greater than 0.1 in float64.
    """
    dtype = getattr(series.dtype, "numpy_dtype", series.dtype)
    if not isinstance(dtype, np.dtype) or dtype.kind != "f":
        return column.low, column.high
    with np.errstate(over="ignore"):
        low, high = np.array([column.low, column.high]).astype(dtype).astype(np.float64)
    return float(low), float(high)


def _rounding(column: Column, values: Numbers) -> str | None:
    """A hint if all values are rounded and released ones will not be; otherwise None."""
    if column.kind == "integer" or column.decimals is not None or len(values) < _MIN_ROUNDED:
        return None
    finest = np.spacing(np.abs(values).max())  # float spacing there: it alone rounds large values
    counts = [count for count in range(_MAX_ROUNDED_DIGITS + 1) if 10.0**-count > _MIN_FINER * finest]
    digits = [count for count in counts if np.array_equal(values.round(count), values)]
    if not digits:
        return None
    if digits[0] == 0:
        return (
            "all values are whole numbers, but released values will not be. If the codebook says that the column holds "
            'whole numbers, declare kind = "integer".'
        )
    form = f"at most {counted(digits[0], 'digit')} after the point"
    return (
        f"all values have {form}, but released values will have more. If the codebook says that values have {form}, "
        f"declare decimals = {digits[0]}."
    )
