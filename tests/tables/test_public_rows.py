"""Facts that are learned from public rows against the laws that the rows are drawn from, and correlations."""

from __future__ import annotations

import json
import math
from datetime import date
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from pyro_mbde import Column, Schema
from pyro_mbde.density.copula import GaussianCopula
from pyro_mbde.density.flow_copula import fit_flow_copula
from pyro_mbde.releases.base_words import base_knowledge
from pyro_mbde.tables import marginals
from pyro_mbde.tables.correlations import correlation_matrix, read_correlations
from pyro_mbde.tables.marginals import density_table
from pyro_mbde.tables.public_rows import follow_public_rows, learn_from_public_codes, learn_from_public_rows

REAL = Column("x", 0, 100)
INCOME = Column("income", 0, 1e6, scale="log1p", decimals=0)
COUNT = Column("visits", 0, 1000, "integer")
STAGE = Column("stage", kind="ordered", levels=["I", "II", "III"])
FLAG = Column("flag", kind="boolean")
DAY = Column("day", "2000-01-01", "2019-12-31", "date")


def codes(*columns: Any) -> torch.Tensor:
    return torch.tensor(np.stack(columns, -1), dtype=torch.float64)


def learn(column: Column, values: Any) -> Column:
    return learn_from_public_codes([column], codes(values)).columns[0]


def normals(correlation: float, num_rows: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return rng.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], num_rows).T


def is_short(number: float) -> bool:
    return float(f"{number:.4g}") == number


class TestLevels:
    def test_half_a_row_is_added_to_each(self) -> None:
        assert learn(STAGE, [0, 0, 1]).shares == {"I": 0.5556, "II": 0.3333, "III": 0.1111}
        assert learn(FLAG, [0, 0, 0]).shares == {False: 0.875, True: 0.125}

    def test_missing_values(self) -> None:
        column = Column("stage", kind="ordered", levels=["I", "II", "III"], missing="level")
        learned = learn(column, [0, 0, 1, -3, -3])
        assert learned.missing_share == 0.4167
        assert learned.shares == {"I": 0.5556, "II": 0.3333, "III": 0.1111}
        only = learn(column, [-3, -3])
        assert (only.missing_share, only.shares) == (0.8333, None)


class TestHistograms:
    @pytest.mark.parametrize("num_rows", [1, 2, 10, 200, 5000])
    def test_of_real_numbers(self, num_rows: int) -> None:
        law = stats.gamma(2, scale=8)
        learned = learn(REAL, law.rvs(num_rows, random_state=0).clip(0, 100))
        edges, shares = learned.histogram["edges"], learned.histogram["shares"]
        assert (edges[0], edges[-1]) == (0, 100)
        assert len(shares) <= 52
        assert all(is_short(share) for share in shares)
        assert sum(shares) == pytest.approx(1, abs=1e-2)
        assert min(shares) > 0
        table = density_table(learned)
        found = np.concatenate([[0.0], table.masses().cumsum()])
        assert np.abs(found - law.cdf(table.edges)).max() < 2.5 / math.sqrt(num_rows) + 0.01

    def test_tails_are_not_spread_to_the_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(marginals, "UNIFORM_SHARE", 0.0)
        values = stats.gamma(2, scale=2).rvs(20_000, random_state=0)
        table = density_table(learn(REAL, values))
        middles = (table.edges[1:] + table.edges[:-1]) / 2
        mean = table.masses() @ middles
        assert mean == pytest.approx(4, abs=0.05)
        spread = table.masses() @ ((middles - mean) ** 2 + np.diff(table.edges) ** 2 / 12)
        assert math.sqrt(spread) == pytest.approx(math.sqrt(8), abs=0.1)

    def test_edges_have_few_digits(self) -> None:
        edges = learn(REAL, stats.gamma(2, scale=8).rvs(200, random_state=0)).histogram["edges"]
        assert all(is_short(edge) for edge in edges)

    def test_frequent_whole_numbers_keep_their_mass(self) -> None:
        rng = np.random.default_rng(0)
        values = np.where(rng.random(2000) < 0.4, 0, rng.integers(0, 800, 2000))
        values[rng.random(2000) < 0.2] = 7
        learned = learn(COUNT, values)
        table = density_table(learned)
        cumulative = np.concatenate([[0.0], table.masses().cumsum()])
        for number in (0, 7):
            mass = np.diff(np.interp([number, number + 1], table.edges, cumulative))[0]
            assert mass == pytest.approx((values == number).mean(), abs=0.005)
        assert learned.histogram["edges"][-1] == 1000
        assert all(isinstance(edge, int) for edge in learned.histogram["edges"])

    def test_frequent_rounded_numbers_keep_their_mass(self) -> None:
        rng = np.random.default_rng(0)
        values = np.where(rng.random(2000) < 0.3, 0, np.exp(rng.normal(10, 1, 2000)).round())
        table = density_table(learn(INCOME, np.log1p(values)))
        cumulative = np.concatenate([[0.0], table.masses().cumsum()])
        assert np.interp(math.log1p(0.5), table.edges, cumulative) == pytest.approx(0.3, abs=0.03)

    @pytest.mark.parametrize("resolution", ["day", "month", "year"])
    def test_of_dates(self, resolution: str) -> None:
        column = Column("day", "2000-01-01", "2019-12-31", "date", resolution=resolution)
        last = column.modelled_range[1] - 1
        values = np.random.default_rng(0).integers(0, last / 2, 500)
        learned = learn(column, values)
        assert all(isinstance(edge, date) for edge in learned.histogram["edges"])
        table = density_table(learned)
        cumulative = np.concatenate([[0.0], table.masses().cumsum()])
        assert np.interp(last / 2, table.edges, cumulative) == pytest.approx(1, abs=0.01)

    @pytest.mark.parametrize("column", [REAL, INCOME, COUNT, DAY, Column("n", 5, 5, "integer")], ids=str)
    def test_constant_columns(self, column: Column) -> None:
        low, high = column.modelled_range
        for value in (low, high - (column.kind in ("integer", "date"))):
            learned = learn(column, np.full(100, value))
            assert density_table(learned).masses().sum() == pytest.approx(1)

    def test_what_is_stated_is_kept(self) -> None:
        column = Column("x", 0, 100, mean=30, sd=10)
        assert learn(column, np.arange(50)) == column


