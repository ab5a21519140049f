"""Last states of fresh chains: constant-time draws, with a guarantee whether the chains have converged or not."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from pyro_mbde._checks import check_count
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.privacy.guarantee import Guarantee
from pyro_mbde.sampling.plan import plan_draws
from pyro_mbde.sampling.private import draw_rows


class FreshDraws(NamedTuple):
    """Last states of fresh chains.

    Attributes:
        values: shape ``(num_draws, *event_shape)``.
        guarantee: the a-priori guarantee of each of them.
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
    r"""Runs one Metropolis chain for each draw, from a fresh draw of the base, and returns only the last states.

    Unlike exact draws, they take the same number of proposals whatever the table was: ``num_draws`` times
    ``num_steps``, besides the starting points. The chains propose fresh draws of the base
    (:func:`~pyro_mbde.sampling.independence.independence_step`), so any base works.

    Privacy:
        Each draw has the guarantee of :func:`~pyro_mbde.sampling.independence.fresh_guarantee`, :math:`\epsilon = 2R`
        and no delta, for any number of steps chosen beforehand, converged or not. The costs of several draws add up as
        in :func:`~pyro_mbde.privacy.accounting.compose`. Randomness is the operating system's, as for
        :func:`~pyro_mbde.private_draws`. Not covered are states before the last, acceptance rates, chains that start at
        an earlier draw, and chains whose number of steps was chosen by looking at them.

    Args:
        q: the fitted density.
        num_draws: number of chains, at least 1.
        num_steps: steps of each, at least 0. :func:`~pyro_mbde.sampling.independence.total_variation_bound` says how
            near to the density they bring the draws.
        seed: for tests only; a seeded draw is not private, and a warning says so.
        progress: whether to show a progress bar when it takes more than a second.

    Returns:
        :class:`FreshDraws`.

    Raises:
        ValueError: the device is neither a CPU nor CUDA's.

    Example:
        >>> import torch
        >>> from pyro_mbde import MBDE
        >>> base = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
        >>> q = MBDE(base, epsilon=1.0, progress=False).fit(torch.linspace(0, 1, 500))
        >>> draws = fresh_chains(q, num_draws=3, num_steps=20)
        >>> draws.values.shape, draws.guarantee.epsilon
        (torch.Size([3]), 1.0)
    """
    plan = plan_draws(q, num_steps=num_steps)
    values = draw_rows(q, plan, check_count("num_draws", num_draws), seed=seed, progress=progress)
    return FreshDraws(values, plan.guarantee, plan.total_variation)
