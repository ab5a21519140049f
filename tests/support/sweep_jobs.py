"""What the sweeps of the tests run: functions that worker processes find by import."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch

from pyro_mbde.experiments.runner import Job, run_sweep


def measure(job: Job) -> dict[str, float | str | None]:
    """Draws from torch's generator and from one seeded by the job, and computes with both."""
    draws = torch.randn(200, 8)
    return {
        "product": float((draws.T @ draws).logdet()),
        "normal": float(np.random.default_rng(job.seed).standard_normal()),
        "threads": torch.get_num_threads(),
        "process": str(os.getpid()),
    }


def slow(job: Job) -> dict[str, float | str | None]:
    time.sleep(0.15)
    return measure(job)


def sleep(job: Job) -> dict[str, float | str | None]:
    """Writes a file named by the repeat when it begins, and sleeps for an hour, except for the first."""
    Path(os.environ["SWEEP_FOLDER"], str(job.repeat)).touch()
    time.sleep(3600 if job.repeat else 0)
    return {}


def special(job: Job) -> dict[str, float | str | None]:
    values = {"inf": math.inf, "minus_inf": -math.inf, "nan": math.nan, "tiny": 5e-324, "third": 1 / 3}
    numpy = {"float32": np.float32(0.1), "int64": np.int64(7), "flag": np.bool_(True)}
    return {**values, **numpy, "none": None, "word": "a\nword", "count": 2**60}  # type: ignore[dict-item]  # numpy's own


def trouble(job: Job) -> dict[str, float | str | None]:
    """Does what the system says, unless the file ``well`` is there."""
    if Path(os.environ["SWEEP_FOLDER"], "well").exists():
        return measure(job)
    match job.system:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "leave":
            sys.exit(4)
        case "raise":
            raise ValueError("no\nway")
        case "tensor":
            return {"value": torch.zeros(())}  # type: ignore[dict-item]  # which is the trouble
        case "name":
            return {"seed": 1.0}
        case "number":
            return 1.0  # type: ignore[return-value]  # which is the trouble
    return measure(job)


def jobs_of(num_jobs: int, system: str = "one") -> list[Job]:
    return [Job("test", system, 1.0, repeat) for repeat in range(num_jobs)]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell is started without
    function = {"slow": slow, "sleep": sleep}[sys.argv[2]]
    print("start", flush=True)
    run_sweep(jobs_of(int(sys.argv[3])), function, sys.argv[1], num_workers=2, progress=False)
