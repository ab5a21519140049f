"""``pyro-mbde fit``."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyro_mbde.cli.console import Console
from pyro_mbde.cli.numbers import Whole
from pyro_mbde.cli.ranked import command_ranks, is_first_process, num_processes
from pyro_mbde.cli.recipe import RATIO, Recipe, recipe_options
from pyro_mbde.cli.running import Running, running_options
from pyro_mbde.cli.shared import (
    EXAMPLES,
    OUTPUT,
    PLACE,
    batch_remarks,
    check_output,
    check_schema_given,
    find_base,
    find_schema,
    force_option,
    public_rows_options,
    schema_option,
    shared_options,
)
from pyro_mbde.cli.table import TABLE_FORMAT, table_options

if TYPE_CHECKING:
    from torch import Tensor

    from pyro_mbde import Schema
    from pyro_mbde.ranks import Ranks
    from pyro_mbde.tables.files import TableModel
    from pyro_mbde.tables.streams import TableStream


@click.command(
    "fit",
    short_help="Fit a density to a table.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde fit patients.csv --schema schema.toml --epsilon 3 --rows 10 -o model.pt
  pyro-mbde fit patients.csv --schema schema.toml --epsilon 0.5 --filled-share 0.2 -o single-rows.pt
  pyro-mbde fit patients.csv --sep ";" --decimal , --encoding latin-1 --config pyro-mbde.toml
  pyro-mbde fit patients.csv --schema schema.toml --epsilon 1 --method mbde --delta 0 -o model.pt
  pyro-mbde fit visits/*.parquet --schema schema.toml --epsilon 3 --rows 10 --steps 2000 -o model.pt --resume
  torchrun --nproc-per-node=2 -m pyro_mbde fit visits/ --schema schema.toml --epsilon 3 --rows 10 -o model.pt

\b
A schema says what is public about the columns, from their codebook, not from the table:
  [[columns]]
  name = "visits"
  low = 0
  high = 99
  kind = "integer"   # or "real", the default
  scale = "log1p"    # models ln(1 + visits); or "linear", the default
  outside = "clip"   # the default: moves it to the nearest allowed value; or "drop" the row, or "refuse" the table
  missing = "drop"   # the default: leaves out the row; "level" keeps it; or a number that replaces it, or "refuse"

\b
  [[columns]]
  name = "ward"
  kind = "category"  # or "ordered", "boolean", "date", "datetime": see docs/schema.md
  levels = ["Medicine", "Surgery", "Other"]
""",
)
@click.argument("table", type=PLACE, nargs=-1, required=True)
@schema_option
@public_rows_options
@recipe_options
@running_options
@click.option("-o", "--output", type=OUTPUT, metavar="MODEL", help="File for the model. Private.")
@click.option(
    "--check",
    is_flag=True,
    help="Only compare TABLE with --schema: nothing is fitted or spent. Other options have no effect, except those of "
    "a CSV file.",
)
@table_options
@click.option("--seed", type=Whole(0), help="For a reproducible fit.")
@force_option
@shared_options
@click.pass_context
def fit_command(
    ctx: click.Context,
    console: Console,
    table: tuple[Path, ...],
    schema: Path | None,
    public_rows: Path | None,
    dependence: str,
    recipe: Recipe | None,
    running: Running,
    output: Path | None,
    check: bool,
    csv_format: dict[str, str],
    seed: int | None,
    force: bool,
) -> None:
    """Fit a density to TABLE, a CSV file with a header or a Parquet file; or several, a folder, or a pattern.

    A large table is read in parts, in random order, and never held in memory; see docs/scale.md. Its fit writes a
    checkpoint, MODEL.checkpoint, as private as the table, and removes it at the end. --resume goes on from there.

    The model is as sensitive as the table, and so are errors, warnings and the time taken: keep them private. Only rows
    from `pyro-mbde release` may be handed out. Messages about the table are shown even with --quiet.

    With --rows K a draw is a batch of K rows, and epsilon is what the whole batch costs. One batch of all the rows that
    are wanted comes closer to the table than single rows of the same total.

    A model that exists is replaced only with --force. Choosing epsilon, rows, delta, skew, method or schema because
    of what is said about the table, or because of a result, voids the guarantee. A model costs nothing until rows are
    drawn from it; still, do not keep fitting until one looks right: a certificate covers one fit, not the best of
    several.
    """
    check_schema_given(ctx, schema)
    if check:
        if num_processes() > 1:
            raise click.UsageError("--check runs in one process. Run it without torchrun.", ctx)
        _check_table(ctx, console, table, schema, csv_format)
        return
    if output is None:
        raise click.UsageError("Missing option '--output'.", ctx)
    assert recipe is not None  # else its options would have said so
    running.check(recipe.method, RATIO)
    checkpoint = output.with_name(f"{output.name}.checkpoint")
    if running.resume and not force and output.exists() and not checkpoint.exists():
        console.note(f"{output} is there, and no checkpoint: the fit is done. Pass --force to fit again.")
        return
    if is_first_process():
        check_output(ctx, output, force=force)
        _check_checkpoint(checkpoint, resume=running.resume, force=force)
    from pyro_mbde.tables.files import TableModel

    with command_ranks(console) as (ranks, spoken):
        _check_same(ranks, [asdict(recipe), running.resume, seed, csv_format, dependence])
        columns, base = find_base(ctx, spoken, schema, public_rows, dependence, csv_format)
        running = replace(running, ranks=ranks, checkpoint=checkpoint)
        train = recipe.trainer(base, seed=seed, progress=spoken.progress, running=running)  # checks arguments
        rows = _open_table(spoken, table, columns, csv_format, ranks)
        if force and not running.resume and ranks.is_first:
            checkpoint.unlink(missing_ok=True)  # else --resume could go on from a fit that was given up
        try:
            model = TableModel(train(rows), columns, {**asdict(recipe), TABLE_FORMAT: csv_format})
        except KeyboardInterrupt:
            if checkpoint.exists():
                spoken.note(f"{checkpoint} is kept: the same command with --resume goes on from it.")
            raise
        if ranks.is_first:
            check_output(ctx, output, force=force)  # again: another fit may have written it meanwhile
            if output.exists():
                _compare(spoken, output, model)
            model.save(output)
            checkpoint.unlink(missing_ok=True)
            _answer(spoken, output, recipe, model)


