"""The private GAN: its accountant, what a row can do to it, draws and the density that stands in for them."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import pyro.distributions as dist
import pytest
import torch
from densities import normal
from torch import nn

from pyro_mbde.experiments.baselines.dp_sgd import PrivateSteps, noise_multiplier
from pyro_mbde.experiments.baselines.dpgan import DPGAN, GeneratorDensity, _network, _pair_losses
from pyro_mbde.experiments.problems import ring
from pyro_mbde.metrics import quadrature_grid
from pyro_mbde.privacy.group import GroupGuarantee

pytest.importorskip("opacus")


def quick(base: Any, data: Any, epsilon: float = math.inf, **options: Any) -> GeneratorDensity:
    options = {"num_steps": 30, "batch_size": 20, "seed": 0, "progress": False, **options}
    return DPGAN(base, epsilon, **options).fit(data)


def scaled_normal(num_density_draws: int = 2000) -> GeneratorDensity:
    """The density of a generator that draws normals of deviations 1 and 2."""
    generator = nn.Sequential(nn.Linear(2, 2, bias=False)).requires_grad_(False)
    generator[0].weight.copy_(torch.diag(torch.tensor([1.0, 2.0])))
    return GeneratorDensity(normal(2), generator, GroupGuarantee(1.0), num_density_draws=num_density_draws)


@pytest.mark.filterwarnings("ignore:Optimal order is the smallest alpha")  # valid, if not the smallest epsilon
def test_opacus_reports_the_epsilon_asked_for() -> None:
    trainer = DPGAN(normal(2), 5000.0, num_steps=40, batch_size=20, seed=0, progress=False)
    density = trainer.fit(torch.randn(400, 2))
    ((_, sample_rate, num_steps),) = trainer.accountant.history
    assert (sample_rate, num_steps) == (0.05, 40)
    assert 0.99 * 5000 <= trainer.accountant.get_epsilon(0.1) <= 5000
    assert density.guarantee == GroupGuarantee(5000.0, 0.1, 1, replaced=False)
    assert quick(normal(2), torch.randn(50, 2)).guarantee.epsilon == math.inf
    assert quick(normal(2), torch.randn(50, 2), 1.0, group_size=None).guarantee.group_size is None


@pytest.mark.parametrize("hostile", [1e3, 1e25])
def test_one_row_moves_the_critic_no_further_than_the_bound(hostile: float) -> None:
    pairs, sums = torch.randn(30, 2, 2), []
    pair = torch.stack([torch.zeros(2), torch.full((2,), hostile)]).unsqueeze(0)
    for examples in (pairs, torch.cat([pairs, pair])):
        torch.manual_seed(3)
        critic = _network(2, (16,), 1)
        optimizer = torch.optim.RMSprop(critic.parameters())
        options = {"noise_multiplier": 0.0, "sample_rate": 1.0, "max_grad_norm": 0.2}
        PrivateSteps(critic, optimizer, pairs[:, 1], **options).step(examples, _pair_losses)
        sums.append(torch.cat([parameter.summed_grad.flatten() for parameter in critic.parameters()]))  # type: ignore[attr-defined]  # Opacus adds it
    assert float((sums[1] - sums[0]).norm()) <= 0.2 * (1 + 1e-4)
    if hostile < 1e20:  # beyond, the square of its norm is infinite and it counts as nothing
        assert float((sums[1] - sums[0]).norm()) > 0.19


def test_gradients_are_of_pairs() -> None:
    """The gradient of an example is that of its pair's loss, draw and row together."""
    critic, pairs = _network(2, (4,), 1), torch.randn(3, 2, 2)
    expected = []
    for drawn, real in pairs:
        gradients = torch.autograd.grad((critic(drawn) - critic(real)).sum(), list(critic.parameters()))
        expected.append(torch.cat([gradient.flatten() for gradient in gradients]))
    options = {"noise_multiplier": 0.0, "sample_rate": 1.0, "max_grad_norm": 1e3}
    steps = PrivateSteps(critic, torch.optim.SGD(critic.parameters(), lr=0.0), pairs[:, 1], **options)
    steps.step(pairs, _pair_losses)
    found = torch.cat([parameter.grad_sample.reshape(3, -1) for parameter in critic.parameters()], 1)  # type: ignore[attr-defined]  # Opacus adds it
    assert torch.allclose(found, torch.stack(expected), atol=1e-6)


