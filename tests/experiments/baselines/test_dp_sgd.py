"""The noise of private gradient descent: what Opacus's accountant says of it, and exact curves; clipping; sampling."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from pyro_mbde.experiments.baselines.dp_sgd import PrivateSteps, PrivateTraining, noise_multiplier
from pyro_mbde.privacy.group import record_budget
from pyro_mbde.privacy.zcdp import zcdp_rho

pytest.importorskip("opacus")


def spent(noise: float, sample_rate: float, num_steps: int, delta: float) -> float:
    """By Opacus, at the orders it takes by itself."""
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(noise, sample_rate, num_steps)]
    return float(accountant.get_epsilon(delta))


def steps_on(rows: Tensor, model: nn.Module, **options: Any) -> PrivateSteps:
    options = {"noise_multiplier": 0.0, "sample_rate": 1.0, "max_grad_norm": 1.0, **options}
    return PrivateSteps(model, torch.optim.SGD(model.parameters(), lr=1.0), rows, **options)


def squares(output: Tensor) -> Tensor:
    return output.square().sum(-1)


@pytest.mark.filterwarnings("ignore:Optimal order is the smallest alpha")  # at 5000: valid, if not the smallest
@pytest.mark.parametrize(
    ("epsilon", "delta", "sample_rate", "num_steps"),
    [(0.5, 1e-5, 0.05, 500), (1.0, 1e-5, 0.05, 500), (10.0, 1e-5, 0.05, 500), (5000.0, 0.1, 0.0128, 10_000)],
)
def test_opacus_reports_the_epsilon_asked_for(epsilon: float, delta: float, sample_rate: float, num_steps: int) -> None:
    noise = noise_multiplier(epsilon, delta, 1, sample_rate, num_steps)
    assert 0.99 * epsilon <= spent(noise, sample_rate, num_steps, delta) <= epsilon


@pytest.mark.parametrize(("epsilon", "group_size"), [(0.05, 1), (1.0, 10), (10.0, 100)])
def test_more_orders_reach_small_epsilons(epsilon: float, group_size: int) -> None:
    """Where Opacus's own orders end above the budget of a row."""
    of_row, delta = record_budget(epsilon, 1e-5, group_size)
    noise = noise_multiplier(epsilon, 1e-5, group_size, 0.05, 500)
    assert noise < group_size * math.sqrt(500 / (2 * zcdp_rho(epsilon, 1e-5)))
    steps = steps_on(torch.zeros(10, 1), nn.Linear(1, 1), noise_multiplier=noise)
    steps.accountant.history = [(noise, 0.05, 500)]
    assert 0.99 * of_row <= steps.epsilon_spent(delta) <= of_row


@pytest.mark.parametrize(
    ("epsilon", "delta", "group_size"), [(1.0, 1e-5, 10_000), (1e-8, 1e-5, 1), (1e8, 0.1, 1), (1000.0, 1e-5, 1000)]
)
def test_plain_where_opacus_cannot_reach(epsilon: float, delta: float, group_size: int) -> None:
    plain = group_size * math.sqrt(500 / (2 * zcdp_rho(epsilon, delta)))
    assert noise_multiplier(epsilon, delta, group_size, 0.05, 500) == pytest.approx(plain)


def hockey_stick(epsilon: float, noise: float, group_size: int, sample_rate: float) -> float:
    """The delta of one step at a table with and without a group of rows that all pull one way, by quadrature."""
    points = torch.linspace(-12 * noise - 1, group_size + 12 * noise + 1, 20_001, dtype=torch.float64)
    shares = torch.tensor(stats.binom.pmf(range(group_size + 1), group_size, sample_rate))
    places = torch.arange(group_size + 1, dtype=torch.float64)
    kernels = torch.exp(-((points - places.unsqueeze(1)) ** 2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))
    with_group, without = (shares.unsqueeze(1) * kernels).sum(0), kernels[0]
    excess = [
        torch.trapezoid((p - math.exp(epsilon) * q).clamp(min=0), points)
        for p, q in ((with_group, without), (without, with_group))
    ]
    return float(max(excess))


