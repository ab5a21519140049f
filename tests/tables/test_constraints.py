"""The language of constraints: examples, and random ones against Python."""

from __future__ import annotations

import datetime as dt
import operator
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from constraint_facts import (
    ALL,
    SEEN,
    SEX,
    STAGE,
    TRUE,
    Facts,
    row,
    truth,
)

from pyro_mbde import Column, Schema
from pyro_mbde.density.marginals import Marginal
from pyro_mbde.density.mixed_base import MixedBase
from pyro_mbde.density.predicates import evaluate, natural_values
from pyro_mbde.tables.constraint_text import MAX_LENGTH
from pyro_mbde.tables.constraints import compile_condition, compile_constraint


@pytest.mark.parametrize(("text", "cells"), TRUE, ids=[text for text, _ in TRUE])
def test_true_conditions(text: str, cells: dict[str, Any]) -> None:
    assert truth(text, row(**cells)) is True
    assert truth(f"not ({text})", row(**cells)) is False


FALSE: list[tuple[str, dict[str, Any]]] = [
    ("married_years <= age - 14", {"age": 30, "married_years": 17}),
    ("pregnant = no where sex = M", {"sex": "M", "pregnant": "yes"}),
    ("sex = F and age in [60, 80]", {"sex": "F", "age": 81}),
    ("sex = F and age in [60, 80]", {"sex": "M"}),
    ("discharged - admitted <= 365", {"admitted": "2020-02-28", "discharged": "2021-02-28"}),
    ("18 <= age <= 65", {"age": 17}),
    ("not pregnant = yes", {"pregnant": "yes"}),
    ("age is not missing", {}),
    ("2 - (3 - 4) = 2 - 3 - 4 + age - age", {"age": 3}),
]


@pytest.mark.parametrize(("text", "cells"), FALSE, ids=[text for text, _ in FALSE])
def test_false_conditions(text: str, cells: dict[str, Any]) -> None:
    assert truth(text, row(**cells)) is False


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("age > 3", {}),
        ("not age > 3", {}),
        ("age not in [2, 3]", {}),
        ("sex not in {F}", {}),
        ("sex = F and age in [60, 80]", {"sex": "F"}),
        ("pregnant = no where sex = M", {"sex": "M"}),
        ("pregnant = no where sex = M", {"pregnant": "yes"}),
        ("age - age = 0", {}),
        ("age / married_years > 1", {"age": 3, "married_years": 0}),
    ],
)
def test_neither_true_nor_false(text: str, cells: dict[str, Any]) -> None:
    """A constraint lets such a row pass, a condition leaves it out."""
    assert truth(text, row(**cells)) is None


def test_times_are_exact() -> None:
    """In days a minute is no float: in seconds it is one, whatever the date."""
    columns = [SEEN, Facts("left", "datetime", "2020-01-01", "2020-12-31 23:59", resolution="minute")]
    codes = torch.arange(0.0, 500_000.0, 7.0, dtype=torch.float64)
    values = torch.stack([codes, codes + 90], 1)
    for text in ("left - seen = 0.0625", "left = seen + 0.0625", "left - seen <= 90 / 1440", "seen - left >= -0.0625"):
        assert bool(evaluate(compile_condition(text, columns), values).all()), text


def test_a_column_and_a_level_of_one_name() -> None:
    columns = [SEX, Facts("F", "category", levels=("F", "M"))]
    codes = torch.tensor([[0.0, 1.0]])
    assert evaluate(compile_condition("sex = 'F' and `F` = 'M' and sex != `F`", columns), codes).item()
    with pytest.raises(ValueError, match="say what it means: .*Write 'F' in quotes for the level"):
        compile_condition("sex = F", columns)


def test_names_with_any_signs() -> None:
    columns = [Facts("a`b", "integer", 0, 5), Facts("in", "integer", 0, 5), Facts("2020", "integer", 0, 5)]
    text = "`a``b` < `in` and `2020` = 3"
    assert evaluate(compile_condition(text, columns), torch.tensor([[1.0, 2.0, 3.0]])).item()


def test_columns_of_a_schema_are_taken() -> None:
    columns = [Column("age", 0, 110, kind="integer"), Column("rent", 0, 5000, decimals=2, scale="log1p")]
    predicate = compile_condition("rent <= 10 * age", columns)
    codes = torch.tensor([[30.0, 300.004], [30.0, 300.006]]).log1p() * torch.tensor([0.0, 1.0])
    codes[:, 0] = 30
    assert evaluate(predicate, codes).tolist() == [True, False]


