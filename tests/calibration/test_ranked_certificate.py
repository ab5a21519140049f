"""Certificates over several processes: the shift of one process, the same density in all, and no false proof."""

from __future__ import annotations

import math
import time
import warnings
from pathlib import Path
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from densities import BASES, normal, scale_calibration
from rank_processes import run_ranks, shorten_steps, values_of
from torch import Tensor, nn
from tqdm import tqdm

from pyro_mbde.calibration import placement as calibration
from pyro_mbde.calibration.certificate import ROUNDING_RESERVE
from pyro_mbde.calibration.placement import Calibrator
from pyro_mbde.calibration.plan import plan_calibration
from pyro_mbde.calibration.ranked_draws import RankedDraws
from pyro_mbde.density import scoring
from pyro_mbde.density.base import prepare_base
from pyro_mbde.density.bounds import Bounds, Certificate, clip_score
from pyro_mbde.density.clipped_ratio import RATIO_SCALE
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.ranks import ALONE, LostRankError, Ranks
from pyro_mbde.sampling.private import private_draws
from pyro_mbde.training.density_ratio import DensityRatio, LogRatio
from pyro_mbde.training.weak_learner import WeakLearner

HERE = Path(__file__)
NO_BAR: tqdm[Any] = tqdm(disable=True)


class Waves(nn.Module):
    """A score with many modes; with a nudge, that of other arithmetic."""

    def __init__(self, nudge: float = 0.0) -> None:
        super().__init__()
        self._nudge = nudge

    def forward(self, value: Tensor) -> Tensor:
        rows = value.double().reshape(len(value), -1)
        return ((3 * rows).sin().sum(-1) * 2 + rows.mean(-1).tanh() + self._nudge).unsqueeze(-1) / RATIO_SCALE


class Infinite(nn.Module):
    """Infinite, NaN and huge scores."""

    def forward(self, value: Tensor) -> Tensor:
        x = value.double().reshape(len(value), -1)[:, :1]
        return torch.where(x > 1, math.inf, torch.where(x < -1.5, math.nan, 1e30 * (x - 0.3).sign()))


def calibrator_of(base: Any, ranks: Ranks, statistics: nn.Module | None = None) -> Calibrator:
    torch.manual_seed(1)
    theta = torch.tensor([RATIO_SCALE], dtype=torch.float64)
    return Calibrator(base, statistics or Waves(), theta, progress=False, ranks=ranks)


def facts(q: MollifiedExpFamily) -> tuple[Any, ...]:
    return q.offset, q.shrinkage, q.log_normalizer.value, q.guarantee, q.certificate


CASES: dict[str, tuple[Any, ...]] = {
    "inverted": (3, 1.0, 1e-9, None, "waves"),
    "hostile": (3, 1.0, 1e-9, None, "infinite"),
    "batches": (1, 2.0, 1e-9, 4, "waves"),
    "a priori": (2, 1.0, 0.0, None, "waves"),
    "sampled": ("mixture-2d", 1.0, 1e-6, None, "waves"),
    "finite": ("categorical", 1.0, 1e-6, None, "waves"),
}


def density_of(name: str, ranks: Ranks, scale: float) -> MollifiedExpFamily:
    """With enough patience for the first attempt: the shift of a second one follows fresh draws, whoever makes them."""
    base, epsilon, delta, num_rows, score = CASES[name]
    torch.manual_seed(7)  # some bases have random parameters
    prepared = prepare_base(BASES[base]() if isinstance(base, str) else normal(base))
    statistics = Infinite() if score == "infinite" else Waves()
    with pytest.MonkeyPatch.context() as patch:
        scale_calibration(patch, scale)
        bounds, certificate = plan_calibration(prepared, epsilon, delta, 0.3, num_rows)
        patch.setattr(calibration, "_FIRST", 8 * calibration._FIRST)
        return calibrator_of(prepared, ranks, statistics).density(bounds, certificate, num_rows)


