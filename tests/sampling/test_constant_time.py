"""Constant-time draws: their law, their guarantee, and what their time tells."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from _pytest.mark import ParameterSet
from densities import BASES, DISCRETE, density_over, make_density, normal
from scipy import stats
from torch import Tensor

from pyro_mbde import BoundedClassifiers, Bounds, MollifiedExpFamily, private_draws
from pyro_mbde.density.base_draws import TorchSource
from pyro_mbde.density.bounds import Certificate, a_priori_guarantee, calibrated_guarantee
from pyro_mbde.density.rejection import EnvelopeError
from pyro_mbde.sampling import plan
from pyro_mbde.sampling.constant_time import constant_time_draws, constant_time_proposals

PROBABILITIES = torch.tensor([0.05, 0.15, 0.3, 0.5], dtype=torch.float64)
FINITE = dist.Categorical(PROBABILITIES)


def slow(name: str) -> ParameterSet:
    return pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize(("width", "expected"), [(0.0, 1), (0.05, 13), (0.5, 40), (1.0, 81), (2.5, 429)])
def test_number_of_proposals(width: float, expected: int) -> None:
    assert constant_time_proposals(Bounds(-0.3 * width, 0.7 * width)) == expected


@pytest.mark.parametrize("width", [1e-300, 1e-16, 1e-3, 0.3, 0.69, 0.7, 3.0, 12.0, 36.0, 37.0, 100.0, 700.0])
def test_it_is_the_smallest(width: float) -> None:
    num_proposals = constant_time_proposals(Bounds(-width, 0.0))
    miss = np.log1p(-np.exp(-np.longdouble(width))) if width > 1e-5 else np.log(np.longdouble(width))
    assert num_proposals * miss <= -53 * np.log(np.longdouble(2)) * (1 - 1e-14)
    assert num_proposals == 1 or (num_proposals - 1) * miss > -53 * np.log(np.longdouble(2)) * (1 + 1e-14)


@pytest.mark.parametrize("width", [-1.0, 701.0, math.nan, math.inf])
def test_widths_out_of_range(width: float) -> None:
    with pytest.raises(ValueError, match="width must be in"):
        constant_time_proposals(Bounds(0.0, width))


def mixture(base: np.ndarray, tilt: np.ndarray, high: Any, num_proposals: Any) -> np.ndarray:
    """The law of a draw over the points of a finite base, from first principles: proposal by proposal.

    Of many draws at once, if each argument has a row for each.
    """
    accept = np.exp(tilt - high)
    rejected = (base * (1 - accept)).sum(-1, keepdims=True)
    law, still_going = np.zeros_like(base), np.ones_like(rejected)
    for index in range(int(np.max(num_proposals))):
        is_made = index < num_proposals
        law = law + is_made * still_going * base * accept
        still_going = np.where(is_made, still_going * rejected, still_going)
    return law + still_going * base


@pytest.mark.parametrize(
    ("num_proposals", "max_batch"),
    [(1, 1), (5, 1), (2, 3), (40, 30), (2, 4), (5, 4), (1, 2**16), (5, 2**16), (40, 2**16)],
)
def test_the_law_is_the_mixture(num_proposals: int, max_batch: int) -> None:
    """Chi-square against the law summed up by hand, in batches of many draws and of parts of one; level 1e-9."""
    bounds, tilts = Bounds(-2.0, 0.5), torch.tensor([0.5, -0.7, -2.0, -1.5], dtype=torch.float64)
    count = 20_000 if max_batch > 100 else 400
    draws = constant_time_draws(
        TorchSource(FINITE), lambda x: tilts[x], bounds, count, num_proposals, max_batch=max_batch
    )
    law = mixture(PROBABILITIES.numpy(), tilts.numpy(), bounds.high, num_proposals)
    accept = float((PROBABILITIES * (tilts - bounds.high).exp()).sum())
    weight = (1 - accept) ** num_proposals
    density = PROBABILITIES * tilts.exp() / (PROBABILITIES * tilts.exp()).sum()
    np.testing.assert_allclose(law, (1 - weight) * density + weight * PROBABILITIES, rtol=1e-12)
    counts = np.bincount(draws.numpy(), minlength=4)
    assert stats.chisquare(counts, law * count).pvalue > 1e-9


def test_the_last_proposal_put_out_either_way_is_one_proposal_less() -> None:
    """Law of N proposals of which the last is put out, accepted or rejected, where no other was accepted."""
    tilts, masses = np.array([0.0, -3.0, -1.0]), np.array([0.01, 0.9, 0.09])
    accept = np.exp(tilts)
    miss = float((masses * (1 - accept)).sum())
    for num_proposals in (2, 5):
        accepted = masses * accept * sum(miss**index for index in range(num_proposals))
        rejected = miss ** (num_proposals - 1) * masses * (1 - accept)
        np.testing.assert_allclose(accepted + rejected, mixture(masses, tilts, 0.0, num_proposals - 1), rtol=1e-12)


@pytest.mark.parametrize("num_points", [2, 3, 20])
@pytest.mark.parametrize("width", [0.05, 1.0, 2.5, 10.0])
def test_attack_on_the_guarantee(num_points: int, width: float) -> None:
    """A thousand pairs of densities over a finite base, some hostile, and every number of proposals.

    Proof: docs/proofs.md, *Constant-time draws*.
    """
    rng = np.random.default_rng(7)
    low = -rng.uniform(size=(1000, 1)) * width
    high = low + width
    # Masses over many orders of magnitude, tilts mostly at the ends of their interval.
    masses = np.exp(rng.uniform(-40, 0, (1000, num_points)))
    masses /= masses.sum(1, keepdims=True)
    tilts = rng.uniform(low, high, (2, 1000, num_points))
    ends = np.where(rng.uniform(size=tilts.shape) < 0.5, low, high)
    tilts = np.where(rng.uniform(size=tilts.shape) < 0.7, ends, tilts)
    laws = [mixture(masses, tilt, high, rng.choice([1, 2, 7, 60], (1000, 1))) for tilt in tilts]
    log_ratio = np.log(laws[0]) - np.log(laws[1])
    guarantee = a_priori_guarantee(Bounds(-width / 2, width / 2))
    assert np.abs(log_ratio).max() <= guarantee.epsilon + 1e-12
    assert np.ptp(log_ratio, axis=1).max() <= guarantee.log_ratio_range + 1e-12


@pytest.mark.parametrize("tolerance", [0.0, 1e-3, 0.1])
def test_attack_on_the_calibrated_guarantee(tolerance: float) -> None:
    """Pairs with a log-normaliser within the tolerance of 0, by the shift that makes it any number there."""
    rng = np.random.default_rng(8)
    for num_points in range(2, 9):
        width = rng.choice([0.3, 1.0, 4.0], (100, 1))
        low = -rng.uniform(0.05, 0.95, (100, 1)) * width
        high = low + width
        masses = np.exp(rng.uniform(-15, 0, (100, num_points)))
        masses /= masses.sum(1, keepdims=True)
        laws = []
        for _ in range(2):
            scores = rng.normal(scale=20, size=(100, num_points))
            wanted = rng.uniform(-tolerance, tolerance, (100, 1))
            below, above = np.full((100, 1), -200.0), np.full((100, 1), 200.0)
            for _ in range(60):
                shift = (below + above) / 2
                tilt = np.clip(scores - shift, low, high)
                is_low = np.log((masses * np.exp(tilt)).sum(1, keepdims=True)) > wanted
                below, above = np.where(is_low, shift, below), np.where(is_low, above, shift)
            laws.append(mixture(masses, tilt, high, rng.choice([1, 3, 30], (100, 1))))
        log_ratio = np.log(laws[0]) - np.log(laws[1])
        bounds = [Bounds(*ends) for ends in np.hstack([low, high]).tolist()]
        guarantees = [calibrated_guarantee(one, Certificate(tolerance)) for one in bounds]
        assert (np.abs(log_ratio).max(1) <= np.array([one.epsilon for one in guarantees]) + 1e-10).all()
        assert (np.ptp(log_ratio, axis=1) <= np.array([one.log_ratio_range for one in guarantees]) + 1e-10).all()


def test_the_bounds_are_nearly_met() -> None:
    """They are as tight as those of exact draws: one point in a thousand made likely here, unlikely there."""
    width, mass = 2.0, 1e-3
    masses = np.array([mass, 1 - mass])
    up, down = np.array([width, 0.0]), np.array([0.0, width])
    first, second = (mixture(masses, tilt, width, 429) for tilt in (up, down))
    log_ratio = np.log(first) - np.log(second)
    assert np.abs(log_ratio).max() > 0.99 * 2 * width
    assert log_ratio.max() - log_ratio.min() > 0.99 * 2 * width


@pytest.mark.parametrize("name", sorted(BASES))
def test_every_base(name: str) -> None:
    density = density_over(name)
    state = torch.get_rng_state()
    draws = private_draws(density, 10, constant_time=True, progress=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert draws.dtype == density.sample().dtype
    assert draws.shape == (10, *density.event_shape)
    assert bool(torch.isfinite(density.log_prob(draws)).all())
    assert not torch.equal(draws, private_draws(density, 10, constant_time=True, progress=False)) or name in DISCRETE


@pytest.mark.parametrize("name", ["normal-2d", "uniform-box", slow("mixture-2d"), slow("gamma"), slow("poisson")])
def test_they_follow_the_density(name: str) -> None:
    """Two-sample test of each coordinate, and of the tilt, against exact draws; level 1e-9 each.

    One network of large weights makes tilts far from the base's: draws of the base itself would be found on each.
    """
    density = make_density(BASES[name](), epsilon=3.0, num_rounds=1, gain=10.0, num_frequencies=4)
    draws = private_draws(density, 2500, constant_time=True, progress=False)
    exact = density.sample((20_000,))
    pairs = [(density.tilt(draws), density.tilt(exact))]
    pairs += zip(draws.reshape(2500, -1).T, exact.reshape(20_000, -1).T, strict=True)
    for first, second in pairs:
        assert stats.ks_2samp(first.numpy(), second.numpy()).pvalue > 1e-9


def test_every_bit_of_a_draw_comes_from_a_proposal() -> None:
    """Signed zeros and the smallest denormals come out as they were proposed."""
    odd = torch.tensor([-0.0, 5e-324, math.inf, -math.inf], dtype=torch.float64)

    class OddSource:
        def propose(self, num_proposals: int) -> Tensor:
            return odd[torch.arange(num_proposals) % 4]

        def uniforms(self, num_proposals: int) -> Tensor:
            return torch.zeros(num_proposals, dtype=torch.float64)

    # Four proposals a draw and one more, all accepted: the first of each five.
    draws = constant_time_draws(OddSource(), lambda x: torch.zeros_like(x), Bounds(0.0, 0.0), 4, 4)
    assert torch.equal(draws.view(torch.int64), odd[(5 * torch.arange(4)) % 4].view(torch.int64))


def test_the_first_accepted_is_taken_and_a_fresh_one_where_there_is_none() -> None:
    class Scripted:
        """Proposals 0, 1, 2, ...; the uniforms say which are accepted."""

        def __init__(self, uniforms: list[float]) -> None:
            self.answers, self.count = uniforms, 0

        def propose(self, num_proposals: int) -> Tensor:
            self.count += num_proposals
            return torch.arange(self.count - num_proposals, self.count)

        def uniforms(self, num_proposals: int) -> Tensor:
            given, self.answers = self.answers[:num_proposals], self.answers[num_proposals:]
            return torch.tensor(given, dtype=torch.float64)

    bounds = Bounds(-1.0, 1.0)
    script = [0.9, 0.1, 0.9, 0.9] + [0.9, 0.9, 0.9, 0.9] + [0.1, 0.1, 0.1, 0.1]
    for max_batch in (1, 2, 3, 4, 5, 8, 100):
        source = Scripted(list(script))
        draws = constant_time_draws(source, lambda x: torch.zeros(len(x)).double(), bounds, 3, 3, max_batch=max_batch)
        assert draws.tolist() == [1, 7, 8]
        assert source.count == len(script)


def constant(value: float, width: float, num_hidden: int = 32) -> MollifiedExpFamily:
    """A tilt that is ``value``, +1 or -1, times R/2 everywhere, by a network as large as any other."""
    network = BoundedClassifiers(1, 2, hidden_sizes=(num_hidden, num_hidden))
    with torch.no_grad():
        network.weights[-1].zero_()
        network.biases[-1].fill_(value * 1e3)
    theta = torch.tensor([width / (2 * math.log(2))], dtype=torch.float64)
    return MollifiedExpFamily.normalized(normal(2), network, theta)


def test_work_does_not_depend_on_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack: of two tables one accepts everything, one next to nothing; calls, sizes and order are the same."""
    traces = []
    for value in (1.0, -1.0):
        density, trace = constant(value, 1.0), []

        class Recorder(TorchSource):
            def propose(self, num_proposals: int, trace: list[object] = trace) -> Tensor:
                trace.append(("propose", num_proposals))
                return super().propose(num_proposals)

            def uniforms(self, num_proposals: int, trace: list[object] = trace) -> Tensor:
                trace.append(("uniforms", num_proposals))
                return super().uniforms(num_proposals)

        tilt: Callable[[Tensor], Tensor] = density.tilt

        def record(value: Tensor, tilt: Callable[[Tensor], Tensor] = tilt, trace: list[object] = trace) -> Tensor:
            trace.append(("tilt", tuple(value.shape)))
            return tilt(value)

        constant_time_draws(
            Recorder(density.base), record, density.bounds, 30, 81, max_batch=1000, on_draws=trace.append
        )
        traces.append(trace)
    assert traces[0] == traces[1]
    proposed = sum(item[1] for item in traces[0] if isinstance(item, tuple) and item[0] == "propose")
    assert proposed == 30 * 82


