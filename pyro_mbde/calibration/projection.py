"""The KL projection: the density nearest to P that public bounds allow."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pyro_mbde._checks import argument_error
from pyro_mbde.density.bounds import Bounds


def project(log_ratio: Tensor, log_weights: Tensor, bounds: Bounds) -> float:
    r"""Returns the shift of the best calibrated density, in nats: the KL projection of P.

    Of all densities with :math:`lo \le \log q/q_0 \le hi`, the one that minimises KL(P, Q), so maximises
    :math:`E_P[\log q/q_0]`, has

    .. math::
        \log \frac{q}{q_0} = \mathrm{clip}\Bigl(\log \frac{p}{q_0} - s,\, lo,\, hi\Bigr), \qquad
        s \text{ such that } \phi(s) = \log E_{Q_0}\, e^{\mathrm{clip}(\log p/q_0 - s,\, lo,\, hi)} = 0 .

    Proof: docs/proofs.md, *The KL projection*. :math:`\phi(s)` falls as s rises, and its root is found by bisection.
    (With much mass at infinities or NaN it may have none; the nearer end of the search is returned then, and no
    certificate will be given for it.)

    Args:
        log_ratio: log p/q0 at points of the base, float64 of shape ``(n,)``. What is infinite or NaN is clipped as by
            :func:`clip_score`; see :func:`rank_last` for a target that vanishes where the base does not.
        log_weights: logarithms of the points' weights under Q0, shape ``(n,)``; need not be normalised.
        bounds: the interval, with ``low < 0 < high``, in nats.

    References:
        Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018. Theorem 6 (what no density
        of the set can exceed). Csiszar. I-divergence geometry of probability distributions. Annals of Probability,
        1975.

    Example:
        >>> ratio = torch.tensor([5.0, 0.0, -5.0], dtype=torch.float64)
        >>> shift = project(ratio, torch.zeros(3), Bounds(-0.5, 0.5))
        >>> clipped = (ratio - shift).clamp(-0.5, 0.5)
        >>> clipped, abs(float(clipped.exp().mean().log())) < 1e-12
        (tensor([ 0.5000, -0.2947, -0.5000], dtype=torch.float64), True)
    """
    if not bounds.low < 0 < bounds.high:
        raise ValueError(argument_error("bounds", "hold 0 strictly between them", bounds))
    finite = log_ratio[torch.isfinite(log_ratio)]
    smallest, largest = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    phi = _log_normalizer_of_shift(log_ratio, log_weights, bounds)
    return _falling_root(phi, smallest - bounds.high, largest - bounds.low)


def rank_last(log_ratio: Tensor, bounds: Bounds) -> Tensor:
    """Returns a log-ratio in which points that the target never visits come last, but are not infinitely far.

    Where p vanishes any density serves that the other points leave room for. The clip of :func:`project` finds it if
    these points rank below all others by the width of the interval.
    """
    finite = log_ratio[torch.isfinite(log_ratio)]
    return torch.nan_to_num(log_ratio, neginf=float(finite.min()) - bounds.width - 1 if len(finite) else 0.0)


def project_a_priori(log_ratio: Tensor, log_weights: Tensor, bounds: Bounds) -> float:
    r"""Returns the shift of the best density with an a-priori guarantee, in nats; arguments as for :func:`project`.

    There only the tilt is bounded. Where the interval lies makes no difference, since a constant added to the tilt
    makes none. The tilt that gains most is :math:`f = \mathrm{clip}(\log p/q_0 - s, lo, hi)` with :math:`s = -\phi(s)`.
    Where nothing is clipped there are many such s, all of which give the same density. Proof: docs/proofs.md, *The
    a-priori projection*.

    Example:
        >>> ratio = torch.tensor([1.0, -1.0], dtype=torch.float64)
        >>> round(project_a_priori(ratio, torch.zeros(2), Bounds(-0.25, 0.25)), 4)  # f = +-R/2, phi = log cosh(R/2)
        -0.0309
    """
    phi = _log_normalizer_of_shift(log_ratio, log_weights, bounds)
    return _falling_root(lambda shift: -shift - phi(shift), -bounds.high, -bounds.low)


def _log_normalizer_of_shift(log_ratio: Tensor, log_weights: Tensor, bounds: Bounds) -> Callable[[float], float]:
    """The function phi(s): what is clipped is found in sorted sums, and only what lies between is summed again."""
    weights = torch.softmax(log_weights.double(), 0)
    unknown = torch.isnan(log_ratio)
    of_unknown = float(weights[unknown].sum()) * math.exp((bounds.low + bounds.high) / 2)
    values, order = log_ratio[~unknown].double().sort()
    weights = weights[~unknown][order]
    mass = torch.cat([weights.new_zeros(1), weights.cumsum(0)])

    def phi(shift: float) -> float:
        edges = torch.tensor([shift + bounds.low, shift + bounds.high], dtype=torch.float64, device=values.device)
        first, last = torch.searchsorted(values, edges).tolist()
        below, above = float(mass[first]), float(mass[-1] - mass[last])
        between = float((weights[first:last] * (values[first:last] - shift).exp()).sum())
        return math.log(below * math.exp(bounds.low) + between + above * math.exp(bounds.high) + of_unknown)

    return phi


def _falling_root(function: Callable[[float], float], low: float, high: float) -> float:
    """The root of a falling function in [low, high], by bisection to a few units in the twelfth digit."""
    while high - low > 1e-12 * max(1.0, abs(low), abs(high)):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return (low + high) / 2
