"""Models with posteriors that are known: conjugate, or by quadrature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from densities import make_density, normal
from scipy import stats

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


class Truth(NamedTuple):
    """Mean and quantiles at ``LEVELS`` of a scalar parameter."""

    mean: float
    quantiles: tuple[float, ...]


class Problem(NamedTuple):
    """What is sampled, and what is true of each scalar parameter, by its name in a chain's draws: ``site[index]``."""

    model: Any
    truths: dict[str, Truth]


def of_distribution(distribution: Any) -> Truth:
    """From a frozen distribution of scipy."""
    return Truth(float(distribution.mean()), tuple(float(distribution.ppf(level)) for level in LEVELS))


def of_grid(points: torch.Tensor, log_weights: torch.Tensor) -> Truth:
    """From cells of equal size: their middles in rising order, and the logarithms of their masses."""
    masses = log_weights.softmax(0)
    edges = torch.cat([points[:1] - (points[1] - points[0]) / 2, (points[1:] + points[:-1]) / 2])
    edges = torch.cat([edges, points[-1:] + (points[-1] - points[-2]) / 2])
    below = torch.cat([masses.new_zeros(1), masses.cumsum(0)])
    quantiles = []
    for level in LEVELS:
        cell = int(torch.searchsorted(below, below.new_tensor(level))) - 1
        share = (level - below[cell]) / masses[cell]
        quantiles.append(float(edges[cell] + share * (edges[cell + 1] - edges[cell])))
    return Truth(float((masses * points).sum()), tuple(quantiles))


def midpoints(low: float, high: float, num_cells: int) -> torch.Tensor:
    return low + (high - low) * (torch.arange(num_cells, dtype=torch.float64) + 0.5) / num_cells


def plane_truths(
    log_density: Callable[[torch.Tensor], torch.Tensor], box: tuple[tuple[float, float], ...], num_cells: int
) -> dict[str, Truth]:
    """Of both coordinates of site ``x``, by quadrature on a grid of ``num_cells`` squared cells."""
    first, second = (midpoints(*side, num_cells) for side in box)
    points = torch.cartesian_prod(first, second)
    log_mass = torch.cat([log_density(part).double() for part in points.split(2**16)]).reshape(num_cells, num_cells)
    return {
        "x[0]": of_grid(first, log_mass.logsumexp(1)),
        "x[1]": of_grid(second, log_mass.logsumexp(0)),
    }


def normal_mean(num_cells: int) -> Problem:
    """Heights in centimetres, normal with known deviation and a normal prior: conjugate."""
    heights = torch.tensor([171.0, 178.5, 166.0, 181.0, 174.5, 169.0])

    def model() -> None:
        centre = pyro.sample("centre", dist.Normal(160.0, 30.0))
        with pyro.plate("people", 6):
            pyro.sample("height", dist.Normal(centre, 8.0), obs=heights)

    precision = 6 / 64 + 1 / 900
    mean = (float(heights.sum()) / 64 + 160 / 900) / precision
    return Problem(model, {"centre": of_distribution(stats.norm(mean, precision**-0.5))})


def skewed_rate(num_cells: int) -> Problem:
    """A Poisson rate of which little is known: a gamma posterior of shape 1.5, far from symmetric."""

    def model() -> None:
        rate = pyro.sample("rate", dist.Gamma(0.5, 1.0))
        with pyro.plate("days", 2):
            pyro.sample("count", dist.Poisson(rate), obs=torch.tensor([1.0, 0.0]))

    return Problem(model, {"rate": of_distribution(stats.gamma(1.5, scale=1 / 3))})


def on_a_box(num_cells: int) -> Problem:
    """A fitted density on a box as a prior, and an observation beyond its upper edge: mass piles up there."""
    low, high = torch.tensor([0.0, -1.0]), torch.tensor([1.0, 3.0])
    prior = seeded_density(dist.Uniform(low, high).to_event(1), 3.0)
    scale, reading = torch.tensor([0.3, 1.0]), torch.tensor([1.2, 3.5])

    def model() -> None:
        x = pyro.sample("x", prior)
        pyro.sample("reading", dist.Normal(x, scale).to_event(1), obs=reading)

    def log_density(x: torch.Tensor) -> torch.Tensor:
        return prior.log_prob(x).double() + dist.Normal(x, scale.double()).log_prob(reading.double()).sum(-1)

    return Problem(model, plane_truths(log_density, ((0.0, 1.0), (-1.0, 3.0)), num_cells))


def hierarchy(num_cells: int) -> Problem:
    """Five groups around a mean with a scale; their own effects are integrated out by hand for the truth."""
    readings, errors = torch.tensor([2.8, 0.8, -0.3, 1.7, -0.1]), torch.tensor([1.5, 1.0, 1.6, 1.1, 0.9])

    def model() -> None:
        centre = pyro.sample("centre", dist.Normal(0.0, 2.0))
        spread = pyro.sample("spread", dist.LogNormal(0.0, 0.5))
        with pyro.plate("groups", 5):
            effect = pyro.sample("effect", dist.Normal(0.0, 1.0))
            pyro.sample("reading", dist.Normal(centre + spread * effect, errors), obs=readings)

    centres, log_spreads = midpoints(-6.0, 8.0, num_cells), midpoints(-3.5, 3.5, num_cells)
    centre, log_spread = torch.meshgrid(centres, log_spreads, indexing="ij")
    marginal = dist.Normal(
        centre.unsqueeze(-1), (log_spread.exp().unsqueeze(-1) ** 2 + errors.double() ** 2).sqrt(), validate_args=False
    )
    log_mass = (
        dist.Normal(0.0, 2.0).log_prob(centre)
        + dist.Normal(0.0, 0.5).log_prob(log_spread)
        + marginal.log_prob(readings.double()).sum(-1)
    )
    of_log = of_grid(log_spreads, log_mass.logsumexp(0))
    masses = log_mass.logsumexp(0).softmax(0)
    spread = Truth(
        float((masses * log_spreads.exp()).sum()),
        tuple(float(torch.tensor(quantile).exp()) for quantile in of_log.quantiles),
    )
    return Problem(model, {"centre": of_grid(centres, log_mass.logsumexp(1)), "spread": spread})


def density_itself(num_cells: int) -> Problem:
    """A fitted density in the plane, asymmetric."""
    density = seeded_density(normal(2), 5.0)
    return Problem(density, plane_truths(density.log_prob, ((-6.0, 6.0), (-6.0, 6.0)), num_cells))


def seeded_density(base: Any, epsilon: float) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return make_density(base, epsilon=epsilon, link="tanh")


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "normal mean": normal_mean,
    "skewed rate": skewed_rate,
    "on a box": on_a_box,
    "hierarchy": hierarchy,
    "density itself": density_itself,
}
