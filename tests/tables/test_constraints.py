"""The language of constraints: examples, random ones against Python, errors, and hostile texts."""

from __future__ import annotations

import datetime as dt
import operator
import random
import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_mbde import Column, Schema
from pyro_mbde.density.marginals import Marginal
from pyro_mbde.density.mixed_base import MixedBase
from pyro_mbde.density.predicates import evaluate, natural_values
from pyro_mbde.tables.constraint_text import MAX_LENGTH
from pyro_mbde.tables.constraints import compile_condition, compile_constraint


@dataclass(frozen=True)
class Facts:
    """A column of any kind, unchecked."""

    name: str
    kind: str = "real"
    low: Any = None
    high: Any = None
    scale: str = "linear"
    decimals: int | None = None
    levels: tuple[Any, ...] | None = None
    missing: Any = "level"
    resolution: str | None = None


AGE, MARRIED = Facts("age", "integer", 0, 110), Facts("married_years", "integer", 0, 90)
SEX, STAGE = Facts("sex", "category", levels=("F", "M")), Facts("stage", "ordered", levels=("I", "II", "III", "IV"))
WORST = Facts("worst", "ordered", levels=("I", "II", "III", "IV"))
PREGNANT = Facts("pregnant", "boolean")
ADMITTED = Facts("admitted", "date", dt.date(2020, 1, 1), dt.date(2023, 12, 31), resolution="day")
DISCHARGED = Facts("discharged", "date", "2020-01-01", "2024-12-31", resolution="day")
SEEN = Facts("seen", "datetime", dt.datetime(2020, 1, 1), dt.datetime(2020, 12, 31), resolution="minute")
BORN = Facts("born", "date", "1950-01-01", "2000-01-01", resolution="year")
MONTH = Facts("month", "date", "2020-01-01", "2024-12-01", resolution="month")
INCOME = Facts("income (EUR)", "real", 0.0, 1e6, "log1p", decimals=0)
RENT = Facts("rent", "real", 0.0, 5000.0, decimals=2, missing="drop")
GROUP = Facts("age_group", "ordered", levels=("0-17", "18-29", "30+", "not known"))
REGION = Facts("region", "category", levels=(1, 2, 10))
CODE = Facts("icd", "category", levels=("01", "1", "A 2"))
SIZE = Facts("größe", "real", 0.0, 3.0)
ALL = [AGE, MARRIED, SEX, STAGE, WORST, PREGNANT, ADMITTED, DISCHARGED, SEEN, BORN, MONTH]
ALL += [INCOME, RENT, GROUP, REGION, CODE, SIZE]


def code_of(column: Facts, value: Any) -> float:
    """The code of a value in the column's own units; of None, the code of a missing value."""
    if column.kind in ("date", "datetime"):
        unit = {"day": "D", "minute": "m", "year": "Y", "month": "M"}[str(column.resolution)]
        low, high = (np.datetime64(str(end)).astype(f"M8[{unit}]").astype(int) for end in (column.low, column.high))
        edges = (0.0, float(high - low + 1))
        code = value is not None and float(np.datetime64(value).astype(f"M8[{unit}]").astype(int) - low)
    elif column.kind in ("integer", "real"):
        modelled: Callable[[float], float] = np.log1p if column.scale == "log1p" else float
        edges = (float(modelled(column.low)), float(modelled(column.high + (column.kind == "integer"))))
        code = value is not None and float(modelled(value))
    else:
        levels = column.levels or ("no", "yes")
        edges, code = (0.0, float(len(levels))), value is not None and float(levels.index(value))
    return edges[0] - (edges[1] - edges[0]) if value is None else float(code)


def row(**cells: Any) -> Tensor:
    """One row; cells that are not given are missing. ``income`` stands for its column."""
    cells["income (EUR)"] = cells.pop("income", None)
    return torch.tensor([[code_of(column, cells.get(column.name)) for column in ALL]], dtype=torch.float64)


def truth(text: str, values: Tensor) -> bool | None:
    """Whether a text is surely true, surely false or neither."""
    surely = bool(evaluate(compile_condition(text, ALL), values))
    perhaps = bool(evaluate(compile_constraint(text, ALL), values))
    assert surely <= perhaps
    return surely if surely == perhaps else None


