"""Standard output and error, which may be closed, full, or unable to show a character."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import TextIO


def write_line(stream: TextIO | None, text: str) -> None:
    """Writes a line at once; characters that the stream's encoding lacks are written as escapes.

    Args:
        stream: standard output or error; ``None`` where there is none, as when it was closed at the start.
        text: the line, or lines.

    Raises:
        OSError: it cannot be written. The stream is turned to nowhere then, so that what is left in it does no harm.
    """
    try:
        if stream is None:
            raise OSError(errno.EBADF, "it is closed")
        encoding = stream.encoding or "utf-8"
        stream.write(f"{text}\n".encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except (OSError, ValueError) as error:  # a ValueError of a stream that was closed since
        _turn_away(stream)
        raise error if isinstance(error, OSError) else OSError(errno.EBADF, str(error)) from error


def tell(text: str) -> None:
    """Writes a line to standard error, where that can be done.

    Args:
        text: the line.
    """
    with contextlib.suppress(OSError):
        write_line(sys.stderr, text)


def flush_streams() -> None:
    """Writes what is left in the streams. The interpreter does so at its end, and exits with 120 where it cannot."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            _turn_away(stream)


def is_terminal(stream: TextIO | None) -> bool:
    """Returns whether a person sees, or types into, a stream.

    Args:
        stream: standard input, output or error, or ``None``.
    """
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _turn_away(stream: TextIO | None) -> None:
    """Lets a stream's descriptor lead to nowhere: Python writes what is left in its buffer at the end."""
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, stream.fileno())
        finally:
            os.close(null)
