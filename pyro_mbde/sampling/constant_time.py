"""Draws that take the same number of proposals whatever the table was."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyro_mbde._checks import check_count
from pyro_mbde.density.bounds import Bounds
from pyro_mbde.density.rejection import RandomSource, propose
from pyro_mbde.privacy.release_plan import constant_time_count

#: Integer dtypes with as many bits as a draw's own dtype, keyed by size in bytes.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def constant_time_proposals(bounds: Bounds) -> int:
    r"""Returns the public number of proposals that makes constant-time draws as good as exact ones.

    This is the smallest N with :math:`(1 - e^{-R})^N \le 2^{-53}`; with it, the law of :func:`constant_time_draws` is
    within :math:`2^{-53}` of the density's in total variation, whatever the table was.

    Args:
        bounds: public interval of the tilt, of width R in nats.

    Returns:
        N, at least 1; about :math:`37 e^R` for a large R.

    Example:
        >>> [constant_time_proposals(Bounds(-width / 2, width / 2)) for width in (0.05, 0.5, 1.0, 2.5)]
        [13, 40, 81, 429]
    """
    return constant_time_count(bounds.width)


def constant_time_draws(
    source: RandomSource,
    tilt: Callable[[Tensor], Tensor],
    bounds: Bounds,
    num_draws: int,
    num_proposals: int,
    *,
    max_batch: int = 2**16,
    on_draws: Callable[[int], object] = lambda count: None,
) -> Tensor:
    r"""Draws from the density q proportional to :math:`q_0 e^f`, almost exactly, with N + 1 proposals for each draw.

    Rejection (:func:`~pyro_mbde.density.rejection.rejection_sample`) proposes until it accepts, and so takes
    :math:`e^{hi - \phi}` proposals on average, with hi the upper bound of f and :math:`\phi` the log-normaliser: the
    time depends on :math:`\phi`, which is private. Here a draw is the first accepted one of exactly N proposals, or, if
    none of them is accepted, the last proposal, a *fresh* draw of the base that is made in any case. Its law is

    .. math::
        \nu = (1 - w)\, q + w\, q_0, \qquad w = (1 - e^{\phi - hi})^N \le (1 - e^{-R})^N ,

    within w of q in total variation. The guarantee of q is a guarantee of :math:`\nu`: the same epsilon, range and
    delta, for a-priori and calibrated densities and every N, and in floating point up to a few units of rounding.
    Proof: docs/proofs.md, *Constant-time draws*. Draws are independent given the density, so the costs of
    several draws add up as in :func:`~pyro_mbde.privacy.accounting.compose`.

    Privacy:
        *Independent of the table:* the number of proposals, the fact that each is evaluated, the batches, the addresses
        that are read and written here, and the conditions of all branches. The first accepted proposal is selected by
        integer arithmetic on the bits of all proposals.

        *Not controlled:* the time that the processor takes for the same instructions on other numbers. Networks can
        meet denormal numbers, which are slow on some processors; a library's exponential may branch on its argument;
        statistics computed by a user's own module may do anything. Caches, the memory allocator and other processes see
        the same sizes in the same order. So only the time taken by the same work can differ, whereas in ordinary
        rejection the amount of work differs.

    Args:
        source: randomness for proposals and acceptance.
        tilt: f, mapping ``(n, *event_shape)`` to ``(n,)``: one function of a
            draw, in every batch (:meth:`~pyro_mbde.MollifiedExpFamily.accepted_tilt`).
        bounds: public interval of f, in nats.
        num_draws: number of draws, at least 0.
        num_proposals: N, at least 1; see :func:`constant_time_proposals`.
        max_batch: proposals evaluated at a time, at least 1; a public number.
        on_draws: called after each batch with the number of draws that it completed.

    Raises:
        EnvelopeError: the tilt is above its upper bound, or NaN.

    References:
        Awan, Rao. Privacy-Aware Rejection Sampling. 2021 (information in running times; truncated rejection).

    Example:
        >>> from pyro_mbde.density.base_draws import TorchSource
        >>> normal = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
        >>> bounds = Bounds(-1.0, 0.0)
        >>> num_proposals = constant_time_proposals(bounds)
        >>> draws = constant_time_draws(TorchSource(normal), lambda x: -x.double().sigmoid(), bounds, 4, num_proposals)
        >>> draws.shape
        torch.Size([4])
    """
    num_draws = check_count("num_draws", num_draws, minimum=0)
    total = check_count("num_proposals", num_proposals) + 1  # including the one that is always accepted
    max_batch = check_count("max_batch", max_batch)
    # As many whole draws as fit into a batch, or one draw in several batches.
    num_together, size = max(min(num_draws, max_batch // total), 1), min(total, max_batch)
    finished: list[Tensor] = []
    with torch.no_grad():
        for start in range(0, num_draws, num_together):
            count = min(num_together, num_draws - start)
            chosen: Tensor | None = None
            num_accepted: Tensor | None = None
            for first in range(0, total, size):
                shape = (count, min(size, total - first))
                flat, is_accepted = propose(source, tilt, bounds, shape[0] * shape[1])
                proposals, accepted = flat.reshape(*shape, *flat.shape[1:]), is_accepted.long().reshape(shape)
                if first + size >= total:
                    accepted[:, -1] = 1
                bits = proposals.view(_BITS[proposals.element_size()])
                if chosen is None or num_accepted is None:
                    chosen = torch.zeros_like(bits[:, 0])
                    num_accepted = torch.zeros_like(accepted[:, 0])
                so_far = num_accepted.unsqueeze(1) + accepted.cumsum(1)
                is_first = (accepted * (so_far == 1)).to(bits.dtype)
                # The first accepted proposal's bits times 1, and all other proposals' bits times 0: so every bit of
                # every proposal is read.
                picked = bits * is_first.reshape(is_first.shape + (1,) * (bits.dim() - 2))
                chosen = chosen + picked.sum(1, dtype=bits.dtype)
                num_accepted = so_far[:, -1]
            assert chosen is not None
            finished.append(chosen.view(proposals.dtype))
            on_draws(count)
    return torch.cat(finished) if finished else source.propose(1)[:0]
