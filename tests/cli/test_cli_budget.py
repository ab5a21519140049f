"""``budget``: accounts, plans and verification."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_words import FIT, RELEASE, Run
from ledger_stores import Store


class TestBudget:
    @pytest.fixture(autouse=True)
    def ledger(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYRO_MBDE_LEDGER", "budget.db")
        run("budget", "open", "clinic", "--epsilon", 5, "--delta", 1e-6)

    def test_open(self, run: Run) -> None:
        result = run("budget", "open", "survey", "--epsilon", 3, "--delta", 1e-6, "--rule", "zcdp", "--json")
        document = json.loads(result.stdout)
        assert (document["rule"], document["epsilon"], len(document["head"])) == ("zcdp", 3.0, 64)
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
