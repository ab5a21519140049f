"""Densities to test on: one of each kind of base, with untrained networks of large weights in place of a fit."""

from __future__ import annotations

from collections.abc import Callable

import pyro.distributions as dist
import torch
from pyro.distributions import transforms

from pyro_mbde import BoundedClassifiers, MollifiedExpFamily
from pyro_mbde.mollifier import estimate_log_normalizer, spending_natural_params, tilt_bounds


def make_density(
    base: torch.distributions.Distribution,
    epsilon: float = 1.0,
    num_rounds: int = 3,
    *,
    gain: float = 3.0,
    num_draws: int = 2**12,
    dtype: torch.dtype = torch.float32,
    **network: object,
) -> MollifiedExpFamily:
    """A density with random classifiers; ``gain`` multiplies the logits, so that they often meet their bound."""
    classifiers = BoundedClassifiers(num_rounds, max(base.event_shape.numel(), 1), **network).to(dtype)
    with torch.no_grad():
        classifiers.weights[-1].mul_(gain)
    natural_params = spending_natural_params(epsilon, num_rounds)
    density = MollifiedExpFamily(base, classifiers, natural_params, 0.0)
    log_normalizer = estimate_log_normalizer(
        density.tilt, density.base_dist, tilt_bounds(natural_params), num_draws=num_draws
    )
    return MollifiedExpFamily(base, classifiers, natural_params, log_normalizer)


def normal(num_dims: int) -> dist.TorchDistribution:
    """Standard normal with event shape (num_dims,)."""
    return dist.Normal(torch.zeros(num_dims), torch.ones(num_dims)).to_event(1)


BASES: dict[str, Callable[[], torch.distributions.Distribution]] = {
    "normal-scalar": lambda: dist.Normal(0.5, 2.0),
    "normal-1d": lambda: normal(1),
    "normal-2d": lambda: normal(2),
    "normal-10d": lambda: normal(10),
    "student-t": lambda: dist.StudentT(3.0, 0.0, 1.0),
    "uniform-scalar": lambda: dist.Uniform(-1.0, 3.0),
    "uniform-box": lambda: dist.Uniform(torch.tensor([0.0, 10.0]), torch.tensor([1.0, 30.0])).to_event(1),
    "multivariate-normal": lambda: dist.MultivariateNormal(torch.ones(2), torch.tensor([[2.0, 0.5], [0.5, 1.0]])),
    "mixture": lambda: dist.MixtureSameFamily(
        dist.Categorical(torch.tensor([0.3, 0.7])), dist.Normal(torch.tensor([-2.0, 1.0]), torch.tensor([0.5, 1.0]))
    ),
    "mixture-2d": lambda: dist.MixtureSameFamily(
        dist.Categorical(torch.ones(3)), dist.Normal(torch.randn(3, 2), torch.ones(3, 2)).to_event(1)
    ),
    "log-normal": lambda: dist.LogNormal(0.0, 0.5),
    "transformed": lambda: dist.TransformedDistribution(
        dist.Normal(torch.zeros(2), torch.ones(2)).to_event(1), [transforms.AffineTransform(1.0, 2.0)]
    ),
    "logit-normal": lambda: dist.TransformedDistribution(dist.Normal(0.0, 1.0), [transforms.SigmoidTransform()]),
    "exponential": lambda: dist.Exponential(2.0),
    "gamma": lambda: dist.Gamma(2.0, 1.0),
    "dirichlet": lambda: dist.Dirichlet(torch.tensor([2.0, 3.0, 4.0])),
    "poisson": lambda: dist.Poisson(3.0),
    "categorical": lambda: dist.Categorical(torch.tensor([0.1, 0.2, 0.3, 0.4])),
    "bernoulli": lambda: dist.Bernoulli(0.3),
    "bernoulli-3d": lambda: dist.Bernoulli(torch.tensor([0.2, 0.5, 0.9])).to_event(1),
    "torch-normal": lambda: torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0)),
    "expanded": lambda: dist.Normal(0.0, 1.0).expand([3]).to_event(1),
}
DISCRETE = {"poisson", "categorical", "bernoulli", "bernoulli-3d"}
CONTINUOUS = sorted(set(BASES) - DISCRETE)
