"""What the commands have in common: exit codes and options."""

from __future__ import annotations

import contextlib
import filecmp
import functools
import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyro_mbde.cli.config import config_columns, config_files, config_option
from pyro_mbde.cli.console import Console
from pyro_mbde.cli.errors import USER_ERRORS, note_command
from pyro_mbde.cli.numbers import NUMBER

if TYPE_CHECKING:
    from pyro_mbde import Schema
    from pyro_mbde.density.mixed_base import MixedBase

USER_ERROR, BUDGET_REFUSED, CHECK_FAILED, INTERRUPTED = 1, 3, 4, 130  # 2 is for wrong usage, which click raises
EXAMPLES = "Examples:"

EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
OUTPUT = click.Path(dir_okay=False, path_type=Path)
#: Of a table: a file, a folder, or a pattern.
PLACE = click.Path(path_type=Path)


#: --config, --json and --quiet, as decorators: of a command in this order, of a function from the last to the first.
SHARED_OPTIONS = (
    config_option,
    click.option("--json", "as_json", is_flag=True, help="Answer with one JSON document."),
    click.option("--quiet", is_flag=True, help="Print only the answer, warnings and errors."),
)


def shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds :data:`SHARED_OPTIONS` to a command, which gets a :class:`Console` as its first argument."""

    @functools.wraps(function)
    def run(*args: Any, as_json: bool, quiet: bool, **options: Any) -> Any:
        try:
            return function(Console(as_json, quiet), *args, **options)
        except USER_ERRORS as error:
            note_command(error, click.get_current_context())
            raise

    for option in reversed(SHARED_OPTIONS):
        run = option(run)
    return run


schema_option = click.option(
    "--schema",
    type=EXISTING,
    metavar="TOML",
    help="File of what is public about the table: its [[columns]], [[correlations]], constraints; or in --config.",
)
DEPENDENCES = ("copula", "flow")


def public_rows_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of public rows to a command, which gets ``public_rows`` and ``dependence``."""
    for option in (
        click.option(
            "--dependence",
            type=click.Choice(DEPENDENCES),
            default="copula",
            show_default=True,
            help="How columns of the public rows go together: by correlations; or by a neural network (a flow), "
            "where the schema states no correlations.",
        ),
        click.option(
            "--public-rows",
            type=EXISTING,
            metavar="CSV",
            help="A table that anybody may see, such as an open survey, with the schema's columns: for the base. A CSV "
            "file is read with --sep, --decimal and --encoding.",
        ),
    ):
        function = option(function)
    return function


