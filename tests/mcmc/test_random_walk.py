"""Random walks in lockstep and the independence sampler, as kernels for Pyro's own MCMC."""

from __future__ import annotations

import math
from typing import Any

import arviz
import pyro
import pyro.distributions as dist
import pytest
import torch
from densities import BASES, make_density, normal
from pyro.infer import MCMC

from pyro_mbde import IndependenceSampler, LockstepRandomWalk
from pyro_mbde.mcmc.random_walk import best_step_size

Params = dict[str, torch.Tensor]


def run(kernel: Any, num_samples: int, warmup_steps: int, **options: Any) -> Any:
    mcmc = MCMC(kernel, num_samples=num_samples, warmup_steps=warmup_steps, disable_progbar=True, **options)
    mcmc.run()
    return mcmc


def gaussian(scales: torch.Tensor) -> Any:
    return lambda params: (params["x"] / scales).square().sum(-1) / 2


def ess(draws: torch.Tensor) -> float:
    """Of draws (num_chains, num_samples)."""
    return float(arviz.ess(draws.numpy()))


def grouped(mcmc: Any, name: str = "x") -> torch.Tensor:
    """The draws of a site, (num_chains, num_samples, ...)."""
    return mcmc.get_samples(group_by_chain=True)[name]


def test_a_model_through_pyro_alone() -> None:
    data = torch.tensor([1.2, 0.8, 1.1, 1.4])

    def model(rows: torch.Tensor) -> None:
        centre = pyro.sample("centre", dist.Normal(0.0, 10.0))
        rate = pyro.sample("rate", dist.Gamma(3.0, 2.0))
        with pyro.plate("rows", len(rows)):
            pyro.sample("row", dist.Normal(centre, 0.5), obs=rows)
            pyro.sample("count", dist.Exponential(rate), obs=torch.ones(4))

    mcmc = MCMC(LockstepRandomWalk(model, num_chains=800), num_samples=100, warmup_steps=100, disable_progbar=True)
    mcmc.run(data)
    draws = mcmc.get_samples(group_by_chain=True)
    assert draws["centre"].shape == (800, 100)
    # normal with normal, gamma with exponential
    precision = 4 / 0.25 + 1 / 100
    error = math.sqrt(1 / precision / ess(draws["centre"]))
    assert float(draws["centre"].mean()) == pytest.approx(float(data.sum()) / 0.25 / precision, abs=4 * error)
    assert float(draws["rate"].mean()) == pytest.approx(7 / 6, abs=4 * math.sqrt(7) / 6 / math.sqrt(ess(draws["rate"])))
    assert 0.2 < mcmc.diagnostics()["acceptance rate"]["chain 0"] < 0.5
    assert bool((draws["rate"] > 0).all())


def test_given_starts_are_in_the_sites_own_coordinates() -> None:
    def model() -> None:
        pyro.sample("height", dist.Normal(170.0, 10.0))

    kernel = LockstepRandomWalk(model, init_step_size=1e-3, adapt_step_size=False)
    mcmc = run(kernel, 2, 0, initial_params={"height": torch.tensor([171.0, 150.0])})
    assert torch.allclose(grouped(mcmc, "height")[:, 0], torch.tensor([171.0, 150.0]), atol=0.5)


@pytest.mark.parametrize("num_chains", [1, 4, 300])
@pytest.mark.parametrize("pooled", [True, False])
def test_scales_and_steps_are_learned(num_chains: int, pooled: bool) -> None:
    # one chain has to find out by itself, a few steps at a time
    scales = torch.tensor([4.0, 1.0, 0.25] if num_chains == 1 else [100.0, 1.0, 0.01])
    kernel = LockstepRandomWalk(potential_fn=gaussian(scales), pooled=pooled)
    warmup_steps = {1: 1500, 4: 1000, 300: 400}[num_chains]
    run(kernel, 100, warmup_steps, initial_params={"x": scales * torch.randn(num_chains, 3)})
    learned = kernel.adaptation
    assert learned["step_size"].shape == (() if pooled else (num_chains,))
    covariance = learned["factor"] @ learned["factor"].T if learned["factor"].dim() == 2 else learned["factor"] ** 2
    deviations = covariance.diagonal().sqrt() if covariance.dim() == 2 else covariance.sqrt()
    assert bool(((deviations / scales).log().abs() < 1).all())
    assert float(learned["step_size"].mean()) == pytest.approx(best_step_size(3), rel=0.6)
    assert 0.15 < kernel.diagnostics()["acceptance rate"] < 0.55  # 0.316 is best in three dimensions


