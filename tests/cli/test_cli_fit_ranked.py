"""``fit`` in several processes: one model, one answer; a process that is lost, and what goes on after it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rank_processes import Outcome, run_commands

from pyro_mbde.tables.files import TableModel

pytestmark = pytest.mark.slow

#: Every file counts as too large to be read whole; process 1 is killed in its third step if told so.
SCRIPT = """
import os, signal, sys
from pyro_mbde.cli import main
from pyro_mbde.tables import streams
streams.MAX_WHOLE_BYTES = 0
if os.environ.get("DIES") == os.environ["RANK"]:
    from pyro_mbde.ranks import Ranks
    average, calls = Ranks.start_average, []
    def dying(self, tensors):
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return average(self, tensors)
    Ranks.start_average = dying
sys.argv[0] = "pyro-mbde"
main(prog_name="pyro-mbde")
"""


@pytest.fixture(autouse=True)
def script() -> None:
    Path("command.py").write_text(SCRIPT)


def fit(*words: str, size: int = 2) -> list[Outcome]:
    """Fits ``table.csv`` in some processes."""
    options = ["--schema", "schema.toml", "--epsilon", "1", "--steps", "6", "--seed", "0"]
    options += [] if "mbde" in words else ["--split", "rows"]
    command = [sys.executable, "command.py", "fit", "table.csv", *options, "-o", "model.pt", *words]
    return run_commands([command] * size, cwd=Path.cwd())


def test_one_model_and_one_answer() -> None:
    first, second = fit()
    assert first.code == second.code == 0, first.output + second.output
    assert first.value == "model.pt: one draw costs epsilon 1, delta 1e-09 once\n"
    assert second.output == ""
    assert TableModel.load("model.pt").density.epsilon <= 1
    assert not Path("model.pt.checkpoint").exists()


def test_a_lost_process_ends_the_others_and_any_number_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIES", "1")
    first, second = fit("--checkpoint-steps", "1")
    assert (first.code, second.code) == (1, -9)
    assert "Process 0 of 2 failed while averaging a step" in first.error
    assert "--resume" in first.error
    assert not Path("model.pt").exists()
    monkeypatch.delenv("DIES")
    for size in (3, 1):
        checkpoint = Path("model.pt.checkpoint")
        kept = checkpoint.read_bytes()
        ended = fit("--resume", "--force", size=size)
        assert [one.code for one in ended] == [0] * size, [one.output for one in ended]
        assert "from the beginning" not in ended[0].error
        assert not checkpoint.exists()
        checkpoint.write_bytes(kept)


def test_different_tables_are_refused() -> None:
    Path("other.csv").write_text("age,visits\n1,2\n")
    options = ["--schema", "schema.toml", "--epsilon", "1", "--steps", "6", "-o", "model.pt"]
    commands = [[sys.executable, "command.py", "fit", name, *options] for name in ("table.csv", "other.csv")]
    outcomes = run_commands(commands, cwd=Path.cwd())
    assert [one.code for one in outcomes] == [1, 1]
    assert sum("different tables" in one.error for one in outcomes) == 1


def test_boosting_runs_in_one_process() -> None:
    first, second = fit("--method", "mbde")
    assert first.code == second.code == 2
    assert "one process" in first.error
    assert not Path("model.pt").exists()


def test_different_options_are_refused() -> None:
    common = [
        sys.executable,
        "command.py",
        "fit",
        "table.csv",
        "--schema",
        "schema.toml",
        "--steps",
        "6",
        "-o",
        "model.pt",
    ]
    outcomes = run_commands([[*common, "--epsilon", epsilon] for epsilon in ("1", "2")], cwd=Path.cwd())
    assert [one.code for one in outcomes] == [1, 1]
    assert sum("started with different options" in one.error for one in outcomes) == 1
