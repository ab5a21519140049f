"""The MST mechanism: its noise is what its guarantee needs, and its density is a density."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_mbde.experiments.baselines import choice, mst
from pyro_mbde.experiments.baselines.choice import Noise, choose_pairs, plan_noise
from pyro_mbde.experiments.baselines.common import added_or_left_out
from pyro_mbde.experiments.baselines.mst import MST
from pyro_mbde.experiments.baselines.tree import MSTDensity, bins_of, directed
from pyro_mbde.privacy.group import GroupGuarantee
from pyro_mbde.privacy.zcdp import zcdp_rho

pytest.importorskip("mbi")


def box(num_dims: int) -> tuple[Tensor, Tensor]:
    """The cube from -1 to 1; for no dimensions, the interval."""
    shape = (num_dims,) if num_dims else ()
    return torch.full(shape, -1.0), torch.full(shape, 1.0)


def dependent_rows(num_rows: int) -> Tensor:
    """Three columns in the cube; the first and the last are nearly the same."""
    rows = 0.3 * torch.randn(num_rows, 3)
    rows[:, 2] = rows[:, 0] + 0.05 * torch.randn(num_rows)
    return rows.clamp(-1, 1)


def make_density(num_dims: int, uniform_share: float = 0.01, num_bins: int = 4) -> MSTDensity:
    """A density of random tables, a path that does not go through the columns in their order."""
    low, high = box(num_dims)
    low, high = low - 1, high + 2
    edges = ((0, 2), (2, 1))[: max(num_dims - 1, 0)] if num_dims != 2 else ((0, 1),)
    tables = tuple(torch.rand(num_bins, num_bins, dtype=torch.float64) ** 3 for _ in edges)
    root = torch.rand(num_bins, dtype=torch.float64)
    return MSTDensity(
        low, high, root, edges, tables, uniform_share=uniform_share, guarantee=GroupGuarantee(1.0, 1e-5, replaced=False)
    )


class TestNoise:
    @pytest.mark.parametrize("num_dims", [1, 2, 3, 7])
    @pytest.mark.parametrize("rho", [1e-9, 0.03, 50.0])
    def test_all_of_rho_is_spent_and_no_more(self, num_dims: int, rho: float) -> None:
        noise = plan_noise(rho, num_dims)
        parts = [num_dims / (2 * noise.column_scale**2)]
        if num_dims > 1:
            parts += [(num_dims - 1) * noise.choice_epsilon**2 / 8, (num_dims - 1) / (2 * noise.pair_scale**2)]
        assert sum(parts) <= rho
        assert sum(parts) == pytest.approx(rho, rel=1e-11)
        if num_dims > 2:
            assert parts == pytest.approx([rho / 3] * 3)

    @pytest.mark.parametrize("num_dims", [1, 2, 3])
    def test_none_without_a_limit(self, num_dims: int) -> None:
        noise = plan_noise(math.inf, num_dims)
        assert noise.column_scale == noise.pair_scale == 0.0
        assert noise.choice_epsilon == (math.inf if num_dims > 2 else 0.0)

    @pytest.mark.parametrize(("group_size", "size"), [(1, 1), (7, 7), (None, 6000)])
    def test_a_group_costs_the_square_of_its_size(
        self, group_size: int | None, size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Measured where it is added, over all cells."""
        seen: list[Any] = []

        def spy(columns: list[Tensor], groups: list[Tensor], tables: dict[Any, Tensor], *others: Any) -> list[Tensor]:
            seen.extend([torch.cat(columns), *tables.values()])
            return [torch.ones(60), torch.ones(60, 60)]

        monkeypatch.setattr(mst, "_RARE", -math.inf)  # no bin is merged
        monkeypatch.setattr(mst, "_estimate", spy)
        low, high = box(2)
        rows = torch.rand(3000, 2) * 2 - 1
        density = MST(low, high, 0.5, delta=1e-6, group_size=group_size, num_bins=60, progress=False).fit(rows)
        assert density.guarantee == GroupGuarantee(0.5, 1e-6, group_size, replaced=group_size is None)
        rho = zcdp_rho(0.5, 1e-6) / size**2
        bins = bins_of(rows, low, high, 60)
        counts = torch.stack([torch.bincount(column, minlength=60) for column in bins.T]).flatten()
        pairs = torch.bincount(bins[:, 0] * 60 + bins[:, 1], minlength=3600)
        for noisy, exact, expected in zip(seen, (counts, pairs), (3 / rho, 1 / (4 * rho / 3)), strict=True):
            scale = math.sqrt(expected)
            # Two tables at a third of rho; one at two thirds. A deviation of m normals errs by 1/sqrt(2 m) of itself.
            assert float((noisy - exact).std()) == pytest.approx(scale, rel=4.5 / math.sqrt(2 * len(noisy)))
            assert float((noisy - exact).mean()) == pytest.approx(0, abs=4.5 * scale / math.sqrt(len(noisy)))


