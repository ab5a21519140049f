"""The bench of log-densities: what is counted, its lines and its picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from rank_processes import run_commands

from pyro_mbde.experiments import bench, bench_log_prob
from pyro_mbde.experiments.bench_log_prob import CASES, line_of, measure_times, plot, ratios, ways
from pyro_mbde.experiments.scale_runs import Run


@pytest.mark.parametrize("name", CASES)
def test_the_products_are_the_networks_without_their_bound(name: str) -> None:
    density = CASES[name](2)
    networks = getattr(density.statistics, "networks", density.statistics)
    networks.loc.zero_()
    networks.scale.fill_(1)
    value = torch.randn(5, 2)
    products = ways(density, value)["products"]()
    assert isinstance(products, torch.Tensor)
    torch.testing.assert_close(products.squeeze(-1).t(), networks.logits(value))


def test_ratios() -> None:
    times = {"log_prob": 12.0, "gradient": 30.0, "networks": 6.0, "products": 4.0, "base": 2.0, "base gradient": 5.0}
    assert ratios(times) == {
        "to networks and base": 1.5,
        "to products and base": 2.0,
        "gradient to value": 2.5,
        "base gradient to base": 2.5,
    }
    assert ratios({**times, "flow": 120.0})["flow to value"] == 10


def test_lines_and_picture() -> None:
    records = list(measure_times("ratio, 6 networks", 2, {1: 1, 20: 1}))
    assert [record["rows"] for record in records] == [1, 20]
    assert {"log_prob", "gradient", "networks gradient", "base gradient"} <= set(records[0]["microseconds"])
    assert line_of(records[1]).startswith("ratio, 6 networks    2      20")
    memory = {"case": "ratio", "dims": 2, "rows": 20, "peak_bytes": {"log_prob": 3 * 2**20}}
    assert line_of(memory).endswith("log_prob 3 MiB")
    assert len(plot([*records, memory]).axes) == 1
    for record in records:  # without zuko
        for name in ("flow", "flow gradient"):
            record["microseconds"].pop(name, None)
    assert line_of(records[0]).count(" -") == 1
    plot(records)


@pytest.mark.slow
def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_log_prob, "_QUICK_REPEATS", {1: 1, 50: 1})
    monkeypatch.setattr(bench_log_prob, "_flow", lambda dims: None)
    records, picture = tmp_path / "records.json", tmp_path / "picture.png"
    options = ["log_prob", "--quick", "--records", str(records), "--picture", str(picture)]
    result = CliRunner().invoke(bench.main, options)
    assert result.exit_code == 0, result.output
    assert "No flow: zuko is not installed" in result.output
    assert len(json.loads(records.read_text())) == 8
    assert picture.exists()


def forked(command: list[str]) -> Run:
    """Runs a program in a process that is forked once what takes long is imported: a peak begins at what is held."""
    (ended,) = run_commands([command])
    assert ended.code == 0, ended.output
    return Run(0.0, 0, ended.value)


def test_memory_of_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(bench_log_prob._OF_MEMORY) == {"networks", "log_prob", "networks gradient", "gradient"}
    monkeypatch.setattr(bench_log_prob, "_OF_MEMORY", ("networks gradient", "gradient"))  # a process for each
    monkeypatch.setattr(bench_log_prob, "run", forked)
    peaks = bench_log_prob.measure_memory("ratio, 6 networks", 2)["peak_bytes"]
    assert peaks["gradient"] < peaks["networks gradient"]
