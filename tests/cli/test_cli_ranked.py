"""Commands in several processes: one speaks, one error is told once, and what is charged is written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cli_words import Run
from click.testing import CliRunner
from densities import make_density, normal
from rank_processes import Outcome, rank_environment, run_commands

from pyro_mbde import Ledger
from pyro_mbde.cli import main
from pyro_mbde.cli.ranked import check_one_process, is_first_process, num_processes

COMMAND = [sys.executable, "-m", "pyro_mbde"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_density(normal(2)).save(tmp_path / "model.pt")
    with Ledger(tmp_path / "budget.db") as ledger:
        ledger.open_account("clinic", epsilon=50.0)
    return tmp_path


def release(folder: Path, *words: str, second: tuple[str, ...] = ()) -> list[Outcome]:
    """Runs the command in two processes; the second one may get other words."""
    common = [*COMMAND, "release"]
    options = ["--ledger", "budget.db", "--account", "clinic", "-o", "rows.csv"]
    return run_commands([[*common, *each, *options] for each in (words, second or words)], cwd=folder)


def charged(folder: Path) -> list[int]:
    with Ledger(folder / "budget.db") as ledger:
        return [charge.num_draws for charge in ledger.charges("clinic")]


def test_two_processes_release(folder: Path) -> None:
    first, second = release(folder, "model.pt", "20")
    assert first.code == second.code == 0, first.output + second.output
    assert first.value.startswith("20 rows in rows.csv")
    assert second.output == ""
    assert len((folder / "rows.csv").read_text().splitlines()) == 21
    assert charged(folder) == [20]


@pytest.mark.slow
def test_a_refusal_is_told_once(folder: Path) -> None:
    first, second = release(folder, "model.pt", "60")
    assert (first.code, second.code) == (3, 0)
    assert first.error.startswith("Error: NUM_ROWS must be at most 50")
    assert second.output == ""
    assert charged(folder) == []


@pytest.mark.slow
def test_an_error_of_one_process_is_told_by_it(folder: Path) -> None:
    (folder / "damaged.pt").write_bytes(b"no model")
    first, second = release(folder, "model.pt", "20", second=("damaged.pt", "20"))
    assert first.code == second.code == 1
    assert first.output == ""
    assert second.error.startswith("Error: process 1 of 2: ")
    assert charged(folder) == []
    assert not (folder / "rows.csv").exists()


def test_other_commands_run_in_one_process(folder: Path) -> None:
    first, second = run_commands([[*COMMAND, "budget", "show", "--ledger", "budget.db"]] * 2, cwd=folder)
    assert first.code == second.code == 2
    assert "`pyro-mbde budget` runs in one process, got 2. Run it without torchrun" in first.error
    assert second.output == ""


def test_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert num_processes() == 1  # some machines set it for all
    for name, value in rank_environment(0, 2, 1).items():
        monkeypatch.setenv(name, value)
    assert num_processes() == 2
    assert is_first_process()
    check_one_process("fit")


def test_an_environment_without_numbers_is_told(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    for name, value in rank_environment(0, 2, 1).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RANK", "one")
    found = run("budget", "show", "--ledger", "budget.db", code=1)
    assert "Error: RANK and WORLD_SIZE must be whole numbers, got RANK='one'" in found.output


#: Process 1 is killed as soon as it is asked to draw.
DYING = """
import os, signal, sys
from pyro_mbde.sampling import ranked
from pyro_mbde.cli import main
if os.environ["RANK"] == "1":
    ranked.draw_rows = lambda *arguments, **options: os.kill(os.getpid(), signal.SIGKILL)
sys.argv[0] = "pyro-mbde"
main(prog_name="pyro-mbde")
"""


@pytest.mark.slow
def test_rows_are_written_where_torchrun_loses_a_process(folder: Path) -> None:
    """It asks the first process to end, which finishes what is charged."""
    (folder / "dying.py").write_text(DYING)
    environment = rank_environment(0, 2, 1)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del environment[name]
    words = ["release", "model.pt", "20", "--ledger", "budget.db", "--account", "clinic", "-o", "rows.csv"]
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "dying.py", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode != 0  # torchrun reports the process that was lost
    assert "20 rows in rows.csv" in ended.stdout, ended.stderr
    assert len((folder / "rows.csv").read_text().splitlines()) == 21
    assert charged(folder) == [20]


def test_a_release_is_not_started_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been charged."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    words = ["release", "model.pt", "20", "--ledger", "budget.db", "--account", "clinic", "-o", "rows.csv"]
    result = CliRunner().invoke(main, words, prog_name="pyro-mbde")
    assert result.exit_code == 2
    assert "may have been charged" in result.stderr
    assert charged(folder) == []
