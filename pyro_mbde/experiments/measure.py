"""One job of a sweep: a system is fitted to a problem's table, and how close it comes is measured."""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._torch_state import seeded
from pyro_mbde.experiments.medical import load_rows, public_base, split_rows
from pyro_mbde.experiments.problems import Problem, find_problem
from pyro_mbde.experiments.results import Row
from pyro_mbde.experiments.runner import Job
from pyro_mbde.experiments.systems import Setting, Table, fit
from pyro_mbde.limits import best_reachable
from pyro_mbde.metrics import mode_coverage, negative_log_likelihood, quadrature_grid

NUM_ROWS, NUM_QUICK_ROWS = 10_000, 1_000
#: The square that the paper's contours show, and points along each side.
GRID_EDGES, GRID_SIZE = (-6.0, 6.0), 96


def measure(job: Job) -> Row:
    """Returns what a job measures.

    Args:
        job: problem and system by name. Options: ``group_size`` (rows replaced that a baseline protects together, 0 for
            all of them; 1 by default), ``delta`` (1e-5 by default), ``quick`` (1: small tables, hardly trained),
            ``num_steps`` (of a GAN's critic; 10,000 by default) and, for the system ``limit``, ``skew`` (0.3 by
            default).

    Returns:
        ``nll`` in nats; for known targets, by quadrature, and with ``coverage``; in two dimensions the density on a
        grid (:func:`decode_grid`); what is guaranteed, if anything is.
    """
    options: dict[str, Any] = dict(job.options)
    if job.problem == "medical":
        return _measure_medical(job, options)
    problem = find_problem(job.problem, job.repeat)
    if job.system == "limit":
        best = best_reachable(problem.target, problem.base, job.epsilon, options.get("skew", 0.3), box=problem.box)
        return {"nll": best.nll, "gain": best.gain}
    quick = bool(options.get("quick", 0))
    # All systems see the same table.
    with seeded(1000 + job.repeat):
        rows = problem.target.sample(torch.Size([NUM_QUICK_ROWS if quick else NUM_ROWS]))
    low, high = (torch.full(problem.base.event_shape, edge) for edge in _bounds(problem))
    density = fit(job.system, Table(rows, problem.base, low, high, problem.box), _setting(job, options, len(rows)))
    # Over the public range, which holds all but a part in 10^5 of P, and all of Q that matters.
    row: Row = {
        "nll": negative_log_likelihood(problem.target, density, _bounds(problem)).value,
        "coverage": mode_coverage(problem.target, density, problem.box).value,
        **_guarantee(density),
    }
    return row | ({"grid": encode_grid(density)} if problem.base.event_shape == (2,) else {})


def _bounds(problem: Problem) -> tuple[float, float]:
    if problem.bounds is None:
        raise ValueError(f"problem must have public bounds, got problem={problem.name!r}.")
    return problem.bounds


def _setting(job: Job, options: dict[str, Any], num_rows: int) -> Setting:
    group_size = int(options.get("group_size", 1))
    return Setting(
        job.epsilon,
        float(options.get("delta", 1e-5)),
        None if group_size == 0 or group_size >= num_rows else group_size,
        job.seed % 2**31,
        bool(options.get("quick", 0)),
        int(options.get("num_steps", 10_000)),
    )


def _measure_medical(job: Job, options: dict[str, Any]) -> Row:
    """On rows of the medical table that no fit has seen."""
    rows, held_out = split_rows(load_rows(seed=0), seed=job.repeat)
    if options.get("quick", 0):
        rows = rows[:NUM_QUICK_ROWS]
    base: Any = public_base()
    table = Table(rows, base, base.base_dist.low, base.base_dist.high, None)
    density = fit(job.system, table, _setting(job, options, len(rows)))
    with torch.no_grad():
        nll = -density.log_prob(held_out).double()
    return {"nll": float(nll.mean()), "nll_se": float(nll.std() / math.sqrt(len(nll))), **_guarantee(density)}


def _guarantee(density: Distribution) -> Row:
    guarantee: Any = getattr(density, "guarantee", None)
    if guarantee is None:  # the public base
        return {}
    row: Row = {"guarantee_epsilon": guarantee.epsilon, "guarantee_delta": guarantee.delta}
    if hasattr(density, "log_ratio_range"):
        row["log_ratio_range"] = float(density.log_ratio_range)
    return row


def grid_points() -> Tensor:
    """Returns the midpoints of the paper's square, shape ``(GRID_SIZE ** 2, 2)``."""
    return quadrature_grid(GRID_EDGES, torch.Size([2]), GRID_SIZE)[0]


def encode_grid(density: Distribution) -> str:
    """Returns the density on the paper's square as text: half precision, relative to its largest value there."""
    with torch.no_grad():
        values = torch.cat([density.log_prob(part) for part in torch.split(grid_points(), 2**13)]).double().exp()
    largest = float(values.max())
    packed = zlib.compress((values / largest).numpy().astype(np.float16).tobytes())
    return f"{largest!r}:{base64.b64encode(packed).decode()}"


def decode_grid(text: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Returns what :func:`encode_grid` kept, shape ``(GRID_SIZE, GRID_SIZE)``, the first axis along x."""
    largest, packed = text.split(":")
    values = np.frombuffer(zlib.decompress(base64.b64decode(packed)), np.float16).astype(np.float64)
    return values.reshape(GRID_SIZE, GRID_SIZE) * float(largest)
