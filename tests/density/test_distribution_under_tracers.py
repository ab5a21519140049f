"""The density where tensors are watched or stood in for: Pyro's provenance, torch.func, torch.export, torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from densities import BASES, make_density, normal
from pyro.infer import SVI, Trace_ELBO, TraceGraph_ELBO
from pyro.infer import autoguide as guides
from pyro.infer.inspect import generate_graph_specification, get_dependencies, get_model_relations
from pyro.ops.provenance import ProvenanceTensor, get_provenance
from pyro.optim import Adam
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_mbde import MollifiedExpFamily

Model = Callable[[], Any]
Prior = dist.TorchDistribution
#: A latent "x" that ends in the prior, alone or inside what Pyro wraps a prior in.
PRIORS: dict[str, Callable[[Prior], torch.Tensor]] = {
    "alone": lambda prior: pyro.sample("x", prior),
    "transformed": lambda prior: pyro.sample(
        "x", dist.TransformedDistribution(prior, [dist.transforms.AffineTransform(latent("shift"), 2.0)])
    ),
    "masked-mixture": lambda prior: pyro.sample(
        "x", dist.MaskedMixture(torch.tensor(True), dist.Normal(latent("shift"), 2.0), prior)
    ),
    "mixture": lambda prior: pyro.sample(
        "x", dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), prior.expand([2]))
    ),
    "independent": lambda prior: pyro.sample("x", prior.expand([2]).to_event(1)).sum(),
    "masked": lambda prior: pyro.sample("x", prior.mask(torch.tensor(True))),
}


def latent(name: str) -> torch.Tensor:
    return pyro.sample(name, dist.Normal(0.0, 1.0))


def readings(prior: Prior, name: str) -> Model:
    """Readings of a latent whose prior is one of PRIORS."""

    def model() -> None:
        x = PRIORS[name](prior)
        with pyro.plate("rows", 3):
            pyro.sample("y", dist.Normal(x, 1.0), obs=torch.ones(3))

    return model


@pytest.mark.parametrize("name", PRIORS)
def test_dependencies_are_those_of_a_normal(line: MollifiedExpFamily, name: str) -> None:
    mine, normals = (readings(prior, name) for prior in (line, dist.Normal(0.0, 1.0)))
    assert get_dependencies(mine) == get_dependencies(normals)
    relations = [get_model_relations(model) for model in (mine, normals)]
    assert relations[0]["sample_sample"] == relations[1]["sample_sample"]
    assert relations[0]["observed"] == relations[1]["observed"] == ["y"]
    # what render_model draws
    edges = [generate_graph_specification(relation)["edge_list"] for relation in relations]
    assert edges[0] == edges[1]


def test_dependencies_of_a_likelihood(line: MollifiedExpFamily) -> None:
    def model(prior: Prior = line) -> None:
        moved = dist.TransformedDistribution(prior, [dist.transforms.AffineTransform(latent("shift"), 1.0)])
        with pyro.plate("rows", 4):
            pyro.sample("y", moved, obs=torch.ones(4))

    assert get_dependencies(model) == get_dependencies(model, (dist.Normal(0.0, 1.0),))
    assert get_dependencies(model)["posterior_dependencies"]["shift"].keys() == {"shift", "y"}


def test_provenance_goes_through_every_density(density: MollifiedExpFamily) -> None:
    value = density.sample((4,))
    tracked = density.log_prob(ProvenanceTensor(value, frozenset({"x"})))
    assert get_provenance(tracked) == frozenset({"x"})
    plain = density.log_prob(value)
    assert type(plain) is torch.Tensor
    assert torch.equal(tracked._t, plain)
    assert get_provenance(density.tilt(ProvenanceTensor(value, frozenset({"x"})))) == frozenset({"x"})


@pytest.mark.parametrize("guide_class", [guides.AutoStructured, guides.AutoGaussian])
def test_guides_that_track_dependencies_train(
    guide_class: type[guides.AutoGuide], plane: MollifiedExpFamily, line: MollifiedExpFamily
) -> None:
    def model() -> None:
        centre, shift = pyro.sample("centre", plane), pyro.sample("shift", line)
        with pyro.plate("rows", 20):
            pyro.sample("row", dist.Normal(centre + shift, 0.5).to_event(1), obs=torch.ones(20, 2))

    guide = guide_class(model)
    svi = SVI(model, guide, Adam({"lr": 0.05}), Trace_ELBO())
    losses = [svi.step() for _ in range(60)]
    assert sum(losses[-10:]) < sum(losses[:10])


def test_a_guide_that_draws_from_the_density() -> None:
    """TraceGraph_ELBO finds by provenance which costs a draw without a path gradient is responsible for."""
    q = make_density(dist.Normal(0.0, 1.0))

    def model() -> None:
        z = pyro.sample("z", dist.Normal(0.0, 2.0))
        other = pyro.sample("other", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z, 1.0), obs=torch.tensor(1.0))
        pyro.sample("w", dist.Normal(other, 1.0), obs=torch.tensor(1.0))

    def guide() -> None:
        loc = pyro.param("loc", torch.tensor(0.5))
        pyro.sample("z", dist.TransformedDistribution(q, [dist.transforms.AffineTransform(loc, 1.0)]))
        pyro.sample("other", dist.Normal(loc, 1.0))

    gradients = []
    for elbo_class in (Trace_ELBO, TraceGraph_ELBO):
        pyro.clear_param_store()
        elbo_class(num_particles=20_000, vectorize_particles=True).loss_and_grads(model, guide)
        gradients.append(float(pyro.param("loc").grad))
    assert gradients[0] == pytest.approx(gradients[1], abs=0.05)


def test_nested_watchers() -> None:
    """Provenance over a parameter; a class that only looks on; both under torch.func."""

    class Watched(torch.Tensor):
        """A tensor of a class of the user's."""

    q = make_density(normal(2))
    value = torch.randn(5, 2)
    expected = q.log_prob(value)
    parameter = torch.nn.Parameter(value)
    assert torch.equal(q.log_prob(parameter), expected)
    tracked = q.log_prob(ProvenanceTensor(parameter, frozenset({"x"})))
    assert torch.equal(tracked._t, expected)
    assert torch.equal(q.log_prob(value.as_subclass(Watched)).as_subclass(torch.Tensor), expected)
    tracked._t.sum().backward()
    by_func = torch.func.vmap(torch.func.grad(q.log_prob))(value)
    assert torch.allclose(parameter.grad, by_func, atol=1e-6)
    assert torch.allclose(torch.func.vmap(torch.func.jacrev(q.log_prob))(value), by_func, atol=1e-6)


