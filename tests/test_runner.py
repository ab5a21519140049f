"""Sweeps: each job once, whatever happens to workers, the parent or the file, and the same bits anywhere."""

from __future__ import annotations

import contextlib
import io
import json
import math
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sweep_jobs import be_stubborn, jobs_of, measure, sleep, slow, special, trouble

import pyro_mbde
from pyro_mbde.experiments.processes import WorkerDiedError, WorkerProcesses
from pyro_mbde.experiments.results import ResultsFile, SweepError, read_results
from pyro_mbde.experiments.runner import Job, Measure, current_versions, run_sweep

#: What two runs of a job share.
MEASURED = ["key", "seed", "product", "normal", "threads"]
SCRIPT = Path(__file__).with_name("sweep_jobs.py")


class Serial(Executor):
    """Runs each task where it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Breaking(Executor):
    """Breaks at one submission, or for each one from it on."""

    def __init__(self, at: int, *, for_good: bool) -> None:
        self.at, self.for_good, self.count = at, for_good, 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.count += 1
        if self.count > self.at and self.for_good:
            raise BrokenExecutor("all gone")
        future: Future[Any] = Future()
        if self.count == self.at:
            future.set_exception(BrokenExecutor("a worker is gone"))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results" / "sweep.jsonl"


@pytest.fixture(scope="module", autouse=True)
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that jobs look at, known to all processes from their start."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("sweep")
        patch.setenv("SWEEP_FOLDER", str(folder))
        yield folder


@pytest.fixture
def folder(shared_folder: Path) -> Path:
    """The same, empty at the start of the test."""
    for file in shared_folder.iterdir():
        file.unlink()
    return shared_folder


@pytest.fixture(scope="module")
def workers(shared_folder: Path) -> Iterator[WorkerProcesses]:
    with WorkerProcesses(2) as executor:
        yield executor


@pytest.fixture
def new_children() -> Callable[[], int]:
    """Counts the processes that the test has started and that go on."""
    before = set(multiprocessing.active_children())
    return lambda: len(set(multiprocessing.active_children()) - before)


def sweep(jobs: list[Job], function: Measure, path: Path, **options: Any) -> pd.DataFrame:
    return run_sweep(jobs, function, path, progress=False, **({"executor": Serial()} | options))


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


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


def test_the_source_of_a_row_is_that_of_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = current_versions()["source"]
    copy = tmp_path / "pyro_mbde"
    shutil.copytree(Path(pyro_mbde.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(pyro_mbde, "__file__", str(copy / "__init__.py"))
    uncached = current_versions.__wrapped__
    assert uncached()["source"] == here
    (copy / "tilt.py").write_text((copy / "tilt.py").read_text() + "\n")
    assert uncached()["source"] != here


def test_a_package_that_is_missing_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.filterwarnings("default::ResourceWarning")  # of Dask's own sockets
def test_the_same_bits_under_dask(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dask = pytest.importorskip("dask")
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
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
    systems = ["good", "exit", "raise", "kill", "leave", "tensor", "name", "number", "fine"]
    jobs = [Job("test", system, 1.0) for system in systems]
    errors = sweep(jobs, trouble, path, executor=workers).set_index("system")["error"]
    died = "WorkerDiedError: the worker process ended (exit code {}): killed, out of memory, or crashed"
    assert errors["exit"] == died.format(3)
    assert errors["kill"] == died.format(-9)
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
    assert len(lines(path)) == len(jobs) + 7
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
        "from sweep_jobs import be_stubborn, jobs_of, measure\n"
        "from pyro_mbde.experiments.runner import run_sweep\n"
        f"run_sweep(jobs_of(2), measure, {str(tmp_path / 'sweep.jsonl')!r}, num_workers=1, progress=False)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(SCRIPT.parent)}
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=100)
    assert ended.returncode == 1
    assert "SweepError" in ended.stderr.splitlines()[-1]
    assert 'keep what it runs under if __name__ == "__main__":' in ended.stderr


class TestFile:
    def test_a_torn_line_is_dropped(self, path: Path) -> None:
        sweep(jobs_of(3), measure, path)
        whole = path.read_text()
        path.write_text(whole[:-20])
        assert len(read_results(path)) == 2  # also while a line is being written
        table = sweep(jobs_of(3), measure, path)
        assert table["error"].isna().all()
        assert [json.loads(line)["repeat"] for line in lines(path)] == [0, 1, 2]

    def test_a_row_that_cannot_be_written_leaves_nothing(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class FullDisk(io.FileIO):
            room = 30

            def write(self, data: Any, /) -> int:
                if not self.room:
                    raise OSError(28, "No space left on device")
                part = bytes(data)[: self.room]
                self.room -= len(part)
                return super().write(part)

        sweep(jobs_of(1), measure, path)
        before = path.read_bytes()
        monkeypatch.setattr(Path, "open", lambda self, *_, **__: FullDisk(self, "a+"))
        with ResultsFile(path) as results:
            with pytest.raises(OSError, match="No space left"):
                results.append({"key": "new", "error": None, "word": "x" * 100})
            assert "new" not in results.rows
        monkeypatch.undo()
        assert path.read_bytes() == before
        assert sweep(jobs_of(2), measure, path)["error"].isna().all()

    @pytest.mark.parametrize("line", ["{", "[1]", "7", '{"key": "a"}', "\x00\x00", ""])
    def test_a_damaged_line_is_an_error(self, path: Path, line: str) -> None:
        sweep(jobs_of(3), measure, path)
        first, *others = lines(path)
        path.write_text("\n".join([first, line, *others]) + "\n")
        before = path.read_bytes()
        for read in (lambda: read_results(path), lambda: sweep(jobs_of(4), measure, path)):
            with pytest.raises(ValueError, match=r"line 2 of '.*sweep.jsonl' must hold a row of results"):
                read()
        assert path.read_bytes() == before

    def test_one_writer_at_a_time(self, path: Path) -> None:
        with ResultsFile(path), pytest.raises(SweepError, match=r"another sweep writes to '.*sweep.jsonl'"):
            sweep(jobs_of(1), measure, path)
        sweep(jobs_of(1), measure, path)

    def test_keys_without_a_row(self, path: Path) -> None:
        sweep(jobs_of(1), measure, path)
        with pytest.raises(ValueError, match="keys must be of rows in the file, got 'other'"):
            read_results(path, keys=["other"])
        with pytest.raises(FileNotFoundError):
            read_results(path.with_name("none"))


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


class TestWorkerProcesses:
    def test_results_and_errors(self, workers: WorkerProcesses) -> None:
        assert workers.num_workers == 2
        assert list(workers.map(math.factorial, range(5))) == [1, 1, 2, 6, 24]
        with pytest.raises(ValueError, match="factorial"):
            workers.submit(math.factorial, -1).result()
        with pytest.raises((pickle.PicklingError, AttributeError)):
            workers.submit(lambda: 0).result()
        with pytest.raises(TypeError, match="cannot pickle"):
            workers.submit(threading.Lock).result()
        with pytest.raises(RuntimeError, match="StubbornError: no way"):
            workers.submit(be_stubborn).result()
        with pytest.raises(WorkerDiedError, match="exit code 5"):
            workers.submit(os._exit, 5).result()
        assert workers.submit(abs, -1).result() == 1

    @pytest.mark.slow
    def test_a_worker_killed_between_tasks_is_replaced(self, workers: WorkerProcesses) -> None:
        for process in {workers.submit(os.getpid).result() for _ in range(4)}:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.2)
        assert [workers.submit(abs, -1).result() for _ in range(4)] == [1] * 4

    def test_shutdown(self, new_children: Callable[[], int]) -> None:
        executor = WorkerProcesses(1)
        futures = [executor.submit(time.sleep, 0.1) for _ in range(3)]
        executor.shutdown(wait=False)
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(abs, -1)
        assert [future.result() for future in futures] == [None] * 3
        executor.shutdown()
        assert new_children() == 0

    def test_kill(self) -> None:
        with pytest.raises(KeyboardInterrupt), WorkerProcesses(1) as executor:
            running, waiting = executor.submit(time.sleep, 3600), executor.submit(abs, -1)
            while not running.running():
                time.sleep(0.01)
            raise KeyboardInterrupt
        assert isinstance(running.exception(), WorkerDiedError)
        assert waiting.cancelled()


def start(path: Path, function: str, num_jobs: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(path), function, str(num_jobs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "start\n"
    return process


def wait_until(holds: Callable[[], bool], seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Whether a process is there and is more than an entry that nobody has collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up as Linux shows them")
def test_a_killed_sweep_goes_on_where_it_was(path: Path) -> None:
    process = start(path, "slow", 12)
    try:
        wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= 3)
        workers = descendants_of(process.pid)
        assert len(workers) >= 2
        process.kill()
        process.wait()
        wait_until(lambda: not any(map(is_running, workers)))
    finally:
        end(process)
    kept = path.read_text()
    assert 3 <= kept.count("\n") < 12
    table = sweep(jobs_of(12), measure, path)  # the lock died with its holder
    assert path.read_text().startswith(kept[: kept.rfind("\n") + 1])
    keys = [json.loads(line)["key"] for line in lines(path)]
    assert sorted(keys) == sorted(set(keys)) == sorted(job.key for job in jobs_of(12))
    assert table["error"].isna().all()


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up as Linux shows them")
def test_an_interrupt_keeps_rows_and_ends_workers(path: Path, folder: Path) -> None:
    process = start(path, "sleep", 12)  # the first job ends at once, the others do not
    try:
        wait_until(lambda: (folder / "2").exists() and path.read_bytes().count(b"\n") == 1)
        workers = descendants_of(process.pid)
        begun = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers as well
        _, errors = process.communicate(timeout=40)
        assert time.monotonic() - begun < 10
        wait_until(lambda: not any(map(is_running, workers)), seconds=5)
    finally:
        end(process)
    assert process.returncode == -signal.SIGINT
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert "WorkerDiedError" not in errors
    assert [json.loads(line)["repeat"] for line in lines(path)] == [0]
    assert not (folder / "3").exists()


def descendants_of(pid: int) -> list[int]:
    """Its children, of threads other than the first as well, by what each process says of its parent."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "stat").read_text().rpartition(")")[2].split()[1] == str(pid):
                    found.append(int(entry.name))
    return found


def end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_equal_jobs_have_equal_keys() -> None:
    """1.0 is 1 in Python: two jobs that are equal must be one."""
    whole, real = Job("p", "s", 1.0, 0, (("o", 1),)), Job("p", "s", 1.0, 0, (("o", 1.0),))
    assert whole == real
    assert whole.key == real.key
    assert Job("p", "s", 1.0, 0, (("o", 0.5),)).key.endswith("o=0.5")
