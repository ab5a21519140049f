"""The density as a prior, a likelihood, in plates, with guides, under Pyro's and torch's wrappers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pyro
import pyro.distributions as dist
import pytest
import torch
from densities import make_density, normal
from pyro.distributions import transforms
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceEnum_ELBO, config_enumerate
from pyro.infer import autoguide as guides
from pyro.optim import Adam

from pyro_mbde import MollifiedExpFamily


def test_call_is_sample(plane: MollifiedExpFamily) -> None:
    assert plane((3,)).shape == (3, 2)
    assert not plane.has_rsample


def test_in_a_plate(plane: MollifiedExpFamily) -> None:
    def model() -> torch.Tensor:
        with pyro.plate("rows", 5):
            return pyro.sample("x", plane)

    assert model().shape == (5, 2)
    trace = pyro.poutine.trace(model).get_trace()
    assert trace.log_prob_sum().shape == ()
    draws = Predictive(model, num_samples=7, parallel=True)()
    assert draws["x"].shape == (7, 5, 2)


def test_as_a_likelihood(plane: MollifiedExpFamily) -> None:
    data = plane.sample((11,))

    def model() -> None:
        with pyro.plate("rows", 11):
            pyro.sample("x", plane, obs=data)

    log_prob = pyro.poutine.trace(model).get_trace().log_prob_sum()
    assert torch.allclose(log_prob, plane.log_prob(data).sum())


def test_obs_mask(line: MollifiedExpFamily) -> None:
    data, mask = torch.zeros(4), torch.tensor([True, False, True, False])

    def model() -> torch.Tensor:
        with pyro.plate("rows", 4):
            return pyro.sample("x", line, obs=data, obs_mask=mask)

    value = model()
    assert torch.equal(value[mask], data[mask])
    assert bool((value[~mask] != 0).all())


@pytest.mark.parametrize("prior", ["normal", "q"])
def test_an_observation_that_is_nan(plane: MollifiedExpFamily, prior: str) -> None:
    """With validation it is an error, without it a loss that is NaN, and Pyro's warning: as for a normal."""
    data = torch.randn(5, 2)
    data[2, 1] = torch.nan

    def model() -> None:
        distribution = plane if prior == "q" else dist.MultivariateNormal(torch.zeros(2), torch.eye(2))
        pyro.sample("centre", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 5):
            pyro.sample("row", distribution, obs=data)

    def guide() -> None:
        pyro.sample("centre", dist.Normal(0.0, 1.0))

    with pyro.validation_enabled(True), pytest.raises(ValueError, match="row"):
        Trace_ELBO().loss(model, guide)
    with pyro.validation_enabled(False), pytest.warns(UserWarning, match="loss is nan|Encountered NaN"):
        assert math.isnan(Trace_ELBO().loss(model, guide))


def test_mask(plane: MollifiedExpFamily) -> None:
    value = plane.sample((4,))
    mask = torch.tensor([True, False, True, False])
    assert torch.equal(plane.expand([4]).mask(mask).log_prob(value), torch.where(mask, plane.log_prob(value), 0.0))


def test_to_event(plane: MollifiedExpFamily, line: MollifiedExpFamily) -> None:
    stacked = plane.expand([3]).to_event(1)
    value = stacked.sample((4,))
    assert (value.shape, stacked.event_shape) == ((4, 3, 2), (3, 2))
    assert torch.allclose(stacked.log_prob(value), plane.log_prob(value).sum(-1))
    assert line.expand([3]).to_event(1).sample().shape == (3,)


@pytest.mark.parametrize("num_dims", [0, 2])
def test_mixture_same_family(num_dims: int) -> None:
    density = make_density(normal(num_dims) if num_dims else dist.Normal(0.0, 1.0))
    weights = dist.Categorical(torch.tensor([0.2, 0.8]))
    mixture = dist.MixtureSameFamily(weights, density.expand([2]))
    value = mixture.sample((6,))
    assert value.shape == (6, *density.event_shape)
    assert torch.allclose(mixture.log_prob(value), density.log_prob(value), atol=1e-5)


