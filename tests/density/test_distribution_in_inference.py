"""Densities in inference: importance sampling, subsampling, enumeration, predictions and guides against exact sums."""

from __future__ import annotations

import math
from collections.abc import Callable

import arviz
import pyro
import pyro.distributions as dist
import pytest
import torch
from densities import make_density, normal
from pyro.distributions import transforms
from pyro.infer import SVI, Importance, Predictive, Trace_ELBO, TraceEnum_ELBO, config_enumerate
from pyro.infer import autoguide as guides
from pyro.optim import Adam

from pyro_mbde import MollifiedExpFamily, run_mcmc
from pyro_mbde.sampling.posterior import exact_posterior

#: Points that densities on the line are summed over.
LINE = torch.linspace(-6, 6, 6001)


def expectation(log_density: torch.Tensor, values: torch.Tensor) -> float:
    """Mean of values on LINE under a density that need not be normalised."""
    return float(log_density.double().softmax(0) @ values.double())


def within(draws: torch.Tensor, exact: float) -> bool:
    """Whether the mean of independent draws is within 4.5 standard errors."""
    return abs(float(draws.mean()) - exact) < 4.5 * float(draws.std()) / math.sqrt(len(draws))


def test_as_a_prior_by_importance_sampling(line: MollifiedExpFamily) -> None:
    reading = torch.tensor(1.2)

    def model() -> torch.Tensor:
        z = pyro.sample("z", line)
        pyro.sample("reading", dist.Normal(z, 0.8), obs=reading)
        return z

    importance = Importance(model, num_samples=500)
    importance.run()
    log_weights = torch.stack(importance.log_weights)
    values = torch.stack([trace.nodes["z"]["value"] for trace in importance.exec_traces])
    log_joint = line.log_prob(LINE) + dist.Normal(LINE, 0.8).log_prob(reading)
    weights = log_weights.exp()
    assert within(weights, float(torch.trapezoid(log_joint.exp(), LINE)))
    mean = expectation(log_joint, LINE)
    assert within(weights / weights.mean() * (values - mean), 0.0)


@pytest.mark.slow
def test_as_a_likelihood_of_a_shift(line: MollifiedExpFamily) -> None:
    """Rows are q moved by an unknown shift; the posterior of the shift by NUTS and on a grid."""
    data = line.sample((30,)) + 0.7

    def model() -> None:
        shift = pyro.sample("shift", dist.Normal(0.0, 2.0))
        with pyro.plate("rows", 30):
            moved = dist.TransformedDistribution(line, [transforms.AffineTransform(shift, 1.0)])
            pyro.sample("row", moved, obs=data)

    grid = torch.linspace(-2, 3, 2001)
    log_joint = dist.Normal(0.0, 2.0).log_prob(grid) + line.log_prob(data[:, None] - grid).sum(0)
    trace = pyro.poutine.trace(pyro.poutine.condition(model, {"shift": grid[1000]})).get_trace()
    assert torch.allclose(trace.log_prob_sum(), log_joint[1000], atol=1e-4)
    chains = run_mcmc(model, "nuts", 250, 60, 2, seed=5, progress=False, num_workers=1)
    weights = log_joint.double().softmax(0)
    mean = float(weights @ grid.double())
    deviation = float((weights @ (grid - mean).double() ** 2).sqrt())
    assert float(arviz.ess(chains.draws["shift"].numpy())) >= 100
    assert abs(float(chains.draws["shift"].mean()) - mean) < 4.5 * deviation / math.sqrt(100)
    assert float(chains.draws["shift"].std()) == pytest.approx(deviation, rel=0.25)


def test_subsampled_plates_are_unbiased(plane: MollifiedExpFamily) -> None:
    data = plane.sample((12, 4))

    def model(rows: torch.Tensor) -> None:
        with pyro.plate("rows", 12, subsample=rows, dim=-2) as index, pyro.plate("columns", 4, dim=-1):
            pyro.sample("x", plane, obs=data[index])

    order = torch.randperm(12)
    parts = [pyro.poutine.trace(model).get_trace(rows).log_prob_sum() for rows in order.reshape(3, 4)]
    assert torch.allclose(torch.stack(parts).mean(), plane.log_prob(data).sum(), rtol=1e-5)


