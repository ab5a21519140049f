"""The files at the root agree: versions, paths and targets that are named, and what a source archive holds."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import pyro_mbde

ROOT = Path(__file__).parents[1]
#: Pages that tell a contributor what to run and which file to edit.
PAGES = [
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/releasing.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / ".github").rglob("*.md")),
]
#: Where a path may start: pages shorten the package's own.
STARTS = [ROOT, ROOT / "pyro_mbde", ROOT / "docs"]
#: Made by a command of the page.
MADE = (".venv", "../", "dist/", "docs/_build/", "results/", "rows.card.json")


def code(text: str) -> list[str]:
    """Code spans, and lines of code blocks, without comments."""
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    lines = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)) + lines


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


def targets_named(text: str) -> set[str]:
    calls = re.findall(r"\bmake((?: [a-z]+\b(?!=))+)", text)
    return {target for call in calls for target in call.split()}


def exists(path: str) -> bool:
    return any((start / path).exists() for start in STARTS)


def test_citation_and_changelog_have_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    version = pyro_mbde.__version__
    assert re.findall(r'^version: "(.*)"$', citation, re.MULTILINE) == [version]
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    if ".dev" in version:
        assert not any(heading.startswith(version.partition(".dev")[0]) for heading in headings)
    else:
        released = re.search(r'^date-released: "(\d{4}-\d\d-\d\d)"$', citation, re.MULTILINE)
        assert released
        assert headings[1] == f"{version} ({released[1]})"


def test_the_citation_says_what_the_project_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text()
    for text in (project["name"], project["description"], project["license"], *project["keywords"]):
        assert text in citation, text


@pytest.mark.parametrize("page", PAGES)
def test_paths_that_are_named_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    words = [word for span in code(text) for word in span.split()]
    paths = {word.partition("::")[0] for word in words if re.fullmatch(r"[\w./-]+(?:/|\.(?:py|md|toml|cff|txt))", word)}
    paths |= {word for word in words if re.fullmatch(r"(?:tests|docs|pyro_mbde|\.ci)/[\w./-]+", word)}
    assert {path for path in paths if not path.startswith(MADE) and not exists(path)} == set()
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link}
    assert {link for link in links if link and not (ROOT / page).parent.joinpath(link).exists()} == set()


@pytest.mark.parametrize("page", ["README.md", ".ci/run", *PAGES])
def test_targets_that_are_named_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    named = targets_named(text if page == ".ci/run" else "\n".join(code(text)))
    assert named <= targets()
    if page == "CONTRIBUTING.md":
        assert named >= targets() - {"help", "clean"}


def test_tables_that_are_named_exist() -> None:
    names = {span for span in code((ROOT / "CONTRIBUTING.md").read_text()) if re.fullmatch(r"_?[A-Z][A-Z_]+", span)}
    assert len(names) > 5
    sources = "\n".join(path.read_text() for folder in ("pyro_mbde", "tests") for path in (ROOT / folder).rglob("*.py"))
    assert {name for name in names if not re.search(rf"^{name}\b[^\n]*=", sources, re.MULTILINE)} == set()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only git knows which files belong to the project")
def test_the_source_archive_holds_all_that_is_tracked() -> None:
    sdist = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    assert {path.removeprefix("/") for path in sdist["include"]} == {path.partition("/")[0] for path in files if path}
