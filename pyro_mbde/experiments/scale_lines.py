"""What the bench of large tables prints."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

Record = dict[str, Any]


def line_of(part: str, record: Record) -> str:
    """Returns a record as a line.

    Args:
        part: of the bench.
        record: of this part.
    """
    if part == "memory":
        steps = "" if record["steps"] is None else f"{record['steps']:,} steps"
        return (
            f"{record['command']:<22}{record['form']:<9}{record['rows']:>12,} rows{steps:>13}"
            f"{record['seconds']:>9.2f} s{record['peak_bytes'] / 2**20:>8.0f} MiB"
        )
    if part == "costs" and record["form"] == "constants":
        given = "\n".join(
            f"{name:<18}{value:>14.6g}" for name, value in record.items() if isinstance(value, float | int)
        )
        return "\n".join([given, *record["table"]])
    if part == "costs":
        megabytes = record["rows_read"] * record["row_bytes"] / 1e6
        return (
            f"{record['form']:<30}{record['rows_decoded']:>12,.0f} rows/s decoded{record['rows_read']:>12,.0f} rows/s "
            f"read and checked, {megabytes:.1f} MB/s, {record['row_bytes']:.1f} bytes a row"
        )
    gains = "".join(f"  ε {float(e):g}: {record['gain'][e]:.4f} of {record['best'][e]:.4f}" for e in record["gain"])
    rows = f"{record['rows']:>12,} rows{' sorted' if record['sorted'] else '':<7}" if part == "gain" else ""
    split = f"{record['ranks']} ranks {record['split']:<9}seed {record['seed']} " if part == "ranks" else ""
    nll = f"  NLL {record['nll']:.4f} (entropy {record['entropy']:.4f})"
    return f"{rows}{split}{record['steps']:>7,} steps{record['training_seconds']:>9.2f} s{gains}{nll}"


def ratios(records: Sequence[Record]) -> str:
    """Returns the training seconds of two ranks over those of one, and the spread of gains.

    Args:
        records: of the part ``ranks``.
    """
    lines = []
    alone = statistics.median(one["training_seconds"] for one in records if one["ranks"] == 1)
    for split in dict.fromkeys(one["split"] for one in records):
        part = [one for one in records if one["split"] == split]
        seconds = statistics.median(one["training_seconds"] for one in part)
        gains = []
        for epsilon in part[0]["gain"]:
            values = [one["gain"][epsilon] for one in part]
            gains.append(
                f"ε {float(epsilon):g}: {statistics.median(values):.4f} ({min(values):.4f} to {max(values):.4f})"
            )
        lines.append(f"{split:<9}{seconds:>8.2f} s, {seconds / alone:.2f} of one process; gain {', '.join(gains)}")
    return "\n".join(lines)


def phases(records: Sequence[Record]) -> str:
    """Returns how the time of a fit divides, by differences between whole runs.

    Args:
        records: of the part ``memory``.
    """

    def seconds(command: str, of: Callable[[Record], bool] = lambda record: True) -> float:
        return next(float(one["seconds"]) for one in records if one["command"] == command and of(one))

    fits = [one for one in records if one["command"] == "fit" and one["form"] == "parquet" and one["is_default"]]
    first, last = fits[0], fits[-1]
    start, certified = seconds("start"), seconds("start and certificate")
    check = seconds("check", lambda one: one["form"] == "parquet" and one["rows"] == last["rows"])
    longest = max((one for one in records if one["command"] == "fit"), key=lambda one: int(one["steps"]))
    same = next(one for one in fits if one["rows"] == longest["rows"])
    steps = max(longest["steps"] - same["steps"], 1)
    return (
        f"start and a fit of one step {start:.2f} s; certificate {certified - start:.2f} s; training "
        f"{first['steps']:,} steps {first['seconds'] - certified:.2f} s; index and windows of {last['rows']:,} rows "
        f"{last['seconds'] - first['seconds']:.2f} s; each further step, with its share of windows, "
        f"{1000 * (longest['seconds'] - same['seconds']) / steps:.2f} ms; check {last['rows'] / check:,.0f} rows/s, "
        f"start included"
    )


#: What is printed at the end of a part.
SUMMARIES: dict[str, Callable[[Sequence[Record]], str]] = {"memory": phases, "ranks": ratios}
