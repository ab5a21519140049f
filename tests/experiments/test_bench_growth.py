"""The bench of growth: what it measures, its table and its picture."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from pyro_mbde.experiments import bench, bench_growth
from pyro_mbde.experiments.bench_growth import PANELS, Point, Sizes, plot

TINY = Sizes(200, 2, 1, (1, 2), (0.5,), (1,), (1, 20))


def test_time_is_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0, 3, 10, 11, 20, 25.0])
    monkeypatch.setattr("time.thread_time", lambda: next(times))
    assert bench_growth._seconds(lambda: None, 3) == (3, 3)
    times = iter([0, 11.0])  # long enough for one
    assert bench_growth._seconds(lambda: None, 3) == (11, 1)


def test_lines_of_the_picture() -> None:
    points = [Point(panel, line, at, at / 10, 1) for panel in PANELS for line in ("a", "b") for at in (1.0, 2.0)]
    figure = plot(pd.DataFrame(points).assign(quick=1))
    assert [axis.get_title() for axis in figure.axes] == [title for title, *_ in PANELS.values()]
    assert all(len(axis.get_lines()) == 2 for axis in figure.axes)
    assert figure.get_supxlabel().startswith("QUICK RUN")


@pytest.mark.slow
def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_growth, "QUICK", TINY)
    picture = tmp_path / "growth.png"
    result = CliRunner().invoke(bench.main, ["growth", "--quick", "-o", str(picture)])
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "growth.csv")
    assert set(table["panel"]) == set(PANELS)
    assert table["seconds"].gt(0).all()
    lines = table.groupby("panel")["line"].nunique()
    assert lines.to_dict() == {"fit": 1, "columns": 2, "epsilon": 2, "batch": 1, "draw": 4, "log_prob": 2}
    picture.unlink()
    monkeypatch.setattr(bench_growth, "measure", lambda sizes: pytest.fail("measured again"))
    result = CliRunner().invoke(bench.main, ["growth", "--redraw", "-o", str(picture)])
    assert result.exit_code == 0, result.output
    assert picture.exists()