TRUE: list[tuple[str, dict[str, Any]]] = [
    ("married_years <= age - 14", {"age": 30, "married_years": 16}),
    ("pregnant = no where sex = M", {"sex": "M", "pregnant": "no"}),
    ("pregnant = no where sex = M", {"sex": "F", "pregnant": "yes"}),
    ("pregnant = no where sex = M", {"sex": "F"}),
    ("pregnant = no if sex = M", {"pregnant": "no"}),
    ("not pregnant where sex = M or age < 10", {"sex": "M", "pregnant": "no"}),
    ("sex = F and age in [60, 80]", {"sex": "F", "age": 80}),
    ("discharged - admitted <= 365", {"admitted": "2020-02-28", "discharged": "2021-02-27"}),
    ("`income (EUR)` < 2 * rent", {"income": 1999.0, "rent": 1000.0}),
    ("18 <= age <= 65", {"age": 65}),
    ("65 >= age > 17 != married_years", {"age": 18, "married_years": 3}),
    ("age == 18", {"age": 18}),
    ("age ≠ 18 and age ≥ 3 and age ≤ 4", {"age": 4}),
    ("age − 4 = 0", {"age": 4}),
    ("-age * -2 - +1 = (age + 1) * 4 / 2 - 3", {"age": 7}),
    ("2 - 3 - 4 < -age / 2 / 2", {"age": 19}),
    ("age = .5e1 or age = 5.", {"age": 5}),
    ("sex in {F, 'M'}", {"sex": "M"}),
    ('sex not in {"F"}', {"sex": "M"}),
    ("stage in [II, III]", {"stage": "III"}),
    ("stage not in [II, III]", {"stage": "IV"}),
    ("I < stage <= worst", {"stage": "II", "worst": "II"}),
    ("age in [married_years + 14, 100]", {"age": 30, "married_years": 16}),
    ("AGE is missing Or sex IS NOT Missing".replace("AGE", "age"), {"sex": "F"}),
    ("pregnant", {"pregnant": "yes"}),
    ("pregnant = TRUE and pregnant = 1 and pregnant != no", {"pregnant": "yes"}),
    ("age_group >= '18-29'", {"age_group": "30+"}),
    ("age_group = 'not known'", {"age_group": "not known"}),
    ("region in {1, '10'}", {"region": 10}),
    ("region = 10", {"region": 10}),
    ("icd = 01", {"icd": "01"}),
    ("icd = '1'", {"icd": "1"}),
    ("icd = 'A 2'", {"icd": "A 2"}),
    ("admitted >= 2020-06-01", {"admitted": "2020-06-01"}),
    ("admitted = '2020-06-01'", {"admitted": "2020-06-01"}),
    ("admitted in [2020-06-01, 2020-06-30]", {"admitted": "2020-06-30"}),
    ("admitted in {2020-06-01, 2020-06-03}", {"admitted": "2020-06-03"}),
    ("'2020-06-01' - 1 < admitted + 1 = 2020-06-02", {"admitted": "2020-06-01"}),
    ("admitted - 2020-01-31 = -30", {"admitted": "2020-01-01"}),
    ("seen - admitted = 0.5", {"admitted": "2020-03-29", "seen": "2020-03-29T12:00"}),
    ("seen < '2020-03-29 12:01' and seen >= 2020-03-29T12:00:00", {"seen": "2020-03-29T12:00"}),
    ("seen - 10 / 24 / 60 < '2020-03-29 11:51'", {"seen": "2020-03-29T12:00"}),
    ("born >= 1960 and born = '1960' and born < 1960-01-02", {"born": "1960-01-01"}),
    ("admitted - born > 365 * 19", {"admitted": "2020-01-01", "born": "2000-01-01"}),
    ("month = '2020-03' and month - 2020-02-01 = 29", {"month": "2020-03-01"}),
    ("größe < 1.5", {"größe": 1.4}),
    ("gro\u0308ße < 1.5", {"größe": 1.4}),
    ("not (age > 3 and not age > 4)", {"age": 5}),
    ("age\n > 3", {"age": 5}),
    ("(age > 3 where sex = M) and (age > 4 where sex = F)", {"age": 4, "sex": "M"}),
]


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


