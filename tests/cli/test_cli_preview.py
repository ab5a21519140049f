"""``preview``, ``schema draft``, ``fit --check`` and public rows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_words import Run

from pyro_mbde import Schema
from pyro_mbde.releases.preview import preview
from pyro_mbde.tables.files import TableModel

SCHEMA = """
constraints = ["stay <= age"]

[[columns]]
name = "sex"
kind = "category"
levels = ["F", "M"]
shares = {F = 0.6, M = 0.4}

[[columns]]
name = "age"
kind = "integer"
low = 0
high = 110
quantiles = {0.1 = 20, 0.5 = 40, 0.9 = 70}

[[columns]]
name = "stay"
low = 0
high = 100
scale = "log1p"
decimals = 1
missing = "level"

[[columns]]
name = "seen"
kind = "date"
low = 2020-01-01
high = 2020-12-31

[[correlations]]
columns = ["age", "stay"]
value = 0.5
"""


@pytest.fixture(autouse=True)
def schema_of_all_kinds() -> None:
    """A schema in the folder, and a table that fits it."""
    Path("all.toml").write_text(SCHEMA)
    generator = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "sex": generator.choice(["F", "M"], 200),
            "age": generator.integers(30, 90, 200),
            "stay": generator.choice([0.5, 2.0, np.nan], 200),
            "seen": generator.choice(pd.date_range("2020-03-01", periods=30), 200),
            "doctor": "x",
        }
    )
    table.to_csv("all.csv", index=False)


class TestPreview:
    def test_it_shows_rows_columns_pairs_and_what_a_release_could_change(self, run: Run) -> None:
        text = run("preview", "--schema", "all.toml", "--epsilon", 3, "--rows", 20).stdout
        assert "F 60%, M 40%" in text
        assert "seen" in text and "nothing stated: spread evenly" in text
        assert "age, stay" in text
        assert "Constraints and condition leave" in text
        assert "could just as well have been drawn from the public base" in text

    def test_rows_obey_the_schema(self, run: Run) -> None:
        document = json.loads(run("preview", "--schema", "all.toml", "--show", 500, "--json").stdout)
        rows = pd.DataFrame(document["rows"])
        assert len(rows) == 500
        stays = rows[rows["stay"].notna()]
        assert bool((stays["stay"].astype(float) <= stays["age"]).all())
        assert set(rows["sex"]) == {"F", "M"}
        assert 0 < document["acceptance_rate"] < 1

    def test_it_reads_no_table(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        def read_table(*_: object, **__: object) -> None:
            raise AssertionError("a table is read")

        monkeypatch.setattr("pyro_mbde.tables.files.read_table", read_table)
        run("preview", "--schema", "all.toml")
        with pytest.raises(AssertionError, match="a table is read"):
            run("preview", "--schema", "all.toml", "--public-rows", "all.csv")

    def test_signs_are_of_ordered_columns(self, run: Run) -> None:
        draft = """[[columns]]
