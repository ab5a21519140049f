"""A private density as a prior: what thousands of sensitive scores say of eight new patients.

The owner of a cohort (the RAND Health Insurance Experiment) holds a chronic-disease score of thousands of people. A new
clinic has eight patients. A nurse has read a score of each: the readings are noisy and share the nurse's bias. Eight
readings cannot tell a nurse who reads high from patients who are ill; a private density q of the cohort's scores can.

    bias ~ Normal(0, 8)                      the nurse's
    score_i ~ q                              of patient i, to be inferred
    reading_i ~ Normal(score_i + bias, 6)    public: the clinic's, not the cohort's

May be released: nothing. The chains are not covered by the guarantee of q, and the picture shows the cohort.

Run it with ``python examples/prior.py``.
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_mbde import DensityRatio, WeakLearner, mixing_report, posterior_guarantee, run_mcmc
from pyro_mbde.experiments.medical import TABLE
from pyro_mbde.pictures import new_figure, write_picture

OUTPUT = Path(__file__).parent / "output"
#: Public, from the design: the score's range, its step (one more disease), and the clinic's two standard deviations.
TOP, STEP = 60.0, 3.45
BIAS_SCALE, READING_SCALE = 8.0, 6.0
INK, LOOKS = "#333333", {"public base": ("#d55e00", "--", "s"), "private prior q": ("#0072b2", "-", "o")}


def load_scores(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns the cohort's scores and other people's, spread over their steps: a density fits spikes badly."""
    table = pd.read_csv(TABLE)
    person = (table["disea"] != table["disea"].shift()).cumsum()  # whose years are consecutive rows
    held_out = torch.tensor((person % 4 == 0).to_numpy())
    scores = torch.tensor(table["disea"].to_numpy(), dtype=torch.float32)
    scores = (scores + STEP * torch.rand(len(scores), generator=generator)).clamp(max=TOP)
    return scores[~held_out], scores[held_out]


def model(prior: dist.TorchDistribution, readings: Tensor) -> None:
    """The model of the new clinic."""
    bias = pyro.sample("bias", dist.Normal(0.0, BIAS_SCALE))
    with pyro.plate("patients", len(readings)):
        score = pyro.sample("score", prior)
        pyro.sample("reading", dist.Normal(score + bias, READING_SCALE), obs=readings)


def draw_posteriors(cohort: Tensor, truth: tuple[Tensor, float], priors: dict, runs: dict, path: Path) -> None:
    """Shows the priors, and under each the posterior of the bias and of every patient's score."""
    figure = new_figure(12, 4.6)
    left, middle, right = axes = figure.subplots(1, 3)
    left.hist(cohort.numpy(), np.arange(0, TOP + 1, 1.5), density=True, color="#dddddd", label="cohort (sensitive)")
    (scores, bias), grid, places = truth, torch.linspace(0.1, TOP - 0.1, 300), np.arange(len(truth[0]))
    for shift, (name, chains) in zip((-0.15, 0.15), runs.items(), strict=True):
        color, line, marker = LOOKS[name]
        left.plot(grid, priors[name].log_prob(grid).exp(), color=color, linestyle=line, linewidth=2, label=name)
        shares, edges = np.histogram(chains.draws["bias"].flatten(), np.arange(-30, 31, 1.5))
        middle.stairs(shares / shares.sum(), edges, color=color, linestyle=line, linewidth=2, label=name)
        low, mean, high = np.quantile(chains.draws["score"].flatten(0, 1).numpy(), [0.05, 0.5, 0.95], axis=0)
        right.hlines(places + shift, low, high, color=color, linestyle=line, linewidth=2)
        right.plot(mean, places + shift, marker, color=color)
    middle.axvline(bias, color=INK, linewidth=1.5, label="truth")
    right.plot(scores, places, "*", color=INK, markersize=12, label="truth")
    left.set(xlabel="chronic-disease score", yticks=[], title="The prior of a patient")
    middle.set(xlabel="points that the nurse reads too high", yticks=[], title="Posterior of the nurse's bias")
    right.set(xlabel="score; medians, and 90 % between the ends", yticks=[], title="Posterior of the eight scores")
    right.set_ylim(-0.6, len(scores) + 0.4)
    for axis in axes:
        axis.title.set_fontsize(13)
        axis.xaxis.label.set_fontsize(12)
    right.legend(frameon=False, fontsize=12, loc="upper right")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False, fontsize=12)
    figure.suptitle("A new clinic of eight patients. For the owner of the cohort: do not hand it out", fontsize=12)
    write_picture(figure, path, dpi=85)


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=OUTPUT, help="Folder for the picture.")
@click.option("--smoke", is_flag=True, help="Short chains and hardly any training, to see that it runs.")
def main(output: Path, smoke: bool) -> None:
    """Use a private density as the prior of a model, beside its public base."""
    generator = torch.Generator().manual_seed(20)
    cohort, people = load_scores(generator)
    scores = people[torch.randint(len(people), (8,), generator=generator)]  # real people, not in the cohort
    bias = BIAS_SCALE * float(torch.randn((), generator=generator))
    readings = scores + bias + READING_SCALE * torch.randn(8, generator=generator)

    base = dist.Uniform(0.0, TOP)
    learner = WeakLearner(num_steps=20) if smoke else None
    q = DensityRatio(base, weak_learner=learner, seed=0, progress=not smoke).fit(cohort).mollify(1.0)
    priors, runs = {"public base": base, "private prior q": q}, {}
    num_samples, warmup_steps, num_chains = (20, 20, 4) if smoke else (1000, 500, 32)
    click.secho(f"\nPrivate: the posterior under each prior; the true bias is {bias:.1f}", bold=True)
    for name, prior in priors.items():
        options = {"model_args": (prior, readings), "seed": 1, "progress": not smoke}
        runs[name] = run_mcmc(model, "lockstep_hmc", num_samples, warmup_steps, num_chains, **options)
        found, means = runs[name].draws["bias"], runs[name].draws["score"].mean((0, 1))
        error, has_mixed = (means - scores).square().mean().sqrt(), mixing_report(runs[name]).passed
        click.echo(
            f"  {name:16} bias {found.mean():.1f} +- {found.std():.1f}, error of a score {error:.1f}, {has_mixed=}"
        )
    cost = posterior_guarantee(q, num_latents=8).epsilon
    click.echo(f"  An exact draw of all scores would cost epsilon {cost:.1f}; a chain has no guarantee at all.")
    output.mkdir(parents=True, exist_ok=True)
    draw_posteriors(cohort, (scores, bias), priors, runs, output / "prior.png")
    click.echo(f"\nsaved: {output / 'prior.png'}")


if __name__ == "__main__":
    main()
