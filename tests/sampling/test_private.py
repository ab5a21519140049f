"""Rows to hand out: fresh randomness, all of it, and nothing that depends on the table but the rows."""

from __future__ import annotations

import math
import threading

import pytest
import torch
from densities import BASES, density_over, make_density, normal
from scipy import stats
from torch import Tensor, nn

from pyro_mbde import MollifiedExpFamily, private_draws

INVERTED = ["normal-2d", "uniform-box", "multivariate-normal", "log-normal", "logit-normal", "transformed"]


@pytest.mark.parametrize("name", ["normal-2d", "mixture", "poisson"])
def test_fresh_randomness(name: str) -> None:
    density = density_over(name)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = private_draws(density, 40)
    torch.manual_seed(0)
    second = private_draws(density, 40)
    assert first.shape == (40, *density.event_shape)
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", sorted(BASES))
def test_every_base(name: str) -> None:
    density = density_over(name)
    draws = private_draws(density, 10, progress=False)
    assert draws.dtype == density.sample().dtype
    assert bool(torch.isfinite(density.log_prob(draws)).all())


@pytest.mark.parametrize("name", [*INVERTED, "mixture-2d"])
def test_they_follow_the_density(name: str) -> None:
    """Two-sample test of each coordinate against draws from torch's generator; level 1e-9 each."""
    density = make_density(BASES[name](), epsilon=5.0)
    draws = private_draws(density, 10_000).reshape(10_000, -1).double().numpy()
    reference = density.sample((20_000,)).reshape(20_000, -1).double().numpy()
    for index in range(draws.shape[1]):
        assert stats.ks_2samp(draws[:, index], reference[:, index]).pvalue > 1e-9


def test_a_seed_is_reported() -> None:
    density = make_density(normal(2))
    with pytest.warns(UserWarning, match="not private"):
        first = private_draws(density, 5, seed=1)
    with pytest.warns(UserWarning, match="not private"):
        assert torch.equal(private_draws(density, 5, seed=1), first)


@pytest.mark.parametrize("count", [0, -1])
def test_count(count: int) -> None:
    with pytest.raises(ValueError, match="num_draws must be at least 1"):
        private_draws(make_density(normal(2)), count)


def test_kind() -> None:
    with pytest.raises(TypeError, match="q must be a MollifiedExpFamily"):
        private_draws(normal(2), 3)  # type: ignore[arg-type]


def test_refusal_depends_on_public_numbers_alone() -> None:
    """Attack: two tables of which one accepts everything and one next to nothing are refused, or not, together."""

    class Constant(nn.Module):
        """One value everywhere."""

        def __init__(self, value: float) -> None:
            super().__init__()
            self.value = value

        def forward(self, value: Tensor) -> Tensor:
            return torch.full((*value.shape[:-1], 1), self.value)

    for theta in (20.0, 2.0):
        densities = [
            MollifiedExpFamily.normalized(normal(1), Constant(sign), torch.tensor([theta])) for sign in (1e9, -1e9)
        ]
        outcomes = []
        for density in densities:
            try:
                private_draws(density, 3, progress=False)
                outcomes.append("drawn")
            except ValueError as error:
                assert "num_draws must be at most" in str(error)
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
        assert (outcomes[0] == "drawn") == (3 * math.exp(densities[0].bounds.width) < 1e9)


def test_draws_in_threads_never_come_from_the_callers_generator() -> None:
    """Attack: private draws in many threads, each of which forks the generator and puts a guessable one back."""
    density = density_over("gamma")
    torch.manual_seed(0)
    guessable = set(density.base.sample((5000,)).tolist())
    drawn: list[float] = []

    def work() -> None:
        for _ in range(5):
            drawn.extend(private_draws(density, 40, progress=False).tolist())

    state = torch.get_rng_state()
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(torch.get_rng_state(), state)
    assert len(drawn) == 1200
    # Of 1,200 float32 values some coincide by chance; a generator that was put back gives long runs.
    assert len(guessable & set(drawn)) < 20
    assert len(set(drawn)) > 1190
