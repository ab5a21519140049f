"""Figures that need no display, and pictures that only the owner of a table may see."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyro_mbde._checks import argument_error
from pyro_mbde.private_files import warn_beside_card, write_atomically

if TYPE_CHECKING:  # imported where used: it takes a while
    from matplotlib.figure import Figure

PICTURE_ENDINGS = (".png", ".pdf", ".svg")


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure of a size in inches, without a window: no backend is chosen or needed."""
    import_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def check_picture_path(path: str | os.PathLike[str]) -> Path:
    """Returns where a picture goes, or raises before any work is done for it."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(argument_error("path", "be a path", path))
    if Path(path).suffix not in PICTURE_ENDINGS:
        raise ValueError(argument_error("path", f"end in {', '.join(PICTURE_ENDINGS)}", os.fspath(path)))
    return Path(path)


def write_picture(figure: Figure, path: str | os.PathLike[str], *, dpi: int = 150, stacklevel: int = 2) -> None:
    """Writes a picture that only its owner may read, whole or not at all.

    Warns if the folder holds the card of a release, and so is one to be handed out.

    Args:
        figure: the picture.
        path: where it goes, by its ending a PNG, PDF or SVG; an existing file is replaced once all is written.
        dpi: dots an inch.
        stacklevel: of the warning.
    """
    target = check_picture_path(path)
    warn_beside_card(target, "A picture", stacklevel=stacklevel + 1)
    write_atomically(lambda file: figure.savefig(file, format=target.suffix[1:], dpi=dpi), target)


def import_arviz() -> Any:
    """Imports ArviZ when it is first needed: it takes longer than all the rest, and 0.23 announces 1.0 by a warning."""
    import_matplotlib()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz


def import_matplotlib() -> None:
    """Imports Matplotlib, which cannot be imported where MPLBACKEND names a backend that is not installed.

    A notebook sets it for all of its child processes, whatever environment they run in. The backend is kept where it is
    known, and otherwise left to Matplotlib: figures here need none.
    """
    if "matplotlib" in sys.modules:
        return
    named = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib
    finally:
        if named is not None:
            os.environ["MPLBACKEND"] = named
    if named:
        with suppress(ValueError):
            matplotlib.rcParams["backend"] = named
