"""Help and documentation: every example can be defended, references agree, and the English is plain."""

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


def sources() -> Iterator[tuple[str, str]]:
    for path in (ROOT / "pyro_mbde").rglob("*.py"):
        yield path.relative_to(ROOT).as_posix(), path.read_text()


TEXTS = dict([*helps(main), *pages()])
#: Texts that must not hold a phrase of ``AVOIDED``: pages, help, errors, docstrings and comments.
PLAIN_TEXTS = dict([*TEXTS.items(), *sources()])
#: Phrases that make a reader stop, each with what to write in its place.
AVOIDED = {
    "as it comes": "by default",
    "come what may": "in every case",
    "the dearest": "the most expensive",
    "anew": "again",
    "but for": "except",
    "tells of": "describes",
    "an error that can be set right": "an error that you can correct",
    "nobody's": "not anybody's",
    "lest": "so that ... not",
    "whence": "from which",
    "that (is|are) no": "that is not a, or that does not have",
}


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


@pytest.mark.parametrize("name", sorted(PLAIN_TEXTS))
def test_texts_are_in_plain_english(name: str) -> None:
    """Phrases are found across line breaks, in any letter case, as whole words."""
    text = " ".join(PLAIN_TEXTS[name].split())
    found = {phrase: better for phrase, better in AVOIDED.items() if re.search(rf"\b{phrase}\b", text, re.IGNORECASE)}
    assert not found, f"{name}: write the second in place of the first: {found}"


def test_the_paper_has_one_year() -> None:
    """Its first version is arXiv 1806.04819."""
    texts = [text for _, text in sources()] + list(TEXTS.values())
    text = " ".join(" ".join(texts).replace('"', "").split())
    years = re.findall(r"Mollifier Densities(?: with Approximation Guarantees)?\.\*? (\d{4})", text)
    assert len(years) > 20
    assert set(years) == {"2018"}
