"""The public names that are listed, imported on first use, and seen by mypy agree."""

from __future__ import annotations

import ast
from pathlib import Path

import pyro_mbde


def imported_for_types() -> dict[str, str]:
    """Names and modules in the block of the package that only type checkers read."""
    tree = ast.parse(Path(pyro_mbde.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(block.body)
    return {name.asname or name.name: str(node.module) for node in imports for name in node.names}


def test_what_is_listed_can_be_imported() -> None:
    assert set(pyro_mbde._SOURCES) == set(pyro_mbde.__all__)
    assert len(pyro_mbde.__all__) == len(set(pyro_mbde.__all__))


def test_types_are_those_of_what_is_imported() -> None:
    assert imported_for_types() == {name: f"pyro_mbde.{module}" for name, module in pyro_mbde._SOURCES.items()}
