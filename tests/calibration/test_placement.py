"""Placing a score: phi near 0, fresh draws of their own law, the fallback inside the set."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from densities import BASES, normal, scale_calibration
from scipy import stats
from torch import Tensor, nn
from tqdm import tqdm

from pyro_mbde.calibration import draws as scored_draws
from pyro_mbde.calibration import placement as calibration
from pyro_mbde.calibration.certificate import ROUNDING_RESERVE
from pyro_mbde.calibration.control import CellMeans
from pyro_mbde.calibration.draws import ScoredDraws
from pyro_mbde.calibration.placement import Calibrator
from pyro_mbde.calibration.plan import plan_calibration
from pyro_mbde.calibration.scores import SampledScores
from pyro_mbde.density import base_draws
from pyro_mbde.density.base import as_features, prepare_base
from pyro_mbde.density.bounds import Bounds, Certificate, a_priori_guarantee, calibrated_guarantee, clip_score
from pyro_mbde.density.clipped_ratio import RATIO_SCALE
from pyro_mbde.density.normalizer import estimate_log_normalizer

NO_BAR = tqdm(disable=True)


def waves(value: Tensor) -> Tensor:
    """A score with many modes, of values of any shape."""
    rows = value.double().reshape(len(value), -1)
    return (3 * rows).sin().sum(-1) * 2 + rows.mean(-1).tanh()


class Waves(nn.Module):
    """The same score as the one statistic of a density."""

    def forward(self, value: Tensor) -> Tensor:
        return waves(value).unsqueeze(-1) / RATIO_SCALE


def wave_calibrator(base: torch.distributions.Distribution) -> Calibrator:
    return Calibrator(base, Waves(), torch.tensor([RATIO_SCALE], dtype=torch.float64))


def fresh_block(calibrator: Calibrator) -> tuple[Tensor, Tensor | None]:
    """Scores and points of as many draws as are in one block of a certificate."""
    return calibrator._draws.fresh(calibration._BLOCK_SIZE, NO_BAR)


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        *((name, 1 / 16) for name in sorted(BASES)),
        *(
            pytest.param(name, 1, marks=pytest.mark.slow)
            for name in ("normal-scalar", "normal-10d", "uniform-box", "mixture-2d", "dirichlet", "poisson", "one-hot")
        ),
    ],
)
def test_every_base(name: str, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with all numbers of draws a sixteenth of the true ones, which makes the tolerance four times as wide."""
    scale_calibration(monkeypatch, scale)
    base = prepare_base(BASES[name]())
    bounds, certificate = plan_calibration(base, 1.0, 1e-9, 0.3)
    assert certificate is not None
    placement = wave_calibrator(base).calibrate(bounds, certificate)
    assert placement.shrinkage == 1.0
    assert calibrated_guarantee(bounds, certificate).epsilon <= 1.0
    again = estimate_log_normalizer(
        lambda value: clip_score(waves(as_features(value, base, torch.float64)), placement.shift, bounds),
        base,
        bounds,
        num_draws=2**15,
    )
    assert abs(again.value) <= certificate.tolerance + 6 * again.standard_error


@pytest.mark.parametrize("name", ["categorical", "bernoulli"])
def test_a_finite_base_needs_no_delta(name: str) -> None:
    base = prepare_base(BASES[name]())
    bounds, certificate = plan_calibration(base, 1.0, 1e-3, 0.3)
    assert certificate is not None
    assert certificate.delta == 0
    calibrator = wave_calibrator(base)
    placement = calibrator.calibrate(bounds, certificate)
    assert abs(placement.log_normalizer.value) <= certificate.tolerance
    assert placement.log_normalizer.standard_error == 0


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.0), (100.0, 1e-9)])
def test_no_certificate_where_none_is_of_use(epsilon: float, delta: float) -> None:
    base = prepare_base(normal(2))
    bounds, certificate = plan_calibration(base, epsilon, delta, 0.3)
    assert certificate is None
    assert bounds.width == epsilon / 2
    placement = wave_calibrator(base).calibrate(bounds, certificate)
    assert placement.shift == pytest.approx(-placement.log_normalizer.value, abs=1e-9)


@pytest.mark.parametrize("epsilon", [1e-9, 1e-5, 1e-4, 1e-3, 0.01, 0.1])
@pytest.mark.parametrize("name", ["bernoulli", "normal-scalar"])
def test_rounding_has_room_at_any_epsilon(name: str, epsilon: float) -> None:
    """The reserve is absolute, as rounding is: below it there is no certificate, and none is needed."""
    bounds, certificate = plan_calibration(prepare_base(BASES[name]()), epsilon, 1e-9, 0.5)
    guarantee = a_priori_guarantee(bounds) if certificate is None else calibrated_guarantee(bounds, certificate)
    assert guarantee.epsilon <= epsilon
    assert certificate is None or certificate.tolerance > ROUNDING_RESERVE
    assert (certificate is None) == (epsilon <= 4e-5)


