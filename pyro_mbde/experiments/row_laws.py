"""The law of one row of a batch, without drawing any, and how far laws of rows are from one another."""

from __future__ import annotations

import functools
import math
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_mbde.calibration.projection import project, project_a_priori
from pyro_mbde.calibration.row_law import row_log_ratio, sum_law
from pyro_mbde.density.bounds import Bounds, clip_score

Array = NDArray[np.float64]

#: Tolerance that the grid of a sum is made for, as a share of the width: it moves phi by 1/50 of it.
_GRID_TOLERANCE = 0.005


@functools.lru_cache(maxsize=8)  # tensors are told apart by identity: those that are given must not change
def _sum_law(scores: Tensor, num_rows: int, width: float) -> tuple[Tensor, Tensor]:
    """The law of a sum of scores; ``width`` is a power of 2, so that laws are made once."""
    return sum_law(scores, num_rows, _GRID_TOLERANCE * width)


class RowLaw:
    """What one row of a placed batch is drawn from, and what the batch gains.

    No certificate is asked for: a certified density has the same shift, up to Monte Carlo error.

    Args:
        base_scores: scores u of draws of the base, within 300 nats of 0; float64 of shape ``(n,)``.
        num_rows: k, rows of a batch; 1 for single rows.
        bounds: public interval of the tilt.
        calibrated: whether phi is held at 0; else the shift is that of the a-priori form.
    """

    def __init__(self, base_scores: Tensor, num_rows: int, bounds: Bounds, *, calibrated: bool = True) -> None:
        self.num_rows, self.bounds = num_rows, bounds
        self._width = 2.0 ** math.floor(math.log2(bounds.width))
        values, weights = _sum_law(base_scores, num_rows, self._width)
        place = project if calibrated else project_a_priori
        self.shift = place(values, weights.log(), bounds)
        self.phi = math.log(float(weights @ clip_score(values, self.shift, bounds).exp()))
        self._others = _sum_law(base_scores, num_rows - 1, self._width)

    def log_ratio(self, scores: Tensor) -> Tensor:
        """Returns log g of rows by their scores: the log-density of a released row, less that of the base."""
        return row_log_ratio(scores, self._others, self.shift, self.bounds) - self.phi

    def gain(self, target_scores: Tensor) -> float:
        r"""Returns the nats that a row gains: :math:`(\mathrm{KL}(P^k, Q_0^k) - \mathrm{KL}(P^k, Q))/k`.

        Args:
            target_scores: scores u of rows of the target.
        """
        values, weights = _sum_law(target_scores, self.num_rows, self._width)
        return (float(weights @ clip_score(values, self.shift, self.bounds)) - self.phi) / self.num_rows

    def accepts(self, scores: Tensor) -> Tensor:
        """Returns which batches an exact draw accepts, by the scores of their rows, shape ``(..., k)``."""
        tilt = clip_score(scores.sum(-1), self.shift, self.bounds)
        return torch.rand(tilt.shape, dtype=torch.float64) < (tilt - self.bounds.high).exp()


def total_variation_to(target_log_ratio: Tensor, row_log_ratio: Tensor) -> float:
    r"""Returns the total variation of a law of rows to a known target: the mean of :math:`(1 - q/p)_+` over P.

    Args:
        target_log_ratio: log p/q0 at draws of the target P.
        row_log_ratio: log q/q0 at the same points.

    Example:
        >>> total_variation_to(torch.tensor([0.0, 0.0]), torch.tensor([0.5, -math.log(2)]))
        0.25
    """
    return float(-torch.expm1((row_log_ratio - target_log_ratio).clamp(max=0)).mean())


def histogram_distance(of_target: Tensor, of_rows: Tensor, num_cells: int = 40) -> float:
    """Returns the total variation of the histograms of two samples, on cells of equal mass of both together.

    Of log p/q0 of released rows and of the target: where rows are accepted by that score nothing is lost, as the
    density ratio of the two laws is a function of it.

    Example:
        >>> low, high = torch.linspace(0, 1, 1000), torch.linspace(0.5, 1.5, 1000)
        >>> round(histogram_distance(low, high), 2)
        0.5
    """
    levels = torch.arange(1, num_cells, dtype=torch.float64) / num_cells
    both = torch.cat([of_target.double(), of_rows.double()]).sort().values
    edges = both[(levels * len(both)).long()]
    shares = [
        torch.bincount(torch.searchsorted(edges, sample.double()), minlength=len(edges) + 1) / len(sample)
        for sample in (of_target, of_rows)
    ]
    return 0.5 * float((shares[0] - shares[1]).abs().sum())


def marginal_distances(
    table: Array, rows: Array, weights: Array | None = None, levels: tuple[int, int] = (10, 4)
) -> tuple[float, float]:
    """Returns the mean total variation over single columns, and over pairs of columns, of a table and of rows.

    As the owner's report compares them: histograms between quantiles of both.

    Args:
        table: shape ``(n, d)``.
        rows: shape ``(m, d)``.
        weights: of the rows, shape ``(m,)``; alike by default.
        levels: cells that the quantiles of one sample make, of a single column and of a column of a pair.

    Example:
        >>> low, high = np.linspace(0, 1, 1000)[:, None], np.linspace(0.5, 1.5, 1000)[:, None]
        >>> [round(distance, 1) for distance in marginal_distances(low, high)]
        [0.5, nan]
    """
    means = []
    for size, num_cells in enumerate(levels, 1):
        places = np.arange(1, num_cells) / num_cells
        edges = [
            np.unique(np.concatenate([np.quantile(sample[:, column], places) for sample in (table, rows)]))
            for column in range(table.shape[1])
        ]
        distances = []
        for columns in combinations(range(table.shape[1]), size):
            shape = [len(edges[column]) + 1 for column in columns]
            shares = [
                np.bincount(
                    np.ravel_multi_index([np.searchsorted(edges[at], sample[:, at]) for at in columns], shape),
                    weights=of_sample,
                    minlength=math.prod(shape),
                )
                for sample, of_sample in ((table, None), (rows, weights))
            ]
            distances.append(0.5 * float(np.abs(shares[0] / shares[0].sum() - shares[1] / shares[1].sum()).sum()))
        means.append(float(np.mean(distances)) if distances else math.nan)
    return means[0], means[1]
