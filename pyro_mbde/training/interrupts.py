"""Signals that end a fit, put off until a step is done."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager

from pyro_mbde._signals import signals_put_off


def interrupts_put_off(is_active: bool = True) -> AbstractContextManager[Callable[[], int | None]]:
    """Returns a block in which Ctrl-C and SIGTERM only leave a note, which is acted on at its end.

    The block should end soon after it finds a note: see :func:`~pyro_mbde._signals.signals_put_off`.

    Args:
        is_active: False to put nothing off.

    Returns:
        A context, whose value is a function that returns the number of the signal that came, or None.

    Example:
        >>> with interrupts_put_off() as interrupted:
        ...     interrupted() is None
        True
    """
    return signals_put_off([signal.SIGINT, signal.SIGTERM] if is_active else [])
