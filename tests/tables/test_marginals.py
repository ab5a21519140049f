"""Densities of columns against SciPy's laws, direct sums and what was stated, at extremes and at random."""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from column_laws import (
    LEVELS,
    below,
    category,
    integer,
    moments,
    on_scale,
    pmf,
    probabilities,
    real,
    unmixed,
)
from scipy import integrate, stats

from pyro_mbde import Column, Schema
from pyro_mbde.density.marginals import Marginal
from pyro_mbde.tables.facts import MAX_LEVELS, range_of
from pyro_mbde.tables.marginals import MAX_CELLS, UNIFORM_SHARE, density_table
from pyro_mbde.tables.maximum_entropy import MaximumEntropy


class TestNothingStated:
    def test_real_numbers_are_uniform_in_modelled_units(self) -> None:
        for table, high in ((density_table(real(0, 9)), 9.0), (density_table(real(0, 9, scale="log1p")), math.log(10))):
            assert table.edges.tolist() == pytest.approx([0, high])
            assert table.left.tolist() == table.right.tolist() == pytest.approx([1 / high])

    def test_whole_numbers(self) -> None:
        table = density_table(integer(-5, 5))
        assert table.edges.tolist() == [-5, 6]
        assert table.masses().tolist() == pytest.approx([1])

    @pytest.mark.parametrize("high", [1, 99, 2047, 4000, 10**5])
    def test_whole_numbers_of_the_scale_log1p(self, high: int) -> None:
        table = density_table(integer(0, high, scale="log1p"))
        numbers = np.arange(0, high + 1)
        exact = (np.log(numbers + 2) - np.log(numbers + 1)) / math.log(high + 2)
        np.testing.assert_allclose(probabilities(table, np.arange(0, high + 2)), exact, rtol=1e-4, atol=1e-12)

    @pytest.mark.parametrize("scale", ["linear", "log1p"])
    def test_billions_of_whole_numbers(self, scale: str) -> None:
        table = density_table(integer(0, 2**32, scale=scale))
        assert len(table.left) <= MAX_CELLS
        assert table.masses().sum() == pytest.approx(1)
        assert bool((table.left > 0).all() and (table.right > 0).all())

    def test_levels(self) -> None:
        table = density_table(Column("stage", kind="category", levels=LEVELS))
        assert table.edges.tolist() == [0, 1, 2, 3]
        assert table.left.tolist() == table.right.tolist() == pytest.approx([1 / 3] * 3)
        assert density_table(Column("flag", kind="boolean")).left.tolist() == [0.5, 0.5]


