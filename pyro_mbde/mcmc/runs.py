"""Runs of kernels, each with its own random numbers, advanced a few steps at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyro
import torch
from torch import Tensor

from pyro_mbde._torch_state import generator_states, set_generator_states
from pyro_mbde.mcmc.chains import ChainState
from pyro_mbde.mcmc.target import Params, stack

#: Steps that each run makes before the next one has its turn.
STEPS_PER_TURN = 20


class Chunk(NamedTuple):
    """The draws that a run made since the last chunk, as plain data.

    Attributes:
        run: index of the run.
        num_steps: steps made, warmup included.
        params: the draws of each site, shape ``(n, num_chains, ...)``; empty in warmup.
        stats: for each statistic, shape ``(n, num_chains)``.
        state: where the run stands.
    """

    run: int
    num_steps: int
    params: Params
    stats: dict[str, Tensor]
    state: ChainState


@dataclass(eq=False)
class Run:
    """One kernel and its chains.

    Attributes:
        index: index of the run.
        kernel: a kernel as :mod:`~pyro_mbde.mcmc.kernels` describes it, with its starting points.
        generators: states of torch's generators after the last step.
        warmup_steps: steps in which the kernel adapts.
        num_samples: steps after these, which are kept.
        has_chain_dim: whether its parameters have a leading dimension of chains.
    """

    index: int
    kernel: Any
    generators: tuple[Tensor, ...]
    warmup_steps: int
    num_samples: int
    has_chain_dim: bool
    _step: int = -1  # the kernel is not set up yet
    _params: Params = field(default_factory=dict)
    _new: list[tuple[Params, dict[str, Tensor]]] = field(default_factory=list)
    _new_steps: int = 0

    @property
    def finished(self) -> bool:
        """Whether all steps have been made."""
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
                    self._new.append((self._by_chain(self._params), self._by_chain(self.kernel.stats())))

    @contextmanager
    def _own_generators(self) -> Iterator[None]:
        """Runs the block on torch's generators in the state in which the run left them.

        The caller's generator states are restored afterwards.
        """
        before = generator_states()
        set_generator_states(self.generators)
        try:
            yield
        finally:
            self.generators = generator_states()
            set_generator_states(before)

    def take(self) -> Chunk:
        """Returns the draws made since the last call, and forgets them."""
        new, num_steps = self._new, self._new_steps
        self._new, self._new_steps = [], 0
        params, stats = (stack(list(steps)) for steps in zip(*new, strict=True)) if new else ({}, {})
        lp = self._by_chain(self.kernel.stats())["lp"]
        state = ChainState(self._by_chain(self._params), self.kernel.adaptation, self.generators, lp)
        return Chunk(self.index, num_steps, params, stats, state)

    def _by_chain(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Values with a leading dimension of chains."""
        kept = values if self.has_chain_dim else {name: value.unsqueeze(0) for name, value in values.items()}
        return {name: value.detach() for name, value in kept.items()}


class DrawCollector:
    """Collects the chunks of all runs; ``num_diverging`` counts divergences after warmup."""

    def __init__(self, num_runs: int) -> None:
        self._chunks: list[list[Chunk]] = [[] for _ in range(num_runs)]
        self._states: list[ChainState | None] = [None] * num_runs
        self._num_draws = [0] * num_runs
        self.num_diverging = 0

    def add(self, chunk: Chunk) -> None:
        """Keeps a chunk."""
        if chunk.params:
            self._chunks[chunk.run].append(chunk)
            self._num_draws[chunk.run] += len(next(iter(chunk.params.values())))
            self.num_diverging += int(chunk.stats["diverging"].sum()) if "diverging" in chunk.stats else 0
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
    """Advances the runs in turns, in this process, so that an interrupt leaves them about equally long."""
    waiting = list(runs)
    while waiting:
        for run in waiting:
            run.advance()
            on_chunk(run.take())
        waiting = [run for run in waiting if not run.finished]