@pytest.mark.parametrize("skew", [1e-30, 1e-6, 1 - 1e-16])
def test_a_skew_that_leaves_no_room(skew: float) -> None:
    bounds, certificate = plan_calibration(prepare_base(normal(2)), 1.0, 1e-9, skew)
    assert certificate is None
    assert bounds.width == 0.5


def test_a_delta_whose_half_underflows() -> None:
    with pytest.raises(ValueError, match="delta must be 0, or in"):
        plan_calibration(prepare_base(normal(2)), 1.0, 5e-324, 0.5)


def test_an_interrupt_leaves_scores_that_can_be_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    calibrator = wave_calibrator(prepare_base(normal(2)))

    def interrupt(*arguments: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(calibration, "certify", interrupt)
    with pytest.raises(KeyboardInterrupt):
        calibrator.calibrate(Bounds(-0.3, 0.7), Certificate(0.1, 1e-6))
    pickle.dumps(calibrator)


def test_the_fallback_needs_no_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is certified, log q/q0 is in [lo, hi] too (docs/proofs.md, *Calibration: the fallback*)."""
    monkeypatch.setattr(calibration, "certify", lambda blocks, *arguments: len(next(blocks)) == 0)
    base = prepare_base(normal(2))
    for skew in (0.1, 0.5, 0.8):
        bounds, certificate = plan_calibration(base, 2.0, 1e-9, skew)
        placement = wave_calibrator(base).calibrate(bounds, certificate)
        assert placement.shrinkage == pytest.approx(min(skew, 1 - skew), rel=0.03)
        draws = base.sample(torch.Size([20_000]))
        tilt = placement.shrinkage * clip_score(waves(draws), placement.shift, bounds)
        phi = placement.log_normalizer.value
        assert bounds.low <= float(tilt.min()) - phi
        assert float(tilt.max()) - phi <= bounds.high


@pytest.mark.slow
def test_certificates_with_a_control_variate_are_not_wrong_too_often() -> None:
    """Attack on docs/proofs.md, *Calibration: the control variate*: a shift that puts phi just beyond the tolerance.

    200 trials at delta = 0.2: 20% is 40 +- 5.7. Every trial has quasi-random draws, cells and fresh draws of its own.
    """
    base = prepare_base(dist.Normal(0.0, 1.0))
    bounds, claim = Bounds(-0.3, 0.7), Certificate(0.004, 0.2)
    low, high = -10.0, 10.0
    for _ in range(60):
        shift = (low + high) / 2
        phi = phi_by_quadrature(shift, bounds)
        low, high = (shift, high) if phi > -1.0001 * (claim.tolerance - ROUNDING_RESERVE) else (low, shift)
    wrong = 0
    for _ in range(200):
        calibrator = wave_calibrator(base)
        proof = calibration._Proof.of_held(calibrator._scores, low, bounds, claim)
        assert isinstance(proof.control, CellMeans)
        wrong += proof.holds(low, claim, calibrator._blocks(4 * calibration._BLOCK_SIZE, NO_BAR))
    assert wrong / 200 <= 0.2 + 5 * 0.0283


def test_a_second_attempt_uses_the_draws_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is tried on new ones, so that it is as independent of them, each with half of delta."""
    base = prepare_base(normal(2))
    bounds, certificate = Bounds(-0.3, 0.7), Certificate(0.1, 1e-6)
    seen: list[tuple[float, Tensor]] = []

    def refuse(blocks: Iterator[Tensor], limits: object, claim: Certificate) -> bool:
        seen.append((claim.delta, next(iter(blocks))))
        return len(seen) == 2

    make_block = ScoredDraws.fresh
    made: list[Tensor] = []

    def note_block(draws: ScoredDraws, *arguments: Any) -> tuple[Tensor, Tensor | None]:
        made.append((block := make_block(draws, *arguments))[0])
        return block

    monkeypatch.setattr(calibration, "certify", refuse)
    monkeypatch.setattr(ScoredDraws, "fresh", note_block)
    calibrator = wave_calibrator(base)
    kept = calibrator._scores.scores.clone()
    assert calibrator.calibrate(bounds, certificate).shrinkage == 1.0
    assert [delta for delta, _ in seen] == [5e-7, 5e-7]
    assert not torch.equal(seen[0][1], seen[1][1])
    # What later densities rest on does not depend on how this attempt came out.
    assert torch.equal(calibrator._scores.scores, kept)
    assert calibrator.calibrate(bounds, certificate).shrinkage == pytest.approx(0.3)
    # Certificates share no draws: one is as good as it says also where it was chosen by what rested on another.
    assert len({float(fresh[0]) for fresh in made}) == len(made) == len(seen) == 4


def phi_by_quadrature(shift: float, bounds: Bounds) -> float:
    """Log-normaliser of the waves on a standard normal base."""
    points = torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    weights = (-points.square() / 2).softmax(0)
    return math.log(float((weights * clip_score(waves(points), shift, bounds).exp()).sum()))


def shift_of_a_second_attempt(calibrator: Calibrator, bounds: Bounds, monkeypatch: pytest.MonkeyPatch) -> float:
    """Both attempts are made in full, the first fails, and fresh draws follow the seed."""
    outcomes = iter([False, True])

    def decide(blocks: Iterator[Tensor], limits: object, claim: object) -> bool:
        for _ in blocks:
            pass
        return next(outcomes)

    monkeypatch.setattr(calibration, "certify", decide)
    monkeypatch.setattr(calibration._Proof, "planned", lambda *arguments: 2.0**19)
    monkeypatch.setattr(calibration, "_SECOND", 0)
    monkeypatch.setattr(scored_draws, "system_generator", nullcontext)
    monkeypatch.setattr(base_draws.SystemSource, "_cube_points", base_draws.TorchSource._cube_points)
    placement = calibrator.calibrate(bounds, Certificate(0.1, 1e-6))
    assert placement.shrinkage == 1.0
    assert abs(placement.log_normalizer.value) < 1e-9
    return placement.shift


def test_fresh_draws_do_not_blur_what_quasi_random_ones_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first attempt that fails by bad luck leaves the shift as good as it was: its draws scatter far more."""
    calibrator, bounds = wave_calibrator(prepare_base(dist.Normal(0.0, 1.0))), Bounds(-0.3, 0.7)
    shift = shift_of_a_second_attempt(calibrator, bounds, monkeypatch)
    fresh = torch.cat([fresh_block(calibrator)[0] for _ in range(32)])
    error_of_fresh = float(clip_score(fresh, shift, bounds).exp().std()) / math.sqrt(len(fresh))
    assert abs(phi_by_quadrature(shift, bounds)) < error_of_fresh / 10


def test_fresh_draws_mend_what_quasi_random_ones_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack: quasi-random draws that agree with each other, but not with the base."""
    calibrator, bounds = wave_calibrator(prepare_base(dist.Normal(0.0, 1.0))), Bounds(-0.3, 0.7)
    calibrator._scores = calibrator._scores._replace(scores=calibrator._scores.scores.clamp(max=2.0))
    *_, before, _ = calibrator._shift(calibrator._scores, bounds, Certificate(0.1, 1e-6), NO_BAR)
    assert abs(phi_by_quadrature(before, bounds)) > 0.005
    shift = shift_of_a_second_attempt(calibrator, bounds, monkeypatch)
    assert abs(phi_by_quadrature(shift, bounds)) < 0.001


@pytest.mark.parametrize("num_dims", [1, 3])
def test_points_are_uniform_and_draws_keep_their_law(num_dims: int) -> None:
    base = prepare_base(normal(num_dims))
    values, points = fresh_block(wave_calibrator(base))
    assert points is not None
    for column in points.T:
        assert stats.kstest(column.numpy(), "uniform").pvalue > 1e-9
    independent = waves(base.sample(torch.Size([len(values)])))
    assert stats.ks_2samp(values.numpy(), independent.numpy()).pvalue > 1e-9


class Doubled(torch.distributions.transforms.AffineTransform):
    """A transform that no file format knows: the base can be inverted, but not rebuilt in another dtype."""


@pytest.mark.slow
def test_points_only_where_quasi_random_and_fresh_draws_have_them() -> None:
    """Else the control variate would have another mean on the fresh draws than on the quasi-random ones."""
    base = prepare_base(dist.TransformedDistribution(dist.Normal(0.0, 1.0), [Doubled(0.0, 2.0)]))
    calibrator = wave_calibrator(base)
    assert isinstance(calibrator._scores, SampledScores)
    assert (calibrator._scores.points is None) == (fresh_block(calibrator)[1] is None)
    bounds, certificate = plan_calibration(base, 1.0, 1e-6, 0.3)
    assert calibrator.calibrate(bounds, certificate).shrinkage == 1.0


def test_quasi_random_draws_are_the_same_for_the_same_seed() -> None:
    base = prepare_base(normal(2))

    def shift() -> float:
        torch.manual_seed(3)
        return wave_calibrator(base).calibrate(*plan_calibration(base, 1.0, 1e-9, 0.3)).shift

    assert shift() == shift()


def test_fresh_draws_do_not_follow_the_seed() -> None:
    base = prepare_base(normal(2))
    blocks = []
    for _ in range(2):
        torch.manual_seed(3)
        blocks.append(fresh_block(wave_calibrator(base))[0])
    assert not torch.equal(*blocks)


def test_fresh_draws_leave_the_generator_alone() -> None:
    calibrator = wave_calibrator(prepare_base(BASES["gamma"]()))
    state = torch.get_rng_state()
    fresh_block(calibrator)
    assert torch.equal(torch.get_rng_state(), state)
