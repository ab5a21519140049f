"""Attacks on batches with score functions that jump, cancel, overflow or look around, as a release draws from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from densities import normal, scale_calibration
from hostile import cancelling
from torch import Tensor, nn

from pyro_mbde import MollifiedExpFamily
from pyro_mbde.calibration.batches import BatchCertificate
from pyro_mbde.calibration.placement import Calibrator
from pyro_mbde.calibration.plan import plan_calibration
from pyro_mbde.density.base_draws import SystemSource, system_generator
from pyro_mbde.density.clipped_ratio import RATIO_SCALE
from pyro_mbde.density.row_batch import RowBatch
from pyro_mbde.training.density_ratio import LogRatio

LINE = normal(1)


class Scored(nn.Module):
    """The score of a row, as a function of its number x."""

    def __init__(self, score: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._score = score

    def forward(self, features: Tensor) -> Tensor:
        return self._score(features.double()) / RATIO_SCALE


def step(x: Tensor, place: float, height: float) -> Tensor:
    return torch.where(x > place, height, -height)


#: Pairs of score functions that two tables may lead to.
PAIRS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "steps at opposite ends": (lambda x: step(x, 1.5, 3.0), lambda x: step(-x, 1.5, 3.0)),
    "one jumps in the tail": (lambda x: step(x, 3.0, 9.0), lambda x: -step(x, 0.0, 9.0)),
    "opposite": (lambda x: 4 * x, lambda x: -4 * x),
    "fast waves": (lambda x: 5 * (300 * x).sin(), lambda x: -5 * (300 * x).sin()),
    "infinite": (lambda x: torch.where(x > 1, math.inf, 0.0), lambda x: torch.where(x < -1, math.inf, 0.0)),
    "minus infinity": (lambda x: torch.where(x > 1, -math.inf, x), lambda x: torch.where(x < -1, -math.inf, -x)),
    "NaN in one half": (lambda x: torch.where(x > 0, math.nan, x), lambda x: torch.where(x < 0, math.nan, -x)),
    "huge and cancelling": (lambda x: 1e30 * (x - 0.3).sign(), lambda x: -1e30 * (x + 0.3).sign()),
}


def batch_of(score: Callable[[Tensor], Tensor], epsilon: float, num_rows: int, skew: float = 0.3) -> MollifiedExpFamily:
    plan = plan_calibration(LINE, epsilon, 1e-9, skew, num_rows)
    natural_params = torch.tensor([RATIO_SCALE], dtype=torch.float64)
    return Calibrator(LINE, Scored(score), natural_params, progress=False).density(*plan, num_rows)


def phi_by_fresh_batches(q: MollifiedExpFamily, num_batches: int = 2**15) -> tuple[float, float]:
    """The log-normaliser of what draws are accepted by, and its standard error: proposals as a release makes them."""
    with system_generator():
        tilts = q.accepted_tilt(SystemSource(q.base).propose(num_batches)).exp()
    return float(tilts.mean().log()), float(tilts.std() / tilts.mean()) / math.sqrt(num_batches)


def largest_log_ratio(
    pair: Sequence[MollifiedExpFamily], phis: Sequence[tuple[float, float]], num_rows: int
) -> tuple[float, float]:
    """Of the laws that draws of the two follow, over fresh batches and copies of a row; with its standard error."""
    copies = torch.linspace(-6, 6, 4001).reshape(-1, 1, 1).expand(-1, num_rows, 1)
    batches = torch.cat([copies, pair[0].base.sample((20_000,))])
    (phi, error), (other_phi, other_error) = phis
    log_ratio = pair[0].accepted_tilt(batches) - phi - (pair[1].accepted_tilt(batches) - other_phi)
    return float(log_ratio.abs().max()), math.hypot(error, other_error)


#: Those that reach nearly all of epsilon, and one that overflows.
IN_SHORT = ("opposite", "fast waves", "infinite")


@pytest.mark.parametrize(
    ("name", "epsilon", "num_rows", "skew"),
    [
        *((name, 1.0, 2, 0.3) for name in PAIRS),
        *(pytest.param(name, 3.0, 8, 0.8, marks=[] if name in IN_SHORT else pytest.mark.slow) for name in PAIRS),
    ],
)
def test_two_hostile_scores_are_at_most_epsilon_apart(
    name: str, epsilon: float, num_rows: int, skew: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack on docs/proofs.md, *Batches*."""
    scale_calibration(monkeypatch, 1 / 8)
    pair = tuple(batch_of(score, epsilon, num_rows, skew) for score in PAIRS[name])
    phis = [phi_by_fresh_batches(q) for q in pair]
    reached, error = largest_log_ratio(pair, phis, num_rows)
    assert [q.guarantee.epsilon for q in pair] == [epsilon, epsilon]
    assert reached <= epsilon + 6 * error
    if name in ("opposite", "fast waves"):
        assert reached >= 0.95 * epsilon - 6 * error
    for q, (phi, error) in zip(pair, phis, strict=True):
        assert q.certificate is not None
        assert q.shrinkage < 1 or abs(phi) <= q.certificate.tolerance + 6 * error


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_networks_that_cancel_are_at_most_epsilon_apart(epsilon: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that make a score depend on how a product is summed: the certificate is of what draws follow."""
    scale_calibration(monkeypatch)
    pair = tuple(LogRatio(LINE, cancelling(sign), progress=False).mollify(epsilon, num_rows=3) for sign in (1.0, -1.0))
    reached, error = largest_log_ratio(pair, [phi_by_fresh_batches(q) for q in pair], 3)
    assert reached <= epsilon + 6 * error


def test_a_score_that_depends_on_its_place_gets_no_certificate() -> None:
    class ByPlace(nn.Module):
        """Within rounding."""

        def forward(self, features: Tensor) -> Tensor:
            return 1e-4 * features + 1e-9 * (torch.arange(len(features)) % 5).unsqueeze(-1)

    with pytest.raises(ValueError, match="in the same order at every place"):
        Calibrator(LINE, ByPlace(), torch.ones(1), progress=False)


def test_a_score_that_looks_at_the_other_rows_of_its_batch_is_refused() -> None:
    class Ranked(nn.Module):
        """Compares a row with the others."""

        def forward(self, features: Tensor) -> Tensor:
            return (features - features.mean()).sign()

    with pytest.raises(ValueError, match="statistics must not look across rows"):
        MollifiedExpFamily(RowBatch(LINE, 3), Ranked(), torch.ones(1), 0.0)


def test_numbers_of_one_certificate_are_public(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a proof was found shows in no public number."""
    facts: list[Any] = []
    for outcome in (True, False):
        monkeypatch.setattr(BatchCertificate, "holds", lambda proof, blocks, held, outcome=outcome: outcome)
        q = batch_of(PAIRS["opposite"][0], 1.0, 3)
        facts.append((q.guarantee, q.bounds, q.certificate, repr(q)))
    assert facts[0] == facts[1]
