"""The Gaussian copula: draws, densities, and probabilities of cells against exact ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from torch import Tensor

from pyro_mbde.density.base import convert_base, prepare
from pyro_mbde.density.copula import MIN_EIGENVALUE, GaussianCopula
from pyro_mbde.serialization import decode, encode


def equal_correlations(num_dims: int, value: float) -> Tensor:
    return torch.full((num_dims, num_dims), value, dtype=torch.float64).fill_diagonal_(1.0)


def exact_probabilities(value: float, low: Tensor, high: Tensor) -> Tensor:
    """Under equal correlations z_i = sqrt(value) t + sqrt(1 - value) e_i: an integral over t alone."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    low_scores, high_scores = (scipy.special.ndtri(edge.numpy())[:, None, :] for edge in (low, high))
    shift, deviation = math.sqrt(value) * nodes[:, None], math.sqrt(1 - value)
    inside = scipy.special.ndtr((high_scores - shift) / deviation) - scipy.special.ndtr(
        (low_scores - shift) / deviation
    )
    return torch.from_numpy((weights * inside.prod(-1)).sum(-1) / math.sqrt(2 * math.pi))


def grid_cells(edges: list[float], num_dims: int) -> tuple[Tensor, Tensor]:
    """All cells of a grid, shape (k^d, d)."""
    wide = torch.tensor(edges, dtype=torch.float64)
    low, high = (torch.cartesian_prod(*[edge] * num_dims) for edge in (wide[:-1], wide[1:]))
    return low, high


CHAIN = torch.tensor(
    [
        [1.0, 0.6, 0.0, 0.3, 0.0],
        [0.6, 1.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 1.0, 0.0, 0.0],
        [0.3, 0.0, 0.0, 1.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 1.0],
    ],
    dtype=torch.float64,
)


class TestDraws:
    def test_scores_have_the_correlations_and_coordinates_are_uniform(self) -> None:
        copula = GaussianCopula(CHAIN)
        draws = copula.from_uniforms(torch.rand(40_000, 5, dtype=torch.float64))
        correlation = torch.corrcoef(torch.special.ndtri(draws).T)
        assert float((correlation - CHAIN).abs().max()) < 6 / math.sqrt(40_000)
        for column in draws.unbind(-1):
            assert scipy.stats.kstest(column.numpy(), "uniform").pvalue > 1e-6

    def test_uncorrelated_coordinates_are_the_uniforms_themselves(self) -> None:
        uniforms = torch.rand(100, 5, dtype=torch.float64)
        draws = GaussianCopula(CHAIN).from_uniforms(uniforms)
        assert torch.equal(draws[:, [2, 4]], uniforms[:, [2, 4]])
        assert torch.allclose(draws[:, 0], uniforms[:, 0], rtol=1e-14)

    def test_a_row_does_not_depend_on_those_beside_it(self) -> None:
        copula = GaussianCopula(equal_correlations(7, 0.4))
        uniforms = torch.rand(300, 7, dtype=torch.float64)
        draws = copula.from_uniforms(uniforms)
        assert torch.equal(copula.from_uniforms(uniforms.flip(0)).flip(0), draws)
        assert torch.equal(torch.cat([copula.from_uniforms(part) for part in uniforms.split(7)]), draws)
        assert torch.equal(copula.from_uniforms(uniforms[5]), draws[5])

    @pytest.mark.parametrize("correlation", [0.99, -0.99])
    def test_faces_are_never_reached(self, correlation: float) -> None:
        copula = GaussianCopula(equal_correlations(2, correlation))
        corners = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        draws = copula.from_uniforms(corners)
        assert bool(((draws > 0) & (draws < 1)).all())
        assert bool(torch.isfinite(copula.log_prob(draws)).all() and torch.isfinite(copula.log_prob(corners)).all())

    def test_both_tails_are_alike(self) -> None:
        copula = GaussianCopula(equal_correlations(3, 0.5))
        uniforms = 2.0 ** -(1 + 27 * torch.rand(1000, 3, dtype=torch.float64))
        lower, upper = copula.from_uniforms(uniforms), copula.from_uniforms(1 - uniforms)
        # 1 - u and 1 - v are rounded to multiples of 2^-53.
        exact = (uniforms > 1e-9).all(1) & (lower > 1e-9).all(1)
        assert int(exact.sum()) > 100
        assert float(((1 - upper)[exact] / lower[exact] - 1).abs().max()) < 1e-4

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_samples(self, dtype: torch.dtype) -> None:
        copula = GaussianCopula(CHAIN.to(dtype))
        draws = copula.sample((3, 4))
        assert draws.shape == (3, 4, 5)
        assert draws.dtype == copula.log_prob(draws).dtype == copula.mean.dtype == dtype
        assert bool(copula.support.check(draws).all())
        assert float(copula.variance[0]) == pytest.approx(1 / 12)


