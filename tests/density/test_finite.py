"""Finite bases: what is summed is the law of the draws, to the last bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from densities import BASES, make_density
from scipy import stats
from torch import Tensor, nn

from pyro_mbde import DensityRatio, MollifiedExpFamily, WeakLearner, private_draws
from pyro_mbde.calibration.placement import Calibrator
from pyro_mbde.calibration.plan import plan_calibration
from pyro_mbde.density.base import PreparedBase, prepare_base
from pyro_mbde.density.base_draws import SystemSource, TorchSource, system_generator
from pyro_mbde.density.finite import NUM_STEPS, FinitePoints, enumerate_points
from pyro_mbde.density.scoring import score_rows

FINITE = {
    "categorical": lambda: dist.Categorical(torch.tensor([0.1, 0.2, 0.3, 0.4])),
    "bernoulli": lambda: dist.Bernoulli(0.3),
    "binomial": lambda: dist.Binomial(20, torch.tensor(0.3)),
    "beta-binomial": lambda: dist.BetaBinomial(torch.tensor(2.0), torch.tensor(3.0), 10),
}


def test_infinite_bases_have_no_points() -> None:
    for name in ("poisson", "normal-scalar", "bernoulli-3d", "zero-inflated-poisson"):
        assert PreparedBase.of(prepare_base(BASES[name]())).finite is None
        assert enumerate_points(BASES[name]()) is None


@pytest.mark.parametrize("name", FINITE)
def test_counts_are_the_probabilities(name: str) -> None:
    finite = PreparedBase.of(FINITE[name]()).finite
    assert finite is not None
    assert int(finite.cumulative[-1]) == NUM_STEPS
    assert bool((finite.cumulative.diff() >= 0).all())
    assert float(finite.log_weights.exp().sum()) == pytest.approx(1, abs=1e-12)
    expected = FINITE[name]().log_prob(finite.points).double().exp()
    assert torch.allclose(finite.log_weights.exp(), expected, atol=1e-6)


def test_every_step_of_a_uniform_has_its_point() -> None:
    """The inverse at the edges of the steps, which are integers: no weight is off by one."""
    finite = PreparedBase.of(FINITE["categorical"]()).finite
    assert finite is not None
    first, second, third, _ = finite.cumulative.tolist()
    edges = torch.tensor([0, first - 1, first, second - 1, second, third, NUM_STEPS - 1], dtype=torch.float64)
    assert finite.draw(edges / NUM_STEPS).tolist() == [0, 0, 1, 1, 2, 3, 3]


@pytest.mark.parametrize("name", FINITE)
@pytest.mark.parametrize("source", [TorchSource, SystemSource])
def test_draws_follow_the_counts(name: str, source: type[TorchSource]) -> None:
    base = FINITE[name]()
    finite = PreparedBase.of(base).finite
    assert finite is not None
    with system_generator():
        draws = source(base).propose(40_000)
    assert draws.dtype == finite.points.dtype
    observed = torch.stack([(draws == point).sum() for point in finite.points]).double()
    held = finite.log_weights.exp() * len(draws) > 5
    assert float(observed[finite.log_weights == -math.inf].sum()) == 0
    expected = torch.cat([finite.log_weights.exp()[held], (1 - finite.log_weights.exp()[held].sum()).reshape(1)])
    seen = torch.cat([observed[held], (len(draws) - observed[held].sum()).reshape(1)])
    used = expected > 1e-9
    assert stats.chisquare(seen[used], expected[used] / expected[used].sum() * len(draws)).pvalue > 1e-9


class Biased(dist.Categorical):
    """Probabilities that say one thing, draws that do another."""

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.full(value.shape, -math.log(4.0))

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008  # as torch has it
        return super().sample(sample_shape)


@pytest.mark.parametrize("mask", [False, torch.tensor(False)])
@pytest.mark.parametrize("wrap", [lambda base: base, lambda base: dist.Independent(base, 0)])
def test_masked_bases_are_refused(mask: object, wrap: Callable[[Any], Any]) -> None:
    for base in (dist.Categorical(torch.tensor([0.7, 0.1, 0.1, 0.1])), dist.Normal(0.0, 1.0)):
        with pytest.raises(ValueError, match="base must be a normalised distribution, without a mask"):
            prepare_base(wrap(base.mask(mask)))


def test_masks_deep_inside_are_refused() -> None:
    half = dist.Normal(torch.zeros(2), 1.0).mask(torch.tensor([True, False])).to_event(1)
    for base in (half, dist.TransformedDistribution(half, [dist.transforms.AffineTransform(0.0, 2.0)])):
        with pytest.raises(ValueError, match="without a mask"):
            prepare_base(base)
    prepare_base(dist.Normal(torch.zeros(2), 1.0).mask(torch.ones(2, dtype=torch.bool)).to_event(1))


class Unnormalised(dist.Categorical):
    """A log_prob that is off by a constant."""

    def log_prob(self, value: Tensor) -> Tensor:
        log_prob: Tensor = super().log_prob(value)
        return log_prob + 0.4


def test_weights_that_do_not_sum_to_1_are_refused() -> None:
    with pytest.raises(ValueError, match="base must have probabilities that sum to 1, got base=1.49"):
        prepare_base(Unnormalised(torch.ones(4)))


def test_a_base_that_draws_otherwise_is_drawn_by_its_weights() -> None:
    """Attack: a user's own class, whose sampler does not follow its log_prob."""
    base = Biased(torch.tensor([0.97, 0.01, 0.01, 0.01]))
    q = MollifiedExpFamily(base, nn.Linear(1, 1), torch.tensor([1e-9]), 0.0)
    for draws in (q.sample((8000,)), private_draws(q, 8000, progress=False)):
        assert stats.chisquare(torch.bincount(draws, minlength=4).numpy()).pvalue > 1e-9


