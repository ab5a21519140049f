"""What a launcher such as torchrun tells a process, in its environment. Imports no torch."""

from __future__ import annotations

import os

_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched() -> tuple[int, int]:
    """Returns the rank of this process and the number of processes; 0 and 1 where no launcher started it.

    Raises:
        ValueError: the environment does not hold numbers.
    """
    if not all(os.environ.get(name) for name in _NAMES):
        return 0, 1
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    if rank.isdecimal() and size.isdecimal():
        return int(rank), int(size)
    raise ValueError(
        f"RANK and WORLD_SIZE must be whole numbers, got RANK={rank!r} and WORLD_SIZE={size!r}. Start processes with "
        "torchrun, or unset RANK and WORLD_SIZE."
    )


def meeting_place() -> str:
    """Returns the address at which the processes meet."""
    return f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"


def num_restarts() -> int:
    """Returns how often the launcher has started all processes again."""
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(count) if count.isdecimal() else 0
