"""What becomes of values that a column cannot hold, and of missing ones.

The former are clipped (a fraction in a column of whole numbers is rounded), dropped or refused; the latter are dropped,
kept as a level, replaced or refused. Everything here depends on the table and is private.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pyro_mbde.tables.cells import Flags, Numbers
from pyro_mbde.tables.columns import MISSING, Column
from pyro_mbde.tables.kinds import Odd, Reading
from pyro_mbde.tables.notes import Note, OddCells


class Cells(NamedTuple):
    """One column after its policies.

    Attributes:
        codes: float64 ``(n,)``, in the range of the column where ``kept`` is true and ``missing`` is not; arbitrary
            elsewhere.
        missing: which cells stay and are missing, bool ``(n,)``.
        kept: which rows stay, bool ``(n,)``.
        notes: what was done, and what looks wrong; as many for each table.
        refused: what the schema refuses; any number of sentences.
    """

    codes: Numbers
    missing: Flags
    kept: Flags
    notes: tuple[Note, ...]
    refused: tuple[str, ...]


def apply_policies(column: Column, reading: Reading) -> Cells:
    """Returns a column's cells as codes that it may hold, according to its policies ``outside`` and ``missing``.

    Args:
        column: a column of the schema.
        reading: its cells, n of them.
    """
    notes: list[Note] = []
    refused, kept, where = [], np.ones(len(reading.codes), dtype=np.bool_), f"column {column.name!r}"
    stand_in = None if isinstance(column.missing, str) and column.missing in MISSING else column.missing
    missing = Odd(reading.missing, "missing", f"replaced by {stand_in}")
    for odd, policy in [*((odd, column.outside) for odd in reading.odd), (missing, column.missing)]:
        if odd is missing and column.keeps_missing:
            continue
        policy = policy if isinstance(policy, str) else "clip"
        left_out = policy == "drop" or odd.moved is None
        note = OddCells(where, odd.what, None if left_out else odd.moved, int(odd.where.sum()), len(kept))
        if policy != "refuse":
            notes.append(note)
            kept = kept & ~odd.where if left_out else kept
        elif note.number:
            refused.append(f"{note.found}.")
    codes = reading.codes if stand_in is None else np.where(reading.missing, column.code(stand_in), reading.codes)
    notes += [] if reading.rounding is None else [reading.rounding]
    return Cells(codes, reading.missing & column.keeps_missing, kept, tuple(notes), tuple(refused))
