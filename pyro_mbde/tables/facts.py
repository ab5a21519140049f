"""What a schema may state about a column: read into numbers, and checked. Public, as all of a schema."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyro_mbde._checks import argument_error, check_number, listed, shown
from pyro_mbde.names import near_miss_hint
from pyro_mbde.tables.date_kinds import units_since_low

if TYPE_CHECKING:
    from pyro_mbde.tables.columns import Column

Numbers = np.ndarray[Any, np.dtype[np.float64]]
#: Ways to state how a column is distributed. A column has at most one of them; ``sd`` goes with ``mean``.
WAYS = ("mean", "quantiles", "shares", "histogram", "distribution")
LEVEL_KINDS, DATE_KINDS = ("category", "ordered", "boolean"), ("date", "datetime")
#: Quantiles, bins and shares of numbers that one column may have; and levels, which have a cell each.
MAX_ENTRIES, MAX_LEVELS = 2000, 4096
#: How far from 1 shares may add up to, as printed shares are rounded.
MAX_ROUNDING = 0.01


class Range(NamedTuple):
    """The allowed values of a column of numbers or dates, which are codes from 0.

    Attributes:
        low: smallest, in the table's units.
        high: largest, which is allowed too.
        whole: whether values are whole numbers.
        logarithmic: whether ln(1 + x) is modelled.
    """

    low: float
    high: float
    whole: bool
    logarithmic: bool

    def modelled(self, values: Any) -> Any:
        """Values in the units of the edges: ln(1 + x) for real columns of that scale; whole numbers as they are."""
        return np.log1p(values) if self.logarithmic and not self.whole else values

    def natural(self, values: Any) -> Any:
        """Values in the table's units: the inverse of :meth:`modelled`."""
        return np.expm1(values) if self.logarithmic and not self.whole else values

    @property
    def ends(self) -> tuple[float, float]:
        """First and last edge: whole numbers fill the unit above them."""
        return float(self.modelled(self.low)), float(self.modelled(self.high)) + self.whole


def range_of(column: Column) -> Range:
    """Returns the allowed values of a column of numbers or dates."""
    if column.kind in DATE_KINDS:
        return Range(0.0, column.modelled_range[1] - 1, True, False)
    return Range(float(column.low), float(column.high), column.kind == "integer", column.scale == "log1p")


def ways_of(kind: str) -> tuple[str, ...]:
    """Returns the ways in which a column of a kind may state its distribution."""
    if kind in LEVEL_KINDS:
        return ("shares",)
    return WAYS if kind == "integer" else tuple(way for way in WAYS if way != "shares")


def read_mean(column: Column) -> tuple[float, float | None]:
    """Returns mean and standard deviation in the table's units, of dates as codes."""
    mean, span = read_value(column, "mean", column.mean), range_of(column)
    if not span.low < mean < span.high:
        low, high = _ends(column)[1:-1].split(", ")
        remedy = "Check its unit, and low and high."
        raise ValueError(argument_error("mean", f"lie strictly between {low} and {high}", _plain(column.mean), remedy))
    if column.sd is None:
        return mean, None
    sd = check_number("sd", column.sd, "be above 0 and finite", lambda value: 0 < value < math.inf)
    return mean, sd


