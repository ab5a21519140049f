"""``pyro-mbde budget``: accounts, what is spent, whether the ledger is whole, and planning."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from pyro_mbde_cli.shared import (
    CHECK_FAILED,
    EXAMPLES,
    EXISTING,
    Console,
    aligned,
    ledger_option,
    open_ledger,
    shared_options,
)


@click.group(
    "budget",
    short_help="Open accounts, see what is spent, verify, plan.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde budget plan --epsilon 2 --delta 1e-6 --num-draws 4
  pyro-mbde budget open clinic-2026 --epsilon 2 --delta 1e-6 --ledger budget.db
  pyro-mbde budget show --ledger budget.db
  pyro-mbde budget verify --ledger budget.db
""",
)
def budget_group() -> None:
    """Open accounts, see what is spent, verify the ledger, plan."""


@budget_group.command(
    "open",
    short_help="Open an account.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde budget open clinic-2026 --epsilon 2 --delta 1e-6 --ledger budget.db
  pyro-mbde budget open survey --epsilon 3 --delta 1e-6 --rule zcdp --ledger budget.db

\b
Rules:
  pure  epsilons add up; any number of models; for few rows (the default)
  zcdp  far less for many rows; any number of models; needs a delta
  iid   the least for many rows, of one model only; needs a delta
""",
)
@click.argument("name")
@ledger_option
@click.option("--epsilon", type=float, required=True, help="What all rows together may cost, in nats.")
@click.option("--delta", type=float, default=0.0, show_default=True, help="Of all rows together.")
@click.option(
    "--rule", type=click.Choice(["pure", "zcdp", "iid"]), default="pure", show_default=True, help="How costs add up."
)
@click.option(
    "--certificate-delta", type=float, help="What the certificates of models may take of delta.  [default: by the rule]"
)
@shared_options
def open_command(
    console: Console,
    name: str,
    ledger: str,
    epsilon: float,
    delta: float,
    rule: str,
    certificate_delta: float | None,
) -> None:
    """Open the account NAME, a limit for good on what rows from one table cost together.

    The ledger is made if there is none. Epsilon, delta and rule cannot be changed: choose them before anything is
    drawn. One table should have one account.
    """
    from pyro_mbde.privacy.advice import advise

    with open_ledger(ledger, create=True) as opened:
        account = opened.open_account(name, epsilon, delta, rule=rule, certificate_delta=certificate_delta)
        document = {**_describe(account), "head": opened.head()}
    document["advice"] = console.notes(advise(account.epsilon))
    if rule == "pure" and not delta:
        console.note("Delta is 0, so that only models fitted with --delta 0 can be charged to this account.")
    console.answer(
        document, f"opened {name}: epsilon {account.epsilon:g}, delta {account.delta:g}, rule {account.rule}"
    )


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
@click.option("--model", type=EXISTING, help="Tell how many more rows of this model the account can bear.")
@shared_options
def show_command(console: Console, name: str | None, ledger: str, model: Any) -> None:
    """Show all accounts, or the account NAME with its charges."""
    if model is not None and name is None:
        raise click.UsageError("--model needs the NAME of an account.")
    with open_ledger(ledger) as opened:
        if name is None:
            _show_all(console, opened)
        else:
            _show_one(console, opened, name, None if model is None else _density(model))


@budget_group.command(
    "verify",
    short_help="Check that nobody changed the ledger.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde budget verify --ledger budget.db
  pyro-mbde budget verify --ledger budget.db --head 3f0c...   # as it was noted elsewhere
""",
)
@ledger_option
@click.option("--head", metavar="HASH", help="A head that was noted before: the ledger must hold it.")
@shared_options
@click.pass_context
def verify_command(ctx: click.Context, console: Console, ledger: str, head: str | None) -> None:
    """Check that nobody changed the ledger. Exits with 4 if somebody did.

    Note the head that it prints where nobody can write to: whoever can write the ledger could make it anew, and only a
    head from before tells.
    """
    with open_ledger(ledger) as opened:
        found = opened.verify(head)
    document = {"ok": found.ok, "num_charges": found.num_charges, "head": found.head, "problems": list(found.problems)}
    noun = "charge" if found.num_charges == 1 else "charges"
    lines = [f"{'ok' if found.ok else 'CHANGED'}: {found.num_charges:,} {noun}, head {found.head}"]
    console.answer(document, "\n".join([*lines, *(f"  {problem}" for problem in found.problems)]))
    if not found.ok:
        ctx.exit(CHECK_FAILED)


