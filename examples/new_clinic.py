"""A prior learned from a sensitive cohort, used in a hierarchical model of a new clinic.

The owner of a cohort (the RAND Health Insurance Experiment) holds a chronic-disease score of thousands of people. A new
clinic has eight patients. A nurse has read a score for each: the readings are noisy, and share the nurse's bias. Eight
readings alone cannot distinguish a nurse who reads high from patients who are ill. The distribution of scores in the
cohort can: a private density q of them is the prior of each patient's score.

    bias ~ Normal(0, 8)                      the nurse's
    score_i ~ q                              of patient i, to be inferred
    reading_i ~ Normal(score_i + bias, 6)    public: the clinic's, not the cohort's

The posterior comes from NUTS and is checked against quadrature: given the bias the patients are independent, so
integrals over one score and one bias suffice. The same model with the public base as the prior, and with the bare
table, shows what the private prior adds and what privacy costs. The chains stay with the owner: not for release.

Run it with ``python examples/new_clinic.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_mbde import Chains, DensityRatio, run_mcmc
from pyro_mbde.experiments.medical import TABLE
from pyro_mbde.pictures import new_figure, write_picture
from pyro_mbde.sampling.posterior import posterior_guarantee

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Public, from the design: the score's range, its step (one more disease), and the clinic's two standard deviations.
TOP, STEP = 60.0, 3.45
BIAS_SCALE, READING_SCALE = 8.0, 6.0

#: Midpoints of a grid over scores, and a grid over biases, for quadrature.
SCORES = (torch.arange(300, dtype=torch.float64) + 0.5) * (TOP / 300)
BIASES = torch.linspace(-32, 32, 193, dtype=torch.float64)

# Distinguishable with colour-blindness; line styles distinguish them in grey.
INK, BLUE, ORANGE, PALE = "#333333", "#0072b2", "#d55e00", "#9a9a9a"
PRIORS = {"public base": (PALE, "--"), "private prior q": (BLUE, "-"), "bare table": (ORANGE, ":")}


class Clinic(NamedTuple):
    """A clinic's readings, and what they were made of, which only the examiner knows."""

    readings: Tensor
    scores: Tensor
    bias: float


class Posterior(NamedTuple):
    """Results of quadrature.

    Attributes:
        bias_density: of the bias, at ``BIASES``.
        bias_mean: its mean.
        bias_deviation: its standard deviation.
        score_densities: of each patient's score, at ``SCORES``; shape ``(n, len(SCORES))``.
        score_means: their means.
    """

    bias_density: Tensor
    bias_mean: float
    bias_deviation: float
    score_densities: Tensor
    score_means: Tensor


