"""Algorithm 1: history, schedules, gains, attacks."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from itertools import combinations

import pyro
import pyro.distributions as dist
import pytest
import torch
from densities import normal, scale_calibration

from pyro_mbde import MBDE, BoundedClassifiers, MollifiedExpFamily, WeakLearner, run_mcmc
from pyro_mbde.density.bounds import LOG_2, paper_natural_params
from pyro_mbde.experiments.bench_certificate import largest_log_ratio
from pyro_mbde.experiments.problems import Problem, mixture_1d, ring, ring_tight
from pyro_mbde.limits import best_reachable
from pyro_mbde.metrics import kl_gain
from pyro_mbde.training import mbde
from pyro_mbde.training.mbde import SAMPLERS

QUICK = WeakLearner(hidden_sizes=(16,), num_frequencies=4, num_steps=20, batch_size=64)


def quick_trainer(base: torch.distributions.Distribution, epsilon: float = 1.0, **options: object) -> MBDE:
    options = {"weak_learner": QUICK, "num_samples": 300, "seed": 0, "progress": False, **options}
    return MBDE(base, epsilon, **options)  # type: ignore[arg-type]


@cache
def default_fit(problem: Callable[[], Problem], epsilon: float) -> tuple[MBDE, MollifiedExpFamily]:
    """The default fit, which several tests share, and its trainer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20240229)
        _, target, base, _, _ = problem()
        trainer = MBDE(base, epsilon, seed=0, progress=False)
        return trainer, trainer.fit(target)


