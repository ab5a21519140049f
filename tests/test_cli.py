"""The command: what each says where, what it exits with, and the file of options."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from densities import make_density
from ledger_stores import Store

import pyro_mbde
from pyro_mbde import AuditReport, Charge, Ledger, MollifiedExpFamily, Schema
from pyro_mbde.privacy import ledger as ledger_module
from pyro_mbde.releases import releasing
from pyro_mbde.sampling.plan import KERNELS
from pyro_mbde.tables.files import TableModel
from pyro_mbde_cli import diagnose, main
from pyro_mbde_cli.fit import Recipe
from pyro_mbde_cli.shared import plain

ROOT = Path(__file__).parent.parent
SCHEMA = """
[[columns]]
name = "age"
low = 0
high = 100
decimals = 1

[[columns]]
name = "visits"
low = 0
high = 99
kind = "integer"
scale = "log1p"
"""
Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table and its schema, to work in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYRO_MBDE_DEBUG", raising=False)
    generator = np.random.default_rng(0)
    table = pd.DataFrame({"name": "x", "age": generator.uniform(20, 40, 300), "visits": generator.poisson(3, 300)})
    table.to_csv("table.csv", index=False)
    Path("schema.toml").write_text(SCHEMA)
    return tmp_path


@pytest.fixture
def run() -> Run:
    """Runs the command with words, and checks its exit code."""

    def invoke(*words: Any, code: int = 0, **options: Any) -> Result:
        result = CliRunner().invoke(main, [str(word) for word in words], prog_name="pyro-mbde", **options)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result

    return invoke


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the ledgers' clock."""
    monkeypatch.setattr(ledger_module, "_now", lambda: datetime(2026, 1, 2, tzinfo=UTC))


def charges() -> list[Charge]:
    """What was charged to the account."""
    with Ledger("budget.db") as ledger:
        return ledger.charges("clinic")


@pytest.fixture
def model() -> Path:
    """A model that nothing was fitted for."""
    path, schema = Path("model.pt"), Schema.from_toml("schema.toml")
    TableModel(make_density(schema.base()), schema, {"epsilon": 1.0}).save(path)
    return path


def commands(group: click.Group = main, names: Sequence[str] = ()) -> Iterator[tuple[str, ...]]:
    """All commands, as the words that call them."""
    for name, command in group.commands.items():
        yield (*names, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*names, name))


FIT = ("fit", "table.csv", "--schema", "schema.toml", "--epsilon", 1, "--steps", 3, "--seed", 0, "-o", "model.pt")
RELEASE = ("release", "model.pt", 2, "--ledger", "budget.db", "--account", "clinic", "-o", "rows.csv")


