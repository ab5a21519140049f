"""The kernel density estimate against SciPy's own evaluation."""

from __future__ import annotations

import math
import sys

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from densities import normal
from scipy import stats

from pyro_mbde.experiments.baselines.common import require
from pyro_mbde.experiments.baselines.kde import KDE
from pyro_mbde.metrics import negative_log_likelihood

BASES = {"scalar": dist.Normal(0.0, 1.0), "1d": normal(1), "2d": normal(2), "5d": normal(5)}


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("bandwidth", ["scott", "silverman", 0.3])
def test_densities_are_scipys(name: str, bandwidth: float | str) -> None:
    base = BASES[name]
    rows = base.sample((300,)) * 2 + 50
    density = KDE(base, bandwidth=bandwidth).fit(rows)
    points = rows[:40] + 0.5
    expected = stats.gaussian_kde(rows.double().reshape(300, -1).T.numpy(), bandwidth)
    log_density = expected.logpdf(points.double().reshape(40, -1).T.numpy())
    torch.testing.assert_close(density.log_prob(points), torch.from_numpy(log_density).float(), rtol=1e-4, atol=1e-4)
    assert density.guarantee.epsilon == math.inf


def test_correlated_rows() -> None:
    rows = torch.randn(500, 2) @ torch.tensor([[1.0, 0.9], [0.0, 0.1]])
    density = KDE(normal(2)).fit(rows)
    expected = stats.gaussian_kde(rows.double().T.numpy()).logpdf(rows[:50].double().T.numpy())
    torch.testing.assert_close(density.log_prob(rows[:50]), torch.from_numpy(expected).float(), rtol=1e-4, atol=1e-4)


def test_tails_do_not_underflow() -> None:
    """Far from all rows the nearest row's normal is the density."""
    density = KDE(dist.Normal(0.0, 1.0), bandwidth=0.1).fit(torch.tensor([-1.0, 1.0]))
    scale = 0.1 * math.sqrt(2)
    expected = -((99 / scale) ** 2) / 2 - math.log(2 * scale * math.sqrt(2 * math.pi))
    values = density.log_prob(torch.tensor([100.0, 0.5, torch.inf, torch.nan]))
    assert float(values[0]) == pytest.approx(expected, rel=1e-5)
    assert math.isfinite(float(values[1]))
    assert values[2:].tolist() == [-math.inf, -math.inf]


def test_draws_have_the_density() -> None:
    rows = torch.cat([torch.randn(100), 5 + 0.3 * torch.randn(100)])
    density = KDE(dist.Normal(0.0, 1.0)).fit(rows)
    estimate = stats.gaussian_kde(rows.double().numpy())
    draws = density.sample((2000,)).double().numpy()
    cumulative = np.vectorize(lambda end: estimate.integrate_box_1d(-math.inf, end))
    assert stats.kstest(draws, cumulative).pvalue > 1e-4
    assert density.sample((3, 2)).shape == (3, 2)


def test_draws_have_the_covariance() -> None:
    density = KDE(normal(2), bandwidth=0.5).fit(torch.randn(400, 2) @ torch.tensor([[1.0, 0.9], [0.0, 0.1]]))
    draws = density.sample((50_000,)).double()
    rows = density._centres @ density._scale_tril.T
    expected = (rows.T @ rows) / 400 + density._scale_tril @ density._scale_tril.T
    torch.testing.assert_close(torch.cov(draws.T), expected, rtol=0.05, atol=0.01)


def test_integral_and_fit() -> None:
    target = dist.Normal(0.5, 0.4)
    density = KDE(dist.Normal(0.0, 1.0)).fit(target.sample((3000,)))
    grid = torch.linspace(-4, 5, 9001)
    assert float(density.log_prob(grid).exp().sum() * 0.001) == pytest.approx(1, abs=1e-4)
    entropy = float(target.entropy())
    assert entropy < negative_log_likelihood(target, density, (-4.0, 5.0)).value < entropy + 0.02


