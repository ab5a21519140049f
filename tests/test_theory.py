"""The paper's bounds against exact computations, and on real fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import pyro.distributions as dist
import pytest
import torch

from pyro_mbde import MBDE, DensityRatio, MollifiedExpFamily, WeakLearner
from pyro_mbde.density.bounds import LOG_2, paper_natural_params
from pyro_mbde.experiments.problems import Problem, mixture_1d, ring
from pyro_mbde.metrics import kl_divergence, kl_gain, quadrature_grid
from pyro_mbde.theory import (
    boosted_gain_bound,
    boosting_regime,
    captured_mode_bound,
    gain_limit,
    kl_bound_for_any_table,
    kl_bound_under_differential_privacy,
    kl_drop_bound,
    mode_condition,
    mode_mass_bound,
    post_processing_bounds,
    weak_learning_constants,
)


def test_regimes() -> None:
    assert boosting_regime(1 / 3) == "high"
    assert boosting_regime(0.33) == "low"


@pytest.mark.parametrize("theta", [0.05, 0.3, 1.0, 2.0])
def test_never_above_the_true_drop(theta: float) -> None:
    """Attack on docs/proofs.md, *The drop of one round*: random classifiers on a finite space, with the exact drop."""
    p = torch.rand(500, 6, dtype=torch.float64).pow(3)
    q = torch.rand(500, 6, dtype=torch.float64).pow(3)
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    c = (p / q).log().clamp(-LOG_2, LOG_2)
    drop = theta * (p * c).sum(-1) - (q * (theta * c).exp()).sum(-1).log()
    for c_max in (LOG_2, float(c.abs().max())):
        gamma_p, gamma_q = (p * c).sum(-1) / c_max, -(q * c).sum(-1) / c_max
        for index in range(500):
            bound = kl_drop_bound(theta, float(gamma_p[index]), float(gamma_q[index]), c_max)
            assert bound <= float(drop[index]) + 1e-12


def test_goldens() -> None:
    # low regime: theta c* (gP + gQ - c* theta / 2); high: theta (c* gP + log(4 / (5 - 3 gQ)))
    assert kl_drop_bound(0.5, 0.2, 0.1) == pytest.approx(0.5 * LOG_2 * (0.3 - LOG_2 / 4))
    assert kl_drop_bound(0.5, 0.2, 0.6) == pytest.approx(0.5 * (LOG_2 * 0.2 + math.log(4 / 3.2)))


@pytest.mark.parametrize(
    "arguments",
    [
        (-0.1, 0.5, 0.5),
        (math.nan, 0.5, 0.5),
        (0.5, 1.1, 0.5),
        (0.5, 0.5, -1.1),
        (0.5, 0.5, 0.5, 0.7),
        (0.5, 0.5, 0.5, 0.0),
    ],
)
def test_out_of_range(arguments: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="must be"):
        kl_drop_bound(*arguments)


#: What holds the 1-D mixture and its base.
BOX = (-9.0, 9.0)
SMALL = WeakLearner(hidden_sizes=(16, 16), num_frequencies=8, num_steps=150, batch_size=256)


class Fits(NamedTuple):
    """Densities fitted to the 1-D mixture, and one fitted to another table."""

    problem: Problem
    densities: dict[str, MollifiedExpFamily]


@pytest.fixture(scope="module")
def fits() -> Fits:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        problem = mixture_1d()
        rows = problem.target.sample(torch.Size([5000]))
        other = problem.base.sample(torch.Size([5000])) - 2
        options = {"weak_learner": SMALL, "seed": 0, "progress": False}
        densities = {
            "boosted": MBDE(problem.base, TestOnRealFits.EPSILON, **options).fit(rows),
            "paper schedule": MBDE(problem.base, TestOnRealFits.EPSILON, schedule="paper", **options).fit(rows),
            "ratio": DensityRatio(problem.base, **options).fit(rows).mollify(TestOnRealFits.EPSILON),
            "another table": DensityRatio(problem.base, **options).fit(other).mollify(TestOnRealFits.EPSILON),
        }
    return Fits(problem, densities)


class TestOnRealFits:
    """Every inequality on the 1-D mixture, by quadrature, for densities fitted to its rows."""

    EPSILON = 1.0

    def test_gains_below_the_limit(self, fits: Fits) -> None:
        problem, densities = fits
        for name, density in densities.items():
            skew = 0.3 if density.certificate else 0.5
            gain = kl_gain(problem.target, problem.base, density, problem.box).value
            assert gain <= gain_limit(self.EPSILON, skew), name

    def test_boosting_gains_what_theorem_6_promises(self) -> None:
        """docs/proofs.md, *The gain of boosting*, on a target far from the base, where the regime is high."""
        problem = ring()
        trainer = MBDE(problem.base, 0.2, num_rounds=2, schedule="paper", sharpen=False, seed=0, progress=False)
        density = trainer.fit(problem.target)
        gamma_p = min(record.gamma_p for record in trainer.history)
        gamma_q = min(record.gamma_q for record in trainer.history)
        assert gamma_q >= 1 / 3
        gain = kl_gain(problem.target, problem.base, density, problem.box).value
        bound = boosted_gain_bound(0.2, 2, gamma_p, gamma_q)
        assert 0.5 * gain < bound <= gain + 2e-3

    def test_weak_learning_constants_hold_the_truth(self, fits: Fits) -> None:
        problem, densities = fits
        statistics = densities["boosted"].statistics
        points, volume = quadrature_grid(BOX, torch.Size([]))
        c = statistics(points.unsqueeze(-1))[:, 0].double()
        truths = [
            sign * float((density.log_prob(points).double().exp() * volume * c).sum()) / LOG_2
            for sign, density in ((1, problem.target), (-1, problem.base))
        ]
        missed = 0
        for _ in range(100):
            values = [statistics(d.sample((500, 1)))[:, 0] for d in (problem.target, problem.base)]
            intervals = weak_learning_constants(*values, confidence=0.9)
            missed += sum(not i.low <= truth <= i.high for i, truth in zip(intervals, truths, strict=True))
        assert missed <= 20 + 4 * math.sqrt(200 * 0.1 * 0.9)

    def test_mode_mass(self, fits: Fits) -> None:
        """docs/proofs.md, *The mass of a mode*, for intervals of every size and position."""
        problem, densities = fits
        points, volume = quadrature_grid(BOX, torch.Size([]))
        log_p, log_q0 = (d.log_prob(points).double() for d in (problem.target, problem.base))
        for name, density in densities.items():
            skew = 0.3 if density.certificate else 0.5
            q = density.log_prob(points).double().exp() * volume
            gain = kl_gain(problem.target, problem.base, density, problem.box).value
            for centre in (-1.0, 0.3, 0.6, 2.0):
                for radius in (0.05, 0.3, 1.0, 8.0):
                    inside = (points - centre).abs() < radius
                    p = (log_p.exp() * volume)[inside]
                    mass, kl_in_mode = float(p.sum()), float((p * (log_p - log_q0)[inside]).sum())
                    bound = mode_mass_bound(min(mass, 1.0), kl_in_mode, gain, self.EPSILON, skew)
                    assert bound <= float(q[inside].sum()) + 2e-3, (name, centre, radius)

    def test_any_other_table(self, fits: Fits) -> None:
        problem, densities = fits
        kls = [kl_divergence(problem.target, densities[name], problem.box).value for name in ("ratio", "another table")]
        assert kls[1] > kls[0]
        assert kls[1] <= kl_bound_for_any_table(kls[0], self.EPSILON)

    def test_post_processing(self, fits: Fits) -> None:
        """Decisions based on a draw: x in an interval."""
        problem, densities = fits
        points, volume = quadrature_grid(BOX, torch.Size([]))
        first, second = (
            densities[name].log_prob(points).double().exp() * volume for name in ("ratio", "another table")
        )
        for threshold in torch.linspace(-3, 3, 25).tolist():
            p, other = float(first[points < threshold].sum()), float(second[points < threshold].sum())
            low, high = post_processing_bounds(min(p, 1.0), self.EPSILON, 1e-9)
            assert low - 1e-4 <= other <= high + 1e-4


def test_theorem_6_on_a_finite_space() -> None:
    """Attack: classifiers with |c| = log 2 everywhere, boosted by the paper's schedule, with exact sums."""
    generator = torch.Generator().manual_seed(5)
    checked = 0
    for _ in range(50):
        # most of P on a few points, so that the classifier of every round is of the high regime
        p = torch.rand(300, generator=generator, dtype=torch.float64).pow(40) + 1e-6
        p, base = p / p.sum(), torch.full((300,), 1 / 300, dtype=torch.float64)
        q, gammas = base, []
        theta = paper_natural_params(0.5, 4)
        for value in theta.tolist():
            c = torch.where(p > q, LOG_2, -LOG_2)
            gammas.append((float((p * c).sum()) / LOG_2, -float((q * c).sum()) / LOG_2))
            q = q * (value * c).exp()
            q = q / q.sum()
        gamma_p, gamma_q = (min(pair[index] for pair in gammas) for index in (0, 1))
        if gamma_q >= 1 / 3:
            checked += 1
            gain = float((p * (q / base).log()).sum())
            assert 0 < boosted_gain_bound(0.5, 4, gamma_p, gamma_q) <= gain + 1e-12
    assert checked >= 40


