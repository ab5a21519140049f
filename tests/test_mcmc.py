"""Markov chains through Pyro: right means, own seeds and starts, ArviZ."""

from __future__ import annotations

import math

import arviz
import pyro
import pyro.distributions as dist
import pytest
import torch
from densities import BASES, make_density, normal

from pyro_mbde import Chains, MollifiedExpFamily, run_mcmc
from pyro_mbde.sampling.kernels import RandomWalk
from pyro_mbde.sampling.mcmc import KERNELS


@pytest.fixture(scope="module")
def skewed() -> MollifiedExpFamily:
    """An asymmetric density in the plane."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return make_density(normal(2), epsilon=5.0, link="tanh")


def standard_errors(chains: Chains) -> torch.Tensor:
    summary = arviz.mcse(chains.to_arviz(), method="mean")["x"]
    return torch.as_tensor(summary.to_numpy())


@pytest.mark.parametrize(("kernel", "num_samples"), [("random_walk", 6000), ("hmc", 700), ("nuts", 500)])
def test_means_against_exact_draws(skewed: MollifiedExpFamily, kernel: str, num_samples: int) -> None:
    chains = run_mcmc(skewed, kernel, num_samples, warmup_steps=300, num_chains=2, seed=1, progress=False)
    exact = skewed.sample((200_000,))
    ess = arviz.ess(chains.to_arviz())["x"].to_numpy()
    assert ess.min() >= 200  # else the standard errors below mean nothing
    for power in (1, 2):
        moments = Chains(
            {"x": chains.draws["x"] ** power}, chains.sample_stats, chains.seeds, chains.warmup_steps, chains.kernel
        )
        error = (standard_errors(moments) ** 2 + (exact**power).var(0) / len(exact)).sqrt()
        difference = moments.draws["x"].mean((0, 1)) - (exact**power).mean(0)
        assert bool((difference.abs() < 4.5 * error).all())


@pytest.mark.parametrize(
    "name", ["uniform-box", "log-normal", "exponential", "student-t", "dirichlet", "normal-scalar"]
)
def test_constrained_supports(name: str) -> None:
    density = make_density(BASES[name](), link="tanh")
    chains = run_mcmc(density, "nuts", 300, warmup_steps=150, num_chains=2, seed=3, progress=False)
    draws = chains.draws["x"]
    assert draws.shape == (2, 300, *density.event_shape)
    assert bool(density.support.check(draws).all())
    exact = density.sample((100_000,)).reshape(100_000, -1)
    # shares below quantiles in place of means, which a heavy tail does not have
    for level in (0.25, 0.5, 0.75):
        below = (draws.reshape(2, 300, -1) <= torch.quantile(exact, level, dim=0)).double()
        indicators = Chains({"x": below}, {}, chains.seeds, chains.warmup_steps, chains.kernel)
        ess = torch.as_tensor(arviz.ess(indicators.to_arviz(), method="mean")["x"].to_numpy())
        assert float(ess.min()) >= 50
        error = (level * (1 - level) / ess).sqrt()
        assert bool(((below.mean((0, 1)) - level).abs() < 5 * error).all())


@pytest.mark.parametrize("kernel", KERNELS)
def test_seeds_and_starts(skewed: MollifiedExpFamily, kernel: str) -> None:
    def run(seed: int | None) -> Chains:
        return run_mcmc(skewed, kernel, num_samples=4, warmup_steps=2, num_chains=3, seed=seed, progress=False)

    state = torch.get_rng_state()
    first = run(7)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.draws["x"], run(7).draws["x"])
    assert first.seeds == run(7).seeds
    assert len(set(first.seeds)) == 3
    assert not torch.equal(first.draws["x"], run(8).draws["x"])
    # without a seed every run differs, and Pyro's seed governs it
    pyro.set_rng_seed(5)
    second, third = run(None), run(None)
    assert not torch.equal(second.draws["x"], third.draws["x"])
    assert set(second.seeds).isdisjoint(third.seeds)
    pyro.set_rng_seed(5)
    assert torch.equal(run(None).draws["x"], second.draws["x"])
    assert len(torch.unique(first.draws["x"][:, 0], dim=0)) == 3


def test_chains_do_not_depend_on_how_many_run(skewed: MollifiedExpFamily) -> None:
    """No adaptation is handed from one chain to the next."""
    one = run_mcmc(skewed, "nuts", 10, 20, num_chains=1, seed=7, progress=False)
    two = run_mcmc(skewed, "nuts", 10, 20, num_chains=2, seed=7, progress=False)
    assert torch.equal(one.draws["x"][0], two.draws["x"][0])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("num_samples", [1, 3])
def test_tiny_runs(skewed: MollifiedExpFamily, kernel: str, num_samples: int) -> None:
    chains = run_mcmc(skewed, kernel, num_samples, warmup_steps=0, num_chains=1, progress=False)
    assert chains.draws["x"].shape == (1, num_samples, 2)


@pytest.mark.parametrize("kernel", KERNELS)
def test_sample_stats(skewed: MollifiedExpFamily, kernel: str) -> None:
    chains = run_mcmc(skewed, kernel, 50, warmup_steps=50, num_chains=2, seed=1, progress=False)
    expected = {"lp", "acceptance_rate", "step_size"} | (set() if kernel == "random_walk" else {"diverging"})
    assert set(chains.sample_stats) == expected
    assert all(value.shape == (2, 50) for value in chains.sample_stats.values())
    rate = chains.sample_stats["acceptance_rate"]
    assert bool(((rate >= 0) & (rate <= 1)).all())
    assert 0.05 < float(rate.mean()) < 1
    # the base is standardised to itself, so the unconstrained log-density differs from log_prob by a constant
    difference = chains.sample_stats["lp"] - skewed.log_prob(chains.draws["x"])
    assert float(difference.std()) < 1e-4


def test_to_arviz(skewed: MollifiedExpFamily) -> None:
    chains = run_mcmc(skewed, "hmc", 60, warmup_steps=50, num_chains=2, seed=1, progress=False)
    data = chains.to_arviz()
    assert data["posterior"]["x"].shape == (2, 60, 2)
    assert data["sample_stats"]["diverging"].shape == (2, 60)
    assert data["posterior"].attrs["sampler"] == "hmc"
    assert list(data["posterior"].attrs["seeds"]) == list(chains.seeds)
    summary = arviz.summary(data)
    assert summary.shape[0] == 2
    for statistic in (arviz.rhat, arviz.ess, arviz.mcse):
        assert statistic(data)["x"].shape == (2,)


def test_a_model_with_the_density_as_its_prior(skewed: MollifiedExpFamily) -> None:
    data = torch.randn(10, 2) * 0.5 + 0.7

    def model(rows: torch.Tensor, scale: float = 1.0) -> None:
        centre = pyro.sample("centre", skewed)
        spread = pyro.sample("spread", dist.LogNormal(0.0, 0.5))
        with pyro.plate("rows", len(rows)):
            pyro.sample("row", dist.Normal(centre, scale * spread).to_event(1), obs=rows)

    for kernel in KERNELS:
        chains = run_mcmc(
            model, kernel, 60, 60, num_chains=2, seed=0, progress=False, model_args=(data,), model_kwargs={"scale": 0.5}
        )
        assert chains.draws["centre"].shape == (2, 60, 2)
        assert bool((chains.draws["spread"] > 0).all())
        assert arviz.summary(chains.to_arviz()).shape[0] == 3


def test_random_walk_starts_where_it_is_told_and_adapts_in_warmup_alone() -> None:
    kernel = RandomWalk(lambda params: params["x"].square().sum() / 2)
    steps: dict[str, list[float]] = {"Warmup": [], "Sample": []}

    def record(kernel: RandomWalk, params: dict[str, torch.Tensor], stage: str, index: int) -> None:
        steps[stage].append(math.exp(kernel._log_step_size))

    start = {"x": torch.tensor([40.0, 0.0])}
    pyro.infer.MCMC(
        kernel, num_samples=20, warmup_steps=20, initial_params=start, hook_fn=record, disable_progbar=True
    ).run()
    assert torch.equal(kernel.initial_params["x"], start["x"])
    assert len(set(steps["Warmup"])) == 20
    assert set(steps["Sample"]) == {steps["Warmup"][-1]}
    fixed = RandomWalk(lambda params: params["x"].square().sum() / 2)
    mcmc = pyro.infer.MCMC(fixed, num_samples=5, warmup_steps=0, initial_params=start, disable_progbar=True)
    mcmc.run()
    assert math.exp(fixed._log_step_size) == pytest.approx(2.4 / math.sqrt(2))
    assert float((mcmc.get_samples()["x"][0] - start["x"]).abs().max()) < 10


@pytest.mark.parametrize("step_size", [0.0, -1.0, math.nan])
def test_step_size_out_of_range(step_size: float) -> None:
    with pytest.raises(ValueError, match="init_step_size must be above 0"):
        run_mcmc(normal(1), "random_walk", 5, 5, progress=False, kernel_options={"init_step_size": step_size})


def test_an_interrupted_run_leaves_no_trace() -> None:
    class Interrupting(torch.nn.Module):
        """Interrupts at its hundredth evaluation."""

        count = 0

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            Interrupting.count += 1
            if Interrupting.count > 100:
                raise KeyboardInterrupt
            return value[..., :1]

    density = MollifiedExpFamily(normal(2), Interrupting(), torch.tensor([0.1]), 0.0)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt):
        run_mcmc(density, "random_walk", 500, 500, num_chains=2, seed=0, progress=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert torch.distributions.Distribution._validate_args


def test_nan_energy_is_an_error_that_names_the_site() -> None:
    def model() -> None:
        x = pyro.sample("depth", dist.Normal(0.0, 1.0))
        pyro.factor("hole", torch.where(x.abs() < 1e9, torch.tensor(math.nan), 0.0))

    with pytest.raises(ValueError, match="cannot find valid initial params"):
        run_mcmc(model, "random_walk", 10, 10, num_chains=1, progress=False)

    def later() -> None:
        x = pyro.sample("depth", dist.Normal(0.0, 1.0))
        pyro.factor("hole", torch.where(x > 0, torch.tensor(math.nan), 0.0))

    with pytest.raises(
        ValueError, match="potential energy must be a number, got potential energy=nan. There, all of depth are finite"
    ):
        run_mcmc(later, "random_walk", 200, 10, num_chains=2, progress=False)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"kernel": "gibbs"}, ValueError, "kernel must be one of random_walk, hmc, nuts, got kernel='gibbs'"),
        ({"num_samples": 0}, ValueError, "num_samples must be at least 1"),
        ({"warmup_steps": -1}, ValueError, "warmup_steps must be at least 0"),
        ({"num_chains": 0}, ValueError, "num_chains must be at least 1"),
        ({"num_chains": 1.5}, TypeError, "num_chains must be a whole number"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
        ({"model_args": torch.tensor(1.0)}, TypeError, "model_args must be a tuple"),
        ({"model": 3}, TypeError, "model must be a distribution or a Pyro model"),
        ({"model": dist.Poisson(3.0)}, ValueError, "model must have continuous support"),
        ({"model": dist.Normal(torch.zeros(2), 1.0)}, ValueError, "model must have an empty batch shape"),
        ({"model": lambda: None}, ValueError, "model must have a continuous latent site"),
    ],
)
def test_arguments(arguments: dict[str, object], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        run_mcmc(**{"model": normal(2), "progress": False, **arguments})  # type: ignore[arg-type]


def test_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    run_mcmc(normal(1), "random_walk", 20, 10, num_chains=2, seed=0)
    assert "60/60" in capsys.readouterr().err
    run_mcmc(normal(1), "random_walk", 20, 10, num_chains=2, seed=0, progress=False)
    assert capsys.readouterr().err == ""
