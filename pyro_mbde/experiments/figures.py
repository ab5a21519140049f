"""The paper's figures, each drawn from rows of results alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pyro_mbde.experiments.measure import GRID_EDGES, GRID_SIZE, decode_grid, encode_grid
from pyro_mbde.experiments.problems import find_problem
from pyro_mbde.experiments.style import INK, ORANGE, PALE, SEQUENTIAL, Look, add_caption, quick_note
from pyro_mbde.experiments.sweeps import FIRST, PLANE_EPSILONS
from pyro_mbde.experiments.systems import LOOKS
from pyro_mbde.pictures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OURS = "Ours: ε protects all rows at once, in one draw (δ = 1e-9 for the projection); k draws cost k ε."
_DPB_PAPER = (
    "DPB as in the paper: ε protects one row, in the whole density; its bandwidth is cross-validated on the table, "
    "which no guarantee covers."
)
_INTEGRAL = "With all rows protected, DPB's ε covers any two tables, as ours does, in the whole density."


def plot_first(table: pd.DataFrame) -> Figure:
    """What group protection and draws cost, and the ring under the paper's four contenders."""
    figure = new_figure(13.5, 3.5)
    axes: Any = figure.subplots(1, 7, width_ratios=(1.25, 1.25, 1, 1, 1, 1, 1))
    sizes = np.logspace(0, 4, 50)
    for axis, (baseline, ours), title, label in (
        (axes[0], (sizes**2, sizes**0), "variance", "rows protected together, m"),
        (axes[1], (sizes**0, sizes), "budget", "draws handed out, k"),
    ):
        axis.plot(sizes, baseline, color=LOOKS["dpb-paper"].color, linestyle="--", label="DPB")
        axis.plot(sizes, ours, color=ORANGE, linestyle="-", label="ours")
        axis.set(xscale="log", yscale="log", xlabel=label, title=title, ylabel="times that of one")
        axis.legend(frameon=False, fontsize="small")
    _show(axes[2], encode_grid(find_problem("ring").target), "target P")
    names = {"projection": "projection", "mbde-paper": "MBDE", "dpb-paper": "DPB", "dpgan": "DPGAN"}
    for axis, (system, epsilon) in zip(axes[3:], FIRST.items(), strict=True):
        row = _rows(table, system, epsilon)
        _show(axis, _first_text(row, "grid"), f"{names[system]}, ε = {epsilon:g}")
    add_caption(
        figure,
        f"{quick_note(table)}Ring, 10,000 rows, squares of side 12. {_OURS} {_DPB_PAPER} DPGAN: ε protects one row "
        "replaced, δ = 0.1; its density is a kernel estimate over its draws. Each panel has its own scale, darkest "
        "at 0.",
        200,
    )
    return figure


def plot_ring(table: pd.DataFrame) -> Figure:
    """Contours on the ring, DPB above ours, epsilon falling to the right."""
    return _contours(table, "Ring of eight normals, 10,000 rows")


def plot_random_2d(table: pd.DataFrame) -> Figure:
    """Contours on random normals in the plane."""
    return _contours(table, "Eight normals at random places, 10,000 rows")


def _contours(table: pd.DataFrame, title: str) -> Figure:
    systems = ("dpb-paper", "mbde-paper", "projection", "projection-box")
    epsilons = sorted(table["epsilon"].unique(), reverse=True)
    problem = find_problem(str(table["problem"].iloc[0]))
    figure = new_figure(1.35 * (len(epsilons) + 1), 7.2)
    axes: Any = figure.subplots(4, len(epsilons) + 1, squeeze=False)
    for index, system in enumerate(systems):
        _show(axes[index, 0], encode_grid(problem.target), "target P" if index == 0 else "")
        axes[index, 0].set_ylabel(LOOKS[system].label.replace(", ", ",\n"), fontsize=8)
        for axis, epsilon in zip(axes[index, 1:], epsilons, strict=True):
            row = _rows(table, system, epsilon)
            grid = _first_text(row, "grid")
            _show(axis, grid, f"ε = {epsilon:g}" if index == 0 else "")
            axis.set_xlabel("" if grid is None else f"NLL {_mean(row, 'nll'):.2f}", fontsize=8)
    figure.suptitle(title + (";" if len(epsilons) > 3 else "\n") + " NLL in nats", fontsize=10)
    caption = (
        f"{quick_note(table)}{_OURS} {_DPB_PAPER} The box is DPB's. Squares of side 12; each panel has its own scale, "
        "darkest at 0."
    )
    add_caption(figure, caption, 24 * len(epsilons))
    return figure


