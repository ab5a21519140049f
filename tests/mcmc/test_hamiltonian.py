"""Hamiltonian Monte Carlo in lockstep: adaptation, costs, hostile densities, models of all kinds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import arviz
import pyro
import pyro.distributions as dist
import pytest
import torch
from densities import BASES, make_density, normal
from invariance import Steep, exact_draws, exact_energy, smooth_energy, steep_density
from pyro.infer import MCMC
from torch import Tensor, nn

from pyro_mbde import LockstepHMC, MollifiedExpFamily, mixing_report, resume_mcmc, run_mcmc
from pyro_mbde.mcmc import hamiltonian

Params = dict[str, Tensor]
FOLLOWING = ["hmc", "nuts", "lockstep_hmc"]


def run(kernel: Any, num_samples: int, warmup_steps: int, **options: Any) -> Any:
    mcmc = MCMC(kernel, num_samples=num_samples, warmup_steps=warmup_steps, disable_progbar=True, **options)
    mcmc.run()
    return mcmc


def gaussian(scales: Tensor) -> Callable[[Params], Tensor]:
    return lambda params: (params["x"] / scales).square().sum(-1) / 2


def agree(draws: Tensor, exact: Tensor, allowed: float = 4.5) -> bool:
    """Whether shares of draws ``(num_chains, n, d)`` below quantiles are as of exact draws ``(m, d)``."""
    for index in range(draws.shape[-1]):
        for level in (0.1, 0.5, 0.9):
            at = torch.quantile(exact[:, index], level)
            below = (draws[..., index] <= at).double()
            expected = float((exact[:, index] <= at).double().mean())
            size = float(arviz.ess(below.numpy(), method="mean"))
            error = math.sqrt(expected * (1 - expected) * (1 / size + 1 / len(exact)))
            if not abs(float(below.mean()) - expected) < allowed * error:
                return False
    return True


class Counted(Steep):
    """Counts its calls, the points in them, and the calls that were recorded for gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = [0, 0, 0]

    def forward(self, features: Tensor) -> Tensor:
        self.calls[0] += 1
        self.calls[1] += len(features)
        self.calls[2] += features.requires_grad or torch.is_grad_enabled()
        return super().forward(features)


@pytest.mark.parametrize("in_a_model", [False, True])
def test_networks_are_evaluated_once_a_trajectory_and_never_differentiated(in_a_model: bool) -> None:
    q = MollifiedExpFamily(normal(2), Counted(), torch.tensor([2.0]), 0.0)
    calls: list[int] = q.statistics.calls  # type: ignore[assignment]  # of the copy in the density

    def model() -> None:
        x = pyro.sample("x", q)
        pyro.sample("y", dist.Normal(x, 1.0).to_event(1), obs=torch.ones(2))

    kernel = LockstepHMC(model, num_chains=7, num_steps=4) if in_a_model else LockstepHMC.for_target(target_of(q))
    if not in_a_model:
        kernel.initial_params = {"x": torch.zeros(7, 2)}
        kernel._num_steps = 4
    with pyro.validation_enabled(False):  # as in MCMC
        kernel.setup(10)
        params = kernel.initial_params
        for _ in range(20):
            calls[:] = 0, 0, 0
            params = kernel.sample(params)
            made = int(kernel.stats()["n_steps"][0])
            # torch.vmap hides the points of a batch
            assert calls == [1, calls[1] if in_a_model else 7 * made, 0]
            assert not params["x"].requires_grad


def target_of(q: Any) -> Any:
    from pyro_mbde.mcmc.target import DensityTarget

    return DensityTarget(q)


@pytest.mark.parametrize("kernel", ["nuts", "hmc"])
def test_no_kernel_differentiates_a_network(kernel: str) -> None:
    q = MollifiedExpFamily(normal(2), Counted(), torch.tensor([2.0]), 0.0)
    calls: list[int] = q.statistics.calls  # type: ignore[assignment]  # of the copy in the density
    calls[:] = 0, 0, 0
    run_mcmc(q, kernel, 5, 5, 1, seed=0, progress=False, num_workers=1)
    assert calls[0] > 0
    assert calls[2] == 0