def load_scores(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns the cohort's scores, and those of other people, who are the patients of new clinics.

    A score is a number of diseases in steps of 3.45. It is spread over its step, since a density fits spikes badly. The
    guarantee holds whatever the owner does to the table.
    """
    table = pd.read_csv(TABLE)
    # A person's years are consecutive rows: every fourth person is held out, with all years.
    held_out = torch.tensor(((table["disea"] != table["disea"].shift()).cumsum() % 4 == 0).to_numpy())
    scores = torch.tensor(table["disea"].to_numpy(), dtype=torch.float32)
    scores = (scores + STEP * torch.rand(len(scores), generator=generator)).clamp(max=TOP)
    return scores[~held_out], scores[held_out]


def simulate_clinic(people: Tensor, num_patients: int, generator: torch.Generator) -> Clinic:
    """Makes a clinic: scores of real people, bias and readings from the model."""
    scores = people[torch.randint(len(people), (num_patients,), generator=generator)]
    bias = BIAS_SCALE * float(torch.randn((), generator=generator))
    readings = scores + bias + READING_SCALE * torch.randn(num_patients, generator=generator)
    return Clinic(readings, scores, bias)


def model(prior: dist.TorchDistribution, readings: Tensor) -> None:
    """The model of the new clinic."""
    bias = pyro.sample("bias", dist.Normal(0.0, BIAS_SCALE))
    with pyro.plate("patients", len(readings)):
        score = pyro.sample("score", prior)
        pyro.sample("reading", dist.Normal(score + bias, READING_SCALE), obs=readings)


def table_log_density(cohort: Tensor) -> Tensor:
    """The bare table as a prior, at ``SCORES``: a histogram with bars of one point, without any privacy."""
    counts = torch.histc(cohort.double(), int(TOP), 0, TOP)
    return (counts / counts.sum()).log()[SCORES.long()]


def quadrature(log_prior: Tensor, readings: Tensor) -> Posterior:
    """Integrates the posterior over one score and one bias.

    Args:
        log_prior: log-density of a score at ``SCORES``, up to a constant.
        readings: shape ``(n,)``.
    """
    errors = readings.double()[:, None, None] - BIASES[:, None] - SCORES  # patient, bias, score
    log_joint = log_prior - 0.5 * (errors / READING_SCALE) ** 2
    log_bias = torch.logsumexp(log_joint, -1).sum(0) - 0.5 * (BIASES / BIAS_SCALE) ** 2
    weights = log_bias.softmax(0)
    scores = torch.einsum("b,nbs->ns", weights, log_joint.softmax(-1))
    mean = float(weights @ BIASES)
    deviation = float((weights @ (BIASES - mean) ** 2).sqrt())
    return Posterior(
        weights / float(BIASES[1] - BIASES[0]), mean, deviation, scores / float(SCORES[1] - SCORES[0]), scores @ SCORES
    )


def check_chains(chains: Chains, posterior: Posterior) -> pd.DataFrame:
    """Compares the chains' means with those of quadrature, with Monte Carlo standard errors."""
    data = chains.to_arviz()
    import arviz  # after the library has imported it without its warnings

    errors, ess = arviz.mcse(data), arviz.ess(data)
    names = ["bias"] + [f"patient {index + 1}" for index in range(len(posterior.score_means))]
    flat = [np.concatenate([[float(of["bias"])], of["score"].to_numpy()]) for of in (errors, ess)]
    means = np.concatenate([[float(chains.draws["bias"].mean())], chains.draws["score"].mean((0, 1)).numpy()])
    exact = np.concatenate([[posterior.bias_mean], posterior.score_means.numpy()])
    columns = {"NUTS": means, "MCSE": flat[0], "quadrature": exact, "off by (MCSEs)": (means - exact) / flat[0]}
    return pd.DataFrame(columns | {"ESS": flat[1]}, index=pd.Index(names))


def average_errors(
    log_priors: dict[str, Tensor], people: Tensor, num_patients: int, num_clinics: int, generator: torch.Generator
) -> pd.DataFrame:
    """Root mean square errors of posterior means over many clinics, by quadrature."""
    squares: dict[str, list[list[float]]] = {name: [] for name in log_priors}
    for _ in range(num_clinics):
        clinic = simulate_clinic(people, num_patients, generator)
        for name, log_prior in log_priors.items():
            posterior = quadrature(log_prior, clinic.readings)
            of_scores = float(((posterior.score_means - clinic.scores) ** 2).mean())
            squares[name].append([(posterior.bias_mean - clinic.bias) ** 2, posterior.bias_deviation**2, of_scores])
    errors = {name: np.sqrt(np.mean(rows, 0)) for name, rows in squares.items()}
    columns = ["error of the bias", "deviation claimed", "error of a score"]
    return pd.DataFrame.from_dict(errors, orient="index", columns=columns)


def draw_picture(
    cohort: Tensor, log_priors: dict[str, Tensor], clinic: Clinic, posteriors: dict[str, Posterior], chains: Chains
) -> Figure:
    """Shows the priors, the posterior of the bias under each, and every patient's score."""
    figure = new_figure(14, 4.8)
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1, 1.15])
    left.hist(cohort.numpy(), np.arange(0, TOP + 1, 1), density=True, color="#e0e0e0", label="table (sensitive)")
    for name, log_prior in log_priors.items():
        if name != "bare table":
            color, style = PRIORS[name]
            left.plot(SCORES, log_prior.exp(), color=color, linestyle=style, linewidth=2, label=name)
    left.set(
        xlabel="chronic-disease score", ylabel="probability density", title="What is known of a patient beforehand"
    )
    left.set_xlim(0, TOP)
    left.legend(frameon=False)

    nuts = chains.draws["bias"].flatten().numpy()
    middle.hist(nuts, 25, density=True, color=BLUE, alpha=0.25, label="NUTS under q")
    for name, posterior in posteriors.items():
        color, style = PRIORS[name]
        middle.plot(BIASES, posterior.bias_density, color=color, linestyle=style, linewidth=2, label=f"{name}, exact")
    middle.axvline(clinic.bias, color=INK, linewidth=1)
    top = 1.35 * max(float(posterior.bias_density.max()) for posterior in posteriors.values())
    middle.annotate(" truth", (clinic.bias, 0.94 * top), color=INK)
    middle.set(xlim=(-32, 20), ylim=(0, top), xlabel="points that the nurse reads too high", yticks=[])
    middle.set_title("Posterior of the nurse's bias")
    middle.legend(frameon=False, loc="upper left", fontsize=9)

    places = torch.arange(len(clinic.scores))
    for shift, (name, posterior) in zip((-0.18, 0.0, 0.18), posteriors.items(), strict=True):
        color, style = PRIORS[name]
        below = posterior.score_densities.cumsum(-1) * float(SCORES[1] - SCORES[0])
        ends = [SCORES[(below < share).sum(-1).clamp(max=len(SCORES) - 1)] for share in (0.05, 0.95)]
        right.hlines(places + shift, *ends, color=color, linestyle=style, linewidth=2)
        right.plot(posterior.score_means, places + shift, "o", color=color, markersize=5, label=f"under {name}")
    right.plot(clinic.readings, places, "|", color=INK, markersize=15, label="reading")
    right.plot(clinic.scores, places, "*", color=INK, markersize=11, label="truth")
    right.set(xlabel="score", yticks=places.tolist(), yticklabels=[f"{place + 1}" for place in places.tolist()])
    right.set_ylabel("patient")
    right.set_title("Scores: posterior means and 90% intervals")
    right.invert_yaxis()
    right.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9)
    for axis in (left, middle, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        "A new clinic of eight patients. For the owner of the table: nothing here is for release", fontsize=11
    )
    return figure