class TestDensity:
    def test_it_is_the_ratio_of_normal_densities(self) -> None:
        copula = GaussianCopula(CHAIN)
        value = copula.sample((50,))
        scores = torch.special.ndtri(value)
        joint = torch.distributions.MultivariateNormal(torch.zeros(5).double(), copula.correlation)
        alone = torch.distributions.Normal(0.0, 1.0)
        assert torch.allclose(copula.log_prob(value), joint.log_prob(scores) - alone.log_prob(scores).sum(-1))

    def test_independence_has_density_1(self) -> None:
        copula = GaussianCopula(torch.eye(3))
        assert copula.log_prob(copula.sample((10,))).tolist() == [0.0] * 10

    def test_it_integrates_to_1(self) -> None:
        nodes = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
        density = GaussianCopula(equal_correlations(2, 0.3)).log_prob(torch.cartesian_prod(nodes, nodes)).exp()
        assert float(density.mean()) == pytest.approx(1, abs=1e-3)

    def test_gradients_and_vmap(self) -> None:
        copula = GaussianCopula(CHAIN)
        value = copula.sample((4,)).requires_grad_()
        assert torch.autograd.gradcheck(copula.log_prob, value)
        unchecked = GaussianCopula(CHAIN, validate_args=False)
        assert torch.equal(torch.vmap(unchecked.log_prob)(value), copula.log_prob(value))

    def test_values_outside_the_cube(self) -> None:
        unchecked = GaussianCopula(torch.eye(2), validate_args=False)
        assert unchecked.log_prob(torch.tensor([[1.5, 0.5], [math.nan, 0.5]])).tolist() == [-math.inf] * 2
        with pytest.raises(ValueError, match="support"):
            GaussianCopula(torch.eye(2), validate_args=True).log_prob(torch.tensor([1.5, 0.5]))


