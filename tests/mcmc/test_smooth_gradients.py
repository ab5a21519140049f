"""Densities with their bases' gradients, and the smooth energies of targets; nothing else changes."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from densities import BASES, CONTINUOUS, make_density, normal
from invariance import steep_density, tilt
from pyro.infer import SVI, Trace_ELBO
from torch import Tensor

from pyro_mbde import run_mcmc
from pyro_mbde.mcmc.latent_target import LatentTarget
from pyro_mbde.mcmc.model_target import ModelTarget
from pyro_mbde.mcmc.target import DensityTarget


def slope(log_prob: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
    leaf = value.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(log_prob(leaf).sum(), leaf)
    return gradient


FORMS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda q: q,
    "expanded": lambda q: q.expand([3]),
    "expanded twice": lambda q: q.expand([1]).expand([2, 3]),
    "of an event": lambda q: q.expand([3]).to_event(1),
    "masked": lambda q: q.mask(torch.tensor(True)),
    "partly masked": lambda q: q.expand([3]).mask(torch.tensor([True, False, True])),
    "copied": copy.deepcopy,
    "of another type": lambda q: q.to(torch.float64),
    "pickled": lambda q: pickle.loads(pickle.dumps(q)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["normal-2d", "gamma"])
def test_the_value_is_the_densitys_and_the_slope_the_bases(name: str, form: str) -> None:
    q = make_density(BASES[name](), epsilon=4.0, link="tanh")
    smooth, exact = FORMS[form](q.with_smooth_gradient()), FORMS[form](q)
    value = q.sample((2, 3))
    value = value[0] if form == "of an event" else value
    assert torch.equal(smooth.log_prob(value), exact.log_prob(value))
    expected = slope(q.base.log_prob, value)
    if form == "partly masked":
        expected[:, 1] = 0
    assert torch.allclose(slope(smooth.log_prob, value), expected, atol=1e-5)
    if form != "partly masked":
        assert not torch.allclose(slope(exact.log_prob, value), expected, atol=1e-3)
    assert torch.allclose(slope(q.log_prob, value), finite_differences(q, value), atol=2e-2)  # q is as it was


def finite_differences(q: Any, value: Tensor, width: float = 1e-3) -> Tensor:
    pieces = []
    for index in range(value.shape[-1] if q.event_shape else 1):
        step = torch.zeros(q.event_shape)
        step.reshape(-1)[index] = width
        pieces.append((q.log_prob(value + step) - q.log_prob(value - step)).double() / (2 * width))
    return torch.stack(pieces, -1).reshape(value.shape).to(value)


def test_a_model_may_use_both_forms_in_plates() -> None:
    q = steep_density()

    def model(prior: Any) -> None:
        with pyro.plate("outer", 3), pyro.plate("inner", 2):
            x = pyro.sample("x", prior)
            pyro.sample("y", dist.Normal(x[..., 0], 1.0), obs=torch.ones(2, 3))

    values = {"x": 1.5 + 0.3 * torch.randn(2, 3, 2)}
    joint = {
        kind: pyro.poutine.trace(pyro.poutine.condition(model, values)).get_trace(prior).log_prob_sum()
        for kind, prior in (("exact", q), ("smooth", q.with_smooth_gradient()))
    }
    assert torch.equal(joint["exact"], joint["smooth"])
    exact, smooth = ModelTarget(model, (q,), {}), ModelTarget(model, (q.with_smooth_gradient(),), {})
    assert exact.has_smooth_energy and smooth.has_smooth_energy
    params = exact.unconstrain(values)

    def gradient(energy: Any) -> Tensor:
        return slope(lambda x: energy({"x": x}), params["x"])

    follows = gradient(exact.smooth_potential_fn)
    assert torch.allclose(follows, gradient(smooth.smooth_potential_fn), atol=1e-5)
    assert not torch.allclose(follows, gradient(exact.potential_fn), atol=1e-1)


def test_variational_inference_sees_the_densitys_own_gradient() -> None:
    """One step of gradient ascent on log q at a point, by finite differences; after chains that followed the base."""
    q = steep_density()
    at = torch.tensor([1.45, 0.1])
    run_mcmc(q, "lockstep_hmc", 3, 3, seed=0, progress=False)

    def model() -> None:
        pyro.sample("x", q)

    def guide() -> None:
        where = pyro.param("where", at.clone())
        pyro.sample("x", dist.Delta(where).to_event(1))

    svi = SVI(model, guide, pyro.optim.SGD({"lr": 1e-3}), Trace_ELBO())
    svi.step()
    moved = (pyro.param("where").detach() - at) / 1e-3
    width = 1e-3
    expected = torch.stack([(q.log_prob(at + e) - q.log_prob(at - e)) / (2 * width) for e in width * torch.eye(2)])
    assert torch.allclose(moved, expected, rtol=0.02, atol=0.05)
    assert float(moved.norm()) > 5  # the step's, not the base's


def test_a_smooth_energy_differs_by_the_tilt() -> None:
    q = steep_density()
    target = DensityTarget(q)
    params = target.starts(50)
    difference = target.batched_smooth_potential_fn(params) - target.batched_potential_fn(params)
    assert torch.allclose(difference, tilt(target.constrain(params)["x"]), atol=1e-5)
    columns = LatentTarget(make_density(BASES["columns-restricted"](), epsilon=3.0))
    scores = torch.randn(50, 5, dtype=torch.float64)
    assert torch.allclose(columns.batched_smooth_potential_fn({"x": scores}), scores.square().sum(1) / 2)


def test_which_models_have_a_tilt() -> None:
    q = make_density(normal(2))

    def hidden() -> None:
        x = pyro.sample("x", q.expand([3]).mask(torch.tensor([True, False, True])).to_event(1))
        pyro.sample("y", dist.Normal(x.sum(), 1.0), obs=torch.tensor(0.0))

    assert ModelTarget(hidden, (), {}).has_smooth_energy
    assert not ModelTarget(lambda: pyro.sample("x", dist.Normal(0.0, 1.0)), (), {}).has_smooth_energy
    assert not DensityTarget(normal(2)).has_smooth_energy
    assert DensityTarget(q).has_smooth_energy


@pytest.mark.parametrize("name", CONTINUOUS)
def test_smooth_energies_are_finite_where_the_density_is(name: str) -> None:
    target = DensityTarget(make_density(BASES[name](), epsilon=4.0))
    params = target.starts(20)
    gradient = slope(lambda x: target.batched_smooth_potential_fn({"x": x}), params["x"])
    assert bool(torch.isfinite(gradient).all())
    assert math.isfinite(float(target.batched_smooth_potential_fn(params).sum()))