name = "ward"
kind = "category"
levels = ["A", "B", "C"]
[[columns]]
name = "age"
low = 0
high = 110
[[columns]]
name = "stay"
low = 0
high = 110
"""
        Path("pairs.toml").write_text(draft)
        text = run("preview", "--schema", "pairs.toml").stdout
        assert "No association of 0.1 or more." in text
        assert "Columns (10 to 90 per cent quantiles, or shares of levels):" in text
        Path("pairs.toml").write_text(f"""constraints = ["ward != 'A' or age < 20", "stay <= age"]\n{draft}""")
        text = run("preview", "--schema", "pairs.toml").stdout
        assert re.search(r"ward, age +0\.\d", text)
        assert re.search(r"age, stay +\+0\.\d", text)

    def test_the_same_rows_every_time(self) -> None:
        schema = Schema.read("all.toml")
        pd.testing.assert_frame_equal(preview(schema).rows, preview(schema).rows)

    def test_a_picture(self, run: Run) -> None:
        run("preview", "--schema", "all.toml", "-o", "base.png")
        assert Path("base.png").read_bytes().startswith(b"\x89PNG")
        assert "exists" in run("preview", "--schema", "all.toml", "-o", "base.png", code=1).stderr

    def test_what_public_rows_say_is_shown(self, run: Run) -> None:
        plain = run("preview", "--schema", "all.toml").stdout
        result = run("preview", "--schema", "all.toml", "--public-rows", "all.csv")
        assert "must be public" in result.stderr
        assert "2020-03" in result.stdout
        assert "2020-03" not in plain.partition("seen")[2].partition("\n")[0]

    def test_a_schema_is_needed(self, run: Run) -> None:
        assert "--schema" in run("preview", code=2).stderr
        assert "--public-rows" in run("preview", "--schema", "all.toml", "--dependence", "flow", code=2).stderr


class TestPublicRows:
    FORMAT = ("--public-rows", "german.csv", "--sep", ";", "--decimal", ",", "--encoding", "latin-1")

    @pytest.fixture(autouse=True)
    def in_another_format(self) -> None:
        table = pd.read_csv("all.csv").assign(doctor="Müller")
        table.to_csv("german.csv", index=False, sep=";", decimal=",", encoding="latin-1")
        table.iloc[:150].to_csv("own.csv", index=False, sep=";", decimal=",", encoding="latin-1")

    def test_preview(self, run: Run) -> None:
        same = run("preview", "--schema", "all.toml", "--public-rows", "all.csv").stdout
        assert run("preview", "--schema", "all.toml", *self.FORMAT).stdout == same
        other = run("preview", "--schema", "all.toml", *self.FORMAT[:2], code=1).stderr
        assert "--encoding" in other
        other = run("preview", "--schema", "all.toml", *self.FORMAT[:2], *self.FORMAT[-2:], code=1).stderr
        assert "--sep" in other

    def test_a_fit_notes_them(self, run: Run) -> None:
        run("fit", "own.csv", "--schema", "all.toml", "--epsilon", 1, "--steps", 3, "-o", "m.pt", *self.FORMAT)
        schema = TableModel.load("m.pt").schema
        assert schema is not None and schema.public_rows == "200 public rows of german.csv, copula"

    def test_a_flow_refuses_stated_correlations(self, run: Run) -> None:
        options = ("--schema", "all.toml", "--public-rows", "all.csv", "--dependence", "flow")
        assert "correlations must be left out" in run("preview", *options, code=1).stderr

    def test_the_private_table_is_not_taken_for_public_rows(self, run: Run) -> None:
        words = ("fit", "all.csv", "--schema", "all.toml", "--epsilon", 1, "--steps", 3, "-o", "m.pt", "--public-rows")
        Path("copy.csv").write_bytes(Path("all.csv").read_bytes())
        for name in ("all.csv", "copy.csv"):
            assert "the private table itself" in run(*words, name, code=2).stderr
        assert not Path("m.pt").exists()


class TestDraft:
    def test_names_and_kinds_and_no_value(self, run: Run) -> None:
        result = run("schema", "draft", "all.csv")
        assert 'name = "age"\nkind = "integer"' in result.stdout
        assert 'name = "stay"\nkind = "real"' in result.stdout
        assert 'name = "sex"\nkind = "category"' in result.stdout
        assert "names and types" in result.stderr
        for value in ("30", "89", "0.5", '"F"', '"M"', "2020-03"):
            assert value not in result.stdout.replace("as 2020-01-31", "").replace("0.5 = ", "")

    def test_another_table_of_the_same_types_gives_the_same_draft(self, run: Run) -> None:
        first = run("schema", "draft", "all.csv").stdout
        table = pd.read_csv("all.csv").iloc[:7]
        table["age"], table["sex"] = 1, "Q"
        table.to_csv("all.csv", index=False)
        assert run("schema", "draft", "all.csv").stdout == first

    def test_a_row_is_not_taken_for_a_header(self, run: Run) -> None:
        Path("headless.csv").write_text("Anna Schmidt,12.5,HIV+\nBob Jones,13.2,neg\n")
        result = run("schema", "draft", "headless.csv", code=1)
        assert "first line" in result.stderr
        assert "Anna" not in result.stderr + result.stdout

    def test_a_draft_asks_for_all_that_is_missing_at_once(self, run: Run) -> None:
        run("schema", "draft", "all.csv", "-o", "draft.toml")
        errors = run("preview", "--schema", "draft.toml", code=1).stderr
        for name in ("sex", "age", "stay", "seen"):
            assert f"column '{name}'" in errors

    def test_a_draft_that_was_filled_in_is_a_schema(self, run: Run) -> None:
        pd.DataFrame({'odd "name"': [1, 2], "ok": [True, False]}).to_csv("odd.csv", index=False)
        run("schema", "draft", "odd.csv", "-o", "draft.toml")
        text = Path("draft.toml").read_text().replace('low = "?"', "low = 0").replace('high = "?"', "high = 9")
        Path("draft.toml").write_text(text)
        assert Schema.read("draft.toml").names == ('odd "name"', "ok")


class TestCheck:
    def test_a_table_that_fits(self, run: Run) -> None:
        result = run("fit", "all.csv", "--schema", "all.toml", "--check")
        assert "4 columns, 200 of 200 rows can be used" in result.stdout
        assert "left out: doctor" in result.stdout
        assert not Path("model.pt").exists()

    def test_only_the_schema_is_used(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = run("fit", "all.csv", "--schema", "all.toml", "--check").stdout
        monkeypatch.setattr(Schema, "base", None)
        monkeypatch.setattr("pyro_mbde.tables.public_rows.follow_public_rows", None)
        others = ("--public-rows", "all.toml", "--dependence", "flow", "--epsilon", 1)
        assert run("fit", "all.csv", "--schema", "all.toml", "--check", *others).stdout == plain
        assert "Other options have no effect" in " ".join(run("fit", "--help").stdout.split())

    def test_a_table_that_does_not(self, run: Run) -> None:
        table = pd.read_csv("all.csv")
        table["age"] = "forty"
        table.to_csv("all.csv", index=False)
        errors = run("fit", "all.csv", "--schema", "all.toml", "--check", code=1).stderr
        assert "column 'age'" in errors
        assert "forty" not in errors

    def test_rows_that_break_a_constraint_are_counted(self, run: Run) -> None:
        table = pd.read_csv("all.csv")
        table.loc[:9, ["age", "stay"]] = [1, 50.0]
        table.to_csv("all.csv", index=False)
        result = run("fit", "all.csv", "--schema", "all.toml", "--check")
        assert "190 of 200 rows can be used" in result.stdout
        assert "stay <= age" in result.stderr

    def test_without_it_epsilon_and_output_are_needed(self, run: Run) -> None:
        assert "--epsilon" in run("fit", "all.csv", "--schema", "all.toml", "-o", "m.pt", code=2).stderr
        assert "--output" in run("fit", "all.csv", "--schema", "all.toml", "--epsilon", 1, code=2).stderr
