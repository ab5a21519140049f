"""Posteriors with a fitted prior: the guarantee attacked, and exact posteriors against quadrature and NUTS."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from pathlib import Path

import arviz
import pyro
import pyro.distributions as dist
import pytest
import torch
from densities import make_density, normal
from torch import Tensor, nn

from pyro_mbde import (
    Bounds,
    DensityRatio,
    Guarantee,
    MollifiedExpFamily,
    exact_posterior,
    posterior_guarantee,
    private_draws,
    run_mcmc,
)
from pyro_mbde.density.bounds import LOG_2, Certificate, skewed_bounds


class Table(nn.Module):
    """Looks its one statistic up by the category."""

    def __init__(self, entries: Tensor) -> None:
        super().__init__()
        self.register_buffer("entries", entries)

    def forward(self, value: Tensor) -> Tensor:
        return self.entries[value.squeeze(-1).long()].unsqueeze(-1)


class Stripes(nn.Module):
    """Alternates between two huge outputs, or NaN, in cells of width 1/3."""

    def __init__(self, even: float, odd: float) -> None:
        super().__init__()
        self.register_buffer("pair", torch.tensor([even, odd]))

    def forward(self, value: Tensor) -> Tensor:
        return self.pair[(value.sum(-1, keepdim=True) * 3).floor().remainder(2).long()]


def tabulated(
    probs: Tensor, tilt: Tensor, bounds: Bounds, certificate: Certificate | None = None
) -> MollifiedExpFamily:
    """A density over a finite base whose tilt is the given one, as mollify would scale it."""
    middle, theta = (bounds.low + bounds.high) / 2, bounds.width / (2 * LOG_2)
    density = MollifiedExpFamily(
        dist.Categorical(probs),
        Table((tilt - middle) / theta),
        torch.tensor([theta]),
        float((probs.log() + tilt).logsumexp(0)),
        offset=-middle,
        bounds=bounds,
        certificate=certificate,
    )
    assert torch.allclose(density.tilt(torch.arange(len(probs))), tilt, atol=1e-12)
    return density


def joint_log_posterior(q: MollifiedExpFamily, log_likelihood: Tensor) -> Tensor:
    """Posterior over all combinations of n latents; the likelihood has one dimension a latent."""
    log_prior = q.log_prob(torch.arange(log_likelihood.shape[0])).double()
    num_latents = log_likelihood.dim()
    terms = [log_prior.reshape((-1,) + (1,) * (num_latents - 1 - place)) for place in range(num_latents)]
    log_joint = sum(terms, log_likelihood)
    return log_joint - log_joint.flatten().logsumexp(0)


def check_pair(first: Tensor, second: Tensor, guarantee: Guarantee) -> float:
    """Checks both bounds and returns the largest share of them that is used up."""
    difference = (first - second)[torch.isfinite(first) & torch.isfinite(second)]
    slack = 1e-11 * max(1.0, float(first[torch.isfinite(first)].abs().max()))  # rounding of log-densities of that size
    largest, spread = float(difference.abs().max()), float(difference.max() - difference.min())
    assert largest <= guarantee.epsilon + slack
    assert spread <= guarantee.log_ratio_range + slack
    return largest / guarantee.epsilon


@pytest.mark.parametrize("num_latents", [1, 2, 3, 4])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("skew", [0.1, 0.5])
def test_no_pair_of_tables_breaks_the_guarantee(num_latents: int, epsilon: float, skew: float) -> None:
    """Proof: docs/proofs.md, *Posterior draws*."""
    bounds = skewed_bounds(epsilon / 2, skew)
    probs = torch.tensor([0.05, 0.15, 0.3, 0.5], dtype=torch.float64)
    shape = (len(probs),) * num_latents
    in_a = torch.tensor([True, False, True, False])
    high_on_a = torch.where(in_a, bounds.high, bounds.low).double()
    reverse = torch.where(in_a, bounds.low, bounds.high).double()
    tilts = [high_on_a, reverse] + [
        torch.where(torch.rand(4) < 0.5, bounds.low, bounds.high).double() for _ in range(3)
    ]
    tilts += [bounds.low + bounds.width * torch.rand(4, dtype=torch.float64)]
    densities = [tabulated(probs, tilt, bounds) for tilt in tilts]
    guarantee = posterior_guarantee(densities[0], num_latents)
    assert guarantee.epsilon == pytest.approx(num_latents * epsilon)

    # All in A^n is nearly ruled out, and so is all but the complement; the reverse; then anything, also very peaked.
    none_in_a = torch.zeros(shape, dtype=torch.float64)
    for cell in product(range(4), repeat=num_latents):
        none_in_a[cell] = 0.0 if not any(in_a[list(cell)]) else -500.0
    likelihoods = [none_in_a, none_in_a.flip(list(range(num_latents)))]
    likelihoods += [scale * torch.randn(shape, dtype=torch.float64) for scale in (0.0, 1.0, 30.0, 1000.0)]
    likelihoods += [torch.where(torch.rand(shape) < 0.3, -math.inf, 0.0).double().index_fill(0, torch.tensor([1]), 0.0)]
    shares = []
    for log_likelihood in likelihoods:
        posteriors = [joint_log_posterior(density, log_likelihood) for density in densities]
        shares += [check_pair(first, second, guarantee) for first, second in product(posteriors, repeat=2)]
    assert max(shares) >= 0.99  # no smaller number would do


@pytest.mark.parametrize("deviation", [10.0, 0.5, 0.01])
@pytest.mark.parametrize("outputs", [(1e30, -1e30), (math.inf, -math.inf), (math.nan, 1e30), (0.1, -0.5)])
def test_hostile_networks(outputs: tuple[float, float], deviation: float) -> None:
    """By quadrature: on a grid the posterior is a finite measure, of which the theorem holds as it stands."""
    base = dist.Normal(torch.zeros((), dtype=torch.float64), 1.0)
    theta = torch.tensor([1.0 / LOG_2])
    pair = [MollifiedExpFamily.normalized(base, Stripes(*order), theta) for order in (outputs, outputs[::-1])]
    grid = torch.linspace(-5, 5, 4001, dtype=torch.float64)
    used = []
    for reading in (0.1, 0.5, -3.0):
        log_likelihood = -0.5 * ((reading - grid) / deviation) ** 2
        first, second = (q.log_prob(grid) + log_likelihood for q in pair)
        used.append(check_pair(first - first.logsumexp(0), second - second.logsumexp(0), posterior_guarantee(pair[0])))
    if deviation == 0.01 and min(abs(output) for output in outputs) > 1:
        assert max(used) >= 0.99


def test_the_calibrated_guarantee_does_not_carry_over() -> None:
    bounds = Bounds(-0.5, 0.5)
    probs = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
    rest = math.log((1 - 0.25 * (math.exp(0.5) + math.exp(-0.5))) / 0.5)  # what makes both normalisers 1
    first, second = (
        tabulated(probs, torch.tensor([*ends, rest], dtype=torch.float64), bounds, Certificate(1e-12))
        for ends in ((0.5, -0.5), (-0.5, 0.5))
    )
    assert abs(first.log_normalizer.value) < 1e-12
    assert abs(second.log_normalizer.value) < 1e-12
    values = torch.arange(3)
    assert float((first.log_prob(values) - second.log_prob(values)).abs().max()) <= first.guarantee.epsilon + 1e-12
    assert first.guarantee.epsilon == pytest.approx(1.0)

    log_likelihood = torch.tensor([-20.0, 0.0, -20.0], dtype=torch.float64)  # leaves hardly anything but category 1
    posteriors = [joint_log_posterior(q, log_likelihood) for q in (first, second)]
    log_ratio = float((posteriors[0] - posteriors[1]).abs().max())
    assert log_ratio > 1.99 * first.guarantee.epsilon
    assert log_ratio <= posterior_guarantee(first).epsilon


@pytest.mark.parametrize("weight", [0.01, 0.5, 0.99])
def test_an_indicator_between_the_density_and_a_public_one(weight: float) -> None:
    bounds = skewed_bounds(1.0, 0.3)
    probs, public = torch.tensor([0.1, 0.2, 0.7]).double(), torch.tensor([0.5, 0.3, 0.2]).double()
    guarantee = None
    posteriors = []
    for tilt in product((bounds.low, 0.2, bounds.high), repeat=3):
        q = tabulated(probs, torch.tensor(tilt, dtype=torch.float64), bounds)
        guarantee = posterior_guarantee(q)
        log_prior = torch.stack([math.log(weight) + q.log_prob(torch.arange(3)), math.log1p(-weight) + public.log()])
        posteriors.append(log_prior)
    assert guarantee is not None
    for log_likelihood in (torch.zeros(2, 3), 10 * torch.randn(2, 3), 300 * torch.randn(2, 3)):
        normalized = [joint - joint.logsumexp((0, 1)) for joint in (prior + log_likelihood for prior in posteriors)]
        for first, second in product(normalized, repeat=2):
            check_pair(first, second, guarantee)


@pytest.mark.parametrize("num_rows", [1, 3, 6])
def test_a_likelihood_costs_what_its_rows_add_up_to(num_rows: int) -> None:
    """A parameter above n rows of q: 2 n epsilon; the weight of a mixture: n epsilon. As the page on models says."""
    bounds = skewed_bounds(1.0, 0.3)
    probs = torch.tensor([0.1, 0.2, 0.3, 0.4]).double()
    tilts = [torch.tensor(tilt).double() for tilt in product((bounds.low, bounds.high), repeat=4)]
    densities = [tabulated(probs, tilt, bounds) for tilt in tilts]
    epsilon = densities[0].epsilon
    weights = torch.linspace(0, 1, 101).double()
    public = torch.tensor([0.4, 0.3, 0.2, 0.1]).double()
    for log_prior in (torch.zeros(101).double(), 50 * weights, -((weights - 0.2) ** 2) * 1e4):
        rows = torch.randint(4, (num_rows,))
        of_weight, of_shift = [], []
        for q in densities:
            mixed = (1 - weights)[:, None] * q.log_prob(rows).exp() + weights[:, None] * public[rows]
            of_weight.append((mixed.log().sum(-1) + log_prior).log_softmax(0))
            moved = torch.stack([q.log_prob((rows + shift) % 4).sum() for shift in range(4)])
            of_shift.append((moved + 40 * log_prior[::25][:4]).log_softmax(0))
        for first, second in product(of_weight, repeat=2):
            check_pair(first, second, Guarantee(num_rows * epsilon, 0.0, num_rows * epsilon))
        for first, second in product(of_shift, repeat=2):
            check_pair(first, second, Guarantee(2 * num_rows * epsilon))


def test_posterior_guarantee_of_a_calibrated_density_is_a_priori() -> None:
    table = 0.3 * torch.randn(400) + 0.5
    q = DensityRatio(dist.Normal(0.0, 1.0), ensemble_size=1, seed=0, progress=False).fit(table).mollify(1.0)
    guarantee = posterior_guarantee(q, 5)
    assert guarantee == Guarantee(10 * q.bounds.width, 0.0, 10 * q.bounds.width)
    assert q.guarantee.delta > 0
    assert 9.9 < guarantee.epsilon < 10
    posterior = exact_posterior(q, dist.Normal(0.4, 0.5))
    assert (posterior.guarantee, posterior.certificate) == (posterior_guarantee(q), None)
    grid = torch.linspace(-3, 4, 8001)
    expected = q.tilt(grid) + dist.Normal(0.4, 0.5).log_prob(grid)
    expected = expected - torch.trapezoid(expected.exp(), grid).log()
    assert torch.allclose(posterior.log_prob(grid).double(), expected, atol=2e-3)
    assert torch.equal(posterior.tilt(grid), q.tilt(grid))
    draws = private_draws(posterior, 20_000, progress=False)
    assert kolmogorov_distance(draws, grid, expected.exp()) < 2.8 / math.sqrt(20_000)  # exceeded once in 3 million


def kolmogorov_distance(draws: Tensor, grid: Tensor, density: Tensor) -> float:
    """Largest distance of the draws' distribution function from that of a density on a grid."""
    below = torch.cat([density.new_zeros(1), torch.cumulative_trapezoid(density, grid)])
    empirical = torch.searchsorted(draws.sort().values, grid, right=True) / len(draws)
    return float((empirical - below).abs().max())


