"""Columns of released rows: names, public ranges, and the units of a schema."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from densities import density_over, make_density, normal

from pyro_mbde import (
    BoundedClassifiers,
    Column,
    DensityRatio,
    Ledger,
    MollifiedExpFamily,
    Schema,
    WeakLearner,
    private_report,
    release,
)
from pyro_mbde.releases.columns import released_columns, schema_of
from pyro_mbde.tables.earlier import SpreadSchema
from pyro_mbde.tables.files import TableModel


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("uniform-scalar", [(-1.0, 3.0, False)]),
        ("uniform-box", [(0.0, 1.0, False), (10.0, 30.0, False)]),
        ("normal-2d", [(None, None, False)] * 2),
        ("mixture-2d", [(None, None, False)] * 2),
        ("gamma", [(0.0, None, False)]),
        ("logit-normal", [(0.0, 1.0, False)]),
        ("dirichlet", [(0.0, 1.0, False)] * 3),
        ("poisson", [(0.0, None, True)]),
        ("categorical", [(0.0, 3.0, True)]),
        ("bernoulli-3d", [(0.0, 1.0, True)] * 3),
        ("one-hot", [(0.0, 1.0, True)] * 3),
    ],
)
def test_public_ranges(name: str, expected: list[object]) -> None:
    columns = released_columns(density_over(name), None)
    assert [tuple(column)[1:4] for column in columns] == expected


def test_names_of_columns() -> None:
    assert [column.name for column in released_columns(make_density(normal(2)), None)] == ["x0", "x1"]
    assert [column.name for column in released_columns(make_density(dist.Normal(0.0, 1.0)), None)] == ["x"]


class TestSchema:
    SCHEMA = Schema((Column("age", 0, 110, kind="integer"), Column("weight", 1, 300, decimals=1)))

    def test_rows_in_the_tables_own_units(self, make_ledger: Callable[..., Ledger]) -> None:
        q, ledger = make_density(self.SCHEMA.base()), make_ledger(epsilon=1e3)
        released = release(q, 8, ledger, "clinic", columns=self.SCHEMA, progress=False)
        assert list(released.rows) == ["age", "weight"]
        assert released.rows["age"].dtype.kind == "i"
        assert released.rows["age"].between(0, 110).all()
        assert (released.rows["weight"].mul(10).round() == released.rows["weight"] * 10).all()
        ranges = [tuple(column.values()) for column in released.card["columns"]]
        assert ranges == [("age", 0.0, 110.0, True, "linear", None), ("weight", 1.0, 300.0, False, "linear", 1)]

    @pytest.mark.parametrize("way", ["model file", "own file", "converted", "pickled", "copied twice", "mollified"])
    def test_a_density_knows_its_table(self, way: str, make_ledger: Callable[..., Ledger], tmp_path: Path) -> None:
        """Attack: whatever way it came, no rows leave in the units that columns are modelled in."""
        schema = Schema((Column("smoker", 0, 1, "integer"), Column("visits", 0, 99, "integer", "log1p")))
        q, path = make_density(schema.base()), tmp_path / "q.pt"
        box: Any = SpreadSchema(schema.columns).base().support
        plain = dist.Uniform(box.base_constraint.lower_bound, box.base_constraint.upper_bound)
        if way == "model file":
            TableModel(make_density(plain.to_event(1)), schema).save(path)
            q = MollifiedExpFamily.load(path)
        elif way in ("own file", "copied twice"):
            q.save(path)
            for _ in range(2 if way == "copied twice" else 1):
                q = MollifiedExpFamily.load(path)
                q.save(path)
            assert TableModel.load(path).schema == schema
        elif way == "converted":
            q = q.to(torch.float64).to(torch.float32)
        elif way == "pickled":
            q = pickle.loads(pickle.dumps(q))
        else:
            learner = WeakLearner(hidden_sizes=(8,), num_steps=10)
            trainer = DensityRatio(schema.base(), ensemble_size=1, weak_learner=learner, progress=False)
            q = trainer.fit(schema.base().sample((50,))).mollify(1)
        released = release(q, 20, make_ledger(epsilon=1e3, delta=1e-6), "clinic", progress=False)
        assert list(released.rows) == ["smoker", "visits"]
        assert set(released.rows["smoker"]) == {0, 1}
        assert released.rows["visits"].between(0, 99).all() and released.rows["visits"].max() > 5
        assert [column["scale"] for column in released.card["columns"]] == ["linear", "log1p"]
        assert private_report(q)["comparison"]["columns"][1]["name"] == "visits"

    @pytest.mark.parametrize("names", [["a", "b"], ["weight", "age"], ["age"], "ab"])
    def test_names_do_not_replace_a_schema(self, names: Any, ledger: Ledger) -> None:
        q = make_density(self.SCHEMA.base())
        with pytest.raises(ValueError, match=r"columns must be those of .*\['age', 'weight'\].*Leave columns out"):
            release(q, 1, ledger, "clinic", columns=names)
        assert ledger.charges("clinic") == []
        rows = release(q, 1, ledger, "clinic", columns=["age", "weight"], progress=False).rows
        assert rows["age"].dtype.kind == "i"

    def test_columns_of_one_range_do_not_change_places(self, ledger: Ledger) -> None:
        first = Schema((Column("smoker", 0, 1, "integer"), Column("sex", 0, 1, "integer")))
        with pytest.raises(ValueError, match="columns must be the schema that the density's base was made from"):
            release(make_density(first.base()), 1, ledger, "clinic", columns=Schema(first.columns[::-1]))

    @pytest.mark.parametrize(
        "columns",
        [
            [Column("age", 0, 110, kind="integer")],
            [Column("age", 0, 110, kind="integer"), Column("weight", 1, 301, decimals=1)],
        ],
    )
    def test_another_schema_is_refused_before_a_charge(self, columns: list[Column], ledger: Ledger) -> None:
        q = make_density(self.SCHEMA.base())
        with pytest.raises(ValueError, match="columns must be the schema that the density's base was made from"):
            release(q, 1, ledger, "clinic", columns=Schema(tuple(columns)), progress=False)
        assert ledger.charges("clinic") == []

    def test_ranges_are_compared_by_their_width(self, ledger: Ledger) -> None:
        first, second = (Schema((Column("time", 1600000000 + start, 1600000100),)) for start in (0, 50))
        q = MollifiedExpFamily(first.base(), BoundedClassifiers(1, 1).double(), torch.tensor([0.1]), 0.0)
        with pytest.raises(
            ValueError, match="got 1600000050 for the lower edge of 'time', of which the base has 1600000000"
        ):
            release(q, 1, ledger, "clinic", columns=second, progress=False)
        rows = release(q, 2, ledger, "clinic", columns=first, progress=False).rows
        assert rows["time"].between(1600000000, 1600000100, inclusive="neither").all()


@pytest.mark.parametrize("change", ["decimals", "constraints", "condition"])
def test_a_schema_that_would_break_the_fits_rules_is_refused(change: str) -> None:
    columns = (Column("a", 0, 10, decimals=2), Column("b", 0, 10, decimals=2))
    schema = Schema(columns, constraints=("a < b",))
    others = {
        "decimals": Schema((replace(columns[0], decimals=0), columns[1]), constraints=("a < b",)),
        "constraints": Schema(columns, constraints=("a > b",)),
        "condition": Schema(columns, constraints=("a < b",), condition="a > 9"),
    }
    q = make_density(schema.base())
    assert schema_of(q, schema) == schema
    with pytest.raises(ValueError, match="Leave columns out"):
        schema_of(q, others[change])
