"""The paper's figures: their jobs, what a job measures, and what is drawn from the rows."""

from __future__ import annotations

import functools
import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from fake_rows import fake_row, fake_table
from matplotlib.figure import Figure
from torch.distributions import Distribution

from pyro_mbde.experiments import __main__ as command
from pyro_mbde.experiments import sweeps
from pyro_mbde.experiments.figures import PLOTS
from pyro_mbde.experiments.measure import GRID_EDGES, decode_grid, encode_grid, grid_points, measure
from pyro_mbde.experiments.problems import RANDOM, find_problem, random_1d, random_2d, ring
from pyro_mbde.experiments.runner import Job
from pyro_mbde.experiments.sweeps import SWEEPS
from pyro_mbde.experiments.systems import LOOKS, SYSTEMS, Setting, Table, fit
from pyro_mbde.metrics import negative_log_likelihood, quadrature_grid
from pyro_mbde.theory import gain_limit


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


def test_a_problem_over_its_baselines_box() -> None:
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


def fit_of(system: str, group_size: int | None) -> Distribution:
    table = Table(torch.rand(200), find_problem("mixture-1d").base, torch.tensor(-2.0), torch.tensor(3.0), (-9.0, 9.0))
    return fit(system, table, Setting(1.0, 1e-5, group_size, seed=0, quick=True))


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

    @pytest.mark.parametrize(
        ("problem", "total"), [("mixture-1d", 3.0), pytest.param("medical", 1.0, marks=pytest.mark.slow)]
    )
    def test_a_batch_costs_the_total_and_gains_its_share(self, problem: str, total: float) -> None:
        options = (("num_rows", 4), ("quick", 1))
        row = measure(Job(problem, "projection", total, options=options))
        assert row["guarantee_epsilon"] == pytest.approx(total)
        base = measure(Job(problem, "base", 1.0, options=(("quick", 1),)))
        gain = float(base["nll"] or 0) - float(row["nll"] or 0)
        assert 0.5 < gain / (gain_limit(total, 0.3) / 4) < 1
        assert "coverage" not in row

    def test_a_group_costs_a_baseline_more(self) -> None:
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

    def test_unknown_names(self) -> None:
        with pytest.raises(ValueError, match="problem must have public bounds"):
            measure(Job("claw", "base", 1.0))
        with pytest.raises(ValueError, match="name must be one of ring, ring-tight,"):
            measure(Job("rings", "base", 1.0))
        with pytest.raises(ValueError, match="system must be one of mbde-paper,"):
            measure(Job("ring", "dbp", 1.0, options=(("quick", 1),)))

    def test_baselines_protect_rows_replaced(self) -> None:
        """Those whose guarantees are of rows added or left out are run for twice as many."""
        for system, group_size, replaced in (("dpb", 10, True), ("mst", 20, False)):
            density: Any = fit_of(system, 10)
            assert (density.guarantee.group_size, density.guarantee.replaced) == (group_size, replaced)
            everything: Any = fit_of(system, None)
            assert (everything.guarantee.group_size, everything.guarantee.replaced) == (None, True)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", sorted(PLOTS))
@pytest.mark.slow
def test_plots_show_the_rows(name: str, *, quick: bool) -> None:
    table = fake_table(name, quick=quick)
    figure = PLOTS[name](table)
    figure.canvas.draw()
    assert figure._supxlabel is not None  # type: ignore[attr-defined]  # matplotlib has no public way to ask
    assert "all rows at once" in figure._supxlabel.get_text().replace("\n", " ")  # type: ignore[attr-defined]  # as above


def plotted(axis: Any) -> dict[str, tuple[list[float], list[float]]]:
    """Points of the lines of an axis, by what the legend calls them."""
    return {
        str(line.get_label()): tuple(np.asarray(part, float).tolist() for part in line.get_data())
        for line in axis.get_lines()
    }


@functools.cache
def drawn(name: str) -> tuple[pd.DataFrame, Figure]:
    """Rows of a sweep and their figure, which nobody changes."""
    table = fake_table(name)
    return table, PLOTS[name](table)


