"""The private flow: exact densities and draws, whatever the noise; guarantees, seeds, data."""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from densities import normal
from rank_processes import run_commands

from pyro_mbde.experiments.baselines.flow import DPFlow, FlowDensity, SplineFlow
from pyro_mbde.experiments.problems import ring
from pyro_mbde.metrics import negative_log_likelihood, quadrature_grid

# Not imported here: that would turn off torch's validation.
if not find_spec("zuko"):
    pytest.skip("zuko is not installed", allow_module_level=True)
pytest.importorskip("opacus")


def quick(base: Any, data: Any, epsilon: float = math.inf, **options: Any) -> FlowDensity:
    options = {"num_steps": 30, "batch_size": 20, "seed": 0, "progress": False, **options}
    return DPFlow(base, epsilon, **options).fit(data)


@pytest.fixture(scope="module")
def skewed() -> FlowDensity:
    """Learned without noise from a bent and shifted cloud."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        first = 0.7 * torch.randn(2000) + 1
        rows = torch.stack([first, first.square() / 2 + 0.4 * torch.randn(2000)], 1)
        return quick(normal(2), rows, num_steps=100, batch_size=100)


def integral(density: FlowDensity, box: tuple[float, float]) -> float:
    points, volume = quadrature_grid(box, density.event_shape, points_per_dim=200)
    return float(density.log_prob(points).double().exp().sum() * volume)


def test_integrates_to_one(skewed: FlowDensity) -> None:
    assert integral(skewed, (-12.0, 12.0)) == pytest.approx(1, abs=1e-3)


def test_draws_have_the_density(skewed: FlowDensity) -> None:
    """Shares of draws in regions of the plane and of high density, against quadrature."""
    points, volume = quadrature_grid((-12.0, 12.0), torch.Size([2]), points_per_dim=200)
    masses, draws = skewed.log_prob(points).exp() * volume, skewed.sample((20_000,))
    level = skewed.log_prob(draws).median()
    # The first two have edges between cells of the grid.
    regions = [
        lambda x: x[:, 0] > 1.08,
        lambda x: x[:, 1] > 0.48,
        lambda x: (x - 1).square().sum(1) < 1,
        lambda x: skewed.log_prob(x) > level,
    ]
    for region in regions:
        expected = float(masses[region(points)].sum())
        assert float(region(draws).float().mean()) == pytest.approx(expected, abs=4.5 * 0.5 / math.sqrt(20_000))


@pytest.mark.parametrize("num_dims", [1, 2, 3, 7])
def test_invertible(num_dims: int) -> None:
    flow = SplineFlow(num_dims, 2, (16, 16)).double()
    for parameter in flow.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    latent = torch.randn(50, num_dims, dtype=torch.float64)
    values = flow.inverse(latent)
    assert torch.allclose(flow.transform()(values), latent, atol=1e-8)
    # The log-density by the change of variables, with the Jacobian by automatic differentiation.
    jacobian = torch.func.vmap(torch.func.jacrev(flow.inverse))(latent[:5])
    expected = dist.Normal(0.0, 1.0).log_prob(latent[:5]).sum(1) - torch.linalg.slogdet(jacobian).logabsdet
    assert torch.allclose(flow(values[:5]), expected, atol=1e-6)


@pytest.mark.parametrize(("epsilon", "group_size"), [(1e-3, 1), (1e-9, None)])
def test_finite_and_normalised_under_absurd_noise(epsilon: float, group_size: int | None) -> None:
    density = quick(normal(2), 4 + torch.randn(500, 2), epsilon, group_size=group_size)
    draws = density.sample((2000,))
    assert torch.isfinite(draws).all()
    assert torch.isfinite(density.log_prob(draws)).all()
    assert torch.isfinite(density.log_prob(torch.tensor([[0.0, 0.0], [1e4, -1e4], [1e15, 1e15]]))).all()
    reach = float(draws.abs().max()) * 1.5 + 1
    assert integral(density, (-reach, reach)) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("bound", [1e-30, 1e30])
def test_extreme_rates_and_bounds(bound: float) -> None:
    density = quick(normal(2), torch.randn(100, 2), learning_rate=bound, max_grad_norm=bound)
    assert not density.log_prob(torch.randn(50, 2)).isnan().any()
    with pytest.raises(ValueError, match="epsilon must be large enough for noise that float32 holds"):
        quick(normal(2), torch.randn(100, 2), 1e-300, delta=1e-60)


def test_gradients_are_finite_everywhere(skewed: FlowDensity) -> None:
    value = torch.tensor([[0.0, 0.0], [1e4, -1e4], [1e15, 1e15]], requires_grad=True)
    skewed.log_prob(value).sum().backward()
    assert torch.isfinite(value.grad).all()


def test_hostile_rows_do_no_harm() -> None:
    rows = torch.cat([torch.randn(100, 2), torch.tensor([[3e38, -3e38], [1e20, 0.0]])])
    density = quick(normal(2), rows, 1.0)
    assert torch.isfinite(density.log_prob(density.sample((100,)))).all()


@pytest.mark.parametrize(("far", "least", "most"), [(6.0, 0.6, 0.7 * (1 + 1e-4)), (1e6, 0.0, 1e-6)])
def test_one_row_moves_the_gradient_no_further_than_the_bound(far: float, least: float, most: float) -> None:
    """And a row beyond the splines, where the flow is the identity, not at all."""
    from pyro_mbde.experiments.baselines.dp_sgd import PrivateSteps

    rows, sums = torch.randn(50, 2), []
    for examples in (rows, torch.cat([rows, torch.tensor([[far, -far]])])):
        torch.manual_seed(3)
        flow = SplineFlow(2, 4, (8,))
        optimizer = torch.optim.Adam(flow.parameters())
        options = {"noise_multiplier": 0.0, "sample_rate": 1.0, "max_grad_norm": 0.7}
        PrivateSteps(flow, optimizer, rows, **options).step(examples, torch.neg)
        sums.append(torch.cat([parameter.summed_grad.flatten() for parameter in flow.parameters()]))  # type: ignore[attr-defined]  # Opacus adds it
    assert least <= float((sums[1] - sums[0]).norm()) <= most


@pytest.mark.slow
def test_one_dimension() -> None:
    """A normal, at the table's mean and deviation, where clipping does not matter."""
    density = quick(
        dist.Normal(0.0, 1.0), 0.5 * torch.randn(2000) + 2, num_steps=150, batch_size=200, max_grad_norm=50.0
    )
    assert density.event_shape == ()
    assert density.sample((3, 2)).shape == (3, 2)
    assert integral(density, (-9.0, 9.0)) == pytest.approx(1, abs=1e-3)
    draws = density.sample((5000,))
    assert (float(draws.mean()), float(draws.std())) == (pytest.approx(2, abs=0.1), pytest.approx(0.5, abs=0.1))


