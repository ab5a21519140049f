"""``pyro-mbde report``: a model for its owner, or a card for anybody."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from pyro_mbde_cli.shared import (
    EXAMPLES,
    EXISTING,
    OUTPUT,
    Console,
    check_output,
    force_option,
    library,
    shared_options,
)
from pyro_mbde_cli.table import TABLE_OPTIONS, table_options

#: Items of more characters get a line each.
_LONG = 30


class _TableOfFit(click.Command):
    """A command that reads a table as fit does, unless its own options say otherwise."""

    inherits = ("fit", TABLE_OPTIONS)


@click.command(
    "report",
    cls=_TableOfFit,
    short_help="Report on a model, or show a card.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde report model.pt --table patients.csv -o report.html
  pyro-mbde report rows.card.json
""",
)
@click.argument("file", type=EXISTING)
@click.option("--table", type=EXISTING, help="The table that the model was fitted to, to compare it with.")
@click.option("-o", "--output", type=OUTPUT, metavar="PAGE", help="File for the report.  [default: MODEL.report.html]")
@table_options
@force_option
@shared_options
def report_command(
    console: Console, file: Path, table: Path | None, output: Path | None, csv_format: dict[str, str], force: bool
) -> None:
    """Write a report on the model FILE, for the table's owner alone; or show the card FILE of rows, which is public."""
    if file.suffix == ".json":
        if table is not None or output is not None:
            raise click.UsageError("--table and --output are for models; a card is shown.")
        _show_card(console, file)
        return
    output = output or file.with_name(f"{file.stem}.report.html")
    check_output(output, force=force)
    from pyro_mbde.tables.files import TableModel, read_table

    model = TableModel.load(file)
    rows = None
    if table is not None:
        frame = read_table(table, **csv_format)
        rows = frame if model.schema is None else model.schema.to_tensor(frame)
    library().private_report(model.density, rows, path=output)
    console.answer({"report": output}, str(output))
    console.note(f"{output} is as sensitive as the table: keep it.")


def _show_card(console: Console, path: Path) -> None:
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be a card, which a release writes beside its rows: {error}.") from error
    from pyro_mbde.releases.card import CARD_FORMAT, CARD_VERSION

    if not isinstance(card, dict) or card.get("format") != CARD_FORMAT:
        raise ValueError(f"{path} must be a card, which a release writes beside its rows.")
    if card.get("version") != CARD_VERSION:
        raise ValueError(f"{path} must be a card of version {CARD_VERSION}. Update pyro_mbde to read it.")
    console.answer(card, "\n".join(_lines(card)))


def _lines(card: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """A card's entries, one a line, those of tables and long lists below them."""
    for key, value in card.items():
        name = f"{indent}{str(key).replace('_', ' ')}"
        if isinstance(value, Mapping):
            yield f"{name}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list):
            items = [_item(item) for item in value]
            if any(isinstance(item, Mapping) or len(str(item)) > _LONG for item in value):
                yield f"{name}:"
                yield from (f"{indent}  - {item}" for item in items)
            else:
                yield f"{name}: {', '.join(items)}"
        elif value not in (None, ""):
            yield f"{name}: {_item(value)}"


def _item(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{str(key).replace('_', ' ')} {_item(item)}" for key, item in value.items())
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
