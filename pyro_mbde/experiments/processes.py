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
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from pyro_mbde._checks import check_count

P = ParamSpec("P")
T = TypeVar("T")

#: How often a worker is started before the executor is broken: the first may have been killed where memory was short.
_NUM_STARTS = 2


class WorkerDiedError(BrokenExecutor):
    """The worker process that ran a task ended before the task did."""


class WorkerProcesses(Executor):
    """Runs tasks in worker processes; a process that dies fails only the task that it ran.

    A ``ProcessPoolExecutor`` breaks as a whole when one of its processes is killed, runs out of memory or crashes, and
    does not say which task did it. Here that task raises :class:`WorkerDiedError`, and another process takes its place.

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
        self._workers: list[_Worker] = []
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
        """Takes no more tasks; with ``wait``, ends the workers when all tasks have ended or are cancelled."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        while wait and self._workers:
            self._workers.pop().end()

    def kill(self) -> None:
        """Ends the workers at once: tasks that run raise :class:`WorkerDiedError`, the others are cancelled."""
        self.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._killed = True
            for worker in self._workers:
                worker.process.kill()
        self.shutdown()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for all tasks, unless the block is left by an error or an interrupt."""
        self.shutdown() if error is None else self.kill()

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        task = pickle.dumps((function, args, kwargs))
        worker = self._idle.get()
        try:
            if worker is not None and not worker.process.is_alive():  # between two tasks: neither is to blame
                worker = None
            worker = worker or self._start()
            answer = worker.ask(task)
            if answer is None:
                code, worker = worker.end(), None
                raise WorkerDiedError(f"the worker process ended (exit code {code}): killed, out of memory, or crashed")
        finally:
            self._idle.put(worker)
        result, error, trace = pickle.loads(answer)
        if error is None:
            return result
        error.add_note(f"In the worker process:\n{trace}")
        raise error

    def _start(self) -> _Worker:
        codes = []
        for _ in range(_NUM_STARTS):
            with self._lock:
                if self._killed:
                    raise WorkerDiedError("the worker processes were ended")
                worker = _Worker()
                self._workers.append(worker)
            if worker.ask() is not None:
                return worker
            codes.append(str(worker.end()))
        if self._killed:
            raise WorkerDiedError("the worker processes were ended")
        self._broken = (
            f"a worker process ended while starting, {_NUM_STARTS} times (exit codes {', '.join(codes)}). "
            f'Check that the script keeps what it runs under if __name__ == "__main__":, since each worker imports it.'
        )
        raise BrokenExecutor(self._broken)


class _Worker:
    """A process that runs one task at a time. It is daemonic: a task cannot start processes that outlive a kill."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, connection = spawn.Pipe()
        self.process = spawn.Process(target=_serve, args=(connection,), daemon=True)
        with _no_interrupts():
            self.process.start()
        connection.close()  # so that the process holds the only copy, and its end is noticed

    def ask(self, task: bytes | None = None) -> bytes | None:
        """Sends a task, if any, and waits for the answer; None if the process ends before it."""
        try:
            if task is not None:
                self._connection.send_bytes(task)
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            return None

    def end(self) -> int | None:
        """Lets an idle process end, and returns its exit code."""
        self._connection.close()
        self.process.join()
        return self.process.exitcode


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


def _serve(connection: Connection) -> None:
    """What a worker does, from a first empty answer until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    connection.send_bytes(b"")
    while True:
        try:
            task = connection.recv_bytes()
        except EOFError:
            return
        try:
            function, args, kwargs = pickle.loads(task)
            answer = pickle.dumps((function(*args, **kwargs), None, None))
        except BaseException as error:  # a task may raise anything, and call sys.exit()
            answer = _pickled(error)
        connection.send_bytes(answer)


def _pickled(error: BaseException) -> bytes:
    """The answer of a task that failed; only with the error's text if it cannot be pickled and unpickled."""
    trace = "".join(traceback.format_exception(error))
    try:
        answer = pickle.dumps((None, error, trace))
        pickle.loads(answer)
    except Exception:  # pickling runs code of the error's class
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}"), trace))
    return answer


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
