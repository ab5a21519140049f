"""The card of a release: what is guaranteed of its rows, and what is not. Public facts only."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

import jinja2
from torch.distributions import Distribution

from pyro_mbde._checks import counted
from pyro_mbde.density.base import PreparedBase
from pyro_mbde.density.base_draws import draws_by_inversion
from pyro_mbde.density.bounds import calibrated_guarantee
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.ledger.accounts import Account
from pyro_mbde.privacy.accounting import TotalCost
from pyro_mbde.privacy.advice import WEAK_EPSILON
from pyro_mbde.privacy.guarantee import Guarantee
from pyro_mbde.releases.base_words import (
    base_in_words,
    base_knowledge,
    base_text,
    base_units,
    base_values,
    json_values,
)
from pyro_mbde.releases.card_words import (
    batches_in_words,
    column_end,
    column_values,
    likeness,
    percent,
    round_up,
    short_number,
)
from pyro_mbde.releases.columns import ReleasedColumn, row_base
from pyro_mbde.sampling.plan import DrawPlan
from pyro_mbde.tables.schema import Schema
from pyro_mbde.theory import post_processing_bounds

CARD_FORMAT, CARD_VERSION = "pyro_mbde.release_card", 1

#: Chance of a decision that the card's example starts from.
_EXAMPLE_CHANCE = 0.1

_PROTECTS = (
    "The whole table: not only single records, but every group of records, of any size, up to all of them. For any two "
    "tables, the probabilities of the released rows differ by at most the factor stated."
)
_ACCURACY = (
    "That the rows are accurate, or true of any person. The guarantee does not let their density follow the table "
    "closely."
)
_ACCURACY_OF_BATCHES = (
    "That the rows are accurate, or true of any person. The guarantee limits how closely their density follows the "
    "table."
)
_LIMITS = [
    "That no row resembles a real record. A row may do so by chance.",
    "Anything about other releases from the same table, unless they were charged to the same account.",
    "Protection of what the owner chose publicly beforehand: the base, its ranges, the columns, the budget. If any of "
    "it was chosen by looking at the table, the guarantee is void.",
    "Protection from conclusions that do not need the table. What follows from the base alone can be concluded from "
    "the rows too.",
]
_DEPENDENCE = (
    "That the rows of a batch are independent of one another. All of them may be rather like the table, or all of them "
    "rather like the base: they are a sample of a density, not a count of people."
)
_REFERENCES = [
    "H. Husain, Z. Cranko, R. Nock. Integral Privacy for Sampling from Mollifier Densities with Approximation "
    "Guarantees. 2018. (integral privacy of a draw)",
    "C. Dwork, A. Roth. The Algorithmic Foundations of Differential Privacy. 2014. Theorem 3.14. (epsilons add up)",
    "M. Bun, T. Steinke. Concentrated Differential Privacy. 2016. (zCDP)",
    "J. Dong, D. Durfee, R. Rogers. Optimal Differential Privacy Composition for Exponential Mechanisms. 2020. (the "
    "exact curve of several draws)",
    "J. Awan, V. Rao. Privacy-Aware Rejection Sampling. 2021. (what the time of a draw reveals)",
]


# What a card holds is shown by card_text.py, for terminals, and templates/card.html.j2, as a page: change all three.
# Earlier cards are shown too, so that a new field must be optional there.
def make_card(
    q: MollifiedExpFamily,
    *,
    num_draws: int,
    columns: Sequence[ReleasedColumn],
    plan: DrawPlan,
    cost: TotalCost,
    account: Account,
    spent: TotalCost,
    date: str,
    version: str,
    purpose: str = "",
    who: str | None = None,
    test_only: bool = False,
    schema: Schema | None = None,
) -> dict[str, Any]:
    """Returns the card of a release as plain dicts, lists, numbers and text.

    Nothing in it comes from the rows or from what was fitted: of the density it uses the base, the bounds of the tilt
    and the tolerance of the certificate, all public.

    Privacy:
        For release.

    Args:
        q: the fitted density.
        num_draws: number of rows, or of batches.
        columns: of the rows.
        plan: how rows or batches are drawn.
        cost: of this release, taken alone.
        account: the account that paid: name, rule, epsilon and delta.
        spent: of the account, this release included.
        date: day of the release.
        version: of the library.
        purpose: what the rows are for, in the words of the owner.
        who: who releases them; on the card only if given.
        test_only: whether the rows come from a seed.
        schema: that brings the rows from the base's units into the table's; None where there is none.
    """
    bounds, certificate, guarantee = q.bounds, q.certificate, plan.guarantee
    if certificate is not None and guarantee != calibrated_guarantee(bounds, certificate):
        certificate = None  # it has lapsed, or fresh chains do not need it
    # However later releases are chosen, everything together is bounded by the limit, not by what is spent so far.
    limit = TotalCost(account.epsilon, account.delta, account.rule)
    base, rows_of_batch = row_base(q), PreparedBase.of(q.base).num_rows
    num_rows = num_draws * (rows_of_batch or 1)
    rows = counted(num_rows, "row")
    return {
        "format": CARD_FORMAT,
        "version": CARD_VERSION,
        "title": f"{rows} released under integral privacy",
        "test_only": test_only,
        "date": date,
        "purpose": purpose,
        "who": who,
        "num_rows": num_rows,
        "columns": [column.on_a_card() for column in columns],
        **_price(guarantee, num_draws, rows_of_batch),
        "cost_of_this_release": asdict(cost),
        "account": {
            "name": account.name,
            "rule": account.rule,
            "epsilon": account.epsilon,
            "delta": account.delta,
            "spent": asdict(spent),
            "epsilon_left": max(account.epsilon - spent.epsilon, 0.0),
        },
        "protects": _PROTECTS,
        "likeness": likeness(
            guarantee,
            skew=None if certificate is None else _skew(bounds.low, bounds.high, certificate.tolerance),
            fresh_chains=plan.method == "fresh chains",
            where=base_in_words(base, columns, schema),
            rows_of_batch=rows_of_batch,
        ),
        "meaning": _meaning(rows, cost),
        "examples": [_example(rows, cost), _example("All that the account may ever pay for", limit)],
        "does_not_promise": _limits(plan, rows_of_batch),
        "density": {
            "form": "a priori" if certificate is None else "calibrated",
            "base": base_values(base),
            "base_text": base_text(base),
            "base_knowledge": base_knowledge(base, columns, schema),
            "base_units": "" if schema is None else base_units(base, columns),
            "schema": None if schema is None else json_values(schema.to_dict()),
            "tilt_low": bounds.low,
            "tilt_high": bounds.high,
            "tilt_width": bounds.width,
            "skew": _skew(bounds.low, bounds.high, 0.0 if certificate is None else certificate.tolerance),
            "tolerance": None if certificate is None else certificate.tolerance,
        },
        "draws": _draws(plan, q.base, rows_of_batch, test_only),
        "software": {"name": "pyro_mbde", "version": version},
        "references": list(_REFERENCES),
    }


def _price(guarantee: Guarantee, num_draws: int, rows_of_batch: int | None) -> dict[str, Any]:
    """What a draw is and costs: a row, or a batch, whose rows have no separate price."""
    if rows_of_batch is None:
        return {"guarantee_of_one_row": asdict(guarantee)}
    text = batches_in_words(num_draws, rows_of_batch, guarantee.epsilon)
    return {
        "guarantee_of_one_batch": asdict(guarantee),
        "batches": {"number": num_draws, "rows_of_each": rows_of_batch, "text": text},
    }


def _skew(low: float, high: float, tolerance: float) -> float:
    """Where the interval of log q/q0 lies, to 12 digits, which removes rounding."""
    width = high - low + 2 * tolerance
    return float(f"{(tolerance - low) / width:.12g}") if width > 0 else 0.5


def card_json(card: dict[str, Any]) -> bytes:
    """Returns a card as the bytes of a JSON file."""
    return (json.dumps(card, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def card_page(card: dict[str, Any]) -> bytes:
    """Returns a card as one self-contained web page."""
    return templates().get_template("card.html.j2").render(card=card).encode()


@cache
def templates() -> jinja2.Environment:
    """Returns the environment of the pages: every value is escaped, and a missing one raises."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pyro_mbde.releases"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "up": round_up,
        "short": short_number,
        "percent": percent,
        "values": column_values,
        "end": column_end,
    }
    return environment