class TestCells:
    def test_points_have_the_density(self) -> None:
        copula = GaussianCopula(CHAIN)
        value = copula.sample((3, 20))
        assert torch.allclose(copula.log_prob_of_cells(value, value), copula.log_prob(value), atol=1e-12)

    @pytest.mark.parametrize("correlation", [-0.9, -0.3, 0.5, 0.95])
    def test_rectangles(self, correlation: float) -> None:
        copula = GaussianCopula(equal_correlations(2, correlation))
        low, high = grid_cells([0.0, 1e-4, 0.2, 0.5, 0.8, 0.9999, 1.0], 2)
        normal = scipy.stats.multivariate_normal(cov=copula.correlation.numpy())

        def below(corner: Tensor) -> np.ndarray:
            return normal.cdf(scipy.special.ndtri(corner.numpy()).clip(-30, 30))

        expected = np.zeros(len(low))
        for sign, columns in ((1, (1, 1)), (-1, (0, 1)), (-1, (1, 0)), (1, (0, 0))):
            corner = torch.stack([(low, high)[upper][:, axis] for axis, upper in enumerate(columns)], 1)
            expected = expected + sign * below(corner)
        found = copula.log_prob_of_cells(low, high).exp()
        assert torch.allclose(found, torch.from_numpy(expected), rtol=1e-4, atol=1e-9)

    @pytest.mark.parametrize(("num_dims", "correlation"), [(2, 0.5), (3, 0.7), (5, 0.7), (7, 0.5), (10, 0.7)])
    def test_equal_correlations(self, num_dims: int, correlation: float) -> None:
        copula = GaussianCopula(equal_correlations(num_dims, correlation))
        edges = torch.tensor([0.0, 0.01, 0.3, 0.5, 0.9, 1.0], dtype=torch.float64)
        cells = torch.bucketize(copula.sample((200,)), edges).clamp(1, 5)
        cells[::2] = torch.randint(1, 6, cells[::2].shape)  # also cells that hardly any draw falls in
        low, high = edges[cells - 1], edges[cells]
        error = copula.log_prob_of_cells(low, high) - exact_probabilities(correlation, low, high).log()
        assert float(error.square().mean().sqrt()) < 2e-3
        assert float(error.abs().max()) < 1e-2

    @pytest.mark.parametrize("num_dims", [2, 3, 5])
    def test_all_cells_sum_to_1(self, num_dims: int) -> None:
        copula = GaussianCopula(CHAIN[:num_dims, :num_dims])
        low, high = grid_cells([0.0, 0.1, 0.6, 1.0], num_dims)
        assert float(copula.log_prob_of_cells(low, high).logsumexp(0)) == pytest.approx(0, abs=1e-4)

    def test_intervals_given_points(self) -> None:
        """All cells of an interval coordinate sum to the density of the points beside it."""
        correlation = torch.tensor([[1.0, 0.4, 0.5], [0.4, 1.0, -0.3], [0.5, -0.3, 1.0]], dtype=torch.float64)
        copula = GaussianCopula(correlation)
        points = copula.sample((50,))
        edges = torch.tensor([0.0, 1e-6, 0.3, 0.30001, 0.9, 1.0], dtype=torch.float64)
        parts = []
        for low, high in zip(edges[:-1], edges[1:], strict=True):
            cell = points.clone(), points.clone()
            cell[0][:, 1], cell[1][:, 1] = low, high
            parts.append(copula.log_prob_of_cells(*cell))
        pair = GaussianCopula(correlation[[0, 2]][:, [0, 2]])
        assert torch.allclose(torch.stack(parts).logsumexp(0), pair.log_prob(points[:, [0, 2]]), atol=1e-10)

    @pytest.mark.parametrize("width", [1e-3, 1e-5, 1e-7, 1e-9, 1e-14])
    def test_narrow_cells_have_the_density_times_their_width(self, width: float) -> None:
        copula = GaussianCopula(equal_correlations(3, 0.6))
        value = 0.01 + 0.98 * copula.sample((100,))
        low, high = value - width / 2, value + width / 2
        expected = copula.log_prob(value) + (high - low).log().sum(-1)
        assert torch.allclose(copula.log_prob_of_cells(low, high), expected, atol=5e-3 if width == 1e-3 else 1e-6)

    def test_independent_groups_factor_out(self) -> None:
        copula = GaussianCopula(CHAIN)
        low = 0.9 * torch.rand(60, 5, dtype=torch.float64)
        high = low + 0.1 * torch.rand(60, 5, dtype=torch.float64) * (torch.rand(60, 5) < 0.7)
        group = GaussianCopula(CHAIN[[0, 1, 3]][:, [0, 1, 3]])
        width = (high - low)[:, [2, 4]]
        expected = group.log_prob_of_cells(low[:, [0, 1, 3]], high[:, [0, 1, 3]])
        expected = expected + torch.where(width > 0, width, 1.0).log().sum(-1)
        assert torch.allclose(copula.log_prob_of_cells(low, high), expected, atol=1e-13)

    def test_the_same_in_any_batch(self) -> None:
        copula = GaussianCopula(equal_correlations(4, 0.5))
        low = 0.9 * torch.rand(50, 4, dtype=torch.float64)
        high = low + 0.1 * (torch.rand(50, 4) < 0.7)
        found = copula.log_prob_of_cells(low, high)
        assert torch.allclose(copula.log_prob_of_cells(low.flip(0), high.flip(0)).flip(0), found, atol=1e-13)
        one_by_one = [copula.log_prob_of_cells(*edges) for edges in zip(low, high, strict=True)]
        assert torch.allclose(torch.stack(one_by_one), found, atol=1e-13)
        assert copula.log_prob_of_cells(low[:0], high[:0]).shape == (0,)

    @pytest.mark.parametrize("correlation", [0.3, 0.95])
    def test_extreme_cells(self, correlation: float) -> None:
        """Attack: edges next to the faces and to one another. Values and gradients stay finite."""
        copula = GaussianCopula(equal_correlations(3, correlation))
        low_edges = [0.0, 5e-324, 1e-300, 1e-100, 1e-17, 1e-3, 0.5]
        edges = torch.tensor([*low_edges, 0.5 + 2**-53, 0.999, 1 - 2**-52, 1 - 2**-53, 1.0], dtype=torch.float64)
        ends = edges[torch.randint(len(edges), (2, 2000, 3))].sort(0).values
        value = ends[0].clone().requires_grad_()
        found = copula.log_prob_of_cells(value, torch.where(ends[0] == ends[1], value, ends[1]))
        (gradient,) = torch.autograd.grad(found.sum(), value)
        assert bool(torch.isfinite(found).all() and torch.isfinite(gradient).all())

    def test_gradients_to_points(self) -> None:
        copula = GaussianCopula(equal_correlations(3, 0.5))
        edges = torch.tensor([[0.2], [0.5]], dtype=torch.float64)

        def by_points(points: Tensor) -> Tensor:
            low, high = (torch.cat([edge.expand(len(points), 1), points], 1) for edge in edges)
            return copula.log_prob_of_cells(low, high)

        assert torch.autograd.gradcheck(by_points, copula.sample((4,))[:, 1:].requires_grad_())

    def test_gradients_after_inference_mode(self) -> None:
        copula = GaussianCopula(equal_correlations(9, 0.1))
        low, high = torch.zeros(2, 9, dtype=torch.float64), torch.full((2, 9), 0.5, dtype=torch.float64)
        low[:, 0] = high[:, 0] = 0.3
        with torch.inference_mode():
            expected = copula.log_prob_of_cells(low, high)
        value = low.requires_grad_()
        found = copula.log_prob_of_cells(value, torch.where(low == high, value, high))
        assert torch.equal(found, expected)
        assert bool(torch.autograd.grad(found.sum(), value)[0][:, 0].all())

    def test_cells_must_be_cells(self) -> None:
        copula = GaussianCopula(torch.eye(2), validate_args=True)
        with pytest.raises(ValueError, match="low must be at most high"):
            copula.log_prob_of_cells(torch.tensor([0.5, 0.5]), torch.tensor([0.4, 0.5]))
        with pytest.raises(ValueError, match="support"):
            copula.log_prob_of_cells(torch.tensor([0.5, 0.5]), torch.tensor([1.4, 0.5]))


