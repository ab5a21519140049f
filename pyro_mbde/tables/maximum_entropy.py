r"""The law of a mean and a standard deviation on a range: the one of most entropy, p(x) ~ exp(a x + b x^2).

The natural parameters are the minimum of the convex dual log Z(a, b) - a E[x] - b E[x^2] over a fixed quadrature.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.polynomial import legendre
from scipy.special import logsumexp  # type: ignore[import-untyped]  # SciPy ships no types

from pyro_mbde._checks import argument_error
from pyro_mbde.tables.facts import Numbers, Range

#: Standard deviations, and distances of the mean from the ends, are at least this share of the range.
MIN_SHARE = 2.0**-14
#: Variances are at most this share of the largest that the range and the mean allow.
MAX_VARIANCE = 1 - 2.0**-10
#: Whole numbers: least distance of the mean from the ends, and least excess of the variance over the least possible.
_MIN_DISTANCE, _MIN_EXCESS = 2.0**-10, 2.0**-20
#: Panels of the quadrature in each doubling of the distance from an end or the mean.
_PANELS = 4
_NODES, _WEIGHTS = legendre.leggauss(8)
_POLYNOMIALS = legendre.legvander(_NODES, 7)


def _correction(order: int, factor: float) -> Numbers:
    """Weights of a term of Euler and Maclaurin's formula for midpoints, exact for polynomials of degree 7."""
    units = [np.eye(8)[k] for k in range(8)]
    slopes = np.array(
        [legendre.legval(1, d) - legendre.legval(-1, d) for d in (legendre.legder(u, order) for u in units)]
    )
    sums: Numbers = _WEIGHTS * (_POLYNOMIALS @ (factor * slopes * (2 * np.arange(8) + 1) / 2))
    return sums


_FIRST, _THIRD = _correction(1, -1 / 24), _correction(3, 7 / 5760)


def quadrature(edges: Numbers, whole: bool) -> tuple[Numbers, Numbers]:
    """Returns nodes and weights, both ``(K, 8)``, for integrals over cells, or sums over their whole numbers.

    Args:
        edges: rising, ``(K + 1,)``; whole numbers if ``whole``: the cell [a, b) then is a, ..., b - 1.
        whole: whether to sum.
    """
    low, count = edges[:-1, None], np.diff(edges)[:, None]
    if not whole:
        return low + count * (_NODES + 1) / 2, count / 2 * _WEIGHTS + 0 * low
    # m numbers are midpoints of m intervals from a - 1/2 on; in units of half their length, intervals are h = 2 / m.
    step = 2 / count
    nodes, weights = low - 0.5 + count * (_NODES + 1) / 2, (_WEIGHTS + step**2 * _FIRST + step**4 * _THIRD) / step
    few = count <= 8
    place = np.arange(8)
    return np.where(few, low + np.minimum(place, count - 1), nodes), np.where(few, place < count, weights)


def check_moments(span: Range, mean: float, sd: float | None) -> float:
    """Raises if no law on a range has a mean and sd; returns the smallest distance that a quadrature has to resolve."""
    low, high = span.low, span.high
    # A linear scale resolves a share of its width everywhere, log1p a share of 1 + x.
    width = MIN_SHARE * (math.log1p(high) - math.log1p(low) if span.logarithmic else high - low)
    least = {x: width * (1 + x) if span.logarithmic else width for x in (low, mean, high)}
    if span.whole:
        least = dict.fromkeys(least, _MIN_DISTANCE)
    if not low + least[low] <= mean <= high - least[high]:
        allowed = f"[{low + least[low]:.12g}, {high - least[high]:.12g}]"
        remedy = "So close to an end, state a histogram instead."
        raise ValueError(argument_error("mean", f"lie in {allowed}, away from the ends", mean, remedy))
    if sd is None:
        return min(least.values())
    part = mean - math.floor(mean)
    smallest = math.sqrt(part * (1 - part) + _MIN_EXCESS) if span.whole else least[mean]
    largest = math.sqrt(MAX_VARIANCE * (mean - low) * (high - mean))
    if smallest >= largest:
        remedy = "Leave sd out, or move the mean away from the ends."
        raise ValueError(argument_error("mean", "leave room for a standard deviation", mean, remedy))
    if not smallest <= sd <= largest:
        allowed = f"from {smallest:.6g} to {largest:.6g}"
        cause = f"No law from {low:.10g} to {high:.10g} with the mean {mean:.10g} has a larger one."
        if sd < smallest:
            cause = "Narrow the range, or state a histogram."
        raise ValueError(argument_error("sd", f"be {allowed}", sd, cause))
    return min(least.values()) if not span.whole else 1.0


