"""Output of the commands, on streams that may be closed, full, or unable to show a character."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import click


@dataclass(frozen=True)
class Console:
    """How a command speaks: its answer on standard output, everything else on standard error.

    Attributes:
        as_json: whether the answer is one JSON document.
        quiet: whether to leave out notes and progress.
        silent: whether to say nothing at all: of several processes, all but the first.
    """

    as_json: bool
    quiet: bool
    silent: bool = False

    @property
    def progress(self) -> bool:
        """Whether to show progress bars: on a terminal, unless told to be quiet."""
        return not (self.quiet or self.silent) and is_terminal(sys.stderr)

    def note(self, text: str) -> None:
        """Writes a note to standard error, unless told to be quiet."""
        if not (self.quiet or self.silent):
            tell(text)

    def notes(self, texts: list[str]) -> list[str]:
        """Writes several notes, and returns them for the answer as JSON."""
        for text in texts:
            self.note(text)
        return texts

    def warn(self, text: str) -> None:
        """Writes a warning to standard error, with --quiet too."""
        if not self.silent:
            tell(f"Warning: {text}")

    def confirm(self, facts: str, question: str, *, yes: bool) -> bool:
        """Asks on a terminal. Without one, or with ``yes``, the answer is yes."""
        if yes or not is_terminal(sys.stdin):
            return True
        tell(facts)
        return click.confirm(question, err=True)

    def answer(self, document: Mapping[str, Any], text: str, *, settled: bool = False) -> None:
        """Gives the answer, as JSON or as text.

        Args:
            document: the answer for ``--json``.
            text: the answer otherwise.
            settled: whether the exit code stands without the answer: something was changed that another run would
                change again, or a fault was found. An answer that cannot be written is a warning then, not an error.

        Raises:
            OSError: it cannot be written and nothing else was done. A reader who left early is not an error.
        """
        if self.silent:
            return
        try:
            write_line(sys.stdout, json.dumps(plain(document), indent=2) if self.as_json else text)
        except OSError as error:
            if settled:
                done = "The work is done; the exit code says how it ended."
                self.warn(f"the answer could not be written: {error.strerror}. {done}")
            elif not isinstance(error, BrokenPipeError):
                raise OSError(error.errno, f"The answer could not be written: {error.strerror}") from error


def plain(value: Any) -> Any:
    """Returns a value as strict JSON can hold it: infinities as text, NaN as null, paths and times as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, bool | int | float | str | None):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """Returns rows of cells as text, each column as wide as its widest cell."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def write_line(stream: TextIO | None, text: str) -> None:
    """Writes a line at once; characters that the stream's encoding lacks are written as escapes.

    Args:
        stream: standard output or error; ``None`` where there is none, as when it was closed at the start.
        text: the line, or lines.

    Raises:
        OSError: it cannot be written. The stream is then redirected to the null device: Python writes its rest at exit.
    """
    try:
        if stream is None:
            raise OSError(errno.EBADF, "it is closed")
        encoding = stream.encoding or "utf-8"
        stream.write(f"{text}\n".encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except (OSError, ValueError) as error:  # a ValueError of a stream that was closed since
        _redirect_to_null(stream)
        raise error if isinstance(error, OSError) else OSError(errno.EBADF, str(error)) from error


def tell(text: str) -> None:
    """Writes a line to standard error, where that can be done."""
    with contextlib.suppress(OSError):
        write_line(sys.stderr, text)


def flush_streams() -> None:
    """Flushes the streams. The interpreter does so at exit, with code 120 where it fails."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            _redirect_to_null(stream)


def is_terminal(stream: TextIO | None) -> bool:
    """Returns whether a stream is a terminal."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _redirect_to_null(stream: TextIO | None) -> None:
    """Redirects a stream's descriptor to the null device: Python writes its buffer at exit."""
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, stream.fileno())
        finally:
            os.close(null)
