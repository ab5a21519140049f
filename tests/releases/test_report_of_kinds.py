"""The owner's report, releases and cards of tables with columns of all kinds."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from densities import make_batch, make_density

from pyro_mbde import Column, DensityRatio, Ledger, MollifiedExpFamily, Schema, WeakLearner, private_report, release
from pyro_mbde.density.marginals import Marginal
from pyro_mbde.density.mixed_base import MixedBase
from pyro_mbde.releases import comparison
from pyro_mbde.releases.base_words import base_in_words, base_knowledge, base_text, base_values
from pyro_mbde.releases.card_text import card_text
from pyro_mbde.releases.columns import column_codes, released_columns, schema_of
from pyro_mbde.releases.comparison import compare

SCHEMA = Schema(
    (
        Column("sex", kind="category", levels=["female", "male"], shares={"female": 0.5, "male": 0.5}),
        Column("age", 18, 99, kind="integer", mean=50),
        Column("stage", kind="ordered", levels=["I", "II", "III", "<IV>"], missing="level"),
        Column("visits", 0, 99, kind="integer", scale="log1p"),
        Column("income", 0, 1e6, scale="log1p", decimals=2),
        Column("admitted", "2018-01-01", "2023-12-31", kind="date"),
        Column("pressure", 60, 250, decimals=1, missing="level"),
        Column("smoker", kind="boolean"),
    )
)


def table(num_rows: int = 800) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    age = np.clip(generator.normal(50, 16, num_rows), 18, 99).round()
    stage = np.array(["I", "II", "III", "<IV>"], dtype=object)[
        np.clip((age - 18) / 25 + generator.normal(0, 0.5, num_rows), 0, 3).astype(int)
    ]
    stage[::9] = None
    pressure = generator.normal(120 + 0.3 * (age - 50), 12, num_rows).round(1)
    pressure[::7] = np.nan
    days = (2000 * generator.beta(2, 1, num_rows)).astype(int)
    return pd.DataFrame(
        {
            "sex": np.where(generator.random(num_rows) < 0.3, "female", "male"),
            "age": age,
            "stage": stage,
            "visits": np.minimum(generator.poisson(np.exp(0.3 + 0.02 * (age - 18))), 99),
            "income": np.exp(generator.normal(9.5, 0.8, num_rows)).round(2),
            "admitted": np.datetime64("2018-01-01") + days,
            "pressure": pressure,
            "smoker": generator.random(num_rows) < 0.3,
        }
    )


@pytest.fixture(scope="module")
def density() -> MollifiedExpFamily:
    return make_density(SCHEMA.base(), epsilon=4.0, dtype=SCHEMA.dtype)


def test_codes(density: MollifiedExpFamily) -> None:
    """Levels by their place, dates in days, numbers in the table's units, missing values as NaN."""
    frame = table(20)
    named, schema = released_columns(density, None), schema_of(density, None)
    codes = dict(zip(SCHEMA.names, column_codes(SCHEMA.to_tensor(frame), density.base, named, schema), strict=True))
    assert np.array_equal(codes["sex"], frame["sex"] == "male")
    assert np.array_equal(np.isnan(codes["stage"]), frame["stage"].isna())
    assert np.array_equal(codes["admitted"], (frame["admitted"] - pd.Timestamp("2018-01-01")).dt.days)
    np.testing.assert_allclose(codes["income"], frame["income"], rtol=1e-6)
    np.testing.assert_array_equal(np.isnan(codes["pressure"]), frame["pressure"].isna())
    np.testing.assert_array_equal(codes["visits"], frame["visits"])


