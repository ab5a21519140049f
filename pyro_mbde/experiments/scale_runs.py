"""Programs run to be measured: how long they take, and the most memory that one of their processes has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

#: A process of its own, and a small one: the peak that the system reports for a child begins at that of its parent.
_RUNNER = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps([done.returncode, seconds, peak, done.stdout, done.stderr]))
"""


class FailedRunError(RuntimeError):
    """A program that was to be measured failed."""


class Run(NamedTuple):
    """A program that ran to its end.

    Attributes:
        seconds: from its start to its end.
        peak_bytes: the most memory that one of its processes had, resident.
        output: what it printed.
    """

    seconds: float
    peak_bytes: int
    output: str

    @property
    def answer(self) -> Any:
        """The last line of the output that is JSON, or the whole of it."""
        try:
            return json.loads(self.output)
        except ValueError:
            return json.loads([line for line in self.output.splitlines() if line.startswith("{")][-1])


def run(command: Sequence[str], *, num_threads: int = 1) -> Run:
    """Runs a program and measures it.

    Args:
        command: the program and its arguments.
        num_threads: of torch in each of its processes.

    Raises:
        FailedRunError: it ended with another exit code than 0.

    Example:
        >>> done = run([sys.executable, "-c", "print('{}')"])
        >>> done.answer, done.seconds > 0, done.peak_bytes > 2**20
        ({}, True, True)
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(num_threads)}
    runner = [sys.executable, "-I", "-S", "-c", _RUNNER, *command]
    told = subprocess.run(runner, capture_output=True, text=True, env=environment, check=True)
    code, seconds, peak, output, errors = json.loads(told.stdout)
    if code != 0:
        last = "\n  ".join(errors.strip().splitlines()[-5:])
        raise FailedRunError(f"{' '.join(command[:6])} ... ended with code {code}:\n  {last}")
    return Run(seconds, peak, output)


def module(name: str, *arguments: object, ranks: int = 1) -> list[str]:
    """Returns the command that runs a module, on several ranks of this machine if there are more than one.

    Args:
        name: of the module.
        arguments: of the module.
        ranks: processes.

    Example:
        >>> module("pyro_mbde", "fit", ranks=2)[1:]
        ['-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2', '-m', 'pyro_mbde', 'fit']
    """
    spread = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    return [sys.executable, *spread, "-m", name, *(str(argument) for argument in arguments)]
