"""A private density of a real medical table, end to end.

Fits a density to three columns of the RAND Health Insurance Experiment under integral privacy, draws twenty rows to
hand out, runs Pyro's Markov chains on the same density, checks them with ArviZ, and saves two pictures.

Run it with ``make demo``, or ``python examples/randhie.py --help``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import click
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_mbde import MBDE, Chains, MollifiedExpFamily, compose, private_draws, run_mcmc

TABLE = Path(__file__).parent / "data" / "randhie.csv"

# Told apart by people with colour-blindness, and in grey by their line styles.
INK, BLUE, ORANGE, PALE = "#333333", "#0072b2", "#d55e00", "#9a9a9a"


class Column(NamedTuple):
    """A column with its public range, in the units it is modelled in. None of it comes from the rows."""

    name: str
    label: str
    low: float
    high: float


# From the experiment's design and codebook.
COLUMNS = [
    # mdvis, visits to a doctor in a year: nobody is expected to go 100 times. Modelled as ln(1 + visits).
    Column("log_visits", "ln(1 + visits to a doctor)", 0.0, math.log(101)),
    # lncoins = ln(1 + coinsurance rate), the share of the bill that a family pays, 0 to 100 per cent.
    Column("log_coinsurance", "ln(1 + coinsurance rate in %)", 0.0, math.log(102)),
    # disea, the number of chronic diseases out of a list of about 60.
    Column("diseases", "chronic diseases", 0.0, 60.0),
]


def load_rows() -> Tensor:
    """Reads the table and returns its rows in the modelled units, shape (n, 3).

    Visits and rates are whole numbers: they are spread over the unit above them, which :func:`in_natural_units` undoes
    by rounding down: a density is no good at spikes. The guarantee holds for whatever the owner does to the table.
    """
    table = pd.read_csv(TABLE)
    visits = torch.tensor(table["mdvis"].to_numpy(), dtype=torch.float64)
    coinsurance = torch.tensor(np.expm1(table["lncoins"].to_numpy())).round()
    log_visits, log_coinsurance = ((1 + count + torch.rand_like(count)).log() for count in (visits, coinsurance))
    return torch.stack([log_visits, log_coinsurance, torch.tensor(table["disea"].to_numpy())], -1).float()


def public_base() -> dist.TorchDistribution:
    """The base Q0: uniform on the box of the public ranges."""
    low, high = (torch.tensor([getattr(column, end) for column in COLUMNS]) for end in ("low", "high"))
    return dist.Uniform(low, high).to_event(1)


def in_natural_units(rows: Tensor) -> pd.DataFrame:
    """Turns modelled rows back into readable ones. Post-processing: it costs no privacy."""
    log_visits, log_coinsurance, diseases = rows.double().numpy().T
    return pd.DataFrame(
        {
            "visits": np.expm1(log_visits).astype(int),
            "coinsurance_%": np.expm1(log_coinsurance).astype(int),
            "diseases": diseases.round(1),
        }
    )


def summarize(chains: Chains) -> pd.DataFrame:
    """Returns ArviZ's table of means, effective sample sizes, Monte Carlo errors and R-hat."""
    data = chains.to_arviz()
    import arviz  # after the library has imported it, quietly

    summary: pd.DataFrame = arviz.summary(data)
    summary.index = pd.Index([column.name for column in COLUMNS])
    return summary


def draw_density_picture(rows: Tensor, draws: Tensor, q: MollifiedExpFamily, path: Path) -> None:
    """Shows each column's distribution in the table, under the density and under the base."""
    figure, axes = plt.subplots(1, len(COLUMNS), figsize=(13, 4), layout="constrained")
    for index, (axis, column) in enumerate(zip(axes, COLUMNS, strict=True)):
        edges = np.linspace(column.low, column.high, 31)
        axis.hist(rows[:, index], edges, density=True, color="#dddddd", label="table (private)")
        axis.hist(
            draws[:, index], edges, density=True, histtype="step", color=BLUE, linewidth=2, label="private density q"
        )
        axis.hlines(
            1 / (column.high - column.low), column.low, column.high, PALE, "--", linewidth=2, label="public base $q_0$"
        )
        axis.set_xlabel(column.label)
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
    figure.savefig(path, dpi=130)
    plt.close(figure)


