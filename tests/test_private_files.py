"""Files as sensitive as the table are readable by their owner only; released files are not restricted."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from chain_gallery import good_independent
from densities import make_density, normal

from pyro_mbde import Ledger, PrivacyLeakWarning, Schema, plot_mixing, private_report, release
from pyro_mbde.experiments.results import ResultsFile
from pyro_mbde.pictures import new_figure, write_picture
from pyro_mbde.private_files import holds_release_card
from pyro_mbde.tables.files import TableModel

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def open_to_all() -> Iterator[None]:
    """Files are readable by everybody unless the library restricts them."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def sweep(path: Path) -> None:
    with ResultsFile(path):
        pass


def save_with_schema(path: Path) -> None:
    schema = Schema.from_dict({"columns": [{"name": "age", "low": 0, "high": 110}]})
    TableModel(make_density(schema.base()), schema).save(path)


def draw(path: Path) -> None:
    write_picture(new_figure(1, 1), path)


WRITERS: dict[str, Callable[[Path], object]] = {
    "model.pt": lambda path: make_density(normal(2)).save(path),
    "table-model.pt": save_with_schema,
    "report.html": lambda path: private_report(make_density(normal(2)), path=path),
    "report.json": lambda path: private_report(make_density(normal(2)), torch.zeros(9, 2), path=path),
    "mixing.png": lambda path: plot_mixing(good_independent(), path),
    "picture.png": draw,
    "picture.svg": draw,
    "picture.pdf": draw,
    "results/rows.jsonl": sweep,
    "budget.db": lambda path: Ledger(path).close(),
}


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_for_the_owner_alone(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)
    assert mode(tmp_path / name) == 0o600
    assert {path.name for path in (tmp_path / name).parent.iterdir()} == {Path(name).name}


def test_an_existing_file_becomes_private(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_text("before")
    assert mode(path) == 0o666
    draw(path)
    assert mode(path) == 0o600


def test_released_files_are_not_restricted(tmp_path: Path, ledger: Ledger) -> None:
    release(make_density(normal(2)), 1, ledger, "clinic", path=tmp_path / "rows.csv", progress=False)
    assert {mode(path) for path in tmp_path.iterdir()} == {0o666}


def test_nothing_writes_files_in_another_way() -> None:
    """Only these functions write files, because they decide who may read them."""
    allowed = {
        "pyro_mbde/private_files.py",  # for the owner only
        "pyro_mbde/pictures.py",  # through it
        "pyro_mbde/releases/writing.py",  # to be released
        "pyro_mbde/experiments/results.py",  # for the owner only
        "pyro_mbde/experiments/__main__.py",  # public problems and a public table
    }
    writing = re.compile(r"\.savefig\(|\.write_(text|bytes)\(|\.to_(csv|parquet|json)\(\w*(path|output)|fdopen\(")
    opening = re.compile(r"open\([^)]*[\"'][wax]\+?b?[\"']")
    folders = (ROOT / "pyro_mbde", ROOT / "examples")
    sources = {str(path.relative_to(ROOT)): path.read_text() for folder in folders for path in folder.rglob("*.py")}
    found = {name for name, source in sources.items() if writing.search(source) or opening.search(source)}
    assert found == allowed


def test_a_picture_beside_a_card_gives_a_warning(tmp_path: Path) -> None:
    (tmp_path / "rows.card.json").write_text("{}")
    with pytest.warns(PrivacyLeakWarning, match="holds a release card"):
        plot_mixing(good_independent(), tmp_path / "mixing.png")


@pytest.mark.parametrize(("path", "error"), [("mixing.txt", ValueError), ("mixing", ValueError), (3, TypeError)])
def test_paths_of_pictures(path: object, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro_mbde.diagnostics.plot.mixing_report", lambda *_, **__: pytest.fail("too late"))
    with pytest.raises(error, match="path must"):
        plot_mixing(good_independent(), path)


@pytest.mark.parametrize("name", ["rows.card.json", "rows.card.html"])
def test_private_files_beside_a_card(name: str, tmp_path: Path) -> None:
    density = make_density(normal(2))
    density.save(tmp_path / "q")
    assert not holds_release_card(tmp_path)
    (tmp_path / name).write_text("{}")
    assert holds_release_card(tmp_path)
    with pytest.warns(PrivacyLeakWarning, match="A saved density is as sensitive as the table.*Keep it elsewhere"):
        density.save(tmp_path / "q")
    with pytest.raises(ValueError, match="path must lie in a folder without release cards"):
        private_report(density, path=tmp_path / "report.html")
    (tmp_path / "elsewhere").mkdir()
    density.save(tmp_path / "elsewhere" / "q")
    private_report(density, path=tmp_path / "elsewhere" / "report.html")


def test_folders_that_are_not_there(tmp_path: Path) -> None:
    assert not holds_release_card(tmp_path / "missing")
