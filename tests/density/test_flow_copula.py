"""Dependence learned from public rows: exact draws and densities of a flow, cells, and what a fit gains."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import Tensor

from pyro_mbde.density.base import convert_base, prepare
from pyro_mbde.density.copula import GaussianCopula
from pyro_mbde.density.flow_copula import FlowCopula, fit_flow_copula
from pyro_mbde.density.marginals import Marginal
from pyro_mbde.density.mixed_base import MixedBase
from pyro_mbde.mcmc.latent_target import LatentTarget
from pyro_mbde.serialization import decode, encode

CORRELATION = torch.tensor([[1.0, 0.7, 0.3], [0.7, 1.0, 0.0], [0.3, 0.0, 1.0]], dtype=torch.float64)


@pytest.fixture(scope="module")
def rows() -> Tensor:
    """Public rows with the dependence of a Gaussian copula, mirrored in half of them: no Gaussian copula has it."""
    generator = torch.Generator().manual_seed(0)
    uniforms = torch.rand(4000, 3, dtype=torch.float64, generator=generator)
    draws = GaussianCopula(CORRELATION).from_uniforms(uniforms)
    mirrored = torch.rand(4000, generator=generator) < 0.3
    draws[mirrored, 1] = 1 - draws[mirrored, 1]
    return draws


@pytest.fixture(scope="module")
def copula(rows: Tensor) -> FlowCopula:
    return fit_flow_copula(rows[:2000], rows[:2000], num_steps=300)


def wild(num_dims: int, num_bins: int = 4) -> FlowCopula:
    """A flow with large random weights."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(16, num_dims), (16,), (num_dims * (3 * num_bins - 1), 16), (num_dims * (3 * num_bins - 1),)]
    weights = [torch.randn(shape, generator=generator) for shape in shapes]
    return FlowCopula(weights, num_dims, [16], num_bins)


class TestFit:
    def test_it_beats_independence_and_the_gaussian_copula(self, rows: Tensor, copula: FlowCopula) -> None:
        unseen = rows[2000:]
        scores = torch.special.ndtri(rows[:2000])
        gaussian = GaussianCopula(torch.corrcoef(scores.T))
        gained, by_gaussian = copula.log_prob(unseen).mean(), gaussian.log_prob(unseen).mean()
        assert float(gained) > float(by_gaussian) + 0.05
        assert float(by_gaussian) > 0

    def test_it_is_the_same_again_whatever_the_callers_seed(self, rows: Tensor) -> None:
        state = torch.get_rng_state()
        first = fit_flow_copula(rows[:100], rows[:100], num_steps=30, seed=3)
        assert torch.equal(torch.get_rng_state(), state)
        torch.rand(7)
        again = fit_flow_copula(rows[:100], rows[:100], num_steps=30, seed=3)
        assert all(torch.equal(*pair) for pair in zip(first.weights, again.weights, strict=True))

    def test_independent_rows_give_independence(self) -> None:
        few = torch.rand(40, 4, dtype=torch.float64)
        copula = fit_flow_copula(few, few, num_steps=100)
        assert float(copula.log_prob(torch.rand(2000, 4, dtype=torch.float64)).mean()) > -0.1

    def test_rows_may_be_cells(self, rows: Tensor) -> None:
        low = (5 * rows).floor() / 5
        with torch.no_grad():  # gradients are taken whatever the caller has set
            copula = fit_flow_copula(low, (low + 0.2).clamp(max=1), num_steps=100)
        assert float(copula.log_prob(rows).mean()) > 0.1

    @pytest.mark.parametrize(
        ("low", "high", "match"),
        [
            (torch.rand(9, 2), None, "at least 10 public rows"),
            (torch.rand(20, 1), None, "at least 10 public rows of 2 columns, got 20 of 1"),
            (torch.full((20, 2), 0.5), torch.full((20, 2), 0.4), "low must be at most high"),
            (torch.full((20, 2), math.nan), None, "low must be at most high"),
        ],
    )
    def test_what_are_not_rows(self, low: Tensor, high: Tensor | None, match: str) -> None:
        with pytest.raises(ValueError, match=match):
            fit_flow_copula(low, low if high is None else high)

    @pytest.mark.parametrize("arguments", [{"num_steps": 0}, {"batch_size": 0}, {"learning_rate": 0.0}])
    def test_arguments(self, arguments: dict[str, float]) -> None:
        with pytest.raises(ValueError, match=next(iter(arguments))):
            fit_flow_copula(torch.rand(20, 2), torch.rand(20, 2).clamp(1, 1), **arguments)

    def test_without_zuko(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "zuko.nn", None)
        with pytest.raises(ImportError, match=r"pip install 'pyro_mbde\[flows\]'"):
            fit_flow_copula(torch.zeros(20, 2), torch.ones(20, 2))


