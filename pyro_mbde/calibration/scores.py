"""Scores of points of the base, and the log-normaliser that a shift gives them. Private."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_mbde.calibration.certificate import ROUNDING_RESERVE
from pyro_mbde.density.bounds import Bounds, Certificate, clip_score
from pyro_mbde.density.normalizer import NUM_REPLICATES, LogNormalizer, replicated_log_normalizer

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
        cells: cell of the unit cube that each draw was inverted from, shape ``(num_replicates, n)``.
        log_weights: logarithms of the draws' weights within a replicate, 1 on average; shape ``(n,)`` or ``(1,)``.
    """

    scores: Tensor
    cells: Tensor
    log_weights: Tensor

    @classmethod
    def of_blocks(cls, blocks: Sequence[tuple[Tensor, Tensor]]) -> SampledScores:
        """Returns draws of equal weight, given as blocks of scores and cells, cut into replicates."""
        scores, cells = (torch.cat(parts).reshape(NUM_REPLICATES, -1) for parts in zip(*blocks, strict=True))
        return cls(scores, cells, torch.zeros(1, dtype=torch.float64))

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
        scores, cells = torch.cat([self.scores, more.scores], 1), torch.cat([self.cells, more.cells], 1)
        return SampledScores(scores, cells, torch.zeros(1, dtype=torch.float64))

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
        weights = [
            torch.full((size,), share * (num_quasi + num_fresh) / size, dtype=torch.float64)
            for size, share in ((num_quasi, quasi_share), (num_fresh, 1 - quasi_share))
        ]
        return self.joined(fresh)._replace(log_weights=torch.cat(weights).log())
