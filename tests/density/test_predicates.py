"""Predicates: three-valued logic, arithmetic, what a release shows, and lists that nobody compiled."""

from __future__ import annotations

import io
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_mbde.density.predicates import MAX_DEPTH, evaluate, natural_values

X, Y = ["code", 0, -0.5], ["code", 1, -0.5]
ONE, ZERO = ["number", 1.0], ["number", 0.0]
#: Conditions that are true, false and neither for the code 1, the code 0 and a missing one.
A, B = ["=", X, ONE], ["=", Y, ONE]
MISSING = -1.0


def rows(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).reshape(-1, 1)


def truth(condition: list[Any], values: Tensor) -> list[bool | None]:
    """Python's True, False and None, from the two ways to accept a row."""
    surely, perhaps = evaluate(["true", condition], values), evaluate(["not_false", condition], values)
    assert not bool((surely & ~perhaps).any())
    pairs = zip(surely.tolist(), perhaps.tolist(), strict=True)
    return [True if sure else (None if may else False) for sure, may in pairs]


def test_three_valued_tables() -> None:
    """Kleene's strong logic, against Python's None."""
    cells = {1.0: True, 0.0: False, MISSING: None}
    pairs = list(itertools.product(cells, repeat=2))
    values = torch.tensor(pairs)
    wanted = [(cells[a], cells[b]) for a, b in pairs]
    assert truth(A, values) == [a for a, _ in wanted]
    assert truth(["not", A], values) == [None if a is None else not a for a, _ in wanted]
    conjunctions = [False if False in both else (None if None in both else True) for both in wanted]
    assert truth(["and", A, B], values) == conjunctions
    disjunctions = [True if True in both else (None if None in both else False) for both in wanted]
    assert truth(["or", A, B], values) == disjunctions
    assert truth(["and", A], values) == truth(["or", A], values) == truth(A, values)
    assert truth(["missing", X], values) == [a is None for a, _ in wanted]


@pytest.mark.parametrize("sign", ["<", "<=", ">", ">=", "=", "!="])
def test_comparisons(sign: str) -> None:
    values = torch.tensor(list(itertools.product([0.0, 1.0, 2.0, MISSING], repeat=2)), dtype=torch.float64)
    python = {"=": "==", "!=": "!="}.get(sign, sign)
    wanted = [None if MISSING in (a, b) else bool(eval(f"{a} {python} {b}")) for a, b in values.tolist()]
    assert truth([sign, X, Y], values) == wanted


def test_sets() -> None:
    values = rows(0, 1, 2, MISSING)
    assert truth(["in", X, [0.0, 2]], values) == [True, False, True, None]
    assert truth(["not", ["in", X, [0.0, 2.0]]], values) == [False, True, False, None]
    assert truth(["in", X, []], values) == [False, False, False, None]


def test_arithmetic() -> None:
    values = torch.tensor([[3.0, 2.0], [3.0, MISSING], [3.0, 0.0]], dtype=torch.float64)
    for node, result in ((["+", X, Y, ["number", 5]], 10), (["*", X, Y], 6), (["/", X, Y], 1.5), (["negate", X], -3)):
        assert truth(["=", node, ["number", float(result)]], values)[0] is True
    assert truth([">", ["+", X, Y], ZERO], values) == [True, None, True]


def test_what_is_not_finite_has_no_value() -> None:
    """A quotient by zero or an overflow makes a comparison neither true nor false."""
    values = torch.tensor([[3.0, 0.0], [0.0, 0.0], [1e300, 1e-300]], dtype=torch.float64)
    for sign in ("<", ">=", "!="):
        assert truth([sign, ["/", X, Y], ONE], values) == [None, None, None]
    assert truth(["<", ["*", X, ["number", 1e300]], ONE], values) == [False, True, None]
    assert truth(["<", ["number", math.inf], X], values) == [None, None, None]
    assert truth(["<", X, ONE], rows(math.nan)) == [None]


def test_a_real_column_is_compared_as_it_is_released() -> None:
    """ln(1 + 18.04) is released as 18.0, so it is at most 18."""
    leaf = ["real", 0, -2.0, "log1p", 1, 0.0, 40.0]
    codes = torch.tensor([18.04, 18.06, 41.0, 0.0]).log1p().reshape(-1, 1)
    assert truth(["<=", leaf, ["number", 18.0]], codes) == [True, False, False, True]
    assert truth(["=", leaf, ["number", 40.0]], codes) == [False, False, True, False]
    exact = ["real", 0, -2.0, "linear", "all", 0.0, 40.0]
    assert truth(["=", exact, ["number", 0.3]], rows(0.3, 0.3 + 1e-9, -3)) == [True, False, None]


def test_natural_values() -> None:
    codes = torch.tensor([-0.04, 0.25, 0.35, 2.0, 1e9])
    assert natural_values(codes, "linear", 1, -1.0, 1.5).tolist() == [0.0, 0.2, 0.3, 1.5, 1.5]  # 0.35 in float32
    assert str(natural_values(codes, "linear", 1, -1.0, 1.5)[0].item()) == "0.0"
    assert natural_values(codes * 100, "linear", -1, 0.0, 100.0).tolist() == [0.0, 20.0, 40.0, 100.0, 100.0]
    shown = natural_values(torch.tensor([2.0]), "log1p", None, 0.0, 10.0)
    assert shown.dtype == torch.float64
    assert shown.item() == pytest.approx(math.e**2 - 1, rel=1e-15)