def test_correlation_is_learned() -> None:
    covariance = torch.tensor([[1.0, 0.99], [0.99, 1.0]])
    target = dist.MultivariateNormal(torch.zeros(2), covariance)
    starts = target.sample((200,))

    def effective(adapt_covariance: bool) -> float:
        kernel = LockstepRandomWalk(
            potential_fn=lambda params: -target.log_prob(params["x"]), adapt_covariance=adapt_covariance
        )
        return ess(grouped(run(kernel, 150, 150, initial_params={"x": starts}))[..., 0])

    assert effective(True) > 5 * effective(False)


def test_nothing_is_learned_after_warmup() -> None:
    kernel = LockstepRandomWalk(potential_fn=gaussian(torch.ones(2)))
    seen: dict[str, list[float]] = {"Warmup": [], "Sample": []}

    def hook(kernel: LockstepRandomWalk, params: Params, stage: str, index: int) -> None:
        seen[stage].append(float(kernel.adaptation["step_size"]))

    run(kernel, 30, 30, initial_params={"x": torch.randn(8, 2)}, hook_fn=hook)
    assert len(set(seen["Warmup"])) > 20
    assert set(seen["Sample"]) == {seen["Warmup"][-1]}


def test_without_adaptation_the_step_stays() -> None:
    kernel = LockstepRandomWalk(
        potential_fn=gaussian(torch.ones(2)), init_step_size=0.1, adapt_step_size=False, adapt_covariance=False
    )
    run(kernel, 5, 30, initial_params={"x": torch.randn(8, 2)})
    assert float(kernel.adaptation["step_size"]) == pytest.approx(0.1)
    assert torch.equal(kernel.adaptation["factor"], torch.ones(2))