#: What is wrong: the text, the piece that is marked, what must hold, and what to do.
WRONG: list[tuple[str, str, str, str]] = [
    ("", "", "end with a condition", "Something is missing here."),
    ("age", "age", "have a condition here", "Compare it with something."),
    ("age >", "", "end with a condition", "Something is missing here."),
    ("maried_years > 3", "maried_years", "name columns", "Did you mean 'married_years'?"),
    ("aeg > 3", "aeg", "name columns", "Did you mean 'age'?"),
    ("`Age` > 3", "`Age`", "name columns", "Did you mean 'age'?"),
    ("\u0430ge > 3", "\u0430ge", "name columns", r"There is 'age', which looks like '\u0430ge' and differs from it."),
    ("weight + 1 > 3", "weight", "name columns", "The columns are 'age', 'married_years', "),
    ("weight is missing", "weight", "name columns", "'discharged' and 9 more."),
    ("sex = f", "f", "name a level of 'sex'", "Did you mean 'F'?"),
    ("sex = male", "male", "name a level of 'sex'", "Its levels are 'F', 'M'."),
    ("pregnant = maybe", "maybe", "name a level of 'pregnant'", "Its levels are 'no', 'yes'."),
    ("region = 4", "4", "name a level of 'region'", "Its levels are '1', '2', '10'."),
    ("icd = 1.0", "1.0", "name a level of 'icd'", "Its levels are '01', '1', 'A 2'."),
    ("sex = missing", "missing", "name a level of 'sex'", "Write sex is missing."),
    ("sex < M", "sex < M", "compare what has an order", "The levels of 'sex' have no order. Use =, != or in {...}"),
    ("sex in [F, M]", "sex in [F", "compare what has an order", "give it the kind ordered."),
    ("sex = F or M", "M", "have a condition here", "It is a level of 'sex': write sex = M, or list levels after in."),
    ("sex = 3", "3", "name a level of 'sex'", "Its levels are 'F', 'M'."),
    ("age = sex", "age = sex", "compare like with like, not 'age' (a number) with 'sex' (levels)", "A column's kind"),
    ("stage = age + 1", "stage = age + 1", "compare like with like", "A column's kind is stated in the schema."),
    ("sex = stage", "sex = stage", "compare like with like", "if they have the same levels, in the same order."),
    ("age > '18'", "age > '18'", "compare like with like", "Write numbers without quotes."),
    ("'age' > 18", "'age' > 18", "compare like with like", "A name in quotes is a text: write it without quotes"),
    ("age + '3' > 18", "'3'", "calculate with numbers here", "Write the number without quotes."),
    ("'a' = 'b'", "'a' = 'b'", "compare something with a column", "A name in quotes is a text"),
    ("1 < 2", "1 < 2", "compare something with a column", "Both sides are fixed values."),
    ("admitted > 5", "admitted > 5", "compare like with like", "Write a date as 2020-01-31; the difference of two"),
    ("admitted > 2020", "admitted > 2020", "compare like with like", "Write a date as 2020-01-31"),
    ("admitted + discharged > 5", "admitted + discharged", "add days to a date", "The difference of two dates is in"),
    ("5 - admitted > 5", "5 - admitted", "subtract days from a date", "Write the date first."),
    ("-admitted > 5", "admitted", "calculate with numbers here", "Dates can be subtracted from one another"),
    ("2 * admitted > 5", "admitted", "calculate with numbers here", "Dates can be subtracted from one another"),
    ("admitted > 2020-02-30", "2020-02-30", "have dates of the calendar", "Day is out of range for month"),
    ("admitted > '2020-02'", "'2020-02'", "have a date here", "Write it as 2020-01-31, or with a time"),
    ("admitted > 'soon'", "'soon'", "have a date here", "Write it as 2020-01-31, or with a time"),
    ("admitted > 2020-01-31 12:00", ":", "hold names, numbers and signs", "Put a date with a time in quotes"),
    ("age_group = 18-29", "18-29", "have such a level in quotes", "Write '18-29'."),
    ("age_group = not known", "not known", "have such a level in quotes", "Write 'not known'."),
    ("sex = not known", "not known", "have a column or a value here", "Levels of several words go in 'quotes'."),
    ("age_group = 30 +", "", "end with a condition", "Something is missing here."),
    ("sex + 1 > 3", "sex", "calculate with numbers and dates alone", "'sex' has levels."),
    ("age in [80, 60]", "80, 60", "have the lower end of a range first", "Swap the ends."),
    ("stage in [III, II]", "III, II", "have the lower end of a range first", "Swap the ends."),
    ("age in [60]", "[60]", "have two ends in a range", "For a set of values write braces: {A, B}."),
    ("age in [1, 2, 3]", "[1, 2, 3]", "have two ends in a range", "For a set of values write braces: {A, B}."),
    ("age in (60, 80)", "(", "have a range or a set after in", "Write in [low, high] or in {A, B}."),
    ("age in {rent}", "rent", "have values in a set", "Compare columns by =, and join comparisons by or."),
    ("age in {}", "}", "have a column or a value here", ""),
    ("age = [1, 2]", "[", "have a column or a value here", "Lists only follow in, as in: age in [60, 80]."),
    ("rent is missing", "rent", "ask for missing values only where", 'Give the column \'rent\' missing = "level"'),
    ("age + 1 is missing", "age + 1", "ask of a column whether it is missing", "Name one column before is."),
    ("age is 3", "3", "have missing or not missing after is", "Write = to compare."),
    ("age not 3", "3", "have in after not here", "Write not in"),
    ("age =< 3", "=<", "hold signs of the language", "Write <=."),
    ("age => 3", "=>", "hold signs of the language", "Write >=."),
    ("age <> 3", "<>", "hold signs of the language", "Write !=."),
    ("age > 3 & rent > 3", "&", "hold names, numbers and signs", "Write and."),
    ("age > 3 || rent > 3", "|", "hold names, numbers and signs", "Write or."),
    ("!pregnant", "!", "hold names, numbers and signs", "Write not"),
    ("age ** 2 > 3", "*", "have a column or a value here", "There are no powers: multiply."),
    ("sex = ‘F’", "‘", "hold names, numbers and signs", "Write straight quotation marks: 'text'."),
    ("sex = 'F", "'", "hold names, numbers and signs", "A quotation mark is not closed."),
    ("`age > 3", "`", "hold names, numbers and signs", "A backtick is not closed."),
    ("(age > 3", "(", "close ( by )", "Something is missing."),
    ("age in [3, 4", "[", "close [ by ]", "Something is missing."),
    ("age > 3)", ")", "end or go on after a condition", "Join conditions by and, or, where."),
    ("age > 1,000", ",", "end or go on after a condition", "Write numbers without commas between thousands"),
    ("income (EUR) > 3", "(", "end or go on after a condition", "Columns of several words go in `backticks`"),
    ("age > 3 rent > 3", "rent", "end or go on after a condition", "conditions are joined by and, or."),
    ("2nd > 3", "2n", "have names that start with a letter", "Columns with other names go in `backticks`"),
    ("if > 3", "if", "have a column or a value here", "if is a word of the language"),
    ("age > 1 where rent > 1 where rent > 2", "where", "have one where", "Join conditions by and"),
    ("age > 1e999", "1e999", "have numbers that a float holds", ""),
    ("age > 1e200 * 1e200", "1e200 * 1e200", "have numbers that a float holds", ""),
    ("age / (1 - 1) > 3", "age / (1 - 1", "not divide by zero", ""),
    ("(age > 3) + 1 > 3", "age > 3", "have a column or a value here", "A condition is not a value."),
    ("not age", "age", "have a condition here", "Compare it with something."),
    ("__import__('os').system('ls')", ".", "hold names, numbers and signs", "Columns with other names"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "piece", "constraint", "remedy"), WRONG, ids=[one[0] or "empty" for one in WRONG])