COUNTS = torch.tensor([3.0, 5.0, 2.0])
Conjugate = tuple[dist.TorchDistribution, dist.TorchDistribution, Callable[[Tensor], Tensor], Tensor]
LINE = torch.linspace(-8, 8, 16_001)
UNIT = (torch.arange(20_000) + 0.5) / 20_000


def conjugates() -> dict[str, Conjugate]:
    """Base, base posterior, log-likelihood, and points of one coordinate to integrate over."""
    readings = torch.tensor([1.0, 2.5, 1.5])
    normal_posterior = dist.Normal((0.5 / 4 + 5.0) / (1 / 4 + 3), (1 / 4 + 3) ** -0.5)
    return {
        "normal": (
            dist.Normal(0.5, 2.0),
            normal_posterior,
            lambda z: dist.Normal(z, 1.0).log_prob(readings[:, None]).sum(0),
            LINE,
        ),
        "gamma-poisson": (
            dist.Gamma(2.0, 1.0),
            dist.Gamma(12.0, 4.0),
            lambda z: dist.Poisson(z).log_prob(COUNTS[:, None]).sum(0),
            torch.linspace(1e-3, 20, 20_000),
        ),
        "beta-binomial": (
            dist.Beta(2.0, 2.0),
            dist.Beta(9.0, 5.0),
            lambda z: dist.Binomial(10, z).log_prob(torch.tensor(7.0)),
            UNIT,
        ),
        "uniform-binomial": (
            dist.Uniform(0.0, 1.0),
            dist.Beta(8.0, 4.0),
            lambda z: dist.Binomial(10, z).log_prob(torch.tensor(7.0)),
            UNIT,
        ),
    }