def densities(ranks: Ranks, names: list[str], scale: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        q = density_of(name, ranks, scale)
        q.confirm_guarantee()
        assert private_draws(q, 2, progress=False).shape == (2, *q.event_shape)
        found[name] = (*facts(q), q._salt)
    return found


@pytest.mark.parametrize(
    ("size", "names", "scale"),
    [
        (2, ["inverted", "hostile", "a priori", "finite"], 1 / 16),
        pytest.param(2, list(CASES), 1, marks=pytest.mark.slow),
        pytest.param(3, list(CASES)[:4], 1, marks=pytest.mark.slow),
    ],
)
def test_shift_and_density_are_those_of_one_process(size: int, names: list[str], scale: float) -> None:
    """Same bits from the same seed, and one fingerprint in all processes."""
    found = values_of(run_ranks(HERE, "densities", size, names, scale))
    for each in found[1:]:
        assert each == found[0]
    for name in names:
        assert found[0][name][:-1] == facts(density_of(name, ALONE, scale)), name


def differing(ranks: Ranks) -> tuple[Any, ...]:
    """Process 1 computes otherwise; process 2 says that its processor is another."""
    if ranks.rank == 2:
        vars(scoring)["_processor"] = lambda: "another processor"
    base = prepare_base(normal(2))
    with pytest.MonkeyPatch.context() as patch:
        scale_calibration(patch)
        bounds, certificate = plan_calibration(base, 1.0, 1e-9, 0.3)
        calibrator = calibrator_of(base, ranks, Waves(1e-12 if ranks.rank == 1 else 0.0))
        draws = calibrator._draws
        assert isinstance(draws, RankedDraws)
        shares = draws._shares(1000)
        q = calibrator.density(bounds, certificate)
    return shares, dict(draws.left_out), q.epsilon, facts(q), q.certificate_lapse()


def test_a_process_with_other_arithmetic_contributes_nothing() -> None:
    """Nor has its density the guarantee that was proved for another function."""
    found = values_of(run_ranks(HERE, "differing", 4))
    for shares, left_out, *_ in found:
        assert shares == {0: 500, 3: 500}
        assert left_out[1] == "other results of the same arithmetic"
        assert left_out[2].startswith("processor another processor in place of")
    assert [each[2] <= 1.0 for each in found] == [True, False, False, True]
    assert found[0][3] == found[3][3]
    assert found[1][4] == "other results of the same arithmetic"
    assert found[1][3][:3] == found[0][3][:3]


def learned(ranks: Ranks) -> tuple[float, float, list[str]]:
    """A learned ratio, where process 1 says that its processor is another."""
    if ranks.rank == 1:
        vars(scoring)["_processor"] = lambda: "another processor"
    learner = WeakLearner(hidden_sizes=(16,), num_steps=5, batch_size=64)
    rows = torch.linspace(-1, 1, 200).unsqueeze(1)
    ratio = DensityRatio(normal(1), weak_learner=learner, ensemble_size=2, seed=0, progress=False).fit(rows)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        q = LogRatio(normal(1), ratio._networks, progress=False, ranks=ranks).mollify(1.0)
    return q.epsilon, q.offset, [str(each.message) for each in said]


@pytest.mark.slow
def test_the_owner_is_told_who_makes_no_draws() -> None:
    (epsilon, offset, said), (other_epsilon, other_offset, silence) = values_of(run_ranks(HERE, "learned", 2))
    assert epsilon <= 1.0 < other_epsilon
    assert offset == other_offset
    assert len(said) == 1 and not silence
    assert said[0].startswith(
        "Processes whose arithmetic differs from the first one's make no draws for it (process 1:"
    )
    assert "keep it" in said[0]


def fail_first(ranks: Ranks) -> str:
    """The first process fails while it decides, after longer than a step may take."""
    calibrator = calibrator_of(normal(2), ranks)
    shorten_steps(0.3)

    def certify(*arguments: object) -> bool:
        time.sleep(1)
        raise MemoryError("too much")

    vars(calibration)["certify"] = certify
    try:
        calibrator.calibrate(Bounds(-0.3, 0.7), Certificate(0.1, 1e-6))
    except (MemoryError, LostRankError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing happened"


def test_errors_of_the_first_process_end_the_others() -> None:
    found = values_of(run_ranks(HERE, "fail_first", 2))
    assert found[0] == "MemoryError: too much"
    assert found[1] == "LostRankError: The first process of several failed. Its own message says why."


class BrokenBar(tqdm):  # type: ignore[type-arg]  # at run time it takes none
    """A progress bar that cannot be written once the others have sent their scores."""

    def update(self, n: float | None = 1) -> bool | None:
        if n != 500:
            raise BrokenPipeError
        return None


def fail_midway(ranks: Ranks, kind: str, where: str) -> str:
    """The first process fails once the others make draws for it."""
    draws = calibrator_of(normal(2), ranks)._draws
    bar = NO_BAR
    if ranks.is_first and where == "scoring":

        def scores(*arguments: object) -> Tensor:
            raise MemoryError("too much")

        vars(draws)["scores"] = scores
    elif ranks.is_first and where == "receiving":

        def receive(*arguments: object) -> Tensor:
            raise KeyboardInterrupt

        Ranks.receive = receive  # type: ignore[method-assign, assignment]
    elif ranks.is_first:
        bar = BrokenBar(disable=True)
    try:
        if kind == "fresh":
            draws.decided(lambda: draws.fresh(1500, bar))
        else:
            draws.decided(lambda: draws.quasi_random(0, 500, bar))
    except (MemoryError, LostRankError, BrokenPipeError, KeyboardInterrupt) as error:
        return type(error).__name__
    return "nothing happened"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "where", "error"),
    [
        ("fresh", "scoring", "MemoryError"),
        ("quasi", "scoring", "MemoryError"),
        ("fresh", "receiving", "KeyboardInterrupt"),
        ("fresh", "bar", "BrokenPipeError"),
    ],
)
def test_errors_of_the_first_process_end_others_that_make_draws(kind: str, where: str, error: str) -> None:
    found = values_of(run_ranks(HERE, "fail_midway", 3, kind, where))
    assert found == [error, "LostRankError", "LostRankError"]


