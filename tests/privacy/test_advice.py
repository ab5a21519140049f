"""Advice on public numbers: the bound that it rests on, its thresholds, its sentences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from densities import make_density, normal

from pyro_mbde.privacy.advice import LOOKS_LIKE_BASE, WEAK_EPSILON, advise, distance_from_base


@pytest.mark.parametrize("epsilon", [1e-3, 0.3, 2.0, 20.0])
@pytest.mark.parametrize("skew", [0.05, 0.3, 0.5, 0.9])
def test_no_calibrated_density_is_further_from_the_base(epsilon: float, skew: float) -> None:
    generator = np.random.default_rng(0)
    low, high = math.exp(-skew * epsilon), math.exp((1 - skew) * epsilon)
    bound = distance_from_base(epsilon, skew)
    for _ in range(300):
        weights = generator.dirichlet(np.full(6, 0.3))
        tilt = generator.uniform(low, high, 6) if generator.random() < 0.5 else generator.choice([low, high], 6)
        mean = weights @ tilt
        # Mixed with an end of the interval until its mean is 1.
        end = low if mean > 1 else high
        share = (1 - end) / (mean - end)
        ratio = share * tilt + (1 - share) * end
        assert weights @ ratio == pytest.approx(1)
        assert 0.5 * weights @ abs(ratio - 1) <= bound * (1 + 1e-9)
    at_high = (1 - low) / (high - low)
    assert 0.5 * (at_high * (high - 1) + (1 - at_high) * (1 - low)) == pytest.approx(bound)


@pytest.mark.parametrize("width", [0.01, 1.0, 5.0])
def test_no_a_priori_density_is_further_from_the_base(width: float) -> None:
    shares = np.linspace(0, 1, 10_001)  # of the base's mass where the tilt is at the upper end
    distances = shares * (1 - shares) * math.expm1(width) / (1 + shares * math.expm1(width))
    assert distances.max() == pytest.approx(distance_from_base(2 * width, calibrated=False), rel=1e-6)


def test_a_fitted_density_keeps_to_it() -> None:
    q = make_density(normal(1), epsilon=1.0, gain=30.0)
    draws = q.base.sample(torch.Size([20_000]))
    ratio = (q.log_prob(draws) - q.base.log_prob(draws)).exp().double()
    assert 0.03 < 0.5 * float((ratio - 1).abs().mean()) < distance_from_base(1.0, calibrated=False)


def test_extremes() -> None:
    """None of them may raise: a release gives advice on what was charged already."""
    assert distance_from_base(0.0) == distance_from_base(0.0, calibrated=False) == 0
    assert distance_from_base(1.0, 0.0) == distance_from_base(1.0, 1.0) == 0
    assert "at least 100 in 100" in advise(0.0, row=0.0)[0]
    assert distance_from_base(5e-324, 0.3) == 0
    assert distance_from_base(math.inf, 0.3) == 1
    assert distance_from_base(1e-300, 0.3) == pytest.approx(0.21e-300)
    assert distance_from_base(1e4, 0.01) == pytest.approx(1)
    (remark,) = advise(math.inf)
    assert "can become certainty" in remark
    assert "10^22 to 1" in advise(50.0)[0]


def test_thresholds() -> None:
    assert advise(math.nextafter(WEAK_EPSILON, 0)) == []
    (weak,) = advise(WEAK_EPSILON)
    assert weak.startswith("A total epsilon of 4 is a weak promise: even odds on which of two tables the rows come")
    assert "55 to 1" in weak
    one, _ = advise(row=6.0, skew=0.3)
    assert one.startswith("Epsilon 6 for a single row is a weak promise")
    assert "404 to 1" in one
    (several,) = advise(batch=10.0)
    assert several.startswith("An epsilon of 10 for one batch is a weak promise: even odds on which of two tables its")
    assert advise(batch=math.nextafter(WEAK_EPSILON, 0)) == [] and len(advise(10.0, batch=10.0)) == 1
    assert [remark[:15] for remark in advise(6.0, row=6.0)] == ["A total epsilon", "At epsilon 6 a "]  # not both
    (plain,) = advise(2.0, row=0.5, skew=0.3)
    assert plain.startswith(
        "At epsilon 0.5 a row, at least 89 in 100 rows could just as well have been drawn from the public"
    )
    assert "look like" not in plain
    (base,) = advise(2.0, row=0.4, skew=0.3)
    assert "at least 91 in 100" in base
    assert base.endswith(
        "So the rows will look like the public base. Fewer rows, or narrower public ranges, would show more."
    )
    assert distance_from_base(0.4, 0.3) < LOOKS_LIKE_BASE < distance_from_base(0.5, 0.3)
    assert "at least 93 in 100" in advise(row=0.5, calibrated=False)[0]
    assert len(advise(10.0, row=0.1)) == 2


@pytest.mark.parametrize(
    ("words", "error", "match"),
    [
        ({"total": "much"}, TypeError, "total must be a real number"),
        ({"total": -1.0}, ValueError, "total must be at least 0"),
        ({"row": -1.0}, ValueError, "row must be at least 0"),
        ({"batch": -1.0}, ValueError, "batch must be at least 0"),
        ({"row": 1.0, "skew": 1.1}, ValueError, r"skew must be in \[0, 1\]"),
    ],
)
def test_arguments(words: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        advise(**words)
