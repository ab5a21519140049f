"""The guarantee against networks that try to break it: huge, infinite and NaN outputs, on and off the support."""

from __future__ import annotations

import math
from collections.abc import Callable

import pyro.distributions as dist
import pytest
import torch
from densities import normal
from pyro.ops.provenance import ProvenanceTensor
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from pyro_mbde import BoundedClassifiers, Bounds, MollifiedExpFamily, private_draws
from pyro_mbde.density.base import PreparedBase, prepare
from pyro_mbde.density.base_draws import SystemSource
from pyro_mbde.density.bounds import (
    LOG_2,
    Certificate,
    calibrated_guarantee,
    paper_natural_params,
    spending_natural_params,
)
from pyro_mbde.density.clipped_ratio import ClippedRatio
from pyro_mbde.density.statistics import LINKS, bound_logits, log_2_below

EPSILONS = [1e-300, 1e-6, 0.1, 1.0, 5.0, 100.0, math.inf]


class Constant(nn.Module):
    """Answers the same outputs everywhere."""

    def __init__(self, *outputs: float) -> None:
        super().__init__()
        self.register_buffer("outputs", torch.tensor(outputs))

    def forward(self, value: Tensor) -> Tensor:
        return self.outputs.expand(*value.shape[:-1], -1)


class Checkerboard(nn.Module):
    """Alternates between two outputs, the worst case for the log-ratio."""

    def __init__(self, even: float, odd: float, num_statistics: int) -> None:
        super().__init__()
        self.register_buffer("pair", torch.tensor([even, odd]))
        self.num_statistics = num_statistics

    def forward(self, value: Tensor) -> Tensor:
        cell = torch.nan_to_num(value.sum(-1, keepdim=True) * 3).floor().remainder(2).long()
        return self.pair[cell].expand(*value.shape[:-1], self.num_statistics)


BAD_OUTPUTS = [1e30, -1e30, math.nan, math.inf, -math.inf]


DTYPES = [torch.float32, torch.float64]


