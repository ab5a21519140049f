"""Executors and calls that the tests of sweeps share."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from typing import Any

import pandas as pd

from pyro_mbde.experiments.runner import Job, Measure, run_sweep

#: What two runs of a job share.
MEASURED = ["key", "seed", "product", "normal", "threads"]


class Serial(Executor):
    """Runs each task where it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Breaking(Executor):
    """Breaks at one submission, or for each one from it on."""

    def __init__(self, at: int, *, for_good: bool) -> None:
        self.at, self.for_good, self.count = at, for_good, 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.count += 1
        if self.count > self.at and self.for_good:
            raise BrokenExecutor("all gone")
        future: Future[Any] = Future()
        if self.count == self.at:
            future.set_exception(BrokenExecutor("a worker is gone"))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


def sweep(jobs: list[Job], function: Measure, path: Path, **options: Any) -> pd.DataFrame:
    return run_sweep(jobs, function, path, progress=False, **({"executor": Serial()} | options))


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