def test_a_month_reads_as_a_subtraction() -> None:
    column = Column("m", "2010-01", "2012-12", "date", resolution="month")
    with pytest.raises(ValueError, match="Write '2010-03' in quotes."):
        compile_condition("m = 2010-03", [column])
    assert evaluate(compile_condition("m = '2010-03'", [column]), torch.tensor([[2.0]])).item()


@pytest.mark.parametrize("scale", ["linear", "log1p"])
@pytest.mark.parametrize("decimals", [-3, -1, 0, 1, 2, 3, 7])
def test_constraints_are_checked_on_the_numbers_that_are_released(decimals: int, scale: str) -> None:
    column = Column("x", 0 if scale == "log1p" else -4e4, 4e4, decimals=decimals, scale=scale)
    modelled = torch.empty(3001, 1, dtype=torch.float64).uniform_(*column.modelled_range, generator=seeded_generator())
    for rows in (modelled, modelled.float()):
        released = Schema((column,)).to_frame(rows)["x"].to_numpy()
        checked = natural_values(rows[:, 0], scale, decimals, column.low, column.high).numpy()
        assert (released == checked).all()
        assert not np.signbit(released[released == 0]).any()


def seeded_generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_compiled_texts_are_plain_lists() -> None:
    def leaves(node: Any) -> set[type]:
        return set().union(*map(leaves, node)) if isinstance(node, list) else {type(node)}

    for text, _ in TRUE:
        assert leaves(compile_constraint(text, ALL)) <= {str, int, float}


def test_a_restricted_base_has_the_law_of_the_base_given_the_predicates() -> None:
    """Exact over all rows; proof: docs/proofs.md, *Restricted bases*."""
    one = torch.ones(1)
    age = Marginal(torch.tensor([0.0, 30.0]), one, one, "integer", missing_share=0.2)
    sex = Marginal(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.7, 0.3]), torch.tensor([0.7, 0.3]), "category")
    columns = [Facts("age", "integer", 0, 29), SEX]
    free = MixedBase([age, sex])
    points = free.enumerate_support()
    for compile_text, text in (
        (compile_constraint, "age >= 10 where sex = M"),
        (compile_condition, "age > 3 or sex = F"),
    ):
        predicate = compile_text(text, columns)
        base = MixedBase([age, sex], predicates=[predicate])
        inside = evaluate(predicate, points)
        wanted = torch.where(inside, free.log_prob(points).exp(), 0.0)
        assert base.acceptance_rate == pytest.approx(float(wanted.sum()), rel=1e-6)
        assert torch.equal(base.enumerate_support(), points[inside])
        draws = base.sample((100_000,))
        assert bool(evaluate(predicate, draws).all())
        counts = (draws.unsqueeze(1) == points).all(-1).sum(0).double()
        expected = wanted.double() / wanted.double().sum() * len(draws)
        statistic = float(((counts - expected)[inside].square() / expected[inside]).sum())
        num_points = int(inside.sum())
        assert statistic < num_points + 6 * (2 * num_points) ** 0.5  # chi-squared
    assert truth("age >= 10 where sex = M", row(sex="M")) is None  # so rows with a missing age are in the first base


def test_too_few_rows_are_counted_and_the_rarest_text_is_named() -> None:
    columns = (Column("a", 0, 10_000), Column("b", 0, 1))
    with pytest.raises(ValueError, match="at least 1 row in 1,000") as caught:
        Schema(columns, constraints=["b < 0.5", "a < 1"], condition="b < 0.9").base()
    counts = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) of 131,072 tried", str(caught.value))]
    assert len(counts) == 2 and 0 < counts[0] < counts[1] < 20
    assert "Alone, predicate 2 leaves the fewest" in str(caught.value)
    assert str(caught.value).endswith("Predicate 2 is 'a < 1'.")
    levels = [str(level) for level in range(2000)]
    with pytest.raises(ValueError, match=r"got a probability of 0\.0005\. Drop .* Predicate 1 is 'c = 7'\."):
        Schema((Column("c", kind="category", levels=levels),), condition="c = 7").base()


