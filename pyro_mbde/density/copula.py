"""Copulas, dependence between the columns of a public base; of them the Gaussian."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from pyro.distributions import TorchDistribution, constraints
from torch import Tensor

from pyro_mbde._checks import argument_error
from pyro_mbde.density.rectangles import HIGHEST, LOWEST, log_cell_probabilities, normal_probabilities, normal_scores
from pyro_mbde.serialization import register_distribution

#: Least eigenvalue of a correlation matrix; for two columns, the correlation is at most 1 minus this.
MIN_EIGENVALUE = 1e-5
#: Rounding that a correlation matrix may have, as a distance of its numbers from those that it should have.
_ROUNDING = 1e-6


class Copula(TorchDistribution):
    """A distribution on the unit cube of d dimensions, whose coordinates are dependent and each about uniform.

    A subclass computes in float64, whatever the dtype of its numbers.
    """

    arg_constraints: dict[str, Any] = {}

    @constraints.dependent_property
    def support(self) -> Any:
        """The closed unit cube."""
        support: Any = constraints  # Pyro leaves it unannotated
        return support.independent(support.unit_interval, 1)

    @property
    @abstractmethod
    def numbers(self) -> Tensor:
        """Some of the numbers that define it, in the dtype and on the device of its draws."""

    @abstractmethod
    def from_uniforms(self, uniforms: Tensor) -> Tensor:
        """Carries independent uniform numbers to the copula: in the order of columns, each given those before it.

        Args:
            uniforms: in [0, 1], shape ``(..., d)``.

        Returns:
            float64 of the same shape, strictly between 0 and 1.
        """

    @abstractmethod
    def to_uniforms(self, value: Tensor) -> Tensor:
        """Returns what :meth:`from_uniforms` carries to ``value``, both of shape ``(..., d)``; float64."""

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008  # torch's own signature
        """Returns draws of shape ``sample_shape + (d,)``, in the dtype of :attr:`numbers`."""
        shape, numbers = torch.Size(sample_shape) + self.event_shape, self.numbers
        with torch.no_grad():
            draws = self.from_uniforms(torch.rand(shape, dtype=torch.float64, device=numbers.device))
        return draws.clamp(max=1 - torch.finfo(numbers.dtype).eps / 2).to(numbers.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density at points of the cube, shape ``(...)``; one nearer to a face than 2^-54 counts as that far.

        Outside the cube it is -inf, where argument checks are off.
        """
        if self._validate_args:
            self._validate_sample(value)
        wide = value.double()
        inside = ((wide >= 0) & (wide <= 1)).all(-1)
        log_density = self._log_density(normal_scores(torch.nan_to_num(wide, 0.5)))
        return torch.where(inside, log_density, -torch.inf).to(value.dtype)

    def log_prob_of_cells(self, low: Tensor, high: Tensor) -> Tensor:
        """Log-probability of cells, which may be points in some coordinates: the density with respect to those.

        It averages over the same points in every call: the result is one function of the cell.

        Args:
            low: lower edges in [0, 1], shape ``(..., d)``.
            high: upper edges, of the same shape. Where they equal ``low`` the coordinate is a point, and gradients flow
                to it; none flow to the edges of intervals.

        Returns:
            Shape ``(...)``.

        Raises:
            ValueError: a cell is outside the cube, or ``low`` is above ``high``; if argument checks are on.

        Example:
            >>> copula = GaussianCopula(torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
            >>> low, high = torch.tensor([0.0, 0.3]), torch.tensor([0.5, 0.3])  # an interval and a point
            >>> round(float(copula.log_prob_of_cells(low, high).exp()), 4)
            0.619
        """
        if self._validate_args and low.numel():
            self._validate_sample(low)
            self._validate_sample(high)
            if not bool((low <= high).all()):
                raise ValueError(argument_error("low", "be at most high", float((low - high).max())))
        shape = low.shape[:-1]
        edges = [edge.double().reshape(-1, low.shape[-1]) for edge in (low, high)]
        return self._log_cells(*edges).reshape(shape).to(low.dtype)

    @abstractmethod
    def _log_density(self, scores: Tensor) -> Tensor:
        """The log-density at points whose normal scores are (..., d)."""

    @abstractmethod
    def _log_cells(self, low: Tensor, high: Tensor) -> Tensor:
        """The log-probability of cells (n, d)."""


