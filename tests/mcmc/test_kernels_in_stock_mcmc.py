"""Kernels that move many chains, through Pyro's MCMC and what follows it; and Pyro's kernels on a density."""

from __future__ import annotations

from typing import Any

import arviz
import pyro
import pyro.distributions as dist
import pytest
import torch
from densities import make_density, normal
from pyro.infer import HMC, MCMC, NUTS, Predictive
from pyro.infer.mcmc import StreamingMCMC
from pyro.infer.mcmc.util import summary

from pyro_mbde import IndependenceSampler, LockstepRandomWalk, MollifiedExpFamily

#: Sites of which the parameter and the value have different shapes among them.
SHAPES = {"centre": (2,), "scale": (), "share": (3,), "factor": (3, 3)}

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


def test_samples_are_grouped_as_from_so_many_chains(plane: MollifiedExpFamily) -> None:
    mcmc = run(LockstepRandomWalk(Model(plane), num_chains=8), 20, 30, ROWS)
    draws, grouped = mcmc.get_samples(), mcmc.get_samples(group_by_chain=True)
    for name, shape in SHAPES.items():
        assert (draws[name].shape, grouped[name].shape) == ((160, *shape), (8, 20, *shape))
        assert torch.equal(grouped[name].flatten(0, 1), draws[name])
    assert bool((draws["scale"] > 0).all())
    assert torch.allclose(draws["share"].sum(-1), torch.ones(160))
    # a chain is one row: its states stay or move by a step, those of another lie elsewhere
    within = (grouped["scale"][:, 1:] - grouped["scale"][:, :-1] == 0).float().mean()
    assert float(within) > 0.2


def test_summary_and_diagnostics_are_of_sites(plane: MollifiedExpFamily, capsys: pytest.CaptureFixture[str]) -> None:
    mcmc = run(LockstepRandomWalk(Model(plane), num_chains=8), 20, 30, ROWS)
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


def test_predictive_takes_the_samples(plane: MollifiedExpFamily) -> None:
    model = Model(plane)
    mcmc = run(LockstepRandomWalk(model, num_chains=8), 20, 30, ROWS)
    for parallel in (True, False):
        assert Predictive(model, mcmc.get_samples(), parallel=parallel)()["row"].shape == (160, 4)


@has_from_pyro
def test_arviz_takes_the_chains(plane: MollifiedExpFamily) -> None:
    mcmc = run(LockstepRandomWalk(Model(plane), num_chains=8), 20, 30, ROWS)
    data = arviz.from_pyro(mcmc, log_likelihood=False)
    assert data["posterior"]["centre"].shape == (8, 20, 2)
    assert data["observed_data"]["row"].shape == (4,)
    assert arviz.summary(data, var_names=["scale"]).shape[0] == 1


@few_cores
def test_several_runs_of_many_chains() -> None:
    kernel = LockstepRandomWalk(Model(make_density(normal(2))), num_chains=3)
    mcmc = run(kernel, 20, 30, ROWS, num_chains=2)
    assert mcmc.get_samples(group_by_chain=True)["share"].shape == (6, 20, 3)


@few_cores
@pytest.mark.parametrize("num_runs", [1, 2])
def test_a_potential_of_the_users_own(num_runs: int) -> None:
    kernel = LockstepRandomWalk(potential_fn=lambda params: params["x"].square().flatten(1).sum(-1) / 2)
    starts = torch.randn((num_runs, 5, 2, 3) if num_runs > 1 else (5, 2, 3))
    mcmc = run(kernel, 10, 20, initial_params={"x": starts}, num_chains=num_runs)
    assert mcmc.get_samples(group_by_chain=True)["x"].shape == (5 * num_runs, 10, 2, 3)
    assert mcmc.get_samples()["x"].shape == (50 * num_runs, 2, 3)
    # where MCMC runs kernels in separate processes, this one's is not set up
    transforms = LockstepRandomWalk(potential_fn=lambda params: params["x"]).transforms
    assert "x" in transforms
    assert transforms["x"].inv(torch.zeros(num_runs, 10, 5, 2, 3)).shape == (5 * num_runs, 10, 2, 3)


def test_streaming_keeps_the_chains_apart(plane: MollifiedExpFamily) -> None:
    mcmc = StreamingMCMC(LockstepRandomWalk(Model(plane), num_chains=8), 20, 30, disable_progbar=True)
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
    mcmc = run(kernel(model, **options), 20, 30, ROWS)
    assert mcmc.get_samples()["centre"].shape == (20, 2)
    assert Predictive(model, mcmc.get_samples(), parallel=True)()["row"].shape == (20, 4)
    if hasattr(arviz, "from_pyro"):
        data = arviz.from_pyro(mcmc, log_likelihood=True)
        assert data["log_likelihood"]["row"].shape == (1, 20, 4)
        assert float(arviz.loo(data).elpd_loo) < 0
