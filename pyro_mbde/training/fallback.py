"""Failures of a fit, which returns a density anyway, with a warning to its owner."""

from __future__ import annotations

import contextlib
import inspect
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from pyro_mbde.ranks import LostRankError

#: Files whose lines tell a caller nothing: the library's own, and that of the context managers it uses.
_INSIDE = (os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ""), contextlib.__file__)


class FitWarning(UserWarning):
    """A fit left rows out, or training failed. It depends on the table, so only the table's owner may see it.

    Whether a fit raises must not depend on the table, so values and row counts never raise. Rows that cannot be used
    are left out, and where training fails the tilt is 0: the density is the public base then, under the same bounds,
    certificate and guarantee as any other.
    """


class ReadingError(Exception):
    """Rows could not be read, or a checkpoint not be written, while a fit was under way; the cause is to be raised.

    It is about files or about what a caller wrote, so :func:`coming_back` raises its cause.
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

    Interrupts are raised, and so is what is about files and processes, not about rows: the cause of a
    :class:`ReadingError`, and :class:`~pyro_mbde.ranks.LostRankError`.

    Args:
        consequence: what becomes of the fit where the block fails.
    """
    failure = FitFailure()
    try:
        yield failure
    except ReadingError as error:
        raise (error.__cause__ or error) from None
    except LostRankError:
        raise
    except Exception as error:  # an error would reveal something about the table
        failure.happened = True
        reason = str(error).rstrip(".") or "no reason given"
        warn_owner(f"Training failed with {type(error).__name__}: {reason}. {consequence}")


def warn_owner(text: str) -> None:
    """Warns the table's owner of what became of the table or the fit, at the line that called the library."""
    text = f"{text} This message depends on the table: keep it."
    warnings.warn(text, FitWarning, stacklevel=_level_of_caller())


def _level_of_caller() -> int:
    """The ``stacklevel``, as seen from the function that calls this one, of the first line outside of the library."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    return level
