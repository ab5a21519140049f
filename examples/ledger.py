"""Several releases under one ledger: a limit for the table that no release can pass, whoever asks.

A hospital opens one account for its table, here the RAND Health Insurance Experiment, with a total epsilon of 3
forever. Three people ask for rows, at different times and for different purposes; their batches come from one fit. Each
release is charged before anything is drawn. What the account cannot pay for is refused, and costs nothing. An auditor
checks the chain of the ledger's entries.

May be released: rows and cards. The picture shows epsilons alone, which depend on no table. Not: the ledger itself.

Run it with ``python examples/ledger.py``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

import click

from pyro_mbde import BudgetExceededError, DensityRatio, Ledger, WeakLearner, release
from pyro_mbde.experiments.medical import load_table, whole_schema
from pyro_mbde.pictures import new_figure, write_picture

OUTPUT = Path(__file__).parent / "output"
LIMIT = 3.0
# Distinguishable with colour-blindness; hatches distinguish them in grey.
INK, BLUES, ORANGE = "#333333", ("#0072b2", "#56b4e9", "#004b75"), "#d55e00"


class Request(NamedTuple):
    """Who asks for rows, how many, and the epsilon of all of them together; decided before the table was read."""

    purpose: str
    num_rows: int
    epsilon: float


REQUESTS = (
    Request("a lecture", 5, 1.0),
    Request("a test of software", 10, 1.5),
    Request("a second lecture", 5, 1.0),
    Request("a look at columns", 2, 0.5),
)


def draw_account(requests: list[tuple[Request, bool]], path: Path) -> None:
    """Shows what each release took from the account, and what was refused."""
    figure = new_figure(9, 3.9)
    axis = figure.subplots()
    spent = 0.0
    for place, (request, paid) in enumerate(requests):
        color = BLUES[place % 3] if paid else "none"
        style = {"edgecolor": "white"} if paid else {"edgecolor": ORANGE, "hatch": "//", "linewidth": 1.5}
        axis.barh(place, request.epsilon, left=spent, color=color, height=0.6, **style)
        text = f"{spent + request.epsilon:g} spent" if paid else "refused: nothing drawn, nothing charged"
        axis.annotate(
            text,
            (spent + request.epsilon, place),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=12,
            color=INK if paid else ORANGE,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        )
        spent += request.epsilon if paid else 0.0
    axis.axvline(LIMIT, color=INK, linewidth=2)
    axis.annotate("limit ", (LIMIT, -0.75), ha="right", va="center", fontsize=12, color=INK)
    labels = [f"{one.purpose}\n{one.num_rows} rows at {one.epsilon:g}" for one, _ in requests]
    axis.set_yticks(range(len(requests)), labels, fontsize=12)
    axis.set(xlim=(0, 6.4), ylim=(len(requests) - 0.5, -1))
    axis.set_xticks(range(4))
    axis.set_xlabel("epsilon of everything that was released from the table", fontsize=12, loc="left")
    axis.set_title("One account, and who asked for rows. Public: epsilons depend on no table", fontsize=12, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    write_picture(figure, path, dpi=90)


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=OUTPUT, help="Folder for picture and releases.")
@click.option("--smoke", is_flag=True, help="Single rows and hardly any training, to see that it runs.")
def main(output: Path, smoke: bool) -> None:
    """Charge several releases to one account, up to its limit."""
    learner = WeakLearner(num_steps=20) if smoke else None
    output.mkdir(parents=True, exist_ok=True)
    private = Path(tempfile.mkdtemp(prefix="ledger-", dir=output))
    schema = whole_schema()
    table = schema.to_tensor(load_table())
    ratio = DensityRatio(schema.base(), weak_learner=learner, progress=not smoke).fit(table)

    outcomes = []
    with Ledger(private / "budget.db") as ledger:
        ledger.open_account("rand-1982", epsilon=LIMIT, delta=1e-6)
        for number, request in enumerate(REQUESTS, 1):
            num_rows = 1 if smoke else request.num_rows
            batch = ratio.mollify(request.epsilon, num_rows=num_rows)
            path = private / f"for-{request.purpose.replace(' ', '-')}" / "rows.csv"
            path.parent.mkdir()
            click.secho(f"\n{number}. Rows for {request.purpose}: {num_rows}, at {request.epsilon:g}", bold=True)
            options = {"path": path, "purpose": request.purpose, "progress": not smoke}
            try:
                released = release(batch, num_rows, ledger, "rand-1982", **options)
                click.echo(f"  {released}; {ledger.spent('rand-1982').epsilon:g} of {LIMIT:g} spent")
                outcomes.append((request, True))
            except BudgetExceededError as error:
                click.echo(f"  Refused: {error}")
                outcomes.append((request, False))
        click.secho("\nFor the auditor", bold=True)
        click.echo(
            f"  Charges: {len(ledger.charges('rand-1982'))}. The chain of entries is whole: {ledger.verify().ok}."
        )

    draw_account(outcomes, output / "ledger.png")
    click.echo(f"\nsaved: {output / 'ledger.png'}, {private}")


if __name__ == "__main__":
    main()