@pytest.mark.parametrize(("problem", "column"), [("ring", 0), ("mixture-1d", 1)])
def test_metrics_lines_are_the_rows(problem: str, column: int) -> None:
    table, figure = drawn("metrics")
    nll, coverage = (plotted(figure.axes[row + column]) for row in (0, 2))
    everything = table["group_size"] == 0
    chosen = {
        "mbde-paper": (table["problem"] == problem) & (table["system"] == "mbde-paper"),
        "projection": (table["problem"] == problem) & (table["system"] == "projection"),
        "projection-box": table["problem"] == f"{problem}-box",
        "dpb-paper": (table["problem"] == problem) & (table["system"] == "dpb-paper"),
        "dpb": (table["problem"] == problem) & (table["system"] == "dpb") & ~everything,
        "dpb-all": (table["problem"] == problem) & (table["system"] == "dpb") & everything,
    }
    for system, rows in chosen.items():
        for name, lines in (("nll", nll), ("coverage", coverage)):
            medians = table[rows].groupby("epsilon")[name].median()
            assert lines[LOOKS[system].label] == (medians.index.tolist(), medians.tolist()), system
    for skew in (0.3, 0.5):
        limits = table[(table["problem"] == problem) & (table["system"] == "limit") & (table["skew"] == skew)]
        limits = limits.sort_values("epsilon")
        assert nll[f"best reachable, skew {skew}"] == (limits["epsilon"].tolist(), limits["nll"].tolist())
    unbounded = [label for label in nll if "NOT private" in label]
    assert len(unbounded) == (problem == "ring")
    assert all("9.5 at ε = 1" in label for label in unbounded)


@pytest.mark.parametrize(
    ("name", "systems"),
    [("random-1d", ("dpb-paper", "mbde-paper", "projection")), ("coverage", ("mbde-paper", "projection"))],
)
def test_lines_by_modes_are_the_rows(name: str, systems: tuple[str, ...]) -> None:
    table, figure = drawn(name)
    column = "coverage" if name == "coverage" else "nll"
    for place, system in enumerate(systems):
        means, deviations = (figure.axes[place + row * len(systems)] for row in (0, 1))
        for modes in (1, 4, 10):
            rows = table[(table["problem"] == f"random-1d-{modes}") & (table["system"] == system)]
            groups = rows.groupby("epsilon")[column]
            assert plotted(means)[f"m = {modes}"] == (groups.mean().index.tolist(), groups.mean().tolist())
            spread = deviations.get_lines()[modes - 1].get_ydata()
            assert np.asarray(spread).tolist() == groups.std().tolist()


@pytest.mark.parametrize("name", ["ring", "random-2d"])
def test_contours_are_the_rows(name: str) -> None:
    table, figure = drawn(name)
    epsilons = sorted(table["epsilon"].unique(), reverse=True)
    for row, system in enumerate(("dpb-paper", "mbde-paper", "projection", "projection-box")):
        axes = figure.axes[row * (len(epsilons) + 1) :][: len(epsilons) + 1]
        assert axes[0].get_ylabel().replace("\n", " ") == LOOKS[system].label.replace("\n", " ")
        for axis, epsilon in zip(axes[1:], epsilons, strict=True):
            boxed = table["problem"] == (f"{name}-box" if system.endswith("-box") else name)
            one = table[boxed & (table["system"] == system.removesuffix("-box")) & (table["epsilon"] == epsilon)]
            assert len(one) == 1
            assert axis.get_xlabel() == f"NLL {one['nll'].iloc[0]:.2f}"


@pytest.mark.parametrize("name", sorted(PLOTS))
@pytest.mark.parametrize(
    "system",
    [
        pytest.param("dpb-paper", marks=pytest.mark.slow),
        "projection",
        pytest.param("mbde-paper", marks=pytest.mark.slow),
        "limit",
        pytest.param("base", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_failed_jobs_leave_gaps(name: str, system: str) -> None:
    table = fake_table(name)
    table.loc[table["system"] == system, ["nll", "coverage", "grid"]] = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = PLOTS[name](table.astype({"nll": float, "coverage": float}))
        figure.canvas.draw()
    assert "nan" not in " ".join(axis.get_xlabel() for axis in figure.axes)


def test_metrics_where_all_unbounded_jobs_failed() -> None:
    PLOTS["metrics"](fake_table("metrics").drop(columns="log_ratio_range"))


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
    assert set(command.NAMES) >= {*SWEEPS, "mollifier", "gain", "skew", "release", "placement", "scale"}
    result = CliRunner().invoke(command.main, ["--help"])
    assert result.exit_code == 0
    for name in command.NAMES:
        assert name in result.output
