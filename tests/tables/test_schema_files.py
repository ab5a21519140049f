"""Schemas in files and as text, what they say of rows, and the mistakes in them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_mbde import Column, Schema
from pyro_mbde.tables.columns import KINDS

#: A schema with a column of every kind, and all that can be said of a table.
HOSPITAL = """
condition = "ward != Maternity"
constraints = ["discharged >= admitted", "visits <= 2 * age"]
public_rows = "Health survey 2019, public use file"

[[columns]]
name = "age"
kind = "integer"
low = 0
high = 110
mean = 48
sd = 22

[[columns]]
name = "visits"
kind = "integer"
low = 0
high = 99
scale = "log1p"

[[columns]]
name = "größe"
low = 40
high = 230
decimals = 1
outside = "drop"
missing = "level"

[[columns]]
name = "ward"
kind = "category"
levels = ["Medicine", "Surgery", "Maternity", "\\"other\\""]
shares = { Medicine = 0.5, Surgery = 0.3, Maternity = 0.1, "\\"other\\"" = 0.1 }

[[columns]]
name = "stage"
kind = "ordered"
levels = ["I", "II", "III"]
missing = "level"
missing_share = 0.3

[[columns]]
name = "smoker"
kind = "boolean"
levels = ["nein", "ja"]
shares = { nein = 0.8, ja = 0.2 }
missing = "refuse"

[[columns]]
name = "admitted"
kind = "date"
low = 2020-01-01
high = 2024-12-31
quantiles = { 0.5 = 2022-06-30 }

[[columns]]
name = "discharged"
kind = "date"
low = 2020-01-01
high = 2025-06-30

[[columns]]
name = "arrival"
kind = "datetime"
low = 2020-01-01T00:00:00
high = 2024-12-31T23:00:00
resolution = "hour"
timezone = "Europe/Berlin"

