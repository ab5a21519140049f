"""What the commands have in common: exit codes, options, how they answer."""

from __future__ import annotations

import functools
import importlib
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyro_mbde.cli.config import config_columns, config_files, config_option
from pyro_mbde.cli.errors import remember_command
from pyro_mbde.cli.streams import is_terminal, tell, write_line

if TYPE_CHECKING:
    from pyro_mbde import Schema

USER_ERROR, BUDGET_REFUSED, CHECK_FAILED, INTERRUPTED = 1, 3, 4, 130  # 2 is for wrong usage, which click raises
EXAMPLES = "Examples:"

EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
OUTPUT = click.Path(dir_okay=False, path_type=Path)


@dataclass(frozen=True)
class Console:
    """How a command speaks: its answer on standard output, everything else on standard error.

    Attributes:
        as_json: whether the answer is one JSON document.
        quiet: whether to leave out notes and progress.
    """

    as_json: bool
    quiet: bool

    @property
    def progress(self) -> bool:
        """Whether to show progress bars: on a terminal, unless told to be quiet."""
        return not self.quiet and is_terminal(sys.stderr)

    def note(self, text: str) -> None:
        """Says something beside the answer, where that can be done."""
        if not self.quiet:
            tell(text)

    def notes(self, texts: list[str]) -> list[str]:
        """Says each of several things beside the answer, and returns them for the answer as JSON."""
        for text in texts:
            self.note(text)
        return texts

    def warn(self, text: str) -> None:
        """Says something that matters also to who wants quiet, where that can be done."""
        tell(f"Warning: {text}")

    def confirm(self, facts: str, question: str, *, yes: bool) -> bool:
        """Asks whoever sits at the terminal; where nobody does, or ``yes`` is given beforehand, it is a yes."""
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
        try:
            write_line(sys.stdout, json.dumps(plain(document), indent=2) if self.as_json else text)
        except OSError as error:
            if settled:
                done = "The work is done; the exit code tells how it ended."
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


def shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --config, --json and --quiet to a command, which gets a :class:`Console` as its first argument."""

    @config_option
    @click.option("--json", "as_json", is_flag=True, help="Answer with one JSON document.")
    @click.option("--quiet", is_flag=True, help="Print only the answer, warnings and errors.")
    @functools.wraps(function)
    def run(*args: Any, as_json: bool, quiet: bool, **options: Any) -> Any:
        remember_command(click.get_current_context())
        return function(Console(as_json, quiet), *args, **options)

    return run


schema_option = click.option(
    "--schema",
    type=EXISTING,
    metavar="TOML",
    help="File of [[columns]]: name, low, high; optional kind, scale, decimals, outside, missing; or in --config.",
)
force_option = click.option("--force", is_flag=True, help="Replace an existing file.")
ledger_option = click.option(
    "--ledger",
    required=True,
    envvar="PYRO_MBDE_LEDGER",
    show_envvar=True,
    metavar="FILE|URL",
    help="The budget's SQLite file, or the URL of a database.",
)


def library() -> Any:
    """Imports the library, which takes seconds: when a command runs, not before."""
    return importlib.import_module("pyro_mbde")


def find_schema(ctx: click.Context, path: Path | None) -> Schema | None:
    """Returns the schema in a file of its own, or in the file of options, or None."""
    from pyro_mbde import Schema

    if path is not None:
        return Schema.from_toml(path)
    columns = config_columns(ctx)
    return None if columns is None else Schema.from_dict(columns)


def open_ledger(place: str, *, create: bool = False) -> Any:
    """Opens a ledger; a file that is not there is an error, unless it is to be made."""
    file = place.removeprefix("sqlite:///") if place.startswith("sqlite:///") else place
    if not create and "://" not in file and not Path(file).exists():
        raise FileNotFoundError(f"There is no ledger at {place!r}. Open an account in it first: pyro-mbde budget open.")
    return importlib.import_module("pyro_mbde.ledger.ledger").Ledger(place)


def check_output(ctx: click.Context, path: Path, *, force: bool) -> None:
    """Raises before any work is done if a file cannot be written, is there, or is one that the command reads."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"The folder {str(path.parent)!r} is not there. Make it first.")
    if path.exists():
        if any(path.samefile(source) for source in _read_files(ctx)):
            raise click.UsageError(f"'--output' names {path}, which this command reads. Name another file.", ctx)
        if not force:
            raise FileExistsError(f"{str(path)!r} is there already. Name another file, or pass --force to replace it.")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"The folder {str(path.parent)!r} may not be written to.")


def _read_files(ctx: click.Context) -> list[Path]:
    """The files that a command was told to read: those of its options that have to exist, and those of options."""
    named = [ctx.params.get(parameter.name or "") for parameter in ctx.command.params if parameter.type is EXISTING]
    return [path for path in (*named, *config_files(ctx)) if path is not None and path.exists()]


def aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """Returns rows of cells as text, each column as wide as its widest cell."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
