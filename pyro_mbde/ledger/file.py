"""The SQLite file of a ledger: it has one name, its journal lies beside it, and a commit has reached the disk.

SQLite's locks sit on the file, whatever path it is opened by. Its rollback journal, from which an interrupted commit is
undone, is found by the file's path alone. So one file must not be reached by two: a transaction interrupted under one
path would stay half-written under the other.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from pyro_mbde.ledger.errors import unusable

#: Where Linux lists what is mounted, as a process sees it.
MOUNTS = Path("/proc/self/mountinfo")


def create_private(path: str) -> None:
    """Creates a file for its owner alone, as its journal then is too; one that is there is left alone."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:
        return  # it exists, or SQLite reports why it cannot be made


def file_identity(path: str) -> tuple[int, int] | None:
    """Returns what identifies the file of a path, or None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def check_one_name(path: str) -> None:
    """Raises for a folder or a device, and for a file with another path, under which its journal would not be found."""
    path = os.path.realpath(path)
    try:
        found = os.stat(path)
    except OSError:
        return  # SQLite reports why it cannot be opened
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a device, a pipe or a socket"
        raise unusable(path, f"it is {kind}, not a regular file. Name a file, which is made if there is none.")
    if found.st_nlink > 1:
        raise unusable(
            path,
            f"its file has {found.st_nlink} names (hard links), and what an interrupted charge leaves under one is not "
            f"found under another. Remove all but one: find DIRECTORY -samefile {path!r} lists them.",
        )
    if _is_mounted(path):
        raise unusable(
            path,
            "its file is mounted without its folder, so that what an interrupted charge leaves beside it is not found. "
            "Mount the folder instead.",
        )


def _is_mounted(path: str) -> bool:
    """Whether a file is a mount point, as in a container that was given it alone; known on Linux only."""
    try:
        mounts = MOUNTS.read_bytes().splitlines()
    except OSError:
        return False
    points = (line.split()[4] for line in mounts)
    return os.fsencode(path) in (
        re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), point) for point in points
    )


def needs_its_owner(path: str) -> bool:
    """Returns whether a file has a write-ahead log, which is not even read without the right to write, missing here.

    Args:
        path: of a file on which this process holds no lock of SQLite's, since closing it here would drop them.
    """
    path = os.path.realpath(path)
    if os.access(path, os.W_OK) and os.access(os.path.dirname(path), os.W_OK):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(20)[18:] == b"\2\2"
    except OSError:
        return False


def set_up(connection: Any, record: object) -> None:
    """Sets up a connection of the sqlite3 module."""
    connection.isolation_level = None  # transactions begin in begin(), below
    # A damaged text must be readable, to be named.
    connection.text_factory = lambda content: content.decode("utf-8", "surrogateescape")
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    # A commit is made by removing the journal: the folder is synchronised too. On macOS only this reaches the disk.
    cursor.execute("PRAGMA synchronous = EXTRA")
    cursor.execute("PRAGMA fullfsync = ON")
    cursor.close()


def begin(connection: Connection) -> None:
    """Begins a transaction; one that writes at once, as a lock asked for later can fail without waiting."""
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
