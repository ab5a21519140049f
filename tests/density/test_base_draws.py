"""Draws of the base: their law, and where their randomness comes from."""

from __future__ import annotations

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from densities import BASES, density_over, normal
from scipy import stats
from torch import Tensor

from pyro_mbde.density import base_draws
from pyro_mbde.density.base import prepare_base
from pyro_mbde.density.base_draws import (
    SystemSource,
    draws_by_inversion,
    inverse_draws,
    num_uniforms,
    quasi_draws,
    system_generator,
)
from pyro_mbde.density.marginals import Marginal
from pyro_mbde.density.mixed_base import MixedBase

INVERTED = ["normal-2d", "uniform-box", "multivariate-normal", "log-normal", "logit-normal", "transformed"]


@pytest.mark.parametrize("name", sorted(BASES))
def test_quasi_draws_follow_the_base(name: str) -> None:
    base = prepare_base(BASES[name]())
    draws = quasi_draws(base, 4096).reshape(4096, -1).double()
    assert bool(base.support.check(quasi_draws(base, 64)).all())
    plain = base.sample((20_000,)).reshape(20_000, -1).double()
    for level in (0.1, 0.5, 0.9):
        quantile = torch.quantile(plain, level, dim=0)
        at_most = (draws <= quantile).double().mean(0) - (plain <= quantile).double().mean(0)
        assert bool(at_most.abs().max() < 0.04)


def test_quasi_draws_average_better_than_plain_ones() -> None:
    """The average of a smooth function is far closer than by plain draws."""
    averages = torch.stack([quasi_draws(normal(2), 1024).square().mean() for _ in range(20)])
    assert float((averages - 1).square().mean().sqrt()) < 0.1 * (1 / 1024) ** 0.5


def test_quasi_draws_are_scrambled_again() -> None:
    assert not torch.equal(quasi_draws(normal(2), 8), quasi_draws(normal(2), 8))


def test_subclasses_of_the_users_are_not_inverted() -> None:
    class Shifted(dist.LogNormal):
        """Draws otherwise than it inverts."""

    assert inverse_draws(Shifted(0.0, 1.0), 4, lambda count, dims: torch.rand(count, dims).double()) is None


@pytest.mark.parametrize(
    "base", [dist.LogNormal(torch.zeros(2), torch.ones(2)).to_event(1), dist.Gumbel(torch.zeros(3), 1.0).to_event(1)]
)
def test_independent_transforms_are_inverted(base: dist.TorchDistribution) -> None:
    inverted = inverse_draws(base, 4096, lambda count, dims: torch.rand(count, dims).double())
    assert inverted is not None
    draws, points = inverted
    assert points.shape == (4096, base.event_shape.numel())
    assert draws.shape == (4096, *base.event_shape)
    plain = base.sample((4096,))
    for level in (0.1, 0.5, 0.9):
        quantile = torch.quantile(plain, level, dim=0)
        assert bool(((draws <= quantile).double().mean(0) - level).abs().max() < 0.05)


@pytest.mark.parametrize("name", INVERTED)
def test_bases_with_an_inverse_do_not_touch_torchs_generator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    density = density_over(name)
    source = SystemSource(density.base)

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("torch's generator was used")

    monkeypatch.setattr(torch, "rand", refuse)
    monkeypatch.setattr(torch, "normal", refuse)
    monkeypatch.setattr(density.base, "sample", refuse)
    assert source.propose(7).shape == (7, *density.event_shape)
    assert source.uniforms(7).shape == (7,)


def test_uniforms_of_the_system() -> None:
    uniforms = SystemSource(normal(1)).uniforms(20_000)
    assert uniforms.dtype == torch.float64
    scaled = uniforms * 2**53
    assert bool((scaled == scaled.round()).all())
    assert bool((scaled.long() % 2 == 1).any())
    assert bool((uniforms < 1).all())
    assert stats.kstest(uniforms.numpy(), "uniform").pvalue > 1e-9