[[correlations]]
columns = ["age", "visits"]
value = 0.3
"""


@pytest.fixture
def hospital() -> Schema:
    return Schema.from_dict(tomllib.loads(HOSPITAL))


class TestRoundTrips:
    def test_dict_json_and_toml(self, hospital: Schema, tmp_path: Path) -> None:
        assert Schema.from_dict(hospital.to_dict()) == hospital
        assert Schema.from_dict(json.loads(json.dumps(hospital.to_dict()))) == hospital
        assert Schema.from_dict(tomllib.loads(hospital.to_toml())) == hospital
        assert hash(Schema.from_dict(hospital.to_dict())) == hash(hospital)
        for name, text in (
            ("schema.toml", hospital.to_toml()),
            ("schema.json", json.dumps(hospital.to_dict())),
            ("SCHEMA.JSON", "\ufeff" + json.dumps(hospital.to_dict())),
        ):
            (tmp_path / name).write_text(text, encoding="utf-8")
            assert Schema.read(tmp_path / name) == hospital

    def test_plain_values(self, hospital: Schema) -> None:
        """As torch.load(weights_only=True) and JSON take them."""
        content = hospital.to_dict()
        torch.save(content, path := __import__("io").BytesIO())
        path.seek(0)
        assert torch.load(path, weights_only=True) == content
        assert content["version"] == 2
        assert content["columns"][6]["quantiles"] == {"0.5": "2022-06-30"}

    def test_names_of_all_signs(self) -> None:
        names = ['a "quote"', "back\\slash", "it's", "[[columns]]", "größe ☃"]
        levels = [*names, 1, 2.0, -1e22]
        schema = Schema(tuple(Column(name, kind="category", levels=levels) for name in names), public_rows="\n#")
        assert Schema.from_dict(tomllib.loads(schema.to_toml())) == schema

    def test_equal_and_hashable(self, hospital: Schema) -> None:
        assert {hospital, Schema.from_dict(tomllib.loads(HOSPITAL))} == {hospital}
        assert Schema(hospital.columns) != hospital

    def test_the_example_in_the_documentation(self) -> None:
        text = (Path(__file__).parents[2] / "docs" / "schema.md").read_text(encoding="utf-8")
        (example,) = re.findall("```toml\n(.*?)```", text, re.DOTALL)
        schema = Schema.from_dict(tomllib.loads(example))
        assert {column.kind for column in schema.columns} == set(KINDS)
        torch.manual_seed(0)
        frame = schema.to_frame(schema.base().sample((50,)))
        assert (frame["discharged"] >= frame["admitted"]).all()
        assert Schema.from_dict(tomllib.loads(schema.to_toml())) == schema


class TestMistakes:
    @pytest.mark.parametrize(
        ("changed", "error", "text"),
        [
            ({"constraint": ["a > 1"]}, ValueError, "must not have the key 'constraint'. Did you mean 'constraints'?"),
            (
                {"constraints": "age >= 18"},
                TypeError,
                "constraints must be a list of texts, got constraints='age >= 18'",
            ),
            ({"constraints": [3]}, TypeError, "constraints must be text, got constraints=3"),
            ({"constraints": ["agee >= 18"]}, ValueError, "There is no column 'agee'. Did you mean 'age'?"),
            ({"condition": ["age >= 18"]}, TypeError, "condition must be text"),
            ({"condition": "ward > 3"}, ValueError, "condition must"),
            ({"public_rows": 3}, TypeError, "public_rows must be text, got public_rows=3"),
            ({"version": 3}, ValueError, "version must be 2, got version=3. A later pyro_mbde reads it."),
            ({"version": "2"}, ValueError, "version must be 2, got version='2'."),
            ({"correlations": {"columns": ["age", "ward"]}}, TypeError, "In TOML, write [[correlations]]"),
            ({"correlations": [3]}, TypeError, "correlations must have two columns and a value each"),
        ],
    )
    def test_refused(self, changed: dict[str, Any], error: type[Exception], text: str) -> None:
        with pytest.raises(error, match=re.escape(text)):
            Schema.from_dict({**tomllib.loads(HOSPITAL), **changed})

    @pytest.mark.parametrize(
        ("asked", "keys"),
        [
            ({"low": "?", "high": "?"}, "low and high"),
            ({"kind": "category", "levels": ["?"]}, "levels"),
            ({"kind": "date", "low": 3, "high": "?"}, "high"),
            ({"low": 0, "high": 9, "mean": "?"}, "mean"),
        ],
    )
    def test_a_question_of_a_draft(self, asked: dict[str, Any], keys: str) -> None:
        text = f"column 'x' must have values in place of \"?\" at {keys}. Put in what the codebook says."
        with pytest.raises(ValueError, match=re.escape(text)):
            Schema.from_dict({"columns": [{"name": "x", **asked}]})

    def test_a_question_mark_may_be_a_level(self) -> None:
        column = {"name": "?", "kind": "category", "levels": ["?", "A"], "missing": "?"}
        assert Schema.from_dict({"columns": [column]}).names == ("?",)

    def test_json_that_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "schema.json").write_text('{"columns": [')
        with pytest.raises(ValueError, match=r"path must hold JSON, got path='.*'. Expecting value: line 1 column 14"):
            Schema.read(tmp_path / "schema.json")


class TestRows:
    SCHEMA = Schema(
        (
            Column("age", 0, 110, "integer"),
            Column("sex", kind="category", levels=["F", "M"]),
            Column("admitted", "2020-01-01", "2024-12-31", "date"),
            Column("discharged", "2020-03-01", "2025-12-31", "date", missing="level"),
        ),
        constraints=("discharged >= admitted", "age >= 1"),
        condition="sex = F",
    )
    FRAME = pd.DataFrame(
        {
            "age": [30, 40, 50, 0, 60],
            "sex": ["F", "F", "M", "F", "F"],
            "admitted": ["2020-04-01"] * 5,
            "discharged": ["2020-05-01", "2020-03-31", "2020-05-01", "2020-05-01", None],
        }
    )

    def test_rows_that_are_left_out(self) -> None:
        with pytest.warns(UserWarning) as caught:
            rows = self.SCHEMA.to_tensor(self.FRAME)
        assert rows[:, 0].tolist() == [30, 60]
        assert str(caught[0].message).splitlines()[1:5] == [
            "  constraint 'discharged >= admitted' does not hold for 1 row of 5: left out.",
            "  constraint 'age >= 1' does not hold for 1 row of 5: left out.",
            "  condition 'sex = F' does not hold for 1 row of 5: left out.",
            "  2 of 5 rows are left.",
        ]
        assert "owner alone" in str(caught[0].message)
        assert caught[0].filename == __file__

    def test_draws_of_the_base_are_kept(self) -> None:
        torch.manual_seed(0)
        rows = self.SCHEMA.base().sample((200,))
        assert torch.equal(self.SCHEMA.to_tensor(self.SCHEMA.to_frame(rows)), rows)

    def test_the_base_knows_what_is_stated(self, hospital: Schema) -> None:
        base = hospital.base()
        torch.manual_seed(0)
        frame = hospital.to_frame(base.sample((2000,)))
        assert (frame["discharged"] >= frame["admitted"]).all()
        assert not (frame["ward"] == "Maternity").any()
        assert frame["smoker"].mean() == pytest.approx(0.2, abs=0.05)
        assert frame["stage"].isna().mean() == pytest.approx(0.3, abs=0.05)
        assert frame.dtypes.astype(str).tolist()[:4] == ["int64", "int64", "float64", "category"]
        assert np.isclose(frame["größe"].dropna(), frame["größe"].dropna().round(1)).all()
