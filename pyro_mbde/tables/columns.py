"""What is public about one column: its name, range and kind, and what becomes of values that it cannot hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import date, datetime
from typing import Any

import torch

from pyro_mbde._checks import argument_error, check_choice, check_number
from pyro_mbde.tables.date_kinds import Date, Datetime
from pyro_mbde.tables.kinds import Kind, check_needs, put
from pyro_mbde.tables.level_kinds import Boolean, Category, Ordered
from pyro_mbde.tables.number_kinds import Integer, Real

#: Kinds of columns by name; another kind is a line here.
KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (Real(), Integer(), Category(), Ordered(), Boolean(), Date(), Datetime())
}
OUTSIDE, LEVEL = ("clip", "drop", "refuse"), "level"
MISSING = ("drop", "refuse", LEVEL)
#: Share of missing values in the base of a column that keeps them, where none is stated.
DEFAULT_MISSING_SHARE = 0.1
#: What is publicly known of a column's distribution. At most one of these groups may be given.
FACTS = ("mean", "sd", "quantiles", "shares", "histogram", "distribution")
_POLICIES = ("name", "kind", "outside", "missing", "missing_share")


@dataclass(frozen=True, repr=False)
class Column:
    """What is public about one column.

    Values that the column cannot hold have a policy each, so that a table never decides whether a fit succeeds.

    Privacy:
        All of it must come from a codebook, a physical limit or the like; nothing of it from the table. The policies
        are fixed beforehand as well. ``refuse`` makes a failed fit tell that the table held such a value: where
        somebody else may learn whether a fit failed, take another policy.

    Args:
        name: of the column in the table.
        low: smallest value, in the table's own units; a date for columns of dates. Not for levels.
        high: largest value, which is allowed too; above ``low`` (or equal to it, for whole numbers and dates).
        kind: ``real``; ``integer`` for whole numbers, between -2^32 and 2^32; ``category`` and ``ordered`` for levels;
            ``boolean``; ``date``; ``datetime``.
        scale: ``linear``, or ``log1p`` for numbers whose logarithm ln(1 + x) is spread evenly: for incomes, counts and
            the like; needs ``low`` above -1.
        decimals: digits after the point that a released value is rounded to, -12 to 12; ``None`` does not round. Of
            real numbers alone. ``low`` and ``high`` must be rounded so themselves.
        outside: what becomes of values outside the range, infinite ones, fractions in a column of whole numbers, and
            unknown levels: ``clip`` moves them to the nearest value that is allowed and leaves out rows with unknown
            levels, to which none is nearest; ``drop`` leaves out all their rows; ``refuse`` raises.
        missing: what becomes of missing values: ``drop`` leaves out their rows, ``level`` keeps them as one more value,
            ``refuse`` raises, and any other value stands in for them. No value is nearest to a missing one, and a value
            that nobody chose would be seen as data: so the rows are left out by default.
        levels: of a category or an ordered column, 2 to 10,000 different texts or numbers, in order; of a boolean, the
            word for false and that for true.
        resolution: of dates ``day`` (the default), ``month`` or ``year``; of datetimes ``second``, ``minute`` (the
            default), ``hour`` or one of these.
        mean: public mean, in the table's own units; with ``sd``.
        sd: public standard deviation.
        quantiles: public quantiles, values by probability: ``{0.1: 20, 0.5: 41, 0.9: 75}``.
        shares: public shares of the levels, by level.
        histogram: public shares of intervals: ``{"edges": [...], "shares": [...]}``.
        distribution: a distribution of SciPy, by name, and its parameters: ``{"name": "gamma", "a": 2, "scale": 3}``.
        missing_share: public share of missing values, in (0, 1), for ``missing="level"``; 0.1 by default.
        timezone: of dates and datetimes: the time zone into which cells that have one are converted. Without it they
            are refused. Cells without a time zone are taken as written.

    Example:
        >>> Column("age", 0, 110, decimals=1).modelled_range
        (0.0, 110.0)
        >>> Column("ward", kind="category", levels=["A", "B", "C"]).modelled_range
        (0.0, 3.0)
        >>> Column("admitted", "2020-01-01", "2024-12-31", kind="date").code("2020-02-01")
        31.0
    """

    name: str
    low: Any = None
    high: Any = None
    kind: str = "real"
    scale: str = "linear"
    decimals: int | None = None
    outside: str = "clip"
    missing: Any = "drop"
    levels: tuple[Any, ...] | None = None
    resolution: str | None = None
    mean: Any = None
    sd: float | None = None
    quantiles: Mapping[float, Any] | None = field(default=None, hash=False)
    shares: Mapping[Any, float] | None = field(default=None, hash=False)
    histogram: Mapping[str, Any] | None = field(default=None, hash=False)
    distribution: Mapping[str, Any] | None = field(default=None, hash=False)
    missing_share: float | None = None
    timezone: str | None = None

    def __post_init__(self) -> None:
        """Checks the column."""
        if not isinstance(self.name, str):
            raise TypeError(argument_error("name", "be a string", self.name))
        if not self.name:
            raise ValueError(argument_error("name", "not be empty", self.name))
        if not self.name.isprintable():
            raise ValueError(argument_error("name", "be printable, on one line", self.name, "Rename the column."))
        try:
            check_choice("kind", self.kind, tuple(KINDS))
            check_needs(self, self.of_kind, COLUMN_KEYS, (*_POLICIES, *FACTS))
            self.of_kind.check(self)
            self._check_policies()
            self._check_facts()
        except (TypeError, ValueError) as error:
            raise type(error)(f"column {self.name!r}: {error}") from None

    def _check_policies(self) -> None:
        check_choice("outside", self.outside, OUTSIDE)
        if not isinstance(self.missing, str) or self.missing not in MISSING:
            allowed = f"a value that the column may hold, {self.of_kind.allowed(self)}"
            try:
                put(self, missing=self._normal(self.missing))
            except (TypeError, ValueError) as error:
                constraint = f"be {', '.join(MISSING)} or {allowed}"
                raise type(error)(argument_error("missing", constraint, self.missing)) from None
        if self.missing != LEVEL and self.missing_share is not None:
            remedy = 'It is for missing = "level".'
            raise ValueError(argument_error("missing_share", "be left out", self.missing_share, remedy))
        if self.missing_share is not None:
            share = check_number("missing_share", self.missing_share, "be in (0, 1)", lambda value: 0 < value < 1)
            put(self, missing_share=share)

    def _check_facts(self) -> None:
        for key in ("quantiles", "shares", "histogram", "distribution"):
            if isinstance(getattr(self, key), Mapping):
                put(self, **{key: self._in_one_form(key, getattr(self, key))})
        if self.mean is not None and "resolution" in self.of_kind.takes:
            put(self, mean=_as_given_or(self._normal, self.mean))
        if any(getattr(self, key) is not None for key in FACTS):
            from pyro_mbde.tables.marginals import check_facts  # which reads columns

            check_facts(self)

    def _in_one_form(self, name: str, table: Mapping[Any, Any]) -> dict[Any, Any]:
        """A table of facts with numbers and levels in place of the texts that files have as keys, and with dates."""
        if name == "shares":
            keys = [_as_given_or(lambda one: self.of_kind.of_key(self, one), key) for key in table]
            return dict(zip(keys if len(set(keys)) == len(keys) else table, table.values(), strict=True))
        if name == "quantiles":
            table = _undotted(table)
        numbers = {_as_given_or(float, key) if name == "quantiles" else key: table[key] for key in table}
        if "resolution" not in self.of_kind.takes:
            return numbers
        if name == "quantiles":
            return {key: _as_given_or(self._normal, value) for key, value in numbers.items()}
        if name == "histogram" and isinstance(edges := numbers.get("edges"), list | tuple):
            return {**numbers, "edges": [_as_given_or(self._normal, edge) for edge in edges]}
        return numbers

    def _normal(self, value: Any) -> Any:
        """A value that the column may hold in its one form: the level itself, a date of Python."""
        return self.of_kind.value(self, self.of_kind.code(self, value))

    @property
    def of_kind(self) -> Kind:
        """The kind itself, with what it does."""
        return KINDS[self.kind]

    @property
    def keeps_missing(self) -> bool:
        """Whether a missing value is kept, as one more value."""
        return isinstance(self.missing, str) and self.missing == LEVEL

    @property
    def modelled_range(self) -> tuple[float, float]:
        """Both ends of the column in the units it is modelled in; whole numbers and levels fill the unit above them."""
        return self.of_kind.edges(self)

    @property
    def periods(self) -> tuple[float, ...]:
        """Of dates: after how many units a day, a week or a year begins again."""
        return self.of_kind.periods(self)

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type that tells the column's values apart: float32, or float64 where that is too coarse."""
        return torch.float32 if self.of_kind.is_resolved(self, torch.float32) else torch.float64

    def code(self, value: Any) -> float:
        """Returns the number that stands for a public value: itself, the place of a level, or units since ``low``.

        Args:
            value: as the table has it.

        Raises:
            TypeError: it is of another kind.
            ValueError: the column cannot hold it.

        Example:
            >>> Column("stage", kind="ordered", levels=["I", "II", "III"]).code("II")
            1.0
        """
        try:
            return self.of_kind.code(self, value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"column {self.name!r}: {error}") from None

    def __repr__(self) -> str:
        """Shows what is not as by default."""
        shown = [(one.name, getattr(self, one.name)) for one in fields(self)]
        told = [f"{key}={value!r}" for key, value in shown if value != _DEFAULTS[key] or key == "kind"]
        return f"Column({', '.join(told)})"

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values that make the column again; dates as texts.

        Example:
            >>> Column("smoker", kind="boolean", missing=True).to_dict()
            {'name': 'smoker', 'kind': 'boolean', 'outside': 'clip', 'missing': True}
        """
        kind = self.of_kind
        known = (*kind.needs, *kind.takes, *_POLICIES, *FACTS)
        content = {key: _plain(getattr(self, key)) for key in COLUMN_KEYS if key in known}
        return {key: value for key, value in content.items() if value is not None}


#: Keys of a column, as files have them.
COLUMN_KEYS = tuple(one.name for one in fields(Column))
_DEFAULTS = {one.name: one.default for one in fields(Column)}


def _undotted(table: Mapping[Any, Any]) -> dict[Any, Any]:
    """A table with the keys that were meant: TOML reads 0.1 = 20 as a table named 0 with the key 1."""
    flat: dict[Any, Any] = {}
    for key, value in table.items():
        flat.update(
            {f"{key}.{part}": one for part, one in value.items()} if isinstance(value, Mapping) else {key: value}
        )
    return flat


def _as_given_or(convert: Callable[[Any], Any], value: Any) -> Any:
    """What a value is converted to, or itself where that fails: what is wrong with it is said later."""
    try:
        return convert(value)
    except (TypeError, ValueError):
        return value


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {_key(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)
