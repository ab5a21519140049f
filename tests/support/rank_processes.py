"""Functions in several processes that have joined one another, as a launcher would start them."""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

SUPPORT = Path(__file__).parent


class Outcome(NamedTuple):
    """How a process ended: what its function returned, its error as text, its exit code, and what it wrote."""

    value: Any
    error: str
    code: int
    output: str


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


def run_ranks(
    module: Path, function: str, size: int = 2, *arguments: Any, seconds: float = 120, timeout: float = 60.0
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
        commands = [[sys.executable, "-W", "ignore", __file__, str(call), str(result)] for result in results]
        ended = run_commands(commands, seconds)
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


def _main(call: str, result: str) -> int:
    module, function, arguments, timeout = pickle.loads(Path(call).read_bytes())
    sys.path.insert(0, str(Path(module).parent))
    import torch

    from pyro_mbde.ranks import joined_ranks

    torch.set_num_threads(1)
    try:
        called = getattr(importlib.import_module(Path(module).stem), function)
        # Steps may be short: nobody begins while another is still importing.
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


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
