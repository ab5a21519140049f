"""Posterior means and quantiles of five models, for every kernel that applies."""

from __future__ import annotations

import math

import arviz
import pyro
import pytest
import torch
from truths import LEVELS, PROBLEMS, Problem

from pyro_mbde import Chains, run_mcmc
from pyro_mbde.diagnostics.parameters import scalar_parameters
from pyro_mbde.mcmc.kernels import KERNELS

#: Draws of each of four chains: enough for an effective sample size of 400 and more.
NUM_SAMPLES = {
    "random_walk": {"hierarchy": 8000, "default": 2000},
    "lockstep_random_walk": {"hierarchy": 8000, "default": 4000},
    "hmc": {"hierarchy": 600, "default": 400},
    "nuts": {"hierarchy": 500, "default": 400},
    "lockstep_hmc": {"hierarchy": 1000, "default": 500},
    "independence": {"default": 1000},
}
SLOW = {
    ("random_walk", "normal mean"),
    ("random_walk", "skewed rate"),
    ("random_walk", "on a box"),
    ("random_walk", "density itself"),
    ("hmc", "normal mean"),
    ("hmc", "skewed rate"),
    ("hmc", "density itself"),
    ("lockstep_random_walk", "normal mean"),
    ("lockstep_hmc", "normal mean"),
    ("nuts", "normal mean"),
    ("nuts", "skewed rate"),
    ("hmc", "on a box"),
    ("nuts", "on a box"),
    ("nuts", "density itself"),
    *((kernel, "hierarchy") for kernel in KERNELS),
}
#: Of which many more chains of the lockstep kernels are below.
MANY = ("skewed rate", "on a box", "density itself")
CASES = [
    pytest.param(kernel, problem, marks=[pytest.mark.slow] if (kernel, problem) in SLOW else [])
    for kernel in KERNELS
    for problem in PROBLEMS
    if (kernel != "independence" or problem == "density itself")
    and (not kernel.startswith("lockstep") or problem not in MANY)
]


def statistic(function: object, chains: Chains, name: str, **options: object) -> float:
    values = scalar_parameters(chains)[name]
    single = Chains({"v": torch.tensor(values)}, {}, chains.seeds, 0, chains.kernel)
    return float(function(single.to_arviz(), **options)["v"])  # type: ignore[operator]


@pytest.mark.parametrize(("kernel", "name"), CASES)
def test_means_and_quantiles(kernel: str, name: str) -> None:
    problem: Problem = PROBLEMS[name](400)
    lengths = NUM_SAMPLES[kernel]
    num_samples = lengths.get(name, lengths["default"])
    chains = run_mcmc(problem.model, kernel, num_samples, 500, num_chains=4, seed=0, progress=False)
    for parameter, truth in problem.truths.items():
        draws = torch.tensor(scalar_parameters(chains)[parameter])
        assert statistic(arviz.ess, chains, parameter) >= 400
        error = statistic(arviz.mcse, chains, parameter, method="mean")
        assert abs(float(draws.mean()) - truth.mean) < 4 * error
        for level, quantile in zip(LEVELS, truth.quantiles, strict=True):
            error = statistic(arviz.mcse, chains, parameter, method="quantile", prob=level)
            assert abs(float(torch.quantile(draws.flatten(), level)) - quantile) < 4 * error


@pytest.mark.parametrize(
    ("name", "num_chains"),
    [("density itself", 512), *(pytest.param(name, 1024, marks=pytest.mark.slow) for name in MANY)],
)
@pytest.mark.parametrize("kernel", ["lockstep_random_walk", "lockstep_hmc"])
def test_many_chains_have_no_bias(kernel: str, name: str, num_chains: int) -> None:
    """Two hundred thousand draws or so, effectively: shares below the true quantiles, to half a per cent."""
    problem = PROBLEMS[name](400)
    num_samples = 1500 if kernel == "lockstep_random_walk" else 150
    chains = run_mcmc(problem.model, kernel, num_samples, 150, num_chains=num_chains, seed=0, progress=False)
    for parameter, truth in problem.truths.items():
        draws = torch.tensor(scalar_parameters(chains)[parameter])
        for level, quantile in zip(LEVELS, truth.quantiles, strict=True):
            shares = (draws <= quantile).double().mean(1)  # of independent chains
            error = float(shares.std()) / math.sqrt(len(shares))
            assert error < 2e-3 * math.sqrt(1024 / num_chains)
            assert abs(float(shares.mean()) - level) < 4.5 * error


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "on a box" else []) for name in sorted(PROBLEMS)]
)
def test_the_truths_hold(name: str) -> None:
    """By importance sampling from the prior, or exact draws; and the grid is fine enough."""
    problem = PROBLEMS[name](400)
    finer = PROBLEMS[name](800)
    if hasattr(problem.model, "sample"):
        rows = {"x": problem.model.sample((100_000,)).double()}
        weights = torch.full((100_000,), 1e-5, dtype=torch.float64)
    else:
        num_draws = 100_000

        def wide() -> None:
            with pyro.plate("importance", num_draws, dim=-2):
                problem.model()

        trace = pyro.poutine.trace(wide).get_trace()
        trace.compute_log_prob()
        latent = [site for site in trace.stochastic_nodes if site not in ("importance", "people", "days", "groups")]
        log_weight = sum(
            trace.nodes[site]["log_prob"].double().reshape(num_draws, -1).sum(-1) for site in trace.observation_nodes
        )
        weights = torch.as_tensor(log_weight).softmax(0)
        rows = {site: trace.nodes[site]["value"].double().reshape(num_draws, -1).squeeze(-1) for site in latent}
    for parameter, truth in problem.truths.items():
        site, _, index = parameter.rstrip("]").partition("[")
        values = rows[site][:, int(index)] if index else rows[site]
        effective = 1 / float((weights**2).sum())
        assert effective > 500
        mean = float((weights * values).sum())
        deviation = math.sqrt(float((weights * (values - mean) ** 2).sum()))
        assert abs(mean - truth.mean) < 4.5 * deviation / math.sqrt(effective)
        for level, quantile in zip(LEVELS, truth.quantiles, strict=True):
            below = float((weights * (values <= quantile)).sum())
            assert abs(below - level) < 4.5 * math.sqrt(level * (1 - level) / effective)
        fine = finer.truths[parameter]
        assert abs(fine.mean - truth.mean) < 2e-3 * deviation
        assert all(abs(a - b) < 5e-3 * deviation for a, b in zip(fine.quantiles, truth.quantiles, strict=True))