def phi_by_quadrature(shift: float, bounds: Bounds) -> float:
    points = torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    weights = (-points.square() / 2).softmax(0)
    scores = Waves()(points).squeeze(1) * RATIO_SCALE
    return math.log(float((weights * clip_score(scores, shift, bounds).exp()).sum()))


def wrong_claims(ranks: Ranks, num_trials: int) -> int:
    """Tries to prove what is false, each time with draws of all processes."""
    base = prepare_base(dist.Normal(0.0, 1.0))
    bounds, claim = Bounds(-0.3, 0.7), Certificate(0.004, 0.2)
    low, high = -10.0, 10.0
    for _ in range(60):
        shift = (low + high) / 2
        phi = phi_by_quadrature(shift, bounds)
        low, high = (shift, high) if phi > -1.0001 * (claim.tolerance - ROUNDING_RESERVE) else (low, shift)
    calibration._SECOND = 0.5
    wrong = 0
    for trial in range(num_trials):
        torch.manual_seed(trial)
        calibrator = Calibrator(base, Waves(), torch.tensor([RATIO_SCALE]).double(), progress=False, ranks=ranks)
        wrong += calibrator.certify_at(low, bounds, claim)
    return wrong


@pytest.mark.slow
def test_wrong_certificates_stay_rare() -> None:
    """Attack on docs/proofs.md, *Certificates over several processes*: 200 trials at delta = 0.2, 40 +- 5.7."""
    wrong, same = values_of(run_ranks(HERE, "wrong_claims", 2, 200, seconds=400))
    assert wrong == same
    assert wrong / 200 <= 0.2 + 4 * 0.0283


def fresh_scores(ranks: Ranks) -> Tensor | None:
    draws = calibrator_of(normal(2), ranks)._draws
    blocks = draws.decided(lambda: list(draws.blocks(700, 5, NO_BAR)))
    assert len(blocks) == 5
    for scores, points in blocks:
        assert points is not None and len(points) == len(scores) == 700
    return torch.cat([scores for scores, _ in blocks])


@pytest.mark.slow
def test_fresh_draws_are_of_every_process_and_differ() -> None:
    scores, again = values_of(run_ranks(HERE, "fresh_scores", 2))
    assert torch.equal(scores, again)
    assert len(scores.unique()) == len(scores)
