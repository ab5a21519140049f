"""Densities and probabilities of cells under a Gaussian copula: points in some coordinates, intervals in the others."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

#: Points of the unit cube stay between these, where the normal's inverse distribution function is finite. 1 - 2^-53 is
#: the largest float below 1.
LOWEST, HIGHEST = 2.0**-54, 1 - 2.0**-53
#: An interval narrower than this share of its distance from the nearer face counts as the point in its middle, times
#: its width: the error is of second order in that share. Differences of quantiles would lose digits.
POINT_SHARE = 2.0**-20
#: Points of the lattice, a prime number, and nodes of the quadrature, that probabilities are averaged over.
_NUM_POINTS, _NUM_NODES = 509, 64
#: How much each dimension counts in the choice of the lattice.
_LATTICE_WEIGHT = 0.05
#: Rounds over the coordinates in the search for tilts; more of them gain nothing.
_NUM_SWEEPS = 2
#: Numbers in one array, at most: rows are taken in parts.
_MAX_NUMBERS = 2**20
#: Below this a probability of an interval is computed from logarithms.
_DEEP = 1e-280


def normal_scores(value: Tensor) -> Tensor:
    """Returns the standard normal's quantiles of points of the unit interval, which are kept off 0 and 1."""
    scores: Tensor = torch.special.ndtri(value.clamp(LOWEST, HIGHEST))
    return scores


def normal_probabilities(scores: Tensor) -> Tensor:
    """Returns the standard normal's distribution function, accurate in the lower tail, and kept off 0 and 1.

    In the upper tail it is as accurate as a float near 1 can be.
    """
    tail = torch.erfc(scores.abs() * math.sqrt(0.5)) / 2
    return torch.where(scores > 0, 1 - tail, tail).clamp(LOWEST, HIGHEST)


