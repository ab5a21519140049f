"""Pictures of fits to many rows: what they take, what they gain, and the way that rows go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyro_mbde.experiments.style import BLUE, GREEN, INK, ORANGE, PALE, PURPLE, SKY, add_caption
from pyro_mbde.pictures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = dict[str, Any]
#: Bytes of a row in a pandas frame of the synthetic table: eight a cell.
_FRAME_BYTES = 80
_MIB = 2**20
_FORMS = {"parquet": ("Parquet", BLUE, "o"), "csv": ("CSV", ORANGE, "s")}
_COLORS = (SKY, BLUE, GREEN, PURPLE)


def plot_memory(records: Sequence[Record]) -> Figure:
    """Memory, and time, of ``pyro-mbde fit`` against the rows of the table.

    Args:
        records: of the part ``memory``.
    """
    figure = new_figure(10, 4.4)
    memory, seconds = figure.subplots(1, 2, sharex=True)
    fits = [one for one in records if one["command"] == "fit" and one["is_default"]]
    checks = [one for one in records if one["command"] == "check"]
    sizes = sorted({one["rows"] for one in fits})
    for form, (label, color, marker) in _FORMS.items():
        for command, chosen, line in (("fit", fits, "-"), ("check", checks, ":")):
            part = sorted((one for one in chosen if one["form"] == form), key=lambda one: int(one["rows"]))
            rows = [one["rows"] for one in part]
            look: dict[str, Any] = {"color": color, "marker": marker, "linestyle": line, "markersize": 5}
            if command == "fit":
                memory.plot(rows, [one["peak_bytes"] / _MIB for one in part], label=f"{label} files", **look)
            what = "fit" if command == "fit" else "--check, which reads every row"
            seconds.plot(rows, [one["seconds"] for one in part], label=f"{label}: {what}", **look)
    smallest = min(one["peak_bytes"] for one in fits) / _MIB
    whole = [smallest + size * _FRAME_BYTES / _MIB for size in sizes]
    memory.plot(sizes, whole, color=PALE, linestyle="--", label="if the table were held whole, at least")
    memory.axhline(600, color=INK, linewidth=0.8, label="600 MiB")
    memory.set(
        xscale="log",
        ylim=(0, 1500),
        xlabel="rows of the table",
        ylabel="peak memory of the process, MiB",
        title="Memory",
    )
    seconds.set(xscale="log", yscale="log", xlabel="rows of the table", ylabel="seconds, start to end", title="Time")
    for axis in (memory, seconds):
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        axis.legend(frameon=False, fontsize="small")
    add_caption(
        figure,
        "pyro-mbde fit at epsilon 1 on a synthetic table of ten columns, one thread. A fit reads as many rows as its "
        "training steps take, whatever the length of the table; --check reads all of them.",
        140,
    )
    return figure


def plot_gain(records: Sequence[Record]) -> Figure:
    """What a density gains against the number of training steps, a line for each length of the table.

    Args:
        records: of the part ``gain``.
    """
    records = [one for one in records if not one.get("sorted")]
    epsilons = list(records[0]["gain"])
    figure = new_figure(3.5 * len(epsilons), 3.9)
    axes: Any = figure.subplots(1, len(epsilons), squeeze=False)
    for axis, epsilon in zip(axes[0], epsilons, strict=True):
        for size, color in zip(sorted({one["rows"] for one in records}), _COLORS, strict=False):
            part = sorted((one for one in records if one["rows"] == size), key=lambda one: int(one["steps"]))
            gains = [one["gain"][epsilon] for one in part]
            axis.plot([one["steps"] for one in part], gains, color=color, marker="o", label=f"{size:,} rows")
        best = records[0]["best"][epsilon]
        axis.axhline(best, color=INK, linewidth=0.8, linestyle="--", label="best reachable")
        axis.set(xscale="log", xlabel="training steps", title=f"ε = {float(epsilon):g}")
        steps = sorted({one["steps"] for one in records})
        axis.set_xticks(steps, [f"{one:,}" for one in steps])
        axis.minorticks_off()
    axes[0, 0].set_ylabel("nats that a row gains on the base")
    axes[0, 0].legend(frameon=False, fontsize="small")
    return figure


#: Boxes of the way: place of the centre, width, text, what is private in it.
_BOXES: tuple[tuple[float, float, float, str, str], ...] = (
    (0.9, 2.0, 1.5, "files\nvisits/*.parquet", ORANGE),
    (2.9, 2.0, 1.5, "slices\n4,096 rows each,\nshuffled every pass", ORANGE),
    (4.9, 2.0, 1.5, "windows\n32 slices in memory,\nrows shuffled", ORANGE),
    (6.9, 2.0, 1.5, "processes\nwindows in turn,\nbatches", ORANGE),
    (8.9, 2.0, 1.5, "networks\nthe learned\ndensity ratio", ORANGE),
    (8.9, 0.6, 1.5, "certificate\non draws of the\npublic base", ORANGE),
    (6.9, 0.6, 1.5, "model.pt\na private file", ORANGE),
    (4.9, 0.6, 1.5, "ledger\na file or PostgreSQL:\ncharged first", BLUE),
    (2.9, 0.6, 1.5, "release\nexact draws,\non any machine", ORANGE),
    (0.9, 0.6, 1.5, "rows and card\nmay be\nhanded out", GREEN),
)


def plot_path() -> Figure:
    """The way of rows: from files to a release. Orange is as sensitive as the table."""
    figure = new_figure(10, 3.4)
    axis = figure.subplots()
    axis.set(xlim=(0, 9.8), ylim=(0, 2.75))
    axis.set_axis_off()
    for x, y, width, text, color in _BOXES:
        _box(axis, x, y, width, text, color)
    for (x, y, width, *_), (next_x, next_y, next_width, *_) in zip(_BOXES, _BOXES[1:], strict=False):
        if y == next_y:
            side = 1 if next_x > x else -1
            ends = ((x + side * width / 2, y), (next_x - side * next_width / 2, y))
        else:
            ends = ((x, y - 0.42), (next_x, next_y + 0.42))
        axis.annotate("", ends[1], ends[0], arrowprops={"arrowstyle": "->", "color": INK, "linewidth": 1.2})
    axis.text(5.9, 2.62, "model.pt.checkpoint: networks and positions, no rows", ha="center", fontsize=8, color=ORANGE)
    add_caption(
        figure,
        "Orange: as sensitive as the table, with its times, logs and errors. Blue: accounts, for the owner and an "
        "auditor. Green: public.",
        140,
    )
    return figure


def _box(axis: Axes, x: float, y: float, width: float, text: str, color: str) -> None:
    frame: dict[str, Any] = {"facecolor": "white", "edgecolor": color, "linewidth": 1.6}
    from matplotlib.patches import FancyBboxPatch

    axis.add_patch(
        FancyBboxPatch((x - width / 2, y - 0.4), width, 0.8, boxstyle="round,pad=0,rounding_size=0.08", **frame)
    )
    title, rest = text.split("\n", 1)
    top = y + (0.25 if "\n" in rest else 0.17)
    axis.text(x, top, title, ha="center", va="center", fontsize=9, color=color, weight="bold")
    axis.text(x, top - 0.15, rest, ha="center", va="top", fontsize=8.5, color=INK)
