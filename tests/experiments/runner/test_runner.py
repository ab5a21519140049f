"""Sweeps: each job once, whatever happens to it, and the same bits anywhere."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sweep_jobs import jobs_of, measure, sleep, slow, special, trouble
from sweeps import MEASURED, Breaking, Serial, lines, sweep

import pyro_mbde
from pyro_mbde.experiments.processes import WorkerProcesses
from pyro_mbde.experiments.results import ResultsFile, SweepError, read_results
from pyro_mbde.experiments.runner import Job, current_versions, run_sweep

SCRIPT = Path(__file__).parents[2] / "support" / "sweep_jobs.py"


class TestJob:
    def test_key_and_seed(self) -> None:
        job = Job("ring", "dpb", 0.5, options=(("group_size", 10), ("quick", 1)))
        assert job.key == "ring/dpb/0.5/0/group_size=10/quick=1"
        assert job.seed == 1063522819946129  # on every machine, for ever
        assert Job("ring", "dpb", 1) == Job("ring", "dpb", 1.0)
        assert Job("ring", "dpb", math.inf, 3).key == "ring/dpb/inf/3"
        assert pickle.loads(pickle.dumps(job)) == job

    def test_seeds_differ_and_are_whole_numbers_of_a_float(self) -> None:
        seeds = {job.seed for job in jobs_of(1000)}
        assert len(seeds) == 1000
        assert all(int(float(seed)) == seed for seed in seeds)
        assert max(seeds) > 2**52

    @pytest.mark.parametrize(
        ("arguments", "kind", "text"),
        [
            ((1, "s", 1.0), TypeError, "problem must be a string, got problem=1"),
            (("a/b", "s", 1.0), ValueError, "problem must be a word"),
            (("a", "", 1.0), ValueError, "system must be a word"),
            (("a", "s", 0.0), ValueError, "epsilon must be above 0"),
            (("a", "s", "1"), TypeError, "epsilon must be a real number"),
            (("a", "s", 1.0, -1), ValueError, "repeat must be at least 0"),
            (("a", "s", 1.0, 0, {"b": 1}), TypeError, "options must be a tuple of pairs"),
            (("a", "s", 1.0, 0, (("b", 1), ("a", 1))), ValueError, "options must be sorted by name"),
            (("a", "s", 1.0, 0, (("b", 1), ("b", 2))), ValueError, "options must be sorted by name"),
            (("a", "s", 1.0, 0, (("seed", 1),)), ValueError, "options must be called otherwise"),
            (("a", "s", 1.0, 0, (("b", "nan"),)), ValueError, "b must be a word"),
            (("a", "s", 1.0, 0, (("b", True),)), TypeError, "b must be a number or a word, got b=True"),
        ],
    )
    def test_arguments(self, arguments: tuple[Any, ...], kind: type[Exception], text: str) -> None:
        with pytest.raises(kind, match=text):
            Job(*arguments)


def test_a_row_says_what_was_run_with_what(path: Path) -> None:
    job = Job("ring", "dpb", 0.5, 2, (("group_size", 10),))
    row = sweep([job], special, path).iloc[0]
    assert (row["problem"], row["system"], row["epsilon"], row["repeat"]) == ("ring", "dpb", 0.5, 2)
    assert (row["key"], row["seed"], row["group_size"]) == (job.key, job.seed, 10)
    assert row["error"] is None
    assert 0 <= row["seconds"] < 10
    assert row["torch"] == torch.__version__
    assert row["numpy"] == np.__version__
    assert row["opacus"] == metadata.version("opacus")
    assert all(isinstance(row[name], str) for name in ("python", "pyro-ppl", "mbi", "jax", "pyro_mbde"))


def few_modules(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the package's, with three of its modules."""
    package = Path(pyro_mbde.__file__).parent
    for name in ("__init__.py", "limits.py", "privacy/guarantee.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package / name, folder / name)
    monkeypatch.setattr(pyro_mbde, "__file__", str(folder / "__init__.py"))
    return folder


def test_the_source_of_a_row_is_that_of_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = few_modules(tmp_path / "here", monkeypatch)
    expected = current_versions.__wrapped__()["source"]
    copy = few_modules(tmp_path / "copy", monkeypatch)
    assert current_versions.__wrapped__()["source"] == expected
    for name in ("limits.py", "privacy/guarantee.py"):
        code = (here / name).read_text()
        for addition, is_same in (("\n# A comment.\n", True), ("\nEXTRA = 1\n", False)):
            (copy / name).write_text(code + addition)
            assert (current_versions.__wrapped__()["source"] == expected) is is_same
        (copy / name).write_text(code)
    (copy / "limits.py").rename(copy / "bounds.py")
    assert current_versions.__wrapped__()["source"] != expected


def test_a_package_that_is_missing_has_no_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    few_modules(tmp_path, monkeypatch)

    def version(name: str) -> str:
        if name == "opacus":
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(metadata, "version", version)
    versions = current_versions.__wrapped__()
    assert (versions["opacus"], versions["mbi"]) == (None, "1.0")


def test_floats_survive(path: Path) -> None:
    row = sweep(jobs_of(1), special, path).iloc[0]
    again = json.loads(lines(path)[0])
    for values in (row, again):
        assert values["inf"] == math.inf == -values["minus_inf"]
        assert math.isnan(values["nan"])
        assert (values["tiny"], values["third"], values["count"]) == (5e-324, 1 / 3, 2**60)
        assert (values["float32"], values["int64"]) == (float(np.float32(0.1)), 7)
        assert (values["none"], values["word"]) == (None, "a\nword")
    assert again["flag"] is True


def test_the_same_bits_in_any_executor_and_order(path: Path, workers: WorkerProcesses) -> None:
    jobs = jobs_of(8)
    serial = sweep(jobs, measure, path)
    assert serial["product"].nunique() == serial["normal"].nunique() == 8
    assert set(serial["threads"]) == {1}
    with ThreadPoolExecutor(4) as threads:
        for name, executor, order in (("threads", threads, jobs[::-1]), ("processes", workers, jobs[4:] + jobs[:4])):
            other = sweep(order, measure, path.with_name(name), executor=executor)
            assert list(other["key"]) == [job.key for job in order]
            pd.testing.assert_frame_equal(
                other[MEASURED].sort_values("key", ignore_index=True), serial[MEASURED], check_exact=True
            )
    assert str(os.getpid()) not in set(other["process"])


@pytest.mark.slow
@pytest.mark.filterwarnings("default::ResourceWarning")  # of Dask's own sockets
def test_the_same_bits_under_dask(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dask = pytest.importorskip("dask")
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")]))
    jobs = jobs_of(6)
    options = {"n_workers": 2, "processes": True, "threads_per_worker": 1, "dashboard_address": None}
    with (
        dask.config.set({"distributed.admin.system-monitor.disk": False}),
        distributed.LocalCluster(**options, silence_logs="CRITICAL") as cluster,
        distributed.Client(cluster) as client,
    ):
        spread = sweep(jobs, measure, path, executor=client.get_executor())
    serial = sweep(jobs, measure, path.with_name("serial"))
    pd.testing.assert_frame_equal(spread[MEASURED], serial[MEASURED], check_exact=True)
    assert str(os.getpid()) not in set(spread["process"])


def test_the_callers_generators_and_threads_are_left_alone(path: Path) -> None:
    state = torch.get_rng_state()
    sweep(jobs_of(2), measure, path)
    assert torch.equal(torch.get_rng_state(), state)


def test_jobs_that_have_a_row_are_not_run_again(path: Path) -> None:
    sweep(jobs_of(2), measure, path)
    before = path.read_text()
    table = sweep(jobs_of(3), slow, path)
    assert path.read_text().startswith(before)
    assert len(lines(path)) == 3
    assert len(table) == len(read_results(path)) == 3
    assert len(sweep(jobs_of(2), measure, path)) == 2  # those asked for alone
    assert len(sweep([], measure, path)) == 0


def test_trouble_is_a_row_and_is_tried_again(path: Path, folder: Path, workers: WorkerProcesses) -> None:
    systems = ["good", "raise", "kill", "leave", "tensor", "name", "number", "fine"]
    jobs = [Job("test", system, 1.0) for system in systems]
    errors = sweep(jobs, trouble, path, executor=workers).set_index("system")["error"]
    died = "WorkerDiedError: the worker process ended (exit code -9): killed, out of memory, or crashed"
    assert errors["kill"] == died
    assert errors["raise"] == "ValueError: no\nway"
    assert errors["leave"] == "SystemExit: 4"
    assert errors["tensor"].startswith("TypeError: function must return numbers, words or None")
    assert errors["name"].startswith("ValueError: results must be called otherwise")
    assert errors["number"].startswith("TypeError: function must return a mapping")
    assert errors[["good", "fine"]].isna().all()
    assert len(lines(path)) == len(jobs)

    (folder / "well").touch()
    table = sweep(jobs, trouble, path, executor=workers)
    assert table["error"].isna().all()
    assert table["product"].notna().all()
    assert len(lines(path)) == len(jobs) + 6
    assert len(read_results(path)) == len(jobs)  # the newest row of each


def test_a_bar_unless_it_is_turned_off(path: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sweep(jobs_of(2), measure, path)
    assert capfd.readouterr() == ("", "")
    jobs = [*jobs_of(3), Job("test", "raise", 1.0)]
    run_sweep(jobs, trouble, path, executor=Serial())
    assert "sweep: 100%|██████████| 4/4" in capfd.readouterr().err.replace("failed=1", "")


class TestBrokenExecutor:
    def test_one_break_is_one_failed_row(self, path: Path) -> None:
        errors = sweep(jobs_of(4), measure, path, executor=Breaking(2, for_good=False))["error"]
        assert list(errors.isna()) == [True, False, True, True]
        assert errors[1] == "BrokenExecutor: a worker is gone"

    def test_a_break_for_good_ends_the_sweep(self, path: Path) -> None:
        with pytest.raises(
            SweepError, match=r"takes no more jobs: all gone\. Rows so far are kept: run the sweep again"
        ):
            sweep(jobs_of(4), measure, path, executor=Breaking(2, for_good=True))
        assert list(read_results(path)["error"].isna()) == [True, False]
        assert sweep(jobs_of(4), measure, path)["error"].isna().all()

    def test_a_standard_pool(self, path: Path, folder: Path) -> None:
        jobs = [Job("test", "kill", 1.0), *jobs_of(3)]
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
            with pytest.raises(SweepError, match="the executor takes no more jobs"):
                sweep(jobs, trouble, path, executor=executor)
        assert list(read_results(path)["error"].str.startswith("BrokenProcessPool")) == [True]

    def test_closed_before_the_sweep(self, path: Path) -> None:
        executor = ThreadPoolExecutor(1)
        executor.shutdown()
        with pytest.raises(SweepError, match="cannot schedule new futures after shutdown"):
            sweep(jobs_of(1), measure, path, executor=executor)

    def test_an_executor_with_errors_of_its_own(self, path: Path) -> None:
        class Closed(Serial):
            def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
                raise Exception("Client is closed.")

        with pytest.raises(SweepError, match="the executor takes no more jobs: Client is closed. Rows so far"):
            sweep(jobs_of(1), measure, path, executor=Closed())

    def test_a_cancelled_job(self, path: Path) -> None:
        class Cancelling(Serial):
            def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
                future: Future[Any] = Future()
                future.cancel()
                return future

        table = sweep(jobs_of(1), measure, path, executor=Cancelling())
        assert list(table["error"]) == ["BrokenExecutor: the executor cancelled the job"]


@pytest.mark.slow
def test_a_script_without_a_main_guard_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from sweep_jobs import jobs_of, measure\n"
        "from pyro_mbde.experiments.runner import run_sweep\n"
        f"run_sweep(jobs_of(2), measure, {str(tmp_path / 'sweep.jsonl')!r}, num_workers=1, progress=False)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")])}
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=100)
    assert ended.returncode == 1
    assert "SweepError" in ended.stderr.splitlines()[-1]
    assert 'keeps what it runs under if __name__ == "__main__":' in ended.stderr


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"jobs": jobs_of(2) + jobs_of(1)}, ValueError, "jobs must have keys of their own, got jobs='test/one/1.0/0'"),
        ({"jobs": ["ring"]}, TypeError, "jobs must be instances of Job"),
        ({"function": lambda job: {}}, TypeError, "function must be one that other processes can import"),
        ({"num_workers": 0}, ValueError, "num_workers must be at least 1"),
        ({"num_workers": 2, "executor": Serial()}, ValueError, "num_workers must be left out"),
        ({"progress": 1}, TypeError, "progress must be True or False"),
    ],
)
def test_arguments(changes: dict[str, Any], kind: type[Exception], text: str, path: Path) -> None:
    with pytest.raises(kind, match=text):
        run_sweep(**({"jobs": jobs_of(1), "function": measure, "path": path} | changes))
    assert not path.exists()


@pytest.mark.usefixtures("folder")
def test_an_error_of_the_file_ends_the_workers(
    path: Path, monkeypatch: pytest.MonkeyPatch, new_children: Callable[[], int]
) -> None:
    def fail(results: ResultsFile, row: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(ResultsFile, "append", fail)
    with pytest.raises(OSError, match="no space left"):
        run_sweep(jobs_of(3), sleep, path, num_workers=1, progress=False)
    assert new_children() == 0


def test_equal_jobs_have_equal_keys() -> None:
    """1.0 is 1 in Python: two jobs that are equal must be one."""
    whole, real = Job("p", "s", 1.0, 0, (("o", 1),)), Job("p", "s", 1.0, 0, (("o", 1.0),))
    assert whole == real
    assert whole.key == real.key
    assert Job("p", "s", 1.0, 0, (("o", 0.5),)).key.endswith("o=0.5")
