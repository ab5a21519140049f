"""The tilt of a density: statistics, their natural parameters and the public interval that holds the sum."""

from __future__ import annotations

import copy
import math
from typing import Any, cast

import torch
from pyro.ops.provenance import extract_provenance, track_provenance
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from pyro_mbde._checks import argument_error, check_number
from pyro_mbde._torch_state import with_gradients
from pyro_mbde.density.bounds import LOG_2, Bounds, tilt_bounds
from pyro_mbde.density.fused import Clip, FusedScore, is_eager, is_only_mapped
from pyro_mbde.density.kinds_of_statistics import with_public_weights

#: Scores of rows that are added up are held to the first, in nats, and rounded to multiples of the second.
_MAX_ROW_SCORE, _SCORE_STEP = 2.0**10, 2.0**-30


class Tilt:
    r"""The function :math:`f(x) = \lambda\, \mathrm{clip}(\langle \theta, c(x) \rangle - a,\, lo,\, hi)`.

    Computed in this order, which keeps the bound for every network: statistics in the network's dtype; then in float64
    NaN to 0, each statistic clamped to [-log 2, log 2], their weighted sum (the score), less the offset a, clamped to
    [lo, hi], times the shrinkage. The offset of a calibrated density is found, and its certificate proved, on values of
    the score: the same operations, to the last bit.

    Args:
        statistics: module mapping ``(n, d)`` to ``(n, T)``; copied, frozen and put in eval mode.
        natural_params: theta, shape ``(T,)``, finite.
        offset: a, finite. Without the clip, the log-normaliser would absorb it.
        shrinkage: lambda, in [0, 1]; what is left of the tilt where a certificate failed.
        num_rows: rows of a batch, whose score is the sum of theirs; ``None`` for single rows.
        bounds: public interval [lo, hi], which holds 0; ``None`` for :func:`~pyro_mbde.density.bounds.tilt_bounds` of
            theta, which must then be public and the offset 0.
        device: where theta is kept.
    """

    _fused: FusedScore | None = None

    def __init__(
        self,
        statistics: nn.Module,
        natural_params: Tensor,
        offset: float = 0.0,
        shrinkage: float = 1.0,
        bounds: Bounds | None = None,
        device: torch.device | None = None,
        num_rows: int | None = None,
    ) -> None:
        if not isinstance(statistics, nn.Module):
            raise TypeError(argument_error("statistics", "be a torch.nn.Module", statistics))
        natural_params = _plain(torch.as_tensor(natural_params))
        if natural_params.dim() != 1 or not len(natural_params):
            raise ValueError(argument_error("natural_params", "have shape (T,)", tuple(natural_params.shape)))
        with with_gradients():  # the copies can be differentiated wherever they are made
            self.statistics = copy.deepcopy(statistics).requires_grad_(False).eval()
            # theta stays in float64 whatever the networks compute in: the sum and its bound are taken there.
            self.natural_params = natural_params.detach().to(device, torch.float64, copy=True)
        if not bool(torch.isfinite(self.natural_params).all()):
            raise ValueError(argument_error("natural_params", "be finite", "numbers that are not"))
        self.offset = check_number("offset", offset, "be finite", math.isfinite)
        self.shrinkage = check_number("shrinkage", shrinkage, "be in [0, 1]", lambda value: 0 <= value <= 1)
        if bounds is None and offset:
            raise ValueError(argument_error("bounds", "be given where there is an offset", bounds))
        self.bounds = tilt_bounds(self.natural_params) if bounds is None else Bounds(*bounds)
        self._num_rows = num_rows

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what is derived from the networks."""
        return {**self.__dict__, "_fused": None}

    def check_output(self, features: Tensor) -> None:
        """Raises if the statistics of one row are not as many as there are natural parameters."""
        shape = tuple(self._statistics_at(features.unsqueeze(0)).shape)
        wanted = (1, len(self.natural_params))
        if shape != wanted:
            raise ValueError(argument_error("statistics", f"map (1, d) to {wanted} as natural_params has", shape))

    def _statistics_at(self, features: Tensor) -> Tensor:
        # A copy: what a module writes into its input must not become the draw.
        inputs = features.clone()
        statistics: Tensor = self.statistics(inputs)
        if type(statistics) is not type(inputs) or torch.is_complex(statistics):
            # A subclass of Tensor could override clamp.
            kind = f"{type(statistics).__name__} of {getattr(statistics, 'dtype', None)}"
            raise TypeError(argument_error("statistics", "return a real torch.Tensor", kind))
        return statistics

    def with_public_weights(self) -> Tilt:
        """Returns a tilt of the same layers in which public numbers stand in for all that was fitted."""
        weights = torch.full_like(self.natural_params, 1 / len(self.natural_params))
        return Tilt(with_public_weights(self.statistics), weights, device=weights.device)

    def score(self, features: Tensor) -> Tensor:
        """Returns <theta, c> of rows, float64 of shape ``(...)``, never NaN, for features of shape ``(..., d)``."""
        # A function, not a method: an attribute of the module's tensor could stand in for one.
        statistics = Tensor.double(self._statistics_at(_plain(features)))
        statistics = torch.nan_to_num(statistics, nan=0.0).clamp(-LOG_2, LOG_2)
        # Huge parameters may overflow to infinities that cancel.
        return torch.nan_to_num((statistics * self.natural_params).sum(-1), nan=0.0)

    def __call__(self, features: Tensor) -> Tensor:
        """Returns f, float64 of shape ``(...)`` in [lo, hi], never NaN, for features of shape ``(..., d)``.

        Of a batch, features have shape ``(..., k, d)``.
        """
        if type(features) is Tensor:
            return self._at(features)
        features, provenance = _extract_provenance(features)
        tilt: Tensor = _track_provenance(self._at(_plain(features)), provenance)
        return tilt

    def _at(self, features: Tensor) -> Tensor:
        # Up to rounding that of score, which certificates and draws rest on.
        if is_only_mapped() and self._fused_score() is not None:
            return cast("Tensor", _over_maps(features, self))
        return self._of_rows(features)

    def _of_rows(self, features: Tensor) -> Tensor:
        fused = self._fused_score() if is_eager(features) else None
        if fused is None or not fused.takes(features):
            return self.of_scores(self.score(features))
        if self._num_rows is not None:
            return self.of_scores(fused(features))
        return fused(features, self._clip)

    def _fused_score(self) -> FusedScore | None:
        if self._fused is None or not self._fused.is_of(self.statistics, self.natural_params):
            self._fused = FusedScore.of(self.statistics, self.natural_params, self.score)
        return self._fused

    @property
    def _clip(self) -> Clip:
        return Clip(self.offset, *self.bounds, self.shrinkage)

    def of_scores(self, scores: Tensor) -> Tensor:
        """Returns f for scores of rows, of shape ``(...)``, or of the rows of batches, of shape ``(..., k)``."""
        # Without a check for NaN, which a score never is.
        return self._clip(scores if self._num_rows is None else sum_of_scores(scores))


def sum_of_scores(scores: Tensor) -> Tensor:
    """Returns the score of batches: the sum over their rows, of shape ``(..., k)``.

    Scores of rows are held to 1024 nats and rounded to 2^-30. Added up as integers they are exact for up to
    :data:`~pyro_mbde.density.row_batch.MAX_ROWS` rows: the same bits in any order, whatever a tensor's shape and
    layout. The result has the gradient of the plain sum.
    """
    held = scores.clamp(-_MAX_ROW_SCORE, _MAX_ROW_SCORE)
    total = (held.detach() / _SCORE_STEP).round().long().sum(-1).double() * _SCORE_STEP
    if not torch.is_grad_enabled():
        return total
    plain = held.sum(-1)
    return total + (plain - plain.detach())


class _OverMaps(torch.autograd.Function):
    """The tilt under ``torch.vmap``, without a gradient: of the rows of all maps at once."""

    @staticmethod
    def forward(features: Tensor, tilt: Tilt) -> Tensor:
        return tilt._of_rows(features)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, None], features: Tensor, tilt: Tilt) -> tuple[Tensor, int]:
        moved = features.movedim(cast("int", in_dims[0]), 0)
        return cast("Tensor", _over_maps(moved, tilt)), 0


_over_maps: Any = _OverMaps.apply
_extract_provenance: Any = extract_provenance  # Pyro leaves these unannotated
_track_provenance: Any = track_provenance


def _plain(value: Tensor) -> Tensor:
    """Returns a tensor without a Python subclass around it, except torch's own for tracing, which holds no data."""
    if type(value) in (Tensor, FakeTensor):
        return value
    with torch._C.DisableTorchFunctionSubclass():  # else the subclass could answer itself
        plain = Tensor.as_subclass(value, Tensor)
    if type(plain) is not Tensor:
        raise TypeError(argument_error("value", "be a plain torch.Tensor, or a view of one", type(value).__name__))
    return plain
