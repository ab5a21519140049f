"""Pairs of made-up tables that are as unlike as can be, for an audit to fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde.density.base import location_scale_of_draws

#: Rows of a table, and draws of the base that most rows are taken from.
_NUM_ROWS, _NUM_POOL = 1000, 4096
#: Share of the base's mass in the larger part, at most: nearer to 1, fits of it are too noisy to stay at the bound.
_MAX_REST = 0.85
#: How far off the base's middle huge values lie, in units of its spread.
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
    r"""Returns pairs of tables that drive two fits as far apart as they go, the sharpest first.

    Which are sharp follows from the form of the density. Let one table fill a rare part A of the base, the other a part
    B away from A with a share b of the base's mass. The best tilts are hi on A and lo elsewhere, and hi on B and lo
    elsewhere, so that on A

    .. math::
        \log \frac{q}{q'} = R - \log\bigl(a e^{R} + 1 - a\bigr) + \log\bigl(b e^{R} + 1 - b\bigr)
        \;\to\; R + \log\bigl(b e^{R} + 1 - b\bigr) \quad (a \to 0),

    near 2R for b near 1, all of an a-priori guarantee. But where the log-ratio :math:`\log p'/q_0 = \log 1/b` on B is
    below hi, which is :math:`\epsilon/4` there, a fit stops short of hi. So b is a little below
    :math:`e^{-\epsilon/4}`. Of a calibrated density any two parts far from each other reach R.

    Args:
        base: the public base.
        epsilon: what is claimed, in nats; it sets b.
        num_pairs: at most so many.
    """
    makers: list[Callable[[_Pool, float], TablePair | None]] = [
        _tail_against_rest,
        _corners,
        _halves,
        _two_points,
        _point_against_base,
        _swapped_labels,
        _tiny_against_many,
        _outliers,
        _huge_values,
        _constant_columns,
    ]
    pool = _Pool.of(base)
    pairs: list[TablePair] = []
    for make in makers:
        if len(pairs) == num_pairs:
            break
        pair = make(pool, epsilon)
        if pair is not None and all(pool.holds(rows) for rows in (pair.table, pair.other)):
            pairs.append(pair)
    return pairs


def rows_at_the_peak(base: Distribution, place: Tensor) -> TablePair:
    """Returns an attack that follows another: all rows where that peaked, against base draws away from there."""
    pool = _Pool.of(base)
    features = pool.draws.reshape(_NUM_POOL, -1).double()
    scale = location_scale_of_draws(features).scale
    distance = ((features - place.reshape(1, -1).double()) / scale).norm(dim=1)
    away = pool.draws[distance.argsort(descending=True)]
    return TablePair("rows at the last peak", _repeat(place.unsqueeze(0)), away[: 3 * _NUM_POOL // 4])


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


def _tail_against_rest(pool: _Pool, epsilon: float) -> TablePair:
    share = min(max(0.95 * math.exp(-epsilon / 4), 0.1), _MAX_REST)
    return TablePair("tail against rest", _repeat(pool.draws[-8:]), pool.draws[: int(share * _NUM_POOL)])


def _corners(pool: _Pool, epsilon: float) -> TablePair:
    return TablePair("far corners", _repeat(pool.draws[:40]), _repeat(pool.draws[-40:]))


def _halves(pool: _Pool, epsilon: float) -> TablePair:
    middle = _NUM_POOL // 2
    return TablePair("halves", pool.draws[:middle], pool.draws[middle:])


def _two_points(pool: _Pool, epsilon: float) -> TablePair:
    low, high = _NUM_POOL // 10, 9 * _NUM_POOL // 10
    return TablePair("one point, another", _repeat(pool.draws[low : low + 1]), _repeat(pool.draws[high : high + 1]))


def _point_against_base(pool: _Pool, epsilon: float) -> TablePair:
    middle = _NUM_POOL // 2
    return TablePair("one point, the base", _repeat(pool.draws[middle : middle + 1]), pool.draws)


def _swapped_labels(pool: _Pool, epsilon: float) -> TablePair:
    """First and last column rise together, or one falls as the other rises; of one column, mirrored ranks."""
    if pool.draws.dim() == 1 or pool.draws.shape[1] == 1:
        rows = pool.draws[3 * _NUM_POOL // 4 :]
        return TablePair("mirrored", rows, pool.draws[: len(rows)])
    rising = pool.draws.clone()
    rising[:, 0], rising[:, -1] = rising[:, 0].sort().values, rising[:, -1].sort().values
    falling = rising.clone()
    falling[:, -1] = rising[:, -1].flip(0)
    return TablePair("swapped labels", rising, falling)


def _tiny_against_many(pool: _Pool, epsilon: float) -> TablePair:
    return TablePair("two rows, many", pool.draws[-2:], pool.draws[: 7 * _NUM_POOL // 8])


def _outliers(pool: _Pool, epsilon: float) -> TablePair:
    spoiled = torch.cat([pool.draws, _repeat(pool.far(1.0), _NUM_POOL // 50)])
    return TablePair("outliers", spoiled, pool.draws)


def _huge_values(pool: _Pool, epsilon: float) -> TablePair:
    return TablePair("huge values", _repeat(pool.far(1.0)), _repeat(pool.far(-1.0)))


def _constant_columns(pool: _Pool, epsilon: float) -> TablePair | None:
    if pool.draws.dim() == 1 or pool.draws.shape[1] == 1:
        return None
    first, last = pool.draws.clone(), pool.draws.clone()
    middle = pool.draws[_NUM_POOL // 2]
    first[:, 1:], last[:, :-1] = middle[1:], middle[:-1]
    return TablePair("constant columns", first, last)
