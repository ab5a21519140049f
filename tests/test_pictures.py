"""Figures need no display and no backend, whatever MPLBACKEND says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
IMPORTS_PYPLOT = re.compile(
    r"^\s*(import\b.*\bpyplot\b|from\b.*\bpyplot\b|from\b[^(\n]*\([^)]*\bpyplot\b)|import_module\(.*\bpyplot\b",
    re.MULTILINE,
)
SCRIPT = """
import io, os, torch
from pyro_mbde import Chains, plot_mixing
from pyro_mbde.experiments.guide import measure_mollifier, plot_mollifier
chains = Chains({"x": torch.randn(4, 200)}, {}, (1, 2, 3, 4), 0, "nuts")
plot_mixing(chains).savefig(io.BytesIO())
plot_mollifier(measure_mollifier()).savefig(io.BytesIO())
import matplotlib
print(os.environ["MPLBACKEND"], matplotlib.rcParams._get("backend") == os.environ["MPLBACKEND"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "kept"), [("module://not_installed.backend", True), ("no such thing", False), ("svg", True)]
)
def test_backends(backend: str, kept: bool) -> None:
    """A notebook passes its own backend to its child processes, whatever environment they run in."""
    environment = {**os.environ, "MPLBACKEND": backend, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert completed.stdout == f"{backend} {kept}\n", completed.stderr


def test_nothing_uses_pyplot() -> None:
    """Figures of pyplot belong to the backend's windows and stay in memory until they are closed."""
    folders = (ROOT / "pyro_mbde", ROOT / "examples")
    files = [path for folder in folders for path in folder.rglob("*.py")]
    assert len(files) > 100
    assert [path for path in files if IMPORTS_PYPLOT.search(path.read_text())] == []


@pytest.mark.parametrize(
    "line",
    [
        "import matplotlib.pyplot",
        "    import matplotlib.pyplot as plt",
        "from matplotlib import pyplot",
        "from matplotlib import figure, pyplot as plt",
        "from matplotlib.pyplot import subplots",
        'importlib.import_module("matplotlib.pyplot")',
        "from matplotlib import (\n    figure,\n    pyplot,\n)",
    ],
)
def test_ways_to_use_pyplot(line: str) -> None:
    assert IMPORTS_PYPLOT.search(line)
