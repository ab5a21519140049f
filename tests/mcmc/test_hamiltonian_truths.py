"""Hamiltonian kernels against quadrature: fits over many seeds, a known steep tilt, calibration of ranks."""

from __future__ import annotations

import functools
import math
from typing import Any

import arviz
import pyro.distributions as dist
import pytest
import torch
from invariance import exact_energy, smooth_energy, steep_density
from quick_fits import BASE, LINE, quick_fit
from scipy import stats
from torch import Tensor
from truths import LEVELS, Truth, midpoints, of_grid, plane_truths

from pyro_mbde import LockstepHMC, MollifiedExpFamily, run_mcmc
from pyro_mbde._torch_state import seeded

NUM_SEEDS = 12


@functools.cache
def fitted(num_dims: int) -> tuple[MollifiedExpFamily, dict[str, Truth]]:
    """A density fitted to a skewed mixture, and what is true of it."""
    with seeded(num_dims):
        bulk = torch.randn(3000, num_dims).abs() * 0.6 - 1.2
        table = torch.where(torch.rand(3000, 1) < 0.7, bulk, 1.3 + 0.25 * torch.randn(3000, num_dims))
        q = quick_fit(table, 8.0, LINE if num_dims == 1 else BASE)
    if num_dims == 2:
        return q, plane_truths(q.log_prob, ((-6.0, 6.0), (-6.0, 6.0)), 400)
    axis = midpoints(-6.0, 6.0, 4000)
    return q, {"x[0]": of_grid(axis, q.log_prob(axis.unsqueeze(-1)).double())}


def scores(draws: Tensor, truth: Truth) -> list[float]:
    """How many Monte Carlo standard errors the mean and the shares below quantiles are off; draws ``(num_chains, n)``.

    The shares' errors are those of the true shares, with the effective number of draws of the indicators.
    """
    values = draws.double()
    found = [(float(values.mean()) - truth.mean) / float(arviz.mcse(values.numpy(), method="mean"))]
    for level, quantile in zip(LEVELS, truth.quantiles, strict=True):
        below = (values <= quantile).double()
        size = float(arviz.ess(below.numpy(), method="mean"))
        found.append((float(below.mean()) - level) * math.sqrt(size / (level * (1 - level))))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "num_chains", "num_samples"), [("hmc", 2, 200), ("nuts", 2, 150)])
def test_fitted_densities_over_many_seeds(kernel: str, num_chains: int, num_samples: int) -> None:
    check_seeds(kernel, num_chains, num_samples, NUM_SEEDS)


@pytest.mark.parametrize("num_seeds", [2, pytest.param(NUM_SEEDS, marks=pytest.mark.slow)])
def test_fitted_densities_in_lockstep(num_seeds: int) -> None:
    check_seeds("lockstep_hmc", 100, 60, num_seeds)


def check_seeds(kernel: str, num_chains: int, num_samples: int, num_seeds: int) -> None:
    """One rate for all comparisons: of some 100, none of right chains is off by 5 errors, and hardly one by 4."""
    found: dict[int, list[list[float]]] = {1: [], 2: []}
    for seed in range(num_seeds):
        q, truths = fitted(1 + seed % 2)
        chains = run_mcmc(q, kernel, num_samples, 100, num_chains, seed=seed, progress=False)
        draws = chains.draws["x"]
        found[1 + seed % 2].append(
            [z for index, truth in enumerate(truths.values()) for z in scores(draws[..., index], truth)]
        )
    sizes = torch.tensor([abs(z) for rows in found.values() for row in rows for z in row])
    assert int((sizes > 4).sum()) <= 1
    assert float(sizes.max()) < 5
    for rows in found.values():  # each comparison over all seeds together
        together = torch.tensor(rows).sum(0) / math.sqrt(len(rows))
        assert float(together.abs().max()) < 4.5