def test_mode_condition_follows_from_its_parts() -> None:
    """If the mass meets the condition, the unconditional bound with Theorem 6's gain gives the conclusion."""
    for epsilon in (0.1, 1.0, 5.0):
        for num_rounds in (1, 3, 20):
            for gamma_p, gamma_q in ((1.0, 1.0), (0.8, 0.5), (0.3, 0.4), (-0.2, 0.9)):
                for alpha in (0.0, 0.3, 1.0):
                    mass = mode_condition(epsilon, num_rounds, gamma_p, gamma_q, alpha)
                    if mass <= 1:
                        gain = boosted_gain_bound(epsilon, num_rounds, gamma_p, gamma_q)
                        bound = mode_mass_bound(mass, 0.2, gain, epsilon)
                        assert bound >= captured_mode_bound(mass, 0.2, alpha) - 1e-12


def test_differential_privacy_keeps_a_far_density_far() -> None:
    """A learner of m rows whose log-density changes by epsilon for each row, between two distant densities."""
    kl, epsilon, num_rows = 3.0, 0.01, 100
    assert kl_bound_under_differential_privacy(kl, epsilon, num_rows) == pytest.approx(2.0)
    assert kl_bound_under_differential_privacy(kl, 1.0, 100) == 0.0
    base = dist.Normal(0.0, 1.0)
    points, volume = quadrature_grid((-8.0, 8.0), torch.Size([]))
    target = dist.Normal(2.0, 0.5)

    def density(step: int) -> torch.Tensor:
        """Normalised, and within epsilon of its neighbours: the slope's range is half of that."""
        log_q = base.log_prob(points).double() + epsilon / 2 * step * points.double().clamp(-1, 1) / 2
        return log_q - torch.logsumexp(log_q + math.log(volume), 0)

    p = target.log_prob(points).double().exp() * volume
    far, near = (float((p * (target.log_prob(points).double() - density(step))).sum()) for step in (-num_rows, 0))
    assert far > near >= kl_bound_under_differential_privacy(far, epsilon, num_rows)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 50.0, 1000.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 0.3])