#: Where a calibrated density lies, where nothing else is asked for.
SKEW = 0.3
skew_option = click.option(
    "--skew", type=NUMBER, help=f"Share of the tilt's interval that is below 0, in (0, 1).  [default: {SKEW:g}]"
)
filled_share_option = click.option(
    "--filled-share",
    type=NUMBER,
    help="In place of --skew, for single rows: a public guess of the share of the base's mass that the table fills, in "
    "(0, 1). With --rows it closes far less of the distance at large epsilon; there a skew of 0.3 was best in "
    "measurements.",
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
    """Imports the library, when a command runs and not before."""
    return importlib.import_module("pyro_mbde")


def find_schema(ctx: click.Context, path: Path | None) -> Schema | None:
    """Returns the schema of --schema, or of the file of options, or None."""
    from pyro_mbde import Schema

    if path is not None:
        return Schema.read(path)
    columns = config_columns(ctx)
    return None if columns is None else Schema.from_dict(columns)


def check_schema_given(ctx: click.Context, path: Path | None) -> None:
    """Raises where there is no schema, before anything is imported or read."""
    if path is None and config_columns(ctx) is None:
        raise click.UsageError("Missing option '--schema', or [[columns]] in the file of --config.", ctx)


def find_base(
    ctx: click.Context,
    console: Console,
    path: Path | None,
    public_rows: Path | None,
    dependence: str,
    csv_format: Mapping[str, str],
) -> tuple[Schema, MixedBase]:
    """Returns the schema and its base, which follow public rows where some are named; raises where there is none."""
    check_schema_given(ctx, path)
    schema = find_schema(ctx, path)
    assert schema is not None
    if public_rows is None:
        if dependence != DEPENDENCES[0]:
            raise click.UsageError("--dependence goes with --public-rows.", ctx)
        return schema, schema.base()
    if any(_is_same(public_rows, path) for path in _table_files(ctx)):
        remedy = "Name a table of other people that anybody may see, or leave --public-rows out."
        text = f"--public-rows names the private table itself: the guarantee would be void. {remedy}"
        raise click.UsageError(text, ctx)
    from pyro_mbde.tables.files import read_table
    from pyro_mbde.tables.public_rows import follow_public_rows

    frame = read_table(public_rows, **csv_format)
    console.note(
        f"The base follows the rows of {public_rows}: they must be public. Anything of a private table in them has no "
        f"protection."
    )
    return follow_public_rows(schema, frame, source=public_rows.name, dependence=dependence)


def open_ledger(place: str, *, create: bool = False) -> Any:
    """Opens a ledger; a missing file is an error, unless ``create``."""
    file = place.removeprefix("sqlite:///")
    if not create and "://" not in file and not Path(file).exists():
        raise FileNotFoundError(f"There is no ledger at {place!r}. Open an account in it first: pyro-mbde budget open.")
    return importlib.import_module("pyro_mbde.ledger.ledger").Ledger(place)


def batch_remarks(num_rows: int, epsilon: float, *, skew: float, calibrated: bool) -> list[str]:
    """Returns what rows of a batch can show, in words; from public numbers alone.

    Args:
        num_rows: of the batch.
        epsilon: of the batch, in nats.
        skew: of its density.
        calibrated: whether its guarantee is calibrated, or a priori.
    """
    from pyro_mbde.privacy.accounting import PURE, DrawBudget, TotalCost
    from pyro_mbde.privacy.release_plan import ReleasePlan

    form, total = "calibrated" if calibrated else "a priori", TotalCost(epsilon, 0.0, PURE)
    return ReleasePlan(1, num_rows, DrawBudget(epsilon, 0.0, form, skew, total)).remarks()


def check_output(ctx: click.Context, path: Path, *, force: bool) -> None:
    """Raises before any work is done if a file cannot be written, exists, or is one that the command reads."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"The folder {str(path.parent)!r} is not there. Make it first.")
    if path.exists():
        if any(path.samefile(source) for source in _read_files(ctx)):
            raise click.UsageError(f"'--output' names {path}, which this command reads. Name another file.", ctx)
        if not force:
            raise FileExistsError(f"{str(path)!r} exists. Name another file, or pass --force to replace it.")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"The folder {str(path.parent)!r} may not be written to.")


def check_picture(ctx: click.Context, path: Path, option: str, *, force: bool) -> None:
    """Raises before any work is done if a picture cannot be written, or has an ending that pictures do not have."""
    from pyro_mbde.pictures import PICTURE_ENDINGS

    if path.suffix not in PICTURE_ENDINGS:
        raise click.BadParameter(f"{str(path)!r} must end in {', '.join(PICTURE_ENDINGS)}.", param_hint=f"'{option}'")
    check_output(ctx, path, force=force)


def _read_files(ctx: click.Context) -> list[Path]:
    """The files that a command was told to read: those of its options that have to exist, and those of options."""
    named = [ctx.params.get(parameter.name or "") for parameter in ctx.command.params if parameter.type is EXISTING]
    known = [path for path in (*named, *config_files(ctx)) if path is not None and path.exists()]
    return [*known, *_table_files(ctx)]


def _table_files(ctx: click.Context) -> list[Path]:
    """The files of the table that a command reads, in so far as they are there."""
    places = [ctx.params.get(parameter.name or "") for parameter in ctx.command.params if parameter.type is PLACE]
    if not any(places):
        return []
    from pyro_mbde.tables.row_files import find_paths

    found: list[Path] = []
    for place in (one for several in places for one in several or ()):
        with contextlib.suppress(OSError, ValueError):  # what is wrong is said where the table is read
            found += map(Path, find_paths(place))
    return found


def _is_same(first: Path, second: Path) -> bool:
    """Whether two files are one, or have the same bytes."""
    return first.samefile(second) or filecmp.cmp(first, second, shallow=False)
