"""The bench of releases: what it yields, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from pyro_mbde.experiments import bench, bench_batches
from pyro_mbde.experiments.bench_batches import KNOWN, Way, known_case, measure_release, row_law, shown
from pyro_mbde.privacy.accounting import epsilon_per_draw

NUM_DRAWS = 2**13


def run(*words: str) -> Any:
    result = CliRunner().invoke(bench.main, ["batches", *words, "--quick"])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def normal_case() -> bench_batches.Case:
    torch.manual_seed(0)
    return known_case(KNOWN["normal"](), NUM_DRAWS)


def test_ways_spend_the_total(normal_case: bench_batches.Case) -> None:
    records = list(measure_release(normal_case, 10.0, 20, bench_batches.WAYS, [{"skew": 0.3}]))
    assert [record["way"] for record in records] == ["batch", *["blocks"] * 4, "draws", "base", "target"]
    for record in records[:-2]:
        n = record["num_draws"]
        delta = 1e-9 if n == 1 else 1e-6
        assert record["epsilon"] == epsilon_per_draw(10.0, n, delta).epsilon
    batch, *blocks, draws, base, target = (record["distance"] for record in records)
    assert target == 0 < batch < min(blocks) <= max(blocks) < draws < base
    assert (records[0]["share"], records[-2]["nats"]) == (pytest.approx(1.0), 0.0)
    kept = [record for record in shown(records) if record["way"] == "blocks"]
    assert [record["distance"] for record in kept] == [min(blocks)]


def test_drawn_rows_are_as_far_as_their_law(normal_case: bench_batches.Case) -> None:
    torch.manual_seed(0)
    [record] = measure_release(normal_case, 3.0, 5, ("batch",), [{"skew": 0.3}], released=8000)
    assert record["drawn"] == pytest.approx(record["distance"], abs=0.015)


def test_a_batch_that_costs_too_much_is_left_out(normal_case: bench_batches.Case) -> None:
    assert row_law(normal_case, normal_case.base_scores, 13.0, Way(1, 20)) is None
    assert row_law(normal_case, normal_case.base_scores, 13.0, Way(2, 10)) is not None


def test_filled_shares_set_the_skew(normal_case: bench_batches.Case) -> None:
    placements = [{"filled_share": 0.05}, {"filled_share": 0.5}, {"skew": 0.3}]
    records = list(measure_release(normal_case, 3.0, 5, ("batch",), placements))
    assert [record["filled_share"] for record in records] == [0.05, 0.5, None]
    assert records[0]["skew"] < records[1]["skew"]
    assert records[2]["skew"] == 0.3


def test_command(tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    result = run("--problem", "two-normals", "--total", "3", "--num-rows", "10", "--records", str(path), "--quiet")
    assert "two-normals     3   10  batch" in result.output
    records = json.loads(path.read_text())
    assert {record["way"] for record in records} == set(bench_batches.WAYS)
    assert json.loads(run("--problem", "normal", "--total", "1", "--num-rows", "5", "--json").stdout)["output"]


@pytest.mark.slow
def test_a_fit_gains_almost_what_can_be_gained(tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    run(
        "--problem",
        "near-normal",
        "--fitted",
        "--total",
        "10",
        "--num-rows",
        "20",
        "--way",
        "batch",
        "--records",
        str(path),
    )
    [record] = json.loads(path.read_text())
    assert 0.9 < record["share"] < 1  # a quick fit


@pytest.mark.slow
@pytest.mark.parametrize(("name", "column"), [("ring-box", "share"), ("medical", "pairs")])
def test_fitted_problems(name: str, column: str, tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    run("--problem", name, "--total", "10", "--num-rows", "5", "--records", str(path))
    records = {record["way"]: record for record in json.loads(path.read_text())}
    assert records["batch"][column] > 0
    assert records["target"]["distance"] < records["batch"]["distance"] < records["base"]["distance"]
