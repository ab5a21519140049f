"""Bernstein polynomials in closed form, and the densities that they are."""

from __future__ import annotations

import math

import pyro.distributions as dist
import pytest
import torch
from scipy import stats

from pyro_mbde.experiments.baselines.polynomials import (
    BernsteinDensity,
    along_axes,
    iterate,
    least_value,
    log_basis,
)
from pyro_mbde.privacy.group import GroupGuarantee


def density_of(coefficients: torch.Tensor, low: object = None, high: object = None) -> BernsteinDensity:
    """A density with these coefficients, on the unit cube unless told."""
    shape = (coefficients.dim(),) if coefficients.dim() > 1 else ()
    low = torch.zeros(shape) if low is None else low
    high = torch.ones(shape) if high is None else high
    return BernsteinDensity(
        low, high, coefficients.double(), bandwidth=0.05, noise_scale=0.0, guarantee=GroupGuarantee(math.inf)
    )


@pytest.mark.parametrize("degree", [1, 2, 7, 40, 200, 1000])
def test_the_basis_is_a_binomial_law(degree: int) -> None:
    points = torch.tensor([0.0, 1e-9, 0.1, 0.5, 0.99, 1.0], dtype=torch.float64)
    basis = log_basis(points, degree).exp()
    expected = stats.binom.pmf(torch.arange(degree + 1).numpy(), degree, points.unsqueeze(-1).numpy())
    torch.testing.assert_close(basis, torch.from_numpy(expected), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(basis.sum(-1), torch.ones(6, dtype=torch.float64))


@pytest.mark.parametrize("degree", [1, 5, 30])
def test_operator_on_powers(degree: int) -> None:
    """B x = x and B x^2 = x^2 + x (1 - x) / k, of which the iterated operator leaves x (1 - x) (-1/k)^... as below."""
    lattice = torch.arange(degree + 1).double() / degree
    x = torch.linspace(0, 1, 21, dtype=torch.float64)
    basis = log_basis(x, degree).exp()
    for iterations in (1, 2, 5):
        torch.testing.assert_close(basis @ iterate(lattice, iterations), x)
        torch.testing.assert_close(basis @ iterate(torch.ones_like(lattice), iterations), torch.ones_like(x))
        # (I - B) x^2 = -x (1 - x) / k and B (x (1 - x)) = (1 - 1/k) x (1 - x): (I - B)^h x^2 = -x (1 - x) / k^h.
        expected = x**2 + x * (1 - x) / degree**iterations
        torch.testing.assert_close(basis @ iterate(lattice**2, iterations), expected)


def test_tensor_products() -> None:
    """The operator of a product of functions of one coordinate each is the product of theirs."""
    lattice = torch.arange(9).double() / 8
    functions = [lattice**2, lattice.exp(), torch.cos(3 * lattice)]
    joint = torch.einsum("a,b,c->abc", *functions)
    matrix = log_basis(torch.rand(5, dtype=torch.float64), 8).exp()
    torch.testing.assert_close(along_axes(joint, matrix), torch.einsum("a,b,c->abc", *(matrix @ f for f in functions)))


def test_iteration_brings_the_polynomial_nearer() -> None:
    lattice, x = torch.arange(41).double() / 40, torch.linspace(0, 1, 101, dtype=torch.float64)
    errors = [
        float((log_basis(x, 40).exp() @ iterate(torch.sin(6 * lattice), order) - torch.sin(6 * x)).abs().max())
        for order in (1, 2, 3, 4)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[3] < errors[0] / 30


def test_least_values() -> None:
    # (1 - 2x)^2 - 0.1 has the Bernstein coefficients 1, -1, 1 of degree 2, less 0.1.
    coefficients = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64) - 0.1
    assert least_value(coefficients) == pytest.approx(-0.1, abs=1e-3)
    assert least_value(torch.einsum("a,b->ab", coefficients, torch.ones(3).double())) == pytest.approx(-0.1, abs=1e-3)
    assert least_value(torch.arange(5.0).double()) == 0.0


def test_moments_of_beta_mixtures() -> None:
    """One coefficient: Beta(v + 1, k - v + 1), with mean (v + 1)/(k + 2)."""
    coefficients = torch.zeros(7)
    coefficients[2] = 5.0
    density = density_of(coefficients)
    expected = dist.Beta(3.0, 5.0)
    x = torch.linspace(0.01, 0.99, 50)
    torch.testing.assert_close(density.log_prob(x), expected.log_prob(x))
    draws = density.sample((40_000,))
    assert abs(float(draws.mean()) - 3 / 8) < 4 * math.sqrt(3 * 5 / 64 / 9 / 40_000)


def test_tails_are_exact_where_sums_underflow() -> None:
    """x^300 at 0.001 is 10^-900."""
    coefficients = torch.zeros(301)
    coefficients[300] = 1.0
    density = density_of(coefficients)
    x = torch.tensor([0.001, 0.1, 0.5, 1.0])
    torch.testing.assert_close(density.log_prob(x), math.log(301) + 300 * x.log())
    corner = torch.zeros(101, 101)
    corner[100, 100] = 1.0
    points = torch.tensor([[0.001, 0.002], [1.0, 1.0]])
    torch.testing.assert_close(density_of(corner).log_prob(points), 2 * math.log(101) + 100 * points.log().sum(1))


def test_edges() -> None:
    """Closed edges: the coefficient there is the density; 0 there is -inf, and outside too."""
    density = density_of(torch.tensor([2.0, 1.0, 0.0]))
    values = density.log_prob(torch.tensor([0.0, 1.0, -0.1, 1.1, torch.nan, torch.inf]))
    assert float(values[0]) == pytest.approx(math.log(2.0), abs=1e-6)
    assert values[1:].tolist() == [-math.inf] * 5
    plane = density_of(torch.ones(3, 3))
    assert plane.log_prob(torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])).abs().max() < 1e-6
    assert plane.log_prob(torch.tensor([[0.5, 1.5]])).tolist() == [-math.inf]


def test_signed_polynomials_are_held_at_a_floor() -> None:
    """(1 - 2x)^2 - 0.01 is negative in the middle: no NaN, and draws that avoid it."""
    density = density_of(torch.tensor([0.99, -1.01, 0.99]))
    x = torch.linspace(0, 1, 1001)
    values = density.log_prob(x)
    assert torch.isfinite(values).all()
    assert float(values.min()) == pytest.approx(math.log(1e-12), abs=1e-3)
    draws = density.sample((5000,))
    assert not ((draws - 0.5).abs() < 0.049).any()


@pytest.mark.parametrize("shape", [(4,), (3, 3)])
def test_nothing_left_is_uniform(shape: tuple[int, ...]) -> None:
    density = density_of(torch.zeros(shape))
    assert density.log_prob(density.sample((10,))).abs().max() < 1e-6
