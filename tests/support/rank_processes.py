"""Functions in several processes that have joined one another, as a launcher would start them."""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

SUPPORT = Path(__file__).parent


class Outcome(NamedTuple):
    """How a process ended: what its function returned, its error as text, its exit code, and what it wrote."""

    value: Any
    error: str
    code: int
    output: str


def shorten_steps(seconds: float) -> None:
    """Lets a step in common take so long from now on, in processes that have joined: what waits has other limits."""
    import torch.distributed.distributed_c10d as c10d

    from pyro_mbde import ranks

    assert ranks._joined is not None
    set_timeout: Any = c10d._set_pg_timeout  # the public names set it for new groups, which have to meet within it
    set_timeout(timedelta(seconds=seconds), ranks._joined.steps)


def refuse_steps() -> float:
    """Lets what waits have no other group to wait in than the patient one; returns that one's seconds."""
    import torch

    from pyro_mbde import ranks

    assert ranks._joined is not None
    ranks._joined = ranks._joined._replace(steps="none")
    backend = ranks._joined.patient._get_backend(torch.device("cpu"))
    seconds: float = backend.options._timeout.total_seconds()
    return seconds


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def rank_environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun tells a process, on this machine alone."""
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(SUPPORT), str(SUPPORT.parent.parent), os.environ.get("PYTHONPATH", "")]),
    }


def run_commands(commands: list[list[str]], seconds: float = 120, cwd: Path | None = None) -> list[Outcome]:
    """Runs a command in each process; those that are left at the end of the time are killed."""
    port, size = free_port(), len(commands)
    processes = [
        subprocess.Popen(
            command,
            env=rank_environment(rank, size, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
        )
        for rank, command in enumerate(commands)
    ]
    end = time.monotonic() + seconds
    try:
        said = [process.communicate(timeout=max(end - time.monotonic(), 0.1)) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [
        Outcome(out, error, int(process.returncode), out + error)
        for process, (out, error) in zip(processes, said, strict=True)
    ]


@functools.cache
def _server() -> subprocess.Popen[str]:
    """A process that has imported what takes long, and forks others."""
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__],
        env=rank_environment(0, 1, 0),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(_end_server)
    return server


def _end_server() -> None:
    """Ends the server and whatever it forked."""
    if _server.cache_info().currsize:
        server = _server()
        _server.cache_clear()
        atexit.unregister(_end_server)
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()


def _fork(module: Path, calls: list[tuple[dict[str, str], str, str]], seconds: float) -> list[int]:
    """Exit codes of processes that are forked once the module is imported, each with its environment, call, result."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    try:
        server.stdin.write(json.dumps([str(module), calls]) + "\n")
        server.stdin.flush()
        if not select.select([server.stdout], [], [], seconds)[0]:
            raise subprocess.TimeoutExpired(str(module), seconds)
        codes: list[int] = json.loads(server.stdout.readline())
    except BaseException:
        _end_server()
        raise
    return codes


def run_ranks(
    module: Path, function: str, size: int = 2, *arguments: Any, seconds: float = 300, timeout: float = 120.0
) -> list[Outcome]:
    """Calls ``function(ranks, *arguments)`` of a file in so many processes that have joined one another.

    The processes are forked from one that has imported the file and has computed nothing: torch takes seconds to
    import. Those that a shell starts are in the tests of the command line.

    Args:
        module: the file that defines the function.
        function: its name.
        size: number of processes.
        arguments: what can be pickled.
        seconds: after which all processes are killed, and the test fails.
        timeout: of a step in common, in seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        call = Path(folder) / "call"
        call.write_bytes(pickle.dumps((str(module), function, arguments, timeout)))
        results = [Path(folder) / f"result-{rank}" for rank in range(size)]
        port = free_port()
        codes = _fork(
            module,
            [(rank_environment(rank, size, port), str(call), str(result)) for rank, result in enumerate(results)],
            seconds,
        )
        outcomes = []
        for result, code in zip(results, codes, strict=True):
            value, error = pickle.loads(result.read_bytes()) if result.exists() else (None, "")
            outcomes.append(Outcome(value, error, code, result.with_suffix(".output").read_text()))
        return outcomes


def values_of(outcomes: list[Outcome]) -> list[Any]:
    """What the functions returned; fails with their errors where one did not."""
    for rank, outcome in enumerate(outcomes):
        assert outcome.code == 0, f"process {rank}: {outcome.error}{outcome.output}"
    return [outcome.value for outcome in outcomes]


def _call(call: str, result: str) -> int:
    module, function, arguments, timeout = pickle.loads(Path(call).read_bytes())
    import torch

    from pyro_mbde.ranks import joined_ranks

    torch.set_num_threads(1)
    try:
        called = getattr(importlib.import_module(Path(module).stem), function)
        # Steps may be short: nobody begins while another has not started.
        folder = Path(result).parent
        (folder / f"ready-{os.environ['RANK']}").touch()
        while len(list(folder.glob("ready-*"))) < int(os.environ["WORLD_SIZE"]):
            time.sleep(0.02)
        with joined_ranks(timeout=timeout) as ranks:
            value = called(ranks, *arguments)
    except BaseException as error:
        Path(result).write_bytes(pickle.dumps((None, f"{type(error).__name__}: {error}\n{traceback.format_exc()}")))
        return 1
    Path(result).write_bytes(pickle.dumps((value, "")))
    return 0


def _forked(environment: dict[str, str], call: str, result: str) -> int:
    """The number of a new process that makes the call, and writes what it says beside the result."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.environ.clear()
        os.environ.update(environment)
        said = os.open(Path(result).with_suffix(".output"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(said, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        code = _call(call, result)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _serve() -> None:
    for line in sys.stdin:
        module, calls = json.loads(line)
        if str(Path(module).parent) not in sys.path:
            sys.path.insert(0, str(Path(module).parent))
        importlib.import_module(Path(module).stem)
        children = [_forked(*call) for call in calls]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    _serve()
