r"""The log-normaliser :math:`\phi = \log E_{Q_0} e^f` of a tilted base."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._checks import check_count, check_number
from pyro_mbde.density.base import PreparedBase
from pyro_mbde.density.base_draws import quasi_draws
from pyro_mbde.density.bounds import Bounds

#: Independent replicates of quasi-random draws, whose scatter tells the error of their average.
NUM_REPLICATES = 16


@dataclass(frozen=True)
class LogNormalizer:
    r"""The log-normaliser :math:`\phi = \log E_{Q_0} e^f` and how well it is known.

    Private: it is computed from the table. Draws use it only to size their batches, so its error affects only
    ``log_prob``: the density integrates to ``exp(true phi - value)``.

    Args:
        value: phi, in nats.
        standard_error: standard error of ``value``, in nats; 0 for a finite base, over which phi is summed. It covers
            what the draws met: a region too rare for any of them affects neither number.

    Example:
        >>> LogNormalizer(0.1, standard_error=1e-4)
        LogNormalizer(value=0.1, standard_error=0.0001)
    """

    value: float
    standard_error: float = 0.0

    def __post_init__(self) -> None:
        """Checks the ranges."""
        check_number("log_normalizer", self.value, "be finite", math.isfinite)
        check_number("standard_error", self.standard_error, "be finite and at least 0", lambda v: 0 <= v < math.inf)


def estimate_log_normalizer(
    tilt: Callable[[Tensor], Tensor], base: Distribution | PreparedBase, bounds: Bounds, *, num_draws: int = 2**16
) -> LogNormalizer:
    r"""Estimates :math:`\phi = \log E_{Q_0} e^f` with its standard error.

    Exact where the base can be enumerated. Else an average over ``num_draws`` draws of the base in 16 independent
    replicates: scrambled Sobol points pushed through the base's inverse distribution function where it has one, plain
    draws elsewhere (:func:`replicated_log_normalizer`).

    Args:
        tilt: f, mapping values of shape ``(n, *event_shape)`` to float64 of shape ``(n,)``.
        base: the public base distribution, with empty batch shape.
        bounds: interval of the tilt; phi lies in it and is held to it.
        num_draws: number of draws of the base, at least 32; rounded down to a multiple of 16.

    Returns:
        phi and its standard error, in nats. Private.

    References:
        Owen. Scrambled net variance for integrals of smooth functions. Annals of Statistics, 1997.

    Example:
        >>> coin = torch.distributions.Bernoulli(torch.tensor(0.5))
        >>> phi = estimate_log_normalizer(lambda value: value.double(), coin, Bounds(0.0, 1.0))
        >>> round(phi.value, 4)  # log((1 + e) / 2)
        0.6201
    """
    prepared = PreparedBase.of(base)
    finite = prepared.finite
    if finite is not None:
        exact = float(torch.logsumexp(finite.log_weights + tilt(finite.points), 0))
        return LogNormalizer(bounds.clamp(exact))
    size = check_count("num_draws", num_draws, minimum=2 * NUM_REPLICATES) // NUM_REPLICATES
    return replicated_log_normalizer(
        torch.stack([tilt(quasi_draws(prepared.distribution, size)) for _ in range(NUM_REPLICATES)]), bounds
    )


def replicated_log_normalizer(tilts: Tensor, bounds: Bounds) -> LogNormalizer:
    """Returns phi from the tilt on independent replicates of quasi-random draws of the base.

    The standard error is that of the replicates' average, through the logarithm (delta method).
    """
    num_replicates, size = tilts.shape
    log_means = torch.logsumexp(tilts, 1) - math.log(size)
    # Relative to the largest, so that nothing overflows.
    relative = (log_means - log_means.max()).exp()
    value = float(log_means.max() + relative.mean().log())
    standard_error = float(relative.std() / math.sqrt(num_replicates) / relative.mean())
    return LogNormalizer(bounds.clamp(value), standard_error)