def test_all_words_of_the_generator_are_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is that of a Mersenne Twister (NumPy's) with the very words that the system gave."""
    words = np.random.default_rng(3).integers(0, 2**32, 624, dtype=np.uint32)
    monkeypatch.setattr(base_draws.os, "urandom", lambda size: words.tobytes()[:size])
    reference = np.random.RandomState()
    reference.set_state(("MT19937", words, 624))
    with system_generator():
        stream = torch.rand(2000)
    # torch makes a float32 of the low 24 bits of a word
    expected = (reference.randint(0, 2**32, 2000, dtype=np.uint64).astype(np.uint32) & (2**24 - 1)) * 2.0**-24
    assert np.array_equal(stream.numpy(), expected.astype(np.float32))


def test_an_unknown_generator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_draws, "_STATE_BYTES", 17)
    text = "need a version of torch whose generator state has 17 bytes, got 5,056 bytes. Use a version of torch"
    with pytest.raises(RuntimeError, match=text), system_generator():
        pass


def test_float64_tails_reach_further_than_torchs() -> None:
    wide = SystemSource(dist.Normal(torch.tensor(0.0), torch.tensor(1.0)))
    draws = wide.propose(200_000)
    assert draws.dtype == torch.float32
    assert stats.kstest(draws.double().numpy(), "norm").pvalue > 1e-9


@pytest.mark.parametrize("name", ["gamma", "student-t", "mixture-2d", "poisson", "dirichlet", "bernoulli-3d"])
def test_the_generator_is_filled_before_its_words_are_used_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack: one state for a whole call, whose words give it away after 624 of them."""
    base = prepare_base(BASES[name]())
    fillings, used = [0], []
    fill, sample = base_draws._fill_generators, base_draws.TorchSource._sample

    def note_filling() -> None:
        fillings[0] += 1
        fill()

    def note_words(self: base_draws.TorchSource, num_draws: int) -> Tensor:
        replayed = torch.Generator()
        replayed.set_state(torch.get_rng_state())
        draws = sample(self, num_draws)
        torch.empty(624, dtype=torch.int32).random_(generator=replayed)  # to the end of the first state
        used.append(torch.equal(torch.get_rng_state()[base_draws._WORDS], replayed.get_state()[base_draws._WORDS]))
        return draws

    with system_generator():
        source = SystemSource(base)
        source.propose(1)  # counts words
        monkeypatch.setattr(base_draws, "_fill_generators", note_filling)
        monkeypatch.setattr(base_draws.TorchSource, "_sample", note_words)
        assert len(source.propose(1000)) == 1000
    assert fillings[0] == len(used) > 3
    assert sum(used) >= 0.99 * len(used)  # in almost every block no word was more than the system's own


def test_rows_of_bits_do_not_go_on_from_one_another() -> None:
    """A filling is not continued by the next: the second block is not what the first state gives next."""
    base = prepare_base(dist.Bernoulli(torch.full((400,), 0.5)).to_event(1))
    with system_generator():
        source = SystemSource(base)
        source.propose(1)
        assert source._draws_per_filling == 1
        first, second = source.propose(2)
        base_draws._fill_generators()
        state = torch.get_rng_state()
        base.sample((1,))
        torch.set_rng_state(state)
        continued = base.sample((2,))
    assert 120 < int((first != second).sum()) < 280
    assert continued.shape == (2, 400)


@pytest.mark.parametrize(
    "allowed", [[">", ["code", 0, -1.0], ["number", 0.9]], ["<", ["code", 0, -1.0], ["number", 0.1]]]
)
def test_how_a_restricted_base_is_drawn_is_found_out_without_its_middle(allowed: list[object]) -> None:
    """A base is restricted to a part without the middle of the cube: finding out how it is drawn comes to an end."""
    one = torch.ones(1)
    base = MixedBase([Marginal(torch.tensor([0.0, 1.0]), one, one)] * 2, None, [["true", allowed]])
    assert draws_by_inversion(base)
    assert num_uniforms(base) is None
