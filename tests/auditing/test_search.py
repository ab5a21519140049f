"""The search for the largest log-ratio."""

from __future__ import annotations

import pyro.distributions as dist
import torch
from densities import normal

from pyro_mbde.auditing.search import search


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
