"""The best density that a guarantee allows, for a target known in full."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._checks import argument_error, check_choice, check_count, check_epsilon
from pyro_mbde.calibration.projection import project, project_a_priori, rank_last
from pyro_mbde.density.base_draws import quasi_draws
from pyro_mbde.density.bounds import Bounds, check_skew, clip_score, skewed_bounds
from pyro_mbde.density.normalizer import NUM_REPLICATES, replicated_log_normalizer
from pyro_mbde.metrics import Box, quadrature_grid

#: Grid points per dimension: a clip's kinks want a finer grid than a density.
_POINTS_PER_DIM = {1: 40_000, 2: 1_000}
GUARANTEES = ("calibrated", "a-priori")


class BestReachable(NamedTuple):
    """What the best density of a set reaches.

    Attributes:
        gain: KL(P, Q0) - KL(P, Q), in nats.
        nll: its negative log-likelihood -E_P[log q], in nats.
        standard_error: of the gain, in nats; 0 by quadrature.
        nll_standard_error: of the NLL, in nats; 0 by quadrature.
    """

    gain: float
    nll: float
    standard_error: float
    nll_standard_error: float


def best_reachable(
    target: Distribution,
    base: Distribution,
    epsilon: float,
    skew: float = 0.5,
    *,
    guarantee: str = "calibrated",
    box: Box | None = None,
    num_draws: int = 2**18,
) -> BestReachable:
    r"""Returns what the density nearest to a known target reaches, of all that a guarantee allows.

    ``calibrated``
        of all densities with :math:`\log q/q_0 \in [-\text{skew}\,\epsilon, (1 - \text{skew})\,\epsilon]`, which is an
        epsilon-mollifier: the KL projection (:func:`~pyro_mbde.calibration.projection.project`). Skew 1/2 is the
        paper's
        :math:`\mathcal{M}_\epsilon`.
    ``a-priori``
        of all tilts in an interval of width :math:`\epsilon/2`, whose guarantee needs no certificate
        (:func:`~pyro_mbde.calibration.projection.project_a_priori`); skew has no effect.

    Args:
        target: P, with log-density and draws.
        base: Q0.
        epsilon: privacy parameter of one draw, in nats; above 0.
        skew: where the interval lies, in (0, 1).
        guarantee: ``calibrated`` or ``a-priori``.
        box: lower and upper edge of a cube that holds almost all of P and Q0, for quadrature in one or two dimensions;
            ``None`` for draws, quasi-random ones of Q0 and plain ones of P.
        num_draws: draws of each, where there is no box.

    References:
        Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018. Theorem 6, whose limit
        epsilon/2 no density of its set exceeds.

    Example:
        >>> import pyro.distributions as dist
        >>> target, base = dist.Normal(2.0, 0.5), dist.Normal(0.0, 1.0)
        >>> [round(best_reachable(target, base, 1.0, skew, box=(-6.0, 6.0)).gain, 3) for skew in (0.5, 0.3)]
        [0.5, 0.691]
        >>> round(best_reachable(target, base, 1.0, guarantee="a-priori", box=(-6.0, 6.0)).gain, 3)
        0.401
    """
    epsilon, skew = check_epsilon(epsilon), check_skew(skew)
    guarantee = check_choice("guarantee", guarantee, GUARANTEES)
    with torch.no_grad():
        if box is not None:
            return _by_quadrature(target, base, epsilon, skew, guarantee, box)
        return _by_draws(target, base, epsilon, skew, guarantee, num_draws)


def _place(
    target: Distribution, log_ratio: Tensor, log_weights: Tensor, epsilon: float, skew: float, guarantee: str
) -> tuple[Callable[[Tensor], Tensor], Bounds]:
    """The tilt of the projection, as a function of the log-ratio, and its bounds."""
    # A wider interval than the log-ratio's own changes nothing, and would overflow.
    finite = log_ratio[torch.isfinite(log_ratio)]
    if not len(finite):
        raise ValueError(argument_error("target", "share a part of its support with the base", target))
    widest = (2 * float(finite.abs().max()) + 1) / min(skew, 1 - skew)
    if guarantee == "a-priori":
        bounds = skewed_bounds(min(epsilon / 2, widest), 0.5)
        shift = project_a_priori(log_ratio, log_weights, bounds)
        return lambda ratio: clip_score(ratio, shift, bounds), bounds
    bounds = skewed_bounds(min(epsilon, widest), skew)
    last = float(rank_last(log_ratio, bounds).min())
    shift = project(log_ratio.clamp(min=last), log_weights, bounds)
    return lambda ratio: clip_score(ratio.clamp(min=last), shift, bounds), bounds


def _by_quadrature(
    target: Distribution, base: Distribution, epsilon: float, skew: float, guarantee: str, box: Box
) -> BestReachable:
    points, volume = quadrature_grid(box, target.event_shape, _POINTS_PER_DIM.get(max(target.event_shape.numel(), 1)))
    log_p, log_q0 = target.log_prob(points).double(), base.log_prob(points).double()
    held = (log_p > -math.inf) | (log_q0 > -math.inf)
    log_p, log_q0 = log_p[held], log_q0[held]
    log_ratio = log_p - log_q0
    tilt_of, _ = _place(target, log_ratio, log_q0, epsilon, skew, guarantee)
    tilt = tilt_of(log_ratio)
    weights = torch.softmax(log_p, 0)
    log_normalizer = float(torch.logsumexp(tilt + torch.log_softmax(log_q0, 0), 0))
    gain = float((weights * tilt).sum()) - log_normalizer
    of_base = -float((weights * log_q0)[weights > 0].sum())
    return BestReachable(gain, of_base - gain, 0.0, 0.0)


def _by_draws(
    target: Distribution, base: Distribution, epsilon: float, skew: float, guarantee: str, num_draws: int
) -> BestReachable:
    size = check_count("num_draws", num_draws, minimum=2 * NUM_REPLICATES) // NUM_REPLICATES
    at_base = torch.cat([quasi_draws(base, size) for _ in range(NUM_REPLICATES)])
    at_target = target.sample(torch.Size([num_draws]))
    log_q0 = [base.log_prob(points).double() for points in (at_base, at_target)]
    log_p = [target.log_prob(points).double() for points in (at_base, at_target)]
    ratios = [of_target - of_base for of_target, of_base in zip(log_p, log_q0, strict=True)]
    tilt_of, bounds = _place(target, ratios[0], torch.zeros(len(at_base)), epsilon, skew, guarantee)
    tilts = [tilt_of(ratio) for ratio in ratios]
    phi = replicated_log_normalizer(tilts[0].reshape(NUM_REPLICATES, size), bounds)
    gain = float(tilts[1].mean()) - phi.value
    log_q = log_q0[1] + tilts[1]
    errors = [
        math.hypot(float(values.std()) / math.sqrt(num_draws), phi.standard_error) for values in (tilts[1], log_q)
    ]
    return BestReachable(gain, phi.value - float(log_q.mean()), *errors)
