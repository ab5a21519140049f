"""Argument checks, seeds and threads."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from pyro_mbde._runtime import check_count, check_number, check_seed, seeded, single_thread


def test_seeded_block_is_reproducible_and_leaves_no_trace() -> None:
    state = torch.get_rng_state()
    with seeded(3):
        first = torch.rand(4)
    assert torch.equal(torch.get_rng_state(), state)
    with seeded(3):
        assert torch.equal(torch.rand(4), first)
    with seeded(None):
        torch.rand(1)
    assert not torch.equal(torch.get_rng_state(), state)


def test_the_generator_comes_back_after_an_error() -> None:
    state = torch.get_rng_state()
    with pytest.raises(KeyError), seeded(3):
        raise KeyError
    assert torch.equal(torch.get_rng_state(), state)


def test_threads_are_put_back() -> None:
    """In a process of its own, since tests run on one thread."""
    script = """
import torch
from pyro_mbde._runtime import single_thread
torch.set_num_threads(2)
try:
    with single_thread():
        assert torch.get_num_threads() == 1
        raise KeyError
except KeyError:
    assert torch.get_num_threads() == 2
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)
    with single_thread():
        assert torch.get_num_threads() == 1


def test_error_messages_have_one_form() -> None:
    with pytest.raises(ValueError, match=r"^size must be at least 2, got size=1\. Take more\.$"):
        check_count("size", 1, minimum=2, remedy="Take more.")
    with pytest.raises(TypeError, match=r"^size must be a whole number, got size=1\.5\.$"):
        check_count("size", 1.5)
    with pytest.raises(ValueError, match=r"^rate must be below 1, got rate=nan\.$"):
        check_number("rate", float("nan"), "be below 1", lambda value: value < 1)
    assert check_seed(None) is None
    assert check_seed(0) == 0
