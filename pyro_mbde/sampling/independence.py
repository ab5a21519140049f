"""Metropolis chains that propose fresh draws of the base: with a bound on how far they are from the target."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_mbde._checks import check_count
from pyro_mbde.density.bounds import Bounds
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.rejection import RandomSource
from pyro_mbde.density.scoring import score_rows


def total_variation_bound(bounds: Bounds, num_steps: int) -> float:
    r"""Returns how far n independence steps from any start can be from the target, in total variation.

    Proposing :math:`y \sim Q_0` and accepting with probability :math:`\min(1, e^{f(y) - f(x)})` moves from x to a set A
    with probability at least

    .. math::
        \int_A q_0(y) \min(1, e^{f(y) - f(x)})\, dy = \int_A q(y)\, e^{\phi} \min(e^{-f(y)}, e^{-f(x)})\, dy
        \ge e^{\phi - hi}\, Q(A) \ge e^{-R}\, Q(A),

    since :math:`\phi \ge lo`. So every step, wherever it starts, is with probability :math:`e^{-R}` a draw of Q itself
    (Doeblin), and :math:`\|K^n(x, \cdot) - Q\|_{TV} \le (1 - e^{-R})^n`. Computed from the public R alone.

    Args:
        bounds: public interval of the tilt, in nats.
        num_steps: n, at least 0.

    Returns:
        The bound, in [0, 1].

    Raises:
        TypeError: ``num_steps`` is not a whole number.
        ValueError: ``num_steps`` is below 0.

    References:
        Mengersen, Tweedie. Rates of convergence of the Hastings and Metropolis algorithms. 1996. Theorem 2.1.

    Example:
        >>> total_variation_bound(Bounds(-0.5, 0.5), 10)  # doctest: +ELLIPSIS
        0.0101...
    """
    num_steps = check_count("num_steps", num_steps, minimum=0)
    # 1 - exp(-R), which is 0 for a tilt without width: one step is then a draw of Q.
    return float(-math.expm1(-bounds.width)) ** num_steps


class IndependenceState(NamedTuple):
    """Where chains are: values ``(num_chains, *event_shape)`` and the tilt there, float64 ``(num_chains,)``."""

    values: Tensor
    tilts: Tensor


def independence_step(
    q: MollifiedExpFamily, source: RandomSource, state: IndependenceState
) -> tuple[IndependenceState, Tensor]:
    """Moves every chain by one step.

    Args:
        q: the fitted density.
        source: randomness for proposals and acceptance.
        state: where the chains are.

    Returns:
        Where they are now, and the probability with which each proposal was accepted, shape ``(num_chains,)``.
    """
    num_chains = len(state.values)
    proposals = source.propose(num_chains)
    tilts = score_rows(q.tilt, proposals)
    accept_prob = (tilts - state.tilts).clamp(max=0).exp()
    accepted = source.uniforms(num_chains).to(accept_prob.device) < accept_prob
    shape = (num_chains,) + (1,) * (state.values.dim() - 1)
    values = torch.where(accepted.reshape(shape), proposals, state.values)
    return IndependenceState(values, torch.where(accepted, tilts, state.tilts)), accept_prob
