"""What is public about a table: its columns' names, ranges and kinds, stated without looking at it."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_mbde._runtime import check_choice, check_count, check_number, check_seed, message, seeded
from pyro_mbde.names import check_distinct, look_alike_hint, same_names

KINDS, SCALES, OUTSIDE = ("real", "integer"), ("linear", "log1p"), ("error", "clip")

#: A whole number n is spread over [n + margin, n + 1 - margin], so that rounding, to a dtype and by a scale, never
#: carries it into the next unit.
_MARGIN = 2.0**-8
#: Largest size of a value over its resolution, 1 for a whole number and 10^-decimals for a rounded one, that float32
#: tells apart: on the logarithmic scale, an x below 2^12 is ln(1 + x) < 16, kept to 2^-21, so x to 2^12 2^-21 = 2^-9,
#: and one below 2^17 to 2^-4 of its resolution.
_FLOAT32_INTEGERS, _FLOAT32_DECIMALS = 2.0**12, 2.0**17
#: Largest whole number; in float64, ln(1 + x) < 32 is kept to 2^-49, so x to 2^32 2^-49 = 2^-17.
_LARGEST_INTEGER = 2.0**32
_MOST_DECIMALS = 12
_OWNER = "This message tells about the table, counts and all: it is for the table's owner alone."


@dataclass(frozen=True)
class Column:
    """What is public about one column.

    Privacy:
        All of it must come from a codebook, a physical limit or the like; nothing of it from the table.

    Args:
        name: of the column in the table.
        low: smallest value, in the table's own units.
        high: largest value, which is allowed too; above ``low`` (or equal to it, for whole numbers).
        kind: ``real``, or ``integer`` for whole numbers, between -2^32 and 2^32.
        scale: ``linear``, or ``log1p`` to model ln(1 + x): for incomes, counts and the like; needs ``low`` above -1.
        decimals: digits after the point that a released value is rounded to, -12 to 12; ``None`` does not round. Not
            for whole numbers.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: an argument is out of its range.

    Example:
        >>> Column("age", 0, 110, decimals=1)
        Column(name='age', low=0.0, high=110.0, kind='real', scale='linear', decimals=1)
    """

    name: str
    low: float
    high: float
    kind: str = "real"
    scale: str = "linear"
    decimals: int | None = None

    def __post_init__(self) -> None:
        """Checks the column."""
        if not isinstance(self.name, str):
            raise TypeError(message("name", "be a string", self.name))
        if not self.name:
            raise ValueError(message("name", "not be empty", self.name))
        try:
            self._check()
        except (TypeError, ValueError) as error:
            raise type(error)(f"column {self.name!r}: {error}") from None

    def _check(self) -> None:
        for end in ("low", "high"):
            object.__setattr__(self, end, check_number(end, getattr(self, end), "be finite", math.isfinite))
        if check_choice("kind", self.kind, KINDS) == "integer":
            for end in ("low", "high"):
                check_number(end, getattr(self, end), "be a whole number between -2^32 and 2^32", _is_modelled_integer)
            check_number("high", self.high, f"be at least low = {self.low:g}", lambda value: value >= self.low)
            if self.decimals is not None:
                raise ValueError(message("decimals", "be left out", self.decimals, "A whole number has none."))
        else:
            check_number("high", self.high, f"be above low = {self.low:g}", lambda value: value > self.low)
        if check_choice("scale", self.scale, SCALES) == "log1p":
            remedy = "ln(1 + x) is defined there alone."
            check_number("low", self.low, "be above -1 for the scale log1p", lambda value: value > -1, remedy=remedy)
        if self.decimals is not None:
            decimals = check_count("decimals", self.decimals, minimum=-_MOST_DECIMALS)
            check_number("decimals", decimals, f"be at most {_MOST_DECIMALS}", lambda value: value <= _MOST_DECIMALS)

    @property
    def modelled_range(self) -> tuple[float, float]:
        """Both ends of the column in the units it is modelled in; whole numbers fill the unit above them."""
        return self._modelled(self.low), self._modelled(self.high + (self.kind == "integer"))

    @property
    def needs_float64(self) -> bool:
        """Whether float32 would mix up neighbouring values."""
        size = max(abs(self.low), abs(self.high))
        if self.kind == "integer":
            return size >= _FLOAT32_INTEGERS
        return self.decimals is not None and size * 10.0**self.decimals > _FLOAT32_DECIMALS

    def _modelled(self, value: float) -> float:
        return math.log1p(value) if self.scale == "log1p" else value

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


@dataclass(frozen=True)
class Schema:
    """What is public about a table: the columns that are modelled, in order.

    It gives the public base, turns the table into rows of a tensor, and draws back into a table.

    Privacy:
        A schema is public, so nothing of it may come from the table: no observed minimum, maximum, mean or category.

    Args:
        columns: at least one, with names of their own.

    Raises:
        TypeError: a column is none.
        ValueError: there is no column, or two have the same name.

    Example:
        >>> schema = Schema((Column("age", 18, 100, "integer"), Column("cost", 0, 1e6, scale="log1p", decimals=2)))
        >>> rows = schema.to_tensor(pd.DataFrame({"age": [30, 44], "cost": [0.0, 1234.5], "name": ["A", "B"]}), seed=0)
        >>> schema.base().support.check(rows)
        tensor([True, True])
        >>> schema.to_frame(rows)
           age    cost
        0   30     0.0
        1   44  1234.5
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        """Checks the columns."""
        columns = tuple(self.columns) if isinstance(self.columns, Iterable) else (self.columns,)
        for column in columns:
            if not isinstance(column, Column):
                raise TypeError(message("columns", "be Columns", column))
        if not columns:
            raise ValueError(message("columns", "name at least one", columns))
        names = [column.name for column in columns]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(message("columns", "have names of their own", name, "It is there twice."))
        check_distinct("columns", names)
        object.__setattr__(self, "columns", columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of rows: float32, or float64 where that would mix up neighbouring values."""
        return torch.float64 if any(column.needs_float64 for column in self.columns) else torch.float32

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Schema:
        """Reads a schema from plain values, as a TOML or JSON file has them.

        Args:
            content: ``{"columns": [{"name": ..., "low": ..., "high": ..., ...}, ...]}``.

        Raises:
            TypeError: a part is of the wrong kind.
            ValueError: a key is unknown or missing, or a value out of its range.

        Example:
            >>> Schema.from_dict({"columns": [{"name": "age", "low": 0, "high": 110}]}).names
            ('age',)
        """
        if not isinstance(content, Mapping):
            raise TypeError(message("schema", "be a table of columns", type(content).__name__))
        _check_keys("schema", content, ["columns"], ["columns"])
        if not isinstance(content["columns"], list | tuple):
            raise TypeError(message("columns", "be a list, [[columns]] in TOML", type(content["columns"]).__name__))
        known = [field.name for field in fields(Column)]
        columns = []
        for number, entry in enumerate(content["columns"], 1):
            if not isinstance(entry, Mapping):
                raise TypeError(message(f"column {number}", "be a table of name, low and high", entry))
            _check_keys(f"column {number}", entry, known, known[:3])
            columns.append(Column(**entry))
        return cls(tuple(columns))

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Schema:
        """Reads a schema from a TOML file of ``[[columns]]``.

        Args:
            path: the file.

        Raises:
            OSError: the file cannot be read.
            TypeError: a part is of the wrong kind.
            ValueError: the file is no TOML, a key is unknown or missing, or a value out of its range.
        """
        try:
            content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:  # of TOML and of UTF-8
            raise ValueError(message("path", "name a TOML file", os.fspath(path), f"{error}.")) from error
        return cls.from_dict(content)

    def to_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Returns plain values that :meth:`from_dict` reads.

        Example:
            >>> Schema((Column("age", 0, 110),)).to_dict()
            {'columns': [{'name': 'age', 'low': 0.0, 'high': 110.0, 'kind': 'real', 'scale': 'linear'}]}
        """
        return {
            "columns": [
                {key: value for key, value in asdict(column).items() if value is not None} for column in self.columns
            ]
        }

    def base(self) -> dist.TorchDistribution:
        """Returns the public base Q0: uniform on the box of the columns' ranges, in the modelled units.

        Returns:
            A distribution with event shape ``(d,)``.
        """
        low, high = self._box()
        uniform: Any = dist.Uniform  # Pyro leaves it unannotated
        base: dist.TorchDistribution = uniform(low, high).to_event(1)
        return base

    def to_tensor(self, frame: pd.DataFrame, *, outside: str = "error", seed: int | None = None) -> Tensor:
        """Returns the table as rows in the modelled units.

        A density is no good at spikes, so whole numbers are spread evenly over the unit above them; :meth:`to_frame`
        rounds them down again. Columns that the schema does not name are left out.

        Privacy:
            Errors tell column names and counts, never a value; counts are private too, so that errors are for the
            table's owner alone. The guarantee holds for whatever is done to the table here.

        Args:
            frame: the table.
            outside: what to do with values outside a column's public range: ``error``, or ``clip`` to move them to its
                ends.
            seed: of the spreading; ``None`` draws from torch's global generator.

        Returns:
            Tensor of shape ``(n, d)`` and type :attr:`dtype`, inside the support of :meth:`base`.

        Raises:
            TypeError: ``frame`` is no DataFrame, or a column holds no numbers.
            ValueError: a column is not there or twice; or has values that are missing, infinite, fractions of whole
                numbers, or outside its public range.
        """
        check_choice("outside", outside, OUTSIDE)
        seed = check_seed(seed)
        if not isinstance(frame, pd.DataFrame):
            raise TypeError(message("frame", "be a DataFrame", type(frame).__name__))
        frame = frame.rename(columns=same_names(self.names, frame.columns))
        _check_columns(frame, self.names)
        values = {name: frame[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in self.names}
        problems = [
            f"column {column.name!r}: {problem}"
            for column in self.columns
            for problem in _find_problems(column, values[column.name], outside)
        ]
        if problems:
            raise ValueError("\n  ".join(["The table must fit its schema, and does not:", *problems]) + f"\n{_OWNER}")
        low, high = self._box()
        with seeded(seed):
            modelled = [
                column._to_modelled(torch.from_numpy(values[column.name].clip(column.low, column.high)))
                for column in self.columns
            ]
        return torch.stack(modelled, -1).to(self.dtype).clamp(low, high)

    def to_frame(self, rows: Any) -> pd.DataFrame:
        """Turns rows in the modelled units into a table in its own: rounded, and clipped into the public ranges.

        Privacy:
            Post-processing: of draws that may be handed out, so may be the table.

        Args:
            rows: tensor or array of shape ``(n, d)``.

        Returns:
            The table; whole numbers are of type int64.

        Raises:
            ValueError: ``rows`` has another shape, or values that are NaN or infinite.
        """
        array = np.asarray(rows.detach().cpu() if isinstance(rows, Tensor) else rows, dtype=np.float64)
        if array.ndim != 2 or array.shape[1] != len(self.columns):
            raise ValueError(message("rows", f"have shape (n, {len(self.columns)})", array.shape))
        if not np.isfinite(array).all():
            raise ValueError("rows must be finite, got NaN or infinite values.")
        return pd.DataFrame(
            {column.name: column._to_natural(values) for column, values in zip(self.columns, array.T, strict=True)}
        )

    def _box(self) -> tuple[Tensor, Tensor]:
        low, high = torch.tensor([column.modelled_range for column in self.columns], dtype=self.dtype).unbind(-1)
        return low, high


def _check_keys(subject: str, content: Mapping[str, Any], known: list[str], required: list[str]) -> None:
    for key in content:
        if key not in known:
            raise ValueError(f"{subject} must have keys among {', '.join(known)}, got the key {key!r}.")
    for key in required:
        if key not in content:
            raise ValueError(f"{subject} must have the key {key!r}, which is not there.")


def _check_columns(frame: pd.DataFrame, names: tuple[str, ...]) -> None:
    """Raises if a column is not there, is there twice, or holds anything but real numbers."""
    there = list(frame.columns)
    missing = [name for name in names if name not in there]
    if missing:
        remedy = f"{look_alike_hint(missing, there)} {_OWNER}"
        raise ValueError(f"The table must have all columns of its schema, got none named {_listed(missing)}.{remedy}")
    repeated = [name for name in names if there.count(name) > 1]
    if repeated:
        raise ValueError(f"The table must have each column once, got several named {_listed(repeated)}. {_OWNER}")
    types = pd.api.types
    wrong = [
        name
        for name in names
        if not types.is_numeric_dtype(frame[name].dtype) or types.is_complex_dtype(frame[name].dtype)
    ]
    if wrong:
        remedy = "Encode text and dates as numbers, by a public rule; look for cells that are no numbers."
        raise TypeError(
            f"The table must hold real numbers in all columns, got others in {_listed(wrong)}. {remedy} {_OWNER}"
        )


def _find_problems(column: Column, values: np.ndarray[Any, np.dtype[np.float64]], outside: str) -> list[str]:
    """What is wrong with a column's values, each with how many and what to do."""
    finite = values[np.isfinite(values)]
    beyond = (finite < column.low) | (finite > column.high)
    checks: list[tuple[Any, str, str]] = [
        (np.isnan(values), "missing", "Drop such rows or fill them in, by a public rule."),
        (np.isinf(values), "infinite", "Drop such rows, by a public rule."),
        (beyond, f"outside the public range [{column.low:g}, {column.high:g}]", _WIDEN),
    ]
    if outside == "clip":
        del checks[-1]
    if column.kind == "integer":
        remedy = "Round them by a public rule, or declare the column real."
        checks.append((finite != np.floor(finite), "not whole", remedy))
    return [f"{_counted(int(wrong.sum()))} {what}. {remedy}" for wrong, what, remedy in checks if wrong.any()]


def _is_modelled_integer(value: float) -> bool:
    return value.is_integer() and abs(value) <= _LARGEST_INTEGER


_WIDEN = "Clip them (outside='clip'), or widen the range, if there is a public reason to."


def _counted(number: int) -> str:
    return f"{number:,} value is" if number == 1 else f"{number:,} values are"


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names))
