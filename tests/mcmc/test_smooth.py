"""The smooth energy of a target."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from densities import BASES, make_density, normal
from invariance import Steep
from torch import Tensor

from pyro_mbde import Column, MollifiedExpFamily, Schema, run_mcmc
from pyro_mbde.mcmc.damped_density import DampedDensity
from pyro_mbde.mcmc.model_target import ModelTarget
from pyro_mbde.mcmc.smooth import density_in, log_prob_of_base


class Counted(Steep):
    """Counts its calls, and how many of them were recorded for gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = [0, 0]

    def forward(self, features: Tensor) -> Tensor:
        self.calls[0] += 1
        self.calls[1] += features.requires_grad
        return super().forward(features)


def counted_density() -> tuple[MollifiedExpFamily, list[int]]:
    q = MollifiedExpFamily(normal(2), Counted(), torch.tensor([2.0]), 0.0)
    calls: list[int] = q.statistics.calls  # type: ignore[assignment]  # of the copy in the density
    calls[:] = 0, 0
    return q, calls


@pytest.fixture(autouse=True)
def _as_in_a_run() -> Iterator[None]:
    with pyro.validation_enabled(False):
        yield


def target_of(model: Any) -> ModelTarget:
    return ModelTarget(model, (), {})


def one_draw(q: Any) -> Any:
    def model() -> None:
        x = pyro.sample("x", q)
        pyro.sample("y", dist.Normal(x.sum(-1), 1.0), obs=torch.tensor(0.4))

    return model


def three_draws(q: Any) -> Any:
    def model() -> None:
        with pyro.plate("people", 3):
            x = pyro.sample("x", q)
            pyro.sample("y", dist.Normal(x.sum(-1), 1.0), obs=torch.tensor([0.4, -0.2, 1.0]))

    return model


@pytest.mark.parametrize("name", sorted(BASES))
def test_without_a_tilt_a_density_is_its_base(name: str) -> None:
    q = make_density(BASES[name]())
    value = q.sample((5,))
    before = q.log_prob(value)
    assert torch.allclose(q.smoothed(log_prob_of_base).log_prob(value), q.base.log_prob(value).to(q.dtype))
    assert torch.equal(q.log_prob(value), before)


def test_one_draw_follows_the_base() -> None:
    q, calls = counted_density()
    target, base = target_of(one_draw(q)), target_of(one_draw(q.base))
    params = target.starts(4)
    calls[:] = 0, 0
    points = {"x": target.locate(params)["x"]}
    assert torch.allclose(
        target.batched_smooth_potential_fn(params), base.batched_potential_fn(base.standardize(points))
    )
    assert calls == [0, 0]
    assert target.has_smooth_energy
    assert not base.has_smooth_energy


def test_several_draws_follow_damped_tilts() -> None:
    q, calls = counted_density()
    target = target_of(three_draws(q))
    params = target.starts(4)
    calls[:] = 0, 0
    x = target.locate(params)["x"]
    smooth = target.batched_smooth_potential_fn(params)
    assert calls == [0, 0]
    bases = target_of(three_draws(q.base))
    expected = bases.batched_potential_fn(bases.standardize({"x": x}))
    expected += (q.base.log_prob(x) - DampedDensity(q)(q, x)).sum(-1)
    assert torch.allclose(smooth.double(), expected.double(), atol=1e-4)


def test_a_damped_density_is_nearer_than_the_base_and_flatter_than_the_density() -> None:
    q, _ = counted_density()
    for density in (q, make_density(normal(2))):
        x = density.base.sample((2000,)).requires_grad_()
        ratio = DampedDensity(density)(density, x) - density.base.log_prob(x)
        (slope,) = torch.autograd.grad(ratio.sum(), x)
        assert float(slope.norm(dim=-1).max()) < 3 * float(q.bounds.high - q.bounds.low) / 0.3
        tilt = density.tilt(x.detach())
        assert float((ratio.detach() - tilt).var()) < float(tilt.var())


def test_a_likelihood_keeps_its_tilt() -> None:
    """Rows that are observed under a density are data: what is followed is their whole likelihood."""
    q, _ = counted_density()
    rows = q.sample((5,))

    def model() -> None:
        centre = pyro.sample("centre", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 5):
            pyro.sample(
                "row", dist.TransformedDistribution(q, [dist.transforms.AffineTransform(centre, 1.0, 1)]), obs=rows
            )

    target = target_of(model)
    params = target.starts(3)
    assert not target.has_smooth_energy
    assert torch.equal(target.batched_smooth_potential_fn(params), target.batched_potential_fn(params))


def test_densities_are_found_in_other_distributions() -> None:
    q, _ = counted_density()
    for inside in (q, q.expand((3,)), q.expand((3,)).to_event(1), q.mask(torch.tensor(True))):
        assert isinstance(density_in(inside), MollifiedExpFamily)
    assert density_in(dist.Normal(0.0, 1.0)) is None


def test_a_latent_that_is_drawn_from_something_else_in_another_run() -> None:
    q, _ = counted_density()

    def model() -> None:
        scale = pyro.sample("scale", dist.Normal(0.0, 1.0))
        pyro.sample("x", q if scale > -0.5 else dist.Normal(torch.zeros(2), 1.0).to_event(1))

    chains = run_mcmc(model, "hmc", 30, 30, num_chains=2, seed=0, progress=False, num_workers=1)
    assert float(chains.draws["scale"].min()) < -0.5 < float(chains.draws["scale"].max())


def test_the_smooth_gradient_leaves_the_networks_out() -> None:
    q, calls = counted_density()
    q.with_smooth_gradient().log_prob(torch.zeros(4, 2, requires_grad=True)).sum().backward()
    assert calls == [1, 0]  # evaluated, but not differentiated


def test_steps_do_not_collapse_where_a_base_has_jumps() -> None:
    """Stated quantiles make a density of steps: rows near them, over an edge that every trajectory crosses."""
    schema = Schema([Column("cost", 0.0, 100_000.0, scale="log1p", quantiles={0.5: 500.0, 0.9: 3000.0})])
    q = make_density(schema.base(), epsilon=1.0)
    edge = torch.tensor([math.log1p(500.0)])

    def model() -> None:
        with pyro.plate("groups", 2):
            row = pyro.sample("row", q)
            pyro.sample("reading", dist.Normal(row, 0.3).to_event(1), obs=edge.expand(2, 1))

    options = {"trajectory_length": 0.5}  # of the same steps, three times fewer
    chains = run_mcmc(model, "lockstep_hmc", 30, 25, num_chains=16, seed=0, progress=False, kernel_options=options)
    assert float(chains.sample_stats["step_size"].min()) > 0.05
    exact = q.sample((100_000,))
    weights = dist.Normal(exact, 0.3).to_event(1).log_prob(edge).exp()
    mean = float((weights * exact[:, 0]).sum() / weights.sum())
    by_chain = chains.draws["row"].mean((1, 2, 3))
    assert abs(float(by_chain.mean()) - mean) < 5 * float(by_chain.std()) / 4 + 0.01
