"""Lower bounds on epsilon from draws alone."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from pyro_mbde.auditing.events import clopper_pearson, epsilon_lower_bound


def test_clopper_pearson_bounds_have_the_error_that_defines_them() -> None:
    for count, num_trials in ((0, 10), (10, 10), (3, 50), (700, 1000), (1, 100_000), (49_990, 50_000)):
        for error in (0.3, 1e-3, 1e-8):
            low, high = clopper_pearson(count, num_trials, error)
            assert 0 <= low <= count / num_trials <= high <= 1
            if count:
                assert error * (1 - 1e-3) < stats.binom.sf(count - 1, num_trials, low) <= error
            if count < num_trials:
                assert error * (1 - 1e-3) < stats.binom.cdf(count, num_trials, high) <= error


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((-1, 5, 0.1), "count must be at least 0"),
        ((6, 5, 0.1), "count must be at most 5"),
        ((0, 0, 0.1), "num_trials must be at least 1"),
        ((1, 5, 0.0), r"error must be in \(0, 1\)"),
        ((1, 5, 1.0), r"error must be in \(0, 1\)"),
    ],
)
def test_clopper_pearson_of_nonsense(arguments: tuple[int, int, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        clopper_pearson(*arguments)


def test_black_box_bounds_are_below_the_truth() -> None:
    """Two coins with a known log-ratio: the bound is above it no more often than its error allows."""
    shares, truth, wrong = torch.tensor([0.3, 0.3 * math.exp(-0.5)]), 0.5, 0
    none = torch.empty(0, 1)
    found = []
    for _ in range(100):
        draws = [(torch.rand(400, 1) < share).float() for share in shares]
        event = epsilon_lower_bound(*draws, none, none, error=0.2, delta=0.0)
        found.append(event.epsilon)
        wrong += event.epsilon > truth
    assert wrong / 100 < 0.2 + 3 * math.sqrt(0.2 * 0.8 / 100)
    assert max(found) > 0.1


def test_delta_is_taken_off_what_draws_prove() -> None:
    none = torch.empty(0, 1)
    draws = [(torch.rand(20_000, 1) < share).float() for share in (0.3, 0.1)]
    pure, approximate, useless = (
        epsilon_lower_bound(*draws, none, none, error=0.05, delta=delta) for delta in (0.0, 0.1, 0.4)
    )
    assert 0.8 < pure.epsilon < math.log(3)
    assert approximate.epsilon < pure.epsilon
    assert useless.epsilon == 0
