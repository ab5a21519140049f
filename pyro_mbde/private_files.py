"""Files for the owner of a table alone, and a warning where one lies beside what is handed out."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Endings of the files of a card, after the name of its rows.
CARD_SUFFIXES = (".card.json", ".card.html")


class PrivacyLeakWarning(UserWarning):
    """Something that is private may be about to become public, with the remedy.

    Privacy:
        Whether there is a warning may depend on the table. It goes to the owner, on stderr as all warnings do; it
        belongs in no log that others read.
    """


def holds_release_card(folder: str | os.PathLike[str]) -> bool:
    """Returns whether a folder holds the card of a release, and so is one to be handed out."""
    path = Path(folder)
    return path.is_dir() and any(entry.name.endswith(CARD_SUFFIXES) for entry in path.iterdir())


def warn_beside_card(path: str | os.PathLike[str], what: str, *, stacklevel: int = 3) -> None:
    """Warns if something private is written into a folder that holds the card of a release.

    Args:
        path: the file to be written.
        what: name of what is written.
        stacklevel: of the warning.
    """
    if holds_release_card(Path(path).parent):
        warnings.warn(
            f"{what} is as sensitive as the table, and the folder of {os.fspath(path)!r} holds a release card: whoever "
            f"is given the folder gets both. Keep it elsewhere.",
            PrivacyLeakWarning,
            stacklevel=stacklevel,
        )


def write_atomically(write: Callable[[Any], None], path: str | os.PathLike[str]) -> None:
    """Writes a file whole or not at all: to a temporary neighbour first, then renamed onto ``path``.

    Only its owner may read it: what is fitted to a table is as sensitive as the table.

    Args:
        write: called with the open binary file.
        path: where the file goes; an existing file is replaced only once all is written.
    """
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
