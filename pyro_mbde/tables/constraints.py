"""Public constraints and conditions as text, compiled against columns into predicates over rows of codes."""

from __future__ import annotations

from collections.abc import Sequence

from pyro_mbde._checks import argument_error
from pyro_mbde.density.predicates import Node
from pyro_mbde.tables.constraint_columns import ColumnFacts
from pyro_mbde.tables.constraint_text import Node as Part
from pyro_mbde.tables.constraint_text import Source, parse
from pyro_mbde.tables.constraint_values import Values, spanning


def compile_constraint(text: str, columns: Sequence[ColumnFacts]) -> Node:
    """Compiles a constraint: rows meet it unless it is surely false.

    A comparison with a missing cell is neither true nor false, so a row with missing cells meets a constraint unless
    the other cells contradict it.

    Privacy:
        A constraint must be public knowledge, never a pattern seen in the table.

    Args:
        text: as in ``married_years <= age - 14`` or ``pregnant = no where sex = M``; see docs/constraints.md.
        columns: those of the schema, in the order of the row's coordinates.

    Returns:
        a predicate for :func:`pyro_mbde.density.predicates.evaluate`.

    Raises:
        ValueError: if the text is not a condition on the columns; the error shows the place.

    Example:
        >>> from pyro_mbde import Column
        >>> age = Column("age", 0, 110, kind="integer")
        >>> compile_constraint("age >= 18", [age])
        ['not_false', ['>=', ['code', 0, -55.5], ['number', 18.0]]]
    """
    return _compile("constraint", "not_false", text, columns)


def compile_condition(text: str, columns: Sequence[ColumnFacts]) -> Node:
    """Compiles a condition: rows meet it where it is surely true, so never through a missing cell.

    Privacy:
        A condition says which rows a release is about. It must be chosen without looking at the table.

    Args:
        text: as in ``sex = F and age in [60, 80]``; see docs/constraints.md.
        columns: those of the schema, in the order of the row's coordinates.

    Returns:
        a predicate for :func:`pyro_mbde.density.predicates.evaluate`.

    Raises:
        ValueError: if the text is not a condition on the columns; the error shows the place.

    Example:
        >>> from pyro_mbde import Column
        >>> age = Column("age", 0, 110, kind="integer")
        >>> compile_condition("age >= 18", [age])
        ['true', ['>=', ['code', 0, -55.5], ['number', 18.0]]]
    """
    return _compile("condition", "true", text, columns)


def _compile(what: str, accepted: str, text: str, columns: Sequence[ColumnFacts]) -> Node:
    if not isinstance(text, str):
        raise TypeError(argument_error(what, "be a string", text))
    source = Source(what, text)
    return [accepted, _Conditions(source, columns).condition(parse(source))]


class _Conditions:
    """Parts of one text that are true or false."""

    def __init__(self, source: Source, columns: Sequence[ColumnFacts]) -> None:
        self.source = source
        self.values = Values(source, columns)

    def condition(self, part: Part) -> Node:
        """A part that is true or false."""
        match part.kind:
            case "and" | "or":
                return [part.kind, *map(self.condition, part.parts)]
            case "not":
                return ["not", self.condition(part.parts[0])]
            case "where":
                then, given = part.parts
                return ["or", self.condition(then), ["not", self.condition(given)]]
            case "compare":
                signs, pairs = part.value.split(), zip(part.parts[:-1], part.parts[1:], strict=True)
                return _all_of([self.compared(sign, *pair) for sign, pair in zip(signs, pairs, strict=True)])
            case "range":
                return self.within(*part.parts)
            case "set":
                return self.one_of(part.parts[0], part.parts[1:])
            case "missing":
                return self.missing(part.parts[0])
        value = self.values.value(part)
        if value.column is not None and value.column.kind == "boolean":
            return ["=", value.code, ["number", 1.0]]
        remedy = "Compare it with something."
        if value.kind in ("word", "text"):
            remedy = self.values.level_hint(part) or self.values.unknown_hint(part)
        raise self.source.error("have a condition here", part, remedy)

    def compared(self, sign: str, left: Part, right: Part) -> Node:
        """One comparison."""
        one, other = self.values.pair(left, right)
        levels = one.column or other.column
        if one.kind == "level" and sign not in ("=", "!=") and levels is not None and levels.kind != "ordered":
            remedy = (
                f"The levels of {levels.name!r} have no order. Use =, != or in {{...}}, or give it the kind ordered."
            )
            raise self.source.error("compare what has an order", spanning(left, right), remedy)
        return [sign, one.code, other.code]

    def within(self, part: Part, low: Part, high: Part) -> Node:
        """Whether a value lies in a closed range."""
        below, above = self.compared("<=", low, part), self.compared("<=", part, high)
        ends = below[1], above[2]
        if all(end[0] == "number" for end in ends) and ends[0][1] > ends[1][1]:
            raise self.source.error("have the lower end of a range first", spanning(low, high), "Swap the ends.")
        return ["and", below, above]

    def one_of(self, part: Part, wanted: Sequence[Part]) -> Node:
        """Whether a value is one of a set."""
        pairs = [self.values.pair(part, one) for one in wanted]
        for pair, one in zip(pairs, wanted, strict=True):
            if pair[1].constant is None:
                remedy = "Compare columns by =, and join comparisons by or."
                raise self.source.error("have values in a set", one, remedy)
        return ["in", pairs[0][0].code, [pair[1].constant for pair in pairs]]

    def missing(self, part: Part) -> Node:
        """Whether a cell is missing."""
        value = self.values.value(part)
        if value.kind == "word":
            raise self.values.unknown(part)
        if value.column is None:
            raise self.source.error("ask of a column whether it is missing", part, "Name one column before is.")
        if value.column.missing != "level":
            remedy = f'Give the column {value.column.name!r} missing = "level" to keep them, or leave this out.'
            raise self.source.error("ask for missing values only where they are kept", part, remedy)
        return ["missing", value.code]


def _all_of(conditions: list[Node]) -> Node:
    return conditions[0] if len(conditions) == 1 else ["and", *conditions]