@pytest.fixture(params=DTYPES, ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def build(
    statistics: nn.Module, natural_params: Tensor, base: dist.TorchDistribution | PreparedBase
) -> MollifiedExpFamily:
    return MollifiedExpFamily.normalized(base, statistics, natural_params, num_draws=2**12)


@pytest.fixture(scope="module")
def plane_base() -> PreparedBase:
    """The standard normal in the plane, checked once."""
    return prepare(normal(2))


def check(density: MollifiedExpFamily, epsilon: float, value: Tensor) -> None:
    """|f| <= B, |log q - log q0| <= eps/2, no NaN; the log-ratio is taken in float64, where the draws are decided."""
    tilt = density.tilt(value)
    assert tilt.dtype == torch.float64
    assert not bool(torch.isnan(tilt).any())
    assert float(tilt.abs().max()) <= density.bounds.high
    log_ratio = tilt - density.log_normalizer.value
    # the guarantee is what the width gives, also where epsilon is far above it or infinite
    claimed = density.guarantee.epsilon
    assert claimed <= epsilon
    assert float(log_ratio.abs().max()) <= claimed / 2
    # in the density's own dtype, rounding of log q0 and log q comes on top
    log_q, log_q0 = density.log_prob(value), density.base.log_prob(value)
    assert not bool(torch.isnan(log_q).any())
    rounding = 4 * torch.finfo(density.dtype).eps * (log_q0.abs().max() + 1)
    assert float((log_q - log_q0).abs().max()) <= claimed / 2 + float(rounding)


@pytest.mark.parametrize("output", BAD_OUTPUTS)
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("schedule", [spending_natural_params, paper_natural_params])
def test_constant_networks(output: float, epsilon: float, schedule: object, plane_base: PreparedBase) -> None:
    params = schedule(epsilon, 3)  # type: ignore[operator]
    density = build(Constant(output, -output, output), params, plane_base)
    for dtype in DTYPES:
        value = torch.cat([torch.randn(500, 2), 1e3 * torch.randn(100, 2), torch.zeros(1, 2)])
        check(density.to(dtype), epsilon, value)


@pytest.mark.parametrize("even", BAD_OUTPUTS)
@pytest.mark.parametrize("odd", BAD_OUTPUTS)
@pytest.mark.parametrize("epsilon", [1e-6, 1.0, 5.0])
def test_alternating_networks(even: float, odd: float, epsilon: float, plane_base: PreparedBase) -> None:
    density = build(Checkerboard(even, odd, 3), spending_natural_params(epsilon, 3), plane_base)
    for dtype in DTYPES:
        check(density.to(dtype), epsilon, torch.randn(2000, 2))


@pytest.mark.parametrize("output", BAD_OUTPUTS)
def test_off_the_support(output: float, dtype: torch.dtype) -> None:
    box = dist.Uniform(torch.zeros(2), torch.ones(2)).to_event(1)
    density = build(Constant(output), spending_natural_params(1.0, 1), box).to(dtype)
    density._validate_args = False
    outside = torch.tensor([[2.0, 0.5], [math.inf, 0.5], [1e30, 1e30]])
    assert bool((density.log_prob(outside) == -math.inf).all())
    missing = torch.tensor([[math.nan, 0.5], [-math.inf, math.nan]])
    assert bool(density.log_prob(missing).isnan().all())
    outside = torch.cat([outside, missing])
    assert not bool(torch.isnan(density.tilt(outside)).any())
    check(density, 1.0, torch.rand(100, 2))


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("fill", [1e30, -1e30, math.nan, math.inf, -math.inf])
def test_classifiers_with_hostile_weights(link: str, fill: float, dtype: torch.dtype) -> None:
    classifiers = BoundedClassifiers(3, 2, link=link, num_frequencies=4).to(dtype)
    with torch.no_grad():
        for parameter in classifiers.parameters():
            parameter.fill_(fill)
            parameter[..., ::2] *= -1
    statistics = classifiers(torch.randn(200, 2, dtype=dtype))
    assert not bool(torch.isnan(statistics).any())
    assert bool((statistics.double().abs() <= math.log(2)).all())
    density = build(classifiers, spending_natural_params(1.0, 3), normal(2)).to(dtype)
    check(density, 1.0, torch.randn(200, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("link", LINKS)
def test_the_bound_holds_in_the_dtype_it_is_computed_in(dtype: torch.dtype, link: str) -> None:
    logits = torch.tensor([-math.inf, -1e4, -0.7, -1e-3, 0.0, 0.6931472, 1.0, 88.0, math.inf, math.nan]).to(dtype)
    statistics = bound_logits(logits, link)
    assert statistics.dtype == dtype
    # compared as exact rationals: float64 holds every value of the narrower types, and math.log(2) is below log 2
    assert all(abs(value) <= math.log(2) for value in statistics.double().tolist())
    # and it is the largest such number: the next one up is above log 2 (for float64, above the double below log 2)
    bound = torch.tensor(log_2_below(dtype), dtype=dtype)
    assert log_2_below(dtype) <= math.log(2) < float(torch.nextafter(bound, torch.ones_like(bound)))


def test_two_tables_at_once() -> None:
    """The log-ratio of two hostile densities comes close to epsilon and never passes it."""
    epsilon = 1.0
    params = spending_natural_params(epsilon, 3)
    base = normal(1)

    class Step(nn.Module):
        """+ on a far half-line, - on the rest: phi is then near its lower end."""

        def __init__(self, sign: float) -> None:
            super().__init__()
            self.sign = sign

        def forward(self, value: Tensor) -> Tensor:
            return (torch.where(value > 3.5, self.sign, -self.sign) * 1e30).expand(*value.shape[:-1], 3)

    q, q_other = (build(Step(sign), params, base) for sign in (1.0, -1.0))
    value = torch.linspace(-6, 6, 2001).unsqueeze(-1)
    log_ratio = (q.tilt(value) - q.log_normalizer.value) - (q_other.tilt(value) - q_other.log_normalizer.value)
    assert float(log_ratio.abs().max()) <= epsilon
    assert float(log_ratio.abs().max()) > 0.99 * epsilon
    assert float(log_ratio.max() - log_ratio.min()) <= q.guarantee.log_ratio_range


def test_a_module_that_writes_into_its_input() -> None:
    """Attack: rows of the table written over the proposals; and the innocent case, an in-place activation."""
    row = torch.tensor([7.25, -3.5])

    class Leak(nn.Module):
        """Copies a row of the table into its input."""

        def forward(self, value: Tensor) -> Tensor:
            value.copy_(row.expand_as(value))
            return value.new_zeros((*value.shape[:-1], 1))

    density = build(Leak(), torch.tensor([0.5]), normal(2))
    for draws in (density.sample((50,)), private_draws(density, 50)):
        assert not bool((draws == row).any())
    rectified = build(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 1)), torch.tensor([0.5]), normal(2))
    assert bool((private_draws(rectified, 50) < 0).any())
    value = torch.tensor([[-1.0, -1.0]])
    assert float((rectified.log_prob(value) - normal(2).log_prob(value)).abs()) <= rectified.epsilon / 2
    assert value.tolist() == [[-1.0, -1.0]]


class Evasive(Tensor):
    """Attack: a subclass of Tensor that ignores clamps, and keeps its class when asked to give it up."""

    @classmethod
    def __torch_function__(cls, func: object, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        if getattr(func, "__name__", "") in ("clamp", "nan_to_num", "as_subclass", "detach", "to", "double"):
            return args[0]
        return super().__torch_function__(func, types, args, kwargs or {})


def with_methods_of_its_own(value: Tensor) -> Tensor:
    """Attack: a plain tensor whose attributes stand in for methods."""
    value = (value * 1e3).sum(-1, keepdim=True)
    huge = value.double().as_subclass(Evasive)
    for name in ("double", "clamp", "to", "nan_to_num", "clone", "float", "is_complex"):
        setattr(value, name, lambda *args, **kwargs: huge)
    return value


class Returns(nn.Module):
    """Returns what a function makes of the input."""

    def __init__(self, convert: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.convert = convert

    def forward(self, value: Tensor) -> object:
        return self.convert(value)


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: (x * 1e3).as_subclass(Evasive),
        lambda x: ProvenanceTensor((x * 1e3).as_subclass(Evasive), frozenset({"x"})),
        lambda x: ProvenanceTensor(x * 1e3, frozenset({"x"})),
        lambda x: nn.Parameter(x.detach()),
        lambda x: FakeTensorMode().from_tensor(x),
        lambda x: x.numpy(),
        lambda x: None,
        lambda x: x + 0j,
    ],
)
def test_a_module_that_returns_what_is_no_plain_tensor(convert: Callable[[Tensor], object]) -> None:
    with pytest.raises(TypeError, match="statistics must return a real torch.Tensor"):
        MollifiedExpFamily(normal(2), Returns(convert), torch.tensor([0.5, 0.5]), 0.0)


def test_a_tensor_with_methods_of_its_own() -> None:
    density = MollifiedExpFamily(normal(2), Returns(with_methods_of_its_own), torch.tensor([0.5]), 0.0)
    tilt = density.tilt(torch.randn(50, 2))
    assert type(tilt) is Tensor
    assert float(tilt.abs().max()) <= density.bounds.high


@pytest.mark.parametrize("convert", [lambda x: x * 1e3, lambda x: (x * 1e3).as_subclass(Evasive)])
def test_values_and_parameters_of_an_evasive_class(convert: Callable[[Tensor], Tensor]) -> None:
    """Attack: the network is plain, and what it is given or multiplied with is not."""
    theta = torch.tensor([0.5, -0.5], dtype=torch.float64)
    bounds = Bounds(-0.1, 0.2)
    for natural_params in (theta, theta.as_subclass(Evasive), nn.Parameter(theta)):
        if convert(theta).__class__ is Tensor:
            density = MollifiedExpFamily(normal(2), Returns(convert), natural_params, 0.0, bounds=bounds)
            for value in (torch.randn(50, 2), torch.randn(50, 2).as_subclass(Evasive)):
                tilt = density.tilt(value)
                assert type(tilt) is Tensor
                assert float(tilt.max()) <= bounds.high
                assert float(tilt.min()) >= bounds.low
        else:
            with pytest.raises(TypeError, match="statistics must return a real torch.Tensor"):
                MollifiedExpFamily(normal(2), Returns(convert), natural_params, 0.0, bounds=bounds)


def test_a_module_that_reseeds_the_generator() -> None:
    """Attack: the same proposals again and again."""

    class Reseed(nn.Module):
        """Seeds torch's generator."""

        def forward(self, value: Tensor) -> Tensor:
            torch.manual_seed(0)
            return torch.full((*value.shape[:-1], 1), -9.0)

    mixture = dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), dist.Normal(torch.zeros(2), torch.ones(2)))
    for base in (dist.Normal(0.0, 1.0), mixture):
        density = build(Reseed(), torch.tensor([1.0]), base)
        first, second = private_draws(density, 200), private_draws(density, 200)
        assert len(torch.unique(torch.cat([first, second]))) > 390


