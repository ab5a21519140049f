"""Laws of SciPy that a column states, against SciPy itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from column_laws import (
    below,
    integer,
    moments,
    natural,
    on_scale,
    pmf,
    real,
    unmixed,
)
from scipy import stats

CONTINUOUS = [
    {"name": "norm", "loc": 3, "scale": 2},
    {"name": "gamma", "a": 2, "scale": 1.5},
    {"name": "gamma", "a": 0.2},
    {"name": "beta", "a": 0.5, "b": 0.5, "scale": 10},
    {"name": "lognorm", "s": 2.5},
    {"name": "uniform", "loc": 3, "scale": 2},
    {"name": "cauchy"},
    {"name": "norm", "loc": 4, "scale": 0.002},
    {"name": "triang", "c": 0.3, "scale": 8},
]
DISCRETE = [
    {"name": "poisson", "mu": 3},
    {"name": "nbinom", "n": 2, "p": 0.3},
    {"name": "binom", "n": 10, "p": 0.9},
    {"name": "geom", "p": 0.4},
]


def law_of(distribution: dict[str, Any]) -> Any:
    return getattr(stats, distribution["name"])(**{key: one for key, one in distribution.items() if key != "name"})


class TestDistributions:
    @pytest.mark.parametrize("scale", ["linear", "log1p"])
    @pytest.mark.parametrize("distribution", CONTINUOUS, ids=str)
    def test_of_real_numbers(self, distribution: dict[str, Any], scale: str) -> None:
        law, points = law_of(distribution), np.linspace(0, 10, 1001)
        inside = law.cdf(10) - law.cdf(0)
        table = unmixed(real(scale=scale, distribution=distribution))
        assert below(table, on_scale(points, scale)) == pytest.approx((law.cdf(points) - law.cdf(0)) / inside, abs=2e-4)
        assert below(table, table.edges) == pytest.approx(
            (law.cdf(natural(table.edges, scale)) - law.cdf(0)) / inside, abs=1e-6
        )

    @pytest.mark.parametrize("distribution", CONTINUOUS, ids=str)
    def test_continuous_laws_of_whole_numbers(self, distribution: dict[str, Any]) -> None:
        law, numbers = law_of(distribution), np.arange(11)
        exact = law.cdf(numbers + 0.5) - law.cdf(numbers - 0.5)
        assert pmf(integer(distribution=distribution)) == pytest.approx(exact / exact.sum(), abs=1e-9)

    @pytest.mark.parametrize("high", [10, 10**6])
    @pytest.mark.parametrize("distribution", DISCRETE, ids=str)
    def test_discrete_laws(self, distribution: dict[str, Any], high: int) -> None:
        exact = law_of(distribution).pmf(np.arange(11))
        found = pmf(integer(0, high, distribution=distribution))[:11]
        assert found == pytest.approx(exact / law_of(distribution).cdf(high), abs=1e-9)

    def test_a_wide_law_of_many_whole_numbers(self) -> None:
        column = integer(0, 10**6, distribution={"name": "nbinom", "n": 3, "p": 1e-4})
        assert moments(column) == pytest.approx((29_997, 17_320), rel=1e-3)

    @pytest.mark.parametrize(
        ("distribution", "message"),
        [
            ({"name": "gama", "a": 2}, "Did you mean 'gamma'"),
            ({"name": "no such law"}, "Common ones are norm"),
            ({"name": "gamma", "b": 2}, r"have parameters of gamma: a, loc, scale, got distribution='b'"),
            ({"name": "norm", "mean": 2}, "Did you mean 'loc'"),
            ({"name": "norm", "scal": 2}, "Did you mean 'scale'"),
            ({"name": "gamma"}, "the parameter a, which gamma needs"),
            ({"name": "gamma", "a": -2}, "parameters that gamma allows"),
            ({"name": "norm", "scale": 0}, "parameters that norm allows"),
            ({"name": "norm", "loc": 200}, "at least 1e-06 of its mass between low and high; only 0 of it is there"),
            ({"name": "poisson", "mu": 2}, "a law of whole numbers: the column needs the kind integer"),
        ],
    )
    def test_impossible_ones(self, distribution: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            real(distribution=distribution)

    def test_types(self) -> None:
        with pytest.raises(TypeError, match="distribution must be a table"):
            real(distribution="norm")
        with pytest.raises(TypeError, match="distribution name must be a string"):
            real(distribution={"loc": 2})