def check_shares(draws: Tensor, truths: dict[str, Truth], largest_error: float) -> None:
    """Shares below true quantiles, with errors from chains that are independent; draws ``(num_chains, n, 2)``."""
    for index, truth in enumerate(truths.values()):
        for level, quantile in zip(LEVELS, truth.quantiles, strict=True):
            shares = (draws[..., index] <= quantile).double().mean(1)
            error = float(shares.std()) / math.sqrt(len(shares))
            assert error < largest_error
            assert abs(float(shares.mean()) - level) < 4.5 * error


@pytest.mark.slow
def test_two_million_draws_of_a_steep_density() -> None:
    truths = plane_truths(lambda x: -exact_energy({"x": x}), ((-6.0, 6.0), (-6.0, 6.0)), 2400)
    chains = run_mcmc(steep_density(), "lockstep_hmc", 500, 250, 4000, seed=0, progress=False)
    check_shares(chains.draws["x"], truths, 1.2e-3)


@pytest.mark.slow
def test_a_million_draws_by_the_wrong_energy_are_found() -> None:
    """As much as the test above finds: smooth energies in the choice, for one step in fifty."""

    class Seldom(LockstepHMC):
        def _exact(self, points: Tensor) -> Tensor:
            exact = super()._exact(points)
            if self._t % 50:
                return exact
            return smooth_energy({"x": points.flatten(0, 1)}).reshape(exact.shape)

    truths = plane_truths(lambda x: -exact_energy({"x": x}), ((-6.0, 6.0), (-6.0, 6.0)), 800)
    kernel = Seldom(potential_fn=exact_energy, smooth_potential_fn=smooth_energy)
    kernel.initial_params = {"x": torch.randn(4000, 2)}
    kernel.setup(200)
    params, kept = kernel.initial_params, []
    for step in range(450):
        params = kernel.sample(params)
        kept += [params["x"]] if step >= 200 else []
    with pytest.raises(AssertionError):
        check_shares(torch.stack(kept, 1), truths, 1.0)


def posterior_energies(q: MollifiedExpFamily, readings: Tensor, width: float) -> Any:
    """Energies of chains of which each has its own data set, at any number of points of each."""

    def potential_fn(params: dict[str, Tensor]) -> Tensor:
        x = params["x"]
        seen = readings.repeat(len(x) // len(readings), 1)
        return -(q.log_prob(x) + dist.Normal(x, width).to_event(1).log_prob(seen))

    def smooth_potential_fn(params: dict[str, Tensor]) -> Tensor:
        x = params["x"]
        seen = readings.repeat(len(x) // len(readings), 1)
        return -(q.base.log_prob(x) + dist.Normal(x, width).to_event(1).log_prob(seen))

    return {"potential_fn": potential_fn, "smooth_potential_fn": smooth_potential_fn}


def ranks(num_sets: int, width_told: float) -> Tensor:
    """Ranks of the truths among 15 draws of each posterior, ``(num_sets, 2)``; data have errors of 0.7."""
    q, _ = fitted(2)
    truths = q.sample((num_sets,))
    readings = truths + 0.7 * torch.randn(num_sets, 2)
    kernel = LockstepHMC(**posterior_energies(q, readings, width_told))
    kernel.initial_params = {"x": readings.clone()}
    kernel.setup(100)
    params, below = kernel.initial_params, torch.zeros(num_sets, 2)
    for step in range(100 + 15 * 8):
        params = kernel.sample(params)
        if step >= 100 and step % 8 == 7:
            below += params["x"] < truths
    return below


@pytest.mark.parametrize("num_sets", [600, pytest.param(4000, marks=pytest.mark.slow)])
def test_simulation_based_calibration(num_sets: int) -> None:
    """Talts, Betancourt, Simpson, Vehtari and Gelman. Validating Bayesian inference algorithms. 2018."""
    for coordinate in ranks(num_sets, 0.7).T:
        counts = torch.bincount(coordinate.long(), minlength=16)
        assert stats.chisquare(counts.numpy()).pvalue > 1e-5


@pytest.mark.slow
def test_calibration_finds_a_wrong_error() -> None:
    counts = torch.bincount(ranks(2000, 0.55)[:, 0].long(), minlength=16)
    assert stats.chisquare(counts.numpy()).pvalue < 1e-5
