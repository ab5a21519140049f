"""The bench of bases: what it compares, and that knowledge pays."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from pyro_mbde.experiments import bench, medical
from pyro_mbde.experiments.bench_bases import (
    RELEASES,
    Sample,
    correlations,
    distances,
    grids,
    medical_schemas,
    share_of_strong_correlations,
    without_facts,
)


def test_the_schema_names_the_tables_columns_and_levels() -> None:
    table, schema = medical.load_table(), medical.whole_schema()
    assert schema.names == tuple(table.columns)
    for column in schema.columns:
        if column.levels is not None:
            assert set(table[column.name]) <= set(column.levels)


def test_rows_go_through_the_schema_unchanged() -> None:
    table, schema = medical.load_table(), medical.whole_schema()
    some = table.iloc[::500]
    back = schema.to_frame(schema.to_tensor(some))
    for column in schema.columns:
        expected = some[column.name]
        if column.low is not None:
            expected = expected.clip(column.low, column.high)
        assert back[column.name].tolist() == expected.tolist()


def test_a_schema_without_facts_knows_ranges_and_levels_alone() -> None:
    schema = without_facts(medical.whole_schema())
    base = schema.base()
    frame = schema.to_frame(base.sample((4000,)))
    assert frame["coinsurance"].value_counts(normalize=True).between(0.17, 0.23).all()
    assert frame["visits"].mean() == pytest.approx(49.5, abs=2)


def test_public_rows_are_of_other_people() -> None:
    schemas, frame = medical_schemas("cost-sharing")
    assert list(schemas) == ["box", "codebook", "public rows"]
    assert len({schema.names for schema in schemas.values()}) == 1
    assert "coinsurance" not in frame
    table = medical.load_table()
    assert len(frame) == int((table["deductible_plan"] | (table["coinsurance"] != "0")).sum())


def test_levels_are_cells_and_numbers_share_them() -> None:
    schema = medical.whole_schema()
    rows = np.zeros((100, len(schema.columns)))
    rows[:, 0] = np.arange(100)
    rows[:, 1] = np.arange(100) % 5
    edges = grids(schema, [rows])
    assert len(edges[0][0]) == 9
    assert len(edges[0][1]) == 3
    assert edges[1][0].tolist() == [0, 1, 2, 3]


def test_distances_follow_weights() -> None:
    rows = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    table = Sample(rows[:2], ((np.zeros(1), np.zeros(1)),) * 2)
    assert distances(table, rows) == (0.0, 0.5)
    assert distances(table, rows, np.array([1.0, 1.0, 0.0, 0.0])) == (0.0, 0.0)
    assert distances(table, rows[:1]) == (0.5, 0.5)


def test_correlations_follow_weights() -> None:
    rows = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    assert correlations(rows) == pytest.approx([0.0])
    weighted = correlations(rows, np.array([0.4, 0.4, 0.1, 0.1]))
    assert weighted == pytest.approx([0.6])
    assert share_of_strong_correlations(np.array([0.9]), weighted) == (1, 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Notes on the table:UserWarning")  # some rows do not meet the constraints
def test_knowledge_pays(tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    words = ["bases", "--table", "medical", "--records", str(path), "--quick"]
    result = CliRunner().invoke(bench.main, words)
    assert result.exit_code == 0, result.output
    records = json.loads(path.read_text())
    assert len(records) == 1 + 2 * (1 + 2 * len(RELEASES))
    for total, num_rows in RELEASES:
        pairs = {
            (record["base"], record["way"]): record["pairs"]
            for record in records
            if (record.get("total"), record.get("num_rows")) == (total, num_rows)
        }
        assert pairs["codebook", "batch"] < pairs["codebook", "draws"] < pairs["box", "draws"]
