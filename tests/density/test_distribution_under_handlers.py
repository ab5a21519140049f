"""Uses that a Pyro user makes of a normal, with a density that is one in its place: same names, same numbers."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from densities import make_density, normal
from pyro import poutine
from pyro.distributions import transforms
from pyro.infer import (
    CSIS,
    SVGD,
    SVI,
    EmpiricalMarginal,
    Importance,
    JitTrace_ELBO,
    JitTraceEnum_ELBO,
    JitTraceGraph_ELBO,
    JitTraceMeanField_ELBO,
    RBFSteinKernel,
    RenyiELBO,
    ReweightedWakeSleep,
    SMCFilter,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
    TraceTailAdaptive_ELBO,
    TraceTMC_ELBO,
    config_enumerate,
)
from pyro.infer import autoguide as guides
from pyro.infer.reparam import AutoReparam, HaarReparam, MinimalReparam, NeuTraReparam, StructuredReparam
from pyro.optim import Adam
from torch import nn

from pyro_mbde import MollifiedExpFamily

Prior = dist.TorchDistribution


class Nothing(nn.Module):
    """Statistics that are 0: the density is its base."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value.new_zeros((*value.shape[:-1], 1))


def as_density(base: Prior) -> MollifiedExpFamily:
    return MollifiedExpFamily(base, Nothing(), torch.tensor([1.0]), 0.0)


def hierarchy(line: Prior, plane: Prior) -> Callable[[], torch.Tensor]:
    """A model with the prior alone, in a plate and inside a transformed distribution."""

    def model() -> torch.Tensor:
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        alone = pyro.sample("alone", plane)
        with pyro.plate("rows", 5):
            each = pyro.sample("each", line)
            moved = pyro.sample("moved", dist.TransformedDistribution(line, [transforms.AffineTransform(loc, 2.0)]))
            pyro.sample("y", dist.Normal(alone.sum() + each + moved, 1.0), obs=torch.ones(5))
        return loc

    return model


def latents(model: Callable[[], object]) -> dict[str, Any]:
    nodes = poutine.trace(model).get_trace().nodes
    return {
        name: node["fn"]
        for name, node in nodes.items()
        if node["type"] == "sample" and not node["is_observed"] and name != "rows"
    }


