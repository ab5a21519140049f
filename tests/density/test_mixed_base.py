"""The base of columns of all kinds: its law over a mixed measure, its points, what networks see, exact draws."""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from densities import scale_calibration
from torch import Tensor

from pyro_mbde import Column, DensityRatio, MollifiedExpFamily, private_draws
from pyro_mbde.density import mixed_base
from pyro_mbde.density.base import PreparedBase, prepare
from pyro_mbde.density.base_draws import SystemSource, TorchSource, draws_by_inversion, system_generator
from pyro_mbde.density.column_features import _MAX_INDICATORS
from pyro_mbde.density.copula import GaussianCopula
from pyro_mbde.density.marginals import Marginal
from pyro_mbde.density.mixed_base import MAX_POINTS, MixedBase
from pyro_mbde.tables.constraints import compile_constraint
from pyro_mbde.training.weak_learner import WeakLearner

QUICK = WeakLearner(hidden_sizes=(16,), num_steps=40, batch_size=128)


def _levels(count: int, kind: str = "category", missing_share: float = 0.0) -> Marginal:
    masses = torch.arange(1.0, count + 1)
    return Marginal(torch.arange(count + 1.0), masses, masses, kind, missing_share)


REAL = Marginal(torch.tensor([0.0, 1.0, 4.0]), torch.tensor([1.0, 0.6]), torch.tensor([0.6, 0.0]))
GAPPED = Marginal(torch.tensor([-1.0, 1.0]), torch.ones(1), torch.ones(1), "real", 0.2)
WHOLE = Marginal(torch.tensor([0.0, 5.0, 41.0]), torch.tensor([3.0, 1.0]), torch.tensor([3.0, 0.1]), "integer")
DAYS = Marginal(torch.tensor([0.0, 730.0]), torch.ones(1), torch.ones(1), "integer", 0.0, [365.25, 7.0])
MIXED = MixedBase([REAL, GAPPED, WHOLE, _levels(3, missing_share=0.1), _levels(2), _levels(300), DAYS])
FINITE = MixedBase([_levels(3, missing_share=0.1), _levels(4, "ordered"), _levels(2)])
CONTINUOUS = MixedBase([REAL, Marginal(torch.tensor([-1.0, 1.0]), torch.ones(1), torch.ones(1))])


def test_the_density_of_independent_columns_is_the_product_of_theirs() -> None:
    rows = MIXED.sample((500,))
    product = sum(one.log_prob(column).double() for one, column in zip(MIXED.marginals, rows.T, strict=True))
    assert torch.allclose(MIXED.log_prob(rows).double(), product, atol=1e-4)


def test_points_of_a_finite_base_sum_to_1() -> None:
    points = FINITE.enumerate_support()
    assert points.shape == (4 * 4 * 2, 3)
    assert len(points.unique(dim=0)) == len(points)
    assert float(FINITE.log_prob(points).double().exp().sum()) == pytest.approx(1, abs=1e-6)
    assert bool(FINITE.support.check(points).all())


def test_a_mixed_density_integrates_to_1() -> None:
    """Summed over points, integrated over real numbers: by importance sampling from another mixed law."""
    torch.manual_seed(0)
    base = MixedBase([REAL, GAPPED, WHOLE, _levels(3, missing_share=0.1)])
    flat = MixedBase(
        [
            Marginal(one.edges[[0, -1]], torch.ones(1), torch.ones(1), one.kind, 0.5 * (one.missing_share > 0))
            for one in base.marginals
        ]
    )
    rows = flat.sample((400_000,))
    weights = (base.log_prob(rows) - flat.log_prob(rows)).double().exp()
    error = float(weights.std()) / math.sqrt(len(rows))
    assert float(weights.mean()) == pytest.approx(1, abs=4 * error)
    assert error < 0.01