def _example(what: str, total: TotalCost) -> dict[str, Any]:
    at_least, at_most = post_processing_bounds(_EXAMPLE_CHANCE, total.epsilon, total.delta)
    return {
        "what": what,
        "epsilon": total.epsilon,
        "chance": _EXAMPLE_CHANCE,
        "at_most": at_most,
        "at_least": at_least,
    }


def _meaning(rows: str, cost: TotalCost) -> list[str]:
    factor = f"10^{math.ceil(cost.epsilon / math.log(10))}"
    if cost.epsilon < 20:
        factor = round_up(math.exp(cost.epsilon), 3)
    but = f", except with probability {round_up(cost.delta)}" if cost.delta > 0 else ""
    what = "this row" if rows == "1 row" else f"these {rows} together"
    meaning = [
        "Suppose you are a patient, and the table behind these rows holds your record, and perhaps your family's. "
        "Whatever anybody concludes from the rows, and does about you, would have been nearly as likely with any other "
        "table: one without you, without your family, or from another clinic.",
        f"ε says how nearly: within a factor of e^ε. For {what}, ε = {round_up(cost.epsilon)}: at most {factor} "
        f"times as likely, and at least 1/{factor} times{but}.",
    ]
    _, at_most = post_processing_bounds(_EXAMPLE_CHANCE, cost.epsilon, cost.delta)
    if at_most >= post_processing_bounds(_EXAMPLE_CHANCE, WEAK_EPSILON)[1]:
        meaning.append("With a factor this large, the guarantee rules out little: it is weak.")
    return meaning


