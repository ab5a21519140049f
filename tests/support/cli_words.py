"""The words that the command is called with in its tests, and what it is called on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
from click.testing import Result

from pyro_mbde import Charge, Ledger
from pyro_mbde.cli import main

ROOT = Path(__file__).parents[2]
Run = Callable[..., Result]
FIT = ("fit", "table.csv", "--schema", "schema.toml", "--epsilon", 1, "--steps", 3, "--seed", 0, "-o", "model.pt")
RELEASE = ("release", "model.pt", 2, "--ledger", "budget.db", "--account", "clinic", "-o", "rows.csv")


def commands(group: click.Group = main, names: Sequence[str] = ()) -> Iterator[tuple[str, ...]]:
    """All commands, as the words that call them."""
    for name, command in group.commands.items():
        yield (*names, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*names, name))


def charges() -> list[Charge]:
    """What was charged to the account."""
    with Ledger("budget.db") as ledger:
        return ledger.charges("clinic")


def entry_point() -> list[str]:
    """The installed command; the module in its place where it is not installed."""
    script = Path(sys.executable).with_name("pyro-mbde")
    return [str(script)] if script.exists() else [sys.executable, "-m", "pyro_mbde.cli"]