@pytest.mark.parametrize("base", [MIXED, FINITE, CONTINUOUS], ids=["mixed", "finite", "continuous"])
def test_every_source_draws_the_columns_law(base: MixedBase) -> None:
    prepared = prepare(base)
    torch.manual_seed(0)
    with system_generator():
        by_system = SystemSource(prepared).propose(20_000)
    for draws in (base.sample((20_000,)), TorchSource(prepared).propose(20_000), by_system):
        assert draws.dtype == torch.float32
        assert bool(base.support.check(draws).all())
        for one, column in zip(base.marginals, draws.T, strict=True):
            low, high = one.cdf_interval(column)
            places = (low + (high - low) * torch.rand(len(low), dtype=torch.float64)).sort().values
            assert float((places - torch.arange(1, 20_001) / 20_000).abs().max()) < 2.2 / math.sqrt(20_000)
    assert draws_by_inversion(base)


def test_features_are_the_same_for_all_that_a_row_may_stand_beside() -> None:
    rows = MIXED.sample((512,))
    features = MIXED.features(rows)
    assert features.shape == (512, MIXED.num_features)
    assert bool(torch.isfinite(features).all())
    assert float(features.abs().max()) <= 6.1
    for index in (0, 1, 17, 511):
        assert torch.equal(MIXED.features(rows[index]), features[index])
    assert torch.equal(MIXED.features(rows.reshape(8, 64, -1)).reshape(512, -1), features)


def test_features_tell_all_levels_apart_and_missing_values_too() -> None:
    for count in (2, 3, _MAX_INDICATORS, _MAX_INDICATORS + 1, 300):
        base = MixedBase([_levels(count, missing_share=0.1)])
        features = base.features(base.enumerate_support())
        assert len(features.unique(dim=0)) == count + 1


def test_whole_numbers_are_not_told_apart_by_anything_but_themselves() -> None:
    """A score is constant where the column's value is: so the law of a decoded row is exact."""
    rows = MIXED.sample((200,))
    same = rows.clone()
    assert torch.equal(MIXED.features(same), MIXED.features(rows))
    moved = rows.clone()
    moved[:, 2] = (moved[:, 2] + 1) % 41
    assert bool((MIXED.features(moved) != MIXED.features(rows)).any(-1).all())


def test_a_finite_base_needs_no_delta() -> None:
    table = FINITE.sample((300,))[:100]
    q = DensityRatio(FINITE, ensemble_size=1, weak_learner=QUICK, seed=0, progress=False).fit(table).mollify(1.0)
    assert q.guarantee.delta == 0
    assert q.log_normalizer.standard_error == 0
    points = q.enumerate_support()
    total = float(q.log_prob(points).double().exp().sum())
    assert total == pytest.approx(1, abs=1e-5)
    draws = private_draws(q, 20)
    assert bool(FINITE.support.check(draws).all())


def test_a_base_with_too_many_points_is_not_listed() -> None:
    many = MixedBase([_levels(101), _levels(100), _levels(100)])
    assert many.num_points == 1_010_000 > MAX_POINTS
    assert not many.has_enumerate_support
    assert PreparedBase.of(many).finite is None
    with pytest.raises(NotImplementedError):
        many.enumerate_support()


