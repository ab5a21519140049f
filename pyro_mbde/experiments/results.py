"""Files of results: a row of JSON a line, appended as jobs end, whole after a kill at any moment."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import pandas as pd

#: A row: values by the names of their columns.
Row = dict[str, Any]


class SweepError(RuntimeError):
    """A sweep cannot begin or continue."""


class ResultsFile(contextlib.AbstractContextManager["ResultsFile"]):
    """Rows of a sweep, open for one writer to append to.

    Args:
        path: where the file is; if it is not there it is made, with its folder, for its owner alone. A last line that
            was cut off is dropped.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch(0o600)  # the table may be private
        self._file = self.path.open("a+b", buffering=0)  # closing writes nothing
        try:
            self._lock()
            self._file.seek(0)
            content = self._file.readall()
            #: The newest row of each key.
            self.rows = _newest(content, self.path)
            self._file.truncate(content.rfind(b"\n") + 1)
        except BaseException:
            self._file.close()
            raise

    def append(self, row: Row) -> None:
        """Writes a row to the disk, whole or not at all."""
        # Python writes and reads NaN and infinities, and other floats as their shortest exact text.
        line = memoryview(json.dumps(row).encode() + b"\n")
        size = os.fstat(self._file.fileno()).st_size
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except BaseException as error:
            if line or isinstance(error, OSError):
                with contextlib.suppress(OSError):
                    self._file.truncate(size)
            raise
        self.rows[row["key"]] = row

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the file, for others to write to."""
        self._file.close()

    def _lock(self) -> None:
        """Locks the file until it is closed. The lock belongs to the open file: no kill leaves it behind."""
        if sys.platform == "win32":
            return  # no such lock there
        import fcntl  # of Unix alone

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            remedy = "Wait for it to end, or write to another file."
            raise SweepError(f"another sweep writes to {os.fspath(self.path)!r}. {remedy}") from None


def read_results(path: str | os.PathLike[str], *, keys: Iterable[str] | None = None) -> pd.DataFrame:
    """Returns the newest row of each job in a file, also while a sweep writes to it.

    Args:
        path: of a file that :func:`~pyro_mbde.experiments.runner.run_sweep` writes.
        keys: of the jobs to return, in this order; by default all, in the order of their first rows.
    """
    rows = _newest(Path(path).read_bytes(), path)
    keys = list(rows if keys is None else keys)
    try:
        return pd.DataFrame([rows[key] for key in keys])
    except KeyError as error:
        raise ValueError(f"keys must be of rows in the file, got {error}.") from None


def _newest(content: bytes, path: str | os.PathLike[str]) -> dict[str, Row]:
    """The newest row of each key. What follows the last end of a line was cut off, or is being written."""
    rows: dict[str, Row] = {}
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            row = json.loads(line)
            rows[row["key"]] = row
            _ = row["error"]
        except (ValueError, KeyError, TypeError) as error:
            remedy = "Take the line out to run its job again."
            raise ValueError(f"line {number} of {os.fspath(path)!r} must hold a row of results. {remedy}") from error
    return rows