def test_standardised_by_the_base() -> None:
    """A table and a base moved and scaled alike give the same flow."""
    rows = torch.randn(300, 2)
    here = quick(normal(2), rows)
    base: Any = dist.Normal(torch.tensor([100.0, -5.0]), torch.tensor([10.0, 0.5]))
    there = quick(base.to_event(1), rows * base.scale + base.loc)
    point = torch.tensor([0.3, 0.7])
    jacobian = float(base.scale.log().sum())
    assert there.log_prob(point * base.scale + base.loc) + jacobian == pytest.approx(
        float(here.log_prob(point)), abs=0.1
    )


def test_guarantee_and_accountant() -> None:
    trainer = DPFlow(normal(2), 2.0, delta=1e-4, num_steps=25, batch_size=20, seed=0, progress=False)
    density = trainer.fit(torch.randn(400, 2))
    assert (density.guarantee.epsilon, density.guarantee.delta, density.guarantee.group_size) == (2.0, 1e-4, 1)
    ((_, sample_rate, num_steps),) = trainer.accountant.history
    assert (sample_rate, num_steps) == (0.05, 25)
    assert 0.99 * 2 <= trainer.accountant.get_epsilon(1e-4) <= 2
    assert quick(normal(2), torch.randn(50, 2), num_steps=2).guarantee.epsilon == math.inf
    assert quick(normal(2), torch.randn(50, 2), 1.0, group_size=None, num_steps=2).guarantee.group_size is None


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "most"), [(0.1, 5.5), (1.0, 5.0), (10.0, 4.8)])
def test_learns_the_ring(epsilon: float, most: float) -> None:
    """The base alone has 10.34 nats, the ring itself 4.14."""
    problem = ring()
    density = DPFlow(problem.base, epsilon, seed=0, progress=False).fit(problem.target.sample((10_000,)))
    assert negative_log_likelihood(problem.target, density, problem.box).value < most


def test_zuko_leaves_torchs_validation_as_it_is(tmp_path: Path) -> None:
    """Its import turns it off for all distributions: here it is imported first by the flow."""
    script = """
import sys
from torch.distributions import Distribution
from pyro_mbde.experiments.baselines.flow import SplineFlow

before = Distribution._validate_args, Distribution.__dict__["arg_constraints"]
assert before[0] and not any(name.partition(".")[0] == "zuko" for name in sys.modules)
SplineFlow(2, 1, (4,))
assert "zuko" in sys.modules
assert Distribution._validate_args is before[0]
assert Distribution.__dict__["arg_constraints"] is before[1]
"""
    (tmp_path / "script.py").write_text(script)
    (ended,) = run_commands([[sys.executable, str(tmp_path / "script.py")]], seconds=100)
    assert ended.code == 0, ended.output


def test_missing_zuko(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("zuko.transforms", "zuko.flows"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"needs zuko: install it with `pip install 'pyro_mbde\[baselines\]'`"):
        quick(normal(2), torch.randn(100, 2))
