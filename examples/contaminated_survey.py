"""A private density as a likelihood: what share of a new survey was misread, and which rows?

The owner of a sensitive table (the RAND Health Insurance Experiment) knows what honest rows look like: q is a private
density of its rows, here the square root of a chronic-disease score and the logarithm of the visits to a doctor. A new,
public survey asks 200 other people the same questions, but a share w of its forms was misread. Misread rows may lie
anywhere in the range.

    w ~ Beta(1, 3)                                 the share that is misread
    misread_i ~ Bernoulli(w)                       summed out, by Pyro's enumeration
    row_i ~ Uniform(range) if misread_i, else q    public: the survey's, not the table's

The posterior of w comes from NUTS and is checked against quadrature. Quadrature with the public base in place of q
shows what the table adds. The rows are those of real people who were held out of the table; the example scrambles a
fifth of them, so the truth is known.

Run it with ``python examples/contaminated_survey.py``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_mbde import Chains, DensityRatio, MollifiedExpFamily, run_mcmc
from pyro_mbde.experiments.medical import TABLE
from pyro_mbde.pictures import new_figure, write_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Public range of both columns: a score up to 60 plus one step, up to 100 visits. The base's means and standard
#: deviations are round numbers on the wide side. None of these come from the rows.
STEP = 3.45
LOW, HIGH = torch.tensor([0.0, 0.0]), torch.tensor([8.0, math.log(102)])
BASE_MEAN, BASE_SCALE = torch.tensor([3.5, 1.0]), torch.tensor([2.0, 1.5])
LABELS = ("square root of the chronic-disease score", "ln(1 + visits to a doctor)")
NUM_ROWS, MISREAD_SHARE = 200, 0.2

#: Grid over the share, for quadrature.
SHARES = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
SHARE_PRIOR = dist.Beta(1.0, 3.0)

# Distinguishable with colour-blindness; line styles distinguish them in grey.
INK, BLUE, ORANGE, PALE = "#333333", "#0072b2", "#d55e00", "#9a9a9a"


class Survey(NamedTuple):
    """Rows of shape ``(n, 2)``, and which of them were misread: the truth, unknown to the model."""

    rows: Tensor
    misread: Tensor


class Posterior(NamedTuple):
    """By quadrature: the density of w at ``SHARES``, its mean and standard deviation, and each row's probability."""

    density: Tensor
    mean: float
    deviation: float
    row_probs: Tensor


