"""What a fit to many rows costs on paper, from constants that are measured on one machine.

``torchrun --nproc-per-node=2 -m pyro_mbde.experiments.scale_costs 71328`` times the average of so many bytes.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from pyro_mbde._torch_state import single_thread
from pyro_mbde.density.base import prepare
from pyro_mbde.experiments.scale_runs import module, run
from pyro_mbde.experiments.scale_table import held_out_rows, public_schema
from pyro_mbde.ranks import joined_ranks
from pyro_mbde.tables.row_files import RowFiles
from pyro_mbde.training.density_ratio import DensityRatio
from pyro_mbde.training.windows import WINDOW_SLICES

#: On paper: processes of a machine, of one thread each; bytes a second between two machines (10 Gbit/s).
PROCESSES, NETWORK = 8, 1.25e9
_HOUR = 3600


@dataclass(frozen=True)
class Constants:
    """What one process of one thread does, as measured.

    Attributes:
        row_bytes: of a row in its file.
        rows_decoded: rows a second out of the file, as a frame.
        rows_read: rows a second out of the file and through the schema.
        step_seconds: of a training step on no rows.
        example_seconds: what a row and a base draw add to a step.
        reduced_bytes: gradients of all networks.
        reduce_seconds: their average over two processes of one machine.
    """

    row_bytes: float
    rows_decoded: float
    rows_read: float
    step_seconds: float
    example_seconds: float
    reduced_bytes: float
    reduce_seconds: float


class Cost(NamedTuple):
    """Hours of a fit on paper.

    Attributes:
        steps: of training.
        read: hours of reading and checking rows.
        train: hours of training steps.
        average: hours of averaging gradients.
    """

    steps: float
    read: float
    train: float
    average: float

    @property
    def total(self) -> float:
        """Hours in all."""
        return self.read + self.train + self.average


def cost(constants: Constants, num_rows: float, machines: int, batch: float, *, processes: int = PROCESSES) -> Cost:
    r"""Returns what one pass over a table takes with ``split="rows"``.

    Every process reads its share of the rows. A step takes ``batch`` rows in all, so there are ``num_rows / batch`` of
    them, each on its share of the batch. Gradients go around a ring: with R processes it has
    :math:`2 (R - 1)` rounds, of which two processes have two, and between machines the network carries twice their
    bytes.

    Args:
        constants: of one process.
        num_rows: of the table.
        machines: alike, with ``processes`` each.
        batch: rows of a step, over all processes.
        processes: of one machine.

    Example:
        >>> one = Constants(34, 5e5, 4e5, 3e-4, 7e-6, 7e4, 3e-4)
        >>> [round(cost(one, 1e9, machines, 512 * 8 * machines).total, 2) for machines in (1, 8)]
        [0.49, 0.2]
    """
    ranks = machines * processes
    steps = num_rows / batch
    rounds = constants.reduce_seconds * (ranks - 1)
    carried = 2 * constants.reduced_bytes / NETWORK if machines > 1 else 0.0
    return Cost(
        steps,
        num_rows / ranks / constants.rows_read / _HOUR,
        steps * (constants.step_seconds + constants.example_seconds * batch / ranks) / _HOUR,
        steps * (rounds + carried) / _HOUR,
    )


def cost_lines(constants: Constants, sizes: Sequence[float] = (1e9, 1e11)) -> list[str]:
    """Returns the cost of one pass as lines of a table: the batch fixed, or growing with the processes.

    Args:
        constants: of one process.
        sizes: rows of tables.
    """
    lines = [
        f"{'rows':>7}{'machines':>10}{'batch in all':>14}{'steps':>10}"
        + "".join(f"{name:>10}" for name in ("read, h", "train, h", "average", "total, h"))
    ]
    for size in sizes:
        for machines in (1, 8, 64):
            for batch in (512, 512 * machines * PROCESSES):
                of = cost(constants, size, machines, batch)
                hours = "".join(f"{value:>10.3g}" for value in (of.read, of.train, of.average, of.total))
                lines.append(f"{size:>7.0e}{machines:>10}{batch:>14,}{of.steps:>10.1e}{hours}")
    return lines


def measure_reading(path: Path, num_windows: int, seed: int = 0) -> tuple[float, float]:
    """Returns rows a second that are decoded, and that are read and checked, from windows of a fresh permutation.

    Args:
        path: a table.
        num_windows: to read, at most all.
        seed: of the permutation.
    """
    schema = public_schema()
    files, stream = RowFiles.find(str(path)), schema.stream(str(path))
    order = torch.randperm(files.num_slices, generator=torch.Generator().manual_seed(seed)).tolist()
    windows = [order[at : at + WINDOW_SLICES] for at in range(0, len(order), WINDOW_SLICES)][:num_windows]

    def rate(rows_of: Callable[[list[int]], int]) -> float:
        rows_of(windows[0][:1])  # the first read pays for imports
        start = time.perf_counter()
        num_rows = sum(rows_of(window) for window in windows)
        return num_rows / (time.perf_counter() - start)

    names = list(schema.names)
    decoded = rate(lambda window: sum(len(frame) for _, frame in files.frames(window, names)))
    return decoded, rate(lambda window: len(stream.read(window)))


def measure_step(num_steps: int) -> tuple[float, float, int]:
    """Returns the seconds of a step on no rows, what an example adds, and the bytes of all networks' gradients.

    Args:
        num_steps: to time, at two sizes of the batch.
    """
    base, rows = public_schema().base(), held_out_rows(20_000)

    def seconds(batch_size: int) -> float:
        times = []
        for steps in (1, num_steps + 1):
            trainer = DensityRatio(base, seed=0, progress=False)
            trainer.weak_learner = replace(trainer.weak_learner, num_steps=steps, batch_size=batch_size)
            start = time.perf_counter()
            trainer.fit(rows)
            times.append(time.perf_counter() - start)
        return (times[1] - times[0]) / num_steps

    seconds(512)  # the first pays for imports
    small, large = seconds(256), seconds(512)
    trainer = DensityRatio(base)
    prepared = prepare(base)
    width = prepared.feature_scale.loc.shape[-1] if prepared.feature_scale.loc.dim() else rows.shape[-1]
    networks = trainer.weak_learner.indifferent(
        torch.zeros(1, width), prepared.feature_scale, num_classifiers=trainer.ensemble_size
    )
    num_bytes = sum(one.numel() * one.element_size() for one in networks.parameters())
    return max(2 * small - large, 0.0), max(large - small, 1e-9) / 256, num_bytes


def measure_constants(path: Path, num_rows: int, *, quick: bool = False) -> Constants:
    """Measures all constants of this machine, one thread.

    Args:
        path: a table.
        num_rows: of the table.
        quick: few steps and windows.
    """
    with single_thread():
        decoded, read = measure_reading(path, 2 if quick else 40)
        step_seconds, example_seconds, num_bytes = measure_step(10 if quick else 300)
    reduce = run(module("pyro_mbde.experiments.scale_costs", num_bytes, ranks=2)).answer["seconds"]
    return Constants(
        path.stat().st_size / num_rows, decoded, read, step_seconds, example_seconds, num_bytes, float(reduce)
    )


def main(arguments: Sequence[str]) -> None:
    """Times the average of gradients over ranks; the first of them prints the seconds of one.

    Args:
        arguments: bytes.
    """
    values = torch.zeros(math.ceil(float(arguments[0]) / 4))
    with joined_ranks() as ranks:
        for _ in range(20):
            ranks.average([values])
        start = time.perf_counter()
        for _ in range(500):
            ranks.average([values])
        if ranks.is_first:
            print(f'{{"seconds": {(time.perf_counter() - start) / 500}}}')  # noqa: T201  # the answer of a program


if __name__ == "__main__":
    main(sys.argv[1:])
