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
        text = str(value)
        if not _NUMBER.fullmatch(text):
            pointed = text.replace(",", ".", 1)
            remedy = "Write it in the digits 0 to 9 with a decimal point, such as 0.5."
            if _NUMBER.fullmatch(pointed):
                remedy = f"Use a decimal point: {pointed}."
            self.fail(f"{shortened(value)} is not a number. {remedy}", param, ctx)
        try:
            return float(value)
        except OverflowError:  # of an int
            self.fail(f"{shortened(value)} is too large.", param, ctx)


class Whole(click.IntRange):
    """A whole number in ASCII digits, within limits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Returns the number, or fails."""
        if not is_whole(value):
            self.fail(f"{shortened(value)} is not a whole number. {HOW_TO_WRITE_WHOLE}", param, ctx)
        whole: int = super().convert(value, param, ctx)
        return whole


NUMBER = Number()
HOW_TO_WRITE_WHOLE = "Write it in digits alone, such as 20."


def is_whole(value: Any) -> bool:
    """Returns whether text, or a value of a TOML file, is a whole number."""
    return _WHOLE.fullmatch(str(value)) is not None


def shortened(value: Any) -> str:
    """Returns a value as an error shows it."""
    shown = ascii(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