def test_nested_plates_with_subsampling_of_both(line: MollifiedExpFamily) -> None:
    def model() -> torch.Tensor:
        with pyro.plate("outer", 6, subsample_size=3, dim=-2):
            group = pyro.sample("group", line)
            with pyro.plate("inner", 10, subsample_size=5, dim=-1):
                row = pyro.sample("row", line)
        return group + row

    trace = pyro.poutine.trace(model).get_trace()
    group, row = trace.nodes["group"]["value"], trace.nodes["row"]["value"]
    assert (group.shape, row.shape) == ((3, 1), (3, 5))
    expected = 2 * line.log_prob(group).sum() + 4 * line.log_prob(row).sum()
    assert torch.allclose(trace.log_prob_sum(), expected, rtol=1e-5)


def test_obs_mask_draws_what_is_missing(line: MollifiedExpFamily) -> None:
    data, mask = line.sample((4000,)), torch.arange(4000) % 2 == 0

    def model() -> torch.Tensor:
        with pyro.plate("rows", 4000):
            return pyro.sample("x", line, obs=data, obs_mask=mask)

    trace = pyro.poutine.trace(model).get_trace()
    trace.compute_log_prob()
    value = trace.nodes["x"]["value"]
    assert torch.equal(value[mask], data[mask])
    mean = expectation(line.log_prob(LINE), LINE)
    square = expectation(line.log_prob(LINE), LINE**2)
    assert within(value[~mask], mean)
    assert within(value[~mask] ** 2, square)
    observed = line.log_prob(data)[mask].sum()
    assert torch.allclose(trace.nodes["x_observed"]["log_prob_sum"], observed, rtol=1e-5)
    missing = trace.nodes["x_unobserved"]["log_prob_sum"]
    assert torch.allclose(missing, line.log_prob(value)[~mask].sum(), rtol=1e-5)
    assert torch.allclose(trace.log_prob_sum(), observed + missing, rtol=1e-5)


def test_a_mixture_of_moved_copies(line: MollifiedExpFamily) -> None:
    weights, places = torch.tensor([0.3, 0.7]), torch.tensor([-2.0, 1.5])
    moved = dist.TransformedDistribution(line.expand([2]), [transforms.AffineTransform(places, 0.5)])
    mixture = dist.MixtureSameFamily(dist.Categorical(weights), moved)
    parts = [line.log_prob((LINE - place) / 0.5) + math.log(2) for place in places]
    expected = torch.logsumexp(torch.stack(parts) + weights.log()[:, None], 0)
    assert torch.allclose(mixture.log_prob(LINE), expected, atol=1e-4)
    assert float(torch.trapezoid(expected.exp(), LINE)) == pytest.approx(1, abs=2e-3)
    assert within(mixture.sample((4000,)), expectation(expected, LINE))


@pytest.mark.parametrize("num_dims", [0, 2])
def test_masked_mixture_with_another_density(num_dims: int) -> None:
    q = make_density(normal(num_dims) if num_dims else dist.Normal(0.0, 1.0))
    other = dist.Normal(torch.full(q.event_shape, 50.0), 1.0).to_event(num_dims // 2)
    mask = torch.tensor([True, False, True, False])
    mixture = dist.MaskedMixture(mask, q, other)
    values = mixture.sample((500,))
    assert bool(((values > 25).reshape(500, 4, -1).all(-1) == mask).all())
    assert torch.equal(mixture.log_prob(values), torch.where(mask, other.log_prob(values), q.log_prob(values)))


def assignment_model(q: MollifiedExpFamily, data: torch.Tensor) -> Callable[[], None]:
    """Rows come from q, a normal or a wide Student's t; which one is summed out."""

    @config_enumerate
    def model() -> None:
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(3)))
        with pyro.plate("rows", len(data)):
            kind = pyro.sample("kind", dist.Categorical(weights))
            rest = dist.MaskedMixture(kind == 1, dist.StudentT(3.0, 0.0, 4.0), dist.Normal(2.0, 0.5))
            pyro.sample("row", dist.MaskedMixture(kind == 0, rest, q), obs=data)

    return model