STRATEGIES = {
    "auto": AutoReparam,
    "decentred": lambda: AutoReparam(centered=0.0),
    "centred": lambda: AutoReparam(centered=1.0),
    "minimal": MinimalReparam,
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_of_reparametrisation_leave_it_alone(
    name: str, line: MollifiedExpFamily, plane: MollifiedExpFamily
) -> None:
    model = poutine.reparam(hierarchy(line, plane), config=STRATEGIES[name]())
    functions = latents(model)
    assert functions["alone"] is plane
    assert isinstance(functions["each"], MollifiedExpFamily)
    names = {"auto": ("loc_decentered", "moved_base"), "centred": ("loc", "moved_base"), "minimal": ("loc", "moved")}
    assert functions.keys() == {"alone", "each", *names.get(name, names["auto"])}
    svi = SVI(model, guides.AutoNormal(model), Adam({"lr": 0.1}), Trace_ELBO())
    losses = [svi.step() for _ in range(30)]
    assert sum(losses[-10:]) < sum(losses[:10])


def test_a_strategy_as_a_decorator_and_other_reparametrisers(plane: MollifiedExpFamily) -> None:
    @AutoReparam()
    def model() -> torch.Tensor:
        return pyro.sample("x", plane)

    assert latents(model)["x"] is plane
    # a rotation of the prior: same density at the rotated value
    rotated = poutine.reparam(lambda: pyro.sample("x", plane), config={"x": HaarReparam(dim=-1)})
    trace = poutine.trace(rotated).get_trace()
    assert torch.allclose(trace.log_prob_sum(), plane.log_prob(trace.nodes["x"]["value"]), atol=1e-5)


@pytest.mark.parametrize("guide_class", [guides.AutoMultivariateNormal, guides.AutoStructured])
def test_guides_as_reparametrisers(guide_class: type[guides.AutoGuide], plane: MollifiedExpFamily) -> None:
    def model() -> None:
        x = pyro.sample("x", plane)
        pyro.sample("y", dist.Normal(x.sum(), 0.5), obs=torch.tensor(1.0))

    guide = guide_class(model)
    svi = SVI(model, guide, Adam({"lr": 0.05}), Trace_ELBO())
    for _ in range(20):
        svi.step()
    kinds = {guides.AutoMultivariateNormal: NeuTraReparam, guides.AutoStructured: StructuredReparam}
    reparametrised = kinds[guide_class](guide.requires_grad_(False)).reparam(model)
    assert "x" not in latents(reparametrised)
    assert math.isfinite(poutine.trace(reparametrised).get_trace().log_prob_sum())


ELBOS = {
    **{kind.__name__: kind for kind in (Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO)},
    "TraceEnum_ELBO": lambda: TraceEnum_ELBO(strict_enumeration_warning=False),
    "particles": lambda: Trace_ELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=1),
    "renyi": lambda: RenyiELBO(num_particles=3),
    "tail-adaptive": lambda: TraceTailAdaptive_ELBO(
        num_particles=3, vectorize_particles=True, max_plate_nesting=1, strict_enumeration_warning=False
    ),
    "tmc": lambda: TraceTMC_ELBO(max_plate_nesting=1, strict_enumeration_warning=False),
    "wake-sleep": lambda: ReweightedWakeSleep(num_particles=3, model_has_params=False),
    **{
        kind.__name__: lambda kind=kind: kind(ignore_jit_warnings=True)
        for kind in (JitTrace_ELBO, JitTraceGraph_ELBO, JitTraceEnum_ELBO, JitTraceMeanField_ELBO)
    },
}


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", ELBOS)
def test_objectives(name: str) -> None:
    """The loss and its gradient are those that a normal prior gives, at the same draws of the same guide."""
    outcomes = []
    line, plane = dist.Normal(0.0, 1.0), normal(2)
    for priors in ((line, plane), (as_density(line), as_density(plane))):
        pyro.clear_param_store()
        model = hierarchy(*priors)
        guide = guides.AutoNormal(model, init_loc_fn=guides.init_to_value(values=START))
        guide()
        with pyro.validation_enabled(not name.startswith("Jit")), torch.random.fork_rng():
            torch.manual_seed(1)
            loss = ELBOS[name]().loss_and_grads(model, guide)
        loss = loss[0] if isinstance(loss, tuple) else loss
        outcomes.append((float(loss), guide.locs.alone.grad.clone()))
    assert outcomes[0][0] == pytest.approx(outcomes[1][0], rel=1e-4)
    assert torch.allclose(outcomes[0][1], outcomes[1][1], rtol=1e-3, atol=1e-5)


START = {
    "loc": torch.tensor(0.2),
    "alone": torch.tensor([0.3, -0.1]),
    "each": torch.linspace(-1, 1, 5),
    "moved": torch.linspace(0, 1, 5),
}


def log_joint(model: Callable[[], object]) -> float:
    return float(poutine.trace(poutine.condition(model, START)).get_trace().log_prob_sum())


HANDLERS: dict[str, Callable[[Callable[[], Any]], Callable[[], Any]]] = {
    "condition": lambda model: model,
    "mask": lambda model: poutine.mask(model, mask=torch.tensor(False)),
    "scale": lambda model: poutine.scale(model, scale=3.0),
    "do": lambda model: poutine.do(model, {"alone": torch.tensor([5.0, 0.0])}),
    "uncondition": lambda model: poutine.condition(poutine.uncondition(model), {"y": torch.zeros(5)}),
    "equalize": lambda model: poutine.equalize(model, ["moved", "each"]),
    "block": lambda model: poutine.block(poutine.condition(model, START), hide=["each"]),
}


@pytest.mark.parametrize("name", HANDLERS)
def test_handlers(name: str) -> None:
    line, plane = dist.Normal(0.0, 1.0), normal(2)
    expected, found = (
        log_joint(HANDLERS[name](hierarchy(*priors)))
        for priors in ((line, plane), (as_density(line), as_density(plane)))
    )
    assert found == pytest.approx(expected, rel=1e-5)


