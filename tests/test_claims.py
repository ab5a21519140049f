"""The reviewer's table: every function, test, proof, mechanism and picture that it names is there."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CLAIMS = (ROOT / "docs" / "claims.md").read_text()
PROOFS = (ROOT / "docs" / "proofs.md").read_text()
TESTS = sorted(set(re.findall(r"`([\w/]+\.py)::([\w:]+)`", CLAIMS)))
OBJECTS = sorted(set(re.findall(r"\{(?:func|class|meth|attr|mod)\}`(?:[^`<]*<|~)?([\w.]+)>?`", CLAIMS)))


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, as MyST makes them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[`*$]|\{\w+\}", "", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


@cache
def names_of_tests(path: Path) -> set[str]:
    """Names of tests in a file, those of classes as ``Class::test``."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return names


def find(name: str) -> object:
    """An object by its full name."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def test_the_table_is_read() -> None:
    assert len(TESTS) > 100
    assert len(OBJECTS) > 40


def test_every_test_is_there() -> None:
    missing = [
        f"{file}::{name}"
        for file, name in TESTS
        if not (ROOT / "tests" / file).is_file() or name not in names_of_tests(ROOT / "tests" / file)
    ]
    assert missing == []


@pytest.mark.parametrize("name", OBJECTS)
def test_every_function_is_there(name: str) -> None:
    assert find(name) is not None


def test_every_proof_and_mechanism_is_there() -> None:
    linked = set(re.findall(r"\]\(proofs\.md#([\w-]+)\)", CLAIMS))
    assert linked - anchors(PROOFS) == set()
    assert set(re.findall(r"\]\(#([\w-]+)\)", CLAIMS)) - anchors(CLAIMS) == set()


def test_every_proof_has_a_claim() -> None:
    """Except results of the paper, which say how good a fit is."""
    theory = PROOFS.partition("\n## Theory\n")[2].partition("\n## ")[0]
    headings = re.findall(r"^### .+$", PROOFS.replace(theory, ""), re.MULTILINE)
    linked = set(re.findall(r"proofs\.md#([\w-]+)", CLAIMS))
    assert {anchor for heading in headings for anchor in anchors(heading)} - linked == set()


def test_every_picture_is_there() -> None:
    for name in re.findall(r"images/([\w.-]+)", CLAIMS):
        assert (ROOT / "docs" / "images" / name).is_file(), name


def test_proofs_that_code_and_tests_name_are_there() -> None:
    """As ``docs/proofs.md, *The certificate*``."""
    titles = {re.sub(r"[`$]", "", title) for title in re.findall(r"^###? (.+)$", PROOFS, re.MULTILINE)}
    for path in (*(ROOT / "pyro_mbde").rglob("*.py"), *(ROOT / "tests").rglob("*.py")):
        text = " ".join(line.strip() for line in path.read_text().splitlines())
        for title in re.findall(r"docs/proofs\.md, \*([^*]+)\*", text):
            assert title in titles, f"{path.name}: {title}"
