"""A histogram as the paths of a drawing in a page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from pyro_mbde.releases.histograms import Bars, LevelShares

#: Size of a drawing, in drawing units; the labels stand below it.
WIDTH, HEIGHT = 300, 120
#: Bars of the table are cut off above 2.5 max(density, base): the tallest of those fills two fifths of a picture at
#: least, so that a spike in the table does not flatten what the picture is about.
_MAX_HEIGHT = 2.5
#: Width of the bar of missing values, and of the gap before it.
_MISSING, _GAP = 24, 30
#: Of levels: height of a line, width of the names, and signs of a name that fit in.
LINE, NAMES, _MAX_SIGNS = 18, 108, 16


class Label(NamedTuple):
    """A text below the axis.

    Attributes:
        place: from the left, in drawing units, 0 to WIDTH.
        anchor: which part of the text is there: ``start``, ``middle`` or ``end``.
        text: the number, date or word.
    """

    place: float
    anchor: str
    text: str


class Picture(NamedTuple):
    """What a page draws.

    Attributes:
        table: SVG path of the table's bars, in drawing units, 0 to WIDTH and 0 to HEIGHT; empty without a table.
        density: SVG path of the density's outline, in the same units.
        base: SVG path of the base's outline, in the same units.
        labels: of the axis.
        cut: whether bars of the table are taller than HEIGHT, and cut off there.
        axis: SVG path of the axis.
        names: of levels, beside their bars, from the top; empty for other columns.
        height: of the drawing, without the labels of its axis.
    """

    table: str
    density: str
    base: str
    labels: tuple[Label, ...]
    cut: bool
    axis: str = f"M0,{HEIGHT}H{WIDTH}"
    names: tuple[str, ...] = ()
    height: int = HEIGHT


def picture(bars: Bars, *, whole: bool) -> Picture:
    """Returns a histogram as paths: heights are shares over widths on the axis, so that areas are shares.

    Missing values have a bar at the right, of the same scale.

    Privacy:
        As sensitive as the table, if it is in there.

    Args:
        bars: the histogram.
        whole: whether its values are whole numbers.

    Example:
        >>> picture(Bars([0.0, 1.0], [0.0, 1.0], None, [1.0], [1.0]), whole=False).base
        'M0,0V0H300'
    """
    missing, width = bars.missing, WIDTH if bars.missing is None else WIDTH - _MISSING - _GAP
    places = [width * place for place in bars.places]
    widths = [right - left for left, right in pairwise(places)]
    laws = {"table": bars.table, "density": bars.density, "base": bars.base}
    heights = {
        name: [] if shares is None else [WIDTH * share / each for share, each in zip(shares, widths, strict=True)]
        for name, shares in laws.items()
    }
    if missing is not None:
        for name, share in missing._asdict().items():
            if share is not None:
                heights[name].append(WIDTH * share / _MISSING)
    limit = _MAX_HEIGHT * max(*heights["density"], *heights["base"])
    top = max(min(max([*heights["table"], 0.0]), limit), *heights["density"], *heights["base"])
    spans = [list(pairwise(places))] + ([[(WIDTH - _MISSING, WIDTH)]] if missing is not None else [])
    paths = {
        name: _path(spans, [min(height / top, 1.0) for height in of], filled=name == "table")
        for name, of in heights.items()
    }
    cut = max([*heights["table"], 0.0]) > limit
    labels = list(axis_labels(bars, width, whole=whole))
    axis = f"M0,{HEIGHT}H{_number(width)}" + "".join(f"M{_number(width * one.place)},{HEIGHT}v4" for one in bars.marks)
    if missing is not None:
        labels.append(Label(WIDTH, "end", "missing"))
        axis += f"M{WIDTH - _MISSING},{HEIGHT}H{WIDTH}"
    return Picture(paths["table"], paths["density"], paths["base"], tuple(labels), cut, axis)


def level_picture(levels: LevelShares) -> Picture:
    """Returns the shares of levels as bars from the left, one below another, by name.

    The table's are filled; those of density and base are upright lines at their ends.

    Privacy:
        As sensitive as the table, if it is in there.

    Example:
        >>> drawn = level_picture(LevelShares(["no", "yes"], None, [0.5, 0.5], [0.75, 0.25]))
        >>> drawn.names, drawn.height, drawn.density
        (('no', 'yes'), 36, 'M236,1V17M236,19V35')
    """
    laws = {"table": levels.table, "density": levels.density, "base": levels.base}
    most = max(share for law in laws.values() if law is not None for share in law)
    width = WIDTH - NAMES

    def at(share: float) -> str:
        return _number(NAMES + width * share / most)

    table = "".join(
        f"M{NAMES},{LINE * line + 3}H{at(share)}V{LINE * (line + 1) - 3}H{NAMES}Z"
        for line, share in enumerate(levels.table or [])
    )
    density, base = (
        "".join(f"M{at(share)},{LINE * line + 1}V{LINE * (line + 1) - 1}" for line, share in enumerate(law))
        for law in (levels.density, levels.base)
    )
    height = LINE * len(levels.names)
    labels = (Label(NAMES, "middle", "0"), Label(WIDTH, "end", f"{100 * most:.3g}%"))
    names = tuple(name if len(name) <= _MAX_SIGNS else f"{name[: _MAX_SIGNS - 1]}…" for name in levels.names)
    return Picture(table, density, base, labels, False, f"M{NAMES},0V{height}", names, height)


def _path(spans: Sequence[Sequence[tuple[float, float]]], heights: Sequence[float], *, filled: bool) -> str:
    """The upper outline of bars, group by group; empty without any."""
    if not heights:
        return ""
    parts, rest = [], list(heights)
    for group in spans:
        own, rest = rest[: len(group)], rest[len(group) :]
        steps = [
            f"V{_number(HEIGHT * (1 - height))}H{_number(right)}" for height, (_, right) in zip(own, group, strict=True)
        ]
        start = _number(group[0][0])
        foot = f"V{HEIGHT}H{start}Z" if filled else ""
        parts.append(f"M{start},{_number(HEIGHT * (1 - own[0]))}{''.join(steps)}{foot}")
    return "".join(parts)


def _number(value: float) -> str:
    """Returns a coordinate in a tenth of a unit."""
    return f"{round(value, 1):g}"


def axis_labels(bars: Bars, width: float, *, whole: bool) -> tuple[Label, ...]:
    """Returns the texts below an axis: of dates their marks; else of the first, the middle and the last edge.

    Where each whole number has a bar, the number is below the middle of its bar.

    Args:
        bars: the histogram.
        width: of the axis.
        whole: whether its values are whole numbers.

    Example:
        >>> [label.text for label in axis_labels(Bars([0.0, 5.0, 10.0], [0.0, 0.5, 1.0], None, [], []), 1, whole=False)]
        ['0', '5', '10']
    """
    edges, places = bars.edges, bars.places
    if bars.marks:
        return tuple(Label(width * mark.place, _anchor(mark.place), mark.text) for mark in bars.marks)
    if whole and edges[-1] - edges[0] == len(edges) - 1:
        chosen = sorted({0, (len(edges) - 2) // 2, len(edges) - 2})
        middles = [(place, (places[place] + places[place + 1]) / 2) for place in chosen]
        return tuple(Label(width * at, "middle", _text(edges[place])) for place, at in middles)
    half = len(edges) // 2
    return (
        Label(0, "start", _text(edges[0])),
        Label(width * places[half], "middle", _text(edges[half] if whole else float(f"{edges[half]:.3g}"))),
        Label(width, "end", _text(edges[-1] - whole)),
    )


def _anchor(place: float) -> str:
    return "start" if place < 0.1 else "end" if place > 0.9 else "middle"


def _text(number: float) -> str:
    """As ``12,500``, and ``1e7`` from a million on."""
    text = f"{number:,.5g}" if abs(number) < 1e6 else f"{number:.3g}".replace("e+0", "e").replace("e+", "e")
    return text.replace("-", "\N{MINUS SIGN}")
