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
NUM_SHOWN = 10
#: Columns that the picture shows: their headings, and where their cells end (where they begin, for text).
PLACES = {
    "visits": ("visits", 0.10),
    "coinsurance": ("co-\ninsurance %", 0.27),
    "incentive": ("incentive\npayment $", 0.45),
    "max_expense": ("largest\nexpense $", 0.63),
    "diseases": ("diseases", 0.78),
    "health": ("health", 0.83),
}


def draw_rows(blocks: dict[str, tuple[str, str, pd.DataFrame]], path: Path) -> None:
    """Writes rows side by side: a block for each title, with a remark and a color."""
    figure = new_figure(13, 4.2)
    for axis, (title, (remark, color, rows)) in zip(figure.subplots(1, len(blocks)), blocks.items(), strict=True):
        axis.set(xlim=(0, 1), ylim=(0, 1))
        axis.set_axis_off()
        axis.text(0, 1, title, fontsize=15, weight="bold", color=color, va="top")
        axis.text(0, 0.9, remark, fontsize=10.5, color=color, va="top")
        for name, (heading, place) in PLACES.items():
            side = "left" if name == "health" else "right"
            axis.text(place, 0.75, heading, ha=side, va="center", fontsize=8.5, color="#555555")
            for line, value in enumerate(rows[name]):
                height = 0.65 - 0.066 * line
                axis.text(place, height, value, ha=side, va="center", fontsize=11, color=color)
        for line in range(0, len(rows), 2):
            axis.axhspan(0.65 - 0.066 * (line + 0.5), 0.65 - 0.066 * (line - 0.5), color="#f2f2f2", zorder=0)
    write_picture(figure, path, dpi=110)


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

    base_rows = schema.to_frame(ratio.base.sample(torch.Size([NUM_SHOWN])))
    rows_text = f"{len(released.rows)} rows together at a total epsilon of {epsilon:g}"
    blocks = {
        "the table": ("private: never leaves the hospital", "#333333", table.sample(NUM_SHOWN, random_state=1)),
        "the public base": ("what anybody may know: costs nothing", "#777777", base_rows),
        "a release": (rows_text, "#0072b2", released.rows.head(NUM_SHOWN)),
    }
    draw_rows(blocks, output / "side_by_side.png")
    click.echo(f"\nsaved: {output / 'side_by_side.png'}, {private}")


if __name__ == "__main__":
    main()