class Step(NamedTuple):
    """What Opacus was given in a private step: gradients of examples, and their clipped sum."""

    gradients: torch.Tensor
    total: torch.Tensor


class Wiring(NamedTuple):
    """What a fit gave to Opacus."""

    settings: dict[str, float]
    steps: list[Step]
    critic: list[nn.Parameter]


@pytest.fixture
def wiring(monkeypatch: pytest.MonkeyPatch) -> Wiring:
    """Filled by the next fit."""
    from opacus import optimizers

    seen = Wiring({}, [], [])

    class Recording(optimizers.DPOptimizer):  # type: ignore[misc]  # Opacus leaves it untyped
        def __init__(self, optimizer: torch.optim.Optimizer, **settings: float) -> None:
            super().__init__(optimizer, **settings)
            seen.settings.update(settings)
            seen.critic.extend(self.params)

        def step(self) -> None:
            gradients = torch.cat([part.grad_sample.flatten(1).clone() for part in self.params], 1)
            super().step()
            seen.steps.append(Step(gradients, torch.cat([part.summed_grad.flatten() for part in self.params])))

    monkeypatch.setattr(optimizers, "DPOptimizer", Recording)
    return seen


@pytest.mark.parametrize("group_size", [3, None])
def test_the_noise_of_the_target_reaches_opacus(wiring: Wiring, group_size: int | None) -> None:
    options: dict[str, Any] = {"delta": 1e-3, "group_size": group_size, "batch_size": 20, "num_steps": 15}
    trainer = DPGAN(normal(2), 2.0, max_grad_norm=0.7, seed=0, progress=False, **options)
    trainer.fit(torch.randn(80, 2))
    rows_apart = 160 if group_size is None else group_size
    noise = noise_multiplier(2.0, 1e-3, rows_apart, 0.25, 15)
    assert wiring.settings == {"noise_multiplier": noise, "max_grad_norm": 0.7, "expected_batch_size": 20.0}
    assert trainer.accountant.history == [(noise, 0.25, 15)]
    assert len(wiring.steps) == 15


def test_an_example_is_a_pair_not_two(wiring: Wiring) -> None:
    """One gradient for each row sampled; by the last layer's bias, which a pair's two scores cancel, of the pair."""
    quick(normal(2), torch.randn(12, 2), batch_size=500, num_steps=3)
    for step in wiring.steps:
        assert len(step.gradients) == 12
        assert not step.gradients[:, -1].any()  # of f(G(z)) alone it would be 1, of f(x) -1
        assert step.gradients[:, :-1].abs().sum(1).min() > 0


def test_steps_of_the_generator_are_not_counted(wiring: Wiring) -> None:
    """It takes one after each of the critic's: no gradients of examples are left by it, no hooks, and no account."""
    trainer = DPGAN(normal(2), 3.0, critic_steps=1, num_steps=6, batch_size=50, seed=0, progress=False)
    density = trainer.fit(torch.randn(30, 2))
    assert [history[2] for history in trainer.accountant.history] == [6]
    assert len(wiring.steps) == 6
    last = wiring.steps[-1].gradients
    left = torch.cat([part.grad_sample.flatten(1) for part in wiring.critic], 1)  # type: ignore[attr-defined]  # Opacus adds it
    assert torch.equal(left, last)  # of the 30 rows, not of the generator's 50 draws
    for module in density.generator.modules():
        assert not module._forward_hooks
        assert not module._backward_hooks
    assert not any(hasattr(parameter, "grad_sample") for parameter in density.generator.parameters())


