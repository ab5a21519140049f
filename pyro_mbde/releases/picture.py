"""A histogram as the paths of a drawing in a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyro_mbde.releases.comparison import Bars

#: Size of a drawing, in its own units; a part at the foot is for labels.
WIDTH, HEIGHT = 300, 120
#: A bar of the table may be so many times as tall as the tallest of density and base; what is above is cut off.
_MOST_TALL = 2.5


class Label(NamedTuple):
    """A number below the axis.

    Attributes:
        place: from the left.
        anchor: which part of the text is there: ``start``, ``middle`` or ``end``.
        text: the number.
    """

    place: float
    anchor: str
    text: str


class Picture(NamedTuple):
    """What a page draws.

    Attributes:
        table: path of the table's bars, empty without a table.
        density: path of the density's outline.
        base: path of the base's outline.
        labels: of the axis.
        cut: whether bars of the table were cut off.
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
    widths = [right - left for left, right in zip(bars.places, bars.places[1:], strict=False)]
    heights = {
        name: [share / width for share, width in zip(shares or [], widths, strict=False)]
        for name, shares in (("table", bars.table), ("density", bars.density), ("base", bars.base))
    }
    limit = _MOST_TALL * max(*heights["density"], *heights["base"])
    top = max(min(max([*heights["table"], 0.0]), limit), *heights["density"], *heights["base"])
    paths = {name: _path(bars.places, [min(height / top, 1.0) for height in of]) for name, of in heights.items()}
    if paths["table"]:  # filled, down to the foot
        paths["table"] += f"V{HEIGHT}H0Z"
    cut = max([*heights["table"], 0.0]) > limit
    return Picture(paths["table"], paths["density"], paths["base"], _labels(bars, whole=whole), cut)


def _path(places: Sequence[float], heights: Sequence[float]) -> str:
    """The upper outline of bars; empty without any."""
    steps = [
        f"V{_number(HEIGHT * (1 - height))}H{_number(WIDTH * right)}"
        for height, right in zip(heights, places[1:], strict=False)
    ]
    return f"M{_number(WIDTH * places[0])},{_number(HEIGHT * (1 - heights[0]))}{''.join(steps)}" if steps else ""


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
