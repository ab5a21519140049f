"""Signals that ask a process to end, put off until what it has begun is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

#: What Python does with a signal by itself. A handler of the caller's is left alone.
_DEFAULTS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}
#: Blocks of :func:`finished_once_begun` that are running.
_blocks: list[ExitStack] = []


@contextmanager
def signals_put_off(kinds: Sequence[signal.Signals]) -> Iterator[Callable[[], int | None]]:
    """Runs the block so that signals only leave a note; the first one that came is raised at the end of the block.

    A second Ctrl-C is not put off. Signals that the caller handles are left to the caller, as are all signals where the
    block does not run in the main thread.

    Args:
        kinds: SIGINT, SIGTERM, both or none.

    Yields:
        A function that returns the number of the signal that came, or None.

    Example:
        >>> with signals_put_off([signal.SIGTERM]) as came:
        ...     came() is None
        True
    """
    came: list[int] = []
    before: dict[signal.Signals, Any] = {}

    def note(number: int, frame: Any) -> None:
        if came and number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        came.append(number)

    if threading.current_thread() is threading.main_thread():  # which alone may change what signals do
        for kind in kinds:
            if signal.getsignal(kind) is _DEFAULTS[kind]:
                before[kind] = signal.signal(kind, note)
    try:
        yield lambda: came[0] if came else None
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
        if came:
            signal.raise_signal(came[0])


@contextmanager
def finished_once_begun() -> Iterator[None]:
    """Runs the block so that SIGTERM ends it at once until :func:`must_be_finished` is called, and then at its end."""
    with ExitStack() as block:
        _blocks.append(block)
        try:
            yield
        finally:
            _blocks.remove(block)


def must_be_finished() -> None:
    """Puts SIGTERM off until the end of the block of :func:`finished_once_begun` around it; without one, does nothing.

    It is called after what cannot be taken back.
    """
    if _blocks:
        _blocks[-1].enter_context(signals_put_off([signal.SIGTERM]))