def plot_metrics(table: pd.DataFrame) -> Figure:
    """NLL and mode coverage against epsilon, with what is best reachable."""
    titles = {"ring": "ring", "mixture-1d": "1-D mixture"}
    figure = new_figure(11, 8.5)
    from matplotlib.ticker import NullLocator

    axes: Any = figure.subplots(2, 2, sharex=True)
    for column, (problem, title) in enumerate(titles.items()):
        part = table[table["problem"].isin((problem, f"{problem}-box"))]
        nll, coverage = axes[0, column], axes[1, column]
        for system in ("mbde-paper", "projection", "projection-box", "dpb-paper", "dpb", "dpb-all", "unbounded"):
            rows, look = _of_system(part, system), LOOKS[system]
            if not rows.empty:
                label = f"{look.label}\n({_ranges(rows)})" if system == "unbounded" else look.label
                _band(nll, rows, "nll", look, label)
                _band(coverage, rows, "coverage", look, label)
        for skew, color in ((0.5, INK), (0.3, ORANGE)):
            rows = part[(part["system"] == "limit") & (part["skew"] == skew)].sort_values("epsilon")
            nll.plot(rows["epsilon"], rows["nll"], color=color, linewidth=0.9, label=f"best reachable, skew {skew:g}")
        for system, linestyle, label in (("base", ":", "public base alone"), ("kde", "-", "KDE without privacy")):
            value = _mean(_of_system(part, system), "nll")
            nll.axhline(value, color=PALE, linestyle=linestyle, linewidth=1, label=label)
            covered = _mean(_of_system(part, system), "coverage")
            coverage.axhline(covered, color=PALE, linestyle=linestyle, linewidth=1)
        nll.set(title=title, xscale="log", yscale="log", ylabel="NLL, nats")
        ticks = [epsilon for epsilon in PLANE_EPSILONS if epsilon not in (0.75, 1.5)]  # which lie too near to others
        nll.set_xticks(ticks, [f"{epsilon:g}" for epsilon in ticks])
        nll.xaxis.set_minor_locator(NullLocator())
        nll.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        nll.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if _shown(value) else "")
        coverage.set(xlabel="ε, nats", ylabel="mode coverage, share of P")
        coverage.set_ylim(0.0 if _lowest(coverage) < 0.9 else 0.9, 1.01)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize="small")
    add_caption(
        figure,
        f"{quick_note(table)}10,000 rows. Lines: medians of five tables; bands: all of them. {_OURS} {_DPB_PAPER} "
        f"{_INTEGRAL} The unbounded variant is that of the authors' published code: no ε fixed beforehand covers it.",
        150,
    )
    return figure


def plot_coverage(table: pd.DataFrame) -> Figure:
    """Mean and standard deviation of the mode coverage over repeats, random normals on the line."""
    return _by_modes(
        table,
        ("mbde-paper", "projection"),
        "coverage",
        "mode coverage, share of P",
        f"Random normals on the line, 10,000 rows, four repeats with centres and tables of their own. {_OURS}",
    )


def plot_random_1d(table: pd.DataFrame) -> Figure:
    """Mean and standard deviation of the NLL over repeats, DPB beside ours."""
    return _by_modes(
        table,
        ("dpb-paper", "mbde-paper", "projection"),
        "nll",
        "NLL, nats",
        "Random normals on the line, 10,000 rows, four repeats with centres and tables of their own; dotted: best "
        f"reachable at skew 0.3. {_OURS} {_DPB_PAPER}",
    )


