"""The values in a constraint: its columns, levels, dates and numbers, and what is calculated from them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from pyro_mbde._checks import listed
from pyro_mbde.density.predicates import Node
from pyro_mbde.names import look_alike_hint, near_miss_hint, normal_name
from pyro_mbde.tables.constraint_columns import (
    ColumnFacts,
    code_of_level,
    have_same_levels,
    kind_of_value,
    leaf_of,
    texts_of_levels,
)
from pyro_mbde.tables.constraint_text import Node as Part
from pyro_mbde.tables.constraint_text import Source

_SECONDS_A_DAY = 86400.0
_DATE = re.compile(r"(\d{4})(?:-(\d{2}))?(?:-(\d{2})(?:[ T](\d{2}):(\d{2})(?::(\d{2}))?)?)?", re.ASCII)


class Value(NamedTuple):
    """What a part stands for.

    Attributes:
        kind: ``number``, ``date`` (in seconds since 1970-01-01), ``level`` (a code), or what is not known yet: ``text``
            in quotes, or a ``word`` that is not the name of a column.
        part: where it stands.
        code: the node that is evaluated.
        column: the column, where it is nothing else.
        constant: the number, where it depends on no column.
    """

    kind: str
    part: Part
    code: Node
    column: ColumnFacts | None = None
    constant: float | None = None


def _constant(kind: str, part: Part, number: float) -> Value:
    return Value(kind, part, ["number", float(number)], None, float(number))


class Values:
    """Parts of one text as values, alone and in pairs."""

    def __init__(self, source: Source, columns: Sequence[ColumnFacts]) -> None:
        self.source = source
        self.columns = list(columns)
        self.names = {normal_name(column.name): index for index, column in enumerate(self.columns)}

    def pair(self, left: Part, right: Part) -> tuple[Value, Value]:
        """Two values that can be compared; what is not known yet is known from the other."""
        for part, across in ((left, right), (right, left)):
            self.check_quoted(part, across)
        one, other = self.value(left), self.value(right)
        if one.kind == "level" or other.kind == "level":
            one, other = self.levels(one, other), self.levels(other, one)
        else:
            one, other = self.date_across(one, other), self.date_across(other, one)
        for value in (one, other):
            if value.kind == "word":
                raise self.unknown(value.part)
        if one.kind != other.kind:
            raise self.unlike(one, other)
        if one.kind == "text" or (one.constant is not None and other.constant is not None):
            remedy = "A name in quotes is a text: write it without quotes, or in `backticks`."
            remedy = remedy if one.kind == "text" else "Both sides are fixed values."
            raise self.source.error("compare something with a column", spanning(left, right), remedy)
        return one, other

    def levels(self, value: Value, across: Value) -> Value:
        """A value as it is across from another one, if that is a column of levels."""
        column = across.column
        if across.kind != "level" or column is None:
            return value
        piece = self.source.piece(value.part)
        if value.column is not None:
            if value.part.kind == "word" and code_of_level(column, piece, None) is not None:
                remedy = f"Write {piece!r} in quotes for the level, `{piece}` in backticks for the column."
                raise self.source.error("say what it means: a level and a column have this name", value.part, remedy)
            if value.kind != "level" or not have_same_levels(value.column, column):
                raise self.unlike(value, across)
            return value
        if value.kind not in ("word", "text", "number") or value.constant is None and value.kind == "number":
            raise self.unlike(value, across)
        code = code_of_level(column, value.part.value if value.kind in ("word", "text") else piece, value.constant)
        if code is None:
            raise self.source.error(
                f"name a level of {column.name!r}", value.part, self.other_levels(column, value.part)
            )
        return _constant("level", value.part, code)

    def date_across(self, value: Value, across: Value) -> Value:
        """A value as it is across from another one, if that is a date; a year is a date across from years."""
        if across.kind != "date" or value.part.kind not in ("text", "number"):
            return value
        resolution = (across.column.resolution if across.column is not None else None) or "day"
        if value.kind == "text" or (resolution == "year" and len(value.part.value) == 4):
            return self.date(value.part, value.part.value, resolution)
        return value

    def date(self, part: Part, text: str, resolution: str = "day") -> Value:
        """A date in text."""
        found = _DATE.fullmatch(text.strip())
        digits = [int(piece) for piece in found.groups() if piece is not None] if found is not None else []
        if len(digits) < {"year": 1, "month": 2}.get(resolution, 3):
            remedy = "Write it as 2020-01-31, or with a time as '2020-01-31 12:00'."
            raise self.source.error("have a date here", part, remedy)
        try:
            year, month, day = [*digits, 1, 1][:3]
            hour, minute, second = [*digits[3:], 0, 0, 0][:3]
            instant = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        except ValueError as error:
            raise self.source.error("have dates of the calendar", part, f"{str(error).capitalize()}.") from None
        return _constant("date", part, instant.timestamp())

    def value(self, part: Part) -> Value:
        """A part that is a number, a date, a level, or a text whose meaning depends on what it is compared with."""
        match part.kind:
            case "word" | "name":
                index = self.names.get(normal_name(part.value))
                if index is not None:
                    column = self.columns[index]
                    return Value(kind_of_value(column), part, leaf_of(index, column), column)
                if part.kind == "name":
                    raise self.unknown(part)
                return Value("word", part, [])
            case "text":
                return Value("text", part, [])
            case "date":
                return self.date(part, part.value)
            case "number":
                number = float(part.value)
                if math.isinf(number):
                    raise self.source.error("have numbers that a float holds", part)
                return _constant("number", part, number)
            case "negate":
                value = self.quantity(part.parts[0])
                return self.calculated(part, "negate", [self.only_number(value)])
            case "*" | "/":
                return self.calculated(part, part.kind, [self.only_number(self.quantity(one)) for one in part.parts])
            case "sum":
                first, *others = part.parts
                total = self.quantity(first)
                for sign, other in zip(part.value[1:], others, strict=True):
                    total = self.added(spanning(first, other), total, sign, self.quantity(other))
                return total
        remedy = "A condition is not a value. Levels of several words go in 'quotes'."
        raise self.source.error("have a column or a value here", part, remedy)

    def quantity(self, part: Part) -> Value:
        """A part to calculate with."""
        value = self.value(part)
        if value.kind == "word":
            raise self.unknown(part)
        if value.kind == "level" and value.column is not None:
            remedy = f"{value.column.name!r} has levels. A column of numbers has the kind real or integer."
            raise self.source.error("calculate with numbers and dates alone", part, remedy)
        return value

    def only_number(self, value: Value) -> Value:
        """A value, or an error if it is not a number."""
        if value.kind != "number":
            remedy = "Dates can be subtracted from one another, which gives days." if value.kind == "date" else ""
            remedy = "Write the number without quotes." if value.kind == "text" else remedy
            raise self.source.error("calculate with numbers here", value.part, remedy)
        return value

    def date_or_number(self, value: Value) -> Value:
        """A value to add; a text is a date if it reads like one."""
        if value.kind == "text" and _DATE.fullmatch(value.part.value.strip()):
            return self.date(value.part, value.part.value)
        return value if value.kind == "date" else self.only_number(value)

    def added(self, place: Part, one: Value, sign: str, other: Value) -> Value:
        """A sum or a difference: of numbers, of a date and days, or of two dates, which is in days."""
        one, other = self.date_or_number(one), self.date_or_number(other)
        if one.kind == other.kind == "date":
            if sign == "+":
                raise self.source.error("add days to a date", place, "The difference of two dates is in days.")
            seconds = self.calculated(place, "+", [one, self.calculated(other.part, "negate", [other])])
            return self.calculated(place, "/", [seconds, _constant("number", place, _SECONDS_A_DAY)])
        if other.kind == "date" and sign == "-":
            raise self.source.error("subtract days from a date", place, "Write the date first.")
        if "date" in (one.kind, other.kind):
            day = _constant("number", place, _SECONDS_A_DAY)
            one, other = (
                value if value.kind == "date" else self.calculated(value.part, "*", [value, day])
                for value in (one, other)
            )
        terms = [one, other if sign == "+" else self.calculated(other.part, "negate", [other])]
        total = self.calculated(place, "+", terms)
        return total._replace(kind="date" if "date" in (one.kind, other.kind) else "number")

    def calculated(self, part: Part, sign: str, values: Sequence[Value]) -> Value:
        """An operation on numbers; of constants, its result."""
        constants = [value.constant for value in values if value.constant is not None]
        if sign == "/" and values[1].constant == 0:
            raise self.source.error("not divide by zero", part)
        if len(constants) == len(values):
            result = _result(sign, constants)
            if not math.isfinite(result):
                raise self.source.error("have numbers that a float holds", part)
            return _constant("number", part, result)
        codes = [value.code for value in values]
        if sign == "+" and codes[0][0] == "+":
            codes = [*codes[0][1:], *codes[1:]]  # one list for all terms, so that a long sum is not deep
        return Value("number", part, [sign, *codes])

    def check_quoted(self, part: Part, across: Part) -> None:
        """Raises where a calculation reads like a level of the column across, as 18-29 does."""
        index = self.names.get(normal_name(across.value)) if across.kind in ("word", "name") else None
        piece = self.source.piece(part)
        if index is None or part.kind in ("word", "name", "text"):
            return
        if part.kind != "number" and piece in texts_of_levels(self.columns[index]):
            raise self.source.error("have such a level in quotes", part, f"Write {piece!r}.")

    def unknown(self, part: Part) -> ValueError:
        """The error for a name that no column has."""
        return self.source.error("name columns of the table", part, self.unknown_hint(part))

    def unknown_hint(self, part: Part) -> str:
        """What to say of a name that no column has."""
        names = [column.name for column in self.columns]
        hint = "" if part.value.isascii() else look_alike_hint([part.value], names).strip()
        hint = hint or near_miss_hint(part.value, names) or f"The columns are {listed(names)}."
        return f"There is no column {part.value!r}. {hint}"

    def level_hint(self, part: Part) -> str:
        """What to say of a level that stands alone, as M does in ``sex = F or M``."""
        for column in self.columns:
            if part.value in texts_of_levels(column):
                return f"It is a level of {column.name!r}: write {column.name} = {part.value}, or list levels after in."
        return ""

    def other_levels(self, column: ColumnFacts, part: Part) -> str:
        """What to say of a level that a column does not have."""
        if part.value.casefold() == "missing":
            return f"Write {column.name} is missing."
        levels = texts_of_levels(column)
        return near_miss_hint(part.value, levels) or f"Its levels are {listed(levels)}."

    def unlike(self, one: Value, other: Value) -> ValueError:
        """The error for two values of different kinds."""
        place = spanning(*sorted((one.part, other.part), key=lambda part: part.start))
        kinds = [self.described(value) for value in (one, other)]
        text = next((value for value in (one, other) if value.kind == "text"), None)
        remedy = "A column's kind is stated in the schema."
        if text is not None and normal_name(text.part.value) in self.names:
            remedy = "A name in quotes is a text: write it without quotes, or in `backticks`."
        elif text is not None and "number" in (one.kind, other.kind):
            remedy = "Write numbers without quotes."
        elif {one.kind, other.kind} == {"number", "date"}:
            number = one if one.kind == "number" else other
            piece = self.source.piece(number.part)
            remedy = "Write a date as 2020-01-31; the difference of two dates is a number, of days."
            if "-" in piece and _DATE.fullmatch(piece):  # a month, which reads as a subtraction
                remedy = f"Write {piece!r} in quotes."
        elif one.kind == other.kind == "level":
            remedy = "Columns of levels can be compared if they have the same levels, in the same order."
        return self.source.error(f"compare like with like, not {kinds[0]} with {kinds[1]}", place, remedy)

    def described(self, value: Value) -> str:
        """What kind of value an error calls it."""
        noun = {"level": "levels", "text": "a text", "word": "a word"}.get(value.kind, f"a {value.kind}")
        return noun if value.column is None else f"{value.column.name!r} ({noun})"


def spanning(first: Part, last: Part) -> Part:
    """Returns all from one part to another."""
    return Part("span", min(first.start, last.start), max(first.end, last.end))


def _result(sign: str, constants: Sequence[float]) -> float:
    match sign:
        case "negate":
            return -constants[0]
        case "+":
            return constants[0] + constants[1]
        case "*":
            return constants[0] * constants[1]
    return constants[0] / constants[1]