def log_cell_probabilities(correlation: Tensor, low: Tensor, high: Tensor) -> Tensor:
    r"""Returns log-probabilities of cells whose coordinates are all correlated; log-densities where they are points.

    Points are conditioned on exactly. The probability of what is left is an integral over all but one of the intervals,
    in the order of their widths, by separation of variables with tilted normals: exact for one interval; by
    Gauss-Legendre quadrature for two; an average over a fixed lattice for more.

    Args:
        correlation: float64, shape ``(d, d)``.
        low: lower edges, float64 in [0, 1], shape ``(n, d)``.
        high: upper edges; a coordinate is a point where they are equal. Gradients flow to points only.

    Returns:
        Shape ``(n,)``.

    References:
        Genz. Numerical Computation of Multivariate Normal Probabilities. 1992. Botev. The Normal Law under Linear
        Restrictions: Simulation and Estimation via Minimax Tilting. 2017.

    Example:
        >>> low, high = torch.zeros(1, 2, dtype=torch.float64), torch.full((1, 2), 0.5, dtype=torch.float64)
        >>> correlation = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
        >>> round(float(log_cell_probabilities(correlation, low, high).exp()), 4)  # 1/4 + arcsin(0.5) / (2 pi)
        0.3333
    """
    num_dims = correlation.shape[0]
    width, middle = (high - low).detach(), (low + high) / 2
    is_point = width <= POINT_SHARE * torch.minimum(low, 1 - high).detach()
    num_points = is_point.sum(1)
    order = torch.where(is_point, -1.0, width).argsort(dim=1, stable=True)
    # So that a position in that order is a point in all rows or in none.
    results, indices = [], []
    for count in sorted(set(num_points.tolist())):
        rows = (num_points == count).nonzero().squeeze(1)
        numbers = num_dims * (num_dims if num_dims - count < 2 else max(num_dims, _NUM_POINTS))
        for part in rows.split(max(1, _MAX_NUMBERS // numbers)):
            columns = order[part]
            factor = torch.linalg.cholesky(correlation[columns.unsqueeze(2), columns.unsqueeze(1)])
            points = middle[part].gather(1, columns[:, :count])
            result, scores = _condition(factor[:, :count, :count], normal_scores(points))
            narrow = width[part].gather(1, columns[:, :count])
            result = result + torch.where(narrow > 0, narrow, 1.0).log().sum(1)
            if count < num_dims:
                edges = [edge.detach()[part].gather(1, columns[:, count:]) for edge in (low, high)]
                mean = _product(factor[:, count:, :count], scores)
                result = result + _integrate(factor[:, count:, count:], mean, *map(torch.special.ndtri, edges))
            results.append(result)
            indices.append(part)
    if not indices:
        return middle.sum(1)
    return torch.cat(results)[torch.cat(indices).argsort()]


def _product(factor: Tensor, scores: Tensor) -> Tensor:
    """Rows of (n, i, k) matrices times (n, k) vectors, summed in order so that no row depends on those beside it."""
    total = factor.new_zeros(factor.shape[:2])
    for index in range(scores.shape[1]):
        total = total + factor[:, :, index] * scores[:, index : index + 1]
    return total


def _condition(factor: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The log-density of points (n, p) with respect to independent normals, and their independent scores."""
    whitened: list[Tensor] = []
    result = scores.new_zeros(scores.shape[0])
    for index in range(scores.shape[1]):
        rest = scores[:, index]
        for other, score in enumerate(whitened):
            rest = rest - factor[:, index, other] * score
        deviation = factor[:, index, index]
        whitened.append(rest / deviation)
        result = result + (scores[:, index].square() - whitened[-1].square()) / 2 - deviation.log()
    return result, torch.stack(whitened, 1) if whitened else scores


def _integrate(factor: Tensor, mean: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Log-probability that mean + factor @ normal is between the edges; all (n, m) with factor (n, m, m)."""
    num_dims = mean.shape[1]
    points, log_weights = (part.to(mean) for part in _points(num_dims - 1))
    tilts = _tilts(factor, (low - mean).detach(), (high - mean).detach())
    total: Tensor = log_weights
    draws: list[Tensor] = []
    for index in range(num_dims):
        centre = mean[:, index : index + 1]
        for other, draw in enumerate(draws):
            centre = centre + factor[:, index, other : other + 1] * draw
        deviation, tilt = factor[:, index, index : index + 1], tilts[:, index : index + 1]
        lower, upper = ((edge[:, index : index + 1] - centre) / deviation - tilt for edge in (low, high))
        log_prob, quantiles = truncated_normal(lower, upper, points[:, index] if index < num_dims - 1 else None)
        total = total + log_prob
        if quantiles is not None:
            draws.append(quantiles + tilt)
            total = total - tilt * (quantiles + tilt / 2)
    return total.logsumexp(1)


def _tilts(factor: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Shifts of the independent normals under which they fall in the rectangle about evenly; the last is 0.

    Any shifts are right; these are those of a saddle point at the mean of the best product of truncated normals.
    """
    if factor.shape[1] == 1:
        return torch.zeros_like(low)
    precision = torch.cholesky_inverse(factor)
    diagonal = precision.diagonal(dim1=1, dim2=2)
    deviation = diagonal.rsqrt()
    mean = torch.where(low > 0, low, torch.where(high < 0, high, 0.0))
    for _ in range(_NUM_SWEEPS):
        for index in range(factor.shape[1]):
            pull = (precision[:, index] * mean).sum(1)
            centre = mean[:, index] - pull / diagonal[:, index]
            mean[:, index] = _truncated_mean(centre, deviation[:, index], low[:, index], high[:, index])
    pull = (precision * mean.unsqueeze(1)).sum(2)
    whitened = torch.linalg.solve_triangular(factor, mean.unsqueeze(2), upper=False).squeeze(2)
    tilts: Tensor = whitened - factor.diagonal(dim1=1, dim2=2) * pull
    return tilts


def _truncated_mean(centre: Tensor, deviation: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The mean of a normal in an interval; about that far out in a tail."""
    low, high = (low - centre) / deviation, (high - centre) / deviation
    log_prob, _ = truncated_normal(low, high, None)
    log_height = -math.log(2 * math.pi) / 2 - log_prob
    excess = (log_height - low.square() / 2).exp() - (log_height - high.square() / 2).exp()
    return centre + deviation * torch.minimum(torch.maximum(excess, low), high)


def truncated_normal(low: Tensor, high: Tensor, fractions: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Returns the log-probability that a standard normal is in an interval, and its quantiles there at ``fractions``.

    Both are computed in the lower tail, where floats are dense, of the normal or of its mirror image.
    """
    flipped = low + high > 0
    low, high = torch.where(flipped, -high, low), torch.where(flipped, -low, high)
    below, up_to = (torch.erfc(edge * -math.sqrt(0.5)) / 2 for edge in (low, high))
    deep = up_to < _DEEP
    some_deep = bool(deep.any())
    log_prob = torch.where(deep, 1.0, up_to - below).log()
    if some_deep:
        safe_high = torch.where(deep, high, -40.0)
        safe_low = torch.where(deep, torch.maximum(low, high - 100.0), -41.0)
        log_high, log_low = torch.special.log_ndtr(safe_high), torch.special.log_ndtr(safe_low)
        log_prob = torch.where(deep, log_high + torch.log1p(-(log_low - log_high).exp()), log_prob)
    if fractions is None:
        return log_prob, None
    fractions = torch.where(flipped, 1 - fractions, fractions)
    draw: Tensor = torch.special.ndtri((below + fractions * (up_to - below)).clamp(min=1e-300))
    if some_deep:  # a normal's far tail is that of an exponential distribution
        decayed = (safe_high * (safe_high - safe_low)).exp()
        draw = torch.where(deep, safe_high - (fractions + (1 - fractions) * decayed).log() / safe_high, draw)
    return log_prob, torch.where(flipped, -draw, draw)


def _points(num_dims: int) -> tuple[Tensor, Tensor]:
    """Points of the unit cube, always the same, shape ``(p, num_dims)``, with their log-weights, shape ``(1, p)``."""
    if num_dims == 1:
        nodes, weights = np.polynomial.legendre.leggauss(_NUM_NODES)
        return torch.from_numpy((nodes[:, None] + 1) / 2), torch.from_numpy(np.log(weights / 2)).unsqueeze(0)
    points = lattice_points(num_dims, _NUM_POINTS if num_dims else 1)
    return points, torch.full((1, len(points)), -math.log(len(points)), dtype=torch.float64)


def lattice_points(num_dims: int, num_points: int) -> Tensor:
    """Returns points to average over, always the same: a shifted and folded rank-1 lattice in the unit cube.

    The generating vector is built component by component for the least worst-case error of periodic functions.

    Args:
        num_dims: dimensions of the cube.
        num_points: points, a prime number or 1.

    Returns:
        float64, shape ``(num_points, num_dims)``.

    References:
        Dick, Kuo, Sloan. High-Dimensional Integration: The Quasi-Monte Carlo Way. 2013. Section 5.
    """
    return torch.from_numpy(_lattice(num_dims, num_points))


@lru_cache(maxsize=64)  # of an array: a tensor made in inference mode could not be used outside it
def _lattice(num_dims: int, num_points: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    grid, candidates = np.arange(num_points), np.arange(1, num_points // 2 + 1)
    position = candidates[:, None] * grid % num_points / num_points
    kernel = 1 + _LATTICE_WEIGHT * 2 * math.pi**2 * (position**2 - position + 1 / 6)
    chosen: list[int] = []
    product = np.ones(num_points)
    for _ in range(num_dims):
        # Rounded, since the errors of several candidates are equal: the first of them everywhere.
        chosen.append(int(np.round(kernel @ product, 6).argmin()))
        product = product * kernel[chosen[-1]]
    shifts = np.arange(1, num_dims + 1) * (math.sqrt(5) - 1) / 2
    lattice: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    lattice = 1 - np.abs(2 * ((position[chosen].T + shifts) % 1) - 1)
    return lattice
