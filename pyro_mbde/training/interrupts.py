"""Signals that end a process, put off until a step is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupts_put_off(is_active: bool = True) -> Iterator[Callable[[], int | None]]:
    """Runs the block so that Ctrl-C and SIGTERM only leave a note, which is acted on at the end of the block.

    The block should end soon after it finds a note. A second Ctrl-C is not put off. Signals that are handled by the
    caller in a way of theirs are left to them, as are all where the block does not run in the main thread.

    Args:
        is_active: False to put nothing off.

    Yields:
        A function that returns the number of the signal that came, or None.

    Example:
        >>> with interrupts_put_off() as interrupted:
        ...     interrupted() is None
        True
    """
    came: list[int] = []
    before: dict[signal.Signals, Any] = {}

    def note(number: int, frame: Any) -> None:
        if came and number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        came.append(number)

    if is_active and threading.current_thread() is threading.main_thread():
        for kind, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(kind) is default:
                before[kind] = signal.signal(kind, note)
    try:
        yield lambda: came[0] if came else None
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
        if came:
            signal.raise_signal(came[0])
