"""Imports run downwards: from a room to those below it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyro_mbde

PACKAGE = Path(pyro_mbde.__file__).parent
#: From the lowest up. The public face is below the rooms that use it.
ROOMS = [
    "_version",
    "_checks",
    "_torch_state",
    "_signals",
    "_launcher",
    "ranks",
    "private_files",
    "names",
    "pictures",
    "serialization",
    "privacy",
    "density",
    "calibration",
    "metrics",
    "theory",
    "limits",
    "ledger",
    "tables",
    "sampling",
    "mcmc",
    "training",
    "diagnostics",
    "auditing",
    "releases",
    "_pyro",
    "__init__",
    "cli",
    "__main__",
    "experiments",
]


def imports() -> Iterator[tuple[str, str, str]]:
    """Imports within the package: the module, its room, the room it imports from."""
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE)
        room = place.parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not node.level, f"{place} imports relatively"
                modules = (
                    [str(node.module)] if node.module != "pyro_mbde" else [f"pyro_mbde.{a.name}" for a in node.names]
                )
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            else:
                continue
            for module in modules:
                package, _, rest = f"{module}.".partition(".")
                if package == "pyro_mbde":
                    part = rest.partition(".")[0]
                    yield place.as_posix(), room, part if part in ROOMS else "__init__"


def test_every_part_is_in_the_list() -> None:
    parts = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert parts - {"__pycache__"} == set(ROOMS)


def test_imports_run_downwards() -> None:
    found = [(place, room, target) for place, room, target in imports() if room != target]
    assert len(found) > 200
    # The public face imports every room, for type checkers and when a name is first used.
    upwards = [one for one in found if one[1] != "__init__" and ROOMS.index(one[2]) > ROOMS.index(one[1])]
    assert upwards == []


def test_rooms_without_torch() -> None:
    """Accounting, ledgers and help load fast."""
    script = """
import sys
import pyro_mbde, pyro_mbde.cli.app
import pyro_mbde.privacy.accounting, pyro_mbde.privacy.advice, pyro_mbde.privacy.group
import pyro_mbde.ledger.ledger, pyro_mbde.ledger.verify
assert not {"torch", "pyro", "pandas", "matplotlib", "arviz"} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_density_is_among_pyros_distributions_in_either_order() -> None:
    """In a process for each order, both forked from one that has imported what takes long."""
    script = """
import importlib, os, sys
import torch
child = os.fork()
first, second = ("pyro_mbde", "pyro") if child else ("pyro", "pyro_mbde")
hooks = list(sys.meta_path)
assert not {"pyro", "pyro_mbde"} & set(sys.modules)
importlib.import_module(first)
importlib.import_module(second)
import pyro, pyro_mbde
import pyro.distributions as dist
assert "MollifiedExpFamily" in dir(dist) or first == "pyro_mbde"
from pyro.distributions import MollifiedExpFamily
assert MollifiedExpFamily is pyro_mbde.MollifiedExpFamily is dist.MollifiedExpFamily
assert sys.meta_path == hooks
try:
    dist.MollifiedExpFamilies
except AttributeError as error:
    assert str(error) == "module 'pyro.distributions' has no attribute 'MollifiedExpFamilies'"
else:
    raise AssertionError("no error")
assert not child or os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)


def test_the_layout_names_every_module() -> None:
    page = (PACKAGE.parent / "docs" / "layout.md").read_text()
    names = {path.name for path in PACKAGE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py")}
    assert {name for name in names if f"`{name}`" not in page} == set()
