"""Kinds of columns: how cells become numbers, and numbers become cells again. One class for each kind.

A new kind is a subclass of :class:`Kind` and an entry of :data:`KINDS`, which is in ``columns.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch

from pyro_mbde._checks import argument_error
from pyro_mbde.tables.cells import Flags, Numbers
from pyro_mbde.tables.notes import Rounding

if TYPE_CHECKING:
    import pandas as pd

    from pyro_mbde.tables.columns import Column


class Odd(NamedTuple):
    """Cells that a column cannot hold.

    Attributes:
        where: which, bool ``(n,)``.
        what: what they are, as in ``outside [0, 110]``.
        moved: what ``clip`` does with them; None where no allowed value is nearest.
    """

    where: Flags
    what: str
    moved: str | None


class Reading(NamedTuple):
    """A column's cells as numbers. Private.

    Attributes:
        codes: float64 ``(n,)``; moved to the nearest allowed value where there is one, arbitrary where none is.
        missing: which cells are missing, bool ``(n,)``.
        odd: cells that the column cannot hold.
        unreadable: what the column holds that is nothing of its kind, with remedies; None if there is no such thing.
        rounding: how far the values are rounded, where that may ask for another schema.
    """

    codes: Numbers
    missing: Flags
    odd: tuple[Odd, ...] = ()
    unreadable: str | None = None
    rounding: Rounding | None = None


class Kind:
    """A kind of column.

    Attributes:
        name: how schemas call it.
        takes: keys of a column that this kind has, besides those that all have.
        needs: keys that must be given.
        distribution: how :class:`~pyro_mbde.density.marginals.Marginal` calls it.
    """

    name: ClassVar[str]
    takes: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    distribution: ClassVar[str]

    def check(self, column: Column) -> None:
        """Checks what is public about a column, and brings it into one form."""
        raise NotImplementedError

    def edges(self, column: Column) -> tuple[float, float]:
        """Both ends of the codes, in the modelled units: a whole number or level n fills [n, n + 1)."""
        raise NotImplementedError

    def is_resolved(self, column: Column, dtype: torch.dtype) -> bool:
        """Whether a floating-point type tells the codes apart."""
        low, high = self.edges(column)  # whole numbers, and one as far below them as they are wide
        return torch.finfo(dtype).eps * (max(abs(low), abs(high)) + high - low) <= 0.5

    def code(self, column: Column, value: Any) -> float:
        """The code of one public value; ValueError or TypeError where the column cannot hold it."""
        raise NotImplementedError

    def value(self, column: Column, code: float) -> Any:
        """The public value that a code stands for."""
        return code

    def of_key(self, column: Column, key: Any) -> Any:
        """The public value that a key of a table in a file stands for, where keys are texts."""
        return self.value(column, self.code(column, key))

    def read(self, column: Column, series: pd.Series[Any]) -> Reading:
        """The cells as codes."""
        raise NotImplementedError

    def write(self, column: Column, codes: Numbers, missing: Flags | None) -> Any:
        """Codes as cells of the kind's natural dtype; ``missing`` is None where the column has no missing values."""
        raise NotImplementedError

    def allowed(self, column: Column) -> str:
        """What the column may hold, in words."""
        raise NotImplementedError

    def modelled(self, column: Column, codes: Numbers) -> Numbers:
        """Codes in the modelled units."""
        return codes

    def from_modelled(self, column: Column, values: Numbers) -> Numbers:
        """Modelled values as codes."""
        low, high = self.edges(column)
        codes: Numbers = np.rint(values).clip(low, high - 1)
        return codes

    def periods(self, column: Column) -> tuple[float, ...]:
        """After how many units a season, week or day begins again."""
        return ()


def put(column: Column, **values: Any) -> None:
    """Brings values of a frozen column into one form."""
    for key, value in values.items():
        object.__setattr__(column, key, value)


def check_needs(column: Column, kind: Kind, keys: Sequence[str], policies: Sequence[str]) -> None:
    """Raises where a key is missing that a kind needs, or is given that it does not have."""
    defaults = {"scale": "linear"}
    for key in keys:
        value = getattr(column, key)
        if key in kind.needs and value is None:
            raise ValueError(f"{key} must be given for the kind {kind.name}. Take it from the codebook.")
        if key not in (*kind.takes, *kind.needs, *policies) and value != defaults.get(key):
            known = ", ".join((*kind.needs, *kind.takes))
            remedy = f"Beside name and policies, a column of the kind {kind.name} has {known}."
            raise ValueError(argument_error(key, f"be left out for the kind {kind.name}", value, remedy))


def by_distinct_cell(series: pd.Series[Any], present: Flags, convert: Callable[[Any], Any], default: Any) -> list[Any]:
    """Returns what each cell is converted to, each distinct cell once; the default for missing ones."""
    if series.dtype != object:
        places, distinct = series.factorize()
        found = [*(convert(cell) for cell in distinct), default]  # -1 is the place of a missing cell
        return [found[place] for place in places.tolist()]
    known: dict[tuple[type, Hashable], Any] = {}
    converted = []
    for cell, there in zip(series, present, strict=True):
        if not there:
            converted.append(default)
            continue
        try:
            key = (type(cell), cell)  # 1 and True are equal, and differ
            if key not in known:
                known[key] = convert(cell)
            converted.append(known[key])
        except TypeError:  # a list, which cannot be looked up
            converted.append(convert(cell))
    return converted
