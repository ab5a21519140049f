"""What Markov chains sample over a base of columns: the latent normal scores that its rows are made from."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde.density.base import LocationScale, support_of
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.mixed_base import MixedBase
from pyro_mbde.density.rectangles import normal_scores
from pyro_mbde.density.row_batch import RowBatch
from pyro_mbde.mcmc.target import Params, Target, check_not_batched, nan_text

#: Draws of the base that are tried at once for a starting point.
_MAX_TRIES = 100


def columns_of(density: Distribution) -> MixedBase | None:
    """Returns the base of rows of a density, or of a batch of them, where it is made of columns; otherwise None."""
    base = density.base if isinstance(density, MollifiedExpFamily) else density
    row = base.row if isinstance(base, RowBatch) else base
    return row if isinstance(row, MixedBase) else None


def is_box(base: MixedBase) -> bool:
    """Whether rows of a base fill a box: numbers alone, none of them missing, no predicate."""
    return not (support_of(base).is_discrete or base.predicates)


class LatentTarget(Target):
    r"""A density over a base of columns of any kind, as site ``x``, in the normal scores that its rows come from.

    The base is a push-forward of the unit cube, so a row is a function of d independent standard normals z, by
    :math:`u = \Phi(z)`. Rows of the density are that function of z with density proportional to

    .. math::
        e^{-\|z\|^2 / 2 + f(x(z))}

    where the predicates hold, and 0 elsewhere; of a batch, z has a row for each of its rows. In these coordinates the
    base is a standard normal, whatever its columns are, and a column of levels needs nothing special: f is constant
    over the z that give the same level. Hamiltonian kernels follow the normal alone, and leave f and the predicates to
    the choice among a trajectory's points.

    Args:
        density: a fitted density, or a base of columns, with empty batch shape.
        name: its name in errors.

    Raises:
        ValueError: there is a batch shape.
    """

    is_batched = True

    def __init__(self, density: Distribution, name: str = "density") -> None:
        check_not_batched(density, name)
        columns = columns_of(density)
        assert columns is not None  # where this target is chosen
        self._columns = columns
        self._fitted = density if isinstance(density, MollifiedExpFamily) else None
        self._event_shape = density.event_shape
        self._device = columns.marginals[0].edges.device
        self.lower_bound_fn = self._lower_bound
        self.has_smooth_energy = self._fitted is not None or bool(columns.predicates)
        self.supports, self.transforms = {"x": support_of(density)}, {}
        zero = torch.zeros(self._event_shape, dtype=torch.float64, device=self._device)
        self.spread = {"x": LocationScale(zero, zero + 1)}

    def constrain(self, params: Params) -> Params:
        """Returns the rows."""
        return {"x": self._rows(params["x"])}

    def unconstrain(self, values: Params) -> Params:
        """Returns normal scores of rows: of those that give the same values, those in the middle."""
        columns, dependence = self._columns, self._columns.dependence
        rows = values["x"].reshape(-1, self._event_shape[-1])
        low, high = columns.cdf_intervals(rows)
        points = (low + high) / 2
        if dependence is not None:
            points = dependence.to_uniforms(points)
        return {"x": normal_scores(points).reshape(values["x"].shape)}

    def raw_potential_fn(self, params: Params) -> Tensor:
        """Returns the negative log-density, up to a constant; +inf where a predicate fails."""
        energy = self._energy_of_base(params)
        if not self.has_smooth_energy:
            return energy
        rows = self._rows(params["x"])
        if self._fitted is not None:
            energy = energy - self._fitted.tilt(rows)
        if not self._columns.predicates:
            return energy
        allowed = self._columns.allowed(rows)
        return torch.where(allowed.reshape(*energy.shape, -1).all(-1), energy, math.inf)

    def draw(self) -> Params:
        """Returns a draw of the base, in normal scores."""
        num_rows = self._event_shape[:-1].numel()
        kept: list[Tensor] = []
        while len(kept) < num_rows:  # a predicate leaves at least one row in a thousand
            scores = torch.randn(_MAX_TRIES, self._event_shape[-1], dtype=torch.float64, device=self._device)
            kept += scores[self._columns.allowed(self._rows(scores))] if self._columns.predicates else scores
        return {"x": torch.stack(kept[:num_rows]).reshape(self._event_shape)}

    def nan_message(self, params: Params) -> str:
        """Names the only site."""
        return nan_text("site 'x'", params)

    def _rows(self, scores: Tensor) -> Tensor:
        """Rows, or batches of them, made from normal scores of the same shape."""
        uniforms = torch.special.ndtr(scores.reshape(-1, scores.shape[-1]))
        return self._columns.from_uniforms(uniforms).reshape(scores.shape)

    def raw_smooth_potential_fn(self, params: Params) -> Tensor:
        """Returns the negative log-density of the normal scores of the base, without tilt and predicates."""
        return self._energy_of_base(params)

    def _energy_of_base(self, params: Params) -> Tensor:
        energy: Tensor = params["x"].square().flatten(-len(self._event_shape)).sum(-1) / 2
        return energy

    def _lower_bound(self, params: Params) -> Tensor:
        highest = 0.0 if self._fitted is None else self._fitted.bounds.high
        return self._energy_of_base(params) - highest  # no tilt is above its upper bound
