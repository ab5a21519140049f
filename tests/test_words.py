"""Examples in help and documentation are ones to defend, and references agree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pyro_mbde.cli import main
from pyro_mbde.privacy.advice import WEAK_EPSILON

ROOT = Path(__file__).parents[1]


def helps(command: click.Command, words: str = "pyro-mbde") -> Iterator[tuple[str, str]]:
    yield words, f"{command.help}\n{command.epilog}"
    for name, sub in getattr(command, "commands", {}).items():
        yield from helps(sub, f"{words} {name}")


def pages() -> Iterator[tuple[str, str]]:
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        yield path.name, path.read_text()


TEXTS = dict([*helps(main), *pages()])


def commands(text: str) -> list[str]:
    return re.findall(r"^ *(?:PYRO_\S+ )?(pyro-mbde .*)$", text, re.MULTILINE)


@pytest.mark.parametrize("name", sorted(name for name, text in TEXTS.items() if commands(text)))
def test_no_example_is_weak_or_puts_rows_beside_the_model(name: str) -> None:
    for line in commands(TEXTS[name]):
        for epsilon in re.findall(r"--epsilon ([\d.]+)", line):
            assert float(epsilon) < WEAK_EPSILON, line
        for rows in re.findall(r"(?:-o|--output) (\S+\.(?:csv|parquet))", line):
            assert "/" in rows, line
        assert not re.search(r"report [^/\s]+\.card", line), line


def test_the_paper_has_one_year() -> None:
    """Its first version is arXiv 1806.04819."""
    sources = [path.read_text() for folder in ("pyro_mbde", "docs") for path in (ROOT / folder).rglob("*.py")]
    text = " ".join(" ".join([*sources, *TEXTS.values()]).replace('"', "").split())
    years = re.findall(r"Mollifier Densities(?: with Approximation Guarantees)?\.\*? (\d{4})", text)
    assert len(years) > 20
    assert set(years) == {"2018"}