def test_post_processing_bounds_are_ordered_and_tight(epsilon: float, delta: float) -> None:
    for p in (0.0, 1e-9, 0.3, 0.5, 1.0):
        low, high = post_processing_bounds(p, epsilon, delta)
        assert 0 <= low <= p <= high <= 1
        # the relation is symmetric: from the far end one can come back, while floats can tell it from 1
        assert epsilon > 1 or post_processing_bounds(high, epsilon, delta)[0] <= p + 1e-9


def test_post_processing_where_exponentials_overflow() -> None:
    """Probabilities times e^1000 are bounded by 1 only, from e^-713 up."""
    assert post_processing_bounds(1e-310, 1000.0)[1] == 1.0
    assert post_processing_bounds(0.0, 1000.0) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: boosted_gain_bound(1.0, 3, 0.5, 0.2), "gamma_q must be in"),
        (lambda: boosted_gain_bound(1.0, 0, 0.5, 0.5), "num_rounds must be at least 1"),
        (lambda: mode_condition(1.0, 3, 0.5, 0.5, 1.5), "alpha must be in"),
        (lambda: mode_condition(1.0, 3, -1.0, 0.4, 0.5), "gamma_p must be at least"),
        (lambda: mode_condition(math.inf, 3, 0.5, 0.5, 0.5), "epsilon must be finite"),
        (lambda: boosted_gain_bound(math.inf, 3, 0.5, 0.5), "epsilon must be finite"),
        (lambda: gain_limit(math.inf), "epsilon must be finite"),
        (lambda: mode_mass_bound(1.5, 0.0, 0.0, 1.0), "mass must be in"),
        (lambda: captured_mode_bound(0.5, 0.0, -0.1), "alpha must be in"),
        (lambda: post_processing_bounds(-0.1, 1.0), "probability must be in"),
        (lambda: kl_bound_for_any_table(-1.0, 1.0), "kl must be at least 0"),
        (lambda: kl_bound_under_differential_privacy(1.0, 1.0, 0), "num_rows must be at least 1"),
        (lambda: weak_learning_constants(torch.ones(5), torch.ones(5)), "c_p must be in"),
        (lambda: weak_learning_constants(torch.zeros(1), torch.zeros(5)), "c_p must hold at least two"),
        (lambda: gain_limit(1.0, 0.0), "skew must be in"),
    ],
)
def test_ranges(call: Callable[[], object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        call()