class TestCorrelations:
    @pytest.mark.parametrize("correlation", [-0.8, -0.3, 0.0, 0.5, 0.9])
    def test_of_the_scores_behind_coarse_columns(self, correlation: float) -> None:
        """Counts and levels hide the correlation of the scores that they are made from."""
        one, other = normals(correlation, 20_000)
        for left, right in (
            (one, other),
            ((one > 0.3) * 1.0, (other > -0.5) * 1.0),
            (np.digitize(one, [-0.5, 0.7]), other),
            (np.maximum(one, 0), np.round(other)),
        ):
            columns = [Column("a", -10, 10), Column("b", -10, 10)]
            found = learn_from_public_codes(columns, codes(left, right)).correlations
            value = found[0]["value"] if found else 0.0
            assert value == pytest.approx(correlation, abs=0.04)

    @pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 30])
    def test_few_rows_of_many_columns_give_a_possible_matrix(self, num_rows: int) -> None:
        rng = np.random.default_rng(num_rows)
        shared = rng.normal(size=(num_rows, 1))
        values = (shared + 0.1 * rng.normal(size=(num_rows, 12))).clip(-10, 10)
        names = [f"c{place}" for place in range(12)]
        learned = learn_from_public_codes([Column(name, -10, 10) for name in names], torch.tensor(values))
        assert all(is_short(one["value"]) for one in learned.correlations)
        matrix = correlation_matrix(names, read_correlations(learned.correlations, names))
        assert float(torch.linalg.eigvalsh(matrix)[0]) > 0.005

    def test_noise_is_shrunk_away(self) -> None:
        values = np.random.default_rng(0).normal(size=(30, 10)).clip(-10, 10)
        names = [f"c{place}" for place in range(10)]
        learned = learn_from_public_codes([Column(name, -10, 10) for name in names], torch.tensor(values))
        assert max((abs(one["value"]) for one in learned.correlations), default=0) < 0.25

    def test_categories_have_no_order_to_correlate(self) -> None:
        one, other = normals(0.8, 500)
        columns = [Column("a", kind="category", levels=["x", "y", "z"]), FLAG, Column("b", -10, 10)]
        found = learn_from_public_codes(columns, codes(one > 0, one > 0, other)).correlations
        assert [pair["columns"] for pair in found] == [["flag", "b"]]
        assert learn_from_public_codes([columns[0]], codes(one > 0)).correlations == []

    def test_constant_columns_have_none(self) -> None:
        one, other = normals(0.5, 100)
        columns = [Column(name, -10, 10) for name in "abc"]
        found = learn_from_public_codes(columns, codes(one, np.zeros(100), other)).correlations
        assert [pair["columns"] for pair in found] == [["a", "c"]]


