"""Words and figures of a card, from public numbers alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

from pyro_mbde._checks import counted, shown
from pyro_mbde.privacy.advice import distance_from_base
from pyro_mbde.privacy.guarantee import Guarantee

#: Added to a distance: for rounding, and for constant-time draws, which are within 2^-53 of the density.
_RESERVE = 1e-9
#: Levels of a column that a card lists.
_MAX_LEVELS = 8


def likeness(
    guarantee: Guarantee, *, skew: float | None, fresh_chains: bool, where: str, rows_of_batch: int | None = None
) -> dict[str, Any]:
    r"""Returns how much of the rows is public base, whatever the table was.

    By :func:`~pyro_mbde.privacy.advice.distance_from_base`. Last states of fresh chains have a law whose ratio to the
    base is in :math:`[e^{-R}, e^R]`, with :math:`\epsilon = 2R`
    (:func:`~pyro_mbde.sampling.independence.fresh_guarantee`): as that of a calibrated density with skew 1/2.
    For a batch, both are stated: for whole batches, and for one row taken alone (:func:`row_distance`).

    Privacy:
        Public: it depends on its arguments alone, which are public.

    Args:
        guarantee: of one row, or of one batch.
        skew: of a density whose certificate holds; ``None`` for an a-priori guarantee.
        fresh_chains: whether rows are last states of fresh chains.
        where: what the base is, in words.
        rows_of_batch: ``None`` for single rows.

    Example:
        >>> of = likeness(Guarantee(0.5, 1e-9), skew=0.3, fresh_chains=False, where="the public base")
        >>> of["of_100_rows"]
        89
        >>> print(of["text"])
        At ε = 0.5 a row, at least 89 of 100 such rows could just as well have been drawn from the public base, whatever
        the table was (except with a probability of 1e-9). So means, shares and correlations of these rows are not those
        of the table.
    """
    skew = 0.5 if fresh_chains else skew
    calibrated = skew is not None and 0 <= skew <= 1
    placed = skew if calibrated and skew is not None else 0.5
    distance = min(distance_from_base(guarantee.epsilon, placed, calibrated=calibrated) + _RESERVE, 1.0)
    unless = f" (except with a probability of {round_up(guarantee.delta)})" if guarantee.delta > 0 else ""
    epsilon, tail = round_up(guarantee.epsilon), f"drawn from {where}, whatever the table was{unless}."
    are_not = "are not" if rows_of_batch is None else "need not be"
    text = f"Means, shares and correlations of these rows {are_not} those of the table."
    followed = f"So {text[0].lower()}{text[1:]}"
    found = {"largest_distance_from_base": float(f"{distance:.6g}")}
    of_100 = math.floor(100 * (1 - distance))
    if rows_of_batch is None:
        if of_100 > 0:
            counts = f"{of_100} of 100 such rows"
            text = f"At ε = {epsilon} a row, at least {counts} could just as well have been {tail} {followed}"
        return {"of_100_rows": of_100, **found, "text": text}
    of_a_row = row_distance(guarantee.epsilon, placed, rows_of_batch, calibrated=calibrated)
    rows_of_100 = math.floor(100 * (1 - min(of_a_row + _RESERVE, distance)))
    if rows_of_100 > 0:
        counts = f"{of_100} of 100 such batches and, each by itself, {rows_of_100} of 100 such rows"
        text = f"At ε = {epsilon} a batch, at least {counts} could just as well have been {tail} {followed}"
    return {"of_100_batches": of_100, "of_100_rows": rows_of_100, **found, "text": text}


def row_distance(epsilon: float, skew: float, num_rows: int, *, calibrated: bool = True) -> float:
    r"""Returns the largest total variation between the base and the law of one row of a batch, taken by itself.

    Privacy:
        Public.

    Args:
        epsilon: of the batch, in nats, at least 0.
        skew: of a calibrated density, in [0, 1].
        num_rows: rows of the batch.
        calibrated: whether its guarantee is calibrated, or a priori.

    Example:
        >>> round(row_distance(3.0, 0.3, 10), 3)
        0.221
    """
    # D = KL(q, Q0^k) is largest where the ratio q/q0 is at an end of [a, b] everywhere, as x log x is convex: then it
    # is b with the probability b(1 - a)/(b - a) under q. A priori the log-ratio ranges over R = epsilon/2, and
    # D <= R^2/8 (Hoeffding). All rows have one law p, and against a product k KL(p, q0) <= D. From KL to total
    # variation lead the inequalities of Pinsker and of Bretagnolle and Huber.
    if epsilon == 0:
        return 0.0
    if calibrated:
        above = -math.expm1(-skew * epsilon) / -math.expm1(-epsilon)
        divergence = epsilon * (above * (1 - skew) - (1 - above) * skew)
    else:
        divergence = min((epsilon / 2) ** 2 / 8, epsilon / 2)
    of_a_row = max(divergence, 0.0) / num_rows
    return min(math.sqrt(of_a_row / 2), math.sqrt(-math.expm1(-of_a_row)))


def batches_in_words(number: int, num_rows: int, epsilon: float) -> str:
    """Returns what it means that rows came in batches.

    Args:
        number: of batches.
        num_rows: of each.
        epsilon: of one batch, in nats.

    Example:
        >>> print(batches_in_words(1, 20, 3.0))
        The 20 rows were drawn together, as one batch, for one price: ε = 3 covers the whole batch. A row has no
        separate price, and fewer of the rows would cost no less. Rows of a batch depend on one another.
    """
    rows, price = counted(num_rows, "row"), f"ε = {round_up(epsilon)} covers the whole batch"
    if number == 1:
        text = f"The {rows} were drawn together, as one batch, for one price: {price}."
    else:
        text = f"The rows were drawn in {number} batches of {rows}, one below another, each for one price: {price}."
    rest = "A row has no separate price, and fewer of the rows would cost no less."
    return f"{text} {rest} Rows of a batch depend on one another."


def column_values(column: Mapping[str, Any]) -> str:
    """Returns what the values of a card's column are.

    Example:
        >>> column_values({"whole": False, "scale": "log1p", "decimals": 2})
        'numbers, 2 decimals; modelled as ln(1 + v)'
        >>> column_values({"whole": False, "kind": "ordered", "levels": ["I", "II"], "may_be_missing": True})
        'levels in order: I, II; may be missing'
    """
    missing = "; may be missing" if column.get("may_be_missing") else ""
    kind, levels = column.get("kind", "real"), column.get("levels")
    if levels is not None:
        listed = ", ".join(levels[:_MAX_LEVELS])
        more = f" and {len(levels) - _MAX_LEVELS:,} more" if len(levels) > _MAX_LEVELS else ""
        return f"levels{' in order' if kind == 'ordered' else ''}: {listed}{more}{missing}"
    if kind in ("date", "datetime"):
        return f"{'dates' if kind == 'date' else 'times'}, by the {column['resolution']}{missing}"
    decimals = column.get("decimals")
    kind = "whole numbers" if column["whole"] or decimals == 0 else "numbers"
    if decimals:
        kind = f"numbers, {decimals} decimal{'s' if decimals > 1 else ''}" if decimals > 0 else f"in {10**-decimals:,}s"
    return f"{kind}; modelled as ln(1 + v){missing}" if column.get("scale") == "log1p" else f"{kind}{missing}"


def column_end(column: Mapping[str, Any], end: str) -> str:
    """Returns an end of a card's column: a number, a date, or what stands for none.

    Args:
        column: of the card.
        end: ``low`` or ``high``.
    """
    value = column[end]
    if isinstance(value, str):
        return value
    if value is None:
        return "–" if column.get("levels") is not None else "no limit"
    return short_number(value)


def round_up(value: float, digits: int = 4) -> str:
    """Returns a cost in a few digits, rounded up, except where it exceeds the nearest by less than a share of 1e-12.

    Args:
        value: at least 0.
        digits: how many.

    Example:
        >>> round_up(2.4000000000000004), round_up(8.30051), round_up(1e-9), round_up(0.0), round_up(12345.6)
        ('2.4', '8.301', '1e-9', '0', '12350')
    """
    if value <= 0 or not math.isfinite(value):
        return f"{value:g}"
    exact = Decimal(value * (1 - 1e-12))  # rounding of floats does not raise a digit
    rounded = Context(prec=digits, rounding=ROUND_CEILING).plus(exact)
    return _shorter_exponent(f"{float(rounded):.15g}")


def short_number(value: float | None) -> str:
    """Returns a number in at most six digits, a dash for none.

    Example:
        >>> short_number(4.615120516841), short_number(None), short_number(100.0)
        ('4.61512', '–', '100')
    """
    if value is None:
        return "–"
    return _shorter_exponent(shown(value)).replace("-", "\N{MINUS SIGN}", int(value < 0))


def _shorter_exponent(text: str) -> str:
    return text.replace("e-0", "e-").replace("e+0", "e+")


def percent(value: float) -> str:
    """Returns a probability in per cent.

    Example:
        >>> percent(0.1), percent(0.2718), percent(0.99996), percent(0.00003)
        ('10%', '27.2%', '> 99.9%', '< 0.1%')
    """
    if value > 0.999:
        return "> 99.9%" if value < 1 else "100%"
    if value < 0.001:
        return "< 0.1%" if value > 0 else "0%"
    return f"{100 * value:.3g}%"
