"""Draws of the base, random or quasi-random, with torch's randomness or the operating system's.

They are made by inversion, from the points of a finite base, or by torch's sampler.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._torch_state import forked_generators
from pyro_mbde.density.base import PreparedBase
from pyro_mbde.density.mixed_base import MixedBase

#: Torch's Mersenne Twister keeps its 624 words of 32 bits as 64-bit integers behind a header of 24 bytes: the seed, how
#: many words are left, a flag, and the index of the next word.
_STATE_BYTES, _NUM_WORDS, _NEXT_WORD = 5056, 624, slice(16, 24)
_WORDS = slice(24, 24 + 8 * _NUM_WORDS)
#: Words used between two fillings of the state, on average at most: half of a state.
_WORDS_PER_FILLING = _NUM_WORDS // 2

_SobolEngine: Any = torch.quasirandom.SobolEngine  # torch leaves it unannotated
#: Packages whose distributions have samplers that agree with their inverse distribution functions.
_TRUSTED = ("torch", "pyro", "pyro_mbde")
#: Continuous distributions of one variable with an inverse distribution function that is accurate in the tails.
_INVERTIBLE = (
    torch.distributions.Cauchy,
    torch.distributions.Exponential,
    torch.distributions.HalfCauchy,
    torch.distributions.HalfNormal,
    torch.distributions.Laplace,
    torch.distributions.Normal,
    torch.distributions.Uniform,
)


def quasi_draws(base: Distribution, num_draws: int) -> Tensor:
    """Returns quasi-random draws of the base, for computing averages.

    Where the base can be inverted, they are randomised Sobol points pushed through its inverse distribution function.
    Each call scrambles the points again with a seed from torch's global generator, so the average over one call is
    unbiased. Where the base has no inverse distribution function, or more dimensions than a Sobol sequence can have,
    the draws are plain (not quasi-random).
    """
    return quasi_draws_with_points(base, num_draws)[0]


def quasi_draws_with_points(base: Distribution, num_draws: int) -> tuple[Tensor, Tensor | None]:
    """Returns :func:`quasi_draws` and the points of the unit cube from which they were made.

    There is None in place of the points if the draws are plain (not quasi-random).
    """
    with torch.no_grad():
        return inverse_draws(base, num_draws, _sobol_points) or (base.sample(torch.Size([num_draws])), None)


def _sobol_points(num_draws: int, num_dims: int) -> Tensor | None:
    """Scrambled Sobol points, float64, shape ``(num_draws, num_dims)``; None if there are too many dimensions."""
    if num_dims > _SobolEngine.MAXDIM:
        return None
    engine = _SobolEngine(num_dims, scramble=True, seed=int(torch.randint(2**31, ())))
    points: Tensor = engine.draw(num_draws, dtype=torch.float64)
    return points


def inverse_draws(
    base: Distribution, num_draws: int, cube_points: Callable[[int, int], Tensor | None]
) -> tuple[Tensor, Tensor | None] | None:
    """Pushes points of the unit cube through the inverse distribution function of ``base``.

    Args:
        base: distribution with empty batch shape.
        num_draws: number of draws.
        cube_points: returns float64 points of shape ``(num_draws, num_dims)``, or None for too many dimensions.

    Returns:
        Draws of shape ``(num_draws, *event_shape)`` and the points, or None in their place where the base is restricted
        by predicates, so that draws of it are some of the points'. None where the base has no inverse distribution
        function, or where ``cube_points`` returns None.
    """
    if type(base).__module__.partition(".")[0] not in _TRUSTED:
        return None  # a user's subclass may have a sampler that does not match its inverse
    if isinstance(base, MixedBase):
        return _mixed_draws(base, num_draws, cube_points)
    if isinstance(base, torch.distributions.TransformedDistribution):
        inverted = inverse_draws(base.base_dist, num_draws, cube_points)
        if inverted is None:
            return None
        draws, points = inverted
        for transform in base.transforms:
            draws = transform(draws)
        return draws, points
    if isinstance(base, torch.distributions.Independent):
        return inverse_draws(base.base_dist, num_draws, cube_points)
    shape = torch.Size([num_draws]) + base.batch_shape + base.event_shape
    is_multivariate = isinstance(base, torch.distributions.MultivariateNormal) and not base.batch_shape
    if not is_multivariate and not isinstance(base, _INVERTIBLE):
        return None
    uniforms = cube_points(num_draws, max(shape[1:].numel(), 1))
    if uniforms is None:
        return None
    unannotated: Any = base
    if is_multivariate:
        standard_normal: Any = dist.Normal(unannotated.loc.new_zeros(()), 1.0, validate_args=False)
        standard = standard_normal.icdf(_off_the_faces(uniforms, unannotated.loc))
        return unannotated.loc + (unannotated.scale_tril @ standard.unsqueeze(-1)).squeeze(-1), uniforms
    parameter: Tensor = getattr(base, next(iter(unannotated.arg_constraints)))
    return unannotated.icdf(_off_the_faces(uniforms.reshape(shape), parameter)), uniforms


def _mixed_draws(
    base: MixedBase, num_draws: int, cube_points: Callable[[int, int], Tensor | None]
) -> tuple[Tensor, Tensor | None] | None:
    if base.predicates:
        return None if cube_points(1, len(base.marginals)) is None else (base.draw(num_draws, cube_points), None)
    points = cube_points(num_draws, len(base.marginals))
    return None if points is None else (base.from_uniforms(points), points)


def _off_the_faces(points: Tensor, like: Tensor) -> Tensor:
    """Points of the unit cube in the dtype of ``like``, moved off the faces, where an inverse may be infinite."""
    edge = torch.finfo(like.dtype).eps / 2  # 1 - edge is the largest number below 1 in the dtype
    return points.clamp(edge, 1 - edge).to(like)


class TorchSource:
    """Draws of the base, and uniform numbers, both from torch's global generators.

    They are reproducible, because ``pyro.set_rng_seed`` governs these generators.

    The law of base draws is the same for every source, because a certificate holds for the law under which it was
    proved: points of a finite base by their exact probabilities (:class:`~pyro_mbde.density.finite.FinitePoints`), the
    inverse distribution function in float64 where there is one, and torch's own sampler elsewhere. A batch is that many
    independent rows.
    """

    def __init__(self, base: Distribution | PreparedBase) -> None:
        prepared = PreparedBase.of(base)
        self._num_rows, prepared = prepared.num_rows, prepared.row
        self.base = prepared.distribution
        self._example = prepared.example
        # The base is inverted in float64 and the draws are then rounded to its dtype, so that tails are as long as the
        # dtype allows.
        self._wide_base, self._finite = prepared.wide, prepared.finite
        if isinstance(self.base, MixedBase):
            # It computes in float64 by itself, and its predicates are to hold for the rows that come out.
            self._wide_base = self.base

    def uniforms(self, num_proposals: int) -> Tensor:
        """Returns independent multiples of 2^-53 in [0, 1), all equally likely; float64 ``(num_proposals,)``."""
        return self._cube_points(num_proposals, 1).squeeze(1)

    def propose(self, num_proposals: int) -> Tensor:
        """Returns independent draws of the base, shape ``(num_proposals, *event_shape)``."""
        if self._num_rows is None:
            return self.propose_with_points(num_proposals)[0]
        rows = self.propose_with_points(num_proposals * self._num_rows)[0]
        return rows.reshape(num_proposals, self._num_rows, *rows.shape[1:])

    def propose_with_points(self, num_proposals: int) -> tuple[Tensor, Tensor | None]:
        """Returns rows of the base, and the points of the unit cube from which they were made, if there were any.

        Returns:
            Draws of shape ``(num_proposals, *event_shape)``, and independent uniform points, float64 of shape
            ``(num_proposals, num_dims)``; None in their place where torch's sampler made the draws.
        """
        if self._finite is not None:
            points = self._cube_points(num_proposals, 1)
            return self._finite.draw(points.squeeze(1)), points
        if self._wide_base is not None:
            with torch.no_grad():
                inverted = inverse_draws(self._wide_base, num_proposals, self._cube_points)
            if inverted is not None:
                return inverted[0].to(self._example), inverted[1]
        return self._sample(num_proposals), None

    def _cube_points(self, num_draws: int, num_dims: int) -> Tensor:
        """Uniform draws from the multiples of 2^-53 in [0, 1), float64 ``(num_draws, num_dims)``, on the CPU."""
        return torch.rand(num_draws, num_dims, dtype=torch.float64, device="cpu")  # torch fills in 53 random bits

    def _sample(self, num_draws: int) -> Tensor:
        """Draws by torch's own sampler."""
        with torch.no_grad():
            return self.base.sample(torch.Size([num_draws]))


