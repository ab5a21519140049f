"""The bench of chains: its problems are sampled by every kernel, and what it prints follows from the runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from densities import scale_calibration
from pyro import poutine

from pyro_mbde.diagnostics import exact
from pyro_mbde.experiments import bench, bench_chains, chain_problems
from pyro_mbde.experiments.bench_chains import WAYS, run_stock
from pyro_mbde.experiments.chain_pictures import plot_chains
from pyro_mbde.experiments.chain_problems import CHAIN_PROBLEMS, as_model
from pyro_mbde.experiments.chain_results import summarize
from pyro_mbde.mcmc import hamiltonian


@pytest.mark.parametrize("name", CHAIN_PROBLEMS)
def test_a_problem_is_the_same_whenever_it_is_made(name: str) -> None:
    sums = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        problem = CHAIN_PROBLEMS[name]()
        assert problem.target.event_shape == problem.base.event_shape
        trace: Any = poutine.trace(as_model(problem.pose(problem.base))).get_trace()
        sums.append(sum(float(trace.nodes[site]["value"].sum()) for site in trace.observation_nodes))
    assert sums[0] == sums[1]


@pytest.mark.parametrize("name", ["ring-tight", "effects"])
def test_every_kernel_runs(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench_chains, "_QUICK_STEPS", (4, 2))
    monkeypatch.setattr(bench_chains, "_MAX_TREE_DEPTH", 2)
    monkeypatch.setattr(hamiltonian, "MAX_MEAN_STEPS", 4)
    monkeypatch.setattr(chain_problems, "_NUM_QUICK_ROWS", 200)
    monkeypatch.setattr(exact, "_NUM_EXACT_DRAWS", 1000)
    scale_calibration(monkeypatch)
    path, picture = tmp_path / "records.json", tmp_path / "chains.png"
    words = ["--problem", name, "--epsilon", "1", "--seeds", "1", "--quick", "--quiet"]
    result = CliRunner().invoke(bench.main, ["chains", *words, "--records", str(path), "--picture", str(picture)])
    assert result.exit_code == 0, result.output
    records = json.loads(path.read_text())
    alone = {"stock hmc, smooth", "stock nuts, smooth"} | ({"independence"} if name == "ring-tight" else set())
    kernels = {(record["epsilon"], record["kernel"]) for record in records}
    assert kernels == {(epsilon, way) for epsilon in (None, 1.0) for way in WAYS if way in alone and epsilon} | {
        (epsilon, way) for epsilon in (None, 1.0) for way in set(WAYS) - alone - {"independence"}
    }
    assert len(records) == len(kernels)
    assert all(record["seconds"] > 0 and record["ess"] >= 0 for record in records)
    assert result.output.count(f"\n{name}") == len(records)
    assert picture.stat().st_size > 10_000


def test_stock_kernels_count_gradients() -> None:
    problem = CHAIN_PROBLEMS["ring-tight"]()
    record = run_stock(as_model(problem.base), "nuts", 0.8, 0, quick=True)
    assert record["num_samples"] == 40
    assert record["gradients"] >= 40
    assert record["ess_per_gradient"] == pytest.approx(record["ess"] / record["gradients"])


def test_summaries_are_medians_and_ratios() -> None:
    def run(epsilon: float | None, kernel: str, seed: int, ess: float) -> dict[str, object]:
        worth = {"ess_per_gradient": ess, "squares_per_gradient": ess / 2, "ess_per_second": 10 * ess}
        passed = None if kernel.startswith("stock") else float(seed > 0)
        return {"problem": "p", "epsilon": epsilon, "kernel": kernel, "seed": seed, "passed": passed, **worth}

    measured = [run(None, "lockstep_hmc", seed, 0.5) for seed in range(3)]
    measured += [run(1.0, "lockstep_hmc", seed, ess) for seed, ess in enumerate((0.1, 0.2, 0.4))]
    measured += [run(None, "stock hmc", 0, 0.4), run(1.0, "stock hmc", 0, 0.01), run(1.0, "stock hmc, smooth", 0, 0.1)]
    found = {(one["epsilon"], one["kernel"]): one for one in summarize(measured)}
    ours, smooth = found[1.0, "lockstep_hmc"], found[1.0, "stock hmc, smooth"]
    assert ours["ess_per_gradient"] == 0.2
    assert ours["passed"] == pytest.approx(2 / 3)
    assert ours["divergences"] is None
    assert ours["to_base"] == pytest.approx(0.4)
    assert ours["to_stock"] == pytest.approx(20)
    assert ours["to_stock_base"] == pytest.approx(0.5)
    assert smooth["to_base"] == pytest.approx(0.25)
    assert smooth["to_stock"] == pytest.approx(10)
    assert plot_chains(list(found.values())).axes
