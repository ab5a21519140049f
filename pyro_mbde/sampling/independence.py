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
from pyro_mbde.density.scoring import score_rows
from pyro_mbde.privacy.guarantee import Guarantee


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


def fresh_guarantee(bounds: Bounds) -> Guarantee:
    r"""Returns the guarantee of the last state of a chain that started at a fresh draw of the base.

    Let the kernel K leave q invariant, start at :math:`\mu_0 = Q_0`, and run for n steps fixed beforehand.

    **Lemma.** :math:`|\log \mu_n / q_0| \le R` almost everywhere.

    *Proof.* Let :math:`h_n = \mu_n / q`. With :math:`K^*(y, dx)` the reversed kernel, :math:`q(x) K(x, dy) = q(y)
    K^*(y, dx)`, itself a Markov kernel because K leaves q invariant, one step gives

    .. math::
        \mu_{n+1}(dy) = \int q(x)\, h_n(x)\, K(x, dy)\, dx = q(y)\, dy \int h_n(x)\, K^*(y, dx) ,

    so :math:`h_{n+1}(y)` is an average of :math:`h_n`, and no step takes it out of the interval it starts in. There,
    :math:`h_0 = q_0 / q = e^{\phi - f} \in [e^{\phi - hi}, e^{\phi - lo}]`. Hence :math:`\mu_n / q_0 = h_n\, e^{f -
    \phi} \in [e^{f - hi}, e^{f - lo}] \subseteq [e^{-R}, e^{R}]`.

    So the laws for two tables are both within R of the same :math:`q_0`: the log-ratio is at most :math:`\epsilon =
    2R`, its range over the outcomes at most :math:`4R`. Neither the normaliser nor convergence comes into it, so there
    is no delta.

    In floating point: the independence step proposes the same floats as :math:`Q_0` draws, so it is reversible up to
    the rounding of the acceptance probability, by at most :math:`a = 2^{-53}(e^R + R + 2)` relative, and each step may
    add 2a to the log-ratio to :math:`q_0`: below :math:`10^{-11}` for a thousand steps at R = 2.5. A random walk does
    not keep q invariant in floats, which is why it is not offered here.

    Args:
        bounds: public interval of the tilt, in nats.

    Returns:
        epsilon 2R, delta 0, range 4R.

    References:
        Levin, Peres. Markov Chains and Mixing Times. 2nd edition, 2017. Section 1.6 (time reversal).

    Example:
        >>> fresh_guarantee(Bounds(-0.25, 0.25))
        Guarantee(epsilon=1.0, delta=0.0, log_ratio_range=2.0)
    """
    return Guarantee(2 * bounds.width, 0.0, 4 * bounds.width)


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


def last_states(
    q: MollifiedExpFamily, source: RandomSource, num_chains: int, num_steps: int, on_step: Callable[[], object]
) -> Tensor:
    """Returns where chains are after a number of steps from fresh draws of the base.

    Args:
        q: the fitted density.
        source: randomness.
        num_chains: number of chains, at least 1.
        num_steps: steps of each, at least 0.
        on_step: called after each step.
    """
    starts = source.propose(num_chains)
    state = IndependenceState(starts, score_rows(q.tilt, starts))
    for _ in range(num_steps):
        state, _ = independence_step(q, source, state)
        on_step()
    return state.values
