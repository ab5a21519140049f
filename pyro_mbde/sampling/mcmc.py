"""Markov chains through Pyro's own MCMC, on a fitted density or any Pyro model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyro
import torch
from pyro.infer import HMC, MCMC, NUTS
from pyro.infer.autoguide.initialization import init_to_sample
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from pyro.infer.mcmc.util import initialize_model
from torch import Tensor
from torch.distributions import Distribution, biject_to
from tqdm import tqdm

from pyro_mbde._runtime import (
    check_choice,
    check_count,
    check_seed,
    message,
    seeded,
    single_thread,
    with_gradients,
)
from pyro_mbde.base import reference_draws
from pyro_mbde.distribution import MollifiedExpFamily
from pyro_mbde.sampling.chains import Chains
from pyro_mbde.sampling.kernels import Params, Potential, RandomWalk

# Pyro leaves these unannotated. What a kernel knows of a step it keeps in private attributes (see _Recorder), which is
# why the project names the Pyro versions that it has been tested with.
_MCMC: Any = MCMC
_NUTS: Any = NUTS
_initialize_model: Any = initialize_model

KERNELS = ("random_walk", "hmc", "nuts")


class _Target(NamedTuple):
    """What a kernel samples: a potential on unconstrained parameters, and the way back to the sites."""

    potential_fn: Potential
    initial_params: Params
    constrain: Callable[[Params], Params]


def run_mcmc(
    model: Distribution | Callable[..., Any],
    kernel: str = "random_walk",
    num_samples: int = 1000,
    warmup_steps: int = 500,
    num_chains: int = 4,
    *,
    seed: int | None = None,
    progress: bool = True,
    model_args: tuple[Any, ...] = (),
    model_kwargs: Mapping[str, Any] | None = None,
    kernel_options: Mapping[str, Any] | None = None,
) -> Chains:
    """Runs Markov chains with ``pyro.infer.MCMC`` and returns their draws.

    Each chain has its own kernel, seed and start, so none inherits another's adaptation. A density is started at draws
    of its base and sampled in coordinates in which the base has unit scale; a model is started at draws of its prior.

    Privacy:
        For inference and checks, not for release: a trajectory is not covered by the density's guarantee.

    Args:
        model: a distribution with continuous support, sampled as site ``x``, or a Pyro model.
        kernel: ``random_walk``, ``hmc`` or ``nuts``.
        num_samples: draws kept per chain, at least 1.
        warmup_steps: adaptation steps per chain before them, at least 0.
        num_chains: number of chains, at least 1; one after the other.
        seed: for reproducible chains; ``None`` takes one from torch's global generator, so that every run differs.
        progress: whether to show a progress bar over all chains.
        model_args: positional arguments of the model.
        model_kwargs: keyword arguments of the model.
        kernel_options: options of the kernel, as ``target_accept_prob`` or ``max_tree_depth``.

    Returns:
        :class:`Chains`.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: an argument is out of its range, the support is discrete, or the random walk meets an energy that is
            NaN (HMC and NUTS reject such a proposal and count it as a divergence).

    Example:
        >>> import pyro.distributions as dist
        >>> chains = run_mcmc(dist.Normal(0.0, 1.0), "nuts", num_samples=100, num_chains=2, seed=0, progress=False)
        >>> chains.draws["x"].shape
        torch.Size([2, 100])
    """
    check_choice("kernel", kernel, KERNELS)
    check_count("num_samples", num_samples)
    check_count("warmup_steps", warmup_steps, minimum=0)
    check_count("num_chains", num_chains)
    if not isinstance(model_args, tuple | list):
        raise TypeError(message("model_args", "be a tuple", type(model_args).__name__))
    if not callable(model):
        raise TypeError(message("model", "be a distribution or a Pyro model", model))
    entropy = int(torch.randint(2**62, ())) if check_seed(seed) is None else seed
    states = np.random.SeedSequence(entropy).generate_state(num_chains, np.uint64)
    seeds = tuple(int(state) % 2**63 for state in states)
    draws: list[Params] = []
    stats: list[dict[str, Tensor]] = []
    bar = tqdm(total=num_chains * (warmup_steps + num_samples), desc=kernel, unit="step", disable=not progress)
    with bar, single_thread(), with_gradients():
        for index, chain_seed in enumerate(seeds):
            bar.set_description(f"{kernel} chain {index + 1}/{num_chains}")
            with seeded(chain_seed):
                if isinstance(model, Distribution):
                    target = _density_target(model)
                else:
                    target = _model_target(model, model_args, dict(model_kwargs or {}))
                recorder = _Recorder(bar)
                mcmc = _MCMC(
                    _build_kernel(kernel, target, dict(kernel_options or {})),
                    num_samples=num_samples,
                    warmup_steps=warmup_steps,
                    initial_params=target.initial_params,
                    hook_fn=recorder,
                    disable_progbar=True,
                )
                mcmc.run()
            draws.append(target.constrain(mcmc.get_samples()))
            stats.append({name: torch.tensor(values) for name, values in recorder.stats.items()})
    return Chains(
        draws={name: torch.stack([chain[name] for chain in draws]) for name in draws[0]},
        sample_stats={name: torch.stack([chain[name] for chain in stats]) for name in stats[0]},
        seeds=seeds,
        warmup_steps=warmup_steps,
        kernel=kernel,
        density=model if isinstance(model, Distribution) else None,
    )


class _Recorder:
    """Keeps what a kernel knows after each step and Pyro throws away; advances the progress bar."""

    def __init__(self, bar: tqdm[Any]) -> None:
        self.bar = bar
        self.stats: dict[str, list[float | bool]] = {}
        self._mean = 0.0

    def __call__(self, kernel: Any, params: Params, stage: str, index: int) -> None:
        """Called by ``pyro.infer.MCMC`` after each step."""
        self.bar.update()
        if not stage.startswith("Sample"):
            return
        # The kernels keep the running mean of the acceptance probabilities: its increments give them back.
        count, mean = index + 1, kernel._mean_accept_prob
        self._keep("acceptance_rate", min(max(count * mean - index * self._mean, 0.0), 1.0))
        self._mean = mean
        if isinstance(kernel, RandomWalk):
            self._keep("lp", -float(kernel._energy_last))
            self._keep("step_size", math.exp(kernel._log_step_size))
        else:  # HMC or NUTS
            self._keep("lp", -float(kernel._potential_energy_last))
            self._keep("step_size", float(kernel.step_size))
            self._keep("diverging", index in kernel._divergences[-1:])

    def _keep(self, name: str, value: float | bool) -> None:
        self.stats.setdefault(name, []).append(value)


def _build_kernel(name: str, target: _Target, options: dict[str, Any]) -> MCMCKernel:
    """Builds one chain's kernel."""
    if name == "random_walk":
        return RandomWalk(target.potential_fn, **options)
    if name == "hmc":
        # A quarter of the period of a unit normal: half of it or all of it, Pyro's default, returns to where it
        # started.
        return HMC(potential_fn=target.potential_fn, **{"trajectory_length": math.pi / 2, **options})
    nuts: MCMCKernel = _NUTS(potential_fn=target.potential_fn, **options)
    return nuts


