"""``budget``: accounts, plans and verification."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_words import FIT, RELEASE, Run
from ledger_stores import ONE, Store, filled, share_a_density

from pyro_mbde import Guarantee, Ledger, LedgerError
from pyro_mbde.cli import console
from pyro_mbde.cli.budget import DELTA
from pyro_mbde.ledger.accounts import DEFAULT_DELTA


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
        assert document["closed"] is None
        result = run("budget", "open", "small", "--epsilon", 1, "--delta", 0)
        assert result.stdout == "opened small: epsilon 1, delta 0, rule pure\n"
        assert "fitted with --delta 0" in result.stderr

    def test_an_account_bears_default_models(self, run: Run) -> None:
        """Its name would be spent for nothing otherwise."""
        result = run("budget", "open", "small", "--epsilon", 0.39999999999999997)
        assert result.stdout == "opened small: epsilon 0.4, delta 1e-06, rule pure\n"
        assert result.stderr == ""
        assert DELTA == DEFAULT_DELTA
        with Ledger("budget.db") as ledger:
            assert ledger.affordable("small", Guarantee(0.1, 1e-9), ONE) == 3
        document = json.loads(run("budget", "show", "small", "--json").stdout)
        assert document["epsilon"] == 0.39999999999999997

    def test_a_terminal_is_asked(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(console, "is_terminal", lambda stream: True)
        words = ("budget", "open", "asked", "--epsilon", 2, "--rule", "zcdp", "--ledger", "new.db")
        result = run(*words, code=1, input="n\n")
        assert result.stderr.startswith(
            "account asked in new.db: epsilon 2, delta 1e-06, rule zcdp, delta 1e-07 of it for certificates\n"
            "None of this can be changed later, and the name is never used again.\nOpen it? [y/N]: "
        )
        assert result.stderr.endswith("Nothing was opened.\n") and result.stdout == ""
        assert not Path("new.db").exists()
        assert run(*words, code=130, input="").stderr.endswith("Interrupted.\n")
        assert "opened asked" in run(*words, input="y\n").stdout
        assert run("budget", "open", "more", "--epsilon", 2, "--yes", "--ledger", "new.db").stderr == ""
        run("budget", "open", "never", "--epsilon", -2, "--ledger", "new.db", code=1)  # before anybody is asked
        close = ("budget", "close", "asked", "--ledger", "new.db")
        assert run(*close, code=1, input="n\n").stderr.endswith("Nothing was closed.\n")
        url = "postgresql://ann:secret@localhost/budget"
        result = run("budget", "open", "asked", "--epsilon", 2, "--ledger", url, code=1, input="n\n")
        assert "account asked in the database: " in result.stderr and "secret" not in result.output
        assert run(*close, input="y\n").stdout == "closed asked\n"

    def test_close(self, model: Path, run: Run) -> None:
        run("budget", "open", "mistake", "--epsilon", 3)
        document = json.loads(run("budget", "close", "mistake", "--json").stdout)
        assert (document["name"], document["closed"]) == ("mistake", "2026-01-02T00:00:00+00:00")
        assert "ok: 0 charges" in run("budget", "verify", "--head", document["head"]).stdout
        assert run("budget", "show").stdout.splitlines()[2].endswith("2026-01-02, closed 2026-01-02")
        assert "It is closed already" in run("budget", "close", "mistake", code=1).stderr
        assert "closed ones too" in run("budget", "open", "mistake", "--epsilon", 3, code=1).stderr
        result = run(*RELEASE[:5], "--account", "mistake", "-o", "rows.csv", code=3)
        assert "'mistake' was closed on 2026-01-02" in result.stderr
        run(*RELEASE)
        assert "without charges" in run("budget", "close", "clinic", code=1).stderr

    def test_what_was_done_is_done_where_the_head_cannot_be_read(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(ledger: Ledger) -> str:
            raise LedgerError("it was locked for too long.")

        monkeypatch.setattr(Ledger, "head", fail)
        result = run("budget", "open", "small", "--epsilon", 1, "--json")
        assert json.loads(result.stdout)["head"] is None
        assert result.stderr == "Warning: the new head could not be read: it was locked for too long.\n"

    def test_names_that_look_alike(self, run: Run) -> None:
        result = run("budget", "open", "Clinic", "--epsilon", 3, code=1)
        assert "NAME must not look like that of another account, 'clinic', got 'Clinic'" in result.stderr
        assert "There is 'clinic', which looks like 'Clinic'" in run("budget", "show", "Clinic", code=1).stderr

    def test_a_density_in_two_accounts(self, model: Path, run: Run) -> None:
        run("budget", "open", "other", "--epsilon", 3)
        run(*RELEASE)
        result = run(*RELEASE[:5], "--account", "other", "-o", "more.csv", code=3)
        assert "'clinic' bears it already" in result.stderr
        assert not Path("more.csv").exists()
        assert "0 more rows of this model" in run("budget", "show", "other", "--model", model).stdout

    def test_a_density_that_older_releases_charged_twice(self, run: Run) -> None:
        filled("older.db")
        share_a_density(Store("older.db", Path("older.db")))
        warning = "Warning: the accounts a, b bear rows of one density: their limits add up. See budget verify.\n"
        for words in ((), ("a",)):
            result = run("budget", "show", *words, "--ledger", "older.db")
            assert result.stderr == warning
            document = json.loads(run("budget", "show", *words, "--ledger", "older.db", "--json").stdout)
            assert document["shared_densities"] == [["a", "b"]]
        assert "NOT OK: 9 charges" in run("budget", "verify", "--ledger", "older.db", code=4).stdout

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
        assert run("budget", "verify", "--head", "f" * 64, code=4).stdout.startswith("NOT OK: 0 charges, head ")
        result = run("budget", "verify", "--head", head[:8], code=1)
        assert result.stdout == ""
        assert result.stderr.startswith(
            f"Error: --head must be 64 hexadecimal digits, got '{head[:8]}'. Pass the whole head"
        )
        run(*RELEASE)
        document = json.loads(run("budget", "verify", "--head", head, "--json").stdout)
        assert (document["ok"], document["num_charges"], document["problems"]) == (True, 1, [])
        with Store("budget.db", Path("budget.db")).raw() as execute:
            execute("UPDATE mbde_charges SET num_draws = 1")
        problem = "entry 2, the charge to account 'clinic' was edited"
        assert problem in json.loads(run("budget", "verify", "--json", code=4).stdout)["problems"]
        assert f"\n  {problem}\n" in run("budget", "verify", code=4).stdout

    def test_plan(self, run: Run) -> None:
        words = ("budget", "plan", "--epsilon", 10, "--num-draws", 20, "--json")
        default = json.loads(run(*words).stdout)
        assert (default["form"], default["delta"], default["total"]["delta"]) == ("calibrated", 1e-9, 1e-6)
        document = json.loads(run(*words, "--delta", 0).stdout)
        assert document["epsilon"] == 0.5
        assert document["form"] == "a priori"
        assert document["fit_options"].endswith("--delta 0.0 --skew 0.3")
        assert document["account_options"] == "--epsilon 10.0 --delta 0.0 --rule pure"
        text = run("budget", "plan", "--epsilon", 9, "--delta", 1e-6, "--num-draws", 1000).stdout
        assert "1,000 rows" in text
        assert "--rule iid --certificate-delta 1e-09" in text or "--rule iid --certificate-delta 0.0" in text
        run("budget", "plan", "--epsilon", -1, "--num-draws", 20, code=1)
        run("budget", "plan", "--epsilon", 1, "--num-draws", 0, code=2)

    @pytest.mark.parametrize(
        "words", [("plan", "--num-draws", 1), ("open", "n", "--ledger", "new.db")], ids=["plan", "open"]
    )
    @pytest.mark.parametrize(
        ("epsilon", "code", "text"),
        [
            ("700", 1, "--epsilon must be below 700, as that of one row, got 700."),
            ("1e18", 1, "--epsilon must be below 700, as that of one row, got 1e+18."),
            ("1e308", 1, "--epsilon must be below 700, as that of one row, got 1e+308."),
            ("inf", 1, "--epsilon must be finite, got inf."),
            ("1_0", 2, "'1_0' is not a number. Write it in the digits 0 to 9"),
            ("\uff11\uff10", 2, "'\\uff11\\uff10' is not a number."),
            ("1,5", 2, "'1,5' is not a number. Use a decimal point: 1.5."),
            ("0x10", 2, "is not a number"),
            (" 1", 2, "is not a number"),
        ],
    )
    def test_totals_that_are_refused(
        self, epsilon: str, code: int, text: str, words: tuple[object, ...], run: Run
    ) -> None:
        result = run("budget", *words, "--epsilon", epsilon, code=code)
        assert text in result.stderr
        assert result.stdout == ""
        assert not Path("new.db").exists()

    def test_a_plan_tells_what_its_account_is_for(self, run: Run) -> None:
        plan = ("budget", "plan", "--epsilon", 3, "--num-draws")
        text = run(*plan, 1).stdout
        assert "1 row  " in text
        assert "\naccount   --epsilon 3.0 --delta 1e-09 --rule pure\n" in text
        assert text.endswith("\n          for one model only; for several leave out --delta\n")
        assert "for several open it with --rule zcdp" in run(*plan, 1000).stdout
        assert "one model only" not in run(*plan, 2, "--delta", 0).stdout
        document = json.loads(run(*plan, 20_000, "--json").stdout)
        assert (document["account_note"], document["form"]) == (None, "a priori")

    def test_a_plan_of_a_low_skew(self, run: Run) -> None:
        plan = ("budget", "plan", "--epsilon", 2, "--num-draws", 4, "--filled-share")
        assert "A skew of 0.064 is right only where the table fills so small a share" in run(*plan, 0.05).stderr
        assert "skew" not in run(*plan, 0.2).stderr

    def test_a_plan_buys_what_it_is_for(self, run: Run) -> None:
        answer = run("budget", "plan", "--epsilon", 3, "--delta", 1e-6, "--num-draws", 12, "--json").stdout
        plan = json.loads(answer)
        run("budget", "open", "planned", *plan["account_options"].split())
        run(*FIT[:4], *plan["fit_options"].split(), "--steps", 3, "-o", "planned.pt")
        shown = run("budget", "show", "planned", "--model", "planned.pt", "--json").stdout
        assert json.loads(shown)["affordable"] >= 12
        run("release", "planned.pt", 12, "--account", "planned", "-o", "rows.csv")
