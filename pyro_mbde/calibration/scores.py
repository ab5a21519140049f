"""Scores of points of the base, and the log-normaliser that a shift gives them. Private."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_mbde.calibration.certificate import ROUNDING_RESERVE
from pyro_mbde.calibration.control import Control
from pyro_mbde.density.bounds import Bounds, Certificate, clip_score
from pyro_mbde.density.normalizer import NUM_REPLICATES, LogNormalizer, replicated_log_normalizer

#: Coordinates of points that are kept beside the scores, at most: 256 MB of them.
_MAX_COORDINATES = 2**26
#: The least weight of a draw, relative to the average, where draws are weighted to suit a control variate.
_LEAST_WEIGHT = 1e-6
#: The quasi-random draws are mistrusted where (phi_quasi - phi_fresh)^2 > 3^2 (se_quasi^2 + se_fresh^2): were both
#: unbiased and normal, chance would put them so far apart in 0.3 per cent of fits. Only the gain depends on it, not the
#: proof.
_TOO_FAR_APART = 3


class ExactScores(NamedTuple):
    """Scores of all points of a finite base. Private.

    Attributes:
        scores: float64 of shape ``(n,)``.
        log_weights: logarithms of the points' probabilities, shape ``(n,)``.
    """

    scores: Tensor
    log_weights: Tensor

    def weighted(self) -> tuple[Tensor, Tensor]:
        """Returns scores and the logarithms of their weights, both flat."""
        return self.scores, self.log_weights

    def log_normalizer(self, shift: float, bounds: Bounds, shrinkage: float = 1.0) -> LogNormalizer:
        """Returns phi of the shifted, clipped and shrunk score; exact."""
        tilts = shrinkage * clip_score(self.scores, shift, bounds)
        return LogNormalizer(bounds.clamp(float(torch.logsumexp(tilts + self.log_weights, 0))))

    def sample(self, num_draws: int) -> Tensor:
        """Returns scores of independent draws."""
        generator = torch.Generator(self.scores.device).manual_seed(0)  # the caller's generator is not touched
        chosen = torch.multinomial(self.log_weights.exp(), num_draws, replacement=True, generator=generator)
        return self.scores[chosen]

    def certify(self, shift: float, bounds: Bounds, certificate: Certificate) -> bool:
        r"""Returns whether :math:`|\phi| \le \eta`, with the reserve for rounding kept back."""
        return abs(self.log_normalizer(shift, bounds).value) <= certificate.tolerance - ROUNDING_RESERVE


class SampledScores(NamedTuple):
    """Scores of draws of the base, in independent replicates. Private.

    Attributes:
        scores: float64 of shape ``(num_replicates, n)``.
        points: of the unit cube, float32 of shape ``(num_replicates, m, num_dims)``: those that the first m draws of
            each replicate were inverted from. None if they were not inverted.
        log_weights: logarithms of the draws' weights, 1 on average in each replicate; of a shape that can be expanded
            to that of the scores.
    """

    scores: Tensor
    points: Tensor | None
    log_weights: Tensor

    @classmethod
    def of_blocks(cls, blocks: Sequence[tuple[Tensor, Tensor | None]]) -> SampledScores:
        """Returns draws of equal weight, given as blocks of scores and points, cut into replicates."""
        scores = torch.cat([scores for scores, _ in blocks]).reshape(NUM_REPLICATES, -1)
        given = [points.float() for _, points in blocks if points is not None]
        points = torch.cat(given).reshape(*scores.shape, -1) if len(given) == len(blocks) else None
        if points is not None and points.numel() > _MAX_COORDINATES:
            points = points[:, : max(1, _MAX_COORDINATES // points[:, 0].numel())].clone()
        return cls(scores, points, torch.zeros(1, dtype=torch.float64))

    def weighted(self) -> tuple[Tensor, Tensor]:
        """Returns scores and the logarithms of their weights, both flat."""
        return self.scores.flatten(), self.log_weights.expand_as(self.scores).flatten()

    def log_normalizer(self, shift: float, bounds: Bounds, shrinkage: float = 1.0) -> LogNormalizer:
        """Returns phi of the shifted, clipped and shrunk score, with its standard error."""
        tilts = shrinkage * clip_score(self.scores, shift, bounds)
        return replicated_log_normalizer(tilts + self.log_weights, bounds)

    def sample(self, num_draws: int) -> Tensor:
        """Returns scores of draws that are held, at most ``num_draws``."""
        return self.scores.flatten()[:num_draws]

    def joined(self, more: SampledScores) -> SampledScores:
        """Returns both sets of draws, replicate by replicate, with equal weights."""
        points = self.points
        if points is not None and more.points is not None and points.shape[1] == self.scores.shape[1]:
            if points.numel() + more.points.numel() <= _MAX_COORDINATES:
                points = torch.cat([points, more.points], 1)
        scores = torch.cat([self.scores, more.scores], 1)
        return SampledScores(scores, points, torch.zeros(1, dtype=torch.float64))

    def controlled(self, control: Control | None) -> SampledScores:
        """Returns the draws with weights as of :meth:`with_known_mean`, if all of their points are known."""
        points = self.points
        if control is None or points is None or points.shape[1] < self.scores.shape[1]:
            return self
        return self.with_known_mean(control(points.flatten(0, 1)), control.mean)

    def with_known_mean(self, values: Tensor, mean: float) -> SampledScores:
        """Returns the draws with weights under which a control variate has its known mean in every replicate.

        What is near the control variate is then known far better (regression estimator: Deville, Sarndal. Calibration
        estimators in survey sampling. 1992).

        Args:
            values: of the control variate at the draws, as many as there are scores.
            mean: its mean under the base.
        """
        values = values.reshape(self.scores.shape)
        centred = values - values.mean(1, keepdim=True)
        variance = centred.square().mean(1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
        weights = 1 + (mean - values.mean(1, keepdim=True)) * centred / variance
        weights = weights.clamp(min=_LEAST_WEIGHT)
        return self._replace(log_weights=(weights / weights.mean(1, keepdim=True)).log())

    def pooled(self, fresh: SampledScores, shift: float, bounds: Bounds) -> SampledScores:
        """Returns these quasi-random draws and fresh ones, each set weighted by how well it knows phi at a shift.

        The weights are inverse variances, since quasi-random draws determine phi better than many times as many fresh
        ones. If the quasi-random draws miss a region, their scatter does not show it; the two sets then lie further
        apart than chance explains. In that case the squared distance is, on average, the sum of both variances
        (DerSimonian, Laird. Meta-analysis in clinical trials. 1986).
        """
        by_quasi, by_fresh = (draws.log_normalizer(shift, bounds) for draws in (self, fresh))
        quasi_variance, fresh_variance = by_quasi.standard_error**2, by_fresh.standard_error**2
        squared_distance = (by_quasi.value - by_fresh.value) ** 2
        if squared_distance > _TOO_FAR_APART**2 * (quasi_variance + fresh_variance):
            quasi_variance = squared_distance - fresh_variance
        num_quasi, num_fresh = self.scores.shape[1], fresh.scores.shape[1]
        total = quasi_variance + fresh_variance
        quasi_share = fresh_variance / total if total else num_quasi / (num_quasi + num_fresh)
        weights = []
        for draws, share, size in ((self, quasi_share, num_quasi), (fresh, 1 - quasi_share, num_fresh)):
            factor = math.log(share * (num_quasi + num_fresh) / size) if share else -math.inf
            weights.append(draws.log_weights.expand_as(draws.scores) + factor)
        return self.joined(fresh)._replace(log_weights=torch.cat(weights, 1))