@budget_group.command(
    "plan",
    short_help="Tell what each row may cost within a total.",
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde budget plan --epsilon 2 --delta 1e-6 --num-draws 4
  pyro-mbde budget plan --epsilon 3 --delta 1e-6 --num-draws 1000 --filled-share 0.2
""",
)
@click.option("--epsilon", type=float, required=True, help="What all rows together may cost, in nats.")
@click.option("--delta", type=float, default=0.0, show_default=True, help="Of all rows together.")
@click.option("--num-draws", type=click.IntRange(1), required=True, help="Rows of one model, the most that are wanted.")
@click.option(
    "--certificate-delta",
    type=float,
    default=1e-9,
    show_default=True,
    help="What the certificate of the model may take of delta.",
)
@click.option("--filled-share", type=float, help="A public guess: what share of the base's mass the table fills.")
@shared_options
def plan_command(
    console: Console,
    epsilon: float,
    delta: float,
    num_draws: int,
    certificate_delta: float,
    filled_share: float | None,
) -> None:
    """Tell how much each of several rows may cost within a total, and how to fit and which account to open for that."""
    from pyro_mbde import epsilon_per_draw
    from pyro_mbde.privacy.advice import advise

    budget = epsilon_per_draw(epsilon, num_draws, delta, certificate_delta=certificate_delta, filled_share=filled_share)
    total = budget.total
    options = f"--epsilon {budget.epsilon!r} --delta {budget.delta!r} --skew {budget.skew:.6g}"
    # The account has to add up as the plan does, with no more of delta set aside for certificates.
    account = f"--epsilon {epsilon!r} --delta {total.delta!r} --rule {budget.account_rule}"
    if budget.account_rule != "pure":
        account += f" --certificate-delta {budget.delta!r}"
    document = {**asdict(budget), "num_draws": num_draws, "fit_options": options, "account_options": account}
    document["advice"] = console.notes(
        advise(epsilon, row=budget.epsilon, skew=budget.skew, calibrated=budget.form == "calibrated")
    )
    text = aligned(
        [
            ("one row", f"epsilon {budget.epsilon:.6g}, {budget.form}"),
            (f"{num_draws:,} rows", f"epsilon {total.epsilon:.6g}, delta {total.delta:g}, by {total.rule}"),
            ("fit with", options),
            ("account", account),
        ]
    )
    console.answer(document, text)


def _density(path: Any) -> Any:
    from pyro_mbde import MollifiedExpFamily

    return MollifiedExpFamily.load(path)


def _describe(account: Any) -> dict[str, Any]:
    names = ("name", "epsilon", "delta", "rule", "certificate_delta", "opened")
    return {name: getattr(account, name) for name in names}


def _show_all(console: Console, opened: Any) -> None:
    accounts = opened.accounts()
    spent = [opened.spent(account.name) for account in accounts]
    document = {
        "accounts": [
            {**_describe(account), "spent": {"epsilon": cost.epsilon, "delta": cost.delta}}
            for account, cost in zip(accounts, spent, strict=True)
        ],
        "head": opened.head(),
    }
    rows = [("account", "rule", "epsilon spent", "delta spent", "opened")]
    rows += [
        (account.name, account.rule, *_standing(account, cost), _day(account.opened))
        for account, cost in zip(accounts, spent, strict=True)
    ]
    console.answer(document, aligned(rows))


def _show_one(console: Console, opened: Any, name: str, density: Any) -> None:
    account, cost, charges = opened.account(name), opened.spent(name), opened.charges(name)
    document: dict[str, Any] = {
        **_describe(account),
        "spent": {"epsilon": cost.epsilon, "delta": cost.delta},
        "charges": [
            {
                "number": charge.number,
                "when": charge.when,
                "num_draws": charge.num_draws,
                "guarantee": asdict(charge.guarantee),
                "purpose": charge.purpose,
                "who": charge.who,
                "fingerprint": charge.fingerprint,
                "hash": charge.hash,
            }
            for charge in charges
        ],
    }
    epsilon, delta = _standing(account, cost)
    lines = [f"{account.name}, rule {account.rule}, opened {_day(account.opened)}"]
    lines += [f"epsilon {epsilon} spent, delta {delta}"]
    if density is not None:
        document["affordable"] = opened.affordable(name, density.guarantee, density.fingerprint)
        lines += [f"{document['affordable']:,} more rows of this model, at epsilon {density.epsilon:.6g} each"]
    if charges:
        rows = [("entry", "when", "rows", "epsilon of one", "model", "who", "purpose")]
        rows += [
            (
                str(charge.number),
                _day(charge.when),
                f"{charge.num_draws:,}",
                f"{charge.guarantee.epsilon:.6g}",
                charge.fingerprint[:8],
                charge.who,
                charge.purpose,
            )
            for charge in charges
        ]
        lines += ["", aligned(rows)]
    console.answer(document, "\n".join(lines))


def _standing(account: Any, cost: Any) -> tuple[str, str]:
    return f"{cost.epsilon:.6g} of {account.epsilon:g}", f"{cost.delta:g} of {account.delta:g}"


def _day(when: Any) -> str:
    return str(when.date()) if hasattr(when, "date") else str(when)[:10]
