"""Columns of numbers: real, and whole."""

from __future__ import annotations

import math
from datetime import date, time
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pyro_mbde._checks import argument_error, check_choice, check_count, check_number
from pyro_mbde.density.predicates import natural_values
from pyro_mbde.tables.cells import Flags, Numbers, as_floats, not_numbers
from pyro_mbde.tables.kinds import Kind, Odd, Reading, put
from pyro_mbde.tables.notes import MAX_ROUNDED_DIGITS, MIN_FINER, Rounding

if TYPE_CHECKING:
    import pandas as pd

    from pyro_mbde.tables.columns import Column

SCALES = ("linear", "log1p")
#: Floats between two neighbouring values of a rounded column, and in the range of a column that is not rounded.
_MIN_FLOATS_A_STEP, _MIN_FLOATS_A_RANGE = 2.0**6, 2.0**16
MAX_INTEGER = 2.0**32
#: Whose square float64 holds, with room for sums of them.
_MAX_SIZE = 1e150
_MAX_DECIMALS = 12
_DATES = 'Of dates, declare kind = "date" or kind = "datetime".'


class _Number(Kind):
    needs = ("low", "high")

    def check(self, column: Column) -> None:
        for end in ("low", "high"):
            put(column, **{end: _check_end(end, getattr(column, end))})
        self._check_range(column)
        if check_choice("scale", column.scale, SCALES) == "log1p":
            remedy = "ln(1 + x) is defined there alone."
            check_number("low", column.low, "be above -1 for the scale log1p", lambda value: value > -1, remedy=remedy)

    def _check_range(self, column: Column) -> None:
        raise NotImplementedError

    def _may_hold(self, column: Column, value: float) -> bool:
        return bool(column.low <= value <= column.high)

    def code(self, column: Column, value: Any) -> float:
        return check_number("value", value, f"be {self.allowed(column)}", lambda number: self._may_hold(column, number))

    def allowed(self, column: Column) -> str:
        return f"[{column.low:.15g}, {column.high:.15g}]"

    def read(self, column: Column, series: pd.Series[Any]) -> Reading:
        if (unreadable := not_numbers(series)) is not None:
            nothing = np.zeros(len(series))
            return Reading(nothing, nothing == 0, unreadable=unreadable)
        values, (low, high) = as_floats(series), _ends(column, series)
        missing = np.isnan(values)
        beyond = (values < low) | (values > high) | np.isinf(values)
        odd = (
            Odd(beyond, f"outside {self.allowed(column)}", "moved to the nearest end of the range"),
            *self._odd(values, ~missing & ~beyond),
        )
        codes = self._nearest(np.where(missing, column.low, values)).clip(column.low, column.high)
        return Reading(codes, missing, odd, rounding=self._rounding(column, values))

    def _odd(self, values: Numbers, within: Flags) -> tuple[Odd, ...]:
        return ()

    def _nearest(self, values: Numbers) -> Numbers:
        return values

    def _rounding(self, column: Column, values: Numbers) -> Rounding | None:
        return None


class Real(_Number):
    """Real numbers, rounded on release where ``decimals`` says so."""

    name, distribution = "real", "real"
    takes = ("scale", "decimals")

    def _check_range(self, column: Column) -> None:
        check_number("high", column.high, f"be above low = {column.low:.15g}", lambda value: value > column.low)

    def check(self, column: Column) -> None:
        """Checks range, scale, decimals and resolution."""
        super().check(column)
        if column.decimals is not None:
            _check_decimals(column)
        if self.is_resolved(column, torch.float64):
            return
        remedy = "Take a public number off the column, such as low, or state it in another unit."
        if column.decimals is not None:
            raise ValueError(
                argument_error("decimals", "ask for no more digits than float64 has", column.decimals, remedy)
            )
        low, high = f"{column.low:.17g}", f"{column.high:.17g}"
        between = f"be so far above low = {low} that float64 resolves what lies between"
        raise ValueError(f"high must {between}, got high={high}. {remedy}")

    def edges(self, column: Column) -> tuple[float, float]:
        """Both ends, in the modelled units."""
        if column.scale == "log1p":
            return math.log1p(column.low), math.log1p(column.high)
        return column.low, column.high

    def is_resolved(self, column: Column, dtype: torch.dtype) -> bool:
        """Whether floats lie close enough to one another all over the modelled range, and can be squared."""
        low, high = self.edges(column)
        size, limits = max(abs(low), abs(high)), torch.finfo(dtype)
        squared = size < math.sqrt(limits.max) and high - low > math.sqrt(limits.tiny)
        if column.decimals is None:
            spacing = (high - low) / _MIN_FLOATS_A_RANGE
        else:
            spacing = 10.0**-column.decimals / _MIN_FLOATS_A_STEP
            # d ln(1 + x) = dx / (1 + x): neighbours lie closest to one another at the upper end.
            spacing = spacing / (1 + column.high) if column.scale == "log1p" else spacing
        return squared and bool(limits.eps * size <= spacing)

    def modelled(self, column: Column, codes: Numbers) -> Numbers:
        """ln(1 + x) where the scale says so."""
        return np.log1p(codes) if column.scale == "log1p" else codes

    def from_modelled(self, column: Column, values: Numbers) -> Numbers:
        """Numbers rounded, and clipped into the range."""
        # The very numbers that constraints are checked on: NumPy's expm1 differs from torch's in the last bit.
        modelled = torch.tensor(values, dtype=torch.float64)
        natural: Numbers = natural_values(modelled, column.scale, column.decimals, column.low, column.high).numpy()
        return natural

    def write(self, column: Column, codes: Numbers, missing: Flags | None) -> Any:
        """A column of float64; missing values as NaN."""
        return codes if missing is None else np.where(missing, np.nan, codes)

    def _rounding(self, column: Column, values: Numbers) -> Rounding | None:
        """How far all values are rounded, where released ones will not be."""
        if column.decimals is not None:
            return None
        values = values[np.isfinite(values)]
        where = f"column {column.name!r}"
        if not len(values):
            return Rounding(where, 0, 0.0, 0)
        finest = float(np.spacing(np.abs(values).max()))  # float spacing there: it alone rounds large values
        counts = [count for count in range(MAX_ROUNDED_DIGITS + 1) if 10.0**-count > MIN_FINER * finest]
        digits = next((count for count in counts if np.array_equal(values.round(count), values)), None)
        return Rounding(where, len(values), finest, digits)


