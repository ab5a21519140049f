"""A private density as a likelihood: which rows of a new survey were misread?

A private density q of two columns of a sensitive table (the RAND Health Insurance Experiment) says what honest rows
look like. A new, public survey asks 200 other people the same questions, but a share w of its forms was misread, and
may lie anywhere in the range. Pyro sums out which they are.

    w ~ Beta(1, 3)                                 the share that is misread
    misread_i ~ Bernoulli(w)                       summed out
    row_i ~ Uniform(range) if misread_i, else q    public: the survey's, not the table's

The rows are those of real people outside the table; a fifth of them is scrambled, so the truth is known.

May be released: nothing. With 200 rows a posterior of w has no useful guarantee; the picture shows contours of q.

Run it with ``python examples/likelihood.py``.
"""

from __future__ import annotations

import math
from pathlib import Path

import click
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_mbde import Chains, DensityRatio, WeakLearner, run_mcmc
from pyro_mbde.experiments.medical import TABLE
from pyro_mbde.pictures import new_figure, write_picture

OUTPUT = Path(__file__).parent / "output"
#: Public ranges: a score up to 60 plus one step, up to 100 visits. The base has round numbers on the wide side.
STEP = 3.45
LOW, HIGH = torch.tensor([0.0, 0.0]), torch.tensor([8.0, math.log(102)])
BASE = dist.Normal(torch.tensor([3.5, 1.0]), torch.tensor([2.0, 1.5])).to_event(1)
MISREAD = dist.Uniform(LOW, HIGH).to_event(1)
BLUE, ORANGE, PALE = "#0072b2", "#d55e00", "#9a9a9a"  # distinguishable with colour-blindness


def load_rows(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns the table and rows of other people, spread over their steps: a density fits spikes badly."""
    table = pd.read_csv(TABLE)
    person = (table["disea"] != table["disea"].shift()).cumsum()  # whose years are consecutive rows
    held_out = torch.tensor((person % 4 == 0).to_numpy())
    score, visits = (torch.tensor(table[name].to_numpy(), dtype=torch.float32) for name in ("disea", "mdvis"))
    score = score + STEP * torch.rand(len(score), generator=generator)
    visits = visits + torch.rand(len(visits), generator=generator)
    rows = torch.stack([score.sqrt(), visits.log1p()], -1)
    return rows[~held_out], rows[held_out]


def model(honest: dist.TorchDistribution, rows: Tensor) -> None:
    """The model of the survey."""
    share = pyro.sample("share", dist.Beta(1.0, 3.0))
    with pyro.plate("rows", len(rows)):
        misread = pyro.sample("misread", dist.Bernoulli(share), infer={"enumerate": "parallel"})
        pyro.sample("row", dist.MaskedMixture(misread.bool(), honest, MISREAD), obs=rows)


def misread_probs(honest: dist.TorchDistribution, rows: Tensor, chains: Chains) -> Tensor:
    """Each row's probability of being misread, averaged over the draws of the share."""
    log_odds = MISREAD.log_prob(rows) - honest.log_prob(rows)
    return torch.sigmoid(torch.logit(chains.draws["share"])[..., None] + log_odds).mean((0, 1))


def draw_survey(q: dist.Distribution, rows: Tensor, misread: Tensor, probs: dict[str, Tensor], path: Path) -> None:
    """Shows the survey over the density of honest rows, and each row's probability of being misread."""
    figure = new_figure(9.5, 4.8)
    left, right = figure.subplots(1, 2)
    axes = [torch.linspace(float(low), float(high), 121) for low, high in zip(LOW, HIGH, strict=True)]
    grid = q.log_prob(torch.cartesian_prod(*axes)).exp().reshape(121, 121).T
    left.contour(*axes, grid, 6, colors=PALE, linewidths=1)
    right.plot([0, 1], [0, 1], color=PALE, linewidth=1)
    for chosen, marker, color, label in ((~misread, "o", BLUE, "honest row"), (misread, "X", ORANGE, "misread row")):
        style = {"marker": marker, "color": color, "s": 45, "alpha": 0.75, "linewidths": 0, "label": label}
        left.scatter(*rows[chosen].T, **style)
        right.scatter(*(of[chosen] for of in probs.values()), **style)
    left.set(xlabel="square root of the chronic-disease score", ylabel="ln(1 + visits to a doctor)", ylim=(0, 4.7))
    left.set(title="The survey; contours: private density q")
    right.set(xlabel="with the public base", ylabel="with q", title="Probability that each row is misread")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=12)
    figure.suptitle("A contaminated survey. For the owner of the table: do not hand it out", fontsize=12)
    write_picture(figure, path, dpi=95)


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=OUTPUT, help="Folder for the picture.")
@click.option("--smoke", is_flag=True, help="Short chains and hardly any training, to see that it runs.")
def main(output: Path, smoke: bool) -> None:
    """Find the misread rows of a survey with a private density as the likelihood of the honest ones."""
    generator = torch.Generator().manual_seed(7)
    table, people = load_rows(generator)
    rows = people[torch.randint(len(people), (200,), generator=generator)]
    misread = torch.rand(200, generator=generator) < 0.2
    rows = torch.where(misread[:, None], LOW + (HIGH - LOW) * torch.rand(rows.shape, generator=generator), rows)

    learner = WeakLearner(num_steps=20) if smoke else None
    ratio = DensityRatio(BASE, weak_learner=learner, seed=0, progress=not smoke).fit(table)
    q = ratio.mollify(3.0, skew=0.5)  # the base is wide but has the right shape
    num_samples, warmup_steps, num_chains = (20, 20, 1) if smoke else (500, 200, 2)
    probs = {}
    click.secho(f"\nPrivate: {int(misread.sum())} of 200 rows are misread", bold=True)
    for name, honest in {"public base": BASE, "private density q": q}.items():
        options = {"model_args": (honest, rows), "seed": 1, "progress": not smoke}
        chains = run_mcmc(model, "nuts", num_samples, warmup_steps, num_chains, **options)
        share, probs[name] = chains.draws["share"], misread_probs(honest, rows, chains)
        hits, alarms = (int((probs[name][chosen] > 0.5).sum()) for chosen in (misread, ~misread))
        click.echo(f"  {name:17} share {share.mean():.2f} +- {share.std():.2f}; found {hits}, false alarms {alarms}")
    click.echo(f"  A draw of the share can cost up to epsilon {200 * q.epsilon:.0f}: not for release.")
    output.mkdir(parents=True, exist_ok=True)
    draw_survey(q, rows, misread, probs, output / "likelihood.png")
    click.echo(f"\nsaved: {output / 'likelihood.png'}")


if __name__ == "__main__":
    main()
