"""Markov chains through Pyro: constrained supports, own seeds and starts, ArviZ."""

from __future__ import annotations

import math
import pickle
import sys
from types import ModuleType
from typing import Any

import arviz
import pyro
import pyro.distributions as dist
import pytest
import torch
from densities import BASES, make_density, normal

from pyro_mbde import Chains, MollifiedExpFamily, resume_mcmc, run_mcmc
from pyro_mbde.mcmc.kernels import KERNELS, Kernel
from pyro_mbde.mcmc.random_walk import LockstepRandomWalk
from pyro_mbde.mcmc.target import Target


@pytest.fixture(scope="module")
def skewed() -> MollifiedExpFamily:
    """An asymmetric density in the plane."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return make_density(normal(2), epsilon=5.0, link="tanh")


@pytest.mark.parametrize(
    "name",
    [
        "uniform-box",
        pytest.param("log-normal", marks=pytest.mark.slow),
        pytest.param("student-t", marks=pytest.mark.slow),
        pytest.param("dirichlet", marks=pytest.mark.slow),
    ],
)
def test_constrained_supports(name: str) -> None:
    density = make_density(BASES[name](), link="tanh")
    options = {"max_tree_depth": 4}
    chains = run_mcmc(density, "nuts", 150, 60, num_chains=2, seed=3, progress=False, kernel_options=options)
    draws = chains.draws["x"]
    assert draws.shape == (2, 150, *density.event_shape)
    assert bool(density.support.check(draws).all())
    exact = density.sample((40_000,)).reshape(40_000, -1)
    # shares below quantiles in place of means, which a heavy tail does not have
    for level in (0.25, 0.5, 0.75):
        below = (draws.reshape(2, 150, -1) <= torch.quantile(exact, level, dim=0)).double()
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
    run_mcmc(skewed, kernel, 2, 2, 3, seed=1, progress=False, initial_values={"x": torch.zeros(3, 2)})
    assert torch.equal(torch.get_rng_state(), state)
    again = run(7)
    assert torch.equal(first.draws["x"], again.draws["x"])
    assert first.seeds == again.seeds
    assert len(set(first.seeds)) == (1 if KERNELS[kernel].lockstep else 3)
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
    followed = {"step_size", "smooth_acceptance_rate", "energy", "diverging", "n_steps"}
    own = {"independence": {"total_variation"}, **dict.fromkeys(("hmc", "nuts", "lockstep_hmc"), followed)}
    assert set(chains.sample_stats) == {"lp", "acceptance_rate"} | own.get(kernel, {"step_size"})
    assert all(value.shape == (2, 50) for value in chains.sample_stats.values())
    rate = chains.sample_stats["acceptance_rate"]
    assert bool(((rate >= 0) & (rate <= 1)).all())
    assert 0.05 < float(rate.mean()) < 1
    # the base is standardised to itself, so the unconstrained log-density differs from log_prob by a constant
    difference = chains.sample_stats["lp"] - skewed.log_prob(chains.draws["x"])
    assert float(difference.std()) < 1e-4
    if "energy" in chains.sample_stats:  # potential and kinetic energy of two coordinates, each of mean about 1
        kinetic = chains.sample_stats["energy"][:, 1:] + chains.sample_stats["lp"][:, :-1]
        assert bool((kinetic > 0).all())
        assert 0.6 < float(kinetic.mean()) < 1.5


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

    short = {"nuts": {"max_tree_depth": 3}, "hmc": {"num_steps": 4}}
    given: dict[str, Any] = {"model_args": (data,), "model_kwargs": {"scale": 0.5}}
    for kernel in sorted(set(KERNELS) - {"independence"}):
        given["kernel_options"] = short.get(kernel)
        chains = run_mcmc(model, kernel, 20, 20, num_chains=2, seed=0, progress=False, **given)
        assert chains.draws["centre"].shape == (2, 20, 2)
        assert bool((chains.draws["spread"] > 0).all())
        assert arviz.summary(chains.to_arviz()).shape[0] == 3


class Interrupting(torch.nn.Module):
    """Interrupts after a number of evaluations."""

    def __init__(self, num_evaluations: int) -> None:
        super().__init__()
        self.left = [num_evaluations]

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.left[0] -= 1
        if self.left[0] < 0:
            raise KeyboardInterrupt
        return value[..., :1]


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_interrupt_in_warmup_changes_nothing(kernel: str) -> None:
    density = MollifiedExpFamily(normal(2), Interrupting(100), torch.tensor([0.1]), 0.0)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt):
        run_mcmc(density, kernel, 500, 500, num_chains=2, seed=0, progress=False, num_workers=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert torch.distributions.Distribution._validate_args


@pytest.mark.parametrize("kernel", ["random_walk", "hmc", "lockstep_random_walk", "lockstep_hmc", "independence"])
def test_an_interrupt_returns_what_was_drawn(kernel: str) -> None:
    statistics = Interrupting(300)
    density = MollifiedExpFamily(normal(2), statistics, torch.tensor([0.1]), 0.0)
    with pytest.warns(UserWarning, match="Interrupted: each chain has [0-9]+ of 5000 draws"):
        chains = run_mcmc(density, kernel, 5000, 30, num_chains=3, seed=0, progress=False, num_workers=1)
    # all chains are about equally far: a turn is 20 steps
    assert 35 < chains.num_samples < 5000
    assert chains.draws["x"].shape[0] == chains.sample_stats["lp"].shape[0] == 3
    density.statistics.left[0] = 10**9  # type: ignore[index, operator, union-attr]  # of the copy in the density
    more = resume_mcmc(chains, 10, progress=False, num_workers=1)
    assert torch.equal(more.draws["x"][:, : chains.num_samples], chains.draws["x"])
    assert more.num_samples == chains.num_samples + 10


@pytest.mark.parametrize("kernel", KERNELS)
def test_resumed_chains_are_those_of_a_longer_run(skewed: MollifiedExpFamily, kernel: str) -> None:
    whole = run_mcmc(skewed, kernel, 24, 20, num_chains=2, seed=5, progress=False)
    part = pickle.loads(pickle.dumps(run_mcmc(skewed, kernel, 10, 20, num_chains=2, seed=5, progress=False)))
    state = torch.get_rng_state()
    joined = resume_mcmc(resume_mcmc(part, 8, progress=False), 6, progress=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(joined.draws["x"], whole.draws["x"])
    assert (joined.seeds, joined.warmup_steps, joined.kernel) == (whole.seeds, 20, kernel)
    for name, value in whole.sample_stats.items():
        assert torch.allclose(joined.sample_stats[name].double(), value.double(), atol=1e-5)


def test_resuming_the_chains_of_a_model() -> None:
    def model(scale: float) -> None:
        pyro.sample("x", dist.Normal(0.0, scale))
        pyro.sample("y", dist.Exponential(2.0))

    chains = run_mcmc(
        model, "nuts", 6, 15, 2, seed=1, progress=False, model_args=(3.0,), kernel_options={"max_tree_depth": 3}
    )
    whole = run_mcmc(
        model, "nuts", 10, 15, 2, seed=1, progress=False, model_args=(3.0,), kernel_options={"max_tree_depth": 3}
    )
    joined = resume_mcmc(chains, 4, model=model, model_args=(3.0,), progress=False)
    assert torch.equal(joined.draws["y"], whole.draws["y"])
    with pytest.raises(ValueError, match="model must be given to resume the chains of a model"):
        resume_mcmc(chains, 10)
    with pytest.raises(ValueError, match=r"model must have the same sites as the chains \(x, y\), got the sites z\."):
        resume_mcmc(chains, 10, model=lambda: pyro.sample("z", dist.Normal(0.0, 1.0)))
    with pytest.raises(ValueError, match="chains must hold the state in which they stopped, got none."):
        resume_mcmc(Chains(chains.draws, {}, (1, 2), 0, "nuts"), 10)
    with pytest.raises(TypeError, match="chains must be Chains"):
        resume_mcmc(chains.draws, 10)  # type: ignore[arg-type]


@pytest.mark.parametrize("kernel", sorted(set(KERNELS) - {"independence"}))
def test_chains_start_where_they_are_told(kernel: str) -> None:
    box = dist.Uniform(torch.tensor([0.0, 10.0]), torch.tensor([1.0, 30.0])).to_event(1)
    density = make_density(box, link="tanh")
    starts = torch.tensor([[0.5, 11.0], [0.9, 29.0], [0.1, 20.0]])
    options: dict[str, object] = {"adapt_step_size": False}
    options |= {"step_size": 1e-4, "max_tree_depth": 1} if kernel == "nuts" else {"init_step_size": 1e-4}
    options |= {"num_steps": 1} if "hmc" in kernel else {}
    chains = run_mcmc(
        density, kernel, 1, 0, 3, seed=0, progress=False, initial_values={"x": starts}, kernel_options=options
    )
    assert torch.allclose(chains.draws["x"][:, 0], starts, atol=0.01)


def test_independence_chains_start_where_they_are_told() -> None:
    """On a spike of e^20 hardly any proposal is accepted: chains that start there are still there."""

    class Spike(torch.nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return torch.where(value[..., :1].abs() < 1e-3, math.log(2), -math.log(2))

    density = MollifiedExpFamily.normalized(normal(2), Spike(), torch.tensor([20 / (2 * math.log(2))]))
    starts = torch.tensor([[0.0, 1.0], [5e-4, -0.3]], dtype=torch.float64)
    chains = run_mcmc(density, "independence", 1, 0, 2, seed=0, progress=False, initial_values={"x": starts})
    assert torch.equal(chains.draws["x"][:, 0], starts.float())


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"y": torch.zeros(2, 2)}, "initial_values must have the sites x"),
        ({"x": torch.zeros(3, 2)}, r"initial_values\['x'\] must have shape \(2, 2\)"),
        ({"x": torch.tensor([[0.5, 20.0], [2.0, 20.0]])}, "initial_values must have a density above 0 in every chain"),
    ],
)
@pytest.mark.parametrize("kernel", ["nuts", "independence"])
def test_starts_that_are_refused(kernel: str, values: dict[str, torch.Tensor], match: str) -> None:
    box = dist.Uniform(torch.tensor([0.0, 10.0]), torch.tensor([1.0, 30.0])).to_event(1)
    with pytest.raises(ValueError, match=match):
        run_mcmc(make_density(box), kernel, 5, 5, 2, progress=False, initial_values=values)


@pytest.mark.parametrize("kernel", ["random_walk", "hmc", "nuts", "lockstep_random_walk", "lockstep_hmc"])
def test_nan_energy_is_an_error_that_names_the_site(kernel: str) -> None:
    def model() -> None:
        depth = pyro.sample("depth", dist.Normal(0.0, 1.0))
        pyro.sample("width", dist.LogNormal(0.0, 1.0))
        pyro.factor("hole", torch.where(depth > 0.5, torch.tensor(math.nan), 0.0))

    with pytest.raises(ValueError, match=r"log-density of site 'hole' must be a number") as raised:
        run_mcmc(model, kernel, 200, 10, num_chains=2, progress=False, seed=0)
    said = str(raised.value)
    assert "The values of depth, width are finite and in their supports there." in said
    assert not any(character.isdigit() for character in said)  # where a trajectory went is private


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param("random_walk", marks=pytest.mark.slow),
        pytest.param("hmc", marks=pytest.mark.slow),
        pytest.param("nuts", marks=pytest.mark.slow),
        "lockstep_random_walk",
        "lockstep_hmc",
    ],
)
def test_no_mass_is_lost_at_an_edge(kernel: str) -> None:
    """A density that piles up at the faces of its box, in coordinates of very different scale."""
    box = dist.Uniform(torch.tensor([0.0, 1000.0]), torch.tensor([0.01, 9000.0])).to_event(1)
    low, width = torch.tensor([0.0, 1000.0]), torch.tensor([0.01, 8000.0])

    class Faces(torch.nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            where = (value - low) / width
            return math.log(2) * (20 * (where[..., :1] - 0.9)).tanh()

    density = MollifiedExpFamily.normalized(box, Faces(), torch.tensor([2.0]))
    num_chains = {"lockstep_random_walk": 32, "lockstep_hmc": 200, "hmc": 8}.get(kernel, 2)
    num_samples = {"random_walk": 4000, "lockstep_random_walk": 1500, "lockstep_hmc": 40}.get(kernel, 700)
    warmup_steps = 80 if kernel == "lockstep_hmc" else 300
    chains = run_mcmc(density, kernel, num_samples, warmup_steps, num_chains, seed=2, progress=False)
    where = (chains.draws["x"] - low) / width
    exact = (density.sample((100_000,)) - low) / width
    for edge in (0.9, 0.99):
        for coordinate in (0, 1):
            inside = (where[..., coordinate] > edge).double()
            indicators = Chains({"x": inside}, {}, chains.seeds, 0, kernel)
            error = float(arviz.mcse(indicators.to_arviz(), method="mean")["x"])
            share = float((exact[:, coordinate] > edge).double().mean())
            assert abs(float(inside.mean()) - share) < 4.5 * math.hypot(error, math.sqrt(share / 1e5))


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (
            {"kernel": "gibbs"},
            ValueError,
            "kernel must be one of random_walk, hmc, nuts, lockstep_random_walk, lockstep_hm",
        ),
        ({"num_samples": 0}, ValueError, "num_samples must be at least 1"),
        ({"warmup_steps": -1}, ValueError, "warmup_steps must be at least 0"),
        ({"num_chains": 0}, ValueError, "num_chains must be at least 1"),
        ({"num_chains": 1.5}, TypeError, "num_chains must be a whole number"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
        ({"model_args": torch.tensor(1.0)}, TypeError, "model_args must be a tuple"),
        ({"model": 3}, TypeError, "model must be a distribution or a Pyro model"),
        ({"model": dist.Poisson(3.0)}, ValueError, "model must have continuous support"),
        ({"model": dist.Normal(torch.zeros(2), 1.0)}, ValueError, r"got model=\(2,\).*model.to_event\(1\)"),
        ({"model": lambda: None}, ValueError, "model must have a continuous latent site"),
        ({"kernel": "independence"}, TypeError, "model must be a MollifiedExpFamily for the independence kernel"),
        (
            {"kernel": "nuts", "kernel_options": {"step_size": math.nan}},
            ValueError,
            "step_size must be in",
        ),
        ({"kernel": "hmc", "kernel_options": {"trajectory_length": math.inf}}, ValueError, "trajectory_length must be"),
        (
            {"kernel": "nuts", "kernel_options": {"target_accept_prob": 2.0}},
            ValueError,
            "target_accept_prob must",
        ),
        ({"kernel": "nuts", "kernel_options": {"max_tree_depth": 0}}, ValueError, "max_tree_depth must be at least 1"),
        (
            {"kernel": "nuts", "kernel_options": {"foo": 1}},
            TypeError,
            "kernel_options must be among .*max_tree_depth",
        ),
        ({"kernel_options": 5}, TypeError, "kernel_options must be a dict"),
        ({"model_kwargs": 5}, TypeError, "model_kwargs must be a dict"),
        ({"initial_values": torch.zeros(4, 2)}, TypeError, "initial_values must be a dict with a tensor per site"),
        ({"model": dist.Normal}, TypeError, "model must be a distribution or a Pyro model"),
        ({"num_workers": 0}, ValueError, "num_workers must be at least 1"),
        ({"kernel_options": {"init_step_size": 0.0}}, ValueError, "init_step_size must be in"),
    ],
)
def test_arguments(arguments: dict[str, object], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        run_mcmc(**{"model": normal(2), "progress": False, **arguments})  # type: ignore[arg-type]


def test_a_distribution_of_torch_itself() -> None:
    density = torch.distributions.Normal(torch.tensor(1.0), torch.tensor(2.0))
    chains = run_mcmc(density, "lockstep_random_walk", 300, 100, 32, seed=0, progress=False)
    assert float(chains.draws["x"].mean()) == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize("kernel", ["hmc", "lockstep_hmc"])
def test_hmc_makes_as_many_steps_as_it_is_told(skewed: MollifiedExpFamily, kernel: str) -> None:
    for num_steps in (1, 5):
        options = {"num_steps": num_steps, "adapt_step_size": False, "init_step_size": 0.1}
        chains = run_mcmc(skewed, kernel, 40, 0, 1, seed=0, progress=False, kernel_options=options, num_workers=1)
        made = set(chains.sample_stats["n_steps"].flatten().tolist())
        assert made == set(range(1, 2 * num_steps))  # uniform, of mean num_steps


def test_chains_are_resumed_on_their_own_target_alone(skewed: MollifiedExpFamily) -> None:
    chains = run_mcmc(skewed, "nuts", 5, 5, 2, seed=0, progress=False)
    with pytest.raises(ValueError, match="model must be the one that the chains ran on"):
        resume_mcmc(chains, 5, model=normal(2))
    with pytest.raises(ValueError, match="model must be the one that the chains ran on"):
        resume_mcmc(chains, 5, model=normal(3))
    other = run_mcmc(skewed, "independence", 5, 5, 2, seed=0, progress=False)
    with pytest.raises(ValueError, match="model must be the one that the chains ran on"):
        resume_mcmc(other, 5, model=make_density(normal(2), epsilon=5.0))
    assert resume_mcmc(chains, 5, model=skewed, progress=False).num_samples == 10


def test_starts_of_another_type_are_refused() -> None:
    density = make_density(dist.Categorical(torch.ones(3)))
    with pytest.raises(ValueError, match="initial_values.'x'. must be of the density's type"):
        run_mcmc(density, "independence", 5, 5, 2, progress=False, initial_values={"x": torch.tensor([0.0, 1.5])})


def test_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    run_mcmc(normal(1), "random_walk", 20, 10, num_chains=2, seed=0)
    assert "60/60" in capsys.readouterr().err
    run_mcmc(normal(1), "random_walk", 20, 10, num_chains=2, seed=0, progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_kernel_is_added_by_a_line(
    monkeypatch: pytest.MonkeyPatch, skewed: MollifiedExpFamily, *, lockstep: bool
) -> None:
    class Jump(LockstepRandomWalk):
        """A random walk by another name, with an argument that is taken from the target."""

        def __init__(self, names: tuple[str, ...] = (), **options: Any) -> None:
            assert names == ("x",)
            super().__init__(**options)

        @classmethod
        def for_target(cls, target: Target, **options: Any) -> Jump:
            return cls(tuple(target.supports), potential_fn=target.batched_potential_fn, **options)

    file = ModuleType("pyro_mbde.mcmc.jump")
    file.Jump = Jump  # type: ignore[attr-defined]  # as a file of the folder would have it
    monkeypatch.setitem(sys.modules, file.__name__, file)
    monkeypatch.setattr("pyro_mbde.mcmc.jump", file, raising=False)
    kernel = Kernel("jump:Jump", lockstep=lockstep, given=("names", "options"))
    monkeypatch.setitem(KERNELS, "jump", kernel)
    chains = run_mcmc(skewed, "jump", 5, 5, 3, seed=0, progress=False)
    assert (chains.kernel, chains.num_chains) == ("jump", 3)
    assert len(chains.seeds) == (1 if lockstep else 3)
    assert resume_mcmc(chains, 2, progress=False).num_samples == 7
    with pytest.raises(
        TypeError, match="kernel_options must be left out with jump, which has none, got kernel_options='names'"
    ):
        run_mcmc(skewed, "jump", 5, 5, 3, progress=False, kernel_options={"names": ("y",)})


def test_a_kernel_in_its_own_space_advances_all_chains() -> None:
    with pytest.raises(ValueError, match="lockstep must be True for a kernel with own_space, got lockstep=False"):
        Kernel("independence:IndependenceSampler", own_space=True)
