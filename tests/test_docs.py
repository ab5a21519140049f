"""Pages: links, pictures, tables of contents and the reference are whole, without building them."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyro_mbde

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: As paths from the root. Files of the root are read there and, some of them, as pages.
PAGES = sorted(path for path in DOCS.rglob("*.md") if not path.relative_to(DOCS).parts[0].startswith("_"))
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in [*sorted(ROOT.glob("*.md")), *PAGES]}
FENCE = re.compile(r"^( *)(`{3,}|~{3,})[^\n]*\n.*?^\1\2`*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|!?\[[^\[\]]*\](?:\([^()]*\))?)*)\]\(([^()\s]+)\)")


def prose(text: str) -> str:
    """A page without blocks of code and spans of it."""
    return re.sub(r"`[^`\n]+`", "code", FENCE.sub("", text))


def links(text: str) -> Iterator[tuple[bool, str]]:
    """Whether it is an image, and where it leads: also of images within the text of a link."""
    for image, inner, target in LINK.findall(text):
        yield bool(image), target
        yield from links(inner)


def anchors(text: str) -> set[str]:
    """What a page can be linked at: its headings as Markdown names them, and named places."""
    found = set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))
    for title in re.findall(r"^#{1,3} (.+)$", FENCE.sub("", text), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        found.add(re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-"))
    return found


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_somewhere(name: str) -> None:
    for _, target in links(prose(TEXTS[name])):
        if re.match(r"\w+:", target):
            assert re.fullmatch(r"https://[\w.-]+\.\w+(/[\w./#?=&%~-]*)?|mailto:\S+", target), f"{name}: {target}"
            continue
        path, _, anchor = target.partition("#")
        place = (ROOT / name).parent / path if path else ROOT / name
        assert place.exists(), f"{name}: {target} is not there"
        if anchor:
            assert anchor in anchors(place.read_text()), f"{name}: {target}: no such heading"
        assert not name.startswith("docs/") or place.resolve().is_relative_to(DOCS), f"{name}: {target} is not a page"


def test_links_of_included_files_lead_to_pages() -> None:
    """The site has docs/ alone, and the files of the root that pages include."""
    included = {name: re.findall(r"^```\{include\} \.\./(\S+)$", text, re.MULTILINE) for name, text in TEXTS.items()}
    files = {file: Path(name).stem for name, found in included.items() for file in found}
    assert files == {f"{page.upper()}.md": page for page in ("changelog", "contributing", "security")}
    for file in files:
        for _, target in links(prose(TEXTS[file])):
            path = target.partition("#")[0]
            assert re.match(r"\w+:", target) or path in files or path.startswith("docs/"), f"{file}: {target}"


def test_every_picture_is_shown() -> None:
    shown = {
        (ROOT / name).parent.joinpath(target).resolve()
        for name, text in TEXTS.items()
        for image, target in links(prose(text))
        if image
    }
    pictures = {path.resolve() for path in (DOCS / "images").glob("*.png")}
    assert pictures <= shown, sorted(path.name for path in pictures - shown)
    gallery = set(re.findall(r"\(images/([\w-]+\.png)\)", TEXTS["docs/gallery.md"]))
    assert gallery == {path.name for path in pictures}


def test_every_page_is_in_one_table_of_contents() -> None:
    listed = [
        entry
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```$", TEXTS["docs/index.md"], re.MULTILINE | re.DOTALL)
        for entry in block.split("\n")
        if entry and not entry.startswith(":")
    ]
    pages = [path.relative_to(DOCS).with_suffix("").as_posix() for path in PAGES]
    assert sorted([*listed, "index"]) == sorted(pages)


def test_the_reference_has_every_public_name() -> None:
    entries = re.findall(r"^\.\. auto\w+:: pyro_mbde\.(\w+)$", TEXTS["docs/api.md"], re.MULTILINE)
    assert len(entries) == len(set(entries))
    names = {entry for entry in entries if entry in pyro_mbde.__all__}
    assert names == set(pyro_mbde.__all__)


def test_links_are_found() -> None:
    text = "[a](b.md#c) `[no](no.md)` ![d](e.png) [![f](g.png)](h.md)\n"
    text += "```\n[no](no.md)\n```\n[](i.md)\n# *Two* words, `x`\n"
    assert list(links(prose(text))) == [
        (False, "b.md#c"),
        (True, "e.png"),
        (False, "h.md"),
        (True, "g.png"),
        (False, "i.md"),
    ]
    assert anchors(text) == {"two-words-x"}
    assert anchors("## Of i.i.d. draws\n") == {"of-iid-draws"}


@pytest.mark.slow
def test_the_quickstart_runs() -> None:
    failed, tried = doctest.testfile(str(DOCS / "quickstart.md"), module_relative=False)
    assert failed == 0
    assert tried > 30


@pytest.mark.parametrize("name", TEXTS)
def test_links_have_a_text(name: str) -> None:
    """Sphinx fills in a page's title, but where files are read as they are, a link without a text is not seen."""
    assert "[](" not in prose(TEXTS[name]).replace("`[](", "")