def test_too_many_are_refused_on_public_grounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (1.0, -1.0):
        with pytest.raises(ValueError, match=r"num_draws must be at most \d+ in constant time.*constant_time=False"):
            private_draws(constant(value, 17.0), 2, constant_time=True)
    monkeypatch.setattr(plan, "MAX_PROPOSALS", 810)
    assert len(private_draws(constant(-1.0, 1.0), 10, constant_time=True, progress=False)) == 10
    with pytest.raises(ValueError, match="num_draws must be at most 10 in constant time.* Each takes 82 proposals"):
        private_draws(constant(-1.0, 1.0), 11, constant_time=True)


def test_arguments() -> None:
    density = make_density(normal(2))
    with pytest.raises(TypeError, match="constant_time must be True or False"):
        private_draws(density, 3, constant_time=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_draws must be at least 1"):
        private_draws(density, 0, constant_time=True)
    source = TorchSource(normal(2))
    assert constant_time_draws(source, density.tilt, density.bounds, 0, 3).shape == (0, 2)
    with pytest.raises(ValueError, match="num_proposals must be at least 1"):
        constant_time_draws(source, density.tilt, density.bounds, 1, 0)
    with pytest.raises(EnvelopeError):
        constant_time_draws(source, lambda x: x.sum(-1).double(), Bounds(-1.0, 0.0), 100, 5)
    with pytest.warns(UserWarning, match="not private"):
        first = private_draws(density, 5, constant_time=True, seed=1)
    with pytest.warns(UserWarning, match="not private"):
        assert torch.equal(private_draws(density, 5, constant_time=True, seed=1), first)


@pytest.mark.slow
def test_time_does_not_tell_the_tables_apart() -> None:
    """Interleaved timings of two tables at R = 2.5, one of which rejects 12 times as many proposals.

    Exact draws are timed in numbers that take more than one batch. The first is sized for the worst table.
    """
    densities = [constant(value, 2.5) for value in (1.0, -1.0)]
    assert densities[0].acceptance_rate > 12 * densities[1].acceptance_rate

    def timings(num_draws: int, constant_time: bool, num_rounds: int) -> np.ndarray:
        seconds = np.zeros((num_rounds, 2))
        for index in range(num_rounds):
            for which in (index % 2, 1 - index % 2):
                start = time.process_time()
                private_draws(densities[which], num_draws, constant_time=constant_time, progress=False)
                seconds[index, which] = time.process_time() - start
        return seconds[num_rounds // 10 :]

    def separation(seconds: np.ndarray) -> float:
        """Area under the curve of thresholds on the time: 1/2 is guessing, 1 is certainty."""
        return float((seconds[:, 0][:, None] < seconds[:, 1][None, :]).mean())

    constant_time, exact = timings(100, True, 150), timings(20_000, False, 40)
    assert np.median(exact[:, 1]) > 1.5 * np.median(exact[:, 0])
    assert separation(exact) > 0.95
    assert abs(np.median(constant_time[:, 1]) / np.median(constant_time[:, 0]) - 1) < 0.08
    assert abs(separation(constant_time) - 0.5) < 0.15