class TestChoice:
    def test_the_strong_pairs_are_found(self) -> None:
        rows = torch.rand(5000, 4)
        rows[:, 3] = rows[:, 1]
        rows[:, 2] = (rows[:, 0] + rows[:, 2]) / 2
        bins = (8 * rows).long()
        columns = [torch.bincount(column, minlength=8).double() for column in bins.T]
        for epsilon in (1.0, math.inf):
            assert {(1, 3), (0, 2)} < set(choose_pairs(bins, columns, Noise(1.0, epsilon, 1.0)))

    def test_the_exponential_mechanism(self) -> None:
        scores = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
        chosen = torch.bincount(torch.tensor([choice._choose(scores, 1.0) for _ in range(4000)]), minlength=3) / 4000
        expected = torch.softmax(scores / 2, 0)
        assert bool(((chosen - expected).abs() < 4.5 * (expected * (1 - expected) / 4000).sqrt()).all())
        assert choice._choose(scores, math.inf) == 2

    def test_one_row_changes_a_score_by_at_most_1(self) -> None:
        bins = torch.randint(3, (50, 2))
        columns = [torch.randn(3).double() * 10 + 15 for _ in range(2)]
        score = choice._dependence(bins, columns, 0, 1)
        for row in range(50):
            left = torch.cat([bins[:row], bins[row + 1 :]])
            assert abs(float(choice._dependence(left, columns, 0, 1) - score)) <= 1 + 1e-9

    @pytest.mark.parametrize("num_dims", [1, 2])
    def test_nothing_to_choose(self, num_dims: int) -> None:
        state = torch.get_rng_state()
        pairs = choose_pairs(
            torch.zeros(3, num_dims, dtype=torch.long), [torch.ones(1).double()] * num_dims, Noise(1, 0, 1)
        )
        assert pairs == [(0, 1)][: num_dims - 1]
        assert torch.equal(torch.get_rng_state(), state)

    def test_edges_lead_away_from_the_root(self) -> None:
        assert directed([(2, 3), (1, 3), (0, 1)], 4) == ((0, 1), (1, 3), (3, 2))