def test_an_enumerated_assignment_is_summed_right(line: MollifiedExpFamily) -> None:
    data = torch.cat([line.sample((6,)), torch.tensor([2.1, 5.5, -4.0])])
    weights = torch.tensor([0.5, 0.3, 0.2])
    model = pyro.poutine.condition(assignment_model(line, data), {"weights": weights})
    elbo = -TraceEnum_ELBO(max_plate_nesting=1).loss(model, lambda: None)
    densities = [line, dist.Normal(2.0, 0.5), dist.StudentT(3.0, 0.0, 4.0)]
    by_hand = torch.stack([density.log_prob(data) for density in densities]) + weights.log()[:, None]
    expected = by_hand.logsumexp(0).sum() + dist.Dirichlet(torch.ones(3)).log_prob(weights)
    assert elbo == pytest.approx(float(expected), rel=1e-5)

    # and the assignment itself, drawn from its posterior
    posterior = pyro.infer.infer_discrete(model, first_available_dim=-2)
    kinds = torch.stack([pyro.poutine.trace(posterior).get_trace().nodes["kind"]["value"] for _ in range(200)])
    probs = by_hand.softmax(0)[0]
    errors = (probs * (1 - probs) / 200).sqrt() + 1e-3
    assert bool((((kinds == 0).float().mean(0) - probs).abs() < 4.5 * errors).all())


def test_nuts_with_an_enumerated_assignment(line: MollifiedExpFamily) -> None:
    data = torch.cat([line.sample((30,)), torch.randn(15) * 4])

    def model() -> None:
        share = pyro.sample("share", dist.Beta(1.0, 1.0))
        with pyro.plate("rows", 45):
            outlier = pyro.sample("outlier", dist.Bernoulli(share), infer={"enumerate": "parallel"})
            pyro.sample("row", dist.MaskedMixture(outlier.bool(), line, dist.Normal(0.0, 4.0)), obs=data)

    chains = run_mcmc(model, "nuts", 150, 50, 2, seed=2, progress=False, num_workers=1)
    shares = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    inside, outside = line.log_prob(data).double(), dist.Normal(0.0, 4.0).log_prob(data).double()
    terms = torch.logaddexp(torch.log1p(-shares)[:, None] + inside, shares.log()[:, None] + outside)
    posterior = terms.sum(-1).softmax(0)
    mean = float(posterior @ shares)
    deviation = float((posterior @ (shares - mean) ** 2).sqrt())
    assert float(arviz.ess(chains.draws["share"].numpy())) >= 100
    assert abs(float(chains.draws["share"].mean()) - mean) < 4.5 * deviation / math.sqrt(100)
    assert float(chains.draws["share"].std()) == pytest.approx(deviation, rel=0.25)


def test_a_hierarchy_with_an_enumerated_neighbour(line: MollifiedExpFamily) -> None:
    """Latents with prior q under groups of unknown kind: the kind is summed out inside the group."""
    data, scores = torch.randn(3, 4), line.sample((3, 1))

    @config_enumerate
    def model() -> None:
        with pyro.plate("groups", 3, dim=-2):
            kind = pyro.sample("kind", dist.Bernoulli(0.3))
            score = pyro.sample("score", line)
            with pyro.plate("rows", 4, dim=-1):
                pyro.sample("row", dist.Normal(score, 0.5 + 2 * kind), obs=data)

    elbo = TraceEnum_ELBO(max_plate_nesting=2)
    loss = elbo.loss(pyro.poutine.condition(model, {"score": scores}), lambda: None)
    by_kind = torch.stack(
        [dist.Normal(scores, scale).log_prob(data).sum(-1) + math.log(p) for scale, p in ((0.5, 0.7), (2.5, 0.3))]
    )
    expected = by_kind.logsumexp(0).sum() + line.log_prob(scores).sum()
    assert -loss == pytest.approx(float(expected), rel=1e-5)