class TestAsABase:
    def test_it_is_described_and_rebuilt(self) -> None:
        copula = GaussianCopula(CHAIN.float())
        again = decode(encode(copula))
        value = copula.sample((20,))
        assert isinstance(again, GaussianCopula)
        assert torch.equal(again.log_prob(value), copula.log_prob(value))
        assert repr(again) == "GaussianCopula(num_dims=5, correlated_groups=1)"

    def test_copies_in_another_dtype_are_the_same_distribution(self) -> None:
        copula = GaussianCopula(equal_correlations(3, 0.7))
        narrow = convert_base(copula, dtype=torch.float32)
        wide = convert_base(narrow, dtype=torch.float64)
        uniforms = torch.rand(50, 3, dtype=torch.float64)
        assert torch.equal(narrow.from_uniforms(uniforms), copula.from_uniforms(uniforms))
        assert torch.equal(wide.log_prob(uniforms), copula.log_prob(uniforms))

    def test_it_is_a_base(self) -> None:
        assert prepare(GaussianCopula(CHAIN)).draws.shape == (4096, 5)


class TestArguments:
    @pytest.mark.parametrize(
        ("correlation", "match"),
        [
            (torch.ones(2), r"have shape \(d, d\)"),
            (torch.ones(0, 0), r"have shape \(d, d\)"),
            (2 * torch.eye(2), "a diagonal of 1"),
            (torch.tensor([[1.0, 0.5], [0.4, 1.0]]), "be symmetric"),
            (torch.tensor([[1.0, math.nan], [math.nan, 1.0]]), "be symmetric"),
            (torch.tensor([[1.0, 1.0], [1.0, 1.0]]), "no eigenvalue below 1e-05"),
            (torch.tensor([[1.0, 2.0], [2.0, 1.0]]), "no eigenvalue below 1e-05"),
            (equal_correlations(3, -0.5), "no eigenvalue below 1e-05"),
        ],
    )
    def test_what_is_not_a_correlation_matrix(self, correlation: Tensor, match: str) -> None:
        with pytest.raises(ValueError, match=match):
            GaussianCopula(correlation)

    @pytest.mark.parametrize("correlation", [[[1.0]], torch.ones(1, 1, dtype=torch.int64), torch.ones(1, 1).half()])
    def test_what_is_not_a_tensor_of_floats(self, correlation: object) -> None:
        with pytest.raises(TypeError, match="be a tensor of float32 or float64"):
            GaussianCopula(correlation)  # type: ignore[arg-type]

    def test_the_strongest_correlation_allowed(self) -> None:
        copula = GaussianCopula(equal_correlations(2, 1 - 1.1 * MIN_EIGENVALUE))
        assert bool(torch.isfinite(copula.log_prob(copula.sample((1000,)))).all())