class TestDensity:
    @pytest.mark.parametrize("num_dims", [0, 1, 2, 3])
    @pytest.mark.parametrize("uniform_share", [0.0, 0.2])
    def test_integrates_to_one(self, num_dims: int, uniform_share: float) -> None:
        density = make_density(num_dims, uniform_share)
        axis = -2 + 5 * (torch.arange(8) + 0.5) / 8  # two points a bin
        points = torch.cartesian_prod(*[axis] * max(num_dims, 1)).reshape(-1, *density.event_shape)
        volume = 5 ** max(num_dims, 1)
        assert float(density.log_prob(points).double().exp().mean() * volume) == pytest.approx(1, abs=1e-6)

    @pytest.mark.parametrize("num_dims", [0, 1, 2, 3])
    def test_draws_match(self, num_dims: int) -> None:
        density = make_density(num_dims, 0.2)
        draws = density.sample((40_000,))
        assert draws.shape == (40_000, *density.event_shape)
        assert bool(density.support.check(draws).all())
        cells = bins_of(draws.reshape(40_000, -1), density.low, density.high, 4)
        columns = cells.shape[1]
        index = sum(cells[:, column] * 4**column for column in range(columns))
        counts = torch.bincount(torch.as_tensor(index), minlength=4**columns)
        bins = torch.stack([torch.arange(4**columns) // 4**column % 4 for column in range(columns)], -1)
        middles = (density.low + (density.high - density.low) * (bins + 0.5) / 4).reshape(-1, *density.event_shape)
        probs = density.log_prob(middles).double().exp() * (5 / 4) ** columns
        errors = (counts - 40_000 * probs) / (40_000 * probs * (1 - probs)).sqrt()
        assert float(errors.abs().max()) < 5
        inside = ((draws.reshape(-1) + 2) / 1.25) % 1  # uniform within a bin
        assert float(inside.mean()) == pytest.approx(0.5, abs=5 * 12**-0.5 / len(inside) ** 0.5)

    def test_edges_of_the_box(self) -> None:
        density = make_density(2)
        points = torch.tensor([[-2.0, -2.0], [3.0, 3.0], [3.1, 0.0], [math.nan, 0.0]])
        assert torch.isfinite(density.log_prob(points)).tolist() == [True, True, False, False]
        assert density.sample(torch.Size([0])).shape == (0, 2)
        assert density.expand((3,)).sample().shape == (3, 2)

    def test_marginals(self) -> None:
        density = make_density(3, 0.2)
        bins = bins_of(density.sample((40_000,)), density.low, density.high, 4)
        for column in range(3):
            probs = torch.bincount(bins[:, column], minlength=4) / 40_000
            assert torch.allclose(probs.double(), density.marginal(column), atol=0.012)

    def test_tables_without_weight_are_uniform(self) -> None:
        low, high = box(2)
        table = torch.zeros(2, 2, dtype=torch.float64)
        density = MSTDensity(
            low,
            high,
            torch.tensor([-1.0, 0.0]).double(),
            ((0, 1),),
            (table,),
            uniform_share=0.0,
            guarantee=GroupGuarantee(1.0),
        )
        assert density.log_prob(torch.rand(5, 2)).tolist() == pytest.approx([-math.log(4)] * 5)


class TestFit:
    @pytest.mark.parametrize(
        "num_dims", [0, pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
    )
    def test_without_noise_marginals_are_the_tables(self, num_dims: int) -> None:
        rows = dependent_rows(2000)
        rows = rows[:, 0] if num_dims == 0 else rows[:, :num_dims]
        low, high = box(num_dims)
        density = MST(low, high, math.inf, num_bins=8, uniform_share=0.0, seed=0, progress=False).fit(rows)
        assert density.event_shape == rows.shape[1:]
        bins = bins_of(rows.reshape(2000, -1), low, high, 8)
        for column in range(bins.shape[1]):
            counts = torch.bincount(bins[:, column], minlength=8).double()
            assert torch.allclose(density.marginal(column), counts / 2000, atol=2e-3)
        if num_dims > 1:
            draws = bins_of(density.sample((200_000,)), low, high, 8)
            first, second = density.edges[0]
            drawn, table = (
                torch.bincount(each[:, first] * 8 + each[:, second], minlength=64) / len(each) for each in (draws, bins)
            )
            assert torch.allclose(drawn, table, atol=0.006)

    def test_it_learns_in_private(self) -> None:
        rows = dependent_rows(20_000)
        low, high = box(3)
        density = MST(low, high, 1.0, num_bins=16, seed=0, progress=False).fit(rows)
        assert (0, 2) in density.edges
        independent = dist.Normal(rows.mean(0), rows.std(0)).to_event(1)
        assert float(density.log_prob(rows).mean()) > float(independent.log_prob(rows).mean()) + 1

    def test_hardly_any_budget(self) -> None:
        low, high = box(2)
        density = MST(low, high, 1e-3, group_size=None, num_bins=8, seed=0, progress=False).fit(torch.rand(50, 2))
        assert bool(torch.isfinite(density.log_prob(density.sample((50,)))).all())

    def test_rare_bins_share_their_weight(self) -> None:
        group = mst._group_rare(torch.tensor([10.0, 1.0, 5.0, -2.0]), 1.0)
        assert group.tolist() == [0, 2, 1, 2]
        assert mst._group_rare(torch.zeros(3), 1.0).tolist() == [0, 0, 0]
        assert mst._group_rare(torch.zeros(3), 0.0).tolist() == [0, 1, 2]
        spread = mst._spread(torch.tensor([[4.0, 6.0]]), [torch.tensor([0, 0]), torch.tensor([0, 1, 1])])
        assert spread.tolist() == [[2.0, 1.5, 1.5], [2.0, 1.5, 1.5]]

    def test_rows_outside_are_moved_to_the_box(self) -> None:
        trainer = MST(0.0, 1.0, math.inf, num_bins=4, uniform_share=0.0, seed=0, progress=False)
        density = trainer.fit(torch.tensor([-5.0, 0.1, 0.6, 7.0]))
        assert torch.allclose(density.marginal(0), torch.tensor([0.5, 0.0, 0.25, 0.25]).double(), atol=1e-2)


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(ImportError, match=r"pip install 'pyro_mbde\[baselines\]'"):
        MST(0.0, 1.0, 1.0)


def test_rows_far_outside_are_moved_to_the_nearest_bin() -> None:
    rows = torch.tensor([[-1e30], [-2.0], [0.5], [2.0], [1e20]], dtype=torch.float64)
    assert bins_of(rows, torch.tensor(0.0), torch.tensor(1.0), 32).flatten().tolist() == [0, 0, 16, 31, 31]


def test_all_rows_exchanged_stay_within_the_budget() -> None:
    """All rows of one bin against all of another: an L2 distance of sqrt(2) n, whose zCDP must be within the whole."""
    trainer = MST(0.0, 1.0, 1.0, delta=1e-6, group_size=None, progress=False)
    for num_rows in (2, 50, 20_000):
        noise = plan_noise(trainer.rho(added_or_left_out(None, num_rows)), 1)
        assert (math.sqrt(2) * num_rows) ** 2 / (2 * noise.column_scale**2) <= zcdp_rho(1.0, 1e-6)
    density = trainer.fit(torch.rand(50))
    assert density.guarantee == GroupGuarantee(1.0, 1e-6, None, replaced=True)


def test_gradients_are_zero() -> None:
    """Also on the edges of cells and of the box, where the density jumps."""
    value = torch.tensor([[-2.0, -2.0], [3.0, 3.0], [-0.75, 0.1], [0.0, 5.0]], requires_grad=True)
    log_density = make_density(2).log_prob(value)
    assert torch.isfinite(log_density[:3]).all()
    log_density.sum().backward()
    assert not value.grad.any()
