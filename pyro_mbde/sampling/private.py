"""Draws to hand out."""

from __future__ import annotations

import secrets
import warnings

from torch import Tensor

from pyro_mbde._runtime import check_count, check_seed, seeded
from pyro_mbde.distribution import MollifiedExpFamily


def private_draws(q: MollifiedExpFamily, num_draws: int, *, seed: int | None = None) -> Tensor:
    r"""Returns exact draws made with fresh randomness from the operating system: rows that may be handed out.

    torch's global generator starts from the same fixed seed in every process, and a draw whose randomness is known
    protects nobody. Here a generator is seeded with 63 bits from the operating system, used for this call alone, and
    thrown away.

    Privacy:
        The rows together carry :func:`~pyro_mbde.privacy.accounting.compose` of ``q.guarantee`` and ``num_draws``. The
        time taken is not covered.

    Args:
        q: the fitted density.
        num_draws: number of rows, at least 1.
        seed: for tests only; a seeded draw is not private, and a warning says so.

    Returns:
        Tensor of shape ``(num_draws, *event_shape)``.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: ``num_draws`` is below 1, or the seed is negative.
    """
    num_draws = check_count("num_draws", num_draws)
    if check_seed(seed) is None:
        seed = secrets.randbits(63)
    else:
        warnings.warn("These draws are seeded: for tests only, not private, not to be handed out.", stacklevel=2)
    with seeded(seed):
        return q.rejection_draws(num_draws).values
