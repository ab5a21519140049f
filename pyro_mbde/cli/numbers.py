"""Numbers on the command line and in a file of options: plain decimal notation, nothing cut off."""

from __future__ import annotations

import re
from typing import Any

import click

_WHOLE = re.compile(r"[-+]?[0-9]{1,400}")
_NUMBER = re.compile(r"[-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|inf|nan)")


class Number(click.types.FloatParamType):
    """A number in ASCII digits with a decimal point, or inf."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the number, or fails."""
        if (problem := number_problem(value)) is not None:
            self.fail(f"{shortened(value)} is not a number. {problem}", param, ctx)
        try:
            return float(value)
        except OverflowError:  # of an int
            self.fail(f"{shortened(value)} is too large.", param, ctx)


class Whole(click.IntRange):
    """A whole number in ASCII digits, within limits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Returns the number, or fails."""
        if (problem := whole_problem(value)) is not None:
            self.fail(f"{shortened(value)} is not a whole number. {problem}", param, ctx)
        whole: int = super().convert(value, param, ctx)
        return whole


NUMBER = Number()


def whole_problem(value: Any) -> str | None:
    """Returns how to write what is not a whole number; None of one that is.

    Args:
        value: text, or a value of a TOML file.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return None
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return None
    return "Write it in digits alone, such as 20."


def number_problem(value: Any) -> str | None:
    """Returns how to write what is not a number; None of one that is.

    Args:
        value: text, or a value of a TOML file.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return None
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return None
    if isinstance(value, str) and _NUMBER.fullmatch(value.replace(",", ".", 1)):
        return f"Use a decimal point: {value.replace(',', '.', 1)}."
    return "Write it in the digits 0 to 9 with a decimal point, such as 0.5."


def shortened(value: Any) -> str:
    """Returns a value as an error shows it.

    Args:
        value: any.
    """
    shown = ascii(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
