"""Several processes that work on one fit or one release: what they add up, hand round and wait for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from pyro_mbde._checks import argument_error
from pyro_mbde._launcher import launched, meeting_place, num_restarts

T = TypeVar("T")

#: Seconds that a step in common may take; and how long a process waits for another that works alone. One that ends
#: closes its connections, which ends both kinds of waiting at once.
_STEP_SECONDS, _PATIENCE_SECONDS = 60.0, 86_400.0


#: Up to how many processes exchange what they add up, each with all others; more pass it on in a ring.
_MAX_EXCHANGED = 4


class LostRankError(RuntimeError):
    """A step that several processes take together failed, as it does where one of them ended or no longer answers.

    It is raised in every process that is left, in place of torch's own errors. Nothing in it depends on the table: what
    torch says names connections and sizes of messages.
    """


class _Joined(NamedTuple):
    """How this process reaches the others: groups for steps in common and for waiting, and a store of keys."""

    steps: Any
    patient: Any
    store: Any


_joined: _Joined | None = None


@dataclass(frozen=True)
class Ranks:
    """This process among those that work together. Unless said otherwise, a method is to be called by all.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.

    Example:
        >>> ALONE.is_first, ALONE.gather("rows"), ALONE.broadcast(3)
        (True, ['rows'], 3)
    """

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        """Checks the numbers."""
        if not 0 <= self.rank < self.size:
            raise ValueError(argument_error("rank", f"be in [0, size), with size={self.size}", self.rank))

    @property
    def is_first(self) -> bool:
        """Whether this is the process that decides, writes and speaks."""
        return self.rank == 0

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replaces tensors by their averages over all processes, in place and with the same bits in each.

        One message holds all of them. A process that takes more than a minute longer than another counts as lost.

        Args:
            tensors: of the same shapes in every process, on any device; floating point.

        Raises:
            LostRankError: another process ended or does not answer.
        """
        self.start_average(tensors)()

    def start_average(self, tensors: Sequence[Tensor]) -> Callable[[], None]:
        """Starts :meth:`average`, and returns the function that waits for its end and replaces the tensors.

        Args:
            tensors: as for :meth:`average`; they may be used until that function is called.

        Raises:
            LostRankError: another process ended or does not answer; the function raises it too.
        """
        if self.size == 1 or not tensors:
            return lambda: None
        # By way of the CPU from any device: gradients of small networks are a few hundred kilobytes.
        flat = torch.cat([tensor.detach().reshape(-1).cpu() for tensor in tensors])
        with self._together("averaging a step") as joined:
            total = self._start_sum(flat, joined.steps)

        def finish() -> None:
            with self._together("averaging a step"):
                summed = total()
            parts = torch.split(summed.div_(self.size), [tensor.numel() for tensor in tensors])
            with torch.no_grad():
                for tensor, part in zip(tensors, parts, strict=True):
                    tensor.copy_(part.reshape(tensor.shape))

        return finish

    def _start_sum(self, flat: Tensor, group: Any) -> Callable[[], Tensor]:
        """Starts to add up a tensor over all processes; returns the function that waits for the sum."""
        if self.size > _MAX_EXCHANGED:
            work: Any = dist.all_reduce(flat, group=group, async_op=True)

            def reduced() -> Tensor:
                work.wait()
                return flat

            return reduced
        # Each sends its own to all others, which takes a fifth of the time of gloo's ring on one machine.
        held = [flat if rank == self.rank else torch.empty_like(flat) for rank in range(self.size)]
        others = [rank for rank in range(self.size) if rank != self.rank]
        works: list[Any] = [dist.isend(flat, rank, group=group) for rank in others]
        works += [dist.irecv(held[rank], rank, group=group) for rank in others]

        def exchanged() -> Tensor:
            for one in works:
                one.wait()
            summed = held[0].clone()
            for part in held[1:]:  # in order of rank, so that all have the same bits
                summed += part
            return summed

        return exchanged

    def broadcast(self, value: T) -> T:
        """Returns the first process's object, in every process; waits for it as long as it takes.

        Raises:
            LostRankError: another process ended.
        """
        if self.size == 1:
            return value
        held: list[Any] = [value]
        with self._together("waiting for the first process") as joined:
            dist.broadcast_object_list(held, src=0, group=joined.patient)
        found: T = held[0]
        return found

    def gather(self, value: T) -> list[T]:
        """Returns the objects of all processes, in order of rank; waits for them as long as it takes.

        Raises:
            LostRankError: another process ended.
        """
        if self.size == 1:
            return [value]
        held: list[Any] = [None] * self.size
        with self._together("collecting results") as joined:
            dist.all_gather_object(held, value, group=joined.patient)
        return held

    def send(self, value: Tensor, *, to: int = 0, seconds: float | None = None) -> None:
        """Sends a tensor to another process, and waits until that one receives it.

        Args:
            value: the tensor.
            to: rank of the other process, which calls :meth:`receive` with this one's.
            seconds: how long to wait; ``None`` for as long as it takes.

        Raises:
            LostRankError: the other process ended, or did not receive in time.
        """
        with self._together(f"sending to process {to}") as joined:
            work: Any = dist.isend(value.detach().cpu().contiguous(), dst=to, group=joined.patient)
            _wait(work, seconds)

    def receive(self, rank: int, like: Tensor, *, seconds: float | None = None) -> Tensor:
        """Returns what a process sends to this one.

        Args:
            rank: of the sender.
            like: a tensor of the shape and dtype of what is sent, on the CPU; it is overwritten.
            seconds: how long to wait; ``None`` for as long as it takes.

        Raises:
            LostRankError: the sender ended; other processes can still be received from. Or it did not send in time;
                torch then closes the connections to all of them.
        """
        with self._together(f"waiting for process {rank}") as joined:
            work: Any = dist.irecv(like, src=rank, group=joined.patient)
            _wait(work, seconds)
        return like

    def claim(self, name: str) -> bool:
        """Returns whether this is the first process that asks for a name; true if that cannot be found out."""
        if self.size == 1 or _joined is None:
            return True
        try:
            return int(_joined.store.add(f"claim/{name}", 1)) == 1
        except RuntimeError:  # the process that holds the store ended
            return True

    @contextmanager
    def _together(self, work: str) -> Iterator[_Joined]:
        """Turns errors of torch in a step that all processes take part in into :class:`LostRankError`."""
        if _joined is None:
            raise LostRankError(
                f"The {self.size} processes have parted: what needs all of them can only be called inside joined_ranks."
            )
        try:
            yield _joined
        except LostRankError:
            raise
        except RuntimeError as error:  # torch has several kinds, all of them derived from this
            said = next(iter(str(error).splitlines()), type(error).__name__)
            raise LostRankError(
                f"Process {self.rank} of {self.size} failed while {work} ({said}). Another process may have ended: "
                f"look for its message first. Start all of them again, with --resume where a fit kept a checkpoint."
            ) from error


