"""``pyro-mbde preview``: what rows will look like, before a table is read or anything is spent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyro_mbde.cli.console import Console, aligned
from pyro_mbde.cli.numbers import NUMBER, Whole
from pyro_mbde.cli.shared import (
    EXAMPLES,
    OUTPUT,
    SKEW,
    batch_remarks,
    check_output,
    check_schema_given,
    find_base,
    force_option,
    public_rows_options,
    schema_option,
    shared_options,
)
from pyro_mbde.cli.table import table_options

if TYPE_CHECKING:
    from pyro_mbde.releases.preview import Preview


@click.command(
    "preview",
    short_help="Show what rows will look like, from the schema alone.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde preview --schema schema.toml
  pyro-mbde preview --schema schema.toml --epsilon 3 --rows 20 -o base.png
  pyro-mbde preview --schema schema.toml --public-rows survey.csv --sep ";"
""",
)
@schema_option
@public_rows_options
@table_options
@click.option("--epsilon", type=NUMBER, help="What a release may cost in all: says what it could change at best.")
@click.option("--rows", type=Whole(1), default=20, show_default=True, help="Rows of that release, as one batch.")
@click.option("--show", type=Whole(1), default=8, show_default=True, help="Rows of the base to show.")
@click.option("-o", "--output", type=OUTPUT, metavar="PICTURE", help="File for a picture of the columns: .png or .pdf.")
@force_option
@shared_options
@click.pass_context
def preview_command(
    ctx: click.Context,
    console: Console,
    schema: Path | None,
    public_rows: Path | None,
    dependence: str,
    csv_format: dict[str, str],
    epsilon: float | None,
    rows: int,
    show: int,
    output: Path | None,
    force: bool,
) -> None:
    """Show rows of the public base, its columns and pairs of columns: what a release starts from.

    No private table is read and nothing is spent. A release changes these rows only as far as its epsilon allows: if
    they look wrong, state more of what is public in the schema, such as means, shares, correlations and constraints.
    """
    check_schema_given(ctx, schema)
    if output is not None:
        check_output(ctx, output, force=force)
    from pyro_mbde.releases.preview import draw_preview, preview

    columns, base = find_base(ctx, console, schema, public_rows, dependence, csv_format)
    shown = preview(columns, show, base=base)
    remarks = [] if epsilon is None else batch_remarks(rows, epsilon, skew=SKEW, calibrated=True)
    if output is not None:
        draw_preview(shown, output)
    document = {
        "rows": shown.rows.astype(object).where(shown.rows.notna(), None).to_dict("records"),
        "columns": [column._asdict() for column in shown.columns],
        "pairs": [{"columns": [one, other], "association": value} for one, other, value in shown.pairs],
        "acceptance_rate": shown.acceptance_rate,
        "moved": list(shown.moved),
        "remarks": remarks,
        "picture": output,
    }
    console.answer(document, _text(shown, remarks, output))


def _text(shown: Preview, remarks: list[str], output: Path | None) -> str:
    """The preview on a terminal."""
    from pyro_mbde.releases.preview import LEAST_ASSOCIATION

    parts = ["Rows of the public base, as a release would write them:", shown.rows.to_string(index=False), ""]
    columns = [(column.name, column.kind, column.law + _unstated(column.stated)) for column in shown.columns]
    parts += ["Columns (10 to 90 per cent quantiles, or shares of levels):", aligned(columns), ""]
    if shown.pairs:
        unordered = {column.name for column in shown.columns if column.is_unordered}
        pairs = [
            (f"{one}, {other}", f"{value:.2f}" if {one, other} & unordered else f"{value:+.2f}")
            for one, other, value in shown.pairs
        ]
        parts += ["Pairs of columns that go together, strongest first:", aligned(pairs), ""]
    else:
        parts += [f"No association of {LEAST_ASSOCIATION:g} or more.", ""]
    if shown.acceptance_rate < 1:
        parts.append(f"Constraints and condition leave {shown.acceptance_rate:.1%} of the base.")
        parts += [f"  {text}" for text in shown.moved]
        if shown.moved:
            parts.append(
                "  If a rule is right, state more of what it takes away, until the preview shows what is published."
            )
    parts += remarks
    if output is not None:
        parts.append(f"Picture: {output}")
    return "\n".join(parts).rstrip()


def _unstated(stated: bool) -> str:
    return "" if stated else "  (nothing stated: spread evenly)"
