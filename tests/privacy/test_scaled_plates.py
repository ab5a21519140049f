"""A plate that is scaled by c counts its latents c times. Attack on docs/proofs.md, *Posterior draws*."""

from __future__ import annotations

from itertools import product

import pyro.distributions as dist
import pytest
import torch
from densities import make_density
from torch import Tensor

from pyro_mbde import posterior_guarantee

LOW, HIGH = -0.3, 0.7
WIDTH = HIGH - LOW
BASE = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
#: Every tilt at the ends of the interval: the bound is convex in the tilt, so these are the worst.
TILTS = [torch.tensor(tilt, dtype=torch.float64) for tilt in product((LOW, HIGH), repeat=4)]


def log_posterior(tilt: Tensor, scale: float, num_latents: int, log_likelihood: Tensor) -> Tensor:
    """Of latents whose log-densities are multiplied by a scale, as a scaled plate does, over all their values."""
    log_prior = scale * (BASE.log() + tilt - (BASE.log() + tilt).logsumexp(0))
    total = log_likelihood
    for latent in range(num_latents):
        total = total + log_prior.reshape([-1 if place == latent else 1 for place in range(num_latents)])
    return total.flatten().log_softmax(0)


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.5, 10.0])
@pytest.mark.parametrize("num_latents", [1, 2])
def test_a_scaled_plate_counts_as_often_as_its_scale(scale: float, num_latents: int) -> None:
    q = make_density(dist.Normal(0.0, 1.0), 2 * WIDTH)  # a priori: its tilt lies in an interval of this width
    guarantee = posterior_guarantee(q, num_latents)
    bound, largest, widest = scale * guarantee.epsilon, 0.0, 0.0
    likelihoods = [torch.zeros((4,) * num_latents, dtype=torch.float64)]
    likelihoods += [60 * torch.rand_like(likelihoods[0]) for _ in range(3)]
    likelihoods.append(-60 * (torch.ones_like(likelihoods[0]) - torch.eye(4, dtype=torch.float64)[0]))
    likelihoods[-1] = likelihoods[-1].clamp(-60, 0)
    for log_likelihood in likelihoods:
        posteriors = torch.stack([log_posterior(tilt, scale, num_latents, log_likelihood) for tilt in TILTS])
        log_ratios = posteriors[:, None] - posteriors[None]
        largest = max(largest, float(log_ratios.abs().max()))
        widest = max(widest, float((log_ratios.amax(-1) - log_ratios.amin(-1)).max()))
    assert largest <= bound * (1 + 1e-6)
    assert widest <= scale * guarantee.log_ratio_range * (1 + 1e-6)
    assert largest > 0.6 * bound  # and counting the plate once would be far too little where the scale is above 1
