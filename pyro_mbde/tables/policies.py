"""What becomes of values that a column cannot hold, and of missing ones.

The former are clipped (a fraction in a column of whole numbers is rounded), dropped or refused; the latter are dropped,
kept as a level, replaced or refused. Everything here depends on the table and is private.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pyro_mbde._checks import counted
from pyro_mbde.tables.cells import Flags, Numbers
from pyro_mbde.tables.columns import MISSING, Column
from pyro_mbde.tables.kinds import Odd, Reading


class Cells(NamedTuple):
    """One column after its policies.

    Attributes:
        codes: float64 ``(n,)``, in the range of the column where ``kept`` is true and ``missing`` is not; arbitrary
            elsewhere.
        missing: which cells stay and are missing, bool ``(n,)``.
        kept: which rows stay, bool ``(n,)``.
        notes: what was done, and what looks wrong; any number of sentences.
        refused: what the schema refuses; any number of sentences.
    """

    codes: Numbers
    missing: Flags
    kept: Flags
    notes: tuple[str, ...]
    refused: tuple[str, ...]


def apply_policies(column: Column, reading: Reading) -> Cells:
    """Returns a column's cells as codes that it may hold, according to its policies ``outside`` and ``missing``.

    Args:
        column: a column of the schema.
        reading: its cells, n of them.
    """
    notes, refused, kept = [], [], np.ones(len(reading.codes), dtype=np.bool_)
    stand_in = None if isinstance(column.missing, str) and column.missing in MISSING else column.missing
    missing = Odd(reading.missing, "missing", f"replaced by {stand_in}")
    for odd, policy in [*((odd, column.outside) for odd in reading.odd), (missing, column.missing)]:
        if not odd.where.any() or (odd is missing and column.keeps_missing):
            continue
        num_odd = int(odd.where.sum())
        found = f"{num_odd:,} of {len(kept):,} values {'is' if num_odd == 1 else 'are'} {odd.what}"
        if isinstance(policy, str) and policy == "refuse":
            refused.append(f"{found}.")
        elif (isinstance(policy, str) and policy == "drop") or odd.moved is None:
            kept &= ~odd.where
            notes.append(f"{found}: {counted(num_odd, 'row')} left out.")
        else:
            notes.append(f"{found}: {odd.moved}.")
    codes = reading.codes if stand_in is None else np.where(reading.missing, column.code(stand_in), reading.codes)
    said = [tuple(f"column {column.name!r}: {one}" for one in each) for each in ([*notes, *reading.hints], refused)]
    return Cells(codes, reading.missing & column.keeps_missing, kept, *said)
