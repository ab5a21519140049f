"""Rows outside of public predicates: leaving them out keeps the guarantee.

Attack on docs/proofs.md, *Restricted bases*, second part: two tables of which one keeps all of its rows, one keeps
none, and one keeps what lies in a corner.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from audits import scale_audit
from quick_fits import QUICK

from pyro_mbde import Column, DensityRatio, MollifiedExpFamily, Schema, audit

SCHEMA = Schema(
    (
        Column("age", 0, 110, "integer"),
        Column("years", 0, 90, "integer"),
        Column("sex", kind="category", levels=["F", "M"]),
    ),
    constraints=("years <= age - 14",),
    condition="sex = F and age >= 40",
)
BASE = SCHEMA.base()


@pytest.fixture(autouse=True)
def shorter_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    scale_audit(monkeypatch)


def frame(ages: list[int], years: list[int], sex: str) -> pd.DataFrame:
    return pd.DataFrame({"age": ages, "years": years, "sex": [sex] * len(ages)})


KEPT = frame([100 + place % 10 for place in range(400)], [80 + place % 7 for place in range(400)], "F")
CORNER = frame([40 + place % 3 for place in range(400)], [place % 2 for place in range(400)], "F")
#: None meets the condition: the other sex, the wrong age, or years that break the constraint.
LEFT_OUT = pd.concat(
    [frame([60] * 300, [3] * 300, "M"), frame([20] * 50, [0] * 50, "F"), frame([50] * 50, [80] * 50, "F")]
)


@pytest.mark.filterwarnings("ignore::UserWarning")  # that rows were left out, and the table is odd, is the point
def test_no_two_tables_are_told_apart_by_what_they_leave_out() -> None:
    def fit(table: Any) -> MollifiedExpFamily:
        rows = SCHEMA.to_tensor(table)
        trainer = DensityRatio(BASE, weak_learner=QUICK, ensemble_size=2, progress=False)
        return trainer.fit(rows).mollify(1.0, delta=0)

    assert len(SCHEMA.to_tensor(LEFT_OUT)) == 0
    tables = {"all kept, none": (KEPT, LEFT_OUT), "two corners": (KEPT, CORNER)}
    report = audit(fit, 1.0, tables=tables, num_draws=2000, seed=0, progress=False)
    assert report.passed, report
    assert 0.3 < report.proven <= 1


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_fit_that_takes_the_condition_from_the_table_is_found() -> None:
    """The same with a planted fault: the base is restricted only where the table keeps rows."""

    def fit(table: Any) -> MollifiedExpFamily:
        rows = SCHEMA.to_tensor(table)
        base = BASE if len(rows) else Schema(SCHEMA.columns).base()
        return DensityRatio(base, weak_learner=QUICK, ensemble_size=2, progress=False).fit(rows).mollify(1.0, delta=0)

    report = audit(fit, 1.0, tables={"all kept, none": (KEPT, LEFT_OUT)}, num_draws=1000, seed=0, progress=False)
    assert {"base", "epsilon"} <= {finding.kind for finding in report.faults}
