"""Exact draws by rejection from the base."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pyro_mbde._checks import check_count, check_number
from pyro_mbde.density.bounds import Bounds

#: Proposals allowed by default for one call, and for each of its draws.
_MAX_PROPOSALS = 10**7
_MAX_PROPOSALS_PER_DRAW = 1000


class RandomSource(Protocol):
    """Where the randomness of a draw comes from."""

    def propose(self, num_proposals: int) -> Tensor:
        """Returns independent draws of the base, shape ``(num_proposals, *event_shape)``."""

    def uniforms(self, num_proposals: int) -> Tensor:
        """Returns independent multiples of 2^-53 in [0, 1), all equally likely; float64 ``(num_proposals,)``."""


def proposal_batch(event_shape: torch.Size) -> int:
    """Returns how many proposals of an event shape to evaluate at a time: 65,536, or as many as stay in memory."""
    return max(1, min(2**16, 2**22 // max(event_shape.numel(), 1)))


class RejectionDraws(NamedTuple):
    """Exact draws and what they took.

    Attributes:
        values: shape ``(num_draws, *event_shape)``.
        num_proposals: proposals made, in whole batches. Private: it depends on the table by the acceptance rate.
    """

    values: Tensor
    num_proposals: int

    def __repr__(self) -> str:
        """Shows the shape; the number of proposals is private."""
        return f"RejectionDraws(values of shape {tuple(self.values.shape)})"


class EnvelopeError(RuntimeError):
    """A tilt above its public upper bound: the draws would be neither exact nor private."""


def propose(
    source: RandomSource, tilt: Callable[[Tensor], Tensor], bounds: Bounds, num_proposals: int
) -> tuple[Tensor, Tensor]:
    r"""Returns proposals from the base, and whether each is accepted, with probability :math:`e^{f - hi}`.

    Raises:
        EnvelopeError: the tilt is above its upper bound, or NaN.
    """
    proposals = source.propose(num_proposals)
    log_acceptance = tilt(proposals) - bounds.high
    if not bool((log_acceptance <= 0).all()):
        raise EnvelopeError("tilt must be at most its upper bound. No draw was made; do not use this density.")
    uniforms = source.uniforms(num_proposals).to(log_acceptance.device)
    return proposals, uniforms < log_acceptance.exp()


def rejection_sample(
    source: RandomSource,
    tilt: Callable[[Tensor], Tensor],
    bounds: Bounds,
    num_draws: int,
    *,
    acceptance_rate: float = 1.0,
    max_batch: int = 2**16,
    max_proposals: float | None = None,
    on_accept: Callable[[int], object] = lambda count: None,
) -> RejectionDraws:
    r"""Draws exactly from the density proportional to :math:`q_0 e^f`.

    Proposes :math:`x \sim Q_0` and accepts with probability :math:`e^{f(x) - hi} \le 1`: no bias, no burn-in. The
    number of proposals a draw is geometric with mean :math:`e^{hi - \phi} \le e^R`. A tilt above hi raises. Rounding
    moves the log-ratio of two tables' laws by less than :math:`2^{-51}(e^R + R + 2)`: below :math:`10^{-14}` at
    R = 2.5. Proof: docs/proofs.md, *Rejection: the law in floating point*.

    Privacy:
        The draws are covered by the density's guarantee. The number of proposals, and so the time taken and whether
        ``max_proposals`` are used up, is not: :func:`~pyro_mbde.sampling.private.private_draws` never gives up.

    Args:
        source: randomness for proposals and acceptance.
        tilt: f, mapping ``(n, *event_shape)`` to ``(n,)``: one function of a
            draw, in every batch (:meth:`~pyro_mbde.MollifiedExpFamily.accepted_tilt`).
        bounds: public interval of f, in nats.
        num_draws: number of draws, at least 0.
        acceptance_rate: expected acceptance rate in (0, 1]; sizes the batches, does not change the law of the draws.
        max_batch: proposals evaluated at a time: enough to keep matrix products busy, few enough to stay in memory.
        max_proposals: proposals after which to give up, at least 1; ``None`` for the larger of 10^7 and 1000 a draw.
        on_accept: called after each batch with the number of draws that it gave.

    Returns:
        :class:`RejectionDraws`.

    Raises:
        EnvelopeError: the tilt is above its upper bound, or NaN.
        RuntimeError: ``max_proposals`` were used up.

    References:
        von Neumann. Various techniques used in connection with random digits. 1951.

    Example:
        >>> from pyro_mbde.density.base_draws import TorchSource
        >>> normal = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
        >>> positive = rejection_sample(
        ...     TorchSource(normal), lambda x: torch.where(x > 0, 0.0, -50.0).double(), Bounds(-50.0, 0.0), 4
        ... )
        >>> bool((positive.values > 0).all())
        True
    """
    num_draws = check_count("num_draws", num_draws, minimum=0)
    rate = check_number("acceptance_rate", acceptance_rate, "be in [0, 1]", lambda value: 0 <= value <= 1)
    rate = max(rate, sys.float_info.min)  # an estimate may underflow
    if max_proposals is None:
        max_proposals = max(_MAX_PROPOSALS, _MAX_PROPOSALS_PER_DRAW * num_draws)
    cap = check_number("max_proposals", max_proposals, "be at least 1", lambda value: value >= 1)
    accepted: list[Tensor] = []
    num_accepted = num_proposals = 0
    with torch.no_grad():
        while num_accepted < num_draws or not accepted:
            # A tenth more than expected and a few standard deviations, so that one batch is mostly enough.
            missing = num_draws - num_accepted
            expected = (1.1 * missing + 4 * math.sqrt(missing) + 1) / rate
            size = int(min(max(expected, 1), max_batch, cap - num_proposals))
            if size == 0:
                raise RuntimeError(
                    f"max_proposals must allow {num_draws} draws, got max_proposals={max_proposals!r}. A tilt of width "
                    f"R = {bounds.width:.3g} nats may take e^R proposals a draw: raise max_proposals, draw fewer, "
                    f"lower epsilon, or run a Markov chain with run_mcmc."
                )
            proposals, is_accepted = propose(source, tilt, bounds, size)
            chosen = proposals[is_accepted][:missing]
            accepted.append(chosen)
            num_accepted += len(chosen)
            num_proposals += size
            on_accept(len(chosen))
    return RejectionDraws(torch.cat(accepted), num_proposals)
