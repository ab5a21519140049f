"""Columns of levels: categories with and without an order, and booleans."""

from __future__ import annotations

import math
import numbers
import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pyro_mbde._checks import argument_error, counted, listed
from pyro_mbde.tables.cells import Flags, Numbers, present_cells
from pyro_mbde.tables.kinds import Kind, Odd, Reading, by_distinct_cell, put

if TYPE_CHECKING:
    import pandas as pd

    from pyro_mbde.tables.columns import Column

MAX_LEVELS = 10_000
_FALSE, _TRUE = ("false", "no", "n", "f", "0"), ("true", "yes", "y", "t", "1")
_BLANK, _UNKNOWN = -1, -2
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII)


class Lookup:
    """The code of a level by its text; where that is none, by its number, so that 1, 1.0 and "1" are one level.

    Blanks around a text do not count, nor in which of two forms Unicode has an accent. "01" and "1" are two levels,
    and cells are then told apart by their text alone.

    Args:
        levels: all of them, in order.
    """

    def __init__(self, levels: Sequence[Any]) -> None:
        self._texts = {text_of(level): code for code, level in enumerate(levels)}
        self._numbers: dict[float, int | None] = {}
        for code, level in enumerate(levels):
            if (number := _number(level)) is not None:
                self._numbers[number] = None if number in self._numbers else code

    def __call__(self, cell: Any) -> int | None:
        """Returns the code, or None where the cell is not a level."""
        if (code := self.of_text(cell)) is not None:
            return code
        truth = _truth(cell)
        number = _number(cell if truth is None else truth)
        return None if number is None else self._numbers.get(number)

    def of_text(self, cell: Any) -> int | None:
        """Returns the code of the level with a cell's text, or None where none has it.

        Letter case does not count in true and false: pandas reads a column of these words alone as booleans.
        """
        text, truth = text_of(cell), _truth(cell)
        texts = [text] if truth is None else [text, str(truth), str(truth).lower(), str(truth).upper()]
        return next((self._texts[one] for one in texts if one in self._texts), None)


@lru_cache(maxsize=64)
def _lookup_of(levels: tuple[Any, ...]) -> Lookup:
    """The lookup of all levels, made once: a column with thousands of shares asks for it as often."""
    return Lookup(levels)


def text_of(value: Any) -> str:
    """Returns a level or cell as it is compared: without blanks around it, 1.0 as 1.

    Example:
        >>> text_of(" ward 3 "), text_of(1.0), text_of(0.5)
        ('ward 3', '1', '0.5')
    """
    if isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    return unicodedata.normalize("NFC", str(value)).strip()


def _number(value: Any) -> float | None:
    try:
        is_number = isinstance(value, numbers.Real | Decimal | np.bool_) or _NUMBER.fullmatch(str(value))
        number = float(value) if is_number else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


class Category(Kind):
    """Levels without an order; the code of a level is its place in the list."""

    name, distribution = "category", "category"
    needs: ClassVar[tuple[str, ...]] = ("levels",)
    _ordered: ClassVar[bool] = False

    def check(self, column: Column) -> None:
        """Checks the levels."""
        put(column, levels=_check_levels(column.levels))

    def edges(self, column: Column) -> tuple[float, float]:
        """0 and the number of levels."""
        return 0.0, float(len(self._levels(column)))

    def code(self, column: Column, value: Any) -> float:
        """The place of a level."""
        code = self._lookup(column)(value)
        if code is None:
            raise ValueError(argument_error("value", f"be {self.allowed(column)}", value))
        return float(code)

    def value(self, column: Column, code: float) -> Any:
        """The level of a place."""
        return self._levels(column)[int(code)]

    def read(self, column: Column, series: pd.Series[Any]) -> Reading:
        """Codes of the cells; blank ones are missing."""
        lookup = self._lookup(column)

        def convert(cell: Any) -> int:
            code: int | None = lookup(cell)
            if code is None:
                return _BLANK if isinstance(cell, str) and not cell.strip() else _UNKNOWN
            return code

        codes = np.array(by_distinct_cell(series, present_cells(series), convert, _BLANK), dtype=np.float64)
        unknown = Odd(codes == _UNKNOWN, f"not {self.allowed(column)}", None)
        return Reading(codes, codes == _BLANK, (unknown,))

    def write(self, column: Column, codes: Numbers, missing: Flags | None) -> Any:
        """A categorical column with all levels, in order."""
        import pandas as pd

        places = codes.astype(np.int64)
        if missing is not None:
            places[missing] = -1
        levels: Any = list(self._levels(column))
        return pd.Categorical.from_codes(places, categories=levels, ordered=self._ordered)

    def allowed(self, column: Column) -> str:
        """The first levels."""
        return f"one of {listed(self._levels(column))}"

    def _levels(self, column: Column) -> tuple[Any, ...]:
        assert column.levels is not None
        return column.levels

    def _lookup(self, column: Column) -> Any:
        return _lookup_of(self._levels(column))