class Answers(nn.Module):
    """A score for each point of a base of whole numbers."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.register_buffer("scores", scores)

    def forward(self, value: Tensor) -> Tensor:
        scores: Tensor = self.scores
        return scores[value.long().squeeze(-1)].unsqueeze(-1) / 1024


@pytest.mark.parametrize("num_trials", [10**5, pytest.param(10**6, marks=pytest.mark.slow)])
def test_exact_certificates_hold_for_the_draws(num_trials: int) -> None:
    """Attack: scores that are large just where float32 misjudges a probability."""
    base = prepare_base(dist.Binomial(num_trials, torch.tensor(0.5)))
    finite = PreparedBase.of(base).finite
    assert finite is not None
    with_float32 = base.log_prob(finite.points).double()
    error = torch.where(finite.log_weights > -math.inf, finite.log_weights - with_float32, 0.0)
    order = error.argsort()
    mass = finite.log_weights.exp()[order].cumsum(0)
    bounds, certificate = plan_calibration(base, 1.0, 1e-9, 0.5)
    log_ratios = []
    for sign in (1, -1):
        for quantile in (0.1, 0.5, 0.9):
            edge = error[order[int(torch.searchsorted(mass, quantile))]]
            scores = Answers(sign * 500 * torch.where(error > edge, 1.0, -1.0).double())
            theta = torch.tensor([1024.0], dtype=torch.float64)
            q = Calibrator(base, scores, theta, progress=False).density(bounds, certificate)
            tilts = score_rows(q.tilt, finite.points)
            phi = float(torch.logsumexp(tilts + finite.log_weights, 0))
            assert abs(phi) <= 1e-9
            log_ratios.append(tilts - phi)
    largest = max(float((first - second).abs().max()) for first in log_ratios for second in log_ratios)
    assert 0.95 < largest <= 1


def test_an_exact_fit_needs_no_delta() -> None:
    base = dist.Categorical(torch.tensor([0.1, 0.2, 0.3, 0.4]))
    learner = WeakLearner(hidden_sizes=(8,), num_steps=20)
    trainer = DensityRatio(base, ensemble_size=1, weak_learner=learner, seed=0, progress=False)
    q = trainer.fit(torch.tensor([0, 0, 1, 3])).mollify(1.0)
    assert q.guarantee.delta == 0
    assert q.epsilon <= 1
    finite = PreparedBase.of(q.base).finite
    assert isinstance(finite, FinitePoints)
    assert abs(float(torch.logsumexp(q.tilt(finite.points) + finite.log_weights, 0))) < 1e-6


def test_torchs_own_draws_leave_the_law_alone() -> None:
    """q.sample draws from torch's generator, by the same law: reproducible by its seed."""
    q = make_density(BASES["categorical"]())
    torch.manual_seed(1)
    first = q.sample((100,))
    torch.manual_seed(1)
    assert torch.equal(q.sample((100,)), first)
