"""Placing a score in public bounds and certifying where it lies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from tqdm import tqdm

from pyro_mbde.calibration.batches import BatchCertificate, BatchScores
from pyro_mbde.calibration.certificate import SampleBounds, certify, expected_draws
from pyro_mbde.calibration.draws import ScoredDraws
from pyro_mbde.calibration.projection import project, project_a_priori
from pyro_mbde.calibration.scores import ExactScores, SampledScores
from pyro_mbde.density.base import PreparedBase
from pyro_mbde.density.bounds import Bounds, Certificate, clip_score
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.kinds_of_statistics import aligned
from pyro_mbde.density.normalizer import NUM_REPLICATES, LogNormalizer
from pyro_mbde.density.row_batch import RowBatch
from pyro_mbde.density.tilt import Tilt
from pyro_mbde.privacy.release_plan import MAX_CERTIFIED_ROWS

#: The shift is found on quasi-random draws of the base: the first number of them, doubled up to the second until the
#: standard error of the log-normaliser is below the third, a share of the tolerance.
_FIRST_QUASI_DRAWS, _MAX_QUASI_DRAWS, _CLOSE_ENOUGH = 2**17, 2**22, 1 / 6
#: Fresh draws in a block of the certificate, and the most that the first and the second attempt may take. The first may
#: take twice the average that is planned for the hardest tilt: half of all attempts exceed that average, few by a
#: factor of two.
_BLOCK_SIZE, _FIRST, _SECOND = 2**15, 2**23, 2**25
#: The most blocks that the two attempts at the certificate of a batch may take, in units of what is expected; and
#: scores that the expectation rests on.
_PATIENCE, _HELD = (3.0, 10.0), 2**17


class Placement(NamedTuple):
    r"""Where a score u goes: the tilt is :math:`f = \lambda\, \mathrm{clip}(u - s, lo, hi)`. Private.

    Attributes:
        shift: s, in nats.
        shrinkage: lambda; 1 if the certificate was proved or none is needed, smaller otherwise.
        log_normalizer: phi of the tilt.
    """

    shift: float
    shrinkage: float
    log_normalizer: LogNormalizer


class Calibrator:
    r"""Finds where a score u of points is to be shifted, and certifies the result.

    The score is the sum of a density's weighted statistics: a learned log density ratio, or that of a boosted
    ensemble. The shift is found on quasi-random draws of the base. They are kept, because one fit serves many epsilons;
    what is kept does not depend on whether an attempt succeeded. Each attempt at a certificate uses new draws, from the
    operating system's randomness, so the shift does not depend on them, as the proof requires. A certificate therefore
    holds regardless of what came before, even if epsilon was chosen after seeing rows drawn from an earlier density of
    this score. On a finite base both are exact sums over its points.

    Privacy:
        Everything here except the base is private.

    Args:
        base: public base distribution, as :func:`~pyro_mbde.density.base.prepare` returns it.
        statistics: c of the density; no longer changed. Networks of this library get layers of aligned sizes
            (:meth:`~pyro_mbde.BoundedClassifiers.aligned`).
        natural_params: theta, shape ``(T,)``. The score is :math:`u = \langle \theta, c \rangle`.
        progress: whether to show a progress bar when calibrating takes more than a second.
    """

    def __init__(
        self,
        base: Distribution | PreparedBase,
        statistics: nn.Module,
        natural_params: Tensor,
        *,
        progress: bool = True,
    ) -> None:
        self._prepared, self._progress = PreparedBase.of(base), progress
        self._tilt = Tilt(aligned(statistics), natural_params)
        self._draws = ScoredDraws(self._prepared, self._tilt)
        finite = self._prepared.finite
        self._scores: ExactScores | SampledScores
        if finite is None:
            self._scores = self._draws.quasi_random(0, _FIRST_QUASI_DRAWS // NUM_REPLICATES, tqdm(disable=True))
        else:
            self._scores = ExactScores(self._draws.scores(finite.points), finite.log_weights)

    def density(
        self, bounds: Bounds, certificate: Certificate | None, num_rows: int | None = None
    ) -> MollifiedExpFamily:
        """Returns the density whose tilt is the score, placed in public bounds by :meth:`calibrate`.

        Args:
            bounds: as for :meth:`calibrate`.
            certificate: as for :meth:`calibrate`.
            num_rows: rows of a batch, whose score is the sum of theirs; ``None`` for single rows.
        """
        placement = self.calibrate(bounds, certificate, num_rows)
        return MollifiedExpFamily(
            self._prepared if num_rows is None else RowBatch(self._prepared.distribution, num_rows),
            self._tilt.statistics,
            self._tilt.natural_params,
            placement.log_normalizer,
            offset=placement.shift,
            shrinkage=placement.shrinkage,
            bounds=bounds,
            certificate=certificate,
        )

    def calibrate(self, bounds: Bounds, certificate: Certificate | None, num_rows: int | None = None) -> Placement:
        r"""Returns the projection on public bounds if it can be certified, else a tilt that needs no certificate.

        The log-normaliser of the projection is 0 up to Monte Carlo error; draws are added until that error is small
        compared with the tolerance. Should the certificate fail, the draws it was tried on help to find
        a better shift, which is tried on new ones; each attempt has half of delta. Should that fail too, the tilt is
        shrunk by :math:`\lambda = \min(-lo, hi)/R`, and is inside the set for certain. Proof: docs/proofs.md,
        *Calibration: the fallback*.

        Args:
            bounds: public interval [lo, hi] of the tilt, with ``low < 0 < high``.
            certificate: what is to be proved; ``None`` for the a-priori guarantee, with the shift that gains most then
                (:func:`~pyro_mbde.calibration.projection.project_a_priori`).
            num_rows: rows of a batch; ``None`` for single rows.
        """
        scores = self._scores
        if certificate is None:
            placed = scores if num_rows is None else BatchScores(scores, num_rows, bounds.width / 100)
            shift = project_a_priori(*placed.weighted(), bounds)
            return Placement(shift, 1.0, placed.log_normalizer(shift, bounds))
        if num_rows is not None:
            with self._bar() as bar:
                return self._calibrate_batches(num_rows, bounds, certificate, bar)
        if isinstance(scores, ExactScores):
            shift = project(*scores.weighted(), bounds)
            shrinkage = 1.0 if scores.certify(shift, bounds, certificate) else certain_shrinkage(bounds)
            return Placement(shift, shrinkage, scores.log_normalizer(shift, bounds, shrinkage))
        with self._bar() as bar:
            return self._calibrate_on_draws(scores, bounds, certificate, bar)

    def certify_at(self, shift: float, bounds: Bounds, certificate: Certificate, num_rows: int | None = None) -> bool:
        """Returns whether the log-normaliser is proved to be near 0 at a given shift, in one attempt."""
        if num_rows is not None:
            with self._bar() as bar:
                return self._certify_batches(num_rows, shift, bounds, certificate, _PATIENCE[1], bar)
        if isinstance(self._scores, ExactScores):
            return self._scores.certify(shift, bounds, certificate)
        with self._bar() as bar:
            return self._certify(self._scores, shift, bounds, certificate, self._blocks(_SECOND, bar))

    def _bar(self) -> tqdm[Any]:
        return tqdm(desc="calibration", unit="draw", unit_scale=True, delay=1, disable=not self._progress)

    def _calibrate_on_draws(
        self, scores: SampledScores, bounds: Bounds, certificate: Certificate, bar: tqdm[Any]
    ) -> Placement:
        # delta is shared out between two attempts: either may be wrong.
        claim = replace(certificate, delta=certificate.delta / 2)
        scores, shift = self._shift(scores, bounds, certificate, bar)
        # Kept for later calls: more draws where the tolerance asked for them, whether or not an attempt succeeds.
        self._scores = scores
        taken: list[tuple[Tensor, Tensor]] = []
        if self._certify(scores, shift, bounds, claim, self._blocks(_FIRST, bar, taken.append)):
            return Placement(shift, 1.0, scores.log_normalizer(shift, bounds))
        # The draws of the first attempt help to find a better shift, in this call only.
        pooled = scores.pooled(SampledScores.of_blocks(taken), shift, bounds)
        shift = project(*pooled.weighted(), bounds)
        if self._certify(pooled, shift, bounds, claim, self._blocks(_SECOND, bar)):
            return Placement(shift, 1.0, pooled.log_normalizer(shift, bounds))
        shrinkage = certain_shrinkage(bounds)
        return Placement(shift, shrinkage, scores.log_normalizer(shift, bounds, shrinkage))

    def _calibrate_batches(self, num_rows: int, bounds: Bounds, certificate: Certificate, bar: tqdm[Any]) -> Placement:
        """As :meth:`_calibrate_on_draws`, for the sum of the scores of a batch's rows."""
        claim = replace(certificate, delta=certificate.delta / 2)
        scores, placed, shift = self._shift_of_batches(self._scores, num_rows, certificate, bounds, bar)
        self._scores = scores  # kept as for single rows
        for attempt, patience in enumerate(_PATIENCE):
            if attempt and isinstance(scores, SampledScores):  # more draws to find a better shift, for this call alone
                held = scores.scores.shape[1]
                scores = scores.joined(self._draws.quasi_random(held, held, bar))
                scores, placed, shift = self._shift_of_batches(scores, num_rows, certificate, bounds, bar)
            if self._certify_batches(num_rows, shift, bounds, claim, patience, bar):
                return Placement(shift, 1.0, placed.log_normalizer(shift, bounds))
        shrinkage = certain_shrinkage(bounds)
        return Placement(shift, shrinkage, placed.log_normalizer(shift, bounds, shrinkage))

    def _shift_of_batches(
        self,
        scores: ExactScores | SampledScores,
        num_rows: int,
        certificate: Certificate,
        bounds: Bounds,
        bar: tqdm[Any],
    ) -> tuple[ExactScores | SampledScores, BatchScores, float]:
        while True:
            placed = BatchScores(scores, num_rows, certificate.tolerance)
            shift = project(*placed.weighted(), bounds)
            error = placed.log_normalizer(shift, bounds).standard_error
            close = error <= _CLOSE_ENOUGH * certificate.tolerance
            if close or isinstance(scores, ExactScores) or scores.scores.numel() >= _MAX_QUASI_DRAWS:
                return scores, placed, shift
            held = scores.scores.shape[1]
            scores = scores.joined(self._draws.quasi_random(held, held, bar))

    def _certify_batches(
        self, num_rows: int, shift: float, bounds: Bounds, certificate: Certificate, patience: float, bar: tqdm[Any]
    ) -> bool:
        proof = BatchCertificate(num_rows, shift, bounds, certificate)
        held = self._scores.sample(_HELD)
        num_blocks = math.ceil(min(patience * proof.expected_blocks(held), 3 * MAX_CERTIFIED_ROWS / proof.block_rows))
        blocks = (self._draws.fresh(proof.block_rows, bar)[0] for _ in range(num_blocks))
        return proof.holds(blocks, held)

    def _shift(
        self, scores: SampledScores, bounds: Bounds, certificate: Certificate, bar: tqdm[Any]
    ) -> tuple[SampledScores, float]:
        """The shift of the projection, on as many quasi-random draws as the tolerance asks for; and these."""
        while True:
            shift = project(*scores.weighted(), bounds)
            error = scores.log_normalizer(shift, bounds).standard_error
            if error <= _CLOSE_ENOUGH * certificate.tolerance or scores.scores.numel() >= _MAX_QUASI_DRAWS:
                return scores, shift
            held = scores.scores.shape[1]
            scores = scores.joined(self._draws.quasi_random(held, held, bar))

    def _blocks(
        self, num_draws: int, bar: tqdm[Any], on_block: Callable[[tuple[Tensor, Tensor]], object] = lambda block: None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Scores and cells of fresh draws, in blocks that are made when they are asked for."""
        for _ in range(num_draws // _BLOCK_SIZE):
            block = self._draws.fresh(_BLOCK_SIZE, bar)
            on_block(block)
            yield block

    def _certify(
        self,
        scores: SampledScores,
        shift: float,
        bounds: Bounds,
        certificate: Certificate,
        blocks: Iterator[tuple[Tensor, Tensor]],
    ) -> bool:
        r"""Whether :math:`|\phi|` is proved on fresh draws to be at most the tolerance.

        What is bet on is :math:`Y = e^{f(x)} - g(k) + \bar g`, with k the cell of the unit cube that x was inverted
        from, g the average of :math:`e^f` over the scored draws in a cell, and :math:`\bar g` the average of g over
        all cells (control variate). :math:`E\,Y = e^\phi` as long as ``blocks`` are independent of ``scores``. Proof:
        docs/proofs.md, *Calibration: the control variate*.
        """
        tilted = clip_score(scores.scores, shift, bounds).exp().flatten()
        cells = scores.cells.flatten()
        num_cells = self._draws.num_cells
        counts = torch.bincount(cells, minlength=num_cells)
        control = torch.bincount(cells, tilted, minlength=num_cells) / counts.clamp(min=1)
        control[counts == 0] = 1.0
        least, most, mean = float(control.min()), float(control.max()), float(control.mean())
        smallest, largest = math.exp(bounds.low), math.exp(bounds.high)
        limits = SampleBounds(smallest - most + mean, largest - least + mean, float((tilted - control[cells]).var()))
        plain = SampleBounds(smallest, largest, float(tilted.var()))
        # Where only a rare large value could prove it wrong, the control variate is worse: it widens the bounds.
        if expected_draws(plain, certificate) < expected_draws(limits, certificate):
            control, limits = torch.ones_like(control), plain
        samples = (clip_score(values, shift, bounds).exp() - control[at] + control.mean() for values, at in blocks)
        return certify(samples, limits, certificate)


def certain_shrinkage(bounds: Bounds) -> float:
    """Returns the largest shrinkage with which a tilt is in the set [lo, hi] whatever its log-normaliser."""
    return min(-bounds.low, bounds.high) / bounds.width