@pytest.mark.parametrize("name", sorted(conjugates()))
def test_conjugate_posteriors_of_one_dimension(name: str) -> None:
    base, base_posterior, log_likelihood, grid = conjugates()[name]
    q = make_density(base, epsilon=3.0)
    posterior = exact_posterior(q, base_posterior, log_likelihood=log_likelihood)
    expected = q.log_prob(grid).double() + log_likelihood(grid).double()
    expected = expected - torch.trapezoid(expected.exp(), grid.double()).log()
    error = 5 * posterior.log_normalizer.standard_error + 5e-4
    likely = expected > -20
    assert float((posterior.log_prob(grid).double() - expected)[likely].abs().max()) < error
    draws = private_draws(posterior, 10_000, progress=False)
    assert kolmogorov_distance(draws, grid, expected.exp()) < 2.8 / 100
    assert posterior.guarantee == posterior_guarantee(q)
    assert posterior.log_normalizer.standard_error > 0


def test_a_posterior_in_the_plane() -> None:
    q = make_density(normal(2), epsilon=3.0)
    reading = torch.tensor([1.0, -0.5])
    noise = torch.tensor([[0.5, 0.2], [0.2, 0.8]])
    precision = torch.eye(2) + torch.linalg.inv(noise)
    covariance = torch.linalg.inv(precision)
    base_posterior = dist.MultivariateNormal(covariance @ torch.linalg.solve(noise, reading), covariance)

    def log_likelihood(z: Tensor) -> Tensor:
        return dist.MultivariateNormal(z, noise).log_prob(reading)

    posterior = exact_posterior(q, base_posterior, log_likelihood=log_likelihood)
    axis = torch.linspace(-5, 5, 401)
    grid = torch.cartesian_prod(axis, axis)
    expected = (q.log_prob(grid) + log_likelihood(grid)).double()
    expected = expected - expected.logsumexp(0) - 2 * math.log(float(axis[1] - axis[0]))
    likely = expected > -15
    assert float((posterior.log_prob(grid).double() - expected)[likely].abs().max()) < 3e-3
    draws = private_draws(posterior, 10_000, progress=False)
    for moment in (lambda z: z, torch.square):
        exact = (expected.softmax(0)[:, None] * moment(grid)).sum(0)
        assert bool(((moment(draws).mean(0) - exact).abs() < 6 * moment(draws).std(0) / 100).all())