def _wait(work: Any, seconds: float | None) -> None:
    if seconds is None:
        work.wait()
    else:
        work.wait(timedelta(seconds=seconds))


#: One process by itself.
ALONE = Ranks()


def launched_ranks() -> Ranks:
    """Returns rank and number of the processes that a launcher started, from the environment, without joining them.

    Raises:
        ValueError: the environment does not hold numbers.
    """
    return Ranks(*launched())


@contextmanager
def joined_ranks(*, timeout: float = _STEP_SECONDS, patience: float = _PATIENCE_SECONDS) -> Iterator[Ranks]:
    """Joins the processes that a launcher such as torchrun started, for the block.

    Without such a launcher, or with one process, the block runs alone and nothing is set up. At its end, also by an
    error, connections are closed; processes that still wait for this one then raise :class:`LostRankError`.

    Processes talk by torch.distributed (gloo) and trust one another: run them on machines and networks of the table's
    owner.

    Privacy:
        What processes exchange is as sensitive as the table, and is not encrypted.

    Args:
        timeout: seconds that a step of :meth:`Ranks.average` may take.
        patience: seconds that a process waits for one that works alone.

    Raises:
        LostRankError: not all processes came.

    Example:
        >>> with joined_ranks() as ranks:  # under torchrun: its processes
        ...     ranks.size
        1
    """
    global _joined
    ranks = launched_ranks()
    if ranks.size == 1:
        yield ALONE
        return
    if _joined is not None or dist.is_initialized():
        raise RuntimeError("This process has joined others already. Leave them first.")
    try:
        _joined = _join(ranks, timedelta(seconds=timeout), timedelta(seconds=patience))
        yield ranks
    finally:
        _joined = None
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):  # of connections that are broken already
                dist.destroy_process_group()


def _join(ranks: Ranks, timeout: timedelta, patience: timedelta) -> _Joined:
    torch_dist: Any = dist  # torch leaves some of its names out of its list
    try:
        store = next(torch_dist.rendezvous("env://", ranks.rank, ranks.size, timeout=timeout))[0]
        # The launcher's store outlives the processes, and with it the addresses of those that ended.
        store = torch_dist.PrefixStore(f"pyro_mbde/{num_restarts()}", store)
        dist.init_process_group("gloo", store=store, rank=ranks.rank, world_size=ranks.size, timeout=timeout)
        return _Joined(dist.group.WORLD, dist.new_group(backend="gloo", timeout=patience), store)
    except RuntimeError as error:
        raise LostRankError(
            f"Process {ranks.rank} of {ranks.size} did not meet all others at {meeting_place()} within "
            f"{timeout.total_seconds():g} seconds. Start all of them again, with an address that each of them reaches."
        ) from error
