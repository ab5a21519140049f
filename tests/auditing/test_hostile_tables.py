"""Made-up tables for an audit to fit."""

from __future__ import annotations

import pyro.distributions as dist
from densities import BASES, normal

from pyro_mbde.auditing.hostile_tables import hostile_pairs


def test_every_pair_of_hostile_tables() -> None:
    names = [pair.name for pair in hostile_pairs(normal(2), 1.0, 20)]
    assert len(set(names)) == 10
    assert [pair.name for pair in hostile_pairs(dist.Normal(0.0, 1.0), 1.0, 20)] == [
        name if name != "swapped labels" else "mirrored" for name in names if name != "constant columns"
    ]
    for name, base in ((name, make()) for name, make in BASES.items()):
        for pair in hostile_pairs(base, 1.0, 20):
            for table in (pair.table, pair.other):
                assert table.shape[1:] == base.event_shape, name
                assert bool(base.support.check(table).all()), name