def test_dirichlet_multinomial() -> None:
    q = make_density(dist.Dirichlet(torch.tensor([2.0, 3.0, 4.0])), epsilon=2.0)
    posterior = exact_posterior(
        q, dist.Dirichlet(torch.tensor([5.0, 8.0, 6.0])), log_likelihood=lambda z: (z.log() * COUNTS).sum(-1)
    )
    axis = (torch.arange(400) + 0.5) / 400
    grid = torch.cartesian_prod(axis, axis)
    grid = torch.cat([grid, 1 - grid.sum(-1, keepdim=True)], -1)
    grid = grid[grid[:, 2] > 1e-6]
    expected = (q.log_prob(grid) + (grid.log() * COUNTS).sum(-1)).double()
    weights = expected.softmax(0)
    draws = private_draws(posterior, 10_000, progress=False)
    exact = (weights[:, None] * grid).sum(0)
    assert bool(((draws.mean(0) - exact).abs() < 6 * draws.std(0) / 100).all())
    # The same density up to its normaliser, and that by quadrature
    assert float((posterior.log_prob(grid) - expected).std()) < 1e-3
    integral = float(posterior.log_prob(grid).double().exp().sum()) / 400**2
    assert integral == pytest.approx(1, abs=5e-3)


def test_a_finite_base() -> None:
    probs, likelihood = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.9, 0.1, 0.1, 0.5])
    q = make_density(dist.Categorical(probs), epsilon=4.0)
    posterior = exact_posterior(q, dist.Categorical(probs * likelihood), log_likelihood=lambda z: likelihood.log()[z])
    values = torch.arange(4)
    expected = (q.log_prob(values) + likelihood.log()).log_softmax(0)
    assert torch.allclose(posterior.log_prob(values), expected, atol=1e-6)
    assert posterior.log_normalizer.standard_error == 0


