"""Functions in several processes that have joined one another, as a launcher would start them."""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
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
    """Sets the timeout of collective steps in processes that have joined; waiting keeps its own."""
    import torch.distributed.distributed_c10d as c10d

    from pyro_mbde import ranks

    assert ranks._joined is not None
    set_timeout: Any = c10d._set_pg_timeout  # the public names set it for new groups, which have to meet within it
    set_timeout(timedelta(seconds=seconds), ranks._joined.steps)


def refuse_steps() -> float:
    """Takes the group with the short timeout away, so that waiting uses the patient one; returns its timeout."""
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


@functools.cache
def _server() -> subprocess.Popen[str]:
    """A process that has imported what takes long, and forks others."""
    server = subprocess.Popen(
        [sys.executable, __file__],
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


def _fork(module: Path, commands: list[list[str]], seconds: float, cwd: Path) -> list[Outcome]:
    """Ends of the processes that are forked once the module is imported, without values."""
    server, port = _server(), free_port()
    assert server.stdin is not None and server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        said = [str(Path(folder) / str(rank)) for rank in range(len(commands))]
        environments = [rank_environment(rank, len(commands), port) for rank in range(len(commands))]
        try:
            calls = list(zip(environments, commands, said, strict=True))
            server.stdin.write(json.dumps([str(module), str(cwd), calls]) + "\n")
            server.stdin.flush()
            if not select.select([server.stdout], [], [], seconds)[0]:
                raise subprocess.TimeoutExpired(str(commands), seconds)
            codes: list[int] = json.loads(server.stdout.readline())
        except BaseException:
            _end_server()
            raise
        outcomes = []
        for code, path in zip(codes, said, strict=True):
            out, error = (Path(path + end).read_text() for end in (".out", ".err"))
            outcomes.append(Outcome(out, error, code, out + error))
        return outcomes


def run_commands(commands: list[list[str]], seconds: float = 300, cwd: Path | None = None) -> list[Outcome]:
    """Runs a command of Python, of a module or of a script, in each process; those that are left at the end are killed.

    The processes are forked from one that has imported torch and Pyro, which takes seconds, and has computed nothing.
    """
    assert all(command[0] == sys.executable for command in commands)
    return _fork(Path(__file__), [command[1:] for command in commands], seconds, cwd or Path.cwd())


def run_ranks(
    module: Path, function: str, size: int = 2, *arguments: Any, seconds: float = 300, timeout: float = 120.0
) -> list[Outcome]:
    """Calls ``function(ranks, *arguments)`` of a file in so many processes that have joined one another.

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
        ended = _fork(module, [["call", str(call), str(result)] for result in results], seconds, Path.cwd())
        outcomes = []
        for result, end in zip(results, ended, strict=True):
            value, error = pickle.loads(result.read_bytes()) if result.exists() else (None, "")
            outcomes.append(Outcome(value, error, end.code, end.output))
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
    warnings.simplefilter("ignore")
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


def _run(words: list[str]) -> int:
    """Makes a call, or runs what ``python`` would with these words; returns the exit code."""
    if words[0] == "call":
        return _call(*words[1:])
    name, *sys.argv = words[1:] if words[0] == "-m" else [words[0], *words]
    sys.path.insert(0, os.getcwd())
    try:
        if words[0] == "-m":
            sys.argv.insert(0, name)
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
        return end.code or 0 if isinstance(end.code, int | None) else 1
    return 0


def _forked(environment: dict[str, str], words: list[str], said: str) -> int:
    """The number of a new process that runs the words, and writes what they say to two files."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.environ.clear()
        os.environ.update(environment)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream, end in ((1, ".out"), (2, ".err")):
            os.dup2(os.open(said + end, os.O_WRONLY | os.O_CREAT), stream)
        code = _run(words)
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _serve() -> None:
    import pyro  # noqa: F401  # imported here once, for all processes that are forked
    import torch  # noqa: F401  # likewise

    for line in sys.stdin:
        module, cwd, calls = json.loads(line)
        os.chdir(cwd)
        if str(Path(module).parent) not in sys.path:
            sys.path.insert(0, str(Path(module).parent))
        importlib.import_module(Path(module).stem)
        children = [_forked(*call) for call in calls]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    _serve()
