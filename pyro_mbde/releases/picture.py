"""A histogram as the paths of a drawing in a page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from pyro_mbde.releases.comparison import Bars

#: Size of a drawing, in drawing units; the labels stand below it.
WIDTH, HEIGHT = 300, 120
#: Bars of the table are cut off above 2.5 max(density, base): the tallest of those fills two fifths of a picture at
#: least, so that a spike in the table does not flatten what the picture is about.
_MAX_HEIGHT = 2.5


class Label(NamedTuple):
    """A number below the axis.

    Attributes:
        place: from the left, in drawing units, 0 to WIDTH.
        anchor: which part of the text is there: ``start``, ``middle`` or ``end``.
        text: the number.
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
    """

    table: str
    density: str
    base: str
    labels: tuple[Label, ...]
    cut: bool


def picture(bars: Bars, *, whole: bool) -> Picture:
    """Returns a histogram as paths: heights are shares over widths on the axis, so that areas are shares.

    Privacy:
        As sensitive as the table, if it is in there.

    Args:
        bars: the histogram.
        whole: whether its values are whole numbers.

    Example:
        >>> picture(Bars([0.0, 1.0], [0.0, 1.0], None, [1.0], [1.0]), whole=False).base
        'M0,0V0H300'
    """
    widths = [right - left for left, right in pairwise(bars.places)]
    heights = {
        name: [] if shares is None else [share / width for share, width in zip(shares, widths, strict=True)]
        for name, shares in (("table", bars.table), ("density", bars.density), ("base", bars.base))
    }
    limit = _MAX_HEIGHT * max(*heights["density"], *heights["base"])
    top = max(min(max([*heights["table"], 0.0]), limit), *heights["density"], *heights["base"])
    paths = {name: _path(bars.places, [min(height / top, 1.0) for height in of]) for name, of in heights.items()}
    if paths["table"]:  # filled, down to the foot
        paths["table"] += f"V{HEIGHT}H0Z"
    cut = max([*heights["table"], 0.0]) > limit
    return Picture(paths["table"], paths["density"], paths["base"], _labels(bars, whole=whole), cut)


def _path(places: Sequence[float], heights: Sequence[float]) -> str:
    """The upper outline of bars; empty without any."""
    if not heights:
        return ""
    steps = [
        f"V{_number(HEIGHT * (1 - height))}H{_number(WIDTH * right)}"
        for height, (_, right) in zip(heights, pairwise(places), strict=True)
    ]
    return f"M{_number(WIDTH * places[0])},{_number(HEIGHT * (1 - heights[0]))}{''.join(steps)}"


def _number(value: float) -> str:
    """Returns a coordinate in a tenth of a unit."""
    return f"{round(value, 1):g}"


def _labels(bars: Bars, *, whole: bool) -> tuple[Label, ...]:
    """First, middle and last edge; where each whole number has a bar, the number below the middle of its bar."""
    edges, places = bars.edges, bars.places
    if whole and edges[-1] - edges[0] == len(edges) - 1:
        chosen = sorted({0, (len(edges) - 2) // 2, len(edges) - 2})
        middles = [(place, (places[place] + places[place + 1]) / 2) for place in chosen]
        return tuple(Label(WIDTH * at, "middle", _text(edges[place])) for place, at in middles)
    half = len(edges) // 2
    return (
        Label(0, "start", _text(edges[0])),
        Label(WIDTH * places[half], "middle", _text(edges[half] if whole else float(f"{edges[half]:.3g}"))),
        Label(WIDTH, "end", _text(edges[-1] - whole)),
    )


def _text(number: float) -> str:
    """As ``12,500``, and ``1e7`` from a million on."""
    text = f"{number:,.5g}" if abs(number) < 1e6 else f"{number:.3g}".replace("e+0", "e").replace("e+", "e")
    return text.replace("-", "\N{MINUS SIGN}")
