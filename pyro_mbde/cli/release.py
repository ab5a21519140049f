"""``pyro-mbde release``. All it says is public; nothing here may depend on the table but the rows themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyro_mbde._launcher import num_restarts
from pyro_mbde.cli.console import Console
from pyro_mbde.cli.numbers import Whole
from pyro_mbde.cli.ranked import command_ranks
from pyro_mbde.cli.shared import (
    EXAMPLES,
    EXISTING,
    OUTPUT,
    batch_remarks,
    ledger_option,
    library,
    open_ledger,
    shared_options,
)

if TYPE_CHECKING:
    from pyro_mbde.ranks import Ranks
    from pyro_mbde.tables.files import TableModel


@click.command(
    "release",
    short_help="Draw rows to hand out, charged to an account.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde release model.pt --ledger budget.db --account clinic-2026 -o public/rows.csv
  pyro-mbde release single-rows.pt 3 --ledger budget.db --account clinic-2026 -o public/rows.csv
  pyro-mbde release model.pt 20 --config pyro-mbde.toml --purpose "rows for the course"
  PYRO_MBDE_LEDGER=postgresql://... pyro-mbde release single-rows.pt 1 --account survey -o public/row.parquet
""",
)
@click.argument("model", type=EXISTING)
@click.argument("num_rows", type=Whole(1), required=False)
@ledger_option
@click.option("--account", required=True, help="Account of the ledger to charge.")
@click.option("-o", "--output", type=OUTPUT, required=True, metavar="ROWS", help="File for the rows: .csv or .parquet.")
@click.option("--purpose", default="", help="What the rows are for. Kept in the ledger and shown on the card.")
@click.option("--who", help="Who releases them.  [default: the user's name]")
@click.option(
    "--variable-time",
    is_flag=True,
    help="Stop at the first accepted proposal of each draw. Faster, but the time it takes depends on the table.",
)
@click.option("--seed", type=Whole(0), hidden=True, help="For tests: rows that must not be handed out.")
@shared_options
def release_command(
    console: Console,
    model: Path,
    num_rows: int | None,
    ledger: str,
    account: str,
    output: Path,
    purpose: str,
    who: str | None,
    variable_time: bool,
    seed: int | None,
) -> None:
    """Draw NUM_ROWS rows from MODEL, to hand out, and charge them to an account of the ledger.

    From a model that was fitted with --rows, whole batches are drawn, each for one price: one batch if NUM_ROWS is left
    out, and otherwise as many as make up NUM_ROWS. From any other model, every row is paid for by itself, and NUM_ROWS
    is needed.

    The account is charged before anything is drawn. If it cannot afford the rows, nothing is drawn and the exit code is
    3. A card that says what is guaranteed is written beside ROWS, as .card.json and .card.html; none of the three files
    may exist. Rows and card are public, and so is everything that this command prints. Rows that were charged and
    cannot be written are printed. Once rows are charged and written, the exit code is 0, even if nothing can be
    printed.

    Several processes draw the rows together if they are started by torchrun: `torchrun --nproc-per-node=2 -m pyro_mbde
    release ...`. The first one charges, writes and speaks. If another is lost after the charge, it draws that one's
    rows too; torchrun asks it to end, and leaves it half a minute to finish.
    """
    if num_restarts():
        raise click.UsageError(
            "A release is not started again by itself: it may have been charged. Look with `pyro-mbde budget show`, "
            "and start it without --max-restarts."
        )
    with command_ranks(console) as (ranks, spoken):
        from pyro_mbde.tables.files import TableModel

        fitted = TableModel.load(model)
        if not ranks.is_first:
            from pyro_mbde.sampling.ranked import serve_draws

            serve_draws(fitted.density, ranks)
            return
        _release(spoken, ranks, fitted, model, num_rows, ledger, account, output, purpose, who, variable_time, seed)


def _release(
    console: Console,
    ranks: Ranks,
    fitted: TableModel,
    model: Path,
    num_rows: int | None,
    ledger: str,
    account: str,
    output: Path,
    purpose: str,
    who: str | None,
    variable_time: bool,
    seed: int | None,
) -> None:
    """Charges, draws, writes and says so, in the first process."""
    from pyro_mbde._checks import counted, shown
    from pyro_mbde.density.base import PreparedBase
    from pyro_mbde.privacy.advice import advise

    rows_of_batch = PreparedBase.of(fitted.density.base).num_rows
    if num_rows is None:
        if rows_of_batch is None:
            raise click.UsageError(
                f"Missing argument 'NUM_ROWS': {model} gives single rows, each of which is paid for."
            )
        num_rows = rows_of_batch
    with open_ledger(ledger) as opened:
        try:
            released = library().release(
                fitted.density,
                num_rows,
                opened,
                account,
                path=output,
                purpose=purpose,
                who=who,
                columns=fitted.schema,
                seed=seed,
                ranks=ranks,
                constant_time=not variable_time,
                progress=console.progress and not variable_time,  # its pace depends on the table
            )
        except KeyboardInterrupt:
            console.warn("rows that were charged before the interrupt stay charged: see pyro-mbde budget show.")
            raise
        except OSError as error:
            unwritten = getattr(error, "release", None)
            if unwritten is not None:  # paid for: where the files cannot take them, standard output can
                rows = json.loads(unwritten.rows.to_json(orient="records"))
                text = unwritten.rows.to_csv(index=False).rstrip("\n")
                console.answer({"rows": rows, "card": unwritten.card}, text, settled=True)
            raise
    standing, density = released.card["account"], released.card["density"]
    spent = standing["spent"]
    epsilon, skew, calibrated = fitted.density.epsilon, density["skew"], density["form"] == "calibrated"
    if rows_of_batch is None:
        advice = advise(standing["epsilon"], row=epsilon, skew=skew, calibrated=calibrated)
    else:
        remarks = batch_remarks(rows_of_batch, epsilon, skew=skew, calibrated=calibrated)
        advice = [*advise(standing["epsilon"]), *remarks]
    document = {
        "rows": output,
        "num_rows": num_rows,
        "num_draws": released.charge.num_draws,
        "card": released.card,
        "charge": {"number": released.charge.number, "when": released.charge.when, "purpose": purpose},
        "account": standing,
        "advice": console.notes(advice),
    }
    text = (
        f"{counted(num_rows, 'row')} in {output}, "
        f"what is guaranteed in {output.stem}.card.json and .card.html beside it\n"
        f"entry {released.charge.number} of the ledger, charged to {released.charge.account}: "
        f"epsilon {shown(spent['epsilon'])} of {shown(standing['epsilon'])} spent, "
        f"delta {shown(spent['delta'])} of {shown(standing['delta'])}"
    )
    console.answer(document, text, settled=True)
