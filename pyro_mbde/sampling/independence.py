"""Metropolis chains that propose fresh draws of the base: distance from the target, guarantee of their last states."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_mbde._checks import check_count
from pyro_mbde.density.bounds import Bounds
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.rejection import RandomSource
from pyro_mbde.privacy.guarantee import Guarantee


def total_variation_bound(bounds: Bounds, num_steps: int) -> float:
    r"""Returns a bound on the total variation between the target and the law after n independence steps.

    The bound holds for any starting point. It is :math:`(1 - e^{-R})^n`, computed only from the public R. Proof:
    docs/proofs.md, *Distance of independence chains*.

    Args:
        bounds: public interval of the tilt, in nats.
        num_steps: n, at least 0.

    Returns:
        The bound, in [0, 1].

    References:
        Mengersen, Tweedie. Rates of convergence of the Hastings and Metropolis algorithms. 1996. Theorem 2.1.

    Example:
        >>> total_variation_bound(Bounds(-0.5, 0.5), 10)  # doctest: +ELLIPSIS
        0.0101...
    """
    num_steps = check_count("num_steps", num_steps, minimum=0)
    # 1 - exp(-R), which is 0 for a tilt of width 0: one step is then a draw of Q.
    return float(-math.expm1(-bounds.width)) ** num_steps


def fresh_guarantee(bounds: Bounds) -> Guarantee:
    r"""Returns the guarantee of the last state of a chain that started at a fresh draw of the base.

    If the kernel leaves q invariant, the law after any number of steps chosen beforehand has a log-ratio to
    :math:`q_0` in [-R, R], converged or not, up to rounding. So two tables' laws are within :math:`\epsilon = 2R` of
    each other, with a range of 4R, and without delta. Proof: docs/proofs.md, *Last states of fresh chains*.

    References:
        Levin, Peres. Markov Chains and Mixing Times. 2nd edition, 2017. Section 1.6 (time reversal).

    Example:
        >>> fresh_guarantee(Bounds(-0.25, 0.25))
        Guarantee(epsilon=1.0, delta=0.0, log_ratio_range=2.0)
    """
    return Guarantee(2 * bounds.width, 0.0, 4 * bounds.width)


class IndependenceState(NamedTuple):
    """The states of chains: values ``(num_chains, *event_shape)`` and the tilt there, float64 ``(num_chains,)``."""

    values: Tensor
    tilts: Tensor


def independence_step(
    q: MollifiedExpFamily, source: RandomSource, state: IndependenceState
) -> tuple[IndependenceState, Tensor]:
    """Moves every chain by one step.

    Returns:
        The new states, and the probability with which each proposal was accepted, float64 of shape ``(num_chains,)``.
    """
    num_chains = len(state.values)
    proposals = source.propose(num_chains)
    tilts = q.accepted_tilt(proposals)
    accept_prob = (tilts - state.tilts).clamp(max=0).exp()
    accepted = source.uniforms(num_chains).to(accept_prob.device) < accept_prob
    shape = (num_chains,) + (1,) * (state.values.dim() - 1)
    values = torch.where(accepted.reshape(shape), proposals, state.values)
    return IndependenceState(values, torch.where(accepted, tilts, state.tilts)), accept_prob


def last_states(
    q: MollifiedExpFamily, source: RandomSource, num_chains: int, num_steps: int, on_step: Callable[[], object]
) -> Tensor:
    """Returns the states of chains after a number of steps from fresh draws of the base."""
    starts = source.propose(num_chains)
    state = IndependenceState(starts, q.accepted_tilt(starts))
    for _ in range(num_steps):
        state, _ = independence_step(q, source, state)
        on_step()
    return state.values
