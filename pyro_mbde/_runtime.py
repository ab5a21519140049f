"""What every computation here needs: argument checks, seeds that leave the global generator alone, one thread."""

from __future__ import annotations

import numbers
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch


def message(name: str, constraint: str, value: object, remedy: str = "") -> str:
    """Returns the text of an argument error, in the one form the library uses."""
    return f"{name} must {constraint}, got {name}={value!r}. {remedy}".rstrip()


def shown(number: float) -> str:
    """Returns a number as people read it: six digits, without the last ones of a float, 0.4 for 0.39999999999999997."""
    return f"{number:.6g}"


def check_number(name: str, value: Any, constraint: str, holds: Callable[[float], bool], *, remedy: str = "") -> float:
    """Returns ``value`` as a float, or raises if it is no real number or ``holds`` is false of it (as it is of NaN)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(message(name, "be a real number", value, remedy))
    try:
        number = float(value)
    except OverflowError:  # an int or a fraction that no float holds
        raise ValueError(message(name, "be a number that a float holds", value, remedy)) from None
    if not holds(number):
        raise ValueError(message(name, constraint, value, remedy))
    return number


def check_epsilon(value: Any) -> float:
    """Returns the privacy parameter ``value`` as a float, or raises if it is not in (0, inf]."""
    return check_number("epsilon", value, "be above 0 (in nats; inf for no limit)", lambda epsilon: epsilon > 0)


def check_count(name: str, value: Any, *, minimum: int = 1, remedy: str = "") -> int:
    """Returns ``value`` as an int, or raises if it is no whole number of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(message(name, "be a whole number", value, remedy))
    if value < minimum:
        raise ValueError(message(name, f"be at least {minimum}", value, remedy))
    return int(value)


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Returns ``value``, or raises if it is none of the ``choices``."""
    if not isinstance(value, str):
        raise TypeError(message(name, "be a string", value))
    if value not in choices:
        raise ValueError(message(name, f"be one of {', '.join(choices)}", value))
    return str(value)


def check_flag(name: str, value: Any) -> bool:
    """Returns ``value`` as a bool, or raises if it is neither True nor False, Python's or NumPy's."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(message(name, "be True or False", value))
    return bool(value)


def check_seed(seed: Any) -> int | None:
    """Returns ``seed`` as an int or None, or raises if it can seed no generator."""
    if seed is None:
        return None
    return check_count("seed", seed, minimum=0, remedy="Pass a non-negative int, or None.")


# One thread at a time may change torch's generators and thread counts and put them back. Of two, each would put back
# what the other had set, and private draws would go on from a state that anybody can guess.
_global_state = threading.RLock()


def _release_in_child() -> None:
    """A forked process has no other thread that could hold the lock."""
    global _global_state
    _global_state = threading.RLock()


if hasattr(os, "register_at_fork"):  # where processes can be forked
    os.register_at_fork(after_in_child=_release_in_child)


@contextmanager
def forked_generators() -> Iterator[None]:
    """Runs the block on copies of torch's generators, no other thread of this library's beside it."""
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
        # torch.manual_seed takes a hundred times as long: it formats the stack for devices that are not there.
        torch.default_generator.manual_seed(seed % 2**63)
        cuda: Any = torch.cuda  # torch leaves it unannotated
        if cuda.is_initialized():
            cuda.manual_seed_all(seed % 2**63)
        yield


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


def import_arviz() -> Any:
    """Imports ArviZ when it is first needed: it takes longer than all the rest, and 0.23 announces 1.0 by a warning."""
    import_matplotlib()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz


def import_matplotlib() -> None:
    """Imports Matplotlib, which cannot be imported where MPLBACKEND names a backend that is not installed.

    A notebook sets it for all of its child processes, whatever environment they run in. The backend is kept where it is
    known, and otherwise left to Matplotlib: figures here need none.
    """
    if "matplotlib" in sys.modules:
        return
    named = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib
    finally:
        if named is not None:
            os.environ["MPLBACKEND"] = named
    if named:
        with suppress(ValueError):
            matplotlib.rcParams["backend"] = named
