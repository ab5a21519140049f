"""The decision picture: what is drawn of the rows, from which group size on ours is better, and the page's table."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_rows import fake_row, fake_table

from pyro_mbde.experiments import sweeps
from pyro_mbde.experiments.decision import crossings, plot_decision
from pyro_mbde.experiments.runner import Job
from pyro_mbde.experiments.systems import BASELINES
from pyro_mbde.privacy.accounting import compose, epsilon_per_draw
from pyro_mbde.privacy.guarantee import Guarantee


def decision_table(nll: Callable[[Job], float]) -> pd.DataFrame:
    return pd.DataFrame([fake_row(job) | {"nll": nll(job)} for job in sweeps.decision("ring-box")])


@pytest.mark.parametrize("num_draws", sweeps.NUM_DRAWS)
@pytest.mark.parametrize("total", sweeps.TOTALS)
def test_draws_of_ours_cost_the_total(total: float, num_draws: int) -> None:
    """At the baselines' delta, by the form in which the projection comes; and nothing to speak of is left over."""
    plan = epsilon_per_draw(total, num_draws, sweeps.DECISION_DELTA)
    assert (plan.form, plan.delta, plan.skew) == ("calibrated", 1e-9, 0.3)
    epsilon = sweeps.draw_epsilon(total, num_draws)
    cost = compose(Guarantee(epsilon, 1e-9, 2 * epsilon), num_draws, sweeps.DECISION_DELTA)
    assert 0.998 * total < cost.epsilon <= total
    assert cost.delta <= sweeps.DECISION_DELTA


class TestDecision:
    def test_crossings(self) -> None:
        def nll(job: Job) -> float:
            if job.system == "projection":
                return 6.0 if job.epsilon > 0.9 else 8.0  # k = 1 at E = 1; k = 1 and 10 at E = 10
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

    def test_failed_and_infinite_baselines_do_not_win(self) -> None:
        table = crossings(decision_table(lambda job: 6.0 if job.system == "projection" else math.inf))
        assert set(table["from_group"]) == {"1"}

    def test_no_better_than_the_base_is_no_choice(self) -> None:
        table = crossings(decision_table(lambda job: {"projection": 6.995, "base": 7.0}.get(job.system, 8.0)))
        assert set(table["from_group"]) == {"base"}

    def test_a_baseline_that_is_not_there(self) -> None:
        table = decision_table(lambda job: {"projection": 6.0, "base": 7.0}.get(job.system, 8.0))
        assert set(crossings(table[table["system"] != "mst"])["from_group"]) == {"unknown"}

    def test_failed_jobs_decide_nothing(self) -> None:
        table = decision_table(lambda job: 6.0 if job.system == "projection" else 7.0)
        ours = table.assign(nll=table["nll"].where(table["system"] != "projection"))
        assert set(crossings(ours)["from_group"]) == {"unknown"}
        baseline = table.assign(nll=table["nll"].where((table["system"] != "mst") | (table["group_size"] != 1)))
        assert set(crossings(baseline)["from_group"]) == {"unknown"}
        nobody = table.assign(nll=table["nll"].where(table["group_size"] != 1))
        assert set(crossings(nobody)["from_group"]) == {"unknown"}

    def test_plot_where_the_base_failed(self) -> None:
        table = fake_table("decision")
        figure = plot_decision(table.assign(nll=table["nll"].where(table["system"] != "base")))
        figure.canvas.draw()

    @pytest.mark.parametrize("quick", [False, True])
    def test_plot(self, *, quick: bool) -> None:
        table = fake_table("decision", quick=quick)
        figure = plot_decision(table)
        figure.canvas.draw()
        totals = sorted(table.loc[table["system"] == "mst", "epsilon"].unique())
        assert len(figure.axes) == len(totals)
        for axis, total in zip(figure.axes, totals, strict=True):
            lines = {str(line.get_label()): np.asarray(line.get_ydata(), float) for line in axis.get_lines()}
            for system, label in {
                "dpb": "DPB",
                "dpgan": "DPGAN",
                "flow": "Spline flow by DP-SGD",
                "mst": "MST",
            }.items():
                rows = table[(table["system"] == system) & (table["epsilon"] == total)]
                medians = rows.groupby("group_size")["nll"].median()
                sizes = [size for size in sweeps.GROUP_SIZES if size in medians]
                assert lines[label].tolist() == medians[sizes].tolist()
            for num_draws in sweeps.NUM_DRAWS:
                cost = sweeps.draw_epsilon(total, num_draws)
                rows = table[(table["system"] == "projection") & (table["epsilon"] == cost)]
                assert set(lines[f"ours, k = {num_draws} draws"]) == {rows["nll"].median()}


@pytest.mark.parametrize("name", ["decision", "decision-medical"])
def test_the_documentations_table_is_that_of_the_results(name: str) -> None:
    """The row of each total budget, from the CSV beside the picture."""
    docs = Path(__file__).parents[2] / "docs"
    table, text = pd.read_csv(docs / "images" / f"{name}.csv"), (docs / "experiments.md").read_text()
    # Rows of the medical table that an earlier version's flow gave are not those of the present one.
    assert ("flow" in set(table["system"])) != ("flow-realnvp" in set(table["system"]))
    titles = {"dpb": "DPB", "dpgan": "DPGAN", "flow": "Flow", "mst": "MST"}
    for total in sweeps.TOTALS:
        baselines = table[table["system"].isin(BASELINES) & (table["epsilon"] == total)]
        medians = baselines.groupby(["group_size", "system"])["nll"].median().unstack()
        ours = [
            table[(table["system"] == "projection") & (table["epsilon"] == sweeps.draw_epsilon(total, k))][
                "nll"
            ].median()
            for k in sweeps.NUM_DRAWS
        ]
        cells = [f"{total:g}", ", ".join(f"{value:.3f}" for value in ours)]
        cells += [f"{medians.loc[g].min():.3f} {titles[medians.loc[g].idxmin()]}" for g in sweeps.GROUP_SIZES]
        assert f"| {' | '.join(cells)} |" in text
