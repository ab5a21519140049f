"""Placing a score in public bounds and certifying where it lies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from tqdm import tqdm

from pyro_mbde._checks import argument_error, check_number
from pyro_mbde._torch_state import seeded, single_thread, with_gradients
from pyro_mbde.calibration.certificate import (
    ROUNDING_RESERVE,
    SMALLEST_DELTA,
    SampleBounds,
    certify,
    check_finite_epsilon,
    expected_draws,
    plan_certificate,
    shrunk_bounds,
)
from pyro_mbde.calibration.projection import project, project_a_priori
from pyro_mbde.density.base import PreparedBase, as_features, exact_points, quasi_draws_with_points
from pyro_mbde.density.bounds import Bounds, Certificate, check_skew, clip_score, skewed_bounds
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.normalizer import NUM_REPLICATES, LogNormalizer, replicated_log_normalizer
from pyro_mbde.density.randomness import UnfilledSource, system_generator
from pyro_mbde.density.scoring import ALIGNED_SIZE, CHUNK_ROWS, depends_on_place, score_rows
from pyro_mbde.density.statistics import aligned
from pyro_mbde.density.tilt import Tilt

#: The shift is found on quasi-random draws of the base: the first number of them, doubled up to the second until the
#: standard error of the log-normaliser is below the third, a share of the tolerance.
_FIRST_QUASI_DRAWS, _MAX_QUASI_DRAWS, _CLOSE_ENOUGH = 2**17, 2**22, 1 / 6
#: The quasi-random draws are mistrusted where (phi_quasi - phi_fresh)^2 > 3^2 (se_quasi^2 + se_fresh^2): were both
#: unbiased and normal, chance would put them so far apart in 0.3 per cent of fits. Only the gain depends on it, not the
#: proof.
_TOO_FAR_APART = 3
#: Fresh draws in a block of the certificate, and the most that the first and the second attempt may take. The first may
#: take twice the average that is planned for the hardest tilt: half of all attempts exceed that average, few by a
#: factor of two.
_BLOCK_SIZE, _FIRST, _SECOND = 2**15, 2**23, 2**25
#: Cells of the unit cube over which the certificate's control variate is constant, at most.
_MAX_CELLS = 2**14
#: Share of epsilon that an exactly summed log-normaliser is allowed to be off by.
_EXACT_TOLERANCE = 1e-6
#: Draws that are evaluated between two steps of a progress bar.
_NOTICED = 2**13


def plan_calibration(
    base: Distribution | PreparedBase, epsilon: float, delta: float, skew: float
) -> tuple[Bounds, Certificate | None]:
    """Returns the public bounds of a tilt, and what is to be proved of it.

    On a finite base the log-normaliser is a sum, exact up to rounding. The tolerance is then a millionth of epsilon
    plus a reserve for rounding (:data:`~pyro_mbde.calibration.certificate.ROUNDING_RESERVE`), and the certificate's
    delta is 0. On any other base a positive delta gives
    :func:`~pyro_mbde.calibration.certificate.plan_certificate`.

    There is no certificate, and the width is epsilon/2 with the a-priori guarantee, in three cases: delta is 0 on a
    base that is not finite; the certified interval would not be wider than epsilon/2, at a very large epsilon; or one
    side of the interval is too narrow for rounding.

    Args:
        base: public base distribution.
        epsilon: privacy parameter of one draw, in nats; in (0, 700).
        delta: probability that a certificate is wrong, in [0, 1).
        skew: where the interval lies, in (0, 1).
    """
    epsilon, skew = check_finite_epsilon(epsilon), check_skew(skew)
    constraint = f"be 0, or in [{SMALLEST_DELTA:g}, 1)"
    delta = check_number("delta", delta, constraint, lambda value: value == 0 or SMALLEST_DELTA <= value < 1)
    has_room = min(skew, 1 - skew) * epsilon > 2 * ROUNDING_RESERVE + _EXACT_TOLERANCE * epsilon
    if has_room and PreparedBase.of(base).finite is not None:
        tolerance = ROUNDING_RESERVE + _EXACT_TOLERANCE * epsilon
        bounds = shrunk_bounds(epsilon, skew, tolerance)
        if bounds.width > epsilon / 2:
            return bounds, Certificate(tolerance)
    elif has_room and delta:
        bounds, certificate = plan_certificate(epsilon, delta, skew)
        if bounds.width > epsilon / 2:
            return bounds, certificate
    return skewed_bounds(epsilon / 2, 0.5), None


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
    def of_draws(cls, scores: Tensor, cells: Tensor) -> SampledScores:
        """Returns draws of equal weight, given one after another, cut into replicates."""
        shape = (NUM_REPLICATES, -1)
        return cls(scores.reshape(shape), cells.reshape(shape), torch.zeros(1, dtype=torch.float64))

    def weighted(self) -> tuple[Tensor, Tensor]:
        """Returns scores and the logarithms of their weights, both flat."""
        return self.scores.flatten(), self.log_weights.expand_as(self.scores).flatten()

    def log_normalizer(self, shift: float, bounds: Bounds, shrinkage: float = 1.0) -> LogNormalizer:
        """Returns phi of the shifted, clipped and shrunk score, with its standard error."""
        tilts = shrinkage * clip_score(self.scores, shift, bounds)
        return replicated_log_normalizer(tilts + self.log_weights, bounds)

    def joined(self, more: SampledScores, log_weights: Tensor | None = None) -> SampledScores:
        """Returns both sets of draws, replicate by replicate; of equal weight without ``log_weights``."""
        scores, cells = torch.cat([self.scores, more.scores], 1), torch.cat([self.cells, more.cells], 1)
        return SampledScores(scores, cells, torch.zeros(1, dtype=torch.float64) if log_weights is None else log_weights)

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
        return self.joined(fresh, torch.cat(weights).log())


class Calibrator:
    r"""Finds where a score u of points is to be shifted, and certifies the result.

    The score is the sum of a density's weighted statistics: a learned log density ratio, or that of a boosted
    ensemble. The shift is found on quasi-random draws of the base. They are kept, because one fit serves many epsilons;
    what is kept does not depend on whether an attempt succeeded. Each attempt at a certificate uses new draws, from the
    operating system's randomness, so the shift does not depend on them, as the proof requires. A certificate therefore
    holds whatever came before, even if epsilon was chosen after seeing rows drawn from an earlier density of this
    score. On a finite base both are exact sums over its points.

    Privacy:
        Everything here except the base is private.

    Args:
        base: public base distribution, as :func:`~pyro_mbde.density.base.prepare` returns it.
        statistics: c of the density; no longer changed. Networks of this library get layers of aligned sizes
            (:meth:`~pyro_mbde.BoundedClassifiers.aligned`).
        natural_params: theta, shape ``(T,)``. The score is :math:`u = \langle \theta, c \rangle`.
        progress: whether to show a progress bar when calibrating takes more than a second.

    Raises:
        ValueError: the score of a row depends on its place among other rows, whatever the weights: no certificate can
            be proved of it.
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
        self._base, self._dtype = self._prepared.distribution, self._prepared.dtype
        self._tilt = Tilt(aligned(statistics), natural_params)
        self._check_place()
        self._source = UnfilledSource(self._prepared)
        # Quasi-random draws are made when they are needed, but always the same for a seeded fit.
        self._seed = int(torch.randint(2**31, ()))
        self._num_cell_dims, self._cells_per_dim = self._plan_cells()
        self._num_cells = self._cells_per_dim**self._num_cell_dims
        finite = self._prepared.finite
        self._scores: ExactScores | SampledScores
        if finite is None:
            self._scores = self._quasi_draws(0, _FIRST_QUASI_DRAWS // NUM_REPLICATES)
        else:
            self._scores = ExactScores(self._evaluate(finite.points), finite.log_weights)

    def _check_place(self) -> None:
        """Refuses statistics whose sums depend on the place of a row. Public: no weight that was fitted enters."""
        rows = as_features(self._prepared.draws[:CHUNK_ROWS], self._base, self._dtype)
        if depends_on_place(self._tilt.with_public_weights().score, rows):
            remedy = f"Make the sizes of its layers multiples of {ALIGNED_SIZE}, or ask for delta=0."
            found = type(self._tilt.statistics).__name__
            raise ValueError(argument_error("statistics", "sum a row in the same order at every place", found, remedy))

    def _plan_cells(self) -> tuple[int, int]:
        """How many dimensions of the unit cube are cut, and into how many parts each.

        No dimension is cut unless both quasi-random and fresh draws come with the points that they were inverted from:
        the control variate needs the same cells for both.
        """
        with seeded(0):
            _, quasi = quasi_draws_with_points(self._base, 2)
            _, fresh = self._source.propose_with_points(2)
        if quasi is None or fresh is None:
            return 0, 1
        num_dims = min(quasi.shape[1], int(math.log2(_MAX_CELLS)))
        # 1e-9 is added so that rounding cannot turn a root of 128 into 127.
        return num_dims, int(_MAX_CELLS ** (1 / num_dims) + 1e-9)

    def density(self, bounds: Bounds, certificate: Certificate | None) -> MollifiedExpFamily:
        """Returns the density whose tilt is the score, placed in public bounds by :meth:`calibrate`.

        Args:
            bounds: as for :meth:`calibrate`.
            certificate: as for :meth:`calibrate`.
        """
        placement = self.calibrate(bounds, certificate)
        return MollifiedExpFamily(
            self._prepared,
            self._tilt.statistics,
            self._tilt.natural_params,
            placement.log_normalizer,
            offset=placement.shift,
            shrinkage=placement.shrinkage,
            bounds=bounds,
            certificate=certificate,
        )

    def calibrate(self, bounds: Bounds, certificate: Certificate | None) -> Placement:
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
        """
        scores = self._scores
        if certificate is None:
            shift = project_a_priori(*scores.weighted(), bounds)
            return Placement(shift, 1.0, scores.log_normalizer(shift, bounds))
        if isinstance(scores, ExactScores):
            shift = project(*scores.weighted(), bounds)
            holds = _is_exactly_certified(scores, shift, bounds, certificate)
            shrinkage = 1.0 if holds else _certain_shrinkage(bounds)
            return Placement(shift, shrinkage, scores.log_normalizer(shift, bounds, shrinkage))
        with tqdm(desc="calibration", unit="draw", unit_scale=True, delay=1, disable=not self._progress) as bar:
            return self._calibrate_on_draws(scores, bounds, certificate, bar.update)

    def certify_at(self, shift: float, bounds: Bounds, certificate: Certificate) -> bool:
        """Returns whether the log-normaliser is proved to be near 0 at a given shift, in one attempt."""
        if isinstance(self._scores, ExactScores):
            return _is_exactly_certified(self._scores, shift, bounds, certificate)
        return self._certify(self._scores, shift, bounds, certificate, self._new_blocks(_SECOND))

    def _calibrate_on_draws(
        self, scores: SampledScores, bounds: Bounds, certificate: Certificate, on_scored: Callable[[int], object]
    ) -> Placement:
        # delta is shared out between two attempts: either may be wrong.
        claim = replace(certificate, delta=certificate.delta / 2)
        scores, shift = self._shift(scores, bounds, certificate, on_scored)
        # Kept for later calls: more draws where the tolerance asked for them, whatever becomes of the attempts.
        self._scores = scores
        taken: list[tuple[Tensor, Tensor]] = []
        blocks = _noted(self._new_blocks(_FIRST, on_scored), taken)
        if self._certify(scores, shift, bounds, claim, blocks):
            return Placement(shift, 1.0, scores.log_normalizer(shift, bounds))
        # The draws of the first attempt help to find a better shift, for this call alone.
        fresh = SampledScores.of_draws(*(torch.cat(parts) for parts in zip(*taken, strict=True)))
        pooled = scores.pooled(fresh, shift, bounds)
        shift = project(*pooled.weighted(), bounds)
        if self._certify(pooled, shift, bounds, claim, self._new_blocks(_SECOND, on_scored)):
            return Placement(shift, 1.0, pooled.log_normalizer(shift, bounds))
        shrinkage = _certain_shrinkage(bounds)
        return Placement(shift, shrinkage, scores.log_normalizer(shift, bounds, shrinkage))

    def _shift(
        self,
        scores: SampledScores,
        bounds: Bounds,
        certificate: Certificate,
        on_scored: Callable[[int], object] = lambda count: None,
    ) -> tuple[SampledScores, float]:
        """The shift of the projection, on as many quasi-random draws as the tolerance asks for; and these."""
        while True:
            shift = project(*scores.weighted(), bounds)
            error = scores.log_normalizer(shift, bounds).standard_error
            if error <= _CLOSE_ENOUGH * certificate.tolerance or scores.scores.numel() >= _MAX_QUASI_DRAWS:
                return scores, shift
            held = scores.scores.shape[1]
            scores = scores.joined(self._quasi_draws(held, held, on_scored))

    def _quasi_draws(
        self, num_held: int, size: int, on_scored: Callable[[int], object] = lambda count: None
    ) -> SampledScores:
        """Scores of ``size`` quasi-random draws in each replicate, to follow those that are held."""
        with seeded(self._seed + num_held):
            draws, points = zip(
                *(quasi_draws_with_points(self._base, size) for _ in range(NUM_REPLICATES)), strict=True
            )
        scores = self._evaluate(torch.cat(draws), on_scored)
        return SampledScores.of_draws(scores, torch.cat([self._cells(replicate, size) for replicate in points]))

    def _cells(self, points: Tensor | None, num_draws: int) -> Tensor:
        """Indices of the equal cells of the unit cube that points are in; 0 where there are no cells."""
        if points is None or self._num_cells == 1:
            return torch.zeros(num_draws, dtype=torch.int32)
        per_dim, num_dims = self._cells_per_dim, self._num_cell_dims
        indices = (points[:, :num_dims] * per_dim).long().clamp(max=per_dim - 1)
        return (indices * per_dim ** torch.arange(num_dims)).sum(1).int()

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
        counts = torch.bincount(cells, minlength=self._num_cells)
        control = torch.bincount(cells, tilted, minlength=self._num_cells) / counts.clamp(min=1)
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

    def _new_blocks(
        self, num_draws: int, on_scored: Callable[[int], object] = lambda count: None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        return (self._new_block(on_scored) for _ in range(num_draws // _BLOCK_SIZE))

    def _new_block(self, on_scored: Callable[[int], object] = lambda count: None) -> tuple[Tensor, Tensor]:
        """Scores and cells of fresh draws of the base."""
        with system_generator():
            draws, points = self._source.propose_with_points(_BLOCK_SIZE)
        return self._evaluate(draws, on_scored), self._cells(points, _BLOCK_SIZE)

    def _score(self, values: Tensor) -> Tensor:
        return self._tilt.score(as_features(values, self._base, self._dtype))

    def _evaluate(self, values: Tensor, on_scored: Callable[[int], object] = lambda count: None) -> Tensor:
        """Scores, to the bits that rows will be accepted by."""
        scores = []
        for part in torch.split(values, _NOTICED):
            scores.append(score_rows(self._score, part))
            on_scored(len(part))
        return torch.cat(scores)


def _noted(
    blocks: Iterator[tuple[Tensor, Tensor]], taken: list[tuple[Tensor, Tensor]]
) -> Iterator[tuple[Tensor, Tensor]]:
    """The blocks, each appended to ``taken`` as it is made."""
    for block in blocks:
        taken.append(block)
        yield block


def _is_exactly_certified(scores: ExactScores, shift: float, bounds: Bounds, certificate: Certificate) -> bool:
    return abs(scores.log_normalizer(shift, bounds).value) <= certificate.tolerance - ROUNDING_RESERVE


def _certain_shrinkage(bounds: Bounds) -> float:
    """The largest shrinkage with which a tilt is in the set [lo, hi] whatever its log-normaliser."""
    return min(-bounds.low, bounds.high) / bounds.width


def recertify(q: MollifiedExpFamily, *, progress: bool = True) -> MollifiedExpFamily:
    r"""Proves the certificate of a density again, for the function that draws are accepted by here.

    For a density that was converted to another dtype or device, or loaded under a different PyTorch version
    or processor. Offset, bounds, tolerance and delta stay the same; the proof takes fresh draws of the base.

    Privacy:
        The result is another density for a ledger, with its own delta: rows drawn before rest on the old
        certificate, rows drawn after on the new one. Whether a proof is found depends on the table, so only its
        owner may see an error. Each further try adds another delta.

    Args:
        q: a density with a certificate.
        progress: whether to show a progress bar when it takes more than a second.

    Returns:
        The density with the calibrated guarantee and its own fingerprint.

    Raises:
        TypeError: q is of another kind.
        ValueError: q was never certified, or no proof was found.

    Example:
        >>> from pyro_mbde import DensityRatio
        >>> base = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
        >>> q = DensityRatio(base, seed=0, progress=False).fit(torch.linspace(1, 2, 500)).mollify(1.0)
        >>> wide = q.to(torch.float64)
        >>> wide.guarantee.delta, recertify(wide).guarantee == q.guarantee
        (0.0, True)
    """
    if not isinstance(q, MollifiedExpFamily):
        raise TypeError(argument_error("q", "be a MollifiedExpFamily", q))
    certificate = q.certificate
    if certificate is None:
        raise ValueError(
            argument_error("q", "have a certificate", q, "An a-priori guarantee needs none and holds anywhere.")
        )
    provable = certificate.tolerance > ROUNDING_RESERVE and certificate.delta >= SMALLEST_DELTA
    if not provable and exact_points(q.base) is None:
        remedy = f"It needs a tolerance above {ROUNDING_RESERVE:g} and a delta of at least {SMALLEST_DELTA:g}."
        raise ValueError(argument_error("q", "have a certificate that draws can prove", certificate, remedy))
    with single_thread(), with_gradients():
        statistics = aligned(q.statistics)
        calibrator = Calibrator(q.base, statistics, q.natural_params, progress=progress)
        certain = q.shrinkage <= _certain_shrinkage(q.bounds)
        if not certain and not (q.shrinkage == 1 and calibrator.certify_at(q.offset, q.bounds, certificate)):
            raise ValueError(
                f"No proof was found that |phi| is at most {certificate.tolerance:g} on this machine. Fit the density "
                f"again, or use it at its a-priori epsilon. Show this message only to the table's owner."
            )
        return MollifiedExpFamily(
            q.base,
            statistics,
            q.natural_params,
            q.log_normalizer,
            offset=q.offset,
            shrinkage=q.shrinkage,
            bounds=q.bounds,
            certificate=certificate,
            validate_args=q._validate_args,
        ).expand(q.batch_shape)
