"""The faster form of the tilt: the values and gradients of the plain one, and where it is not used."""

from __future__ import annotations

import copy
import gc
import io
import math
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from densities import make_batch, make_density, normal
from torch import Tensor, nn

from pyro_mbde import BoundedClassifiers, Bounds, MollifiedExpFamily
from pyro_mbde.density import fused
from pyro_mbde.density.base import LocationScale
from pyro_mbde.density.clipped_ratio import ClippedRatio
from pyro_mbde.density.statistics import ACTIVATIONS, LINKS
from pyro_mbde.density.tilt import Tilt

DTYPES = [torch.float32, torch.float64]


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that some tens of rows are several chunks."""
    monkeypatch.setattr(fused, "CHUNK_ROWS", 16)


def networks(num_networks: int, dims: int, dtype: torch.dtype = torch.float32, **options: Any) -> BoundedClassifiers:
    """Networks whose logits often meet their bound."""
    module = BoundedClassifiers(num_networks, dims, **options).to(dtype)
    module.scale_logits(5.0)
    return module


def plain(tilt: Tilt, rows: Tensor) -> Tensor:
    return tilt.of_scores(tilt.score(rows))


def gradient(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    rows = rows.clone().requires_grad_()
    weights = torch.linspace(0.5, 1.5, rows[..., 0].numel(), dtype=torch.float64).reshape(rows.shape[:-1])
    return torch.autograd.grad((weights * function(rows)).sum(), rows)[0]


def assert_same(tilt: Tilt, rows: Tensor) -> None:
    """Values and gradients of both forms, of all rows except those that are at a bound in one of them only."""
    assert fused.FusedScore.of(tilt.statistics, tilt.natural_params, tilt.score) is not None
    tolerance = 2e-5 if rows.dtype == torch.float32 else 1e-12
    size = float(tilt.natural_params.abs().sum()) + 1
    values = tilt(rows)
    assert values.dtype == torch.float64
    torch.testing.assert_close(values, plain(tilt, rows), rtol=0, atol=tolerance * min(size, 10))
    assert bool(((values >= tilt.bounds.low) & (values <= tilt.bounds.high)).all())
    mine, theirs = gradient(tilt, rows), gradient(lambda x: plain(tilt, x), rows)
    assert mine.dtype == rows.dtype
    near = (mine - theirs).abs() <= 50 * tolerance * (1 + theirs.abs().max())
    assert float(near.all(-1).double().mean()) > 0.97
    # with the gradient asked for, the same bits
    assert torch.equal(tilt(rows.clone().requires_grad_()).detach(), values)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
@pytest.mark.parametrize("num_frequencies", [0, 7])
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_every_architecture(activation: str, link: str, num_frequencies: int, dtype: torch.dtype) -> None:
    sizes: list[tuple[int, int, tuple[int, ...]]] = [(1, 1, (5,)), (3, 2, (8, 6)), (10, 10, (6, 5, 4))]
    ratios = [(1024.0, 0.0, 1024.0), (0.5, 0.3, 2.0), (0.5, 0.3, -2.0)]
    for (num_networks, dims, hidden_sizes), (theta, shift, other) in zip(sizes, ratios, strict=True):
        spread = LocationScale(torch.randn(dims), 0.5 + torch.rand(dims))
        options = {"activation": activation, "num_frequencies": num_frequencies, "hidden_sizes": hidden_sizes}
        module = networks(num_networks, dims, dtype, link=link, spread=spread, **options)
        rows = torch.randn(50, dims, dtype=dtype)
        assert_same(Tilt(module, torch.linspace(-0.5, 1, num_networks)), rows)
        ratio = ClippedRatio(module, shift, theta)
        assert_same(Tilt(ratio, torch.tensor([other]), 0.1, 0.7, Bounds(-0.3, 0.4)), rows)


@pytest.mark.parametrize("num_networks", range(1, 11))
@pytest.mark.parametrize("dims", [1, 2, 5, 10])
def test_every_size(num_networks: int, dims: int) -> None:
    module = networks(num_networks, dims, hidden_sizes=(9, 9), num_frequencies=4)
    assert_same(Tilt(module, torch.ones(num_networks)), torch.randn(40, dims))


@pytest.mark.parametrize("loc", [0.0, 3.0, 1e5])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e4, 1e30])
def test_every_spread(loc: float, scale: float) -> None:
    """Also where scales do not fit into weights, or locations into biases: years of a float32."""
    spread = LocationScale(torch.tensor([loc * scale, 0.0]), torch.tensor([scale, 1.0]))
    module = networks(3, 2, hidden_sizes=(6, 6), num_frequencies=4, spread=spread)
    rows = torch.randn(60, 2) * spread.scale + spread.loc
    assert_same(Tilt(module, torch.ones(3)), rows)


@pytest.mark.parametrize("shape", [(2,), (1, 2), (0, 2), (5, 2), (3, 4, 2), (40, 2)])
def test_shapes(shape: tuple[int, ...]) -> None:
    tilt = Tilt(networks(2, 2, num_frequencies=3), torch.ones(2))
    rows = torch.randn(shape)
    assert tilt(rows).shape == shape[:-1]
    assert gradient(tilt, rows).shape == shape
    torch.testing.assert_close(tilt(rows), plain(tilt, rows), rtol=0, atol=1e-5)


def test_columns_that_lie_apart_in_memory() -> None:
    tilt = Tilt(networks(2, 3, num_frequencies=3), torch.ones(2))
    rows = torch.randn(3, 40).t()
    assert torch.equal(tilt(rows), tilt(rows.contiguous()))
    assert torch.equal(tilt(rows[::2]), tilt(rows[::2].contiguous()))


@pytest.mark.parametrize("density", [make_density(normal(2), num_frequencies=3), make_batch(normal(2), 4)])
def test_second_derivatives(density: MollifiedExpFamily) -> None:
    value = density.sample((3,)).requires_grad_()
    first = torch.autograd.grad(density.log_prob(value).sum(), value, create_graph=True)[0]
    (second,) = torch.autograd.grad(first.square().sum(), value)

    def by_plain(value: Tensor) -> Tensor:
        return density.base.log_prob(value) + plain(density._tilt, density.features(value))

    wanted = torch.autograd.grad(by_plain(value).sum(), value, create_graph=True)[0]
    (wanted_second,) = torch.autograd.grad(wanted.square().sum(), value)
    torch.testing.assert_close(first, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(second, wanted_second, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        one = value[0].detach()
    hessian = torch.func.hessian(density.log_prob)(one)
    by_autograd = torch.autograd.functional.hessian(density.log_prob, one)
    torch.testing.assert_close(by_autograd, hessian, rtol=1e-3, atol=1e-3)
    # a row of gradients at a time, under vmap
    jacobian = torch.autograd.functional.jacobian(density.log_prob, value.detach(), vectorize=True)
    torch.testing.assert_close(jacobian.sum(1), first.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_what_is_traced_or_mapped_over_goes_through_the_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    density = make_density(normal(2), num_frequencies=3)
    value = torch.randn(6, 2)
    expected = density.log_prob(value)

    def refuse(*arguments: object) -> None:
        raise AssertionError("the faster form was used")

    monkeypatch.setattr(fused.FusedScore, "_evaluate", refuse)
    for form in (
        torch.func.vmap(density.log_prob),
        torch.jit.trace(density.log_prob, value, check_trace=False),
        lambda value: torch.func.jvp(density.log_prob, (value,), (torch.ones_like(value),))[0],
    ):
        torch.testing.assert_close(form(value), expected, rtol=1e-5, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert density.log_prob(value).shape == (6,)
    with pytest.raises(AssertionError, match="faster form"):
        density.log_prob(value)


def test_forward_mode() -> None:
    density = make_density(normal(2), num_frequencies=3)
    value = torch.randn(6, 2)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(value, torch.ones_like(value))
        tangent = torch.autograd.forward_ad.unpack_dual(density.tilt(dual)).tangent
    torch.testing.assert_close(tangent.float(), gradient_of_ones(density, value).sum(-1), rtol=1e-4, atol=1e-4)


def gradient_of_ones(density: MollifiedExpFamily, value: Tensor) -> Tensor:
    value = value.clone().requires_grad_()
    return torch.autograd.grad(density.tilt(value).sum(), value)[0]


def test_networks_that_are_changed_in_place_are_the_ones_evaluated() -> None:
    density = make_density(normal(2))
    value = torch.randn(20, 2)
    before = density.tilt(value)
    statistics: Any = density.statistics
    statistics.weights[-1].mul_(0.5)
    after = density.tilt(value)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, density.accepted_tilt(value), rtol=0, atol=1e-5)
    statistics.double()
    torch.testing.assert_close(density.to(torch.float64).tilt(value), after, rtol=0, atol=1e-5)
    statistics.float()
    torch.testing.assert_close(density.tilt(value), after, rtol=0, atol=1e-5)
    statistics.load_state_dict({name: torch.zeros_like(value) + 1 for name, value in statistics.state_dict().items()})
    torch.testing.assert_close(density.tilt(value), density.accepted_tilt(value), rtol=0, atol=1e-5)


def test_hooks_are_called_and_other_modules_are_left_alone() -> None:
    calls = []
    density = make_density(normal(2))
    density.tilt(torch.randn(3, 2))
    handle = density.statistics.register_forward_hook(lambda *arguments: calls.append(1))
    density.tilt(torch.randn(3, 2))
    handle.remove()
    density.tilt(torch.randn(3, 2))
    assert len(calls) == 1

    class Mine(BoundedClassifiers):
        """A subclass, which may do anything."""

        def forward(self, value: Tensor) -> Tensor:
            return 0 * super().forward(value)

    zero = MollifiedExpFamily(normal(2), Mine(1, 2), torch.ones(1), 0.0)
    assert not bool(zero.tilt(torch.randn(3, 2)).any())


def test_copies_and_files() -> None:
    density = make_density(normal(2), num_frequencies=3)
    value = torch.randn(40, 2)
    size = len(pickle.dumps(density))
    expected = density.log_prob(value)
    assert len(pickle.dumps(density)) == size
    for again in (copy.deepcopy(density), pickle.loads(pickle.dumps(density)), density.expand([1])):
        assert torch.equal(again.log_prob(value), expected)
    torch.testing.assert_close(density.to(torch.float64).log_prob(value), expected.double(), rtol=1e-5, atol=1e-5)
    with torch.inference_mode():
        assert torch.equal(density.log_prob(value), expected)
        inside = pickle.loads(pickle.dumps(density))
        assert torch.allclose(inside.log_prob(value), expected)
    buffer = io.BytesIO()
    torch.save(density, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False).log_prob(value), expected)


@pytest.mark.parametrize("fill", [1e30, -1e30, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("link", LINKS)
def test_hostile_weights_stay_behind_the_bounds(fill: float, link: str) -> None:
    bounds = Bounds(-0.3, 0.7)
    for dtype in DTYPES:
        module = networks(3, 2, dtype, link=link, num_frequencies=4)
        tilts = [
            Tilt(module, torch.ones(3), 0.1, 0.9, bounds),
            Tilt(module, torch.full((3,), 1.7e308, dtype=torch.float64), 0.0, 1.0, bounds),
            Tilt(ClippedRatio(module, 0.2, 2.0), torch.tensor([1.7e308], dtype=torch.float64), 0.1, 0.9, bounds),
        ]
        rows = torch.cat([torch.randn(30, 2), torch.tensor([[math.nan, 0.0], [math.inf, 1.0], [1e30, -1e30]])])
        for tilt in tilts:
            for parameter in tilt.statistics.parameters():
                parameter.fill_(fill)
                parameter[..., ::2] *= -1
            for value in (rows.to(dtype), rows.to(dtype).requires_grad_()):
                values = tilt(value).detach()
                assert bool(((values >= bounds.low) & (values <= bounds.high)).all())
                if not math.isfinite(fill):  # finite ones overflow in another order
                    assert torch.equal(values, plain(tilt, rows.to(dtype)))


def test_one_network_that_fails_counts_as_0() -> None:
    module = networks(3, 2)
    with torch.no_grad():
        module.weights[-1][1] = math.nan
    tilt, rows = Tilt(module, torch.ones(3)), torch.randn(30, 2)
    torch.testing.assert_close(tilt(rows), plain(tilt, rows), rtol=0, atol=1e-5)
    assert bool((tilt(rows) != 0).any())


def test_memory_does_not_grow_with_rows() -> None:
    """What is kept for the backward pass is a gradient, not what lies between the layers."""
    density = make_density(dist.Normal(torch.zeros(2), torch.ones(2)).to_event(1), hidden_sizes=(64, 64))
    value = torch.randn(2000, 2, requires_grad=True)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda x: x):
        density.log_prob(value)
    assert sum(kept) <= 20 * value.numel()


@pytest.mark.parametrize("clip", [None, fused.Clip(0.1, -0.3, 0.7, 0.9)])
def test_graphs_are_freed_with_their_results(clip: fused.Clip | None) -> None:
    tilt = Tilt(networks(2, 2), torch.ones(2))
    score = fused.FusedScore.of(tilt.statistics, tilt.natural_params, tilt.score)
    assert score is not None
    gc.collect()
    gc.disable()
    try:
        kept = weakref.ref(score(torch.randn(3, 2, requires_grad=True), clip).grad_fn)
        assert kept() is None
    finally:
        gc.enable()


def test_a_module_of_two_types_is_called() -> None:
    class Wide(nn.Module):
        """Of a user."""

        def forward(self, value: Tensor) -> Tensor:
            return value.double().sum(-1, keepdim=True)

    for module in (Wide(), BoundedClassifiers(1, 2).double()):
        density = MollifiedExpFamily(normal(2), module, torch.tensor([0.5]), 0.0)
        value = torch.randn(5, 2)
        torch.testing.assert_close(density.tilt(value), plain(density._tilt, value), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        lambda tilt: setattr(tilt.statistics.networks, "loc", tilt.statistics.networks.loc + 0.5),
        lambda tilt: tilt.natural_params.mul_(0.5),
        lambda tilt: setattr(tilt.statistics, "shift", 0.3),
        lambda tilt: tilt.statistics.networks.weights[0].mul_(1.5),
        lambda tilt: tilt.statistics.networks.weights.__setitem__(
            0, nn.Parameter(tilt.statistics.networks.weights[0] * 2)
        ),
        lambda tilt: tilt.statistics.load_state_dict(
            {name: 1.2 * value for name, value in tilt.statistics.state_dict().items()}, assign=True
        ),
    ],
    ids=["buffer replaced", "natural parameters", "shift", "in place", "parameter replaced", "assigned"],
)
def test_a_change_of_the_networks_is_noticed(change: Callable[[Tilt], Any]) -> None:
    rows = torch.randn(20, 2)
    tilt = Tilt(ClippedRatio(networks(4, 2)), torch.tensor([1024.0]), bounds=Bounds(-20.0, 20.0))
    before = tilt(rows)
    with torch.no_grad():
        change(tilt)
    assert not torch.allclose(before, plain(tilt, rows), atol=1e-3)
    assert_same(tilt, rows)


@pytest.mark.parametrize("name", ["_are_functorch_transforms_active", "_len_torch_dispatch_stack"])
def test_without_an_interface_of_torch_the_networks_are_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, name)
    assert not fused.is_eager(torch.zeros(2))
    tilt = Tilt(networks(3, 2), torch.tensor([0.3, 0.2, 0.1]))
    rows = torch.randn(5, 2)
    assert torch.equal(tilt(rows), plain(tilt, rows))
