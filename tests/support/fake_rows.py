"""Rows as sweeps keep them, whose numbers tell which job they are of."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from pyro_mbde.experiments.measure import encode_grid
from pyro_mbde.experiments.problems import ring
from pyro_mbde.experiments.runner import Job, current_versions
from pyro_mbde.experiments.sweeps import SWEEPS
from pyro_mbde.experiments.systems import SYSTEMS

GRID = encode_grid(ring().target)


def fake_row(job: Job) -> dict[str, Any]:
    """A row as a sweep keeps it, whose numbers tell which job it is of."""
    row: dict[str, Any] = {"key": job.key, "problem": job.problem, "system": job.system, "epsilon": job.epsilon}
    row |= {"repeat": job.repeat, "error": None, **dict(job.options), **current_versions()}
    nll = (
        5 - math.log(job.epsilon) / 10 + job.repeat / 100 + list(SYSTEMS).index(job.system) / 10
        if job.system in SYSTEMS
        else 2
    )
    return row | {
        "nll": nll,
        "coverage": 0.5 + job.epsilon / 100 + job.repeat / 50,
        "grid": GRID,
        "log_ratio_range": 9.5,
    }


def fake_table(name: str, *, quick: bool = False) -> pd.DataFrame:
    return pd.DataFrame([fake_row(job) for job in SWEEPS[name](quick=quick)])
