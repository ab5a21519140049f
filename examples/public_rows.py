"""Public rows as the base: what others may know anyway is not learned from the table.

Two groups of the RAND Health Insurance Experiment stand for two tables. Those who share the costs of their bills are
the sensitive one. Those on the free plan, other people, stand for an open survey that anybody may have. Shares,
histograms and correlations of the survey become the base. A base that knows ranges alone is compared with it. Both
are fitted to the sensitive table at the same epsilon.

May be released: the survey's base, and rows drawn from the densities, at their price. Not: the distances and the
picture, which show the sensitive table.

Run it with ``python examples/public_rows.py``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import torch
from torch import Tensor

from pyro_mbde import DensityRatio, Schema, WeakLearner
from pyro_mbde.experiments.medical import load_table, whole_schema
from pyro_mbde.pictures import new_figure, write_picture
from pyro_mbde.tables.facts import WAYS
from pyro_mbde.tables.public_rows import follow_public_rows

OUTPUT = Path(__file__).parent / "output"
NAMES = ("visits", "diseases", "limitation", "health")
EPSILON, NUM_ROWS = 3.0, 10
# Distinguishable with colour-blindness; line styles distinguish them in grey.
BLUE, ORANGE, PALE = "#0072b2", "#d55e00", "#777777"
STYLES = {"ranges alone": (ORANGE, ":"), "public rows": (BLUE, "-")}


def shares(rows: Tensor, num_values: int) -> np.ndarray:
    """The share of rows with each value of a column, from 0."""
    return np.bincount(rows.long().numpy(), minlength=num_values) / len(rows)


def draw_columns(schema: Schema, table: Tensor, released: dict[str, Tensor], path: Path) -> None:
    """Shows each column in the table and in releases over either base."""
    figure = new_figure(11, 6.6)
    for place, (axis, column) in enumerate(zip(figure.subplots(2, 2).flatten(), schema.columns, strict=True)):
        names = ("no", "yes") if column.kind == "boolean" else column.levels
        num_values = len(names) if names else 31  # of numbers, the range that nearly all are in
        edges = np.arange(num_values + 1) - 0.5
        of_table = shares(table[:, place], num_values)[:num_values]
        axis.stairs(of_table, edges, fill=True, color="#dddddd", label="sensitive table")
        for name, rows in released.items():
            color, line = STYLES[name]
            values = shares(rows[:, place], num_values)[:num_values]
            axis.stairs(values, edges, color=color, linestyle=line, linewidth=2.2, label=f"released rows, base: {name}")
        axis.set_title(column.name, fontsize=13)
        if names:
            axis.set_xticks(range(num_values), names, fontsize=12)
        axis.spines[["top", "right"]].set_visible(False)
    handles = axis.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, frameon=False, fontsize=12)
    title = f"{NUM_ROWS} rows at a total epsilon of {EPSILON:g}, over two bases"
    note = "For the data owner: the picture shows the table, do not hand it out"
    figure.suptitle(f"{title}\n{note}", fontsize=12)
    write_picture(figure, path, dpi=90)


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=OUTPUT, help="Folder for the picture.")
@click.option("--smoke", is_flag=True, help="Small sizes and hardly any training, to see that it runs.")
def main(output: Path, smoke: bool) -> None:
    """Compare a base that follows public rows with one that knows ranges and levels alone."""
    everybody = load_table()
    is_free = (everybody["coinsurance"] == "0") & ~everybody["deductible_plan"]
    survey, sensitive = everybody[is_free][list(NAMES)], everybody[~is_free][list(NAMES)]

    columns = {column.name: replace(column, **dict.fromkeys(WAYS)) for column in whole_schema().columns}
    ranges = Schema(tuple(columns[name] for name in NAMES))
    learned, base = follow_public_rows(ranges, survey, source="the experiment's free plan")
    click.secho("\nPublic: what the schema now states", bold=True)
    click.echo(f"  {learned.public_rows}")
    for one in learned.correlations:
        click.echo(f"  {' and '.join(one.columns)}: {one.value:+.2f}")

    table = ranges.to_tensor(sensitive)
    epsilon, num_rows = (1.0, 2) if smoke else (EPSILON, NUM_ROWS)
    learner = WeakLearner(num_steps=20) if smoke else None
    released = {}
    click.secho("\nPrivate: distance to the sensitive table, in total variation, averaged over columns", bold=True)
    for name, of in (("ranges alone", ranges.base()), ("public rows", base)):
        ratio = DensityRatio(of, weak_learner=learner, seed=0, progress=not smoke).fit(table)
        batch = ratio.mollify(epsilon, num_rows=num_rows)
        released[name] = batch.sample(torch.Size([20_000 // num_rows])).reshape(-1, len(NAMES))
        for what, rows in (("base", of.sample(torch.Size([20_000]))), ("released rows", released[name])):
            # No value is above 100.
            found = [
                abs(shares(one, 101) - shares(other, 101)).sum() / 2 for one, other in zip(rows.T, table.T, strict=True)
            ]
            click.echo(f"  {name:13} {what:14} {np.mean(found):.3f}")

    output.mkdir(parents=True, exist_ok=True)
    draw_columns(ranges, table, released, output / "public_rows.png")
    click.echo(f"\nsaved: {output / 'public_rows.png'}")


if __name__ == "__main__":
    main()
