"""Columns of all kinds for tests of constraints, rows of them, and true conditions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_mbde.density.predicates import evaluate
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
