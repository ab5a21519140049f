"""Public correlations of columns: read, checked, and as a matrix."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_mbde._checks import argument_error, check_number, listed
from pyro_mbde.density.copula import MIN_EIGENVALUE
from pyro_mbde.names import near_miss_hint
from pyro_mbde.tables.schema_files import check_keys

_EXAMPLE = 'For example columns = ["age", "income"] and value = 0.4.'


class Correlation(NamedTuple):
    """A public correlation of two columns.

    Attributes:
        columns: their names.
        value: correlation of their normal scores, in (-1, 1).
    """

    columns: tuple[str, str]
    value: float


def read_correlations(given: Any, names: Sequence[str]) -> tuple[Correlation, ...]:
    """Returns stated correlations in one form, after all checks.

    Args:
        given: :class:`Correlation` or ``{"columns": [one, other], "value": r}`` each, with r in (-1, 1).
        names: of the columns.

    Raises:
        TypeError: something is of another form.
        ValueError: a name is unknown, a pair is stated twice, or no law has these correlations together.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        remedy = "In TOML, write [[correlations]], with two brackets on each side."
        raise TypeError(argument_error("correlations", "be a list of tables", given, remedy))
    stated: dict[frozenset[str], Correlation] = {}
    for entry in given:
        one = _read(entry, names)
        pair = frozenset(one.columns)
        if len(pair) < 2:
            raise ValueError(argument_error("correlations", "be of two different columns", list(one.columns)))
        if pair in stated:
            raise ValueError(argument_error("correlations", "state each pair once", list(one.columns)))
        stated[pair] = one
    correlations = tuple(stated.values())
    smallest = smallest_eigenvalue(correlation_matrix(names, correlations))
    if smallest < MIN_EIGENVALUE:
        factor = math.floor(1000 * possible_factor(smallest, 2 * MIN_EIGENVALUE)) / 1000
        raise ValueError(
            "correlations must be possible together, got values that no table has at once (the matrix has the "
            f"eigenvalue {smallest:.3g}). Correct them, or multiply all of them by {factor:g} or less."
        )
    return correlations


def correlation_matrix(names: Sequence[str], correlations: Iterable[Correlation]) -> Tensor:
    """Returns the matrix of checked correlations, float64 ``(d, d)``; pairs that are not stated have 0.

    Args:
        names: of the d columns.
        correlations: as :func:`read_correlations` returns them.

    Example:
        >>> correlation_matrix(["age", "income"], [Correlation(("age", "income"), 0.4)])
        tensor([[1.0000, 0.4000],
                [0.4000, 1.0000]], dtype=torch.float64)
    """
    matrix = torch.eye(len(names), dtype=torch.float64)
    for columns, value in correlations:
        one, other = (list(names).index(name) for name in columns)
        matrix[one, other] = matrix[other, one] = value
    return matrix


def smallest_eigenvalue(matrix: Tensor) -> float:
    """Returns the smallest eigenvalue of a matrix, with its numbers rounded as a copula rounds them."""
    return float(torch.linalg.eigvalsh(matrix.float().double())[0])


def possible_factor(smallest: float, wanted: float) -> float:
    """Returns by what correlations are multiplied to bring the smallest eigenvalue l to m: 1 - f (1 - l) = m."""
    return (1 - wanted) / (1 - smallest) if smallest < 1 else 1.0


def _read(entry: Any, names: Sequence[str]) -> Correlation:
    if isinstance(entry, Mapping):
        check_keys("correlation", entry, Correlation._fields, Correlation._fields, _EXAMPLE)
        entry = (entry["columns"], entry["value"])
    try:
        columns, value = entry
        one, other = [] if isinstance(columns, str) else columns
    except (TypeError, ValueError):
        raise TypeError(argument_error("correlations", "have two columns and a value each", entry, _EXAMPLE)) from None
    for name in (one, other):
        if name not in names:
            remedy = near_miss_hint(str(name), names) or f"They are {listed(names)}."
            raise ValueError(argument_error("correlations", "name columns of the schema", name, remedy))
    subject = f"correlation of {one!r} and {other!r}"
    return Correlation((one, other), check_number(subject, value, "be in (-1, 1)", lambda number: -1 < number < 1))
