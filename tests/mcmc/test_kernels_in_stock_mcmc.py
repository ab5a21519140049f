"""Kernels that move many chains, through Pyro's MCMC and what follows it; and Pyro's kernels on a density."""

from __future__ import annotations

import functools
from typing import Any

import arviz
import pyro
import pyro.distributions as dist
import pytest
import torch
from densities import make_density, normal
from invariance import exact_energy, steep_density
from pyro.infer import HMC, MCMC, NUTS, Predictive
from pyro.infer.mcmc import StreamingMCMC
from pyro.infer.mcmc.util import summary

from pyro_mbde import Chains, IndependenceSampler, LockstepHMC, LockstepRandomWalk, MollifiedExpFamily
from pyro_mbde._torch_state import seeded

#: Sites of which the parameter and the value have different shapes among them.
SHAPES = {"centre": (2,), "scale": (), "share": (3,), "factor": (3, 3)}

each_kind = pytest.mark.parametrize("kind", [LockstepRandomWalk, LockstepHMC])
few_cores = pytest.mark.filterwarnings("ignore:num_chains=2 is more than available_cpu")
has_from_pyro = pytest.mark.skipif(not hasattr(arviz, "from_pyro"), reason="ArviZ 1 has no from_pyro")


class Model:
    """Readings of a density's draw, beside sites with supports of all kinds."""

    def __init__(self, prior: MollifiedExpFamily) -> None:
        self.prior = prior

    def __call__(self, rows: torch.Tensor | None = None) -> torch.Tensor:
        centre = pyro.sample("centre", self.prior)
        scale = pyro.sample("scale", dist.Gamma(8.0, 8.0))
        pyro.sample("share", dist.Dirichlet(torch.ones(3)))
        pyro.sample("factor", dist.LKJCholesky(3, 1.0))
        with pyro.plate("rows", 4):
            loc = centre.sum(-1)
            if loc.dim():  # under Predictive's plate of draws
                loc, scale = loc.reshape(-1, 1), scale.reshape(-1, 1)
            return pyro.sample("row", dist.Normal(loc, scale), obs=rows)


ROWS = torch.tensor([0.2, -0.4, 0.9, 0.1])


def run(kernel: Any, num_samples: int = 20, warmup_steps: int = 30, *args: Any, **options: Any) -> Any:
    mcmc = MCMC(kernel, num_samples, warmup_steps, disable_progbar=True, **options)
    mcmc.run(*args)
    return mcmc


@functools.cache
def sampled(kind: Any) -> Any:
    """Eight chains of a kernel, run once for all that is asked of them."""
    with seeded(0):
        return run(kind(Model(make_density(normal(2))), num_chains=8), 20, 15, ROWS)


@each_kind
def test_samples_are_grouped_as_from_so_many_chains(kind: Any) -> None:
    mcmc = sampled(kind)
    draws, grouped = mcmc.get_samples(), mcmc.get_samples(group_by_chain=True)
    for name, shape in SHAPES.items():
        assert (draws[name].shape, grouped[name].shape) == ((160, *shape), (8, 20, *shape))
        assert torch.equal(grouped[name].flatten(0, 1), draws[name])
    assert bool((draws["scale"] > 0).all())
    assert torch.allclose(draws["share"].sum(-1), torch.ones(160))
    # a chain is one row: its states stay now and then, those of another lie elsewhere
    within = (grouped["scale"][:, 1:] - grouped["scale"][:, :-1] == 0).float().mean()
    assert float(within) > (0.2 if kind is LockstepRandomWalk else 0.0)
    assert len(grouped["scale"][:, -1].unique()) == 8


@each_kind
def test_summary_and_diagnostics_are_of_sites(kind: Any, capsys: pytest.CaptureFixture[str]) -> None:
    mcmc = sampled(kind)
    mcmc.summary()
    printed = capsys.readouterr().out
    assert [name for name in ("centre[0]", "centre[1]", "scale") if name in printed] == [
        "centre[0]",
        "centre[1]",
        "scale",
    ]
    assert "scale[" not in printed
    assert summary(mcmc.get_samples(group_by_chain=True))["centre"]["mean"].shape == (2,)
    diagnostics = mcmc.diagnostics()
    assert diagnostics["centre"]["r_hat"].shape == (2,)
    assert 0 < diagnostics["acceptance rate"]["chain 0"] < 1


@each_kind
def test_predictive_takes_the_samples(kind: Any) -> None:
    mcmc = sampled(kind)
    for parallel in (True, False):
        predictive = Predictive(mcmc.kernel.model, mcmc.get_samples(), parallel=parallel)
        assert predictive()["row"].shape == (160, 4)


@has_from_pyro
def test_arviz_takes_the_chains() -> None:
    mcmc = sampled(LockstepHMC)
    data = arviz.from_pyro(mcmc, log_likelihood=False)
    assert data["posterior"]["centre"].shape == (8, 20, 2)
    assert data["observed_data"]["row"].shape == (4,)
    assert arviz.summary(data, var_names=["scale"]).shape[0] == 1


@few_cores
def test_several_runs_of_many_chains() -> None:
    kernel = LockstepRandomWalk(Model(make_density(normal(2))), num_chains=3)
    mcmc = run(kernel, 10, 10, ROWS, num_chains=2)
    assert mcmc.get_samples(group_by_chain=True)["share"].shape == (6, 10, 3)


