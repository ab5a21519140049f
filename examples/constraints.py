"""Constraints: rules that hold for every released row, at no cost.

In the RAND Health Insurance Experiment a family on the free plan or on the deductible plan has no maximum of expenses,
and every other family has one. The schema states both rules as text. A base without them puts many rows where no family
can be. A base with them has none, so that nothing is spent on learning what the codebook says, and no release can break
a rule.

May be released: rules, base, picture, and the rows at the price of the batch. Not: the warning that counts rows of the
table that break a rule and were left out.

Run it with ``python examples/constraints.py``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pandas as pd
import torch

from pyro_mbde import DensityRatio, WeakLearner, private_draws
from pyro_mbde.experiments.medical import load_table, whole_schema
from pyro_mbde.pictures import new_figure, write_picture

OUTPUT = Path(__file__).parent / "output"
# Distinguishable with colour-blindness; markers distinguish them in grey.
BLUE, ORANGE = "#0072b2", "#d55e00"


def breaks_a_rule(rows: pd.DataFrame) -> pd.Series:
    """Which rows have a maximum of expenses although nobody pays, or none although somebody does; in pandas' words."""
    has_no_maximum = (rows["coinsurance"] == "0") | rows["deductible_plan"]
    return has_no_maximum != (rows["max_expense"] == 0)


def draw_rows(panels: dict[str, pd.DataFrame], path: Path) -> None:
    """Shows plan and maximum of rows, those that break a rule as crosses."""
    figure = new_figure(11, 4.8)
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True)
    levels = whole_schema().columns[1].levels or ()
    noise = np.random.default_rng(0)
    for axis, (title, rows) in zip(axes, panels.items(), strict=True):
        broken = breaks_a_rule(rows)
        height = rows["coinsurance"].cat.codes + np.where(rows["deductible_plan"], 0.2, -0.2)
        height = height + noise.uniform(-0.12, 0.12, len(rows))
        for chosen, color, marker, label in (
            (~broken, BLUE, "o", "rows that can be"),
            (broken, ORANGE, "x", "rows that break a rule"),
        ):
            axis.scatter(rows["max_expense"][chosen], height[chosen], s=34, c=color, marker=marker, label=label)
        axis.set_title(f"{title}\n{broken.sum()} of {len(rows)} rows break a rule", fontsize=13)
        axis.set_xlabel("maximum of expenses, dollars", fontsize=12)
        axis.set_yticks(range(len(levels)), [f"{level} %" for level in levels], fontsize=12)
        axis.hlines(np.arange(len(levels) - 1) + 0.5, 0, 1000, color="#dddddd", linewidth=1, zorder=0)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("share of bills that is paid;\nupper half: deductible plan", fontsize=12)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=12)
    figure.suptitle("Public: neither panel shows the table", fontsize=11)
    write_picture(figure, path, dpi=90)


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=OUTPUT, help="Folder for the picture.")
@click.option("--smoke", is_flag=True, help="Small sizes and hardly any training, to see that it runs.")
def main(output: Path, smoke: bool) -> None:
    """Release rows that satisfy public rules, and compare them with a base that does not know these."""
    epsilon, num_rows = (1.0, 2) if smoke else (3.0, 20)
    schema = whole_schema()
    click.secho("\nPublic: the rules", bold=True)
    click.echo("".join(f"  {rule}\n" for rule in schema.constraints))

    free = schema.to_frame(replace(schema, constraints=()).base().sample(torch.Size([100])))
    base = schema.base()
    click.echo(f"  Without them {int(breaks_a_rule(free).sum())} of 100 draws of the base break one.")

    table = schema.to_tensor(load_table())
    learner = WeakLearner(num_steps=20) if smoke else None
    batch = DensityRatio(base, weak_learner=learner, progress=not smoke).fit(table).mollify(epsilon, num_rows=num_rows)
    rows = schema.to_frame(private_draws(batch, 1, progress=not smoke))
    click.secho(f"\nPublic: {num_rows} rows at a total epsilon of {batch.epsilon:g}", bold=True)
    click.echo(rows.to_string(index=False))
    click.echo(f"  {int(breaks_a_rule(rows).sum())} of {num_rows} break a rule: none ever can.")

    output.mkdir(parents=True, exist_ok=True)
    panels = {"A base without the rules": free, f"A release over the base with them, epsilon {batch.epsilon:g}": rows}
    draw_rows(panels, output / "constraints.png")
    click.echo(f"\nsaved: {output / 'constraints.png'}")


if __name__ == "__main__":
    main()
