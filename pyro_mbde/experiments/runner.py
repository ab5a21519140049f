"""Sweeps: flat lists of independent jobs, run anywhere, kept row by row, and continued where they stopped."""

from __future__ import annotations

import ast
import functools
import hashlib
import math
import os
import pickle
import platform
import queue
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

import pyro_mbde
from pyro_mbde._checks import argument_error, check_count, check_epsilon, check_flag
from pyro_mbde._torch_state import seeded, single_thread
from pyro_mbde.experiments.processes import WorkerDiedError, WorkerProcesses
from pyro_mbde.experiments.results import ResultsFile, Row, SweepError, read_results

#: What a job measures, by name.
Measure = Callable[["Job"], Mapping[str, "float | str | None"]]

#: Packages that results depend on; the baselines' may be missing.
_PACKAGES = ("torch", "pyro-ppl", "numpy", "scipy", "opacus", "zuko", "mbi", "jax")
#: Columns of every row, which no option or result may be called.
_COLUMNS = (
    *("key", "problem", "system", "epsilon", "repeat", "seed", "error", "seconds"),
    *("python", *_PACKAGES, "pyro_mbde", "source"),
)
#: Seeds are whole numbers that a float holds exactly, whatever reads the file.
_SEED_BITS = 53


@dataclass(frozen=True)
class Job:
    """One measurement of a sweep.

    Args:
        problem: name of what is learned.
        system: name of what learns it.
        epsilon: in nats, in (0, inf].
        repeat: number of the repetition, from 0.
        options: what else the job depends on, as pairs of a name and a value, sorted by name.

    Example:
        >>> job = Job("ring", "dpb", 0.5, options=(("group_size", 10),))
        >>> job.key
        'ring/dpb/0.5/0/group_size=10'
        >>> job.seed == Job("ring", "dpb", 0.5, 0, (("group_size", 10),)).seed
        True
    """

    problem: str
    system: str
    epsilon: float
    repeat: int = 0
    options: tuple[tuple[str, float | int | str], ...] = ()

    def __post_init__(self) -> None:
        """Checks what the key is made of, so that no two jobs share one."""
        _check_word("problem", self.problem)
        _check_word("system", self.system)
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        object.__setattr__(self, "repeat", check_count("repeat", self.repeat, minimum=0))
        options = self.options
        if not isinstance(options, tuple) or any(not isinstance(pair, tuple) or len(pair) != 2 for pair in options):
            raise TypeError(argument_error("options", "be a tuple of pairs", options))
        for name, value in options:
            if _check_word("options", name) in _COLUMNS:
                raise ValueError(argument_error("options", "be called otherwise than the columns of a row", name))
            if isinstance(value, str):
                _check_word(name, value)
            elif isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(argument_error(name, "be a number or a word", value))
        if [name for name, _ in options] != sorted(dict(options)):
            raise ValueError(argument_error("options", "be sorted by name, each given once", options))
        # As Python compares: 1.0 is 1.
        plain = [int(value) if isinstance(value, float) and value.is_integer() else value for _, value in options]
        object.__setattr__(self, "options", tuple(zip(dict(options), plain, strict=True)))

    @property
    def key(self) -> str:
        """Identifies the job in every process and on every machine."""
        options = (f"{name}={value}" for name, value in self.options)
        return "/".join((self.problem, self.system, str(self.epsilon), str(self.repeat), *options))

    @property
    def seed(self) -> int:
        """Seed of the job's randomness: the first 53 bits of the SHA-256 of its key."""
        return int.from_bytes(hashlib.sha256(self.key.encode()).digest()[:8]) >> (64 - _SEED_BITS)


