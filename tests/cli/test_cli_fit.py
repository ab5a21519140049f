"""``fit``, and the file of options."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from cli_words import FIT, ROOT, Run
from schemas import TOML

from pyro_mbde import Ledger, MollifiedExpFamily, Schema
from pyro_mbde.cli.recipe import Recipe
from pyro_mbde.privacy.advice import advise
from pyro_mbde.tables.files import TableModel


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
        assert model.settings == document["recipe"] | {
            "table_format": {"sep": ",", "decimal": ".", "encoding": "utf-8"}
        }
        assert MollifiedExpFamily.load("model.pt").event_shape == (2,)

    def test_the_answer_is_public(self, run: Run) -> None:
        first = run(*FIT)
        pd.DataFrame({"age": [3.0] * 7, "visits": [90] * 7}).to_csv("table.csv", index=False)
        second = run(*FIT, "--force")
        assert first.stdout == second.stdout == "model.pt: one draw costs epsilon 1, delta 1e-09 once\n"
        assert first.stderr == second.stderr

    def test_advice_is_on_the_guarantee_that_came_out(self, run: Run) -> None:
        """A side of the interval so narrow leaves a certificate no room: the a-priori form stands in."""
        options = ("--epsilon", 0.5, "--skew", 1e-5, "--json")
        document = json.loads(run(*FIT, *options).stdout)
        assert document["recipe"]["delta"] == 1e-9
        assert document["guarantee"]["delta"] == 0
        assert document["advice"] == advise(row=0.5, calibrated=False)

    def test_rounds_unless_told_otherwise(self) -> None:
        assert (
            Recipe.from_options(method="mbde", epsilon=1.0, delta=None, skew=None, rounds=None, steps=None).rounds == 3
        )

    @pytest.mark.parametrize("method", [(), ("--method", "mbde", "--rounds", 1)], ids=["ratio", "boosting"])
    def test_a_batch_from_fit_to_rows(self, method: tuple[Any, ...], run: Run) -> None:
        result = run(*FIT, *method, "--epsilon", 2, "--rows", 4)
        assert result.stdout == "model.pt: one batch of 4 rows costs epsilon 2, delta 1e-09 once\n"
        assert "Rows of a batch depend on one another" in result.stderr
        assert "a row, at least" not in result.stderr
        model = TableModel.load("model.pt")
        assert model.settings["rows"] == 4 and model.density.event_shape == (4, 2)
        run("budget", "open", "clinic", "--epsilon", 2, "--delta", 1e-6, "--ledger", "budget.db")
        released = run("release", "model.pt", "--ledger", "budget.db", "--account", "clinic", "-o", "rows.csv")
        assert released.stdout.startswith("4 rows in rows.csv")
        rows = pd.read_csv("rows.csv")
        assert list(rows) == ["age", "visits"] and len(rows) == 4
        shown = run("report", "rows.card.json").stdout
        assert "one batch of 4 rows ε = 2, this release ε = 2" in shown
        Path("private").mkdir()
        report = run("report", "model.pt", "--table", "table.csv", "-o", "private/report.html").stdout
        assert report.startswith("private/report.html\nYour ")
        assert "One draw is a batch of 4 rows" in Path("private/report.html").read_text()

    def test_a_weak_batch_is_called_weak(self, run: Run) -> None:
        document = json.loads(run(*FIT, "--epsilon", 4, "--rows", 2, "--delta", 0, "--json").stdout)
        assert document["advice"][0].startswith("An epsilon of 4 for one batch is a weak promise: even odds")
        assert document["guarantee"] == {
            "epsilon": 4.0,
            "delta": 0.0,
            "log_ratio_range": 4.0,
            "total_variation": pytest.approx(math.tanh(1.0)),
        }

    def test_filled_share_sets_the_skew(self, run: Run) -> None:
        document = json.loads(run(*FIT, "--filled-share", 0.2, "--json").stdout)
        assert (document["recipe"]["filled_share"], document["recipe"]["skew"]) == (0.2, None)
        density = TableModel.load("model.pt").density
        assert density.certificate is not None
        place = -density.bounds.low + density.certificate.tolerance
        assert place == pytest.approx(math.log1p(0.2 * math.expm1(1.0)), abs=1e-9)
        Path("options.toml").write_text("[fit]\nrows = 3\nfilled-share = 0.2\n")
        words = ("--config", "options.toml", *FIT, "--force")
        assert "Warning: model.pt is replaced, rows None by 3." in run(*words).stderr
        assert TableModel.load("model.pt").density.event_shape == (3, 2)

    def test_quiet(self, run: Run) -> None:
        assert run(*FIT, "--quiet").stderr == ""

    @pytest.mark.parametrize("source", ["table.csv", "schema.toml", "v1.toml", "v2.toml", "./link.toml"])
    @pytest.mark.parametrize("force", [(), ("--force",)])
    def test_what_it_reads_is_never_replaced(self, source: str, force: tuple[str, ...], run: Run) -> None:
        Path("v1.toml").write_text("[fit]\nsteps = 3\n")
        Path("v2.toml").write_text("[fit]\nsteps = 3\n")
        Path("link.toml").symlink_to("v2.toml")
        before = Path(source).read_bytes()
        words = ("--config", "v1.toml", *FIT, "--config", "v2.toml", "-o", source, *force)
        assert f"'--output' names {Path(source)}, which this command reads" in run(*words, code=2).stderr
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
            (("--epsilon", "-1"), 1, "--epsilon must be above 0 (in nats; inf for no limit), got -1.0."),
            (("--epsilon", "700"), 1, "--epsilon must be below 700, got 700.0."),
            (("--epsilon", "nan"), 1, "epsilon must be above 0"),
            (("--skew", "0"), 1, "skew must be in (0, 1)"),
            (("--delta", "1"), 1, "delta must be 0, or in"),
            (("--epsilon", "much"), 2, "'much' is not a number. Write it in"),
            (("--rounds", "2"), 2, "--rounds is for the methods mbde"),
            (("--method", "mbde-paper", "--skew", "0.5"), 2, "--delta and --skew are for"),
            (("--method", "mbde-paper", "--rows", "5"), 2, "--rows and --filled-share are for"),
            (("--method", "mbde", "--rows", "5", "--delta", "0"), 2, "--rows needs a certificate"),
            (("--skew", "0.3", "--filled-share", "0.2"), 2, "--filled-share sets the skew"),
            (("--filled-share", "1"), 1, "--filled-share must be in (0, 1)"),
            (("--rows", "0"), 2, "--rows"),
            (("--rows", "5", "--epsilon", "13"), 1, "--epsilon must be at most 12 for a batch"),
            (("--schema", "table.csv"), 1, "'table.csv' must hold TOML. "),
            (("-o", "nowhere/model.pt"), 1, "folder 'nowhere' is not there"),
            (("--bogus",), 2, "No such option"),
        ],
    )
    def test_refused_before_the_table_is_read(
        self, words: tuple[str, ...], code: int, text: str, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pyro_mbde.tables.files.read_table", lambda *_, **__: pytest.fail("read"))
        result = run(*FIT, *words, code=code)
        assert text in result.stderr
        assert result.stdout == ""
        assert not Path("model.pt").exists()

    def test_a_missing_schema(self, run: Run) -> None:
        assert "Missing option '--schema'" in run("fit", "table.csv", "--epsilon", 1, "-o", "m.pt", code=2).stderr

    def test_a_missing_schema_is_reported_before_the_library_is_imported(self) -> None:
        script = (
            "import sys\n"
            "from pyro_mbde.cli import main\n"
            "try: main(['fit', 'table.csv', '--epsilon', '1', '-o', 'm.pt'])\n"
            "except SystemExit as end: assert end.code == 2\n"
            "assert not {'torch', 'pandas', 'pyro_mbde.tables'} & set(sys.modules)\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        completed = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        assert completed.returncode == 0, completed.stderr
        assert "Missing option '--schema'" in completed.stderr

    def test_a_table_of_another_form(self, run: Run) -> None:
        pd.DataFrame({"age": [31.337, 500.25, np.nan], "visits": ["4", "secret", ""]}).to_csv("table.csv", index=False)
        result = run(*FIT, code=1)
        assert "column 'visits': text in 1 of 3 cells, the first in row 2" in result.stderr
        assert "TypeError" not in result.stderr
        assert "owner alone" in result.stderr
        assert "secret" not in result.stderr

    def test_what_the_schema_changed_is_said_to_the_owner_alone(self, run: Run) -> None:
        pd.DataFrame({"age": [31.3, 500.25, 2, 7], "visits": [1, 2, np.nan, 3.5]}).to_csv("table.csv", index=False)
        result = run(*FIT, "--quiet", "--json")
        moved = "column 'age': 1 of 4 values is outside [0, 110]: moved to the nearest end of the range."
        assert moved in result.stderr
        assert "column 'visits': 1 of 4 values is missing: 1 row left out." in result.stderr
        assert "column 'visits': 1 of 4 values is not whole: rounded." in result.stderr
        assert "3 of 4 rows are left." in result.stderr
        assert not re.search("rows are left|outside \\[", result.stdout)
        assert "500.25" not in result.stderr
        assert json.loads(result.stdout)["columns"][0]["outside"] == "clip"

    def test_refused_by_the_schema(self, run: Run) -> None:
        pd.DataFrame({"age": [31.337, 500.25, np.nan], "visits": 1}).to_csv("table.csv", index=False)
        Path("schema.toml").write_text(
            TOML.replace("decimals = 1", 'decimals = 1\noutside = "refuse"\nmissing = "refuse"')
        )
        result = run(*FIT, code=1)
        assert "1 of 3 values is missing" in result.stderr
        assert "1 of 3 values is outside" in result.stderr
        assert "owner alone" in result.stderr
        assert not re.search("widen|500.25|--outside", result.stderr)
        assert not Path("model.pt").exists()

    @pytest.mark.parametrize("where", ["flags", "file"])
    def test_a_table_of_another_format(self, where: str, run: Run) -> None:
        table = pd.read_csv("table.csv")
        table.to_csv("table.csv", index=False, sep=";", decimal=",", encoding="utf-16")
        assert "It is UTF-16 text" in run(*FIT, code=1).stderr
        if where == "flags":
            options: tuple[str, ...] = ("--sep", ";", "--decimal", ",", "--encoding", "utf-16")
        else:
            Path("c.toml").write_text('[fit]\nsep = ";"\ndecimal = ","\nencoding = "utf-16"\n')
            options = ("--config", "c.toml")
        run(*FIT, *options)
        run("report", "model.pt", "--table", "table.csv", "-o", "r.json")  # which the model remembers
        words = ("report", "model.pt", "--table", "table.csv", "-o", "s.json", "--encoding", "latin-1")
        assert "It is UTF-16 text" in run(*words, code=1).stderr
        assert json.loads(Path("r.json").read_text())["scores"]["num_rows"] == 300

    @pytest.mark.parametrize("damage", ["cut", "changed"])
    def test_a_damaged_table_is_named(self, damage: str, run: Run) -> None:
        packed = gzip.compress(Path("table.csv").read_bytes())
        Path("table.csv.gz").write_bytes(packed[:-20] if damage == "cut" else packed[:-6] + b"\0\0" + packed[-4:])
        words = ("fit", "table.csv.gz", *FIT[2:])
        error = run(*words, code=1).stderr
        assert "'table.csv.gz' must hold a table. It " in error
        assert "Interrupted" not in error

    def test_debugging(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYRO_MBDE_DEBUG", "1")
        with pytest.raises(ValueError, match="skew must be"):
            run(*FIT, "--skew", 0)

    def test_warnings_are_sentences(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        import warnings

        def read(path: object, **options: str) -> pd.DataFrame:
            warnings.warn("Mind the gap.", stacklevel=1)
            warnings.warn("Old.", FutureWarning, stacklevel=1)
            return pd.read_csv("table.csv")

        monkeypatch.setattr("pyro_mbde.tables.files.read_table", read)
        assert run(*FIT, "--quiet").stderr == "Warning: Mind the gap.\n"


class TestConfig:
    def write(self, text: str) -> None:
        Path("pyro-mbde.toml").write_text(text + TOML)

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
        assert json.loads(answer)["skew"] == pytest.approx(math.log((1 + math.exp(1)) / 2))

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
            ("[fitt]\n", "the file must have keys among schema, preview, fit, release"),
            ("epsilon = 1\n", "got the key 'epsilon'"),
            ("fit = 1\n", "fit must be a table, [fit]"),
            ("[budget.end]\n", "[budget] must have keys among open, close, show, verify, plan, got the key 'end'"),
            ("[budget.open]\nrules = 1\n", "[budget.open] must have"),
            ("[fit]\nepsilon = true\n", "epsilon in [fit] must be a number or text"),
            ("[fit]\nepsilon = [1]\n", "epsilon in [fit] must be a number or text"),
            ("[fit]\nforce = 'yes'\n", "force in [fit] must be true or false"),
            ("[fit]\nepsilon = 'much'\n", "'much' is not a number. Write it in"),
            ("[fit\n", "pyro-mbde.toml: "),
            ("[fit]\nepsilom = 1\n", "Did you mean 'epsilon'?"),
            ("[fit]\nrounds = 2.9\n", "rounds in [fit] must be a whole number, got 2.9. Write it in digits alone"),
            ("[fit]\nsteps = 20.0\n", "steps in [fit] must be a whole number, got 20.0."),
            ("[fit]\nseed = '1_0'\n", "seed in [fit] must be a whole number, got '1_0'."),
            ("[fit]\nseed = true\n", "seed in [fit] must be a number or text."),
            ("[release]\nnum-rows = 1.9\n", "num-rows in [release] must be a whole number, got 1.9."),
            ("[fit]\nepsilon = '1_0'\n", "'1_0' is not a number."),
            ("[fit]\nepsilon = 1,5\n", "(at line 2, column 12). Write decimals with a point, as 0.5."),
        ],
    )
    def test_refused(self, text: str, error: str, run: Run) -> None:
        self.write(text)
        words = ("fit", "table.csv", "-o", "model.pt", "--config", "pyro-mbde.toml")
        assert error in " ".join(run(*words, code=2).stderr.split())

    @pytest.mark.parametrize(
        ("content", "error"),
        [
            (b'{"fit": {"epsilon": 1}}', "It is JSON. Write a table for each command, such as [fit]"),
            (b"fit:\n  epsilon: 1\n", "It is YAML. Write a table for each command, such as [fit]"),
            ("[release]\nwho = 'J\xf6rg'\n".encode("latin-1"), "It is not UTF-8 text. Save it as UTF-8."),
        ],
    )
    def test_another_format(self, content: bytes, error: str, run: Run) -> None:
        Path("options.cfg").write_bytes(content)
        assert error in " ".join(run("fit", "--config", "options.cfg", code=2).stderr.split())

    def test_a_byte_order_mark(self, run: Run) -> None:
        Path("pyro-mbde.toml").write_text(f"[fit]\nepsilon = 2\nsteps = 3\n{TOML}", encoding="utf-8-sig")
        run("fit", "table.csv", "-o", "model.pt", "--config", "pyro-mbde.toml")
        Path("schema.toml").write_text(TOML, encoding="utf-8-sig")
        run(*FIT, "--force")

    @pytest.mark.parametrize(
        ("text", "error"),
        [
            ("[columns]\nname = 'age'\n", "In TOML, write [[columns]], with two brackets on each side"),
            ("[[columns]]\nname = 'age'\nlow = 1950-01-01\nhigh = 3\n", "Of dates, declare kind"),
            ("[[columns]]\nname = 'age'\nlow = 9\nhigh = 3\n[[columns]]\nname = 'x'\n", "The schema has 2 mistakes:"),
        ],
    )
    @pytest.mark.parametrize("option", ["--config", "--schema"])
    def test_mistakes_in_columns(self, text: str, error: str, option: str, run: Run) -> None:
        Path("columns.toml").write_text(text)
        words = ("fit", "table.csv", "-o", "model.pt", "--epsilon", 1, option, "columns.toml")
        assert error in run(*words, code=1).stderr

    def test_columns_are_checked_as_a_schema(self, run: Run) -> None:
        Path("pyro-mbde.toml").write_text("[[columns]]\nname = 'age'\nlow = 0\nhigh = 10\nmax = 3\n")
        words = ("fit", "table.csv", "-o", "model.pt", "--epsilon", 1, "--config", "pyro-mbde.toml")
        assert "must not have the key 'max'" in run(*words, code=1).stderr

    def test_not_there(self, run: Run) -> None:
        run("fit", "table.csv", "--config", "nowhere.toml", code=2)
