"""The search for the largest log-ratio."""

from __future__ import annotations

import pyro.distributions as dist
import pytest
import torch
from densities import BASES, normal

from pyro_mbde.auditing.search import _movable, search, starting_points
from pyro_mbde.density.row_batch import RowBatch


def test_the_search_finds_a_needle() -> None:
    """A peak too narrow for any start to be on, of which only a slope tells; and one in a corner of a box."""
    starts = torch.randn(4096, 2)
    support = normal(2).support
    target = torch.tensor([2.345, -1.234])
    peak = search(lambda x: 1 / (0.01 + (x - target).double().norm(dim=-1)), starts, support)
    assert peak.highest > 90
    torch.testing.assert_close(peak.place, target, rtol=0, atol=0.01)
    box = dist.Uniform(torch.zeros(2), torch.ones(2)).to_event(1)
    peak = search(lambda x: x.double().sum(-1), torch.rand(500, 2), box.support)
    assert 1.99 < peak.highest <= 2


def needle(rows: torch.Tensor) -> torch.Tensor:
    """High only at whole numbers that a draw of ``columns`` hits once in a million, and up towards 2.5 there."""
    hit = (rows[..., 1] >= 108) & (rows[..., 2] == 2) & (rows[..., 3] == -2) & (rows[..., 4] == -6)
    return torch.where(hit, 1 / (0.01 + (rows[..., 0] - 2.5).double().abs()), rows[..., 1].double() / 111)


@pytest.mark.parametrize("num_rows", [None, 2])
def test_the_search_goes_through_columns_of_all_kinds(num_rows: int | None) -> None:
    row = BASES["columns"]()
    base = row if num_rows is None else RowBatch(row, num_rows)
    starts = starting_points(base, base.support, [])
    peak = search(lambda x: needle(x) if num_rows is None else needle(x).sum(-1), starts, base.support)
    assert peak.highest > 80 * (num_rows or 1)
    assert bool(base.support.check(peak.place))


def test_what_can_be_moved() -> None:
    base = BASES["columns"]()
    rows = torch.tensor([[0.5, 3.0, 1.0, 0.0, 0.3], [0.5, 3.0, 1.0, -2.0, -6.0]])
    movable = _movable(base.support, rows)
    assert movable.tolist() == [[True, False, False, False, True], [True, False, False, False, False]]
    assert bool(_movable(BASES["columns-real"]().support, rows[:, :2]).all())
    assert not bool(_movable(BASES["poisson"]().support, rows[:, 0]).any())
