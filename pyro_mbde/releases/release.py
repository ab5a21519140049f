"""Paying for rows, drawing them, writing them to files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._checks import argument_error, check_seed, counted, shown
from pyro_mbde._signals import must_be_finished
from pyro_mbde._version import __version__
from pyro_mbde.density.base import PreparedBase
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.ledger.accounts import Account, BudgetExceededError, Charge
from pyro_mbde.ledger.ledger import Ledger
from pyro_mbde.mcmc.chains import Chains
from pyro_mbde.privacy.accounting import TotalCost, compose
from pyro_mbde.privacy.guarantee import Guarantee
from pyro_mbde.ranks import ALONE, Ranks
from pyro_mbde.releases.card import card_json, card_page, make_card
from pyro_mbde.releases.columns import released_columns, row_base, schema_of, to_frame
from pyro_mbde.releases.writing import ReleasePaths, encode_rows, release_paths, write_together
from pyro_mbde.sampling.fresh import FreshDraws
from pyro_mbde.sampling.plan import DrawPlan, draws_of_rows, plan_draws
from pyro_mbde.sampling.private import draw_rows
from pyro_mbde.sampling.ranked import DrawingRanks
from pyro_mbde.tables.schema import Schema

#: Columns of a release that one line shows at most.
_MAX_SHOWN = 8


@dataclass(frozen=True, repr=False)
class Release:
    """Rows that were paid for.

    Attributes:
        rows: the rows, for release.
        card: the facts about them, for release.
        charge: the ledger's entry. Not for release: the ledger is for its owner and an auditor.
    """

    rows: pd.DataFrame
    card: dict[str, Any]
    charge: Charge

    def __repr__(self) -> str:
        """Shows rows, columns and cost."""
        cost = self.card["cost_of_this_release"]["epsilon"]
        columns = ", ".join(map(str, self.rows.columns[:_MAX_SHOWN]))
        more = f" and {len(self.rows.columns) - _MAX_SHOWN} more" if len(self.rows.columns) > _MAX_SHOWN else ""
        rows = counted(len(self.rows), "row")
        return f"Release({rows} of {columns}{more}; epsilon={shown(cost)}, account={self.charge.account!r})"


class UnwrittenReleaseError(OSError):
    """Rows were paid for and drawn, and could not be written.

    Attributes:
        release: the rows, with their card and charge.
    """

    def __init__(self, text: str, release: Release) -> None:
        super().__init__(text)
        self.release = release

    def __reduce__(self) -> tuple[Any, ...]:
        """Keeps the rows when pickled between processes."""
        return type(self), (str(self), self.release)


def release(
    q: MollifiedExpFamily,
    num_rows: int,
    ledger: Ledger,
    account: str,
    *,
    path: str | os.PathLike[str] | None = None,
    purpose: str = "",
    who: str | None = None,
    columns: Sequence[str] | Schema | None = None,
    num_steps: int | None = None,
    constant_time: bool = True,
    seed: int | None = None,
    progress: bool = True,
    ranks: Ranks = ALONE,
) -> Release:
    r"""Charges rows to an account, draws them, and writes them with a card that says what is guaranteed.

    In this order: everything that can fail for public reasons is checked; the account is charged, or
    ``BudgetExceededError`` is raised and nothing is drawn; the card is made; the rows are drawn with randomness of the
    operating system; all of it is written. So the card cannot depend on the rows, and an interrupted release has paid
    for rows that nobody saw, never the reverse.

    Of a batch density (:meth:`~pyro_mbde.LogRatio.mollify` with ``num_rows=k``) whole batches are released: each is one
    draw, charged once, and its k rows come one below another. They depend on one another, and handing out fewer of them
    costs no less.

    With a ``path`` of ``rows.csv`` the card goes to ``rows.card.json`` (for machines) and ``rows.card.html`` (for
    people, one self-contained page). The rows are written last; if a file cannot be placed, those before it are
    removed, and nothing is overwritten.

    Privacy:
        Rows and card are for release. On the card are guarantee, cost, account and what is left of it, base, schema,
        bounds, columns and their public ranges, how the rows were drawn, the date, and ``purpose`` and ``who`` where
        they are given. (The base of a posterior reveals its observations, which must be public.) Nothing on it comes
        from what was fitted: for two tables, the same call gives the same card. The fingerprint goes into the ledger
        alone.
        Whether the call succeeds depends on public numbers. How many rows to draw, how often, and whether to release at
        all must not be decided by looking at the density or the rows.

    Args:
        q: a fitted density (:class:`~pyro_mbde.MBDE`, :class:`~pyro_mbde.LogRatio`) or an exact posterior
            (:func:`~pyro_mbde.exact_posterior`), with empty batch shape.
        num_rows: number of rows, at least 1; of a batch density, a multiple of a batch's rows.
        ledger: the ledger of the owner's budgets.
        account: name of the account to charge.
        path: where the rows go, ending in ``.csv`` or ``.parquet``; ``None`` to write nothing.
        purpose: what the rows are for; on the card and in the ledger. Nothing in it may come from the table.
        who: who releases; on the card only if given; the ledger always notes a name.
        columns: names of the columns; ``None`` for ``x``, or ``x0``, ``x1`` and so on. A density over the base of a
            schema (:meth:`pyro_mbde.Schema.base`), as ``pyro-mbde fit`` writes it, knows its columns: leave this out,
            and rows come in the table's own units.
        num_steps: ``None`` for draws of the density. With a number, the rows are last states of fresh chains of
            that many steps (:func:`~pyro_mbde.fresh_chains`), whose guarantee is epsilon 2R.
        constant_time: whether every draw, of a row or a batch, takes the same public number of proposals
            (:func:`~pyro_mbde.sampling.constant_time.constant_time_draws`); otherwise draws are exact and their time is
            not covered.
        seed: for tests only. The rows are not private then, and a warning and the card say so.
        progress: whether to show a progress bar when it takes more than a second.
        ranks: processes that draw the rows together (:func:`~pyro_mbde.joined_ranks`). The first one calls this
            function; the others call :func:`~pyro_mbde.sampling.ranked.serve_draws` and neither charge nor write.

    Returns:
        Rows, card and charge.

    Raises:
        BudgetExceededError: the account cannot afford it or is closed, or the density is charged to another account.
        LostRankError: another process ended before anything was charged. Afterwards its rows are drawn in this one.
        FileExistsError: there is a file of that name, or of its card's.
        ImportError: a ``.parquet`` file is wanted and pyarrow is missing.
        TypeError: ``q`` is something that is not private to hand out.
        UnwrittenReleaseError: the rows were drawn and could not be written; they are in the error.
        ValueError: the certificate of q has lapsed (:meth:`~pyro_mbde.MollifiedExpFamily.confirm_guarantee`), or the
            rows would take too long or are not a whole number of batches.

    References:
        Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018. Awan, Rao. Privacy-Aware
        Rejection Sampling. 2021.

    Example:
        >>> import tempfile, torch
        >>> from pyro_mbde import MBDE, Ledger
        >>> base = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
        >>> q = MBDE(base, epsilon=1.0, progress=False).fit(torch.linspace(0, 1, 500))
        >>> with tempfile.TemporaryDirectory() as folder, Ledger(f"{folder}/budget.db") as ledger:
        ...     account = ledger.open_account("clinic-2026", epsilon=3.0)
        ...     released = release(q, 2, ledger, "clinic-2026", columns=["weight"])
        >>> released.rows.shape, released.card["cost_of_this_release"], released.card["account"]["epsilon_left"]
        ((2, 1), {'epsilon': 2.0, 'delta': 0.0, 'rule': 'pure composition'}, 1.0)
    """
    with DrawingRanks(ranks) as drawing:
        _check_releasable(q)
        plan = plan_draws(q, num_steps=num_steps, constant_time=constant_time)
        num_draws = draws_of_rows(q, plan, num_rows)
        check_seed(seed)
        for name, text in (("account", account), ("purpose", purpose), ("who", "" if who is None else who)):
            if not isinstance(text, str):
                raise TypeError(argument_error(name, "be a string", text))
        named, schema = released_columns(q, columns), schema_of(q, columns)
        paths = None if path is None else release_paths(path)
        opened = ledger.account(account)
        facts: dict[str, Any] = {
            "num_draws": num_draws,
            "columns": named,
            "plan": plan,
            "cost": _cost(plan.guarantee, num_draws, opened),
            "version": __version__,
            "purpose": purpose,
            "who": who,
            "test_only": seed is not None,
            "schema": schema,
        }
        # All but the date and the account's new state is known: a card that cannot be made is found out now.
        rehearsed = make_card(q, **facts, account=opened, spent=facts["cost"], date="")
        card_json(rehearsed)
        card_page(rehearsed)
        drawing.compare(q)
        try:
            charge = ledger.charge(
                account, plan.guarantee, num_draws, fingerprint=q.fingerprint, purpose=purpose, who=who
            )
        except BudgetExceededError as error:
            raise BudgetExceededError(_of_rows(str(error), PreparedBase.of(q.base).num_rows)) from error.__cause__
        if ranks.size > 1:  # a launcher that loses one process asks all others to end, and soon kills them
            must_be_finished()
        assert charge.spent is not None  # by the charge itself: reading it afterwards might fail
        card = make_card(q, **facts, account=opened, spent=charge.spent, date=str(charge.when)[:10])
        values = _draw(drawing, q, plan, num_draws, seed, progress)
        rows = values.reshape(-1, *row_base(q).event_shape)  # batch after batch
        released = Release(to_frame(rows, named, schema), card, charge)
        if paths is not None:
            _write(paths, released)
        return released


def _of_rows(refusal: str, rows_of_batch: int | None) -> str:
    """Returns what a ledger refuses, in rows: as an account counts draws."""
    if not refusal.startswith("num_draws"):
        return refusal
    if rows_of_batch is None:
        return refusal.replace("num_draws", "num_rows")
    return f"{refusal} A draw of this density is a batch of {counted(rows_of_batch, 'row')}."


def _draw(
    drawing: DrawingRanks, q: MollifiedExpFamily, plan: DrawPlan, num_draws: int, seed: int | None, progress: bool
) -> Tensor:
    """Draws what is paid for; without a progress bar where it cannot be written."""

    def draw_here(count: int) -> Tensor:
        try:
            return draw_rows(q, plan, count, seed=seed, progress=progress)
        except OSError:
            if not progress:
                raise
            return draw_rows(q, plan, count, seed=seed, progress=False)

    return drawing.draw(plan, num_draws, draw_here, alone=seed is not None)


def _resolutions(card: Mapping[str, Any]) -> dict[str, str]:
    """Resolutions of columns of dates, by name."""
    return {column["name"]: column["resolution"] for column in card["columns"] if column.get("resolution")}


def _write(paths: ReleasePaths, released: Release) -> None:
    try:
        write_together(
            [
                (paths.card, card_json(released.card)),
                (paths.page, card_page(released.card)),
                (paths.rows, encode_rows(released.rows, paths.rows.suffix, _resolutions(released.card))),
            ]
        )
    except Exception as error:  # whatever writing raises, the rows are paid for
        text = f"The rows are paid for and drawn, but were not written: {error}. They are in this error's release."
        raise UnwrittenReleaseError(text, released) from error


def _cost(guarantee: Guarantee, num_draws: int, account: Account) -> TotalCost:
    """What the rows cost taken alone, with as much delta as the account's rule makes use of."""
    delta = account.delta if account.rule != "pure" and account.delta > guarantee.delta else None
    return compose(guarantee, num_draws, delta)


