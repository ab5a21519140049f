"""Constant-time draws are within 2^-53 of the density. Attack on docs/proofs.md, *Constant-time draws*, first lines."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from pyro_mbde import Bounds
from pyro_mbde.sampling.constant_time import constant_time_proposals


def exact_distance(base: list[Fraction], accept: list[Fraction], num_proposals: int) -> Fraction:
    """Total variation between the density and the law of a constant-time draw, in fractions.

    From the procedure: the first accepted of N proposals, else one more. ``accept`` are the chances at the points.
    """
    rate = sum((mass * chance for mass, chance in zip(base, accept, strict=True)), Fraction(0))
    density = [mass * chance / rate for mass, chance in zip(base, accept, strict=True)]
    missed = (1 - rate) ** num_proposals
    law = [(1 - missed) * q + missed * mass for q, mass in zip(density, base, strict=True)]
    return sum((abs(one - two) for one, two in zip(law, density, strict=True)), Fraction(0)) / 2


@pytest.mark.parametrize("width", [0.05, 0.5, 1.0, 2.0, 3.0])
def test_no_tilt_takes_a_draw_further_from_its_density(width: float) -> None:
    """Tilts at the ends of the interval: high on as little of the base as possible, so that acceptance is rarest."""
    bounds = Bounds(-0.3 * width, 0.7 * width)
    num_proposals = constant_time_proposals(bounds)
    lowest = Fraction(math.exp(-width))
    worst = Fraction(0)
    for exponent in (1, 4, 10, 20, 40, 52):
        rare = Fraction(1, 2**exponent)
        for accept in ([Fraction(1), lowest], [lowest, Fraction(1)]):
            worst = max(worst, exact_distance([rare, 1 - rare], accept, num_proposals))
    assert float(worst) > 2.0**-70 * width  # and the sum sees it
    assert bool(worst <= Fraction(1, 2**53))
    # With half of the proposals the same sum finds a distance above what is allowed.
    loose = exact_distance([Fraction(1, 2**20), 1 - Fraction(1, 2**20)], [Fraction(1), lowest], num_proposals // 2)
    assert float(loose) > 2.0**-53


def test_random_tilts_on_random_bases() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        width = float(0.05 + 2.5 * torch.rand((), generator=generator, dtype=torch.float64))
        bounds = Bounds(-0.3 * width, 0.7 * width)
        weights = [Fraction(int(part)) for part in torch.randint(1, 1000, (5,), generator=generator)]
        base = [part / sum(weights, Fraction(0)) for part in weights]
        tilts = -width * torch.rand(5, generator=generator, dtype=torch.float64).round(decimals=1)
        accept = [Fraction(math.exp(tilt)) for tilt in tilts.tolist()]
        assert exact_distance(base, accept, constant_time_proposals(bounds)) <= Fraction(1, 2**53)
