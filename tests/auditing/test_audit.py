"""Audits: every planted fault is found, nothing sound is accused, and most of epsilon is proved spent."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from densities import BASES, normal, scale_calibration
from planted_faults import BASE, EPSILON, FAULTS, OTHER_BASES, QUICK, DrawsAlone, quick_fit
from scipy import stats
from torch import Tensor, nn

from pyro_mbde import MBDE, AuditReport, DensityRatio, MollifiedExpFamily, audit, fresh_chains, private_draws
from pyro_mbde.auditing.checks import same_base
from pyro_mbde.auditing.events import clopper_pearson, epsilon_lower_bound
from pyro_mbde.auditing.hostile_tables import hostile_pairs
from pyro_mbde.auditing.report import PairResult
from pyro_mbde.auditing.search import search
from pyro_mbde.density.bounds import LOG_2, Bounds, Certificate, spending_natural_params
from pyro_mbde.training.density_ratio import LogRatio

Fit = Callable[[Any], Any]


def quick_audit(fit: Fit, epsilon: float = EPSILON, **options: Any) -> AuditReport:
    settings = {"base": BASE, "num_pairs": 2, "num_draws": 4000, "seed": 0, "progress": False} | options
    return audit(fit, epsilon, **settings)


@pytest.mark.parametrize("fit", FAULTS, ids=lambda fit: fit.__name__)
def test_a_planted_fault_is_found(fit: Fit) -> None:
    report = quick_audit(fit, num_pairs=1, base=OTHER_BASES.get(fit, BASE))
    assert not report.passed
    assert {finding.kind for finding in report.faults} >= FAULTS[fit], report


def boosted(epsilon: float = EPSILON, **options: Any) -> Fit:
    return lambda table: quick_fit(table, epsilon, **options)


def paper(epsilon: float = EPSILON) -> Fit:
    trainer = MBDE.paper(BASE, epsilon, sampler="rejection", progress=False)
    trainer.weak_learner, trainer.num_samples = dataclasses.replace(trainer.weak_learner, num_steps=60), 1000
    return trainer.fit


def projected(epsilon: float = EPSILON, base: Any = BASE, **options: Any) -> Fit:
    trainer = DensityRatio(base, weak_learner=QUICK, ensemble_size=2, progress=False)
    return lambda table: trainer.fit(table).mollify(epsilon, **options)


def drawn(fit: Fit, draw: Callable[[Any, int], Tensor]) -> Fit:
    def fit_to_draw(table: Any) -> DrawsAlone:
        q = fit(table)
        return DrawsAlone(lambda num_draws: draw(q, num_draws))

    return fit_to_draw


SOUND: dict[str, tuple[Fit, float, Any]] = {
    "MBDE": (boosted(), 1.0, BASE),
    "MBDE, epsilon 5": (boosted(5.0), 5.0, BASE),
    "MBDE.paper": (paper(), 1.0, BASE),
    "calibrated": (boosted(calibrated=True), 1.0, BASE),
    "reweighted": (boosted(reweighted=True), 1.0, BASE),
    "mollify": (projected(), 1.0, BASE),
    "mollify, epsilon 0.1, skew 0.5": (projected(0.1, skew=0.5), 0.1, BASE),
    "mollify, epsilon 3, skew 0.2": (projected(3.0, skew=0.2), 3.0, BASE),
    "mollify, delta 0": (projected(delta=0), 1.0, BASE),
    "private_draws": (drawn(projected(), lambda q, n: private_draws(q, n, progress=False)), 1.0, BASE),
    "fresh_chains": (drawn(boosted(), lambda q, n: fresh_chains(q, n, 5, progress=False).values), 1.0, BASE),
    "box": (projected(base=BASES["uniform-box"]()), 1.0, BASES["uniform-box"]()),
    "scalar": (projected(base=BASES["normal-scalar"]()), 1.0, BASES["normal-scalar"]()),
    "categorical": (projected(base=BASES["categorical"]()), 1.0, BASES["categorical"]()),
    "bernoulli-3d": (boosted(base=BASES["bernoulli-3d"]()), 1.0, BASES["bernoulli-3d"]()),
    "student-t": (boosted(base=BASES["student-t"]()), 1.0, BASES["student-t"]()),
}
#: Each way to train, to draw and to be wide, on plain and finite bases and on a box.
IN_SHORT = ["calibrated", "mollify, epsilon 3, skew 0.2", "private_draws", "fresh_chains", "box", "bernoulli-3d"]


@pytest.mark.parametrize("name", IN_SHORT)
def test_nothing_sound_is_accused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scale_calibration(monkeypatch)
    fit, epsilon, base = SOUND[name]
    report = quick_audit(fit, epsilon, base=base)
    assert report.passed, report
    assert 0 <= report.proven <= epsilon * (1 + 1e-9)
    assert report.white_box > 0 or name in ("private_draws", "fresh_chains")


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_nothing_sound_is_accused_by_any_pair(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scale_calibration(monkeypatch)
    fit, epsilon, base = SOUND[name]
    report = quick_audit(fit, epsilon, base=base, seed=1, num_pairs=11)
    assert report.passed, report


@pytest.mark.slow
@pytest.mark.parametrize("base", sorted(BASES))
def test_nothing_sound_is_accused_on_any_base(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scale_calibration(monkeypatch)
    make = projected if sorted(BASES).index(base) % 2 else boosted  # each of the two on every other base
    report = quick_audit(make(base=BASES[base]()), base=BASES[base](), num_pairs=4)
    assert report.passed, report
    assert report.proven > 0.5


class Step(nn.Module):
    """The sharpest tilt: one end of the bound on a rare half-line, the other on the rest."""

    def __init__(self, sign: float, num_statistics: int) -> None:
        super().__init__()
        self.sign, self.num_statistics = sign, num_statistics

    def forward(self, value: Tensor) -> Tensor:
        return (torch.where(value > 3.3, self.sign, -self.sign) * 9.0).expand(*value.shape[:-1], self.num_statistics)


def worst_fit(epsilon: float) -> Fit:
    """A trainer gone mad: it steps up in the tail for a table there, and down for any other."""
    params = spending_natural_params(epsilon, 3)

    def fit(table: Tensor) -> MollifiedExpFamily:
        sign = 1.0 if float(table.mean()) > 2 else -1.0
        return MollifiedExpFamily.normalized(normal(1), Step(sign, 3), params)

    return fit


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 5.0])
def test_the_worst_fit_is_driven_to_its_bound_and_not_accused(epsilon: float) -> None:
    report = quick_audit(worst_fit(epsilon), epsilon, base=normal(1), num_pairs=1)
    assert report.passed, report
    assert report.proven > (0.97 if epsilon == 5.0 else 0.99) * epsilon


@pytest.mark.parametrize("claimed", [0.9, 0.999])
def test_a_claim_a_little_too_small_is_refuted(claimed: float) -> None:
    """The worst fit at epsilon 1, its own claim silenced: only the search can tell."""

    def fit(table: Tensor) -> MollifiedExpFamily:
        density = worst_fit(1.0)(table)
        density.guarantee = dataclasses.replace(density.guarantee, epsilon=0.99 * claimed)
        return density

    report = quick_audit(fit, 0.99 * claimed, base=normal(1), num_pairs=1)
    assert "epsilon" in {finding.kind for finding in report.faults}
    assert report.place[0] > 3.3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fit", "share"), [(projected(delta=0), 0.8), (projected(), 0.98)], ids=["a priori", "calibrated"]
)
def test_most_of_the_claim_is_proved(fit: Fit, share: float) -> None:
    report = quick_audit(fit, num_pairs=4, num_draws=1000)
    assert report.passed
    assert share < report.proven <= 1
    assert report.place


_RATIOS: dict[bytes, LogRatio] = {}


def default_ratio(table: Tensor) -> LogRatio:
    """The default fit, once for each table: densities of every epsilon and form come from it."""
    key = table.numpy().tobytes()
    if key not in _RATIOS:
        _RATIOS[key] = DensityRatio(BASE, seed=0, progress=False).fit(table)
    return _RATIOS[key]


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("form", ["a priori", "calibrated"])
def test_most_of_the_claim_is_proved_of_the_defaults(form: str, epsilon: float) -> None:
    def fit(table: Tensor) -> MollifiedExpFamily:
        return default_ratio(table).mollify(epsilon, delta=0 if form == "a priori" else 1e-9)

    report = audit(fit, epsilon, base=BASE, num_pairs=4, num_draws=100_000, seed=0, progress=False)
    assert report.passed
    assert 0.8 * epsilon < report.proven <= epsilon
    if (form, epsilon) != ("a priori", 0.1):  # there log-ratios of 0.02 are narrower than the bounds of 50,000 draws
        assert report.black_box > (0.0 if epsilon == 0.1 else 0.4) * epsilon


def test_clopper_pearson_bounds_have_the_error_that_defines_them() -> None:
    for count, num_trials in ((0, 10), (10, 10), (3, 50), (700, 1000), (1, 100_000), (49_990, 50_000)):
        for error in (0.3, 1e-3, 1e-8):
            low, high = clopper_pearson(count, num_trials, error)
            assert 0 <= low <= count / num_trials <= high <= 1
            if count:
                assert error * (1 - 1e-3) < stats.binom.sf(count - 1, num_trials, low) <= error
            if count < num_trials:
                assert error * (1 - 1e-3) < stats.binom.cdf(count, num_trials, high) <= error


@pytest.mark.parametrize("arguments", [(-1, 5, 0.1), (6, 5, 0.1), (1, 0, 0.1), (1, 5, 0.0)])
def test_clopper_pearson_of_nonsense(arguments: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        clopper_pearson(*arguments)


def test_black_box_bounds_are_below_the_truth() -> None:
    """Two coins with a known log-ratio: the bound is above it no more often than its error allows."""
    shares, truth, wrong = torch.tensor([0.3, 0.3 * math.exp(-0.5)]), 0.5, 0
    none = torch.empty(0, 1)
    found = []
    for _ in range(100):
        draws = [(torch.rand(400, 1) < share).float() for share in shares]
        event = epsilon_lower_bound(*draws, none, none, error=0.2, delta=0.0)
        found.append(event.epsilon)
        wrong += event.epsilon > truth
    assert wrong / 100 < 0.2 + 3 * math.sqrt(0.2 * 0.8 / 100)
    assert max(found) > 0.1


def test_delta_is_taken_off_what_draws_prove() -> None:
    none = torch.empty(0, 1)
    draws = [(torch.rand(20_000, 1) < share).float() for share in (0.3, 0.1)]
    pure, approximate, useless = (
        epsilon_lower_bound(*draws, none, none, error=0.05, delta=delta) for delta in (0.0, 0.1, 0.4)
    )
    assert 0.8 < pure.epsilon < math.log(3)
    assert approximate.epsilon < pure.epsilon
    assert useless.epsilon == 0


def test_the_search_finds_a_needle() -> None:
    """A peak too narrow for any start to be on, of which only a slope tells; and one in a corner of a box."""
    starts = torch.randn(4096, 2)
    support = BASE.support
    target = torch.tensor([2.345, -1.234])
    peak = search(lambda x: 1 / (0.01 + (x - target).double().norm(dim=-1)), starts, support)
    assert peak.highest > 90
    torch.testing.assert_close(peak.place, target, rtol=0, atol=0.01)
    box = dist.Uniform(torch.zeros(2), torch.ones(2)).to_event(1)
    peak = search(lambda x: x.double().sum(-1), torch.rand(500, 2), box.support)
    assert 1.99 < peak.highest <= 2


def test_nan_and_vanishing_densities_are_infinite_losses() -> None:
    class Half:
        """Vanishes on one side, for one table."""

        support, base = BASE.support, BASE

        def __init__(self, sign: float) -> None:
            self.sign = sign

        def log_prob(self, value: Tensor) -> Tensor:
            vanishes = self.sign * value[..., 0] < 0
            return torch.where(vanishes, -math.inf, BASE.log_prob(value) + math.log(2))

    report = quick_audit(lambda table: Half(1.0 if float(table.mean()) > 1 else -1.0))
    assert report.proven == math.inf
    assert json.loads(report.to_json())["proven"] == "inf"
    assert "proven inf" in str(report)
    assert {finding.kind for finding in report.faults} == {"epsilon"}


def test_tables_of_the_caller_are_attacked_by_name() -> None:
    tables = {
        "mine": (torch.full((50, 2), 1.5), torch.full((50, 2), -1.5)),
        "lists": ([[0.0, 1.0]] * 9, [[1.0, 0.0]] * 9),
    }
    report = audit(boosted(), 1.0, tables=tables, num_draws=1000, progress=False)
    assert [pair.name for pair in report.pairs] == ["mine", "lists"]
    assert report.passed


def test_a_fit_that_refuses_one_table_is_a_fault_and_its_message_is_not_told() -> None:
    def fit(table: Tensor) -> MollifiedExpFamily:
        if float(table.mean()) > 1:
            raise ValueError("a row says 12345")
        return quick_fit(table)

    report = quick_audit(fit)
    assert "refused" in str(report)
    assert "12345" not in str(report) + report.to_json()
    assert {finding.kind for finding in report.faults} == {"refused"}


def test_a_fit_that_refuses_all_tables_is_not_attacked() -> None:
    def fit(table: Tensor) -> MollifiedExpFamily:
        raise RuntimeError(str(table))

    report = quick_audit(fit)
    assert not report.passed
    assert not report.faults


def test_what_cannot_be_drawn_is_noted() -> None:
    class Stubborn(DrawsAlone):
        """Neither draws nor a density."""

    def draw(num_draws: int) -> Tensor:
        raise RuntimeError("no")

    report = quick_audit(lambda table: Stubborn(draw))
    assert not report.passed
    assert "cannot be drawn from: RuntimeError" in str(report)


def test_seeded_audits_repeat_and_leave_the_generator_alone() -> None:
    state = torch.get_rng_state()
    first, second = (quick_audit(boosted(), num_pairs=1, num_draws=1000) for _ in range(2))
    assert first == second
    assert torch.equal(torch.get_rng_state(), state)


def test_every_pair_of_hostile_tables() -> None:
    names = [pair.name for pair in hostile_pairs(BASE, 1.0, 20)]
    assert len(set(names)) == 10
    assert [pair.name for pair in hostile_pairs(dist.Normal(0.0, 1.0), 1.0, 20)] == [
        name if name != "swapped labels" else "mirrored" for name in names if name != "constant columns"
    ]
    for name, base in ((name, make()) for name, make in BASES.items()):
        for pair in hostile_pairs(base, 1.0, 20):
            for table in (pair.table, pair.other):
                assert table.shape[1:] == base.event_shape, name
                assert bool(base.support.check(table).all()), name


def test_bases_are_compared_by_what_they_are() -> None:
    class Over:
        """Lies over a base."""

        def __init__(self, base: Any) -> None:
            self.base = base

    assert same_base(Over(normal(2)), Over(normal(2)))
    assert not same_base(Over(normal(2)), Over(normal(3)))
    assert not same_base(Over(normal(2)), Over(dist.Normal(torch.zeros(2), torch.tensor([1.0, 1.0001])).to_event(1)))
    assert not same_base(Over(normal(2)), object())
    assert same_base(object(), object())


def test_a_shrunk_density_is_not_accused_of_its_normaliser() -> None:
    """The fallback of a certificate that failed: phi is far from 0, but the density is in the certified set."""
    bounds, certificate = Bounds(-0.3, 0.69), Certificate(0.005, 1e-9)

    def fit(table: Tensor) -> MollifiedExpFamily:
        theta = torch.tensor([1 / LOG_2], dtype=torch.float64)
        sign = 1.0 if float(table.mean()) > 1 else -1.0
        arguments: dict[str, Any] = {"bounds": bounds, "certificate": certificate, "shrinkage": 0.3 / 0.99}
        density = MollifiedExpFamily(normal(1), Step(sign, 1), theta, 0.0, **arguments)
        phi = math.log(float(density.tilt(torch.linspace(-3, 3, 7)[:, None]).exp().mean()))
        return MollifiedExpFamily(normal(1), Step(sign, 1), theta, phi, **arguments)

    assert not [finding for finding in quick_audit(fit, base=normal(1)).faults if finding.kind == "certificate"]


def test_the_report() -> None:
    report = quick_audit(boosted(0.5), 0.5, num_pairs=1, num_draws=1000)
    content = json.loads(report.to_json())
    assert content["claimed"] == 0.5
    assert content["proven"] == report.proven == report.white_box
    assert content["pairs"][0]["name"] == report.where
    assert tuple(content["place"]) == report.place
    assert "not a proof" in str(report)
    assert AuditReport(1.0).where == ""
    assert not AuditReport(1.0).passed
    assert AuditReport(1.0, pairs=(PairResult("none"),)).proven == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.claimed = 2.0  # type: ignore[misc]  # which is the trouble


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"epsilon": 0.0}, ValueError, "epsilon must be above 0"),
        ({"epsilon": math.inf}, ValueError, "epsilon must be finite"),
        ({"confidence": 1.0}, ValueError, "confidence must be in"),
        ({"num_draws": 10}, ValueError, "num_draws must be at least 1000"),
        ({"num_pairs": 0}, ValueError, "base must be given, or tables"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
        ({"fit": 3}, TypeError, "fit must be a function"),
        ({"fit": lambda table: table}, TypeError, "fit must return an object with sample or log_prob"),
        ({"tables": [1]}, TypeError, "tables must map names"),
        ({"tables": {"a": 1}}, TypeError, "tables must map names"),
        ({"base": 3}, TypeError, "base must be"),
    ],
)
def test_arguments(options: dict[str, Any], error: type[Exception], match: str) -> None:
    arguments = {"fit": boosted(), "epsilon": 1.0} | options
    with pytest.raises(error, match=match):
        quick_audit(**arguments)


class LogProbAlone:
    """A density that can only be evaluated."""

    def __init__(self, mean: Tensor) -> None:
        self._normal = torch.distributions.Normal(mean, 1.0)

    def log_prob(self, value: Tensor) -> Tensor:
        return self._normal.log_prob(value)


class TestStandardDistributions:
    """A distribution of torch or Pyro has no base that was tilted."""

    def quick(self, fit: Any, base: Any) -> AuditReport:
        return audit(fit, 1.0, base=base, num_pairs=2, num_draws=2000, seed=0, progress=False)

    def test_a_fitted_normal_is_found(self) -> None:
        def fit(table: Any) -> Any:
            return dist.Normal(table.mean(0), table.std(0) + 1e-3).to_event(1)

        assert not self.quick(fit, BASE).passed

    def test_what_ignores_the_table_is_not_accused(self) -> None:
        assert self.quick(lambda table: BASE, BASE).passed
        assert self.quick(lambda table: torch.distributions.LogNormal(0.0, 1.0), dist.Normal(0.0, 1.0)).passed

    def test_log_prob_alone(self) -> None:
        assert not self.quick(lambda table: LogProbAlone(table.mean()), dist.Normal(0.0, 1.0)).passed
        assert self.quick(lambda table: LogProbAlone(torch.tensor(0.0)), dist.Normal(0.0, 1.0)).passed


def test_it_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    quick_audit(boosted(), num_draws=1000, progress=True)
    shown = capsys.readouterr().err
    for text in (
        "fitting 'tail against rest', first table",
        "fitting 'tail against rest', second table",
        "checking 'tail against rest', second table",
        "searching for the largest log-ratio, 'tail against rest'",
        "telling draws apart, 'tail against rest'",
        "fitting 'rows at the last peak', first table",
        "12/12 ",
    ):
        assert text in shown
    quick_audit(boosted(), num_pairs=1, num_draws=1000)
    assert capsys.readouterr().err == ""


def test_its_bar_ends_where_tables_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(table: Any) -> None:
        raise ValueError("no")

    quick_audit(refuse, num_pairs=3, progress=True)
    assert "18/18 " in capsys.readouterr().err
