"""What becomes of a fit that goes wrong: it comes back all the same, and its owner is told."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


class FitWarning(UserWarning):
    """A fit left rows out, or training failed. For the table's owner alone: it depends on the table.

    Whether a fit raises must not depend on the table, so values and row counts never raise. Rows that cannot be used
    are left out, and where training fails the tilt is 0: the density is the public base then, under the same bounds,
    certificate and guarantee as any other.
    """


class FitFailure:
    """How a block of a fit ended.

    Attributes:
        happened: whether it failed; nothing that it computed may be used then.
    """

    happened = False


@contextmanager
def coming_back(consequence: str) -> Iterator[FitFailure]:
    """Runs a block of a fit, and turns what it raises into a :class:`FitWarning`.

    Interrupts are raised.

    Args:
        consequence: what becomes of the fit where the block fails.
    """
    failure = FitFailure()
    try:
        yield failure
    except Exception as error:  # whatever a table makes training raise: that it raised would tell tables apart
        failure.happened = True
        reason = str(error).rstrip(".") or "no reason given"
        warn_owner(f"Training failed with {type(error).__name__}: {reason}. {consequence}")


def warn_owner(text: str) -> None:
    """Warns the table's owner of what became of the table or the fit."""
    warnings.warn(f"{text} This message depends on the table: keep it.", FitWarning, stacklevel=5)
