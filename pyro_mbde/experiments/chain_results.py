"""What the bench of chains found: medians over seeds, and ratios to the base and to stock kernels."""

from __future__ import annotations

import statistics
from typing import Any

import click

Record = dict[str, Any]

#: Of the steps of a chain, means of these are kept.
RATES = ("acceptance_rate", "smooth_acceptance_rate")
_MEDIANS = ("ess_per_gradient", "squares_per_gradient", "ess_per_second", "divergences", *RATES)


def summarize(measured: list[Record]) -> list[Record]:
    """Returns medians over seeds, a record for each problem, epsilon and kernel, with their ratios."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in measured:
        groups.setdefault((record["problem"], record["epsilon"], record["kernel"]), []).append(record)
    found: dict[tuple[Any, ...], Record] = {}
    for key, runs in groups.items():
        record = dict(zip(("problem", "epsilon", "kernel"), key, strict=True), runs=len(runs))
        for name in _MEDIANS:
            values = [run[name] for run in runs if run.get(name) is not None]
            record[name] = statistics.median(values) if values else None
        passed = [run["passed"] for run in runs if run["passed"] is not None]
        record["passed"] = statistics.mean(passed) if passed else None
        found[key] = record
    for (problem, epsilon, kernel), record in found.items():
        same = kernel.removesuffix(", smooth")
        stock = f"stock {same.removeprefix('stock ').removeprefix('lockstep_')}"
        for name, other in (
            ("base", (problem, None, same)),
            ("stock", (problem, epsilon, stock)),
            ("stock_base", (problem, None, stock)),
        ):
            for measure_name, ending in (
                ("ess_per_gradient", ""),
                ("squares_per_gradient", "_squares"),
                ("ess_per_second", "_seconds"),
            ):
                by = found.get(other, {}).get(measure_name)
                record[f"to_{name}{ending}"] = record[measure_name] / by if by else None
    return list(found.values())


def print_summaries(summaries: list[Record]) -> None:
    """Prints medians over seeds."""
    header = "".join(
        f"{one:>11}" for one in ("ESS/grad", "squares", "ESS/s", "x base", "x stock", "/s x base", "/s x stock")
    )
    click.echo(f"{'problem':<12}{'eps':>5}  {'kernel':<21}{header}{'passed':>8}{'div.':>6}{'acc.':>6}{'smooth':>7}")

    def cell(value: float | None, form: str, width: int) -> str:
        return f"{'-' if value is None else format(value, form):>{width}}"

    for one in summaries:
        epsilon = "base" if one["epsilon"] is None else f"{one['epsilon']:g}"
        numbers = (
            cell(one["ess_per_gradient"], ".4f", 11),
            cell(one["squares_per_gradient"], ".4f", 11),
            cell(one["ess_per_second"], ",.1f", 11),
            cell(one["to_base"], ".2f", 11),
            cell(one["to_stock"], ",.1f", 11),
            cell(one["to_base_seconds"], ".2f", 11),
            cell(one["to_stock_seconds"], ",.1f", 11),
            cell(one["passed"], ".0%", 8),
            cell(one["divergences"], ".0f", 6),
            cell(one["acceptance_rate"], ".2f", 6),
            cell(one["smooth_acceptance_rate"], ".2f", 7),
        )
        click.echo(f"{one['problem']:<12}{epsilon:>5}  {one['kernel']:<21}{''.join(numbers)}")
