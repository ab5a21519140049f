"""Markov chains on densities over columns of all kinds: the latent target, its kernels, and what they are told."""

from __future__ import annotations

import math

import arviz
import pyro
import pytest
import torch
from densities import BASES, BATCHES, MIXED, make_density
from torch import Tensor

from pyro_mbde import Chains, mixing_report, plot_mixing, resume_mcmc, run_mcmc
from pyro_mbde.diagnostics.parameters import scalar_parameters
from pyro_mbde.mcmc.latent_target import LatentTarget

ALL = BASES | BATCHES
WALKED = [*sorted(MIXED), "columns-finite", "columns-finite-both", "batch-columns"]


@pytest.mark.parametrize("name", WALKED)
def test_rows_are_in_the_support_and_lead_back(name: str) -> None:
    density = make_density(ALL[name]())
    target = LatentTarget(density)
    starts = target.starts(50)
    values = target.constrain(starts)
    assert values["x"].dtype == density.dtype
    assert bool(density.support.check(values["x"]).all())
    again = target.constrain(target.unconstrain(values))
    assert torch.allclose(again["x"], values["x"], atol=1e-4)
    energy = target.batched_potential_fn(starts)
    single = torch.stack([target.potential_fn({"x": point}) for point in starts["x"][:5]])
    assert torch.allclose(energy[:5], single, atol=1e-5)
    assert bool((target.lower_bound_fn(starts) <= energy).all())


@pytest.mark.parametrize("name", WALKED)
def test_the_potential_is_that_of_the_density(name: str) -> None:
    """Importance sampling from the base of the scores: means of columns as those of exact draws."""
    density = make_density(ALL[name](), epsilon=3.0)
    target = LatentTarget(density)
    scores = torch.randn(20_000, *density.event_shape, dtype=torch.float64)
    log_weights = -target.batched_potential_fn({"x": scores}) + scores.square().flatten(1).sum(1) / 2
    weights = log_weights.softmax(0)
    values = target.constrain({"x": scores})["x"].double()
    mean = torch.tensordot(weights, values, 1)
    exact = density.sample((10_000,)).double()
    error = exact.std(0) * math.sqrt(1 / len(exact) + float((weights**2).sum()))
    assert bool(((mean - exact.mean(0)).abs() < 4.5 * error).all())


def test_a_row_that_a_predicate_forbids_has_no_density() -> None:
    base = BASES["columns-real-restricted"]()
    target = LatentTarget(make_density(base))
    scores = torch.randn(200, 2, dtype=torch.float64)
    allowed = base.allowed(target.constrain({"x": scores})["x"])
    assert torch.equal(torch.isfinite(target.batched_potential_fn({"x": scores})), allowed)
    assert bool(allowed.any())
    assert not bool(allowed.all())


def effective_size(values: Tensor) -> float:
    chains = Chains({"v": values}, {}, tuple(range(len(values))), 0, "by hand")
    return float(arviz.ess(chains.to_arviz(), method="mean")["v"])


#: Number of chains, of draws of each and of warm-up steps, by kernel.
RUNS = {
    "lockstep_random_walk": (128, 250, 120),
    "lockstep_hmc": (128, 60, 60),
    "hmc": (2, 600, 300),
    "nuts": (2, 500, 300),
}
QUICK = {("lockstep_random_walk", "columns"), ("lockstep_random_walk", "columns-finite-both")}
QUICK |= {("lockstep_hmc", "columns-restricted")}


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        pytest.param(kernel, name, marks=[] if (kernel, name) in QUICK else [pytest.mark.slow])
        for kernel in RUNS
        for name in ("columns", "columns-restricted", "columns-finite-both", "batch-columns")
        if kernel.startswith("lockstep") or name == "columns-restricted"
    ],
)
def test_chains_agree_with_exact_draws(kernel: str, name: str) -> None:
    """Share of each value, or below each quartile, within the error that the effective number of draws leaves."""
    density = make_density(ALL[name](), epsilon=3.0)
    num_chains, num_samples, warmup_steps = RUNS[kernel]
    chains = run_mcmc(density, kernel, num_samples, warmup_steps, num_chains=num_chains, seed=0, progress=False)
    exact = Chains({"x": density.sample((1, 20_000))}, {}, (0,), 0, "exact")
    theirs = scalar_parameters(exact)
    for parameter, drawn in scalar_parameters(chains).items():
        reference, draws = torch.tensor(theirs[parameter][0]), torch.tensor(drawn)
        for level in (0.25, 0.5, 0.75):
            at = torch.quantile(reference, level)
            below, expected = (draws <= at).double(), float((reference <= at).double().mean())
            if not 0 < float(below.mean()) < 1:
                assert expected in (0.0, 1.0)
                continue
            size = effective_size(below)
            assert size > (400 if num_chains > 2 else 100)
            error = math.sqrt(expected * (1 - expected) * (1 / size + 1 / len(reference)))
            assert abs(float(below.mean()) - expected) < 4.5 * error, (parameter, level)
    assert bool(density.support.check(chains.draws["x"]).all())
    assert mixing_report(chains).checks[-1].outcome == "ok"


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param("random_walk", marks=pytest.mark.slow),
        "lockstep_random_walk",
        "lockstep_hmc",
        pytest.param("hmc", marks=pytest.mark.slow),
        pytest.param("nuts", marks=pytest.mark.slow),
        pytest.param("independence", marks=pytest.mark.slow),
    ],
)
def test_what_chains_of_columns_can_do(kernel: str) -> None:
    density = make_density(BASES["columns"]())
    chains = run_mcmc(density, kernel, 30, 20, num_chains=2, seed=0, progress=False, num_workers=1)
    longer = resume_mcmc(chains, 10, progress=False, num_workers=1)
    assert longer.draws["x"].shape == (2, 40, 5)
    assert bool(density.support.check(longer.draws["x"]).all())
    names = ["weight", "day", "grade", "sex", "score"]
    report = mixing_report(chains, names=names)
    assert [parameter.name for parameter in report.parameters] == names
    plot_mixing(chains, names=names)
    data = chains.to_arviz({"column": names}, {"x": ["column"]})
    assert data["posterior"]["x"].sel(column="sex").shape == (2, 30)