def load_rows(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns the table, and rows of other people for a survey.

    Both columns are whole numbers of steps. Each value is spread over its step, since a density fits spikes badly.
    """
    table = pd.read_csv(TABLE)
    # A person's years are consecutive rows: every fourth person is held out, with all years.
    held_out = torch.tensor(((table["disea"] != table["disea"].shift()).cumsum() % 4 == 0).to_numpy())
    score, visits = (torch.tensor(table[name].to_numpy(), dtype=torch.float32) for name in ("disea", "mdvis"))
    score = score + STEP * torch.rand(len(score), generator=generator)
    visits = visits + torch.rand(len(visits), generator=generator)
    rows = torch.stack([score.sqrt(), visits.log1p()], -1)
    return rows[~held_out], rows[held_out]


def simulate_survey(people: Tensor, generator: torch.Generator) -> Survey:
    """Takes rows of real people and replaces a share of them with rows uniform on the range."""
    rows = people[torch.randint(len(people), (NUM_ROWS,), generator=generator)]
    misread = torch.rand(NUM_ROWS, generator=generator) < MISREAD_SHARE
    anywhere = LOW + (HIGH - LOW) * torch.rand(rows.shape, generator=generator)
    return Survey(torch.where(misread[:, None], anywhere, rows), misread)


def misread_density() -> dist.TorchDistribution:
    """Uniform on the range."""
    return dist.Uniform(LOW, HIGH).to_event(1)


def model(honest: dist.TorchDistribution, rows: Tensor) -> None:
    """The model of the survey."""
    share = pyro.sample("share", SHARE_PRIOR)
    with pyro.plate("rows", len(rows)):
        misread = pyro.sample("misread", dist.Bernoulli(share), infer={"enumerate": "parallel"})
        pyro.sample("row", dist.MaskedMixture(misread.bool(), honest, misread_density()), obs=rows)


def misread_probs(shares: Tensor, log_odds: Tensor) -> Tensor:
    """Returns each row's probability of being misread for each share w, shape ``(k, n)``.

    Args:
        shares: w, shape ``(k, 1)``.
        log_odds: log-density of each row if misread minus that if honest, shape ``(n,)``.
    """
    return torch.sigmoid(torch.logit(shares) + log_odds)


def quadrature(log_odds: Tensor) -> Posterior:
    """Integrates the posterior over w.

    Args:
        log_odds: log-density of each row if misread minus that if honest, float64, shape ``(n,)``.
    """
    log_likelihood = torch.logaddexp(torch.log1p(-SHARES)[:, None], SHARES.log()[:, None] + log_odds).sum(-1)
    weights = (log_likelihood + SHARE_PRIOR.log_prob(SHARES)).softmax(0)
    mean = float(weights @ SHARES)
    deviation = float((weights @ (SHARES - mean) ** 2).sqrt())
    return Posterior(weights * len(SHARES), mean, deviation, weights @ misread_probs(SHARES[:, None], log_odds))


def check_chains(chains: Chains, posterior: Posterior, log_odds: Tensor) -> pd.DataFrame:
    """Compares the chains with quadrature, with Monte Carlo standard errors."""
    shares = chains.draws["share"].double()
    of_rows = misread_probs(shares[..., None], log_odds)
    rows = {"w": (shares, posterior.mean), "w squared": (shares**2, posterior.mean**2 + posterior.deviation**2)}
    rows |= {f"P(row {row} misread)": (of_rows[..., row], float(posterior.row_probs[row])) for row in range(3)}
    checked = {}
    for name, (values, exact) in rows.items():
        data = Chains({"x": values}, {}, chains.seeds, chains.warmup_steps, chains.kernel).to_arviz()
        import arviz  # after the library has imported it without its warnings

        mean, error = float(values.mean()), float(arviz.mcse(data)["x"])
        checked[name] = [mean, error, exact, (mean - exact) / error]
    return pd.DataFrame.from_dict(checked, orient="index", columns=["NUTS", "MCSE", "quadrature", "off by (MCSEs)"])


def draw_picture(survey: Survey, q: MollifiedExpFamily, posteriors: dict[str, Posterior], chains: Chains) -> Figure:
    """Shows the survey, the posterior of w and every row's probability."""
    figure = new_figure(14.5, 4.8)
    left, middle, right = figure.subplots(1, 3)
    of_base, of_q = posteriors["public base"], posteriors["private density q"]

    axes = [torch.linspace(float(low), float(high), 121) for low, high in zip(LOW, HIGH, strict=True)]
    grid = torch.cartesian_prod(*axes)
    left.contour(*axes, q.log_prob(grid).exp().reshape(121, 121).T, 6, colors=PALE, linewidths=0.8)
    for misread, marker, label in ((False, "o", "honest row"), (True, "X", "misread row")):
        chosen = survey.misread == misread
        points = left.scatter(
            *survey.rows[chosen].T,
            c=of_q.row_probs[chosen],
            marker=marker,
            s=24 if marker == "o" else 48,
            cmap="cividis",
            vmin=0,
            vmax=1,
            edgecolors=INK,
            linewidths=0.4,
            label=label,
        )
    figure.colorbar(points, ax=left, label="probability that the row is misread")
    left.set(xlabel=LABELS[0], ylabel=LABELS[1], ylim=(0, 5.2), title="The survey; contours: private density q")
    left.legend(frameon=False, loc="upper center", ncols=2, fontsize=9)

    middle.hist(chains.draws["share"].flatten().numpy(), 30, density=True, color=BLUE, alpha=0.25, label="NUTS, with q")
    middle.plot(SHARES, of_base.density, PALE, linestyle="--", linewidth=2, label="exact, with the public base")
    middle.plot(SHARES, of_q.density, BLUE, linewidth=2, label="exact, with q")
    truth = float(survey.misread.float().mean())
    top = 1.35 * float(torch.maximum(of_base.density.max(), of_q.density.max()))
    middle.axvline(truth, color=INK, linewidth=1)
    middle.annotate(" truth", (truth, 0.02 * top), color=INK)
    middle.set(xlim=(0, 0.4), ylim=(0, top), yticks=[], xlabel="share w of misread rows")
    middle.set_title("Posterior of the share")
    middle.legend(frameon=False, loc="upper left", fontsize=9)

    right.plot([0, 1], [0, 1], color=PALE, linewidth=0.8)
    for misread, marker, color, label in ((False, "o", BLUE, "honest row"), (True, "X", ORANGE, "misread row")):
        chosen = survey.misread == misread
        style = {"marker": marker, "color": color, "s": 30, "alpha": 0.7, "linewidths": 0}
        right.scatter(of_base.row_probs[chosen], of_q.row_probs[chosen], label=label, **style)
    right.set(xlabel="with the public base", ylabel="with the private density q", xlim=(0, 1.02), ylim=(0, 1.02))
    right.set_title("Probability that each row is misread")
    right.legend(frameon=False, loc="lower right", fontsize=9)
    for axis in (left, middle, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle("A contaminated survey. For the owner of the table: nothing here is for release", fontsize=11)
    return figure


@click.command()
@click.option("--epsilon", type=float, default=3.0, show_default=True, help="Privacy parameter of one row, in nats.")
@click.option("--num-samples", type=click.IntRange(50), default=500, show_default=True, help="Draws of each chain.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path(__file__).parent / "output",
    help="Folder for the picture.",
)
def main(epsilon: float, num_samples: int, output: Path) -> None:
    """Find the misread rows of a survey with a private density as the likelihood of the honest ones."""
    generator = torch.Generator().manual_seed(7)
    table, people = load_rows(generator)
    base = dist.Normal(BASE_MEAN, BASE_SCALE).to_event(1)
    # The base is wide but has the right shape: skew 1/2.
    q = DensityRatio(base, ensemble_size=2, seed=0).fit(table).mollify(epsilon, skew=0.5)
    survey = simulate_survey(people, generator)
    log_odds = {
        name: (misread_density().log_prob(survey.rows) - density.log_prob(survey.rows)).double()
        for name, density in (("public base", base), ("private density q", q))
    }
    posteriors = {name: quadrature(odds) for name, odds in log_odds.items()}
    chains = run_mcmc(model, "nuts", num_samples, 200, num_chains=2, seed=1, model_args=(q, survey.rows))

    click.secho("\nWith the private density: NUTS against quadrature", bold=True)
    name = "private density q"
    click.echo(check_chains(chains, posteriors[name], log_odds[name]).round(4).to_string())

    num_misread = int(survey.misread.sum())
    click.secho(f"\nWhat the private density adds ({num_misread} of {NUM_ROWS} rows are misread)", bold=True)
    for name, posterior in posteriors.items():
        flagged = posterior.row_probs > 0.5
        hits, alarms = int((flagged & survey.misread).sum()), int((flagged & ~survey.misread).sum())
        click.echo(
            f"  {name:18} w = {posterior.mean:.3f} +- {posterior.deviation:.3f}; more likely misread than not: "
            f"{hits} misread rows, {alarms} honest rows"
        )
    # The density is in the set with |log q/q'| <= epsilon at every row, except with probability delta.
    total, error = NUM_ROWS * q.epsilon, NUM_ROWS * q.log_normalizer.standard_error
    click.secho("\nWhat the guarantee covers", bold=True)
    click.echo(
        f"  Any other table would change the log-likelihood of one survey row by at most epsilon {q.epsilon:.2f},\n"
        f"  except with probability {q.guarantee.delta:g}. The posterior of w has {NUM_ROWS} such rows: one draw can\n"
        f"  cost up to {total:.0f}, which protects nobody: w, the flags and the chains stay with the owner.\n"
        f"  NUTS trajectories are not for release in any case. Rows drawn from q are: they cost {q.epsilon:.2f} each.\n"
        f"  The survey is public and is not protected.\n"
        f"  The log-normaliser of q enters every row: its error, {error:.0e} nats over all rows, must be far below 1."
    )
    output.mkdir(parents=True, exist_ok=True)
    figure = draw_picture(survey, q, posteriors, chains)
    write_picture(figure, output / "contaminated_survey.png", dpi=130)
    click.echo(f"\n  picture: {output / 'contaminated_survey.png'}")


if __name__ == "__main__":
    main()