class SystemSource(TorchSource):
    """Randomness from the operating system's cryptographic generator; to be used inside :func:`system_generator`.

    Torch's samplers, for bases without an inverse distribution function, use its Mersenne Twister. All 19,968 bits of
    the twister's state are filled again from the system before the twister has given, on average, more than half as
    many. Where one row takes more than that, they are filled again for every row. Proof: ``docs/proofs.md``,
    *Randomness of bases without an inverse*.
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
        """Words of torch's generator that a draw takes on average; it depends on the base alone."""
        _fill_generators()
        replayed = torch.Generator()
        replayed.set_state(torch.get_rng_state())
        super()._sample(num_draws)
        after = torch.get_rng_state()
        # All words of a state change at once, when the last one has been used.
        count = 0
        while count < 2**22 and not torch.equal(replayed.get_state()[_WORDS], after[_WORDS]):
            torch.empty(_NUM_WORDS, dtype=torch.int32).random_(generator=replayed)
            count += _NUM_WORDS
        return max(count - _NUM_WORDS, 0) / num_draws + int(after[_NEXT_WORD].view(torch.int64)) / num_draws


class OnceFilledSource(SystemSource):
    """Like :class:`SystemSource`, but torch's generator is not refilled between draws.

    :func:`system_generator` fills it once. This is for draws that are never handed out: a certificate takes millions of
    draws of the base and shows none of them.
    """

    def _sample(self, num_draws: int) -> Tensor:
        return TorchSource._sample(self, num_draws)


