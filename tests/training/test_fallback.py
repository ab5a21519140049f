"""A fit comes back whatever the table: attacks by tables that made it raise."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from densities import normal, scale_calibration
from torch import Tensor

from pyro_mbde import MBDE, DensityRatio, FitWarning, MollifiedExpFamily, WeakLearner, audit, private_draws
from pyro_mbde.density import rejection
from pyro_mbde.training.fallback import coming_back

QUICK = WeakLearner(hidden_sizes=(8,), num_frequencies=2, num_steps=20, batch_size=64)
BOX = dist.Uniform(torch.zeros(2), torch.ones(2)).to_event(1)
BASES = {"normal": normal(2), "box": BOX}
TABLES: dict[str, Tensor] = {
    "no rows": torch.zeros(0, 2),
    "one row": torch.full((1, 2), 0.5),
    "all missing": torch.full((30, 2), math.nan),
    "some missing": torch.tensor([[0.5, math.nan], [0.5, 0.5], [math.inf, 0.5], [0.2, 0.2]]),
    "huge": torch.full((30, 2), 3e38),
    "opposite": torch.tensor([[3e38, -3e38], [-3e38, 3e38]]),
    "outside": torch.full((30, 2), 7.0),
    "constant": torch.full((30, 2), 0.25),
}
TRAINERS: dict[str, Callable[[Any], Callable[[Tensor], MollifiedExpFamily]]] = {
    "MBDE": lambda base: MBDE(base, 1.0, 2, weak_learner=QUICK, num_samples=200, progress=False).fit,
    "calibrated": lambda base: (
        MBDE(base, 1.0, 2, weak_learner=QUICK, num_samples=200, calibrated=True, reweighted=True, progress=False).fit
    ),
    "DensityRatio": lambda base: (
        lambda table: DensityRatio(base, weak_learner=QUICK, ensemble_size=2, progress=False).fit(table).mollify(1.0)
    ),
}


def quietly(function: Callable[[Tensor], MollifiedExpFamily], table: Tensor) -> tuple[MollifiedExpFamily, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        density = function(table)
    assert all(issubclass(warning.category, FitWarning) for warning in caught)
    return density, [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("trainer", "name"),
    [("MBDE", "normal"), ("MBDE", "box"), ("calibrated", "box"), ("DensityRatio", "normal")],
)
def test_every_table_gives_a_density_with_the_same_public_facts(
    trainer: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale_calibration(monkeypatch)
    fit = TRAINERS[trainer](BASES[name])
    expected, _ = quietly(fit, torch.rand(50, 2))
    for kind, table in TABLES.items():
        density, notes = quietly(fit, table)
        for fact in ("guarantee", "bounds", "certificate", "dtype", "event_shape"):
            assert getattr(density, fact) == getattr(expected, fact), (kind, fact)
        assert repr(density) == repr(expected)
        assert [tuple(weight.shape) for weight in density.statistics.parameters()] == [
            tuple(weight.shape) for weight in expected.statistics.parameters()
        ]
        assert private_draws(density, 2, progress=False).shape == (2, 2)
        assert all("This message depends on the table: keep it." in note for note in notes)
        if kind in ("no rows", "all missing", "huge"):
            assert notes
        if kind in ("no rows", "all missing"):  # of huge rows the loss may stay finite for a round
            assert float(density.tilt(BASES[name].sample((500,))).abs().max()) < 1e-9, kind


def test_boosting_that_runs_into_its_own_samplers_cap_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack: a large epsilon and far data, for which the rounds before leave too few proposals that are accepted."""
    monkeypatch.setattr(rejection, "_MAX_PROPOSALS", 10**4)
    monkeypatch.setattr(rejection, "_MAX_PROPOSALS_PER_DRAW", 1)
    trainer = MBDE(normal(2), 60.0, 12, weak_learner=QUICK, num_samples=300, progress=False)
    with pytest.warns(FitWarning, match=r"Training failed with RuntimeError: max_proposals .* change nothing"):
        density = trainer.fit(torch.full((50, 2), 3.0))
    assert density.guarantee.epsilon <= 60
    assert 1 <= len(trainer.history) < 12


def test_a_learning_rate_that_diverges_gives_the_base() -> None:
    wild = WeakLearner(optimizer="sgd", learning_rate=1e30, num_steps=20, num_frequencies=0)
    with pytest.warns(FitWarning, match="training must keep its loss finite"):
        ratio = DensityRatio(normal(2), weak_learner=wild, progress=False).fit(torch.randn(50, 2))
    assert float(ratio.log_ratio(torch.randn(50, 2)).abs().max()) == 0


def test_a_failure_at_the_end_gives_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    finish, calls = MBDE._finish, []

    def fail_once(self: MBDE, *arguments: Any) -> MollifiedExpFamily:
        calls.append(arguments)
        if len(calls) == 1:
            raise MemoryError
        return finish(self, *arguments)

    monkeypatch.setattr(MBDE, "_finish", fail_once)
    with pytest.warns(FitWarning, match="MemoryError: no reason given. The density is the base"):
        density = TRAINERS["calibrated"](normal(2))(torch.randn(50, 2))
    assert float(density.tilt(torch.randn(50, 2)).abs().max()) < 1e-9


def test_interrupts_are_raised() -> None:
    with pytest.raises(KeyboardInterrupt), coming_back("Never mind."):
        raise KeyboardInterrupt


def test_what_is_public_still_raises() -> None:
    for fit in (trainer(normal(2)) for trainer in TRAINERS.values()):
        with pytest.raises(ValueError, match="data must have shape"):
            fit(torch.zeros(5, 3))
        with pytest.raises(TypeError, match="data must hold numbers"):
            fit("rows.csv")


@pytest.mark.filterwarnings("ignore::pyro_mbde.FitWarning")
@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["MBDE", "DensityRatio"])
def test_an_audit_of_tables_that_cannot_be_fitted_finds_nothing(trainer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scale_calibration(monkeypatch)
    tables = {name: (table, torch.rand(40, 2)) for name, table in TABLES.items() if name != "opposite"}
    report = audit(TRAINERS[trainer](BOX), 1.0, tables=tables, num_draws=1000, seed=0, progress=False)
    assert not report.faults, str(report)


def test_a_warning_points_to_the_callers_line_and_counts_rows() -> None:
    rows = torch.linspace(-2, 2, 300)
    rows[:7] = math.nan
    base = dist.Uniform(torch.tensor(-1.5), torch.tensor(1.5))
    with pytest.warns(FitWarning) as caught:
        MBDE(base, epsilon=1.0, weak_learner=QUICK, num_samples=300, progress=False).fit(rows)
        DensityRatio(base, weak_learner=QUICK, ensemble_size=1, progress=False).fit(rows)
    with pytest.warns(FitWarning) as failed:
        warn_of_failure()
    assert {warning.filename for warning in (*caught, *failed)} == {__file__}
    texts = [str(warning.message) for warning in caught]
    assert sum(text.startswith("7 of 300 rows were left out: they do not hold finite numbers") for text in texts) == 2
    assert sum("of 293 rows lie outside the support of the base" in text for text in texts) == 2


def warn_of_failure() -> None:
    with coming_back("The density is the base."):
        raise RuntimeError("no luck")
