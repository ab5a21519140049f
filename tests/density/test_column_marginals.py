"""The public distribution of one column: its law, its inverse, its missing values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pyro_mbde.density.marginals import MAX_CELLS, Marginal
from pyro_mbde.serialization import decode, encode

NUM_DRAWS = 100_000


def _levels(*shares: float, kind: str = "category", missing_share: float = 0.0) -> Marginal:
    masses = torch.tensor(shares)
    return Marginal(torch.arange(len(shares) + 1.0), masses, masses, kind, missing_share)


MARGINALS = {
    "uniform": Marginal(torch.tensor([-1.0, 3.0]), torch.ones(1), torch.ones(1)),
    "steps with a jump": Marginal(torch.tensor([0.0, 1.0, 5.0]), torch.tensor([3.0, 0.1]), torch.tensor([1.0, 0.4])),
    "from and to 0": Marginal(torch.tensor([0.0, 1.0, 3.0]), torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])),
    "empty cells": Marginal(
        torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, 2.0]), torch.tensor([1.0, 0.0, 2.0])
    ),
    "real with missing": Marginal(torch.tensor([0.0, 2.0]), torch.tensor([1.0]), torch.tensor([0.5]), "real", 0.3),
    "whole numbers": Marginal(torch.tensor([0.0, 20.0, 111.0]), torch.ones(2), torch.tensor([1.0, 0.0]), "integer"),
    "wide whole numbers": Marginal(
        torch.tensor([0.0, 10.0, 100_001.0]), torch.tensor([5.0, 0.1]), torch.tensor([5.0, 0.0]), "integer", 0.01
    ),
    "levels": _levels(0.5, 0.3, 0.2),
    "ordered with missing": _levels(0.2, 0.7, 0.1, kind="ordered", missing_share=0.05),
}


def _all_values(marginal: Marginal) -> Tensor:
    values = torch.arange(marginal.low, marginal.high + 1)
    return torch.cat([torch.tensor([marginal.missing_value]), values]) if marginal.missing_share else values


@pytest.mark.parametrize("name", MARGINALS)
def test_probabilities_sum_to_1(name: str) -> None:
    marginal = MARGINALS[name]
    if marginal.is_discrete:
        total = float(marginal.log_prob(_all_values(marginal)).double().exp().sum())
        assert total == pytest.approx(1, abs=1e-5)
        return
    places = torch.linspace(marginal.low, marginal.high, 400_001)
    density = marginal.log_prob(places).double().exp()
    total = float(torch.trapezoid(density, places.double()))
    assert total == pytest.approx(1 - marginal.missing_share, abs=1e-4)


@pytest.mark.parametrize("name", MARGINALS)
def test_draws_follow_the_distribution_function(name: str) -> None:
    marginal = MARGINALS[name]
    torch.manual_seed(0)
    draws = marginal.sample((NUM_DRAWS,))
    assert bool(marginal.support.check(draws).all())
    low, high = marginal.cdf_interval(draws)
    # A point's place in its interval, at random, is uniform.
    places = (low + (high - low) * torch.rand(NUM_DRAWS, dtype=torch.float64)).sort().values
    distance = float((places - torch.arange(1, NUM_DRAWS + 1) / NUM_DRAWS).abs().max())
    assert distance < 2.0 / math.sqrt(NUM_DRAWS)  # chance exceeds it with probability 7e-4
    if marginal.missing_share:
        share = float((draws == marginal.missing_value).double().mean())
        assert share == pytest.approx(marginal.missing_share, abs=4 * math.sqrt(0.25 / NUM_DRAWS))


@pytest.mark.parametrize("name", [name for name in MARGINALS if MARGINALS[name].is_discrete])
def test_the_law_of_draws_is_log_prob_at_every_point(name: str) -> None:
    """The inverse meets every point on exactly the interval that log_prob measures, at both of its ends."""
    marginal = MARGINALS[name]
    values = _all_values(marginal)[:2000]
    low, high = marginal.cdf_interval(values)
    usable = high - low > 1e-9
    inside = torch.stack([low + 1e-12, (low + high) / 2, high - 1e-12], -1)[usable]
    assert torch.equal(marginal.from_uniforms(inside), values[usable].unsqueeze(-1).expand(-1, 3))


@pytest.mark.parametrize("name", ["uniform", "steps with a jump", "from and to 0", "real with missing"])
def test_the_inverse_undoes_the_distribution_function(name: str) -> None:
    marginal = MARGINALS[name]
    wide = Marginal(marginal.edges.double(), marginal.left.double(), marginal.right.double(), "real")
    levels = torch.linspace(0, 1, 10_001, dtype=torch.float64)
    back, _ = wide.cdf_interval(wide.from_uniforms(levels))
    assert torch.allclose(back, levels, atol=1e-12)


def test_a_density_of_0_between_two_parts_is_never_met() -> None:
    draws = MARGINALS["empty cells"].from_uniforms(torch.rand(NUM_DRAWS, dtype=torch.float64))
    assert not bool(((draws > 1) & (draws < 2)).any())


@pytest.mark.parametrize("name", MARGINALS)
def test_values_outside_have_no_density(name: str) -> None:
    marginal = MARGINALS[name]
    with pytest.raises(ValueError, match="within the support"):
        marginal.log_prob(torch.tensor(marginal.high + 1))
    marginal = decode(encode(marginal))  # without argument checks
    outside = torch.tensor([marginal.low - 0.5, marginal.high + 1, marginal.missing_value - 1])
    assert bool((marginal.log_prob(outside) == -torch.inf).all())
    is_possible = bool(torch.isfinite(marginal.log_prob(torch.tensor(marginal.missing_value))))
    assert is_possible == (marginal.missing_share > 0)
    if marginal.is_discrete:
        assert float(marginal.log_prob(torch.tensor(marginal.low + 0.5))) == -math.inf


@pytest.mark.parametrize("name", MARGINALS)
def test_it_is_described_and_rebuilt(name: str) -> None:
    marginal = MARGINALS[name]
    again = decode(encode(marginal))
    levels = torch.linspace(0, 1, 101, dtype=torch.float64)
    assert torch.equal(again.from_uniforms(levels), marginal.from_uniforms(levels))


def test_gradients_of_the_density_are_those_of_its_slope() -> None:
    value = torch.tensor([0.25, 0.75, 2.0], requires_grad=True)
    log_density = MARGINALS["from and to 0"].log_prob(value)
    (gradient,) = torch.autograd.grad(log_density.sum(), value)
    assert torch.allclose(gradient, torch.tensor([4.0, 1 / 0.75, -1.0]))


@pytest.mark.parametrize(
    ("edges", "left", "right", "options", "message"),
    [
        ([1.0, 0.0], [1.0], [1.0], {}, "edges must rise"),
        ([0.0], [], [], {}, "edges must rise"),
        ([0.0, 1.0], [1.0, 1.0], [1.0, 1.0], {}, "left and right must have shape"),
        ([0.0, 1.0], [-1.0], [1.0], {}, "at least 0"),
        ([0.0, 1.0], [0.0], [0.0], {}, "not all 0"),
        ([0.0, 1.5], [1.0], [1.0], {"kind": "integer"}, "whole numbers"),
        ([0.0, 1.0], [1.0], [1.0], {"kind": "text"}, "kind must be"),
        ([0.0, 1.0], [1.0], [1.0], {"missing_share": 1.0}, "missing_share must be"),
    ],
)
def test_impossible_tables_are_refused(
    edges: list[float], left: list[float], right: list[float], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Marginal(torch.tensor(edges), torch.tensor(left), torch.tensor(right), **options)


def test_there_is_a_limit_to_the_number_of_cells() -> None:
    ones = torch.ones(MAX_CELLS + 1)
    with pytest.raises(ValueError, match="edges must rise, 2 to 4097"):
        Marginal(torch.arange(MAX_CELLS + 2.0), ones, ones)
