"""A private density of a real medical table, end to end.

States what is public about the RAND Health Insurance Experiment's columns (shares, means, correlations and rules from
its codebook and from national statistics), shows rows of that public base, fits the table under integral privacy, and
draws a release of twenty rows at a total epsilon of 3, as one batch. Then it takes densities of single rows for models,
runs and checks Markov chains on them, and saves pictures.

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
    Schema,
    mixing_report,
    plot_mixing,
    private_draws,
    private_report,
    run_mcmc,
)
from pyro_mbde.experiments.medical import load_table, whole_schema
from pyro_mbde.pictures import new_figure, write_picture
from pyro_mbde.privacy.advice import advise
from pyro_mbde.privacy.release_plan import plan_release
from pyro_mbde.releases.preview import draw_preview, preview

# Distinguishable with colour-blindness; line styles distinguish them in grey.
INK, BLUE, PALE = "#333333", "#0072b2", "#9a9a9a"
#: Epsilon of the densities of single rows that chains run on; nothing is drawn from them, so that they cost nothing.
MODEL_EPSILON = 0.5
#: Bars of a column of numbers, at most; and the share of the table's rows that the shown range holds.
NUM_BARS, SHOWN = 30, 0.995


def draw_density_picture(
    schema: Schema, rows: Tensor, draws: Tensor, base_draws: Tensor, batch: MollifiedExpFamily, path: Path
) -> None:
    """Shows each column's distribution in the table, in released rows and in the public base."""
    num_lines = -(-len(schema.columns) // 4)
    figure = new_figure(13, 3.2 * num_lines + 0.8)
    axes = np.atleast_1d(figure.subplots(num_lines, 4)).flatten()
    for index, (axis, column) in enumerate(zip(axes, schema.columns, strict=False)):
        values = [part[:, index].double().numpy() for part in (rows, draws, base_draws)]
        low, high = column.modelled_range
        high = min(high, np.ceil(max(np.quantile(one, SHOWN) for one in values)) + 1)
        edges = np.append(np.arange(low, high, max(1, round((high - low) / NUM_BARS))), high)
        table, released, base = (np.histogram(one, edges)[0] / len(one) for one in values)
        axis.stairs(table, edges, fill=True, color="#dddddd", label="table (private)")
        axis.stairs(released, edges, color=BLUE, linewidth=2, label="released rows")
        axis.stairs(base, edges, color=PALE, linewidth=2, linestyle="--", label="public base $q_0$")
        axis.set_title(column.name, fontsize=10)
        if column.kind == "boolean":
            axis.set_xticks([0.5, 1.5], ["no", "yes"])
        elif column.levels is not None:
            axis.set_xticks(np.arange(len(column.levels)) + 0.5, column.levels, fontsize=8)
    for axis in axes[len(schema.columns) :]:
        axis.set_axis_off()
    axes[0].set_ylabel("share of rows")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(
        f"RAND Health Insurance Experiment; {batch.event_shape[0]} rows, released together, are "
        f"{batch.epsilon:g}-integrally private, whatever the group\n"
        "For the data owner: the picture shows the table, do not hand it out",
        fontsize=11,
    )
    write_picture(figure, path, dpi=110)


def heading(text: str) -> None:
    """Writes a heading."""
    click.secho(f"\n{text}", bold=True)


def release_rows(schema: Schema, rows: Tensor, epsilon: float, num_rows: int, output: Path) -> MollifiedExpFamily:
    """Fits the table, draws a release as one batch, and shows it; returns the density of single rows for models."""
    base = schema.base()
    ratio = DensityRatio(base).fit(rows)  # once, for every epsilon and number of rows
    batch = ratio.mollify(epsilon, num_rows=num_rows)

    heading("Public: may be released")
    click.echo(f"  {batch}")
    rows_text = "1 row" if num_rows == 1 else f"{num_rows} rows"
    click.echo(
        f"  {rows_text} together:  epsilon {batch.epsilon:g}, delta {batch.guarantee.delta:g}, against any other table"
    )
    click.echo(schema.to_frame(private_draws(batch, 1)).to_string(index=False))
    for remark in [*advise(epsilon), *plan_release(epsilon, num_rows).remarks()]:
        click.echo(f"  {remark}")

    heading("Private: for the owner of the table only")
    report = private_report(batch, rows, columns=schema, path=output / "report.html")
    scores = report["scores"]
    click.echo(f"  {report['comparison']['verdict']}")
    click.echo(
        f"  A row is {scores['gain_in_nats']:.4f} nats closer to the table than the base is, of at most "
        f"{scores['most_that_can_be_gained']:.4f}."
    )
    drawn = batch.sample(torch.Size([50_000 // num_rows])).reshape(-1, len(schema.columns))
    draw_density_picture(schema, rows, drawn, base.sample(torch.Size([50_000])), batch, output / "density.png")
    return ratio.mollify(MODEL_EPSILON, delta=0)  # nothing is drawn from it: no certificate is needed


def run_chains(whole: MollifiedExpFamily, names: list[str], output: Path) -> None:
    """Runs chains on the density of the whole table: levels, whole numbers and constraints, too."""
    heading("Chains on the density of all columns")
    chains = run_mcmc(whole, "lockstep_hmc", num_samples=1000, warmup_steps=300, num_chains=16, seed=0)
    click.echo(f"\n{mixing_report(chains, names=names)}")
    plot_mixing(chains, output / "mixing.png", names=names)


@click.command()
@click.option(
    "--epsilon", type=float, default=3.0, show_default=True, help="Privacy parameter of all rows together, in nats."
)
@click.option("--num-rows", type=click.IntRange(1), default=20, show_default=True, help="Rows to release.")
@click.option(
    "--output", type=click.Path(path_type=Path), default=Path(__file__).parent / "output", help="Folder for pictures."
)
def main(epsilon: float, num_rows: int, output: Path) -> None:
    """Release rows of a medical table as one batch, and run and check Markov chains on its densities."""
    output.mkdir(parents=True, exist_ok=True)
    schema = whole_schema()

    heading("Public: what rows look like before the table is read")
    shown = preview(schema)
    click.echo(shown.rows.to_string(index=False))
    draw_preview(shown, output / "base.png")

    rows = schema.to_tensor(load_table())
    whole = release_rows(schema, rows, epsilon, num_rows, output)
    run_chains(whole, list(schema.names), output)
    files = ", ".join(str(output / name) for name in ("base.png", "density.png", "mixing.png", "report.html"))
    click.echo(f"\nsaved: {files}")


if __name__ == "__main__":
    main()
