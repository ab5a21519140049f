"""Placing a score in public bounds and certifying where it lies."""

from __future__ import annotations

import math
from collections.abc import Iterator
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

#: Quasi-random draws of the base that the shift is found on: from the first number up to the last, until the
#: log-normaliser is known to this share of the tolerance.
_FIRST_QUASI_DRAWS, _MAX_QUASI_DRAWS, _CLOSE_ENOUGH = 2**17, 2**22, 1 / 6
#: The quasi-random draws are mistrusted where (phi_quasi - phi_fresh)^2 > 3^2 (se_quasi^2 + se_fresh^2): were both
#: unbiased and normal, chance would put them so far apart in 0.3 per cent of fits. Only the gain depends on it, not the
#: proof.
_TOO_FAR_APART = 3
#: Fresh draws in a block of the certificate, and the most that a first and a second attempt take: twice what is planned
#: for the tilt that is hardest to certify, an average that is exceeded half of the time but seldom twofold; and more.
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

    On a finite base the log-normaliser is a sum, exact up to rounding: there the tolerance is a millionth of epsilon
    beside what is kept back for that (:data:`~pyro_mbde.calibration.certificate.ROUNDING_RESERVE`), and delta 0.
    Elsewhere this is :func:`~pyro_mbde.calibration.certificate.plan_certificate`. Without a delta there is no
    certificate and the width is epsilon/2, for the a-priori guarantee; nor is there where the certified interval would
    be narrower than that, at a very large epsilon, or where a side of it is no wider than rounding.

    Args:
        base: public base distribution.
        epsilon: privacy parameter of one draw, in nats; in (0, 700).
        delta: probability that a certificate is wrong, in [0, 1).
        skew: where the interval lies, in (0, 1).

    Raises:
        TypeError: an argument is not a number.
        ValueError: an argument is out of its range.
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
        shrinkage: lambda, 1 where the certificate was reached.
        log_normalizer: phi of the tilt.
    """

    shift: float
    shrinkage: float
    log_normalizer: LogNormalizer


class BaseScores:
    r"""A score u of points, on draws of the base: where to shift it, and the certificate of the result.

    The score is the sum of a density's weighted statistics: a learned log density ratio, or that of a boosted
    ensemble. The shift is found on one set of draws, and the certificate uses others, from the operating system's
    randomness: the shift does not depend on them, as the proof asks. The first set is kept, since one fit serves many
    epsilons. The others are new for every attempt:
    so a certificate is as good as it says given all that came before, also where an epsilon was chosen by rows that
    were drawn from an earlier density of this score.

    On a finite base both are sums over its points, exact.

    Privacy:
        Everything here but the base is private.

    Args:
        base: public base distribution, as :func:`~pyro_mbde.density.base.prepare` returns it.
        statistics: c of the density; no longer changed. Networks of this library get layers of aligned sizes
            (:meth:`~pyro_mbde.BoundedClassifiers.aligned`).
        natural_params: theta, shape ``(T,)``. The score is :math:`u = \langle \theta, c \rangle`.
        progress: whether to show a progress bar when placing takes more than a second.

    Raises:
        ValueError: the score of a row depends on its place among other rows, whatever the weights: no certificate can
            be proved of it.
    """

    def __init__(
        self, base: Distribution | PreparedBase, statistics: nn.Module, natural_params: Tensor, *, progress: bool = True
    ) -> None:
        self._prepared, self._progress = PreparedBase.of(base), progress
        self._base, self._dtype = self._prepared.distribution, self._prepared.dtype
        self._tilt = Tilt(aligned(statistics), natural_params)
        self._check_place()
        self._source = UnfilledSource(self._prepared)
        self._bar = tqdm(disable=True)
        # Quasi-random draws are made when they are needed, but always the same for a seeded fit.
        self._seed = int(torch.randint(2**31, ()))
        finite = self._prepared.finite
        self._is_exact = finite is not None
        # Of the quasi-random draws, within a replicate.
        self._log_weights = torch.zeros(1, dtype=torch.float64)
        self._num_cell_dims, self._cells_per_dim = self._plan_cells()
        self._num_cells = self._cells_per_dim**self._num_cell_dims
        if finite is None:
            self._quasi = torch.empty(NUM_REPLICATES, 0, dtype=torch.float64)
            self._quasi_cells = torch.empty(NUM_REPLICATES, 0, dtype=torch.int32)
            self._add_quasi_draws()
        else:
            self._quasi, self._log_weights = self._evaluate(finite.points).unsqueeze(0), finite.log_weights

    def _check_place(self) -> None:
        """Refuses statistics whose sums depend on the place of a row. Public: no weight that was fitted enters."""
        rows = as_features(self._prepared.draws[:CHUNK_ROWS], self._base, self._dtype)
        if depends_on_place(self._tilt.with_public_weights().score, rows):
            remedy = f"Make the sizes of its layers multiples of {ALIGNED_SIZE}, or ask for delta=0."
            found = type(self._tilt.statistics).__name__
            raise ValueError(argument_error("statistics", "sum a row in the same order at every place", found, remedy))

    def _plan_cells(self) -> tuple[int, int]:
        """How many dimensions of the unit cube are cut, and into how many parts each.

        None, unless quasi-random and fresh draws both tell the points that they were inverted from: the control variate
        must have the same cells on both.
        """
        with seeded(0):
            _, quasi = quasi_draws_with_points(self._base, 2)
            _, fresh = self._source.propose_with_points(2)
        if quasi is None or fresh is None:
            return 0, 1
        num_dims = min(quasi.shape[1], int(math.log2(_MAX_CELLS)))
        # A little above the root, lest rounding takes 128 for 127.
        return num_dims, int(_MAX_CELLS ** (1 / num_dims) + 1e-9)

    def calibrate(self, bounds: Bounds, certificate: Certificate | None) -> MollifiedExpFamily:
        """Returns the density whose tilt is the score, placed in public bounds by :meth:`place`.

        Args:
            bounds: as for :meth:`place`.
            certificate: as for :meth:`place`.
        """
        placement = self.place(bounds, certificate)
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

    def place(self, bounds: Bounds, certificate: Certificate | None) -> Placement:
        r"""Returns the projection on public bounds if it can be certified, else a tilt that needs no certificate.

        The log-normaliser of the projection is 0 up to Monte Carlo error; draws are added until that error is small
        compared with the tolerance. Should the certificate fail, the draws it was tried on help to find
        a better shift, which is tried on new ones; each attempt has half of delta. Should that fail too, the tilt is
        shrunk by
        :math:`\lambda = \min(-lo, hi)/R`: then :math:`f` and :math:`\phi` lie in :math:`[\lambda lo, \lambda hi]`, so
        that :math:`|\log q/q_0| \le \lambda R = \min(-lo, hi)`, which is inside [lo, hi] for certain.

        Args:
            bounds: public interval [lo, hi] of the tilt, with ``low < 0 < high``.
            certificate: what is to be proved; ``None`` for the a-priori guarantee, with the shift that gains most then
                (:func:`~pyro_mbde.calibration.projection.project_a_priori`).
        """
        if certificate is None:
            shift = project_a_priori(self._quasi.flatten(), self._weights(), bounds)
            return Placement(shift, 1.0, self._log_normalizer(shift, bounds))
        with tqdm(desc="calibration", unit="draw", unit_scale=True, delay=1, disable=not self._progress) as self._bar:
            try:
                return self._place_certified(bounds, certificate)
            finally:
                self._bar = tqdm(disable=True)  # one that shows cannot be pickled

    def certify_at(self, shift: float, bounds: Bounds, certificate: Certificate) -> bool:
        """Returns whether the log-normaliser is proved to be near 0 at a given shift, in one attempt."""
        return self._certify(shift, bounds, certificate, self._new_blocks(_SECOND))

    def _place_certified(self, bounds: Bounds, certificate: Certificate) -> Placement:
        # delta is shared out between two attempts: either may be wrong.
        claim = certificate if self._is_exact else replace(certificate, delta=certificate.delta / 2)
        shift = self._shift(bounds, certificate)
        taken: list[tuple[Tensor, Tensor]] = []
        if self._certify(shift, bounds, claim, self._first_blocks(taken)):
            return Placement(shift, 1.0, self._log_normalizer(shift, bounds))
        if not self._is_exact:
            # The draws of the first attempt help to find a better shift, for this call alone: what is kept must not
            # depend on how an attempt came out.
            kept = self._quasi, self._quasi_cells, self._log_weights
            try:
                self._pool(taken, shift, bounds)
                shift = project(self._quasi.flatten(), self._weights(), bounds)
                if self._certify(shift, bounds, claim, self._new_blocks(_SECOND)):
                    return Placement(shift, 1.0, self._log_normalizer(shift, bounds))
            finally:
                self._quasi, self._quasi_cells, self._log_weights = kept
        shrinkage = _certain_shrinkage(bounds)
        return Placement(shift, shrinkage, self._log_normalizer(shift, bounds, shrinkage))

    def _pool(self, blocks: list[tuple[Tensor, Tensor]], shift: float, bounds: Bounds) -> None:
        """Adds the fresh draws of the first attempt to the quasi-random ones, weighted by how well each set knows phi.

        Inverse variances: quasi-random draws know phi better than many times as many fresh ones, which would only blur
        the shift. An error that the scatter of the quasi-random draws does not show, as of a region that they
        miss, shows where the two sets are further apart than chance puts them: the square of that is then, on average,
        the sum of both variances (DerSimonian, Laird. Meta-analysis in clinical trials. 1986).
        """
        fresh, fresh_cells = (torch.cat(parts).reshape(NUM_REPLICATES, -1) for parts in zip(*blocks, strict=True))
        by_quasi = self._log_normalizer(shift, bounds)
        by_fresh = replicated_log_normalizer(clip_score(fresh, shift, bounds), bounds)
        quasi_variance, fresh_variance = by_quasi.standard_error**2, by_fresh.standard_error**2
        squared_distance = (by_quasi.value - by_fresh.value) ** 2
        if squared_distance > _TOO_FAR_APART**2 * (quasi_variance + fresh_variance):
            quasi_variance = squared_distance - fresh_variance
        num_quasi, num_fresh = self._quasi.shape[1], fresh.shape[1]
        total = quasi_variance + fresh_variance
        quasi_share = fresh_variance / total if total else num_quasi / (num_quasi + num_fresh)
        self._log_weights = torch.cat(
            [
                torch.full((size,), share * (num_quasi + num_fresh) / size, dtype=torch.float64)
                for size, share in ((num_quasi, quasi_share), (num_fresh, 1 - quasi_share))
            ]
        ).log()
        self._quasi = torch.cat([self._quasi, fresh], 1)
        self._quasi_cells = torch.cat([self._quasi_cells, fresh_cells], 1)

    def _shift(self, bounds: Bounds, certificate: Certificate) -> float:
        """The shift of the projection, on as many quasi-random draws as the tolerance asks for."""
        while True:
            shift = project(self._quasi.flatten(), self._weights(), bounds)
            error = self._log_normalizer(shift, bounds).standard_error
            if error <= _CLOSE_ENOUGH * certificate.tolerance or self._quasi.numel() >= _MAX_QUASI_DRAWS:
                return shift
            self._add_quasi_draws()

    def _weights(self) -> Tensor:
        return self._log_weights.expand_as(self._quasi).flatten()

    def _log_normalizer(self, shift: float, bounds: Bounds, shrinkage: float = 1.0) -> LogNormalizer:
        tilts = shrinkage * clip_score(self._quasi, shift, bounds)
        if not self._is_exact:
            # The weights are 1 on average over a replicate.
            return replicated_log_normalizer(tilts + self._log_weights, bounds)
        value = torch.logsumexp(tilts.squeeze(0) + self._log_weights, 0)
        return LogNormalizer(bounds.clamp(float(value)))

    def _add_quasi_draws(self) -> None:
        """Doubles the quasi-random draws of each replicate, from a first few thousand."""
        held = self._quasi.shape[1]
        size = held or _FIRST_QUASI_DRAWS // NUM_REPLICATES
        with seeded(self._seed + held):
            draws, points = zip(
                *(quasi_draws_with_points(self._base, size) for _ in range(NUM_REPLICATES)), strict=True
            )
        scores = self._evaluate(torch.cat(draws))
        cells = torch.cat([self._cells(replicate, size) for replicate in points])
        self._quasi = torch.cat([self._quasi, scores.reshape(NUM_REPLICATES, size)], 1)
        self._quasi_cells = torch.cat([self._quasi_cells, cells.reshape(NUM_REPLICATES, size)], 1)

    def _cells(self, points: Tensor | None, num_draws: int) -> Tensor:
        """Indices of the equal cells of the unit cube that points are in; 0 where there are no cells."""
        if points is None or self._num_cells == 1:
            return torch.zeros(num_draws, dtype=torch.int32)
        per_dim, num_dims = self._cells_per_dim, self._num_cell_dims
        indices = (points[:, :num_dims] * per_dim).long().clamp(max=per_dim - 1)
        return (indices * per_dim ** torch.arange(num_dims)).sum(1).int()

    def _certify(
        self, shift: float, bounds: Bounds, certificate: Certificate, blocks: Iterator[tuple[Tensor, Tensor]]
    ) -> bool:
        r"""Whether :math:`|\phi|` is proved to be at most the tolerance: exactly, or on fresh draws.

        What is bet on is :math:`Y = e^{f(x)} - g(k) + \bar g`, with k the cell of the unit cube that x was inverted
        from, g the average of :math:`e^f` over the quasi-random draws in a cell, and :math:`\bar g` the average of g
        over all cells. Each cell is as likely as another, so :math:`E\,g(k) = \bar g` and :math:`E\,Y = e^\phi`
        whatever g is; the quasi-random draws, which g is computed from, are independent of the fresh ones. Where g is
        close to
        :math:`e^f` the scatter of Y is a small part of that of :math:`e^f` (control variate).
        """
        if self._is_exact:
            return abs(self._log_normalizer(shift, bounds).value) <= certificate.tolerance - ROUNDING_RESERVE
        tilted = clip_score(self._quasi, shift, bounds).exp().flatten()
        cells = self._quasi_cells.flatten()
        counts = torch.bincount(cells, minlength=self._num_cells)
        control = torch.bincount(cells, tilted, minlength=self._num_cells) / counts.clamp(min=1)
        control[counts == 0] = 1.0
        # Where only a rare large value could prove it wrong, the control variate does harm: it widens the limits.
        plans = [
            SampleBounds(math.exp(bounds.low) - largest + mean, math.exp(bounds.high) - smallest + mean, variance)
            for smallest, largest, mean, variance in (
                (
                    float(control.min()),
                    float(control.max()),
                    float(control.mean()),
                    float((tilted - control[cells]).var()),
                ),
                (1.0, 1.0, 1.0, float(tilted.var())),
            )
        ]
        use_control = expected_draws(plans[0], certificate) <= expected_draws(plans[1], certificate)
        if not use_control:
            control = torch.ones_like(control)
        copies = (clip_score(scores, shift, bounds).exp() - control[cells] + control.mean() for scores, cells in blocks)
        return certify(copies, plans[0 if use_control else 1], certificate)

    def _first_blocks(self, taken: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        """Blocks of a first attempt, noted in ``taken``."""
        for block in self._new_blocks(_FIRST):
            taken.append(block)
            yield block

    def _new_blocks(self, num_draws: int) -> Iterator[tuple[Tensor, Tensor]]:
        return (self._new_block() for _ in range(num_draws // _BLOCK_SIZE))

    def _new_block(self) -> tuple[Tensor, Tensor]:
        """Scores and cells of fresh draws of the base."""
        with system_generator():
            draws, points = self._source.propose_with_points(_BLOCK_SIZE)
        return self._evaluate(draws), self._cells(points, _BLOCK_SIZE)

    def _score(self, values: Tensor) -> Tensor:
        return self._tilt.score(as_features(values, self._base, self._dtype))

    def _evaluate(self, values: Tensor) -> Tensor:
        """Scores, to the bits that rows will be accepted by."""
        scores = []
        for part in torch.split(values, _NOTICED):
            scores.append(score_rows(self._score, part))
            self._bar.update(len(part))
        return torch.cat(scores)


def _certain_shrinkage(bounds: Bounds) -> float:
    """The largest shrinkage with which a tilt is in the set [lo, hi] whatever its log-normaliser."""
    return min(-bounds.low, bounds.high) / bounds.width


def recertify(q: MollifiedExpFamily, *, progress: bool = True) -> MollifiedExpFamily:
    r"""Proves the certificate of a density again, for the function that draws are accepted by here.

    For a density that was converted to another dtype or device, or loaded where PyTorch or the processor is another
    one. Offset, bounds, tolerance and delta stay; the proof takes fresh draws of the base.

    Privacy:
        The result is another density for a ledger, with a delta of its own: rows drawn before rest on the old
        certificate, rows drawn after on the new one. Whether a proof is found depends on the table, so that an error is
        for its owner alone; trying again after one would add another delta.

    Args:
        q: a density with a certificate.
        progress: whether to show a progress bar when it takes more than a second.

    Returns:
        The density with the calibrated guarantee and a fingerprint of its own.

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
        scores = BaseScores(q.base, statistics, q.natural_params, progress=progress)
        certain = q.shrinkage <= _certain_shrinkage(q.bounds)
        if not certain and not (q.shrinkage == 1 and scores.certify_at(q.offset, q.bounds, certificate)):
            raise ValueError(
                f"No proof was found that |phi| is at most {certificate.tolerance:g} here. Fit the density again, or "
                f"use it at its a-priori epsilon. (For its owner alone.)"
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
