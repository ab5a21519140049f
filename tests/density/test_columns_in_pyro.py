"""Densities over columns of all kinds in Pyro: traces, plates, masks, predictions, guides, enumeration, posteriors."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from densities import BASES, make_density
from pyro.infer import SVI, Importance, Predictive, Trace_ELBO, TraceEnum_ELBO, config_enumerate
from pyro.infer import autoguide as guides
from pyro.optim import Adam

from pyro_mbde import exact_posterior, private_draws
from pyro_mbde.density.mixed_base import MixedBase

NAMES = ["columns", "columns-finite-both", "columns-restricted"]
READING = torch.tensor(2.5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fitted", [True, False])
def test_sites_plates_and_masks(name: str, fitted: bool) -> None:
    prior = make_density(BASES[name]()) if fitted else BASES[name]()
    width = prior.event_shape[0]

    def model() -> torch.Tensor:
        with pyro.plate("wards", 2, dim=-2), pyro.plate("rows", 4, dim=-1):
            return pyro.sample("x", prior.mask(torch.tensor([True, False, True, False])))

    trace = pyro.poutine.trace(model).get_trace()
    values = trace.nodes["x"]["value"]
    assert values.shape == (2, 4, width)
    assert torch.allclose(trace.log_prob_sum(), prior.log_prob(values)[:, ::2].sum(), atol=1e-4)
    assert Predictive(model, num_samples=3, parallel=True)()["x"].shape == (3, 2, 4, width)
    replayed = pyro.poutine.trace(pyro.poutine.condition(model, {"x": values})).get_trace()
    assert torch.equal(replayed.log_prob_sum(), trace.log_prob_sum())
    stacked = prior.expand([3]).to_event(1)
    assert stacked.log_prob(stacked.sample((2,))).shape == (2,)


def test_importance_sampling_and_a_guide_of_its_own() -> None:
    """The posterior of a level, given a reading of a number, by importance sampling from q and from another row."""
    q = make_density(BASES["columns"](), epsilon=3.0)

    def model() -> torch.Tensor:
        row = pyro.sample("x", q)
        pyro.sample("y", dist.Normal(row[..., 0], 0.3), obs=READING)
        return row

    exact = q.sample((20_000,))
    weights = dist.Normal(exact[:, 0], 0.3).log_prob(READING).double().softmax(0)
    expected = float((weights * (exact[:, 2] == 0)).sum())
    for guide in (None, lambda: pyro.sample("x", q.base)):
        posterior = Importance(model, guide, num_samples=200).run()
        shares = torch.stack(posterior.log_weights).double().softmax(0)
        levels = torch.stack([trace.nodes["x"]["value"][2] for trace in posterior.exec_traces])
        error = float(((shares**2).sum() * expected * (1 - expected)).sqrt())
        assert abs(float((shares * (levels == 0)).sum()) - expected) < 4.5 * error


def test_a_likelihood_of_columns_beside_a_parameter() -> None:
    q = make_density(BASES["columns"]())
    rows = q.sample((40,))

    @config_enumerate
    def model() -> None:
        share = pyro.sample("share", dist.Beta(1.0, 1.0))
        with pyro.plate("rows", 40):
            other = pyro.sample("other", dist.Bernoulli(share))
            pyro.sample("row", dist.MaskedMixture(other.bool(), q, q.base), obs=rows)

    guide = guides.AutoNormal(pyro.poutine.block(model, expose=["share"]))
    svi = SVI(model, guide, Adam({"lr": 0.05}), TraceEnum_ELBO(max_plate_nesting=1))
    assert all(torch.isfinite(torch.tensor([svi.step() for _ in range(5)])))


def test_a_guide_for_a_row_of_columns_is_a_density_itself() -> None:
    q = make_density(BASES["columns"]())

    def model() -> None:
        row = pyro.sample("x", q)
        with pyro.plate("readings", 3):
            pyro.sample("y", dist.Normal(row[..., 0], pyro.param("scale", torch.tensor(1.0))), obs=torch.ones(3))

    svi = SVI(model, lambda: pyro.sample("x", q), Adam({"lr": 0.05}), Trace_ELBO())
    assert all(torch.isfinite(torch.tensor([svi.step() for _ in range(5)])))
    with pytest.raises(ValueError, match="cannot handle discrete sample site 'x'"):
        guides.AutoNormal(model)()


@pytest.mark.parametrize("name", ["columns-finite", "columns-finite-both"])
def test_levels_are_enumerated(name: str) -> None:
    q = make_density(BASES[name](), epsilon=3.0)

    @config_enumerate
    def model() -> None:
        row = pyro.sample("x", q)
        pyro.sample("y", dist.Normal(row[..., 0], 0.1), obs=torch.tensor(2.0))

    points = q.enumerate_support()
    evidence = (q.log_prob(points) + dist.Normal(points[:, 0], 0.1).log_prob(torch.tensor(2.0))).logsumexp(0)
    loss = TraceEnum_ELBO(max_plate_nesting=0).loss(model, lambda: None)
    assert loss == pytest.approx(-float(evidence), abs=1e-4)


def test_exact_posteriors_of_levels() -> None:
    """A public reading changes the shares of a level: the base's posterior is a base of columns again."""
    base = BASES["columns-finite"]()
    q = make_density(base, epsilon=3.0)
    likelihood = torch.tensor([0.1, 0.2, 0.6, 0.9])
    first = base.marginals[0]
    posterior_marginal = type(first)(first.edges, first.left * likelihood, first.right * likelihood, "category")
    base_posterior = MixedBase([posterior_marginal, base.marginals[1]])
    posterior = exact_posterior(q, base_posterior, log_likelihood=lambda row: likelihood[row[:, 0].long()].log())
    points = q.enumerate_support()
    expected = (q.log_prob(points) + likelihood[points[:, 0].long()].log()).log_softmax(0)
    assert torch.allclose(posterior.log_prob(points), expected, atol=1e-5)
    draws = private_draws(posterior, 20_000, progress=False)
    assert abs(float((draws[:, 0] == 3).double().mean()) - float(expected[points[:, 0] == 3].exp().sum())) < 0.025