def _check_same(ranks: Ranks, options: list[Any]) -> None:
    """Raises, in all processes, if one of them was started with other options."""
    if any(other != options for other in ranks.gather(options)):
        remedy = "Start all of them with the same command."
        raise ValueError(f"The {ranks.size} processes were started with different options. {remedy}")


def _open_table(
    console: Console, table: tuple[Path, ...], columns: Schema, csv_format: dict[str, str], ranks: Ranks
) -> Tensor | TableStream:
    """Opens the table, and checks what could otherwise be refused in the middle of the fit."""
    from pyro_mbde.tables.streams import TableStream, check_refused, open_table

    rows = open_table(table, columns, **csv_format)
    if isinstance(rows, TableStream):
        check_refused(rows, ranks=ranks, progress=console.progress)
    return rows


def _answer(console: Console, output: Path, recipe: Recipe, model: TableModel) -> None:
    """Says what was fitted; from public facts alone."""
    from pyro_mbde._checks import counted
    from pyro_mbde.privacy.advice import advise

    assert model.schema is not None
    guarantee = model.density.guarantee
    calibrated = model.density.certificate is not None  # a requested certificate may not be possible
    if recipe.rows is None:
        remarks = advise(row=recipe.epsilon, skew=recipe.placed_skew, calibrated=calibrated)
    else:
        looks = batch_remarks(recipe.rows, recipe.epsilon, skew=recipe.placed_skew, calibrated=calibrated)
        remarks = [*advise(batch=recipe.epsilon), *looks]
    document = {
        "model": output,
        "recipe": asdict(recipe),
        "guarantee": asdict(guarantee),
        "columns": model.schema.to_dict()["columns"],
        "advice": console.notes(remarks),
    }
    certificate = f", delta {guarantee.delta:g} once" if guarantee.delta else ""
    draw = "draw" if recipe.rows is None else f"batch of {counted(recipe.rows, 'row')}"
    console.answer(document, f"{output}: one {draw} costs epsilon {guarantee.epsilon:.6g}{certificate}", settled=True)
    console.note(f"{output} is as sensitive as the table: keep it. Hand out rows from `pyro-mbde release` alone.")


def _check_table(
    ctx: click.Context, console: Console, table: tuple[Path, ...], schema: Path | None, csv_format: dict[str, str]
) -> None:
    """Compares a table with its schema; what is found is for the owner alone."""
    from pyro_mbde._checks import counted
    from pyro_mbde.tables.streams import check_table

    columns = find_schema(ctx, schema)
    assert columns is not None  # as was checked
    found = check_table(table, columns, progress=console.progress, **csv_format)
    names = counted(len(columns.columns), "column")
    left_out = [name for name in found.names if name not in columns.names]
    document = {
        "rows": found.num_rows,
        "rows_kept": found.num_kept,
        "columns": list(columns.names),
        "left_out": left_out,
    }
    called = str(table[0]) if len(table) == 1 else "The table"
    text = f"{called} fits the schema: {names}, {found.num_kept:,} of {counted(found.num_rows, 'row')} can be used."
    if left_out:
        text += f"\nNot in the schema, and left out: {', '.join(left_out)}."
    console.answer(document, text)
    console.note("Nothing was fitted or spent. What is said here depends on the table: keep it to yourself.")


def _check_checkpoint(path: Path, *, resume: bool, force: bool) -> None:
    """Raises if there is a checkpoint that was not asked for."""
    if path.exists() and not resume and not force:
        text = f"{str(path)!r} is there: a fit of this model was interrupted, or is still running."
        raise FileExistsError(f"{text} Pass --resume to go on from it, or --force to start again.")


def _compare(console: Console, path: Path, model: Any) -> None:
    """Warns where a model is replaced by one of another recipe."""
    from pyro_mbde.tables.files import TableModel

    try:
        old = TableModel.load(path)
    except (OSError, ValueError):
        return
    changed = [
        f"{name} {old.settings.get(name)} by {value}"
        for name, value in model.settings.items()
        if name != TABLE_FORMAT and old.settings.get(name) != value
    ]
    if old.schema != model.schema:
        changed.append("its columns by others")
    if changed:
        remedy = "What is chosen by looking at a result has no guarantee. Rows of the old model stay charged."
        console.warn(f"{path} is replaced, {', '.join(changed)}. {remedy}")
