"""Bernstein polynomials on the unit cube: their basis, the iterated operator, and a density that one of them is."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_mbde.experiments.baselines.box import BoxDensity, to_unit
from pyro_mbde.experiments.baselines.common import describe_epsilon
from pyro_mbde.privacy.group import GroupGuarantee

#: Numbers held at a time while a polynomial is evaluated: few enough to stay in a processor's cache, and, where they
#: are summed in logarithms, to fit in memory.
_NUM_CACHED, _NUM_HELD = 2**19, 2**22
#: Below it a sum of positive terms may have lost some of them to underflow.
_UNDERFLOW = 1e-280
#: Least value of a density that was shifted to be positive, relative to the uniform one.
_FLOOR = 1e-12
#: Grid points over all dimensions on which the least value of a polynomial is looked for.
_NUM_GRID = 250_000


def log_basis(points: Tensor, degree: int) -> Tensor:
    r"""Returns the logarithms of the Bernstein basis :math:`b_v(x) = \binom{k}{v} x^v (1 - x)^{k - v}`.

    Of shape ``(..., k + 1)``; -inf where a basis polynomial vanishes, on the edges.

    Example:
        >>> log_basis(torch.tensor([0.0, 0.5]), 2).exp()
        tensor([[1.0000, 0.0000, 0.0000],
                [0.2500, 0.5000, 0.2500]])
    """
    index = torch.arange(degree + 1, dtype=points.dtype, device=points.device)
    log_binomials = math.lgamma(degree + 1) - torch.lgamma(index + 1) - torch.lgamma(degree - index + 1)
    # One logarithm a point; 0 times that of 0 is 0.
    rising = points.log().unsqueeze(-1) * index
    rising[..., 0] = 0.0
    falling = (1 - points).log().unsqueeze(-1) * (degree - index)
    falling[..., -1] = 0.0
    return rising.add_(log_binomials).add_(falling)


def along_axes(values: Tensor, matrix: Tensor) -> Tensor:
    """Returns values, of shape ``(k + 1,) * d``, with an ``(m, k + 1)`` matrix applied along every axis."""
    for _ in range(values.dim()):
        # The axis in front is consumed and comes back last: after d turns all are in their old order.
        values = torch.tensordot(values, matrix, dims=([0], [1]))
    return values


def iterate(values: Tensor, iterations: int) -> Tensor:
    r"""Returns the coefficients of the iterated Bernstein operator for values on the lattice.

    With B the operator that takes F to its Bernstein polynomial, the iterated one of order h is
    :math:`I - (I - B)^h = \sum_{i=1}^{h} \binom{h}{i} (-1)^{i-1} B^i`. Since B sees a function on the lattice alone,
    where it acts as the matrix M of basis values there, :math:`B^i F` has the coefficients :math:`M^{i-1} F`.

    References:
        Micchelli. The Saturation Class and Iterates of the Bernstein Polynomials. 1973.
    """
    degree = values.shape[0] - 1
    lattice = torch.arange(degree + 1, dtype=values.dtype) / degree
    matrix = log_basis(lattice, degree).exp()
    coefficients, power = torch.zeros_like(values), values
    for order in range(1, iterations + 1):
        coefficients = coefficients + math.comb(iterations, order) * (-1) ** (order - 1) * power
        power = along_axes(power, matrix) if order < iterations else power
    return coefficients


def least_value(coefficients: Tensor) -> float:
    """Returns the least value of a polynomial on a grid of public size, finer towards the edges, edges included."""
    degree, num_dims = coefficients.shape[0] - 1, coefficients.dim()
    count = max(2, min(20 * degree + 1, int(_NUM_GRID ** (1 / num_dims))))
    # A polynomial of degree k oscillates at scale 1/k inside and 1/k^2 at the edges, as these points do.
    axis = (1 - torch.cos(torch.linspace(0, math.pi, count, dtype=coefficients.dtype))) / 2
    return float(along_axes(coefficients, log_basis(axis.clamp(0, 1), degree).exp()).min())


class BernsteinDensity(BoxDensity):
    r"""A density on a box that is a Bernstein polynomial of the coordinates.

    .. math::
        q(x) = \frac{1}{Z} \sum_v c_v \prod_j b_{v_j}(u_j), \qquad u = \frac{x - low}{high - low}, \qquad
        Z = \mathrm{volume} \cdot \frac{1}{(k+1)^d} \sum_v c_v ,

    as every basis polynomial integrates to 1/(k+1). Coefficients of at least 0 make it a mixture of products of
    Beta(v_j + 1, k - v_j + 1): draws and log-densities are exact, also in the tails, where sums that underflow are
    taken in logarithms. On an edge whose coefficients are all 0 the log-density is -inf. It has no gradient.

    With negative coefficients (of a polynomial that is hardly ever negative) draws are made by
    rejection: propose from the positive coefficients' mixture :math:`p_+`, accept with probability
    :math:`p/p_+ \le 1`. The log-density is then that of the polynomial held at 1e-12 of the uniform density at least,
    so that it is never NaN, where it vanishes or is negative by a little. Coefficients that sum to no more than 0, or
    are all 0, give the uniform density.

    Args:
        low: lower edges of the box, shape () or (d,).
        high: upper edges.
        coefficients: c, float64 of shape ``(k + 1,) * d``.
        bandwidth: of the kernel that the values come from, in units of the box's side.
        noise_scale: of the Laplace noise in them.
        guarantee: of the density, all draws of it together.
    """

    def __init__(
        self,
        low: Tensor,
        high: Tensor,
        coefficients: Tensor,
        *,
        bandwidth: float,
        noise_scale: float,
        guarantee: GroupGuarantee,
    ) -> None:
        if not float(coefficients.sum()) > 0:
            coefficients = torch.ones_like(coefficients)
        self.coefficients = coefficients / coefficients.mean()  # the mean is the integral over the unit cube
        self.bandwidth = bandwidth
        self.noise_scale = noise_scale
        self._signed = bool((coefficients < 0).any())
        chunk = max(1, _NUM_CACHED // max(coefficients[0].numel(), len(coefficients)))
        super().__init__(low, high, guarantee, chunk=min(chunk, 2**15))

    @property
    def lattice_size(self) -> int:
        """Degree k of the polynomial in each coordinate."""
        return self.coefficients.shape[0] - 1

    def _polynomial(self, coefficients: Tensor, bases: list[Tensor]) -> Tensor:
        """Values of a polynomial at n points, from those of :meth:`_bases`."""
        partial = bases[0] @ coefficients.reshape(len(coefficients), -1)
        for basis in bases[1:]:
            partial = (basis.unsqueeze(-1) * partial.reshape(len(basis), basis.shape[1], -1)).sum(1)
        return partial.squeeze(-1)

    def _bases(self, unit: Tensor) -> list[Tensor]:
        """Values of the basis at points of the unit cube: for each coordinate a tensor of shape ``(n, k + 1)``."""
        return [log_basis(column, self.lattice_size).exp_() for column in unit.unbind(-1)]

    @torch.no_grad()
    def _log_density(self, rows: Tensor) -> Tensor:
        unit = to_unit(rows, self.low, self.high)
        values = self._polynomial(self.coefficients, self._bases(unit))
        if self._signed:
            return values.clamp(min=_FLOOR).log() - self._log_volume
        small = values < _UNDERFLOW
        log_values = torch.where(small, 1.0, values).log()
        if bool(small.any()):
            log_values = log_values.masked_scatter(small, self._log_sum(unit[small]))
        return log_values - self._log_volume

    def _log_sum(self, unit: Tensor) -> Tensor:
        """The logarithm of the polynomial where its values underflow."""
        count = max(1, _NUM_HELD // self.coefficients.numel())
        return torch.cat([self._log_terms(part) for part in torch.split(unit, count)])

    def _log_terms(self, unit: Tensor) -> Tensor:
        """The logarithm of the sum of all terms at points u; shapes ``(n, d)`` and ``(n,)``."""
        terms = self.coefficients.log().unsqueeze(0)
        for axis, column in enumerate(unit.unbind(-1)):
            shape = [-1] + [1] * self.coefficients.dim()
            shape[axis + 1] = self.lattice_size + 1
            terms = terms + log_basis(column, self.lattice_size).reshape(shape)
        return torch.logsumexp(terms.flatten(1), 1)

    def _draw(self, num_draws: int) -> Tensor:
        positive = self.coefficients.clamp(min=0)
        unit = self._mixture_draws(positive, num_draws)
        if self._signed:
            accepted = self._accept(positive, unit)
            parts, missing = [unit[accepted]], num_draws - int(accepted.sum())
            # Of the positive coefficients' mass, 1 for the polynomial's mean 1, this share is accepted.
            rate = 1 / float(positive.mean())
            while missing > 0:
                unit = self._mixture_draws(positive, min(int(1.2 * missing / rate) + 16, 2**18))
                parts.append(unit[self._accept(positive, unit)][:missing])
                missing -= len(parts[-1])
            unit = torch.cat(parts)
        return self._from_unit(unit)

    def _mixture_draws(self, weights: Tensor, num_draws: int) -> Tensor:
        """Points of the unit cube from the mixture of products of betas, shape ``(num_draws, d)``."""
        size = self.lattice_size + 1
        cumulative = weights.flatten().cumsum(0)
        uniforms = torch.rand(num_draws, dtype=torch.float64) * cumulative[-1]
        # The first whose cumulative weight is above: never one of weight 0.
        cells = torch.searchsorted(cumulative, uniforms, right=True).clamp(max=int(weights.flatten().nonzero()[-1]))
        index = torch.stack(torch.unravel_index(cells, (size,) * weights.dim()), -1).double()
        return torch.distributions.Beta(index + 1, size - index, validate_args=False).sample()

    def _accept(self, positive: Tensor, unit: Tensor) -> Tensor:
        accepted = []
        for part in torch.split(unit, self._chunk):
            bases = self._bases(part)
            ratio = self._polynomial(self.coefficients, bases) / self._polynomial(positive, bases)
            accepted.append(torch.rand(len(part), dtype=torch.float64) < ratio)
        return torch.cat(accepted)

    def __repr__(self) -> str:
        """Shows the guarantee and public numbers."""
        return (
            f"BernsteinDensity({describe_epsilon(self.guarantee)}, lattice_size={self.lattice_size}, "
            f"event_shape={tuple(self.event_shape)})"
        )
