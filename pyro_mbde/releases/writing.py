"""The files of a release: all or none are written, and nothing is overwritten."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from pyro_mbde._checks import argument_error
from pyro_mbde.private_files import CARD_SUFFIXES

#: Characters of a date, as 2020-01-31, that a month and a year have.
_LENGTHS = {"month": 7, "year": 4}
#: Random bytes in the name of a temporary file; and the age from which one counts as left behind.
_RANDOM_BYTES, _STALE_SECONDS = 8, 3600.0


class ReleasePaths(NamedTuple):
    """Where a release goes.

    Attributes:
        rows: the rows, ``.csv`` or ``.parquet``.
        card: the card for machines, beside it.
        page: the card for people, beside it.
    """

    rows: Path
    card: Path
    page: Path


def release_paths(path: str | os.PathLike[str]) -> ReleasePaths:
    """Returns where the files of a release go; raises if one is there already, or cannot be written there.

    Args:
        path: of the rows, ending in ``.csv`` or ``.parquet``.
    """
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise TypeError(argument_error("path", "be a path", path))
    rows = Path(path)
    if rows.suffix not in (".csv", ".parquet"):
        raise ValueError(argument_error("path", "end in .csv or .parquet", os.fspath(path)))
    if rows.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise ImportError("Parquet files need pyarrow: pip install 'pyro_mbde[parquet]'. Or write a .csv file.")
    paths = ReleasePaths(rows, *(rows.with_name(rows.stem + suffix) for suffix in CARD_SUFFIXES))
    for target in paths:
        if target.exists() or target.is_symlink():
            remedy = "A release is never overwritten: choose another name."
            raise FileExistsError(argument_error("path", "name new files", str(target), remedy))
    if not rows.parent.is_dir():
        raise FileNotFoundError(argument_error("path", "lie in a folder that exists", os.fspath(path)))
    for target in paths:
        _remove_stale(target)
    os.unlink(_write_beside(rows, b""))  # a folder that cannot be written to is found out before anything is paid for
    return paths


def encode_rows(rows: pd.DataFrame, suffix: str, resolutions: Mapping[str, str] | None = None) -> bytes:
    """Returns a table as the bytes of a file ending in ``.csv`` or ``.parquet``, the same for the same table.

    Args:
        rows: the table.
        suffix: of the file.
        resolutions: of columns of dates; a CSV file has months as 2020-01 and years as 2020.
    """
    if suffix == ".csv":
        for name, resolution in (resolutions or {}).items():
            if resolution in _LENGTHS:
                rows = rows.assign(**{name: rows[name].astype("string").str[: _LENGTHS[resolution]]})
        return rows.to_csv(index=False, lineterminator="\n").encode()
    buffer = BytesIO()
    rows.to_parquet(buffer, index=False, engine="pyarrow")
    return buffer.getvalue()


def write_together(files: list[tuple[Path, bytes]]) -> None:
    """Writes files whole, in their order; if one cannot be placed, those before it are taken away again.

    Each is written to a temporary neighbour, brought to the disk, and then given its name, which must be new.

    Args:
        files: paths and contents; the one that counts comes last.
    """
    staged: list[tuple[Path, Path]] = []
    placed: list[Path] = []
    try:
        for target, content in files:
            staged.append((_write_beside(target, content), target))
        for temporary, target in staged:
            _place(temporary, target)
            placed.append(target)
        for folder in {target.parent for target in placed}:
            _sync_folder(folder)
    except BaseException:
        for target in reversed(placed):
            _remove(target)
        raise
    finally:
        for temporary, _ in staged:
            _remove(temporary)


def _remove_stale(target: Path) -> None:
    """Removes temporary neighbours of ``target`` left by a killed release, if they are old.

    An old one belongs to no running release: a file is written within seconds, after its rows were drawn.
    """
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{{2 * _RANDOM_BYTES}}}\.tmp")
    for path in target.parent.iterdir():
        if pattern.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                _remove(path)


def _write_beside(target: Path, content: bytes) -> Path:
    """Writes a temporary neighbour of ``target``, with the rights of any new file: it is to be handed out."""
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(_RANDOM_BYTES)}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        _remove(temporary)
        raise
    return temporary


def _place(temporary: Path, target: Path) -> None:
    """Gives a file its name, unless there is another of that name."""
    try:
        os.link(temporary, target)  # which, unlike a renaming, replaces nothing
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if target.exists():
            raise FileExistsError(argument_error("path", "name new files", str(target))) from None
        os.rename(temporary, target)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # which has no handles of folders
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    """Removes a file where that can be done."""
    with suppress(OSError):
        path.unlink()
