"""Figures by command: ``pyro-mbde reproduce FIGURE``, or ``python -m pyro_mbde.experiments FIGURE``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pandas as pd

from pyro_mbde.cli import main as command
from pyro_mbde.cli.forward import PrintingCommand
from pyro_mbde.cli.shared import EXAMPLES
from pyro_mbde.experiments.decision import crossings, plot_decision
from pyro_mbde.experiments.explained_draws import EXPLAINED
from pyro_mbde.experiments.figures import PLOTS
from pyro_mbde.experiments.guide import GUIDE
from pyro_mbde.experiments.measure import measure
from pyro_mbde.experiments.results import SweepError, read_results
from pyro_mbde.experiments.runner import Job, current_versions, run_sweep
from pyro_mbde.experiments.sweeps import SWEEPS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DRAWN = {**PLOTS, "decision": plot_decision, "decision-medical": plot_decision}
_DOCUMENTED = {**GUIDE, **EXPLAINED}
#: The paper's in its order, then the guide's and those of the explanation.
NAMES = tuple(dict.fromkeys(["first", "mollifier", *_DRAWN, *_DOCUMENTED]))


@click.command(
    cls=PrintingCommand,
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde reproduce --quick
  pyro-mbde reproduce ring metrics --workers 4
  pyro-mbde reproduce gain --redraw
""",
)
@click.argument("names", nargs=-1, type=click.Choice(NAMES), metavar="[FIGURE]...")
@click.option("--quick", is_flag=True, help="Small tables and short training, to check that everything runs.")
@click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Folder for measurements.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for pictures and tables.  [default: the folder of results]",
)
@click.option("--redraw", is_flag=True, help="Draw from existing results, without measuring again.")
@click.option("--workers", type=click.IntRange(1), help="Number of processes.  [default: one for each processor]")
def main(
    names: tuple[str, ...], quick: bool, results: Path, output: Path | None, redraw: bool, workers: int | None
) -> None:
    """Measure and draw figures, all of them if none is named: for each a PNG, and a CSV of its numbers.

    From the paper: first, mollifier, ring, metrics, coverage, random-1d, random-2d. To choose between methods:
    decision, decision-medical. Of the documentation: gain, skew, release, placement, scale. Of its explanations, on the
    line and without training: pairs, places, projection, certificate, rejection, trajectories, rows, accounts, odds,
    people.

    Measurements for the first two groups are kept in the folder of results; a run that was stopped continues where it
    was. The others are measured every time; --redraw draws them from the tables in the output folder.
    """
    output = output or results
    path = results / ("quick.jsonl" if quick else "results.jsonl")
    jobs = {name: SWEEPS[name](quick=quick) for name in names or NAMES if name in SWEEPS}
    try:
        output.mkdir(parents=True, exist_ok=True)
        if jobs and not redraw:  # figures share jobs
            run_sweep(dict.fromkeys(job for one in jobs.values() for job in one), measure, path, num_workers=workers)
        for name in names or NAMES:
            if name in jobs:
                _draw_results(name, jobs[name], path, output)
            else:
                _draw_guide(name, output, quick=quick, redraw=redraw)
    except FileNotFoundError as error:
        raise click.ClickException(f"{error.filename} is not there. Run without --redraw to measure it.") from error
    except (OSError, SweepError, ValueError) as error:
        raise click.ClickException(str(error)) from error


def _draw_guide(name: str, output: Path, *, quick: bool, redraw: bool) -> None:
    if quick and name in GUIDE and name != "mollifier":
        click.echo(f"{name}: not drawn, it has no quick form")
        return
    measured, plot = _DOCUMENTED[name]
    table_path = output / f"{name}.csv"
    if not redraw:
        measured().round(6).to_csv(table_path, index=False)
    _save(plot(pd.read_csv(table_path)), output / f"{name}.png")


def _draw_results(name: str, jobs: list[Job], path: Path, output: Path) -> None:
    table = read_results(path, keys=[job.key for job in jobs])
    versions = {name: version or "" for name, version in current_versions().items()}
    old = int((table.reindex(columns=list(versions)).fillna("") != pd.Series(versions)).any(axis=1).sum())
    if old:
        remedy = "Take them out of the file, or name another folder of results, to measure them again."
        text = f"{name}: {old} of {len(table)} rows were measured with other versions or sources. {remedy}"
        click.secho(text, fg="red", err=True)
    for row in table[table["error"].notna()].itertuples():
        click.secho(f"failed: {row.key}: {row.error}", fg="red", err=True)
    table.drop(columns="grid", errors="ignore").to_csv(output / f"{name}.csv", index=False)
    _save(_DRAWN[name](table), output / f"{name}.png")
    if name.startswith("decision"):
        click.echo(crossings(table).to_string(index=False, float_format=lambda value: f"{value:.3f}"))


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=150)
    click.echo(str(path))


if __name__ == "__main__":
    command(["reproduce", *sys.argv[1:]], prog_name="pyro-mbde")
