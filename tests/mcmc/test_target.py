"""Densities and models as potentials on standardised, unconstrained parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pyro
import pyro.distributions as dist
import pytest
import torch
from densities import BASES, CONTINUOUS, make_density, normal

from pyro_mbde import mixing_report, run_mcmc
from pyro_mbde.mcmc.model_target import ModelTarget
from pyro_mbde.mcmc.target import DensityTarget, Target


@pytest.fixture(autouse=True)
def without_validation() -> Iterator[None]:
    """As kernels run: a proposal may be anywhere."""
    with pyro.validation_enabled(False):
        yield


def count(pairs: dict[str, torch.Tensor]) -> int:
    return len(next(iter(pairs.values())))


@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_density_and_the_way_back(name: str) -> None:
    density = make_density(BASES[name](), link="tanh")
    target = DensityTarget(density)
    starts = target.starts(200)
    values = target.constrain(starts)
    assert bool(density.support.check(values["x"]).all())
    back = target.unconstrain(values)
    assert torch.allclose(back["x"], starts["x"], atol=1e-3, rtol=1e-3)
    energy = target.batched_potential_fn(starts)
    single = torch.stack([target.potential_fn({"x": point}) for point in starts["x"][:5]])
    assert torch.allclose(energy[:5], single, atol=1e-4)
    # standardised: half of the base between -0.67 and 0.67
    inside = (starts["x"].abs() < 0.6745).double().mean(0)
    assert bool(((inside - 0.5).abs() < 0.15).all())


@pytest.mark.parametrize("name", ["normal-2d", "uniform-box", "log-normal", "dirichlet"])
def test_the_potential_is_the_density_with_the_change_of_variables(name: str) -> None:
    """Integrals over unconstrained coordinates agree with exact draws: importance sampling from a wide normal."""
    density = make_density(BASES[name](), link="tanh")
    target = DensityTarget(density)
    shape = target.starts(1)["x"].shape[1:]
    proposal = dist.StudentT(4.0, torch.zeros(shape), 1.5).to_event(len(shape))
    points = proposal.sample((50_000,))
    log_weights = -target.batched_potential_fn({"x": points}).double() - proposal.log_prob(points)
    weights = log_weights.softmax(0)
    values = target.constrain({"x": points})["x"]
    mean = (weights.reshape(-1, *(1,) * (values.dim() - 1)) * values).sum(0)
    exact = density.sample((50_000,)).double()
    error = exact.std(0) * math.sqrt(1 / len(exact) + float((weights**2).sum()))
    assert bool(((mean - exact.mean(0)).abs() < 4.5 * error).all())


def simple(scale: float = 1.0) -> None:
    """Sites of three kinds, one in a plate."""
    centre = pyro.sample("centre", dist.Normal(170.0, 10.0))
    spread = pyro.sample("spread", dist.LogNormal(0.0, 1.0))
    with pyro.plate("groups", 3):
        pyro.sample("share", dist.Dirichlet(torch.ones(4)))
        pyro.sample("y", dist.Normal(centre, scale * spread), obs=torch.tensor([170.0, 171.0, 169.0]))


def test_a_model_for_one_chain_and_for_many() -> None:
    target = ModelTarget(simple, (), {"scale": 2.0})
    starts = target.starts(7)
    assert {name: tuple(value.shape) for name, value in starts.items()} == {
        "centre": (7,),
        "spread": (7,),
        "share": (7, 3, 3),
    }
    energies = target.batched_potential_fn(starts)
    for index in range(7):
        point = {name: value[index] for name, value in starts.items()}
        assert torch.allclose(target.potential_fn(point), energies[index], atol=1e-3)
        values = target.constrain(point)
        log_joint = pyro.poutine.trace(pyro.poutine.condition(simple, values)).get_trace(2.0).log_prob_sum()
        jacobian = values["spread"].log() + sum(
            target.transforms["share"].log_abs_det_jacobian(
                target.transforms["share"].inv(values["share"]), values["share"]
            )
        )
        assert torch.allclose(-target.potential_fn(point), log_joint + jacobian, atol=2e-3)
    assert 3 < float(target.spread["centre"].scale) < 20


def test_the_prior_gives_unit_scale_whatever_the_seed() -> None:
    first, second = ModelTarget(simple, (), {}), ModelTarget(simple, (), {})
    assert torch.equal(first.spread["centre"].loc, second.spread["centre"].loc)
    draws = torch.stack([first.draw()["centre"] for _ in range(300)])
    assert 0.6 < float(draws.std()) < 1.7


def test_discrete_neighbours_are_summed_out() -> None:
    def model() -> None:
        weight = pyro.sample("weight", dist.Beta(2.0, 2.0))
        with pyro.plate("rows", 2):
            kind = pyro.sample("kind", dist.Bernoulli(weight), infer={"enumerate": "parallel"})
            pyro.sample("row", dist.Normal(3 * kind, 1.0), obs=torch.tensor([0.5, 2.5]))

    target = ModelTarget(model, (), {})
    assert set(target.transforms) == {"weight"}
    weights = torch.tensor([0.2, 0.5, 0.9])
    energy = [float(target.potential_fn(target.unconstrain({"weight": weight}))) for weight in weights]

    def log_joint(weight: torch.Tensor) -> torch.Tensor:
        rows = torch.tensor([0.5, 2.5])
        zero, one = dist.Normal(0.0, 1.0).log_prob(rows), dist.Normal(3.0, 1.0).log_prob(rows)
        mixed = torch.logaddexp((1 - weight).log() + zero, weight.log() + one).sum()
        return dist.Beta(2.0, 2.0).log_prob(weight) + mixed + weight.log() + (1 - weight).log()

    expected = torch.stack([-log_joint(weight) for weight in weights])
    assert torch.allclose(torch.tensor(energy), expected, atol=1e-4)
    with pytest.raises(ValueError, match=r"model must be one that torch.vmap can vectorise"):
        target.batched_potential_fn(target.unconstrain({"weight": weights}))


def test_an_improper_prior_starts_somewhere() -> None:
    def model() -> None:
        x = pyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
        pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(0.3))

    starts = ModelTarget(model, (), {}).starts(5)["x"]
    assert bool(torch.isfinite(starts).all())
    assert len(starts.unique()) == 5


def hole(low: float) -> Callable[[], None]:
    def model() -> None:
        x = pyro.sample("depth", dist.Normal(0.0, 1.0))
        y = pyro.sample("width", dist.LogNormal(0.0, 1.0))
        pyro.factor("hole", torch.where(x > low, torch.tensor(math.nan), 0.0) + 0 * y)

    return model


@pytest.mark.parametrize("many", [False, True])
def test_nan_near_the_prior_is_an_error_that_names_the_site(many: bool) -> None:
    target = ModelTarget(hole(2.0), (), {})
    values = {"depth": torch.tensor([0.0, 2.5, 3.0]), "width": torch.tensor([1.0, 1.5, 1.0])}
    params = target.unconstrain(values)
    with pytest.raises(ValueError, match=r"site 'hole' must be a number, got .*=nan. The values of depth, width are"):
        if many:
            target.batched_potential_fn(params)
        else:
            target.potential_fn({name: value[1] for name, value in params.items()})


@pytest.mark.parametrize(
    "far",
    [
        {"depth": 100.0, "width": 0.0},  # thirty scales of the prior from its middle
        {"depth": math.inf, "width": 0.0},
        {"depth": math.nan, "width": 0.0},
        {"depth": 2.5, "width": 200.0},  # a width of infinity
        {"depth": 2.5, "width": -200.0},  # a width of 0, on the edge of its support
    ],
)
def test_nan_far_out_is_an_infinite_energy(far: dict[str, float]) -> None:
    target = ModelTarget(hole(2.0), (), {})
    params = {name: torch.tensor([0.0, value]) for name, value in far.items()}
    energy = target.batched_potential_fn(params)
    assert math.isfinite(energy[0])
    assert math.isinf(energy[1])


def test_a_density_that_is_nan() -> None:
    class Hollow(dist.Normal):
        def log_prob(self, value: torch.Tensor) -> torch.Tensor:
            return torch.where(value > 1, torch.nan, super().log_prob(value))

    target = DensityTarget(Hollow(0.0, 1.0))
    with pytest.raises(ValueError, match="log-density of site 'x' must be a number.*The values of x are"):
        target.potential_fn(target.unconstrain({"x": torch.tensor(1.5)}))


def nowhere() -> None:
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.factor("nowhere", torch.where(x.abs() < 1e9, -torch.inf, 0.0))


def test_no_start() -> None:
    target = ModelTarget(nowhere, (), {})
    with pytest.raises(ValueError, match="model must have a finite density at one of 100 prior draws"):
        target.starts(2)


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (lambda: None, "model must have a continuous latent site"),
        (lambda: pyro.sample("n", dist.Bernoulli(0.5)), "model must have a continuous latent site"),
        (
            lambda: pyro.sample("n", dist.Poisson(3.0)),
            "model must have latent sites that are continuous or can be enumerated",
        ),
    ],
)
def test_models_without_a_target(model: Callable[[], object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ModelTarget(model, (), {})


def test_a_model_that_cannot_be_vectorised() -> None:
    def branching() -> None:
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        if x > 0:
            pyro.factor("shift", -x)

    target = ModelTarget(branching, (), {})
    starts = target.starts(4)
    assert count(starts) == 4
    assert bool(target.finite(starts).all())
    with pytest.raises(ValueError, match="model must be one that torch.vmap can vectorise.*Use nuts or hmc"):
        target.batched_potential_fn(starts)
    assert target.batched_potential_fn({"x": starts["x"][:1]}).shape == (1,)


def test_the_density_as_a_prior_is_vectorised() -> None:
    q = make_density(normal(2))

    def model() -> None:
        centre = pyro.sample("centre", q)
        pyro.sample("y", dist.Normal(centre, 1.0).to_event(1), obs=torch.ones(2))

    target: Target = ModelTarget(model, (), {})
    starts = target.starts(6)
    energies = target.batched_potential_fn(starts)
    single = [target.potential_fn({"centre": value}) for value in starts["centre"]]
    assert torch.allclose(energies, torch.stack(single), atol=1e-4)


def with_dynamic_support() -> None:
    high = pyro.sample("high", dist.Uniform(0.0, 1.0))
    pyro.sample("below", dist.Uniform(0.0, high))


def with_a_latent_in_a_branch() -> None:
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    if x > 0:
        pyro.sample("y", dist.Normal(x, 1.0))


def with_a_varying_shape() -> None:
    size = pyro.sample("x", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 2 if size > 0 else 3):
        pyro.sample("y", dist.Normal(0.0, 1.0))


def with_a_subsample() -> None:
    with pyro.plate("rows", 10, subsample_size=3):
        pyro.sample("x", dist.Normal(0.0, 1.0))


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (with_dynamic_support, "site 'below' must have a support that does not depend on other sites"),
        (with_a_latent_in_a_branch, "model must have the same latent sites in every run, got model='sometimes y'"),
        (with_a_varying_shape, "site 'y' must have the same shape in every run"),
        (with_a_subsample, "model must have no subsampled plates for a Markov chain"),
        (lambda: pyro.sample("angle", dist.VonMises(3.0, 1.0)), "site 'angle' must not be an angle for a Markov chain"),
    ],
)
def test_models_whose_chains_would_be_wrong(model: Callable[[], object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ModelTarget(model, (), {})


def test_a_rare_branch_is_found_under_way() -> None:
    def model() -> None:
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        if x > 5:
            pyro.sample("y", dist.Normal(0.0, 1.0))

    target = ModelTarget(model, (), {})
    with pytest.raises(ValueError, match="model must have the same latent sites in every run"):
        target.potential_fn(target.unconstrain({"x": torch.tensor(6.0)}))


def test_branches_between_observed_sites_are_allowed() -> None:
    def model() -> None:
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("kind", -x if x > 0 else x)
        low = torch.zeros(())
        pyro.sample("u", dist.Uniform(low, low + 2))

    assert ModelTarget(model, (), {}).starts(3)["u"].shape == (3,)


def test_a_density_of_angles() -> None:
    for density in (dist.VonMises(3.0, 1.0), make_density(dist.VonMises(torch.tensor(0.0), torch.tensor(1.0)))):
        with pytest.raises(ValueError, match="density must not be an angle"):
            DensityTarget(density)


@pytest.mark.parametrize("kind", ["obs_mask", "mask", "off"])
def test_what_is_masked_out_is_a_standard_normal(kind: str) -> None:
    """No term of the model holds such an entry; without one it would run away."""
    seen = torch.tensor([True, False, True, False])

    def model() -> None:
        with pyro.plate("rows", 4):
            if kind == "obs_mask":
                pyro.sample("y", dist.Normal(3.0, 2.0), obs=torch.zeros(4), obs_mask=seen)
            elif kind == "mask":
                pyro.sample("y_unobserved", dist.Normal(3.0, 2.0).mask(~seen))
            else:
                pyro.sample("y_unobserved", dist.Normal(3.0, 2.0).mask(False))

    idle = seen if kind != "off" else torch.ones(4, dtype=torch.bool)
    target = ModelTarget(model, (), {})
    start = {"y_unobserved": torch.zeros(4)}
    moved = {"y_unobserved": 2.0 * torch.eye(4)}
    rise = torch.stack(
        [target.potential_fn({"y_unobserved": point}) for point in moved["y_unobserved"]]
    ) - target.potential_fn(start)
    assert torch.allclose(rise[idle], torch.tensor(2.0), atol=1e-4)
    values = target.constrain(moved)["y_unobserved"].diagonal()
    origin = target.constrain(start)["y_unobserved"]
    expected = dist.Normal(3.0, 2.0).log_prob(origin) - dist.Normal(3.0, 2.0).log_prob(values)
    assert torch.allclose(rise[~idle], expected[~idle], atol=1e-4)
    if kind == "obs_mask":  # the three targets are alike in what would run away
        chains = run_mcmc(model, "lockstep_hmc", 150, 60, 16, seed=0, progress=False)
        assert mixing_report(chains).passed
