"""What is public about one column: its name, range and kind, and what becomes of values that it cannot hold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date, time
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_mbde._checks import argument_error, check_choice, check_count, check_number

KINDS, SCALES = ("real", "integer"), ("linear", "log1p")
OUTSIDE, MISSING = ("clip", "drop", "refuse"), ("drop", "refuse")

#: A whole number n is spread over [n + margin, n + 1 - margin], so that rounding, to a dtype and by a scale, never
#: carries it into the next unit.
_MARGIN = 2.0**-8
#: Floats between two neighbouring values of a rounded column, and in the range of a column that is not rounded.
_MIN_FLOATS_A_STEP, _MIN_FLOATS_A_RANGE = 2.0**6, 2.0**16
_MAX_INTEGER = 2.0**32
#: Whose square float64 holds, with room for sums of them.
_MAX_SIZE = 1e150
_MAX_DECIMALS = 12
_NO_DATES = "Dates are not supported. Count days or years since a public date, in the schema and in the table."


@dataclass(frozen=True)
class Column:
    """What is public about one column.

    Values that the column cannot hold have a policy each, so that a table never decides whether a fit succeeds.

    Privacy:
        All of it must come from a codebook, a physical limit or the like; nothing of it from the table. The policies
        are fixed beforehand as well. ``refuse`` makes a failed fit tell that the table held such a value: where
        somebody else may learn whether a fit failed, take another policy.

    Args:
        name: of the column in the table.
        low: smallest value, in the table's own units.
        high: largest value, which is allowed too; above ``low`` (or equal to it, for whole numbers).
        kind: ``real``, or ``integer`` for whole numbers, between -2^32 and 2^32.
        scale: ``linear``, or ``log1p`` to model ln(1 + x): for incomes, counts and the like; needs ``low`` above -1.
        decimals: digits after the point that a released value is rounded to, -12 to 12; ``None`` does not round. Not
            for whole numbers. ``low`` and ``high`` must be rounded so themselves.
        outside: what becomes of values outside the range, infinite ones, and fractions in a column of whole numbers:
            ``clip`` moves them to the nearest value that is allowed, ``drop`` leaves out their rows, ``refuse`` raises.
        missing: what becomes of missing values: ``drop`` leaves out their rows, a number stands in for them, ``refuse``
            raises. No value is nearest to a missing one, and a number that nobody chose would be seen as data: so the
            rows are left out by default.

    Example:
        >>> Column("age", 0, 110, decimals=1)  # doctest: +ELLIPSIS
        Column(name='age', low=0.0, high=110.0, kind='real', scale='linear', decimals=1, outside='clip', missing='drop')
    """

    name: str
    low: float
    high: float
    kind: str = "real"
    scale: str = "linear"
    decimals: int | None = None
    outside: str = "clip"
    missing: float | str = "drop"

    def __post_init__(self) -> None:
        """Checks the column."""
        if not isinstance(self.name, str):
            raise TypeError(argument_error("name", "be a string", self.name))
        if not self.name:
            raise ValueError(argument_error("name", "not be empty", self.name))
        try:
            self._check_range()
            self._check_policies()
            self._check_resolution()
        except (TypeError, ValueError) as error:
            raise type(error)(f"column {self.name!r}: {error}") from None

    def _check_range(self) -> None:
        for end in ("low", "high"):
            object.__setattr__(self, end, _check_end(end, getattr(self, end)))
        if check_choice("kind", self.kind, KINDS) == "integer":
            for end in ("low", "high"):
                check_number(end, getattr(self, end), "be a whole number between -2^32 and 2^32", _is_modelled_integer)
            check_number("high", self.high, f"be at least low = {self.low:.15g}", lambda value: value >= self.low)
            if self.decimals is not None:
                raise ValueError(argument_error("decimals", "be left out", self.decimals, "A whole number has none."))
        else:
            check_number("high", self.high, f"be above low = {self.low:.15g}", lambda value: value > self.low)
        if check_choice("scale", self.scale, SCALES) == "log1p":
            remedy = "ln(1 + x) is defined there alone."
            check_number("low", self.low, "be above -1 for the scale log1p", lambda value: value > -1, remedy=remedy)
        if self.decimals is not None:
            decimals = check_count("decimals", self.decimals, minimum=-_MAX_DECIMALS)
            check_number("decimals", decimals, f"be at most {_MAX_DECIMALS}", lambda value: value <= _MAX_DECIMALS)
            if 10.0**-decimals > (self.high - self.low) * (1 + 1e-9):
                raise ValueError(argument_error("decimals", "round less than from low to high", decimals, "Raise it."))
            for end in ("low", "high"):  # released values may be the ends themselves
                remedy = f"Round {end}, or raise decimals."
                wanted = f"have no more digits after the point than decimals = {decimals}"
                if decimals < 0:
                    wanted = f"be a multiple of {10**-decimals} with decimals = {decimals}"
                check_number(end, getattr(self, end), wanted, lambda value: _rounded(value, decimals), remedy=remedy)

    def _check_policies(self) -> None:
        check_choice("outside", self.outside, OUTSIDE)
        if isinstance(self.missing, str):
            if self.missing not in MISSING:
                raise ValueError(argument_error("missing", "be drop, refuse or a number", self.missing))
            return
        constraint = f"be drop, refuse or a number that the column may hold, {self._described_range()}"
        object.__setattr__(self, "missing", check_number("missing", self.missing, constraint, self._may_hold))

    def _check_resolution(self) -> None:
        if self._resolved_by(torch.float64):
            return
        remedy = "Take a public number off the column, such as low, or state it in another unit."
        if self.decimals is not None:
            raise ValueError(
                argument_error("decimals", "ask for no more digits than float64 has", self.decimals, remedy)
            )
        low, high = f"{self.low:.17g}", f"{self.high:.17g}"
        between = f"be so far above low = {low} that float64 resolves what lies between"
        raise ValueError(f"high must {between}, got high={high}. {remedy}")

    @property
    def modelled_range(self) -> tuple[float, float]:
        """Both ends of the column in the units it is modelled in; whole numbers fill the unit above them."""
        return self._modelled(self.low), self._modelled(self.high + (self.kind == "integer"))

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type that tells the column's values apart: float32, or float64 where that is too coarse."""
        return torch.float32 if self._resolved_by(torch.float32) else torch.float64

    def _resolved_by(self, dtype: torch.dtype) -> bool:
        """Whether floats lie close enough to one another all over the modelled range, and can be squared."""
        low, high = self.modelled_range
        size, limits = max(abs(low), abs(high)), torch.finfo(dtype)
        squared = size < math.sqrt(limits.max) and high - low > math.sqrt(limits.tiny)
        return squared and limits.eps * size <= self._largest_spacing(high - low)

    def _largest_spacing(self, width: float) -> float:
        """How far apart floats may lie, in the modelled units, for values to come back as they were."""
        if self.kind == "real" and self.decimals is None:
            return width / _MIN_FLOATS_A_RANGE
        spacing = _MARGIN if self.decimals is None else 10.0**-self.decimals / _MIN_FLOATS_A_STEP
        # d ln(1 + x) = dx / (1 + x): neighbours lie closest to one another at the upper end.
        return spacing / (1 + self.high) if self.scale == "log1p" else spacing

    def _modelled(self, value: float) -> float:
        return math.log1p(value) if self.scale == "log1p" else value

    def _may_hold(self, value: float) -> bool:
        return self.low <= value <= self.high and (self.kind == "real" or value.is_integer())

    def _described_range(self) -> str:
        return f"[{self.low:.15g}, {self.high:.15g}]"

    def _to_modelled(self, values: Tensor) -> Tensor:
        """Values in the table's units in the modelled ones; whole numbers are spread over the unit above them."""
        if self.kind == "integer":
            values = values + _MARGIN + (1 - 2 * _MARGIN) * torch.rand_like(values)
        return values.log1p() if self.scale == "log1p" else values

    def _to_natural(self, values: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, Any]:
        """Modelled values in the table's units: rounded, and clipped into the range."""
        natural = np.expm1(values) if self.scale == "log1p" else values
        if self.kind == "integer":
            whole: np.ndarray[Any, Any] = np.floor(natural).clip(self.low, self.high).astype(np.int64)
            return whole
        if self.decimals is not None:
            natural = natural.round(self.decimals)
        clipped: np.ndarray[Any, Any] = natural.clip(self.low, self.high) + 0.0  # no negative zeros
        return clipped


def _check_end(name: str, value: Any) -> float:
    """Returns an end of the range as a float, or raises; of dates and numbers in quotes it says that they are some."""
    remedy = ""
    if isinstance(value, str):
        if _is_date(value):
            raise TypeError(argument_error(name, "be a number", value, _NO_DATES))
        remedy = "Write it without quotation marks." if _is_number(value) else ""
    if isinstance(value, date | time):  # a datetime is a date
        raise TypeError(argument_error(name, "be a number", str(value), _NO_DATES))
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


def _rounded(value: float, decimals: int) -> bool:
    return (Fraction(repr(value)) * Fraction(10) ** decimals).denominator == 1  # the decimal that it prints as


def _is_modelled_integer(value: float) -> bool:
    return value.is_integer() and abs(value) <= _MAX_INTEGER
