"""Rows to hand out that several processes draw, each with its own randomness of the operating system."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Literal

import torch
from torch import Tensor

from pyro_mbde._checks import argument_error
from pyro_mbde.density.bounds import a_priori_guarantee
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.ranks import ALONE, LostRankError, Ranks
from pyro_mbde.sampling.plan import DrawPlan
from pyro_mbde.sampling.private import draw_rows

#: What the first process says to another: that it is not needed, to say which density it holds, or to draw.
_END, _COMPARE, _DRAW = 0, 1, 2
_METHODS: tuple[Literal["constant-time", "exact", "fresh chains"], ...] = ("constant-time", "exact", "fresh chains")
#: How long the first process waits for rows, once its own are drawn: seconds, and as a multiple of what those took.
_GRACE_SECONDS, _GRACE_SHARE = 60.0, 3.0
_DIGEST_BYTES = 32


class DrawingRanks:
    """The first of several processes that draw rows together; to be used as a context, at whose end the others go on.

    They are asked twice: before rows are charged, which density they hold; once they are charged, to draw a share. A
    process that is lost before makes the release fail, and nothing is charged. One that is lost afterwards does not:
    the first process draws its share itself.

    Args:
        ranks: the processes; each of the others calls :func:`serve_draws`. Alone, all rows are drawn here.

    Raises:
        ValueError: this is not the first process.
    """

    def __init__(self, ranks: Ranks = ALONE) -> None:
        if not ranks.is_first:
            raise ValueError(argument_error("ranks", "be those of the first process", ranks, "Call serve_draws."))
        self._ranks = ranks
        self._waiting = list(range(1, ranks.size))

    def __enter__(self) -> DrawingRanks:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Tells processes that still wait that they are not needed."""
        for rank in self._waiting:
            self._tell(rank, _END)

    def compare(self, q: MollifiedExpFamily) -> None:
        """Finds out which processes may draw: those where the density is the same function, to the last bit.

        Raises:
            LostRankError: a process ended.
            ValueError: a process holds another density.
        """
        answers = self._compared()
        digest, certified = _digest(q), q.guarantee != a_priori_guarantee(q.bounds)
        for rank, theirs in answers.items():
            if not torch.equal(theirs[:-1], digest):
                remedy = "Give all of them the same model file."
                raise ValueError(f"Processes must hold the same density, got another one in process {rank}. {remedy}")
        self._waiting = [rank for rank, theirs in answers.items() if int(theirs[-1]) or not certified]
        for rank in answers.keys() - set(self._waiting):
            self._tell(rank, _END)

    def _compared(self) -> dict[int, Tensor]:
        """What each process says of its density. All are heard before an error: one that speaks cannot be told to end.

        Raises:
            LostRankError: a process ended.
        """
        answers: dict[int, Tensor] = {}
        lost: list[LostRankError] = []
        asked = [rank for rank in self._waiting if self._tell(rank, _COMPARE, lost=lost)]
        for rank in asked:
            try:
                answers[rank] = self._ranks.receive(rank, torch.empty(_DIGEST_BYTES + 1, dtype=torch.uint8))
            except LostRankError as error:
                lost.append(error)
        if lost:
            self._waiting = list(answers)
            raise lost[0]
        return answers

    def draw(self, plan: DrawPlan, num_draws: int, draw: Callable[[int], Tensor], *, alone: bool = False) -> Tensor:
        """Draws what is paid for: the rows of this process, then those of the others in order of rank.

        Args:
            plan: how rows are drawn.
            num_draws: how many rows or batches.
            draw: draws so many of them here.
            alone: whether all are drawn here.
        """
        sharing = [] if alone else self._waiting
        each, rest = divmod(num_draws, 1 + len(sharing))
        planned = {rank: each + (place < rest) for place, rank in enumerate(sharing, 1)}
        shares = {
            rank: share
            for rank, share in planned.items()
            if share and self._tell(rank, _DRAW, share, _METHODS.index(plan.method), plan.count or 0)
        }
        self._waiting = [rank for rank in self._waiting if rank not in shares]
        start = time.monotonic()
        parts = [draw(num_draws - sum(shares.values()))]
        patience = _GRACE_SECONDS + _GRACE_SHARE * (time.monotonic() - start)
        for rank, share in shares.items():
            rows = self._received(rank, share, parts[0], patience)
            parts.append(draw(share) if rows is None else rows)
        return torch.cat(parts) if shares else parts[0]

    def _received(self, rank: int, share: int, like: Tensor, seconds: float) -> Tensor | None:
        """Rows of a process; None where it failed or is lost."""
        try:
            if int(self._ranks.receive(rank, torch.zeros(1, dtype=torch.int64), seconds=seconds)):
                rows = torch.empty(share, *like.shape[1:], dtype=like.dtype)
                return self._ranks.receive(rank, rows, seconds=seconds).to(like.device)
        except LostRankError:
            pass
        warnings.warn(f"Process {rank} did not send its rows: they are drawn in the first process.", stacklevel=2)
        return None

    def _tell(self, rank: int, *words: int, lost: list[LostRankError] | None = None) -> bool:
        """Says something to a process; returns whether it could be told, and adds the error to those of lost ones."""
        padded = [*words, *(0 for _ in range(4 - len(words)))]
        try:
            self._ranks.send(torch.tensor(padded, dtype=torch.int64), to=rank, seconds=_GRACE_SECONDS)
        except LostRankError as error:
            if lost is not None:
                lost.append(error)
            return False
        return True


def serve_draws(q: MollifiedExpFamily, ranks: Ranks) -> None:
    """Draws rows for the first process until it needs no more; for processes that are not the first.

    Nothing is charged, written or said here. Where drawing fails, the first process draws the rows.

    Args:
        q: the density, from the same file as the first process's.
        ranks: the processes.

    Raises:
        LostRankError: the first process ended.
    """
    while True:
        kind, share, method, count = ranks.receive(0, torch.zeros(4, dtype=torch.int64)).tolist()
        if kind == _END:
            return
        if kind == _COMPARE:
            is_same_function = torch.tensor([not q.certificate_mismatch()], dtype=torch.uint8)
            ranks.send(torch.cat([_digest(q), is_same_function]))
            continue
        plan = DrawPlan(_METHODS[method], None if _METHODS[method] == "exact" else count, 0.0, q.guarantee)
        try:
            rows = draw_rows(q, plan, share, progress=False)
        except Exception:  # paid for already: the first process draws them, or says why it cannot
            ranks.send(torch.zeros(1, dtype=torch.int64))
            return
        ranks.send(torch.ones(1, dtype=torch.int64))
        ranks.send(rows)
        return


def _digest(q: MollifiedExpFamily) -> Tensor:
    """The fingerprint as bytes."""
    return torch.tensor(list(bytes.fromhex(q.fingerprint)), dtype=torch.uint8)
