"""The bench of large tables: its table, what it runs, its costs on paper and its pictures."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from densities import scale_calibration

from pyro_mbde import DensityRatio, Schema
from pyro_mbde._torch_state import seeded
from pyro_mbde.experiments import bench, bench_scale, scale_fit, scale_table
from pyro_mbde.experiments.bench_scale import Tables
from pyro_mbde.experiments.scale_costs import Constants, cost, cost_lines
from pyro_mbde.experiments.scale_fit import Yardstick, fit_and_score
from pyro_mbde.experiments.scale_pictures import plot_gain, plot_memory, plot_path
from pyro_mbde.experiments.scale_runs import FailedRunError, run
from pyro_mbde.experiments.scale_table import SHARE, TwoGroups, blocks, held_out_rows, public_schema, write_table
from pyro_mbde.limits import best_reachable
from pyro_mbde.tables.files import read_table
from pyro_mbde.training.density_ratio import LogRatio

CONSTANTS = Constants(34.0, 5e5, 4e5, 3e-4, 7e-6, 7e4, 3e-4)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_table, "BLOCK_ROWS", 100)


def rows_of(num_rows: int, seed: int = 0) -> torch.Tensor:
    return torch.cat(list(blocks(num_rows, seed)))


@pytest.mark.usefixtures("small_blocks")
class TestTable:
    def test_rows_follow_from_seed_and_number(self) -> None:
        assert torch.equal(rows_of(250), rows_of(620)[:250])
        assert torch.equal(rows_of(250), rows_of(250))
        assert not torch.equal(rows_of(100), rows_of(100, seed=1))
        assert not torch.equal(rows_of(100), held_out_rows(100))

    @pytest.mark.parametrize("form", ["parquet", "csv"])
    def test_files_hold_the_rows(self, form: str, tmp_path: Path) -> None:
        path = write_table(tmp_path / f"rows.{form}", 330, seed=3)
        rows = public_schema().to_tensor(read_table(path))
        torch.testing.assert_close(rows, rows_of(330, 3), rtol=1e-5, atol=1e-5)

    def test_row_groups(self, tmp_path: Path) -> None:
        parquet = importlib.import_module("pyarrow.parquet")
        for group_rows, sizes in ((100, [100, 100, 100, 30]), (200, [200, 130]), (50, [50] * 6 + [30])):
            found = parquet.ParquetFile(write_table(tmp_path / "rows.parquet", 330, group_rows=group_rows)).metadata
            assert [found.row_group(at).num_rows for at in range(found.num_row_groups)] == sizes

    def test_sorted(self, tmp_path: Path) -> None:
        ages = read_table(write_table(tmp_path / "rows.parquet", 330, sort_by="age"))["age"]
        assert ages.is_monotonic_increasing
        assert ages.tolist() == pytest.approx(sorted(rows_of(330)[:, 0].tolist()))

    @pytest.mark.parametrize(("name", "options"), [("rows.txt", {}), ("rows.csv", {"sort_by": "hair"})])
    def test_arguments(self, name: str, options: dict[str, Any], tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="path must be|sort_by must name"):
            write_table(tmp_path / name, 10, **options)


def test_the_law_is_of_both_groups() -> None:
    """The mean of a group's posterior share over draws of the law is the share itself."""
    law = TwoGroups()
    with seeded(1), torch.no_grad():
        rows, of_first = law.sample((2**15,)), law.groups[0].sample((2**15,))
        posterior = SHARE * (law.groups[0].log_prob(rows).double() - law.log_prob(rows)).exp()
    assert float(posterior.mean()) == pytest.approx(SHARE, abs=4 * 0.5 / 2**7.5)
    weighted = (posterior.unsqueeze(-1) * rows).mean(0) / SHARE
    spread = of_first.double().std(0) + rows.double().std(0)
    assert bool(((weighted - of_first.double().mean(0)).abs() < 4 * spread / 2**7.5 / SHARE).all())