def test_a_density_over_mixed_columns_is_saved_and_loaded(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    scale_calibration(monkeypatch)
    table = MIXED.sample((400,))
    q = DensityRatio(MIXED, ensemble_size=2, weak_learner=QUICK, seed=0, progress=False).fit(table[:200]).mollify(1.0)
    path = f"{tmp_path}/q.pt"
    q.save(path)
    again = MollifiedExpFamily.load(path)
    assert again.guarantee == q.guarantee
    assert torch.equal(again.accepted_tilt(table), q.accepted_tilt(table))
    assert again.fingerprint == q.fingerprint


def test_a_copy_in_float64_has_the_same_law() -> None:
    wide = PreparedBase.of(MIXED).wide
    assert isinstance(wide, MixedBase)
    assert wide.dtype == torch.float64
    uniforms = torch.rand(1000, 7, dtype=torch.float64)
    assert torch.equal(wide.from_uniforms(uniforms).float(), MIXED.from_uniforms(uniforms))


def test_a_base_of_real_numbers_is_a_closed_box() -> None:
    corners = torch.tensor([[0.0, -1.0], [4.0, 1.0]])
    assert bool(CONTINUOUS.support.check(corners).all())
    transform = torch.distributions.biject_to(CONTINUOUS.support)
    inside: Tensor = transform(torch.randn(100, 2))
    assert bool(CONTINUOUS.support.check(inside).all())


@pytest.mark.parametrize("marginals", [[], ["text"]])
def test_what_are_not_marginals_is_refused(marginals: list[object]) -> None:
    with pytest.raises(ValueError, match="marginals must be Marginals"):
        MixedBase(marginals)  # type: ignore[arg-type]


def test_predicates_hold_for_rows_as_they_come_out() -> None:
    """Not for what they were before they were rounded to float32: a strip this narrow has many rows at its edges."""
    edges, one = torch.tensor([1000.0, 1001.0]), torch.ones(1)
    columns = (Column("a", 1000, 1001), Column("b", 1000, 1001))
    predicates = [compile_constraint(text, columns) for text in ("a < b", "b < a + 0.01")]
    base = MixedBase([Marginal(edges, one, one)] * 2, None, predicates)
    with system_generator():
        rows = SystemSource(prepare(base)).propose(5000)
    assert bool(base.support.check(rows).all())


def test_the_acceptance_rate_is_computed_once_for_all_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Again for whatever it follows from: marginals, their dtype, predicates and the dependence."""
    monkeypatch.setattr(mixed_base, "_RATES", {})
    compute, tried = MixedBase._share_that_meets, []
    monkeypatch.setattr(
        MixedBase, "_share_that_meets", lambda base, predicates: (tried.append(base), compute(base, predicates))[1]
    )
    edges, one, rising = torch.tensor([0.0, 10.0]), torch.ones(1), torch.full((1,), 3.0)
    columns = (Column("a", 0, 10), Column("b", 0, 10))
    below, above = ([compile_constraint(text, columns)] for text in ("a < b", "a > b + 1"))

    def rate_of(right: Tensor, predicates: list[list[Any]], correlation: float | None = None) -> float:
        copula = None if correlation is None else GaussianCopula(torch.tensor([[1, correlation], [correlation, 1]]))
        return MixedBase([Marginal(edges, one, one), Marginal(edges, one, right)], copula, predicates).acceptance_rate

    rates = [rate_of(one, below), rate_of(rising, below), rate_of(one, above)]
    rates += [rate_of(rising, below, 0.5), rate_of(rising, below, 0.9)]
    assert len(set(rates)) == len(tried) == 5
    assert rates[:3] == pytest.approx([0.5, 7 / 12, 0.405], abs=1e-3)
    prepared = prepare(MixedBase([Marginal(edges, one, one)] * 2, None, below))
    assert prepared.wide is not None and len(tried) == 6
    assert [base.dtype for base in tried] == [torch.float32] * 5 + [torch.float64]


def test_a_number_that_is_not_a_density_is_named() -> None:
    edges, ones = torch.arange(4.0), torch.ones(3)
    with pytest.raises(ValueError, match=r"got right\[1\]=-2\.0\."):
        Marginal(edges, ones, torch.tensor([1.0, -2.0, math.nan]))
    with pytest.raises(ValueError, match=r"got left\[2\]=nan\."):
        Marginal(edges, torch.tensor([1.0, 2.0, math.nan]), ones)
    with pytest.raises(ValueError, match=r"got 0 everywhere\."):
        Marginal(edges, 0 * ones, 0 * ones)


def test_a_dependence_that_is_not_a_copula_is_refused() -> None:
    uniform = dist.Uniform(torch.zeros(2), torch.ones(2)).to_event(1)
    with pytest.raises(TypeError, match="dependence must be a Copula or None, got dependence='Independent'"):
        MixedBase(CONTINUOUS.marginals, uniform)  # type: ignore[arg-type]