class TestMBDE:
    def test_history_and_schedule(self) -> None:
        trainer = quick_trainer(normal(2), 1.0, num_rounds=4)
        density = trainer.fit(torch.randn(200, 2) * 0.3 + 1)
        assert [record.round for record in trainer.history] == [1, 2, 3, 4]
        assert [record.theta for record in trainer.history] == density.natural_params.tolist()
        assert density.epsilon == pytest.approx(1.0, rel=1e-12)
        for record in trainer.history:
            assert record.regime == ("high" if record.gamma_q >= 1 / 3 else "low")
            assert -1 <= record.gamma_p <= 1
            assert 0 < record.c_max <= LOG_2
            assert record.seconds > 0
            assert math.isfinite(record.loss)

    def test_guaranteed_drops_hold(self) -> None:
        """Theorem 5 on a real fit: KL falls in each round by at least what the round's constants promise."""
        problem = mixture_1d()
        trainer, density = default_fit(mixture_1d, 5.0)
        statistics, theta = density.statistics, density.natural_params
        assert isinstance(statistics, BoundedClassifiers)
        with torch.no_grad():
            at_base = statistics(problem.base.sample((50_000, 1))).double()
            at_rows = statistics(problem.target.sample((50_000, 1))).double()
        for index, record in enumerate(trainer.history):
            before = (at_base[:, :index] * theta[:index]).sum(-1)
            weights = torch.softmax(before, 0)  # draws of Q_{t-1}, as weighted draws of Q0
            c = at_base[:, index]
            drop = record.theta * at_rows[:, index].mean() - (weights * (record.theta * c).exp()).sum().log()
            assert float(drop) > record.kl_drop_bound - 0.02

    def test_fit_is_reproducible_and_leaves_the_generator_alone(self) -> None:
        data = torch.randn(200, 2)
        state, threads = torch.get_rng_state(), torch.get_num_threads()
        value = torch.randn(9, 2, generator=torch.Generator().manual_seed(0))
        first = quick_trainer(normal(2)).fit(data).log_prob(value)
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.get_num_threads() == threads
        assert torch.equal(quick_trainer(normal(2)).fit(data).log_prob(value), first)
        assert not torch.equal(quick_trainer(normal(2), seed=1).fit(data).log_prob(value), first)

    def test_pyros_seed_governs_an_unseeded_fit(self) -> None:
        data, value = torch.randn(200, 2), torch.randn(9, 2)

        def fit() -> torch.Tensor:
            return quick_trainer(normal(2), seed=None).fit(data).log_prob(value)

        pyro.set_rng_seed(3)
        first, second = fit(), fit()
        assert not torch.equal(first, second)
        pyro.set_rng_seed(3)
        assert torch.equal(fit(), first)

    @pytest.mark.parametrize(("sampler", "link"), list(zip(SAMPLERS, ["clamp", "tanh", "tanh"], strict=True)))
    def test_samplers_and_links(self, sampler: str, link: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mbde, "_WARMUP_STEPS", 100)
        learner = WeakLearner(hidden_sizes=(8,), num_frequencies=0, num_steps=20, batch_size=64, link=link)
        trainer = quick_trainer(normal(2), sampler=sampler, num_samples=50, num_rounds=2, weak_learner=learner)
        density = trainer.fit(torch.randn(100, 2) + 1)
        assert density.guarantee.epsilon <= 1

    def test_paper_preset(self) -> None:
        trainer = MBDE.paper(normal(2), 1.0, link="tanh", seed=0, progress=False)
        learner = trainer.weak_learner
        assert (learner.hidden_sizes, learner.activation, learner.link) == ((25, 25, 25), "tanh", "tanh")
        assert (learner.optimizer, learner.learning_rate, learner.momentum) == ("nesterov", 0.01, 0.9)
        assert (learner.num_steps, learner.batch_size, learner.standardize) == (750, None, False)
        assert (trainer.num_rounds, trainer.num_samples, trainer.sampler) == (3, 10_000, "random_walk")
        assert (trainer.schedule, trainer.sharpen) == ("paper", False)

    def test_paper_schedule_leaves_budget(self) -> None:
        density = quick_trainer(normal(2), 5.0, schedule="paper", sharpen=False).fit(torch.randn(100, 2))
        assert torch.equal(density.natural_params, paper_natural_params(5.0, 3))
        assert density.epsilon < 4

    def test_no_privacy_limit(self) -> None:
        density = quick_trainer(normal(2), math.inf).fit(torch.randn(100, 2))
        assert density.natural_params.tolist() == [1.0, 1.0, 1.0]
        assert density.epsilon == pytest.approx(12 * LOG_2)

    @pytest.mark.parametrize(
        ("problem", "epsilon", "floor"),
        [
            pytest.param(ring_tight, 0.25, 0.075, marks=pytest.mark.slow),
            pytest.param(ring_tight, 1.0, 0.29, marks=pytest.mark.slow),
            pytest.param(ring_tight, 5.0, 0.95, marks=pytest.mark.slow),
            pytest.param(mixture_1d, 0.25, 0.0702, marks=pytest.mark.slow),
            pytest.param(mixture_1d, 1.0, 0.255, marks=pytest.mark.slow),
            (mixture_1d, 5.0, 0.74),
        ],
    )
    def test_default_gain(self, problem: Callable[[], Problem], epsilon: float, floor: float) -> None:
        """Nats gained on the base; the floors are above what the paper's preset reaches."""
        _, target, base, box, _ = problem()
        _, density = default_fit(problem, epsilon)
        gain = kl_gain(target, base, density, box).value
        assert floor < gain <= best_reachable(target, base, epsilon, guarantee="a-priori", box=box).gain

    @pytest.mark.slow
    @pytest.mark.parametrize(("skew", "reweighted"), [(0.3, True), (0.5, False)])
    def test_calibrated_gain(self, skew: float, reweighted: bool) -> None:
        """Past what any a-priori density reaches, within what any calibrated one does."""
        _, target, base, box, _ = ring_tight()
        trainer = MBDE(base, 1.0, calibrated=True, skew=skew, reweighted=reweighted, seed=0, progress=False)
        density = trainer.fit(target)
        gain = kl_gain(target, base, density, box).value
        best = best_reachable(target, base, 1.0, skew, box=box).gain
        assert 0.95 * best < gain <= best + 1e-4
        assert density.guarantee.delta == 1e-9
        assert 0.999 < density.epsilon <= 1.0
        assert density.certificate is not None
        assert abs(density.log_normalizer.value) <= density.certificate.tolerance
        assert [record.theta for record in trainer.history][0] == 1.0

    def test_reweighting_stays_behind_public_bounds(self) -> None:
        """A-priori: theta depends on the table, the bounds and so the guarantee do not."""
        density = quick_trainer(normal(2), 1.0, num_rounds=4, reweighted=True).fit(torch.randn(200, 2) * 0.3 + 1)
        plain = quick_trainer(normal(2), 1.0, num_rounds=4).fit(torch.randn(200, 2) * 0.3 + 1)
        assert density.bounds == plain.bounds
        assert density.guarantee == plain.guarantee
        assert float(density.natural_params.abs().sum()) <= float(plain.natural_params.sum()) * (1 + 1e-9)
        assert not torch.allclose(density.natural_params, plain.natural_params, rtol=1e-3)

    def test_too_few_rounds_for_a_certificate_to_be_of_use(self) -> None:
        """One classifier spans 2 log 2: its a-priori guarantee is better than a calibrated one at 5."""
        density = quick_trainer(normal(2), 5.0, num_rounds=1, calibrated=True).fit(torch.randn(200, 2) * 0.3 + 1)
        assert density.certificate is None
        assert density.epsilon == pytest.approx(4 * LOG_2)

    def test_calibrated_on_a_finite_base(self) -> None:
        """phi is summed: no density with a certificate by draws, and none needed."""
        base = dist.Categorical(torch.ones(4) / 4)
        rows = torch.tensor([0, 0, 0, 1] * 100)
        density = quick_trainer(base, 1.0, calibrated=True).fit(rows)
        probabilities = density.log_prob(density.enumerate_support()).exp()
        assert float(probabilities.sum()) == pytest.approx(1.0, abs=1e-6)
        assert density.guarantee.delta == 0.0
        assert float((probabilities.log() - math.log(0.25)).max()) <= 0.7 + 1e-6

    @pytest.mark.slow
    def test_the_barrier_on_the_ring(self) -> None:
        problem = ring()
        density = MBDE(problem.base, 1.0, seed=0, progress=False).fit(problem.target)
        # an a-priori density of width eps/2 gains at most its width
        assert 0.4 < kl_gain(problem.target, problem.base, density, problem.box).value <= 0.5

    @pytest.mark.parametrize(
        "options",
        [
            {},
            pytest.param({"reweighted": True}, marks=pytest.mark.slow),
            {"calibrated": True, "skew": 0.5, "reweighted": True},
            pytest.param({"calibrated": True, "skew": 0.05}, marks=pytest.mark.slow),
        ],
        ids=str,
    )
    def test_hostile_tables(self, options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
        """Attack: tables with nothing in common; a search over x finds no log-ratio above epsilon."""
        scale_calibration(monkeypatch)
        epsilon = 1.0
        tables = [torch.randn(50, 2) + 4, torch.randn(50, 2) - 4, torch.zeros(5000, 2), 1e6 * torch.ones(2, 2)]
        densities = [
            quick_trainer(normal(2), epsilon, seed=index, **options).fit(table) for index, table in enumerate(tables)
        ]
        largest = max(largest_log_ratio(q, other) for q, other in combinations(densities, 2))
        assert 0.5 * epsilon < largest <= epsilon

    @pytest.mark.parametrize(
        "base",
        [
            dist.Categorical(torch.ones(5)),
            dist.Poisson(4.0),
            dist.Uniform(0.0, 1.0),
            dist.MultivariateNormal(torch.zeros(2), torch.eye(2)),
            torch.distributions.Normal(0.0, 1.0),
        ],
        ids=lambda base: type(base).__name__,
    )
    def test_bases(self, base: torch.distributions.Distribution) -> None:
        data = base.sample((100,))
        density = quick_trainer(base).fit(data)
        assert torch.isfinite(density.log_prob(data)).all()
        assert density.sample((4,)).dtype == data.dtype

    def test_double_precision(self) -> None:
        base = dist.Normal(torch.zeros(2).double(), torch.ones(2).double()).to_event(1)
        density = quick_trainer(base).fit(torch.randn(100, 2))
        assert density.dtype == torch.float64
        assert density.sample().dtype == torch.float64

    def test_a_default_dtype_of_double(self) -> None:
        torch.set_default_dtype(torch.float64)
        try:
            base = dist.Normal(torch.zeros(2).float(), torch.ones(2).float()).to_event(1)
            assert quick_trainer(base).fit(torch.randn(100, 2)).dtype == torch.float32
        finally:
            torch.set_default_dtype(torch.float32)

    def test_progress_bar(self, capsys: pytest.CaptureFixture[str]) -> None:
        quick_trainer(normal(2), progress=True).fit(torch.randn(100, 2))
        shown = capsys.readouterr().err
        assert "MBDE round 3/3" in shown
        assert "60/60" in shown

    @pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
    def test_fit_and_chains_where_gradients_are_off(self, context: Callable[[], AbstractContextManager[None]]) -> None:
        with context():
            density = quick_trainer(normal(2)).fit(torch.randn(100, 2))
            chains = run_mcmc(density, "nuts", 5, 5, num_chains=1, progress=False)
            assert not torch.is_grad_enabled()
        assert chains.draws["x"].shape == (1, 5, 2)

    def test_repr_shows_the_settings(self) -> None:
        assert repr(MBDE(normal(2), 1.0)).startswith("MBDE(epsilon=1, num_rounds=3, schedule='spend'")

    def test_an_interrupted_fit_leaves_no_trace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        trainer = quick_trainer(normal(2))
        trainer.fit(torch.randn(100, 2))
        history, threads = trainer.history, torch.get_num_threads()

        def interrupt(*arguments: object, **options: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(torch.autograd, "backward", interrupt)
        data, state = torch.randn(100, 2), torch.get_rng_state()
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(data)
        assert torch.equal(torch.get_rng_state(), state)
        assert trainer.history is history
        assert torch.get_num_threads() == threads

    @pytest.mark.parametrize("arguments", [(1e-150, 3), (1e-10, 34)])
    def test_parameters_that_underflow(self, arguments: tuple[float, int]) -> None:
        epsilon, num_rounds = arguments
        learner = WeakLearner(hidden_sizes=(4,), num_frequencies=0, num_steps=1, batch_size=8)
        trainer = quick_trainer(normal(2), epsilon, num_rounds=num_rounds, weak_learner=learner, num_samples=16)
        density = trainer.fit(torch.randn(100, 2))
        assert density.epsilon <= epsilon
        assert torch.isfinite(density.log_prob(torch.randn(9, 2))).all()

    @pytest.mark.parametrize(
        ("arguments", "error", "match"),
        [
            ({"epsilon": 0.0}, ValueError, "epsilon must be above 0"),
            ({"epsilon": math.nan}, ValueError, "epsilon must be above 0"),
            ({"epsilon": "1"}, TypeError, "epsilon must be a real number"),
            ({"num_rounds": 0}, ValueError, "num_rounds must be at least 1"),
            ({"schedule": "none"}, ValueError, "schedule must be one of"),
            ({"sampler": "none"}, ValueError, "sampler must be one of"),
            ({"num_samples": 1}, ValueError, "num_samples must be at least 2"),
            ({"seed": -1}, ValueError, "seed must be at least 0"),
            ({"seed": 0.5}, TypeError, "seed must be a whole number"),
            ({"weak_learner": 3}, TypeError, "weak_learner must be a WeakLearner"),
            ({"sampler": None}, TypeError, "sampler must be a string"),
            (
                {"base": dist.Poisson(3.0), "sampler": "hmc"},
                ValueError,
                "sampler must be rejection for a discrete base",
            ),
            ({"base": None}, TypeError, "base must be a Pyro or torch distribution"),
        ],
    )
    def test_arguments(self, arguments: dict[str, object], error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            MBDE(**{"base": normal(2), "epsilon": 1.0, **arguments})  # type: ignore[arg-type]


class TestBatches:
    def test_a_batch_costs_epsilon_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        scale_calibration(monkeypatch, 1 / 4)  # tolerances twice as wide: 0.036 of the 2 nats
        table = 0.3 * torch.randn(300, 2) + 1
        trainer = quick_trainer(normal(2), 2.0, calibrated=True, num_rows=4)
        batch = trainer.fit(table)
        assert batch.event_shape == (4, 2)
        assert (batch.epsilon, batch.guarantee.delta, batch.shrinkage) == (2.0, 1e-9, 1.0)
        assert batch.bounds.width == pytest.approx(2.0, rel=0.04)
        assert len(trainer.history) == 3
        rows = batch.sample((2000,))
        assert (rows.mean((0, 1)) > 0.05).all()  # towards the table; the standard error is below 0.015
        again = quick_trainer(normal(2), 2.0, calibrated=True, num_rows=4).fit(table)
        assert torch.equal(again.tilt(rows), batch.tilt(rows))

    def test_hostile_tables_keep_the_bounds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Attack: of batches of opposite tables, no log-ratio is beyond epsilon, and some come near it."""
        scale_calibration(monkeypatch, 1 / 4)
        tables = [torch.full((50, 2), 3.0), torch.full((50, 2), -3.0), torch.zeros(0, 2)]
        with pytest.warns(UserWarning):
            fits = [quick_trainer(normal(2), 2.0, calibrated=True, num_rows=4).fit(table) for table in tables]
        batches = torch.cat(
            [fits[0].base.sample(torch.Size([4000])), 3 * torch.ones(1, 4, 2), -3 * torch.ones(1, 4, 2)]
        )
        log_probs = torch.stack([fit.log_prob(batches).double() for fit in fits])
        largest = (log_probs.unsqueeze(0) - log_probs.unsqueeze(1)).abs().max()
        assert 1.8 < largest <= 2.0 + 1e-4
        assert {fit.guarantee for fit in fits} == {fits[0].guarantee}

    def test_arguments(self) -> None:
        with pytest.raises(ValueError, match=r"num_rows must be None unless calibrated=True, got num_rows=4\."):
            MBDE(normal(2), 1.0, num_rows=4)
        with pytest.raises(ValueError, match="num_rows must be at least 1"):
            MBDE(normal(2), 1.0, calibrated=True, num_rows=0)
        with pytest.raises(ValueError, match="epsilon must be at most 12 for a batch"):
            MBDE(normal(2), 13.0, calibrated=True, num_rows=4)
