"""A fit that is cut off whenever its certificate is about to fail claims something false no more often than delta.

Attack on docs/proofs.md, *Certificates of a fit that was interrupted* and *Calibration: the control variate*, where two
attempts share a delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from pyro_mbde.calibration.certificate import ROUNDING_RESERVE, SampleBounds, certify
from pyro_mbde.density.bounds import Certificate, skewed_bounds
from pyro_mbde.experiments.bench_certificate import SCORES, known_tilt
from pyro_mbde.training.checkpoint import Checkpoint
from pyro_mbde.training.kept_fit import KeptFit

DELTA, TOLERANCE, NUM_DRAWS = 0.2, 0.02, 4096


def attempt_at(delta: float, tilt: Callable[[torch.Tensor], torch.Tensor], limits: SampleBounds) -> bool:
    """One attempt with fresh draws at a density whose phi is just outside of the tolerance: a claim is false."""
    values = tilt(torch.randn(NUM_DRAWS, dtype=torch.float64)).exp()
    return certify(torch.split(values, 512), limits, Certificate(TOLERANCE, delta))


def rate(shares: Callable[[int], float], calibrations: int, trials: int = 150) -> float:
    """How often a density comes out with a false claim, if every calibration that does not claim is cut off."""
    bounds = skewed_bounds(0.99, 0.3)
    tilt, bounds = known_tilt(SCORES["step"], bounds, (TOLERANCE - ROUNDING_RESERVE) * 1.0001)
    variance = float(tilt(torch.randn(2**14, dtype=torch.float64)).exp().var())
    limits = SampleBounds(math.exp(bounds.low), math.exp(bounds.high), variance)
    wrong = 0
    for _ in range(trials):
        # Two attempts a calibration, each with half of the calibration's share.
        wrong += any(
            attempt_at(shares(index) * DELTA / 2, tilt, limits) or attempt_at(shares(index) * DELTA / 2, tilt, limits)
            for index in range(1, calibrations + 1)
        )
    return wrong / trials


def shares_of_the_code(index: int) -> float:
    """What a fit with a checkpoint gives its i-th calibration."""
    return 2.0**-index


def test_shares_are_those_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptFit.__new__(KeptFit)
    monkeypatch.setattr(kept, "_checkpoint", Checkpoint.__new__(Checkpoint), raising=False)
    monkeypatch.setattr(kept, "_num_calibrations", 0, raising=False)
    monkeypatch.setattr(kept, "_state", None, raising=False)
    monkeypatch.setattr(kept, "_ranks", type("First", (), {"is_first": True})(), raising=False)
    assert [kept.begin_calibration() for _ in range(4)] == [shares_of_the_code(index) for index in range(1, 5)]


def test_two_attempts_together_are_wrong_no_more_often_than_delta() -> None:
    assert rate(lambda index: 1.0, 1) <= DELTA + 4 * math.sqrt(DELTA * (1 - DELTA) / 150)


def test_cutting_off_what_is_about_to_fail_gains_nothing() -> None:
    assert rate(shares_of_the_code, 5) <= DELTA + 4 * math.sqrt(DELTA * (1 - DELTA) / 150)


def test_without_shares_the_attack_would_succeed() -> None:
    """All of delta for every calibration: five of them claim something false far more often than delta."""
    assert rate(lambda index: 1.0, 5) > DELTA + 4 * math.sqrt(DELTA * (1 - DELTA) / 150)
