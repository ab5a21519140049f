"""``pyro-mbde audit``: attacks on the configured trainer, with made-up tables."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pyro_mbde.cli.console import Console
from pyro_mbde.cli.numbers import NUMBER, Whole
from pyro_mbde.cli.recipe import RECIPE_OPTIONS, Recipe, recipe_options
from pyro_mbde.cli.shared import (
    CHECK_FAILED,
    EXAMPLES,
    OUTPUT,
    check_picture,
    find_schema,
    force_option,
    library,
    schema_option,
    shared_options,
)


class _LikeFit(click.Command):
    """A command whose trainer is, unless its options say otherwise, the one that the file of options fits with."""

    inherits = ("fit", ("schema", *RECIPE_OPTIONS))


@click.command(
    "audit",
    cls=_LikeFit,
    short_help="Attack the trainer with made-up tables.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde audit --epsilon 1
  pyro-mbde audit --epsilon 1 --picture audit.png
  pyro-mbde audit --schema schema.toml --epsilon 0.5 --method mbde --num-pairs 3
  pyro-mbde audit --config pyro-mbde.toml    # attacks the trainer that [fit] there describes
""",
)
@schema_option
@recipe_options
@click.option("--num-pairs", type=Whole(1), default=6, show_default=True, help="Number of pairs of tables.")
@click.option("--num-draws", type=Whole(1000), default=20_000, show_default=True, help="Draws of each fitted density.")
@click.option(
    "--confidence", type=NUMBER, default=0.95, show_default=True, help="Confidence that all lower bounds hold together."
)
@click.option("--seed", type=Whole(0), help="For a reproducible audit.")
@click.option(
    "--picture", type=OUTPUT, metavar="FILE", help="Also draw it: what was measured, beside what was promised."
)
@force_option
@shared_options
@click.pass_context
def audit_command(
    ctx: click.Context,
    console: Console,
    schema: Path | None,
    recipe: Recipe,
    num_pairs: int,
    num_draws: int,
    confidence: float,
    seed: int | None,
    picture: Path | None,
    force: bool,
) -> None:
    """Attack the trainer: fit pairs of hostile, made-up tables and look for anything that contradicts its guarantee.

    It reads none of your tables, so its report is public. The base is that of the schema, or without a schema a
    standard normal in two dimensions. It takes minutes and reports its progress on standard error. Exits with 4 if the
    guarantee was contradicted.
    """
    if picture is not None:
        check_picture(ctx, picture, "--picture", force=force)
    import pyro.distributions as dist
    import torch

    from pyro_mbde.auditing.picture import draw_audit
    from pyro_mbde.pictures import write_picture

    columns = find_schema(ctx, schema)
    normal: Any = dist.Normal  # Pyro leaves it unannotated
    base = normal(torch.zeros(2), torch.ones(2)).to_event(1) if columns is None else columns.base()
    report = library().audit(
        recipe.trainer(base),
        recipe.epsilon,
        base=base,
        num_pairs=num_pairs,
        num_draws=num_draws,
        confidence=confidence,
        seed=seed,
        progress=not console.quiet,  # also where standard error is kept in a file: it takes minutes
    )
    if picture is not None:
        write_picture(draw_audit(report), picture)
    console.answer({"recipe": asdict(recipe), **json.loads(report.to_json())}, str(report))
    if not report.passed:
        ctx.exit(CHECK_FAILED)
