"""The base of a batch, and the sum that its tilt is a function of."""

from __future__ import annotations

import math

import pyro.distributions as dist
import pytest
import torch
from densities import BASES, BATCHES, make_density, normal
from torch import nn

from pyro_mbde import MollifiedExpFamily
from pyro_mbde.density.base import prepare, reference_draws
from pyro_mbde.density.base_draws import SystemSource, TorchSource, system_generator
from pyro_mbde.density.bounds import Bounds
from pyro_mbde.density.row_batch import MAX_ROWS, RowBatch
from pyro_mbde.density.tilt import sum_of_scores
from pyro_mbde.serialization import decode, encode


class TestRowBatch:
    @pytest.mark.parametrize("name", ["normal-scalar", "normal-2d", "categorical", "dirichlet"])
    def test_density_and_moments_are_those_of_its_rows(self, name: str) -> None:
        row = BASES[name]()
        batch = RowBatch(row, 3)
        value = batch.sample((7,))
        assert value.shape == (7, 3, *row.event_shape)
        expected = sum(row.log_prob(value[:, index]) for index in range(3))
        assert torch.allclose(batch.log_prob(value), expected)
        assert bool(batch.support.check(value).all())
        if name.startswith("normal"):
            assert torch.equal(batch.mean, row.mean.expand(batch.event_shape))
            assert torch.equal(batch.variance, row.variance.expand(batch.event_shape))

    def test_it_is_described_and_rebuilt(self) -> None:
        batch = RowBatch(normal(2), 4)
        again = decode(encode(batch))
        value = batch.sample((3,))
        assert isinstance(again, RowBatch)
        assert (again.num_rows, again.event_shape) == (4, (4, 2))
        assert torch.equal(again.log_prob(value), batch.log_prob(value))

    @pytest.mark.parametrize(
        ("num_rows", "match"), [(0, "num_rows must be at least 1"), (MAX_ROWS + 1, "num_rows must be at most")]
    )
    def test_num_rows(self, num_rows: int, match: str) -> None:
        with pytest.raises(ValueError, match=match):
            RowBatch(normal(2), num_rows)

    def test_a_batch_shape_is_refused(self) -> None:
        with pytest.raises(ValueError, match="row must have an empty batch shape"):
            RowBatch(dist.Normal(torch.zeros(2), 1.0), 3)

    def test_boxes_are_closed(self) -> None:
        prepared = prepare(RowBatch(dist.Uniform(0.0, 1.0), 2))
        assert float(prepared.distribution.log_prob(torch.tensor([0.0, 1.0]))) == 0

    @pytest.mark.parametrize("num_rows", [1, 20, 5000])
    def test_reference_draws_stay_small(self, num_rows: int) -> None:
        draws = reference_draws(RowBatch(dist.Normal(0.0, 1.0), num_rows))
        assert draws.shape == (max(4096 // num_rows, 64), num_rows)

    @pytest.mark.parametrize("name", ["normal-2d", "categorical", "gamma"])
    def test_sources_draw_independent_rows(self, name: str) -> None:
        batch = RowBatch(BASES[name](), 3)
        with system_generator():
            for source in (TorchSource(batch), SystemSource(batch)):
                draws = source.propose(20_000).double().reshape(20_000, 3, -1)
                correlation = torch.corrcoef(draws[..., 0].T)
                assert float((correlation - torch.eye(3)).abs().max()) < 6 / math.sqrt(20_000)
                expected = BASES[name]().sample((60_000,)).double().reshape(60_000, -1).mean(0)
                assert torch.allclose(draws.mean((0, 1)), expected, atol=0.05)


class TestSumOfScores:
    @pytest.mark.parametrize("num_rows", [1, 2, 20, 1000])
    def test_the_same_bits_in_any_order_shape_and_layout(self, num_rows: int) -> None:
        """Attack: scores that cancel, of every size that they are held to."""
        generator = torch.Generator().manual_seed(0)
        scores = torch.randn(50, num_rows, dtype=torch.float64, generator=generator) * 10.0 ** torch.linspace(
            -9, 4, num_rows
        )
        expected = sum_of_scores(scores)
        assert float((expected - scores.clamp(-1024, 1024).sum(1)).abs().max()) < num_rows * 2.0**-31 + 1e-9
        order = torch.randperm(num_rows, generator=generator)
        assert torch.equal(sum_of_scores(scores[:, order]), expected)
        assert torch.equal(sum_of_scores(scores.T.contiguous().T), expected)
        assert torch.equal(torch.stack([sum_of_scores(batch) for batch in scores]), expected)
        assert torch.equal(sum_of_scores(torch.cat([scores, -scores], 1)), torch.zeros(50, dtype=torch.float64))

    def test_the_largest_batch_does_not_overflow(self) -> None:
        total = sum_of_scores(torch.tensor([1e300], dtype=torch.float64).expand(MAX_ROWS))
        assert float(total) == 1024.0 * MAX_ROWS

    def test_the_gradient_is_that_of_a_sum(self) -> None:
        scores = torch.tensor([[0.3, -2.0, 5000.0]], dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(sum_of_scores(scores).sum(), scores)
        assert gradient.tolist() == [[1.0, 1.0, 0.0]]
        by_func = torch.func.grad(lambda value: torch.vmap(sum_of_scores)(value).sum())(scores.detach())
        assert torch.equal(by_func, gradient)
        with torch.no_grad():
            assert torch.equal(sum_of_scores(scores), sum_of_scores(scores.detach()))


@pytest.mark.parametrize("name", sorted(BATCHES))
def test_the_accepted_tilt_is_one_function_whatever_is_beside(name: str) -> None:
    density = make_density(BATCHES[name]())
    value = density.sample((700,))
    expected = density.accepted_tilt(value)
    assert torch.equal(density.accepted_tilt(value.flip(0)).flip(0), expected)
    assert torch.equal(torch.cat([density.accepted_tilt(part) for part in value.split(37)]), expected)
    with torch.no_grad(), torch.autocast("cpu"):
        assert torch.equal(density.accepted_tilt(value), expected)
    assert torch.allclose(density.tilt(value), expected, atol=1e-5)
    # The order of rows in a batch does not matter either.
    assert torch.equal(density.accepted_tilt(value.flip(1)), expected)


class Broken(nn.Module):
    """Infinite, NaN and huge by where a row lies."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        x = features[..., :1]
        return torch.where(
            x > 1, math.inf, torch.where(x < -1, -math.inf, torch.where(x.abs() < 0.2, math.nan, 1e30 * x))
        )


def test_a_tilt_of_broken_scores_is_in_its_bounds() -> None:
    bounds = Bounds(-0.5, 1.5)
    arguments = {"bounds": bounds, "offset": 0.1}
    q = MollifiedExpFamily(
        RowBatch(normal(2), 4), Broken(), torch.tensor([1e300], dtype=torch.float64), 0.0, **arguments
    )
    value = q.base.sample((2000,))
    for tilt in (q.tilt(value), q.accepted_tilt(value)):
        assert bool(((tilt >= bounds.low) & (tilt <= bounds.high)).all())
    assert bool(torch.isfinite(q.log_prob(value)).all())
