"""The certificate: how often it is wrong, when it is given, and what it must not accept."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pyro_mbde.calibration.certificate import ROUNDING_RESERVE, SampleBounds, certify, expected_draws
from pyro_mbde.calibration.plan import plan_certificate
from pyro_mbde.density.bounds import Certificate, calibrated_guarantee, skewed_bounds
from pyro_mbde.experiments.bench_certificate import SCORES, known_tilt, rate_of_wrong_certificates

LIMITS = SampleBounds(math.exp(-0.5), math.exp(0.5), 0.25)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 200.0])
@pytest.mark.parametrize("skew", [0.01, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("delta", [1e-12, 1e-9, 0.05])
def test_plans_spend_epsilon_and_no_more(epsilon: float, skew: float, delta: float) -> None:
    bounds, certificate = plan_certificate(epsilon, delta, skew)
    guarantee = calibrated_guarantee(bounds, certificate)
    assert guarantee.epsilon <= epsilon
    if bounds.width > epsilon / 2:
        assert guarantee.epsilon >= epsilon * (1 - 1e-9)
        assert guarantee.delta == delta
    assert bounds.low - certificate.tolerance == pytest.approx(-skew * epsilon)
    assert bounds.low - certificate.tolerance >= -skew * epsilon * (1 + 1e-12)
    assert bounds.high + certificate.tolerance <= (1 - skew) * epsilon * (1 + 1e-12)
    assert math.isfinite(bounds.width)
    assert bounds.width > 0


@pytest.mark.parametrize("epsilon", [0.1, 0.25, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("skew", [0.3, 0.5, 0.7])
def test_the_tolerance_is_a_small_part(epsilon: float, skew: float) -> None:
    for num_draws in (2**22, 2**20):
        _, certificate = plan_certificate(epsilon, 1e-9, skew, num_draws)
        assert certificate.tolerance <= 0.005 * epsilon * (1 + 1e-12)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((0.0, 1e-9, 0.5), "epsilon must be"),
        ((math.inf, 1e-9, 0.5), "epsilon must be below 700"),
        ((1.0, 0.0, 0.5), "delta must be in"),
        ((1.0, 5e-324, 0.5), "delta must be in"),
        ((1e-6, 1e-9, 0.5), "skew and epsilon must leave both sides"),
        ((1.0, 1e-9, 1e-9), "skew and epsilon must leave both sides"),
        ((1.0, 1.0, 0.5), "delta must be in"),
        ((1.0, 1e-9, 0.0), "skew must be in"),
        ((1.0, 1e-9, math.nan), "skew must be in"),
    ],
)
def test_plan_arguments(arguments: tuple[float, float, float], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        plan_certificate(*arguments)


@pytest.mark.parametrize("name", sorted(SCORES))
@pytest.mark.parametrize("sign", [1, -1])
def test_wrong_certificates_are_rare(name: str, sign: int) -> None:
    """Attack on docs/proofs.md, *The certificate*: phi just beyond the tolerance. 5% of 300 is 15 +- 3.8."""
    assert rate_of_wrong_certificates(SCORES[name], 1.0, 0.3, 0.05, 300, sign) <= 0.05 + 4 * 0.0126


def test_certificates_of_what_is_true_are_given() -> None:
    """phi = 0, in nine of ten trials with twice the draws that are expected to do."""
    bounds, claim = skewed_bounds(1.0, 0.3), Certificate(0.02, 1e-6)
    for score in SCORES.values():
        tilt = known_tilt(score, bounds, 0.0).tilt
        limits = SampleBounds(math.exp(bounds.low), math.exp(bounds.high), 0.25)
        num_draws = int(2 * expected_draws(limits, claim))
        given = [
            certify(torch.split(tilt(torch.randn(num_draws, dtype=torch.float64)).exp(), 2048), limits, claim)
            for _ in range(20)
        ]
        assert sum(given) >= 18


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("share", "times"), [(0.5, 8), (0.7, 40)])
def test_certificates_of_what_is_off_but_true_are_given(sign: int, share: float, times: int) -> None:
    """phi is within the tolerance, but far from 0: a bet as if phi were 0 would lose in the long run."""
    bounds, claim = skewed_bounds(1.0, 0.3), Certificate(0.02, 1e-6)
    tilt, bounds = known_tilt(SCORES["waves"], bounds, sign * share * claim.tolerance)
    limits = SampleBounds(math.exp(bounds.low), math.exp(bounds.high), 0.25)
    num_draws = int(times * expected_draws(limits, claim))
    given = [
        certify(torch.split(tilt(torch.randn(num_draws, dtype=torch.float64)).exp(), 2048), limits, claim)
        for _ in range(10)
    ]
    assert sum(given) >= 9


def test_a_wrong_guess_at_the_variance_costs_draws_but_no_truth() -> None:
    """Attack: the guess is a million times too small or too large; phi beyond the tolerance is still not certified."""
    generator = torch.Generator().manual_seed(1)
    claim = Certificate(0.02, 0.01)
    for guess in (1e-7, 1e-3, 1e6):
        wrong = 0
        for _ in range(200):
            share = (math.exp(1.0001 * (0.02 - ROUNDING_RESERVE)) - LIMITS.smallest) / (
                LIMITS.largest - LIMITS.smallest
            )
            hits = torch.rand(4096, generator=generator, dtype=torch.float64) < share
            copies = torch.where(hits, LIMITS.largest, LIMITS.smallest).double()
            wrong += certify(torch.split(copies, 512), LIMITS._replace(variance=guess), claim)
        assert wrong <= 10


def test_rare_large_values_are_not_overlooked() -> None:
    """Attack: e^f is 1 except for one in 20,000 draws, where it is e^7: phi is 0.053, and one sample in two misses it.

    The draws that it takes to reach 1/delta with the largest bet are as many as make missing it as rare as delta.
    """
    high, share, claim = 7.0, 5e-5, Certificate(0.05, 0.05)
    limits = SampleBounds(0.5, math.exp(high), 1e-4)
    assert share * (math.exp(high) - 1) > math.expm1(claim.tolerance)
    wrong = 0
    for _ in range(200):
        copies = torch.ones(80_000, dtype=torch.float64)
        copies[torch.rand(80_000) < share] = math.exp(high)
        wrong += certify(torch.split(copies, 8000), limits, claim)
    assert wrong <= 200 * 0.05 + 4 * math.sqrt(200 * 0.05 * 0.95)


def test_no_draws_no_certificate() -> None:
    assert not certify([], LIMITS, Certificate(0.1, 0.5))
    assert not certify([torch.ones(0, dtype=torch.float64)], LIMITS, Certificate(0.1, 0.5))


@pytest.mark.parametrize(("tolerance", "delta"), [(0.0, 0.5), (0.1, 0.0)])
def test_what_can_be_proved(tolerance: float, delta: float) -> None:
    with pytest.raises(ValueError, match=r"certificate\.(tolerance|delta) must be above"):
        certify([torch.ones(10, dtype=torch.float64)], LIMITS, Certificate(tolerance, delta))


@pytest.mark.parametrize("value", [0.1, 3.0, math.nan])
def test_copies_outside_their_limits(value: float) -> None:
    copies: Tensor = torch.ones(10, dtype=torch.float64)
    copies[3] = value
    with pytest.raises(ValueError, match="blocks must hold copies between the limits"):
        certify([copies], LIMITS, Certificate(0.1, 0.05))
