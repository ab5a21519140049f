"""Hamiltonian kernels leave a steep, asymmetric density as it is: single steps from exact draws, and planted faults."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from invariance import Verdict, exact_draws, exact_energy, judge, min_p, smooth_energy, with_fault
from torch import Tensor

from pyro_mbde.mcmc.hamiltonian import LockstepHMC
from pyro_mbde.mcmc.nuts import RecordingNUTS, _Followed

#: Each p value of a right kernel is below this once in 10 million tests.
_RARE = 1e-7
#: Step sizes and mean numbers of steps.
SETTINGS = [(0.9, 3), (2.3, 3), (1e4, 2), (0.15, 3), (0.9, 1), (0.9, 4), (1.7, 3), (1.98, 8), (8.0, 3), (1e-5, 2)]
#: Learned factors: none, a diagonal, a triangle.
FACTORS = [None, torch.tensor([0.4, 1.3]), torch.tensor([[0.8, 0.0], [0.7, 0.5]])]
CASES = [(*setting, FACTORS[0]) for setting in SETTINGS]
CASES += [(step_size, 3, factor) for step_size in (0.9, 2.3) for factor in FACTORS[1:]]


def hmc(cls: type = LockstepHMC, num_chains: int = 50_000, **options: Any) -> tuple[Any, Tensor]:
    """A kernel that learns nothing, and the exact draws that it is set up at."""
    factor = options.pop("factor", None)
    options = {"potential_fn": exact_energy, "smooth_potential_fn": smooth_energy, **options}
    kernel = cls(**options, adapt_step_size=False, adapt_covariance=False)
    starts = exact_draws(num_chains)
    kernel.initial_params = {"x": starts}
    kernel.setup(0)
    if factor is not None:
        kernel._factor = factor
    return kernel, starts


def two_steps(kernel: Any, starts: Tensor) -> tuple[Verdict, Verdict]:
    """Of the second step, too: it starts from the energies and gradients that the first one kept."""
    first = kernel.sample({"x": starts})["x"]
    second = kernel.sample({"x": first})["x"]
    return judge(starts, first), judge(first, second)


@pytest.mark.parametrize(("step_size", "num_steps"), SETTINGS[:3])
def test_a_step_is_reversible_and_keeps_the_law(step_size: float, num_steps: int) -> None:
    kernel, starts = hmc(init_step_size=step_size, num_steps=num_steps)
    for verdict in two_steps(kernel, starts):
        assert min_p(verdict) > _RARE, verdict
        if 0.1 < step_size < 2:
            assert verdict.moved > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("step_size", "num_steps", "factor"), CASES)
def test_a_step_of_half_a_million_chains(step_size: float, num_steps: int, factor: Tensor | None) -> None:
    kernel, starts = hmc(num_chains=500_000, init_step_size=step_size, num_steps=num_steps, factor=factor)
    for verdict in two_steps(kernel, starts):
        assert min_p(verdict) > _RARE, verdict


def holed_energy(params: dict[str, Tensor]) -> Tensor:
    """Infinite in one place, and without a gradient in another."""
    x = params["x"]
    energy = smooth_energy(params) + (x[:, 1] - 0.2).abs().sqrt()
    return torch.where((x[:, 0] - 0.5).square() + x[:, 1].square() < 0.1, torch.inf, energy)


@pytest.mark.parametrize(
    "options",
    [
        {"smooth_potential_fn": None},
        {"smooth_potential_fn": holed_energy},
        {"smooth_potential_fn": lambda params: -2 * smooth_energy(params)},
        {"smooth_potential_fn": lambda params: 0 * smooth_energy(params)},
        {"smooth_potential_fn": lambda params: (params["x"] * 40).sin().sum(-1)},
        {"pooled": False},
    ],
    ids=["exact", "holed", "upside down", "flat", "rough", "each its own"],
)
def test_any_energy_may_be_followed(options: dict[str, Any]) -> None:
    """Also the exact one, whose gradient is steep; and energies that are infinite or have no gradient."""
    kernel, starts = hmc(init_step_size=0.4, num_steps=3, **options)
    for verdict in two_steps(kernel, starts):
        assert min_p(verdict) > _RARE, verdict


FAULTS = {
    "smooth energies in the choice": ("_move", "self._exact(points)", "smooth"),
    "kinetic energy forgotten": ("_move", "self._choose(energies + kinetic)", "self._choose(energies)"),
    "energy kept of the old state": (
        "_move",
        "self._energy, self._smooth_energy = energies[chosen, chains], smooth",
        "_, self._smooth_energy = 0, smooth",
    ),
    "gradient kept of the old state": ("_move", "self._gradient = gradients[chosen, chains]", "pass"),
    "smooth energy kept of another": ("_exact", "self._energy.unsqueeze(0)", "self._smooth_energy.unsqueeze(0)"),
    "current state always first": (
        "_trajectory",
        "torch.randint(0, num_steps + 1, (self.num_chains, 1), device=position.device)",
        "torch.full((self.num_chains, 1), num_steps)",
    ),
    "places not uniform": ("_trajectory", "torch.randint(0, num_steps + 1", "torch.randint(0, num_steps"),
    "momentum not turned": ("_trajectory", "turns, -start, momentum", "turns, start, momentum"),
    "position not turned": ("_trajectory", "torch.where(turns, position, at), ", "at, "),
    "gradient not turned": ("_trajectory", "torch.where(turns, self._gradient, gradient)", "gradient"),
    "a whole step for the first half": (
        "_trajectory",
        "step / 2 * self._along_transposed(torch.where",
        "step * self._along_transposed(torch.where",
    ),
    "always accepted": (
        "_choose",
        "_move_probabilities(energies)",
        "_move_probabilities(energies) / _move_probabilities(energies).sum(0)",
    ),
    "the heavy for the light": ("_choose", "_move_probabilities(energies)", "_move_probabilities(-energies)"),
    "uniform among the others": (
        "_choose",
        "_move_probabilities(energies)",
        "torch.full_like(energies[1:].double(), 1 / (len(energies) - 1))",
    ),
    "one point off": ("_choose", "1).squeeze(-1)", "1).squeeze(-1).sub(1).clamp(min=0)"),
}


#: The fault that is hardest to find; and those that the quick tests look for.
SUBTLE = "places not uniform"
QUICK = ("smooth energies in the choice", "current state always first", "momentum not turned", "always accepted")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in FAULTS]
)
def test_planted_faults_are_found(name: str) -> None:
    faulty = with_fault(LockstepHMC, *FAULTS[name])
    found = []
    for step_size in (0.6, 0.9, 1.4):
        num_chains = 1_000_000 if name == SUBTLE else 50_000
        kernel, starts = hmc(faulty, num_chains, init_step_size=step_size, num_steps=3)
        found += [min_p(verdict) for verdict in two_steps(kernel, starts)]
    assert min(found) < _RARE


def tree_steps(cls: Any, num_chains: int, **options: Any) -> Verdict:
    """A step of NUTS from each of many exact draws."""

    def alone(energy: Any) -> Any:
        return lambda params: energy({"x": params["x"].unsqueeze(0)})[0]

    followed = _Followed(alone(exact_energy), alone(smooth_energy))
    kernel = cls(potential_fn=followed, adapt_step_size=False, adapt_mass_matrix=False, **options)
    starts = exact_draws(num_chains)
    kernel.initial_params = {"x": starts[0]}
    kernel.setup(0)
    after = []
    for start in starts:
        kernel.clear_cache()
        after.append(kernel.sample({"x": start})["x"])
    return judge(starts, torch.stack(after))


TREES = {
    "deep": {"step_size": 0.5, "max_tree_depth": 4},
    "shallow": {"step_size": 0.2, "max_tree_depth": 2},
    "large steps": {"step_size": 1.9, "max_tree_depth": 3},
    "slices": {"step_size": 0.7, "max_tree_depth": 3, "use_multinomial_sampling": False},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TREES)
def test_a_tree_keeps_the_law(name: str) -> None:
    verdict = tree_steps(RecordingNUTS, 1000, **TREES[name])
    assert min(verdict.fit, verdict.homogeneity) > _RARE  # a step of NUTS is not reversible
    assert verdict.moved > 0.05


@pytest.mark.slow
def test_a_tree_of_smooth_energies_is_found() -> None:
    class Smooth(RecordingNUTS):
        def setup(self, *args: Any) -> None:
            self.potential_fn = self.potential_fn.smooth
            super().setup(*args)

        def _build_basetree(self, *args: Any) -> Any:
            return super(RecordingNUTS, self)._build_basetree(*args)

    verdict = tree_steps(Smooth, 1000, **TREES["deep"])
    assert verdict.homogeneity < _RARE