class Integer(_Number):
    """Whole numbers: n is the code of n."""

    name, distribution = "integer", "integer"
    takes = ("scale",)

    def _check_range(self, column: Column) -> None:
        for end in ("low", "high"):
            whole = "be a whole number between -2^32 and 2^32"
            check_number(end, getattr(column, end), whole, _is_modelled_integer)
        check_number("high", column.high, f"be at least low = {column.low:.15g}", lambda value: value >= column.low)

    def _may_hold(self, column: Column, value: float) -> bool:
        return super()._may_hold(column, value) and value.is_integer()

    def of_key(self, column: Column, key: Any) -> Any:
        """The whole number that a text is."""
        return int(self.code(column, float(key)))

    def edges(self, column: Column) -> tuple[float, float]:
        """Both ends; a whole number n fills [n, n + 1)."""
        return column.low, column.high + 1

    def write(self, column: Column, codes: Numbers, missing: Flags | None) -> Any:
        """A column of int64, or of Int64 with missing values."""
        return whole_cells(codes, missing)

    def _odd(self, values: Numbers, within: Flags) -> tuple[Odd, ...]:
        return (Odd(within & (values != np.rint(values)), "not whole", "rounded"),)

    def _nearest(self, values: Numbers) -> Numbers:
        nearest: Numbers = np.rint(values)
        return nearest


def whole_cells(codes: Numbers, missing: Flags | None) -> Any:
    """Codes as int64, or as Int64 with missing values."""
    import pandas as pd

    cells = codes.astype(np.int64)
    return cells if missing is None else pd.arrays.IntegerArray(cells, missing.copy())


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


def _check_decimals(column: Column) -> None:
    decimals = check_count("decimals", column.decimals, minimum=-_MAX_DECIMALS)
    check_number("decimals", decimals, f"be at most {_MAX_DECIMALS}", lambda value: value <= _MAX_DECIMALS)
    if 10.0**-decimals > (column.high - column.low) * (1 + 1e-9):
        raise ValueError(argument_error("decimals", "round less than from low to high", decimals, "Raise it."))
    for end in ("low", "high"):  # released values may be the ends themselves
        remedy = f"Round {end}, or raise decimals."
        wanted = f"have no more digits after the point than decimals = {decimals}"
        if decimals < 0:
            wanted = f"be a multiple of {10**-decimals} with decimals = {decimals}"
        check_number(end, getattr(column, end), wanted, lambda value: _rounded(value, decimals), remedy=remedy)


def _check_end(name: str, value: Any) -> float:
    """Returns an end of the range as a float, or raises; the error says if it is a date or a number in quotes."""
    remedy = ""
    if isinstance(value, str):
        if _is_date(value):
            raise TypeError(argument_error(name, "be a number", value, _DATES))
        remedy = "Write it without quotation marks." if _is_number(value) else ""
    if isinstance(value, date | time):  # a datetime is a date
        raise TypeError(argument_error(name, "be a number", str(value), _DATES))
    number = check_number(name, value, "be finite", math.isfinite, remedy=remedy)
    largest = f"be between -{_MAX_SIZE:g} and {_MAX_SIZE:g}"
    return check_number(name, number, largest, lambda size: abs(size) <= _MAX_SIZE, remedy="Take a larger unit.")


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text[:10])
    except ValueError:
        return False
    return not text.isdigit()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_modelled_integer(value: float) -> bool:
    return value.is_integer() and abs(value) <= MAX_INTEGER


def _rounded(value: float, decimals: int) -> bool:
    return (Fraction(repr(value)) * Fraction(10) ** decimals).denominator == 1  # the decimal that it prints as
