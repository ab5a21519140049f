"""Worker processes that are replaced when they die, behind the standard interface of an executor."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.resource_tracker
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from pyro_mbde._checks import check_count

P = ParamSpec("P")
T = TypeVar("T")

#: Starts of a worker that may fail in a row, and seconds that an idle one is given to end.
_MAX_STARTS, _PATIENCE = 2, 5.0
#: What a worker says when it is ready to work.
_READY = b"ready"


class WorkerDiedError(BrokenExecutor):
    """The worker process that ran a task ended before the task did."""


class WorkerProcesses(Executor):
    """Runs tasks in processes of their own; a process that dies fails its own task alone.

    The standard ``ProcessPoolExecutor`` breaks as a whole when one of its processes is killed, runs out of memory or
    crashes, and all tasks with it. Here such a task raises :class:`WorkerDiedError`, the process is replaced, and the
    other tasks do not notice.

    Workers are started when they are first needed, from scratch ("spawn"): the threads of PyTorch and JAX do not
    survive a fork. So tasks are functions of a module, and a script keeps its calls under
    ``if __name__ == "__main__":``. Workers leave an interrupt to the parent, and end when it dies, however it does.

    Args:
        num_workers: number of processes; by default one for each processor.

    Raises:
        TypeError: ``num_workers`` is no whole number.
        ValueError: it is below 1.
    """

    def __init__(self, num_workers: int | None = None) -> None:
        self.num_workers = check_count("num_workers", (os.cpu_count() or 1) if num_workers is None else num_workers)
        self._threads = ThreadPoolExecutor(self.num_workers, thread_name_prefix="worker")  # one waits for each worker
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()  # None for one that has not been started
        for _ in range(self.num_workers):
            self._idle.put(None)
        self._workers: set[_Worker] = set()
        self._lock = threading.Lock()
        self._broken: str | None = None
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Plans ``fn(*args, **kwargs)`` and returns its future.

        Raises:
            BrokenExecutor: workers cannot be started.
            RuntimeError: after a shutdown.
        """
        if self._broken is not None:
            raise BrokenExecutor(self._broken)
        return self._threads.submit(self._run, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the workers once all tasks are through, or all that run if the others are cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=cancel_futures)
        ending = threading.Thread(target=self._end)
        ending.start()
        if wait:
            ending.join()

    def kill(self) -> None:
        """Ends the workers at once: tasks that run raise :class:`WorkerDiedError`, the others are cancelled."""
        with self._lock:
            self._closed = True
            for worker in self._workers:
                worker.process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._end()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for all tasks, but not on the way out of an error or an interrupt."""
        self.shutdown() if error is None else self.kill()

    def _end(self) -> None:
        self._threads.shutdown(wait=True)
        with self._lock:
            while self._workers:
                self._workers.pop().end()

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a thread does: has a task run by a worker."""
        task = pickle.dumps((function, args, kwargs))
        worker = self._idle.get()
        try:
            if worker is not None and worker.has_ended(self._lock):
                self._reap(worker)  # between two tasks: neither is to blame
                worker = None
            worker = worker or self._start()
            try:
                worker.connection.send_bytes(task)
                answer = worker.connection.recv_bytes()
            except (EOFError, OSError):
                code = self._reap(worker)
                worker = None
                raise WorkerDiedError(
                    f"the worker process ended (exit code {code}): killed, out of memory, or crashed"
                ) from None
        finally:
            self._idle.put(worker)
        is_result, value = pickle.loads(answer)
        if is_result:
            return value
        raise value

    def _start(self) -> _Worker:
        code = None
        for _ in range(_MAX_STARTS):
            with self._lock:
                if self._closed:
                    raise WorkerDiedError("the worker processes were ended")
                worker = _Worker()
                self._workers.add(worker)
            with contextlib.suppress(EOFError, OSError):
                if worker.connection.recv_bytes() == _READY:
                    return worker
            code = self._reap(worker)
        self._broken = (
            f"worker processes end before they begin (exit code {code}). A script must keep what it runs under "
            f'if __name__ == "__main__":, since each worker imports it.'
        )
        raise BrokenExecutor(self._broken)

    def _reap(self, worker: _Worker) -> int | None:
        """Ends a worker that does not answer, and returns its exit code."""
        wait([worker.process.sentinel], _PATIENCE)  # without the lock, which the other workers' threads need
        with self._lock:
            self._workers.discard(worker)
            return worker.end(patience=0)


class _Worker:
    """A process and the end of the pipe that it is spoken to at."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        # Daemonic, so that what it runs starts no processes of its own in turn.
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        with _no_interrupts():
            self.process.start()
        theirs.close()  # else its end would go unnoticed

    def has_ended(self, lock: threading.Lock) -> bool:
        """Whether the process is no more; two threads must not ask for one process at once."""
        with lock:
            return not self.process.is_alive()

    def end(self, patience: float = _PATIENCE) -> int | None:
        """Lets the process end if it is idle, kills it if it goes on, and returns its exit code."""
        self.connection.close()
        self.process.join(patience)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        return self.process.exitcode


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Processes started in this block never see an interrupt, not even before their first line runs."""
    if sys.platform == "win32":
        yield
        return
    multiprocessing.resource_tracker.ensure_running()  # which would unblock the signal by being started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection) -> None:
    """What a worker does: runs tasks and sends back what they return or raise, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        connection.send_bytes(_READY)
        while True:
            connection.send_bytes(_answer(connection.recv_bytes()))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _answer(task: bytes) -> bytes:
    try:
        function, args, kwargs = pickle.loads(task)
        return pickle.dumps((True, function(*args, **kwargs)))
    except Exception as error:  # whatever a task may raise, for the caller to hear
        try:
            answer = pickle.dumps((False, error))
            pickle.loads(answer)  # not every error survives the journey
            return answer
        except Exception:  # pickling runs code of the error's own class
            return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