def test_errors_show_the_place_and_the_remedy(text: str, piece: str, constraint: str, remedy: str) -> None:
    with pytest.raises(ValueError) as caught:
        compile_constraint(text, ALL)
    message, line, marks = str(caught.value).split("\n")
    assert message.startswith(f"constraint must {constraint}")
    assert f", got constraint={text!r}." in message
    assert remedy in message
    assert line == f"    {text}"
    start = marks.index("^") - 4
    assert text[start : start + marks.count("^")] == piece
    with pytest.raises(ValueError, match="condition must .*, got condition="):
        compile_condition(text, ALL)


def test_a_long_text_is_shown_in_part() -> None:
    text = " and ".join(["age > 3"] * 30 + ["größe > wide"] + ["age > 3"] * 30)
    with pytest.raises(ValueError, match=r"\.\.\.'\. There is no column 'wide'") as caught:
        compile_constraint(text, ALL)
    _, line, marks = str(caught.value).split("\n")
    assert len(line) <= 104
    assert line[marks.index("^") : marks.rindex("^") + 1] == "wide"


def test_marks_stand_below_wide_signs() -> None:
    with pytest.raises(ValueError) as caught:
        compile_constraint("`年齢` > 3 and x > 3", [Facts("年齢", "integer", 0, 110)])
    marks = str(caught.value).split("\n")[2]
    assert marks.index("^") == 4 + 2 + 4 + len(" > 3 and ")