@pytest.mark.parametrize("base", [normal(2), dist.Uniform(-torch.ones(2), torch.ones(2)).to_event(1)])
def test_torch_export(base: Prior) -> None:
    q = make_density(base)
    q._validate_args = False

    class LogProb(torch.nn.Module):
        """What is exported must be a module."""

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return q.log_prob(value)

    value = 2 * torch.rand(7, 2) - 0.8  # some outside the box
    exported = torch.export.export(LogProb(), (value,), strict=False)
    # what is traced goes through the networks, in another order
    torch.testing.assert_close(exported.module()(value), q.log_prob(value), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_graphs_of_log_prob(plane: MollifiedExpFamily) -> None:
    plane._validate_args = False
    value = torch.randn(6, 2)
    graph = make_fx(lambda value: plane.log_prob(value))(value)
    assert torch.equal(graph(value + 1), plane.log_prob(value + 1))
    traced = torch.jit.trace(plane.log_prob, (value,))
    assert torch.equal(traced(value + 1), plane.log_prob(value + 1))


@pytest.mark.parametrize(
    "name", [pytest.param("columns", marks=pytest.mark.slow), "columns-real", "columns-finite", "columns-restricted"]
)
def test_torch_export_over_columns(name: str) -> None:
    q = make_density(BASES[name]())
    q._validate_args = False

    class LogProb(torch.nn.Module):
        """What is exported must be a module."""

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return q.log_prob(value)

    value = q.base.sample((7,))
    value[0, 0] += 1.7  # out of the support
    exported = torch.export.export(LogProb(), (value,), strict=False)
    # what is traced goes through the networks, in another order
    torch.testing.assert_close(exported.module()(value), q.log_prob(value), rtol=1e-5, atol=1e-5)


def test_torch_compile() -> None:
    before = torch.distributions.Distribution._validate_args
    q = make_density(normal(2))
    q._validate_args = False
    value = torch.randn(6, 2)
    try:
        compiled = torch.compile(q.log_prob, backend="aot_eager", fullgraph=True)
        assert torch.allclose(compiled(value), q.log_prob(value), atol=1e-6)
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)  # torch.compile turns it off for good
        torch.compiler.reset()