@click.command()
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="Privacy parameter of one row, in nats.")
@click.option("--num-samples", type=click.IntRange(50), default=300, show_default=True, help="Draws of each chain.")
@click.option("--num-clinics", type=click.IntRange(1), default=100, show_default=True, help="Clinics to average over.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path(__file__).parent / "output",
    help="Folder for the picture.",
)
def main(epsilon: float, num_samples: int, num_clinics: int, output: Path) -> None:
    """Use a private prior in a model of a new clinic, check it by quadrature, and report what it gains."""
    generator = torch.Generator().manual_seed(20)
    cohort, people = load_scores(generator)
    base = dist.Uniform(0.0, TOP)
    q = DensityRatio(base, ensemble_size=2, seed=0).fit(cohort).mollify(epsilon)
    clinic = simulate_clinic(people, 8, generator)
    log_priors = {
        "public base": torch.zeros_like(SCORES) - np.log(TOP),
        "private prior q": q.log_prob(SCORES).double(),
        "bare table": table_log_density(cohort),
    }
    posteriors = {name: quadrature(log_prior, clinic.readings) for name, log_prior in log_priors.items()}
    # Scores and bias are correlated, since one can make up for the other: a full mass matrix. The corners of q lower
    # the acceptance rate; smaller steps would raise it, but cost more time than they save.
    options = {"full_mass": True, "target_accept_prob": 0.7}
    chains = run_mcmc(
        model, "nuts", num_samples, 120, 2, seed=1, model_args=(q, clinic.readings), kernel_options=options
    )

    click.secho("\nPosterior under the private prior: NUTS against quadrature", bold=True)
    click.echo(check_chains(chains, posteriors["private prior q"]).round(3).to_string())

    click.secho(f"\nThis clinic, by quadrature (true bias {clinic.bias:.2f})", bold=True)
    for name, posterior in posteriors.items():
        error = float(((posterior.score_means - clinic.scores) ** 2).mean().sqrt())
        click.echo(
            f"  {name:16} bias {posterior.bias_mean:6.2f} +- {posterior.bias_deviation:4.2f}   "
            f"error of a score {error:5.2f} (root mean square)"
        )
    click.secho(f"\n{num_clinics} such clinics, root mean squares", bold=True)
    averages = average_errors(log_priors, people, 8, num_clinics, generator)
    click.echo(averages.round(2).to_string())

    private, best = (averages.loc[name, "error of a score"] for name in ("private prior q", "bare table"))
    bare = averages.loc["public base", "error of a score"]
    one, all_of_them = posterior_guarantee(q), posterior_guarantee(q, 8)
    click.secho("\nWhat the private prior gains, and what it costs", bold=True)
    click.echo(
        f"  Gain: the error of a score falls from {bare:.1f} points to {private:.1f} ({best:.1f} without privacy).\n"
        f"  Prior: one row, an exact draw, costs epsilon {q.epsilon:.2f} (delta {q.guarantee.delta:g}).\n"
        f"  Posterior: one exact draw of all 8 scores and the bias would cost epsilon {all_of_them.epsilon:.2f}, "
        f"{one.epsilon:.2f} a patient:\n"
        f"  twice the cost of a row, since the certificate of q does not cover a posterior, but without any delta.\n"
        f"  It protects the cohort, whatever the readings, which are public. It costs too much: do not release it.\n"
        f"  The chains above are not exact draws and have no guarantee: not for release."
    )
    output.mkdir(parents=True, exist_ok=True)
    figure = draw_picture(cohort, log_priors, clinic, posteriors, chains)
    write_picture(figure, output / "new_clinic.png", dpi=130)
    click.echo(f"\n  picture: {output / 'new_clinic.png'}")


if __name__ == "__main__":
    main()
