"""``fit`` of a table in several files, or too large to be read whole; its checkpoint."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from cli_words import FIT, Run
from rank_processes import rank_environment

from pyro_mbde.tables import streams
from pyro_mbde.tables.files import TableModel
from pyro_mbde.training.density_ratio import DensityRatio, LogRatio
from pyro_mbde.training.weak_learner import WeakLearner

REST = FIT[2:]


@pytest.fixture
def parts() -> list[Path]:
    """The table in three files of a folder."""
    frame = pd.read_csv("table.csv")
    Path("visits").mkdir()
    paths = [Path(f"visits/{year}.parquet") for year in (2023, 2024, 2025)]
    for path, rows in zip(paths, np.array_split(np.arange(len(frame)), 3), strict=True):
        frame.iloc[rows].to_parquet(path)
    return paths


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch, parts: list[Path]) -> list[Path]:
    """The same, taken for a table that is too large to be read whole."""
    monkeypatch.setattr(streams, "MAX_WHOLE_ROWS", 150)
    return parts


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch, in_parts: list[Path], run: Run) -> list[Path]:
    """A fit that was interrupted in its second step."""
    steps = iter(range(3))
    on_step = WeakLearner.fit

    def stopping(self: WeakLearner, *args: object, **options: object) -> object:
        def step() -> None:
            if next(steps) == 1:
                raise KeyboardInterrupt

        return on_step(self, *args, **{**options, "on_step": step})  # type: ignore[arg-type]  # as it was called

    with monkeypatch.context() as patched:
        patched.setattr(WeakLearner, "fit", stopping)
        run("fit", *in_parts, *REST, "--checkpoint-steps", 1, code=130)
    return in_parts


def fitted() -> list[bytes]:
    """What was learned, and where it was placed. (A fingerprint also names its certificate, which is new each time.)"""
    density = TableModel.load("model.pt").density
    state = [tensor.numpy().tobytes() for tensor in density.statistics.state_dict().values()]
    return [*state, repr(density.offset).encode()]


def test_places(parts: list[Path], run: Run) -> None:
    """Files, their folder, a pattern, and the file of options name the same table."""
    Path("options.toml").write_text(
        '[fit]\ntable = ["visits/2023.parquet", "visits/2024.parquet", "visits/2025.parquet"]'
    )
    run(*FIT)
    expected = fitted()
    for places in (parts, ["visits"], ["visits/*.parquet"], ["--config", "options.toml"]):
        run("fit", *places, *REST, "--force")
        assert fitted() == expected


def test_in_parts(in_parts: list[Path], run: Run) -> None:
    """The model says nothing of how the table was read, and no checkpoint is left."""
    answer = run("fit", "visits", *REST).stdout
    assert answer == run(*FIT, "--force").stdout
    assert [path.name for path in Path().glob("model*")] == ["model.pt"]


def test_what_was_left_out_is_told_once(in_parts: list[Path], run: Run) -> None:
    frame = pd.read_parquet(in_parts[1])
    frame.loc[frame.index[:4], "age"] = 400.0
    frame.to_parquet(in_parts[1])
    told = run("fit", "visits", *REST).stderr
    assert told.count("column 'age'") == 1
    assert "4 of 300 values" in told


def test_check_in_parts(in_parts: list[Path], run: Run) -> None:
    in_parts[0].unlink()
    checked = json.loads(run("fit", "visits", "--schema", "schema.toml", "--check", "--json").stdout)
    assert checked == {"rows": 200, "rows_kept": 200, "columns": ["age", "visits"], "left_out": ["name"]}
    whole = json.loads(run("fit", "table.csv", "--schema", "schema.toml", "--check", "--json").stdout)
    assert whole == {**checked, "rows": 300, "rows_kept": 300}


def test_resumed(interrupted: list[Path], run: Run) -> None:
    """The model of an interrupted fit is that of one that was not."""
    checkpoint = Path("model.pt.checkpoint")
    assert stat.S_IMODE(checkpoint.stat().st_mode) == 0o600
    refused = run("fit", *interrupted, *REST, code=1)
    assert "--resume" in refused.stderr
    run("fit", *interrupted, *REST, "--resume")
    assert not checkpoint.exists()
    resumed = fitted()
    run("fit", *interrupted, *REST, "--force")
    assert fitted() == resumed


def test_force_discards_the_checkpoint(interrupted: list[Path], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the new fit has a checkpoint of its own; but not where an argument is wrong."""
    checkpoint = Path("model.pt.checkpoint")
    run("fit", *interrupted, *REST, "--force", "--delta", 2, code=1)
    run("fit", "nowhere", *REST, "--force", code=1)
    assert checkpoint.exists()
    with monkeypatch.context() as patched:
        patched.setattr(DensityRatio, "fit", Mock(side_effect=KeyboardInterrupt))
        run("fit", *interrupted, *REST, "--force", "--resume", code=130)
        assert checkpoint.exists()
        run("fit", *interrupted, *REST, "--force", code=130)
        assert not checkpoint.exists()


