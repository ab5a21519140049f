"""Placing a score in public bounds and certifying where it lies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from tqdm import tqdm

from pyro_mbde.calibration.batches import BatchCertificate, BatchScores
from pyro_mbde.calibration.certificate import ROUNDING_RESERVE, SampleBounds, certify, expected_draws
from pyro_mbde.calibration.control import Control, best_control
from pyro_mbde.calibration.draws import ScoredDraws
from pyro_mbde.calibration.projection import project, project_a_priori
from pyro_mbde.calibration.ranked_draws import RankedDraws
from pyro_mbde.calibration.scores import ExactScores, SampledScores
from pyro_mbde.density.base import PreparedBase
from pyro_mbde.density.bounds import Bounds, Certificate, clip_score
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.kinds_of_statistics import aligned
from pyro_mbde.density.normalizer import NUM_REPLICATES, LogNormalizer
from pyro_mbde.density.row_batch import RowBatch
from pyro_mbde.density.tilt import Tilt
from pyro_mbde.privacy.release_plan import MAX_CERTIFIED_ROWS
from pyro_mbde.ranks import ALONE, Ranks

#: The shift is found on quasi-random draws of the base: the first number of them, doubled up to the second (up to the
#: third for batches) until the standard error of the log-normaliser is below the fourth, a share of the tolerance.
_FIRST_QUASI_DRAWS, _MAX_QUASI_DRAWS, _MAX_QUASI_DRAWS_OF_BATCHES, _CLOSE_ENOUGH = 2**17, 2**20, 2**22, 1 / 6
#: Fresh draws in a block of the certificate; the most draws that the first and the second attempt may take, in units of
#: what is planned for the hardest tilt; and as a number. Half of all attempts at the hardest tilt exceed what is
#: planned, few by a factor of two.
_BLOCK_SIZE, _FIRST, _SECOND, _MAX_FRESH_DRAWS = 2**15, 2.0, 8.0, 2**25
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
        delta_share: share of a certificate's delta that this calibration may use, in (0, 1]; less than 1 where an
            earlier one of the same fit may have been cut off.
        ranks: processes that make draws together. All of them make the calibrator, of the same score, and call its
            methods with the same arguments; the first one decides, and all get the same result.
    """

    def __init__(
        self,
        base: Distribution | PreparedBase,
        statistics: nn.Module,
        natural_params: Tensor,
        *,
        progress: bool = True,
        delta_share: float = 1.0,
        ranks: Ranks = ALONE,
    ) -> None:
        self._prepared, self._progress, self._delta_share = PreparedBase.of(base), progress, delta_share
        self._tilt = Tilt(aligned(statistics), natural_params)
        self._draws = (
            ScoredDraws(self._prepared, self._tilt)
            if ranks.size == 1
            else RankedDraws(self._prepared, self._tilt, ranks)
        )
        self._scores: ExactScores | SampledScores  # of several processes, the first one alone has them
        self._draws.decided(self._hold_scores)

    def _hold_scores(self) -> None:
        finite = self._prepared.finite
        if finite is None:
            self._scores = self._draws.quasi_random(0, _FIRST_QUASI_DRAWS // NUM_REPLICATES, tqdm(disable=True))
        else:
            self._scores = ExactScores(self._draws.scores(finite.points), finite.log_weights)

    @property
    def left_out(self) -> Mapping[int, str]:
        """Processes whose arithmetic differs from the first one's, and in what, in public words."""
        return self._draws.left_out

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
        return self._draws.same_density(
            lambda certified_on: MollifiedExpFamily(
                self._prepared if num_rows is None else RowBatch(self._prepared.distribution, num_rows),
                self._tilt.statistics,
                self._tilt.natural_params,
                placement.log_normalizer,
                offset=placement.shift,
                shrinkage=placement.shrinkage,
                bounds=bounds,
                certificate=certificate,
                certified_on=certified_on,
            )
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
        return self._draws.decided(lambda: self._placed(bounds, certificate, num_rows))

    def _placed(self, bounds: Bounds, certificate: Certificate | None, num_rows: int | None) -> Placement:
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
        return self._draws.decided(lambda: self._is_certified(shift, bounds, certificate, num_rows))

    def _is_certified(self, shift: float, bounds: Bounds, certificate: Certificate, num_rows: int | None) -> bool:
        if num_rows is not None:
            with self._bar() as bar:
                return self._certify_batches(num_rows, shift, bounds, certificate, _PATIENCE[1], bar)
        if isinstance(self._scores, ExactScores):
            return self._scores.certify(shift, bounds, certificate)
        proof = _Proof.of_held(self._scores, shift, bounds, certificate)
        with self._bar() as bar:
            return proof.holds(shift, certificate, self._blocks(_SECOND * proof.planned(certificate), bar))

    def _bar(self) -> tqdm[Any]:
        return tqdm(desc="calibration", unit="draw", unit_scale=True, delay=1, disable=not self._progress)

    def _calibrate_on_draws(
        self, scores: SampledScores, bounds: Bounds, certificate: Certificate, bar: tqdm[Any]
    ) -> Placement:
        # delta is shared out between two attempts: either may be wrong.
        claim = replace(certificate, delta=certificate.delta * self._delta_share / 2)
        # Kept for later calls: more draws where the tolerance asked for them, whether or not an attempt succeeds.
        self._scores, placed, shift, proof = self._shift(scores, bounds, certificate, bar)
        taken: list[tuple[Tensor, Tensor]] = []
        if proof.holds(shift, claim, self._blocks(_FIRST * proof.planned(claim), bar), taken.append):
            return Placement(shift, 1.0, placed.log_normalizer(shift, bounds))
        # The draws of the first attempt help to find a better shift, in this call only.
        pooled = placed.pooled(proof.fresh_scores(taken), shift, bounds)
        shift = project(*pooled.weighted(), bounds)
        if proof.holds(shift, claim, self._blocks(_SECOND * proof.planned(claim), bar)):
            return Placement(shift, 1.0, pooled.log_normalizer(shift, bounds))
        shrinkage = certain_shrinkage(bounds)
        return Placement(shift, shrinkage, scores.log_normalizer(shift, bounds, shrinkage))

    def _calibrate_batches(self, num_rows: int, bounds: Bounds, certificate: Certificate, bar: tqdm[Any]) -> Placement:
        """As :meth:`_calibrate_on_draws`, for the sum of the scores of a batch's rows."""
        claim = replace(certificate, delta=certificate.delta * self._delta_share / 2)
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
            if close or isinstance(scores, ExactScores) or scores.scores.numel() >= _MAX_QUASI_DRAWS_OF_BATCHES:
                return scores, placed, shift
            held = scores.scores.shape[1]
            scores = scores.joined(self._draws.quasi_random(held, held, bar))

    def _certify_batches(
        self, num_rows: int, shift: float, bounds: Bounds, certificate: Certificate, patience: float, bar: tqdm[Any]
    ) -> bool:
        proof = BatchCertificate(num_rows, shift, bounds, certificate)
        held = self._scores.sample(_HELD)
        num_blocks = math.ceil(min(patience * proof.expected_blocks(held), 3 * MAX_CERTIFIED_ROWS / proof.block_rows))
        blocks = self._draws.blocks(proof.block_rows, num_blocks, bar)
        return proof.holds((scores for scores, _ in blocks), held)

    def _shift(
        self, scores: SampledScores, bounds: Bounds, certificate: Certificate, bar: tqdm[Any]
    ) -> tuple[SampledScores, SampledScores, float, _Proof]:
        """The shift of the projection, on as many quasi-random draws as the tolerance asks for.

        Returns the draws, the draws as they are weighted, the shift and how to prove it.
        """
        placed = scores
        shift = project(*placed.weighted(), bounds)
        proof = _Proof.of_held(scores, shift, bounds, certificate)
        close = _CLOSE_ENOUGH * (certificate.tolerance - ROUNDING_RESERVE)
        if placed.log_normalizer(shift, bounds).standard_error > close:
            placed = scores.controlled(proof.control)
            shift = project(*placed.weighted(), bounds)
        while placed.log_normalizer(shift, bounds).standard_error > close:
            held = scores.scores.shape[1]
            if held * NUM_REPLICATES >= _MAX_QUASI_DRAWS:
                break
            scores = scores.joined(self._draws.quasi_random(held, held, bar))
            placed = scores.controlled(proof.control)
            shift = project(*placed.weighted(), bounds)
        return scores, placed, shift, proof

    def _blocks(self, num_draws: float, bar: tqdm[Any]) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Scores and points of fresh draws, in blocks that are made when they are asked for."""
        num_blocks = math.ceil(min(num_draws, _MAX_FRESH_DRAWS) / _BLOCK_SIZE)
        return self._draws.blocks(_BLOCK_SIZE, num_blocks, bar)


class _Proof(NamedTuple):
    r"""How :math:`|\phi|` is proved on fresh draws to be at most a tolerance.

    What is bet on is :math:`Y = e^{f(x)} - g(u) + E\,g`, with u the point of the unit cube that x was inverted from,
    and g a control variate that is fitted to :math:`e^f` on held draws. :math:`E\,Y = e^\phi` as long as fresh draws
    are independent of those that are held. Proof: docs/proofs.md, *Calibration: the control variate*.

    Attributes:
        bounds: of the tilt.
        control: g; None for none.
        limits: bounds of Y, and a guess at its variance.
    """

    bounds: Bounds
    control: Control | None
    limits: SampleBounds

    @classmethod
    def of_held(cls, scores: SampledScores, shift: float, bounds: Bounds, certificate: Certificate) -> _Proof:
        """Returns the proof that takes the fewest draws, as far as held draws tell."""
        known = scores.scores if scores.points is None else scores.scores[:, : scores.points.shape[1]]
        tilted = clip_score(known, shift, bounds).exp().flatten()
        points = None if scores.points is None else scores.points.flatten(0, 1)
        return cls(bounds, *best_control(tilted, points, bounds, certificate))

    def planned(self, certificate: Certificate) -> float:
        """Returns how many draws are planned for the hardest tilt; public."""
        smallest, largest = math.exp(self.bounds.low), math.exp(self.bounds.high)
        hardest = SampleBounds(smallest, largest, (largest - 1) * (1 - smallest))
        return expected_draws(hardest, certificate)

    def holds(
        self,
        shift: float,
        certificate: Certificate,
        blocks: Iterable[tuple[Tensor, Tensor | None]],
        on_block: Callable[[tuple[Tensor, Tensor]], object] = lambda block: None,
    ) -> bool:
        """Returns whether it is proved on blocks of fresh draws; ``on_block`` gets their scores and g."""

        def samples() -> Iterator[Tensor]:
            for scores, points in blocks:
                values = torch.zeros_like(scores) if self.control is None or points is None else self.control(points)
                on_block((scores, values))
                yield clip_score(scores, shift, self.bounds).exp() - values + self._mean

        return certify(samples(), self.limits, certificate)

    @property
    def _mean(self) -> float:
        return 0.0 if self.control is None else self.control.mean

    def fresh_scores(self, taken: list[tuple[Tensor, Tensor]]) -> SampledScores:
        """Returns the scores that an attempt was tried on, weighted as g asks for."""
        fresh = SampledScores.of_blocks([(scores, None) for scores, _ in taken])
        return fresh.with_known_mean(torch.cat([values for _, values in taken]), self._mean)


def certain_shrinkage(bounds: Bounds) -> float:
    """Returns the largest shrinkage with which a tilt is in the set [lo, hi] whatever its log-normaliser."""
    return min(-bounds.low, bounds.high) / bounds.width
