"""Columns of dates, and of dates with a time: numbers of units since the first."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from pyro_mbde._checks import argument_error, check_choice, counted
from pyro_mbde.tables.cells import Flags, Numbers, kind_of, present_cells
from pyro_mbde.tables.dates import (
    COARSE,
    NOT_ISO,
    RESOLUTIONS,
    TOO_EARLY_OR_LATE,
    ZONED,
    Moment,
    UnreadableDateError,
    add_units,
    count_units,
    iso_text,
    read_moment,
)
from pyro_mbde.tables.kinds import Kind, Odd, Reading, by_distinct_cell, put
from pyro_mbde.tables.number_kinds import MAX_INTEGER

if TYPE_CHECKING:
    import pandas as pd

    from pyro_mbde.tables.columns import Column

_NOTHING = np.datetime64("NaT", "s")
_ISO = "Write dates as 2020-01-31, and times as 2020-01-31 14:30, by a public rule."
_REMEDIES = {
    NOT_ISO: f"{_ISO} Which number is the day and which the month is not guessed.",
    ZONED: 'Declare timezone = "UTC" or that of the place, into which they are converted; or take the zone off.',
    COARSE: 'Declare resolution = "month" or "year", or write whole dates.',
    TOO_EARLY_OR_LATE: "Correct them, or leave them empty.",
}


class Date(Kind):
    """Dates: days, months or years since ``low``, which is 0."""

    name, distribution = "date", "integer"
    needs, takes = ("low", "high"), ("resolution", "timezone")
    _resolutions: ClassVar[tuple[str, ...]] = ("day", "month", "year")
    _default: ClassVar[str] = "day"

    def check(self, column: Column) -> None:
        """Checks resolution, time zone and range; both ends become the beginnings of their units."""
        resolution = self._default if column.resolution is None else column.resolution
        put(column, resolution=check_choice("resolution", resolution, self._resolutions))
        if column.timezone is not None:
            _check_timezone(column.timezone)
        ends = [_public(column, end, getattr(column, end)) for end in ("low", "high")]
        put(column, low=self._began(ends[0], 0, resolution), high=self._began(ends[1], 0, resolution))
        num_later = int(count_units(ends[1], ends[0], resolution))
        if num_later < 0:
            low = iso_text(column.low, resolution)
            raise ValueError(argument_error("high", f"be at least low = {low}", iso_text(column.high, resolution)))
        if num_later >= MAX_INTEGER:
            remedy = f"Take a coarser resolution than {resolution}."
            raise ValueError(f"high must be less than 2^32 {resolution}s after low, got {num_later:,}. {remedy}")

    def edges(self, column: Column) -> tuple[float, float]:
        """0, and the number of units from ``low`` to ``high``, both included."""
        return 0.0, float(count_units(_moment(column.high), _moment(column.low), _resolution(column)) + 1)

    def code(self, column: Column, value: Any) -> float:
        """The number of units since ``low``."""
        code = float(units_since_low(column, "value", value))
        if not 0 <= code < self.edges(column)[1]:
            raise ValueError(argument_error("value", f"be in {self.allowed(column)}", value))
        return code

    def value(self, column: Column, code: float) -> Any:
        """The beginning of a unit, as a date or datetime of Python."""
        return self._began(_moment(column.low), code, _resolution(column))

    def read(self, column: Column, series: pd.Series[Any]) -> Reading:
        """Units since ``low``; what is outside is moved to the nearest end."""
        moments, unreadable = self._moments(column, series)
        missing = np.isnat(moments)
        counts = count_units(np.where(missing, _moment(column.low), moments), _moment(column.low), _resolution(column))
        last = self.edges(column)[1] - 1
        beyond = ~missing & ((counts < 0) | (counts > last))
        outside = Odd(beyond, f"outside {self.allowed(column)}", "moved to the nearest end of the range")
        return Reading(counts.astype(np.float64).clip(0, last), missing, (outside,), unreadable)

    def write(self, column: Column, codes: Numbers, missing: Flags | None) -> Any:
        """A column of datetime64[s]: the beginnings of units."""
        moments = add_units(_moment(column.low), codes, _resolution(column))
        return moments if missing is None else np.where(missing, _NOTHING, moments)

    def allowed(self, column: Column) -> str:
        """The first and the last unit."""
        low, high = (iso_text(end, _resolution(column)) for end in (column.low, column.high))
        return f"[{low}, {high}]"

    def periods(self, column: Column) -> tuple[float, ...]:
        """Of a week and a year, as far as the resolution tells days apart."""
        return RESOLUTIONS[_resolution(column)].periods

    def _began(self, low: Moment, code: float, resolution: str) -> Any:
        begins: datetime = add_units(low, np.int64(code), resolution).item()
        return begins.date() if self.name == "date" else begins

    def _moments(self, column: Column, series: pd.Series[Any]) -> tuple[Any, str | None]:
        """The cells to the second, NaT where they are missing or unreadable; and what is unreadable."""
        import pandas as pd

        dtype = series.dtype
        if isinstance(dtype, pd.DatetimeTZDtype) and column.timezone is not None:
            series = series.dt.tz_convert(column.timezone).dt.tz_localize(None)
            dtype = series.dtype
        if isinstance(dtype, np.dtype) and dtype.kind == "M":
            return series.to_numpy().astype("datetime64[s]"), None

        def convert(cell: Any) -> Any:
            if isinstance(cell, str) and not cell.strip():
                return _NOTHING
            try:
                return read_moment(cell, _resolution(column), column.timezone)
            except UnreadableDateError as error:
                return str(error) or kind_of(cell)

        found = by_distinct_cell(series, present_cells(series), convert, _NOTHING)
        rows: dict[str, list[int]] = {}
        for row, one in enumerate(found, 1):
            if isinstance(one, str):
                rows.setdefault(one, []).append(row)
        said = [
            f"{kind} in {counted(len(where), 'cell')} of {len(found):,}, the first in row {where[0]:,}. "
            f"{_REMEDIES.get(kind, _ISO)}"
            for kind, where in rows.items()
        ]
        moments = np.array([_NOTHING if isinstance(one, str) else one for one in found], dtype="datetime64[s]")
        return moments, " ".join(said) or None


class Datetime(Date):
    """Dates with a time: seconds, minutes, hours or longer units since ``low``, which is 0."""

    name = "datetime"
    _resolutions = ("second", "minute", "hour", "day", "month", "year")
    _default = "minute"


def units_since_low(column: Column, name: str, value: Any) -> int:
    """Returns how many units a public date is after ``low``; it may be outside the range.

    Args:
        column: of dates or datetimes.
        name: what errors call the value.
        value: a date, datetime or text.
    """
    return int(count_units(_public(column, name, value), _moment(column.low), _resolution(column)))


def _public(column: Column, name: str, value: Any) -> Moment:
    try:
        return read_moment(value, _resolution(column), column.timezone)
    except UnreadableDateError as error:
        form = "2020-01-31" if column.kind == "date" else "2020-01-31 14:30"
        remedy = _REMEDIES.get(str(error), "")
        shown = value.isoformat() if hasattr(value, "isoformat") else value
        kind = ValueError if str(error) else TypeError
        raise kind(argument_error(name, f"be a date such as {form}", shown, remedy)) from None


def _resolution(column: Column) -> str:
    assert column.resolution is not None
    return column.resolution


def _moment(value: Any) -> Moment:
    return np.datetime64(value.isoformat(), "s")


def _check_timezone(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(argument_error("timezone", "be a string", name))
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        wanted = "be a name that the system knows, such as UTC or Europe/Paris"
        raise ValueError(argument_error("timezone", wanted, name)) from None
