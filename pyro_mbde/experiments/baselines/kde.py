"""Kernel density estimation without privacy: what a table gives where nothing is held back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pyro.distributions import constraints
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._checks import check_choice
from pyro_mbde.density.base import reference_draws
from pyro_mbde.experiments.baselines.common import (
    FittedDensity,
    Trainer,
    check_bandwidth,
    continuous_base,
    describe_epsilon,
    require,
)
from pyro_mbde.privacy.group import GroupGuarantee
from pyro_mbde.training.data import to_rows

RULES = ("scott", "silverman")
#: Kernels evaluated at a time: few enough to stay in a processor's cache.
_NUM_HELD = 2**18
#: Below it a sum of kernels may have lost some of them to underflow.
_UNDERFLOW = 1e-280
#: Deviation of standardised rows in a direction that rounding of their correlations explains.
_MIN_DEVIATION = 2.0**-23
#: Half of a whitened row's square, above which differences of such halves have lost too many digits.
_MAX_HALF = 1e8
#: Whitened points have their density here at the farthest: their squares would overflow.
_FARTHEST = 1e140


class KDEDensity(FittedDensity):
    r"""Equal normals at the rows of a table, all of one covariance.

    .. math::
        q(x) = \frac{1}{n} \sum_{i=1}^{n} \mathcal{N}(x; x_i, \Sigma)

    Exact at every point, also where all kernels underflow. Draws are exact.

    Privacy:
        None: it holds the table.

    Args:
        rows: float64 of shape ``(n, d)``.
        covariance: Sigma, float64 of shape ``(d, d)``.
        interior: a row with the event's shape and dtype.
    """

    def __init__(self, rows: Tensor, covariance: Tensor, interior: Tensor) -> None:
        self._scale_tril: Tensor = torch.linalg.cholesky(covariance)
        # Whitened, about a centre that keeps the squares below small.
        self._centre = rows.mean(0)
        self._centres = self._whiten(rows)
        halves = self._centres.square().sum(1, keepdim=True) / 2
        self._cancels = bool(halves.max() > _MAX_HALF)
        self._factors = torch.cat([self._centres, torch.ones_like(halves), -halves], 1).T.contiguous()
        log_determinant = float(self._scale_tril.diagonal().log().sum())
        self._log_constant = -log_determinant - rows.shape[1] / 2 * math.log(2 * math.pi) - math.log(len(rows))
        support: Any = constraints.real_vector if interior.dim() else constraints.real
        super().__init__(support, interior, GroupGuarantee(math.inf))

    def _whiten(self, rows: Tensor) -> Tensor:
        whitened: Tensor = torch.linalg.solve_triangular(self._scale_tril, (rows - self._centre).T, upper=False)
        return whitened.T.contiguous()

    def _exponents(self, points: Tensor) -> Tensor:
        """-|x - y|^2 / 2 for whitened points x and rows y, shape ``(len(points), n)``."""
        if self._cancels:
            distances = torch.cdist(points, self._centres, compute_mode="donot_use_mm_for_euclid_dist")
            return distances.square() / -2
        halves = points.square().sum(1, keepdim=True) / 2
        # x.y - |x|^2 / 2 - |y|^2 / 2, as one product of (x, -|x|^2 / 2, 1) and (y, 1, -|y|^2 / 2).
        return torch.cat([points, -halves, torch.ones_like(halves)], 1) @ self._factors

    def _log_density(self, rows: Tensor) -> Tensor:
        points = self._whiten(rows).clamp(-_FARTHEST, _FARTHEST)
        count = max(1, _NUM_HELD // len(self._centres))
        sums = torch.cat([self._exponents(part).exp_().sum(1) for part in torch.split(points, count)])
        small = sums < _UNDERFLOW
        log_sums = torch.where(small, 1.0, sums).log()
        if bool(small.any()):
            far = [torch.logsumexp(self._exponents(part), 1) for part in torch.split(points[small], count)]
            log_sums = log_sums.masked_scatter(small, torch.cat(far))
        return self._log_constant + log_sums

    def _draw(self, num_draws: int) -> Tensor:
        centres = self._centres[torch.randint(len(self._centres), (num_draws,))]
        draws: Tensor = self._centre + (centres + torch.randn_like(centres)) @ self._scale_tril.T
        return draws

    def __repr__(self) -> str:
        """Shows that it is not private, and its shape."""
        return f"KDEDensity({describe_epsilon(self.guarantee)}, event_shape={tuple(self.event_shape)})"


class KDE(Trainer[KDEDensity]):
    """Gaussian kernel density estimation, without privacy: the ceiling of a figure.

    The kernel's covariance is that of the rows times the square of a factor, as SciPy has it: ``gaussian_kde`` computes
    it. Evaluation and draws are done here, with all rows as centres, in torch.

    Privacy:
        None.

    Args:
        base: a continuous distribution with the event shape of the rows; used to check them, and for their dtype. The
            estimate does not know the edges of its support.
        bandwidth: the factor: ``scott`` (n^(-1/(d+4))), ``silverman``, or a number from 1e-8 to 1e8.
        seed: of draws of ``data``, where that is a distribution.
        progress: accepted for uniformity; no bar is shown.

    References:
        Scott. Multivariate Density Estimation. 1992. Section 6.

    Example:
        >>> import pyro.distributions as dist
        >>> density = KDE(dist.Normal(0.0, 1.0)).fit(torch.randn(100))
        >>> density
        KDEDensity(not private, event_shape=())
        >>> density.sample((3,)).shape
        torch.Size([3])
    """

    def __init__(
        self,
        base: Distribution,
        *,
        bandwidth: float | str = "scott",
        seed: int | None = None,
        progress: bool = True,
    ) -> None:
        super().__init__(seed=seed, progress=progress)
        self.base = continuous_base(base)
        self.bandwidth: float | str = (
            check_choice("bandwidth", bandwidth, RULES)
            if isinstance(bandwidth, str)
            else check_bandwidth(bandwidth, "It is a factor of the rows' deviations.")
        )

    def _rows(self, data: Any) -> Tensor:
        return to_rows(data, self.base, 10_000)

    def _fit(self, rows: Tensor, on_step: Callable[[], object]) -> KDEDensity:
        stats = require("scipy.stats")
        flat = rows.double().reshape(len(rows), -1)
        remedy = "Leave out columns that are constant or that others determine."
        if len(flat) <= flat.shape[1]:
            raise ValueError(f"data must have more rows than columns, got no more. {remedy}")
        try:
            if not _varies(flat, rows.dtype):
                raise ValueError("a direction without variation")
            with np.errstate(all="ignore"):
                estimate = stats.gaussian_kde(flat.T.numpy(), bw_method=self.bandwidth)
            covariance = torch.from_numpy(estimate.covariance).double()
            return KDEDensity(flat, covariance, reference_draws(self.base)[0])
        except (ArithmeticError, ValueError, RuntimeError) as error:  # each library's own error of a singular matrix
            constraint = "vary in every direction, by amounts whose squares float64 holds"
            raise ValueError(f"data must {constraint}, got columns that do not. {remedy}") from error

    def __repr__(self) -> str:
        """Shows the settings."""
        return f"KDE(not private, bandwidth={self.bandwidth!r})"


def _varies(rows: Tensor, dtype: torch.dtype) -> bool:
    """Whether float64 rows vary in every direction by more than rounding, of them to ``dtype`` and of sums, explains.

    The mean of equal numbers is rounded: 0.3 in all rows deviates from it by 1e-17 or so, 0 does not.
    """
    apart = rows - rows[0]
    deviations = apart.std(0)
    rounding = torch.finfo(dtype).eps * rows.abs().amax(0)
    if not bool((deviations > rounding).all()):
        return False
    correlations = torch.corrcoef((apart / deviations).T).reshape(rows.shape[1], rows.shape[1])
    smallest = max(_MIN_DEVIATION, float((rounding / deviations).max()))
    return bool(torch.linalg.eigvalsh(correlations)[0] > smallest**2)
