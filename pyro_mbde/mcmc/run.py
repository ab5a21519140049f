"""Markov chains with Pyro's kernels, on a fitted density or any Pyro model."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyro
import torch
from pyro.ops.integrator import potential_grad
from torch import Tensor
from torch.distributions import Distribution
from tqdm import tqdm

from pyro_mbde._checks import argument_error, check_choice, check_count, check_seed, counted
from pyro_mbde._torch_state import generator_states, seeded, single_thread, with_gradients
from pyro_mbde.mcmc.chains import Chains, ChainState
from pyro_mbde.mcmc.kernels import KERNELS
from pyro_mbde.mcmc.plan import Sampling, prepare_sampling
from pyro_mbde.mcmc.runs import Chunk, DrawCollector, Run, run_in_turns
from pyro_mbde.mcmc.target import Target
from pyro_mbde.mcmc.workers import WorkerSilentError, parallel_obstacle, run_in_workers

_potential_grad: Any = potential_grad  # Pyro leaves it unannotated

#: A worker is considered hung if it sends no message for this many seconds or for the time of this many of the longest
#: NUTS steps, whichever is longer.
_MIN_PATIENCE, _STEPS_OF_PATIENCE = 60.0, 4


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
    initial_values: Mapping[str, Tensor] | None = None,
    num_workers: int | None = None,
) -> Chains:
    """Runs Markov chains with Pyro's kernels, and with this library's kernels that have Pyro's interface.

    ``random_walk``, ``hmc`` and ``nuts`` run each chain with its own kernel, seed and adaptation, several at a time
    where there are several cores; the result does not depend on the number of cores. ``lockstep_random_walk``,
    ``lockstep_hmc`` and ``independence`` advance all chains together in one tensor, which suits large numbers of
    chains. ``hmc``, ``lockstep_hmc`` and ``nuts`` follow the base of a density, or a damped density, and select states
    by the density itself, so that the draws are of the density and no steep gradient is followed.

    Chains on a density start at draws of its base; chains on a model start at draws of its prior. They are sampled in
    coordinates in which the base, or the prior, has unit scale. Constrained sites are sampled in unconstrained
    coordinates, so that no mass is lost at an edge. (``independence`` samples in the density's own space.) Over a base
    of columns of all kinds chains move the normal scores that rows are made from, and rows are returned.

    Torch's generators are shared by all threads of a process: run chains in one thread at a time, or seeds will not
    reproduce.

    If every chain has draws, an interrupt (Ctrl-C) makes this function warn and return them, the same number from every
    chain; an earlier interrupt raises KeyboardInterrupt. :func:`resume_mcmc` continues from there, or from the end.

    Privacy:
        For inference and checks, not for release: a trajectory is not covered by the density's guarantee.

    Args:
        model: a distribution, sampled as site ``x``, or a Pyro model.
        kernel: ``random_walk``, ``hmc``, ``nuts``, ``lockstep_random_walk`` or ``lockstep_hmc`` (a density, or a model
            that ``torch.vmap`` can vectorise), or ``independence`` (only for a :class:`MollifiedExpFamily`).
        num_samples: draws kept per chain, at least 1.
        warmup_steps: adaptation steps per chain before the kept draws, at least 0.
        num_chains: number of chains, at least 1.
        seed: for reproducible chains; ``None`` takes one from torch's global generator, so that every run differs.
        progress: whether to show a progress bar over all chains.
        model_args: positional arguments of the model.
        model_kwargs: keyword arguments of the model.
        kernel_options: options of the kernel, such as ``{"target_accept_prob": 0.95}``, or ``{"pooled": False}`` for
            lockstep kernels: the parameters of the kernels' classes.
        initial_values: starting values for each site, in the site's own (constrained) space, shape ``(num_chains,
            *batch_shape, *event_shape)``: the dimensions of its plates, then its own.
        num_workers: number of processes; ``None`` for one per chain, at most one per core, where forking is safe. 1
            runs everything in this process.

    Returns:
        :class:`~pyro_mbde.mcmc.chains.Chains`.

    Raises:
        ValueError: the support is discrete, and the base is not one of columns; no starting point has a finite energy;
            or the energy is NaN at a point that is inside the supports and not extremely far from the centre (the
            message names the site).
        WorkerError: a worker process was killed.

    References:
        Hoffman, Gelman. The No-U-Turn sampler. 2014. Also the references of :class:`LockstepHMC`,
        :class:`LockstepRandomWalk` and :class:`IndependenceSampler`.

    Example:
        >>> import pyro.distributions as dist
        >>> chains = run_mcmc(dist.Normal(0.0, 1.0), "nuts", num_samples=100, num_chains=2, seed=0, progress=False)
        >>> chains.draws["x"].shape
        torch.Size([2, 100])
    """
    check_choice("kernel", kernel, tuple(KERNELS))
    check_count("num_samples", num_samples)
    check_count("warmup_steps", warmup_steps, minimum=0)
    check_count("num_chains", num_chains)
    entropy = int(torch.randint(2**62, ())) if check_seed(seed) is None else seed
    num_runs = 1 if KERNELS[kernel].lockstep else num_chains
    words = np.random.SeedSequence(entropy).generate_state(num_runs, np.uint64)
    seeds = tuple(int(word) % 2**63 for word in words)
    with single_thread(), with_gradients():
        if kernel_options is not None and not isinstance(kernel_options, Mapping):
            raise TypeError(argument_error("kernel_options", "be a dict", kernel_options))
        sampling = prepare_sampling(model, kernel, model_args, model_kwargs, dict(kernel_options or {}))
        given = None if initial_values is None else sampling.check_values(initial_values, num_chains)
        size = num_chains // num_runs
        states = []
        for index, run_seed in enumerate(seeds):
            with seeded(run_seed):
                if given is None:
                    starts = sampling.target.starts(size)
                else:
                    starts = {name: value[index * size : (index + 1) * size] for name, value in given.items()}
                states.append(ChainState(starts, {}, generator_states()))
        return _collect(sampling, states, seeds, num_samples, warmup_steps, num_workers, progress)


def resume_mcmc(
    chains: Chains,
    num_samples: int = 1000,
    *,
    model: Callable[..., Any] | None = None,
    progress: bool = True,
    model_args: tuple[Any, ...] = (),
    model_kwargs: Mapping[str, Any] | None = None,
    num_workers: int | None = None,
) -> Chains:
    """Resumes chains where they stopped, with the same kernel, adaptation and stream of random numbers.

    The draws are those that a longer run would have made. After an interrupt, draws that some chains had made ahead of
    the others are left out.

    Privacy:
        Not for release.

    Args:
        chains: what :func:`run_mcmc` returned, even after an interrupt, or after pickling and unpickling.
        num_samples: draws to add to each chain, at least 1.
        model: the model that the chains ran on; not needed for chains on a distribution, because these carry it.
        progress: as for :func:`run_mcmc`.
        model_args: the model's positional arguments when the chains were run.
        model_kwargs: the model's keyword arguments when the chains were run.
        num_workers: as for :func:`run_mcmc`.

    Returns:
        New :class:`~pyro_mbde.mcmc.chains.Chains` with the old draws and the new ones.

    Raises:
        ValueError: the chains hold no state, or the model is missing or is not the one that they ran on.

    Example:
        >>> import pyro.distributions as dist
        >>> first = run_mcmc(dist.Normal(0.0, 1.0), "nuts", num_samples=50, num_chains=2, seed=0, progress=False)
        >>> resume_mcmc(first, 30, progress=False).draws["x"].shape
        torch.Size([2, 80])
    """
    if not isinstance(chains, Chains):
        raise TypeError(argument_error("chains", "be Chains", chains))
    check_count("num_samples", num_samples)
    if not chains.states:
        raise ValueError("chains must hold the state in which they stopped, got none. Run them with run_mcmc.")
    target = chains.density if model is None else model
    if target is None:
        raise ValueError(argument_error("model", "be given to resume the chains of a model", model))
    with single_thread(), with_gradients():
        sampling = prepare_sampling(target, chains.kernel, model_args, model_kwargs, dict(chains.kernel_options))
        sites = sampling.target.supports
        if set(sites) != set(chains.draws):
            wanted, found = ", ".join(chains.draws), ", ".join(sites)
            raise ValueError(f"model must have the same sites as the chains ({wanted}), got the sites {found}.")
        sampling.check_states(chains.states)
        more = _collect(sampling, list(chains.states), chains.seeds, num_samples, 0, num_workers, progress)
    draws = {name: torch.cat([value, more.draws[name]], 1) for name, value in chains.draws.items()}
    stats = {name: torch.cat([value, more.sample_stats[name]], 1) for name, value in chains.sample_stats.items()}
    return replace(chains, draws=draws, sample_stats=stats, states=more.states)


def _collect(
    sampling: Sampling,
    states: list[ChainState],
    seeds: tuple[int, ...],
    num_samples: int,
    warmup_steps: int,
    num_workers: int | None,
    progress: bool,
) -> Chains:
    """Runs chains from ``states`` and gathers their draws."""
    num_workers = _check_workers(num_workers, len(states))
    try:
        collector = _run(sampling, states, num_samples, warmup_steps, num_workers, progress)
    except WorkerSilentError as silence:
        remedy = "The chains are started again and run one after the other in this process."
        warnings.warn(f"{silence} {remedy}", stacklevel=3)
        collector = _run(sampling, states, num_samples, warmup_steps, 1, progress)
    if collector.num_draws < num_samples:
        warnings.warn(f"Interrupted: each chain has {collector.num_draws} of {num_samples} draws.", stacklevel=3)
    params, stats = collector.gather()
    return Chains(
        draws=sampling.target.constrain(params),
        sample_stats=stats,
        seeds=seeds,
        warmup_steps=warmup_steps,
        kernel=sampling.name,
        density=sampling.density,
        kernel_options=sampling.options,
        states=tuple(collector.states),
    )


def _run(
    sampling: Sampling, states: list[ChainState], num_samples: int, warmup_steps: int, num_workers: int, progress: bool
) -> DrawCollector:
    """Runs chains to their end, or until an interrupt, once every chain has draws."""
    runs = [_build_run(sampling, index, state, warmup_steps, num_samples) for index, state in enumerate(states)]
    collector = DrawCollector(len(runs))
    num_chains = sum(len(next(iter(state.params.values()))) for state in states)
    description = f"{sampling.name}, {counted(num_chains, 'chain')}"
    total = len(runs) * (warmup_steps + num_samples)
    with tqdm(total=total, desc=description, unit="step", disable=not progress) as bar:

        def add(chunk: Chunk) -> None:
            collector.add(chunk)
            if collector.num_diverging:
                bar.set_postfix_str(counted(collector.num_diverging, "divergence"), refresh=False)
            bar.update(chunk.num_steps)

        try:
            if num_workers > 1:
                run_in_workers(runs, num_workers, _patience(sampling, states[0]), add)
            else:
                run_in_turns(runs, add)
        except KeyboardInterrupt:
            if not collector.num_draws:
                raise
    return collector


def _build_run(sampling: Sampling, index: int, state: ChainState, warmup_steps: int, num_samples: int) -> Run:
    kernel = sampling.build()
    has_chain_dim = sampling.kernel.has_chain_dim
    kernel.initial_params = {name: value if has_chain_dim else value[0] for name, value in state.params.items()}
    if state.adaptation:
        kernel.adaptation = state.adaptation
    return Run(index, kernel, state.generators, warmup_steps, num_samples, has_chain_dim)


def _check_workers(num_workers: int | None, num_runs: int) -> int:
    """Returns how many processes to use; warns if several were asked for and only one is possible."""
    if num_workers is not None:
        check_count("num_workers", num_workers)
    reason = parallel_obstacle()
    if reason and (num_workers or 1) > 1:
        warnings.warn(f"The chains run one after the other in this process, because {reason}.", stacklevel=4)
    if reason:
        return 1
    cores = len(os.sched_getaffinity(0))
    return min(num_runs, cores if num_workers is None else num_workers)


def _patience(sampling: Sampling, state: ChainState) -> float:
    """Returns how many seconds a worker may be silent, estimated from the time of one evaluation of the energy."""
    target = cast("Target", sampling.target)  # a kernel with own_space has one run, which needs no workers
    params = {name: value[0].clone() for name, value in state.params.items()}
    start = time.perf_counter()
    with seeded(0), pyro.validation_enabled(False):
        if sampling.kernel.follows_gradient:
            _potential_grad(target.smooth_potential_fn, params)
        with torch.no_grad():
            target.potential_fn(params)
    depth = max(int(sampling.options.get("max_tree_depth", 10)), 10)
    longest_step = float(2**depth) * (time.perf_counter() - start)
    return max(_MIN_PATIENCE, _STEPS_OF_PATIENCE * longest_step)
