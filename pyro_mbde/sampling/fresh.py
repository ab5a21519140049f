"""Last states of fresh chains: draws of a fixed amount of work, covered whether the chains have converged or not."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from tqdm import tqdm

from pyro_mbde._checks import check_count
from pyro_mbde._torch_state import single_thread
from pyro_mbde.density.bounds import Bounds
from pyro_mbde.density.distribution import MollifiedExpFamily, check_density
from pyro_mbde.density.scoring import score_rows
from pyro_mbde.privacy.guarantee import Guarantee
from pyro_mbde.sampling.independence import IndependenceState, independence_step, total_variation_bound
from pyro_mbde.sampling.private import random_source


class FreshDraws(NamedTuple):
    """Last states of fresh chains.

    Attributes:
        values: shape ``(num_draws, *event_shape)``.
        guarantee: of each of them, a priori.
        total_variation: a bound on the distance of their law from the density; public.
    """

    values: Tensor
    guarantee: Guarantee
    total_variation: float

    def __repr__(self) -> str:
        """Shows shape, guarantee and bound; the draws are in ``values``."""
        shape, bound = tuple(self.values.shape), f"{self.total_variation:.3g}"
        return f"FreshDraws(values of shape {shape}, {self.guarantee}, total_variation={bound})"


def fresh_chains(
    q: MollifiedExpFamily, num_draws: int, num_steps: int, *, seed: int | None = None, progress: bool = True
) -> FreshDraws:
    r"""Runs one Metropolis chain for each draw, from a fresh draw of the base, and returns the last states alone.

    Unlike exact draws, they take as many proposals whatever the table was: ``num_draws`` times ``num_steps``. The
    chains propose fresh draws of the base (:func:`~pyro_mbde.sampling.independence.independence_step`), so any base
    will do.

    Privacy:
        Each draw carries :func:`fresh_guarantee`, :math:`\epsilon = 2R` and no delta, for any number of steps fixed
        beforehand, converged or not. Several add up by :func:`~pyro_mbde.privacy.accounting.compose`. Randomness is the
        operating system's, as for :func:`~pyro_mbde.private_draws`. States before the last, acceptance rates, chains
        that start at an earlier draw, and a number of steps chosen by looking at them are not covered.

    Args:
        q: the fitted density.
        num_draws: number of chains, at least 1.
        num_steps: steps of each, at least 0. :func:`~pyro_mbde.sampling.independence.total_variation_bound` says how
            many bring the draws near the density.
        seed: for tests only; a seeded draw is not private, and a warning says so.
        progress: whether to show a progress bar when it takes more than a second.

    Returns:
        :class:`FreshDraws`.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: ``q`` has a batch shape, ``num_draws`` is below 1, ``num_steps`` or the seed is negative, or the
            device is neither a CPU nor CUDA's.

    Example:
        >>> import torch
        >>> from pyro_mbde import MBDE
        >>> base = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
        >>> q = MBDE(base, epsilon=1.0, progress=False).fit(torch.linspace(0, 1, 500))
        >>> draws = fresh_chains(q, num_draws=3, num_steps=20)
        >>> draws.values.shape, draws.guarantee.epsilon
        (torch.Size([3]), 1.0)
    """
    check_density(q)
    num_draws = check_count("num_draws", num_draws)
    num_steps = check_count("num_steps", num_steps, minimum=0)
    with (
        random_source(q, seed) as source,
        tqdm(total=num_steps, desc="steps", disable=not progress, delay=1) as bar,
        single_thread(),
    ):
        starts = source.propose(num_draws)
        state = IndependenceState(starts, score_rows(q.tilt, starts))
        for _ in range(num_steps):
            state, _ = independence_step(q, source, state)
            bar.update()
    return FreshDraws(state.values, fresh_guarantee(q.bounds), total_variation_bound(q.bounds, num_steps))


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