@register_distribution
class GaussianCopula(Copula):
    r"""The law of :math:`\Phi(z)`, coordinate by coordinate, for normal z of given correlations: on the unit cube.

    Each coordinate by itself is uniform. Everything is computed in float64, from correlations rounded to float32, so
    that copies in another dtype are the same distribution. Coordinates that are uncorrelated, also by way of others,
    are independent exactly: groups of correlated ones are treated one at a time.

    Of cells, points are conditioned on exactly, and a group of correlated coordinates is exact with at most one
    interval in it. Otherwise the relative error of the probability is about 1e-5 for two intervals, below 1e-3 for a
    few, and of the order of 1e-3 for ten strongly correlated ones.

    Privacy:
        The correlations must be public, and not computed from the private table.

    Args:
        correlation: correlation matrix of z, shape ``(d, d)``, float32 or float64, without an eigenvalue below
            :data:`MIN_EIGENVALUE`.
        validate_args: as for any distribution.

    Raises:
        TypeError: ``correlation`` is not a tensor of floats.
        ValueError: it is not a correlation matrix, or its smallest eigenvalue is too small.

    Example:
        >>> copula = GaussianCopula(torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
        >>> copula.event_shape, copula.sample((3,)).shape
        (torch.Size([2]), torch.Size([3, 2]))
        >>> copula.log_prob(torch.tensor([0.5, 0.5]))
        tensor(0.1438)
    """

    def __init__(self, correlation: Tensor, validate_args: bool | None = None) -> None:
        if not isinstance(correlation, Tensor) or correlation.dtype not in (torch.float32, torch.float64):
            found = getattr(correlation, "dtype", type(correlation).__name__)
            raise TypeError(argument_error("correlation", "be a tensor of float32 or float64", found))
        if correlation.dim() != 2 or correlation.shape[0] != correlation.shape[1] or not len(correlation):
            raise ValueError(argument_error("correlation", "have shape (d, d)", tuple(correlation.shape)))
        rounded = correlation.detach().float()
        matrix = rounded.double()
        error = torch.maximum((matrix - matrix.T).abs().max(), (matrix.diagonal() - 1).abs().max())
        if not error <= _ROUNDING:  # NaN included
            remedy = "Give numbers in [-1, 1], the same on both sides of a diagonal of ones."
            raise ValueError(
                argument_error("correlation", "be symmetric with a diagonal of 1", matrix.tolist(), remedy)
            )
        matrix = matrix.tril(-1) + matrix.tril(-1).T + torch.eye(len(matrix)).to(matrix)
        smallest = float(torch.linalg.eigvalsh(matrix)[0])
        if smallest < MIN_EIGENVALUE:
            remedy = "These correlations hardly or never occur together: give smaller ones."
            constraint = f"have no eigenvalue below {MIN_EIGENVALUE:g}"
            raise ValueError(argument_error("correlation", constraint, matrix.tolist(), remedy))
        self.correlation = rounded.to(correlation.dtype)
        self._blocks = [columns for columns in _connected(matrix) if len(columns) > 1]
        self._matrices = [matrix[columns][:, columns] for columns in self._blocks]
        self._factors = [torch.linalg.cholesky(block) for block in self._matrices]
        self._inverses = [
            torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False)
            for factor in self._factors
        ]
        super().__init__(torch.Size(), matrix.shape[:1], validate_args=validate_args)

    @property
    def numbers(self) -> Tensor:
        """The correlations."""
        return self.correlation

    @property
    def mean(self) -> Tensor:
        """The middle of the cube."""
        return torch.full_like(self.correlation[0], 0.5)

    @property
    def variance(self) -> Tensor:
        """That of a uniform distribution, in every coordinate."""
        return torch.full_like(self.correlation[0], 1 / 12)

    def from_uniforms(self, uniforms: Tensor) -> Tensor:
        """Carries independent uniform numbers to the copula; each row depends on that row alone."""
        uniforms = uniforms.double()
        columns = list(uniforms.clamp(LOWEST, HIGHEST).unbind(-1))
        for block, factor in zip(self._blocks, self._factors, strict=True):
            scores = _times(factor, normal_scores(uniforms[..., block]))
            for column, value in zip(block, normal_probabilities(scores).unbind(-1), strict=True):
                columns[column] = value
        return torch.stack(columns, -1)

    def to_uniforms(self, value: Tensor) -> Tensor:
        """Returns what :meth:`from_uniforms` carries to ``value``, both of shape ``(..., d)``; float64."""
        wide = value.double()
        columns = list(wide.clamp(LOWEST, HIGHEST).unbind(-1))
        for block, inverse in zip(self._blocks, self._inverses, strict=True):
            scores = _times(inverse, normal_scores(wide[..., block]))
            for column, uniform in zip(block, normal_probabilities(scores).unbind(-1), strict=True):
                columns[column] = uniform
        return torch.stack(columns, -1)

    def _log_density(self, scores: Tensor) -> Tensor:
        result = torch.zeros_like(scores[..., 0])
        for block, factor, inverse in zip(self._blocks, self._factors, self._inverses, strict=True):
            whitened = _times(inverse, scores[..., block])
            result = result + (scores[..., block].square() - whitened.square()).sum(-1) / 2
            result = result - factor.diagonal().log().sum()
        return result

    def _log_cells(self, low: Tensor, high: Tensor) -> Tensor:
        width = high - low
        log_width = torch.where(width > 0, width, 1.0).log()
        alone = [column for column in range(width.shape[-1]) if not any(column in block for block in self._blocks)]
        result = log_width[:, alone].sum(-1)
        for block, matrix in zip(self._blocks, self._matrices, strict=True):
            result = result + log_cell_probabilities(matrix, low[:, block], high[:, block])
        return result

    def __repr__(self) -> str:
        """Shows the number of coordinates and of correlated groups."""
        return f"GaussianCopula(num_dims={len(self.correlation)}, correlated_groups={len(self._blocks)})"


def _times(matrix: Tensor, vectors: Tensor) -> Tensor:
    """The matrix times each vector (..., d), added up in one order, so that no row depends on those beside it."""
    total = vectors[..., :1] * matrix[:, 0]
    for index in range(1, matrix.shape[1]):
        total = total + vectors[..., index : index + 1] * matrix[:, index]
    return total


def _connected(matrix: Tensor) -> list[list[int]]:
    """The groups of columns that are correlated with one another, directly or by way of others."""
    groups: list[set[int]] = []
    for column, row in enumerate((matrix != 0).tolist()):
        linked = {other for other, correlated in enumerate(row) if correlated} | {column}
        touching = [group for group in groups if group & linked]
        groups = [group for group in groups if not group & linked] + [linked.union(*touching)]
    return sorted(sorted(group) for group in groups)
