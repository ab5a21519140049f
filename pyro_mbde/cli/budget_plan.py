"""``pyro-mbde budget plan``: how to hand out rows within a total."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from pyro_mbde.cli.console import Console, aligned
from pyro_mbde.cli.numbers import NUMBER, Whole
from pyro_mbde.cli.shared import EXAMPLES, SKEW, filled_share_option, shared_options, skew_option

if TYPE_CHECKING:
    from pyro_mbde.privacy.release_plan import ReleasePlan

#: Totals are below it, in nats, as the epsilon of one row is.
MAX_TOTAL = 700.0
#: A skew below it leaves most rows no better than draws of the base, for a few that are good.
LOW_SKEW = 0.1
LOW_SKEW_ADVICE = (
    "A skew of {:.2g} is right only where the table fills so small a share of the base: it leaves most rows no better "
    "than draws of the base, with a few good ones among them. If in doubt, leave out {}: the skew is then 0.3."
)
#: Of an account, and of a plan for one, where none is given.
DELTA = 1e-6
#: That a release scores on one core, with the default network.
ROWS_PER_SECOND = 200_000
#: What a fit takes on one core, in words, with the default network; the certificate is that of a batch of at most this
#: epsilon and this many rows.
_FIT_TAKES = "a fit takes 10 seconds to a minute"
_CERTIFICATE_TAKES = "its certificate 5 seconds to a minute more"
_MAX_TIMED_EPSILON, _MAX_TIMED_ROWS = 10.0, 20
delta_option = click.option(
    "--delta",
    type=NUMBER,
    default=DELTA,
    help="Delta of all rows together. The default pays for the certificates of a thousand models made with fit's "
    f"defaults.  [default: {DELTA:g}]",
)


@click.command(
    "plan",
    short_help="Work out how to hand out rows within a total.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde budget plan --epsilon 3 --rows 10
  pyro-mbde budget plan --epsilon 3 --rows 20 --divergence 0.1
  pyro-mbde budget plan --epsilon 3 --num-draws 20 --filled-share 0.2
  pyro-mbde budget plan --epsilon 1 --delta 0 --num-draws 2
""",
)
@click.option("--epsilon", type=NUMBER, required=True, help="What all rows together may cost, in nats; below 700.")
@click.option("--rows", type=Whole(1), help="Rows wanted in all. The plan says in how many batches to draw them.")
@delta_option
@skew_option
@filled_share_option
@click.option(
    "--divergence",
    type=NUMBER,
    help="A public guess of how far the base is from the table, in nats a row. The plan then says what rows will look "
    "like.",
)
@click.option(
    "--num-draws",
    type=Whole(1),
    help="In place of --rows: the largest number of draws that are paid for one by one, such as single rows.",
)
@click.option(
    "--certificate-delta",
    type=NUMBER,
    default=1e-9,
    show_default=True,
    help="The part of delta that the certificate of the model may use.",
)
@shared_options
def plan_command(
    console: Console,
    epsilon: float,
    rows: int | None,
    delta: float,
    skew: float | None,
    filled_share: float | None,
    divergence: float | None,
    num_draws: int | None,
    certificate_delta: float,
) -> None:
    """Work out how to hand out rows within a total, how to fit for that, and which account to open.

    With --rows the plan says whether one batch of all rows, several batches, or single rows serve best; how much nearer
    to the table than the base a row can come, what rows will look like, and how long a release takes. With --num-draws
    every draw is paid for by itself.
    """
    if rows is not None and num_draws is not None:
        raise click.UsageError(
            "--rows and --num-draws exclude each other: --rows is the number of rows wanted in all, which the plan "
            "puts into batches; --num-draws is the number of draws, such as single rows, that are paid for one by one."
        )
    if rows is None and num_draws is None:
        raise click.UsageError("Name the rows wanted: --rows, or --num-draws for draws that are paid for one by one.")
    if skew is not None and filled_share is not None:
        raise click.UsageError("--filled-share sets the skew: leave out --skew, or leave out --filled-share.")
    if divergence is not None and rows is None:
        raise click.UsageError("--divergence goes with --rows.")
    from pyro_mbde.privacy.accounting import epsilon_per_draw
    from pyro_mbde.privacy.advice import advise
    from pyro_mbde.privacy.release_plan import ReleasePlan, plan_release

    check_total(epsilon)
    options: dict[str, Any] = {
        "certificate_delta": certificate_delta,
        "skew": SKEW if skew is None else skew,
        "filled_share": filled_share,
    }
    if rows is not None:
        plan = plan_release(epsilon, rows, delta, divergence=divergence, **options)
    else:
        assert num_draws is not None  # one of the two is given
        plan = ReleasePlan(num_draws, 1, epsilon_per_draw(epsilon, num_draws, delta, **options))
    calibrated = plan.budget.form == "calibrated"
    row = plan.budget.epsilon if rows is None else None  # of rows in batches the plan's own remarks tell
    advice = advise(epsilon, row=row, skew=plan.budget.skew, calibrated=calibrated)
    if calibrated and plan.budget.skew < LOW_SKEW:
        given = "--skew" if filled_share is None else "--filled-share"
        advice.append(LOW_SKEW_ADVICE.format(plan.budget.skew, given))
    document = _document(plan, epsilon, delta, filled_share)
    document["remarks"] = plan.remarks() if rows is not None else []
    document["advice"] = console.notes(advice)
    console.answer(document, _release_text(plan, document) if rows is not None else _draws_text(plan, document))


