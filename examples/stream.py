"""A table in large files, fitted by one process or several: rows are read as they are needed.

Writes a table of a million rows into Parquet files (rows of the RAND Health Insurance Experiment, drawn with
replacement) and fits it as a stream: a process holds at most 131,072 rows at a time. The same program runs in one
process and, started by torchrun, in several, which share out the rows and the draws of the certificates. For comparison
the 20,190 rows of the survey itself are fitted in memory.

May be released: nothing that is shown here; rows of the density, at their price, as in ``rows.py``.

Run it with ``python examples/stream.py``, or in two processes with
``torchrun --nproc-per-node=2 examples/stream.py``.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import click
import pandas as pd

from pyro_mbde import DensityRatio, Ranks, WeakLearner, joined_ranks
from pyro_mbde.experiments.medical import load_table, whole_schema
from pyro_mbde.pictures import new_figure, write_picture

OUTPUT = Path(__file__).parent / "output"
EPSILONS, SKEW = (0.25, 0.5, 1.0, 2.0, 3.0, 5.0), 0.3
# Distinguishable with colour-blindness; markers and line styles distinguish them in grey.
BLUE, ORANGE, PALE = "#0072b2", "#d55e00", "#777777"


def write_files(survey: pd.DataFrame, num_rows: int, folder: Path) -> None:
    """Writes a table in eight files with small row groups, which are read fast in random order."""
    for part in range(8):
        rows = survey.sample(num_rows // 8, replace=True, random_state=part)
        rows.to_parquet(folder / f"part-{part}.parquet", index=False, row_group_size=65_536)


def draw_gains(gains: dict[str, list[float]], path: Path) -> None:
    """Shows how much nearer to the table a row comes than one of the base."""
    figure = new_figure(8, 4.6)
    axis = figure.subplots()
    most = [(1 - SKEW) * epsilon for epsilon in EPSILONS]
    axis.plot(EPSILONS, most, "--", color=PALE, label="the most that epsilon allows")
    for (name, values), color, marker, size in zip(gains.items(), (ORANGE, BLUE), "so", (10, 6), strict=True):
        axis.plot(EPSILONS, values, color=color, marker=marker, markersize=size, linewidth=2, label=name)
    axis.set_xlabel("epsilon of a row", fontsize=12)
    axis.set_ylabel("nats that a row gains on the base", fontsize=12)
    axis.legend(frameon=False, fontsize=12)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title("Large files, read in parts. For the data owner: do not hand it out", fontsize=12)
    write_picture(figure, path, dpi=90)


def run(ranks: Ranks, output: Path, *, smoke: bool) -> None:
    """Fits files and the survey in memory; the first process writes, speaks and draws."""
    schema, survey = whole_schema(), load_table()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # rows that break a rule are counted below, as in constraints.py
        table = schema.to_tensor(survey)
    base = schema.base()
    # As many rows are seen whatever the number of processes: each takes 512 in a step.
    num_steps = (20 if smoke else 1680) // ranks.size
    options = {"hidden_sizes": (32, 32), "num_frequencies": 24, "frequency_scale": (0.5, 8.0), "axis_share": 0.5}
    learner = WeakLearner(**options, num_steps=num_steps, batch_size=512)
    fit_options = {"weak_learner": learner, "seed": 0, "ranks": ranks, "progress": not smoke}

    with tempfile.TemporaryDirectory() as private:
        folder = Path(ranks.broadcast(private))  # the first process's, which all read
        if ranks.is_first:
            write_files(survey, 160_000 if smoke else 1_000_000, folder)
        ranks.broadcast(None)  # the files are there
        stream = schema.stream(folder)
        tables = {"20,190 rows, held in memory": table, f"{stream.num_rows:,} rows, read in parts": stream}
        gains = {}
        for name, rows in tables.items():
            ratio = DensityRatio(base, split="rows", **fit_options).fit(rows)
            densities = [ratio.mollify(epsilon, skew=SKEW, delta=0 if smoke else 1e-9) for epsilon in EPSILONS]
            gains[name] = [float(q.tilt(table).mean() - q.log_normalizer.value) for q in densities]  # log q/q0
        ranks.broadcast(None)  # all have read what they need
    if ranks.is_first:
        processes = "one process" if ranks.size == 1 else f"{ranks.size} processes"
        click.secho(f"\nPrivate: nats that a row gains on the base, by epsilon; {processes}", bold=True)
        click.echo(pd.DataFrame(gains, index=pd.Index(EPSILONS, name="epsilon")).round(3).to_string())
        output.mkdir(parents=True, exist_ok=True)
        draw_gains(gains, output / "stream.png")
        click.echo(f"\nsaved: {output / 'stream.png'}")


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=OUTPUT, help="Folder for the picture.")
@click.option("--smoke", is_flag=True, help="Smaller files and hardly any training, to see that it runs.")
def main(output: Path, smoke: bool) -> None:
    """Fit a table in large files, in one process or in those that torchrun started."""
    with joined_ranks() as ranks:
        run(ranks, output, smoke=smoke)


if __name__ == "__main__":
    main()