def run_sweep(
    jobs: Iterable[Job],
    function: Measure,
    path: str | os.PathLike[str],
    *,
    executor: Executor | None = None,
    num_workers: int | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """Runs jobs in parallel and keeps a row of each in a file, as it ends.

    Jobs that have a row in the file already are not run again, unless it holds an error: the same call continues
    an interrupted or failed sweep. A job that raises, or whose worker process dies, is a row with its error, and the
    sweep goes on.

    Each job runs on one thread with torch's generator seeded by :attr:`Job.seed`, so that its results are the same to
    the bit in any order and process, on machines of one kind: another processor may round its sums differently, as may
    other versions, which each row names. ``function`` must draw from torch's generator or from generators seeded by
    ``job.seed``, and leave nothing behind for the next job in its process. Jobs in threads of one process take turns,
    since they share torch's generator.

    For more than one machine, pass any standard executor, such as Dask's (``pip install 'pyro_mbde[dask]'``)::

        with dask.distributed.Client("scheduler:8786") as client:
            run_sweep(jobs, function, "results.jsonl", executor=client.get_executor())

    with one thread for each worker (``dask worker --nthreads 1``).

    Args:
        jobs: no two with the same key.
        function: takes a job and returns what it measured: numbers, words or None by name. A function of a module, for
            processes to find; a script keeps its calls under ``if __name__ == "__main__":``.
        path: file of results, JSON lines; made if it is not there, with its folder. One sweep writes to it at a time.
        executor: what runs the jobs; it is left open. By default :class:`WorkerProcesses`, closed at the end.
        num_workers: number of processes, where no executor is given; by default one for each processor.
        progress: whether to show a bar.

    Returns:
        One row for each of these jobs, in their order.

    Raises:
        ValueError: two jobs have one key, or the file is damaged.
        SweepError: another sweep writes to the file, or the executor is broken for good. Rows are kept.
        KeyboardInterrupt: jobs not yet begun are cancelled, the default executor's workers are ended, rows are kept.
    """
    jobs, keys = list(jobs), set[str]()
    for job in jobs:
        if not isinstance(job, Job):
            raise TypeError(argument_error("jobs", "be instances of Job", job))
        if job.key in keys:
            raise ValueError(argument_error("jobs", "have keys of their own", job.key))
        keys.add(job.key)
    check_flag("progress", progress)
    context: AbstractContextManager[Executor]
    if executor is None:
        _check_picklable(function)
        context = WorkerProcesses(num_workers)
    elif num_workers is not None:
        raise ValueError(argument_error("num_workers", "be left out where an executor is given", num_workers))
    else:
        context = nullcontext(executor)
    with ResultsFile(path) as results:
        missing = [job for job in jobs if results.rows.get(job.key, {"error": ""})["error"] is not None]
        # A bar that counts what is done, at the average pace of what this call did.
        options: dict[str, Any] = {"total": len(jobs), "initial": len(jobs) - len(missing), "smoothing": 0}
        with tqdm(desc="sweep", unit="job", disable=not progress, **options) as bar, context as runner:
            _Sweep(function, runner, results, bar).run(missing)
    return read_results(path, keys=[job.key for job in jobs])


class _Sweep:
    """Hands jobs to an executor and their rows to a file."""

    def __init__(self, function: Measure, executor: Executor, results: ResultsFile, bar: tqdm[Any]) -> None:
        self._function, self._executor, self._results, self._bar = function, executor, results, bar
        self._jobs: dict[Future[Row], Job] = {}  # those that have no row yet
        self._ended: queue.SimpleQueue[Future[Row]] = queue.SimpleQueue()
        self._num_failed = 0

    def run(self, jobs: list[Job]) -> None:
        try:
            for job in jobs:
                future = self._submit(run_job, self._function, job)
                self._jobs[future] = job
                future.add_done_callback(self._ended.put)
                while not self._ended.empty():
                    self._record(self._ended.get())
            while self._jobs:
                self._record(self._ended.get())
        except BaseException:
            for future in list(self._jobs):
                future.cancel()
            while not self._ended.empty():  # what ended in the meantime
                future = self._ended.get()
                if not future.cancelled() and future.exception() is None:
                    self._keep(future, future.result())
            raise

    def _submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        try:
            return self._executor.submit(function, *args)
        except Exception as error:  # broken or shut down; its library may raise anything
            remedy = "Rows so far are kept: run the sweep again to go on."
            raise SweepError(f"the executor takes no more jobs: {str(error).rstrip('.')}. {remedy}") from error

    def _record(self, future: Future[Row]) -> None:
        """Keeps the row of a job that ended. A job whose executor returned no row has failed."""
        error = BrokenExecutor("the executor cancelled the job") if future.cancelled() else future.exception()
        if error is None:
            self._keep(future, future.result())
            return
        self._keep(future, _describe(self._jobs[future]) | {"error": _text(error), "seconds": math.nan})
        if isinstance(error, BrokenExecutor) and not isinstance(error, WorkerDiedError):
            self._submit(int).cancel()  # ends the sweep if the executor is broken for good

    def _keep(self, future: Future[Row], row: Row) -> None:
        self._results.append(row)
        del self._jobs[future]
        self._bar.update()
        if row["error"] is not None:
            self._num_failed += 1
            self._bar.set_postfix(failed=self._num_failed)


@functools.cache
def current_versions() -> Mapping[str, str | None]:
    """Returns what every row that is measured now records of its making.

    Returns:
        Versions by the names of packages, None for those that are not installed, and ``source``, the first 12
        hexadecimal digits of the SHA-256 of this package's code, without comments and docstrings.
    """
    versions = {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}
    folder = Path(pyro_mbde.__file__).parent
    source = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        source.update(f"{path.relative_to(folder).as_posix()}\0{_code(path.read_text())}\0".encode())
    return MappingProxyType(versions | {"pyro_mbde": pyro_mbde.__version__, "source": source.hexdigest()[:12]})


def _code(text: str) -> str:
    """The syntax tree of a module, without docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def run_job(function: Measure, job: Job) -> Row:
    """Returns the row of a job: what ``function`` measures of it, or the error it raises."""
    row: Row = _describe(job) | {"error": None, "seconds": math.nan}
    with seeded(job.seed), single_thread():  # one at a time in a process
        start = time.perf_counter()
        try:
            measured = _check_measured(function(job), row)
        except (Exception, SystemExit) as error:  # the other jobs go on
            measured = {"error": _text(error)}
        return row | {"seconds": time.perf_counter() - start} | measured


def _describe(job: Job) -> Row:
    fields: Row = {"problem": job.problem, "system": job.system, "epsilon": job.epsilon, "repeat": job.repeat}
    return {"key": job.key, **fields, **dict(job.options), "seed": job.seed, **current_versions()}


def _check_measured(measured: Any, row: Row) -> Row:
    if not isinstance(measured, Mapping):
        raise TypeError(argument_error("function", "return a mapping of names to values", measured))
    # Numbers and flags of numpy's kinds as Python's own, which a file holds exactly.
    checked = {name: value.item() if isinstance(value, np.generic) else value for name, value in measured.items()}
    for name, value in checked.items():
        if not isinstance(name, str) or name in row:
            raise ValueError(argument_error("results", "be called otherwise than the columns of a row", name))
        if not isinstance(value, bool | int | float | str | None):
            raise TypeError(argument_error("function", "return numbers, words or None", {name: value}))
    return checked


def _check_word(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(argument_error(name, "be a string", value))
    if not re.fullmatch(r"[A-Za-z_][\w.+-]*", value) or value.lower() in ("inf", "infinity", "nan"):
        raise ValueError(argument_error(name, "be a word of letters, digits and any of _.+-, and no number", value))
    return value


def _check_picklable(function: Any) -> None:
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        remedy = "Define it at the top of a module, or pass an executor of threads."
        raise TypeError(
            argument_error("function", "be one that other processes can import", function, remedy)
        ) from error


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
