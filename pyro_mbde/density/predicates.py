"""Public predicates over rows: plain nested lists, evaluated in three-valued logic.

A predicate is ``["not_false", condition]``, which a row meets unless the condition is surely false for it, or
``["true", condition]``, which it meets where the condition is surely true. Lists hold strings, numbers and lists alone,
so that files of models can hold them. They are data: nothing in them is run as code.

========================================================  =========================================================
condition                                                 meaning
========================================================  =========================================================
``["and", c, ...]``, ``["or", c, ...]``, ``["not", c]``   Kleene's strong three-valued logic
``["<", a, b]``; also ``<= > >= = !=``                    neither true nor false where a or b has no value
``["in", a, [number, ...]]``                              whether a is one of the numbers
``["missing", a]``                                        whether a, a leaf of a column, is missing; true or false
========================================================  =========================================================

========================================================  =========================================================
number                                                    meaning
========================================================  =========================================================
``["number", x]``                                         x
``["+", a, ...]``, ``["*", a, b]``, ``["/", a, b]``       arithmetic in float64; no value where it is not finite
``["negate", a]``                                         -a
``["code", j, t]``                                        coordinate j of the row, missing below t
``["affine", j, t, origin, step]``                        origin + step * coordinate j
``["lookup", j, t, [x_0, x_1, ...]]``                     x_i for i = coordinate j
``["real", j, t, scale, decimals, low, high]``            :func:`natural_values`; decimals ``"all"`` does not round
========================================================  =========================================================
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

#: A predicate, or a part of one.
Node = list[Any]
#: Levels of lists in a predicate, at most. Texts are nested in at most 100 levels, which compile to fewer than this.
MAX_DEPTH = 200
#: How many digits a real column that is not rounded has, in the list of a leaf.
ALL_DIGITS = "all"
_COMPARISONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "<": torch.lt,
    "<=": torch.le,
    ">": torch.gt,
    ">=": torch.ge,
    "=": torch.eq,
    "!=": torch.ne,
}


def natural_values(values: Tensor, scale: str, decimals: int | None, low: float, high: float) -> Tensor:
    """Modelled values of a real column as a release shows them, in float64.

    One function for both: a constraint is checked on the numbers that are released.

    Args:
        values: any shape, in modelled units: ln(1 + x) for the scale ``log1p``.
        scale: ``linear`` or ``log1p``.
        decimals: digits after the point that values are rounded to; ``None`` does not round.
        low: smallest value, in the table's units.
        high: largest value.

    Example:
        >>> natural_values(torch.tensor([0.0, 0.66, 9.0]).log1p(), "log1p", 1, 0, 5).tolist()
        [0.0, 0.7, 5.0]
    """
    natural = values.double()
    if scale == "log1p":
        natural = natural.expm1()
    if decimals is not None:
        natural = natural.round(decimals=decimals)
    return natural.clamp(low, high) + 0.0  # no negative zeros


class _Truth(NamedTuple):
    """For which rows a condition is surely true, and for which surely false."""

    true: Tensor
    false: Tensor


class _Number(NamedTuple):
    """Values in float64, and for which rows there is one."""

    values: Tensor
    known: Tensor


def evaluate(predicate: Node, values: Tensor) -> Tensor:
    """Whether rows meet a predicate.

    Privacy:
        A predicate must be public. What it says of rows drawn from a density or a base follows from them; of a table's
        rows it is as private as they are.

    Args:
        predicate: nested lists as described above, from ``tables.constraints`` or a file.
        values: codes of rows, shape ``(..., d)``.

    Returns:
        bool tensor of shape ``(...)``.

    Raises:
        ValueError: if the predicate holds an operator that is not known here, or no predicate at all. No row is needed
            to find that: an empty tensor of shape ``(0, d)`` will do.

    Example:
        >>> adults = ["not_false", [">=", ["code", 0, -1.0], ["number", 18.0]]]
        >>> evaluate(adults, torch.tensor([[20.0], [17.0], [-120.0]])).tolist()
        [True, False, True]
    """
    match predicate:
        case ["true", condition]:
            accepted = _truth(condition, values, 2).true
        case ["not_false", condition]:
            accepted = ~_truth(condition, values, 2).false
        case _:
            _refuse(predicate)
    return accepted.expand(values.shape[:-1])


def _truth(node: Any, values: Tensor, depth: int) -> _Truth:
    """For which rows a condition is true, and for which false; for others it is neither."""
    if depth > MAX_DEPTH:
        _refuse(node, f"It is nested in more than {MAX_DEPTH} levels.")
    match node:
        case ["and", first, *others]:
            return reduce(_both, (_truth(part, values, depth + 1) for part in (first, *others)))
        case ["or", first, *others]:
            return _negated(reduce(_both, (_negated(_truth(part, values, depth + 1)) for part in (first, *others))))
        case ["not", part]:
            return _negated(_truth(part, values, depth + 1))
        case [("<" | "<=" | ">" | ">=" | "=" | "!=") as sign, left, right]:
            one, other = _number(left, values, depth + 1), _number(right, values, depth + 1)
            return _known(_COMPARISONS[sign](one.values, other.values), one.known & other.known)
        case ["in", part, [*wanted]] if _are_numbers(wanted):
            one = _number(part, values, depth + 1)
            return _known(torch.isin(one.values, one.values.new_tensor(wanted)), one.known)
        case ["missing", part]:
            known = _number(part, values, depth + 1).known
            return _Truth(~known, known)
    _refuse(node)


def _number(node: Any, values: Tensor, depth: int) -> _Number:
    """The values that a node stands for."""
    if depth > MAX_DEPTH:
        _refuse(node, f"It is nested in more than {MAX_DEPTH} levels.")
    match node:
        case ["number", float() | int() as number]:
            constant = torch.tensor(number, dtype=torch.float64, device=values.device)
            return _Number(constant, constant.isfinite())
        case ["+", first, *others]:
            return reduce(_calculated(torch.add), (_number(part, values, depth + 1) for part in (first, *others)))
        case ["*", left, right]:
            return _calculated(torch.mul)(_number(left, values, depth + 1), _number(right, values, depth + 1))
        case ["/", left, right]:
            return _calculated(torch.div)(_number(left, values, depth + 1), _number(right, values, depth + 1))
        case ["negate", part]:
            positive = _number(part, values, depth + 1)
            return _Number(-positive.values, positive.known)
        case ["code", index, floor]:
            return _coordinate(node, index, floor, values)
        case ["affine", index, floor, float() | int() as origin, float() | int() as step]:
            code = _coordinate(node, index, floor, values)
            return _Number(origin + step * code.values, code.known)
        case ["lookup", index, floor, [_, *_] as table] if _are_numbers(table):
            code = _coordinate(node, index, floor, values)
            place = code.values.nan_to_num(0.0).clamp(0, len(table) - 1).round().long()
            return _Number(code.values.new_tensor(table)[place], code.known)
        case ["real", index, floor, "linear" | "log1p" as scale, "all" | int() as decimals, low, high]:
            code = _coordinate(node, index, floor, values)
            digits = None if decimals == ALL_DIGITS else decimals
            if not _are_numbers([low, high]):
                _refuse(node)
            return _Number(natural_values(code.values, scale, digits, low, high), code.known)
    _refuse(node)


def _coordinate(node: Node, index: Any, floor: Any, values: Tensor) -> _Number:
    """One coordinate of all rows; it is missing where it is below ``floor``, or not a number."""
    if not isinstance(index, int) or not _are_numbers([floor]):
        _refuse(node)
    if not 0 <= index < values.shape[-1]:
        _refuse(node, f"Rows have {values.shape[-1]} columns.")
    code = values[..., index].double()
    return _Number(code, code >= floor)


def _both(one: _Truth, other: _Truth) -> _Truth:
    return _Truth(one.true & other.true, one.false | other.false)


def _negated(condition: _Truth) -> _Truth:
    return _Truth(condition.false, condition.true)


def _known(holds: Tensor, known: Tensor) -> _Truth:
    return _Truth(holds & known, ~holds & known)


def _calculated(operation: Callable[[Tensor, Tensor], Tensor]) -> Callable[[_Number, _Number], _Number]:
    """An operation on numbers, which has no value where it is not finite: not a quotient by zero."""

    def calculate(one: _Number, other: _Number) -> _Number:
        result = operation(one.values, other.values)
        return _Number(result, one.known & other.known & result.isfinite())

    return calculate


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _refuse(node: Any, cause: str = "") -> NoReturn:
    shown = reprlib.repr(node)  # repr itself fails on what is nested too deeply
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    remedy = "The file may be damaged, or written by a newer version of pyro_mbde."
    raise ValueError(
        " ".join(filter(None, ["predicate must hold what can be evaluated,", f"got {shown}.", cause, remedy]))
    )
