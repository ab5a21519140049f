"""Commands in several processes that torchrun started: one speaks, and one error is told once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from pyro_mbde._launcher import launched
from pyro_mbde.cli.console import Console

if TYPE_CHECKING:
    from pyro_mbde.ranks import Ranks

#: Commands that several processes can work on.
_TOGETHER = ("fit", "release")
_SPEAKER = "_pyro_mbde_speaker"


@contextmanager
def command_ranks(console: Console) -> Iterator[tuple[Ranks, Console]]:
    """Joins the processes that work on a command, for the block; gives this one's console, silent in all but the first.

    An error is told by the process where it happened, with its number, and by no other one.
    """
    from pyro_mbde.ranks import LostRankError, joined_ranks

    # An error of joining is told by each: they could not agree on one.
    speaks: str | None = ""
    try:
        with joined_ranks() as ranks:
            if ranks.size == 1:
                yield ranks, console
                return
            try:
                with warnings.catch_warnings():
                    if not ranks.is_first:
                        warnings.simplefilter("ignore")
                    yield ranks, console if ranks.is_first else replace(console, silent=True)
            except Exception as error:
                own = not (ranks.is_first or isinstance(error, LostRankError))
                speaks = f"process {ranks.rank} of {ranks.size}: " if own else ""
                if not ranks.claim("error"):
                    speaks = None
                raise
    except Exception as error:
        setattr(error, _SPEAKER, speaks)
        raise


def speaker(error: Exception) -> str | None:
    """What an error is told with: the number of a process, or nothing; ``None`` where it is told by another process."""
    if hasattr(error, _SPEAKER):
        found: str | None = getattr(error, _SPEAKER)
        return found
    try:
        rank, size = launched()
    except ValueError:  # which is the error to be told
        return ""
    if size == 1 or rank == 0:
        return ""
    # Before they have joined, all meet the same errors, except where a file is missing on one machine.
    return f"process {rank} of {size}: " if isinstance(error, click.BadParameter) else None


def num_processes() -> int:
    """How many processes a launcher started, from the environment."""
    return launched()[1]


def is_first_process() -> bool:
    """Whether this is the process that reads and writes the files of a command's options; from the environment."""
    return launched()[0] == 0


def check_one_process(command: str | None) -> None:
    """Raises for a command that several processes cannot work on, where there are several."""
    if command not in _TOGETHER and num_processes() > 1:
        together = " and ".join(f"`pyro-mbde {name}`" for name in _TOGETHER)
        raise click.UsageError(
            f"`pyro-mbde {command}` runs in one process, got {num_processes()}. Run it without torchrun: only "
            f"{together} share out their work."
        )
