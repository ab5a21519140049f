r"""Placing and certifying the score of a batch: the sum :math:`S = \sum_i u(x_i)` over k independent rows. Private.

A row is scored once and used in many batches: the law of S follows from that of u by convolution, and the certificate
rests on sums over random partitions of a block of rows into batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property

import torch
from torch import Tensor

from pyro_mbde.calibration.certificate import LARGEST_BET, ROUNDING_RESERVE, Wealth, posterior_excess
from pyro_mbde.calibration.scores import ExactScores, SampledScores
from pyro_mbde.density.bounds import Bounds, Certificate, clip_score
from pyro_mbde.density.normalizer import LogNormalizer
from pyro_mbde.density.tilt import sum_of_scores

#: Batches that a block of rows is partitioned into, and the number of partitions of each block.
BATCHES_PER_BLOCK, _NUM_PARTITIONS = 128, 32
#: Error of phi that the grid of :class:`BatchScores` may cause, as a share of the tolerance.
_GRID_ERROR = 1 / 50
#: Points of that grid, at most; beyond, the grid is coarser than the error asks for.
_MAX_GRID = 2**21
#: Blocks of held scores that the first variance is guessed from.
_GUESSED_FROM = 128


class BatchScores:
    r"""The law of the sum of k independent scores, on a grid. Private.

    A score is split between its two neighbours on a grid of step h, which keeps its mean; as its variance grows by at
    most h^2/4, phi moves by at most about k h^2/8. The law of the sum is the k-th power of the Fourier transform.

    Args:
        rows: scores of rows.
        num_rows: k.
        tolerance: of the certificate, in nats; the grid moves phi by about 1/50 of it at most.
    """

    def __init__(self, rows: ExactScores | SampledScores, num_rows: int, tolerance: float) -> None:
        scores = rows.scores.reshape(-1, rows.scores.shape[-1])  # one replicate for exact scores
        scores = sum_of_scores(scores.unsqueeze(-1))  # held to the same limits
        self._low, high = float(scores.min()), float(scores.max())
        step = math.sqrt(8 * _GRID_ERROR * tolerance / num_rows)
        self._step = max(step, (high - self._low) * num_rows / _MAX_GRID)
        self._num_rows = num_rows
        self._row_laws = torch.stack([self._row_law(replicate, rows.log_weights, high) for replicate in scores])

    def _row_law(self, scores: Tensor, log_weights: Tensor, high: float) -> Tensor:
        places = (scores - self._low) / self._step
        below = places.floor().long()
        weights = log_weights.exp().expand_as(scores)
        size = int((high - self._low) / self._step) + 2
        law = torch.bincount(below, weights * (1 - (places - below)), minlength=size)
        law += torch.bincount(below + 1, weights * (places - below), minlength=size)
        return law / law.sum()

    @cached_property
    def _laws(self) -> Tensor:
        """Of the sum: for all rows, then for each replicate of them."""
        laws = torch.cat([self._row_laws.mean(0, keepdim=True), self._row_laws])
        size = (laws.shape[1] - 1) * self._num_rows + 1
        length = 2 ** math.ceil(math.log2(size))
        sums = torch.stack([torch.fft.irfft(torch.fft.rfft(law, length) ** self._num_rows, length) for law in laws])
        return sums[:, :size].clamp(min=0)

    @cached_property
    def _sums(self) -> Tensor:
        first = self._low * self._num_rows
        return first + self._step * torch.arange(self._laws.shape[1], dtype=torch.float64)

    def weighted(self) -> tuple[Tensor, Tensor]:
        """Returns the values that the sum takes, and the logarithms of their probabilities."""
        seen = self._laws[0] > 0
        return self._sums[seen], self._laws[0][seen].log()

    def log_normalizer(self, shift: float, bounds: Bounds, shrinkage: float = 1.0) -> LogNormalizer:
        """Returns phi of the shifted, clipped and shrunk sum, with its standard error."""
        factors = (shrinkage * (clip_score(self._sums, shift, bounds) - bounds.high)).exp()  # at most 1
        means = self._laws @ factors
        value = float(means[0].log()) + shrinkage * bounds.high
        replicates = means[1:]
        error = float(replicates.std() / means[0] / math.sqrt(len(replicates))) if len(replicates) > 1 else 0.0
        return LogNormalizer(bounds.clamp(value), error)


class BatchCertificate:
    r"""The certificate of the log-normaliser of a batch.

    Let a block of rows be partitioned at random, several times, into batches, and let :math:`Y_{pj}` be :math:`e^f` of
    the j-th batch of partition p. Within a partition the batches are independent, so against
    :math:`\phi \ge \eta` every product :math:`\prod_j (1 + \lambda (e^\eta - Y_{pj}))` has mean at most 1, and so has
    its average over the partitions. Against :math:`\phi \le -\eta` half of the capital is bet on such products, half on
    the block's average of all Y, which serves better where Y scatters widely. Blocks are independent: the capital is a
    supermartingale, as in :func:`~pyro_mbde.calibration.certificate.certify`. Averages over partitions keep little of
    the variance that is not due to single rows. Proof: docs/proofs.md, *The certificate of a batch*.

    Args:
        num_rows: k, rows of a batch.
        shift: s.
        bounds: of the tilt.
        certificate: eta and delta; of eta :data:`~pyro_mbde.calibration.certificate.ROUNDING_RESERVE` is kept back.
    """

    def __init__(self, num_rows: int, shift: float, bounds: Bounds, certificate: Certificate) -> None:
        self.block_rows = BATCHES_PER_BLOCK * num_rows
        self._num_rows, self._shift, self._bounds = num_rows, shift, bounds
        self._tolerance = certificate.tolerance - ROUNDING_RESERVE
        self._target = -math.log(certificate.delta)
        generator = torch.Generator().manual_seed(0)  # any partitions serve that are chosen without the rows
        orders = [torch.randperm(self.block_rows, generator=generator) for _ in range(_NUM_PARTITIONS)]
        self._orders = torch.stack(orders)
        self._guess: tuple[Tensor, float] | None = None

    def _samples(self, scores: Tensor) -> Tensor:
        """Y for a block of row scores, shape ``(num_partitions, batches_per_block)``."""
        sums = sum_of_scores(scores[self._orders].reshape(_NUM_PARTITIONS, BATCHES_PER_BLOCK, self._num_rows))
        return clip_score(sums, self._shift, self._bounds).exp()

    def expected_blocks(self, held: Tensor) -> float:
        """Returns about how many blocks a proof takes, from scores that are held; for planning only."""
        variance, gap = self._variance(held), math.expm1(self._tolerance)
        by_scatter = 2 * variance / gap**2
        by_range = math.exp(self._bounds.high) / (LARGEST_BET * gap)
        return self._target * max(by_scatter, by_range) / BATCHES_PER_BLOCK

    def _variance(self, held: Tensor) -> float:
        """Variance of a block's average, times the number of batches in it."""
        if self._guess is not None and self._guess[0] is held:  # that the blocks were planned on
            return self._guess[1]
        generator = torch.Generator().manual_seed(0)
        places = torch.randint(len(held), (_GUESSED_FROM, self.block_rows), generator=generator)
        means = torch.stack([self._samples(held[block]).mean() for block in places])
        self._guess = held, float(means.var()) * BATCHES_PER_BLOCK
        return self._guess[1]

    def holds(self, blocks: Iterable[Tensor], held: Tensor) -> bool:
        r"""Returns whether :math:`|\phi| \le \eta` is proved; says so wrongly with probability at most delta.

        Args:
            blocks: scores of independent rows, in blocks of ``block_rows``, which neither the shift nor ``held``
                depends on.
            held: scores of other rows, shape ``(n,)``, for a first guess at the variance.
        """
        upper, lower = math.exp(self._tolerance), math.exp(-self._tolerance)
        smallest, largest = math.exp(self._bounds.low), math.exp(self._bounds.high)
        variance = first_guess = self._variance(held)
        above, below = Wealth(largest - upper), Wealth(lower - smallest)
        below_average = Wealth((lower - smallest) * BATCHES_PER_BLOCK)
        most_below = 0.0
        count, total, total_square = 0, 0.0, 0.0
        for block in blocks:
            samples = self._samples(block)
            mean = float(samples.mean())
            excess = posterior_excess(total, count * BATCHES_PER_BLOCK, variance, self._tolerance)
            gap = 1 + excess - lower
            above.add(_log_mean_product(above.bet(upper - 1 - excess, variance) * (upper - samples)))
            below.add(_log_mean_product(below.bet(gap, variance) * (samples - lower)))
            bet = below_average.bet(gap, variance)
            below_average.add(math.log1p(bet * BATCHES_PER_BLOCK * (mean - lower)))
            most_below = max(most_below, _log_mean(below.log_wealth, below_average.log_wealth))
            if min(above.most, most_below) >= self._target:
                return True
            count += 1
            total += (mean - 1) * BATCHES_PER_BLOCK
            total_square += (mean - 1) ** 2 * BATCHES_PER_BLOCK
            variance = (_GUESSED_FROM * first_guess + total_square) / (_GUESSED_FROM + count)
        return False


def _log_mean_product(gains: Tensor) -> float:
    """Logarithm of the average over partitions, the rows, of the products of 1 + gains."""
    products = torch.log1p(gains).sum(1)
    return float(products.logsumexp(0)) - math.log(len(products))


def _log_mean(first: float, second: float) -> float:
    """Logarithm of the average of two numbers that are given as logarithms."""
    larger = max(first, second)
    return larger + math.log((math.exp(first - larger) + math.exp(second - larger)) / 2)