class MaximumEntropy:
    """The law p(x) ~ exp(a x + b x^2) on a range, in the table's units, with a mean and a standard deviation.

    Args:
        span: the range.
        mean: within the range.
        sd: its standard deviation; ``None`` takes the law exp(a x).

    Raises:
        ValueError: no law on the range has them, or one that is too narrow to resolve.
    """

    def __init__(self, span: Range, mean: float, sd: float | None) -> None:
        closest = check_moments(span, mean, sd)
        self.whole, self.mean = span.whole, mean
        self.unit = sd if sd is not None else min(mean - span.low, span.high - mean)
        self._edges = _fine_edges(span, mean, closest)
        nodes, weights = quadrature(self._edges, self.whole)
        kept = weights.ravel() > 0
        features = self._features(nodes.ravel()[kept], sd is not None)
        # A normal law, over several whole numbers at least: on one alone the dual would be flat.
        start = np.array([0.0, -0.5 * (self.unit / max(self.unit, 2.0 * self.whole)) ** 2][: 1 + (sd is not None)])
        self._natural_params, self._log_normalizer = _least_dual(features, np.log(weights.ravel()[kept]), start)

    def densities(self, values: Numbers) -> Numbers:
        """Returns densities, of whole numbers probabilities."""
        features = self._features(values, len(self._natural_params) == 2)
        return np.exp(features @ self._natural_params - self._log_normalizer)

    def masses(self, edges: Numbers) -> Numbers:
        """Returns the masses of cells between edges."""
        nodes, weights = quadrature(edges, self.whole)
        return np.asarray((self.densities(nodes.ravel()).reshape(nodes.shape) * weights).sum(1))

    def quantiles(self, levels: Numbers) -> Numbers:
        """Returns points near those below which a share of the mass is."""
        return np.interp(levels, np.concatenate([[0.0], self.masses(self._edges).cumsum()]), self._edges)

    def _features(self, values: Numbers, squared: bool) -> Numbers:
        scaled = (values - self.mean) / self.unit
        return np.stack([scaled, scaled**2 - 1] if squared else [scaled], -1)


def _fine_edges(span: Range, mean: float, closest: float) -> Numbers:
    """Edges of the quadrature: ever closer to the ends and the mean, where the law can be steep."""
    low, high, width = span.low, span.high + span.whole, span.high - span.low
    if span.whole and high - low <= 4096:
        return np.arange(low, high + 1)
    smallest = 1.0 if span.whole else closest / 64
    distances = np.geomspace(smallest, width, 2 + int(_PANELS * math.log2(width / smallest)))
    points = np.concatenate([[low, high, mean], low + distances, high - distances, mean + distances, mean - distances])
    if span.whole:
        points = np.rint(points)
    return np.unique(points.clip(low, high))


def _least_dual(features: Numbers, log_weights: Numbers, start: Numbers) -> tuple[Numbers, float]:
    """Returns the natural parameters at which features have mean 0, and the log-normaliser; Newton's method, damped."""

    def dual(params: Numbers) -> Any:
        return logsumexp(features @ params + log_weights)

    params, value = start, dual(start)
    for _ in range(200):
        weights = np.exp(features @ params + log_weights - value)
        gradient = weights @ features
        if np.abs(gradient).max() < 1e-8:
            break
        centred = features - gradient
        hessian = (centred * weights[:, None]).T @ centred
        step = np.linalg.lstsq(hessian, -gradient, rcond=1e-15)[0]
        slope, size, rounding = float(gradient @ step), 1.0, 1e-14 * max(1.0, abs(value))
        while (trial := dual(params + size * step)) > value + 1e-4 * size * slope + rounding and size > 1e-12:
            size /= 2
        params, value = params + size * step, trial
    return params, float(value)
