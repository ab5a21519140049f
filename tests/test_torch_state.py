"""Argument checks, seeds and threads."""

from __future__ import annotations

import multiprocessing
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch

from pyro_mbde._checks import check_count, check_flag, check_number, check_seed
from pyro_mbde._torch_state import seeded, single_thread


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


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not fork")
def test_threads_are_put_back() -> None:
    """In a separate process, since tests run on one thread."""

    def fails_on_two_threads() -> None:
        torch.set_num_threads(2)
        with pytest.raises(KeyError), single_thread():
            assert torch.get_num_threads() == 1
            raise KeyError
        assert torch.get_num_threads() == 2

    process = multiprocessing.get_context("fork").Process(target=fails_on_two_threads)
    process.start()
    process.join()
    assert process.exitcode == 0
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


@pytest.mark.parametrize("kind", [int, np.int8, np.int64, np.uint16])
def test_whole_numbers_are_pythons_or_numpys(kind: type) -> None:
    assert type(check_count("size", kind(3))) is int
    assert type(check_number("rate", kind(3), "be above 0", lambda value: value > 0)) is float
    with pytest.raises(ValueError, match="size must be at least 4"):
        check_count("size", kind(3), minimum=4)


@pytest.mark.parametrize("kind", [float, Fraction, np.float16, np.float32, np.float64, np.longdouble])
def test_numbers_are_pythons_or_numpys(kind: type) -> None:
    number = check_number("rate", kind(0.5), "be above 0", lambda value: value > 0)
    assert (number, type(number)) == (0.5, float)
    with pytest.raises(TypeError, match="size must be a whole number"):
        check_count("size", kind(3.5))


@pytest.mark.parametrize("kind", [bool, np.bool_])
def test_flags_are_pythons_or_numpys(kind: type) -> None:
    assert check_flag("progress", kind(1)) is True
    assert check_flag("progress", kind(0)) is False
    with pytest.raises(TypeError, match="size must be a whole number"):
        check_count("size", kind(1))
    with pytest.raises(TypeError, match="rate must be a real number"):
        check_number("rate", kind(1), "be above 0", lambda value: value > 0)


@pytest.mark.parametrize("value", [1, 0, np.int64(1), 1.0, "yes", None])
def test_nothing_else_is_a_flag(value: object) -> None:
    with pytest.raises(TypeError, match="progress must be True or False"):
        check_flag("progress", value)


@pytest.mark.parametrize("value", [10**400, -(10**400), Fraction(10**400, 3)])
def test_numbers_beyond_all_floats(value: object) -> None:
    with pytest.raises(ValueError, match="rate must be a number that a float holds"):
        check_number("rate", value, "be above 0", lambda number: number > 0)
