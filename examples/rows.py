"""Rows to hand out: twenty rows of a medical table in one release, with the card that says what is promised.

Fits the RAND Health Insurance Experiment over its public schema, opens an account of epsilon 3 in a ledger, and
releases one batch of twenty rows, which uses up the account. Rows and card are written together, into a folder.

May be released: the folder ``public``, as it is. Not: the fit, the ledger, and the picture, which shows rows of the
table beside those of the base and of the release.

Run it with ``python examples/rows.py``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import pandas as pd
import torch

from pyro_mbde import DensityRatio, Ledger, WeakLearner, release
from pyro_mbde.experiments.medical import load_table, whole_schema
from pyro_mbde.pictures import new_figure, write_picture

OUTPUT = Path(__file__).parent / "output"
NUM_SHOWN = 7


def draw_rows(blocks: dict[str, pd.DataFrame], draws: pd.DataFrame, path: Path) -> None:
    """Writes rows below one another; the darker a cell, the larger its value among the base's draws."""
    num_columns = len(draws.columns)
    figure = new_figure(10, 1.0 + 0.27 * sum(len(rows) + 3.2 for rows in blocks.values()))
    figure.get_layout_engine().set(h_pad=0.12)
    axes = figure.subplots(len(blocks), 1)
    ordered = draws.apply(lambda column: column.cat.codes if column.dtype == "category" else column)
    for axis, (title, rows) in zip(axes, blocks.items(), strict=True):
        codes = rows.apply(lambda column: column.cat.codes if column.dtype == "category" else column)
        shades = [
            [float((ordered[name] < value).mean() + (ordered[name] <= value).mean()) / 2 for name, value in row.items()]
            for _, row in codes.iterrows()
        ]
        axis.imshow(shades, cmap="Blues", vmin=0, vmax=1.8, aspect="auto")
        for line, row in enumerate(rows.itertuples(index=False)):
            for place, value in enumerate(row):
                text = ("no", "yes")[value] if isinstance(value, bool) else value
                axis.text(place, line, text, ha="center", va="center", fontsize=11)
        axis.set_xticks(range(num_columns), [name.replace("_", " ") for name in draws.columns], fontsize=10)
        axis.tick_params(length=0, labelbottom=False, labeltop=True, pad=1)
        axis.set_yticks([])
        axis.spines[:].set_visible(False)
        axis.set_title(title, loc="left", fontsize=12, fontweight="bold")
    note = "For the data owner: the picture shows rows of the table (a public one here), do not hand it out"
    figure.supxlabel(note, fontsize=10)
    write_picture(figure, path, dpi=90)


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=OUTPUT, help="Folder for picture and release.")
@click.option("--smoke", is_flag=True, help="Small sizes and hardly any training, to see that it runs.")
def main(output: Path, smoke: bool) -> None:
    """Release rows of a medical table, with a card, under a budget."""
    epsilon, num_rows = (1.0, 2) if smoke else (3.0, 20)
    learner = WeakLearner(num_steps=20) if smoke else None
    output.mkdir(parents=True, exist_ok=True)
    private = Path(tempfile.mkdtemp(prefix="release-", dir=output))  # each run is a release of its own
    public = private / "public"
    public.mkdir()

    # Public and fixed beforehand: the schema, epsilon, the number of rows, and the account's limit.
    schema, table = whole_schema(), load_table()
    ratio = DensityRatio(schema.base(), weak_learner=learner, progress=not smoke).fit(schema.to_tensor(table))
    batch = ratio.mollify(epsilon, num_rows=num_rows)
    with Ledger(private / "budget.db") as ledger:
        ledger.open_account("rand-1982", epsilon=epsilon, delta=1e-6)
        released = release(
            batch, num_rows, ledger, "rand-1982", path=public / "rows.csv", purpose="an example", progress=not smoke
        )
        left = ledger.affordable("rand-1982", batch.guarantee, batch.fingerprint)

    click.secho("\nPublic: hand out this folder, as it is", bold=True)
    click.echo(f"  {', '.join(sorted(str(path) for path in public.iterdir()))}")
    click.echo(f"  {released}")
    click.echo(released.rows.to_string(index=False))
    click.echo(f"  Releases that the account can still pay for: {left}.")

    draws = schema.to_frame(ratio.base.sample(torch.Size([2_000])))
    known = pd.DataFrame({name: table[name].astype(draws[name].dtype) for name in draws})
    blocks = {
        "The table: sensitive": known.sample(NUM_SHOWN, random_state=1),
        "The public base: before the table is read": draws.head(NUM_SHOWN),
        f"The release: {num_rows} rows at a total epsilon of {epsilon:g}, of which these": released.rows.head(
            NUM_SHOWN
        ),
    }
    draw_rows(blocks, draws, output / "rows.png")
    click.echo(f"\nsaved: {output / 'rows.png'}, {private}")


if __name__ == "__main__":
    main()
