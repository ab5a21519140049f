"""Another auditor's testers on rows, batches and constant-time draws: sound fits pass, planted faults are found."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from densities import scale_calibration
from divergence_testers import TESTERS, hockey_stick
from planted_faults import rows_among_the_draws, theta_too_large_behind_draws
from planted_wide_faults import (
    batch_at_the_price_of_a_smaller_epsilon,
    batch_drawn_row_by_row,
    separate_rows_at_the_price_of_one,
)
from quick_fits import BASE
from tester_comparison import KINDS, drawn_pair, smallest_found
from torch import Tensor

from pyro_mbde.auditing.hostile_tables import hostile_pairs

#: Of each tester in a test: sound fits are accused by chance once in a thousand times.
ERROR = 1e-3


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    scale_calibration(monkeypatch)


@pytest.mark.parametrize("tester", TESTERS)
def test_testers_are_right_about_known_laws(tester: str) -> None:
    """Two coins with a column of noise: a claim just above their log-ratio passes, one of half of it is refuted."""
    truth = 0.8
    shares = 1 / (1 + math.exp(-truth)), 1 / (1 + math.exp(truth))
    draws = [torch.stack([(torch.rand(20_000) < share).float(), torch.randn(20_000)], 1) for share in shares]
    assert not TESTERS[tester](*draws, 1.05 * truth, 0.0, ERROR)
    # A mean discrepancy finds large faults alone.
    found_at = 0.1 if tester == "mean discrepancy" else 0.5 * truth
    assert TESTERS[tester](*draws, found_at, 0.0, ERROR)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "epsilon", [0.5, pytest.param(0.1, marks=pytest.mark.slow), pytest.param(2.0, marks=pytest.mark.slow)]
)
def test_sound_fits_pass(kind: str, epsilon: float) -> None:
    draws, _ = drawn_pair(kind, epsilon, 3000)
    for name, tester in TESTERS.items():
        assert not tester(draws[0], draws[1], epsilon, 1e-4, ERROR), name


def pair_of(fit: Callable[[Tensor], Any], pair: int, count: int = 10_000) -> list[Tensor]:
    made = hostile_pairs(BASE, 1.0, pair + 1)[pair]
    return [fit(table).sample((count,)).reshape(count, -1) for table in (made.table, made.other)]


#: Faults that draws alone show, each with the hostile pair of tables that shows it and what must find it.
FOUND = [
    (theta_too_large_behind_draws, 2, {"hockey-stick", "histogram", "Rényi, order 2"}),
    (rows_among_the_draws, 3, {"histogram"}),
    (separate_rows_at_the_price_of_one, 2, {"hockey-stick", "histogram"}),
    (batch_drawn_row_by_row, 2, {"hockey-stick", "histogram"}),
    (batch_at_the_price_of_a_smaller_epsilon, 2, {"hockey-stick", "histogram"}),
]


@pytest.mark.parametrize(("fault", "pair", "expected"), FOUND, ids=[fault.__name__ for fault, _, _ in FOUND])
def test_planted_faults_are_found(fault: Callable[[Tensor], Any], pair: int, expected: set[str]) -> None:
    draws = pair_of(fault, pair)
    found = {name for name, tester in TESTERS.items() if tester(draws[0], draws[1], 1.0, 1e-4, 0.01)}
    assert found >= expected


@pytest.mark.slow
def test_none_finds_a_smaller_fault_than_the_audit() -> None:
    """On batches, with 10,000 draws of each density, and a part of the grid of the table in docs/claims.md."""
    found = dict(smallest_found("batches", 1.0, 10_000, 0.05, excesses=(1.2, 1.5, 2.5)))
    own = found.pop("own audit")
    assert own is not None and own <= 1.5
    assert all(other is None or other >= own for other in found.values())


def test_a_tester_is_rarely_wrong_at_the_edge() -> None:
    """Two coins with exactly the log-ratio that is claimed: accused no more often than the error allows."""
    shares = 1 / (1 + math.exp(-0.5)), 1 / (1 + math.exp(0.5))
    wrong = 0
    for _ in range(40):
        draws = [(torch.rand(600, 1) < share).float() for share in shares]
        wrong += hockey_stick(draws[0], draws[1], 0.5, 0.0, 0.2)
    assert wrong <= 0.2 * 40 + 3 * math.sqrt(0.16 * 40)
