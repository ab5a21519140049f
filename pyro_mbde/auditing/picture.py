"""Audits as a picture: what was measured, beside what was promised."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyro_mbde.auditing.report import AuditReport, PairResult
from pyro_mbde.pictures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _SOUND, _FAULTY = "#333333", "#0072b2", "#d55e00"
#: Ends of the axis, in shares of the epsilon promised: what lies outside is drawn at its end, as an arrow.
_LEAST, _MOST = 1 / 16, 16.0
#: Height of a line and of what is around lines, in inches.
_LINE, _AROUND = 0.33, 1.1


class _Line(NamedTuple):
    name: str
    claimed: float
    pair: PairResult
    kinds: tuple[str, ...] = ()


def draw_audit(report: AuditReport) -> Figure:
    """Returns the picture of one audit, a line for each pair of tables.

    Privacy:
        As sensitive as the report: public if only made-up tables went in.
    """
    lines = [_Line(pair.name, report.claimed, pair) for pair in report.pairs]
    kinds = ", ".join(finding.kind for finding in report.faults)
    verdict = f"fault ({kinds})" if kinds else "no fault found" if report.passed else "nothing attacked"
    title = f"Audit of epsilon = {report.claimed:.4g}: {verdict}"
    return _figure({title: lines}, faulty={title: bool(report.faults)})


def draw_audits(panels: Mapping[str, Mapping[str, AuditReport]]) -> Figure:
    """Returns the picture of several audits in panels, a line for each: its pair that proved most, and faults found.

    Args:
        panels: reports by name, by the title of their panel.
    """
    lines: dict[str, list[_Line]] = {}
    for title, reports in panels.items():
        lines[title] = []
        for name, report in reports.items():
            nothing = PairResult(name)
            white = max(report.pairs, key=lambda pair: pair.white_box or 0.0, default=nothing)
            black = max(report.pairs, key=lambda pair: pair.black_box or 0.0, default=nothing)
            merged = PairResult(
                name, white.white_box, black_box=black.black_box, estimate=black.estimate, upper=black.upper
            )
            lines[title].append(_Line(name, report.claimed, merged, tuple(found.kind for found in report.faults)))
    return _figure(lines, faulty={title: any(line.kinds for line in of) for title, of in lines.items()})


def _figure(panels: Mapping[str, Sequence[_Line]], faulty: Mapping[str, bool]) -> Figure:
    counts = [max(len(lines), 1) for lines in panels.values()]
    figure = new_figure(8.5, _LINE * sum(counts) + _AROUND * len(counts))
    axes = figure.subplots(len(counts), 1, sharex=True, squeeze=False, height_ratios=counts)[:, 0]
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        axis.set_title(title, loc="left", fontsize=10)
        _panel(axis, lines, _FAULTY if faulty[title] else _SOUND)
    axes[-1].set_xlabel("measured log-ratio, as a share of the epsilon promised (log scale)")
    # Empty lines, for the legend alone: a panel's lines may lack either marker.
    axes[0].plot([], [], "D", color=_INK, label="density: largest log-ratio found")
    axes[0].plot([], [], "o", color=_INK, markerfacecolor="white", label="draws: estimate, with bounds")
    axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1.08 + 0.25 / counts[0]), ncols=3, fontsize=8, frameon=False)
    return figure


def _panel(axis: Axes, lines: Sequence[_Line], color: str) -> None:
    axis.axvline(1.0, color=_INK, linewidth=1.2, linestyle="--", label="promised")
    for place, (_, claimed, pair, kinds) in enumerate(lines):
        if pair.white_box is not None:
            _marker(axis, pair.white_box / claimed, place, "D", color)
        if pair.estimate is not None and pair.upper is not None and pair.black_box:
            ends = [_held(value / claimed) for value in (pair.black_box, pair.upper)]
            axis.plot(ends, [place + 0.22] * 2, color=color, linewidth=1.2, alpha=0.6)
            axis.plot(ends[0], place + 0.22, marker="|", markersize=9, markeredgewidth=2, color=color)
            _marker(axis, pair.estimate / claimed, place + 0.22, "o", color)
        if kinds:
            axis.annotate(
                f"found by: {', '.join(kinds)}",
                (1.03, place),
                xycoords=("axes fraction", "data"),
                va="center",
                fontsize=8,
            )
    axis.set_yticks(range(len(lines)), [line.name for line in lines], fontsize=9)
    axis.set_ylim(len(lines) - 0.4, -0.6)
    axis.set_xscale("log", base=2)
    axis.set_xlim(_LEAST, _MOST)
    ticks = [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16]
    axis.set_xticks(ticks, [f"{tick:g}" if tick >= 1 else f"1/{1 / tick:.0f}" for tick in ticks])
    axis.grid(axis="x", color="#e5e5e5")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _marker(axis: Axes, value: float, place: float, sign: str, color: str) -> None:
    """A point, or an arrow at the end of the axis that it lies beyond."""
    beyond = ">" if value > _MOST else "<" if value < _LEAST else sign
    hollow = sign == "o"
    axis.plot(
        [_held(value)],
        [place],
        marker=beyond,
        markersize=5 if hollow else 6,
        color=color,
        markerfacecolor="white" if hollow else color,
        linestyle="none",
        clip_on=False,
    )


def _held(value: float) -> float:
    return min(max(value, _LEAST), _MOST) if not math.isnan(value) else _MOST
