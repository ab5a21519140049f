"""Randomness from the operating system."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde.base import convert_base, inverse_draws, reference_draws
from pyro_mbde.serialization import UnknownDistributionError

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
        return self.propose_with_points(num_proposals)[0]

    def propose_with_points(self, num_proposals: int) -> tuple[Tensor, Tensor | None]:
        """Returns draws of the base, and the points of the unit cube that they were inverted from, if they were.

        Returns:
            Draws of shape ``(num_proposals, *event_shape)``, and independent uniform points, float64 of shape
            ``(num_proposals, num_dims)``; None in their place where the base has no inverse distribution function.
        """
        if self._wide_base is not None:
            recorded: list[Tensor] = []

            def record(num_draws: int, num_dims: int) -> Tensor:
                recorded.append(_system_points(num_draws, num_dims))
                return recorded[-1]

            draws = inverse_draws(self._wide_base, num_proposals, record)
            if draws is not None:
                return draws.to(self._example), recorded[-1]
        return self.base.sample(torch.Size([num_proposals])), None

    def uniforms(self, num_proposals: int) -> Tensor:
        """Returns 53-bit uniforms."""
        return _system_points(num_proposals, 1).squeeze(1)


def draws_by_inversion(base: Distribution) -> bool:
    """Returns whether :class:`SystemSource` makes draws of a base by inversion; torch's generator is left alone.

    Args:
        base: the base distribution.
    """
    with system_generator():
        return SystemSource(base).propose_with_points(1)[1] is not None


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
