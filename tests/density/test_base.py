"""The public base: closing boxes, describing distributions, quasi-random draws, spread."""

from __future__ import annotations

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from densities import BASES, make_density, normal
from pyro.distributions import transforms

from pyro_mbde.density.base import ClosedUniform, base_location_scale, prepare_base
from pyro_mbde.density.finite import enumerate_points
from pyro_mbde.serialization import UnknownDistributionError, decode, encode


@pytest.mark.parametrize("name", sorted(BASES))
def test_description_round_trip(name: str) -> None:
    base = BASES[name]()
    value = base.sample((50,))
    base.log_prob(value)
    rebuilt = decode(encode(base))
    assert type(rebuilt) is type(base)
    assert torch.equal(rebuilt.log_prob(value), base.log_prob(value))


def test_alternative_parameters_survive_lazy_ones() -> None:
    for base in (dist.Categorical(logits=torch.randn(4)), dist.Bernoulli(logits=torch.tensor(0.3))):
        assert base.probs is not None  # computed on demand, and cached beside the logits
        assert set(encode(base)["arguments"]) == {"logits"}


def test_transforms_are_described() -> None:
    chain = transforms.ComposeTransform([transforms.AffineTransform(1.0, 2.0), transforms.ExpTransform()])
    base = dist.TransformedDistribution(dist.Normal(0.0, 1.0), chain)
    value = base.sample((5,))
    assert torch.allclose(decode(encode(base)).log_prob(value), base.log_prob(value))


def test_unknown_classes() -> None:
    flow = transforms.planar(2)
    with pytest.raises(UnknownDistributionError):
        encode(dist.TransformedDistribution(normal(2), [flow]))
    with pytest.raises(ValueError, match="must fit its class"):
        decode({"distribution": "pyro.Normal", "arguments": {"loc": 0.0}})
    with pytest.raises(ValueError, match="a file must name distributions"):
        decode({"distribution": "pyro.Tensor", "arguments": {}})
    with pytest.raises(ValueError, match="a file must name distributions"):
        decode({"transform": "builtins.eval", "arguments": {}})


def test_boxes_are_closed_wherever_they_stand() -> None:
    box = dist.Uniform(torch.zeros(2), torch.ones(2)).to_event(1)
    assert torch.isfinite(prepare_base(box).log_prob(torch.ones(2)))
    mixture = dist.MixtureSameFamily(
        dist.Categorical(torch.ones(2)), dist.Uniform(torch.zeros(2), torch.full((2,), 2.0))
    )
    assert torch.isfinite(prepare_base(mixture).log_prob(torch.tensor(2.0)))
    torch_box = torch.distributions.Uniform(0.0, 1.0)
    assert torch.isfinite(prepare_base(torch_box).log_prob(torch.tensor(1.0)))


def test_closed_uniform() -> None:
    closed = ClosedUniform(torch.zeros(3), torch.ones(3))
    assert torch.equal(closed.expand([2, 3]).log_prob(torch.ones(3)), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="support"):
        closed.log_prob(torch.full((3,), 1.1))
    unchecked = ClosedUniform(0.0, 1.0, validate_args=False)
    assert unchecked.log_prob(torch.tensor([-0.1, 1.1])).tolist() == [-torch.inf, -torch.inf]


def test_enumeration() -> None:
    assert enumerate_points(dist.Categorical(torch.ones(3))) is not None
    assert enumerate_points(dist.Poisson(2.0)) is None
    assert enumerate_points(dist.Binomial(3, torch.tensor(0.5))) is not None
    assert enumerate_points(normal(1)) is None


def test_spread() -> None:
    spread = base_location_scale(dist.Normal(torch.tensor([1.0, -20.0]), torch.tensor([0.1, 50.0])).to_event(1))
    assert torch.allclose(spread.loc, torch.tensor([1.0, -20.0]).double(), atol=3.0)
    assert torch.allclose(spread.scale, torch.tensor([0.1, 50.0]).double(), rtol=0.1)
    assert bool(torch.isfinite(base_location_scale(dist.Cauchy(0.0, 1.0)).scale).all())
    assert base_location_scale(dist.Delta(torch.zeros(2)).to_event(1)).scale.tolist() == [1.0, 1.0]
    assert float(base_location_scale(dist.Bernoulli(0.01)).scale) > 0


