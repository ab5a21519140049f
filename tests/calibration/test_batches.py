"""Certificates of batches: the law of the sum, how often a certificate is wrong, when it is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from batches import PROBABILITIES, SCORES, all_batches, exact_law, exact_phi, finite_batch, finite_rows, shift_of
from densities import normal, scale_calibration
from hostile import cancelling
from known_ratio import known_density
from scipy import stats
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde import MollifiedExpFamily, private_draws, recertify
from pyro_mbde.calibration import placement as calibration
from pyro_mbde.calibration.batches import BATCHES_PER_BLOCK, BatchCertificate, BatchScores
from pyro_mbde.calibration.certificate import ROUNDING_RESERVE
from pyro_mbde.calibration.draws import ScoredDraws
from pyro_mbde.calibration.placement import certain_shrinkage
from pyro_mbde.calibration.plan import plan_calibration
from pyro_mbde.calibration.projection import project
from pyro_mbde.calibration.scores import ExactScores
from pyro_mbde.density import tilted
from pyro_mbde.density.bounds import Bounds, Certificate, a_priori_guarantee, calibrated_guarantee
from pyro_mbde.density.scoring import score_rows
from pyro_mbde.sampling.constant_time import constant_time_proposals
from pyro_mbde.training.density_ratio import LogRatio

BOUNDS = Bounds(-0.9, 2.1)
FOUR = ExactScores(SCORES, PROBABILITIES.log())


def fresh_blocks(proof: BatchCertificate, num_blocks: int) -> Iterator[Tensor]:
    for _ in range(num_blocks):
        yield SCORES[torch.multinomial(PROBABILITIES, proof.block_rows, replacement=True)]


class TestLawOfTheSum:
    @pytest.mark.parametrize("num_rows", [1, 2, 3, 5])
    @pytest.mark.parametrize("shift", [-3.0, 0.0, 1.0, 4.0])
    def test_phi_is_that_of_all_tuples(self, num_rows: int, shift: float) -> None:
        tolerance = 0.01
        phi = BatchScores(FOUR, num_rows, tolerance).log_normalizer(shift, BOUNDS)
        assert phi.standard_error == 0
        assert abs(phi.value - exact_phi(num_rows, shift, BOUNDS)) < tolerance / 50

    @pytest.mark.parametrize("num_rows", [1, 4, 100])
    def test_the_mean_is_kept(self, num_rows: int) -> None:
        sums, log_weights = BatchScores(FOUR, num_rows, 0.01).weighted()
        assert float(log_weights.exp().sum()) == pytest.approx(1, abs=1e-12)
        assert float((log_weights.exp() * sums).sum()) == pytest.approx(num_rows * float(PROBABILITIES @ SCORES))

    def test_the_projection_is_that_of_all_tuples(self) -> None:
        placed = BatchScores(FOUR, 3, 0.01)
        shift = project(*placed.weighted(), BOUNDS)
        assert abs(exact_phi(3, shift, BOUNDS)) < 0.01 / 50
        assert shift == pytest.approx(shift_of(3, BOUNDS, 0.0), abs=0.01)

    def test_scores_are_held_as_draws_hold_them(self) -> None:
        wild = ExactScores(torch.tensor([-1e300, 0.0, 1e300, 2e3], dtype=torch.float64), PROBABILITIES.log())
        placed = BatchScores(wild, 2, 0.01)
        sums, _ = placed.weighted()
        assert float(sums.min()) == pytest.approx(-2048, abs=0.1)
        assert float(sums.max()) == pytest.approx(2048, abs=0.1)


def rate_of_wrong_certificates(num_rows: int, sign: int, trials: int) -> float:
    """How often phi just beyond the tolerance is certified at delta = 0.05."""
    claim = Certificate(0.15, 0.05)
    shift = shift_of(num_rows, BOUNDS, sign * 1.0001 * (claim.tolerance - ROUNDING_RESERVE))
    held, wrong = FOUR.sample(2**14), 0
    proof = BatchCertificate(num_rows, shift, BOUNDS, claim)
    num_blocks = math.ceil(3 * proof.expected_blocks(held))
    for _ in range(trials):
        wrong += proof.holds(fresh_blocks(proof, num_blocks), held)
    return wrong / trials


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("num_rows", "trials"),
    [(1, 80), *(pytest.param(k, 1000, marks=pytest.mark.slow) for k in (2, 4))],
)
def test_wrong_certificates_are_rare(num_rows: int, trials: int, sign: int) -> None:
    """Attack on docs/proofs.md, *The certificate of a batch*: phi is known, just beyond the tolerance."""
    rate = rate_of_wrong_certificates(num_rows, sign, trials)
    assert rate <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / trials)


@pytest.mark.parametrize("guess", [1e-9, 3.0])
def test_a_wrong_guess_at_the_variance_costs_blocks_but_no_truth(guess: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchCertificate, "_variance", lambda proof, held: guess)
    claim = Certificate(0.15, 0.05)
    for sign in (1, -1):
        shift = shift_of(3, BOUNDS, sign * 1.0001 * claim.tolerance)
        proof = BatchCertificate(3, shift, BOUNDS, claim)
        wrong = sum(proof.holds(fresh_blocks(proof, 20), SCORES) for _ in range(50))
        assert wrong <= 50 * 0.05 + 4 * math.sqrt(50 * 0.05 * 0.95)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("bounds", [BOUNDS, Bounds(-2.7, 0.3), Bounds(-0.1, 2.9)])
def test_what_is_true_is_certified_in_about_the_blocks_expected(num_rows: int, bounds: Bounds) -> None:
    """phi = 0, at every place of the interval: a bet that the range of Y held back would fail at the upper end."""
    claim = Certificate(0.05, 1e-6)
    proof = BatchCertificate(num_rows, shift_of(num_rows, bounds, 0.0), bounds, claim)
    held = FOUR.sample(2**15)
    expected = proof.expected_blocks(held)
    counts, given = [], 0
    for _ in range(10):
        made: list[Tensor] = []

        def noted(blocks: Iterable[Tensor], made: list[Tensor] = made) -> Iterator[Tensor]:
            for block in blocks:
                made.append(block)
                yield block

        given += proof.holds(noted(fresh_blocks(proof, math.ceil(4 * expected))), held)
        counts.append(len(made))
    assert given >= 9
    assert sum(counts) / len(counts) < 2.5 * expected + 2


class TestPlans:
    @pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 3.0, 10.0, 12.0])
    @pytest.mark.parametrize("skew", [0.02, 0.05, 0.3, 0.5, 0.839, 0.98])
    def test_little_is_lost_to_the_tolerance(self, epsilon: float, skew: float) -> None:
        bounds, certificate = plan_calibration(normal(2), epsilon, 1e-9, skew, 20 if skew > 0.1 else 2)
        assert certificate is not None
        assert 2 * certificate.tolerance < 0.02 * epsilon
        guarantee = calibrated_guarantee(bounds, certificate)
        assert guarantee.epsilon == pytest.approx(epsilon, rel=1e-14)
        assert guarantee.epsilon <= epsilon
        assert bounds.low - certificate.tolerance == pytest.approx(-skew * epsilon)

    @pytest.mark.parametrize("skew", [1e-9, 1e-4, 0.001, 0.009, 0.991, 0.9999, 1 - 1e-12])
    @pytest.mark.parametrize("epsilon", [1e-4, 0.1, 10.0])
    def test_an_interval_at_the_very_end(self, epsilon: float, skew: float) -> None:
        """Both sides stay open, or the batch is refused; without a certificate it never is."""
        bounds, certificate = plan_calibration(normal(2), epsilon, 0.0, skew, 20)
        assert certificate is None and a_priori_guarantee(bounds).epsilon <= epsilon
        try:
            bounds, certificate = plan_calibration(normal(2), epsilon, 1e-9, skew, 20)
        except ValueError as error:
            assert "A certificate for such a batch must be in reach" in str(error)
            assert not 0.01 < skew < 0.99 or epsilon < 0.01
            return
        assert certificate is not None
        assert bounds.low < 0 < bounds.high
        assert certificate.tolerance > 2 * ROUNDING_RESERVE
        assert certificate.tolerance < min(-bounds.low, bounds.high)
        assert calibrated_guarantee(bounds, certificate).epsilon <= epsilon

    def test_no_certificate_where_rounding_is_larger(self) -> None:
        with pytest.raises(ValueError, match=r"more than any number of rows, .* delta=0, which needs no certificate"):
            plan_calibration(normal(2), 1e-3, 1e-9, 0.3, 20)
        assert plan_calibration(normal(2), 0.01, 1e-9, 0.3, 20)[1] is not None

    @pytest.mark.parametrize(
        ("epsilon", "delta", "skew", "num_rows"),
        [(3.0, 1e-9, 1e-4, 10), (3.0, 1e-9, 0.3, 10**6), (12.0, 1e-9, 0.05, 20), (10.0, 1e-300, 0.3, 20)],
    )
    def test_what_would_take_too_long_is_refused(
        self, epsilon: float, delta: float, skew: float, num_rows: int
    ) -> None:
        with pytest.raises(ValueError, match=r"must be in reach, got .* Take fewer rows in a batch, a skew nearer 0.3"):
            plan_calibration(normal(2), epsilon, delta, skew, num_rows)

    @pytest.mark.parametrize("num_rows", [2**22 + 1, 10**20])
    def test_too_many_rows(self, num_rows: int) -> None:
        with pytest.raises(ValueError, match="num_rows must be at most 4,194,304"):
            plan_calibration(normal(2), 1.0, 0.0, 0.3, num_rows)

    def test_a_delta_is_needed_on_every_base(self) -> None:
        bounds, certificate = plan_calibration(finite_rows(), 1.0, 0.0, 0.3, 3)
        assert certificate is None
        assert bounds.width == 0.5

    @pytest.mark.parametrize("delta", [0.0, 1e-9])
    def test_epsilon_above_12(self, delta: float) -> None:
        with pytest.raises(ValueError, match=r"epsilon must be at most 12 for a batch, .* several smaller batches"):
            plan_calibration(normal(2), 12.001, delta, 0.3, 20)


def known_line(epsilon: float, num_rows: int, **options: Any) -> MollifiedExpFamily:
    return known_density(dist.Normal(1.0, 0.5), dist.Normal(0.0, 1.0), epsilon, num_rows, **options)


class TestAttempts:
    """What the shift, the bets and later calls rest on."""

    def test_each_has_half_of_delta_and_rows_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[tuple[float, float, Tensor, Tensor]] = []
        outcomes = iter([False, True, False, False])

        class Noted(BatchCertificate):
            """Takes one block, and says what the test wants."""

            def __init__(self, num_rows: int, shift: float, bounds: Bounds, certificate: Certificate) -> None:
                super().__init__(num_rows, shift, bounds, certificate)
                self._facts = certificate.delta, shift

            def holds(self, blocks: Iterable[Tensor], held: Tensor) -> bool:
                seen.append((*self._facts, next(iter(blocks)), held))
                return next(outcomes)

        monkeypatch.setattr(calibration, "BatchCertificate", Noted)
        calibrator = LogRatio(normal(1), cancelling(1.0), progress=False)._calibrator
        plan = plan_calibration(normal(1), 1.0, 1e-6, 0.3, 3)
        assert calibrator.calibrate(*plan, 3).shrinkage == 1.0
        kept = calibrator._scores.scores.clone()
        assert calibrator.calibrate(*plan, 3).shrinkage == certain_shrinkage(plan[0])
        assert torch.equal(calibrator._scores.scores, kept)  # however an attempt came out
        assert [delta for delta, *_ in seen] == [5e-7] * 4
        blocks = [block for _, _, block, _ in seen]
        assert len({tuple(block.tolist()) for block in blocks}) == 4
        # The shift of a call's first attempt rests on what is kept alone: fresh rows of an earlier call do not enter.
        assert seen[0][1] == seen[2][1]
        assert all(torch.equal(held, seen[0][3]) for *_, held in seen)

    def test_what_no_proof_was_found_for_is_inside_for_certain(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(BatchCertificate, "holds", lambda proof, blocks, held: False)
        q = finite_batch(3.0, 3)
        assert q.shrinkage == certain_shrinkage(q.bounds)
        batches = all_batches(3)
        log_ratio = (exact_law(q) / PROBABILITIES[batches].prod(1)).log()
        assert q.bounds.low <= float(log_ratio.min())
        assert float(log_ratio.max()) <= q.bounds.high

    def test_rows_of_a_certificate_do_not_follow_the_seed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        make, made = ScoredDraws.fresh, []

        def noted(draws: ScoredDraws, *arguments: Any) -> tuple[Tensor, Tensor]:
            made.append((block := make(draws, *arguments))[0])
            return block

        scale_calibration(monkeypatch)
        monkeypatch.setattr(ScoredDraws, "fresh", noted)
        offsets = []
        for _ in range(2):
            torch.manual_seed(3)
            offsets.append(known_line(1.0, 3).offset)
        assert offsets[0] == offsets[1]
        sums = [float(block.sum()) for block in made]
        assert len(set(sums)) == len(sums) > 2


@pytest.mark.parametrize(
    ("epsilon", "num_rows", "dtype"),
    [(0.5, 2, torch.float32), (0.5, 3, torch.float64), (3.0, 2, torch.float64), (3.0, 3, torch.float32)],
)
def test_a_certificate_is_right_about_phi(epsilon: float, num_rows: int, dtype: torch.dtype) -> None:
    q = finite_batch(epsilon, num_rows, dtype=dtype)
    assert q.shrinkage == 1
    assert q.certificate is not None
    assert abs(exact_phi(num_rows, q.offset, q.bounds)) <= q.certificate.tolerance
    assert q.guarantee == calibrated_guarantee(q.bounds, q.certificate)
    batches = all_batches(num_rows)
    assert torch.allclose(q.accepted_tilt(batches), (SCORES[batches].sum(1) - q.offset).clamp(*q.bounds), atol=1e-4)
    assert torch.allclose(q.log_prob(batches).double().exp(), exact_law(q), rtol=0.02)


WAYS = {
    "exact": lambda q, count: q.sample((count,)),
    "private": lambda q, count: private_draws(q, count, progress=False),
    "constant-time": lambda q, count: private_draws(q, count, constant_time=True, progress=False),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("num_rows", "delta", "dtype"), [(2, 1e-6, torch.float64), (3, 1e-6, torch.float32), (3, 0.0, torch.float32)]
)
def test_draws_follow_the_density(
    way: str, num_rows: int, delta: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chi-square against the law summed over all tuples, at a level of 1e-8."""
    scale_calibration(monkeypatch)
    q, count = finite_batch(2.0, num_rows, delta, dtype=dtype), 2500
    draws = WAYS[way](q, count)
    assert draws.shape == (count, num_rows)
    places = (draws.long() * 4 ** torch.arange(num_rows - 1, -1, -1)).sum(1)
    counts = torch.bincount(places, minlength=4**num_rows)
    law = exact_law(q)
    assert stats.chisquare(counts.numpy(), (law * count).numpy()).pvalue > 1e-8
    # So many draws tell the law from that of rows of the base.
    base = PROBABILITIES[all_batches(num_rows)].prod(1)
    assert stats.chisquare(counts.numpy(), (base * count).numpy()).pvalue < 1e-8