def test_transformed_distribution(plane: MollifiedExpFamily) -> None:
    shifted = dist.TransformedDistribution(plane, [transforms.AffineTransform(3.0, 2.0, event_dim=1)])
    value = shifted.sample((6,))
    expected = plane.log_prob((value - 3) / 2) - 2 * torch.tensor(2.0).log()
    assert torch.allclose(shifted.log_prob(value), expected, atol=1e-5)


def test_replay_and_condition(plane: MollifiedExpFamily) -> None:
    def model() -> torch.Tensor:
        return pyro.sample("x", plane)

    value = torch.tensor([0.5, 0.5])
    assert torch.equal(pyro.poutine.condition(model, {"x": value})(), value)


AUTOGUIDES: dict[str, Callable[[Callable[..., object]], pyro.infer.autoguide.AutoGuide]] = {
    "delta": guides.AutoDelta,
    "normal": guides.AutoNormal,
    "diagonal-normal": guides.AutoDiagonalNormal,
    "multivariate-normal": guides.AutoMultivariateNormal,
    "low-rank": lambda model: guides.AutoLowRankMultivariateNormal(model, rank=1),
    "iaf": lambda model: guides.AutoIAFNormal(model, hidden_dim=[4], num_transforms=1),
    "structured": guides.AutoStructured,
    "laplace": guides.AutoLaplaceApproximation,
}


@pytest.mark.parametrize(
    "init", [guides.init_to_feasible, guides.init_to_median, guides.init_to_mean, guides.init_to_sample]
)
def test_init_strategies(plane: MollifiedExpFamily, init: Callable[..., object]) -> None:
    guide = guides.AutoNormal(lambda: pyro.sample("x", plane), init_loc_fn=init)
    assert guide()["x"].shape == (2,)


@pytest.mark.parametrize("name", sorted(AUTOGUIDES))
@pytest.mark.parametrize("base", ["normal", "box"])
def test_autoguides_train_with_it_as_a_prior(name: str, base: str) -> None:
    box = dist.Uniform(torch.zeros(2) - 3, torch.zeros(2) + 3).to_event(1)
    prior = make_density(normal(2) if base == "normal" else box)
    data = torch.randn(20, 2) * 0.3 + 1

    def model() -> None:
        centre = pyro.sample("centre", prior)
        with pyro.plate("rows", 20):
            pyro.sample("row", dist.Normal(centre, 0.3).to_event(1), obs=data)

    guide = AUTOGUIDES[name](model)
    svi = SVI(model, guide, Adam({"lr": 0.1}), Trace_ELBO())
    losses = [svi.step() for _ in range(30)]
    assert all(torch.isfinite(torch.tensor(losses)))
    assert sum(losses[-5:]) < sum(losses[:5])
    if name == "laplace":
        guide = guide.laplace_approximation()
    centre = Predictive(model, guide=guide, num_samples=50, return_sites=("centre",))()["centre"]
    assert torch.allclose(centre.reshape(50, 2).mean(0), data.mean(0), atol=1.0)


def test_beside_an_enumerated_site(line: MollifiedExpFamily) -> None:
    data = torch.tensor([-3.0, 0.1, 0.2])

    @config_enumerate
    def model() -> None:
        shift = pyro.sample("shift", line)
        with pyro.plate("rows", 3):
            outlier = pyro.sample("outlier", dist.Bernoulli(0.2))
            pyro.sample("row", dist.Normal(shift, 0.5 + 3 * outlier), obs=data)

    guide = guides.AutoNormal(pyro.poutine.block(model, expose=["shift"]))
    svi = SVI(model, guide, Adam({"lr": 0.05}), TraceEnum_ELBO(max_plate_nesting=1))
    assert all(torch.isfinite(torch.tensor([svi.step() for _ in range(10)])))


def test_a_finite_base_is_enumerated() -> None:
    density = make_density(dist.Categorical(torch.ones(3)))

    @config_enumerate
    def model() -> None:
        kind = pyro.sample("kind", density)
        pyro.sample("y", dist.Normal(torch.tensor([-1.0, 0.0, 1.0])[kind], 0.1), obs=torch.tensor(1.0))

    posterior = pyro.infer.infer_discrete(model, first_available_dim=-1)
    assert pyro.poutine.trace(posterior).get_trace().nodes["kind"]["value"] == 2