@pytest.mark.parametrize("pooled", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_scales_and_steps_are_learned(pooled: bool) -> None:
    scales = torch.tensor([50.0, 1.0, 0.02])
    kernel = LockstepHMC(potential_fn=gaussian(scales), pooled=pooled)
    mcmc = run(kernel, 30, 150, initial_params={"x": scales * torch.randn(40, 3)})
    learned = kernel.adaptation
    assert learned["step_size"].shape == (() if pooled else (40,))
    factor = learned["factor"]
    deviations = (factor @ factor.T).diagonal().sqrt() if factor.dim() == 2 else factor
    assert bool(((deviations / scales).log().abs() < 0.5).all())
    assert 0.5 < float(learned["step_size"].mean()) < 2.5
    smooth = kernel.stats()["smooth_acceptance_rate"]
    assert smooth.shape == (40,)
    assert agree(mcmc.get_samples(group_by_chain=True)["x"], scales * torch.randn(50_000, 3))


def test_steps_are_adapted_to_the_smooth_energy_whatever_the_tilt() -> None:
    """A tilt that rejects nearly everything leaves the step as it is without it."""
    found = {}
    for name, height in (("none", 0.0), ("steep", 1.0), ("steeper", 5.0)):
        torch.manual_seed(0)
        kernel = LockstepHMC(
            potential_fn=lambda params, height=height: (
                smooth_energy(params) + height * (smooth_energy(params) - exact_energy(params))
            ),
            smooth_potential_fn=smooth_energy,
            adapt_covariance=False,
        )
        run(kernel, 1, 120, initial_params={"x": torch.randn(250, 2)})
        found[name] = float(kernel.adaptation["step_size"])
    assert found["steep"] == pytest.approx(found["none"], rel=0.3)
    assert found["steeper"] == pytest.approx(found["none"], rel=0.3)


def test_options_set_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    start = {"x": torch.randn(5, 2)}

    def lengths(num_samples: int = 80, **options: Any) -> list[int]:
        kernel = LockstepHMC(potential_fn=smooth_energy, adapt_step_size=False, **options)
        seen: list[int] = []
        run(
            kernel,
            num_samples,
            0,
            initial_params=start,
            hook_fn=lambda k, *_: seen.append(int(k.stats()["n_steps"][0])),
        )
        return seen

    assert set(lengths(init_step_size=0.5, trajectory_length=2.0)) == set(range(1, 8))  # m = 4
    assert set(lengths(init_step_size=0.5, num_steps=1)) == {1}
    assert set(lengths(init_step_size=9.0, trajectory_length=1.0)) == {1}
    monkeypatch.setattr(hamiltonian, "MAX_MEAN_STEPS", 5)
    assert set(lengths(init_step_size=1e-5, trajectory_length=100.0)) == set(range(1, 10))


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({}, ValueError, "model must be given, or potential_fn, and not both"),
        ({"model": lambda: None, "trajectory_length": 0.0}, ValueError, "trajectory_length must be in"),
        ({"model": lambda: None, "trajectory_length": math.inf}, ValueError, "trajectory_length must be in"),
        ({"model": lambda: None, "num_steps": 0}, ValueError, "num_steps must be at least 1"),
        ({"model": lambda: None, "num_steps": 2.5}, TypeError, "num_steps must be a whole number"),
        ({"model": lambda: None, "target_accept_prob": 0.0}, ValueError, r"target_accept_prob must be in \(0, 1\)"),
        ({"model": lambda: None, "pooled": 1}, TypeError, "pooled must be True or False"),
    ],
)
def test_arguments(arguments: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        LockstepHMC(**arguments)


def test_divergences_are_of_the_smooth_energy_alone() -> None:
    def narrow(params: Params) -> Tensor:
        return (params["x"] / 1e-4).square().sum(-1) / 2

    starts = {"x": 1e-4 * torch.randn(10, 2)}
    options = {"adapt_step_size": False, "adapt_covariance": False, "init_step_size": 1.0, "num_steps": 1}
    kernel = LockstepHMC(potential_fn=narrow, smooth_potential_fn=smooth_energy, **options)
    run(kernel, 20, 0, initial_params=starts)
    assert kernel.diagnostics()["divergences"] == []
    kernel = LockstepHMC(potential_fn=narrow, **options)
    run(kernel, 20, 5, initial_params=starts)
    assert kernel.diagnostics()["divergences"] == list(range(20))
    assert bool(kernel.stats()["diverging"].all())


def test_a_density_with_an_edge_in_the_smooth_energy() -> None:
    """Infinite energy beyond 0, and no gradient there."""

    def edge(params: Params) -> Tensor:
        x = params["x"][:, 0]
        return torch.where(x > 0, x, torch.inf)

    exact = dist.Exponential(1.0).sample((100_000, 1))
    kernel = LockstepHMC(potential_fn=edge, adapt_step_size=False, init_step_size=0.8, num_steps=2)
    draws = run(kernel, 60, 20, initial_params={"x": exact[:500]}).get_samples(group_by_chain=True)["x"]
    assert agree(draws, exact)


def test_energies_that_are_none() -> None:
    starts = {"x": torch.zeros(5, 2)}
    with pytest.raises(ValueError, match="potential energy must be a number"):
        run(LockstepHMC(potential_fn=lambda params: params["x"][:, 0] * math.nan), 5, 5, initial_params=starts)
    with pytest.raises(ValueError, match="initial_params must have a finite energy"):
        run(LockstepHMC(potential_fn=lambda params: params["x"][:, 0] + math.inf), 5, 5, initial_params=starts)

    def no_slope(params: Params) -> Tensor:  # finite at the start, where its slope is infinite
        return params["x"].abs().sqrt().sum(-1)

    draws = run(LockstepHMC(potential_fn=no_slope), 5, 5, initial_params=starts).get_samples()["x"]
    assert bool(torch.isfinite(draws).all())

    def later(params: Params) -> Tensor:
        return smooth_energy(params) + torch.where(params["x"][:, 0] > 1, torch.nan, 0.0)

    kernel = LockstepHMC(potential_fn=later, smooth_potential_fn=smooth_energy)
    with pytest.raises(ValueError, match="potential energy must be a number"):
        run(kernel, 200, 5, initial_params=starts)


@pytest.mark.parametrize("smooth", [lambda params: torch.zeros(len(params["x"])), lambda params: 0 * params["x"][:, 0]])
def test_nothing_to_follow(smooth: Callable[[Params], Tensor]) -> None:
    exact = exact_draws(200_000)
    kernel = LockstepHMC(potential_fn=exact_energy, smooth_potential_fn=smooth, adapt_step_size=False, num_steps=2)
    draws = run(kernel, 150, 100, initial_params={"x": exact[:100]}).get_samples(group_by_chain=True)
    assert agree(draws["x"], exact[100:])


class Hostile(nn.Module):
    """Statistics that are NaN, infinite, constant or as steep as they can be, by place."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, features: Tensor) -> Tensor:
        first = features[..., :1]
        if self.kind == "constant":
            return torch.full_like(first, 0.3)
        if self.kind == "cliff":
            return torch.where(first > 0.4, 0.69, -0.69)
        return torch.where(first > 0.4, torch.nan if self.kind == "nan" else torch.inf, 0.1)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        *(("lockstep_hmc", kind) for kind in ("constant", "cliff", "nan", "infinite")),
        pytest.param("nuts", "nan", marks=pytest.mark.slow),
    ],
)
def test_hostile_statistics(kernel: str, kind: str) -> None:
    q = MollifiedExpFamily(normal(2), Hostile(kind), torch.tensor([2.0]), 0.0)
    num_chains, num_samples, warmup_steps = (250, 40, 40) if kernel == "lockstep_hmc" else (2, 600, 150)
    chains = run_mcmc(q, kernel, num_samples, warmup_steps, num_chains, seed=0, progress=False)
    assert agree(chains.draws["x"], q.sample((50_000,)))


def test_a_zero_that_underflows_is_not_a_trap() -> None:
    """Far out the value of a Gamma(1/2) rounds to 0, whose log-density is infinite: no chain may end there."""
    q = make_density(normal(1))

    def model() -> None:
        pyro.sample("x", q)
        pyro.sample("rate", dist.Gamma(0.5, 1.0))

    options = {"init_step_size": 60.0, "num_steps": 1, "adapt_step_size": False, "adapt_covariance": False}
    chains = run_mcmc(model, "lockstep_hmc", 30, 0, num_chains=200, seed=0, progress=False, kernel_options=options)
    assert bool(torch.isfinite(chains.sample_stats["lp"]).all())
    assert bool((chains.draws["rate"] > 0).all())


def plain_model() -> None:
    centre = pyro.sample("centre", dist.Normal(0.0, 3.0))
    with pyro.plate("rows", 3):
        pyro.sample("row", dist.Normal(centre, 1.0), obs=torch.tensor([1.0, 2.0, 0.5]))


@pytest.mark.parametrize("kernel", ["lockstep_hmc", "nuts", pytest.param("hmc", marks=pytest.mark.slow)])
def test_models_without_a_density_follow_their_own_gradient(kernel: str) -> None:
    many = kernel == "lockstep_hmc"
    chains = run_mcmc(plain_model, kernel, 60 if many else 120, 60, 30 if many else 2, seed=0, progress=False)
    precision = 3 + 1 / 9
    exact = 3.5 / precision + torch.randn(50_000, 1) / math.sqrt(precision)
    assert agree(chains.draws["centre"].unsqueeze(-1), exact)
    stats = chains.sample_stats
    if kernel == "nuts":
        assert torch.allclose(stats["acceptance_rate"], stats["smooth_acceptance_rate"])


@pytest.mark.parametrize("kernel", ["hmc", pytest.param("nuts", marks=pytest.mark.slow)])
def test_discrete_sites_are_summed_out(kernel: str) -> None:
    prior = make_density(dist.Uniform(0.0, 1.0), epsilon=3.0, link="tanh")
    rows = torch.tensor([0.5, 2.5, 2.0])

    def model() -> None:
        weight = pyro.sample("weight", prior)
        with pyro.plate("rows", 3):
            kind = pyro.sample("kind", dist.Bernoulli(weight), infer={"enumerate": "parallel"})
            pyro.sample("row", dist.Normal(3 * kind, 1.0), obs=rows)

    short = {"num_steps": 4} if kernel == "hmc" else {}
    chains = run_mcmc(model, kernel, 40, 30, num_chains=2, seed=0, progress=False, kernel_options=short)
    grid = prior.sample((20_000,)).unsqueeze(-1)
    zero, one = dist.Normal(0.0, 1.0).log_prob(rows).exp(), dist.Normal(3.0, 1.0).log_prob(rows).exp()
    likelihood = ((1 - grid) * zero + grid * one).prod(-1)
    exact = grid[torch.multinomial(likelihood, 20_000, replacement=True)]
    assert agree(chains.draws["weight"].unsqueeze(-1), exact)
    with pytest.raises(ValueError, match=r"model must be one that torch.vmap can vectorise.*Use nuts or hmc"):
        run_mcmc(model, "lockstep_hmc", 5, 5, num_chains=2, progress=False)


@pytest.mark.parametrize("kernel", FOLLOWING)
def test_where_a_predicate_fails_nothing_diverges(kernel: str) -> None:
    density = make_density(BASES["columns-restricted"](), epsilon=2.0)
    chains = run_mcmc(density, kernel, 10, 10, num_chains=2, seed=0, progress=False)
    assert not bool(chains.sample_stats["diverging"].any())
    assert bool(density.support.check(chains.draws["x"]).all())


@pytest.mark.parametrize("kernel", ["hmc", pytest.param("nuts", marks=pytest.mark.slow)])
def test_a_model_that_branches_on_its_values(kernel: str) -> None:
    q = make_density(normal(2), epsilon=3.0, link="tanh")

    def branching() -> None:
        x = pyro.sample("x", q)
        if x[0] > 0:
            pyro.factor("shift", -x[0])

    chains = run_mcmc(branching, kernel, 40, 30, num_chains=2, seed=0, progress=False)
    drawn = q.sample((40_000,))
    exact = drawn[torch.multinomial((-drawn[:, 0].clamp(min=0)).exp(), 20_000, replacement=True)]
    assert agree(chains.draws["x"], exact)


@pytest.mark.slow
def test_masked_entries_and_the_density_in_a_plate() -> None:
    q = steep_density()
    seen = torch.tensor([True, False, True])

    def model() -> None:
        with pyro.plate("rows", 3), pyro.poutine.mask(mask=seen):
            pyro.sample("x", q)

    chains = run_mcmc(model, "lockstep_hmc", 100, 100, 60, seed=0, progress=False)
    exact = exact_draws(200_000)
    for index in (0, 2):
        assert agree(chains.draws["x"][:, :, index], exact)
    idle = chains.draws["x"][:, :, 1]
    assert bool(torch.isfinite(idle).all())


@pytest.mark.parametrize("kernel", FOLLOWING)
def test_resumed_chains_of_a_steep_density_are_those_of_a_longer_run(kernel: str) -> None:
    q = steep_density()

    def model() -> None:
        x = pyro.sample("x", q)
        pyro.sample("y", dist.Normal(x.sum(-1), 1.0), obs=torch.tensor(1.0))

    options: dict[str, Any] = {"num_chains": 2, "seed": 5, "progress": False}
    whole = run_mcmc(model, kernel, 8, 20, **options)
    part = run_mcmc(model, kernel, 3, 20, **options)
    joined = resume_mcmc(part, 5, model=model, progress=False)
    assert torch.equal(joined.draws["x"], whole.draws["x"])
    for name, value in whole.sample_stats.items():
        assert torch.equal(joined.sample_stats[name], value), name


@pytest.mark.slow
def test_a_report_on_good_chains_passes() -> None:
    q = make_density(normal(2), epsilon=3.0, link="tanh")
    report = mixing_report(run_mcmc(q, "lockstep_hmc", 300, 200, 16, seed=0, progress=False))
    assert report.passed, report.failures


@pytest.mark.parametrize("with_smooth", [False, True])
def test_an_energy_that_is_not_a_number_is_an_error(with_smooth: bool) -> None:
    def potential_fn(params: Params) -> Tensor:
        x = params["x"][:, 0]
        return torch.where(x > 0, torch.nan, x.square() / 2)

    smooth = {"smooth_potential_fn": lambda params: params["x"][:, 0].square() / 2} if with_smooth else {}
    kernel = LockstepHMC(potential_fn=potential_fn, **smooth)
    with pytest.raises(ValueError, match="potential energy must be a number, got potential energy=nan"):
        run(kernel, 50, 20, initial_params={"x": -torch.rand(8, 1) - 0.1})


def test_a_short_warmup_does_not_freeze_nuts() -> None:
    chains = run_mcmc(steep_density(), "nuts", 30, 2, 4, seed=0, progress=False, num_workers=1)
    assert all(len(draws.unique(dim=0)) > 10 for draws in chains.draws["x"])
