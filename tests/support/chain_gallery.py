"""A gallery of broken chains, each with the reason to fail it; and good ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import pyro.distributions as dist
import torch
from densities import normal

from pyro_mbde import Chains

BIMODAL = dist.MixtureSameFamily(
    dist.Categorical(torch.ones(2)), dist.Normal(torch.tensor([-3.0, 3.0]), torch.tensor([1.0, 1.0]))
)
CORRELATED = dist.MultivariateNormal(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
SHAPE = (4, 1000)


def by_hand(
    draws: torch.Tensor,
    density: torch.distributions.Distribution | None = None,
    seeds: tuple[int, ...] | None = None,
    **sample_stats: torch.Tensor,
) -> Chains:
    return Chains({"x": draws}, sample_stats, seeds or tuple(range(len(draws))), 0, "by hand", density)


def autoregressive(correlation: float, num_chains: int, num_samples: int, num_dims: int) -> torch.Tensor:
    """Chains of first order that start in their stationary law, the standard normal."""
    draws = torch.randn(num_chains, num_samples, num_dims)
    for index in range(1, num_samples):
        draws[:, index] *= math.sqrt(1 - correlation**2)
        draws[:, index] += correlation * draws[:, index - 1]
    return draws


def frozen() -> Chains:
    draws = CORRELATED.sample(SHAPE)
    draws[2] = draws[2, 0]
    return by_hand(draws, CORRELATED)


def constant_coordinate() -> Chains:
    draws = CORRELATED.sample(SHAPE)
    draws[1, :, 1] = 0.3
    return by_hand(draws, CORRELATED)


def constant_in_the_target() -> Chains:
    return by_hand(torch.ones(SHAPE), dist.Delta(torch.tensor(1.0)))


def missing_ring() -> Chains:
    """Coordinates that are each right, and uncorrelated as they should be, but independent."""
    ring = make_ring(4000)
    return by_hand(torch.stack([ring[:, 0], ring.flip(0)[:, 1]], -1).reshape(*SHAPE, 2))


def make_ring(num_draws: int) -> torch.Tensor:
    angle, radius = 2 * math.pi * torch.rand(num_draws), 2 + 0.3 * torch.randn(num_draws)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], -1)


def all_in_one_mode() -> Chains:
    return by_hand(torch.randn(SHAPE) + 3, BIMODAL)


def each_in_its_own_mode() -> Chains:
    return by_hand(torch.randn(SHAPE) + torch.tensor([-3.0, 3.0, -3.0, 3.0])[:, None], BIMODAL)


def drifting() -> Chains:
    return by_hand(torch.randn(SHAPE) + torch.linspace(-2, 2, 1000), dist.Normal(0.0, 1.0))


def differing_in_spread() -> Chains:
    return by_hand(torch.randn(SHAPE) * torch.tensor([1.0, 1.0, 3.0, 1.0])[:, None])


def slow() -> Chains:
    return by_hand(autoregressive(0.98, *SHAPE, 1)[..., 0], dist.Normal(0.0, 1.0))


def short() -> Chains:
    """Each has its own mean, by chance alone: as far apart as so few effective draws make them."""
    return by_hand(autoregressive(0.97, 16, 2000, 1)[..., 0] * 6.5 + 125, dist.Normal(125.0, 6.5))


def not_a_number() -> Chains:
    draws = CORRELATED.sample(SHAPE)
    draws[2, 10:14, 1] = math.nan
    draws[3, 5, 1] = math.inf
    return by_hand(draws, CORRELATED)


def wrong_scale() -> Chains:
    return by_hand(CORRELATED.sample(SHAPE) * torch.tensor([1.0, 1.1]), CORRELATED)


def wrong_correlation() -> Chains:
    return by_hand(torch.randn(*SHAPE, 2), CORRELATED)


def outside_the_support() -> Chains:
    return by_hand(dist.Exponential(1.0).sample(SHAPE) - 1e-3, dist.Exponential(1.0))


def single() -> Chains:
    return by_hand(torch.randn(1, 1000), dist.Normal(0.0, 1.0))


def same_seeds() -> Chains:
    return by_hand(torch.randn(SHAPE), seeds=(3, 5, 3, 8))


def same_draws() -> Chains:
    draws = torch.randn(SHAPE)
    draws[3] = draws[1]
    return by_hand(draws)


def no_acceptance() -> Chains:
    rate = torch.rand(SHAPE)
    rate[2] = 0.0
    return by_hand(torch.randn(SHAPE), acceptance_rate=rate)


def divergences() -> Chains:
    diverging = torch.zeros(SHAPE, dtype=torch.bool)
    diverging[1, 7] = diverging[3, :2] = True
    return by_hand(torch.randn(SHAPE), diverging=diverging)


def followed(
    rate: float, smooth_rate: float | None, draws: torch.Tensor | None = None, **stats: torch.Tensor
) -> Chains:
    """Chains of a Hamiltonian kernel with these mean acceptance rates; without the second, as of an older version."""
    rates = {"acceptance_rate": rate} | ({} if smooth_rate is None else {"smooth_acceptance_rate": smooth_rate})
    spread = torch.linspace(-0.05, 0.05, SHAPE[0])[:, None].expand(SHAPE)
    stats = {name: value + spread for name, value in rates.items()} | stats
    return by_hand(torch.randn(SHAPE) if draws is None else draws, **stats)


def rejected_by_the_tilt() -> Chains:
    return followed(0.3, 0.81, autoregressive(0.98, *SHAPE, 1)[..., 0])


def diverging_without_the_tilt() -> Chains:
    return followed(0.3, 0.35, diverging=divergences().sample_stats["diverging"])


def slow_energy() -> Chains:
    energy = torch.randn(SHAPE)
    energy[2] = autoregressive(0.95, 1, 1000, 1)[0, :, 0]
    return by_hand(torch.randn(SHAPE), energy=energy)


def constant_energy() -> Chains:
    return by_hand(torch.randn(SHAPE), energy=torch.ones(SHAPE))


GALLERY: list[tuple[Callable[[], Chains], str]] = [
    (frozen, "chain 2: frozen, all draws are equal"),
    (constant_coordinate, r"x\[1\]: constant in chain 1"),
    (constant_in_the_target, "chains 0, 1, 2 and 1 more: frozen"),
    (constant_in_the_target, "parameter x: R-hat is not a number"),
    (all_in_one_mode, r"x: wrong target, 0\.\d% of the draws lie at or below the exact 50% quantile"),
    (each_in_its_own_mode, r"x: R-hat 1\.7\d\d, the chains disagree: mean -3.* in chain [02], [23]\S* in chain [13]"),
    (drifting, r"x: R-hat 1\.3\d\d, drift: second halves lie 1\.3 standard deviations above first halves"),
    (differing_in_spread, r"x: R-hat 1\.\d+, the chains differ in spread: .* in chain \d, \S+ in chain 2"),
    (slow, r"x: bulk ESS \d+ and tail ESS \d+, 400 needed: about [\d.]+ times as many draws are needed"),
    (short, r"x: R-hat 1\.0\d\d, the chains are too short: about [\d.]+ times as many draws are needed"),
    (not_a_number, r"x\[1\]: 5 draws NaN or infinite, in chains 2, 3"),
    (wrong_scale, r"x\[1\]: wrong target, .* in the middle 90% of exact draws, where 90.0% belong"),
    (wrong_correlation, r"x\[0\] with x\[1\]: wrong target"),
    (wrong_correlation, "log-density: wrong target"),
    (outside_the_support, r"x: \d+ draws? outside the target's support"),
    (single, "one chain cannot be compared with others"),
    (same_seeds, "chains 0, 2: same seed"),
    (same_draws, "chains 1, 3: equal draws"),
    (no_acceptance, "chain 2: acceptance rate zero"),
    (divergences, "3 steps diverged, in chains 1, 3"),
    (rejected_by_the_tilt, r"x: bulk ESS \d+ and tail ESS \d+, 400 needed: about [\d.]+ times as many draws"),
    (
        rejected_by_the_tilt,
        r"the density's tilt rejects proposals: .* 0.30, and .* 0.81. Smaller steps do not help, more",
    ),
    (
        diverging_without_the_tilt,
        "3 steps diverged, in chains 1, 3: the energy that is followed bends too sharply",
    ),
    (slow_energy, r"chain 2: E-BFMI 0\.\d\d is not 0.3 or more"),
    (constant_energy, "chains 0, 1, 2 and 1 more: E-BFMI nan"),
]


def good_independent() -> Chains:
    return by_hand(CORRELATED.sample(SHAPE), CORRELATED)


def good_autoregressive() -> Chains:
    return by_hand(autoregressive(0.5, *SHAPE, 2) @ torch.linalg.cholesky(CORRELATED.covariance_matrix).T, CORRELATED)


def good_bimodal() -> Chains:
    return by_hand(BIMODAL.sample(SHAPE), BIMODAL)


def good_counts() -> Chains:
    density = dist.Poisson(2.0)
    return by_hand(density.sample(SHAPE).long(), density)


def good_antithetic() -> Chains:
    return by_hand(autoregressive(-0.5, *SHAPE, 2), normal(2))
