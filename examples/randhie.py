"""A private density of a real medical table, end to end.

Fits three columns of the RAND Health Insurance Experiment under integral privacy and draws a release of ten rows at a
total epsilon of 3, as one batch. From the same fit it takes a density of single rows for models, runs and checks Markov
chains on it, and saves two pictures.

Run it with ``make demo``, or ``python examples/randhie.py --help``.
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import torch
from torch import Tensor

from pyro_mbde import (
    DensityRatio,
    MollifiedExpFamily,
    mixing_report,
    plot_mixing,
    private_draws,
    private_report,
    run_mcmc,
)

# The schema with its public ranges, the rows in the units they are modelled in, and the base: a box of the ranges.
from pyro_mbde.experiments.medical import LABELS, SCHEMA, in_natural_units, load_rows, public_base
from pyro_mbde.pictures import new_figure, write_picture
from pyro_mbde.privacy.advice import advise
from pyro_mbde.privacy.release_plan import plan_release

# Distinguishable with colour-blindness; line styles distinguish them in grey.
INK, BLUE, PALE = "#333333", "#0072b2", "#9a9a9a"
#: Epsilon of the density of single rows that chains run on; nothing is drawn from it, so that it costs nothing.
MODEL_EPSILON = 0.5


def draw_density_picture(rows: Tensor, draws: Tensor, batch: MollifiedExpFamily, path: Path) -> None:
    """Shows each column's distribution in the table, in released rows and under the base."""
    figure = new_figure(13, 4)
    axes = figure.subplots(1, len(LABELS))
    for index, (axis, column, label) in enumerate(zip(axes, SCHEMA.columns, LABELS.values(), strict=True)):
        low, high = column.modelled_range
        edges = np.linspace(low, high, 31)
        axis.hist(rows[:, index], edges, density=True, color="#dddddd", label="table (private)")
        axis.hist(draws[:, index], edges, density=True, histtype="step", color=BLUE, linewidth=2, label="released rows")
        axis.hlines(1 / (high - low), low, high, PALE, "--", linewidth=2, label="public base $q_0$")
        axis.set_xlabel(label)
        # A bar of a point mass would flatten everything else: cut it off, and say so.
        top = 3.2 * float(np.histogram(draws[:, index], edges, density=True)[0].max())
        if axis.get_ylim()[1] > top:
            axis.set_ylim(0, top)
            axis.text(
                0.98,
                0.97,
                "tallest bars cut off",
                transform=axis.transAxes,
                ha="right",
                va="top",
                fontsize=8,
                color=INK,
            )
    axes[0].set_ylabel("probability density")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(
        f"RAND Health Insurance Experiment; {batch.event_shape[0]} rows, released together, are "
        f"{batch.epsilon:g}-integrally private, whatever the group\n"
        "For the data owner: the picture shows the table, do not hand it out",
        fontsize=11,
    )
    write_picture(figure, path, dpi=130)


@click.command()
@click.option(
    "--epsilon", type=float, default=3.0, show_default=True, help="Privacy parameter of all rows together, in nats."
)
@click.option("--num-rows", type=click.IntRange(1), default=10, show_default=True, help="Rows to release.")
@click.option(
    "--output", type=click.Path(path_type=Path), default=Path(__file__).parent / "output", help="Folder for pictures."
)
def main(epsilon: float, num_rows: int, output: Path) -> None:
    """Release rows of a medical table as one batch, and run and check Markov chains on a density of single rows."""
    rows, base = load_rows(), public_base()
    ratio = DensityRatio(base).fit(rows)  # once, for every epsilon and number of rows
    batch = ratio.mollify(epsilon, num_rows=num_rows)
    names = list(LABELS)

    click.secho("\nPublic: may be released", bold=True)
    click.echo(f"  {batch}")
    rows_text = "1 row" if num_rows == 1 else f"{num_rows} rows"
    click.echo(
        f"  {rows_text} together:  epsilon {batch.epsilon:g}, delta {batch.guarantee.delta:g}, against any other table"
    )
    click.echo(in_natural_units(private_draws(batch, 1)[0]).to_string())
    for remark in [*advise(epsilon), *plan_release(epsilon, num_rows).remarks()]:
        click.echo(f"  {remark}")

    click.secho("\nPrivate: for the owner of the table only", bold=True)
    report = private_report(batch, rows, columns=SCHEMA)
    scores = report["scores"]
    click.echo(f"  {report['comparison']['verdict']}")
    click.echo(
        f"  A row is {scores['gain_in_nats']:.4f} nats closer to the table than the base is, of at most "
        f"{scores['most_that_can_be_gained']:.4f}."
    )

    q = ratio.mollify(MODEL_EPSILON)
    walk = run_mcmc(q, "lockstep_random_walk", num_samples=3000, warmup_steps=300, num_chains=16, seed=0)
    click.echo(f"\n{mixing_report(walk, names=names)}\n")
    proposing_the_base = run_mcmc(q, "independence", num_samples=1000, warmup_steps=100, num_chains=4, seed=0)
    click.echo(f"\n{mixing_report(proposing_the_base, names=names)}")

    output.mkdir(parents=True, exist_ok=True)
    drawn = batch.sample(torch.Size([50_000 // num_rows])).reshape(-1, len(names))
    draw_density_picture(rows, drawn, batch, output / "density.png")
    plot_mixing(walk, output / "mixing.png", names=names)
    click.echo(f"\npictures: {output / 'density.png'}, {output / 'mixing.png'}")


if __name__ == "__main__":
    main()