def _check_releasable(q: Any) -> None:
    """Raises, with the reason, for what may not be handed out or cannot be charged."""
    if isinstance(q, MollifiedExpFamily):
        if q.batch_shape:
            remedy = "Pass the density before it is expanded: rows are independent draws in any case."
            raise ValueError(argument_error("q", "have an empty batch shape", tuple(q.batch_shape), remedy))
        return
    kind = type(q).__name__
    if isinstance(q, Chains):
        reason = (
            "A chain's states are not private, whatever the kernel: they depend on one another, on adaptation and on "
            "the gradient. Pass the density itself; num_steps makes fresh chains and hands out their last states alone."
        )
    elif isinstance(q, FreshDraws):
        reason = "Draws are charged before they are made. Pass the density and num_steps."
    elif isinstance(q, Tensor | np.ndarray | pd.DataFrame | pd.Series | list | tuple | dict):
        reason = "From numbers nobody can tell what they were drawn from, or what that cost. Pass the density."
    elif isinstance(q, Distribution):
        reason = "Its draws carry no integral-privacy guarantee: only a tilt with public bounds has one."
    elif hasattr(q, "mollify"):
        reason = "A learned ratio has no bound and no guarantee. Pass what its mollify(epsilon) returns."
    else:
        reason = "Pass what MBDE.fit, LogRatio.mollify or exact_posterior returned."
    raise TypeError(f"q must be a MollifiedExpFamily, got a {kind}. {reason}")