def test_a_text_is_a_string() -> None:
    with pytest.raises(TypeError, match="constraint must be a string, got constraint=3"):
        compile_constraint(3, ALL)  # type: ignore[arg-type]


def test_length_and_nesting_are_limited() -> None:
    long = " or ".join(["age > 3"] * 180)
    compile_constraint(long, ALL)
    with pytest.raises(ValueError, match="constraint must have at most 2,000 characters, .*several constraints"):
        compile_constraint(f"{long}{' ' * (MAX_LENGTH + 1 - len(long))}", ALL)
    compile_constraint("(" * 90 + "age > 3" + ")" * 90, ALL)
    compile_constraint(" + ".join(["age"] * 300) + " > 3", ALL)
    deep = ["(" * 900 + "age > 3" + ")" * 900, "not " * 400 + "age > 3", "-" * 1500 + "age > 3"]
    deep += ["age" + " / age" * 200 + " > 3", "age" + " - (age" * 150 + ")" * 150 + " > 3"]
    for text in deep:
        with pytest.raises(ValueError, match="nested in at most 100 levels, .*State it as several constraints"):
            compile_constraint(text, ALL)
    for text in (f"{nested(24)} > 3", "age > 3 where (" * 45 + "age > 3" + ")" * 45):  # the deepest lists
        evaluate(compile_constraint(text, ALL), row(age=3))


def nested(levels: int) -> str:
    """A text whose lists are several levels deep for each of its parentheses."""
    return "age" if levels == 0 else f"-(3 - ({nested(levels - 1)}) * 2)"


def test_any_text_compiles_or_is_refused() -> None:
    """By a ValueError of the one form; what compiles can be evaluated, and is not too deep."""
    words = [*(column.name for column in ALL), "F", "II", "and", "or", "not", "in", "is", "missing", "where", "if", "<"]
    words += "<= = != ( ) [ ] { } , + - * / 3 2020-01-01 'x' ` '".split()
    rng, compiled = random.Random(1), 0
    values = torch.cat([row(), row(age=3, sex="F", stage="II", admitted="2020-01-01")])
    for trial in range(4000):
        if trial % 4:
            pieces = rng.choice(TRUE)[0].split(" ")
            for _ in range(rng.randrange(1, 3)):
                pieces[rng.randrange(len(pieces))] = rng.choice(words)
            text = " ".join(pieces)
        else:
            text = "".join(rng.choices(string.printable + "äß‘年\u0301", k=rng.randrange(1, 30)))
        try:
            predicate = compile_constraint(text, ALL)
        except ValueError as error:
            assert re.match(r"constraint must .*, got constraint=", str(error)), text
            continue
        compiled += 1
        assert evaluate(predicate, values).shape == (2,)
    assert compiled > 100
