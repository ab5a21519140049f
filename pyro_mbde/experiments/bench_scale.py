"""Fits to tables beyond memory and in several processes: memory, time, and what the density gains."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from pyro_mbde.cli.forward import PrintingCommand
from pyro_mbde.experiments.scale_costs import cost_lines, measure_constants, measure_reading
from pyro_mbde.experiments.scale_fit import EPSILONS, NUM_HELD_OUT, Yardstick, fit_and_score
from pyro_mbde.experiments.scale_lines import SUMMARIES, line_of
from pyro_mbde.experiments.scale_pictures import plot_gain, plot_memory, plot_path
from pyro_mbde.experiments.scale_runs import FailedRunError, module, run
from pyro_mbde.experiments.scale_table import public_schema, write_table
from pyro_mbde.pictures import write_picture
from pyro_mbde.private_files import write_atomically

Record = dict[str, Any]
DEFAULT_STEPS = 420
_RANK_EPSILONS = (1.0, 5.0)


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        rows: of tables.
        most_csv_rows: of a CSV file.
        steps: of training, where they vary.
        rank_rows: of the table that ranks share.
        rank_steps: of training by ranks.
        seeds: of fits by ranks.
        num_held_out: rows to score on.
    """

    rows: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000)
    most_csv_rows: int = 1_000_000
    steps: tuple[int, ...] = (420, 1_680, 6_720)
    rank_rows: int = 1_000_000
    rank_steps: int = 4_200
    seeds: int = 3
    num_held_out: int = NUM_HELD_OUT


QUICK = Sizes((2_000, 20_000), 20_000, (5, 10), 20_000, 10, 1, 5_000)


