"""The search for the point at which two densities differ most."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde.density.base import location_scale_of_draws
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.finite import enumerate_points
from pyro_mbde.density.mixed_base import MixedBase, MixedSupport
from pyro_mbde.density.row_batch import RowBatch

#: Draws of the base to start from, and how many of them are climbed from, either way.
_NUM_STARTS, _NUM_CLIMBED = 4096, 32
_NUM_STEPS = 60
#: Rounds of perturbation about the best, each finer by the factor, and tries in each about each point.
_NUM_REFINEMENTS, _FINER, _NUM_TRIES = 8, 0.3, 32
#: Distances of far starts, in units of the base's spread, and directions for each.
_FAR, _NUM_DIRECTIONS = (4.0, 10.0, 1e2, 1e4, 1e8), 32
#: Corners of the cube that rows of columns are made from.
_NUM_CORNERS = 512
#: Points evaluated at a time.
_CHUNK = 2**11
#: What rounding of float64 sums may add to a log-ratio, in nats.
ROUNDING = 1e-9


class Peak(NamedTuple):
    """Where two densities differ most.

    Attributes:
        highest: largest log-ratio found, in nats; infinite where one density is NaN, or 0 where the other is not.
        lowest: smallest.
        place: the x of the larger in absolute value.
    """

    highest: float
    lowest: float
    place: Tensor

    @property
    def epsilon(self) -> float:
        """The largest absolute log-ratio."""
        return max(self.highest, -self.lowest)


def is_tilted(*densities: Any) -> bool:
    """Whether all are densities of this library, whose log-ratio to the base is known in float64."""
    return all(isinstance(density, MollifiedExpFamily) for density in densities)


def log_ratio_to_base(q: MollifiedExpFamily, values: Tensor) -> Tensor:
    """Returns f - phi, float64 of shape ``(n,)``; where no gradient is asked for, f is the one that draws follow."""
    tilts = q.tilt(values) if torch.is_grad_enabled() else q.accepted_tilt(values)
    return tilts - q.log_normalizer.value


def rows_of_a_draw(density: Any) -> int | None:
    """The rows of a batch, where draws of a density are batches; None where they are rows."""
    base = getattr(density, "base", None)
    return base.num_rows if isinstance(base, RowBatch) else None


def in_chunks(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Returns a function of many points, without gradients, a part of them at a time."""
    with torch.no_grad():
        return torch.cat([function(part).detach() for part in torch.split(values, _CHUNK)])


def inside(support: Any, values: Tensor) -> Tensor:
    """Returns which values are finite and in a support, shape ``(n,)``; with ``support=None``, which are finite."""
    finite = torch.isfinite(values).reshape(len(values), -1).all(1)
    if support is None or not len(values):
        return finite
    checked: Tensor = support.check(values)
    return finite & checked.reshape(len(values), -1).all(1)


def log_ratio_of(q: Any, other: Any, *, same_base: bool) -> Callable[[Tensor], Tensor]:
    """Returns log q/q', float64: infinite where a density is NaN, 0 where both vanish.

    Densities of this library over the same base differ by their tilts and normalisers, which are float64. Of others,
    what rounding of the log-densities may have added is taken off: far out, where they are huge, it would hide what
    is there nearer by.
    """
    use_tilts = same_base and is_tilted(q, other)

    def log_ratio(values: Tensor) -> Tensor:
        if use_tilts:
            difference = log_ratio_to_base(q, values) - log_ratio_to_base(other, values)
        else:
            parts = q.log_prob(values), other.log_prob(values)
            eps = 8 * max(torch.finfo(part.dtype).eps for part in parts)
            first, second = (part.double() for part in parts)
            both_vanish = (first == -math.inf) & (second == -math.inf)
            difference = torch.where(both_vanish, 0.0, first - second)
            size = torch.maximum(first.detach().abs(), second.detach().abs())
            rounding = torch.nan_to_num(eps * (1 + size), nan=0.0, posinf=0.0)
            difference = difference.sign() * (difference.abs() - rounding).clamp(min=0)
        return torch.nan_to_num(difference, nan=math.inf, posinf=math.inf, neginf=-math.inf)

    return log_ratio


def starting_points(base: Distribution | None, support: Any, rows: list[Tensor]) -> Tensor:
    """Returns where to begin: all points of a finite base; else base draws, rows of the tables, and far points.

    Over a base of columns, far points are those in the corners of what its rows are made from: the cube.
    """
    if base is not None:
        points = enumerate_points(base)
        if points is not None:
            return points
    pools = [part for part in rows if len(part)]
    if base is not None:
        pools.insert(0, base.sample(torch.Size([_NUM_STARTS])))
        pools += _corners(base)
    like = pools[0]
    near = torch.cat([part.to(like) for part in pools])
    near = near[inside(support, near)]
    features = near.reshape(len(near), -1)
    # A single place has no spread.
    spread = location_scale_of_draws(features if len(features) > 1 else torch.cat([features - 1, features + 1]))
    directions = torch.randn(_NUM_DIRECTIONS, features.shape[1], dtype=torch.float64)
    directions = torch.cat([directions / directions.norm(dim=1, keepdim=True), torch.ones(1, features.shape[1])])
    directions = torch.cat([directions, -directions])
    far = torch.cat([spread.loc + distance * directions * spread.scale for distance in _FAR])
    far = (far.round() if _is_discrete(support, like) else far).to(like).reshape(-1, *like.shape[1:])
    return torch.cat([near, far[inside(support, far)]])