def test_outliers_are_clipped_one_by_one(wiring: Wiring) -> None:
    """Ten identical outliers in place of ten rows move the critic's gradient by no more than ten bounds each way."""
    rows, bound, sums = torch.randn(40, 2), 0.3, []
    outliers = torch.cat([rows[:30], torch.full((10, 2), 1e6)])
    for table in (rows, outliers):
        quick(normal(2), table, batch_size=500, num_steps=1, max_grad_norm=bound)
        assert float(wiring.steps[-1].total.norm()) <= 40 * bound * (1 + 1e-4)
        sums.append(wiring.steps[-1].total)
    plain, hostile = (step.gradients for step in wiring.steps)
    assert torch.equal(plain[:30], hostile[:30])  # the same draws and critic
    assert float(hostile[30:].norm(dim=1).min()) > 1e3
    clipped = [gradients * (bound / gradients.norm(dim=1, keepdim=True)).clamp(max=1) for gradients in (plain, hostile)]
    for total, parts in zip(sums, clipped, strict=True):
        torch.testing.assert_close(total, parts.sum(0), rtol=1e-3, atol=1e-4)
    assert float((sums[1] - sums[0]).norm()) <= 2 * 10 * bound * (1 + 1e-4)
    # All pull one way: without the clip it would be ten thousand times as much.
    assert float(clipped[1][30:].sum(0).norm()) == pytest.approx(10 * bound, rel=0.05)


def test_draws_are_the_generators() -> None:
    draws = scaled_normal().sample((50_000,))
    assert draws.std(0).tolist() == [pytest.approx(1, rel=0.03), pytest.approx(2, rel=0.03)]


def test_the_density_stands_in_for_the_draws() -> None:
    density = scaled_normal()
    points, volume = quadrature_grid((-12.0, 12.0), torch.Size([2]), points_per_dim=200)
    assert float(density.log_prob(points).double().exp().sum() * volume) == pytest.approx(1, abs=1e-4)
    target: Any = dist.Normal(torch.zeros(2), torch.tensor([1.0, 2.0]))
    draws = target.sample((5000,))
    assert float((target.log_prob(draws).sum(1) - density.log_prob(draws)).mean()) < 0.1  # KL divergence
    # Scott's rule of the draws, in each coordinate.
    assert density.bandwidth.tolist() == [pytest.approx(s * 2000 ** (-1 / 6), rel=0.1) for s in (1, 2)]


def test_finite_far_away_and_at_a_point() -> None:
    value = torch.tensor([1e6, -1e6], requires_grad=True)
    log_prob = scaled_normal().log_prob(value)
    (gradient,) = torch.autograd.grad(log_prob, value)
    assert torch.isfinite(log_prob)
    assert torch.isfinite(gradient).all()
    constant = _network(4, (3,), 2).requires_grad_(False)
    for parameter in constant.parameters():
        parameter.zero_()
    assert torch.isfinite(GeneratorDensity(normal(2), constant, GroupGuarantee(1.0)).log_prob(torch.zeros(2)))


@pytest.mark.parametrize("group_size", [1, None])
def test_finite_under_absurd_noise_and_hostile_rows(group_size: int | None) -> None:
    rows = torch.cat([torch.randn(100, 2), torch.tensor([[3e38, -3e38], [1e20, 0.0]])])
    density = quick(normal(2), rows, 1e-3, group_size=group_size)
    assert torch.isfinite(density.log_prob(density.sample((100,)))).all()


def test_a_generator_that_diverges_says_so() -> None:
    with pytest.raises(ValueError, match="generator must draw finite numbers"):
        quick(normal(2), torch.randn(100, 2), generator_learning_rate=1e30)


def test_learns_without_noise() -> None:
    """It finds a cloud away from the base."""
    density = quick(normal(2), 0.5 * torch.randn(2000, 2) + 2, num_steps=500, batch_size=128)
    assert (density.sample((2000,)).mean(0) - 2).abs().max() < 0.7


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [math.inf, 5000.0])
def test_lands_on_the_modes_of_the_ring(epsilon: float) -> None:
    problem, start = ring(), time.process_time()
    density = DPGAN(problem.base, epsilon, seed=0, progress=False).fit(problem.target.sample((10_000,)))
    seconds = time.process_time() - start
    angles = torch.arange(8) * (2 * math.pi / 8)
    centres = 4 * torch.stack([angles.cos(), angles.sin()], 1)
    distances, modes = torch.cdist(density.sample((5000,)), centres).min(1)
    landed = distances < 3 * math.sqrt(0.5)
    assert float(landed.float().mean()) >= 0.9
    assert int((torch.bincount(modes[landed], minlength=8) > 50).sum()) >= 4
    assert seconds < 300  # of a core; about 50
