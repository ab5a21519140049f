"""The guarantee of one draw as a value."""

from __future__ import annotations

import math

import pytest

from pyro_mbde import Guarantee


def test_unstated_range_is_the_largest() -> None:
    assert Guarantee(0.5).log_ratio_range == 1.0
    assert Guarantee(math.inf).log_ratio_range == math.inf


@pytest.mark.parametrize(
    "arguments", [(-1.0,), (math.nan,), (1.0, 1.0), (1.0, -0.1), (1.0, math.nan), (1.0, 0.0, 2.1), (1.0, 0.0, -1.0)]
)
def test_out_of_range(arguments: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Guarantee(*arguments)


def test_wrong_kind() -> None:
    with pytest.raises(TypeError, match="epsilon must be a real number"):
        Guarantee("1")  # type: ignore[arg-type]


def test_frozen() -> None:
    with pytest.raises(AttributeError):
        Guarantee(1.0).epsilon = 0.1  # type: ignore[misc]