def draw_chain_picture(chains: dict[str, Chains], draws: Tensor, path: Path) -> None:
    """Shows the ends of the chains' traces, and their distribution functions against that of exact draws."""
    shown = 250
    colors = dict(zip(chains, (ORANGE, BLUE), strict=True))
    figure, axes = plt.subplots(len(COLUMNS), 3, figsize=(13, 7), layout="constrained")
    for row, column in enumerate(COLUMNS):
        for place, (name, result) in enumerate(chains.items()):
            axis = axes[row, place]
            values = result.draws["x"][:, -shown:, row]
            for chain, shade in zip(values, np.linspace(1, 0.3, len(values)), strict=True):
                axis.plot(chain, color=colors[name], alpha=shade, linewidth=0.8)
            axis.set(ylim=(column.low, column.high))
        axes[row, 0].set_ylabel(column.label)
        axis = axes[row, 2]
        axis.ecdf(draws[:, row], color="#bbbbbb", linewidth=6, label="exact draws")
        for name, style in zip(chains, ("-", "--"), strict=True):
            axis.ecdf(chains[name].draws["x"][..., row].flatten(), color=colors[name], linestyle=style, label=name)
        axis.set(xlabel=column.label, ylabel="share of draws below")
    for place, name in enumerate(chains):
        axes[0, place].set_title(f"4 {name} chains, last {shown} draws")
        axes[-1, place].set_xlabel("draw")
    axes[0, 2].set_title("all draws of the chains against exact draws")
    axes[0, 2].legend(frameon=False)
    figure.suptitle("Pyro's chains on the private density: for inference and checks, not for release", fontsize=11)
    figure.savefig(path, dpi=130)
    plt.close(figure)


@click.command()
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="Privacy parameter of one row, in nats.")
@click.option("--num-rows", type=click.IntRange(1), default=20, show_default=True, help="Rows to hand out.")
@click.option(
    "--output", type=click.Path(path_type=Path), default=Path(__file__).parent / "output", help="Folder for pictures."
)
def main(epsilon: float, num_rows: int, output: Path) -> None:
    """Fit a private density to a medical table, draw rows from it, and run and check Markov chains on it."""
    rows, base = load_rows(), public_base()
    q = MBDE(base, epsilon=epsilon).fit(rows)
    total = compose(q.guarantee, num_rows)

    click.secho("\nPublic: may be handed out", bold=True)
    click.echo(f"  {q}")
    click.echo(f"  one row:  epsilon {q.epsilon:g}, delta {q.guarantee.delta:g}, whatever else the table had been")
    click.echo(f"  {num_rows} rows:  epsilon {total.epsilon:g}, delta {total.delta:g} (pure composition)")
    click.echo(in_natural_units(private_draws(q, num_rows)).to_string())

    click.secho("\nPrivate: for the owner of the table alone", bold=True)
    # q.base_dist is the base as a closed box: PyTorch's uniform has density 0 on its upper edge.
    nll_base, nll = (-float(density.log_prob(rows).double().mean()) for density in (q.base_dist, q))
    click.echo(f"  NLL of the table under the base Q0   {nll_base:8.4f} nats a row")
    click.echo(f"  NLL of the table under the density q {nll:8.4f} nats a row ({nll - nll_base:+.4f})")

    chains = {
        "random_walk": run_mcmc(q, "random_walk", num_samples=2000, warmup_steps=500, num_chains=4),
        "hmc": run_mcmc(q, "hmc", num_samples=500, warmup_steps=200, num_chains=4),
    }
    for name, result in chains.items():
        click.echo(f"\n  {name}, 4 chains of {result.draws['x'].shape[1]} draws")
        click.echo(summarize(result).to_string())

    output.mkdir(parents=True, exist_ok=True)
    exact = q.sample(torch.Size([50_000]))
    draw_density_picture(rows, exact, q, output / "density.png")
    draw_chain_picture(chains, exact, output / "chains.png")
    click.echo(f"\n  pictures: {output / 'density.png'}, {output / 'chains.png'}")


if __name__ == "__main__":
    main()