def test_columns_of_all_kinds(density: MollifiedExpFamily, tmp_path: Path) -> None:
    report = private_report(density, table(), path=tmp_path / "r.html", columns=SCHEMA, target="visits")
    columns = {column["name"]: column for column in report["comparison"]["columns"]}
    assert columns["stage"]["levels"]["names"] == ["I", "II", "III", "<IV>", "missing"]
    assert columns["pressure"]["bars"]["missing"]["table"] == pytest.approx(1 / 7, abs=0.01)
    assert [mark["text"] for mark in columns["admitted"]["bars"]["marks"]] == ["2018", "2020", "2022"]
    names = {one["name"] for one in report["comparison"]["similarities"]}
    assert names == {
        "TVComplement",
        "KSComplement",
        "MissingValueSimilarity",
        "ContingencySimilarity",
        "CorrelationSimilarity",
    }
    found = {tuple(pair["names"]): pair["association"] for pair in report["comparison"]["pairs"]}
    assert found["age", "stage"]["measure"] == "rank correlation"
    assert found["age", "stage"]["table"] > 0.6
    assert abs(found["age", "stage"]["base"]) < 0.02
    assert {found["sex", one]["measure"] for one in ("smoker", "age")} == {"rank correlation"}
    assert report["comparison"]["recovered"]["strong"] >= 2
    page = (tmp_path / "r.html").read_text()
    assert page.count("<svg") == 9
    assert "&lt;IV&gt;" in page and "<IV>" not in page
    for text in ("visits predicted from the other columns", "2020", ">missing<", "SDMetrics"):
        assert text in page
    json.dumps(report, allow_nan=False)


def test_without_a_table(density: MollifiedExpFamily, tmp_path: Path) -> None:
    report = private_report(density, path=tmp_path / "r.html", target="visits")
    assert report["prediction"] is None
    assert report["comparison"]["recovered"] is None and report["comparison"]["similarities"] == []
    assert "Which columns go together" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("num_rows", [1, 2])
def test_tables_of_few_rows(density: MollifiedExpFamily, num_rows: int, tmp_path: Path) -> None:
    report = private_report(density, table(num_rows), columns=SCHEMA, target="age", path=tmp_path / "r.html")
    assert report["prediction"] is None
    json.dumps(report, allow_nan=False)