def test_values_to_start_from() -> None:
    density = make_density(BASES["columns-correlated"]())
    values = density.sample((3,))
    options = {"seed": 0, "num_chains": 3, "progress": False, "kernel_options": {"init_step_size": 1e-9}}
    chains = run_mcmc(density, "lockstep_random_walk", 1, 0, initial_values={"x": values}, **options)
    assert torch.allclose(chains.draws["x"][:, 0], values, atol=1e-4)
    wrong = values.clone()
    wrong[0, 0] = 0.5  # between two levels
    with pytest.raises(ValueError, match="initial_values must have a density above 0"):
        run_mcmc(density, "lockstep_random_walk", 1, 0, initial_values={"x": wrong}, **options)


def test_numbers_alone_are_sampled_by_gradients() -> None:
    density = make_density(BASES["columns-real"](), link="tanh", gain=1.0)
    chains = run_mcmc(density, "nuts", 20, 20, num_chains=1, seed=0, progress=False)
    assert bool(density.support.check(chains.draws["x"]).all())


@pytest.mark.parametrize("kernel", ["lockstep_random_walk", "lockstep_hmc"])
def test_a_base_is_sampled_too(kernel: str) -> None:
    num_samples = 40 if kernel == "lockstep_hmc" else 160
    chains = run_mcmc(BASES["columns-restricted"](), kernel, num_samples, 100, 64, seed=0, progress=False)
    assert mixing_report(chains).checks[-1].outcome == "ok"


def test_rows_within_a_model() -> None:
    """A latent row is refused; as a function of normal scores, with the tilt as a factor, it is sampled."""
    density = make_density(BASES["columns"](), epsilon=3.0)

    def direct() -> None:
        row = pyro.sample("x", density)
        pyro.sample("y", pyro.distributions.Normal(row[..., 0], 0.5), obs=torch.tensor(1.0))

    with pytest.raises(ValueError, match="model must have latent sites that are continuous or can be enumerated"):
        run_mcmc(direct, "lockstep_random_walk", 10, progress=False)

    def latent() -> None:
        scores = pyro.sample("z", pyro.distributions.Normal(torch.zeros(5), 1.0).to_event(1))
        row = density.base.from_uniforms(torch.special.ndtr(scores.double()))
        pyro.factor("tilt", density.tilt(row))
        pyro.sample("y", pyro.distributions.Normal(row[..., 0], 0.5), obs=torch.tensor(1.0))

    chains = run_mcmc(latent, "lockstep_random_walk", 100, 120, num_chains=64, seed=0, progress=False)
    uniforms = torch.special.ndtr(chains.draws["z"].double().flatten(0, 1))
    rows = density.base.from_uniforms(uniforms).reshape(64, 100, 5).double()
    exact = density.sample((30_000,))
    weights = pyro.distributions.Normal(exact[:, 0], 0.5).log_prob(torch.tensor(1.0)).double().softmax(0)
    for column in range(5):
        share = (rows[..., column] <= exact[:, column].median()).double()
        expected = float((weights * (exact[:, column] <= exact[:, column].median())).sum())
        error = math.sqrt(expected * (1 - expected) * (1 / effective_size(share) + float((weights**2).sum())))
        assert abs(float(share.mean()) - expected) < 4.5 * error