def test_lift(line: MollifiedExpFamily) -> None:
    def model() -> None:
        shift = pyro.param("shift", torch.tensor(0.0))
        pyro.sample("y", dist.Normal(shift, 1.0), obs=torch.tensor(1.0))

    trace = poutine.trace(poutine.lift(model, prior={"shift": line})).get_trace()
    shift = trace.nodes["shift"]["value"]
    expected = line.log_prob(shift) + dist.Normal(shift, 1.0).log_prob(torch.tensor(1.0))
    assert torch.allclose(trace.log_prob_sum(), expected)


def test_importance_and_its_marginal(line: MollifiedExpFamily) -> None:
    def model() -> torch.Tensor:
        x = pyro.sample("x", line)
        pyro.sample("y", dist.Normal(x, 0.5), obs=torch.tensor(1.0))
        return x

    marginal = EmpiricalMarginal(Importance(model, num_samples=800).run(), "x")
    grid = torch.linspace(-6, 6, 2001)
    weights = (line.log_prob(grid) + dist.Normal(grid, 0.5).log_prob(torch.tensor(1.0))).softmax(0)
    assert float(marginal.mean) == pytest.approx(float(weights @ grid), abs=0.1)


class Walk:
    """A state that starts at a draw of the prior and moves by draws of it."""

    def __init__(self, prior: Prior) -> None:
        self.prior = prior

    def init(self, state: dict[str, torch.Tensor]) -> None:
        state["z"] = pyro.sample("z_init", self.prior)

    def step(self, state: dict[str, torch.Tensor], y: torch.Tensor) -> None:
        moved = dist.TransformedDistribution(self.prior, [transforms.AffineTransform(state["z"], 1.0)])
        state["z"] = pyro.sample("z", moved)
        pyro.sample("y", dist.Normal(state["z"], 0.5), obs=y)


class Proposal(Walk):
    """Proposes what is seen."""

    def init(self, state: dict[str, torch.Tensor]) -> None:
        pyro.sample("z_init", self.prior)

    def step(self, state: dict[str, torch.Tensor], y: torch.Tensor) -> None:
        pyro.sample("z", dist.Normal(y.expand(state["z"].shape), 0.6))


def test_a_particle_filter(line: MollifiedExpFamily) -> None:
    smc = SMCFilter(Walk(line), Proposal(line), num_particles=200, max_plate_nesting=0)
    smc.init()
    for y in torch.tensor([0.5, 1.5, 2.5]):
        smc.step(y)
    assert float(smc.get_empirical()["z"].mean) == pytest.approx(2.3, abs=0.6)


def simple(prior: Prior, proposal: bool = False) -> Callable[..., None]:
    def model(observations: dict[str, torch.Tensor] | None = None) -> None:
        x = pyro.sample("x", prior)
        y = torch.tensor(1.0) if observations is None else observations["y"]
        pyro.sample("y", dist.Normal(x, 0.5), obs=y)

    def guide(observations: dict[str, torch.Tensor] | None = None) -> None:
        pyro.sample("x", dist.Normal(pyro.param("loc", torch.tensor(0.0)), 1.0))

    return guide if proposal else model


def test_stein_variational_gradient(line: MollifiedExpFamily) -> None:
    stein = SVGD(simple(line), RBFSteinKernel(), Adam({"lr": 0.1}), num_particles=10, max_plate_nesting=0)
    for _ in range(50):
        stein.step()
    assert float(stein.get_named_particles()["x"].detach().mean()) == pytest.approx(0.8, abs=0.3)


def test_compiled_inference_learns_from_the_prior(line: MollifiedExpFamily) -> None:
    csis = CSIS(simple(line), simple(line, proposal=True), Adam({"lr": 0.1}), training_batch_size=20)
    for _ in range(5):
        assert math.isfinite(csis.step())