def test_a_posterior_that_leaves_out_some_of_the_prior() -> None:
    """Where it has mass it is right up to a constant: only draws of the prior show that the rest is missing."""
    q = make_density(dist.Uniform(0.0, 1.0))
    part = dist.Uniform(0.2, 0.3)
    with pytest.raises(ValueError, match="base_posterior must be the base times the likelihood"):
        exact_posterior(q, part, log_likelihood=lambda z: torch.zeros(len(z)))
    exact_posterior(q, part, log_likelihood=lambda z: torch.where((z >= 0.2) & (z <= 0.3), 0.0, -torch.inf))


@pytest.mark.slow
def test_against_nuts() -> None:
    base, base_posterior, _, _ = conjugates()["normal"]
    q = make_density(base, epsilon=3.0, link="tanh")
    readings = torch.tensor([1.0, 2.5, 1.5])

    def model() -> None:
        z = pyro.sample("z", q)
        with pyro.plate("readings", 3):
            pyro.sample("reading", dist.Normal(z, 1.0), obs=readings)

    chains = run_mcmc(model, "nuts", 400, 150, num_chains=2, seed=3, progress=False, num_workers=1)
    draws = exact_posterior(q, base_posterior).sample((50_000,))
    errors = torch.tensor(float(arviz.mcse(chains.to_arviz())["z"])), draws.std() / math.sqrt(50_000)
    assert float(arviz.ess(chains.to_arviz())["z"]) > 100
    assert abs(float(chains.draws["z"].mean() - draws.mean())) < 4.5 * float(torch.stack(errors).norm())


