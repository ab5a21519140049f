"""Argument checks, and the one form of their errors. Imports no torch."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def argument_error(name: str, constraint: str, value: object, remedy: str = "") -> str:
    """Returns the text of an argument error, in the one form the library uses."""
    return f"{name} must {constraint}, got {name}={value!r}. {remedy}".rstrip()


def shown(number: float) -> str:
    """Returns a number as people read it: six digits, without the last ones of a float, 0.4 for 0.39999999999999997."""
    return f"{number:.6g}"


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, as in ``1 row`` and ``2,000 rows``."""
    return f"{number:,} {noun if number == 1 else f'{noun}s'}"


def listed(names: Sequence[object], most: int = 8) -> str:
    """Returns the first names, and how many more there are, as in ``'a', 'b' and 3 more``."""
    first = ", ".join(map(repr, names[:most]))
    return first if len(names) <= most else f"{first} and {len(names) - most:,} more"


def in_nats(number: float) -> str:
    """Returns a number with its unit, to two digits, as in ``1 nat`` and ``0.25 nats``."""
    short = f"{number:.2g}"
    return f"{short} {'nat' if short == '1' else 'nats'}"


def check_number(name: str, value: Any, constraint: str, holds: Callable[[float], bool], *, remedy: str = "") -> float:
    """Returns ``value`` as a float, or raises if it is not a real number or ``holds`` is false for it (as for NaN)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(argument_error(name, "be a real number", value, remedy))
    try:
        number = float(value)
    except OverflowError:  # an int or a fraction that no float holds
        raise ValueError(argument_error(name, "be a number that a float holds", value, remedy)) from None
    if not holds(number):
        raise ValueError(argument_error(name, constraint, value, remedy))
    return number


def check_epsilon(value: Any) -> float:
    """Returns the privacy parameter ``value`` as a float, or raises if it is not in (0, inf]."""
    return check_number("epsilon", value, "be above 0 (in nats; inf for no limit)", lambda epsilon: epsilon > 0)


def check_count(name: str, value: Any, *, minimum: int = 1, remedy: str = "") -> int:
    """Returns ``value`` as an int, or raises if it is not a whole number of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(argument_error(name, "be a whole number", value, remedy))
    if value < minimum:
        raise ValueError(argument_error(name, f"be at least {minimum}", value, remedy))
    return int(value)


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Returns ``value``, or raises if it is none of the ``choices``."""
    if not isinstance(value, str):
        raise TypeError(argument_error(name, "be a string", value))
    if value not in choices:
        raise ValueError(argument_error(name, f"be one of {', '.join(choices)}", value))
    return str(value)


def check_flag(name: str, value: Any) -> bool:
    """Returns ``value`` as a bool, or raises if it is neither True nor False, Python's or NumPy's."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(argument_error(name, "be True or False", value))
    return bool(value)


def check_seed(seed: Any) -> int | None:
    """Returns ``seed`` as an int or None, or raises if it can seed no generator."""
    if seed is None:
        return None
    return check_count("seed", seed, minimum=0, remedy="Pass a non-negative int, or None.")