def test_batches_in_constant_time_score_as_many_rows_whatever_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack: one density accepts every second batch, the other hardly any."""
    scale_calibration(monkeypatch)
    counts = []

    def counted(score: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        counts[-1] += len(rows)
        return score_rows(score, rows)

    for shift in (-50.0, 50.0):
        q = finite_batch(1.0, 3)
        q._tilt.offset, q.certified_on = shift, None  # nothing is drawn for anybody
        q.guarantee = a_priori_guarantee(q.bounds)
        counts.append(0)
        with monkeypatch.context() as patch:
            patch.setattr(tilted, "score_rows", counted)
            private_draws(q, 7, constant_time=True, progress=False)
    assert counts[0] == counts[1] == 7 * 3 * (constant_time_proposals(q.bounds) + 1)


def test_an_a_priori_batch() -> None:
    q = known_line(2.0, 5, delta=0.0)
    assert q.certificate is None
    assert q.guarantee == a_priori_guarantee(Bounds(-0.5, 0.5))
    assert q.guarantee.delta == 0
    assert q.offset == pytest.approx(-q.log_normalizer.value, abs=1e-9)


def test_a_certificate_in_another_type_is_proved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was certified is a function in floats; recertify proves the other one at the same shift."""
    scale_calibration(monkeypatch)
    ratio = LogRatio(normal(1), cancelling(1.0), progress=False)
    q = ratio.mollify(1.0, num_rows=3)
    wide = q.to(torch.float64)
    assert wide.guarantee == a_priori_guarantee(q.bounds)
    assert "torch.float64" not in q.certificate_lapse()
    assert wide.certificate_lapse()
    assert recertify(q.to(torch.float64).to(torch.float32), progress=False).guarantee == q.guarantee