def draws_by_inversion(base: Distribution) -> bool:
    """Returns whether draws of a base depend only on the system's bits, and not on torch's generator."""
    prepared = PreparedBase.of(base).row
    if prepared.finite is not None:
        return True
    with torch.no_grad():
        return prepared.wide is not None and inverse_draws(prepared.wide, 1, _fixed_points()) is not None


def num_uniforms(base: Distribution | PreparedBase) -> int | None:
    """Returns how many uniform numbers a draw of a base is inverted from; None where draws are not inverted."""
    prepared = PreparedBase.of(base)
    with torch.no_grad():
        inverted = None if prepared.wide is None else inverse_draws(prepared.wide, 1, _fixed_points())
    points = None if inverted is None else inverted[1]
    return None if points is None else points.shape[1]


def _fixed_points() -> Callable[[int, int], Tensor]:
    """A source of fixed points of the unit cube: ever new ones, since a base may be restricted to part of it."""
    generator = torch.Generator().manual_seed(0)
    return lambda num_draws, num_dims: torch.rand(num_draws, num_dims, dtype=torch.float64, generator=generator)


@contextmanager
def system_generator() -> Iterator[None]:
    """Runs the block on torch generators filled by the operating system.

    The caller's generator states are restored afterwards. Seeding would not be enough: torch's CPU generator uses only
    32 bits of a seed, few enough to try all of them against a released row. Here the whole state of 19,968 bits is
    filled. (A CUDA generator has a key of 64 bits, of which 63 are filled.)
    """
    with forked_generators():
        _fill_generators()
        yield


def _fill_generators() -> None:
    state = bytearray(torch.Generator().get_state().numpy().tobytes())
    if len(state) != _STATE_BYTES:
        raise RuntimeError(
            f"Private draws need a version of torch whose generator state has {_STATE_BYTES:,} bytes, got "
            f"{len(state):,} bytes. Use a version of torch that this library is tested with."
        )
    words = np.frombuffer(os.urandom(4 * _NUM_WORDS), dtype=np.uint32).astype(np.uint64)
    state[_WORDS] = words.tobytes()
    cuda: Any = torch.cuda  # torch leaves it unannotated
    if cuda.is_initialized():
        cuda.manual_seed_all(secrets.randbits(63))
    torch.set_rng_state(torch.frombuffer(state, dtype=torch.uint8))