class TestDensity:
    def test_it_integrates_to_1(self, rows: Tensor) -> None:
        copula = fit_flow_copula(rows[:500, :2], rows[:500, :2], num_steps=50)
        scores = torch.linspace(-8, 8, 201, dtype=torch.float64)
        points = torch.special.ndtr(torch.cartesian_prod(scores, scores))
        normal = torch.exp(-torch.cartesian_prod(scores, scores).square().sum(-1) / 2) / (2 * math.pi) * 0.08**2
        assert float((copula.log_prob(points).exp() * normal).sum()) == pytest.approx(1, abs=1e-3)

    def test_draws_have_the_density(self) -> None:
        """Change of variables at each draw: the Jacobian of the draws is 1 / density."""
        copula = wild(3)
        uniforms = torch.rand(20, 3, dtype=torch.float64)
        jacobian = torch.func.vmap(torch.func.jacrev(copula.from_uniforms))(uniforms)
        assert torch.allclose(-torch.linalg.det(jacobian).abs().log(), copula.log_prob(copula.from_uniforms(uniforms)))

    def test_draws_can_be_inverted(self) -> None:
        copula, uniforms = wild(3), torch.rand(5, 20, 3, dtype=torch.float64)
        assert torch.allclose(copula.to_uniforms(copula.from_uniforms(uniforms)), uniforms, atol=1e-9)
        assert copula.to_uniforms(uniforms[:0]).shape == (0, 20, 3)

    def test_chains_start_at_rows_over_a_flow(self) -> None:
        density, one = torch.ones(1), torch.tensor([0.0, 1.0])
        base = MixedBase([Marginal(one, density, density)] * 2, wild(2))
        target, rows = LatentTarget(base), base.sample((20,))
        assert torch.allclose(target.constrain(target.unconstrain({"x": rows}))["x"], rows, atol=1e-5)

    def test_draws_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        copula, uniforms = wild(3), torch.rand(4, 25, 3, dtype=torch.float64)
        draws = copula.from_uniforms(uniforms)
        density = copula.log_prob(draws)
        cells = copula.log_prob_of_cells(draws / 2, draws)
        monkeypatch.setattr("pyro_mbde.density.flow_copula._MAX_NUMBERS", 200)
        assert torch.allclose(copula.from_uniforms(uniforms), draws)
        assert torch.allclose(copula.log_prob(draws), density)
        assert torch.allclose(copula.log_prob_of_cells(draws / 2, draws), cells)

    def test_faces(self) -> None:
        copula = wild(2)
        corners = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        draws = copula.from_uniforms(corners)
        assert bool(((draws > 0) & (draws < 1)).all())
        assert bool(torch.isfinite(copula.log_prob(corners)).all())
        unchecked = FlowCopula(copula.weights, 2, [16], 4, validate_args=False)
        assert unchecked.log_prob(torch.tensor([[1.5, 0.5], [math.nan, 0.5]])).tolist() == [-math.inf] * 2

    def test_gradients_and_vmap(self) -> None:
        copula = wild(3)
        value = (0.1 + 0.8 * torch.rand(4, 3, dtype=torch.float64)).requires_grad_()
        assert torch.autograd.gradcheck(copula.log_prob, value)
        unchecked = FlowCopula(copula.weights, 3, [16], 4, validate_args=False)
        assert torch.allclose(torch.vmap(unchecked.log_prob)(value), copula.log_prob(value))


