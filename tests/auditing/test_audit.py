"""Audits: every planted fault is found, and what is reported."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from audits import Fit, boosted, quick_audit, scale_audit
from densities import normal, scale_calibration
from planted_faults import FAULTS, OTHER_BASES
from quick_fits import BASE, DrawsAlone, quick_fit
from torch import Tensor

from pyro_mbde import AuditReport, MollifiedExpFamily, audit
from pyro_mbde.auditing.checks import same_base
from pyro_mbde.auditing.report import PairResult

#: Of which a quick one is of the same kind: in a base, in draws.
SLOW = ("shares_of_levels_from_the_table", "columns_repeated_by_a_chain")


@pytest.fixture(autouse=True)
def shorter_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    scale_audit(monkeypatch)


@pytest.mark.parametrize(
    "fit",
    [pytest.param(fit, marks=[pytest.mark.slow] if fit.__name__ in SLOW else []) for fit in FAULTS],
    ids=lambda fit: fit.__name__,
)
def test_a_planted_fault_is_found(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    scale_calibration(monkeypatch)
    report = quick_audit(fit, num_pairs=1, base=OTHER_BASES.get(fit, BASE))
    assert not report.passed
    assert {finding.kind for finding in report.faults} >= FAULTS[fit], report


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
    fit = boosted(calibrated=False)  # with an option it is made each time
    first, second = (quick_audit(fit, num_pairs=1, num_draws=1000) for _ in range(2))
    assert first == second
    assert torch.equal(torch.get_rng_state(), state)


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


def test_the_progress_bar_names_the_step_under_way(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_the_progress_bar_ends_where_tables_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(table: Any) -> None:
        raise ValueError("no")

    quick_audit(refuse, num_pairs=3, progress=True)
    assert "18/18 " in capsys.readouterr().err