def check_total(epsilon: float) -> None:
    """Raises for a total at which fit refuses one row; what is infinite is refused elsewhere, with its own reason."""
    if MAX_TOTAL <= epsilon < math.inf:
        remedy = "Totals of 1 to 3 can be defended."
        raise ValueError(f"--epsilon must be below {MAX_TOTAL:g}, as that of one row, got {epsilon:g}. {remedy}")


def _document(plan: ReleasePlan, epsilon: float, delta: float, filled_share: float | None) -> dict[str, Any]:
    """A plan for JSON, with the words to fit, to open an account and to release by."""
    budget, total = plan.budget, plan.budget.total
    batch = f" --rows {plan.rows_per_batch}" if plan.rows_per_batch > 1 else ""
    place = f"--skew {budget.skew!r}" if filled_share is None else f"--filled-share {filled_share!r}"
    fit = f"--epsilon {budget.epsilon!r}{batch} --delta {budget.delta!r} {place}"
    # The account has to add up as the plan does. Under the rule pure the delta that was asked for pays for certificates
    # alone, of several models too; under the others no more of it is set aside for them than the plan has.
    account = f"--epsilon {epsilon!r}"
    if budget.account_rule == "pure":
        account += f" --delta {delta!r}" if delta != DELTA else ""
        account += " --rule pure"
        bound = 0 < budget.delta <= delta < 2 * budget.delta
    else:
        account += f" --delta {total.delta!r} --rule {budget.account_rule} --certificate-delta {budget.delta!r}"
        bound = budget.delta > 0 or budget.account_rule == "iid"
    return {
        **asdict(budget),
        "num_draws": plan.num_batches,
        "num_rows": plan.num_rows,
        "rows_per_batch": plan.rows_per_batch,
        "divergence": plan.divergence,
        "largest_gain": plan.largest_gain,
        "num_scored": plan.num_scored,
        "seconds": plan.num_scored / ROWS_PER_SECOND,
        "fit_options": fit,
        "account_options": account,
        "account_note": _purpose_of_account(budget.account_rule, budget.delta) if bound else None,
        "commands": [
            f"pyro-mbde budget open NAME --ledger LEDGER {account}",
            f"pyro-mbde fit TABLE --schema SCHEMA {fit} -o MODEL",
            f"pyro-mbde release MODEL {plan.num_rows} --ledger LEDGER --account NAME -o ROWS",
        ],
    }


def _release_text(plan: ReleasePlan, document: dict[str, Any]) -> str:
    """A plan for a number of rows: the way, the cost and the time, the words on them, and the commands."""
    from pyro_mbde._checks import counted, shown

    budget, total, several = plan.budget, plan.budget.total, plan.num_batches > 1
    if plan.rows_per_batch == 1:
        way = f"{plan.num_rows:,} single rows" if several else "a single row"
    else:
        way = f"{plan.num_batches:,} batches of " if several else "one batch of "
        way += counted(plan.rows_per_batch, "row")
    each = " each" if several else ""
    fit = _FIT_TAKES
    if (
        budget.form == "calibrated"
        and budget.epsilon <= _MAX_TIMED_EPSILON
        and 1 < plan.rows_per_batch <= _MAX_TIMED_ROWS
    ):
        fit += f", {_CERTIFICATE_TAKES}"
    table = aligned(
        [
            ("draw", f"{way}, epsilon {shown(budget.epsilon)}{each}, {budget.form}"),
            ("cost", f"epsilon {shown(total.epsilon)}, delta {shown(total.delta)}, by {total.rule}"),
            ("takes", f"a release scores {counted(plan.num_scored, 'row')}, {_duration(document['seconds'])}; {fit}"),
        ]
    )
    note = [f"The account is {document['account_note']}."] if document["account_note"] else []
    return "\n".join([table, "", *document["remarks"], "", *document["commands"], *note])


def _draws_text(plan: ReleasePlan, document: dict[str, Any]) -> str:
    """A plan for draws that are paid for one by one."""
    from pyro_mbde._checks import counted, shown

    budget, total = plan.budget, plan.budget.total
    cost = f"epsilon {shown(total.epsilon)}, delta {shown(total.delta)}, by {total.rule}"
    return aligned(
        [
            ("one row", f"epsilon {shown(budget.epsilon)}, {budget.form}"),
            (counted(plan.num_rows, "row"), cost),
            ("fit with", document["fit_options"]),
            ("account", document["account_options"]),
            *([("", document["account_note"])] if document["account_note"] else []),
        ]
    )


def _purpose_of_account(rule: str, delta: float) -> str:
    """What the account of a plan is for."""
    from pyro_mbde._checks import shown

    if rule == "placement":
        return f"for one model, or several of this epsilon and skew whose deltas add up to {shown(delta)}"
    others = {
        "pure": "plan with a larger --delta",
        "zcdp": "leave out --certificate-delta, and plan fewer rows",
        "iid": "open it with --rule zcdp, and plan fewer rows",
    }
    return f"for one model only; for several {others[rule]}"


def _duration(seconds: float) -> str:
    from pyro_mbde._checks import counted

    if seconds < 1:
        return "less than a second on one core"
    if seconds < 90:
        return f"about {counted(math.ceil(seconds), 'second')} on one core"
    return f"about {counted(math.ceil(seconds / 60), 'minute')} on one core"