def _by_modes(table: pd.DataFrame, systems: Sequence[str], column: str, label: str, caption: str) -> Figure:
    figure = new_figure(3.4 * len(systems) + 0.8, 6.2)
    from matplotlib import colormaps

    axes: Any = figure.subplots(2, len(systems), sharex=True, sharey="row", squeeze=False)
    table = table.assign(modes=table["problem"].str.rsplit("-", n=1).str[-1].astype(int))
    numbers = sorted(table["modes"].unique())
    colors = dict(zip(numbers, colormaps[SEQUENTIAL](np.linspace(0, 0.92, len(numbers))), strict=True))
    markers = dict(zip(numbers, "ov^<>spPXD", strict=False))
    for place, system in enumerate(systems):
        mean, deviation = axes[:, place]
        for modes in numbers:
            part = table[table["modes"] == modes]
            groups = _of_system(part, system).groupby("epsilon")[column]
            line = {"color": colors[modes], "marker": markers[modes], "markersize": 4, "linewidth": 1.2}
            mean.plot(groups.mean(), label=f"m = {modes}", **line)
            deviation.plot(groups.std(), **line)
            if column == "nll" and system == "projection":
                limits = part[part["system"] == "limit"].groupby("epsilon")["nll"].mean()
                mean.plot(limits, color=INK, linestyle=":", linewidth=1, zorder=3)
        mean.set_title(LOOKS[system].label)
        deviation.set_xlabel("ε, nats")
        if column == "nll":
            deviation.set_yscale("log")
        else:  # coverages may all be 1
            mean.set_ylim(min(0.9, _lowest(mean)), 1.005)
            deviation.set_ylim(0, 0.05)
    axes[0, 0].set_ylabel(f"mean {label}")
    axes[1, 0].set_ylabel(f"standard deviation, {label.split(', ')[1]}")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    add_caption(figure, quick_note(table) + caption, 52 * len(systems))
    return figure


def _of_system(table: pd.DataFrame, system: str) -> pd.DataFrame:
    """Rows of a system. DPB that protects all rows is one of its own, as is the projection over a box."""
    everything = table["group_size"] == 0 if "group_size" in table else pd.Series(False, table.index)
    boxed = table["problem"].str.endswith("-box")
    name = system.removesuffix("-all").removesuffix("-box")
    return table[
        (table["system"] == name) & (everything == system.endswith("-all")) & (boxed == system.endswith("-box"))
    ]


def _band(axis: Axes, rows: pd.DataFrame, column: str, look: Look, label: str) -> None:
    """Medians over the repeats as a line, all of them as a band."""
    groups = rows.groupby("epsilon")[column]
    axis.plot(groups.median(), label=label, **look.line())
    axis.fill_between(groups.min().index, groups.min(), groups.max(), color=look.color, alpha=0.15, linewidth=0)


def _lowest(axis: Axes) -> float:
    """The lowest place on an axis that a line or band reaches; 1 where there is none."""
    lowest = float(axis.dataLim.ymin)
    return lowest if np.isfinite(lowest) else 1.0


def _rows(table: pd.DataFrame, system: str, epsilon: float) -> pd.DataFrame:
    rows = _of_system(table, system)
    return rows[rows["epsilon"] == epsilon]


def _mean(rows: pd.DataFrame, column: str) -> float:
    """The mean of what was measured; NaN where all jobs failed."""
    return float(rows[column].mean()) if column in rows and not rows.empty else float("nan")


def _first_text(rows: pd.DataFrame, column: str) -> str | None:
    """Of the first row that has it: jobs may have failed."""
    held = rows[column].dropna() if column in rows else rows.iloc[:0, 0]
    return None if held.empty else str(held.iloc[0])


def _ranges(rows: pd.DataFrame) -> str:
    """The widest measured ranges of the log-ratio beside epsilon, which they should not exceed."""
    if "log_ratio_range" not in rows:
        return "all failed"
    widest = rows.groupby("epsilon")["log_ratio_range"].max().dropna()
    parts = [f"{widest[epsilon]:.2g} at ε = {epsilon:g}" for epsilon in (0.1, 0.5, 1.0, 5.0, 10.0) if epsilon in widest]
    return "log-ratio to the base spans up to\n" + ",\n".join(parts)


def _shown(value: float) -> bool:
    """Whether a minor tick of a logarithmic axis is labelled."""
    return f"{value:e}"[0] in "235"


def _show(axis: Axes, grid: str | None, title: str) -> None:
    """A density on the paper's square, filled contours; or that there is none."""
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_aspect("equal")
    axis.set_title(title, fontsize=9)
    axis.set(xlim=GRID_EDGES, ylim=GRID_EDGES)
    if grid is None:
        axis.text(0, 0, "failed", ha="center", va="center")
        return
    step = (GRID_EDGES[1] - GRID_EDGES[0]) / GRID_SIZE
    places = GRID_EDGES[0] + step * (np.arange(GRID_SIZE) + 0.5)
    density = decode_grid(grid)
    axis.contourf(places, places, density.T, levels=np.linspace(0, density.max(), 21), cmap=SEQUENTIAL)


#: By name.
PLOTS: dict[str, Callable[[pd.DataFrame], Figure]] = {
    "first": plot_first,
    "ring": plot_ring,
    "metrics": plot_metrics,
    "coverage": plot_coverage,
    "random-1d": plot_random_1d,
    "random-2d": plot_random_2d,
}
