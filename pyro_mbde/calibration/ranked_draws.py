"""Scored draws that several processes share out, while the first of them decides. Private."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from pyro_mbde.calibration.draws import ScoredDraws
from pyro_mbde.calibration.scores import SampledScores
from pyro_mbde.density.base import PreparedBase
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.normalizer import NUM_REPLICATES
from pyro_mbde.density.scoring import CHUNK_ROWS, Arithmetic, score_rows
from pyro_mbde.density.tilt import Tilt
from pyro_mbde.ranks import LostRankError, Ranks

T = TypeVar("T")
#: Rows that one request asks for, at least, so that messages do not take longer than scores.
_ROWS_PER_REQUEST = 2**15


class _Request(NamedTuple):
    """What the first process asks of the others.

    Attributes:
        kind: ``fresh`` to make ``size`` rows, ``quasi`` to make replicates of ``size``, ``send`` for what was made,
            ``done`` with a ``result``, or ``failed``.
        size: number of draws.
        num_held: draws that quasi-random ones are to follow.
        seed: of quasi-random draws.
        result: what the first process found.
    """

    kind: str
    size: int = 0
    num_held: int = 0
    seed: int = 0
    result: Any = None


class RankedDraws(ScoredDraws):
    """Draws of which every process makes and scores a share; the first one alone sees all scores.

    A process contributes only if its scores of the base's reference draws have the same bits as the first one's: what
    is certified is one function in floating point. Quasi-random draws have the bits that one process would give them.
    Fresh draws are made with the operating system's randomness of each process. Proof: docs/proofs.md, *Certificates
    over several processes*.

    Args:
        base: as for :class:`ScoredDraws`.
        tilt: as for :class:`ScoredDraws`; of the same networks in every process.
        ranks: the processes.

    Attributes:
        left_out: processes that contribute nothing, each with the difference in public words.
    """

    def __init__(self, base: PreparedBase, tilt: Tilt, ranks: Ranks) -> None:
        self._ranks = ranks
        failure: ValueError | None = None
        try:
            super().__init__(base, tilt)
        except ValueError as error:
            failure = error
        found = ranks.gather(None if failure is not None else self._arithmetic(base))
        first = found[0]
        if first is None:  # what one process alone would raise, in all of them
            raise failure or LostRankError("The first process of several failed. Its own message says why.")
        self.left_out = {
            rank: "scores that depend on their place" if other is None else _difference(other, first)
            for rank, other in enumerate(found)
            if other is None or _difference(other, first)
        }
        self._sharing = [rank for rank in range(ranks.size) if rank not in self.left_out]
        #: Whether others are sending what they made: they hear of nothing else until all of it is received.
        self._is_receiving = False

    def _arithmetic(self, base: PreparedBase) -> Arithmetic:
        """What must agree with the first process: settings, draws of the base, and their scores."""
        draws = base.row.draws
        public = self._tilt.with_public_weights()
        results = score_rows(lambda rows: public.score(self._features(rows)), draws[:CHUNK_ROWS])
        values = torch.cat([self.scores(draws), draws.double().flatten()])
        return Arithmetic.here(self._dtype, draws.device, results, values, "")

    def decided(self, decide: Callable[[], T]) -> T:
        """Returns what the first process decides, in every process; the others make draws for it until it has.

        Raises:
            LostRankError: a process ended, or the first one failed; there its own error is raised.
        """
        if not self._ranks.is_first:
            found: T = self._serve()
            return found
        try:
            result = decide()
        except BaseException:
            if not self._is_receiving:  # otherwise they find out when this process leaves them
                with contextlib.suppress(LostRankError):
                    self._ranks.broadcast(_Request("failed"))
            raise
        self._ranks.broadcast(_Request("done", result=result))
        return result

    def _serve(self) -> Any:
        no_bar: tqdm[Any] = tqdm(disable=True)
        made: tuple[Tensor, Tensor | None] | None = None
        while True:
            request = self._ranks.broadcast(_Request("failed"))
            if request.kind == "done":
                return request.result
            if request.kind == "failed":
                raise LostRankError("The first process of several failed. Its own message says why.")
            if self._ranks.rank in self.left_out:
                continue
            if request.kind == "send":
                self._send(made)
                made = None
            elif request.kind == "fresh":
                share = self._shares(request.size)[self._ranks.rank]
                made = super().fresh(share, no_bar) if share else None
            else:
                made = self._replicates(request, no_bar)

    def fresh(self, num_draws: int, bar: tqdm[Any]) -> tuple[Tensor, Tensor | None]:
        """Returns scores and points of independent draws, those of each process after those of the one before."""
        self._ranks.broadcast(_Request("fresh", num_draws))
        shares = self._shares(num_draws)
        return self._with_others(super().fresh(shares[0], bar), shares, bar)

    def blocks(self, size: int, num_blocks: int, bar: tqdm[Any]) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yields blocks of independent draws; small ones are asked for together, and the last may be left over."""
        together = max(1, _ROWS_PER_REQUEST // size)
        for start in range(0, num_blocks, together):
            count = min(together, num_blocks - start)
            scores, points = self.fresh(count * size, bar)
            pieces = [None] * count if points is None else torch.split(points, size)
            yield from zip(torch.split(scores, size), pieces, strict=True)

    def quasi_random(self, num_held: int, size: int, bar: tqdm[Any]) -> SampledScores:
        """Returns the quasi-random draws that one process would make, whole replicates of which each process scores."""
        request = _Request("quasi", size, num_held, self._seed)
        self._ranks.broadcast(request)
        own = self._replicates(request, bar)
        assert own is not None  # the first process has the first share
        shares = {rank: count * size for rank, count in self._shares(NUM_REPLICATES).items()}
        return SampledScores.of_blocks([self._with_others(own, shares, bar)])

    def _replicates(self, request: _Request, bar: tqdm[Any]) -> tuple[Tensor, Tensor | None] | None:
        """Scores and points of this process's replicates; None where it has none."""
        counts = self._shares(NUM_REPLICATES)
        first = sum(counts[rank] for rank in self._sharing if rank < self._ranks.rank)
        mine = range(first, first + counts[self._ranks.rank])
        made = self._made(request.num_held, request.size, request.seed, mine)
        blocks = [self._scored(draws, points, bar) for draws, points in made]
        if not blocks:
            return None
        # As float32, in which they are held in any case.
        given = [points.float() for _, points in blocks if points is not None]
        return torch.cat([scores for scores, _ in blocks]), torch.cat(given) if given else None

    def _shares(self, total: int) -> dict[int, int]:
        """How many of so many pieces of work each process does that contributes, in the order of their results."""
        each, rest = divmod(total, len(self._sharing))
        return {rank: each + (place < rest) for place, rank in enumerate(self._sharing)}

    def _send(self, made: tuple[Tensor, Tensor | None] | None) -> None:
        for part in made or ():
            if part is not None:
                self._ranks.send(part)

    def _with_others(
        self, own: tuple[Tensor, Tensor | None], shares: dict[int, int], bar: tqdm[Any]
    ) -> tuple[Tensor, Tensor | None]:
        """Puts what the other processes send behind the first one's own.

        They send once the first process has made its own: until then, it can tell them that it failed. What could fail
        here is done before they are asked, or once all is received.
        """
        senders = [rank for rank, share in shares.items() if rank and share]
        parts = [part for part in own if part is not None]
        theirs = [
            (rank, [torch.empty(shares[rank], *part.shape[1:], dtype=part.dtype) for part in parts]) for rank in senders
        ]
        self._ranks.broadcast(_Request("send"))
        self._is_receiving = True
        for rank, empty in theirs:
            for part in empty:
                self._ranks.receive(rank, part)
        self._is_receiving = False
        bar.update(sum(shares[rank] for rank in senders))
        whole = [
            torch.cat([part, *(sent[place].to(part.device) for _, sent in theirs)]) for place, part in enumerate(parts)
        ]
        return whole[0], whole[1] if len(whole) > 1 else None

    def same_density(self, build: Callable[[Arithmetic | None], MollifiedExpFamily]) -> MollifiedExpFamily:
        """Builds the first process's density in every process, under one fingerprint.

        In a process that was left out it is another function, so its guarantee there is the a-priori one.
        """
        if self._ranks.is_first:
            density = build(None)
            self._ranks.broadcast((density.certified_on, density._salt))
            return density
        certified_on, salt = self._ranks.broadcast((None, ""))
        if certified_on is not None and self._ranks.rank in self.left_out:
            certified_on = certified_on._replace(results="of another process")
        density = build(certified_on)
        density._salt = salt
        return density


def _difference(other: Arithmetic, first: Arithmetic) -> str:
    """Says in what a process differs from the first one; empty where it does not."""
    return other.difference(first) or ("" if other.values == first.values else "other results")