def test_offset_shrinkage_and_dtype_are_kept() -> None:
    q = MollifiedExpFamily(
        dist.Normal(0.0, 1.0),
        Stripes(1e30, -1e30),
        torch.tensor([2.0]),
        0.0,
        offset=0.2,
        shrinkage=0.5,
        bounds=Bounds(-0.4, 0.8),
        certificate=Certificate(0.01, 1e-9),
    )
    posterior = exact_posterior(q, dist.Normal(torch.tensor(0.3).double(), 0.1), validate_args=False)
    assert posterior.dtype == torch.float64
    assert (posterior.offset, posterior.shrinkage, posterior.bounds) == (0.2, 0.5, q.bounds)
    value = torch.linspace(-1, 1, 50)
    assert torch.allclose(posterior.tilt(value.double()), q.tilt(value), atol=1e-6)
    assert q.dtype == torch.float32


def test_made_in_inference_mode_saved_and_loaded(tmp_path: Path) -> None:
    q = make_density(dist.Normal(0.0, 1.0))
    with torch.inference_mode():
        posterior = exact_posterior(q, dist.Normal(0.5, 0.5))
    value = torch.tensor(0.3, requires_grad=True)
    posterior.log_prob(value).backward()
    assert value.grad is not None
    posterior.save(tmp_path / "posterior.pt")
    loaded = MollifiedExpFamily.load(tmp_path / "posterior.pt")
    assert torch.equal(loaded.log_prob(value), posterior.log_prob(value))
    assert loaded.guarantee == posterior_guarantee(q)


@pytest.mark.parametrize("num_latents", [0, -1])
def test_num_latents(num_latents: int) -> None:
    with pytest.raises(ValueError, match="num_latents must be at least 1"):
        posterior_guarantee(make_density(dist.Normal(0.0, 1.0)), num_latents)


def test_wrong_arguments() -> None:
    q = make_density(dist.Gamma(2.0, 1.0))
    with pytest.raises(TypeError, match="q must be a MollifiedExpFamily"):
        posterior_guarantee(dist.Normal(0.0, 1.0))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="q must be a MollifiedExpFamily"):
        exact_posterior(dist.Normal(0.0, 1.0), dist.Normal(0.0, 1.0))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="num_latents must be a whole number"):
        posterior_guarantee(q, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="q must have an empty batch shape"):
        posterior_guarantee(q.expand([3]))
    with pytest.raises(ValueError, match="q must have an empty batch shape"):
        exact_posterior(q.expand([3]), dist.Gamma(3.0, 2.0))
    with pytest.raises(TypeError, match="log_likelihood must be a function"):
        exact_posterior(q, dist.Gamma(3.0, 2.0), log_likelihood=torch.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="log_likelihood must map latents"):
        exact_posterior(q, dist.Gamma(3.0, 2.0), log_likelihood=lambda z: z.sum())


@pytest.mark.parametrize(
    ("base_posterior", "error", "match"),
    [
        (3.0, TypeError, "base must be a Pyro or torch distribution"),
        (dist.Gamma(torch.ones(2), 1.0), ValueError, "base must have an empty batch shape"),
        (dist.Gamma(torch.ones(2), 1.0).to_event(1), ValueError, "base_posterior must have the event shape of q"),
        (dist.Normal(0.0, 1.0), ValueError, "base_posterior must have draws in the support of q"),
        (dist.Poisson(3.0), ValueError, "base_posterior must have draws in the support of q"),
    ],
)
def test_wrong_base_posteriors(base_posterior: dist.TorchDistribution, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        exact_posterior(make_density(dist.Gamma(2.0, 1.0)), base_posterior)


def test_a_fitted_density_is_no_base_posterior() -> None:
    q = make_density(dist.Normal(0.0, 1.0))
    with pytest.raises(ValueError, match="base must be public"):
        exact_posterior(q, q)


@pytest.mark.parametrize("wrong", [dist.Gamma(11.0, 4.0), dist.Gamma(12.0, 3.0)])
def test_a_base_posterior_that_the_likelihood_does_not_make(wrong: dist.TorchDistribution) -> None:
    base, _, log_likelihood, _ = conjugates()["gamma-poisson"]
    with pytest.raises(ValueError, match="base_posterior must be the base times the likelihood"):
        exact_posterior(make_density(base), wrong, log_likelihood=log_likelihood)
