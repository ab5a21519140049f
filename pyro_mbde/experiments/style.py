"""How systems look in every figure, and what a figure says of itself."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Told apart by people with colour-blindness, and in grey by their markers and line styles.
INK, BLUE, ORANGE, GREEN, PALE = "#333333", "#0072b2", "#d55e00", "#009e73", "#9a9a9a"
PURPLE, SKY, YELLOW = "#aa4499", "#56b4e9", "#b59f00"
#: Its lightness grows with the value, so it reads in grey.
SEQUENTIAL = "viridis"


class Look(NamedTuple):
    """A system in a legend and as a line.

    Attributes:
        label: what the legend calls it.
        color: of line and markers.
        linestyle: of the line.
        marker: at the points.
    """

    label: str
    color: str
    linestyle: str
    marker: str

    def line(self) -> dict[str, Any]:
        """Keywords of a line."""
        return {"color": self.color, "linestyle": self.linestyle, "marker": self.marker, "markersize": 5}


def quick_note(table: pd.DataFrame) -> str:
    """Returns what a caption begins with where the rows are of a quick run; else nothing."""
    if "quick" in table and table["quick"].eq(1).any():
        return "QUICK RUN, to see that all works: 1,000 rows, hardly trained, fewer repeats. "
    return ""


def add_caption(figure: Figure, text: str, width: int) -> None:
    """Writes below a figure what is guaranteed in it, and whom that protects."""
    figure.supxlabel("\n".join(textwrap.wrap(text, width)), fontsize=8, color=INK, x=0.01, ha="left")