def test_small_tables_have_a_checkpoint_where_it_is_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []
    fit = DensityRatio.fit

    def noting(self: DensityRatio, *args: Any, **options: Any) -> LogRatio:
        kept.append(self.checkpoint is not None)
        return fit(self, *args, **options)

    monkeypatch.setattr(DensityRatio, "fit", noting)
    for options in ((), ("--checkpoint-steps", 1), ("--resume",)):
        run(*FIT, "--force", *options)
    assert kept == [False, True, True]


def test_what_the_schema_refuses_is_told_before_the_fit(
    in_parts: list[Path], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever slices the fit would have read."""
    text = Path("schema.toml").read_text().replace('name = "age"', 'name = "age"\noutside = "refuse"')
    Path("schema.toml").write_text(text)
    assert "refuse" in text
    monkeypatch.setattr(DensityRatio, "fit", Mock(side_effect=KeyboardInterrupt))
    run("fit", "visits", *REST, code=130)
    frame = pd.read_parquet(in_parts[2])
    frame.loc[frame.index[-1], "age"] = 400.0
    frame.to_parquet(in_parts[2])
    assert "must hold what its schema allows" in run("fit", "visits", *REST, code=1).stderr


def test_check_is_for_one_process(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in rank_environment(0, 2, 1).items():
        monkeypatch.setenv(name, value)
    told = run("fit", "table.csv", "--schema", "schema.toml", "--check", code=2).stderr
    assert "--check runs in one process. Run it without torchrun." in " ".join(told.split())


def test_another_table_is_not_gone_on_with(interrupted: list[Path], run: Run) -> None:
    pd.read_parquet(interrupted[0]).iloc[1:].to_parquet(interrupted[0])
    assert "table" in run("fit", *interrupted, *REST, "--resume", code=1).stderr
    assert not Path("model.pt").exists()


def test_resume_without_a_checkpoint_starts_at_the_beginning(run: Run) -> None:
    """So that the same command can be run until it succeeds."""
    run(*FIT, "--resume")
    assert Path("model.pt").exists()


@pytest.mark.parametrize("option", [("--device", "cpu"), ("--split", "rows"), ("--resume",), ("--checkpoint-steps", 5)])
def test_boosting_has_none_of_it(option: tuple[object, ...], run: Run) -> None:
    assert "for --method ratio" in run(*FIT, "--method", "mbde", *option, code=2).stderr


def test_a_device_that_is_not_there(run: Run) -> None:
    assert "--device" in run(*FIT, "--device", "kuda", code=1).stderr


def test_what_it_reads_is_never_replaced(parts: list[Path], run: Run) -> None:
    words = [*REST[:-1], "visits/2024.parquet"]
    assert "reads" in run("fit", "visits", *words, "--force", code=2).stderr


def test_the_private_table_is_not_public(parts: list[Path], run: Run) -> None:
    """Nor is one of its files, under another name."""
    Path("survey.parquet").write_bytes(parts[1].read_bytes())
    assert "private table" in run("fit", "visits", *REST, "--public-rows", "survey.parquet", code=2).stderr


def test_a_job_that_is_started_again_after_its_end_does_nothing(run: Run) -> None:
    run(*FIT)
    before = Path("model.pt").read_bytes()
    assert "the fit is done" in run(*FIT, "--resume").stderr
    assert Path("model.pt").read_bytes() == before