@pytest.mark.parametrize(("epsilon", "num_rows"), [(1.0, 3), (3.0, 20)])
def test_networks_changed_in_place_lose_the_certificate(
    epsilon: float, num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack: nearly every batch of the base lies at the lower bound, before the change and after it."""
    scale_calibration(monkeypatch)
    q = LogRatio(normal(1), cancelling(1.0), progress=False).mollify(epsilon, num_rows=num_rows)
    assert not q.certificate_mismatch()
    with torch.no_grad():
        networks: Any = q.statistics
        networks.networks.weights[-1].mul_(0.9)
    assert "other values" in q.certificate_mismatch()
    with pytest.raises(ValueError, match="the function that its certificate was proved for"):
        private_draws(q, 1, progress=False)


def test_an_offset_changed_afterwards_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    scale_calibration(monkeypatch)
    q = finite_batch(1.0, 3)
    q._tilt.offset += 0.3
    assert "other values" in q.certificate_mismatch()


@pytest.mark.parametrize("base", [dist.Gamma(2.0, 1.0), dist.Categorical(torch.ones(4))])
def test_bases_without_an_inverse(base: Distribution, monkeypatch: pytest.MonkeyPatch) -> None:
    scale_calibration(monkeypatch)
    q = known_density(
        dist.Gamma(4.0, 1.0) if isinstance(base, dist.Gamma) else dist.Categorical(torch.tensor([4.0, 2.0, 1.0, 1.0])),
        base,
        1.0,
        4,
    )
    assert q.shrinkage == 1
    assert private_draws(q, 5, progress=False).shape == (5, 4)


def test_a_block_is_cut_into_batches_of_its_rows_each_once() -> None:
    proof = BatchCertificate(5, 0.0, BOUNDS, Certificate(0.1, 0.05))
    assert proof.block_rows == 5 * BATCHES_PER_BLOCK
    for order in proof._orders:
        assert torch.equal(order.sort().values, torch.arange(proof.block_rows))
    assert len(torch.unique(proof._orders, dim=0)) == len(proof._orders)
