"""Worker processes: one that dies fails its own task; kills and interrupts leave rows and no processes."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from pathlib import Path

import pytest
from failing_tasks import be_stubborn, parse
from sweep_jobs import jobs_of, measure
from sweeps import lines, sweep

from pyro_mbde.experiments import processes
from pyro_mbde.experiments.processes import WorkerDiedError, WorkerProcesses

SCRIPT = Path(__file__).parents[2] / "support" / "sweep_jobs.py"


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
        with pytest.raises(SystemExit, match="4"):
            workers.submit(sys.exit, 4).result()
        with pytest.raises(WorkerDiedError, match="exit code 5"):
            workers.submit(os._exit, 5).result()
        assert workers.submit(abs, -1).result() == 1

    def test_an_error_carries_the_traceback_of_its_worker(self, workers: WorkerProcesses) -> None:
        for function, line in ((be_stubborn, 'raise StubbornError("no", "way")'), (parse, "json.loads(text)")):
            error = workers.submit(function).exception()
            assert error is not None
            (note,) = error.__notes__
            assert note.startswith("In the worker process:\nTraceback")
            assert line in note

    @pytest.mark.parametrize("num_killed", [1, 2])
    def test_a_worker_killed_while_starting_is_started_once_more(
        self, monkeypatch: pytest.MonkeyPatch, new_children: Callable[[], int], num_killed: int
    ) -> None:
        started = []

        class Killed(processes._Worker):
            def __init__(self) -> None:
                super().__init__()
                started.append(self)
                if len(started) <= num_killed:
                    self.process.kill()

        monkeypatch.setattr(processes, "_Worker", Killed)
        with WorkerProcesses(1) as executor:
            future = executor.submit(abs, -1)
            if num_killed == 1:
                assert future.result() == 1
            else:
                text = r"ended while starting, 2 times \(exit codes -9, -9\)\. Check that"
                with pytest.raises(BrokenExecutor, match=text):
                    future.result()
                with pytest.raises(BrokenExecutor, match=text):
                    executor.submit(abs, -1)
        assert len(started) == 2
        assert new_children() == 0

    @pytest.mark.slow
    def test_a_worker_killed_between_tasks_is_replaced(self, workers: WorkerProcesses) -> None:
        killed = {workers.submit(os.getpid).result() for _ in range(4)}
        for process in killed:
            os.kill(process, signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, killed)))
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


def wait_until(holds: Callable[[], bool], seconds: float = 120) -> None:
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
@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up as Linux shows them")
def test_an_interrupt_keeps_rows_and_ends_workers(path: Path, folder: Path) -> None:
    process = start(path, "sleep", 12)  # the first job ends at once, the others do not
    try:
        wait_until(lambda: (folder / "2").exists() and path.read_bytes().count(b"\n") == 1)
        workers = descendants_of(process.pid)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers as well
        _, errors = process.communicate(timeout=120)  # the jobs take an hour
        wait_until(lambda: not any(map(is_running, workers)))
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
