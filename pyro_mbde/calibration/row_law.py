r"""The law of one row of a batch, whatever the others are: the base times a function of its score. Private.

A batch of k rows is accepted by the sum of their scores u. Given one row, the sum of the others has a law that
does not depend on where the row lies. So the row's log-density is that of the base plus

.. math::
    \log \mathrm{E}\,\exp \lambda\,\mathrm{clip}(u + S_{k-1} - s,\, lo,\, hi) - \phi ,

with :math:`S_{k-1}` the sum over k - 1 independent rows of the base, whose law
:class:`~pyro_mbde.calibration.batches.BatchScores` has on a grid. All rows of a batch have this one law.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_mbde.calibration.batches import BatchScores
from pyro_mbde.calibration.scores import ExactScores
from pyro_mbde.density.bounds import Bounds

#: Beyond, exp of a double overflows.
_LARGEST_EXPONENT = 700.0


def sum_law(scores: Tensor, num_rows: int, tolerance: float) -> tuple[Tensor, Tensor]:
    """Returns values of the sum of k independent scores, ascending, and their probabilities.

    Privacy:
        As sensitive as the scores, which are those of a fitted density: not for release.

    Args:
        scores: of rows that count alike, shape ``(n,)``.
        num_rows: k, at least 0.
        tolerance: in nats, that the grid is made for: it moves phi by 1/50 of it.

    Returns:
        Two float64 tensors of one shape.

    Example:
        >>> sum_law(torch.tensor([0.5, -0.5], dtype=torch.float64), 1, 0.01)
        (tensor([-0.5000,  0.5000], dtype=torch.float64), tensor([0.5000, 0.5000], dtype=torch.float64))
    """
    if num_rows == 0:
        return torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    alike = torch.full_like(scores, -math.log(len(scores)))
    if num_rows == 1:
        return scores.sort().values, alike.exp()
    values, log_weights = BatchScores(ExactScores(scores, alike), num_rows, tolerance).weighted()
    return values, log_weights.softmax(0)


def row_log_ratio(
    scores: Tensor, others: tuple[Tensor, Tensor], shift: float, bounds: Bounds, shrinkage: float = 1.0
) -> Tensor:
    r"""Returns :math:`\log \mathrm{E}\,\exp \lambda\,\mathrm{clip}(u + S - s, lo, hi)` of rows by their scores u.

    Privacy:
        As sensitive as the density: not for release.

    Args:
        scores: u, within 300 nats of 0; float64 of shape ``(n,)``.
        others: values of the sum S over the other rows, ascending, and their probabilities (:func:`sum_law`).
        shift: s, in nats.
        bounds: lo and hi.
        shrinkage: lambda, in [0, 1].

    Example:
        >>> alone = sum_law(torch.zeros(1), 0, 1.0)
        >>> row_log_ratio(torch.tensor([-1.0, 0.25, 9.0], dtype=torch.float64), alone, 0.0, Bounds(-0.5, 0.5))
        tensor([-0.5000,  0.2500,  0.5000], dtype=torch.float64)
    """
    values, shares = others
    none = torch.zeros(1, dtype=torch.float64)
    mass = torch.cat([none, shares.cumsum(0)])
    tilted = shares * (shrinkage * (values - shift)).clamp(max=_LARGEST_EXPONENT).exp()
    sums = torch.cat([none, tilted.cumsum(0)])
    first = torch.searchsorted(values, shift + bounds.low - scores)
    last = torch.searchsorted(values, shift + bounds.high - scores)
    between = (shrinkage * scores).clamp(max=_LARGEST_EXPONENT).exp() * (sums[last] - sums[first])
    below, above = mass[first], mass[-1] - mass[last]
    ends = [math.exp(shrinkage * end) for end in bounds]
    return (below * ends[0] + between.clamp(min=0) + above * ends[1]).log()