@pytest.mark.parametrize("epsilon", [0.1, pytest.param(1.0, marks=pytest.mark.slow), 5.0])
@pytest.mark.parametrize("group_size", [1, 3])
@pytest.mark.parametrize("sample_rate", [1.0, 0.3])
def test_sound_against_the_exact_curve_of_one_step(epsilon: float, group_size: int, sample_rate: float) -> None:
    noise = noise_multiplier(epsilon, 1e-3, group_size, sample_rate, 1)
    assert hockey_stick(epsilon, noise, group_size, sample_rate) <= 1e-3
    if sample_rate == 1:  # the classical curve of the Gaussian mechanism
        mu = group_size / noise
        normal = stats.norm.cdf
        exact = normal(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal(-mu / 2 - epsilon / mu)
        assert 1e-4 < exact <= 1e-3
        assert hockey_stick(epsilon, noise, group_size, 1.0) == pytest.approx(exact, rel=1e-3)


def gaussian_delta(epsilon: float, shift: float) -> float:
    """The delta of N(0, 1) against N(shift, 1) (Balle & Wang 2018, Theorem 8)."""
    upper = stats.norm.cdf(shift / 2 - epsilon / shift)
    return float(upper - math.exp(epsilon + stats.norm.logcdf(-shift / 2 - epsilon / shift)))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("group_size", [1, 5])
@pytest.mark.parametrize("num_steps", [2, 50, 5000])
def test_many_steps_on_the_whole_table_compose_to_one(num_steps: int, group_size: int, epsilon: float) -> None:
    """T normal mechanisms of shift g / sigma are one of shift g sqrt(T) / sigma, whose delta has a closed form.

    The bound is that of docs/proofs.md, *Subsampled gradient steps without amplification*.
    """
    delta = 1e-5
    noise = noise_multiplier(epsilon, delta, group_size, 1.0, num_steps)
    shift = group_size * math.sqrt(num_steps) / noise
    assert gaussian_delta(epsilon, shift) <= delta
    # Not by much more noise than would do.
    assert gaussian_delta(epsilon, 1.25 * shift) > delta


def test_many_steps_as_taken() -> None:
    """What T steps do to weights: one row moves them by T C / n, under noise of deviation sqrt(T) sigma C / n."""
    num_steps, num_rows, noise, bound = 25, 40, 3.0, 0.5
    rows = torch.zeros(num_rows, 2000)
    rows[-1, 0] = 1e4
    moved = []
    for multiplier in (0.0, noise):
        model = nn.Linear(2000, 1, bias=False)
        start = model.weight.detach().clone()
        steps = steps_on(rows, model, noise_multiplier=multiplier, max_grad_norm=bound)
        for _ in range(num_steps):
            steps.step(steps.sample(), lambda output: output.squeeze(-1))
        moved.append((model.weight.detach() - start).flatten())
        assert steps.accountant.history == [(multiplier, 1.0, num_steps)]
    shift = -float(moved[0][0])
    assert shift == pytest.approx(num_steps * bound / num_rows, rel=1e-4)
    deviation = float(moved[1][1:].std())
    assert deviation == pytest.approx(math.sqrt(num_steps) * noise * bound / num_rows, rel=4 / math.sqrt(2 * 2000))
    # By Opacus's accountant the steps cost no less than that mechanism does.
    epsilon = steps.epsilon_spent(1e-5)
    assert gaussian_delta(epsilon, shift / deviation) <= 1e-5 <= gaussian_delta(0.8 * epsilon, shift / deviation)


def test_monotone() -> None:
    by_group = [noise_multiplier(1.0, 1e-5, size, 0.05, 500) for size in (1, 50, 10_000)]
    assert by_group == sorted(by_group)
    by_epsilon = [noise_multiplier(epsilon, 1e-5, 1, 0.05, 500) for epsilon in (1e-3, 1.0, 100.0)]
    assert by_epsilon == sorted(by_epsilon, reverse=True)
    assert noise_multiplier(math.inf, 1e-5, 1, 0.05, 500) == 0


@pytest.mark.parametrize("bad", [math.nan, -1.0, 0.0])
def test_ranges(bad: float) -> None:
    good: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "group_size": 1, "sample_rate": 0.1, "num_steps": 5}
    for name in ("epsilon", "delta", "sample_rate"):
        with pytest.raises(ValueError, match=f"{name} must"):
            noise_multiplier(**{**good, name: bad})
    for name in ("group_size", "num_steps"):
        with pytest.raises(ValueError, match=f"{name} must"):
            noise_multiplier(**{**good, name: 0})
        with pytest.raises(TypeError, match=f"{name} must"):
            noise_multiplier(**{**good, name: 1.5})


@pytest.mark.parametrize("hostile", [1e3, 1e15, 3e38])
def test_one_row_moves_the_sum_no_further_than_the_bound(hostile: float) -> None:
    rows, row = torch.randn(20, 3), hostile * torch.ones(1, 3)
    sums = []
    for examples in (rows, torch.cat([rows, row])):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        steps_on(rows, model, max_grad_norm=0.3).step(examples, squares)
        sums.append(torch.cat([parameter.summed_grad.flatten() for parameter in model.parameters()]))  # type: ignore[attr-defined]  # Opacus adds it
    assert torch.isfinite(sums[1]).all()
    assert float((sums[1] - sums[0]).norm()) <= 0.3 * (1 + 1e-5)
    assert float(sums[0].norm()) <= 0.3 * 20 * (1 + 1e-5)


