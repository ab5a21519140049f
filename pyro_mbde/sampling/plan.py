"""Plans of how rows are drawn, made from public numbers; they are checked, written on a card and carried out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pyro_mbde._checks import argument_error, check_count, check_flag, counted
from pyro_mbde.density.base import PreparedBase
from pyro_mbde.density.distribution import MollifiedExpFamily, check_density
from pyro_mbde.privacy.guarantee import Guarantee
from pyro_mbde.sampling.constant_time import constant_time_proposals
from pyro_mbde.sampling.independence import fresh_guarantee, total_variation_bound

#: The largest number of proposals that a call may take on average in the worst case, each row of a batch counted; they
#: take about an hour.
MAX_PROPOSALS = 10**9


@dataclass(frozen=True)
class DrawPlan:
    """How rows or batches are drawn, and what is true of each draw whatever the table.

    Attributes:
        method: ``constant-time`` (:func:`~pyro_mbde.sampling.constant_time.constant_time_draws`), ``exact`` (rejection,
            whose time is not covered) or ``fresh chains`` (:func:`~pyro_mbde.fresh_chains`).
        count: for constant-time draws, the number N of proposals of each draw, besides the one that is always accepted;
            for fresh chains, the steps of each chain; ``None`` for exact draws.
        total_variation: bound on the distance between the law of a draw and the density.
        guarantee: the guarantee of one draw.
    """

    method: Literal["constant-time", "exact", "fresh chains"]
    count: int | None
    total_variation: float
    guarantee: Guarantee


def plan_draws(q: MollifiedExpFamily, *, num_steps: int | None = None, constant_time: bool = True) -> DrawPlan:
    """Returns how to draw rows of a density.

    Args:
        q: the fitted density.
        num_steps: steps of fresh chains, at least 0; ``None`` for draws of the density itself.
        constant_time: whether draws of the density are constant-time; otherwise they are exact.

    Example:
        >>> import torch
        >>> from pyro_mbde import BoundedClassifiers
        >>> base = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
        >>> q = MollifiedExpFamily(base, BoundedClassifiers(1, 1), torch.tensor([0.36]), 0.0)
        >>> plan_draws(q).count, plan_draws(q, num_steps=20).guarantee.epsilon == q.epsilon
        (40, True)
    """
    check_density(q)
    check_flag("constant_time", constant_time)
    if num_steps is not None:
        num_steps = check_count("num_steps", num_steps, minimum=0)
        distance = total_variation_bound(q.bounds, num_steps)
        return DrawPlan("fresh chains", num_steps, distance, fresh_guarantee(q.bounds))
    q.confirm_guarantee()
    if constant_time:
        return DrawPlan("constant-time", constant_time_proposals(q.bounds), 2.0**-53, q.guarantee)
    return DrawPlan("exact", None, 0.0, q.guarantee)


def check_num_draws(q: MollifiedExpFamily, plan: DrawPlan, num_draws: int) -> int:
    """Returns the number of draws, or raises if they would take too long; depends only on public numbers."""
    num_draws = check_count("num_draws", num_draws)
    _check_time(q, plan, num_draws, "num_draws", 1)
    return num_draws


def draws_of_rows(q: MollifiedExpFamily, plan: DrawPlan, num_rows: int) -> int:
    """Returns how many draws give this many rows.

    Raises:
        ValueError: the rows are not a whole number of batches, or would take too long; depends only on public numbers.
    """
    num_rows, in_one = check_count("num_rows", num_rows), rows_per_draw(q)
    if num_rows % in_one:
        fewer, more = num_rows // in_one * in_one, (num_rows // in_one + 1) * in_one
        remedy = f"A batch is drawn and paid for as a whole. Ask for {f'{fewer} or {more}' if fewer else more}."
        constraint = f"be a multiple of {in_one}, the rows of one batch of this density"
        raise ValueError(argument_error("num_rows", constraint, num_rows, remedy))
    _check_time(q, plan, num_rows // in_one, "num_rows", in_one)
    return num_rows // in_one


def rows_per_draw(q: MollifiedExpFamily) -> int:
    """Returns how many rows one draw gives: those of a batch, and otherwise 1."""
    return PreparedBase.of(q.base).num_rows or 1


def _check_time(q: MollifiedExpFamily, plan: DrawPlan, num_draws: int, name: str, unit: int) -> None:
    """Raises if draws would take too long; what it names counts ``unit`` for each draw."""
    scored = rows_per_draw(q)  # by each proposal
    each = f"a batch of {scored} rows each" if scored > 1 else ""
    if plan.count is not None:
        num_proposals = plan.count + (plan.method == "fresh chains")  # a chain starts at a draw of the base
        if num_draws * num_proposals * scored > MAX_PROPOSALS:
            remedy = (
                f"Each takes {counted(plan.count + 1, 'proposal')}{each and ', ' + each}: draw fewer, lower epsilon "
                f"(or num_steps), or use constant_time=False, with which the running time is not covered."
            )
            limit = MAX_PROPOSALS // (num_proposals * scored) * unit
            raise ValueError(argument_error(name, f"be at most {limit} in constant time", num_draws * unit, remedy))
    elif num_draws * scored > MAX_PROPOSALS * math.exp(-q.bounds.width):
        remedy = f"With a tilt of width R = {q.bounds.width:.3g} nats, a draw may take e^R proposals"
        remedy += f"{each and ', ' + each}: lower epsilon."
        raise ValueError(argument_error(name, f"be at most {MAX_PROPOSALS:.0e} / e^R", num_draws * unit, remedy))
