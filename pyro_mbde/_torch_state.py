"""What is global in torch, set for a while and put back: generators, threads, gradients."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# One thread at a time may change torch's generators and thread counts and put them back. If two did, each would put
# back what the other had set, and private draws would continue from a state that can be guessed.
_global_state = threading.RLock()


def _release_in_child() -> None:
    """A forked process has no other thread that could hold the lock."""
    global _global_state
    _global_state = threading.RLock()


if hasattr(os, "register_at_fork"):  # where processes can be forked
    os.register_at_fork(after_in_child=_release_in_child)


@contextmanager
def forked_generators() -> Iterator[None]:
    """Runs the block on copies of torch's generators, while no other thread of this library changes them."""
    with _global_state, torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Runs the block on torch generators seeded with ``seed``; the caller's generators are put back afterwards.

    With ``seed=None`` the block draws from the caller's generators, as any torch function does, so that
    ``pyro.set_rng_seed`` governs it.
    """
    if seed is None:
        yield
        return
    with forked_generators():
        seed_generators(seed)
        yield


def seed_generators(seed: int) -> None:
    """Seeds torch's generators: the CPU's, and those of CUDA devices, if any was used."""
    # torch.manual_seed takes a hundred times as long: it formats the stack for devices that are not there.
    torch.default_generator.manual_seed(seed % 2**63)
    cuda: Any = torch.cuda  # torch leaves it unannotated
    if cuda.is_initialized():
        cuda.manual_seed_all(seed % 2**63)


def generator_states() -> tuple[torch.Tensor, ...]:
    """Returns the states of torch's generators: the CPU's, then those of CUDA devices, if any was used."""
    cuda: Any = torch.cuda  # torch leaves it unannotated
    return (torch.get_rng_state(), *(cuda.get_rng_state_all() if cuda.is_initialized() else ()))


def set_generator_states(states: tuple[torch.Tensor, ...]) -> None:
    """Puts the states of torch's generators back."""
    cuda: Any = torch.cuda
    torch.set_rng_state(states[0])
    if len(states) > 1:
        cuda.set_rng_state_all(list(states[1:]))


@contextmanager
def single_thread() -> Iterator[None]:
    """Runs the block on one intra-op thread: small matrices lose far more than they gain on several."""
    with _global_state:
        num_threads = torch.get_num_threads()
        if num_threads == 1:
            yield
            return
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(num_threads)


@contextmanager
def with_gradients() -> Iterator[None]:
    """Runs the block with gradients, also where the caller has turned them off."""
    with torch.inference_mode(False), torch.enable_grad():
        yield