def _density_target(density: Distribution) -> _Target:
    """A density in unconstrained coordinates in which its base has unit scale, started at a draw of the base.

    For a distribution that is no exponential family over a base, the distribution is its own base.
    """
    support: Any = density.support
    if support.is_discrete:
        remedy = "Draw exactly: q.sample((n,))."
        raise ValueError(message("model", "have continuous support for a Markov chain", density, remedy))
    if density.batch_shape:
        raise ValueError(message("model", "have an empty batch shape", tuple(density.batch_shape)))
    base: Distribution = density.base_dist if isinstance(density, MollifiedExpFamily) else density
    transform: Any = biject_to(support)
    unconstrained = transform.inv(reference_draws(base))
    loc, scale = unconstrained.median(0).values, unconstrained.std(0)
    scale = torch.where(torch.isfinite(scale) & (scale > 0), scale, torch.ones_like(scale))

    def potential_fn(params: Params) -> Tensor:
        point = loc + scale * params["x"]
        value = transform(point)
        log_prob: Tensor = density.log_prob(value) + transform.log_abs_det_jacobian(point, value)
        return -log_prob

    def constrain(params: Params) -> Params:
        return {"x": transform(loc + scale * params["x"])}

    start = (transform.inv(base.sample()) - loc) / scale
    return _Target(potential_fn, {"x": start}, constrain)


def _model_target(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Target:
    """A Pyro model's posterior in Pyro's own unconstrained coordinates, started at a draw of the prior."""
    with pyro.validation_enabled(False):  # as pyro.infer.MCMC does: it looks for a start with a finite energy itself
        initial_params, potential_fn, transforms, _ = _initialize_model(
            model, model_args=args, model_kwargs=kwargs, init_strategy=init_to_sample
        )
        if not initial_params:
            raise ValueError(message("model", "have a continuous latent site to sample", model))

    def constrain(params: Params) -> Params:
        return {name: transforms[name].inv(value) if name in transforms else value for name, value in params.items()}

    return _Target(potential_fn, initial_params, constrain)
