"""Pyro kernels without the defects of the stock ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from pyro.infer.mcmc.rwkernel import RandomWalkKernel
from torch import Tensor

from pyro_mbde._runtime import check_number, message

Params = dict[str, Tensor]
Potential = Callable[[Params], Tensor]


class RandomWalk(RandomWalkKernel):
    """Pyro's random-walk Metropolis on a potential function, started where it is told to.

    The stock kernel takes a model alone, ignores ``initial_params``, tracks gradients that it does not use, adapts once
    more after warmup, and stops moving for good, in silence, once a proposal's energy is NaN. Here the potential is
    given, the start is honoured, adaptation ends with warmup, and NaN raises. The first step size is 2.4/sqrt(d), the
    best one for a normal target of unit scale.

    Args:
        potential_fn: negative log-density of unconstrained parameters, up to a constant.
        init_step_size: standard deviation of the first proposals; defaults to 2.4/sqrt(d).
        target_accept_prob: acceptance rate that the step size is adapted to in warmup; in (0, 1).

    Raises:
        TypeError: an argument is not a number.
        ValueError: an argument is out of its range, or, while it runs, an energy is NaN.

    References:
        Roberts, Gelman, Gilks. Weak convergence and optimal scaling of random walk Metropolis algorithms. 1997.

    Example:
        >>> from pyro.infer import MCMC
        >>> kernel = RandomWalk(lambda params: params["x"].square().sum() / 2)
        >>> mcmc = MCMC(kernel, 10, 10, initial_params={"x": torch.ones(2)}, disable_progbar=True)
        >>> mcmc.run()
        >>> mcmc.get_samples()["x"].shape
        torch.Size([10, 2])
    """

    def __init__(
        self, potential_fn: Potential, *, init_step_size: float | None = None, target_accept_prob: float = 0.234
    ) -> None:
        if init_step_size is not None:
            check_number("init_step_size", init_step_size, "be above 0", lambda value: value > 0)
        super().__init__(
            None, init_step_size=float(init_step_size or 1.0), target_accept_prob=float(target_accept_prob)
        )
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

    def sample(self, params: Params) -> Params:
        """Makes one step; adapts the step size in warmup alone."""
        log_step_size, adapting = self._log_step_size, self._t < self._warmup_steps
        stock: Any = super()
        params = stock.sample(params)
        if not adapting:
            self._log_step_size = log_step_size
        return params

    def potential_fn(self, params: Params) -> Tensor:
        """Returns the potential energy, without gradients; NaN raises."""
        with torch.no_grad():
            energy = self._raw_potential_fn(params)
        if bool(torch.isnan(energy)):
            raise ValueError(message("potential energy", "be a number", float(energy), f"There, {describe(params)}."))
        return energy


def describe(params: Params) -> str:
    """Names the sites of a set of parameters, those with NaN or inf first."""
    wrong = [name for name, value in params.items() if not bool(torch.isfinite(value).all())]
    return f"site {', '.join(wrong)} is not finite" if wrong else f"all of {', '.join(params)} are finite"
