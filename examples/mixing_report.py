"""A mixing report: are these chains to be trusted, and if not, why?

A private density of the RAND Health Insurance Experiment can be drawn from exactly; a model that it is a part of needs
chains. Two runs on the density itself show what the report finds. Four short random walks fail: their R-hat is too
large and their effective draws are too few. Sixteen chains of Hamiltonian Monte Carlo, advanced together, pass. Both
are also compared with exact draws, which few samplers can do.

May be released: nothing. Chains and reports are as sensitive as the table, and so is the picture.

Run it with ``python examples/mixing_report.py``.
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from pyro_mbde import DensityRatio, MixingReport, WeakLearner, mixing_report, run_mcmc
from pyro_mbde.experiments.medical import load_table, whole_schema
from pyro_mbde.pictures import new_figure, write_picture

OUTPUT = Path(__file__).parent / "output"
# Distinguishable with colour-blindness; markers distinguish them in grey.
INK, LOOKS = "#333333", (("#d55e00", "X"), ("#0072b2", "o"))


def draw_reports(reports: dict[str, MixingReport], path: Path) -> None:
    """Shows R-hat and effective draws of every column, with the limits that they are held to."""
    figure = new_figure(11, 4.8)
    left, right = figure.subplots(1, 2, sharey=True)
    for (name, report), (color, marker) in zip(reports.items(), LOOKS, strict=True):
        places = np.arange(len(report.parameters))
        style = {"color": color, "marker": marker, "s": 70}
        label = f"{name}: {'passed' if report.passed else 'FAILED'}"
        left.scatter([max(one.rhat - 1, 1e-4) for one in report.parameters], places, label=label, **style)
        ess = [min(one.ess_bulk, one.ess_tail) / report.num_chains for one in report.parameters]
        right.scatter(ess, places, label=label, **style)
    left.set_yticks(places, [one.name.replace("_", " ") for one in report.parameters], fontsize=12)
    left.set_xscale("log")
    left.set_xlabel("R-hat less 1: how far the chains are apart", fontsize=12)
    right.set_xscale("log")
    right.set_xlabel("effective draws of a chain", fontsize=12)
    for axis, limit, side, text in (
        (left, 0.01, "left", "0.01 and more fails "),
        (right, 100, "right", "under 100 fails "),
    ):
        axis.axvline(limit, color=INK, linestyle="--", linewidth=1.2)
        axis.annotate(f" {text}", (limit, -0.9), ha=side, va="center", color=INK, fontsize=11)
        axis.set_ylim(len(places) - 0.5, -1.5)
        axis.grid(axis="y", color="#e5e5e5")
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=12)
    figure.suptitle("Two runs on one density. For the data owner: do not hand it out", fontsize=12)
    write_picture(figure, path, dpi=90)


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=OUTPUT, help="Folder for the picture.")
@click.option("--smoke", is_flag=True, help="Small sizes and hardly any training, to see that it runs.")
def main(output: Path, smoke: bool) -> None:
    """Check short random walks and longer Hamiltonian chains on one density."""
    schema = whole_schema()
    table = schema.to_tensor(load_table())
    learner = WeakLearner(num_steps=20) if smoke else None
    ratio = DensityRatio(schema.base(), weak_learner=learner, seed=0, progress=not smoke).fit(table)
    q = ratio.mollify(0.5, delta=0)  # of single rows; nothing is drawn from it for release: no certificate is needed

    runs = {
        "4 short random walks": ("lockstep_random_walk", 200, 100, 4),
        "16 chains of HMC": ("lockstep_hmc", 1000, 300, 16) if not smoke else ("lockstep_hmc", 100, 50, 16),
    }
    reports = {}
    for name, (kernel, num_samples, warmup_steps, num_chains) in runs.items():
        chains = run_mcmc(q, kernel, num_samples, warmup_steps, num_chains, seed=0, progress=not smoke)
        reports[name] = mixing_report(chains, names=list(schema.names))
        click.secho(f"\nPrivate: {name}", bold=True)
        click.echo(reports[name])

    output.mkdir(parents=True, exist_ok=True)
    draw_reports(reports, output / "mixing_report.png")
    click.echo(f"\nsaved: {output / 'mixing_report.png'}")


if __name__ == "__main__":
    main()