class TestRows:
    def test_of_a_public_frame(self) -> None:
        rng = np.random.default_rng(0)
        age = rng.integers(18, 90, 400)
        frame = pd.DataFrame(
            {
                "age": age,
                "flag": rng.random(400) < age / 100,
                "stage": rng.choice(["I", "II"], 400),
                "day": pd.Timestamp("2005-01-01") + pd.to_timedelta(rng.integers(0, 900, 400), "D"),
            }
        )
        columns = [Column("age", 0, 110, "integer"), FLAG, STAGE, DAY]
        learned = learn_from_public_rows(columns, frame)
        assert [column.name for column in learned.columns] == ["age", "flag", "stage", "day"]
        assert learned.columns[2].shares["III"] == pytest.approx(0.5 / 401.5, rel=1e-3)
        assert learned.correlations[0]["columns"] == ["age", "flag"]
        assert learned.correlations[0]["value"] > 0.3
        assert json.loads(json.dumps(learned.correlations)) == learned.correlations
        for column in learned.columns:
            again = Column(**json.loads(json.dumps(column.to_dict())))
            for one, other in zip(density_table(again), density_table(column), strict=True):
                np.testing.assert_array_equal(one, other)

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            (torch.zeros(0, 1), "at least 1"),
            (torch.zeros(3, 2), r"shape \(n, 1\)"),
            (torch.tensor([[math.nan]]), "finite"),
        ],
    )
    def test_impossible_ones(self, values: torch.Tensor, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            learn_from_public_codes([REAL], values)


class TestFollowing:
    STATED = [{"columns": ["x", "y"], "value": 0.3}]

    @staticmethod
    def frame() -> pd.DataFrame:
        x, y = normals(0.8, 200)
        return pd.DataFrame({"x": 50 + 10 * x, "y": 50 + 10 * y})

    @pytest.fixture(autouse=True)
    def few_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        steps = partial(fit_flow_copula, num_steps=3)
        monkeypatch.setattr("pyro_mbde.density.flow_copula.fit_flow_copula", steps)

    def test_a_flow_in_the_words_of_a_card(self) -> None:
        schema, base = follow_public_rows(
            Schema((REAL, Column("y", 0, 100))), self.frame(), source="S", dependence="flow"
        )
        words = base_knowledge(base, [], schema)
        assert "Its columns depend on one another as in a flow learned from public rows." in words
        assert "Public rows: 200 rows of S." in words
        assert "correlations" not in words

    def test_words_are_of_the_base_and_not_of_the_schema(self) -> None:
        schema = Schema((REAL, Column("y", 0, 100)), correlations=self.STATED)
        assert "correlations of x and y (0.3)" in base_knowledge(schema.base(), [], schema)
        other = GaussianCopula(torch.tensor([[1.0, -0.5], [-0.5, 1.0]]))
        assert "correlations of x and y (-0.5)" in base_knowledge(schema.base(other), [], schema)
        flow = follow_public_rows(Schema(schema.columns), self.frame(), source="S", dependence="flow")[1].dependence
        assert "a flow learned" in base_knowledge(schema.base(flow), [], schema)

    def test_a_flow_cannot_keep_stated_correlations(self) -> None:
        schema = Schema((REAL, Column("y", 0, 100)), correlations=self.STATED)
        with pytest.raises(ValueError, match=r"(?s)correlations must be left out .* a flow.*take them out"):
            follow_public_rows(schema, self.frame(), source="S", dependence="flow")
        kept, _ = follow_public_rows(schema, self.frame(), source="S")
        assert [one.value for one in kept.correlations] == [0.3]

    def test_statistics_of_public_rows_may_be_stated(self) -> None:
        frame = self.frame()
        schema = Schema((Column("x", 0, 100, mean=float(frame["x"].mean())), Column("y", 0, 100)))
        follow_public_rows(schema, frame, source="S")  # warnings are errors
        learn_from_public_rows(schema.columns, frame)

    def test_messages_are_about_public_rows(self) -> None:
        schema, frame = Schema((Column("x", 0, 50), Column("y", 0, 100))), self.frame()
        with pytest.warns(UserWarning, match="Notes on the public rows and their schema") as caught:
            follow_public_rows(schema, frame, source="S")
        messages = [str(one.message) for one in caught]
        for changed in (frame.drop(columns="x"), frame.assign(x="odd"), frame.assign(x=np.nan)):
            refusing = Schema((Column("x", 0, 50, missing="refuse"), Column("y", 0, 100)))
            with pytest.raises((TypeError, ValueError), match=r"^The public rows must") as error:
                follow_public_rows(refusing, changed, source="S")
            messages.append(str(error.value))
        for message in messages:
            assert "owner" not in message and "guarantee" not in message
