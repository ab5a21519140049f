"""Warnings for an owner whose stated facts were computed from the table."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import numpy as np

from pyro_mbde.private_files import PrivacyLeakWarning
from pyro_mbde.tables.cells import Numbers
from pyro_mbde.tables.columns import Column
from pyro_mbde.tables.kinds import Reading

#: Numbers that agree to six digits count as one.
_TOLERANCE = 5e-6
#: Fewer rows have shares and means that are round by chance.
_MIN_ROWS = 8
_QUANTILES = ("linear", "lower", "higher", "midpoint", "inverted_cdf", "median_unbiased", "hazen", "weibull")
_REMEDY = (
    "The guarantee holds for facts that were stated without looking at the table, and is void for others. Take them "
    "from a codebook or from a source that is public. If they are public and only happen to coincide, ignore this. "
    "Keep this warning to yourself: it depends on the table."
)


def warn_of_stated_statistics(columns: tuple[Column, ...], readings: list[Reading], *, stacklevel: int = 3) -> None:
    """Warns if a mean, deviation, quantile or share in the schema equals the table's to six digits.

    Numbers of one or two digits are taken for public, and tables of fewer than 8 rows are not looked at.

    Privacy:
        The warning depends on the table, and is for its owner. It contains no number of the table.

    Args:
        columns: of the schema.
        readings: their cells.
        stacklevel: of the warning.
    """
    found = [
        f"{name} of column {column.name!r}"
        for column, reading in zip(columns, readings, strict=True)
        if len(reading.codes) >= _MIN_ROWS
        for name in dict.fromkeys(_coinciding(column, reading))
    ]
    if found:
        listed = ", ".join(found)
        text = f"The schema's {listed} {'equals' if len(found) == 1 else 'equal'} what the table has. {_REMEDY}"
        warnings.warn(text, PrivacyLeakWarning, stacklevel=stacklevel)


def _coinciding(column: Column, reading: Reading) -> Iterator[str]:
    known = ~reading.missing
    for odd in reading.odd:
        if odd.moved is None:
            known = known & ~odd.where
    codes = reading.codes[known]
    if column.missing_share is not None and _equal(column.missing_share, float(reading.missing.mean())):
        yield "missing_share"
    if len(codes) < _MIN_ROWS:
        return
    if column.mean is not None and _equal(_number(column, column.mean), float(codes.mean())):
        yield "mean"
    if column.sd is not None and any(_equal(float(column.sd), float(codes.std(ddof=ddof))) for ddof in (0, 1)):
        yield "sd"
    for probability, value in (column.quantiles or {}).items():
        if column.kind != "real" and _number(column, value).is_integer():  # which often coincide
            continue
        if any(_equal(_number(column, value), one) for one in _quantiles(codes, probability)):
            yield "quantiles"
    for level, share in (column.shares or {}).items():
        here = int((codes == column.code(level)).sum())
        if any(_equal(share, here / total) for total in (len(codes), len(reading.codes))):
            yield "shares"
    if column.histogram is not None:
        counts = np.histogram(codes, [_number(column, edge) for edge in column.histogram["edges"]])[0]
        shares = column.histogram["shares"]
        if any(_equal(share, count / len(codes)) for share, count in zip(shares, counts, strict=True)):
            yield "histogram"


def _quantiles(codes: Numbers, probability: float) -> list[float]:
    if not 0 <= probability <= 1:
        return []
    # NumPy's types want each name of a method as a literal.
    found = (np.quantile(codes, probability, method=method) for method in _QUANTILES)  # type: ignore[call-overload]
    return [float(value) for value in found]


def _number(column: Column, value: object) -> float:
    """A stated value in the units of codes; that of a number is the number."""
    return float(value) if isinstance(value, int | float) else column.code(value)


def _equal(stated: float, own: float) -> bool:
    """Whether two numbers agree to six digits, and the stated one has more than two."""
    stated = float(stated)
    if not math.isfinite(stated) or math.isclose(stated, float(f"{stated:.1e}"), rel_tol=1e-9):
        return False
    return math.isclose(stated, own, rel_tol=_TOLERANCE)