@pytest.mark.parametrize("decimals", [-2, 0, 1, 2, 5])
def test_rounded_values_are_the_decimals_that_they_print_as(decimals: int) -> None:
    """So a comparison with 0.3 does what it says."""
    codes = torch.rand(20_000, dtype=torch.float64) * 1000
    natural = natural_values(codes, "linear", decimals, 0.0, 1000.0)
    assert natural.tolist() == [round(value, decimals) for value in natural.tolist()]
    assert float((natural - codes).abs().max()) <= 0.5 * 10**-decimals * (1 + 1e-9)


def test_values_do_not_depend_on_where_a_row_stands() -> None:
    """A row is checked among proposals and released among others."""
    codes = torch.rand(1003, 3, dtype=torch.float64) * 12
    together = natural_values(codes[:, 1], "log1p", None, 0.0, 1e6)
    alone = torch.stack([natural_values(code, "log1p", None, 0.0, 1e6) for code in codes[:, 1]])
    assert torch.equal(together, alone)
    assert torch.equal(together[500:517], natural_values(codes[500:517, 1].contiguous(), "log1p", None, 0.0, 1e6))


def test_dates() -> None:
    line = ["affine", 0, -1.0, 86400.0, 60.0]
    assert truth(["=", line, ["number", 86520.0]], rows(0, 1, 2, -3)) == [False, False, True, None]
    months = ["lookup", 0, -1.0, [0.0, 31.0, 59.0]]
    assert truth([">=", months, ["number", 31.0]], rows(0, 1, 2, -3)) == [False, True, True, None]


def test_shapes_and_types() -> None:
    predicate = ["true", [">", X, ZERO]]
    assert evaluate(predicate, torch.rand(2, 3, 4)).shape == (2, 3)
    assert evaluate(predicate, torch.rand(4)).shape == ()
    assert evaluate(["true", ["<", ZERO, ONE]], torch.rand(5, 2)).tolist() == [True] * 5
    assert evaluate(predicate, torch.zeros(0, 2)).shape == (0,)
    assert evaluate(predicate, torch.tensor([[1], [0]])).tolist() == [True, False]
    assert torch.vmap(lambda row: evaluate(predicate, row))(torch.rand(6, 2)).shape == (6,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_missing_codes_are_found_in_any_dtype(dtype: torch.dtype) -> None:
    """The code is as far below the range as the range is wide; the limit is half-way."""
    low, high = math.log1p(3.3), math.log1p(17.7)
    leaf = ["real", 0, low - (high - low) / 2, "log1p", "all", 3.3, 17.7]
    codes = torch.tensor([[low - (high - low)], [low], [high]], dtype=torch.float64).to(dtype)
    assert evaluate(["true", ["missing", leaf]], codes).tolist() == [True, False, False]


def test_predicates_survive_a_file() -> None:
    predicate = ["not_false", ["or", ["in", X, [0.0, 2.0]], [">", ["real", 1, -1.0, "linear", "all", 0.0, 1.0], ONE]]]
    buffer = io.BytesIO()
    torch.save(predicate, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True) == predicate


HOSTILE: list[Any] = [
    None,
    [],
    "true",
    ["true"],
    ["perhaps", A],
    ["true", A, B],
    A,
    ["true", ["exec", "print(1)"]],
    ["true", ["and"]],
    ["true", ["or"]],
    ["true", ["not", A, B]],
    ["true", ["<", X]],
    ["true", ["~", X, ONE]],
    ["true", ["in", X, ["1"]]],
    ["true", ["in", X, 1.0]],
    ["true", ["<", ["number", "1"], X]],
    ["true", ["<", ["code", 7, 0.0], ONE]],
    ["true", ["<", ["code", -1, 0.0], ONE]],
    ["true", ["<", ["code", 0.0, 0.0], ONE]],
    ["true", ["<", ["code", 0, "low"], ONE]],
    ["true", ["<", ["lookup", 0, 0.0, []], ONE]],
    ["true", ["<", ["lookup", 0, 0.0, ["a"]], ONE]],
    ["true", ["<", ["affine", 0, 0.0, 0.0], ONE]],
    ["true", ["<", ["real", 0, 0.0, "sqrt", 1, 0.0, 1.0], ONE]],
    ["true", ["<", ["real", 0, 0.0, "linear", None, 0.0, 1.0], ONE]],
    ["true", ["<", ["real", 0, 0.0, "linear", 1, "0", 1.0], ONE]],
    ["true", ["<", A, ONE]],
    ["true", ["and", X, A]],
    ["true", ["missing", A]],
]


@pytest.mark.parametrize("predicate", HOSTILE, ids=repr)
def test_what_cannot_be_evaluated_is_refused(predicate: Any) -> None:
    """Before any row is seen, so that a file can be checked when it is read."""
    with pytest.raises(ValueError, match="predicate must hold what can be evaluated, got .*The file may be damaged"):
        evaluate(predicate, torch.zeros(0, 2))


def test_nesting_is_limited() -> None:
    """A list that is far too deep is refused as well, not met by Python's own limit."""
    for wrap, inner in ((["not"], A), (["negate"], X)):
        node = inner
        for _ in range(MAX_DEPTH - 3):
            node = [*wrap, node]
        allowed = ["true", node if inner is A else ["<", node, ONE]]
        evaluate(allowed, torch.zeros(1, 2))
        for extra in (1, 10_000):
            deep = node
            for _ in range(extra):
                deep = [*wrap, deep]
            with pytest.raises(ValueError, match="nested in more than 200 levels"):
                evaluate(["true", deep if inner is A else ["<", deep, ONE]], torch.zeros(1, 2))