class Ordered(Category):
    """Levels in an order, from the lowest."""

    name, distribution = "ordered", "ordered"
    _ordered = True


class Boolean(Category):
    """False and True, with codes 0 and 1; ``levels`` gives other words for them."""

    name, distribution = "boolean", "category"
    takes: ClassVar[tuple[str, ...]] = ("levels",)
    needs: ClassVar[tuple[str, ...]] = ()

    def check(self, column: Column) -> None:
        """Checks the two words, if there are any."""
        if column.levels is not None:
            words = _check_levels(column.levels)
            if len(words) != 2:
                wanted = "be two words, the one for false and then the one for true"
                remedy = 'For more levels, declare kind = "category".'
                raise ValueError(argument_error("levels", wanted, list(words), remedy))
            put(column, levels=words)

    def write(self, column: Column, codes: Numbers, missing: Flags | None) -> Any:
        """A column of bool, or of nullable booleans with missing values."""
        import pandas as pd

        cells = codes == 1
        return cells if missing is None else pd.arrays.BooleanArray(cells, missing.copy())

    def code(self, column: Column, value: Any) -> float:
        """0 or 1, of the words or of false and true."""
        if isinstance(value, str) and value in ("false", "true"):
            return float(value == "true")
        return super().code(column, value)

    def allowed(self, column: Column) -> str:
        """The two words."""
        return f"one of {listed(column.levels)}" if column.levels is not None else "true or false"

    def _levels(self, column: Column) -> tuple[Any, ...]:
        return (False, True)

    def _lookup(self, column: Column) -> Any:
        if column.levels is None:
            return _boolean
        lookup = _lookup_of(column.levels)
        return lambda cell: _word(lookup, cell)


def _truth(cell: Any) -> bool | None:
    """The boolean that a cell is, or that it has the word for; None for other cells."""
    if isinstance(cell, bool | np.bool_):
        return bool(cell)
    text = cell.strip().casefold() if isinstance(cell, str) else ""
    return text == "true" if text in ("true", "false") else None


def _word(lookup: Lookup, cell: Any) -> int | None:
    """The code of one of two words, or of true and false where they are none of the two."""
    if isinstance(cell, bool | np.bool_):
        return int(cell)
    truth = _truth(cell)
    return lookup(cell) if truth is None or lookup.of_text(cell) is not None else int(truth)


def _boolean(cell: Any) -> int | None:
    number = _number(cell)
    if number is not None:
        return int(number) if number in (0, 1) else None
    text = text_of(cell).casefold()
    return 0 if text in _FALSE else 1 if text in _TRUE else None


def _check_levels(given: Any) -> tuple[Any, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(argument_error("levels", "be a list of texts or numbers", given))
    levels = tuple(level.strip() if isinstance(level, str) else level for level in given)
    places: dict[str, int] = {}
    for place, level in enumerate(levels):
        if isinstance(level, bool | np.bool_):
            remedy = 'Declare kind = "boolean" and leave levels out, or write them as texts.'
            raise TypeError(argument_error("levels", "be texts or numbers", level, remedy))
        if not isinstance(level, str | int | float):
            raise TypeError(argument_error("levels", "be texts or numbers", level))
        if isinstance(level, float) and not math.isfinite(level):
            remedy = 'To keep missing values, write missing = "level".'
            raise ValueError(argument_error("levels", "be finite numbers", level, remedy))
        text = text_of(level)
        if not text:
            remedy = 'Blank cells are missing: write missing = "level" to keep them.'
            raise ValueError(argument_error("levels", "not be blank", level, remedy))
        if not text.isprintable():
            remedy = "Take out line breaks and tabs."
            raise ValueError(argument_error("levels", "be printable, on one line", level, remedy))
        other = levels[places.setdefault(text, place)]
        if places[text] != place:
            raise ValueError(f"levels must differ from one another, got {other!r} and {level!r}. Leave out one.")
    if not 2 <= len(levels) <= MAX_LEVELS:
        found = counted(len(levels), "level")
        remedy = "Leave out a column that is always the same." if len(levels) < 2 else "Group them by a public rule."
        if len(levels) == 1 and ("," in str(levels[0]) or ";" in str(levels[0])):
            remedy = 'Put each level in quotation marks: ["a", "b"].'
        raise ValueError(f"levels must be 2 to {MAX_LEVELS:,} texts or numbers, got {found}. {remedy}")
    return levels
