"""Random-walk Metropolis for many chains at once, as a Pyro kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_mbde.mcmc.lockstep import LockstepKernel
from pyro_mbde.mcmc.target import Potential, Target

#: Best acceptance rates of random-walk Metropolis for normal targets in 1 to 10 dimensions, then in the limit (Gelman,
#: Roberts, Gilks. Efficient Metropolis jumping rules. 1996. Table 1).
_OPTIMAL_RATES = (0.441, 0.352, 0.316, 0.279, 0.275, 0.266, 0.261, 0.255, 0.261, 0.267, 0.234)


def best_step_size(num_dims: int) -> float:
    """Returns the best step of random-walk Metropolis on a standard normal, 2.4 / sqrt(d)."""
    return 2.4 / math.sqrt(num_dims)


class LockstepRandomWalk(LockstepKernel):
    r"""Random-walk Metropolis for many chains, advanced together in one tensor.

    One evaluation of the density serves all chains, so that a thousand of them cost little more than one. The chains
    propose :math:`z + s L \xi`, each with its own :math:`\xi \sim N(0, I)`. In warmup they learn the covariance
    :math:`L L^\top` of the target from each other (all of it if there are enough steps, otherwise its diagonal) and the
    step s by dual averaging towards the best acceptance rate, one for all chains or one for each. Both are fixed after
    warmup: given what was learned, the chains are then independent.

    Works with ``pyro.infer.MCMC(kernel, ..., num_chains=1)``, which returns the samples as those of ``num_chains``
    chains: ``get_samples()`` has shape ``(num_chains * num_samples, ...)``, and ``(num_chains, num_samples, ...)`` with
    ``group_by_chain=True``. With ``num_chains=1`` it is a plain random walk.

    Privacy:
        For inference and checks, not for release: trajectories are not covered by a density's guarantee.

    Args:
        model: a Pyro model that ``torch.vmap`` can vectorise; ``None`` if ``potential_fn`` is given.
        potential_fn: negative log-density, up to a constant, of unconstrained parameters, each of shape ``(num_chains,
            ...)``; returns shape ``(num_chains,)``. Needs ``initial_params``, set on the kernel or given to ``MCMC``.
        lower_bound_fn: a cheaper lower bound of ``potential_fn``, with the same argument. Proposals that it rules out
            are rejected without evaluating the potential, which would reject them too.
        num_chains: number of chains, at least 1; with ``potential_fn`` it follows from ``initial_params``.
        init_step_size: first step s, in standard deviations of the target; defaults to 2.4/sqrt(d).
        target_accept_prob: acceptance rate to adapt to, in (0, 1); defaults to the best one for the dimension, 0.44 to
            0.234.
        adapt_step_size: whether to adapt s in warmup.
        adapt_covariance: whether to learn the covariance in warmup.
        pooled: whether all chains share s; else each has its own.

    Raises:
        ValueError: there are no starting points, one of them has zero density, or an energy is NaN during the run.

    References:
        Gelman, Roberts, Gilks. Efficient Metropolis jumping rules. 1996.
        Haario, Saksman, Tamminen. An adaptive Metropolis algorithm. 2001.
        Nesterov. Primal-dual subgradient methods for convex problems. 2009.

    Example:
        >>> from pyro.infer import MCMC
        >>> kernel = LockstepRandomWalk(potential_fn=lambda params: params["x"].square().sum(-1) / 2)
        >>> mcmc = MCMC(kernel, 10, 50, initial_params={"x": torch.randn(100, 2)}, disable_progbar=True)
        >>> mcmc.run()
        >>> mcmc.get_samples(group_by_chain=True)["x"].shape
        torch.Size([100, 10, 2])
    """

    # Slower than for HMC, because here one acceptance probability says less.
    _gamma = 0.5
    _steps_per_dimension = 8

    def __init__(
        self,
        model: Callable[..., Any] | None = None,
        *,
        potential_fn: Potential | None = None,
        lower_bound_fn: Potential | None = None,
        num_chains: int = 64,
        init_step_size: float | None = None,
        target_accept_prob: float | None = None,
        adapt_step_size: bool = True,
        adapt_covariance: bool = True,
        pooled: bool = True,
    ) -> None:
        super().__init__(
            model,
            potential_fn,
            num_chains,
            init_step_size=init_step_size,
            target_accept_prob=target_accept_prob,
            adapt_step_size=adapt_step_size,
            adapt_covariance=adapt_covariance,
            pooled=pooled,
        )
        self._lower_bound_fn = lower_bound_fn

    def _bind(self, target: Target) -> None:
        self._lower_bound_fn = target.lower_bound_fn

    def _defaults(self, num_dims: int) -> tuple[float, float]:
        return best_step_size(num_dims), _OPTIMAL_RATES[min(num_dims, len(_OPTIMAL_RATES)) - 1]

    def _move(self, position: Tensor) -> Tensor:
        proposal = position + self._step_size.reshape(-1, 1) * self._along(torch.randn_like(position))
        # Plus -log of a uniform number; a proposal is accepted if its energy is below this limit.
        limit = self._energy + torch.empty_like(self._energy).exponential_()
        energy, self.accept_prob = self._propose(proposal, limit)
        self._adapted_rates = self.accept_prob
        accepted = energy < limit
        self._energy = torch.where(accepted, energy, self._energy)
        return torch.where(accepted.unsqueeze(-1), proposal, position)

    def _propose(self, proposal: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the energies of proposals, +inf for those that the bound rules out, and acceptance probabilities.

        With the energy E of the chain, the bound b leaves a proposal undecided with probability m = min(1, exp(E - b)).
        Then the acceptance probability a is computed and a/m is returned; otherwise 0 is: on average this is a.
        """
        if self._lower_bound_fn is None:
            energy = self._energy_at(self._unflatten(proposal))
            return energy, (self._energy - energy).clamp(max=0).exp()
        with torch.no_grad():
            bound = self._lower_bound_fn(self._unflatten(proposal))
        open_ = ~(bound >= limit)  # NaN is left to the potential
        energy = torch.full_like(self._energy, math.inf)
        if bool(open_.any()):
            energy[open_] = self._energy_at(self._unflatten(proposal[open_]))
        log_reached = (self._energy - bound).nan_to_num(nan=0.0).clamp(max=0)
        return energy, ((self._energy - energy).clamp(max=0) - log_reached).exp().where(open_, 0.0)
