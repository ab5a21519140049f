"""Audits of training functions that are as they should be: nothing is accused, and most of epsilon is proved spent."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from audits import Fit, boosted, quick_audit, scale_audit
from densities import BASES, normal, scale_calibration
from quick_fits import BASE, EPSILON, QUICK, DrawsAlone
from torch import Tensor, nn

from pyro_mbde import MBDE, DensityRatio, MollifiedExpFamily, audit, fresh_chains, private_draws
from pyro_mbde.density.bounds import LOG_2, Bounds, Certificate, spending_natural_params
from pyro_mbde.density.row_batch import RowBatch
from pyro_mbde.training.density_ratio import LogRatio


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
    "batch": (projected(num_rows=3), 1.0, BASE),
    "batch, epsilon 3, skew 0.8": (projected(3.0, num_rows=5, skew=0.8), 3.0, BASE),
    "batch, delta 0": (projected(num_rows=5, delta=0), 1.0, BASE),
    "batch of a finite base": (projected(base=BASES["categorical"](), num_rows=4), 1.0, BASES["categorical"]()),
    "columns": (boosted(base=BASES["columns"]()), 1.0, BASES["columns"]()),
    "columns, calibrated": (projected(base=BASES["columns"]()), 1.0, BASES["columns"]()),
    "columns of levels": (boosted(base=BASES["columns-finite"]()), 1.0, BASES["columns-finite"]()),
    "batch of columns": (projected(base=BASES["columns"](), num_rows=2), 1.0, BASES["columns"]()),
    "student-t": (boosted(base=BASES["student-t"]()), 1.0, BASES["student-t"]()),
}
#: Each way to train, to draw and to be wide, on plain and finite bases. Calibrated batches are audited once more below.
IN_SHORT = [
    "calibrated",
    "private_draws",
    "fresh_chains",
    "bernoulli-3d",
    "batch, delta 0",
    "columns",
    "columns of levels",
]


@pytest.mark.parametrize("name", IN_SHORT)
def test_nothing_sound_is_accused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scale_calibration(monkeypatch)
    scale_audit(monkeypatch)
    fit, epsilon, base = SOUND[name]
    report = quick_audit(fit, epsilon, base=base, num_pairs=1)
    assert report.passed, report
    assert 0 <= report.proven <= epsilon * (1 + 1e-9)
    assert report.white_box > 0 or name in ("private_draws", "fresh_chains")


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_nothing_sound_is_accused_by_more_pairs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scale_calibration(monkeypatch)
    fit, epsilon, base = SOUND[name]
    report = quick_audit(fit, epsilon, base=base, seed=1, num_pairs=6)
    assert report.passed, report


@pytest.mark.slow
@pytest.mark.parametrize("base", sorted(BASES))
def test_nothing_sound_is_accused_on_any_base(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scale_calibration(monkeypatch)
    make = projected if sorted(BASES).index(base) % 2 else boosted  # each of the two on every other base
    report = quick_audit(make(base=BASES[base]()), base=BASES[base](), num_pairs=2)
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
    """The worst trainer within its bounds: it steps up in the tail for a table there, and down for any other."""
    params = spending_natural_params(epsilon, 3)

    def fit(table: Tensor) -> MollifiedExpFamily:
        sign = 1.0 if float(table.mean()) > 2 else -1.0
        return MollifiedExpFamily.normalized(normal(1), Step(sign, 3), params)

    return fit


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 5.0])
def test_the_worst_fit_is_driven_to_its_bound_and_not_accused(epsilon: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Derivation: docs/proofs.md, *Hostile tables*."""
    scale_audit(monkeypatch)
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


def test_most_of_the_claim_is_proved_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One price for the batch: nearly all of it by the densities, and most of it by draws alone."""
    scale_calibration(monkeypatch, 1 / 4)
    scale_audit(monkeypatch)
    report = quick_audit(projected(3.0, num_rows=3), 3.0, num_pairs=1, num_draws=4000)
    assert report.passed, report
    assert 0.95 * 3 < report.proven <= 3
    assert report.black_box > 0.4 * 3
    assert "summed over rows" in str(report)
    assert ", ...)" not in str(report)
    assert len(report.place) == 6


def test_a_batch_is_attacked_over_the_base_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given the base of the batch, tables are made of its rows."""
    scale_calibration(monkeypatch, 1 / 4)
    scale_audit(monkeypatch)
    report = quick_audit(projected(num_rows=7), base=RowBatch(BASE, 7), num_pairs=1, num_draws=1000)
    assert report.passed, report
    assert report.proven > 0.9
    assert ", ...)" in str(report)