class TestHelp:
    @pytest.mark.parametrize("words", [(), *commands()], ids=" ".join)
    def test_every_command_has_examples(self, words: tuple[str, ...], run: Run) -> None:
        text = run(*words, "--help").stdout
        assert text.startswith(f"Usage: {' '.join(['pyro-mbde', *words])}")
        assert "Examples:\n    pyro-mbde " in text
        if words and words != ("budget",):
            assert "--json" in text
            assert "--quiet" in text
            assert "--config" in text

    def test_help_of_what_is_handed_on(self, run: Run) -> None:
        assert "--repeats" in run("bench", "fit", "--help").stdout
        assert "FIGURE" in run("reproduce", "-h").stdout

    def test_exit_codes_are_told(self, run: Run) -> None:
        assert "3 the budget refused" in run("--help").stdout

    def test_version(self, run: Run) -> None:
        assert run("--version").stdout.startswith("pyro-mbde, version ")

    @pytest.mark.parametrize(
        "words", [["--help"], ["fit", "--help"], ["budget", "open", "-h"], ["--version"]], ids=" ".join
    )
    def test_help_does_not_import_the_library(self, words: list[str]) -> None:
        script = (
            "import sys\n"
            "from pyro_mbde_cli import main\n"
            f"try: main({words!r}, prog_name='pyro-mbde')\n"
            "except SystemExit as end: assert end.code == 0\n"
            "heavy = {'torch', 'pyro', 'numpy', 'pandas', 'matplotlib', 'pyro_mbde'} & set(sys.modules)\n"
            "assert not heavy, heavy\n"
        )
        subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True)

    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_completion_scripts(self, shell: str) -> None:
        completed = spawn({"_PYRO_MBDE_COMPLETE": f"{shell}_source"})
        assert completed.returncode == 0
        assert f"_PYRO_MBDE_COMPLETE={shell}_complete" in completed.stdout

    @pytest.mark.parametrize(
        ("typed", "expected"),
        [
            ("pyro-mbde bu", "plain,budget"),
            ("pyro-mbde fit --met", "plain,--method"),
            ("pyro-mbde budget ver", "plain,verify"),
        ],
    )
    def test_completion(self, typed: str, expected: str) -> None:
        asked = {"_PYRO_MBDE_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
        assert spawn(asked).stdout.splitlines() == [expected]


def spawn(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs the command without words in a process of its own."""
    known = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-m", "pyro_mbde_cli"]
    return subprocess.run(command, env=known, capture_output=True, text=True, timeout=300)


class TestFit:
    @pytest.mark.parametrize(
        ("options", "delta"),
        [
            ((), 1e-9),
            (("--delta", "0"), 0),
            (("--method", "mbde", "--rounds", 1), 1e-9),
            (("--method", "mbde", "--delta", 0), 0),
            (("--method", "mbde-paper", "--rounds", 1), 0),
        ],
        ids=["ratio", "a priori", "boosting", "boosting a priori", "paper"],
    )
    def test_fit(self, options: tuple[Any, ...], delta: float, run: Run) -> None:
        result = run(*FIT, *options, "--json")
        document = json.loads(result.stdout)
        assert document["guarantee"]["epsilon"] <= 1 + 1e-9
        assert document["guarantee"]["delta"] == delta
        assert document["recipe"]["steps"] == 3
        assert [column["name"] for column in document["columns"]] == ["age", "visits"]
        assert "as sensitive as the table" in result.stderr
        assert stat.S_IMODE(Path("model.pt").stat().st_mode) == 0o600
        model = TableModel.load("model.pt")
        assert model.schema == Schema.from_toml("schema.toml")
        assert model.settings == document["recipe"]
        assert MollifiedExpFamily.load("model.pt").event_shape == (2,)

    def test_the_answer_is_public(self, run: Run) -> None:
        first = run(*FIT)
        pd.DataFrame({"age": [3.0] * 7, "visits": [90] * 7}).to_csv("table.csv", index=False)
        second = run(*FIT, "--force")
        assert first.stdout == second.stdout == "model.pt: one draw costs epsilon 1, delta 1e-09 once\n"
        assert first.stderr == second.stderr

    def test_rounds_unless_told_otherwise(self) -> None:
        assert Recipe.from_options("mbde", 1.0, None, None, None, None).rounds == 3

    def test_quiet(self, run: Run) -> None:
        assert run(*FIT, "--quiet").stderr == ""

    @pytest.mark.parametrize("source", ["table.csv", "schema.toml"])
    def test_what_it_reads_is_never_replaced(self, source: str, run: Run) -> None:
        before = Path(source).read_bytes()
        assert f"'--output' names {source}" in run(*FIT, "-o", source, "--force", code=2).stderr
        assert Path(source).read_bytes() == before

    def test_a_model_is_replaced_by_force_alone(self, run: Run) -> None:
        run(*FIT)
        before = Path("model.pt").read_bytes()
        assert "--force" in run(*FIT, code=1).stderr
        assert Path("model.pt").read_bytes() == before
        assert "Warning" not in run(*FIT, "--force").stderr
        changed = run(*FIT, "--epsilon", 2, "--force", "--quiet").stderr
        assert "Warning: model.pt is replaced, epsilon 1.0 by 2.0. What is chosen by looking" in changed

    @pytest.mark.parametrize(
        ("words", "code", "text"),
        [
            (("--epsilon", "-1"), 1, "epsilon must be above 0"),
            (("--epsilon", "nan"), 1, "epsilon must be above 0"),
            (("--skew", "0"), 1, "skew must be in (0, 1)"),
            (("--delta", "1"), 1, "delta must be 0, or in"),
            (("--epsilon", "much"), 2, "'much' is not a valid float"),
            (("--rounds", "2"), 2, "--rounds is for the methods mbde"),
            (("--method", "mbde-paper", "--skew", "0.5"), 2, "--delta and --skew are for"),
            (("--schema", "table.csv"), 1, "path must name a TOML file"),
            (("-o", "nowhere/model.pt"), 1, "folder 'nowhere' is not there"),
            (("--bogus",), 2, "No such option"),
        ],
    )
    def test_refused_before_the_table_is_read(
        self, words: tuple[str, ...], code: int, text: str, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pyro_mbde.tables.files.read_table", lambda path: pytest.fail("read"))
        result = run(*FIT, *words, code=code)
        assert text in result.stderr
        assert result.stdout == ""
        assert not Path("model.pt").exists()

    def test_no_schema(self, run: Run) -> None:
        assert "Missing option '--schema'" in run("fit", "table.csv", "--epsilon", 1, "-o", "m.pt", code=2).stderr

    def test_a_table_that_does_not_fit(self, run: Run) -> None:
        pd.DataFrame({"age": [31.337, 500.25, np.nan], "visits": ["4", "secret", ""]}).to_csv("table.csv", index=False)
        result = run(*FIT, code=1)
        assert "others in 'visits'" in result.stderr
        pd.DataFrame({"age": [31.337, 500.25, np.nan], "visits": 1}).to_csv("table.csv", index=False)
        result = run(*FIT, code=1)
        assert "1 value is missing" in result.stderr
        assert "1 value is outside" in result.stderr
        assert "owner alone" in result.stderr
        assert "500.25" not in result.stderr
        pd.DataFrame({"age": [31.3, 500.25, 2], "visits": 1}).to_csv("table.csv", index=False)
        run(*FIT, "--outside", "clip")

    def test_debugging(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYRO_MBDE_DEBUG", "1")
        with pytest.raises(ValueError, match="skew must be"):
            run(*FIT, "--skew", 0)

    def test_warnings_are_sentences(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        import warnings

        def read(path: object) -> pd.DataFrame:
            warnings.warn("Mind the gap.", stacklevel=1)
            warnings.warn("Old.", FutureWarning, stacklevel=1)
            return pd.read_csv("table.csv")

        monkeypatch.setattr("pyro_mbde.tables.files.read_table", read)
        assert run(*FIT, "--quiet").stderr == "Warning: Mind the gap.\n"


class TestConfig:
    def write(self, text: str) -> None:
        Path("pyro-mbde.toml").write_text(text + SCHEMA)

    def test_options_of_commands(self, run: Run) -> None:
        self.write("[fit]\ntable = 'table.csv'\nepsilon = 2\nsteps = 3\noutput = 'model.pt'\njson = true\n")
        document = json.loads(run("fit", "--config", "pyro-mbde.toml").stdout)
        assert document["recipe"]["epsilon"] == 2
        # A flag wins; and the file may be named before the command.
        result = run("--config", "pyro-mbde.toml", "fit", "--epsilon", 3, "--force")
        assert json.loads(result.stdout)["recipe"]["epsilon"] == 3

    def test_nested_commands(self, run: Run) -> None:
        self.write("[budget.open]\nledger = 'b.db'\nepsilon = 5\n[budget.plan]\nnum-draws = 3\nfilled_share = 0.5\n")
        run("budget", "open", "clinic", "--config", "pyro-mbde.toml")
        with Ledger("b.db") as ledger:
            assert ledger.account("clinic").epsilon == 5
        answer = run("budget", "plan", "--config", "pyro-mbde.toml", "--epsilon", 3, "--json").stdout
        assert json.loads(answer)["skew"] == pytest.approx(math.log((1 + math.exp(0.5)) / 2) / 0.5)

    def test_handed_on(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pyro_mbde.experiments.__main__._draw_guide", lambda name, *_, **how: print(name, how))
        self.write("[reproduce]\nnames = ['mollifier']\nquick = true\njson = true\n")
        document = json.loads(run("reproduce", "--config", "pyro-mbde.toml").stdout)
        assert document["output"] == ["mollifier {'quick': True, 'redraw': False}"]
        self.write("[reproduce]\nquickly = true\n")
        assert "got the key 'quickly'" in run("reproduce", "--config", "pyro-mbde.toml", code=2).stderr

    @pytest.mark.parametrize(
        ("text", "error"),
        [
            ("[fit]\nepsilom = 1\n", "[fit] must have keys among"),
            ("[fit]\nepsilom = 1\n", "got the key 'epsilom'"),
            ("[fit]\nconfig = 'x'\n", "got the key 'config'"),
            ("[fitt]\n", "the file must have keys among fit, release"),
            ("epsilon = 1\n", "got the key 'epsilon'"),
            ("fit = 1\n", "fit must be a table, [fit]"),
            ("[budget.close]\n", "[budget] must have keys among open, show, verify, plan, got the key 'close'"),
            ("[budget.open]\nrules = 1\n", "[budget.open] must have"),
            ("[fit]\nepsilon = true\n", "epsilon in [fit] must be a number or text"),
            ("[fit]\nepsilon = [1]\n", "epsilon in [fit] must be a number or text"),
            ("[fit]\nforce = 'yes'\n", "force in [fit] must be true or false"),
            ("[fit]\nepsilon = 'much'\n", "'much' is not a valid float"),
            ("[fit\n", "pyro-mbde.toml: "),
        ],
    )
    def test_refused(self, text: str, error: str, run: Run) -> None:
        self.write(text)
        words = ("fit", "table.csv", "-o", "model.pt", "--config", "pyro-mbde.toml")
        assert error in " ".join(run(*words, code=2).stderr.split())

    def test_columns_are_checked_as_a_schema(self, run: Run) -> None:
        Path("pyro-mbde.toml").write_text("[[columns]]\nname = 'age'\nlow = 0\nhigh = 10\nmax = 3\n")
        words = ("fit", "table.csv", "-o", "model.pt", "--epsilon", 1, "--config", "pyro-mbde.toml")
        assert "got the key 'max'" in run(*words, code=1).stderr

    def test_not_there(self, run: Run) -> None:
        run("fit", "table.csv", "--config", "nowhere.toml", code=2)


class TestRelease:
    @pytest.fixture(autouse=True)
    def account(self, run: Run) -> None:
        run("budget", "open", "clinic", "--epsilon", 5, "--delta", 1e-6, "--ledger", "budget.db")

    def test_rows_in_natural_units(self, model: Path, run: Run) -> None:
        result = run(*RELEASE, "--purpose", "a course", "--who", "Ada")
        assert result.stdout == (
            "2 rows in rows.csv, what is guaranteed in rows.card.json and .card.html beside it\n"
            "entry 2 of the ledger, charged to clinic: epsilon 2 of 5 spent, delta 0 of 1e-06\n"
        )
        assert result.stderr == ""
        rows = pd.read_csv("rows.csv")
        assert list(rows) == ["age", "visits"]
        assert rows["visits"].dtype == np.int64
        assert (rows["age"] == rows["age"].round(1)).all()
        (charge,) = charges()
        assert (charge.num_draws, charge.purpose, charge.who) == (2, "a course", "Ada")

    def test_what_it_says_does_not_depend_on_the_table(self, run: Run) -> None:
        said = []
        schema = Schema.from_toml("schema.toml")
        for gain in (0.1, 30.0):
            TableModel(make_density(schema.base(), gain=gain), schema).save("model.pt")
            ledger = f"{gain}.db"
            run("budget", "open", "clinic", "--epsilon", 5, "--ledger", ledger)
            result = run(*RELEASE, "--ledger", ledger, "--json")
            cards = [Path(f"rows.card.{kind}").read_bytes() for kind in ("json", "html")]
            said.append((result.stdout, result.stderr, cards))
            for path in Path().glob("rows.*"):
                path.unlink()
        assert said[0] == said[1]
        document = json.loads(said[0][0])
        assert document["card"]["draws"]["fixed_work"]
        assert document["account"]["spent"] == {"epsilon": 2.0, "delta": 0.0, "rule": "pure composition"}
        assert "fingerprint" not in said[0][0]

    def test_a_density_without_schema(self, run: Run) -> None:
        make_density(Schema.from_toml("schema.toml").base()).save("model.pt")
        run(*RELEASE, "--variable-time")
        assert list(pd.read_csv("rows.csv")) == ["x0", "x1"]

    def test_refused(self, model: Path, run: Run) -> None:
        result = run("release", model, 6, *RELEASE[3:], code=3)
        assert result.stderr.startswith("Error: num_draws must be at most 5 in account 'clinic'")
        assert result.stdout == ""
        assert not list(Path().glob("rows.*"))
        assert charges() == []

    @pytest.mark.parametrize(
        ("words", "code", "text"),
        [
            (("--ledger", "other.db"), 1, "There is no ledger at 'other.db'"),
            (("--account", "clinik"), 1, "name must be that of an account ('clinic')"),
            (("--ledger", "table.csv"), 1, "it is no database"),
            (("--ledger", "sqlite://broken"), 1, "must name a file"),
            (("-o", "table.csv"), 1, "must name new files"),
        ],
    )
    def test_errors(self, words: tuple[str, ...], code: int, text: str, model: Path, run: Run) -> None:
        assert text in run(*RELEASE, *words, code=code).stderr
        assert charges() == []
        assert not Path("other.db").exists()
        assert not list(Path().glob("rows.*"))

    def test_rows_that_cannot_be_written_are_printed(
        self, model: Path, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(files: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(releasing, "write_together", full)
        words = (*RELEASE, "--seed", 1)
        result = run(*words, code=1)
        printed = pd.read_csv(io.StringIO(result.stdout))
        assert list(printed) == ["age", "visits"]
        assert len(printed) == 2
        assert "paid for and drawn, but were not written: [Errno 28] No space left on device" in result.stderr
        document = json.loads(run(*words, "--json", code=1).stdout)
        assert document["rows"] == printed.to_dict("records")
        assert document["card"]["num_rows"] == 2
        assert [charge.num_draws for charge in charges()] == [2, 2]
        assert not list(Path().glob("rows.*"))

    def test_a_ledger_that_was_tampered_with(self, model: Path, run: Run) -> None:
        run(*RELEASE)
        with Store("budget.db", Path("budget.db")).raw() as execute:
            execute("UPDATE mbde_charges SET num_draws = 1")
        assert "last row was tampered with" in run(*RELEASE, "-o", "more.csv", code=1).stderr
        assert not list(Path().glob("more.*"))

    def test_no_model(self, run: Run) -> None:
        Path("model.pt").write_bytes(b"nothing")
        assert "undamaged file" in run(*RELEASE, code=1).stderr
        run("release", "other.pt", 1, *RELEASE[3:], code=2)

    def test_a_seed_is_warned_of(self, model: Path, run: Run) -> None:
        assert "Warning: These draws are seeded: for tests only" in run(*RELEASE, "--seed", 1, "--quiet").stderr

    def test_the_ledger_from_the_environment(self, model: Path, run: Run) -> None:
        words = (*RELEASE[:3], *RELEASE[5:])
        run(*words, code=2)
        run(*words, env={"PYRO_MBDE_LEDGER": "budget.db"})


class TestBudget:
    @pytest.fixture(autouse=True)
    def ledger(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYRO_MBDE_LEDGER", "budget.db")
        run("budget", "open", "clinic", "--epsilon", 5, "--delta", 1e-6)

    def test_open(self, run: Run) -> None:
        result = run("budget", "open", "survey", "--epsilon", 8, "--delta", 1e-6, "--rule", "zcdp", "--json")
        document = json.loads(result.stdout)
        assert (document["rule"], document["epsilon"], len(document["head"])) == ("zcdp", 8.0, 64)
        assert result.stderr == ""
        result = run("budget", "open", "small", "--epsilon", 1)
        assert result.stdout == "opened small: epsilon 1, delta 0, rule pure\n"
        assert "fitted with --delta 0" in result.stderr

    def test_show(self, model: Path, run: Run) -> None:
        run(*RELEASE, "--purpose", "a course")
        text = run("budget", "show").stdout
        assert text.splitlines()[1].split() == "clinic pure 2 of 5 0 of 1e-06 2026-01-02".split()
        document = json.loads(run("budget", "show", "--json").stdout)
        assert document["accounts"][0]["spent"]["epsilon"] == 2
        text = run("budget", "show", "clinic").stdout
        assert "a course" in text
        assert json.loads(run("budget", "show", "clinic", "--json").stdout)["charges"][0]["num_draws"] == 2
        run("budget", "show", "clinik", code=1)

    def test_affordable(self, model: Path, run: Run) -> None:
        text = run("budget", "show", "clinic", "--model", model).stdout
        assert "5 more rows of this model, at epsilon 1 each" in text
        run("budget", "show", "--model", model, code=2)

    def test_verify(self, model: Path, run: Run) -> None:
        head = json.loads(run("budget", "verify", "--json").stdout)["head"]
        assert run("budget", "verify", "--head", head).stdout == f"ok: 0 charges, head {head}\n"
        assert run("budget", "verify", "--head", "f" * 64, code=4).stdout.startswith("CHANGED: 0 charges, head ")
        run(*RELEASE)
        document = json.loads(run("budget", "verify", "--head", head, "--json").stdout)
        assert (document["ok"], document["num_charges"], document["problems"]) == (True, 1, [])
        with Store("budget.db", Path("budget.db")).raw() as execute:
            execute("UPDATE mbde_charges SET num_draws = 1")
        problem = "entry 2, the charge to account 'clinic' was edited"
        assert problem in json.loads(run("budget", "verify", "--json", code=4).stdout)["problems"]
        assert f"\n  {problem}\n" in run("budget", "verify", code=4).stdout

    def test_plan(self, run: Run) -> None:
        document = json.loads(run("budget", "plan", "--epsilon", 10, "--num-draws", 20, "--json").stdout)
        assert document["epsilon"] == pytest.approx(0.5)
        assert document["form"] == "a priori"
        assert document["fit_options"].endswith("--delta 0.0 --skew 0.3")
        assert document["account_options"] == "--epsilon 10.0 --delta 0.0 --rule pure"
        text = run("budget", "plan", "--epsilon", 9, "--delta", 1e-6, "--num-draws", 1000).stdout
        assert "1,000 rows" in text
        assert "--rule iid --certificate-delta 1e-09" in text or "--rule iid --certificate-delta 0.0" in text
        run("budget", "plan", "--epsilon", -1, "--num-draws", 20, code=1)
        run("budget", "plan", "--epsilon", 1, "--num-draws", 0, code=2)

    def test_a_plan_buys_what_it_is_for(self, run: Run) -> None:
        answer = run("budget", "plan", "--epsilon", 3, "--delta", 1e-6, "--num-draws", 12, "--json").stdout
        plan = json.loads(answer)
        run("budget", "open", "planned", *plan["account_options"].split())
        run(*FIT[:4], *plan["fit_options"].split(), "--steps", 3, "-o", "planned.pt")
        shown = run("budget", "show", "planned", "--model", "planned.pt", "--json").stdout
        assert json.loads(shown)["affordable"] >= 12
        run("release", "planned.pt", 12, "--account", "planned", "-o", "rows.csv")


class TestReport:
    def test_model(self, model: Path, run: Run) -> None:
        result = run("report", model, "--table", "table.csv")
        assert result.stdout == "model.report.html\n"
        assert "as sensitive as the table" in result.stderr
        assert "PRIVATE - do not hand out" in Path("model.report.html").read_text()
        run("report", model, code=1)
        assert json.loads(run("report", model, "-o", "r.html", "--json").stdout) == {"report": "r.html"}
        run("report", model, "-o", "r.json", "--table", "table.csv")
        assert json.loads(Path("r.json").read_text())["scores"]["num_rows"] == 300

    def test_card(self, model: Path, run: Run) -> None:
        run("budget", "open", "clinic", "--epsilon", 5, "--ledger", "budget.db")
        run(*RELEASE)
        text = run("report", "rows.card.json").stdout
        assert "guarantee of one row:\n  epsilon: 1.0\n" in text
        assert "columns:\n  - name age, low 0.0, high 100.0, whole no\n  - name visits," in text
        assert "draws:\n  fixed work: yes\n" in text
        assert "\ndoes not promise:\n  - That the rows are true of anybody" in text
        assert "who" not in [line.partition(":")[0] for line in text.splitlines()]  # nobody was named
        assert json.loads(run("report", "rows.card.json", "--json").stdout) == json.loads(
            Path("rows.card.json").read_text()
        )
        run("report", "rows.card.json", "--table", "table.csv", code=2)
        assert "without release cards" in run("report", model, code=1).stderr
        Path("short.card.json").write_text('{"tags": ["a", "b"]}')
        assert run("report", "short.card.json").stdout == "tags: a, b\n"

    @pytest.mark.parametrize("content", ["[1]", "{"])
    def test_no_card(self, content: str, run: Run) -> None:
        Path("x.json").write_text(content)
        assert "must be a card" in run("report", "x.json", code=1).stderr


class TestDiagnose:
    def test_the_kernels_are_all_there(self) -> None:
        assert set(diagnose.KERNELS) == set(KERNELS)

    def test_passed(self, model: Path, run: Run) -> None:
        words = ("diagnose", model, "--seed", 0, "--num-samples", 1500, "--num-chains", 8)
        result = run(*words, "--json")
        document = json.loads(result.stdout)
        assert document["passed"]
        assert [parameter["name"] for parameter in document["parameters"]] == ["x[0]", "x[1]"]
        assert Path("model.mixing.png").read_bytes().startswith(b"\x89PNG")
        assert "as sensitive as the table" in result.stderr
        assert "--force" in run(*words, code=1).stderr

    def test_failed(self, model: Path, run: Run) -> None:
        words = ("--num-samples", 10, "--num-chains", 2, "--warmup-steps", 0, "-o", "m.svg")
        assert "FAILED" in run("diagnose", model, *words, code=4).stdout
        assert "<svg" in Path("m.svg").read_text()
        run("diagnose", model, "-o", "m.txt", code=2)

    def test_interrupted(self, model: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        real = pyro_mbde.run_mcmc
        monkeypatch.setattr(
            pyro_mbde, "run_mcmc", lambda *words, num_samples, **how: real(*words, num_samples=num_samples // 2, **how)
        )
        words = ("--num-samples", 40, "--num-chains", 2, "--warmup-steps", 10)
        assert "20 draws" in run("diagnose", model, *words, code=130).stdout


class TestAudit:
    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """What an audit is asked for, which then does less; 'claimed' in it is claimed in place of what was asked."""
        asked: dict[str, Any] = {}
        real = pyro_mbde.audit

        def audit(fit: Callable[[Any], Any], epsilon: float, **options: Any) -> AuditReport:
            def fitting(table: Any) -> Any:
                asked["density"] = fit(table)
                return asked["density"]

            asked.update(options, epsilon=epsilon)
            return real(fitting, asked.get("claimed", epsilon), **{**options, "num_pairs": 1, "num_draws": 1000})

        monkeypatch.setattr(pyro_mbde, "audit", audit)
        return asked

    def test_passed(self, asked: dict[str, Any], run: Run) -> None:
        text = run("audit", "--epsilon", 1, "--steps", 2, "--seed", 0).stdout
        assert text.startswith("claimed epsilon 1, proven ")
        assert "; passed\n" in text
        assert asked["density"].guarantee.delta == 1e-9
        assert asked["base"].event_shape == (2,)
        assert (asked["num_pairs"], asked["num_draws"], asked["confidence"]) == (6, 20_000, 0.95)

    def test_failed(self, asked: dict[str, Any], run: Run) -> None:
        """An epsilon is claimed that the trainer does not keep to."""
        asked["claimed"] = 0.01
        result = run("audit", "--epsilon", 1, "--steps", 2, "--method", "mbde-paper", "--rounds", 1, "--json", code=4)
        document = json.loads(result.stdout)
        assert not document["passed"]
        assert {finding["severity"] for finding in document["findings"]} >= {"fault"}
        assert document["recipe"]["method"] == "mbde-paper"

    def test_what_the_file_fits_with(self, asked: dict[str, Any], run: Run) -> None:
        text = "[fit]\nepsilon = 3\nsteps = 2\nmethod = 'mbde'\nrounds = 2\noutput = 'm.pt'\n[audit]\nepsilon = 2\n"
        Path("c.toml").write_text(text + SCHEMA)
        run("audit", "--config", "c.toml")
        assert asked["epsilon"] == 2
        assert len(asked["density"].natural_params) == 2
        assert asked["base"].base_dist.high[0] == 100


class TestHandedOn:
    def test_arguments(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        draw = "pyro_mbde.experiments.__main__._draw_guide"
        monkeypatch.setattr(draw, lambda name, *where, **how: print(name, *where))
        result = run("reproduce", "mollifier", "--output", "here", "skew", "--redraw")
        assert result.stdout == "mollifier here\nskew here\n"
        document = json.loads(run("reproduce", "--json", "mollifier", "--output", "here").stdout)
        assert document == {"arguments": ["mollifier", "--output", "here"], "output": ["mollifier here"]}

    @pytest.mark.parametrize(("words", "code"), [(("nothing",), 2), (("--bogus",), 2), (("metrics", "--redraw"), 1)])
    def test_errors(self, words: tuple[str, ...], code: int, run: Run) -> None:
        assert run("reproduce", *words, "--output", "here", code=code).stderr

    def test_quiet_leaves_out_bars(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        from tqdm import tqdm

        def draw(*_: object, **__: object) -> None:
            for _ in tqdm(range(3)):
                pass
            click.echo("a warning", err=True)

        monkeypatch.setattr("pyro_mbde.experiments.__main__._draw_guide", draw)
        assert "100%" in run("reproduce", "mollifier").stderr
        assert run("reproduce", "mollifier", "--quiet").stderr == "a warning\n"


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
        command = [sys.executable, "-c", SIGNALLED, *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == "fitting\n"
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            try:
                assert process.wait(60) == 130
            finally:
                process.kill()
            assert "Traceback" not in process.stderr.read()
        assert not Path("m.pt").exists()

    def test_a_broken_pipe(self) -> None:
        command = f"{sys.executable} -m pyro_mbde_cli --help | true; exit ${{PIPESTATUS[0]}}"
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


#: The command in a process that says when it starts to fit.
SIGNALLED = """
import signal
import sys
import pyro_mbde
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell is started without
fit = pyro_mbde.DensityRatio.fit
def announce(*words):
    print("fitting", file=sys.stderr, flush=True)
    return fit(*words)
pyro_mbde.DensityRatio.fit = announce
from pyro_mbde_cli import main
main(prog_name="pyro-mbde")
"""


def entry_point() -> list[str]:
    """The installed command; the module in its place where it is not installed."""
    script = Path(sys.executable).with_name("pyro-mbde")
    return [str(script)] if script.exists() else [sys.executable, "-m", "pyro_mbde_cli"]


def test_from_table_to_rows(run: Run) -> None:
    """Each command in a process of its own, as it is used."""
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
    opened = call("budget", "open", "clinic", "--epsilon", 3, "--delta", 1e-6)
    released = call(*releasing(2, "rows.csv"), "--purpose", "a test")
    rows = pd.read_csv("public/rows.csv")
    assert list(rows) == ["age", "visits"]
    assert rows["visits"].between(0, 99).all()
    assert rows["visits"].dtype == np.int64
    assert released["charge"]["purpose"] == "a test"
    assert "Nothing was charged" in call(*releasing(2, "more.csv"), code=3)
    assert sorted(path.name for path in Path("public").iterdir()) == ["rows.card.html", "rows.card.json", "rows.csv"]

    # What needs no process of its own.
    assert "ok: 1 charge, head " in run("budget", "verify", "--head", opened["head"], "--ledger", "budget.db").stdout
    run(*releasing(1, "rows.csv"), "--ledger", "budget.db", code=1)  # which is there
    shown = json.loads(run("budget", "show", "clinic", "--model", "model.pt", "--ledger", "budget.db", "--json").stdout)
    assert shown["affordable"] == 0
    assert [charge["num_draws"] for charge in shown["charges"]] == [2]
    assert json.loads(run("report", "public/rows.card.json", "--json").stdout) == released["card"]
    run("report", "model.pt", "--table", "table.csv")
    assert Path("model.report.html").stat().st_size > 0
