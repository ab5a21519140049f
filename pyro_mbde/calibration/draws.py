"""Draws of the base with their scores: quasi-random ones to place a score, fresh ones to certify it. Private."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from pyro_mbde._checks import argument_error
from pyro_mbde._torch_state import seeded
from pyro_mbde.calibration.scores import SampledScores
from pyro_mbde.density.base import PreparedBase, as_features
from pyro_mbde.density.base_draws import OnceFilledSource, quasi_draws_with_points, system_generator
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.normalizer import NUM_REPLICATES
from pyro_mbde.density.scoring import ALIGNED_SIZE, CHUNK_ROWS, Arithmetic, depends_on_place, score_rows
from pyro_mbde.density.tilt import Tilt

T = TypeVar("T")
#: Draws scored between two movements of the progress bar: whole chunks, so that it changes no bit.
_BAR_STEP = 16 * CHUNK_ROWS


class ScoredDraws:
    """Makes draws of a base, their scores, and the points of the unit cube that they were inverted from.

    Attributes:
        left_out: processes that contribute nothing; none where there is one process.

    Raises:
        ValueError: the score of a row depends on its place among other rows, whatever the weights.
    """

    left_out: Mapping[int, str] = MappingProxyType({})

    def __init__(self, base: PreparedBase, tilt: Tilt) -> None:
        self._base, self._dtype, self._tilt = base.distribution, base.dtype, tilt
        public = tilt.with_public_weights()
        if depends_on_place(
            lambda rows: public.score(self._features(rows)), base.draws[:CHUNK_ROWS]
        ):  # public: no weight that was fitted enters
            remedy = f"Make the sizes of its layers multiples of {ALIGNED_SIZE}, or ask for delta=0."
            found = type(tilt.statistics).__name__
            raise ValueError(argument_error("statistics", "sum a row in the same order at every place", found, remedy))
        self._source = OnceFilledSource(base)
        # Quasi-random draws are made when they are needed, but always the same for a seeded fit.
        self._seed = int(torch.randint(2**31, ()))
        # Points are given only if both quasi-random and fresh draws come with them: a control variate needs both.
        with seeded(0):
            _, quasi = quasi_draws_with_points(self._base, 2)
            _, fresh = self._source.propose_with_points(2)
        self._has_points = quasi is not None and fresh is not None

    def quasi_random(self, num_held: int, size: int, bar: tqdm[Any]) -> SampledScores:
        """Returns ``size`` quasi-random draws in each replicate, to follow ``num_held`` earlier ones."""
        replicates = self._made(num_held, size, self._seed, range(NUM_REPLICATES))
        return SampledScores.of_blocks([self._scored(draws, points, bar) for draws, points in replicates])

    def _made(self, num_held: int, size: int, seed: int, wanted: range) -> list[tuple[Tensor, Tensor | None]]:
        """Some of the replicates of quasi-random draws, with their points; the same ones whichever are wanted."""
        replicates = []
        with seeded(seed + num_held):
            for index in range(wanted.stop):
                if self._has_points and index not in wanted:
                    torch.randint(2**31, ())  # all that a replicate takes of the generator: the seed of its points
                    continue
                replicate = quasi_draws_with_points(self._base, size)
                if index in wanted:
                    replicates.append(replicate)
        return replicates

    def fresh(self, num_draws: int, bar: tqdm[Any]) -> tuple[Tensor, Tensor | None]:
        """Returns scores and points of independent draws, made with the operating system's randomness."""
        with system_generator():
            draws, points = self._source.propose_with_points(num_draws)
        return self._scored(draws, points, bar)

    def blocks(self, size: int, num_blocks: int, bar: tqdm[Any]) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yields :meth:`fresh` draws in blocks of a size, made when they are asked for."""
        for _ in range(num_blocks):
            yield self.fresh(size, bar)

    def decided(self, decide: Callable[[], T]) -> T:
        """Returns what is decided on these draws."""
        return decide()

    def same_density(self, build: Callable[[Arithmetic | None], MollifiedExpFamily]) -> MollifiedExpFamily:
        """Builds a density that is certified for the arithmetic here."""
        return build(None)

    def scores(self, values: Tensor) -> Tensor:
        """Returns the scores of values of the base, to the bits that rows are accepted by."""
        return score_rows(lambda rows: self._tilt.score(self._features(rows)), values)

    def _features(self, values: Tensor) -> Tensor:
        return as_features(values, self._base, self._dtype)

    def _scored(self, draws: Tensor, points: Tensor | None, bar: tqdm[Any]) -> tuple[Tensor, Tensor | None]:
        parts = []
        for part in torch.split(draws, _BAR_STEP):
            parts.append(self.scores(part))
            bar.update(len(part))
        return torch.cat(parts), points if self._has_points else None