@few_cores
@each_kind
@pytest.mark.parametrize("num_runs", [1, 2])
def test_a_potential_of_the_users_own(kind: Any, num_runs: int) -> None:
    kernel = kind(potential_fn=lambda params: params["x"].square().flatten(1).sum(-1) / 2)
    starts = torch.randn((num_runs, 5, 2, 3) if num_runs > 1 else (5, 2, 3))
    mcmc = run(kernel, 10, 20, initial_params={"x": starts}, num_chains=num_runs)
    assert mcmc.get_samples(group_by_chain=True)["x"].shape == (5 * num_runs, 10, 2, 3)
    assert mcmc.get_samples()["x"].shape == (50 * num_runs, 2, 3)
    # where MCMC runs kernels in separate processes, this one's is not set up
    transforms = kind(potential_fn=lambda params: params["x"]).transforms
    assert "x" in transforms
    assert transforms["x"].inv(torch.zeros(num_runs, 10, 5, 2, 3)).shape == (5 * num_runs, 10, 2, 3)


@each_kind
def test_streaming_keeps_the_chains_apart(kind: Any, plane: MollifiedExpFamily) -> None:
    mcmc = StreamingMCMC(kind(Model(plane), num_chains=8), 5, 5, disable_progbar=True)
    mcmc.run(ROWS)
    statistics = mcmc.get_statistics()
    assert statistics[0, "scale"]["mean"].shape == (8,)
    assert statistics[0, "share"]["mean"].shape == (8, 3)
    assert bool((statistics[0, "scale"]["mean"] > 0).all())


@pytest.mark.parametrize("base", [normal(2), dist.Normal(0.0, 1.0)])
def test_the_independence_sampler(base: dist.TorchDistribution, capsys: pytest.CaptureFixture[str]) -> None:
    q = make_density(base)
    mcmc = run(IndependenceSampler(q, num_chains=8), 20, 10)
    assert mcmc.get_samples()["x"].shape == (160, *q.event_shape)
    mcmc.summary()
    assert "Number of divergences: 0" in capsys.readouterr().out
    if hasattr(arviz, "from_pyro"):
        assert arviz.from_pyro(mcmc)["posterior"]["x"].shape == (8, 20, *q.event_shape)

    def noisy() -> None:
        pyro.sample("y", dist.Normal(pyro.sample("x", q), 1.0).to_event(len(q.event_shape)))

    assert Predictive(noisy, mcmc.get_samples())()["y"].shape == (160, *q.event_shape)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")
@pytest.mark.parametrize("kernel", [pytest.param(HMC, marks=pytest.mark.slow), NUTS])
def test_stock_kernels_on_a_density(kernel: Any, plane: MollifiedExpFamily) -> None:
    options = {"max_tree_depth": 4} if kernel is NUTS else {"num_steps": 4}
    model = Model(plane)
    mcmc = run(kernel(model, **options), 10, 5, ROWS)
    assert mcmc.get_samples()["centre"].shape == (10, 2)
    assert Predictive(model, mcmc.get_samples(), parallel=True)()["row"].shape == (10, 4)
    if hasattr(arviz, "from_pyro"):
        data = arviz.from_pyro(mcmc, log_likelihood=True)
        assert data["log_likelihood"]["row"].shape == (1, 10, 4)
        assert float(arviz.loo(data).elpd_loo) < 0


def reading() -> torch.Tensor:
    return torch.tensor([1.2, 0.4])


@pytest.mark.parametrize(
    ("kernel", "smooth"),
    [
        pytest.param(NUTS, True, marks=pytest.mark.slow),
        pytest.param(HMC, True, marks=pytest.mark.slow),
        (LockstepHMC, False),
        pytest.param(LockstepHMC, True, marks=pytest.mark.slow),
    ],
)
def test_a_steep_prior_is_sampled_right(kernel: Any, smooth: bool) -> None:
    """Posterior means within four Monte Carlo standard errors of quadrature; Pyro's kernels follow the base."""
    q = steep_density()

    def model() -> None:
        x = pyro.sample("x", q.with_smooth_gradient() if smooth else q)
        pyro.sample("reading", dist.Normal(x, 0.8).to_event(1), obs=reading())

    axis = torch.linspace(-5, 5, 600, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    mass = (-exact_energy({"x": grid}) - ((grid - reading()) / 0.8).square().sum(-1) / 2).softmax(0)
    truth = mass @ grid
    if kernel is LockstepHMC:
        draws = run(kernel(model, num_chains=250), 40, 40).get_samples(group_by_chain=True)["x"]
    else:
        options = {"num_steps": 3, "step_size": 0.5, "adapt_step_size": False} if kernel is HMC else {}
        options |= {"target_accept_prob": 0.5, "max_tree_depth": 4} if kernel is NUTS else {}
        draws = run(kernel(model, **options), 3000 if kernel is HMC else 1500, 200).get_samples()["x"].unsqueeze(0)
    data = Chains({"x": draws}, {}, tuple(range(len(draws))), 0, "stock").to_arviz()
    assert float(arviz.ess(data)["x"].min()) > (40 if kernel is HMC else 100)
    error = torch.as_tensor(arviz.mcse(data, method="mean")["x"].to_numpy())
    assert bool(((draws.double().mean((0, 1)) - truth).abs() < 4 * error).all())
