"""Kernel density estimates released by the Bernstein mechanism, a differentially private baseline (DPB)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_mbde._checks import argument_error, check_count, check_epsilon
from pyro_mbde.experiments.baselines.box import box_rows, check_box, to_unit
from pyro_mbde.experiments.baselines.common import Trainer, check_bandwidth
from pyro_mbde.experiments.baselines.kernels import cross_validate, kernel_sum_bound, lattice_values
from pyro_mbde.experiments.baselines.polynomials import BernsteinDensity, iterate, least_value
from pyro_mbde.privacy.group import GroupGuarantee, check_group_size

#: Values on the lattice, at most: those of the rule, and those that may be asked for.
_MAX_VALUES_BY_RULE, _MAX_VALUES = 50_000, 1_000_000
#: Largest lattice size of the rule, which would let one dimension have 49,999.
_MAX_SIZE_BY_RULE = 1000
#: Scale of noise whose sums, weighted by the binomials of the iterated operator, are finite.
_MAX_NOISE = 1e280
#: Order of the iterated operator, whose binomials alternate and cancel.
_MAX_ITERATIONS = 30


class BernsteinKDE(Trainer[BernsteinDensity]):
    r"""Kernel density estimation on a box, released by the Bernstein mechanism.

    The Gaussian kernel density estimate of the rows, scaled to the unit cube,

    .. math::
        F(u) = \frac{1}{n} \sum_{i=1}^{n} K_h(u - x_i), \qquad
        K_h(u) = (2 \pi h^2)^{-d/2} e^{-|u|^2 / 2h^2} ,

    is evaluated on the lattice :math:`\{0, 1/k, \dots, 1\}^d`; Laplace noise is added to these :math:`(k+1)^d` values,
    and the Bernstein polynomial with the noisy values as coefficients is the release (after ``iterations``, see
    :func:`~pyro_mbde.experiments.baselines.polynomials.iterate`). Coefficients below 0 are set to 0 and the polynomial
    is normalised, which makes it a density whatever the noise; if none is left it is uniform.

    The mechanism's authors bound the L1 sensitivity of the values by their number times the sensitivity of one, the
    kernel's peak over n. A kernel is narrow, so what one row adds to all values together is far less: at most A/n, see
    :func:`~pyro_mbde.experiments.baselines.kernels.kernel_sum_bound`. As all values are at least 0, two kernels differ
    by no more than the sum of both, so the L1 sensitivity is at most

    .. math::
        \frac{2 A}{n} \min(g, n) \quad \text{for g rows replaced}, \qquad
        2 A \quad \text{for any two tables of any sizes},

    and noise of that over epsilon is what is added: 35 times less than by the number of values, for k = 20, h = 0.05,
    d = 2.

    Privacy:
        The density, with all its draws and everything else computed from it, carries ``guarantee``. The box, bandwidth,
        lattice size and epsilon must be chosen without looking at the table; rows outside the box are moved to its
        nearest point. The number of rows is public, except for ``group_size=None``, where nothing depends on it. A seed
        that others know voids the guarantee: seeded fits are for experiments. Noise is made in floating point without
        hardening (Mironov 2012), by torch's generator: this is a baseline to compare with, not a way to hand rows out.

    Args:
        low: lower edge of the box, a number or a tensor of shape () or (d,).
        high: upper edge, likewise.
        epsilon: privacy parameter of the whole density, in nats; in (0, inf], ``inf`` for no noise.
        group_size: rows replaced that are protected together, at least 1; ``None`` for all of them, integrally.
        bandwidth: h, in units of the box's side; from 1e-8 to 1e8.
        lattice_size: k, at least 1 and such that there are at most 1,000,000 values; ``None`` for
            :func:`lattice_rule`.
        iterations: order of the iterated Bernstein operator, from 1 to 30.
        seed: for a reproducible fit; ``None`` draws from torch's global generator.
        progress: whether to show a progress bar where there is something to wait for, in :meth:`paper`.

    References:
        Alda, Rubinstein. The Bernstein Mechanism: Function Release under Differential Privacy. 2017.
        Mironov. On Significance of the Least Significant Bits for Differential Privacy. 2012.

    Example:
        >>> trainer = BernsteinKDE(-3.0, 3.0, epsilon=1.0, seed=0)
        >>> density = trainer.fit(torch.linspace(-2.0, 2.0, 1000))
        >>> density
        BernsteinDensity(epsilon=1, lattice_size=158, event_shape=())
        >>> density.guarantee
        GroupGuarantee(epsilon=1.0, delta=0.0, group_size=1, replaced=True)
    """

    def __init__(
        self,
        low: float | Tensor,
        high: float | Tensor,
        epsilon: float,
        *,
        group_size: int | None = 1,
        bandwidth: float = 0.05,
        lattice_size: int | None = None,
        iterations: int = 1,
        seed: int | None = None,
        progress: bool = True,
    ) -> None:
        super().__init__(seed=seed, progress=progress)
        self.low, self.high = check_box(low, high)
        self.epsilon = check_epsilon(epsilon)
        self.group_size = None if group_size is None else check_group_size("group_size", group_size)
        self.bandwidth: float | None = check_bandwidth(bandwidth, "It is in units of the box's side.")
        self.lattice_size = None if lattice_size is None else check_count("lattice_size", lattice_size)
        if self.lattice_size is not None and (self.lattice_size + 1) ** self._num_dims > _MAX_VALUES:
            raise ValueError(argument_error("lattice_size", f"give at most {_MAX_VALUES:,} values", lattice_size))
        if 2**self._num_dims > _MAX_VALUES_BY_RULE:
            raise ValueError(argument_error("low", "have few enough entries for a lattice, 15", self._num_dims))
        self.iterations = check_count("iterations", iterations)
        if self.iterations > _MAX_ITERATIONS:
            raise ValueError(argument_error("iterations", f"be at most {_MAX_ITERATIONS}", iterations))
        self._as_published = False

    @classmethod
    def paper(
        cls,
        low: float | Tensor,
        high: float | Tensor,
        epsilon: float,
        *,
        group_size: int | None = 1,
        lattice_size: int | None = None,
        iterations: int = 1,
        seed: int | None = None,
        progress: bool = True,
    ) -> BernsteinKDE:
        r"""Returns the trainer of the experiments of Husain, Cranko and Nock: not private.

        The bandwidth has the best log-likelihood in a 10-fold cross-validation over 25 bandwidths from 0.0005 to 0.3
        (60 rows of each fold are scored). The noise has scale :math:`S (k+1)^d / \epsilon`, with S the mechanism's
        sensitivity :math:`(2 \pi h^2)^{-d/2}/n` of one value, times g for g rows, times n for all of them. Where the
        polynomial's least value m, taken on a grid, is below 0, it is shifted: :math:`(p - m)/\int (p - m)`; between
        grid points it may still be below 0 by a little, see
        :class:`~pyro_mbde.experiments.baselines.polynomials.BernsteinDensity`.

        Privacy:
            None, whatever epsilon: the bandwidth is chosen by looking at the table, and with it the noise's scale. The
            density's guarantee says so.

        References:
            Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018. Section 5.

        Example:
            >>> trainer = BernsteinKDE.paper(-3.0, 3.0, 1.0, lattice_size=20, seed=0, progress=False)
            >>> trainer.fit(torch.linspace(-2.0, 2.0, 200))
            BernsteinDensity(not private, lattice_size=20, event_shape=())
        """
        options: dict[str, Any] = {"group_size": group_size, "lattice_size": lattice_size, "iterations": iterations}
        trainer = cls(low, high, epsilon, **options, seed=seed, progress=progress)
        trainer.bandwidth, trainer._as_published = None, True
        return trainer

    @property
    def _num_dims(self) -> int:
        return max(self.low.numel(), 1)

    def _rows(self, data: Any) -> Tensor:
        return box_rows(data, self.low, self.high)

    @torch.no_grad()
    def _fit(self, rows: Tensor, on_step: Callable[[], object]) -> BernsteinDensity:
        unit = to_unit(rows.double().reshape(len(rows), -1), self.low, self.high)
        bandwidth = cross_validate(unit, self.progress) if self.bandwidth is None else self.bandwidth
        size = self.lattice_size
        if size is None:
            size = lattice_rule(
                bandwidth,
                self._num_dims,
                self.iterations,
                lambda lattice_size: self.noise_scale(len(rows), bandwidth, lattice_size),
            )
        scale = self.noise_scale(len(rows), bandwidth, size)
        if scale > _MAX_NOISE:
            raise ValueError(argument_error("epsilon", "be large enough for noise that floats hold", self.epsilon))
        coefficients = iterate(self._add_noise(lattice_values(unit, bandwidth, size), scale), self.iterations)
        # From here on the table is not looked at.
        if self._as_published:
            coefficients = coefficients - min(least_value(coefficients), 0.0)
            guarantee = GroupGuarantee(math.inf)
        else:
            coefficients = coefficients.clamp(min=0)
            guarantee = GroupGuarantee(self.epsilon, group_size=self.group_size)
        return BernsteinDensity(
            self.low, self.high, coefficients, bandwidth=bandwidth, noise_scale=scale, guarantee=guarantee
        )

    def noise_scale(self, num_rows: int, bandwidth: float, lattice_size: int) -> float:
        """Returns the scale of the Laplace noise: the L1 sensitivity over epsilon.

        Args:
            num_rows: n, of no influence for ``group_size=None``.
            bandwidth: h.
            lattice_size: k.

        Example:
            >>> trainer = BernsteinKDE(0.0, 1.0, epsilon=0.5)
            >>> round(trainer.noise_scale(1000, 0.05, 20), 4)  # 2 k / (n epsilon)
            0.08
        """
        # All rows replaced: two means over tables of whatever sizes, each a mean of kernels.
        share = 1.0 if self.group_size is None else min(self.group_size, num_rows) / num_rows
        if self._as_published:
            peak: float = (math.sqrt(2 * math.pi) * bandwidth) ** -self._num_dims
            return share * peak * float(lattice_size + 1) ** self._num_dims / self.epsilon
        return 2 * share * kernel_sum_bound(bandwidth, lattice_size, self._num_dims) / self.epsilon

    def _add_noise(self, values: Tensor, scale: float) -> Tensor:
        if scale == 0:  # epsilon = inf
            return values
        laplace: Any = torch.distributions.Laplace(values, scale, validate_args=False)
        noisy: Tensor = laplace.sample()
        return noisy

    def __repr__(self) -> str:
        """Shows the settings, which are public."""
        preset = "BernsteinKDE.paper(not private, " if self._as_published else "BernsteinKDE("
        return (
            f"{preset}epsilon={self.epsilon:.6g}, group_size={self.group_size!r}, bandwidth={self.bandwidth!r}, "
            f"lattice_size={self.lattice_size!r}, iterations={self.iterations!r})"
        )


def lattice_rule(bandwidth: float, num_dims: int, iterations: int, noise_scale: Callable[[int], float]) -> int:
    r"""Returns the lattice size that balances what the polynomial smooths away against noise.

    .. math::
        \min_k \; \frac{d}{8 h^2} k^{-m} + (2^m - 1) \, \mathrm{scale}(k)

    Args:
        bandwidth: h, in units of the box's side.
        num_dims: d.
        iterations: order m of the iterated operator.
        noise_scale: the scale of the noise, a function of the lattice size k.

    Returns:
        k, at least 1; at most 1000, with :math:`(k+1)^d` at most 50,000.

    References:
        Alda, Rubinstein. The Bernstein Mechanism: Function Release under Differential Privacy. 2017. Section 5.

    Example:
        >>> lattice_rule(0.05, 2, 1, lambda size: 2 * size**2 / 10_000)  # (10000 / (16 * 0.05**2))**(1/3)
        63
    """

    # The mechanism's utility bound has an error of order k^-m of the iterated operator, for functions with 2m bounded
    # derivatives, and noise of order S k^d / epsilon; they meet at a k of order (epsilon/S)^(1/(d + m)). It leaves the
    # constants open, as the authors' R package diffpriv leaves k to its user. Here the sum is minimised, with those of
    # m = 1:
    #     bias   B_k F - F = sum_j u_j (1 - u_j) / (2k) F_jj + ..., at most d / (8 k h^2) for a density that curves as
    #            its kernel does relative to its height, where that is 1, the uniform density's;
    #     noise  its scale, which is the mean of |noise| in a coefficient; a sum of terms with the binomials of
    #            I - (I - B_k)^m as weights, 2^m - 1 together.
    def error(lattice_size: int) -> float:
        bias = num_dims / (8 * bandwidth**2) * float(lattice_size) ** -iterations
        return bias + (2.0**iterations - 1) * noise_scale(lattice_size)

    largest = min(_MAX_SIZE_BY_RULE, int(_MAX_VALUES_BY_RULE ** (1 / num_dims) + 1e-9) - 1)
    return min(range(1, largest + 1), key=error)
