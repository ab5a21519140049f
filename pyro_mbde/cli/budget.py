"""``pyro-mbde budget``: accounts, what is spent, whether the ledger is whole, and planning."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from pyro_mbde.cli.budget_plan import DELTA as DELTA
from pyro_mbde.cli.budget_plan import check_total, delta_option, plan_command
from pyro_mbde.cli.budget_show import describe, limits, show_all, show_one
from pyro_mbde.cli.console import Console, tell
from pyro_mbde.cli.numbers import NUMBER
from pyro_mbde.cli.shared import (
    CHECK_FAILED,
    EXAMPLES,
    EXISTING,
    USER_ERROR,
    ledger_option,
    library,
    open_ledger,
    shared_options,
)


@click.group(
    "budget",
    short_help="Open and close accounts, see what is spent, verify, plan.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde budget plan --epsilon 3 --rows 10
  pyro-mbde budget open clinic-2026 --epsilon 3 --ledger budget.db
  pyro-mbde budget show --ledger budget.db
  pyro-mbde budget verify --ledger budget.db
""",
)
def budget_group() -> None:
    """Open and close accounts, see what is spent, verify the ledger, plan."""


yes_option = click.option("--yes", is_flag=True, help="Do not ask. Without a terminal, nothing is asked anyway.")


@budget_group.command(
    "open",
    short_help="Open an account.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde budget open clinic-2026 --epsilon 3 --ledger budget.db
  pyro-mbde budget open survey --epsilon 3 --rule placement --ledger budget.db

\b
Rules:
  pure       epsilons add up; any number of models; for one batch or few rows (the default)
  placement  the least for several batches or rows; any number of models, of one epsilon and skew; needs a delta
  zcdp       far less for many rows; any number of models; needs a delta
  iid        the least for many rows of one model that was fitted with --delta 0; needs a delta
""",
)
@click.argument("name")
@ledger_option
@click.option("--epsilon", type=NUMBER, required=True, help="What all rows together may cost, in nats; below 700.")
@delta_option
@click.option(
    "--rule",
    type=click.Choice(["pure", "zcdp", "placement", "iid"]),
    default="pure",
    show_default=True,
    help="How costs add up.",
)
@click.option(
    "--certificate-delta",
    type=NUMBER,
    help="The part of delta that the certificates of models may use.  [default: depends on the rule]",
)
@yes_option
@shared_options
@click.pass_context
def open_command(
    ctx: click.Context,
    console: Console,
    name: str,
    ledger: str,
    epsilon: float,
    delta: float,
    rule: str,
    certificate_delta: float | None,
    yes: bool,
) -> None:
    """Open the account NAME, a permanent limit on what rows from one table cost together.

    The ledger is created if there is none. Epsilon, delta and rule cannot be changed later: choose them before anything
    is drawn. On a terminal the command shows them and asks for confirmation. One table should have one account, and one
    density is charged to one account only. The name must not look like that of another account.
    """
    from pyro_mbde.ledger.accounts import make_account
    from pyro_mbde.privacy.advice import advise

    check_total(epsilon)
    planned = make_account(name, epsilon, delta, rule, certificate_delta, datetime.now(UTC))
    advice = console.notes(advise(planned.epsilon))
    facts = (
        f"account {planned.name} in {_place(ledger)}: {limits(planned)}\n"
        "None of this can be changed later, and the name is never used again."
    )
    if not console.confirm(facts, "Open it?", yes=yes):
        tell("Nothing was opened.")
        ctx.exit(USER_ERROR)
    with open_ledger(ledger, create=True) as opened:
        account = opened.open_account(name, epsilon, delta, rule=rule, certificate_delta=certificate_delta)
        document = {**describe(account), "head": _head(console, opened), "advice": advice}
    if rule == "pure" and not delta:
        console.note("Delta is 0, so that only models fitted with --delta 0 can be charged to this account.")
    console.answer(document, f"opened {account.name}: {limits(account)}", settled=True)


@budget_group.command(
    "close",
    short_help="Close an account that was opened by mistake.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde budget close clinic-2062 --ledger budget.db
""",
)
@click.argument("name")
@ledger_option
@yes_option
@shared_options
@click.pass_context
def close_command(ctx: click.Context, console: Console, name: str, ledger: str, yes: bool) -> None:
    """Close the account NAME permanently. It must have no charges.

    Its opening and its closing stay in the ledger, its name is never used again, and nothing can be charged to it.
    """
    with open_ledger(ledger) as opened:
        account = opened.account(name)
        facts = f"account {account.name} in {_place(ledger)}: {limits(account)}\nIt cannot be opened again."
        if not console.confirm(facts, "Close it?", yes=yes):
            tell("Nothing was closed.")
            ctx.exit(USER_ERROR)
        account = opened.close_account(name)
        document = {**describe(account), "head": _head(console, opened)}
    console.answer(document, f"closed {account.name}", settled=True)


@budget_group.command(
    "show",
    short_help="Show accounts, or one with its charges.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde budget show --ledger budget.db
  pyro-mbde budget show clinic-2026 --ledger budget.db --model model.pt
""",
)
@click.argument("name", required=False)
@ledger_option
@click.option("--model", type=EXISTING, help="Say how many more rows or batches of this model the account can afford.")
@shared_options
def show_command(console: Console, name: str | None, ledger: str, model: Any) -> None:
    """Show all accounts, or the account NAME with its charges."""
    if model is not None and name is None:
        raise click.UsageError("--model needs the NAME of an account.")
    with open_ledger(ledger) as opened:
        if name is None:
            show_all(console, opened)
        else:
            density = None if model is None else library().MollifiedExpFamily.load(model)
            show_one(console, opened, name, density)


@budget_group.command(
    "verify",
    short_help="Check that nobody changed the ledger.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde budget verify --ledger budget.db
  pyro-mbde budget verify --ledger budget.db --head HASH   # as it was noted elsewhere
""",
)
@ledger_option
@click.option("--head", metavar="HASH", help="An earlier head, which the ledger must contain.")
@shared_options
@click.pass_context
def verify_command(ctx: click.Context, console: Console, ledger: str, head: str | None) -> None:
    """Check that nobody changed the ledger, and that what it holds is within its limits. Exits with 4 if not.

    Permission to read the ledger is enough. Keep the head that it prints where those who can write the ledger cannot:
    they could rewrite all of it, and only an earlier head shows that. Pass the whole head.
    """
    from pyro_mbde._checks import counted

    with open_ledger(ledger) as opened:
        found = opened.verify(head)
    lines = [f"{'ok' if found.ok else 'NOT OK'}: {counted(found.num_charges, 'charge')}, head {found.head}"]
    lines += [f"  {problem}" for problem in found.problems]
    console.answer(asdict(found), "\n".join(lines), settled=not found.ok)
    if not found.ok:
        ctx.exit(CHECK_FAILED)


def _place(ledger: str) -> str:
    """Where a ledger is; a database's URL holds a password."""
    return "the database" if "://" in ledger else ledger


def _head(console: Console, opened: Any) -> str | None:
    """The head after a change, which is made whether it can be read or not."""
    try:
        return str(opened.head())
    except RuntimeError as error:
        console.warn(f"the new head could not be read: {error}")
        return None


budget_group.add_command(plan_command)
