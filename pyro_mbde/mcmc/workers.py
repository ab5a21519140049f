"""Chains in several forked processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

import torch

from pyro_mbde.mcmc.runs import STEPS_PER_TURN, Chunk, Run

#: A worker sends a message after its first step that ends more than this many seconds after its last message.
_SECONDS_BETWEEN_MESSAGES = 0.1


class WorkerError(RuntimeError):
    """A worker process ended before its chains did."""


class WorkerSilentError(RuntimeError):
    """A worker process sent no message for too long."""


def parallel_obstacle() -> str | None:
    """Returns why chains cannot run in several processes here, or None.

    Workers are forked: they see the model as it is in memory, so it is not pickled and no script is imported again.
    That is safe on Linux, where PyTorch's own data loaders do the same, unless CUDA has been used.
    """
    if sys.platform != "linux":
        return "only Linux can fork a process with PyTorch in it safely"
    if _uses_cuda():
        return "a process that uses CUDA cannot be forked"
    if multiprocessing.current_process().daemon:
        return "this process is itself a worker"
    return None


def _uses_cuda() -> bool:
    cuda: Any = torch.cuda  # torch leaves it unannotated
    return bool(cuda.is_initialized())


def run_in_workers(runs: list[Run], num_workers: int, patience: float, on_chunk: Callable[[Chunk], None]) -> None:
    """Runs each chain in one of ``num_workers`` processes; ``on_chunk`` receives their draws, in any order.

    Raises:
        WorkerError: a worker was killed.
        WorkerSilentError: a worker sent no message for ``patience`` seconds.
        KeyboardInterrupt: there was an interrupt; raised once the message under way is complete.
        Exception: whatever a chain raised.
    """
    context = multiprocessing.get_context("fork")
    workers: dict[Any, Any] = {}  # keyed by the end of the pipe at which its messages arrive
    last_heard: dict[Any, float] = {}
    try:
        with _deferred_interrupt() as interrupted:
            for rank in range(num_workers):
                receiver, sender = context.Pipe(duplex=False)
                arguments = (runs[rank::num_workers], sender, [*workers, receiver])
                process = context.Process(target=_work, args=arguments, daemon=True)
                with warnings.catch_warnings():
                    # Python 3.12 and later warn of forking while other threads run; a worker that hangs is noticed.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    # JAX gives the same warning if anything has imported it; no worker uses JAX.
                    warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
                    process.start()
                sender.close()
                workers[receiver], last_heard[receiver] = process, time.monotonic()
            waiting = set(workers)
            while waiting:
                ready: list[Any] = wait(list(waiting), timeout=0.2)
                for receiver in ready:
                    last_heard[receiver] = time.monotonic()
                    if not _receive(receiver, workers[receiver], on_chunk):
                        waiting.discard(receiver)
                if interrupted():
                    raise KeyboardInterrupt
                if any(time.monotonic() - last_heard[receiver] > patience for receiver in waiting):
                    raise WorkerSilentError(f"A worker sent no message for {patience:.0f} s.")
    finally:
        for receiver, process in workers.items():
            if process.is_alive():
                process.kill()
            process.join()
            receiver.close()


@contextmanager
def _deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Records an interrupt instead of raising it, so that no message is cut in two; yields whether there was one.

    Only the main thread receives interrupts.
    """
    heard: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield lambda: False
        return
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        yield lambda: bool(heard)
    finally:
        signal.signal(signal.SIGINT, before)


def _receive(receiver: Any, process: Any, on_chunk: Callable[[Chunk], None]) -> bool:
    """Passes one message on; False once the worker has finished. Raises if the worker failed or was killed."""
    try:
        data = receiver.recv_bytes()
    except (EOFError, OSError):  # between two messages, or within one
        process.join()
        raise WorkerError(
            f"A worker process ended (exit code {process.exitcode}) before its chains did: it was killed, ran out of "
            f"memory, or crashed. Its draws are lost. Run again with num_workers=1 to see more."
        ) from None
    message = pickle.loads(data)
    if isinstance(message, Exception):
        raise message
    if message is None:
        return False
    on_chunk(message)
    return True


def _work(runs: list[Run], sender: Any, inherited: list[Any]) -> None:
    """Runs in a worker: advances its runs in turns and sends their chunks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    for receiver in inherited:  # otherwise a worker would not notice that nobody reads what it writes
        receiver.close()
    torch.set_num_threads(1)
    with contextlib.suppress(BrokenPipeError):  # the parent was killed
        try:
            _advance(runs, sender)
            sender.send_bytes(_plain(None))
        except BrokenPipeError:
            raise
        except Exception as error:  # whatever a model may raise is passed on to the caller
            sender.send_bytes(_plain(error))
    sys.stdout.flush()
    os._exit(0)  # the parent's exit handlers must not run here


def _advance(runs: list[Run], sender: Any) -> None:
    waiting, last_sent = list(runs), time.monotonic()
    while waiting:
        for run in waiting:
            for _ in range(STEPS_PER_TURN):
                run.advance(1)
                if run.finished or time.monotonic() - last_sent > _SECONDS_BETWEEN_MESSAGES:
                    sender.send_bytes(_plain(run.take()))
                    last_sent = time.monotonic()
                if run.finished:
                    break
        waiting = [run for run in waiting if not run.finished]


def _plain(message: object) -> bytes:
    """Pickles a message by value: torch's own way passes tensors as shared files, of which there may be only few."""
    try:
        data = pickle.dumps(message)
        if isinstance(message, Exception):
            pickle.loads(data)  # not every error can be unpickled
        return data
    except Exception:  # pickling runs code of the error's own class
        return pickle.dumps(RuntimeError(f"{type(message).__name__}: {message}"))
