"""How the time of a fit, a density, a draw and a log-density grows: with columns, epsilon, rows and width."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import pandas as pd
import pyro.distributions as dist
import torch
from torch import Tensor
from tqdm import tqdm

from pyro_mbde._torch_state import seeded, single_thread
from pyro_mbde.cli.forward import PrintingCommand
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.experiments.problems import EPSILONS
from pyro_mbde.experiments.style import BLUE, GREEN, ORANGE, PURPLE, add_caption, quick_note
from pyro_mbde.pictures import new_figure, write_picture
from pyro_mbde.private_files import write_atomically
from pyro_mbde.sampling.private import private_draws
from pyro_mbde.training.density_ratio import DensityRatio, LogRatio
from pyro_mbde.training.weak_learner import WeakLearner

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Columns of the curves over epsilon, width and rows of a batch.
_FEW = 2
#: What takes longer in all is not repeated.
_ENOUGH_SECONDS = 10.0
_LOOKS = ((BLUE, "o", "-"), (ORANGE, "s", "-"), (GREEN, "^", "--"), (PURPLE, "v", "--"))


class Sizes(NamedTuple):
    """What is measured.

    Attributes:
        num_rows: of the table that is fitted.
        num_steps: of training; None for the default.
        repeats: of each measurement; its median counts.
        dims: columns.
        epsilons: of a density of single rows, or of a batch of ten.
        batches: rows of a batch, at epsilon 3.
        rows: at which a log-density is evaluated.
    """

    num_rows: int = 10_000
    num_steps: int | None = None
    repeats: int = 5
    dims: Sequence[int] = (1, 2, 5, 10, 20, 30)
    epsilons: Sequence[float] = EPSILONS
    batches: Sequence[int] = (1, 2, 5, 10, 20, 50)
    rows: Sequence[int] = (1, 10, 100, 1000, 10_000, 100_000)


SIZES = Sizes()
QUICK = Sizes(1000, 20, 1, (1, 2), (0.5, 1.0), (1, 2), (1, 100))


class Point(NamedTuple):
    """A point of a curve.

    Attributes:
        panel: of the picture: a key of :data:`PANELS`.
        line: its label in the panel.
        at: where on the horizontal axis.
        seconds: of processor time, the median.
        repeats: how often it was measured.
    """

    panel: str
    line: str
    at: float
    seconds: float
    repeats: int


#: Title, horizontal axis and vertical axis of each panel.
PANELS = {
    "fit": ("DensityRatio.fit", "columns", "seconds"),
    "columns": ("mollify, by columns", "columns", "seconds"),
    "epsilon": ("mollify, by epsilon", "epsilon", "seconds"),
    "batch": ("mollify, by rows of a batch", "rows of a batch, epsilon 3", "seconds"),
    "draw": ("private_draws, one draw", "width R of the log-ratio", "seconds a draw"),
    "log_prob": ("log_prob, one call", "rows", "seconds"),
}


def _table(dims: int, num_rows: int) -> tuple[Any, Tensor]:
    """A standard normal base, and rows of two normals of deviation 0.6 at +-0.5 in every column."""
    base: Any = dist.Normal(torch.zeros(dims), torch.ones(dims))
    with seeded(0):
        signs = torch.randint(2, (num_rows, 1)) - 0.5
        return base.to_event(1), signs + 0.6 * torch.randn(num_rows, dims)


def _seconds(run: Callable[[], object], repeats: int) -> tuple[float, int]:
    """Returns the median processor time of this thread, and the number of repeats it is of."""
    times: list[float] = []
    while len(times) < repeats and (not times or sum(times) < _ENOUGH_SECONDS):
        start = time.thread_time()
        run()
        times.append(time.thread_time() - start)
    return statistics.median(times), len(times)


def _keep(kept: list[MollifiedExpFamily], run: Callable[[], MollifiedExpFamily]) -> None:
    kept.append(run())


def measure(sizes: Sizes) -> Iterator[Point]:
    """Yields every point, one thread at a time."""
    learner = None if sizes.num_steps is None else WeakLearner(num_steps=sizes.num_steps)
    ratios: dict[int, LogRatio] = {}

    def fit(dims: int) -> LogRatio:
        base, rows = _table(dims, sizes.num_rows)
        return DensityRatio(base, seed=0, progress=False, weak_learner=learner).fit(rows)

    def mollified(dims: int, epsilon: float, num_rows: int | None = None) -> MollifiedExpFamily:
        # A ratio keeps scores of draws for later densities: each time counts that of a first one.
        return copy.deepcopy(ratios[dims]).mollify(epsilon, num_rows=num_rows)

    def point(panel: str, line: str, at: float, run: Callable[[], object], repeats: int = sizes.repeats) -> Point:
        return Point(panel, line, at, *_seconds(run, repeats))

    with single_thread():
        fit(_FEW)  # the first pays for imports
        for dims in sorted({*sizes.dims, _FEW}):
            ratios[dims] = fit(dims)
            yield point("fit", "default", dims, partial(fit, dims), min(sizes.repeats, 3))
            mollified(dims, 1.0)
            for epsilon in (1.0, 5.0):
                yield point("columns", f"epsilon {epsilon:g}", dims, partial(mollified, dims, epsilon))
        for num_rows in sizes.batches:
            yield point("batch", "one batch", num_rows, partial(mollified, _FEW, 3.0, num_rows))
        for line, size in (("single rows", None), ("batch of 10 rows", 10)):
            for epsilon in sizes.epsilons:
                made: list[MollifiedExpFamily] = []
                run = partial(mollified, _FEW, epsilon, size)
                yield point("epsilon", line, epsilon, partial(_keep, made, run))
                yield from _draws(made[-1], line, sizes.repeats)
        yield from _log_probs(sizes, mollified)


def _draws(q: MollifiedExpFamily, line: str, repeats: int) -> Iterator[Point]:
    """Yields the time of a draw, by the number of proposals that depends on the table and by the public one."""
    for way, constant_time in (("", False), (", constant time", True)):
        num_draws = 1 if constant_time and q.bounds.width > 5 else 20
        run = partial(private_draws, q, num_draws, constant_time=constant_time, progress=False)
        seconds, number = _seconds(run, repeats)
        yield Point("draw", line + way, q.bounds.width, seconds / num_draws, number)


def _log_probs(sizes: Sizes, mollified: Callable[[int, float], MollifiedExpFamily]) -> Iterator[Point]:
    """Yields the time of a log-density and its gradient."""
    for dims in (_FEW, max(sizes.dims)):
        q = mollified(dims, 1.0)
        for num_rows in sizes.rows:
            with seeded(1):
                value = torch.randn(num_rows, dims)
            calls = 50 if num_rows <= 100 else 1
            for way, gradient in (("value", False), ("with gradient", True)):
                run = partial(_call, q, value.clone().requires_grad_(gradient), calls)
                run()  # to warm up
                seconds, number = _seconds(run, sizes.repeats)
                yield Point("log_prob", f"{way}, {dims} columns", num_rows, seconds / calls, number)


def _call(q: MollifiedExpFamily, value: Tensor, calls: int) -> None:
    for _ in range(calls):
        total = q.log_prob(value).sum()
        if value.requires_grad:
            torch.autograd.grad(total, value)


def plot(points: pd.DataFrame) -> Figure:
    """The curves, a panel for each of :data:`PANELS`.

    Args:
        points: a row for each :class:`Point`, with ``quick`` 1 where it is of a quick run.
    """
    figure = new_figure(10, 6.2)
    axes: Any = figure.subplots(2, 3)
    for axis, (panel, (title, across, upwards)) in zip(axes.flat, PANELS.items(), strict=True):
        part = points[points["panel"] == panel]
        for (line, of_line), (color, marker, linestyle) in zip(part.groupby("line", sort=False), _LOOKS, strict=False):
            look: dict[str, Any] = {"color": color, "marker": marker, "linestyle": linestyle, "markersize": 4}
            axis.plot(of_line["at"], of_line["seconds"], label=str(line), **look)
        axis.set(title=title, xlabel=across, ylabel=upwards, yscale="log")
        if panel == "fit":  # hardly grows
            axis.set(yscale="linear", ylim=(0, 1.3 * part["seconds"].max()))
        if panel != "draw":  # there a line is what grows as e^R
            axis.set_xscale("log")
            ticks = part["at"].unique()
            axis.set_xticks(ticks, [f"{tick:g}" if tick < 1e4 else f"{tick / 1e3:g}k" for tick in ticks])
            axis.tick_params(axis="x", labelsize="small")
            axis.minorticks_off()
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        if part["line"].nunique() > 1:
            axis.legend(frameon=False, fontsize="x-small")
    add_caption(
        figure,
        f"{quick_note(points)}Processor time of one thread, medians. Base N(0, I), two modes; 10,000 rows, default "
        "training. Two columns, except where columns vary. A first mollify, its certificate at delta = 1e-9 included.",
        140,
    )
    return figure


@click.command(cls=PrintingCommand)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="PNG, PDF or SVG to draw.")
@click.option("--redraw", is_flag=True, help="Draw from the CSV file beside it, without measuring.")
@click.option("--quick", is_flag=True, help="Small sizes, hardly trained, to check that everything runs.")
def growth(output: Path, redraw: bool, quick: bool) -> None:
    """Seconds of fits, densities, draws and log-densities, as columns, epsilon, width and rows grow.

    The numbers go to a CSV file beside the picture. Takes about a quarter of an hour.
    """
    table_path = output.with_suffix(".csv")
    if not redraw:
        points = []
        for point in tqdm(measure(QUICK if quick else SIZES), desc="points"):
            tqdm.write(f"{point.panel:<10}{point.line:<32}{point.at:>10g}{point.seconds:>14.6f}")
            points.append(point)
        table = pd.DataFrame(points).assign(quick=int(quick))
        write_atomically(lambda file: file.write(table.to_csv(index=False, float_format="%.6g").encode()), table_path)
    write_picture(plot(pd.read_csv(table_path)), output)
    click.echo(f"{table_path}\n{output}")
