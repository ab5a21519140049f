"""What constraints know about a column: what its codes stand for, and the codes of its levels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from pyro_mbde.density.predicates import ALL_DIGITS, Node
from pyro_mbde.names import normal_name

#: NumPy's letters for resolutions.
_UNITS = {"second": "s", "minute": "m", "hour": "h", "day": "D", "month": "M", "year": "Y"}
_LEVELS = ("category", "ordered", "boolean")
_BOOLEANS = dict.fromkeys(("no", "false", "n", "f", "0"), 0) | dict.fromkeys(("yes", "true", "y", "t", "1"), 1)


class ColumnFacts(Protocol):
    """What is public about a column, as far as constraints need it."""

    @property
    def name(self) -> str: ...  # noqa: D102  # as of a Column
    @property
    def kind(self) -> str: ...  # noqa: D102  # as of a Column
    @property
    def low(self) -> Any: ...  # noqa: D102  # as of a Column
    @property
    def high(self) -> Any: ...  # noqa: D102  # as of a Column
    @property
    def scale(self) -> str: ...  # noqa: D102  # as of a Column
    @property
    def decimals(self) -> int | None: ...  # noqa: D102  # as of a Column
    @property
    def levels(self) -> Sequence[Any] | None: ...  # noqa: D102  # as of a Column
    @property
    def missing(self) -> Any: ...  # noqa: D102  # as of a Column
    @property
    def resolution(self) -> str | None: ...  # noqa: D102  # as of a Column


def kind_of_value(column: ColumnFacts) -> str:
    """Returns whether a column has a ``number``, a ``date`` or a ``level``."""
    if column.kind in _LEVELS:
        return "level"
    return "date" if column.kind in ("date", "datetime") else "number"


def texts_of_levels(column: ColumnFacts) -> list[str]:
    """Returns the levels of a column as texts, in the order of their codes; those of a boolean are no and yes."""
    if column.kind not in _LEVELS:
        return []
    levels = [str(level) for level in column.levels or ()]
    return levels or (["no", "yes"] if column.kind == "boolean" else [])


def have_same_levels(one: ColumnFacts, other: ColumnFacts) -> bool:
    """Whether the codes of two columns stand for the same levels."""
    return one.kind == other.kind and texts_of_levels(one) == texts_of_levels(other)


def code_of_level(column: ColumnFacts, text: str, number: float | None) -> int | None:
    """Returns the code of a level, by its text or else by its number; None if there is no such level, or two."""
    levels = texts_of_levels(column)
    if text in levels:
        return levels.index(text)
    if column.kind == "boolean":
        return _BOOLEANS.get(text.casefold())
    same = [code for code, level in enumerate(levels) if normal_name(level) == normal_name(text)]
    if number is not None:
        same = [code for code, level in enumerate(levels) if _as_number(level) == number]
    return same[0] if len(same) == 1 else None


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def leaf_of(index: int, column: ColumnFacts) -> Node:
    """Returns the node for a column: from a code to the value that a release shows; dates in seconds since 1970-01-01.

    Seconds are whole numbers, which float64 holds exactly: a difference of two times is then right to the last digit.
    """
    if column.kind == "real":
        ends = [float(column.low), float(column.high)]
        edges = [math.log1p(end) for end in ends] if column.scale == "log1p" else ends
        decimals = ALL_DIGITS if column.decimals is None else column.decimals
        return ["real", index, _missing_below(*edges), column.scale, decimals, *ends]
    if column.kind == "integer":
        return ["code", index, _missing_below(float(column.low), float(column.high) + 1)]
    if column.kind in _LEVELS:
        return ["code", index, _missing_below(0.0, float(len(texts_of_levels(column))))]
    return _date_leaf(index, column)


def _date_leaf(index: int, column: ColumnFacts) -> Node:
    """The beginnings of units since ``low``: a line, or a list where months and years differ in length."""
    resolution = column.resolution or ("day" if column.kind == "date" else "minute")
    unit = f"datetime64[{_UNITS[resolution]}]"
    low, high = (np.datetime64(str(end), "s").astype(unit) for end in (column.low, column.high))
    floor = _missing_below(0.0, float((high - low).astype(np.int64) + 1))
    if resolution in ("month", "year"):
        beginnings = np.arange(low, high + 1).astype("datetime64[s]").astype(np.float64)
        return ["lookup", index, floor, beginnings.tolist()]
    first, second = (float(instant.astype("datetime64[s]").astype(np.float64)) for instant in (low, low + 1))
    return ["affine", index, floor, first, second - first]


def _missing_below(low: float, high: float) -> float:
    """Halfway from the lower edge to the value that stands for a missing one, ``low - (high - low)``."""
    return low - (high - low) / 2