class TestRandomConditions:
    """Texts and the functions they stand for are built together, and compared on random rows."""

    SIGNS = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt}
    SIGNS[">="] = operator.ge
    OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}

    def number(self, rng: random.Random, depth: int) -> tuple[str, Callable[[dict[str, Any]], Any]]:
        kind = rng.randrange(6 if depth else 3)
        if kind < 2:
            name = rng.choice(["age", "married_years", "rent"])
            return name, lambda cells: cells[name]
        if kind == 2:
            value = rng.choice([0, 1, 2.5, 14, 100])
            return str(value), lambda cells: float(value)
        sign = rng.choice(list(self.OPERATIONS))
        (one, first), (other, second) = self.number(rng, depth - 1), self.number(rng, depth - 1)

        def calculate(cells: dict[str, Any]) -> Any:
            values = first(cells), second(cells)
            return None if None in values or (sign == "/" and values[1] == 0) else self.OPERATIONS[sign](*values)

        return f"({one} {sign} {other})", calculate

    def comparison(self, rng: random.Random) -> tuple[str, Callable[[dict[str, Any]], Any]]:
        kind = rng.randrange(5)
        if kind == 0:
            name = rng.choice(["age", "sex", "stage", "admitted"])
            return f"{name} is missing", lambda cells: cells[name] is None
        if kind == 1:
            sign, level = rng.choice(list(self.SIGNS)), rng.choice(list(STAGE.levels or ()))
            place = (STAGE.levels or ()).index

            def compare(cells: dict[str, Any]) -> Any:
                return None if cells["stage"] is None else self.SIGNS[sign](place(cells["stage"]), place(level))

            return f"stage {sign} {level}", compare
        if kind == 2:
            day, sign = dt.date(2020, 1, 1) + dt.timedelta(rng.randrange(1400)), rng.choice(list(self.SIGNS))

            def later(cells: dict[str, Any]) -> Any:
                return None if cells["admitted"] is None else self.SIGNS[sign](cells["admitted"], day.isoformat())

            return f"admitted {sign} {day}", later
        if kind == 3:
            levels = rng.sample(["F", "M"], rng.randrange(1, 3))
            return (
                f"sex in {{{', '.join(levels)}}}",
                lambda cells: None if cells["sex"] is None else cells["sex"] in levels,
            )
        sign, (one, first), (other, second) = rng.choice(list(self.SIGNS)), self.number(rng, 2), self.number(rng, 2)
        if not re.search("[a-z]", one + other):
            return self.comparison(rng)

        def hold(cells: dict[str, Any]) -> Any:
            values = first(cells), second(cells)
            return None if None in values else self.SIGNS[sign](*values)

        return f"{one} {sign} {other}", hold

    def condition(self, rng: random.Random, depth: int) -> tuple[str, Callable[[dict[str, Any]], Any]]:
        kind = rng.randrange(5) if depth else 4
        if kind == 4:
            return self.comparison(rng)
        one, first = self.condition(rng, depth - 1)
        if kind == 0:
            return f"not ({one})", lambda cells: None if first(cells) is None else not first(cells)
        other, second = self.condition(rng, depth - 1)

        def join(cells: dict[str, Any]) -> Any:
            results = [first(cells), second(cells)]
            if kind == 3:  # where
                results[1] = None if results[1] is None else not results[1]
            decisive = kind != 1
            if decisive in results:
                return decisive
            return None if None in results else not decisive

        return f"({one}) {('', 'and', 'or', 'where')[kind]} ({other})", join

    @pytest.mark.parametrize("seed", range(20))
    def test_against_python(self, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(10):
            text, wanted = self.condition(rng, 3)
            if len(text) > MAX_LENGTH or has_zero_divisor(text):
                continue
            cells = [
                {
                    "age": rng.choice([None, 0, 14, rng.randrange(111)]),
                    "married_years": rng.choice([None, 0, rng.randrange(91)]),
                    "rent": rng.choice([0.0, 2.5, rng.randrange(500_000) / 100]),
                    "sex": rng.choice([None, "F", "M"]),
                    "stage": rng.choice([None, *(STAGE.levels or ())]),
                    "admitted": rng.choice(
                        [None, (dt.date(2020, 1, 1) + dt.timedelta(rng.randrange(1400))).isoformat()]
                    ),
                }
                for _ in range(40)
            ]
            values = torch.cat([row(**one) for one in cells])
            surely = evaluate(compile_condition(text, ALL), values).tolist()
            perhaps = evaluate(compile_constraint(text, ALL), values).tolist()
            results = [wanted(one) for one in cells]
            assert surely == [result is True for result in results], text
            assert perhaps == [result is not False for result in results], text


def has_zero_divisor(text: str) -> bool:
    """Whether a text divides by a constant zero, which is an error."""
    try:
        compile_condition(text, ALL)
    except ValueError as error:
        return "must not divide by zero" in str(error)
    return False