def read_quantiles(column: Column) -> tuple[Numbers, Numbers]:
    """Returns levels and values of the distribution function: it rises from 0 to 1 over them.

    Between two values the law is uniform. Values are edges in the table's units; the quantile n of a column of whole
    numbers is the edge n + 1. Several levels at one whole number are the mass of that number.
    """
    span, given = range_of(column), _table("quantiles", column.quantiles)
    pairs = sorted((_level(key), read_value(column, f"quantiles[{key}]", value)) for key, value in given.items())
    if len({level for level, _ in pairs}) < len(pairs):
        raise ValueError(argument_error("quantiles", "have different levels", list(given)))
    for (level, value), (later, above) in zip([(0.0, span.low), *pairs], [*pairs, (1.0, span.high)], strict=True):
        if value > above:
            found = f"{shown(value)} at {shown(level)} and {shown(above)} at {shown(later)}"
            raise ValueError(f"quantiles must rise within {_ends(column)}, got {found}.")
        if value == above and not span.whole:
            remedy = (
                "A column of real numbers has no such atoms: leave out one of the two levels (0 is the level of low, 1 "
                "that of high), or state a histogram with a narrow bin there."
            )
            found = f"{shown(value)} at both {shown(level)} and {shown(later)}"
            raise ValueError(f"quantiles must be different values at different levels, got {found}. {remedy}")
    if not span.whole:
        points = [(0.0, span.low), *pairs, (1.0, span.high)]
        return np.array([level for level, _ in points]), np.array([value for _, value in points])
    # P(X <= v) = level, which is the edge v + 1. Of several levels at v, the lowest is P(X <= v - 1) unless that is
    # stated; the end of the range has the level 1.
    levels = {span.low: 0.0}
    for value in sorted({value for _, value in pairs}):
        own = [level for level, other in pairs if other == value] + ([1.0] if value == span.high else [])
        if len(own) > 1:
            levels.setdefault(value, own[0])
        levels[value + 1] = own[-1]
    levels[span.high + 1] = 1.0
    edges = sorted(levels)
    return np.array([levels[edge] for edge in edges]), np.array(edges)


def read_histogram(column: Column) -> tuple[Numbers, Numbers]:
    """Returns edges, in the table's units, and the shares between them; whole numbers end at ``high + 1``."""
    span, given = range_of(column), _table("histogram", column.histogram)
    if set(given) != {"edges", "shares"}:
        raise ValueError(argument_error("histogram", "have the keys edges and shares", sorted(map(str, given))))
    for part in ("edges", "shares"):
        if isinstance(given[part], str) or not isinstance(given[part], Sequence | np.ndarray):
            raise TypeError(argument_error(f"histogram {part}", "be a list", given[part]))
    if len(given["edges"]) != len(given["shares"]) + 1 or not len(given["shares"]):
        found = f"{len(given['edges'])} edges and {len(given['shares'])} shares"
        raise ValueError(f"histogram must have one edge more than shares, got {found}.")
    if len(given["shares"]) > MAX_ENTRIES:
        raise ValueError(f"histogram must have at most {MAX_ENTRIES:,} bins, got {len(given['shares']):,}. Join some.")
    edges = np.array([read_value(column, "histogram edges", edge, free=True) for edge in given["edges"]])
    if span.whole:  # the first whole number of a bin; the last bin may be given with or without its last number
        edges = np.ceil(edges)
        edges[-1] += edges[-1] == span.high
    last = span.high + span.whole
    if edges[0] != span.low or edges[-1] != last:
        found = f"{_plain(given['edges'][0])} and {_plain(given['edges'][-1])}"
        raise ValueError(f"histogram edges must start and end at the ends of the range {_ends(column)}, got {found}.")
    if not (np.diff(edges) > 0).all():
        where = int(np.argmax(np.diff(edges) <= 0))
        found = f"{_plain(given['edges'][where])} before {_plain(given['edges'][where + 1])}"
        holding = ", with a whole number in each bin" if span.whole else ""
        raise ValueError(f"histogram edges must rise{holding}, got {found}.")
    shares = np.array([_share("histogram shares", share, zero=True) for share in given["shares"]])
    return edges, _summing_to_one("histogram shares", shares)


def read_level_shares(column: Column) -> Numbers:
    """Returns the share of each level, in order."""
    given, kind = _table("shares", column.shares, MAX_LEVELS), column.of_kind
    levels = (False, True) if column.kind == "boolean" else tuple(column.levels or ())
    words = column.levels or ("false", "true")
    found: dict[Any, float] = {}
    for key, share in given.items():
        try:
            level = kind.of_key(column, key)
        except ValueError:
            remedy = near_miss_hint(str(key), [str(word) for word in words]) or f"They are {listed(words)}."
            raise ValueError(argument_error("shares", "name levels of the column", key, remedy)) from None
        if level in found:
            raise ValueError(argument_error("shares", "name each level once", key))
        found[level] = _share(f"shares[{key}]", share)
    if left := [word for level, word in zip(levels, words, strict=True) if level not in found]:
        raise ValueError(f"shares must give a share to every level, got none for {listed(left)}. State them too.")
    return _summing_to_one("shares", np.array([found[level] for level in levels]))