def test_a_finite_density_is_summed_out() -> None:
    q = make_density(dist.Categorical(torch.tensor([0.2, 0.3, 0.5])), epsilon=4.0)
    data, places = torch.tensor([0.3, 1.2, 2.2, -0.5]), torch.tensor([-1.0, 0.5, 2.0])

    @config_enumerate
    def model() -> None:
        with pyro.plate("rows", 4):
            kind = pyro.sample("kind", q)
            pyro.sample("y", dist.Normal(places[kind], 0.7), obs=data)

    loss = TraceEnum_ELBO(max_plate_nesting=1).loss(model, lambda: None)
    by_hand = q.log_prob(torch.arange(3))[:, None] + dist.Normal(places[:, None], 0.7).log_prob(data)
    assert -loss == pytest.approx(float(by_hand.logsumexp(0).sum()), rel=1e-5)


@pytest.mark.parametrize("parallel", [True, False])
def test_predictive(line: MollifiedExpFamily, parallel: bool) -> None:
    """Prior and posterior predictive means, against quadrature."""
    num_samples, reading = (4000, 200)[not parallel], torch.tensor(1.2)

    def model(value: torch.Tensor | None = None) -> None:
        z = pyro.sample("z", line)
        with pyro.plate("readings", 2):
            pyro.sample("reading", dist.Normal(z, 0.5), obs=value)

    prior = Predictive(model, num_samples=num_samples, parallel=parallel)()
    assert prior["reading"].shape[-1] == 2
    readings = prior["reading"].reshape(num_samples, 2)[:, 0]
    log_prior = line.log_prob(LINE)
    assert within(readings, expectation(log_prior, LINE))
    assert within(readings**2, expectation(log_prior, LINE**2) + 0.25)

    # one reading was seen: the next has the mean of the latent's posterior
    posterior = exact_posterior(line, dist.Normal(1.2 / 1.25, (1 / (1 + 1 / 0.25)) ** 0.5))
    log_posterior = log_prior + dist.Normal(LINE, 0.5).log_prob(reading)
    given = {"z": posterior.sample((num_samples,))}
    predicted = Predictive(model, posterior_samples=given, parallel=parallel)()["reading"].reshape(num_samples, 2)
    assert within(predicted[:, 1], expectation(log_posterior, LINE))
    assert within(predicted[:, 1] ** 2, expectation(log_posterior, LINE**2) + 0.25)


def test_a_point_guide_finds_the_mode() -> None:
    q = make_density(dist.Normal(0.0, 1.0), epsilon=2.0, link="tanh", gain=1.0)
    reading = torch.tensor(1.0)

    def model() -> None:
        z = pyro.sample("z", q)
        pyro.sample("reading", dist.Normal(z, 0.6), obs=reading)

    guide = guides.AutoDelta(model)
    svi = SVI(model, guide, Adam({"lr": 0.02}), Trace_ELBO())
    for _ in range(300):
        svi.step()
    log_joint = q.log_prob(LINE) + dist.Normal(LINE, 0.6).log_prob(reading)
    assert float(guide.median()["z"]) == pytest.approx(float(LINE[log_joint.argmax()]), abs=0.02)


@pytest.mark.slow
def test_a_normal_guide_reaches_the_evidence() -> None:
    """The ELBO is below the evidence, and close to it where the posterior is nearly normal."""
    q = make_density(dist.Normal(0.0, 1.0), epsilon=1.0, link="tanh", gain=1.0)
    reading = torch.tensor(0.8)

    def model() -> None:
        z = pyro.sample("z", q)
        pyro.sample("reading", dist.Normal(z, 0.4), obs=reading)

    guide = guides.AutoNormal(model, init_scale=0.3)
    svi = SVI(model, guide, Adam({"lr": 0.02}), Trace_ELBO(num_particles=4))
    for _ in range(300):
        svi.step()
    losses = torch.tensor([svi.evaluate_loss() for _ in range(200)])
    log_joint = q.log_prob(LINE) + dist.Normal(LINE, 0.4).log_prob(reading)
    evidence = float(torch.trapezoid(log_joint.exp(), LINE).log())
    error = 4.5 * float(losses.std()) / math.sqrt(200)
    assert evidence - 0.05 - error < -float(losses.mean()) < evidence + error
