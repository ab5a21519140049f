"""Exact draws by rejection from the base."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._runtime import check_count
from pyro_mbde.mollifier import Bounds

#: Proposals evaluated at a time: enough to keep the matrix products busy, little enough to stay in memory.
_MAX_BATCH = 2**16
#: Proposals allowed by default for one call, and for each of its draws.
_MAX_PROPOSALS = 10**8
_MAX_PROPOSALS_PER_DRAW = 1000


class RejectionDraws(NamedTuple):
    """Exact draws and what they took.

    Attributes:
        values: shape ``(num_draws, *event_shape)``.
        num_proposals: proposals used. Private: it estimates the acceptance rate, which depends on the table.
    """

    values: Tensor
    num_proposals: int


class EnvelopeError(RuntimeError):
    """A tilt above its public upper bound: the draws would be neither exact nor private."""


def rejection_sample(
    base: Distribution,
    tilt: Callable[[Tensor], Tensor],
    bounds: Bounds,
    num_draws: int,
    *,
    acceptance_rate: float = 1.0,
    max_proposals: int | None = None,
) -> RejectionDraws:
    r"""Draws exactly from the density proportional to :math:`q_0 e^f`.

    Proposes :math:`x \sim Q_0` and accepts with probability :math:`e^{f(x) - hi} \le 1`. An accepted proposal then has
    density proportional to :math:`q_0(x) e^{f(x) - hi}`, that is :math:`q`: no bias, no burn-in. The number of
    proposals a draw is geometric with mean :math:`e^{hi - \phi} \le e^R`. The envelope is a theorem, since :math:`f
    \le hi` for every table; a tilt that breaks it raises.

    A proposal is accepted where :math:`u < e^{f - hi}` with u one of the :math:`2^{53}` multiples of :math:`2^{-53}` in
    [0, 1), so acceptance probabilities are exact to :math:`2^{-53}`: the log-ratio of two laws moves by less than
    :math:`2^{-52} e^R`.

    Privacy:
        The draws are covered by the density's guarantee. The number of proposals, and so the time taken, is not.

    Args:
        base: public base distribution with empty batch shape.
        tilt: f, mapping ``(n, *event_shape)`` to float64 ``(n,)``.
        bounds: public interval of f, in nats.
        num_draws: number of draws, at least 0.
        acceptance_rate: expected acceptance rate in (0, 1]; sizes the batches, does not change the law of the draws.
        max_proposals: proposals after which to give up; defaults to the larger of 10^8 and 1000 a draw.

    Returns:
        :class:`RejectionDraws`.

    Raises:
        EnvelopeError: the tilt is above its upper bound, or NaN.
        RuntimeError: ``max_proposals`` were used up.

    References:
        von Neumann. Various techniques used in connection with random digits. 1951.
    """
    num_draws = check_count("num_draws", num_draws, minimum=0)
    if max_proposals is None:
        max_proposals = max(_MAX_PROPOSALS, _MAX_PROPOSALS_PER_DRAW * num_draws)
    accepted: list[Tensor] = []
    num_accepted = num_proposals = 0
    with torch.no_grad():
        while num_accepted < num_draws or not accepted:
            # A tenth more than expected and a few standard deviations, so that one batch is mostly enough.
            missing = num_draws - num_accepted
            expected = (1.1 * missing + 4 * math.sqrt(missing) + 1) / acceptance_rate
            size = int(min(max(expected, 1), _MAX_BATCH, max_proposals - num_proposals))
            if size == 0:
                raise RuntimeError(
                    f"max_proposals must allow {num_draws} draws, got max_proposals={max_proposals!r}. A tilt of width "
                    f"R = {bounds.width:.3g} nats may take e^R proposals a draw: raise max_proposals, draw fewer, "
                    f"lower epsilon, or run a Markov chain with run_mcmc."
                )
            proposals = base.sample(torch.Size([size]))
            log_acceptance = tilt(proposals) - bounds.high
            if not bool((log_acceptance <= 0).all()):
                raise EnvelopeError("tilt must be at most its upper bound. No draw was made; do not use this density.")
            # torch.rand fills float64 with multiples of 2^-53.
            uniforms = torch.rand(log_acceptance.shape, dtype=torch.float64, device=log_acceptance.device)
            chosen = proposals[uniforms < log_acceptance.exp()][:missing]
            accepted.append(chosen)
            num_accepted += len(chosen)
            num_proposals += size
    return RejectionDraws(torch.cat(accepted), num_proposals)