def test_poisson_samples() -> None:
    rows = torch.arange(200.0).unsqueeze(1)
    steps = steps_on(rows, nn.Linear(1, 1), sample_rate=0.1)
    counts, sizes = torch.zeros(200), []
    for _ in range(2000):
        sample = steps.sample()
        counts[sample[:, 0].long()] += 1
        sizes.append(float(len(sample)))
    deviation = math.sqrt(2000 * 0.1 * 0.9)
    assert (counts - 200).abs().max() < 4.5 * deviation
    assert torch.tensor(sizes).mean() == pytest.approx(20, abs=4 * math.sqrt(18 / 2000))
    assert torch.tensor(sizes).var() == pytest.approx(18, rel=0.15)  # a fixed batch has none


def test_an_empty_sample_is_a_step_of_noise() -> None:
    model = nn.Linear(100, 100, bias=False)
    before = model.weight.detach().clone()
    steps = steps_on(torch.zeros(50, 100), model, noise_multiplier=3.0, sample_rate=0.2, max_grad_norm=0.5)
    steps.step(torch.zeros(0, 100), squares)
    assert float((model.weight.detach() - before).std()) == pytest.approx(3.0 * 0.5 / 10, rel=0.05)
    assert steps.accountant.history == [(3.0, 0.2, 1)]


def test_results_are_plain_copies() -> None:
    model = nn.Linear(2, 1)
    steps = steps_on(torch.randn(10, 2), model)
    steps.step(steps.sample(), squares)
    result = steps.result()
    assert torch.equal(result.weight, model.weight)
    assert not hasattr(result.weight, "grad_sample")
    assert not result.weight.requires_grad
    assert steps.epsilon_spent(1e-5) == math.inf


def test_public_use_leaves_no_gradients_of_examples() -> None:
    model = nn.Linear(2, 1)
    steps = steps_on(torch.randn(10, 2), model)
    steps.step(steps.sample(), squares)
    of_examples = model.weight.grad_sample
    assert of_examples.shape == (10, 1, 2)
    before = of_examples.clone()
    model(torch.randn(5, 2, requires_grad=True)).sum().backward()
    assert model.weight.grad_sample is of_examples
    assert torch.equal(of_examples, before)
    assert not any(hasattr(parameter, "grad_sample") for parameter in steps.result().parameters())


def test_guarantees() -> None:
    def training(**options: Any) -> PrivateTraining:
        values = {"num_steps": 5, "batch_size": 4, "max_grad_norm": 1.0, **options}
        return PrivateTraining(1.0, 1e-5, **{"group_size": 7, **values})

    assert (training().guarantee().group_size, training(group_size=None).guarantee().group_size) == (7, None)
    assert (training().guarantee().replaced, training(group_size=None).guarantee().replaced) == (False, True)
    model = nn.Linear(1, 1)
    small = training(batch_size=500).start(model, torch.optim.SGD(model.parameters()), torch.zeros(20, 1))
    assert small.sample_rate == 1
    for name in ("num_steps", "batch_size", "group_size"):
        with pytest.raises(ValueError, match=f"{name} must"):
            training(**{name: 0})
    with pytest.raises(ValueError, match="max_grad_norm must"):
        training(max_grad_norm=math.inf)
    with pytest.raises(ValueError, match="group_size must be at most 2"):
        training(group_size=2**53 + 1)
    numpys = training(num_steps=np.int64(5), batch_size=np.int32(4), group_size=np.int8(7), max_grad_norm=np.float32(1))
    assert repr(numpys) == repr(training())


def test_missing_opacus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opacus"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(ImportError, match=r"pip install 'pyro_mbde\[baselines\]'"):
        noise_multiplier(1.2345, 1e-5, 1, 0.05, 500)  # asked for nowhere else, so not remembered


@pytest.mark.parametrize("epsilon", [0.5, 5.0])
def test_all_rows_exchanged_stay_within_the_guarantee(epsilon: float) -> None:
    """One step on the whole table: its sum of gradients moves by 2 n C at most, and the exact normal curve is below."""
    num_rows, delta = 20, 1e-3
    training = PrivateTraining(epsilon, delta, None, num_steps=1, batch_size=num_rows, max_grad_norm=1.0)
    model = nn.Linear(1, 1)
    steps = training.start(model, torch.optim.SGD(model.parameters()), torch.zeros(num_rows, 1))
    shift = 2 * num_rows / steps.noise_multiplier

    def below(value: float) -> float:
        return 0.5 * math.erfc(-value / math.sqrt(2))

    exact = below(shift / 2 - epsilon / shift) - math.exp(epsilon) * below(-shift / 2 - epsilon / shift)
    assert exact <= delta