def _corners(base: Distribution) -> list[Tensor]:
    """Rows, or batches of one row, whose columns are at their lowest, in the middle or at their highest; or none."""
    row = base.row if isinstance(base, RowBatch) else base
    if not isinstance(row, MixedBase):
        return []
    places = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    corners = row.from_uniforms(places[torch.randint(3, (_NUM_CORNERS, len(row.marginals)))])
    return [corners.unsqueeze(1).expand(-1, base.num_rows, -1) if isinstance(base, RowBatch) else corners]


def search(log_ratio: Callable[[Tensor], Tensor], starts: Tensor, support: Any) -> Peak:
    """Returns the largest and the smallest log-ratio found: on the starts, then uphill, then about the best.

    Gradients lead uphill where there are any; where a bound is met there are none, and whole numbers and levels have
    none: there the best points exchange coordinates with others.
    """
    highest, first = _highest(log_ratio, starts, support)
    fall, second = _highest(lambda values: -log_ratio(values), starts, support)
    return Peak(highest, -fall, first if highest >= fall else second)


def _highest(function: Callable[[Tensor], Tensor], starts: Tensor, support: Any) -> tuple[float, Tensor]:
    """The largest value found, and where."""
    best, place, points = -math.inf, starts[0], starts
    for move in (None, _climb, _refine):
        points = points if move is None else move(function, points, starts, support)
        values = in_chunks(function, points)
        index = int(values.argmax())
        if float(values[index]) > best:
            best, place = float(values[index]), points[index]
        points = points[values.topk(min(_NUM_CLIMBED, len(values))).indices]
    return best, place


def _climb(function: Callable[[Tensor], Tensor], points: Tensor, starts: Tensor, support: Any) -> Tensor:
    """Follows the gradient in ever shorter steps, equally long at all points; returns all points on the way."""
    movable = _movable(support, points)
    if not bool(movable.any()):
        return points
    scale = _scale(starts)
    visited = [points]
    for step in range(_NUM_STEPS):
        length = 0.3 * 0.001 ** (step / _NUM_STEPS)
        with torch.enable_grad():
            places = points.clone().requires_grad_()
            total = torch.nan_to_num(function(places), posinf=0.0, neginf=0.0).sum()
            if not total.requires_grad:
                break
            (slope,) = torch.autograd.grad(total, places, allow_unused=True)
        if slope is None:
            break
        slope = torch.where(movable, torch.nan_to_num(slope * scale, posinf=0.0, neginf=0.0), 0.0)
        slope = slope.reshape(len(points), -1)
        direction = slope / slope.norm(dim=1, keepdim=True).clamp(min=torch.finfo(slope.dtype).tiny)
        moved = points + length * scale * direction.reshape(points.shape)
        keep = inside(support, moved).reshape(-1, *(1,) * (points.dim() - 1))
        points = torch.where(keep, moved, points)
        visited.append(points)
    return torch.cat(visited)


def _refine(function: Callable[[Tensor], Tensor], points: Tensor, starts: Tensor, support: Any) -> Tensor:
    """Perturbs the best points, finer and finer; those with whole numbers or levels exchange coordinates too."""
    scale = _scale(starts)
    visited = [points]
    for depth in range(_NUM_REFINEMENTS):
        tries = points.repeat_interleave(_NUM_TRIES, 0)
        if _is_discrete(support, points):
            donors = starts[torch.randint(len(starts), (len(tries),))].reshape(len(tries), -1)
            features = tries.reshape(len(tries), -1)
            tries = torch.where(torch.rand(features.shape) < _exchanged(features), donors, features)
            tries = tries.reshape(len(tries), *points.shape[1:])
        movable = _movable(support, tries)
        if bool(movable.any()):
            noise = torch.randn(tries.shape, dtype=tries.dtype)
            tries = torch.where(movable, tries + 0.3 * _FINER**depth * scale * noise, tries)
        tries = torch.cat([points, tries[inside(support, tries)]])
        values = in_chunks(function, tries)
        points = tries[values.topk(min(len(points), len(values))).indices]
        visited.append(points)
    return torch.cat(visited)


def _exchanged(features: Tensor) -> Tensor:
    """Probabilities of an exchange in each coordinate: of half of them, of one, or of none, in a third of the tries."""
    shares = torch.tensor([0.5, 1 / features.shape[1], 0.0])
    return shares[torch.randint(3, (len(features), 1))]


def _movable(support: Any, values: Tensor) -> Tensor:
    """Which coordinates of which points can be moved a little, bool of the shape of ``values``."""
    columns = support
    while not isinstance(columns, MixedSupport) and hasattr(columns, "base_constraint"):
        columns = columns.base_constraint
    if not isinstance(columns, MixedSupport):
        return torch.full(values.shape, not _is_discrete(support, values))
    return ~columns.columns.discrete & (columns.columns.low <= values)  # a missing value is below all others


def _scale(starts: Tensor) -> Tensor:
    scale = location_scale_of_draws(starts.reshape(len(starts), -1)).scale.reshape(starts.shape[1:])
    return scale.to(starts) if starts.is_floating_point() else scale


def _is_discrete(support: Any, values: Tensor) -> bool:
    return bool(getattr(support, "is_discrete", False)) or not values.is_floating_point()
