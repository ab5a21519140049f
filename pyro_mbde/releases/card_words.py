"""Words and figures of a card, from public numbers alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

from torch.distributions import Distribution, Independent, Uniform

from pyro_mbde._checks import shown
from pyro_mbde.privacy.advice import distance_from_base
from pyro_mbde.privacy.guarantee import Guarantee
from pyro_mbde.releases.columns import ReleasedColumn

#: Added to a distance: for rounding, and for constant-time draws, which are within 2^-53 of the density.
_RESERVE = 1e-9


def likeness(guarantee: Guarantee, *, skew: float | None, fresh_chains: bool, where: str) -> dict[str, Any]:
    r"""Returns how much of the rows is public base, whatever the table was.

    By :func:`~pyro_mbde.privacy.advice.distance_from_base`. Last states of fresh chains have a law whose ratio to the
    base is in :math:`[e^{-R}, e^R]`, with :math:`\epsilon = 2R`
    (:func:`~pyro_mbde.sampling.independence.fresh_guarantee`): as that of a calibrated density with skew 1/2.

    Privacy:
        Public: it depends on its arguments alone, which are public.

    Args:
        guarantee: of one row.
        skew: of a density whose certificate holds; ``None`` for an a-priori guarantee.
        fresh_chains: whether rows are last states of fresh chains.
        where: what the base is, in words.

    Example:
        >>> of = likeness(Guarantee(0.5, 1e-9), skew=0.3, fresh_chains=False, where="the public base")
        >>> of["of_100_rows"]
        89
        >>> print(of["text"])
        At ε = 0.5 a row, at least 89 of 100 such rows could as well have been drawn from the public base, whatever the
        table was (except with a probability of 1e-9). So means, shares and correlations of these rows are not those
        of the table.
    """
    skew = 0.5 if fresh_chains else skew
    if skew is not None and 0 <= skew <= 1:
        distance = distance_from_base(guarantee.epsilon, skew)
    else:
        distance = distance_from_base(guarantee.epsilon, calibrated=False)
    distance = min(distance + _RESERVE, 1.0)
    of_100 = math.floor(100 * (1 - distance))
    unless = f" (except with a probability of {round_up(guarantee.delta)})" if guarantee.delta > 0 else ""
    text = "Means, shares and correlations of these rows are not those of the table."
    if of_100 > 0:
        text = (
            f"At ε = {round_up(guarantee.epsilon)} a row, at least {of_100} of 100 such rows could as well have been "
            f"drawn from {where}, whatever the table was{unless}. So {text[0].lower()}{text[1:]}"
        )
    return {"of_100_rows": of_100, "largest_distance_from_base": float(f"{distance:.6g}"), "text": text}


def base_in_words(base: Distribution, columns: Sequence[ReleasedColumn]) -> str:
    """Returns what drawing from a base means, in a few words.

    Example:
        >>> from torch.distributions import Uniform
        >>> base_in_words(Uniform(0.0, 1.0), [ReleasedColumn("share", 0.0, 1.0, False)])
        'the public base, evenly over the ranges of the columns below'
    """
    while isinstance(base, Independent):
        base = base.base_dist
    if not isinstance(base, Uniform):
        return "the public base"
    logarithms = [column.name for column in columns if column.scale == "log1p"]
    scale = f" ({', '.join(logarithms)} on a logarithmic scale)" if logarithms else ""
    return f"the public base, evenly over the ranges of the columns below{scale}"


def base_units(columns: Sequence[ReleasedColumn]) -> str:
    """Returns the units of the base of a schema where they differ from those of the columns; else nothing.

    Example:
        >>> print(base_units([ReleasedColumn("visits", 0.0, 61.0, True, "log1p")]))
        The base is in modelled units. A whole number n is spread over [n, n + 1): up to 62 stands for up to 61. Of
        visits, ln(1 + v) is modelled.
    """
    parts = []
    whole = next((column for column in columns if column.whole), None)
    if whole is not None and whole.high is not None:
        parts.append(
            f"A whole number n is spread over [n, n + 1): up to {short_number(whole.high + 1)} stands for up to "
            f"{short_number(whole.high)}."
        )
    logarithms = [column.name for column in columns if column.scale == "log1p"]
    if logarithms:
        parts.append(f"Of {', '.join(logarithms)}, ln(1 + v) is modelled.")
    return " ".join(["The base is in modelled units.", *parts]) if parts else ""


def column_values(column: Mapping[str, Any]) -> str:
    """Returns what the values of a card's column are.

    Example:
        >>> column_values({"whole": False, "scale": "log1p", "decimals": 2})
        'numbers, 2 decimals; modelled as ln(1 + v)'
    """
    decimals = column.get("decimals")
    kind = "whole numbers" if column["whole"] or decimals == 0 else "numbers"
    if decimals:
        kind = f"numbers, {decimals} decimal{'s' if decimals > 1 else ''}" if decimals > 0 else f"in {10**-decimals:,}s"
    return f"{kind}; modelled as ln(1 + v)" if column.get("scale") == "log1p" else kind


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
