"""Pyro kernels without the defects of the stock ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from pyro.infer.mcmc.rwkernel import RandomWalkKernel
from torch import Tensor

Params = dict[str, Tensor]
Potential = Callable[[Params], Tensor]


class RandomWalk(RandomWalkKernel):
    """Pyro's random-walk Metropolis on a potential function, started where it is told to.

    The stock kernel takes a model alone, ignores ``initial_params``, tracks gradients that it does not use, and stops
    moving for good, in silence, once a proposal's energy is NaN. Here the potential is given, the start is honoured,
    and NaN raises. The first step size is 2.4/sqrt(d), the best one for a normal target of unit scale.

    Args:
        potential_fn: negative log-density of unconstrained parameters, up to a constant.
        init_step_size: standard deviation of the first proposals; defaults to 2.4/sqrt(d).
        target_accept_prob: acceptance rate that the step size is adapted to in warmup; in (0, 1).

    References:
        Roberts, Gelman, Gilks. Weak convergence and optimal scaling of random walk Metropolis algorithms. 1997.
    """

    def __init__(
        self, potential_fn: Potential, *, init_step_size: float | None = None, target_accept_prob: float = 0.234
    ) -> None:
        super().__init__(None, init_step_size=init_step_size or 1.0, target_accept_prob=target_accept_prob)
        self._given_step_size = init_step_size
        self._raw_potential_fn = potential_fn
        self.transforms = None

    def setup(self, warmup_steps: int, *args: object, **kwargs: object) -> None:
        """Starts a chain at ``initial_params``."""
        self._warmup_steps = warmup_steps
        self._t = 0
        self._accept_cnt = 0
        self._mean_accept_prob = 0.0
        num_dims = sum(value.numel() for value in self.initial_params.values())
        self._log_step_size = math.log(self._given_step_size or 2.4 / math.sqrt(num_dims))
        self._energy_last = self.potential_fn(self.initial_params)

    def potential_fn(self, params: Params) -> Tensor:
        """Returns the potential energy, without gradients; NaN raises."""
        with torch.no_grad():
            energy = self._raw_potential_fn(params)
        if bool(torch.isnan(energy)):
            raise ValueError(f"the potential energy must be a number, got NaN where {describe(params)}.")
        return energy


def describe(params: Params) -> str:
    """Names the sites of a set of parameters, those with NaN or inf first."""
    wrong = [name for name, value in params.items() if not bool(torch.isfinite(value).all())]
    return f"site {', '.join(wrong)} is not finite" if wrong else f"all of {', '.join(params)} are finite"
