"""Samplers of the newest literature on a histogram: the minimax clip, and the mixture with the uniform density."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_mbde._checks import argument_error, check_count, check_epsilon, check_number
from pyro_mbde.calibration.projection import project, rank_last
from pyro_mbde.density.bounds import Bounds, clip_score
from pyro_mbde.experiments.baselines.box import BoxDensity, box_rows, check_box
from pyro_mbde.experiments.baselines.common import Trainer, describe_epsilon
from pyro_mbde.experiments.baselines.tree import bins_of
from pyro_mbde.privacy.guarantee import Guarantee
from pyro_mbde.privacy.placement import placed_total_variation

#: Kept back of epsilon, in nats, for the bisection that normalises the clip; and of a small epsilon, as a share of it.
_RESERVE = 1e-9, 1e-3
#: Columns of a histogram: beyond, most cells are empty.
_MAX_DIMS = 2


class HistogramDensity(BoxDensity):
    """A density that is constant on the cells of a grid over a box. Draws and log-densities are exact.

    Args:
        low: lower edges of the box, shape () or (d,).
        high: upper edges.
        shares: probabilities of the cells, the first column's bins along the first dimension; float64 of shape
            ``(k,) * d``.
        guarantee: of one draw.
    """

    def __init__(self, low: Tensor, high: Tensor, shares: Tensor, guarantee: Guarantee) -> None:
        self.shares = shares
        super().__init__(low, high, guarantee)

    @property
    def num_bins(self) -> int:
        """Bins k of each column."""
        return len(self.shares)

    def _log_density(self, rows: Tensor) -> Tensor:
        bins = bins_of(rows, self.low, self.high, self.num_bins)
        log_cells = self.shares[bins.unbind(-1)].log() + math.log(self.shares.numel())
        # The gradient is 0 wherever there is one: said, so that what differentiates densities takes this one too.
        return log_cells - self._log_volume + (0.0 * rows).sum(1)

    def _draw(self, num_draws: int) -> Tensor:
        cells = torch.multinomial(self.shares.flatten(), num_draws, replacement=True)
        bins = torch.stack(torch.unravel_index(cells, self.shares.shape), -1)
        return self._from_unit((bins + torch.rand(bins.shape, dtype=torch.float64)) / self.num_bins)

    def __repr__(self) -> str:
        """Shows the guarantee and public numbers."""
        epsilon = describe_epsilon(self.guarantee)
        return f"HistogramDensity({epsilon}, num_bins={self.num_bins}, event_shape={tuple(self.event_shape)})"


class _HistogramSampler(Trainer[HistogramDensity]):
    """What the samplers share: the histogram of the table on a public grid."""

    def __init__(
        self, low: float | Tensor, high: float | Tensor, epsilon: float, num_bins: int, seed: int | None, progress: bool
    ) -> None:
        super().__init__(seed=seed, progress=progress)
        self.low, self.high = check_box(low, high)
        num_dims = max(self.low.numel(), 1)
        if num_dims > _MAX_DIMS:
            raise ValueError(argument_error("low", f"have at most {_MAX_DIMS} columns", num_dims, "Cells grow as k^d."))
        self.epsilon = check_epsilon(epsilon)
        self.num_bins = check_count("num_bins", num_bins, minimum=2)
        self.num_cells = self.num_bins**num_dims

    def _rows(self, data: Any) -> Tensor:
        return box_rows(data, self.low, self.high)

    @torch.no_grad()
    def _fit(self, rows: Tensor, on_step: Callable[[], object]) -> HistogramDensity:
        bins = bins_of(rows.double().reshape(len(rows), -1), self.low, self.high, self.num_bins)
        shape = (self.num_bins,) * bins.shape[1]
        counts = torch.zeros(shape, dtype=torch.float64)
        counts.index_put_(bins.unbind(-1), torch.ones(len(bins), dtype=torch.float64), accumulate=True)
        shares, guarantee = self._sampler((counts / len(bins)).flatten())
        return HistogramDensity(self.low, self.high, shares.reshape(shape), guarantee)

    @abstractmethod
    def _sampler(self, shares: Tensor) -> tuple[Tensor, Guarantee]:
        """The law of a draw from that of the table, shape ``(num_cells,)``; and what it guarantees for any table."""


class MinimaxSampler(_HistogramSampler):
    r"""The minimax-optimal private sampler of a histogram: its shares over those of the uniform density, clipped.

    With p the shares of the table on m cells, a draw comes from

    .. math::
        q(c) = \frac{1}{m} \mathrm{clip}\Bigl(\frac{m\,p(c)}{r},\, b,\, b e^{\epsilon}\Bigr), \qquad
        b = \frac{1}{1 + \alpha (e^{\epsilon} - 1)} ,

    with r such that this sums to 1. For :math:`\alpha = 1/m`, the default, it is optimal in the worst case among all
    histograms, for every f-divergence; otherwise among those with :math:`p \le 1/(\alpha m)`. It is the KL projection
    at the skew of a filled share alpha, over the uniform base, of single rows.

    Privacy:
        One draw is epsilon-integrally private for any tables, whatever alpha is. k draws cost k epsilon, or less at a
        delta, by :func:`~pyro_mbde.compose`.

    Args:
        low: lower edge of the box, a number or a tensor of shape (), (1,) or (2,).
        high: upper edge, likewise.
        epsilon: privacy parameter of one draw, in nats; in (0, inf], ``inf`` for the histogram itself.
        filled_share: alpha, share of the box that the table is believed to fill, in (0, 1); ``None`` for one cell.
        num_bins: of a column, at least 2.
        seed: for a reproducible fit; ``None`` draws from torch's global generator.
        progress: whether to show a progress bar.

    References:
        Park, Asoodeh, Lee. Exactly Minimax-Optimal Locally Differentially Private Sampling. 2024.

    Example:
        >>> rows = torch.rand(1000, generator=torch.Generator().manual_seed(0)) / 2
        >>> density = MinimaxSampler(0.0, 1.0, epsilon=1.0, num_bins=4, seed=0).fit(rows)
        >>> density.shares.numpy().round(3), density.guarantee.epsilon
        (array([0.32 , 0.33 , 0.175, 0.175]), 1.0)
    """

    def __init__(
        self,
        low: float | Tensor,
        high: float | Tensor,
        epsilon: float,
        *,
        filled_share: float | None = None,
        num_bins: int = 32,
        seed: int | None = None,
        progress: bool = True,
    ) -> None:
        super().__init__(low, high, epsilon, num_bins, seed, progress)
        if filled_share is not None:
            filled_share = check_number("filled_share", filled_share, "be in (0, 1)", lambda share: 0 < share < 1)
        self.filled_share = filled_share

    def _sampler(self, shares: Tensor) -> tuple[Tensor, Guarantee]:
        if self.epsilon == math.inf:
            return shares, Guarantee(math.inf)
        alpha = 1 / self.num_cells if self.filled_share is None else self.filled_share
        width = self.epsilon - min(_RESERVE[0], _RESERVE[1] * self.epsilon)
        low = -float(torch.logaddexp(*torch.tensor([math.log1p(-alpha), math.log(alpha) + width], dtype=torch.float64)))
        bounds = Bounds(low, width + low)
        log_ratio = rank_last((shares * self.num_cells).log(), bounds)
        shift = project(log_ratio, torch.zeros_like(shares), bounds)
        clipped = clip_score(log_ratio, shift, bounds).exp()
        distance = placed_total_variation(self.epsilon, -low / self.epsilon)
        return clipped / clipped.sum(), Guarantee(self.epsilon, total_variation=distance)

    def __repr__(self) -> str:
        """Shows the settings, which are public."""
        return (
            f"MinimaxSampler(epsilon={self.epsilon:.6g}, filled_share={self.filled_share!r}, num_bins={self.num_bins})"
        )


class LinearMixture(_HistogramSampler):
    r"""A mixture of the table's histogram with the uniform density: :math:`q = \lambda p + (1 - \lambda)/m`.

    For any two histograms on m cells, :math:`\log q/q' \le \log(1 + m \lambda / (1 - \lambda))`. So

    .. math::
        \lambda = \frac{e^{\epsilon} - 1}{e^{\epsilon} - 1 + m}

    by default. If all histograms are believed to have :math:`m p \in [1/\gamma, \gamma]`, then the larger
    :math:`\lambda = (e^{\epsilon} - 1) / ((1 - 1/\gamma)(\gamma + e^{\epsilon}))` is epsilon-private among *these*. A
    table that is not one of them is protected by less, which the guarantee says.

    Privacy:
        One draw carries ``guarantee``, which holds for any tables. k draws cost k times its epsilon, or less at a
        delta, by :func:`~pyro_mbde.compose`.

    Args:
        low: lower edge of the box, a number or a tensor of shape (), (1,) or (2,).
        high: upper edge, likewise.
        epsilon: privacy parameter of one draw among the histograms that are believed possible, in nats; in (0, inf].
        largest_ratio: gamma, above 1; ``None`` for any histogram.
        num_bins: of a column, at least 2.
        seed: for a reproducible fit; ``None`` draws from torch's global generator.
        progress: whether to show a progress bar.

    References:
        Ghoukasian, Lee, Asoodeh. Locally Optimal Private Sampling: Beyond the Global Minimax. 2025.

    Example:
        >>> rows = torch.rand(1000, generator=torch.Generator().manual_seed(0)) / 2
        >>> believed = LinearMixture(0.0, 1.0, epsilon=1.0, largest_ratio=2.5, num_bins=4, seed=0).fit(rows)
        >>> LinearMixture(0.0, 1.0, epsilon=1.0, num_bins=4, seed=0).fit(rows).guarantee.epsilon
        1.0
        >>> round(believed.guarantee.epsilon, 2)  # for tables whose cells may be empty
        1.77
    """

    def __init__(
        self,
        low: float | Tensor,
        high: float | Tensor,
        epsilon: float,
        *,
        largest_ratio: float | None = None,
        num_bins: int = 32,
        seed: int | None = None,
        progress: bool = True,
    ) -> None:
        super().__init__(low, high, epsilon, num_bins, seed, progress)
        if largest_ratio is not None:
            constraint = "be above 1 and finite"
            largest_ratio = check_number("largest_ratio", largest_ratio, constraint, lambda value: 1 < value < math.inf)
        self.largest_ratio = largest_ratio

    @property
    def weights(self) -> tuple[float, float]:
        """Lambda, of the table's histogram, and 1 - lambda, of the uniform density."""
        small = math.exp(-self.epsilon)  # in units of e^eps, which may overflow
        if self.largest_ratio is None:
            of_table, of_uniform = -math.expm1(-self.epsilon), self.num_cells * small
            return of_table / (of_table + of_uniform), of_uniform / (of_table + of_uniform)
        gamma = self.largest_ratio
        weight = min(1.0, -math.expm1(-self.epsilon) / ((1 - 1 / gamma) * (gamma * small + 1)))
        return weight, 1 - weight

    def _sampler(self, shares: Tensor) -> tuple[Tensor, Guarantee]:
        of_table, of_uniform = self.weights
        mixed = of_table * shares + of_uniform / self.num_cells
        epsilon = self.epsilon
        if self.largest_ratio is not None:
            epsilon = math.log1p(self.num_cells * of_table / of_uniform) if of_uniform else math.inf
        return mixed, Guarantee(epsilon, total_variation=of_table)

    def __repr__(self) -> str:
        """Shows the settings, which are public."""
        return (
            f"LinearMixture(epsilon={self.epsilon:.6g}, largest_ratio={self.largest_ratio!r}, num_bins={self.num_bins})"
        )
