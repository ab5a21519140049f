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
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.experiments.medical import load_rows, public_base, split_rows
from pyro_mbde.experiments.problems import Problem, find_problem
from pyro_mbde.experiments.results import Row
from pyro_mbde.experiments.runner import Job
from pyro_mbde.experiments.systems import Setting, Table, fit
from pyro_mbde.limits import best_reachable
from pyro_mbde.metrics import mode_coverage, negative_log_likelihood, quadrature_grid

NUM_ROWS, NUM_QUICK_ROWS = 10_000, 1_000
#: Rows of the target that a batch is measured on; times that rows of a table are partitioned into batches at random.
_NUM_TARGET_ROWS, _NUM_PARTITIONS = 200_000, 20
#: Rows that are scored at a time.
_CHUNK = 2**15
#: The square that the paper's contours show, and points along each side.
GRID_EDGES, GRID_SIZE = (-6.0, 6.0), 96


def measure(job: Job) -> Row:
    """Returns what a job measures.

    Args:
        job: problem and system by name. Options: ``group_size`` (rows replaced that a baseline protects together, 0 for
            all of them; 1 by default), ``delta`` (1e-5 by default), ``quick`` (1: small tables, hardly trained),
            ``num_steps`` (of a GAN's critic; 10,000 by default), ``num_rows`` (of a batch of the projection; 1 by
            default) and, for the system ``limit``, ``skew`` (0.3 by default).

    Returns:
        ``nll`` of a row in nats; for known targets, by quadrature, and with ``coverage``; in two dimensions the density
        on a grid (:func:`decode_grid`); what is guaranteed, if anything is. Of a batch, the NLL divided by its rows,
        on draws of the target, without coverage and grid.
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
    if isinstance(density, MollifiedExpFamily) and density.event_shape != problem.base.event_shape:
        with seeded(job.seed):
            of_target = problem.target.sample(torch.Size([_NUM_TARGET_ROWS]))
        gain, error = _batch_gain(density, of_target)
        nll = negative_log_likelihood(problem.target, problem.base, _bounds(problem)).value - gain
        return {"nll": nll, "nll_se": error, **_guarantee(density)}
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
        int(options.get("num_rows", 1)),
    )


def _measure_medical(job: Job, options: dict[str, Any]) -> Row:
    """On rows of the medical table that no fit has seen."""
    rows, held_out = split_rows(load_rows(seed=0), seed=job.repeat)
    if options.get("quick", 0):
        rows = rows[:NUM_QUICK_ROWS]
    base: Any = public_base()
    table = Table(rows, base, base.base_dist.low, base.base_dist.high, None)
    density = fit(job.system, table, _setting(job, options, len(rows)))
    if isinstance(density, MollifiedExpFamily) and density.event_shape != base.event_shape:
        with seeded(job.seed):
            orders = torch.cat([torch.randperm(len(held_out)) for _ in range(_NUM_PARTITIONS)])
        gain, error = _batch_gain(density, held_out[orders])
        nll_of_base = -float(base.log_prob(held_out).double().mean())
        return {"nll": nll_of_base - gain, "nll_se": error * math.sqrt(_NUM_PARTITIONS), **_guarantee(density)}
    with torch.no_grad():
        nll = -density.log_prob(held_out).double()
    return {"nll": float(nll.mean()), "nll_se": float(nll.std() / math.sqrt(len(nll))), **_guarantee(density)}


def _batch_gain(density: MollifiedExpFamily, rows: Tensor) -> tuple[float, float]:
    """Nats that a row of a batch gains on the base, on rows of the target in batches; with the standard error."""
    num_rows = density.event_shape[0]
    batches = rows[: len(rows) // num_rows * num_rows].reshape(-1, *density.event_shape)
    with torch.no_grad():
        tilts = torch.cat([density.tilt(part).double() for part in torch.split(batches, max(_CHUNK // num_rows, 1))])
    gains = (tilts - density.log_normalizer.value) / num_rows
    return float(gains.mean()), float(gains.std() / math.sqrt(len(gains)))


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
