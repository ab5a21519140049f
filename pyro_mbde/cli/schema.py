"""``pyro-mbde schema``: a first draft of what is public about a table."""

from __future__ import annotations

from pathlib import Path

import click

from pyro_mbde.cli.console import Console
from pyro_mbde.cli.shared import EXAMPLES, OUTPUT, PLACE, check_output, force_option, shared_options
from pyro_mbde.cli.table import table_options


@click.group(
    "schema",
    short_help="Draft the file that says what is public about a table.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde schema draft patients.csv -o schema.toml
""",
)
def schema_group() -> None:
    """Draft the file that says what is public about a table."""


@schema_group.command(
    "draft",
    short_help="Write names and kinds of a table's columns, to be filled in from its codebook.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde schema draft patients.csv -o schema.toml
  pyro-mbde schema draft patients.csv --sep ";" --decimal , -o schema.toml
""",
)
@click.argument("table", type=PLACE, nargs=-1, required=True)
@click.option("-o", "--output", type=OUTPUT, metavar="TOML", help="File for the draft.  [default: standard output]")
@table_options
@force_option
@shared_options
@click.pass_context
def draft_command(
    ctx: click.Context,
    console: Console,
    table: tuple[Path, ...],
    output: Path | None,
    csv_format: dict[str, str],
    force: bool,
) -> None:
    """Write a schema with the names and kinds of TABLE's columns, and a question where the codebook must be consulted.

    Names and types are all that is read from TABLE: no smallest or largest value, no level, no mean. In a CSV file a
    single cell can change a column's type: take the kinds from the codebook too. Fill in the rest from the codebook,
    look at `pyro-mbde preview --schema`, and check the table with `pyro-mbde fit --check`.
    """
    if output is not None:
        check_output(ctx, output, force=force)
    from pyro_mbde.private_files import write_atomically
    from pyro_mbde.tables.draft import draft_schema
    from pyro_mbde.tables.streams import read_sample

    frame, _ = read_sample(table, None, **csv_format)
    text = draft_schema(frame, table[0].name if len(table) == 1 else "the table")
    if output is None:
        console.answer({"schema": text}, text.rstrip())
    else:
        write_atomically(lambda file: file.write(text.encode()), output)
        console.answer({"schema": output}, str(output), settled=True)
    console.note('Read from the table: names and types of its columns, and nothing else. Fill in each "?".')
