"""Runs of kernels, each with its own random numbers, advanced a few steps at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyro
import torch
from torch import Tensor

from pyro_mbde._torch_state import generator_states, set_generator_states
from pyro_mbde.mcmc.chains import ChainState
from pyro_mbde.mcmc.target import Params

#: Steps that each run makes before the next one has its turn.
STEPS_PER_TURN = 20


class Chunk(NamedTuple):
    """The draws that a run made since the last chunk, as plain data.

    Attributes:
        run: which run.
        num_steps: steps made, warmup included.
        params: per site, the draws, shape ``(n, num_chains, ...)``; empty in warmup.
        stats: per statistic, shape ``(n, num_chains)``.
        state: where the run stands.
    """

    run: int
    num_steps: int
    params: Params
    stats: dict[str, Tensor]
    state: ChainState


class Run:
    """One kernel and its chains.

    Args:
        index: which run it is.
        kernel: as :mod:`~pyro_mbde.mcmc.kernels` describes it, with starts.
        generators: states of torch's generators at the start.
        warmup_steps: steps to adapt in.
        num_samples: steps to keep after them.
        has_chain_dim: whether its parameters have a leading dimension of chains.
    """

    def __init__(
        self,
        index: int,
        kernel: Any,
        generators: tuple[Tensor, ...],
        warmup_steps: int,
        num_samples: int,
        *,
        has_chain_dim: bool,
    ) -> None:
        self.index, self.kernel, self.has_chain_dim = index, kernel, has_chain_dim
        self.warmup_steps, self.num_samples = warmup_steps, num_samples
        self._generators = generators
        self._step = -1  # not set up
        self._params: Params = {}
        self._new: list[tuple[Params, dict[str, Tensor]]] = []
        self._new_steps = 0

    @property
    def finished(self) -> bool:
        """Whether all steps are made."""
        return self._step == self.warmup_steps + self.num_samples

    def advance(self, num_steps: int = STEPS_PER_TURN) -> None:
        """Makes up to ``num_steps`` steps with the run's own randomness."""
        with self._own_generators(), pyro.validation_enabled(False):
            if self._step < 0:
                self.kernel.setup(self.warmup_steps)
                self._params, self._step = self.kernel.initial_params, 0
            for _ in range(min(num_steps, self.warmup_steps + self.num_samples - self._step)):
                self._params = self.kernel.sample(self._params)
                self._step += 1
                self._new_steps += 1
                if self._step > self.warmup_steps:
                    self._new.append((self._params, self.kernel.stats()))

    @contextmanager
    def _own_generators(self) -> Iterator[None]:
        """Runs the block on torch's generators in the state that the run left them in; the caller's are put back."""
        before = generator_states()
        set_generator_states(self._generators)
        try:
            yield
        finally:
            self._generators = generator_states()
            set_generator_states(before)

    def take(self) -> Chunk:
        """Returns the draws made since the last call, and forgets them."""
        new, num_steps = self._new, self._new_steps
        self._new, self._new_steps = [], 0
        params = _stack([params for params, _ in new], self.has_chain_dim)
        stats = _stack([stats for _, stats in new], self.has_chain_dim)
        return Chunk(self.index, num_steps, params, stats, self.state())

    def state(self) -> ChainState:
        """Returns where the run stopped, with a leading dimension of chains."""
        params = {name: value.detach() for name, value in self._params.items()}
        lp = self.kernel.stats()["lp"].detach()
        if not self.has_chain_dim:
            params, lp = {name: value.unsqueeze(0) for name, value in params.items()}, lp.unsqueeze(0)
        return ChainState(params, self.kernel.adaptation, self._generators, lp)


def _stack(steps: list[dict[str, Tensor]], has_chain_dim: bool) -> dict[str, Tensor]:
    """Stacks the results of steps into tensors with leading dimensions of steps and chains."""
    if not steps:
        return {}
    stacked = {name: torch.stack([step[name].detach() for step in steps]) for name in steps[0]}
    return stacked if has_chain_dim else {name: value.unsqueeze(1) for name, value in stacked.items()}


class DrawCollector:
    """Collects the chunks of all runs.

    Args:
        num_runs: number of runs.
    """

    def __init__(self, num_runs: int) -> None:
        self._chunks: list[list[Chunk]] = [[] for _ in range(num_runs)]
        self._states: list[ChainState | None] = [None] * num_runs
        self._num_draws = [0] * num_runs

    def add(self, chunk: Chunk) -> None:
        """Keeps a chunk."""
        if chunk.params:
            self._chunks[chunk.run].append(chunk)
            self._num_draws[chunk.run] += len(next(iter(chunk.params.values())))
        self._states[chunk.run] = chunk.state

    @property
    def num_draws(self) -> int:
        """Draws that every chain has."""
        return min(self._num_draws)

    @property
    def states(self) -> list[ChainState]:
        """Where each run stands."""
        return [state for state in self._states if state is not None]

    def gather(self) -> tuple[Params, dict[str, Tensor]]:
        """Returns parameters and statistics, shape ``(num_chains, num_draws, ...)``, all chains equally long."""

        def join(pieces: list[list[dict[str, Tensor]]]) -> dict[str, Tensor]:
            return {
                name: torch.cat(
                    [torch.cat([piece[name] for piece in run])[: self.num_draws].transpose(0, 1) for run in pieces]
                ).contiguous()
                for name in pieces[0][0]
            }

        params = join([[chunk.params for chunk in chunks] for chunks in self._chunks])
        return params, join([[chunk.stats for chunk in chunks] for chunks in self._chunks])


def run_in_turns(runs: list[Run], on_chunk: Callable[[Chunk], None]) -> None:
    """Advances the runs in turns, in this process, so that an interrupt leaves them equally far."""
    waiting = list(runs)
    while waiting:
        for run in waiting:
            run.advance()
            on_chunk(run.take())
        waiting = [run for run in waiting if not run.finished]
