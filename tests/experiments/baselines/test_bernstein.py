"""The Bernstein mechanism: sensitivity under attack, noise measured, densities exact."""

from __future__ import annotations

import math
import statistics
import time

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import stats

from pyro_mbde.experiments.baselines.bernstein import BernsteinKDE, lattice_rule
from pyro_mbde.experiments.baselines.kernels import cross_validate, kernel_sum_bound, lattice_values
from pyro_mbde.experiments.baselines.polynomials import log_basis
from pyro_mbde.metrics import negative_log_likelihood


def table(num_rows: int = 400, num_dims: int = 0) -> torch.Tensor:
    """Rows in [0, 1], in two clumps."""
    shape = (num_rows, num_dims) if num_dims else (num_rows,)
    centres = torch.where(torch.rand(num_rows) < 0.3, 0.25, 0.7)
    return (centres.reshape(-1, *(1,) * (len(shape) - 1)) + 0.07 * torch.randn(shape)).clamp(0, 1)


def box_of(num_dims: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The unit cube; a scalar event for no dimensions."""
    return (torch.zeros(num_dims), torch.ones(num_dims)) if num_dims else (torch.tensor(0.0), torch.tensor(1.0))


# The sensitivity


@pytest.mark.parametrize("num_dims", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 5, 20, 35])
@pytest.mark.parametrize("bandwidth", [1e-3, 0.01, 0.05, 0.3, 2.0, 1e4])
def test_no_row_beats_the_sensitivity_bound(bandwidth: float, size: int, num_dims: int) -> None:
    """Rows anywhere; the trivial bound is never below. Proof: docs/proofs.md, *Sums of a kernel over a lattice*."""
    steps = torch.randint(0, size + 1, (8, num_dims)).double()
    rows = torch.cat(
        [
            torch.rand(8, num_dims, dtype=torch.float64),
            steps / size,
            ((steps + 0.5) / size).clamp(max=1),
            torch.full((1, num_dims), 0.5, dtype=torch.float64),
            torch.zeros(1, num_dims, dtype=torch.float64),
        ]
    )
    sums = [float(lattice_values(row.unsqueeze(0), bandwidth, size).sum()) for row in rows]
    bound = kernel_sum_bound(bandwidth, size, num_dims)
    assert max(sums) <= bound
    assert bound <= (math.sqrt(2 * math.pi) * bandwidth) ** -num_dims * (size + 1) ** num_dims * (1 + 1e-12)


def test_the_sensitivity_bound_is_met() -> None:
    """A row on a lattice point far from the edges has it all; noise by the number of values is 35 times more."""
    row = torch.full((1, 2), 0.5, dtype=torch.float64)
    assert float(lattice_values(row, 0.05, 20).sum()) == pytest.approx(kernel_sum_bound(0.05, 20, 2), rel=1e-12)
    assert float(lattice_values(row, 0.01, 20).sum()) == pytest.approx(kernel_sum_bound(0.01, 20, 2), rel=1e-12)
    loose = 21**2 / (2 * math.pi * 0.05**2)
    assert loose / (2 * kernel_sum_bound(0.05, 20, 2)) == pytest.approx(35.1, abs=0.05)


def test_poissons_summation_meets_the_direct_sum() -> None:
    """The two series of the bound agree where one takes over from the other."""
    below, above = (kernel_sum_bound(bandwidth, 1000, 1) for bandwidth in (0.001 * (1 - 1e-9), 0.001))
    assert below == pytest.approx(above, rel=1e-8)


@pytest.mark.parametrize("group_size", [1, 3, 50, None])
def test_no_pair_of_tables_beats_the_noise(group_size: int | None) -> None:
    """Tables as far apart as can be: all rows that may differ move from one lattice point to another."""
    trainer = BernsteinKDE(*box_of(2), epsilon=0.7, group_size=group_size)
    rows = torch.full((20, 2), 0.2, dtype=torch.float64)
    moved = rows.clone()
    moved[: 20 if group_size is None else group_size] = 0.8
    difference = (lattice_values(rows, 0.05, 10) - lattice_values(moved, 0.05, 10)).abs().sum()
    if group_size is None:  # of any sizes
        difference = torch.maximum(
            difference, (lattice_values(rows, 0.05, 10) - lattice_values(moved[:2], 0.05, 10)).abs().sum()
        )
    sensitivity = 0.7 * trainer.noise_scale(20, 0.05, 10)
    assert float(difference) <= sensitivity
    assert float(difference) > 0.98 * sensitivity


@pytest.mark.parametrize("preset", ["private", "paper"])
@pytest.mark.parametrize(("group_size", "share"), [(1, 1 / 200), (10, 10 / 200), (500, 1.0), (None, 1.0)])
def test_noise_as_measured(preset: str, group_size: int | None, share: float) -> None:
    """The mean of |noise| over 40 seeds is the scale, to four standard errors."""
    rows, epsilon, size = table(200), 0.5, 24
    make = BernsteinKDE if preset == "private" else BernsteinKDE.paper
    trainer = make(*box_of(0), epsilon, group_size=group_size, lattice_size=size, progress=False)
    unit = rows.double().unsqueeze(-1)
    bandwidth = 0.05 if preset == "private" else 0.03
    sensitivity = (
        2 * share * kernel_sum_bound(0.05, size, 1)
        if preset == "private"
        else share * 25 / math.sqrt(2 * math.pi) / 0.03
    )
    exact = lattice_values(unit, bandwidth, size)
    scale = trainer.noise_scale(200, bandwidth, size)
    assert scale == pytest.approx(sensitivity / epsilon, rel=1e-12)
    noise = torch.stack([trainer._add_noise(exact, scale) - exact for _ in range(40)]).abs() / scale
    assert abs(float(noise.mean()) - 1) < 4 / math.sqrt(noise.numel())
    assert abs(float((noise > 2).double().mean()) - math.exp(-2)) < 4 * math.sqrt(0.117 / noise.numel())


def test_what_fit_adds_is_that_noise() -> None:
    """Normalised coefficients do not show the noise; those of a plain fit without clipping at work do."""
    rows = table(300)
    exact = lattice_values(rows.double().unsqueeze(-1), 0.05, 10)
    ratios = []
    for seed in range(60):
        density = BernsteinKDE(*box_of(0), 5.0, lattice_size=10, seed=seed).fit(rows)
        assert density.noise_scale == pytest.approx(2 * kernel_sum_bound(0.05, 10, 1) / 300 / 5, rel=1e-12)
        kept = exact > 20 * density.noise_scale
        total = float((exact[kept]).sum() / density.coefficients[kept].sum())
        ratios.append(float((density.coefficients * total - exact)[kept].abs().mean() / density.noise_scale))
    assert 0.8 < statistics.mean(ratios) < 1.2


# The trainers


@pytest.mark.parametrize("num_dims", [0, 1, 2, 3])
def test_values_are_the_kernel_estimate(num_dims: int) -> None:
    rows = table(50, num_dims).double().reshape(50, -1)
    count = rows.shape[1]
    lattice = torch.cartesian_prod(*[torch.arange(6).double() / 5] * count).reshape(-1, count)
    kernels = dist.Normal(rows, torch.tensor(0.1, dtype=torch.float64)).to_event(1)
    expected = kernels.log_prob(lattice.unsqueeze(1)).exp().mean(1)
    torch.testing.assert_close(lattice_values(rows, 0.1, 5).flatten(), expected)


@pytest.mark.parametrize("make", [BernsteinKDE, BernsteinKDE.paper], ids=["private", "paper"])
@pytest.mark.parametrize("num_dims", [0, 1, 2, 3])
def test_densities_integrate_to_one(num_dims: int, make: object) -> None:
    """By midpoints; also with so much noise that half of the values are negative."""
    size = {0: 20_000, 1: 20_000, 2: 200, 3: 40}[num_dims]
    count = max(num_dims, 1)
    axis = (torch.arange(size) + 0.5) / size
    points = torch.cartesian_prod(*[axis] * count).reshape(-1, *box_of(num_dims)[0].shape)
    for epsilon in (0.2, 20.0):
        density = make(*box_of(num_dims), epsilon, lattice_size=9, seed=1, progress=False).fit(table(300, num_dims))
        log_density = density.log_prob(points).double()
        assert not log_density.isnan().any()
        assert float(log_density.exp().mean()) == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize("make", [BernsteinKDE, BernsteinKDE.paper], ids=["private", "paper"])
@pytest.mark.parametrize("epsilon", [0.5, 50.0])
def test_draws_have_the_density(epsilon: float, make: object) -> None:
    """Kolmogorov-Smirnov against the density's integral, on a box that is not the unit interval."""
    rows = 10 * table(300) - 4
    density = make(-4.0, 6.0, epsilon, lattice_size=12, seed=2, progress=False).fit(rows)
    draws = density.sample((20_000,)).double()
    assert bool(((draws >= -4) & (draws <= 6)).all())
    grid = torch.linspace(-4, 6, 20_001)
    masses = density.log_prob(grid).double().exp()
    cumulative = torch.cat([torch.zeros(1), ((masses[1:] + masses[:-1]) / 2).cumsum(0) * 10 / 20_000]).numpy()
    places = grid.double().numpy()
    assert stats.kstest(draws.numpy(), lambda x: np.interp(x, places, cumulative)).pvalue > 1e-4


@pytest.mark.parametrize("make", [BernsteinKDE, BernsteinKDE.paper], ids=["private", "paper"])
def test_draws_in_the_plane_have_the_density(make: object) -> None:
    """Counts in 8 x 8 cells against their masses."""
    density = make(*box_of(2), 3.0, lattice_size=8, seed=3, progress=False).fit(table(500, 2))
    axis = (torch.arange(320) + 0.5) / 320
    masses = density.log_prob(torch.cartesian_prod(axis, axis)).double().exp().reshape(8, 40, 8, 40).sum((1, 3))
    cells = (density.sample((20_000,)) * 8).long().clamp(max=7)
    counts = torch.bincount(cells[:, 0] * 8 + cells[:, 1], minlength=64).double()
    expected = 20_000 * masses.flatten() / masses.sum()
    held = expected > 5
    statistic = float(((counts - expected) ** 2 / expected)[held].sum())
    assert stats.chi2.sf(statistic, int(held.sum()) - 1) > 1e-4


@pytest.mark.parametrize("num_dims", [0, 1, 2])
def test_ten_thousand_points_take_no_time(num_dims: int) -> None:
    """At the finest lattice of the rule, which is that without noise: about 0.1 seconds on an idle core."""
    density = BernsteinKDE(*box_of(num_dims), math.inf).fit(table(200, num_dims))
    assert num_dims == 2 or density.lattice_size == 1000
    points, seconds = torch.rand(10_000, *box_of(num_dims)[0].shape), []
    for _ in range(3):
        start = time.process_time()
        density.log_prob(points)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.5


def test_no_noise_is_the_plain_polynomial() -> None:
    rows = table(200)
    density = BernsteinKDE(*box_of(0), math.inf, lattice_size=15).fit(rows)
    assert density.noise_scale == 0
    x = torch.linspace(0, 1, 33)
    values = lattice_values(rows.double().unsqueeze(-1), 0.05, 15)
    expected = (log_basis(x.double(), 15).exp() @ (values / values.mean())).log().float()
    torch.testing.assert_close(density.log_prob(x), expected)
    assert repr(density) == "BernsteinDensity(not private, lattice_size=15, event_shape=())"


def test_more_epsilon_fits_better() -> None:
    """Medians over five seeds, on a known target."""
    target = dist.Beta(torch.tensor(8.0), torch.tensor(4.0))
    torch.manual_seed(0)
    rows = target.sample((1000,))
    medians = []
    for epsilon in (0.02, 0.2, 2.0, math.inf):
        densities = [BernsteinKDE(0.0, 1.0, epsilon, lattice_size=40, seed=seed).fit(rows) for seed in range(5)]
        losses = [negative_log_likelihood(target, density, (0.0, 1.0)).value for density in densities]
        medians.append(statistics.median(losses))
    assert medians == sorted(medians, reverse=True)
    assert medians[-1] < float(target.entropy()) + 0.1


def test_rows_outside_the_box_count_on_its_edge() -> None:
    rows = torch.tensor([-5.0, 0.3, 2.0])
    outside = BernsteinKDE(0.0, 1.0, 1.0, seed=0).fit(rows)
    inside = BernsteinKDE(0.0, 1.0, 1.0, seed=0).fit(rows.clamp(0, 1))
    assert torch.equal(outside.coefficients, inside.coefficients)


def test_integral_noise_knows_no_rows() -> None:
    """Neither the noise nor the lattice depends on the number of rows where any table may be another."""
    densities = [BernsteinKDE(0.0, 1.0, 0.5, group_size=None, seed=0).fit(table(size)) for size in (2, 50, 1000)]
    assert len({(density.noise_scale, density.lattice_size) for density in densities}) == 1


@pytest.mark.parametrize("num_dims", [1, 2, 3, 5, 10, 15])
def test_the_rule_keeps_lattices_small(num_dims: int) -> None:
    size = lattice_rule(0.05, num_dims, 1, lambda size: 0.0)
    assert size <= 1000
    assert (size + 1) ** num_dims <= 50_000
    assert lattice_rule(0.05, num_dims, 1, lambda size: 1e9 * size) == 1


def test_the_rule_follows_its_rate() -> None:
    """k grows as (epsilon n)^(1/(d + m))."""
    for iterations in (1, 2, 3):
        sizes = [
            lattice_rule(0.05, 2, iterations, lambda size, factor=factor: size**2 / factor) for factor in (1e3, 1e5)
        ]
        assert sizes[1] / sizes[0] == pytest.approx(100 ** (1 / (2 + iterations)), rel=0.15)


def test_many_dimensions() -> None:
    with pytest.raises(ValueError, match="low must have few enough entries for a lattice, 15"):
        BernsteinKDE(torch.zeros(16), 1.0, 1.0)
    density = BernsteinKDE(torch.zeros(10), 1.0, 1.0, seed=0).fit(table(200, 10))
    assert density.event_shape == (10,)
    assert torch.isfinite(density.log_prob(density.sample((5,)))).all()


def test_cross_validation_finds_a_good_bandwidth() -> None:
    """Near the best for normal rows, 1.06 s n^(-1/5); the same for the same seed."""
    rows = (0.5 + 0.1 * torch.randn(1000, 1, dtype=torch.float64)).clamp(0, 1)
    best = 1.06 * 0.1 * 1000**-0.2
    torch.manual_seed(5)
    first = cross_validate(rows, progress=False)
    torch.manual_seed(5)
    assert cross_validate(rows, progress=False) == first
    assert best / 2.5 < first < 2.5 * best
    assert cross_validate(torch.tensor([[0.1], [0.9]], dtype=torch.float64), progress=False) > 0


@pytest.mark.parametrize("make", [BernsteinKDE, BernsteinKDE.paper], ids=["private", "paper"])
@pytest.mark.parametrize("epsilon", [5e-324, 1e-300])
def test_noise_beyond_all_floats(epsilon: float, make: object) -> None:
    with pytest.raises(ValueError, match="epsilon must be large enough for noise that floats hold"):
        make(0.0, 1.0, epsilon, progress=False).fit(table(50))


@pytest.mark.parametrize("epsilon", [1e-250, 1.0, math.inf])
@pytest.mark.parametrize("iterations", [1, 30])
@pytest.mark.parametrize("bandwidth", [1e-8, 1e8])
@pytest.mark.parametrize("num_dims", [1, 2, 15])
def test_extreme_bandwidths(bandwidth: float, iterations: int, epsilon: float, num_dims: int) -> None:
    """A density whatever the settings; without noise, of wide kernels and of none at the lattice, the uniform one."""
    trainer = BernsteinKDE(*box_of(num_dims), epsilon, bandwidth=bandwidth, iterations=iterations, seed=0)
    if num_dims == 15 and bandwidth == 1e-8 and epsilon == 1e-250:  # their noise has the scale 1e364
        with pytest.raises(ValueError, match="epsilon must be large enough"):
            trainer.fit(table(50, num_dims))
        return
    density = trainer.fit(table(50, num_dims))
    assert torch.isfinite(density.log_prob(density.sample((50,)))).all()
    if epsilon == math.inf and bandwidth == 1e8:
        assert density.log_prob(torch.rand(50, num_dims)).abs().max() < 1e-3


def test_numpys_numbers_are_numbers() -> None:
    rows = table(50)
    plain = BernsteinKDE(0.0, 1.0, 0.5, group_size=2, lattice_size=9, seed=1, progress=False).fit(rows)
    options = {"lattice_size": np.int32(9), "seed": np.int64(1), "progress": np.bool_(False)}
    numpys = BernsteinKDE(np.float32(0), np.int64(1), np.float64(0.5), group_size=np.int8(2), **options).fit(rows)
    assert torch.equal(plain.coefficients, numpys.coefficients)
    assert plain.guarantee == numpys.guarantee
