"""Draws to hand out."""

from __future__ import annotations

import math
import os
import secrets
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution
from tqdm import tqdm

from pyro_mbde._runtime import check_count, check_seed, message, seeded, single_thread
from pyro_mbde.base import convert_base, inverse_draws, reference_draws
from pyro_mbde.distribution import MollifiedExpFamily
from pyro_mbde.sampling.rejection import RandomSource, TorchSource
from pyro_mbde.serialization import UnknownDistributionError

#: Proposals that a call may be expected to take at worst, k e^R; about an hour.
_MAX_EXPECTED_PROPOSALS = 10**9
#: Torch's Mersenne Twister keeps its 624 words of 32 bits as 64-bit integers behind a header of 24 bytes.
_STATE_BYTES, _HEADER_BYTES, _NUM_WORDS = 5056, 24, 624


class SystemSource:
    """The operating system's generator: 53 bits a uniform, and base draws by inversion where the base can be inverted.

    Other bases are drawn by torch, whose generator must then be filled from the operating system
    (:func:`system_generator`).

    Args:
        base: the base distribution.
    """

    def __init__(self, base: Distribution) -> None:
        self.base = base
        self._example = reference_draws(base)
        try:
            # Inverted in float64, then rounded, so that tails are as long as the dtype allows.
            self._wide_base: Distribution | None = convert_base(base, dtype=torch.float64)
        except UnknownDistributionError:
            self._wide_base = None

    def propose(self, num_proposals: int) -> Tensor:
        """Returns draws of the base."""
        if self._wide_base is not None:
            draws = inverse_draws(self._wide_base, num_proposals, _system_points)
            if draws is not None:
                return draws.to(self._example)
        return self.base.sample(torch.Size([num_proposals]))

    def uniforms(self, num_proposals: int) -> Tensor:
        """Returns 53-bit uniforms."""
        return _system_points(num_proposals, 1).squeeze(1)


def _system_points(num_draws: int, num_dims: int) -> Tensor:
    """Uniforms on the multiples of 2^-53 in [0, 1), float64, shape ``(num_draws, num_dims)``."""
    words = np.frombuffer(os.urandom(8 * num_draws * num_dims), dtype=np.uint64)
    return torch.from_numpy((words >> np.uint64(11)) * 2.0**-53).reshape(num_draws, num_dims)


@contextmanager
def system_generator() -> Iterator[None]:
    """Runs the block on torch generators filled by the operating system; the caller's are put back afterwards.

    Seeding would not do: of a seed, torch's CPU generator uses 32 bits, few enough to try them all against a released
    row. Here the whole state of 19,968 bits is filled. (A CUDA generator takes a key of 64 bits, and gets one.)

    Raises:
        RuntimeError: this version of PyTorch keeps the state of its generator in another form.
    """
    state = bytearray(torch.Generator().get_state().numpy().tobytes())
    if len(state) != _STATE_BYTES:
        raise RuntimeError("torch must keep a generator of 5,056 bytes for private draws. Use a version tested here.")
    words = np.frombuffer(os.urandom(4 * _NUM_WORDS), dtype=np.uint32).astype(np.uint64)
    state[_HEADER_BYTES : _HEADER_BYTES + 8 * _NUM_WORDS] = words.tobytes()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.cuda.manual_seed_all(secrets.randbits(63))
        torch.set_rng_state(torch.frombuffer(state, dtype=torch.uint8))
        yield


def private_draws(q: MollifiedExpFamily, num_draws: int, *, seed: int | None = None, progress: bool = True) -> Tensor:
    r"""Returns exact draws made with fresh randomness from the operating system: rows that may be handed out.

    A draw whose randomness can be guessed protects nobody, and torch's global generator starts from the same seed in
    every process. Here acceptance, and proposals wherever the base has an inverse distribution function (normal,
    uniform, multivariate normal and their transforms, among others), come from the system's cryptographic generator.
    Proposals of other bases come from torch's generator with all of its state filled by the system: good for the few
    rows that a budget pays for, but not cryptographic. No other thread should use torch's generator meanwhile.

    Privacy:
        The rows together cost :func:`~pyro_mbde.privacy.accounting.compose` of ``q.guarantee`` and ``num_draws``.
        Whether the call succeeds depends on public numbers alone: it is refused before anything is drawn where
        :math:`k e^R` proposals, the most that any table makes k draws take on average, are too many. The time taken is
        not covered.

    Args:
        q: the fitted density.
        num_draws: number k of rows, at least 1.
        seed: for tests only; a seeded draw is not private, and a warning says so.
        progress: whether to show a progress bar when it takes more than a second.

    Returns:
        Tensor of shape ``(num_draws, *event_shape)``.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: ``num_draws`` is below 1 or too many for the width of the tilt, or the seed is negative.

    References:
        Awan, Rao. Privacy-Aware Rejection Sampling. 2021 (on what running times tell).

    Example:
        >>> from pyro_mbde import MBDE
        >>> base = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
        >>> q = MBDE(base, epsilon=1.0, progress=False).fit(torch.linspace(0, 1, 500))
        >>> private_draws(q, 3).shape
        torch.Size([3])
    """
    if not isinstance(q, MollifiedExpFamily):
        raise TypeError(message("q", "be a MollifiedExpFamily", q))
    if q.device.type not in ("cpu", "cuda"):
        raise ValueError(message("q", "be on a CPU or CUDA device, whose generators can be filled", q.device.type))
    num_draws = check_count("num_draws", num_draws)
    if num_draws > _MAX_EXPECTED_PROPOSALS * math.exp(-q.bounds.width):
        remedy = f"A tilt of width R = {q.bounds.width:.3g} nats may take e^R proposals a draw: lower epsilon."
        raise ValueError(message("num_draws", f"be at most {_MAX_EXPECTED_PROPOSALS:.0e} / e^R", num_draws, remedy))
    source: RandomSource
    if check_seed(seed) is None:
        source, generator = SystemSource(q.base_dist), system_generator()
    else:
        warnings.warn("These draws are seeded: for tests only, not private, not to be handed out.", stacklevel=2)
        source, generator = TorchSource(q.base_dist), seeded(seed)
    with tqdm(total=num_draws, desc="draws", disable=not progress, delay=1) as bar, generator, single_thread():
        return q.rejection_draws(
            num_draws,
            source=source,
            # The least that any table gives: batches, and so memory, follow from public numbers.
            acceptance_rate=math.exp(-q.bounds.width),
            max_proposals=math.inf,
            on_accept=bar.update,
        ).values
