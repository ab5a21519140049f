"""Mean and variance, and everything else that torch and Pyro ask of a distribution."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from densities import BASES, make_density
from pyro.infer import SVI, Trace_ELBO
from pyro.infer import autoguide as guides
from pyro.optim import Adam
from torch.distributions import Distribution

from pyro_mbde import MollifiedExpFamily
from pyro_mbde.density.base_draws import draws_by_inversion
from pyro_mbde.density.moments import NUM_DRAWS

WITHOUT_MEAN = {"transformed", "logit-normal", "categorical", *(name for name in BASES if name.startswith("columns"))}


@pytest.mark.parametrize("name", sorted(BASES.keys() - WITHOUT_MEAN))
def test_moments_are_those_of_exact_draws(name: str) -> None:
    q = make_density(BASES[name](), epsilon=3.0)
    before = torch.get_rng_state()
    mean, stddev = q.mean, q.stddev
    assert torch.equal(torch.get_rng_state(), before)
    draws = q.sample((10_000,)).double()
    assert (mean.shape, mean.dtype) == (q.event_shape, q.dtype)
    # 4.5 standard errors of 10,000 draws, and what the points are promised to be off by at most
    off = 0.01 if draws_by_inversion(q.base) else 4.5 * math.exp(q.bounds.width / 2) / math.sqrt(NUM_DRAWS)
    assert bool(((mean - draws.mean(0)).abs() < (0.045 + off) * draws.std(0)).all())
    if name != "student-t":  # of three degrees of freedom: its square has no variance
        assert bool(((stddev / draws.std(0)).log().abs() < 0.1).all())


@pytest.mark.parametrize("base", [dist.Bernoulli(0.3), dist.Binomial(6, 0.4)])
def test_moments_of_a_finite_base_are_exact(base: dist.TorchDistribution) -> None:
    q = make_density(base, epsilon=4.0)
    points = q.enumerate_support().double()
    probabilities = q.log_prob(points.float()).double().softmax(0)
    mean = probabilities @ points
    assert float(q.mean) == pytest.approx(float(mean), rel=1e-5)
    assert float(q.variance) == pytest.approx(float(probabilities @ (points - mean) ** 2), rel=1e-5)


@pytest.mark.parametrize(
    ("base", "mean", "variance"),
    [
        (dist.Cauchy(0.0, 1.0), math.nan, math.inf),
        (dist.StudentT(1.5), None, math.inf),
        (dist.Categorical(torch.ones(3)), math.nan, math.nan),
    ],
)
def test_a_moment_that_the_base_has_not(base: Distribution, mean: float | None, variance: float) -> None:
    q = make_density(base)
    assert math.isfinite(q.mean) if mean is None else math.isnan(q.mean)
    assert float(q.variance) == pytest.approx(variance, nan_ok=True)


def test_moments_are_computed_once_and_expanded(plane: MollifiedExpFamily) -> None:
    wide = plane.expand([4, 3])
    assert wide.mean.shape == (4, 3, 2)
    calls = []
    plane.statistics.register_forward_hook(lambda *arguments: calls.append(1))
    assert torch.equal(plane.expand([5]).variance[2], wide.variance[0, 0])
    assert torch.equal(plane.mask(torch.tensor(True)).mean, plane.mean)
    assert not calls


def test_a_base_whose_mean_is_not_known() -> None:
    q = make_density(BASES["logit-normal"]())
    with pytest.raises(NotImplementedError, match=r"take that of exact draws: q\.sample\(\(10_000,\)\)\.mean\(0\)"):
        _ = q.mean
    with pytest.raises(NotImplementedError, match=r"\.var\(0\)"):
        _ = q.variance
    # what Pyro does with that: it starts somewhere else
    assert guides.AutoNormal(lambda: pyro.sample("x", q), init_loc_fn=guides.init_to_mean)()["x"].shape == ()


def test_hierarchical_guides(plane: MollifiedExpFamily, line: MollifiedExpFamily) -> None:
    data = torch.randn(20, 2) * 0.3 + 1

    def model() -> None:
        centre = pyro.sample("centre", plane)
        with pyro.plate("rows", 20):
            shift = pyro.sample("shift", line)
            pyro.sample("row", dist.Normal(centre + shift.unsqueeze(-1), 0.3).to_event(1), obs=data)

    guide = guides.AutoHierarchicalNormalMessenger(model)
    svi = SVI(model, guide, Adam({"lr": 0.05}), Trace_ELBO())
    losses = [svi.step() for _ in range(60)]
    assert sum(losses[-10:]) < sum(losses[:10])
    with pyro.plate("particles", 50, dim=-2):
        centres = guide()["centre"].reshape(50, 2)
    assert torch.allclose(centres.mean(0), data.mean(0), atol=1.0)


#: How each public method of a distribution is called, where that takes an argument.
ARGUMENTS: dict[str, tuple[object, ...]] = {
    "cdf": (torch.zeros(2),),
    "icdf": (torch.full((2,), 0.5),),
    "log_prob": (torch.zeros(2),),
    "score_parts": (torch.zeros(2),),
    "expand": ((3,),),
    "expand_by": ((3,),),
    "mask": (torch.tensor(True),),
    "has_rsample_": (False,),
    "conjugate_update": (dist.Normal(0.0, 1.0),),
    "sample_n": (3,),
    "reshape": ((3,),),
    "set_default_validate_args": (True,),
}
#: Announced as deprecated, or not part of a distribution's own interface.
LEFT_OUT = {"set_default_validate_args", "reshape", "independent", "rv", "sample_n", "infer_shapes"}


def test_every_method_works_or_says_what_to_do() -> None:
    q, normal = make_density(dist.Normal(0.0, 1.0)), dist.Normal(0.0, 1.0)
    names = {name for name in dir(dist.TorchDistribution) if not name.startswith("_")} - LEFT_OUT
    missing = {}
    for name in names:
        for distribution in (q, normal):
            try:
                attribute = getattr(distribution, name)
                if callable(attribute) and not isinstance(attribute, type):
                    attribute(*ARGUMENTS.get(name, ()))
            except NotImplementedError as error:
                missing.setdefault(name, {})[type(distribution).__name__] = str(error)
    lacking = {name: said["MollifiedExpFamily"] for name, said in missing.items() if "Normal" not in said}
    assert lacking.keys() == {"cdf", "icdf", "entropy", "perplexity", "mode", "rsample"}
    assert all("exact draws" in text or "q.log_prob" in text or "q.sample" in text for text in lacking.values())
    assert missing.keys() - lacking.keys() == {"enumerate_support", "conjugate_update"}
    assert all(said["MollifiedExpFamily"] for said in missing.values())