def test_weights_stand_for_draws(density: MollifiedExpFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws of the density as the table: every distance is what chance makes of it."""
    monkeypatch.setattr(comparison, "_NUM_DRAWS", 2**17)  # far more than the table's
    compared = compare(density, density.sample(torch.Size([20_000])), SCHEMA)
    for one in (*compared.columns, *compared.pairs):
        assert one.distances.table_to_density is not None and one.distances.chance is not None, one
        assert one.distances.table_to_density < 2 * one.distances.chance + 0.005, one
    for pair in compared.pairs:
        size = pair.association
        assert size.table is not None and size.density is not None, size
        assert size.table == pytest.approx(size.density, abs=0.05), size


def test_a_base_without_a_schema(tmp_path: Path) -> None:
    base = SCHEMA.base()
    vars(base).pop("_pyro_mbde_schema")
    q = make_density(base, dtype=base.dtype)
    report = private_report(q, base.sample(torch.Size([300])), path=tmp_path / "r.html", target="x1")
    kinds = [column["kind"] for column in report["comparison"]["columns"]]
    assert kinds == ["category", "integer", "ordered", "integer", "real", "integer", "real", "category"]
    assert report["comparison"]["columns"][2]["levels"]["names"] == ["0", "1", "2", "3", "missing"]


CLINIC = Schema(
    (
        Column("age", 0, 99, kind="integer"),
        Column("dose", 0, 10, missing="level"),
        Column("ill", kind="boolean"),
        Column("ward", kind="category", levels=["A", "B", "C"]),
        Column("idle", kind="boolean"),
    )
)


@pytest.fixture(scope="module")
def rows() -> torch.Tensor:
    generator = np.random.default_rng(0)
    age = generator.integers(0, 100, 2000)
    frame = pd.DataFrame({"age": age, "dose": np.clip(age / 10 + generator.normal(0, 0.3, 2000), 0, 10)})
    frame["ill"] = age > 60
    frame["ward"] = np.where(age < 30, "A", np.where(age < 70, "B", "C"))
    frame["idle"] = False
    frame.loc[::5, "dose"] = np.nan
    return CLINIC.to_tensor(frame)


@pytest.fixture(scope="module")
def learned(rows: torch.Tensor) -> MollifiedExpFamily:
    """Which has learned the table, with more epsilon than anybody should spend."""
    learner = WeakLearner(hidden_sizes=(64,), num_steps=300)
    ratio = DensityRatio(CLINIC.base(), ensemble_size=1, weak_learner=learner, seed=0, progress=False).fit(rows)
    return ratio.mollify(12.0, delta=0)


class TestPrediction:
    @pytest.mark.parametrize(
        ("target", "measure", "least"),
        [
            ("age", "R²", 0.8),
            pytest.param("dose", "R²", 0.8, marks=pytest.mark.slow),
            ("ill", "AUC", 0.9),
            pytest.param("ward", "accuracy", 0.7, marks=pytest.mark.slow),
        ],
    )
    def test_what_is_learned_is_of_use(
        self, learned: MollifiedExpFamily, rows: torch.Tensor, target: str, measure: str, least: float
    ) -> None:
        told = private_report(learned, rows, target=target)["prediction"]
        values = {one["rows"]: one["value"] for one in told["results"]}
        by_table, by_density, by_base = values.values()
        assert list(values)[1:] == ["2,000 rows of the density", "2,000 rows of the base"]
        assert told["measure"] == measure
        assert by_table > least
        assert by_table + 0.02 > by_density > least - 0.1
        if measure != "AUC":  # which chance slopes may raise, however small
            assert by_base < told["uninformed"] + 0.12

    def test_batches(self, learned: MollifiedExpFamily, rows: torch.Tensor) -> None:
        told = private_report(make_batch(CLINIC.base(), 4), rows, target="age")["prediction"]
        assert [one["rows"] for one in told["results"]][2] == "one batch of 4 rows"

    def test_nothing_to_predict(self, learned: MollifiedExpFamily, rows: torch.Tensor) -> None:
        assert private_report(learned, rows, target="idle")["prediction"] is None
        with pytest.raises(ValueError, match=r"target must name one of \['age', .*'idle'\], got target='Age'"):
            private_report(learned, rows, target="Age")
        single = Schema((Column("age", 0, 99, kind="integer"),))
        with pytest.raises(ValueError, match="one of several columns"):
            private_report(make_density(single.base()), rows[:, :1], target="age")

    def test_divergence(self, learned: MollifiedExpFamily, rows: torch.Tensor) -> None:
        """An estimate for densities with a learned ratio, of the size of what is gained at a large epsilon."""
        scores = private_report(learned, rows)["scores"]
        assert scores["estimated_divergence"] == pytest.approx(scores["gain_in_nats"], rel=0.1)
        assert private_report(make_density(CLINIC.base()), rows)["scores"]["estimated_divergence"] is None


class TestCard:
    @pytest.mark.parametrize("suffix", ["csv", "parquet"])
    def test_rows_and_card(
        self, density: MollifiedExpFamily, make_ledger: Callable[..., Ledger], tmp_path: Path, suffix: str
    ) -> None:
        path = tmp_path / f"rows.{suffix}"
        released = release(density, 40, make_ledger(epsilon=1e3), "clinic", path=path, progress=False)
        columns = {column["name"]: column for column in released.card["columns"]}
        assert columns["sex"]["levels"] == ["female", "male"]
        assert (columns["admitted"]["low"], columns["admitted"]["high"]) == ("2018-01-01", "2023-12-31")
        assert "kind" not in columns["age"]
        assert columns["pressure"]["may_be_missing"]
        page, said = unescape((tmp_path / "rows.card.html").read_text()), " ".join(card_text(released.card).split())
        for text in (
            "levels in order: I, II, III, <IV>; may be missing",
            "dates, by the day",
            "levels: false, true",
            "The base knew range or levels of each column, the mean of age, the shares of sex, and the share of "
            "missing values of stage and pressure; beyond that it is even.",
            "the public base, which knew what is stated below",
            "MixedBase(8 columns: 2 category, 3 integer, 1 ordered, 2 real)",
        ):
            assert text in page and text in said, text
        assert "modelled units" not in said
        assert Schema.from_dict(json.loads(json.dumps(released.card["density"]["schema"]))) == SCHEMA
        back: Any = pd.read_csv(path) if suffix == "csv" else pd.read_parquet(path)
        assert set(back["sex"]) <= {"female", "male"}
        assert back["stage"].isna().sum() == released.rows["stage"].isna().sum()
        if suffix == "csv":
            assert back["admitted"].str.fullmatch(r"\d{4}-\d\d-\d\d").all()
            assert ",," in path.read_text()
        else:
            assert back["admitted"].dtype.kind == "M" and back["smoker"].dtype.kind == "b"
            assert list(back["stage"].cat.categories) == ["I", "II", "III", "<IV>"]

    @pytest.mark.parametrize(
        ("changed", "found"),
        [
            (Column("smoker", 0, 1, kind="integer"), "the kind 'integer' for 'smoker'"),
            (Column("smoker", kind="boolean", missing="level"), "missing='level' for 'smoker'"),
            (
                Column("smoker", kind="category", levels=["a", "b", "c"]),
                "3 levels for 'smoker', of which the base has 2",
            ),
        ],
    )
    def test_another_schema_is_refused(self, density: MollifiedExpFamily, changed: Column, found: str) -> None:
        with pytest.raises(ValueError, match=found):
            released_columns(density, Schema((*SCHEMA.columns[:-1], changed)))

    def test_other_words_for_the_levels_are_refused(self, density: MollifiedExpFamily) -> None:
        other = Schema((Column("sex", kind="category", levels=["male", "female"]), *SCHEMA.columns[1:]))
        with pytest.raises(ValueError, match="columns must be the schema that the density's base was made from"):
            released_columns(density, other)


class TestWords:
    COLUMNS = (Column("age", 0, 99, kind="integer", mean=40, sd=20), Column("fee", 0, 50))

    def test_all_that_is_known(self) -> None:
        schema = Schema(
            self.COLUMNS,
            correlations=[{"columns": ["age", "fee"], "value": 0.4}],
            constraints=["age >= 5 or fee < 10"],
            condition="age < 90",
            public_rows="census of 2011",
        )
        said = base_knowledge(schema.base(), [], schema)
        assert said == (
            "The base knew range or levels of each column, and the mean of age; beyond that it is even. It has the "
            "correlations of age and fee (0.4). In every row, by definition: age >= 5 or fee < 10. Only rows are "
            "modelled for which age < 90. Public rows: census of 2011."
        )
        assert base_text(schema.base()) == (
            "MixedBase(2 columns: 1 integer, 1 real; dependent by a GaussianCopula; restricted by 2 predicates)"
        )

    @pytest.mark.parametrize(
        ("note", "said"),
        [
            ("300 public rows of survey.csv, copula", "300 rows of survey.csv, with their correlations"),
            ("1,200 public rows of a, b.csv, flow", "1,200 rows of a, b.csv"),
            ("1 public row of survey.csv, copula", "1 row of survey.csv, with their correlations"),
            ("Census of public rows, 2011", "Census of public rows, 2011"),
        ],
    )
    def test_public_rows(self, note: str, said: str) -> None:
        schema = Schema(self.COLUMNS[1:], public_rows=note)
        assert base_knowledge(schema.base(), [], schema).endswith(f" Public rows: {said}.")

    def test_nothing_known(self) -> None:
        schema = Schema((Column("a", 0, 9, kind="integer"), Column("b", kind="boolean")))
        base = schema.base()
        columns = released_columns(make_density(base), None)
        assert base_in_words(base, columns, schema) == (
            "the public base, evenly over the ranges and levels of the columns below"
        )
        assert base_knowledge(base, columns, schema).startswith("The base knew range or levels of each column; beyond")

    def test_long_descriptions_are_hashed(self) -> None:
        assert "arguments" in base_values(Schema(self.COLUMNS[1:]).base())
        edges, ones = torch.arange(4001.0), torch.ones(4000)
        described = base_values(MixedBase([Marginal(edges, ones, ones, "ordered")]))
        assert described["distribution"] == "pyro_mbde.MixedBase"
        assert len(described["sha256"]) == 64