def test_a_bound_rejects_without_changing_a_draw() -> None:
    evaluated = [0]

    def potential_fn(params: Params) -> torch.Tensor:
        evaluated[0] += len(params["x"])
        return params["x"].square().sum(-1) / 2 + params["x"][:, 0].sin()

    def lower_bound_fn(params: Params) -> torch.Tensor:
        return params["x"].square().sum(-1) / 2 - 1

    def draws(**options: Any) -> tuple[torch.Tensor, int, float]:
        torch.manual_seed(1)
        kernel = LockstepRandomWalk(
            potential_fn=potential_fn, adapt_step_size=False, adapt_covariance=False, init_step_size=2.0, **options
        )
        evaluated[0] = 0
        rates: list[torch.Tensor] = []
        mcmc = run(
            kernel,
            400,
            0,
            initial_params={"x": torch.zeros(50, 2)},
            hook_fn=lambda kernel, *_: rates.append(kernel.accept_prob),
        )
        return mcmc.get_samples()["x"], evaluated[0], float(torch.stack(rates).mean())

    plain, all_points, rate = draws()
    bounded, few_points, same_rate = draws(lower_bound_fn=lower_bound_fn)
    assert torch.equal(plain, bounded)
    assert few_points < 0.8 * all_points
    assert rate == pytest.approx(same_rate, abs=0.02)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({}, ValueError, "model must be given, or potential_fn, and not both"),
        ({"model": lambda: None, "potential_fn": lambda params: params}, ValueError, "model must be given"),
        ({"model": 3}, TypeError, "model must be a Pyro model"),
        ({"model": lambda: None, "num_chains": 0}, ValueError, "num_chains must be at least 1"),
        ({"model": lambda: None, "init_step_size": math.nan}, ValueError, "init_step_size must be in"),
        ({"model": lambda: None, "target_accept_prob": 1.0}, ValueError, r"target_accept_prob must be in \(0, 1\)"),
        ({"model": lambda: None, "pooled": 1}, TypeError, "pooled must be True or False"),
    ],
)
def test_arguments(arguments: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        LockstepRandomWalk(**arguments)


def test_energies_that_are_none() -> None:
    starts = {"x": torch.zeros(5, 2)}
    with pytest.raises(ValueError, match="potential energy must be a number.*all of x are finite"):
        run(LockstepRandomWalk(potential_fn=lambda params: params["x"][:, 0] * math.nan), 5, 5, initial_params=starts)
    with pytest.raises(ValueError, match="initial_params must have a finite energy, got .*none for chains"):
        run(LockstepRandomWalk(potential_fn=lambda params: params["x"][:, 0] + math.inf), 5, 5, initial_params=starts)
    with pytest.raises(ValueError, match=r"potential_fn must return shape \(5,\)"):
        run(LockstepRandomWalk(potential_fn=lambda params: params["x"].sum()), 5, 5, initial_params=starts)
    with pytest.raises(ValueError, match="initial_params must be given with potential_fn"):
        run(LockstepRandomWalk(potential_fn=gaussian(torch.ones(2))), 5, 5)

    def later(params: Params) -> torch.Tensor:
        return torch.where(params["x"][:, 0] > 1, torch.nan, 0.0)

    with pytest.raises(ValueError, match="potential energy must be a number"):
        run(LockstepRandomWalk(potential_fn=later), 500, 5, initial_params=starts)


def test_chains_are_independent_after_warmup() -> None:
    kernel = LockstepRandomWalk(potential_fn=gaussian(torch.ones(1)))
    draws = grouped(run(kernel, 400, 200, initial_params={"x": torch.randn(60, 1)}))[..., 0]
    means = draws.mean(1)
    # between chains as large as within them predicts
    expected = 1 / (ess(draws) / 60)
    assert float(means.var()) == pytest.approx(expected, rel=0.6)


@pytest.mark.parametrize("name", ["normal-2d", "categorical", "uniform-box", "mixture", "dirichlet", "one-hot"])
def test_independence_on_any_base(name: str) -> None:
    density = make_density(BASES[name](), epsilon=2.0, link="tanh")
    kernel = IndependenceSampler(density, num_chains=800)
    mcmc = run(kernel, 40, 10)
    draws = grouped(mcmc)
    assert draws.shape == (800, 40, *density.event_shape)
    exact = density.sample((50_000,)).double().reshape(50_000, -1)
    flat = draws.double().reshape(800, 40, -1)
    for index in range(flat.shape[-1]):
        column = flat[..., index]
        if float(column.std()) == 0:
            continue
        error = float(exact[:, index].std()) * math.sqrt(1 / ess(column) + 1 / 50_000)
        assert float(column.mean()) == pytest.approx(float(exact[:, index].mean()), abs=4.5 * error)
    # not mcmc.diagnostics(), where Pyro takes means, which whole numbers have not
    assert kernel.diagnostics()["total variation"] < 1e-9
    assert 0.5 < kernel.diagnostics()["acceptance rate"] <= 1


def test_independence_arguments() -> None:
    with pytest.raises(TypeError, match="q must be a MollifiedExpFamily"):
        IndependenceSampler(normal(2))
    with pytest.raises(ValueError, match=r"q must have an empty batch shape, got q=\(3,\). Pass the density before"):
        IndependenceSampler(make_density(normal(2)).expand([3]))
    with pytest.raises(ValueError, match="num_chains must be at least 1"):
        IndependenceSampler(make_density(normal(2)), num_chains=0)
