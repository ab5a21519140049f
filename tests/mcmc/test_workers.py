"""Chains in several processes: the same draws, and never a hang."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from densities import make_density, normal

from pyro_mbde import MollifiedExpFamily, resume_mcmc, run_mcmc
from pyro_mbde.mcmc import run as mcmc
from pyro_mbde.mcmc import workers
from pyro_mbde.mcmc.workers import WorkerError

PARENT = os.getpid()

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems run chains one after the other")


@pytest.fixture
def plane() -> MollifiedExpFamily:
    return make_density(normal(2), link="tanh")


@pytest.mark.parametrize("kernel", ["random_walk", "hmc", "nuts"])
def test_as_many_workers_as_you_like_give_the_same_draws(plane: MollifiedExpFamily, kernel: str) -> None:
    options = {"hmc": {"num_steps": 3}, "nuts": {"max_tree_depth": 3}}.get(kernel)
    one, two, three = (
        run_mcmc(plane, kernel, 5, 6, 3, seed=4, progress=False, num_workers=number, kernel_options=options)
        for number in (1, 2, 3)
    )
    assert torch.equal(one.draws["x"], two.draws["x"])
    assert torch.equal(one.draws["x"], three.draws["x"])
    assert all(torch.equal(value, two.sample_stats[name]) for name, value in one.sample_stats.items())
    longer = [resume_mcmc(chains, 2, progress=False, num_workers=2) for chains in (one, two)]
    assert torch.equal(longer[0].draws["x"], longer[1].draws["x"])


def test_as_many_processes_as_there_are_cores_by_default(
    plane: MollifiedExpFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    numbers: list[int] = []
    real = mcmc.run_in_workers

    def noted(runs: Any, num_workers: int, *arguments: Any) -> Any:
        numbers.append(num_workers)
        return real(runs, num_workers, *arguments)

    monkeypatch.setattr(mcmc, "run_in_workers", noted)
    for num_chains in (1, 2, 3):
        run_mcmc(plane, "random_walk", 5, 5, num_chains, progress=False)
    assert numbers == [2, 2]


def test_what_cannot_be_pickled_runs_all_the_same() -> None:
    lock = threading.Lock()

    def model() -> None:
        with lock:
            pyro.sample("x", dist.Normal(0.0, 1.0))

    chains = run_mcmc(model, "nuts", 5, 5, 2, seed=0, progress=False, num_workers=2)
    assert chains.draws["x"].shape == (2, 5)


def child_only(action: Callable[[], object], after: int = 200) -> Callable[[], None]:
    """A model that does something bad in a worker, after a number of evaluations."""
    count = [0]

    def model() -> None:
        x = pyro.sample("depth", dist.Normal(0.0, 1.0))
        count[0] += 1
        if os.getpid() != PARENT and count[0] > after:
            pyro.factor("bad", 0 * x + (action() or 0.0))

    return model


@pytest.fixture(autouse=True)
def others() -> Iterator[None]:
    """Processes that other tests of this session have started, and may still use."""
    OTHERS[:] = [child.pid for child in multiprocessing.active_children()]
    yield


OTHERS: list[int | None] = []


def own_children() -> list[Any]:
    return [child for child in multiprocessing.active_children() if child.pid not in OTHERS]


def test_a_killed_worker_is_an_error_without_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcmc, "_MIN_PATIENCE", 3600.0)
    with pytest.raises(WorkerError, match=r"A worker process ended \(exit code -9\)"):
        run_mcmc(
            child_only(lambda: os.kill(os.getpid(), signal.SIGKILL)), "nuts", 500, 100, 2, progress=False, num_workers=2
        )
    assert not own_children()


def test_a_worker_killed_from_outside_is_an_error_without_patience(
    plane: MollifiedExpFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcmc, "_MIN_PATIENCE", 3600.0)

    def kill() -> None:
        deadline = time.monotonic() + 120
        while not own_children() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)
        children = own_children()
        if children and children[0].pid:
            os.kill(children[0].pid, signal.SIGTERM)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(WorkerError, match=r"exit code -15"):
        run_mcmc(plane, "nuts", 100_000, 1000, 2, progress=False, num_workers=2)
    killer.join()
    assert not own_children()


def test_a_hanging_worker_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcmc, "_MIN_PATIENCE", 1.0)
    monkeypatch.setattr(mcmc, "_STEPS_OF_PATIENCE", 0)
    model = child_only(lambda: time.sleep(3600), after=100)
    text = r"A worker sent no message for 1 s\. The chains are started again and run one after the other"
    with pytest.warns(UserWarning, match=text):
        chains = run_mcmc(model, "random_walk", 100, 50, 2, seed=3, progress=False, num_workers=2)
    assert torch.equal(
        chains.draws["depth"],
        run_mcmc(model, "random_walk", 100, 50, 2, seed=3, progress=False, num_workers=1).draws["depth"],
    )
    assert not own_children()


def test_an_error_in_a_worker_reaches_the_caller() -> None:
    with pytest.raises(ValueError, match=r"log-density of site 'bad' must be a number.* The values of depth are"):
        run_mcmc(child_only(lambda: math.nan), "nuts", 500, 100, 2, progress=False, num_workers=2)


class StubbornError(Exception):
    """An error that cannot be pickled."""

    def __init__(self, first: object, second: object) -> None:
        super().__init__(f"{first} {second}")


def test_an_error_that_cannot_be_pickled_reaches_the_caller_too() -> None:
    def fail() -> None:
        raise StubbornError("no", "way")

    # As itself where Dask has been imported, which teaches Python to pickle any exception.
    with pytest.raises((RuntimeError, StubbornError), match="no way"):
        run_mcmc(child_only(fail), "nuts", 500, 100, 2, progress=False, num_workers=2)


@pytest.mark.parametrize(
    "reason", ["only Linux can fork", "a process that uses CUDA", "this process is itself a worker"]
)
def test_one_plain_sentence_where_workers_are_not_safe(
    monkeypatch: pytest.MonkeyPatch, plane: MollifiedExpFamily, reason: str
) -> None:
    if "Linux" in reason:
        monkeypatch.setattr(sys, "platform", "darwin")
    elif "CUDA" in reason:
        monkeypatch.setattr(workers, "_uses_cuda", lambda: True)
    else:
        monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match=f"The chains run one after the other in this process, because {reason}"):
        run_mcmc(plane, "random_walk", 5, 5, 2, progress=False, num_workers=2)
    run_mcmc(plane, "random_walk", 5, 5, 2, progress=False)  # nobody asked for workers: no warning


def test_inside_a_worker_chains_run_one_after_the_other(plane: MollifiedExpFamily) -> None:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work() -> None:
        chains = run_mcmc(plane, "random_walk", 5, 5, 2, seed=1, progress=False)
        sender.send(chains.draws["x"].tolist())

    process = context.Process(target=work, daemon=True)
    process.start()
    assert receiver.poll(60)
    expected = run_mcmc(plane, "random_walk", 5, 5, 2, seed=1, progress=False).draws["x"]
    assert torch.equal(torch.tensor(receiver.recv()), expected)
    process.join()


def test_a_walk_needs_no_gradients() -> None:
    def model() -> None:
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("other", torch.tensor(float(x.numpy()) ** 2 / -2))

    chains = run_mcmc(model, "random_walk", 20, 20, 2, seed=0, progress=False, num_workers=2)
    assert chains.draws["x"].shape == (2, 20)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    """Whether a process is there and is more than an entry that nobody has collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def cpu_seconds(pid: int) -> float:
    """What a process has used so far, however busy the machine is; 0 for none that is there."""
    try:
        numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