class TestCells:
    def test_points_have_the_density(self) -> None:
        copula = wild(3)
        value = copula.sample((2, 30)).double()
        assert torch.allclose(copula.log_prob_of_cells(value, value), copula.log_prob(value))

    def test_all_cells_sum_to_1(self) -> None:
        copula = wild(3)
        edges = torch.tensor([0.0, 1e-3, 0.3, 0.9, 1.0], dtype=torch.float64)
        low, high = (torch.cartesian_prod(edge, edge, edge) for edge in (edges[:-1], edges[1:]))
        assert float(copula.log_prob_of_cells(low, high).logsumexp(0)) == pytest.approx(0, abs=2e-3)

    def test_cells_hold_as_many_draws(self, copula: FlowCopula) -> None:
        draws = copula.from_uniforms(torch.rand(40_000, 3, dtype=torch.float64))
        edges = torch.tensor([0.0, 0.4, 1.0], dtype=torch.float64)
        low, high = (torch.cartesian_prod(edge, edge, edge) for edge in (edges[:-1], edges[1:]))
        inside = ((draws >= low.unsqueeze(1)) & (draws < high.unsqueeze(1))).all(2)
        assert torch.allclose(copula.log_prob_of_cells(low, high).exp(), inside.double().mean(1), atol=0.015)

    def test_an_interval_after_points_is_exact(self) -> None:
        """All cells of the last coordinate sum to the density of the points before it."""
        copula = wild(2)
        points = torch.rand(40, 1, dtype=torch.float64)
        edges = torch.tensor([0.0, 1e-6, 0.3, 0.30001, 0.9, 1.0], dtype=torch.float64)
        cells = [
            copula.log_prob_of_cells(*(torch.cat([points, edge.expand(40, 1)], 1) for edge in pair))
            for pair in zip(edges[:-1], edges[1:], strict=True)
        ]
        whole = torch.cat([points, torch.zeros_like(points)], 1), torch.cat([points, torch.ones_like(points)], 1)
        assert torch.allclose(torch.stack(cells).logsumexp(0), copula.log_prob_of_cells(*whole), atol=1e-9)

    def test_narrow_cells_have_the_density_times_their_width(self, copula: FlowCopula) -> None:
        value = 0.01 + 0.98 * torch.rand(50, 3, dtype=torch.float64)
        low, high = value - 1e-5, value + 1e-5
        expected = copula.log_prob(value) + (high - low).log().sum(-1)
        assert torch.allclose(copula.log_prob_of_cells(low, high), expected, atol=5e-3)

    def test_extreme_cells(self) -> None:
        """Attack: edges next to the faces and to one another. Values and gradients stay finite."""
        copula = wild(3)
        low_edges = [0.0, 5e-324, 1e-300, 1e-17, 1e-3, 0.5]
        edges = torch.tensor([*low_edges, 0.5 + 2**-53, 0.999, 1 - 2**-52, 1 - 2**-53, 1.0], dtype=torch.float64)
        ends = edges[torch.randint(len(edges), (2, 1000, 3))].sort(0).values
        value = ends[0].clone().requires_grad_()
        found = copula.log_prob_of_cells(value, torch.where(ends[0] == ends[1], value, ends[1]))
        (gradient,) = torch.autograd.grad(found.sum(), value)
        assert bool(torch.isfinite(found).all() and torch.isfinite(gradient).all())
        assert copula.log_prob_of_cells(ends[0][:0], ends[1][:0]).shape == (0,)

    def test_cells_must_be_cells(self) -> None:
        copula = FlowCopula(wild(2).weights, 2, [16], 4, validate_args=True)
        with pytest.raises(ValueError, match="low must be at most high"):
            copula.log_prob_of_cells(torch.tensor([0.5, 0.5]), torch.tensor([0.4, 0.5]))


class TestAsABase:
    def test_it_is_described_and_rebuilt(self) -> None:
        copula = wild(3)
        again = decode(encode(copula))
        value = copula.sample((20,))
        assert isinstance(again, FlowCopula)
        assert value.dtype == again.log_prob(value).dtype == torch.float32
        assert torch.equal(again.log_prob(value), copula.log_prob(value))
        assert repr(again) == "FlowCopula(num_dims=3, hidden_sizes=[16], num_bins=4)"

    def test_copies_in_another_dtype_are_the_same_distribution(self, copula: FlowCopula) -> None:
        narrow = convert_base(copula, dtype=torch.float32)
        wide = convert_base(narrow, dtype=torch.float64)
        uniforms = torch.rand(50, 3, dtype=torch.float64)
        assert torch.equal(narrow.from_uniforms(uniforms), copula.from_uniforms(uniforms))
        assert torch.equal(wide.log_prob(uniforms), copula.log_prob(uniforms))

    def test_it_is_a_base(self, copula: FlowCopula) -> None:
        prepared = prepare(copula)
        assert prepared.draws.shape == (4096, 3)
        assert bool(prepared.distribution.support.check(prepared.draws).all())

    @pytest.mark.parametrize(("index", "value"), [(0, torch.zeros(16, 2)), (1, torch.full((16,), math.nan))])
    def test_weights_that_do_not_fit(self, index: int, value: Tensor) -> None:
        weights = wild(3).weights
        weights[index] = value
        with pytest.raises(ValueError, match="weights must"):
            FlowCopula(weights, 3, [16], 4)
