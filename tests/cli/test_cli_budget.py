"""``budget``: accounts, plans and verification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_words import FIT, RELEASE, Run
from densities import scale_calibration
from ledger_stores import DENSITIES, ONE, Store, filled, share_a_density
from torch.distributions import Normal

from pyro_mbde import DensityRatio, Guarantee, Ledger, LedgerError, WeakLearner
from pyro_mbde.calibration.plan import plan_calibration, plan_certificate
from pyro_mbde.cli import console
from pyro_mbde.cli.budget import DELTA
from pyro_mbde.cli.budget_plan import _duration
from pyro_mbde.density.bounds import a_priori_guarantee, calibrated_guarantee
from pyro_mbde.ledger.accounts import DEFAULT_DELTA
from pyro_mbde.privacy.placement import filled_share_skew


@pytest.fixture(autouse=True)
def fewer_draws() -> None:
    """None here, in place of the other commands': plans tell how many draws a certificate takes."""


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
        result = run("budget", "open", "placed", "--epsilon", 3, "--rule", "placement")
        assert "epsilon 3, delta 1e-06, rule placement, delta 1e-07 of it for certificates" in result.stdout
        assert "for models of" not in run("budget", "show", "placed").stdout
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
        assert "must be 'clinic', which is charged for this density already" in result.stderr
        assert not Path("more.csv").exists()
        assert "0 more rows of this model" in run("budget", "show", "other", "--model", model).stdout

    def test_a_density_that_older_releases_charged_twice(self, run: Run) -> None:
        filled("older.db")
        share_a_density(Store("older.db", Path("older.db")))
        warning = (
            "Warning: the accounts a, b are charged for rows of one density: their limits add up. See budget verify.\n"
        )
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

    def test_affordable_batches(self, run: Run) -> None:
        data, base = Normal(0.5, 1.0).sample((50,)), Normal(0.0, 1.0)
        learner = WeakLearner(hidden_sizes=(8,), num_steps=5)
        ratio = DensityRatio(base, weak_learner=learner, ensemble_size=1, seed=0, progress=False).fit(data)
        ratio.mollify(2.0, 0.0, num_rows=3).save("batches.pt")
        show = ("budget", "show", "clinic", "--model", "batches.pt")
        assert "\n2 more batches of 3 rows of this model, at epsilon 2 each\n" in run(*show).stdout
        assert json.loads(run(*show, "--json").stdout)["shortage"] is None
        with Ledger("budget.db") as ledger:
            ledger.charge("clinic", Guarantee(3.0), 1, fingerprint=ONE)
            assert "\n1 more batch of 3 rows of this model, at epsilon 2\n" in run(*show).stdout
            ledger.charge("clinic", Guarantee(1.0), 1, fingerprint=ONE)
        reason = "epsilon 4 of 5 is spent, and one more draw of epsilon 2 exceeds it"
        text = f"0 more batches of 3 rows of this model, at epsilon 2 each\nbecause {reason}\n"
        assert text in run(*show).stdout
        document = json.loads(run(*show, "--json").stdout)
        assert (document["affordable"], document["shortage"]) == (0, {"limit": "epsilon", "reason": reason})

    def test_a_second_model_of_an_account_for_one(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        scale_calibration(monkeypatch)
        for seed in (0, 1):
            run(*FIT, "--seed", seed, "-o", f"{seed}.pt")
        run("budget", "open", "one", "--epsilon", 5, "--delta", 1e-9)
        run("release", "0.pt", 1, "--account", "one", "-o", "rows.csv")
        document = json.loads(run("budget", "show", "one", "--model", "1.pt", "--json").stdout)
        assert (document["affordable"], document["shortage"]["limit"]) == (0, "certificates")
        result = run("release", "1.pt", 1, "--account", "one", "-o", "more.csv", code=3)
        assert document["shortage"]["reason"][1:] in result.stderr
        assert "Draw again from the density already charged, which needs no further certificate, or" in result.stderr
        run("release", "0.pt", 1, "--account", "one", "-o", "more.csv")

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
        assert "--rule placement --certificate-delta 1e-09" in text
        text = run("budget", "plan", "--epsilon", 3, "--num-draws", 10_000, "--skew", 0.5).stdout
        assert "--rule iid --certificate-delta 0.0" in text
        assert "for several open it with --rule zcdp" in text
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
        assert text.endswith("\naccount   --epsilon 3.0 --rule pure\n")
        text = run(*plan, 1, "--delta", 1e-9).stdout
        assert "\naccount   --epsilon 3.0 --delta 1e-09 --rule pure\n" in text
        assert text.endswith("\n          for one model only; for several plan with a larger --delta\n")
        text = run(*plan, 1, "--delta", 1e-8).stdout
        assert text.endswith("\naccount   --epsilon 3.0 --delta 1e-08 --rule pure\n")
        assert "one model only" not in run(*plan, 2, "--delta", 0).stdout
        document = json.loads(run(*plan, 200_000, "--json").stdout)
        assert (document["account_note"], document["form"]) == (None, "a priori")

    def test_a_plan_by_placement_bears_several_models_of_one_setting(self, run: Run) -> None:
        plan = ("budget", "plan", "--epsilon", 3, "--num-draws", 20)
        ending = "for one model, or several of this epsilon and skew whose deltas add up to 1e-09\n"
        assert run(*plan).stdout.endswith(ending)
        document = json.loads(run(*plan, "--filled-share", 0.2, "--json").stdout)
        run("budget", "open", "planned", *document["account_options"].split())
        skew = filled_share_skew(document["epsilon"], 0.2)
        assert document["fit_options"].endswith("--delta 1e-09 --filled-share 0.2")
        with Ledger("budget.db") as ledger:
            for delta, density in zip((4e-10, 3e-10, 2e-10, 1e-10), DENSITIES, strict=False):
                guarantee = calibrated_guarantee(*plan_certificate(document["epsilon"], delta, skew))
                ledger.charge("planned", guarantee, 5, fingerprint=density)
            assert ledger.spent("planned").epsilon <= 3
            variation = ledger.charges("planned")[0].guarantee.total_variation
        shown = f"for models of epsilon {document['epsilon']} and total variation {variation:.6g}"
        assert shown in run("budget", "show", "planned").stdout
        setting = json.loads(run("budget", "show", "planned", "--json").stdout)["setting"]
        assert setting == {"epsilon": document["epsilon"], "total_variation": variation}

    @pytest.mark.parametrize(
        ("words", "drawn", "cost"),
        [
            ((10, 20), "one batch of 20 rows, epsilon 10, calibrated", "epsilon 10, delta 1e-09, by pure composition"),
            ((3, 10, "--delta", 0), "one batch of 10 rows, epsilon 3, a priori", "epsilon 3, delta 0, by pure"),
            ((30, 100), "3 batches of 34 rows, epsilon 10 each, calibrated", "epsilon 30, delta 1e-09, by pure"),
            ((60, 4), "4 single rows, epsilon 15 each, calibrated", "epsilon 60, delta 1e-09, by pure composition"),
            ((2, 1), "a single row, epsilon 2, calibrated", "epsilon 2, delta 1e-09, by pure composition"),
        ],
    )
    def test_a_plan_of_rows(self, words: tuple[Any, ...], drawn: str, cost: str, run: Run) -> None:
        epsilon, rows, *more = words
        words = ("budget", "plan", "--epsilon", epsilon, "--rows", rows, *more)
        lines = run(*words).stdout.splitlines()
        assert lines[0].startswith(f"draw   {drawn}")
        assert lines[1].startswith(f"cost   {cost}")
        assert lines[2].startswith("takes  a release scores ")
        document = json.loads(run(*words, "--json").stdout)
        assert document["remarks"] == lines[4 : lines.index("", 4)]
        assert document["commands"] == [line for line in lines if line.startswith("pyro-mbde ")]
        opening, fitting, releasing = document["commands"]
        assert document["account_options"] in opening and document["fit_options"] in fitting
        batch = document["rows_per_batch"]
        assert (f"--rows {batch}" in fitting) == (batch > 1)
        assert f" {document['num_rows']} --ledger" in releasing
        assert document["num_rows"] == batch * document["num_draws"] >= rows
        assert document["seconds"] == document["num_scored"] / 200_000
        # What the plan costs is what its account affords.
        run("budget", "open", "planned", *document["account_options"].split())
        bounds, certificate = plan_calibration(
            Normal(0.0, 1.0), document["epsilon"], document["delta"], document["skew"], batch if batch > 1 else None
        )
        guarantee = a_priori_guarantee(bounds) if certificate is None else calibrated_guarantee(bounds, certificate)
        with Ledger("budget.db") as ledger:
            spent = ledger.charge("planned", guarantee, document["num_draws"], fingerprint=ONE).spent
            assert spent is not None and spent.epsilon <= epsilon
            assert ledger.affordable("planned", guarantee, ONE) == 0

    def test_the_account_of_a_plan_pays_for_a_thousand_models(self, run: Run) -> None:
        """As one that is opened without --delta; the exact delta is kept where the rule needs it."""
        plan = ("budget", "plan", "--epsilon", 3, "--rows", 10)
        text = run(*plan).stdout
        assert "pyro-mbde budget open NAME --ledger LEDGER --epsilon 3.0 --rule pure\n" in text
        assert "one model" not in text and "epsilon 3, delta 1e-09, by pure composition" in text
        document = json.loads(run(*plan, "--json").stdout)
        assert document["account_note"] is None
        run("budget", "open", "planned", *document["account_options"].split())
        with Ledger("budget.db") as ledger:
            assert ledger.account("planned").delta == DEFAULT_DELTA
        assert "The account is for one model only" in run(*plan, "--delta", 1e-9).stdout
        placed = json.loads(run(*plan[:4], "--num-draws", 20, "--json").stdout)["account_options"]
        assert placed == "--epsilon 3.0 --delta 1e-06 --rule placement --certificate-delta 1e-09"

    def test_a_plan_tells_how_long_it_takes(self, run: Run) -> None:
        plan = ("budget", "plan", "--epsilon")
        lines = run(*plan, 3, "--rows", 10).stdout.splitlines()
        takes = "a release scores 6,810 rows, less than a second on one core; a fit takes 10 seconds to a minute"
        assert lines[2] == f"takes  {takes}, its certificate 5 seconds to a minute more"
        lines = run(*plan, 3, "--rows", 10, "--delta", 0).stdout.splitlines()
        assert lines[2].endswith("; a fit takes 10 seconds to a minute")
        assert "seconds on one core; a fit" in run(*plan, 10, "--rows", 20).stdout.splitlines()[2]
        assert (_duration(1.0), _duration(1.1)) == ("about 1 second on one core", "about 2 seconds on one core")
        assert _duration(91) == "about 2 minutes on one core"

    def test_a_plan_says_what_rows_will_look_like(self, run: Run) -> None:
        words = ("budget", "plan", "--epsilon", 10, "--rows", 20)
        assert "almost draws of the table's density if the base is within 0.17 nats of it" in run(*words).stdout
        assert "Where the base is more than 2.1 nats a row from the table" in run(*words).stdout
        assert "hardly differ from the base: a row comes at most 0.35 nats nearer to the table" in run(*words).stdout
        assert "Rows of a batch depend on one another" in run(*words).stdout
        assert "rows are almost draws of the table's" in run(*words, "--divergence", 0.1).stdout
        assert "rows lie between table and base" in run(*words, "--divergence", 0.7).stdout
        assert "rows hardly differ from draws of the base" in run(*words, "--divergence", 7).stdout
        assert json.loads(run(*words, "--divergence", 7, "--json").stdout)["divergence"] == 7
        assert "at most 0.25 nats nearer" in run(*words, "--skew", 0.5).stdout
        assert "A total epsilon of 10 is a weak promise" in run(*words).stderr

    @pytest.mark.parametrize(
        ("words", "code", "text"),
        [
            ((), 2, "Name the rows wanted: --rows, or --num-draws for draws that are paid for one by one."),
            (("--rows", 2, "--num-draws", 2), 2, "--rows and --num-draws exclude each other: --rows is the number"),
            (("--rows", 2, "--skew", 0.3, "--filled-share", 0.3), 2, "--filled-share sets the skew"),
            (("--num-draws", 2, "--divergence", 1), 2, "--divergence goes with --rows"),
            (("--rows", 0), 2, "0 is not in the range x>=1"),
            (("--rows", 2, "--divergence", -1), 1, "--divergence must be finite and at least 0, in nats, got -1"),
            (("--rows", 2, "--skew", 1), 1, "--skew must be in (0, 1), got 1"),
            (("--rows", 2, "--filled-share", 0), 1, "--filled-share must be in (0, 1), got 0"),
            (("--rows", 2, "--delta", 1), 1, "--delta must be in [0, 1), got 1"),
            (("--num-draws", 1, "--delta", "nan"), 1, "--delta must be in [0, 1), got nan"),
        ],
    )
    def test_plans_that_are_refused(self, words: tuple[object, ...], code: int, text: str, run: Run) -> None:
        result = run("budget", "plan", "--epsilon", 2, *words, code=code)
        assert text in result.stderr
        assert result.stdout == ""

    def test_a_plan_of_very_many_rows_ends(self, run: Run) -> None:
        document = json.loads(run("budget", "plan", "--epsilon", 5, "--rows", 10**5, "--json").stdout)
        assert document["num_rows"] >= 10**5 and document["rows_per_batch"] > 1
        refused = run("budget", "plan", "--epsilon", 5, "--rows", 10**9, code=1).stderr
        assert "--rows must be at most 100,000, got 1000000000" in refused

    def test_a_plan_that_no_release_can_follow_is_refused(self, run: Run) -> None:
        refused = run("budget", "plan", "--epsilon", 600, "--rows", 10, code=1).stderr
        assert "A row at epsilon 60 takes too long to draw. Lower it, or release more rows." in refused
        assert "These are 12 rows, not 10" in run("budget", "plan", "--epsilon", 30, "--rows", 10).stdout

    def test_a_plan_of_a_low_skew(self, run: Run) -> None:
        plan = ("budget", "plan", "--epsilon", 2, "--num-draws", 4, "--filled-share")
        assert "A skew of 0.064 is right only where the table fills so small a share" in run(*plan, 0.05).stderr
        assert "skew" not in run(*plan, 0.2).stderr
        assert "leave out --filled-share" in run(*plan, 0.05).stderr
        assert "leave out --skew" in run("budget", "plan", "--epsilon", 2, "--rows", 4, "--skew", 0.05).stderr

    def test_a_plan_buys_what_it_is_for(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        scale_calibration(monkeypatch)
        answer = run("budget", "plan", "--epsilon", 3, "--delta", 1e-6, "--num-draws", 12, "--json").stdout
        plan = json.loads(answer)
        run("budget", "open", "planned", *plan["account_options"].split())
        run(*FIT[:4], *plan["fit_options"].split(), "--steps", 3, "-o", "planned.pt")
        shown = run("budget", "show", "planned", "--model", "planned.pt", "--json").stdout
        assert json.loads(shown)["affordable"] >= 12
        run("release", "planned.pt", 12, "--account", "planned", "-o", "rows.csv")
