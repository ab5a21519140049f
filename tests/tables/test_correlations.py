"""Public correlations: their checks and their matrix."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pyro_mbde import Column, Schema
from pyro_mbde.density.copula import MIN_EIGENVALUE
from pyro_mbde.tables.correlations import Correlation, correlation_matrix, read_correlations

AGE, INCOME = Column("age", 0, 110), Column("income", 0, 1e6, scale="log1p")


def test_pairs() -> None:
    names = ["a", "b", "c"]
    stated = read_correlations([{"columns": ["c", "a"], "value": -0.5}], names)
    assert stated == (Correlation(("c", "a"), -0.5),) == read_correlations(stated, names)
    matrix = correlation_matrix(names, stated)
    assert matrix.tolist() == [[1, 0, -0.5], [0, 1, 0], [-0.5, 0, 1]]
    assert matrix.dtype == torch.float64
    assert correlation_matrix(["a"], []).tolist() == [[1]]


def test_an_impossible_schema_says_by_what_it_becomes_possible() -> None:
    pairs = [("a", "b", 0.9), ("b", "c", 0.9), ("a", "c", -0.9)]
    columns = tuple(Column(name, 0, 1) for name in "abc")
    with pytest.raises(ValueError, match="multiply all of them by 0.555 or less"):
        Schema(columns, tuple(Correlation((one, other), value) for one, other, value in pairs))
    scaled = tuple(Correlation((one, other), 0.555 * value) for one, other, value in pairs)
    Schema(columns, scaled).base()


@pytest.mark.parametrize("distance", [0.5, 0.9, 1.1, 2])
def test_what_a_schema_accepts_has_a_base(distance: float) -> None:
    """A schema and its copula have one limit, of numbers rounded in one way."""
    stated = [{"columns": ["age", "income"], "value": 1 - distance * MIN_EIGENVALUE}]
    if distance > 1:
        Schema((AGE, INCOME), stated).base()  # type: ignore[arg-type]
        return
    with pytest.raises(ValueError, match="must be possible together"):
        Schema((AGE, INCOME), stated)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"columns": ["age", "incme"], "value": 0.1}], "Did you mean 'income'"),
        ([{"columns": ["age", "x"], "value": 0.1}], "They are 'age', 'income'"),
        ([{"columns": ["age", "age"], "value": 0.1}], "two different columns"),
        ([{"columns": ["age", "income"], "value": 1}], r"be in \(-1, 1\)"),
        ([{"columns": ["age", "income"], "value": math.nan}], r"be in \(-1, 1\)"),
        ([{"columns": ["age", "income"], "value": 0.1}, {"columns": ["income", "age"], "value": 0.1}], "pair once"),
        ([{"columns": ["age", "income"]}], "must have the key 'value', which is not there. For example columns = "),
        ([{"columns": ["age", "income"], "vlaue": 0.1}], "must not have the key 'vlaue'. Did you mean 'value'"),
    ],
)
def test_mistakes(entries: list[dict[str, Any]], message: str) -> None:
    for read in (lambda: read_correlations(entries, ["age", "income"]), lambda: Schema((AGE, INCOME), tuple(entries))):
        with pytest.raises(ValueError, match=message):
            read()


@pytest.mark.parametrize("given", [[{"columns": ["age"], "value": 0.1}], [["age"]], [("ab", 0.1)], [3], "age", {}])
def test_forms(given: Any) -> None:
    with pytest.raises(TypeError, match="correlations must"):
        read_correlations(given, ["age", "income"])
