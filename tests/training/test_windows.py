"""Every row once a pass, for any number of ranks, however often a fit stops and goes on with other ones."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch

from pyro_mbde.training.windows import WINDOW_SLICES, Begun, Position, Windows, derived_seed, row_order, shared_out


@pytest.mark.parametrize("num_slices", [1, 31, 32, 33, 64, 100])
def test_a_pass_is_a_permutation_of_all_slices(num_slices: int) -> None:
    windows = Windows(num_slices, seed=3)
    passes = []
    for number in range(3):
        numbers = range(number * windows.per_pass, (number + 1) * windows.per_pass)
        found = [windows.slices(window) for window in numbers]
        assert all(len(one) == WINDOW_SLICES for one in found[:-1])
        passes.append([one for window in found for one in window])
        assert sorted(passes[-1]) == list(range(num_slices))
    if num_slices > WINDOW_SLICES:  # in one window they are read in ascending order
        assert all(one != other for one, other in pairwise(passes))
    assert Windows(num_slices, seed=3).slices(windows.per_pass) == windows.slices(windows.per_pass)


def test_orders_are_pure_functions_of_seed_and_window() -> None:
    assert torch.equal(row_order(1, 2, 50), row_order(1, 2, 50))
    assert torch.equal(Windows(5, 1).order(2, 50), row_order(1, 2, 50))
    assert sorted(row_order(1, 2, 50).tolist()) == list(range(50))
    assert not torch.equal(row_order(1, 2, 50), row_order(1, 3, 50))
    assert not torch.equal(row_order(1, 2, 50), row_order(2, 2, 50))
    before = torch.get_rng_state()
    row_order(1, 2, 50)
    assert torch.equal(before, torch.get_rng_state())
    # What is kept in a checkpoint must mean the same rows in every version.
    assert derived_seed(0, 1, 2) == 1535930435702422785
    assert Windows(40, 0).slices(1) == [5, 7, 14, 15, 29, 31, 33, 39]


LENGTH = 5  # rows of a window, in this arithmetic


def read_on(positions: list[Position], steps: int, random_steps: random.Random) -> tuple[list[Position], list[Begun]]:
    """Reads rows by ranks in any order, as sources do; returns where they stop and which rows were handed out."""
    positions, read = list(positions), []
    for _ in range(steps):
        rank = random_steps.randrange(len(positions))
        missing = random_steps.randint(1, 2 * LENGTH)
        while missing:
            begun, position = positions[rank].taken()
            end = min(begun.offset + missing, LENGTH)
            read += [Begun(begun.window, offset) for offset in range(begun.offset, end)]
            missing -= end - begun.offset
            positions[rank] = position if end == LENGTH else position.with_begun(Begun(begun.window, end))
    return positions, read


@pytest.mark.parametrize("seed", range(200))
def test_nothing_is_lost_or_doubled(seed: int) -> None:
    random_steps = random.Random(seed)
    size = random_steps.randint(1, 5)
    positions = [Position.first(rank, size) for rank in range(size)]
    everything: list[Begun] = []
    for _ in range(random_steps.randint(1, 6)):
        positions, read = read_on(positions, random_steps.randint(0, 30), random_steps)
        everything += read
        size = random_steps.randint(1, 5)
        positions = shared_out([Position.from_dict(one.to_dict()) for one in positions], size)
        assert len(positions) == size
    # All ranks read what is left up to the highest window that any of them began.
    assert len(set(everything)) == len(everything)
    edge = max(position.next_window for position in positions) + 7
    for position in positions:
        while position.leftovers or position.next_window < edge:
            begun, position = position.taken()
            everything += [Begun(begun.window, offset) for offset in range(begun.offset, LENGTH)]
    complete = [one for one in everything if one.window < edge]
    assert sorted(complete) == [Begun(window, offset) for window in range(edge) for offset in range(LENGTH)]


def test_as_many_ranks_as_before_go_on_where_each_was() -> None:
    positions = [Position((Begun(4, 2),), 6, 2), Position((), 5, 2)]
    assert shared_out(positions, 2) == positions


def test_a_position_that_is_damaged() -> None:
    for numbers in ({}, {"leftovers": [[1]], "next_window": 0, "stride": 1}, {"leftovers": 3}):
        with pytest.raises(ValueError, match="start from the beginning"):
            Position.from_dict(numbers)