#: Finite densities, each with the distribution that it is.
FINITE: dict[str, Prior] = {
    "categorical": dist.Categorical(torch.tensor([0.2, 0.3, 0.5])),
    "bernoulli": dist.Bernoulli(0.4),
    "binomial": dist.Binomial(4, 0.4),
}


def enumerated(prior: Prior, how: str) -> float:
    @config_enumerate(default="sequential" if how == "sequential" else "parallel")
    def model() -> None:
        if how == "markov":
            for time in pyro.markov(range(4)):
                kind = pyro.sample(f"kind_{time}", prior)
                pyro.sample(f"y_{time}", dist.Normal(kind.float(), 1.0), obs=torch.tensor(1.0))
        elif how == "nested":
            with pyro.plate("columns", 3, dim=-1):
                kind = pyro.sample("kind", prior)
                with pyro.plate("rows", 2, dim=-2):
                    other = pyro.sample("other", prior)
                    pyro.sample("y", dist.Normal(kind.float() + other.float(), 1.0), obs=torch.ones(2, 3))
        else:
            kind = pyro.sample("kind", prior)
            pyro.sample("y", dist.Normal(kind.float(), 1.0), obs=torch.tensor(1.0))

    return float(TraceEnum_ELBO(max_plate_nesting=2, strict_enumeration_warning=False).loss(model, lambda: None))


@pytest.mark.parametrize("name", FINITE)
@pytest.mark.parametrize("how", ["markov", "nested", "parallel"])
def test_enumeration(name: str, how: str) -> None:
    assert enumerated(as_density(FINITE[name]), how) == pytest.approx(enumerated(FINITE[name], how), rel=1e-5)


@pytest.mark.parametrize("name", FINITE)
def test_sequential_enumeration(name: str) -> None:
    def loss(prior: Prior) -> float:
        @config_enumerate(default="sequential")
        def guide() -> None:
            pyro.sample("kind", prior)

        def model() -> None:
            kind = pyro.sample("kind", FINITE[name])
            pyro.sample("y", dist.Normal(kind.float(), 1.0), obs=torch.tensor(1.0))

        return float(TraceEnum_ELBO(max_plate_nesting=0).loss(model, guide))

    assert loss(as_density(FINITE[name])) == pytest.approx(loss(FINITE[name]), rel=1e-5)


def test_a_finite_density_as_a_categorical() -> None:
    """What docs/models.md says to do where Pyro builds a distribution of a site's own class."""
    q = make_density(dist.Categorical(torch.ones(3)), epsilon=3.0)
    same = dist.Categorical(logits=q.log_prob(q.enumerate_support()))
    values = torch.arange(3)
    assert torch.allclose(same.log_prob(values), q.log_prob(values), atol=1e-5)

    def model() -> None:
        with pyro.plate("rows", 2):
            kind = pyro.sample("kind", same, infer={"enumerate": "parallel"})
            pyro.sample("y", dist.Normal(kind.float(), 1.0), obs=torch.ones(2))

    marginals = TraceEnum_ELBO(max_plate_nesting=1).compute_marginals(model, lambda: None)
    assert marginals["kind"].batch_shape == (2,)


def test_flows_over_it(plane: MollifiedExpFamily) -> None:
    flow = transforms.affine_autoregressive(2, hidden_dims=[4])
    moved = dist.TransformedDistribution(plane, [flow])
    value = moved.sample((50,))
    inner = flow.inv(value)
    expected = plane.log_prob(inner) - flow.log_abs_det_jacobian(inner, value)
    assert torch.allclose(moved.log_prob(value), expected, atol=1e-4)


def test_as_a_sample_site_of_a_module(plane: MollifiedExpFamily) -> None:
    module = pyro.nn.PyroModule[nn.Linear](2, 1)
    module.weight = pyro.nn.PyroSample(plane.expand([1]))
    trace = poutine.trace(module).get_trace(torch.ones(3, 2))
    assert trace.nodes["weight"]["value"].shape == (1, 2)
    copied = pickle.loads(pickle.dumps(trace.nodes["weight"]["fn"]))
    assert torch.equal(copied.log_prob(torch.zeros(2)), plane.log_prob(torch.zeros(2)).expand(1))