class Tables:
    """Files of the synthetic table, written when they are first asked for and kept.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def schema(self) -> Path:
        """The public schema."""
        path = self._path("schema.toml")
        write_atomically(lambda file: file.write(public_schema().to_toml().encode()), path)
        return path

    def rows(self, num_rows: int, form: str = "parquet", **options: Any) -> Path:
        """Returns a table.

        Args:
            num_rows: its length.
            form: ``parquet`` or ``csv``.
            **options: of :func:`~pyro_mbde.experiments.scale_table.write_table`.
        """
        words = "".join(f"-{name}-{value}" for name, value in options.items())
        path = self._path(f"rows-{num_rows}{words}.{form}")
        return path if path.exists() else write_table(path, num_rows, **options)

    def _path(self, name: str) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder / name


def measure_memory(tables: Tables, sizes: Sizes) -> Iterator[Record]:
    """Yields what ``pyro-mbde fit`` and its ``--check`` take, start to end, by rows, form and steps.

    Args:
        tables: to fit to.
        sizes: how much.
    """
    schema = tables.schema
    model = schema.with_name("model.pt")

    def measured(command: str, form: str, num_rows: int, *options: object, steps: int | None = None) -> Record:
        table = tables.rows(num_rows, form)
        done = run(module("pyro_mbde", "fit", table, "--schema", schema, "--json", "--quiet", *options))
        of = {"command": command, "form": form, "rows": num_rows, "steps": steps, "is_default": steps == sizes.steps[0]}
        return {**of, "seconds": done.seconds, "peak_bytes": done.peak_bytes}

    def fit(form: str, num_rows: int, steps: int, command: str = "fit", delta: float = 1e-9) -> Record:
        options = ("--epsilon", 1, "--delta", delta, "--steps", steps, "--seed", 0, "-o", model, "--force")
        return measured(command, form, num_rows, *options, steps=steps)

    smallest = sizes.rows[0]
    yield fit("parquet", smallest, 1, "start", delta=0)
    yield fit("parquet", smallest, 1, "start and certificate")
    for form in ("parquet", "csv"):
        for num_rows in sizes.rows:
            if form == "parquet" or num_rows <= sizes.most_csv_rows:
                yield fit(form, num_rows, sizes.steps[0])
                yield measured("check", form, num_rows, "--check")
    most = min(sizes.rows[-1], sizes.most_csv_rows)
    for steps in sizes.steps[1:]:
        yield fit("parquet", most, steps)


def measure_ranks(tables: Tables, sizes: Sizes) -> Iterator[Record]:
    """Yields fits by one process and by two, which share rows or networks; networks see the same number of examples.

    Two that share rows see twice as many in a step, so they make half of the steps.

    Args:
        tables: to fit to.
        sizes: how much.
    """
    table = tables.rows(sizes.rank_rows)
    for seed in range(sizes.seeds):
        for ranks, split in ((1, "auto"), (2, "rows"), (2, "networks")):
            steps = sizes.rank_steps // ranks if split == "rows" else sizes.rank_steps
            options = {"table": str(table), "steps": steps, "seed": seed, "split": split}
            options |= {"epsilons": _RANK_EPSILONS, "num_held_out": sizes.num_held_out}
            done = run(module("pyro_mbde.experiments.scale_fit", json.dumps(options), ranks=ranks))
            yield {**done.answer, "seconds": done.seconds, "peak_bytes": done.peak_bytes}


def measure_gain(tables: Tables, sizes: Sizes) -> Iterator[Record]:
    """Yields what fits gain by rows and steps, and on a table that is sorted.

    Args:
        tables: to fit to.
        sizes: how much.
    """
    yardstick = Yardstick(sizes.num_held_out)
    for num_rows in sizes.rows:
        for steps in sizes.steps:
            record = fit_and_score(str(tables.rows(num_rows)), yardstick, steps=steps, epsilons=EPSILONS)
            yield {"rows": num_rows, "sorted": False, **record}
    in_order = tables.rows(sizes.rank_rows, sort_by="age")
    for steps in sizes.steps:
        record = fit_and_score(str(in_order), yardstick, steps=steps, epsilons=EPSILONS)
        yield {"rows": sizes.rank_rows, "sorted": True, **record}


def measure_costs(tables: Tables, sizes: Sizes) -> Iterator[Record]:
    """Yields how fast rows are read from files of each form, then all constants.

    Args:
        tables: to read.
        sizes: how much.
    """
    quick = sizes == QUICK
    largest = sizes.rows[-1]
    forms: dict[str, tuple[int, str, dict[str, Any]]] = {
        "Parquet, groups of 16,384": (largest, "parquet", {"group_rows": 16_384}),
        "Parquet, groups of 100,000": (largest, "parquet", {}),
        "Parquet, groups of 1,000,000": (largest, "parquet", {"group_rows": 1_000_000}),
        "CSV": (min(largest, sizes.most_csv_rows), "csv", {}),
    }
    for name, (num_rows, form, options) in forms.items():
        path = tables.rows(num_rows, form, **options)
        decoded, read = measure_reading(path, 2 if quick else 20)
        yield {"form": name, "rows_decoded": decoded, "rows_read": read, "row_bytes": path.stat().st_size / num_rows}
    constants = measure_constants(tables.rows(largest), largest, quick=quick)
    yield {"form": "constants", **asdict(constants), "table": cost_lines(constants)}


PARTS: dict[str, Callable[[Tables, Sizes], Iterator[Record]]] = {
    "memory": measure_memory,
    "ranks": measure_ranks,
    "gain": measure_gain,
    "costs": measure_costs,
}
_PICTURES: dict[str, tuple[str, Callable[[list[Record]], Any]]] = {
    "memory": ("large-tables.png", plot_memory),
    "gain": ("large-tables-gain.png", plot_gain),
}


@click.command(cls=PrintingCommand)
@click.option("--part", "--parts", "parts", multiple=True, type=click.Choice(list(PARTS)), default=tuple(PARTS))
@click.option("--quick", is_flag=True, help="Small tables and short training, to check that everything runs.")
@click.option("--max-rows", type=click.IntRange(2), default=Sizes().rows[-1], show_default=True, help="Longest table.")
@click.option("--seeds", type=click.IntRange(1), default=Sizes().seeds, show_default=True, help="Of fits by ranks.")
@click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Folder for measurements, a JSON file each part, and for the synthetic tables.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for pictures.  [default: the folder of results]",
)
@click.option("--redraw", is_flag=True, help="Draw from existing results, without measuring again.")
def scale(
    parts: tuple[str, ...], quick: bool, max_rows: int, seeds: int, results: Path, output: Path | None, redraw: bool
) -> None:
    """Fits to many rows: memory and time, two processes against one, gain by rows and steps, costs on paper.

    The table is synthetic, with a law that is known in full, and is written into the folder of results: 0.4 GB for
    ten million rows, four times that with all parts.
    """
    sizes = QUICK if quick else Sizes(tuple(size for size in Sizes().rows if size <= max_rows), seeds=seeds)
    output = output or results
    tables = Tables(results / "tables")
    output.mkdir(parents=True, exist_ok=True)
    for part in parts:
        path = results / f"scale-{part}{'-quick' if quick else ''}.json"
        records: list[Record] = json.loads(path.read_text()) if redraw else []
        if not redraw:
            with tqdm(desc=part, unit="measurement") as bar:
                try:
                    for record in PARTS[part](tables, sizes):
                        bar.write(line_of(part, record))
                        records.append(record)
                        write_atomically(lambda file: file.write(json.dumps(records, indent=1).encode()), path)  # noqa: B023  # called at once
                        bar.update()
                except FailedRunError as error:
                    raise click.ClickException(str(error)) from error
        if part in SUMMARIES:
            click.echo(SUMMARIES[part](records))
        if part in _PICTURES:
            name, plot = _PICTURES[part]
            write_picture(plot(records), output / name)
            click.echo(str(output / name))
    write_picture(plot_path(), output / "large-tables-path.png")
