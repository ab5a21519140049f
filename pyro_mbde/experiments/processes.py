"""Worker processes that are replaced when they die, behind the standard interface of an executor."""

from __future__ import annotations

import multiprocessing
import multiprocessing.resource_tracker
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext, SpawnProcess
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from pyro_mbde._checks import check_count

P = ParamSpec("P")
T = TypeVar("T")

#: Starts of a worker that may fail in a row.
_MAX_STARTS = 2


class WorkerDiedError(BrokenExecutor):
    """The worker process that ran a task ended before the task did."""


class WorkerProcesses(Executor):
    """Runs tasks in worker processes; a process that dies fails only the task that it ran.

    A ``ProcessPoolExecutor`` breaks as a whole when one of its processes is killed, runs out of memory or crashes, and
    does not say which task did it. So there is one pool of one process for each worker: the task that breaks it raises
    :class:`WorkerDiedError`, the pool is replaced, and the other tasks are not affected.

    Workers are spawned when they are first needed, since the threads of PyTorch and JAX do not survive a fork: tasks
    are functions of a module, and a script keeps its calls under ``if __name__ == "__main__":``. Workers ignore
    interrupts, which are the parent's to handle, and end when the parent dies, even if it is killed.

    Args:
        num_workers: number of processes; by default one for each processor.
    """

    def __init__(self, num_workers: int | None = None) -> None:
        self.num_workers = check_count("num_workers", (os.cpu_count() or 1) if num_workers is None else num_workers)
        self._threads = ThreadPoolExecutor(self.num_workers, thread_name_prefix="worker")  # one waits for each worker
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()  # None: not started yet
        for _ in range(self.num_workers):
            self._idle.put(None)
        self._workers: set[_Worker] = set()
        self._lock = threading.Lock()
        self._broken: str | None = None
        self._killed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Schedules ``fn(*args, **kwargs)`` and returns its future.

        Raises:
            BrokenExecutor: workers cannot be started.
            RuntimeError: after a shutdown.
        """
        if self._broken is not None:
            raise BrokenExecutor(self._broken)
        return self._threads.submit(self._run, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the workers when all tasks have ended, or all that run if the others are cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=cancel_futures)
        ending = threading.Thread(target=self._end)
        ending.start()
        if wait:
            ending.join()

    def kill(self) -> None:
        """Ends the workers at once: tasks that run raise :class:`WorkerDiedError`, the others are cancelled."""
        with self._lock:
            self._killed = True
            for worker in self._workers:
                worker.process.kill()
        self.shutdown(cancel_futures=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for all tasks, unless the block is left by an error or an interrupt."""
        self.shutdown() if error is None else self.kill()

    def _end(self) -> None:
        self._threads.shutdown(wait=True)
        with self._lock:
            while self._workers:
                self._workers.pop().pool.shutdown()

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        task = pickle.dumps((function, args, kwargs))
        worker = self._idle.get()
        try:
            if worker is not None and worker.has_ended():  # between two tasks: neither is to blame
                self._remove(worker)
                worker = None
            worker = worker or self._start()
            try:
                return worker.pool.submit(_call, task).result()
            except BrokenProcessPool:
                code = self._remove(worker)
                worker = None
                raise WorkerDiedError(
                    f"the worker process ended (exit code {code}): killed, out of memory, or crashed"
                ) from None
        finally:
            self._idle.put(worker)

    def _start(self) -> _Worker:
        code = None
        for _ in range(_MAX_STARTS):
            with self._lock:
                if self._killed:
                    raise WorkerDiedError("the worker processes were ended")
                worker = _Worker()
                self._workers.add(worker)
            try:
                worker.started.result()
                return worker
            except BrokenProcessPool:
                code = self._remove(worker)
        self._broken = (
            f"worker processes end before they begin (exit code {code}). A script must keep what it runs under "
            f'if __name__ == "__main__":, since each worker imports it.'
        )
        raise BrokenExecutor(self._broken)

    def _remove(self, worker: _Worker) -> int | None:
        """Ends a worker that is idle or dead, and returns its exit code."""
        worker.pool.shutdown()
        with self._lock:
            self._workers.discard(worker)
        return worker.process.exitcode


class _Worker:
    """A pool of one process."""

    def __init__(self) -> None:
        context = _OneProcess()
        self.pool = ProcessPoolExecutor(1, context, _prepare)
        with _no_interrupts():
            self.started = self.pool.submit(int)
        self.process = context.process

    def has_ended(self) -> bool:
        return bool(wait([self.process.sentinel], 0))


class _OneProcess(SpawnContext):
    """Remembers the process that a pool starts. It is daemonic: a task cannot start processes that outlive a kill."""

    process: SpawnProcess

    def Process(self, **options: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802  # a class in the parent
        self.process = SpawnProcess(**options, daemon=True)
        return self.process


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Processes started in this block ignore interrupts from before their first line."""
    if sys.platform == "win32":
        yield
        return
    multiprocessing.resource_tracker.ensure_running()  # starting it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare() -> None:
    """Prepares a worker: it ignores interrupts and ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _call(task: bytes) -> Any:
    """Runs a task in a worker. An error that cannot be unpickled would break the pool: its text is raised instead."""
    try:
        function, args, kwargs = pickle.loads(task)
        return function(*args, **kwargs)
    except Exception as error:  # a job may raise anything
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # pickling runs code of the error's class
            raise RuntimeError(f"{type(error).__name__}: {error}") from None
        raise