def read_number_shares(column: Column) -> tuple[dict[int, float], float]:
    """Returns the shares of some whole numbers, and that of each other allowed number."""
    span, shares = range_of(column), {}
    for key, share in _table("shares", column.shares).items():
        value = _number(key)
        if value is None or not value.is_integer() or not span.low <= value <= span.high:
            raise ValueError(argument_error("shares", f"name whole numbers within {_ends(column)}", key))
        if int(value) in shares:
            raise ValueError(argument_error("shares", "name each number once", key))
        shares[int(value)] = _share(f"shares[{key}]", share)
    others, total = int(span.high - span.low) + 1 - len(shares), math.fsum(shares.values())
    if not others:
        values = _summing_to_one("shares", np.array(list(shares.values())))
        return dict(zip(shares, values.tolist(), strict=True)), 0.0
    if total > 1 - 1e-9:
        remedy = "Lower them, or name every number that is allowed."
        wanted = f"leave something for the {others:,} other numbers within {_ends(column)}"
        raise ValueError(f"shares must {wanted}, got the sum {shown(total)}. {remedy}")
    return shares, (1 - total) / others


def read_value(column: Column, name: str, value: Any, *, free: bool = False) -> float:
    """Returns a value in the table's units, of a date as a code; within the range unless ``free``."""
    if column.kind in DATE_KINDS:
        number = float(units_since_low(column, name, value))
    else:
        number = check_number(name, value, "be finite", math.isfinite)
    span = range_of(column)
    if not free and not span.low <= number <= span.high:
        raise ValueError(argument_error(name, f"be within {_ends(column)}", _plain(value)))
    if span.whole and not free and not number.is_integer() and name != "mean":
        raise ValueError(argument_error(name, "be a whole number", value))
    return number


def _table(name: str, value: Any, most: int = MAX_ENTRIES) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        examples = {
            "quantiles": "{0.25 = 10, 0.75 = 30}",
            "histogram": "{edges = [0, 10, 20], shares = [0.4, 0.6]}",
            "shares": "{yes = 0.3, no = 0.7}",
        }
        remedy = f"For example {examples[name]}."
        raise TypeError(argument_error(name, "be a table", value, remedy))
    if not 1 <= len(value) <= most:
        raise ValueError(f"{name} must have 1 to {most:,} entries, got {len(value):,}.")
    return value


def _level(key: Any) -> float:
    level = _number(key)
    if level is None or not 0 < level < 1:
        raise ValueError(argument_error("quantiles", "have levels between 0 and 1, as 0.5 for the median", key))
    return level


def _number(key: Any) -> float | None:
    """The number that a key is; keys of TOML and JSON are text."""
    try:
        number = float(key)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and not isinstance(key, bool) else None


def _share(name: str, value: Any, *, zero: bool = False) -> float:
    constraint = "be a share from 0 to 1" if zero else "be a share above 0 and at most 1"
    remedy = "" if zero else "A value that cannot occur must be left out of the column's levels or range."
    if isinstance(value, int | float) and 1 < value <= 100:
        remedy = "Divide percentages by 100."
    return check_number(name, value, constraint, lambda v: (v >= 0 if zero else v > 0) and v <= 1, remedy=remedy)


def _summing_to_one(name: str, shares: Numbers) -> Numbers:
    total = math.fsum(shares)
    if not abs(total - 1) <= MAX_ROUNDING + 1e-12:
        remedy = "Check that none is missing or counted twice; divide counts by their sum."
        raise ValueError(f"{name} must add up to 1 (within {MAX_ROUNDING}), got the sum {shown(total)}. {remedy}")
    return shares / total


def _ends(column: Column) -> str:
    low, high = _plain(column.low), _plain(column.high)
    if column.kind in DATE_KINDS:
        return f"[{low}, {high}]"
    return f"[{float(low):.15g}, {float(high):.15g}]"


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, date) else value
