"""Classifiers: shapes, one pass for all rounds, links."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from pyro_mbde import BoundedClassifiers
from pyro_mbde.density.base import LocationScale
from pyro_mbde.density.clipped_ratio import ClippedRatio, mean_logit
from pyro_mbde.density.kinds_of_statistics import describe_statistics, rebuild_statistics
from pyro_mbde.density.statistics import ACTIVATIONS, LINKS, bound_logits


@pytest.mark.parametrize("shape", [(2,), (5, 2), (3, 4, 2), (0, 2)])
@pytest.mark.parametrize("num_frequencies", [0, 3])
def test_shapes(shape: tuple[int, ...], num_frequencies: int) -> None:
    classifiers = BoundedClassifiers(4, 2, num_frequencies=num_frequencies)
    assert classifiers(torch.randn(shape)).shape == (*shape[:-1], 4)


@pytest.mark.parametrize("num_frequencies", [0, 3, 16])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_aligned_layers_are_the_same_function(activation: str, num_frequencies: int) -> None:
    networks = BoundedClassifiers(
        2, 3, hidden_sizes=(5, 16, 33), activation=activation, num_frequencies=num_frequencies
    ).double()
    value = torch.randn(50, 3, dtype=torch.float64)
    aligned = networks.aligned()
    assert aligned.hidden_sizes == (16, 16, 48)
    assert aligned.num_frequencies in (0, 16)
    torch.testing.assert_close(aligned.logits(value), networks.logits(value), rtol=1e-12, atol=1e-12)
    assert aligned.aligned() is aligned
    ratio = ClippedRatio(networks, 0.5, 2.0)
    torch.testing.assert_close(ratio.aligned()(value), ratio(value), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_against_plain_layers(link: str, activation: str) -> None:
    """The batched product equals T networks of nn.Linear layers, evaluated in a loop."""
    classifiers = BoundedClassifiers(3, 2, hidden_sizes=(5, 7), activation=activation, link=link)
    value = torch.randn(11, 2)
    for index in range(3):
        layers: list[nn.Module] = []
        for weight, bias in zip(classifiers.weights, classifiers.biases, strict=True):
            layer = nn.Linear(weight.shape[1], weight.shape[2])
            layer.weight.data, layer.bias.data = weight[index].T, bias[index, 0]
            layers.append(layer)
        hidden = value
        for layer in layers[:-1]:
            hidden = ACTIVATIONS[activation](layer(hidden))
        expected = bound_logits(layers[-1](hidden), link)
        assert torch.allclose(classifiers(value)[:, index], expected[:, 0], atol=1e-6)


def test_the_papers_network_has_its_number_of_parameters() -> None:
    classifiers = BoundedClassifiers(1, 2)
    assert sum(parameter.numel() for parameter in classifiers.parameters()) == (2 + 1) * 25 + 2 * 26 * 25 + 26


@pytest.mark.parametrize("num_frequencies", [0, 3])
def test_stack(num_frequencies: int) -> None:
    spread = LocationScale(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 3.0]))
    parts = [BoundedClassifiers(size, 2, num_frequencies=num_frequencies, spread=spread) for size in (1, 2, 1)]
    state = torch.get_rng_state()
    stacked = BoundedClassifiers.stack(parts)
    assert torch.equal(torch.get_rng_state(), state)
    value = torch.randn(6, 2)
    assert torch.allclose(stacked(value), torch.cat([part(value) for part in parts], -1), atol=1e-6)


def test_stack_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="share one architecture"):
        BoundedClassifiers.stack([BoundedClassifiers(1, 2), BoundedClassifiers(1, 2, link="tanh")])
    spread = LocationScale(torch.ones(2), torch.ones(2))
    with pytest.raises(ValueError, match="share one architecture"):
        BoundedClassifiers.stack([BoundedClassifiers(1, 2), BoundedClassifiers(1, 2, spread=spread)])
    with pytest.raises(ValueError, match="at least one"):
        BoundedClassifiers.stack([])


def test_links() -> None:
    logits = torch.linspace(-3, 3, 101)
    clamp, tanh = bound_logits(logits, "clamp"), bound_logits(logits, "tanh")
    inside = logits.abs() < math.log(2)
    assert torch.equal(clamp[inside], logits[inside])
    assert torch.allclose(tanh, math.log(2) * (2 * torch.sigmoid(logits) - 1), atol=1e-6)


def test_scale_logits() -> None:
    classifiers = BoundedClassifiers(2, 2)
    value = torch.randn(5, 2)
    before = classifiers.logits(value)
    classifiers.scale_logits(3.0)
    assert torch.allclose(classifiers.logits(value), 3 * before, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"num_classifiers": 0}, "num_classifiers must be at least 1"),
        ({"in_features": 0}, "in_features must be at least 1"),
        ({"hidden_sizes": ()}, "hidden_sizes must name at least one layer"),
        ({"hidden_sizes": (0,)}, "hidden_sizes must be at least 1"),
        ({"activation": "sine"}, "activation must be one of"),
        ({"link": "none"}, "link must be one of clamp, tanh"),
        ({"num_frequencies": -1}, "num_frequencies must be at least 0"),
        ({"spread": LocationScale(torch.zeros(3), torch.ones(3))}, "spread must hold two tensors of shape"),
        ({"spread": LocationScale(torch.zeros(2), torch.zeros(2))}, "spread must be finite, with scales above 0"),
        ({"spread": LocationScale(torch.full((2,), math.nan), torch.ones(2))}, "spread must be finite"),
        ({"frequency_scale": (2.0, 1.0)}, "frequency_scale must be finite and rise"),
        ({"frequency_scale": (1.0,)}, "frequency_scale must hold two numbers"),
        ({"axis_share": 1.5}, "axis_share must be in"),
        ({"frequency_scale": (0.0, 1.0)}, "frequency_scale must be finite and above 0"),
    ],
)
def test_arguments(arguments: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        BoundedClassifiers(**{"num_classifiers": 1, "in_features": 2, **arguments})  # type: ignore[arg-type]


def test_repr_shows_no_weights() -> None:
    assert "hidden_sizes=[25, 25, 25]" in repr(BoundedClassifiers(1, 2))


def test_frequencies_cover_a_range_of_scales() -> None:
    """Log-uniform scales: the logarithms of the frequencies' sizes spread evenly over the range."""
    module = BoundedClassifiers(50, 1, num_frequencies=200, frequency_scale=(0.5, 8.0))
    sizes = module.frequencies.abs().flatten()
    below, middle, above = ((sizes < edge).double().mean() for edge in (0.5, 2.0, 8.0))
    # |g| is below 1 for 68% of a normal: the median of scale times |g| is near 2 x 0.67
    assert 0.1 < below < 0.35
    assert 0.5 < middle < 0.8
    assert 0.9 < above < 1.0


