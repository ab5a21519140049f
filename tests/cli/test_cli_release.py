"""``release``: what is charged, written and said."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_words import RELEASE, Run, charges
from densities import make_batch, make_density, normal
from ledger_stores import Store

from pyro_mbde import Schema
from pyro_mbde.releases import release as releasing
from pyro_mbde.tables.files import TableModel


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
        assert result.stderr.startswith("A total epsilon of 5 is a weak promise")
        assert "at least 87 in 100 rows could just as well have been drawn from the public base" in result.stderr
        assert result.stderr.count("\n") == 2
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

    def test_a_batch_is_the_default_of_a_model_of_batches(self, run: Run) -> None:
        schema = Schema.from_toml("schema.toml")
        TableModel(make_batch(schema.base(), 4, epsilon=2.0), schema, {"rows": 4}).save("model.pt")
        result = run("release", "model.pt", *RELEASE[3:])
        assert result.stdout.startswith("4 rows in rows.csv")
        assert "charged to clinic: epsilon 2 of 5 spent, delta 1e-09 of 1e-06" in result.stdout
        assert (
            "At least 60 in 100 such batches could just as well have been drawn from the public base" in result.stderr
        )
        assert "Rows of a batch depend on one another" in result.stderr
        assert "2 a row" not in result.stderr
        rows = pd.read_csv("rows.csv")
        assert rows.shape == (4, 2) and rows["visits"].dtype == np.int64
        refused = run("release", "model.pt", 6, *RELEASE[3:], "-o", "more.csv", code=1).stderr
        assert "NUM_ROWS must be a multiple of 4, the rows of one batch of this density, got 6." in refused
        refused = run("release", "model.pt", 8, *RELEASE[3:], "-o", "more.csv", code=3).stderr
        assert "num_draws must be at most 1" in refused and "A draw of this density is a batch of 4 rows." in refused
        document = json.loads(run("release", "model.pt", 4, *RELEASE[3:], "-o", "more.csv", "--json").stdout)
        assert (document["num_rows"], document["num_draws"]) == (4, 1)
        assert [charge.num_draws for charge in charges()] == [1, 1]

    def test_single_rows_need_a_number(self, model: Path, run: Run) -> None:
        assert "Missing argument 'NUM_ROWS'" in run("release", model, *RELEASE[3:], code=2).stderr
        assert charges() == []

    def test_a_density_without_schema(self, run: Run) -> None:
        make_density(normal(2)).save("model.pt")
        run(*RELEASE, "--variable-time")
        assert list(pd.read_csv("rows.csv")) == ["x0", "x1"]

    def test_refused(self, model: Path, run: Run) -> None:
        result = run("release", model, 6, *RELEASE[3:], code=3)
        assert result.stderr.startswith("Error: NUM_ROWS must be at most 5 in account 'clinic'")
        assert result.stdout == ""
        assert not list(Path().glob("rows.*"))
        assert charges() == []

    @pytest.mark.parametrize(
        ("words", "code", "text"),
        [
            (("--ledger", "other.db"), 1, "There is no ledger at 'other.db'"),
            (("--account", "clinik"), 1, "--account must be that of an account ('clinic')"),
            (("--ledger", "table.csv"), 1, "it is not a database"),
            (("--ledger", "sqlite://broken"), 1, "must name a file"),
            (("-o", "table.csv"), 1, "must name new files"),
            (("-o", "nowhere/rows.csv"), 1, "Error: 'nowhere/rows.csv' must lie in a folder"),
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

    def test_files_that_are_not_models(self, run: Run) -> None:
        Path("model.pt").write_bytes(b"nothing")
        assert "undamaged file" in run(*RELEASE, code=1).stderr
        run("release", "other.pt", 1, *RELEASE[3:], code=2)

    def test_a_seed_is_warned_of(self, model: Path, run: Run) -> None:
        assert "Warning: These draws are seeded: for tests only" in run(*RELEASE, "--seed", 1, "--quiet").stderr

    def test_the_ledger_from_the_environment(self, model: Path, run: Run) -> None:
        words = (*RELEASE[:3], *RELEASE[5:])
        run(*words, code=2)
        run(*words, env={"PYRO_MBDE_LEDGER": "budget.db"})

    def test_an_interrupt_tells_that_rows_may_be_paid_for(
        self, model: Path, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(releasing, "draw_rows", interrupt)
        said = run(*RELEASE, code=130).stderr
        assert "rows that were charged before the interrupt stay charged" in said
        assert not Path("rows.csv").exists()
        assert len(charges()) == 1
