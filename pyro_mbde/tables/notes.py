"""What is said of a table and its schema, as numbers that add up over the parts of a table. Private.

Each part of a table has the same notes in the same order, some of them of nothing, so that notes of two parts are added
up one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pyro_mbde._checks import counted

#: A column counts as rounded if it has at least this many values, at most this many digits after the point, and if the
#: last digit's unit is more than this many times the spacing of floats at its largest value (without its sign).
MIN_ROUNDED, MAX_ROUNDED_DIGITS, MIN_FINER = 10, 4, 16


class Note(Protocol):
    """One thing that may be said of a table."""

    @property
    def text(self) -> str | None:
        """The sentence; None where there is nothing to say."""

    def added(self, other: Note) -> Note:
        """The note of two parts of a table together; ``other`` is the same note of another part."""


class OddCells(NamedTuple):
    """Cells that a column cannot hold, and what was done with them.

    Attributes:
        where: the column, in words.
        what: what they are, as in ``outside [0, 110]``.
        done: what was done with them; None where their rows were left out.
        number: how many they are.
        total: of how many.
    """

    where: str
    what: str
    done: str | None
    number: int
    total: int

    @property
    def found(self) -> str:
        """How many there are, without a point at the end."""
        verb = "is" if self.number == 1 else "are"
        return f"{self.where}: {self.number:,} of {self.total:,} values {verb} {self.what}"

    @property
    def text(self) -> str | None:
        """The sentence."""
        if not self.number:
            return None
        done = f"{counted(self.number, 'row')} left out" if self.done is None else self.done
        return f"{self.found}: {done}."

    def added(self, other: Note) -> OddCells:
        """The note of both parts."""
        assert isinstance(other, OddCells)
        return self._replace(number=self.number + other.number, total=self.total + other.total)


class BrokenRule(NamedTuple):
    """Rows that a constraint forbids, or that do not meet the condition; they are left out.

    Attributes:
        rule: it, as the subject of ``does not hold``.
        number: how many rows they are.
        total: of how many.
    """

    rule: str
    number: int
    total: int

    @property
    def text(self) -> str | None:
        """The sentence."""
        if not self.number:
            return None
        return f"{self.rule} does not hold for {counted(self.number, 'row')} of {self.total:,}: left out."

    def added(self, other: Note) -> BrokenRule:
        """The note of both parts."""
        assert isinstance(other, BrokenRule)
        return self._replace(number=self.number + other.number, total=self.total + other.total)


class Rounding(NamedTuple):
    """How far the values of a column are rounded whose released ones will not be.

    Attributes:
        where: the column, in words.
        number: of finite values.
        finest: spacing of floats at the largest of them, 0 where there are none.
        digits: after the point, the fewest that all have; None where they have more than can be told.
    """

    where: str
    number: int
    finest: float
    digits: int | None

    @property
    def text(self) -> str | None:
        """The sentence, which asks for another declaration."""
        if self.digits is None or self.number < MIN_ROUNDED or 10.0**-self.digits <= MIN_FINER * self.finest:
            return None
        if self.digits == 0:
            return (
                f"{self.where}: all values are whole numbers, but released values will not be. If the codebook says "
                'that the column holds whole numbers, declare kind = "integer".'
            )
        form = f"at most {counted(self.digits, 'digit')} after the point"
        return (
            f"{self.where}: all values have {form}, but released values will have more. If the codebook says that "
            f"values have {form}, declare decimals = {self.digits}."
        )

    def added(self, other: Note) -> Rounding:
        """The note of both parts."""
        assert isinstance(other, Rounding)
        digits = None if self.digits is None or other.digits is None else max(self.digits, other.digits)
        return self._replace(number=self.number + other.number, finest=max(self.finest, other.finest), digits=digits)


def add_notes(notes: Sequence[Note], others: Sequence[Note]) -> tuple[Note, ...]:
    """Returns the notes of two parts of a table together.

    Args:
        notes: of one part.
        others: of another part, under the same schema.

    Example:
        >>> ages = OddCells("column 'age'", "missing", None, 1, 10)
        >>> (both,) = add_notes([ages], [ages._replace(number=2, total=5)])
        >>> both.text
        "column 'age': 3 of 15 values are missing: 3 rows left out."
    """
    return tuple(one.added(other) for one, other in zip(notes, others, strict=True))


def texts_of(notes: Sequence[Note]) -> list[str]:
    """Returns the sentences of those notes that have something to say."""
    return [text for note in notes if (text := note.text) is not None]
