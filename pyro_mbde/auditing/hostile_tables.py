"""Pairs of made-up tables that differ as much as possible, for an audit to fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde.density.base import location_scale_of_draws

#: Rows of a table, and draws of the base that most rows are taken from.
_NUM_ROWS, _NUM_POOL = 1000, 4096
#: Share of the base's mass in the larger part, at most: nearer to 1, fits of it are too noisy to stay at the bound.
_MAX_REST = 0.85
#: Distance of huge values from the base's middle, in units of its spread.
_HUGE = 1e6


class TablePair(NamedTuple):
    """Two tables to be told apart.

    Attributes:
        name: what they are.
        table: rows of one.
        other: rows of the other.
    """

    name: str
    table: Any
    other: Any


def hostile_pairs(base: Distribution, epsilon: float, num_pairs: int) -> list[TablePair]:
    r"""Returns pairs of tables that drive two fits far apart, the sharpest first.

    With a table in a rare part of the base and another in a part of mass b away from it, a fit at its bounds reaches a
    log-ratio of :math:`R + \log(b e^R + 1 - b)`, near 2R, all of an a-priori guarantee, for b near 1. Fits stay at
    their bounds only for b below :math:`e^{-\epsilon/4}`. Derivation: docs/proofs.md, *Hostile tables*.

    Args:
        base: the public base.
        epsilon: what is claimed, in nats; it sets b.
        num_pairs: the largest number of pairs.
    """
    pool = _Pool.of(base)
    usable = (pair for pair in _pairs(pool, epsilon) if pool.holds(pair.table) and pool.holds(pair.other))
    return list(islice(usable, num_pairs))


def rows_at_the_peak(base: Distribution, place: Tensor) -> TablePair:
    """Returns an attack that follows another: all rows where that peaked, against base draws away from there.

    Args:
        base: the public base of rows.
        place: a row, or a batch of them.
    """
    peaks = place.reshape(-1, *base.event_shape)
    pool = _Pool.of(base)
    features = pool.draws.reshape(_NUM_POOL, -1).double()
    scale = location_scale_of_draws(features).scale
    centre = peaks.reshape(len(peaks), -1).double().mean(0)
    distance = ((features - centre) / scale).norm(dim=1)
    away = pool.draws[distance.argsort(descending=True)]
    return TablePair("rows at the last peak", _repeat(peaks), away[: 3 * _NUM_POOL // 4])


class _Pool(NamedTuple):
    """Draws of the base in order: rarest last for a discrete base, else along the diagonal of the ranks."""

    base: Distribution
    draws: Tensor

    @classmethod
    def of(cls, base: Distribution) -> _Pool:
        support: Any = base.support
        draws = base.sample(torch.Size([_NUM_POOL]))
        if support.is_discrete:
            order = -base.log_prob(draws)
        else:
            order = draws.reshape(_NUM_POOL, -1).argsort(0).argsort(0).double().mean(1)
        return cls(base, draws[order.argsort(stable=True)])

    def holds(self, rows: Tensor) -> bool:
        support: Any = self.base.support
        return bool(torch.isfinite(rows).all() and support.check(rows).all())

    def far(self, sign: float) -> Tensor:
        """A huge value, or the most extreme draw where the support ends before."""
        features = self.draws.reshape(_NUM_POOL, -1)
        spread = location_scale_of_draws(features)
        huge = (spread.loc + sign * _HUGE * spread.scale).round().to(self.draws).reshape(1, *self.draws.shape[1:])
        return huge if self.holds(huge) else self.draws[-1:] if sign > 0 else self.draws[:1]


def _repeat(rows: Tensor, num_rows: int = _NUM_ROWS) -> Tensor:
    return rows[torch.arange(num_rows) % len(rows)]


def _pairs(pool: _Pool, epsilon: float) -> Iterator[TablePair]:
    """All pairs, the sharpest first; some may lie outside the support."""
    draws, middle = pool.draws, _NUM_POOL // 2
    share = min(max(0.95 * math.exp(-epsilon / 4), 0.1), _MAX_REST)
    yield TablePair("tail against rest", _repeat(draws[-8:]), draws[: int(share * _NUM_POOL)])
    yield TablePair("far corners", _repeat(draws[:40]), _repeat(draws[-40:]))
    yield TablePair("halves", draws[:middle], draws[middle:])
    low, high = _NUM_POOL // 10, 9 * _NUM_POOL // 10
    yield TablePair("one point, another", _repeat(draws[[low]]), _repeat(draws[[high]]))
    yield TablePair("one point, the base", _repeat(draws[[middle]]), draws)
    has_columns = draws.dim() > 1 and draws.shape[1] > 1
    if has_columns:  # first and last column rise together, or one falls as the other rises
        rising = draws.clone()
        rising[:, 0], rising[:, -1] = draws[:, 0].sort().values, draws[:, -1].sort().values
        falling = rising.clone()
        falling[:, -1] = rising[:, -1].flip(0)
        yield TablePair("swapped labels", rising, falling)
    else:
        yield TablePair("mirrored", draws[-(_NUM_POOL // 4) :], draws[: _NUM_POOL // 4])
    yield TablePair("two rows, many", draws[-2:], draws[: 7 * _NUM_POOL // 8])
    yield TablePair("outliers", torch.cat([draws, _repeat(pool.far(1.0), _NUM_POOL // 50)]), draws)
    yield TablePair("huge values", _repeat(pool.far(1.0)), _repeat(pool.far(-1.0)))
    if has_columns:
        first, last = draws.clone(), draws.clone()
        first[:, 1:], last[:, :-1] = draws[middle, 1:], draws[middle, :-1]
        yield TablePair("constant columns", first, last)
