"""Moments in time: as people write them, as NumPy's, and as numbers of days, months or minutes since one of them."""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Any, NamedTuple

import numpy as np

Moment = np.datetime64


class Resolution(NamedTuple):
    """How finely time is counted.

    Attributes:
        code: NumPy's letter for it.
        periods: after how many units a day, a week or a year begins again.
        digits: of an ISO text, as many as it leaves.
    """

    code: str
    periods: tuple[float, ...]
    digits: int


#: By name, from the coarsest. A year has 365.25 days.
RESOLUTIONS = {
    "year": Resolution("Y", (), 4),
    "month": Resolution("M", (12.0,), 7),
    "day": Resolution("D", (7.0, 365.25), 10),
    "hour": Resolution("h", (24.0, 168.0, 8766.0), 16),
    "minute": Resolution("m", (1440.0, 10080.0, 525960.0), 16),
    "second": Resolution("s", (86400.0, 604800.0, 31557600.0), 19),
}
_YEAR = re.compile(r"\d{4}", re.ASCII)
_MONTH = re.compile(r"\d{4}-\d{2}", re.ASCII)
_LOOKS_LIKE_A_DATE = re.compile(r"\d{1,4}[-/. ]+\w{1,9}[-/., ]+\d{1,4}([ T].*)?|\w+ \d{1,2},? \d{4}", re.ASCII)

NOT_ISO, ZONED, COARSE = "dates in another form than 2020-01-31", "times with a time zone", "dates without a day"
TOO_EARLY_OR_LATE = "dates outside the years 1 to 9999"


class UnreadableDateError(ValueError):
    """Says what a cell is that is not a date; its text is one of this module's kinds, and never the cell."""


def read_moment(cell: Any, resolution: str, timezone: str | None) -> Moment:
    """Returns a cell as a moment, to the second, as written; in a column's time zone where one is declared.

    Args:
        cell: a date, a datetime of Python, NumPy or pandas, a period, a text in ISO form, or, in a column of years, a
            number.
        resolution: of the column.
        timezone: of the column; None where none is declared.

    Raises:
        UnreadableDateError: it is nothing of this, or has a time zone where none is declared.

    Example:
        >>> read_moment("2020-01-31 10:30", "day", None)
        np.datetime64('2020-01-31T10:30:00')
        >>> read_moment("2020-01-31T23:30Z", "day", "Europe/Paris")
        np.datetime64('2020-02-01T00:30:00')
    """
    if isinstance(cell, str):
        return _of_text(cell.strip(), resolution, timezone)
    if isinstance(cell, np.datetime64):
        moment: Moment = cell.astype("datetime64[s]")
        return moment
    if hasattr(cell, "start_time"):  # pandas' period
        cell = cell.start_time
    if isinstance(cell, datetime):  # pandas' timestamp is one
        return _of_datetime(cell, timezone)
    if isinstance(cell, date):
        return np.datetime64(cell.isoformat(), "s")
    if resolution == "year" and isinstance(cell, int | float | np.integer | np.floating):
        if not isinstance(cell, bool) and float(cell).is_integer():
            return _of_year(int(cell))
    raise UnreadableDateError("")


def _of_text(text: str, resolution: str, timezone: str | None) -> Moment:
    if _YEAR.fullmatch(text.removesuffix(".0")) or _MONTH.fullmatch(text):
        given = "month" if "-" in text else "year"
        if list(RESOLUTIONS).index(given) < list(RESOLUTIONS).index(resolution):
            raise UnreadableDateError(COARSE)
        return _of_year(int(text[:4])) if given == "year" else np.datetime64(text, "s")
    try:
        return _of_datetime(datetime.fromisoformat(text), timezone)
    except UnreadableDateError:
        raise
    except ValueError:
        raise UnreadableDateError(NOT_ISO if _LOOKS_LIKE_A_DATE.fullmatch(text) else "") from None


def _of_year(year: int) -> Moment:
    if not 1 <= year <= 9999:
        raise UnreadableDateError(TOO_EARLY_OR_LATE)
    return np.datetime64(f"{year:04d}", "s")


def _of_datetime(moment: datetime, timezone: str | None) -> Moment:
    if moment.tzinfo is not None:
        if timezone is None:
            raise UnreadableDateError(ZONED)
        from zoneinfo import ZoneInfo

        try:
            moment = moment.astimezone(ZoneInfo(timezone))
        except OverflowError:  # the first day of year 1
            raise UnreadableDateError(TOO_EARLY_OR_LATE) from None
    return np.datetime64(moment.replace(tzinfo=None).isoformat(timespec="seconds"), "s")


def count_units(moments: Any, low: Moment, resolution: str) -> Any:
    """Returns how many units of a resolution moments lie after the unit of ``low``, rounded down; int64."""
    code = f"datetime64[{RESOLUTIONS[resolution].code}]"
    return moments.astype(code).astype(np.int64) - low.astype(code).astype(np.int64)


def add_units(low: Moment, counts: Any, resolution: str) -> Any:
    """Returns the beginnings of units that lie so many units after that of ``low``; datetime64[s]."""
    code = f"datetime64[{RESOLUTIONS[resolution].code}]"
    return (low.astype(code) + counts.astype(np.int64)).astype("datetime64[s]")


def iso_text(moment: Any, resolution: str) -> str:
    """Returns a date or datetime as people write it at a resolution.

    Example:
        >>> iso_text(datetime(2020, 1, 31, 10, 30), "month"), iso_text(date(2020, 1, 31), "day")
        ('2020-01', '2020-01-31')
    """
    return datetime.fromisoformat(moment.isoformat()).isoformat(" ")[: RESOLUTIONS[resolution].digits]
