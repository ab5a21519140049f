"""``pyro-mbde report``: a model for its owner, or a card for anybody."""

from __future__ import annotations

import json
from pathlib import Path

import click

from pyro_mbde.cli.console import Console
from pyro_mbde.cli.shared import EXAMPLES, EXISTING, OUTPUT, PLACE, check_output, force_option, library, shared_options
from pyro_mbde.cli.table import TABLE_OPTIONS, format_of, table_options

#: Endings of what a release writes for people to read, and of tables.
RELEASED = (".csv", ".csv.gz", ".parquet", ".card.html")


class _TableOfFit(click.Command):
    """A command that reads a table as fit does, unless its own options say otherwise."""

    inherits = ("fit", TABLE_OPTIONS)


@click.command(
    "report",
    cls=_TableOfFit,
    short_help="Show what rows will look like, or a card.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde report model.pt --table patients.csv -o report.html
  pyro-mbde report public/rows.card.json
  pyro-mbde report public/rows.card.json --registry > entry.yaml
""",
)
@click.argument("file", type=EXISTING)
@click.option(
    "--table",
    type=PLACE,
    multiple=True,
    help="The table that the model was fitted to: a file, a folder or a pattern; may be given several times.",
)
@click.option("-o", "--output", type=OUTPUT, metavar="PAGE", help="File for the report.  [default: MODEL.report.html]")
@click.option("--target", metavar="NAME", help="Column to predict: trained on released rows, tested on the table.")
@click.option("--registry", is_flag=True, help="Show the card as an entry of the OpenDP deployments registry, in YAML.")
@table_options
@force_option
@shared_options
@click.pass_context
def report_command(
    ctx: click.Context,
    console: Console,
    file: Path,
    table: tuple[Path, ...],
    output: Path | None,
    target: str | None,
    registry: bool,
    csv_format: dict[str, str],
    force: bool,
) -> None:
    """Write a report on the model FILE, for the table's owner alone; or show the card FILE of a release.

    The report says in a sentence what rows will look like. It shows table, model and public base column by column,
    with the distances between them and between pairs of columns, correlations, and how good the fit is; with
    --target, how well that column is predicted by what released rows teach. It is as sensitive as the table: only
    you can read the file, and it cannot be written beside a card. A card is public, and so is its entry for a
    registry, with --registry. A CSV table is read as it was for the fit, unless --sep, --decimal or --encoding say
    otherwise.
    """
    if file.suffix == ".json":
        if table or output is not None or target is not None:
            raise click.UsageError("--table, --target and --output are for models; a card is shown.")
        _show_card(console, file, as_entry=registry)
        return
    if registry:
        raise click.UsageError(f"--registry is for cards (.card.json), not for {file}.")
    if file.name.endswith(RELEASED):
        raise click.UsageError(_no_model(file))
    if target is not None and not table:
        raise click.UsageError("--target needs the table: what is learned is tested on it. Add --table.")
    output = output or file.with_name(f"{file.stem}.report.html")
    check_output(ctx, output, force=force)
    from pyro_mbde.tables.files import TableModel
    from pyro_mbde.tables.streams import read_sample

    model = TableModel.load(file)
    rows = None
    if table:
        rows, is_whole = read_sample(table, model.schema, **format_of(ctx, csv_format, model.settings))
        if not is_whole:
            console.note(f"The table is large: the report is on {len(rows):,} rows of it, chosen at random.")
    report = library().private_report(model.density, rows, path=output, columns=model.schema, target=target)
    verdict = report["comparison"]["verdict"]
    told, lines = report["prediction"], [str(output), verdict]
    if told is not None:
        by = [
            f"{one['rows']} {'-' if one['value'] is None else format(one['value'], '.2f')}" for one in told["results"]
        ]
        lines.append(
            f"{told['target']} predicted from the other columns, {told['measure']}, trained on {', '.join(by)}."
        )
    document = {"report": output, "verdict": verdict, "prediction": told}
    console.answer(document, "\n".join(lines), settled=True)
    console.note(f"{output}, and what is said here, is as sensitive as the table: keep it to yourself.")


def _no_model(file: Path) -> str:
    """What to report on in place of rows or of a card's page."""
    stem = file.name.removesuffix(".card.html").removesuffix(file.suffix)
    card = file.with_name(f"{stem}.card.json")
    if card.exists():
        return f"{file} was released: what is guaranteed is on its card. Run: pyro-mbde report {card}"
    return f"{file} must be a model that `pyro-mbde fit` wrote, or the card beside released rows (.card.json)."


def _show_card(console: Console, path: Path, *, as_entry: bool) -> None:
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be a card, which a release writes beside its rows: {error}.") from error
    from pyro_mbde.releases.card import CARD_FORMAT, CARD_VERSION

    if not isinstance(card, dict) or card.get("format") != CARD_FORMAT:
        raise ValueError(f"{path} must be a card, which a release writes beside its rows.")
    if card.get("version") != CARD_VERSION:
        raise ValueError(f"{path} must be a card of version {CARD_VERSION}. Update pyro_mbde to read it.")
    from pyro_mbde.releases.card_text import card_text
    from pyro_mbde.releases.registry import left_to_fill_in, registry_entry, registry_yaml

    if as_entry and card.get("test_only"):
        raise ValueError(
            f"{path} must be of rows drawn with fresh randomness. A release from a seed is not to be registered."
        )
    try:
        shown = registry_entry(card) if as_entry else card
        text = registry_yaml(shown) if as_entry else card_text(card)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(f"{path} must be a whole card, which a release writes beside its rows.") from error
    console.answer(shown, text)
    if as_entry:
        console.note(f"{len(left_to_fill_in(shown))} fields are yours to fill in: they contain TO FILL IN.")
