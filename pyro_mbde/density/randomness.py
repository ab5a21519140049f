"""Where draws take their randomness from: the operating system, or torch's generators; and draws of the base by it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._torch_state import forked_generators
from pyro_mbde.density.base import PreparedBase, inverse_draws

#: Torch's Mersenne Twister keeps its 624 words of 32 bits as 64-bit integers behind a header of 24 bytes: the seed, how
#: many words are left, a flag, and the index of the next word.
_STATE_BYTES, _NUM_WORDS, _NEXT_WORD = 5056, 624, slice(16, 24)
_WORDS = slice(24, 24 + 8 * _NUM_WORDS)
#: Words between two fillings, on average: half of a state.
_WORDS_PER_FILLING = _NUM_WORDS // 2


class TorchSource:
    """Draws of the base and uniforms, from torch's global generators: reproducible, governed by ``pyro.set_rng_seed``.

    The law of base draws is the same for every source, since a certificate holds for the law that it was proved under:
    points of a finite base by their exact probabilities (:class:`~pyro_mbde.density.finite.FinitePoints`), the inverse
    distribution function in float64 where there is one, and torch's own sampler elsewhere.

    Args:
        base: the base distribution.
    """

    def __init__(self, base: Distribution | PreparedBase) -> None:
        prepared = PreparedBase.of(base)
        self.base = prepared.distribution
        self._example = prepared.example
        # Inverted in float64, then rounded, so that tails are as long as the dtype allows.
        self._wide_base, self._finite = prepared.wide, prepared.finite

    def uniforms(self, num_proposals: int) -> Tensor:
        """Returns independent multiples of 2^-53 in [0, 1), each as likely as another; float64 ``(num_proposals,)``."""
        return self._cube_points(num_proposals, 1).squeeze(1)

    def propose(self, num_proposals: int) -> Tensor:
        """Returns independent draws of the base, shape ``(num_proposals, *event_shape)``."""
        return self.propose_with_points(num_proposals)[0]

    def propose_with_points(self, num_proposals: int) -> tuple[Tensor, Tensor | None]:
        """Returns draws of the base, and the points of the unit cube that they were inverted from, if they were.

        Returns:
            Draws of shape ``(num_proposals, *event_shape)``, and independent uniform points, float64 of shape
            ``(num_proposals, num_dims)``; None in their place where torch's sampler made the draws.
        """
        if self._finite is not None:
            points = self._cube_points(num_proposals, 1)
            return self._finite.draw(points.squeeze(1)), points
        if self._wide_base is not None:
            recorded: list[Tensor] = []

            def record(num_draws: int, num_dims: int) -> Tensor:
                recorded.append(self._cube_points(num_draws, num_dims))
                return recorded[-1]

            with torch.no_grad():
                draws = inverse_draws(self._wide_base, num_proposals, record)
            if draws is not None:
                return draws.to(self._example), recorded[-1]
        return self._sample(num_proposals), None

    def _cube_points(self, num_draws: int, num_dims: int) -> Tensor:
        """Uniforms on the multiples of 2^-53 in [0, 1), float64 of shape ``(num_draws, num_dims)``, on the CPU."""
        return torch.rand(num_draws, num_dims, dtype=torch.float64, device="cpu")  # torch fills in 53 random bits

    def _sample(self, num_draws: int) -> Tensor:
        """Draws by torch's own sampler."""
        with torch.no_grad():
            return self.base.sample(torch.Size([num_draws]))


class SystemSource(TorchSource):
    """Randomness from the operating system's cryptographic generator; to be used inside :func:`system_generator`.

    Torch's samplers, for bases without an inverse, use its Mersenne Twister. The system fills all of its 19,968 bits
    again before it has given half as many on average, or for every row where one row takes more: what a row gave away
    never determines another row.

    Args:
        base: the base distribution.
    """

    def __init__(self, base: Distribution | PreparedBase) -> None:
        super().__init__(base)
        self._draws_per_filling = 0

    def _cube_points(self, num_draws: int, num_dims: int) -> Tensor:
        words = np.frombuffer(os.urandom(8 * num_draws * num_dims), dtype=np.uint64)
        return torch.from_numpy((words >> np.uint64(11)) * 2.0**-53).reshape(num_draws, num_dims)

    def _sample(self, num_draws: int) -> Tensor:
        if not self._draws_per_filling:
            self._draws_per_filling = max(1, int(_WORDS_PER_FILLING / max(self._words_per_draw(), 1e-9)))
        parts = []
        for start in range(0, max(num_draws, 1), self._draws_per_filling):
            _fill_generators()
            parts.append(super()._sample(min(self._draws_per_filling, num_draws - start)))
        return torch.cat(parts)

    def _words_per_draw(self, num_draws: int = 64) -> float:
        """Words of torch's generator that a draw takes on average: a fact of the base."""
        _fill_generators()
        replayed = torch.Generator()
        replayed.set_state(torch.get_rng_state())
        super()._sample(num_draws)
        after = torch.get_rng_state()
        # All words of a state change at once, when the last one has been given.
        count = 0
        while count < 2**22 and not torch.equal(replayed.get_state()[_WORDS], after[_WORDS]):
            torch.empty(_NUM_WORDS, dtype=torch.int32).random_(generator=replayed)
            count += _NUM_WORDS
        return max(count - _NUM_WORDS, 0) / num_draws + int(after[_NEXT_WORD].view(torch.int64)) / num_draws


class UnfilledSource(SystemSource):
    """As :class:`SystemSource`, but torch's generator is filled once: for draws that are never handed out.

    A certificate takes millions of draws of the base and shows none of them.

    Args:
        base: the base distribution.
    """

    def _sample(self, num_draws: int) -> Tensor:
        return TorchSource._sample(self, num_draws)


def draws_by_inversion(base: Distribution) -> bool:
    """Returns whether draws of a base are functions of the system's bits alone, without torch's generator.

    Args:
        base: the base distribution.
    """
    with system_generator():
        return SystemSource(base).propose_with_points(1)[1] is not None


@contextmanager
def system_generator() -> Iterator[None]:
    """Runs the block on torch generators filled by the operating system; the caller's are put back afterwards.

    Seeding would not do: of a seed, torch's CPU generator uses 32 bits, few enough to try them all against a released
    row. Here the whole state of 19,968 bits is filled. (A CUDA generator takes a key of 64 bits, and gets one.)

    Raises:
        RuntimeError: this version of PyTorch keeps the state of its generator in another form.
    """
    with forked_generators():
        _fill_generators()
        yield


def _fill_generators() -> None:
    state = bytearray(torch.Generator().get_state().numpy().tobytes())
    if len(state) != _STATE_BYTES:
        raise RuntimeError("torch must keep a generator of 5,056 bytes for private draws. Use a version tested here.")
    words = np.frombuffer(os.urandom(4 * _NUM_WORDS), dtype=np.uint32).astype(np.uint64)
    state[_WORDS] = words.tobytes()
    cuda: Any = torch.cuda  # torch leaves it unannotated
    if cuda.is_initialized():
        cuda.manual_seed_all(secrets.randbits(63))
    torch.set_rng_state(torch.frombuffer(state, dtype=torch.uint8))