@pytest.mark.parametrize(
    "base",
    [
        dist.MixtureSameFamily(
            dist.Categorical(torch.ones(2)), dist.Uniform(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 3.0]))
        ),
        dist.LogNormal(0.0, 60.0),
        dist.Uniform(torch.tensor(-3e38), torch.tensor(3e38)),
    ],
    ids=["mixture-of-boxes", "overflow", "wide-box"],
)
def test_bases_that_cannot_score_their_draws(base: dist.TorchDistribution) -> None:
    with pytest.raises(ValueError, match="base must make finite draws inside its support"):
        prepare_base(base)


def test_transforms_that_saturate() -> None:
    with pytest.raises(ValueError, match="base must"):
        prepare_base(dist.TransformedDistribution(dist.Normal(0.0, 10.0), [transforms.TanhTransform()]))


def test_a_fitted_density_is_no_public_base() -> None:
    """Attack: hide a first fit's cost by making it the base of a second."""
    fitted = make_density(normal(2))
    wrapped = [
        fitted,
        fitted.expand([2]).to_event(1),
        dist.TransformedDistribution(fitted, [transforms.AffineTransform(0.0, 2.0, event_dim=1)]),
        dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), fitted.expand([2])),
    ]
    for base in wrapped:
        with pytest.raises(ValueError, match="base must"):
            prepare_base(base)


def test_the_base_is_copied() -> None:
    loc = torch.zeros(2)
    base = prepare_base(dist.Normal(loc, torch.ones(2)).to_event(1))
    loc.add_(5)
    assert float(base.sample((1000,)).mean()) < 1


def test_bases_that_do_not_use_torchs_generator() -> None:
    class OwnRandomness(dist.Normal):
        """Draws with NumPy."""

        def sample(self, sample_shape: torch.Size = torch.Size()) -> torch.Tensor:  # noqa: B008
            return torch.from_numpy(np.random.default_rng().standard_normal(tuple(sample_shape))).float()

    with pytest.raises(ValueError, match="base must draw from torch's generators"):
        prepare_base(OwnRandomness(0.0, 1.0))


def test_a_fitted_density_in_a_list_is_found() -> None:
    class Holder(dist.Normal):
        """Keeps distributions in a list."""

    holder = Holder(0.0, 1.0)
    holder.parts = [make_density(normal(2))]
    with pytest.raises(ValueError, match="base must be public"):
        prepare_base(holder)


def test_bases_without_a_density() -> None:
    class Nowhere(dist.Normal):
        """Gives its draws no density."""

        def log_prob(self, value: torch.Tensor) -> torch.Tensor:
            return torch.full_like(value, -torch.inf)

    folded = dist.TransformedDistribution(dist.Normal(0.0, 1.0), [transforms.AbsTransform()])
    for base in (Nowhere(0.0, 1.0), folded):
        with pytest.raises(ValueError, match="base must"):
            prepare_base(base)


def test_rare_categories_keep_their_logits() -> None:
    logits = torch.tensor([0.0, -60.0], dtype=torch.float64)
    rare = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert float(prepare_base(dist.OneHotCategorical(logits=logits)).log_prob(rare)) == pytest.approx(-60.0)


@pytest.mark.parametrize("name", ["log-normal", "logit-normal", "transformed"])
def test_a_base_that_has_been_used(name: str) -> None:
    """A transform then holds its inverse, which holds the transform."""
    base = BASES[name]()
    base.log_prob(base.sample(torch.Size([3])))
    held = [transform.inv for transform in base.transforms]
    assert prepare_base(base).event_shape == base.event_shape
    assert len(held) == len(base.transforms)


@pytest.mark.parametrize("shape", [(), (2,)])
def test_rows_of_a_table_are_no_base(shape: tuple[int, ...]) -> None:
    base = dist.Empirical(torch.randn(3, *shape), torch.zeros(3))
    for wrapped in (base, dist.TransformedDistribution(base, transforms.ExpTransform())):
        with pytest.raises(ValueError, match="base must have a density, .* got base='Empirical'.*without a table"):
            prepare_base(wrapped)


def test_whatever_a_base_cannot_do_is_said_of_the_base() -> None:
    class Odd(dist.Normal):
        def log_prob(self, value: torch.Tensor) -> torch.Tensor:
            raise ValueError("value.shape must be torch.Size([])")

    with pytest.raises(ValueError, match="base must have draws, a support and a density.*value.shape must be"):
        prepare_base(Odd(0.0, 1.0))
