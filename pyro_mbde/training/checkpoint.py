"""Checkpoints: what a fit needs to be taken up where it was interrupted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pyro_mbde._checks import argument_error, listed
from pyro_mbde.private_files import warn_beside_card
from pyro_mbde.serialization import canonical_digest, read_file, write_file
from pyro_mbde.training.fallback import warn_owner

_KIND, _VERSION = "checkpoint", 1


class Checkpoint:
    """A file that a fit is taken up from.

    It holds networks, optimiser, states of torch's generators and places in the table, but no rows. It is written whole
    or not at all, with a digest that tells whether it was damaged since. Only its owner may read it. Reading it runs no
    code.

    Privacy:
        As sensitive as the table.

    Args:
        path: the file. Processes on several machines need not share it: the first one reads and writes it.

    Raises:
        ValueError: its folder does not exist.

    Example:
        >>> import tempfile
        >>> checkpoint = Checkpoint(f"{tempfile.mkdtemp()}/fit.checkpoint")
        >>> checkpoint.exists()
        False
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.parent.is_dir():
            remedy = "Make the folder first."
            raise ValueError(argument_error("checkpoint", "be a file in an existing folder", str(path), remedy))
        if self.path.is_dir():
            raise ValueError(argument_error("checkpoint", "be a file, not a folder", str(path)))

    def exists(self) -> bool:
        """Returns whether there is a checkpoint."""
        return self.path.exists()

    def remove(self) -> None:
        """Removes the file, if there is one: to be called once the model is saved."""
        self.path.unlink(missing_ok=True)

    def write(self, settings: Mapping[str, str], table: str, state: dict[str, Any]) -> None:
        """Writes the state of a fit.

        Args:
            settings: of the fit, as text.
            table: fingerprint of the table.
            state: dicts, lists, numbers and tensors.
        """
        content = {"settings": dict(settings), "table": table, "torch": str(torch.__version__), "state": state}
        content["digest"] = canonical_digest(content)
        write_file(self.path, _KIND, _VERSION, content)

    def warn_beside_card(self) -> None:
        """Warns if the file is going to lie in a folder that is handed out."""
        warn_beside_card(self.path, "A checkpoint", stacklevel=4)

    def read(self, settings: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
        """Returns the table's fingerprint and the state of the fit.

        Args:
            settings: of the fit that goes on.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is damaged, of another version, or of a fit with other settings.
        """
        try:
            content = read_file(self.path, _KIND, (_VERSION,))
        except ValueError as error:
            if "version" in str(error).partition(",")[0]:
                raise
            raise self._damaged() from error
        names: tuple[str, ...] = ("settings", "table", "torch", "state")
        body = {name: content[name] for name in names if name in content}
        try:
            is_whole = canonical_digest(body) == content.get("digest")
        except TypeError:
            is_whole = False
        if not is_whole:
            raise self._damaged()
        try:
            kept, table, version = dict(content["settings"]), str(content["table"]), str(content["torch"])
            state = dict(content["state"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged() from error
        if differing := [
            name for name in (*settings, *(kept.keys() - settings)) if kept.get(name) != settings.get(name)
        ]:
            raise ValueError(
                f"The checkpoint {str(self.path)!r} is of a fit with another value of {listed(differing)}. Use the "
                f"same settings as then, or start again (--force in place of --resume)."
            )
        if version != torch.__version__:
            warn_owner(
                f"The checkpoint was written with PyTorch {version}, and this is {torch.__version__}: the fit goes on, "
                f"but it may differ from one that was not interrupted."
            )
        return table, state

    def _damaged(self) -> ValueError:
        text = "is damaged, or another kind of file. Start from the beginning (--force in place of --resume)."
        return ValueError(f"The checkpoint {str(self.path)!r} {text}")

    def check_table(self, kept: str, table: str) -> None:
        """Raises ValueError unless the table is the one of the checkpoint, by their fingerprints."""
        if kept != table:
            raise ValueError(
                f"The checkpoint {str(self.path)!r} is of another table, or a file of the table was changed since. "
                f"Give the same files as then, or start again (--force in place of --resume)."
            )