SCRIPT = """
import signal
import pyro, pyro.distributions as dist
from pyro_mbde import run_mcmc
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell is started without
for num_samples in {lengths}:
    print("start", flush=True)
    chains = run_mcmc(lambda: pyro.sample("x", dist.Normal(0.0, 1.0)), "nuts", num_samples, 20, 2, seed=0,
                      progress=False, num_workers=2)
    print(tuple(chains.draws["x"].shape), flush=True)
"""


def start_script(path: Path, *lengths: int) -> subprocess.Popen[str]:
    """A script that runs chains of each of the lengths."""
    path.write_text(SCRIPT.format(lengths=lengths))
    return subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for_workers(pid: int) -> list[int]:
    """The workers of a process, once each of them has drawn for a while."""
    deadline = time.monotonic() + 120
    while (len(children_of(pid)) < 2 or min(map(cpu_seconds, children_of(pid))) < 0.5) and time.monotonic() < deadline:
        time.sleep(0.05)
    workers_of_it = children_of(pid)
    assert len(workers_of_it) == 2
    return workers_of_it


def test_interrupts_return_what_the_workers_drew_and_none_outlives_a_killed_parent(tmp_path: Path) -> None:
    """And before both, workers of a script without a main guard end by themselves."""
    process = start_script(tmp_path / "script.py", 20, 10**7, 10**7)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "start\n"
        assert process.stdout.readline() == "(2, 20)\n"
        assert process.stdout.readline() == "start\n"
        interrupted = wait_for_workers(process.pid)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers as well
        output = process.stdout.readline()
        assert process.stdout.readline() == "start\n"
        left = wait_for_workers(process.pid)
        assert not set(left) & set(interrupted)
        process.kill()
        process.wait()
        deadline = time.monotonic() + 120
        while any(is_running(child) for child in left) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not any(is_running(child) for child in left)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
    shape = tuple(int(part) for part in output.strip("()\n ").split(","))
    assert shape[0] == 2, errors
    assert shape[1] > 10
    assert f"Interrupted: each chain has {shape[1]} of 10000000 draws." in errors