def test_yardstick() -> None:
    yardstick = Yardstick(20_000)
    with seeded(0):
        best = best_reachable(TwoGroups(), yardstick.base, 1.0, 0.3, num_draws=2**14)
    assert yardstick.best_gain(1.0) == pytest.approx(best.gain, abs=0.02)
    assert yardstick.best_gain(1.0) < yardstick.best_gain(10.0)
    assert yardstick.gain(TwoGroups().log_prob(yardstick.rows)) == pytest.approx(yardstick.best_gain(50.0), abs=0.05)
    assert yardstick.gain(yardstick.base.log_prob(yardstick.rows)) == 0


def timed(monkeypatch: pytest.MonkeyPatch, methods: dict[str, tuple[type, float]]) -> list[float]:
    """Stops the clock of a fit, except in some methods, which take so many seconds; returns those that went by."""
    gone: list[float] = []

    def slow(method: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            gone.append(seconds)
            return method(*args, **options)

        return run

    for name, (owner, seconds) in methods.items():
        monkeypatch.setattr(owner, name, slow(getattr(owner, name), seconds))
    monkeypatch.setattr(scale_fit, "time", SimpleNamespace(perf_counter=lambda: sum(gone)))
    return gone


@pytest.mark.usefixtures("small_blocks")
def test_a_fit_is_timed_and_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scale_calibration(monkeypatch)
    seconds = timed(monkeypatch, {"stream": (Schema, 1.0), "fit": (DensityRatio, 10.0), "mollify": (LogRatio, 100.0)})
    yardstick = Yardstick(1_000)
    record = fit_and_score(str(write_table(tmp_path / "rows.parquet", 500)), yardstick, steps=40, epsilons=(1.0,))
    assert record["steps"] == 40
    assert 0 < record["gain"]["1.0"] <= record["best"]["1.0"] + 0.02
    assert record["nll"] > record["entropy"]
    assert [record[f"{part}_seconds"] for part in ("index", "training", "calibration")] == [1, 10, 100]
    assert sum(seconds) == 111


class TestRuns:
    def test_peak_memory_is_the_programs_alone(self) -> None:
        held = bytearray(100 * 2**20)  # of this process, which is not measured
        held[:: 2**12] = b"x" * len(held[:: 2**12])
        small = run([sys.executable, "-S", "-c", "print('{}')"])
        large = run([sys.executable, "-S", "-c", "print(1); held = b'x' * 2**26; print('{\"a\": 1}')"])
        assert small.peak_bytes < 2**25 < 2**26 <= large.peak_bytes < 2**27
        assert large.answer == {"a": 1}

    def test_failures_are_told(self) -> None:
        with pytest.raises(FailedRunError, match="ended with code 3:\n  no luck"):
            run([sys.executable, "-S", "-c", "import sys; print('no luck', file=sys.stderr); sys.exit(3)"])


class TestCosts:
    def test_one_process_reads_and_trains_all(self) -> None:
        found = cost(CONSTANTS, 4e8, 1, 512, processes=1)
        assert found.read == pytest.approx(1000 / 3600)
        assert found.train == pytest.approx(4e8 / 512 * (3e-4 + 512 * 7e-6) / 3600)
        assert found.average == 0
        assert found.total == found.read + found.train

    def test_a_batch_that_grows_with_the_processes_divides_the_work(self) -> None:
        one, eight = (cost(CONSTANTS, 1e9, machines, 4096 * machines) for machines in (1, 8))
        assert eight.read == pytest.approx(one.read / 8)
        assert eight.train == pytest.approx(one.train / 8)
        assert eight.total < one.total

    def test_a_fixed_batch_waits_for_the_ring(self) -> None:
        totals = [cost(CONSTANTS, 1e9, machines, 512).total for machines in (1, 8, 64)]
        assert totals[0] < totals[1] < totals[2]

    def test_lines(self) -> None:
        lines = cost_lines(CONSTANTS)
        assert len(lines) == 13
        assert len({len(line) for line in lines}) == 1
        assert lines[0].split()[:2] == ["rows", "machines"]


def memory_records() -> list[dict[str, Any]]:
    return [
        {"command": command, "form": form, "rows": rows, "steps": 420, "is_default": True, "seconds": 9.0}
        | {"peak_bytes": 4e8 + rows}
        for command in ("start", "start and certificate", "fit", "check")
        for form in ("parquet", "csv")
        for rows in (10_000, 1_000_000)
    ]


def gain_records() -> list[dict[str, Any]]:
    return [
        {"rows": rows, "steps": steps, "sorted": False, "gain": {"1.0": 0.5, "3.0": 1.0}}
        | {"best": {"1.0": 0.6, "3.0": 1.2}}
        for rows in (10_000, 1_000_000)
        for steps in (420, 1_680)
    ]


def test_pictures() -> None:
    memory = plot_memory(memory_records())
    left, right = memory.axes
    lines = {str(line.get_label()): line for line in left.get_lines()}
    assert np.asarray(lines["Parquet files"].get_xdata()).tolist() == [10_000, 1_000_000]
    assert "if the table were held whole, at least" in lines
    assert len(right.get_lines()) == 4
    gain = plot_gain(gain_records())
    assert [axis.get_title() for axis in gain.axes] == ["ε = 1", "ε = 3"]
    for figure in (memory, gain, plot_path()):
        figure.canvas.draw()


class TestCommand:
    def test_parts_are_measured_and_redrawn(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(bench_scale.PARTS, "memory", lambda *_: iter(memory_records()))
        arguments = ["scale", "--quick", "--part", "memory", "--results", str(tmp_path)]
        result = CliRunner().invoke(bench.main, [*arguments, "-o", str(tmp_path / "pictures")])
        assert result.exit_code == 0, result.output
        assert json.loads((tmp_path / "scale-memory-quick.json").read_text()) == memory_records()
        monkeypatch.setitem(bench_scale.PARTS, "memory", lambda *_: pytest.fail("measured again"))
        result = CliRunner().invoke(bench.main, [*arguments, "--redraw"])
        assert result.exit_code == 0, result.output
        for folder in (tmp_path, tmp_path / "pictures"):
            assert (folder / "large-tables.png").stat().st_size > 10_000
            assert (folder / "large-tables-path.png").stat().st_size > 10_000

    def test_a_program_that_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bench_scale, "module", lambda *_, **__: [sys.executable, "-S", "-c", "1 / 0"])
        result = CliRunner().invoke(bench.main, ["scale", "--quick", "--part", "memory", "--results", str(tmp_path)])
        assert result.exit_code == 1
        assert "ZeroDivisionError" in result.output

    def test_tables_are_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tables = Tables(tmp_path / "tables")
        path = tables.rows(50, group_rows=20)
        monkeypatch.setattr(bench_scale, "write_table", lambda *_, **__: pytest.fail("written again"))
        assert tables.rows(50, group_rows=20) == path
        assert tables.schema.read_text() == public_schema().to_toml()

    @pytest.mark.slow
    @pytest.mark.parametrize("part", list(bench_scale.PARTS))
    def test_quick(self, part: str, tmp_path: Path) -> None:
        result = CliRunner().invoke(bench.main, ["scale", "--quick", "--part", part, "--results", str(tmp_path)])
        assert result.exit_code == 0, result.output
        records = json.loads((tmp_path / f"scale-{part}-quick.json").read_text())
        assert records
        if part == "ranks":
            assert {(one["ranks"], one["split"]) for one in records} == {(1, "auto"), (2, "rows"), (2, "networks")}
            assert all(math.isfinite(gain) for one in records for gain in one["gain"].values())
        if part == "costs":
            constants = Constants(**{name: records[-1][name] for name in asdict(CONSTANTS)})
            assert records[-1]["table"] == cost_lines(constants)