class TestMeans:
    @pytest.mark.parametrize(("mean", "sd"), [(5, 1), (2, 1.5), (9.5, 0.3), (0.2, 0.15), (5, 0.01), (0.01, 0.009)])
    def test_a_narrow_law_is_a_truncated_normal(self, mean: float, sd: float) -> None:
        """With b < 0 it is one; its centre and scale are read off the natural parameters."""
        column = real(mean=mean, sd=sd)
        slope, square = MaximumEntropy(range_of(column), mean, sd)._natural_params
        assert square < 0
        scale = sd / math.sqrt(-2 * square)
        centre = mean + slope * scale**2 / sd
        law = stats.truncnorm((0 - centre) / scale, (10 - centre) / scale, centre, scale)
        assert law.mean() == pytest.approx(mean, abs=1e-6 * sd)
        assert law.std() == pytest.approx(sd, rel=1e-6)
        points = np.concatenate([np.linspace(0, 10, 101), mean + sd * np.linspace(-4, 4, 81)]).clip(0, 10)
        assert below(unmixed(column), points) == pytest.approx(law.cdf(points), abs=2e-5)

    @pytest.mark.parametrize("mean", [0.01, 1, 4.9, 5, 9.9])
    def test_a_mean_alone_gives_a_truncated_exponential(self, mean: float) -> None:
        column = real(mean=mean)
        law = MaximumEntropy(range_of(column), mean, None)
        rate = law._natural_params[0] / law.unit
        points = np.linspace(0, 10, 101)
        exact = np.expm1(rate * points) / np.expm1(10 * rate) if abs(rate) > 1e-9 else points / 10
        assert below(unmixed(column), points) == pytest.approx(exact, abs=2e-5)
        assert moments(column)[0] == pytest.approx(mean, abs=1e-4)

    @pytest.mark.parametrize(("mean", "sd"), [(3, 2), (0.5, 0.6), (2, 0.01), (7.5, 0.51), (5, 4.9), (9.9, 0.4), (5, 3)])
    def test_whole_numbers_against_direct_sums(self, mean: float, sd: float) -> None:
        column = integer(mean=mean, sd=sd)
        law, numbers = MaximumEntropy(range_of(column), mean, sd), np.arange(11)
        scaled = (numbers - mean) / sd
        direct = np.exp(np.stack([scaled, scaled**2 - 1], -1) @ law._natural_params)
        direct /= direct.sum()
        assert direct @ numbers == pytest.approx(mean, abs=1e-6)
        assert math.sqrt(direct @ (numbers - mean) ** 2) == pytest.approx(sd, rel=1e-6)
        assert pmf(column) == pytest.approx(direct, abs=1e-9)

    def test_the_scale_log1p_keeps_the_law_in_the_tables_units(self) -> None:
        column = real(0, 1e6, scale="log1p", mean=30_000, sd=40_000)
        law = MaximumEntropy(range_of(column), 30_000, 40_000)
        points = np.array([0, 10, 1e3, 1e4, 3e4, 1e5, 2e5, 1e6])

        def density(value: float) -> float:
            return float(law.densities(np.array([value]))[0])

        exact = [integrate.quad(density, a, b)[0] for a, b in zip(points, points[1:], strict=False)]
        assert probabilities(unmixed(column), np.log1p(points)) == pytest.approx(exact, abs=1e-6)
        assert moments(column) == pytest.approx((30_000, 40_000), rel=1e-3)

    @pytest.mark.parametrize("kind", ["real", "integer"])
    @pytest.mark.parametrize("scale", ["linear", "log1p"])
    def test_moments_are_as_stated_at_random(self, kind: str, scale: str) -> None:
        rng = np.random.default_rng(7)
        num_possible = 0
        for _ in range(40):
            width = 10 ** rng.uniform(0.5, 5.5)
            low = 0.0 if scale == "log1p" else float(rng.normal() * width)
            if kind == "integer":
                low, width = math.floor(low), math.ceil(width)
            mean = low + width / (1 + math.exp(3 * rng.normal()))
            largest = math.sqrt((mean - low) * (low + width - mean))
            sd = largest * (1 - 10 ** rng.uniform(-2.5, 0) if rng.random() < 0.5 else 10 ** rng.uniform(-3, 0))
            try:
                column = Column("x", low, low + width, kind, scale, mean=mean, sd=sd)
            except ValueError:
                continue
            num_possible += 1
            found_mean, found_sd = moments(column)
            assert abs(found_mean - mean) < 1e-3 * sd, column
            assert found_sd == pytest.approx(sd, rel=1e-3), column
            table = density_table(column)
            assert len(table.left) <= MAX_CELLS
            assert bool((table.left > 0).all() and (table.right > 0).all())
        assert num_possible > 16

    def test_a_narrow_law_in_billions_of_whole_numbers(self) -> None:
        table = density_table(integer(0, 2**32, mean=1000.3, sd=3))
        numbers = np.arange(970, 1031)
        masses = probabilities(table, np.append(numbers, 1031)) / (1 - UNIFORM_SHARE)
        assert masses @ numbers / masses.sum() == pytest.approx(1000.3, abs=1e-3)
        assert math.sqrt(masses @ (numbers - 1000.3) ** 2) == pytest.approx(3, rel=1e-3)

    @pytest.mark.parametrize(
        ("facts", "message"),
        [
            ({"mean": 11}, r"mean must be within \[0, 10\], got mean=11"),
            ({"mean": 0}, "mean must lie strictly between 0 and 10, got mean=0. Check its unit"),
            ({"mean": 1e-9}, r"mean must lie in \[0.0006103515625, 9.99938964844\]"),
            ({"mean": 3, "sd": 5}, r"sd must be from 0.000610352 to 4.58034, got sd=5.0. No law from 0 to 10"),
            ({"mean": 3, "sd": 1e-5}, r"sd must be from 0.000610352 to 4.58034, got sd=1e-05. Narrow the range"),
            ({"mean": 3, "sd": -1}, "sd must be above 0"),
            ({"mean": 3, "sd": math.nan}, "sd must be above 0"),
            ({"sd": 2}, "sd must come with a mean"),
            ({"mean": 3, "quantiles": {0.5: 3}}, "in one way, got mean and quantiles"),
        ],
    )
    def test_impossible_ones(self, facts: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            real(**facts)

    def test_whole_numbers_cannot_vary_less_than_their_mean_lets_them(self) -> None:
        with pytest.raises(ValueError, match="sd must be from 0.500001 to"):
            integer(mean=3.5, sd=0.4)


class TestQuantiles:
    def test_of_real_numbers(self) -> None:
        column = real(quantiles={"0.25": 1, 0.5: 2, 0.9: 7})
        table = unmixed(column)
        assert table.edges.tolist() == [0, 1, 2, 7, 10]
        assert table.masses() == pytest.approx(np.array([0.25, 0.25, 0.4, 0.1]))
        assert table.left == pytest.approx(table.right)

    def test_of_the_scale_log1p(self) -> None:
        table = unmixed(real(0, 99, scale="log1p", quantiles={0.5: 9}))
        assert table.edges == pytest.approx(np.log1p([0, 9, 99]), rel=1e-6)
        assert table.left == pytest.approx(0.5 / np.diff(table.edges))

    def test_of_whole_numbers(self) -> None:
        cumulative = pmf(integer(quantiles={0.2: 1, 0.5: 4, 0.75: 6})).cumsum()
        assert cumulative[[1, 4, 6, 10]] == pytest.approx(np.array([0.2, 0.5, 0.75, 1]))
        assert cumulative[0] == pytest.approx(0.1)

    @pytest.mark.parametrize(
        ("quantiles", "number", "expected"),
        [
            ({0.3: 0, 0.5: 0, 0.8: 4}, 0, 0.5),
            ({0.3: 4, 0.7: 4}, 4, 0.4),
            ({0.3: 4, 0.5: 5, 0.7: 5}, 5, 0.4),
            ({0.3: 4, 0.8: 10}, 10, 0.2),
            ({0.3: 10}, 10, 0.7),
            ({0.1: 0}, 0, 0.1),
        ],
    )
    def test_atoms_of_whole_numbers(self, quantiles: dict[float, int], number: int, expected: float) -> None:
        assert pmf(integer(quantiles=quantiles))[number] == pytest.approx(expected)

    def test_levels_come_back_at_random(self) -> None:
        rng = np.random.default_rng(3)
        for _ in range(30):
            count = rng.integers(1, 12)
            levels = np.unique(rng.uniform(0.01, 0.99, count))
            values = np.sort(rng.choice(np.arange(1, 500), len(levels), replace=False))
            quantiles = dict(zip(levels.tolist(), values.tolist(), strict=True))
            for scale in ("linear", "log1p"):
                assert below(unmixed(real(0, 500, scale=scale, quantiles=quantiles)), on_scale(values, scale)) == (
                    pytest.approx(levels, abs=1e-5)
                )
                assert pmf(integer(0, 500, scale=scale, quantiles=quantiles)).cumsum()[values] == pytest.approx(levels)

    @pytest.mark.parametrize(
        ("quantiles", "message"),
        [
            ({0.5: 3, 0.6: 3}, "got 3 at both 0.5 and 0.6. A column of real numbers has no such atoms"),
            ({0.5: 0}, "got 0 at both 0 and 0.5"),
            ({0.5: 10}, "got 10 at both 0.5 and 1"),
            ({0.5: 4, 0.6: 3}, r"quantiles must rise within \[0, 10\], got 4 at 0.5 and 3 at 0.6"),
            ({0.5: 11}, r"must be within \[0, 10\]"),
            ({1.0: 5}, "levels between 0 and 1"),
            ({50: 5}, "levels between 0 and 1"),
            ({}, "1 to 2,000 entries, got 0"),
        ],
    )
    def test_impossible_ones(self, quantiles: dict[Any, float], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            real(quantiles=quantiles)


class TestShares:
    def test_of_levels_and_their_rounding(self) -> None:
        table = density_table(category(III=0.2, I=0.5, II=0.299))
        assert table.masses() == pytest.approx(np.array([0.5, 0.299, 0.2]) / 0.999)

    @pytest.mark.parametrize("keys", [(True, False), ("true", "false"), ("yes", "no")])
    def test_of_booleans(self, keys: tuple[Any, Any]) -> None:
        column = Column("flag", kind="boolean", shares={keys[0]: 0.2, keys[1]: 0.8})
        assert density_table(column).masses().tolist() == [0.8, 0.2]

    @pytest.mark.parametrize("keys", [("ja", "nein"), (True, False), ("true", "false")])
    def test_of_booleans_with_their_own_words(self, keys: tuple[Any, Any]) -> None:
        column = Column("flag", kind="boolean", levels=["nein", "ja"], shares={keys[0]: 0.2, keys[1]: 0.8})
        assert density_table(column).masses().tolist() == [0.8, 0.2]
        assert Schema((column,)).to_tensor(pd.DataFrame({"flag": ["ja", "nein"] * 5})).sum() == 5

    def test_as_many_levels_as_the_documentation_says(self) -> None:
        text = (Path(__file__).parents[2] / "docs" / "schema.md").read_text(encoding="utf-8")
        assert f"Shares may be stated of up to {MAX_LEVELS:,} levels" in text
        levels = list(range(MAX_LEVELS + 1))
        shares = {level: 1 / MAX_LEVELS for level in levels[:-1]}
        assert len(density_table(Column("x", kind="category", levels=levels[:-1], shares=shares)).left) == MAX_LEVELS
        with pytest.raises(ValueError, match="shares must"):
            Column("x", kind="category", levels=levels, shares={level: 1 / len(levels) for level in levels})

    def test_errors_name_the_words_of_a_boolean(self) -> None:
        with pytest.raises(ValueError, match="shares must name levels of the column, got .*They are 'nein', 'ja'."):
            Column("flag", kind="boolean", levels=["nein", "ja"], shares={"yes": 0.2, "no": 0.8})
        with pytest.raises(ValueError, match="got none for 'ja'"):
            Column("flag", kind="boolean", levels=["nein", "ja"], shares={"nein": 0.8})
        with pytest.raises(ValueError, match="got none for 'true'"):
            Column("flag", kind="boolean", shares={"no": 0.8})

    @pytest.mark.parametrize("shares", [{"yes": 0.1, "true": 0.2, "no": 0.7}, {"1": 0.1, 1: 0.2, 0: 0.7}])
    def test_each_level_once(self, shares: dict[Any, float]) -> None:
        with pytest.raises(ValueError, match="name each level once"):
            Column("flag", kind="boolean", shares=shares)

    def test_of_whole_numbers(self) -> None:
        assert pmf(integer(0, 5, shares={"0": 0.3, 2: 0.3})) == pytest.approx(np.array([0.3, 0.1, 0.3, 0.1, 0.1, 0.1]))
        assert pmf(integer(0, 1, shares={0: 0.3, 1: 0.7})) == pytest.approx(np.array([0.3, 0.7]))
        table = density_table(integer(0, 2**32, shares={7: 0.5}))
        assert table.masses() == pytest.approx(np.array([7 / 2**33, 0.5, 0.5 - 7 / 2**33]))

    @pytest.mark.parametrize(
        ("shares", "message"),
        [
            ({"I": 0.5, "II": 0.2, "III": 0.2}, r"add up to 1 \(within 0.01\), got the sum 0.9"),
            ({"I": 0.5, "II": 0.5}, "a share to every level, got none for 'III'"),
            ({"I": 0.5, "II": 0.5, "III": 0.0}, r"shares\[III\] must be a share above 0"),
            ({"I": 50, "II": 30, "III": 20}, "Divide percentages by 100"),
            ({"I": 0.5, "II": 0.3, "IIII": 0.2}, "Did you mean 'III'"),
        ],
    )
    def test_impossible_ones_of_levels(self, shares: dict[str, float], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            category(**shares)

    @pytest.mark.parametrize(
        ("shares", "message"),
        [
            ({0: 0.5, 1: 0.5}, "leave something for the 9 other numbers"),
            ({0: 0.5, 11: 0.1}, r"within \[0, 10\]"),
            ({0.5: 0.5}, "whole numbers"),
        ],
    )
    def test_impossible_ones_of_whole_numbers(self, shares: dict[Any, float], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            integer(shares=shares)

    def test_real_numbers_have_none(self) -> None:
        with pytest.raises(ValueError, match="may state mean or quantiles or histogram or distribution"):
            real(shares={1: 0.2})


class TestHistograms:
    def test_of_real_numbers(self) -> None:
        table = unmixed(real(histogram={"edges": [0, 1, 5, 10], "shares": [0.5, 0, 0.5]}))
        assert table.edges.tolist() == [0, 1, 5, 10]
        assert table.masses() == pytest.approx(np.array([0.5, 0, 0.5]), abs=1e-12)
        assert table.left[1] == pytest.approx(0, abs=1e-12)

    @pytest.mark.parametrize("edges", [[0, 1, 5, 10], [0, 1, 5, 11], [-0.5, 0.5, 4.5, 10.5]])
    def test_of_whole_numbers(self, edges: list[float]) -> None:
        column = integer(histogram={"edges": edges, "shares": [0.5, 0.2, 0.3]})
        assert pmf(column) == pytest.approx(np.array([0.5] + [0.05] * 4 + [0.05] * 6))

    @pytest.mark.parametrize(
        ("edges", "shares", "message"),
        [
            ([0, 5], [1.0], "start and end at the ends of the range"),
            ([0, 5, 5, 10], [0.5, 0.0, 0.5], "must rise, got 5 before 5"),
            ([0, 5, 10], [0.5, 0.4], "sum 0.9"),
            ([0, 5, 10], [1.0], "one edge more than shares, got 3 edges and 1 shares"),
            ([0, 5, 10], [1.5, -0.5], "a share from 0 to 1"),
        ],
    )
    def test_impossible_ones(self, edges: list[float], shares: list[float], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            real(histogram={"edges": edges, "shares": shares})


class TestDates:
    @pytest.mark.parametrize("resolution", ["day", "month", "year"])
    def test_facts_in_dates(self, resolution: str) -> None:
        ends = {"low": date(2000, 1, 1), "high": date(2019, 12, 31), "kind": "date", "resolution": resolution}
        column = Column("day", **ends, quantiles={"0.5": date(2004, 12, 31)})
        half = {"day": 1827, "month": 60, "year": 5}[resolution]
        table = density_table(column)
        assert table.edges[1] == half
        assert table.masses()[0] == pytest.approx(0.5, abs=1e-3)
        binned = Column(
            "day", **ends, histogram={"edges": ["2000-01-01", "2010-01-01", "2019-12-31"], "shares": [0.3, 0.7]}
        )
        edges = density_table(binned).edges
        assert edges[1] == {"day": 3653, "month": 120, "year": 10}[resolution]
        assert edges[2] == range_of(binned).high + 1
        assert column.of_kind.value(column, edges[1]) == date(2010, 1, 1)

    def test_a_mean_and_a_standard_deviation_in_units(self) -> None:
        column = Column("day", "2000-01-01", "2019-12-31", "date", mean="2010-06-01", sd=500)
        span = range_of(column)
        numbers = np.arange(span.high + 1)
        masses = (probabilities(density_table(column), np.arange(span.high + 2)) - UNIFORM_SHARE / len(numbers)) / (
            1 - UNIFORM_SHARE
        )
        assert column.of_kind.value(column, float(round(masses @ numbers))) == date(2010, 6, 1)
        assert math.sqrt(masses @ numbers**2 - (masses @ numbers) ** 2) == pytest.approx(500, rel=1e-3)


class TestMixture:
    """No allowed value has density 0."""

    @pytest.mark.parametrize(
        "column",
        [
            real(mean=3, sd=0.01),
            real(0, 1e6, scale="log1p", histogram={"edges": [0, 10, 1e6], "shares": [1, 0]}),
            real(distribution={"name": "uniform", "loc": 3, "scale": 2}),
            integer(0, 99, scale="log1p", distribution={"name": "poisson", "mu": 2}),
            integer(0, 2**32, mean=5, sd=2),
            integer(0, 2**32, scale="log1p", mean=5, sd=2),
        ],
        ids=str,
    )
    def test_density_has_a_floor(self, column: Column) -> None:
        table = density_table(column)
        flat = density_table(Column(column.name, column.low, column.high, column.kind, column.scale))
        assert bool((table.masses() >= 0.999 * UNIFORM_SHARE * probabilities(flat, table.edges)).all())
        assert bool((table.left > 0).all() and (table.right > 0).all())
        assert table.masses().sum() == pytest.approx(1)

    @pytest.mark.parametrize(
        "column",
        [
            real(1e6, 1e6 + 20, quantiles={0.2: 1e6 + 1, 0.5: 1e6 + 1.0001, 0.9: 1e6 + 1.0002}),
            real(0, 1e6, scale="log1p", mean=30_000, sd=40_000),
            real(mean=3, sd=0.001),
            real(-1e6, 1e6, distribution={"name": "cauchy", "scale": 1000}),
        ],
        ids=str,
    )
    def test_edges_are_apart_in_the_columns_floats(self, column: Column) -> None:
        table = [torch.as_tensor(part, dtype=column.dtype) for part in density_table(column)]
        marginal = Marginal(*table)
        draws = marginal.from_uniforms(torch.linspace(0.001, 0.999, 999))
        assert bool(torch.isfinite(marginal.log_prob(draws)).all())


class TestAnything:
    """Whatever is stated at random is an error or a density that a Marginal takes."""

    @pytest.mark.parametrize("kind", ["real", "integer"])
    @pytest.mark.parametrize("scale", ["linear", "log1p"])
    def test_random_statements(self, kind: str, scale: str) -> None:
        rng = np.random.default_rng(11)
        whole, num_tables = kind == "integer", 0
        for _ in range(100):
            width = 10 ** rng.uniform(0 if whole else -3, 9)
            low = 0.0 if scale == "log1p" else float(rng.normal() * 10 ** rng.uniform(-3, 8))
            if whole:
                low, width = math.floor(low), math.ceil(width)
            count = rng.integers(1, 30)
            values = low + width * np.sort(rng.random(count) ** rng.choice([0.2, 1, 5, 40]))
            values = np.floor(values) if whole else values
            edges = np.unique(np.concatenate([[low, low + width], values])).tolist()
            levels, weights = np.sort(rng.random(count)), rng.dirichlet(np.full(len(edges) - 1, 0.3))
            ways: list[dict[str, Any]] = [
                {"mean": values[0]},
                {"mean": values[0], "sd": width * 10 ** rng.uniform(-5, -0.5)},
                {"quantiles": dict(zip(levels.tolist(), values.tolist(), strict=True))},
                {"histogram": {"edges": edges, "shares": weights.tolist()}},
                {"distribution": {"name": "gamma", "a": 10 ** rng.uniform(-2, 2), "loc": low, "scale": width / 10}},
                {
                    "distribution": {
                        "name": "t",
                        "df": 10 ** rng.uniform(-1, 2),
                        "loc": values[0],
                        "scale": width / 1000,
                    }
                },
            ]
            try:
                column = Column("x", low, low + width, kind, scale, **ways[rng.integers(len(ways))])
            except ValueError:
                continue
            num_tables += 1
            marginal = Marginal(*(torch.as_tensor(part, dtype=column.dtype) for part in density_table(column)), kind)
            values = marginal.from_uniforms(torch.linspace(0, 1, 101, dtype=torch.float64))
            assert bool(torch.isfinite(marginal.log_prob(values)).all()), column
        assert num_tables > 60
