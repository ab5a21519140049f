"""How the command ends: errors, interrupts, pipes; and all of it as it is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest
from cli_words import FIT, ROOT, Run, entry_point
from rank_processes import run_commands

from pyro_mbde.cli import main
from pyro_mbde.cli.console import plain


class TestEnds:
    def test_interrupted(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("torch.save", interrupt)
        before = sorted(Path().iterdir())
        assert run(*FIT, code=130).stderr.strip() == "Interrupted."
        assert sorted(Path().iterdir()) == before

    def test_a_signal(self) -> None:
        words = ["fit", "table.csv", "--schema", "schema.toml", "--epsilon", "1", "--steps", "1000000", "-o", "m.pt"]
        Path("signalled.py").write_text(SIGNALLED)
        (ended,) = run_commands([[sys.executable, "signalled.py", *words]], seconds=120)
        assert ended.code == 130, ended.output
        assert "Traceback" not in ended.output
        assert not Path("m.pt").exists()

    def test_a_broken_pipe(self) -> None:
        command = f"{sys.executable} -m pyro_mbde.cli --help | true; exit ${{PIPESTATUS[0]}}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        completed = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True)
        assert completed.returncode in (0, 1)
        assert completed.stderr == ""

    def test_standalone_mode_off(self) -> None:
        assert main(["--version"], standalone_mode=False) == 0
        with pytest.raises(click.UsageError):
            main(["fit"], standalone_mode=False)

    def test_plain_values(self) -> None:
        value = {"a": [float("inf"), float("nan"), (1, None)], "b": Path("x"), 3: True}
        assert plain(value) == {"a": ["inf", None, [1, None]], "b": "x", "3": True}


#: The command in a process that is sent a signal in the middle of its fit.
SIGNALLED = """
import os
import signal
from pyro_mbde.training.optimisation import Optimisation
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell is started without
gradient, steps = Optimisation._gradient, iter(range(10**9))
def interrupted(*words):
    if next(steps) == 5:
        os.kill(os.getpid(), signal.SIGINT)
    return gradient(*words)
Optimisation._gradient = interrupted
from pyro_mbde.cli import main
main(prog_name="pyro-mbde")
"""


@pytest.mark.slow
def test_from_table_to_rows(run: Run) -> None:
    """The commands that compute or refuse in separate processes, as they are used."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYRO_MBDE_LEDGER": "budget.db"}

    def call(*words: object, code: int = 0) -> Any:
        command = [*entry_point(), *map(str, words), "--json"]
        completed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert completed.returncode == code, completed.stderr
        assert "Traceback" not in completed.stderr
        return json.loads(completed.stdout) if completed.stdout else completed.stderr

    def releasing(num_draws: int, name: str) -> tuple[object, ...]:
        return ("release", "model.pt", num_draws, "--account", "clinic", "-o", f"public/{name}")

    Path("public").mkdir()  # a report on the model is refused a place beside cards
    call(*FIT)
    terms = ("--epsilon", 3, "--delta", 1e-6, "--ledger", "budget.db", "--json")
    opened = json.loads(run("budget", "open", "clinic", *terms).stdout)
    released = call(*releasing(2, "rows.csv"), "--purpose", "a test")
    rows = pd.read_csv("public/rows.csv")
    assert list(rows) == ["age", "visits"]
    assert rows["visits"].between(0, 99).all()
    assert rows["visits"].dtype == np.int64
    assert released["charge"]["purpose"] == "a test"
    assert "Nothing was charged" in call(*releasing(2, "more.csv"), code=3)
    assert sorted(path.name for path in Path("public").iterdir()) == ["rows.card.html", "rows.card.json", "rows.csv"]

    # What needs no separate process.
    assert "ok: 1 charge, head " in run("budget", "verify", "--head", opened["head"], "--ledger", "budget.db").stdout
    run(*releasing(1, "rows.csv"), "--ledger", "budget.db", code=1)  # which is there
    shown = json.loads(run("budget", "show", "clinic", "--model", "model.pt", "--ledger", "budget.db", "--json").stdout)
    assert shown["affordable"] == 1  # the third of three rows at 1, whatever its certificate
    assert [charge["num_draws"] for charge in shown["charges"]] == [2]
    assert json.loads(run("report", "public/rows.card.json", "--json").stdout) == released["card"]
    run("report", "model.pt", "--table", "table.csv")
    assert Path("model.report.html").stat().st_size > 0
