"""A picture of what a density costs a kernel: effective draws per gradient, relative to the base."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyro_mbde.experiments.style import BLUE, GREEN, INK, ORANGE, PALE, PURPLE, SKY, Look, add_caption
from pyro_mbde.pictures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOOKS = {
    "lockstep_hmc": Look("lockstep_hmc", BLUE, "-", "o"),
    "hmc": Look("hmc", SKY, "--", "s"),
    "nuts": Look("nuts", GREEN, "-", "^"),
    "lockstep_random_walk": Look("lockstep_random_walk", ORANGE, "-", "D"),
    "random_walk": Look("random_walk", INK, ":", "v"),
    "stock hmc": Look("Pyro's HMC", PALE, "--", "x"),
    "stock nuts": Look("Pyro's NUTS", PURPLE, "-.", "P"),
}

#: Lowest ratio shown.
_LOWEST = 0.005


def plot_chains(summaries: Sequence[dict[str, Any]]) -> Figure:
    """Effective draws per gradient relative to the same kernel on the base, by epsilon, a panel for each problem.

    Args:
        summaries: records of :func:`~pyro_mbde.experiments.chain_results.summarize`.
    """
    problems = list(dict.fromkeys(one["problem"] for one in summaries))
    epsilons = sorted({one["epsilon"] for one in summaries if one["epsilon"] is not None})
    num_rows = (len(problems) + 1) // 2
    figure = new_figure(8, 1.2 + 2.9 * num_rows)
    axes: Any = figure.subplots(num_rows, 2, sharex=True, sharey=True, squeeze=False)
    for axis in axes.flat[len(problems) :]:
        axis.set_visible(False)
    for axis, problem in zip(axes.flat, problems, strict=False):
        for kernel, look in _LOOKS.items():
            points = [
                (one["epsilon"], max(one["to_base"], _LOWEST))
                for one in summaries
                if one["problem"] == problem
                and one["kernel"] == kernel
                and one["epsilon"]
                and one["to_base"] is not None
            ]
            if points:
                axis.plot(*zip(*sorted(points), strict=True), label=look.label, **look.line())
        for level, text in ((0.5, "half"), (0.2, "a fifth")):
            axis.axhline(level, color=INK, linewidth=0.8, zorder=0)
            axis.annotate(
                text,
                (1, level),
                xycoords=("axes fraction", "data"),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
                color=INK,
            )
        axis.set(title=problem, xscale="log", yscale="log", ylim=(_LOWEST, 2))
        axis.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axis.set_yticks([0.01, 0.1, 1], ["0.01", "0.1", "1"])
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    for axis in axes[:, 0]:
        axis.set_ylabel("ESS per gradient, base = 1")
    for axis in axes[-1]:
        axis.set_xlabel("epsilon")
    lines = {line.get_label(): line for axis in axes.flat for line in axis.get_lines() if line.get_label()[0] != "_"}
    figure.legend(lines.values(), lines.keys(), loc="outside upper center", ncols=4, frameon=False, fontsize="small")
    add_caption(
        figure,
        "Worst coordinate, relative to the same kernel on the public base; medians over seeds. Random walks: by "
        f"energy. Below {_LOWEST:g}: drawn at {_LOWEST:g}.",
        120,
    )
    return figure
