"""The independence sampler as a kernel for Pyro's MCMC."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_mbde._checks import check_count
from pyro_mbde.density.base_draws import TorchSource
from pyro_mbde.density.distribution import MollifiedExpFamily, check_density
from pyro_mbde.mcmc.collected import ChainsFirst
from pyro_mbde.mcmc.target import FittedTarget, Params
from pyro_mbde.sampling.independence import IndependenceState, independence_step, total_variation_bound


class IndependenceSampler(MCMCKernel):
    """Metropolis-Hastings with the base as its proposal, for many chains at once, on any base, discrete ones included.

    Nothing is adapted and no gradient is needed. :func:`total_variation_bound` bounds the distance of the states' law
    from the target, whatever the density: about 0.01 after 10 steps at R = 1. Where R is large, the bound says little
    and the acceptance rate is low.

    Works with ``pyro.infer.MCMC(kernel, ..., num_chains=1)``, which returns the samples of site ``x`` as those of
    ``num_chains`` chains: ``get_samples()`` has shape ``(num_chains * num_samples, *event_shape)``. The chains start at
    draws of the base, or at ``initial_params``, in the density's own space.

    Privacy:
        For inference and checks, not for release: no guarantee covers a trajectory. Last states of fresh chains have
        one: :func:`~pyro_mbde.fresh_chains`. The bound is public.

    Args:
        q: the fitted density.
        num_chains: number of chains, at least 1.

    Raises:
        ValueError: ``num_chains`` is below 1, or ``q`` has a batch shape.

    References:
        Mengersen, Tweedie. Rates of convergence of the Hastings and Metropolis algorithms. 1996.

    Example:
        >>> import pyro
        >>> from pyro_mbde import MBDE
        >>> base = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
        >>> q = MBDE(base, epsilon=1.0, progress=False).fit(torch.linspace(0, 1, 500))
        >>> mcmc = pyro.infer.MCMC(IndependenceSampler(q, num_chains=8), 20, 10, disable_progbar=True)
        >>> mcmc.run()
        >>> mcmc.get_samples()["x"].shape
        torch.Size([160])
    """

    def __init__(self, q: MollifiedExpFamily, num_chains: int = 1) -> None:
        check_density(q)
        self.q = q
        self.num_chains = check_count("num_chains", num_chains)
        self.model = None  # ArviZ takes observations from a model: there are none
        self.transforms = {"x": ChainsFirst(len(q.event_shape))}
        self._source = TorchSource(q.base)
        self._initial_params: Params | None = None
        self._steps_before = 0
        super().__init__()

    @classmethod
    def for_target(cls, target: FittedTarget, **options: Any) -> IndependenceSampler:
        """Builds the kernel for a fitted density."""
        return cls(target.density, **options)

    @property
    def initial_params(self) -> Params:
        """Starting points: ``x`` of shape ``(num_chains, *event_shape)``, in the density's own space."""
        if self._initial_params is None:
            self._initial_params = {"x": self._source.propose(self.num_chains)}
        return self._initial_params

    @initial_params.setter
    def initial_params(self, params: Params) -> None:
        self._initial_params = params
        self.num_chains = len(params["x"])

    @property
    def adaptation(self) -> dict[str, Any]:
        """The number of steps made since the start, on which the bound depends."""
        return {"num_steps": self._steps_before + self._t}

    @adaptation.setter
    def adaptation(self, learned: dict[str, Any]) -> None:
        self._steps_before = learned["num_steps"]

    def setup(self, warmup_steps: int, *args: object, **kwargs: object) -> None:
        """Starts the chains."""
        values = self.initial_params["x"]
        self._state = IndependenceState(values, self.q.accepted_tilt(values))
        self._warmup_steps, self._t, self._sum_rate = warmup_steps, 0, 0.0
        self.accept_prob = torch.zeros(self.num_chains)

    def sample(self, params: Params) -> Params:
        """Makes one step of every chain."""
        self._state, self.accept_prob = independence_step(self.q, self._source, self._state)
        self._t += 1
        if self._t > self._warmup_steps:
            self._sum_rate += float(self.accept_prob.mean())
        return {"x": self._state.values}

    def stats(self) -> dict[str, Tensor]:
        """Returns what is known of the last step, each of shape ``(num_chains,)``."""
        bound = total_variation_bound(self.q.bounds, self._steps_before + self._t)
        base: Any = self.q.base
        return {
            "lp": base.log_prob(self._state.values) + self._state.tilts - self.q.log_normalizer.value,
            "acceptance_rate": self.accept_prob,
            "total_variation": torch.full((self.num_chains,), bound, dtype=torch.float64),
        }

    def logging(self) -> OrderedDict[str, str]:
        """Returns what Pyro's progress bar shows."""
        return OrderedDict([("acc. prob", f"{float(self.accept_prob.mean()):.3f}")])

    def diagnostics(self) -> dict[str, Any]:
        """Returns the mean acceptance probability after warmup, and the bound on the last states' distance.

        Pyro's and ArviZ's summaries also look for divergences, of which there are none.
        """
        bound = total_variation_bound(self.q.bounds, self._steps_before + self._t)
        rate = self._sum_rate / max(self._t - self._warmup_steps, 1)
        return {"acceptance rate": rate, "total variation": bound, "divergences": []}

    def cleanup(self) -> None:
        """Forgets the starting points."""
        self._initial_params = None