def test_the_density_keeps_its_own_natural_parameters() -> None:
    theta = torch.tensor([0.5], dtype=torch.float64)
    density = build(Constant(1.0), theta, normal(1))
    value = torch.zeros(1)
    before = density.log_prob(value)
    theta.mul_(0.1)
    assert torch.equal(density.log_prob(value), before)


def test_parameters_that_are_infinite_or_overflow_behind_public_bounds() -> None:
    class Alternating(nn.Module):
        """+1, -1, +1, ... in every row."""

        def forward(self, value: Tensor) -> Tensor:
            return torch.tensor([1.0, -1.0]).repeat(8).expand(*value.shape[:-1], 16)

    with pytest.raises(ValueError, match="natural_params must be finite"):
        MollifiedExpFamily(normal(1), Constant(0.0), torch.tensor([math.inf]), 0.0, bounds=Bounds(-1.0, 1.0))
    huge = torch.full((16,), 1.7e308, dtype=torch.float64)
    density = MollifiedExpFamily(normal(1), Alternating(), huge, 0.0, bounds=Bounds(-1.0, 1.0))
    assert float(density.tilt(torch.zeros(1)).abs()) <= 1


def test_batches_of_private_draws_follow_from_public_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack: the memory that a draw takes, for a table that accepts everything and one that accepts the least."""
    sizes: list[int] = []
    propose = SystemSource.propose

    def record(self: SystemSource, num_proposals: int) -> Tensor:
        sizes.append(num_proposals)
        return propose(self, num_proposals)

    monkeypatch.setattr(SystemSource, "propose", record)
    largest = []
    for sign in (1e9, -1e9):
        sizes.clear()
        private_draws(build(Constant(sign), torch.tensor([3.0]), normal(2)), 5, progress=False)
        largest.append(max(sizes))
    assert largest[0] == largest[1]
    sizes.clear()
    private_draws(build(Constant(1.0), torch.tensor([3.0]), normal(2000)), 1, progress=False)
    assert max(sizes) * 2000 <= 2**22


@pytest.mark.parametrize("offset", [0.0, 3.0, -1e6, 1e300])
@pytest.mark.parametrize("shrinkage", [0.0, 0.3, 1.0])
def test_offsets_and_shrinkage_stay_behind_public_bounds(offset: float, shrinkage: float, dtype: torch.dtype) -> None:
    base = normal(2) if dtype == torch.float32 else dist.Normal(torch.zeros(2, dtype=dtype), 1.0).to_event(1)
    bounds, certificate = Bounds(-0.3, 0.7), Certificate(0.01, 1e-9)
    theta = torch.tensor([1e3, -1e3, 5.0])
    for network in (Checkerboard(1e30, -1e30, 3), Constant(math.nan, math.inf, -math.inf)):
        density = MollifiedExpFamily(
            base, network, theta, 0.0, offset=offset, shrinkage=shrinkage, bounds=bounds, certificate=certificate
        )
        assert density.guarantee == calibrated_guarantee(bounds, certificate)
        tilt = density.tilt(torch.randn(500, 2, dtype=dtype) * 100)
        assert float(tilt.min()) >= shrinkage * bounds.low
        assert float(tilt.max()) <= shrinkage * bounds.high
        assert not bool(tilt.isnan().any())


def test_an_offset_needs_public_bounds() -> None:
    with pytest.raises(ValueError, match="bounds must be given where there is an offset"):
        MollifiedExpFamily(normal(2), Constant(0.1), torch.tensor([0.1]), 0.0, offset=0.2)


@pytest.mark.parametrize(
    ("options", "match"),
    [({"offset": math.nan}, "offset must be finite"), ({"shrinkage": 1.5}, "shrinkage must be in")],
)
def test_offset_and_shrinkage(options: dict[str, float], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        MollifiedExpFamily(normal(2), Constant(0.1), torch.tensor([0.1]), 0.0, bounds=Bounds(-1.0, 1.0), **options)


@pytest.mark.parametrize("weight", [1e30, math.inf, math.nan])
def test_a_clipped_ratio_with_hostile_weights(weight: float) -> None:
    """What mollify builds, around networks gone mad: the tilt stays in its bounds."""
    networks = BoundedClassifiers(2, 2)
    with torch.no_grad():
        networks.weights[0][:, 0] = weight
        networks.weights[1][:, :, ::2] = -weight
    bounds = Bounds(-0.3, 0.7)
    theta = 0.5 / LOG_2
    density = MollifiedExpFamily(
        normal(2), ClippedRatio(networks, 0.2, theta), torch.tensor([theta]), 0.0, offset=-0.2, bounds=bounds
    )
    tilt = density.tilt(torch.randn(500, 2) * 10)
    assert bool(((tilt >= bounds.low) & (tilt <= bounds.high)).all())
