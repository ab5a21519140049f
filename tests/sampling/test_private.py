"""Rows to hand out: fresh randomness, all of it, and nothing that depends on the table but the rows."""

from __future__ import annotations

import math
import threading

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from densities import BASES, make_density, normal
from scipy import stats
from torch import Tensor, nn

from pyro_mbde import MollifiedExpFamily, private_draws
from pyro_mbde.density import randomness
from pyro_mbde.density.base import prepare_base
from pyro_mbde.density.randomness import SystemSource, system_generator

INVERTED = ["normal-2d", "uniform-box", "multivariate-normal", "log-normal", "logit-normal", "transformed"]


@pytest.mark.parametrize("name", ["normal-2d", "mixture", "poisson"])
def test_fresh_randomness(name: str) -> None:
    density = make_density(BASES[name]())
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
    density = make_density(BASES[name]())
    draws = private_draws(density, 10, progress=False)
    assert draws.dtype == density.sample().dtype
    assert bool(torch.isfinite(density.log_prob(draws)).all())


@pytest.mark.parametrize("name", [*INVERTED, "mixture-2d"])
def test_they_follow_the_density(name: str) -> None:
    """Two-sample test of each coordinate against draws from torch's generator; level 1e-6 each."""
    density = make_density(BASES[name](), epsilon=5.0)
    draws = private_draws(density, 20_000).reshape(20_000, -1).double().numpy()
    reference = density.sample((20_000,)).reshape(20_000, -1).double().numpy()
    for index in range(draws.shape[1]):
        assert stats.ks_2samp(draws[:, index], reference[:, index]).pvalue > 1e-6


@pytest.mark.parametrize("name", INVERTED)
def test_bases_with_an_inverse_do_not_touch_torchs_generator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    density = make_density(BASES[name]())
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
    assert stats.kstest(uniforms.numpy(), "uniform").pvalue > 1e-6


def test_all_words_of_the_generator_are_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is that of a Mersenne Twister (NumPy's) with the very words that the system gave."""
    words = np.random.default_rng(3).integers(0, 2**32, 624, dtype=np.uint32)
    monkeypatch.setattr(randomness.os, "urandom", lambda size: words.tobytes()[:size])
    reference = np.random.RandomState()
    reference.set_state(("MT19937", words, 624))
    with system_generator():
        stream = torch.rand(2000)
    # torch makes a float32 of the low 24 bits of a word
    expected = (reference.randint(0, 2**32, 2000, dtype=np.uint64).astype(np.uint32) & (2**24 - 1)) * 2.0**-24
    assert np.array_equal(stream.numpy(), expected.astype(np.float32))


def test_an_unknown_generator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(randomness, "_STATE_BYTES", 17)
    with pytest.raises(RuntimeError, match="torch must keep a generator of"), system_generator():
        pass


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


def test_float64_tails_reach_further_than_torchs() -> None:
    wide = SystemSource(dist.Normal(torch.tensor(0.0), torch.tensor(1.0)))
    draws = wide.propose(200_000)
    assert draws.dtype == torch.float32
    assert stats.kstest(draws.double().numpy(), "norm").pvalue > 1e-6


@pytest.mark.parametrize("name", ["gamma", "student-t", "mixture-2d", "poisson", "dirichlet", "bernoulli-3d"])
def test_the_generator_is_filled_before_its_words_are_used_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack: one state for a whole call, whose words give it away after 624 of them."""
    base = prepare_base(BASES[name]())
    fillings, used = [0], []
    fill, sample = randomness._fill_generators, randomness.TorchSource._sample

    def note_filling() -> None:
        fillings[0] += 1
        fill()

    def note_words(self: randomness.TorchSource, num_draws: int) -> Tensor:
        replayed = torch.Generator()
        replayed.set_state(torch.get_rng_state())
        draws = sample(self, num_draws)
        torch.empty(624, dtype=torch.int32).random_(generator=replayed)  # to the end of the first state
        used.append(torch.equal(torch.get_rng_state()[randomness._WORDS], replayed.get_state()[randomness._WORDS]))
        return draws

    with system_generator():
        source = SystemSource(base)
        source.propose(1)  # counts words
        monkeypatch.setattr(randomness, "_fill_generators", note_filling)
        monkeypatch.setattr(randomness.TorchSource, "_sample", note_words)
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
        randomness._fill_generators()
        state = torch.get_rng_state()
        base.sample((1,))
        torch.set_rng_state(state)
        continued = base.sample((2,))
    assert 120 < int((first != second).sum()) < 280
    assert continued.shape == (2, 400)


def test_draws_in_threads_never_come_from_the_callers_generator() -> None:
    """Attack: private draws in many threads, each of which forks the generator and puts a guessable one back."""
    density = make_density(BASES["gamma"]())
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
