"""A private density of a real medical table, from public knowledge to rows, chains and pictures, in about a minute.

States what is public about the RAND Health Insurance Experiment's columns (shares, means, correlations and rules from
its codebook and from national statistics) and shows rows of that public base. Fits the table under integral privacy and
draws a release of twenty rows at a total epsilon of 3, as one batch. Takes a density of single rows for models, runs
Markov chains on it and checks them.

May be released: the base, its picture and the twenty rows. Everything else is for the owner of the table.

Run it with ``make demo``, or ``python examples/demo.py --help``.
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import torch
from torch import Tensor

from pyro_mbde import (
    DensityRatio,
    Schema,
    WeakLearner,
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

OUTPUT = Path(__file__).parent / "output"
# Distinguishable with colour-blindness; line styles distinguish them in grey.
BLUE, PALE = "#0072b2", "#9a9a9a"


def draw_densities(schema: Schema, table: Tensor, released: Tensor, base: Tensor, title: str, path: Path) -> None:
    """Shows each column's distribution in the table, in released rows and in the public base."""
    num_lines = -(-len(schema.columns) // 4)
    figure = new_figure(13, 3.2 * num_lines + 0.8)
    axes = np.atleast_1d(figure.subplots(num_lines, 4)).flatten()
    for index, (axis, column) in enumerate(zip(axes, schema.columns, strict=False)):
        values = [rows[:, index].double().numpy() for rows in (table, released, base)]
        low, high = column.modelled_range
        high = min(high, np.ceil(max(np.quantile(one, 0.995) for one in values)) + 1)
        edges = np.append(np.arange(low, high, max(1, round((high - low) / 30))), high)
        shares = [np.histogram(one, edges)[0] / len(one) for one in values]
        axis.stairs(shares[0], edges, fill=True, color="#dddddd", label="table (private)")
        axis.stairs(shares[1], edges, color=BLUE, linewidth=2, label="released rows")
        axis.stairs(shares[2], edges, color=PALE, linewidth=2, linestyle="--", label="public base $q_0$")
        axis.set_title(column.name, fontsize=10)
        if column.kind == "boolean":
            axis.set_xticks([0.5, 1.5], ["no", "yes"])
        elif column.levels is not None:
            axis.set_xticks(np.arange(len(column.levels)) + 0.5, column.levels, fontsize=8)
    for axis in axes[len(schema.columns) :]:
        axis.set_axis_off()
    axes[0].set_ylabel("share of rows")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    note = "For the data owner: the picture shows the table, do not hand it out"
    figure.suptitle(f"RAND Health Insurance Experiment; {title}\n{note}", fontsize=11)
    write_picture(figure, path, dpi=110)


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=OUTPUT, help="Folder for pictures and report.")
@click.option("--smoke", is_flag=True, help="Small sizes and hardly any training, to see that it runs.")
def main(output: Path, smoke: bool) -> None:
    """Release rows of a medical table as one batch, and run and check Markov chains on its density."""
    epsilon, num_rows = (1.0, 2) if smoke else (3.0, 20)
    learner = WeakLearner(num_steps=20) if smoke else None
    output.mkdir(parents=True, exist_ok=True)
    schema = whole_schema()
    base = schema.base()

    click.secho("\nPublic: what rows look like before the table is read", bold=True)
    shown = preview(schema, base=base)
    click.echo(shown.rows.to_string(index=False))
    draw_preview(shown, output / "base.png")

    table = schema.to_tensor(load_table())
    ratio = DensityRatio(base, weak_learner=learner, progress=not smoke).fit(table)  # once, for every epsilon
    batch = ratio.mollify(epsilon, num_rows=num_rows)

    click.secho("\nPublic: may be released", bold=True)
    click.echo(f"  {batch}")
    cost = f"epsilon {batch.epsilon:g}, delta {batch.guarantee.delta:g}"
    click.echo(f"  {num_rows} rows together:  {cost}, against any other table")
    click.echo(schema.to_frame(private_draws(batch, 1, progress=not smoke)).to_string(index=False))
    for remark in [*advise(epsilon), *plan_release(epsilon, num_rows).remarks()]:
        click.echo(f"  {remark}")

    click.secho("\nPrivate: for the owner of the table only", bold=True)
    report = private_report(batch, table, columns=schema, path=output / "report.html")
    scores = report["scores"]
    gain, most = scores["gain_in_nats"], scores["most_that_can_be_gained"]
    click.echo(f"  {report['comparison']['verdict']}")
    click.echo(f"  A row is {gain:.4f} nats closer to the table than the base is, of at most {most:.4f}.")
    released = batch.sample(torch.Size([(1_000 if smoke else 50_000) // num_rows])).reshape(-1, len(schema.columns))
    title = f"{num_rows} rows, released together, are {epsilon:g}-integrally private, whatever the group"
    draw_densities(schema, table, released, base.sample(torch.Size([50_000])), title, output / "density.png")

    click.secho("\nPrivate: chains on the density of all columns", bold=True)
    q = ratio.mollify(0.5, delta=0)  # of single rows; nothing is drawn from it for release: no certificate is needed
    num_samples, num_chains = (100, 4) if smoke else (1000, 16)
    chains = run_mcmc(q, "lockstep_hmc", num_samples, 300, num_chains, seed=0, progress=not smoke)
    click.echo(f"\n{mixing_report(chains, names=list(schema.names))}")
    plot_mixing(chains, output / "mixing.png", names=list(schema.names))
    click.echo(f"\nsaved in {output}: base.png, density.png, mixing.png, report.html")


if __name__ == "__main__":
    main()