def test_a_share_of_the_frequencies_runs_along_single_coordinates() -> None:
    module = BoundedClassifiers(3, 5, num_frequencies=20, frequency_scale=(1.0, 1.0), axis_share=0.5)
    used = (module.frequencies != 0).sum(1)  # coordinates a frequency has an entry in
    assert used[:, :10].unique().tolist() == [1]
    assert used[:, 10:].unique().tolist() == [5]
    per_coordinate = (module.frequencies[..., :10] != 0).sum(-1)
    assert per_coordinate.unique().tolist() == [2]  # each coordinate in turn
    many = BoundedClassifiers(200, 5, num_frequencies=20, frequency_scale=(1.0, 1.0), axis_share=0.5).frequencies
    along, across = many[..., :10].square().sum(1).mean(), many[..., 10:].square().sum(1).mean()
    assert float(along / across) == pytest.approx(1, abs=0.15)  # as long on average


def test_clipped_ratio() -> None:
    networks = BoundedClassifiers(4, 2)
    value = torch.randn(100, 2)
    statistic = ClippedRatio(networks, shift=0.1, theta=0.05)
    expected = ((networks.logits(value).double().mean(-1) - 0.1) / 0.05).clamp(-math.log(2), math.log(2))
    assert statistic(value).dtype == torch.float64
    assert torch.equal(statistic(value).squeeze(-1), expected)
    rebuilt = rebuild_statistics(describe_statistics(statistic))
    assert torch.equal(rebuilt(value), statistic(value))
    assert mean_logit(networks, value).shape == (100,)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"networks": nn.Linear(2, 1)}, TypeError, "networks must be BoundedClassifiers"),
        ({"shift": math.nan}, ValueError, "shift must be finite"),
        ({"theta": 0.0}, ValueError, "theta must be finite and above 0"),
    ],
)
def test_clipped_ratio_arguments(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        ClippedRatio(**{"networks": BoundedClassifiers(1, 2), "shift": 0.0, "theta": 1.0, **options})


def test_only_our_own_statistics_can_be_described() -> None:
    class Mine(BoundedClassifiers):
        """A subclass, which a file could not name."""

    for statistics in (nn.Linear(2, 1), Mine(1, 2)):
        with pytest.raises(TypeError, match="statistics must be of this library"):
            describe_statistics(statistics)
