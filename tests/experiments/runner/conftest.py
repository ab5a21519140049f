"""Where sweeps keep their rows, and the workers that run them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyro_mbde.experiments.processes import WorkerProcesses


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results" / "sweep.jsonl"


@pytest.fixture(scope="session", autouse=True)
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that jobs look at, known to all processes from their start."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("sweep")
        patch.setenv("SWEEP_FOLDER", str(folder))
        yield folder


@pytest.fixture
def folder(shared_folder: Path) -> Path:
    """The same, empty at the start of the test."""
    for file in shared_folder.iterdir():
        file.unlink()
    return shared_folder


@pytest.fixture(scope="session")
def workers(shared_folder: Path) -> Iterator[WorkerProcesses]:
    with WorkerProcesses(2) as executor:
        yield executor


@pytest.fixture
def new_children() -> Callable[[], int]:
    """Counts the processes that the test has started and that go on."""
    before = set(multiprocessing.active_children())
    return lambda: len(set(multiprocessing.active_children()) - before)