def test_gradients_are_the_densitys() -> None:
    density = KDE(normal(2)).fit(torch.randn(50, 2))
    value = torch.tensor([0.2, -0.4], dtype=torch.float32, requires_grad=True)
    density.log_prob(value).backward()
    with torch.no_grad():
        step = torch.tensor([1e-2, 0.0])
        slope = (density.log_prob(value + step) - density.log_prob(value - step)) / 2e-2
    assert float(value.grad[0]) == pytest.approx(float(slope), rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("num_dims", [0, 2])
@pytest.mark.parametrize("bandwidth", [1e-8, 1e-6, 1e-3, 1e3, 1e8])
def test_extreme_bandwidths(bandwidth: float, num_dims: int) -> None:
    """Against sums of normals by differences, near the rows and far from them, with a row far off the others."""
    base: dist.Distribution = dist.Normal(torch.zeros(num_dims, dtype=torch.float64), 1.0).to_event(1)
    base = base if num_dims else dist.Normal(torch.tensor(0.0, dtype=torch.float64), 1.0)
    rows = base.sample((200,))
    rows[0] = 50.0
    density = KDE(base, bandwidth=bandwidth).fit(rows)
    points = torch.cat([rows[:5] + bandwidth * base.sample((5,)), rows[5:8], base.sample((5,)), 1e3 * rows[:2]])
    flat, centres = points.reshape(len(points), -1), rows.reshape(200, -1)
    scale_tril = bandwidth * torch.linalg.cholesky(torch.atleast_2d(centres.T.cov()))
    kernels = torch.distributions.MultivariateNormal(torch.zeros(flat.shape[1]).double(), scale_tril=scale_tril)
    expected = torch.logsumexp(kernels.log_prob(flat.unsqueeze(1) - centres), 1) - math.log(200)
    torch.testing.assert_close(density.log_prob(points), expected, rtol=1e-6, atol=1e-5)
    value = points.clone().requires_grad_()
    density.log_prob(value).sum().backward()
    assert torch.isfinite(value.grad).all()
    assert torch.isfinite(density.sample((100,))).all()


def test_far_and_wide() -> None:
    """Squares beyond float64 give no NaN in a density, and an error for a table."""
    base = dist.Normal(torch.tensor(0.0, dtype=torch.float64), 1.0)
    value = torch.tensor([1e100, -1e200, 1e300], dtype=torch.float64, requires_grad=True)
    log_density = KDE(base).fit(base.sample((50,))).log_prob(value)
    log_density.sum().backward()
    assert not log_density.isnan().any()
    assert torch.isfinite(value.grad).all()
    for scale in (1e-200, 1e200, 1e300):
        with pytest.raises(ValueError, match="by amounts whose squares float64 holds"):
            KDE(base).fit(scale * base.sample((50,)))


def test_data_is_checked() -> None:
    with pytest.raises(ValueError, match="more rows than columns"):
        KDE(normal(5)).fit(torch.randn(4, 5))
    with pytest.raises(ValueError, match="vary in every direction"):
        KDE(normal(2)).fit(torch.ones(10, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 0.3, 0.1, -7.7e-9, 1e6 + 0.1, 1e30])
def test_constant_columns_are_refused(value: float, dtype: torch.dtype) -> None:
    """Whatever rounding makes of their variance."""
    base = dist.Normal(torch.tensor(0.0, dtype=dtype), 1.0)
    with pytest.raises(ValueError, match="vary in every direction.*Leave out columns that are constant"):
        KDE(base).fit(torch.full((1001,), value, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("factor", "shift"), [(2.0, 0.0), (0.3, 0.0), (0.3, 5.0), (0.1, 1e3), (-1e-9, 0.1)])
def test_columns_that_others_determine_are_refused(factor: float, shift: float, dtype: torch.dtype) -> None:
    first = torch.randn(999, dtype=dtype)
    base = dist.Normal(torch.zeros(2, dtype=dtype), 1.0).to_event(1)
    with pytest.raises(ValueError, match="vary in every direction"):
        KDE(base).fit(torch.stack([first, factor * first + shift], 1))


def test_narrow_and_strongly_correlated_columns_are_fitted() -> None:
    first = torch.randn(999)
    KDE(normal(2)).fit(torch.stack([first, first + 1e-3 * torch.randn(999)], 1))
    KDE(dist.Normal(0.0, 1.0)).fit(100 + 1e-3 * first)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(ImportError, match=r"scipy: install it with `pip install 'pyro_mbde\[baselines\]'`"):
        KDE(dist.Normal(0.0, 1.0)).fit(torch.randn(10))
    with pytest.raises(ImportError, match="no_such_package: install it"):
        require("no_such_package.part")
