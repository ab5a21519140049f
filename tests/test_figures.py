"""The paper's figures: their jobs, what a job measures, and what is drawn from the rows."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

from pyro_mbde.experiments import __main__ as command
from pyro_mbde.experiments import sweeps
from pyro_mbde.experiments.decision import crossings, plot_decision
from pyro_mbde.experiments.figures import PLOTS
from pyro_mbde.experiments.measure import GRID_EDGES, decode_grid, encode_grid, grid_points, measure
from pyro_mbde.experiments.problems import RANDOM, find_problem, random_1d, random_2d, ring
from pyro_mbde.experiments.runner import Job, current_versions
from pyro_mbde.experiments.sweeps import SWEEPS
from pyro_mbde.experiments.systems import SYSTEMS
from pyro_mbde.metrics import negative_log_likelihood, quadrature_grid
from pyro_mbde.theory import gain_limit

GRID = encode_grid(ring().target)


def fake_row(job: Job) -> dict[str, Any]:
    """A row as a sweep keeps it, whose numbers tell which job it is of."""
    row: dict[str, Any] = {"key": job.key, "problem": job.problem, "system": job.system, "epsilon": job.epsilon}
    row |= {"repeat": job.repeat, "error": None, **dict(job.options), **current_versions()}
    nll = (
        5 - math.log(job.epsilon) / 10 + job.repeat / 100 + list(SYSTEMS).index(job.system) / 10
        if job.system in SYSTEMS
        else 2
    )
    return row | {
        "nll": nll,
        "coverage": 0.5 + job.epsilon / 100 + job.repeat / 50,
        "grid": GRID,
        "log_ratio_range": 9.5,
    }


def fake_table(name: str, *, quick: bool = False) -> pd.DataFrame:
    return pd.DataFrame([fake_row(job) for job in SWEEPS[name](quick=quick)])


@pytest.mark.parametrize("name", sorted(SWEEPS))
@pytest.mark.parametrize("quick", [False, True])
def test_jobs(name: str, *, quick: bool) -> None:
    jobs = SWEEPS[name](quick=quick)
    assert len({job.key for job in jobs}) == len(jobs)
    assert all(job.system in SYSTEMS or job.system == "limit" for job in jobs)
    assert all((dict(job.options).get("quick", 0) == 1) == quick for job in jobs)
    full = {job.problem for job in SWEEPS[name]()}
    assert {job.problem for job in jobs} <= full


def test_ours_appears_twice() -> None:
    for name in ("first", "ring", "metrics", "coverage", "random-1d", "random-2d"):
        assert {job.system for job in SWEEPS[name]()} >= {"mbde-paper", "projection"}


def test_the_papers_random_problems() -> None:
    assert [job.problem for job in sweeps.random_1d() if job.system == "projection"][
        :: 4 * len(sweeps.LINE_EPSILONS)
    ] == [f"random-1d-{m}" for m in range(1, 11)]
    mixture: Any = random_1d(7, seed=3).target
    centres, scale = mixture.component_distribution.loc, mixture.component_distribution.scale
    assert centres.shape == (7,)
    assert bool(((centres >= 0) & (centres <= 1)).all())
    assert scale.square().allclose(torch.tensor(0.01))
    assert not torch.equal(centres, random_1d(7, seed=4).target.component_distribution.loc)  # type: ignore[attr-defined]  # of a mixture
    plane: Any = random_2d(0).target
    assert bool((plane.component_distribution.base_dist.loc.abs() <= 4).all())


@pytest.mark.parametrize("name", ["ring", "ring-tight", "ring-box", "mixture-1d", *sorted(RANDOM)])
def test_bounds_hold_the_target(name: str) -> None:
    problem = find_problem(name, 1)
    assert problem.bounds is not None
    points, volume = quadrature_grid(problem.bounds, problem.base.event_shape)
    assert float(problem.target.log_prob(points).double().exp().sum() * volume) == pytest.approx(1, abs=1e-5)


def test_a_problem_over_its_rivals_box() -> None:
    for name in ("ring-box", "mixture-1d-box", "random-2d-box"):
        problem, plain = find_problem(name, 2), find_problem(name.removesuffix("-box"), 2)
        assert problem.base.event_shape == plain.base.event_shape
        points = plain.target.sample(torch.Size([100]))
        assert torch.equal(problem.target.log_prob(points), plain.target.log_prob(points))
        assert problem.bounds is not None
        assert float(problem.base.log_prob(points).exp()[0]) == pytest.approx(
            (problem.bounds[1] - problem.bounds[0]) ** -max(len(plain.base.event_shape) * 2, 1)
        )
    with pytest.raises(ValueError, match="name must be of a problem with public bounds"):
        find_problem("claw-box")


def test_grid_round_trip() -> None:
    density = ring().target
    points = grid_points()
    assert float(points.min()) > GRID_EDGES[0]
    assert float(points.max()) < GRID_EDGES[1]
    exact = density.log_prob(points).double().exp().reshape(96, 96).numpy()
    assert np.allclose(decode_grid(encode_grid(density)), exact, atol=1e-3 * exact.max())


class TestMeasure:
    def test_base_and_limit(self) -> None:
        problem = ring()
        base = measure(Job("ring", "base", 1.0, options=(("quick", 1),)))
        assert base["nll"] == pytest.approx(10.338, abs=2e-3)
        limit = measure(Job("ring", "limit", 1.0, options=(("skew", 0.5),)))
        assert limit["nll"] == pytest.approx(9.838, abs=2e-3)
        assert problem.box is not None

    def test_projection_is_what_it_says(self) -> None:
        row = measure(Job("mixture-1d", "projection", 1.0, options=(("quick", 1),)))
        assert row["guarantee_epsilon"] == pytest.approx(1.0)
        base = negative_log_likelihood(
            find_problem("mixture-1d", 0).target, find_problem("mixture-1d", 0).base, (-9.0, 9.0)
        )
        assert isinstance(row["nll"], float)
        assert 0 < base.value - row["nll"] <= gain_limit(1.0, 0.3)

    def test_a_group_costs_a_rival_more(self) -> None:
        rows = [
            measure(Job("mixture-1d", "dpb", 1.0, options=(("group_size", size), ("quick", 1)))) for size in (1, 100, 0)
        ]
        nlls = [row["nll"] for row in rows]
        assert nlls[0] < nlls[1] < nlls[2]  # type: ignore[operator]  # numbers
        assert all(row["guarantee_epsilon"] == 1.0 for row in rows)

    def test_same_table_for_all_systems(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = []
        monkeypatch.setattr(
            "pyro_mbde.experiments.measure.fit",
            lambda _, table, __: (seen.append(table.rows), table.base)[1],
        )
        for system in ("dpb", "flow"):
            measure(Job("mixture-1d", system, 1.0, 2, (("quick", 1),)))
        assert torch.equal(*seen)

    def test_unknown_problem(self) -> None:
        with pytest.raises(ValueError, match="problem must have public bounds"):
            measure(Job("claw", "base", 1.0))


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", sorted(PLOTS))
def test_plots_show_the_rows(name: str, *, quick: bool) -> None:
    table = fake_table(name, quick=quick)
    figure = PLOTS[name](table)
    figure.canvas.draw()
    plt.close(figure)
    assert figure._supxlabel is not None  # type: ignore[attr-defined]  # matplotlib has no public way to ask
    assert "all rows at once" in figure._supxlabel.get_text().replace("\n", " ")  # type: ignore[attr-defined]  # as above


def test_metrics_lines_are_the_rows() -> None:
    table = fake_table("metrics")
    figure = PLOTS["metrics"](table)
    lines = {str(line.get_label()): line for line in figure.axes[0].get_lines()}
    plt.close(figure)
    rows = table[(table["problem"] == "ring") & (table["system"] == "projection")].sort_values("epsilon")
    assert np.asarray(lines["KL projection, skew 0.3"].get_xdata()).tolist() == rows["epsilon"].tolist()
    assert np.asarray(lines["KL projection, skew 0.3"].get_ydata()).tolist() == rows["nll"].tolist()
    assert {"best reachable, skew 0.3", "best reachable, skew 0.5", "DPB, all rows protected"} <= set(lines)
    unbounded = next(label for label in lines if "NOT private" in label)
    assert "9.5 at ε = 1" in unbounded


@pytest.mark.parametrize("name", sorted(PLOTS))
def test_failed_jobs_leave_gaps(name: str) -> None:
    table = fake_table(name)
    rival = table["system"].isin(["dpb-paper"])
    table.loc[rival, ["nll", "coverage", "grid"]] = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = PLOTS[name](table.astype({"nll": float, "coverage": float}))
        figure.canvas.draw()
    plt.close(figure)


def test_metrics_where_all_unbounded_jobs_failed() -> None:
    figure = PLOTS["metrics"](fake_table("metrics").drop(columns="log_ratio_range"))
    plt.close(figure)


def decision_table(nll: Callable[[Job], float]) -> pd.DataFrame:
    return pd.DataFrame([fake_row(job) | {"nll": nll(job)} for job in sweeps.decision("ring-box")])


class TestDecision:
    def test_crossings(self) -> None:
        def nll(job: Job) -> float:
            if job.system == "projection":
                return 6.0 if job.epsilon >= 1 else 8.0  # k = 1 at E = 1; k = 1 and 10 at E = 10
            size = dict(job.options).get("group_size")
            return 10.0 if size is None else (7.0 if size else 9.0) - (2.0 if size in (1, 3) else 0.0)

        table = crossings(decision_table(nll)).set_index(["total", "draws"])["from_group"]
        assert table.to_dict() == {
            (1.0, 1): "10",
            (1.0, 10): "all",
            (1.0, 100): "all",
            (10.0, 1): "10",
            (10.0, 10): "10",
            (10.0, 100): "all",
        }

    def test_never(self) -> None:
        table = crossings(decision_table(lambda job: {"projection": 9.0, "base": 10.0}.get(job.system, 5.0)))
        assert set(table["from_group"]) == {"never"}
        assert table["its_nll"].tolist() == [5.0] * 6

    def test_failed_and_infinite_rivals_do_not_win(self) -> None:
        table = crossings(decision_table(lambda job: 6.0 if job.system == "projection" else math.inf))
        assert set(table["from_group"]) == {"1"}

    def test_no_better_than_the_base_is_no_choice(self) -> None:
        table = crossings(decision_table(lambda job: {"projection": 6.995, "base": 7.0}.get(job.system, 8.0)))
        assert set(table["from_group"]) == {"base"}

    def test_a_rival_that_is_not_there(self) -> None:
        table = decision_table(lambda job: {"projection": 6.0, "base": 7.0}.get(job.system, 8.0))
        assert set(crossings(table[table["system"] != "mst"])["from_group"]) == {"unknown"}

    def test_failed_jobs_decide_nothing(self) -> None:
        table = decision_table(lambda job: 6.0 if job.system == "projection" else 7.0)
        ours = table.assign(nll=table["nll"].where(table["system"] != "projection"))
        assert set(crossings(ours)["from_group"]) == {"unknown"}
        rival = table.assign(nll=table["nll"].where((table["system"] != "mst") | (table["group_size"] != 1)))
        assert set(crossings(rival)["from_group"]) == {"unknown"}
        nobody = table.assign(nll=table["nll"].where(table["group_size"] != 1))
        assert set(crossings(nobody)["from_group"]) == {"unknown"}

    def test_plot_where_the_base_failed(self) -> None:
        table = fake_table("decision")
        figure = plot_decision(table.assign(nll=table["nll"].where(table["system"] != "base")))
        figure.canvas.draw()
        plt.close(figure)

    @pytest.mark.parametrize("quick", [False, True])
    def test_plot(self, *, quick: bool) -> None:
        table = fake_table("decision", quick=quick)
        figure = plot_decision(table)
        figure.canvas.draw()
        labels = [str(line.get_label()) for line in figure.axes[0].get_lines()]
        plt.close(figure)
        assert {"DPB", "DPGAN", "MST", "ours, k = 1 draws", "ours, k = 100 draws"} <= set(labels)


def test_command_redraws_from_the_results_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_sweep(*_: object, **__: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(command, "run_sweep", no_sweep)
    rows = [fake_row(job) for name in ("ring", "decision") for job in SWEEPS[name](quick=True)]
    rows[0] |= {"error": "ValueError: no luck", "nll": math.nan, "grid": None}
    (tmp_path / "quick.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = CliRunner().invoke(command.main, ["ring", "decision", "--quick", "--redraw", "--results", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "failed: ring/dpb-paper/5.0/0/quick=1: ValueError: no luck" in result.output
    assert "from_group" in result.output
    for name in ("ring", "decision"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        assert "grid" not in pd.read_csv(tmp_path / f"{name}.csv")


def test_command_tells_of_rows_of_other_versions(tmp_path: Path) -> None:
    rows = [fake_row(job) for job in SWEEPS["ring"](quick=True)]
    rows[1] |= {"pyro_mbde": "0.0.1"}
    (tmp_path / "quick.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = CliRunner().invoke(command.main, ["ring", "--quick", "--redraw", "--results", str(tmp_path)])
    assert f"ring: 1 of {len(rows)} rows were measured with other versions" in result.output


@pytest.mark.parametrize("name", ["ring", "gain"])
def test_command_without_results(name: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "none")
    result = CliRunner().invoke(command.main, [name, "--redraw", "--results", folder, "--output", folder])
    assert result.exit_code == 1
    assert "is not there. Run without --redraw" in result.output


def test_command_says_what_it_does_not_draw(tmp_path: Path) -> None:
    result = CliRunner().invoke(command.main, ["gain", "--quick", "--results", str(tmp_path)])
    assert result.exit_code == 0
    assert "gain: not drawn" in result.output


def test_command_names() -> None:
    assert set(command.NAMES) >= {*SWEEPS, "mollifier", "gain", "skew", "scale"}
    result = CliRunner().invoke(command.main, ["--help"])
    assert result.exit_code == 0
    for name in command.NAMES:
        assert name in result.output


@pytest.mark.parametrize("name", ["decision", "decision-medical"])
def test_the_documentations_table_is_that_of_the_results(name: str) -> None:
    """The row of each total budget, from the CSV beside the picture."""
    docs = Path(__file__).parents[1] / "docs"
    table, text = pd.read_csv(docs / "images" / f"{name}.csv"), (docs / "experiments.md").read_text()
    titles = {"dpb": "DPB", "dpgan": "DPGAN", "flow": "RealNVP", "mst": "MST"}
    for total in sweeps.TOTALS:
        rivals = table[table["system"].isin(sweeps.RIVALS) & (table["epsilon"] == total)]
        medians = rivals.groupby(["group_size", "system"])["nll"].median().unstack()
        ours = [
            table[(table["system"] == "projection") & np.isclose(table["epsilon"], total / k)]["nll"].median()
            for k in sweeps.NUM_DRAWS
        ]
        cells = [f"{total:g}", ", ".join(f"{value:.3f}" for value in ours)]
        cells += [f"{medians.loc[g].min():.3f} {titles[medians.loc[g].idxmin()]}" for g in sweeps.GROUP_SIZES]
        assert f"| {' | '.join(cells)} |" in text
