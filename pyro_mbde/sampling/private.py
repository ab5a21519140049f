"""Draws to hand out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from tqdm import tqdm

from pyro_mbde._checks import argument_error, check_seed
from pyro_mbde._torch_state import seeded, single_thread
from pyro_mbde.density.base_draws import SystemSource, TorchSource, system_generator
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.rejection import RandomSource, proposal_batch
from pyro_mbde.sampling.constant_time import constant_time_draws
from pyro_mbde.sampling.independence import last_states
from pyro_mbde.sampling.plan import DrawPlan, check_num_draws, plan_draws


@contextmanager
def random_source(q: MollifiedExpFamily, seed: int | None) -> Iterator[RandomSource]:
    """Provides the randomness of draws to hand out: the operating system's; for tests, with a warning, a seed's."""
    if q.device.type not in ("cpu", "cuda"):
        raise ValueError(
            argument_error("q", "be on a CPU or CUDA device, whose generators can be filled", q.device.type)
        )
    if check_seed(seed) is None:
        with system_generator():
            yield SystemSource(q.base)
        return
    warnings.warn("These draws are seeded: for tests only, not private, not to be handed out.", stacklevel=5)
    with seeded(seed):
        yield TorchSource(q.base)


def draw_rows(
    q: MollifiedExpFamily, plan: DrawPlan, num_draws: int, *, seed: int | None = None, progress: bool = True
) -> Tensor:
    """Draws rows or batches as planned, with the operating system's randomness unless a seed is given."""
    chains = plan.method == "fresh chains"
    total, unit = (plan.count, "steps") if chains else (num_draws, "draws")
    with (
        random_source(q, seed) as source,
        tqdm(total=total, desc=unit, disable=not progress, delay=1) as bar,
        single_thread(),
    ):
        if plan.count is None:
            return q.rejection_draws(
                num_draws,
                source=source,
                # The lowest rate that any table gives, so that batches, and with them memory, depend on public numbers.
                acceptance_rate=math.exp(-q.bounds.width),
                max_proposals=math.inf,
                on_accept=bar.update,
            ).values
        if chains:
            return last_states(q, source, num_draws, plan.count, on_step=bar.update)
        return constant_time_draws(
            source,
            q.accepted_tilt,
            q.bounds,
            num_draws,
            plan.count,
            max_batch=proposal_batch(q.event_shape),
            on_draws=bar.update,
        )


def private_draws(
    q: MollifiedExpFamily,
    num_draws: int,
    *,
    constant_time: bool = False,
    seed: int | None = None,
    progress: bool = True,
) -> Tensor:
    r"""Returns exact draws made with fresh randomness from the operating system: rows that may be handed out.

    Randomness that can be guessed protects nobody, and torch's global generator starts from the same seed in every
    process. Here acceptance is always decided by the system's cryptographic generator, and proposals come from it too
    if the base is finite or has an inverse distribution function (normal, uniform, multivariate normal and their
    transforms, among others). Proposals of other bases come from torch's generator, whose whole state is filled by the
    system: good enough for the few rows that a budget pays for, but not cryptographic. No thread outside this library
    should seed that generator in the meantime.

    Privacy:
        The rows together cost :func:`~pyro_mbde.privacy.accounting.compose` of ``q.guarantee`` and ``num_draws``.
        A draw of a batch density is a batch: its rows together cost epsilon once. Whether the call succeeds depends
        only on public numbers: it is refused before anything is drawn if it could take too many proposals, each row of
        a batch counted (for exact draws, :math:`k e^R`, the largest number that k draws take on average for any table).
        Running time is not covered, except with ``constant_time``: then every draw takes the same public number of
        proposals
        (:func:`~pyro_mbde.sampling.constant_time.constant_time_draws` says what that hides) and has the same guarantee;
        its law is within :math:`2^{-53}` of the density in total variation.

    Args:
        q: the fitted density.
        num_draws: number k of rows, or of batches, at least 1.
        constant_time: whether every draw takes a public number of proposals: about 80 a draw at R = 1, 430 at R = 2.5.
        seed: for tests only; a seeded draw is not private, and a warning says so.
        progress: whether to show a progress bar when it takes more than a second.

    Returns:
        Tensor of shape ``(num_draws, *event_shape)``; of batches of n rows, ``(num_draws, n, d)`` or
        ``(num_draws, n)``.

    Raises:
        ValueError: ``q`` has a batch shape, its certificate has lapsed (:meth:`MollifiedExpFamily.confirm_guarantee`),
            ``num_draws`` is below 1 or too large for the width of the tilt, the seed is negative, or the device is
            neither a CPU nor CUDA's.

    References:
        Awan, Rao. Privacy-Aware Rejection Sampling. 2021 (on what running times reveal).

    Example:
        >>> import torch
        >>> from pyro_mbde import MBDE
        >>> base = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
        >>> q = MBDE(base, epsilon=1.0, progress=False).fit(torch.linspace(0, 1, 500))
        >>> private_draws(q, 3).shape
        torch.Size([3])
    """
    plan = plan_draws(q, constant_time=constant_time)
    return draw_rows(q, plan, check_num_draws(q, plan, num_draws), seed=seed, progress=progress)