def _draws(plan: DrawPlan, base: Distribution, rows_of_batch: int | None, test_only: bool) -> dict[str, Any]:
    unit = "row" if rows_of_batch is None else "batch"
    described: dict[str, Any] = {"fixed_work": plan.count is not None}
    if plan.method == "fresh chains":
        steps = f"{plan.count} step{'' if plan.count == 1 else 's'}"
        described["method"] = (
            f"constant-time: last states of chains of {steps} from fresh draws of the base, whatever the table; within "
            f"{plan.total_variation:.3g} of the density in total variation"
        )
        described["num_steps"] = plan.count
    elif plan.method == "constant-time":
        proposals = f"{plan.count} proposal{'' if plan.count == 1 else 's'}"
        described["method"] = (
            f"constant-time: rejection with {proposals} for every {unit}, whatever the table; within 2^-53 of the "
            "density in total variation"
        )
        described["num_proposals"] = plan.count
    else:
        described["method"] = "exact: rejection, whose time is not covered"
    if test_only:
        randomness = "a fixed seed, for a test: not private"
    elif draws_by_inversion(base):
        randomness = "the operating system's cryptographic generator"
    else:
        randomness = (
            "the operating system's cryptographic generator for acceptance; for proposals, PyTorch's generator, "
            "whose whole state the system fills again before half of it is used on average, or for each row if a row "
            "uses more"
        )
    return described | {"total_variation": plan.total_variation, "randomness": randomness}


def _limits(plan: DrawPlan, rows_of_batch: int | None) -> list[str]:
    time = "That the time of the draws reveals nothing. It may depend on the table."
    if plan.count is not None:
        time = (
            "That the time of the draws reveals nothing at all. The number of steps does not depend on the table, but "
            "a processor may be slower with some numbers than with others."
        )
    return [
        _ACCURACY if rows_of_batch is None else _ACCURACY_OF_BATCHES,
        *_LIMITS,
        *([] if rows_of_batch is None else [_DEPENDENCE]),
        time,
        "That this card is true. It is the owner's statement; their ledger can show that the rows were paid for.",
    ]
