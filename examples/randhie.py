"""A private density of a real medical table, end to end.

Fits a density to three columns of the RAND Health Insurance Experiment under integral privacy, draws four rows to
release within a total epsilon of 2, runs and checks Markov chains on the same density, and saves two pictures.

Run it with ``make demo``, or ``python examples/randhie.py --help``.
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import torch
from torch import Tensor

from pyro_mbde import MBDE, MollifiedExpFamily, compose, mixing_report, plot_mixing, private_draws, run_mcmc

# The schema with its public ranges, the rows in the units they are modelled in, and the base: a box of the ranges.
from pyro_mbde.experiments.medical import LABELS, SCHEMA, in_natural_units, load_rows, public_base
from pyro_mbde.pictures import new_figure, write_picture
from pyro_mbde.privacy.advice import advise

# Distinguishable with colour-blindness; line styles distinguish them in grey.
INK, BLUE, PALE = "#333333", "#0072b2", "#9a9a9a"


def draw_density_picture(rows: Tensor, draws: Tensor, q: MollifiedExpFamily, path: Path) -> None:
    """Shows each column's distribution in the table, under the density and under the base."""
    figure = new_figure(13, 4)
    axes = figure.subplots(1, len(LABELS))
    for index, (axis, column, label) in enumerate(zip(axes, SCHEMA.columns, LABELS.values(), strict=True)):
        low, high = column.modelled_range
        edges = np.linspace(low, high, 31)
        axis.hist(rows[:, index], edges, density=True, color="#dddddd", label="table (private)")
        axis.hist(
            draws[:, index], edges, density=True, histtype="step", color=BLUE, linewidth=2, label="private density q"
        )
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
        f"RAND Health Insurance Experiment; a draw is {q.epsilon:g}-integrally private, whatever the group\n"
        "For the data owner: the picture shows the table, do not hand it out",
        fontsize=11,
    )
    write_picture(figure, path, dpi=130)


@click.command()
@click.option("--epsilon", type=float, default=0.5, show_default=True, help="Privacy parameter of one row, in nats.")
@click.option("--num-rows", type=click.IntRange(1), default=4, show_default=True, help="Rows to release.")
@click.option(
    "--output", type=click.Path(path_type=Path), default=Path(__file__).parent / "output", help="Folder for pictures."
)
def main(epsilon: float, num_rows: int, output: Path) -> None:
    """Fit a private density to a medical table, draw rows from it, and run and check Markov chains on it."""
    rows, base = load_rows(), public_base()
    trainer = MBDE(base, epsilon=epsilon, calibrated=True)
    q = trainer.fit(rows)
    total = compose(q.guarantee, num_rows)
    names = list(LABELS)

    click.secho("\nPublic: may be released", bold=True)
    click.echo(f"  {q}")
    click.echo(f"  one row:  epsilon {q.epsilon:g}, delta {q.guarantee.delta:g}, against any other table")
    rows_text = "1 row" if num_rows == 1 else f"{num_rows} rows"
    click.echo(f"  {rows_text} in all:  epsilon {total.epsilon:g}, delta {total.delta:g} (pure composition)")
    click.echo(in_natural_units(private_draws(q, num_rows)).to_string())
    for remark in advise(total.epsilon, row=q.epsilon, skew=trainer.skew):
        click.echo(f"  {remark}")

    click.secho("\nPrivate: for the owner of the table only", bold=True)
    # q.base is the base as a closed box: PyTorch's uniform has density 0 on its upper edge.
    nll_base, nll = (-float(density.log_prob(rows).double().mean()) for density in (q.base, q))
    click.echo(f"  NLL of the table under the base Q0   {nll_base:8.4f} nats a row")
    click.echo(f"  NLL of the table under the density q {nll:8.4f} nats a row ({nll - nll_base:+.4f})")

    walk = run_mcmc(q, "lockstep_random_walk", num_samples=3000, warmup_steps=300, num_chains=16, seed=0)
    click.echo(f"\n{mixing_report(walk, names=names)}\n")
    proposing_the_base = run_mcmc(q, "independence", num_samples=1000, warmup_steps=100, num_chains=4, seed=0)
    click.echo(f"\n{mixing_report(proposing_the_base, names=names)}")

    output.mkdir(parents=True, exist_ok=True)
    draw_density_picture(rows, q.sample(torch.Size([50_000])), q, output / "density.png")
    plot_mixing(walk, output / "mixing.png", names=names)
    click.echo(f"\npictures: {output / 'density.png'}, {output / 'mixing.png'}")


if __name__ == "__main__":
    main()
