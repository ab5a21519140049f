"""Public predicates over rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def evaluate(predicate: list[Any], values: Tensor) -> Tensor:
    """Returns whether a predicate holds for rows."""
    raise NotImplementedError
