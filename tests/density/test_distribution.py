"""Generic checks of the distribution, on one density of each kind of base."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable

import pyro.distributions as dist
import pytest
import torch
from densities import BASES, BATCHES, CONTINUOUS, make_density, normal
from torch import nn

from pyro_mbde import (
    BoundedClassifiers,
    Bounds,
    IndependenceSampler,
    Ledger,
    LogNormalizer,
    MollifiedExpFamily,
    exact_posterior,
    fresh_chains,
    posterior_guarantee,
    private_draws,
    private_report,
    release,
    run_mcmc,
)
from pyro_mbde.density.base import support_of
from pyro_mbde.mcmc.kernels import KERNELS


class TestShapes:
    def test_sample_and_log_prob(self, density: MollifiedExpFamily) -> None:
        shapes: list[tuple[int, ...]] = [(), (4,), (2, 3), (0,)]
        for sample_shape in shapes:
            value = density.sample(torch.Size(sample_shape))
            assert value.shape == density.shape(torch.Size(sample_shape))
            log_prob = density.log_prob(value)
            assert log_prob.shape == sample_shape
            assert bool(torch.isfinite(log_prob).all())
            assert log_prob.dtype == density.dtype

    def test_expanded(self, density: MollifiedExpFamily) -> None:
        expanded = density.expand([5, 3])
        shapes: list[tuple[int, ...]] = [(), (4,)]
        for sample_shape in shapes:
            value = expanded.sample(torch.Size(sample_shape))
            assert value.shape == (*sample_shape, 5, 3, *density.event_shape)
            assert expanded.log_prob(value).shape == (*sample_shape, 5, 3)
        # one value broadcasts over the batch
        assert expanded.log_prob(density.sample()).shape == (5, 3)

    def test_second_expand_leaves_the_first_alone(self, density: MollifiedExpFamily) -> None:
        first = density.expand([3])
        second = first.expand([5, 3])
        assert type(first) is type(second) is MollifiedExpFamily
        assert (density.batch_shape, first.batch_shape, second.batch_shape) == ((), (3,), (5, 3))

    @pytest.mark.parametrize(("first", "second"), [((3,), (4,)), ((3,), (3, 2)), ((2, 3), (3,)), ((), (-1,))])
    def test_incompatible_expand_raises(
        self, plane: MollifiedExpFamily, first: tuple[int, ...], second: tuple[int, ...]
    ) -> None:
        expanded = plane.expand(first)
        with pytest.raises(ValueError, match="batch_shape must be one that the batch shape broadcasts to"):
            expanded.expand(second)
        assert expanded.batch_shape == first

    def test_expand_by_is_ours(self, plane: MollifiedExpFamily) -> None:
        assert type(plane.expand_by([4])) is MollifiedExpFamily

    def test_empty_values_broadcast_too(self, plane: MollifiedExpFamily) -> None:
        assert plane.expand([5]).log_prob(torch.zeros(0, 1, 2)).shape == (0, 5)

    def test_wrong_event_width(self, plane: MollifiedExpFamily) -> None:
        with pytest.raises(ValueError, match="value must have shape"):
            plane.log_prob(torch.zeros(5, 3))
        with pytest.raises(TypeError, match="value must be a tensor"):
            plane.log_prob([0.0, 0.0])  # type: ignore[arg-type]

    def test_repr_shows_public_facts(self, plane: MollifiedExpFamily) -> None:
        assert repr(plane) == "MollifiedExpFamily(epsilon=1, rounds=3, base=Normal, event_shape=(2,))"
        assert "batch_shape=(4,)" in repr(plane.expand([4]))


class TestNormalisation:
    @pytest.mark.parametrize("name", sorted(BASES | BATCHES))
    def test_integral_is_one(self, name: str) -> None:
        # Under the base, E[q/q0] = 1: an average over independent draws, gated on its own standard error.
        density = make_density((BASES | BATCHES)[name](), num_draws=2**13)
        value = density.base.sample((10_000,))
        ratio = (density.log_prob(value) - density.base.log_prob(value)).double().exp()
        error = float(ratio.std() / math.sqrt(len(ratio))) + density.log_normalizer.standard_error
        assert abs(float(ratio.mean()) - 1) < 5 * error + 1e-6

    @pytest.mark.parametrize("name", ["categorical", "bernoulli"])
    def test_finite_base_sums_to_one_exactly(self, name: str) -> None:
        density = make_density(BASES[name]())
        assert density.log_normalizer.standard_error == 0
        total = density.log_prob(density.enumerate_support()).double().exp().sum()
        assert abs(float(total) - 1) < 1e-6

    def test_quadrature_on_a_line(self) -> None:
        density = make_density(dist.Normal(0.5, 2.0), epsilon=5.0, num_draws=2**16).to(torch.float64)
        grid = torch.linspace(-20, 21, 100_001, dtype=torch.float64)
        total = torch.trapezoid(density.log_prob(grid).exp(), grid)
        assert abs(float(total) - 1) < 5 * density.log_normalizer.standard_error + 1e-6

    def test_estimate_outside_the_bounds_is_held_to_them(self) -> None:
        classifiers = BoundedClassifiers(1, 2)
        density = MollifiedExpFamily(normal(2), classifiers, torch.tensor([0.5]), LogNormalizer(40.0, 1.0))
        assert density.log_normalizer == LogNormalizer(density.bounds.high, 1.0)


class TestSupport:
    @pytest.mark.parametrize(
        ("name", "outside"),
        [
            ("uniform-scalar", 3.1),
            ("uniform-scalar", -1.1),
            ("exponential", -1.0),
            ("gamma", -1.0),
            ("log-normal", -1.0),
            ("logit-normal", 1.5),
            ("poisson", -1.0),
            ("poisson", 1.5),
            ("categorical", 7.0),
        ],
    )
    def test_outside(self, name: str, outside: float) -> None:
        density = make_density(BASES[name]())
        with pytest.raises(ValueError, match="value must be in the support"):
            density.log_prob(torch.tensor(outside))
        density._validate_args = False
        value = torch.tensor([outside, float(density.sample())], requires_grad=True)
        log_prob = density.log_prob(value)
        assert log_prob[0] == -math.inf
        assert torch.isfinite(log_prob[1])
        gradient = torch.autograd.grad(log_prob[1], value)[0]
        assert bool(torch.isfinite(gradient).all())

    def test_not_finite(self, density: MollifiedExpFamily) -> None:
        unchecked = density.expand(())
        unchecked._validate_args = False
        for bad in (math.nan, math.inf, -math.inf):
            value = density.sample((3,)).to(density.dtype)
            value.view(3, -1)[1, 0] = bad
            if math.isnan(bad):
                with pytest.raises(ValueError, match="value must be in the support"):
                    density.log_prob(value)
            log_prob = unchecked.log_prob(value)
            assert math.isnan(log_prob[1]) if math.isnan(bad) else log_prob[1] == -math.inf, bad
            assert bool(torch.isfinite(log_prob[[0, 2]]).all()), bad

    @pytest.mark.parametrize("name", ["uniform-scalar", "uniform-box"])
    def test_box_is_closed(self, name: str) -> None:
        density = make_density(BASES[name]())
        base = BASES[name]()
        inner = base.base_dist if density.event_shape else base
        for corner in (inner.low, inner.high):
            assert torch.isfinite(density.log_prob(corner))
        beyond = torch.nextafter(inner.high, torch.tensor(math.inf))
        with pytest.raises(ValueError, match="support"):
            density.log_prob(beyond)

    def test_support_is_that_of_the_base(self, density: MollifiedExpFamily) -> None:
        value = density.base.sample((100,))
        assert bool(density.support.check(value).all())

    @pytest.mark.parametrize("name", ["categorical", "bernoulli"])
    def test_enumerate(self, name: str) -> None:
        density = make_density(BASES[name]())
        assert density.has_enumerate_support
        expanded = density.expand([2, 3])
        assert expanded.enumerate_support().shape[1:] == (2, 3)
        assert expanded.enumerate_support(expand=False).shape[1:] == (1, 1)

    def test_no_enumeration(self, plane: MollifiedExpFamily) -> None:
        assert not plane.has_enumerate_support
        with pytest.raises(NotImplementedError, match="no finite support"):
            plane.enumerate_support()


class TestDtype:
    def test_inputs_follow(self, density: MollifiedExpFamily) -> None:
        value = density.sample((5,))
        expected = density.log_prob(value).double()
        for dtype in (torch.float32, torch.float64):
            converted = density.to(dtype)
            for value_dtype in (torch.float32, torch.float64):
                given = value.to(value_dtype) if value.is_floating_point() else value
                log_prob = converted.log_prob(given)
                assert log_prob.dtype == converted.dtype == dtype
                assert torch.allclose(log_prob.double(), expected, atol=1e-4)
            assert converted.sample().dtype == (dtype if value.is_floating_point() else value.dtype)

    def test_to_leaves_the_original_alone(self, plane: MollifiedExpFamily) -> None:
        expanded = plane.expand([3])
        converted = expanded.to(torch.float64)
        assert converted.batch_shape == (3,)
        assert plane.dtype == expanded.dtype == torch.float32
        assert next(plane.statistics.parameters()).dtype == torch.float32

    def test_to_device_by_name(self, plane: MollifiedExpFamily) -> None:
        value = plane.sample((3,))
        assert torch.equal(plane.to("cpu").log_prob(value), plane.log_prob(value))

    def test_to_keeps_validation(self, plane: MollifiedExpFamily) -> None:
        plane._validate_args = False
        assert plane.to(torch.float64)._validate_args is False

    def test_to_rejects_integers(self, plane: MollifiedExpFamily) -> None:
        for dtype in (torch.int64, torch.float16):
            with pytest.raises(TypeError, match="target must be a device, torch.float32 or torch.float64"):
                plane.to(dtype)


class TestDerivatives:
    @pytest.mark.parametrize(
        "name",
        # A simplex has no free coordinate.
        sorted({*CONTINUOUS, *BATCHES} - {"dirichlet", "batch-categorical", "batch-columns"}),
    )
    def test_gradient_matches_differences(self, name: str) -> None:
        density = make_density((BASES | BATCHES)[name](), link="tanh").to(torch.float64)
        value = density.sample((20,)).requires_grad_()
        gradient = torch.autograd.grad(density.log_prob(value).sum(), value)[0]
        step = 1e-5
        direction = torch.randn_like(value)
        ahead = density.log_prob(value.detach() + step * direction)
        behind = density.log_prob(value.detach() - step * direction)
        slope = (gradient * direction).reshape(20, -1).sum(-1)
        numeric = (ahead - behind) / (2 * step)
        assert torch.allclose(slope, numeric, atol=1e-4, rtol=1e-3)

    def test_weights_are_frozen(self, plane: MollifiedExpFamily) -> None:
        assert not any(parameter.requires_grad for parameter in plane.statistics.parameters())
        assert not plane.statistics.training

    def test_the_given_module_is_left_alone(self) -> None:
        module = BoundedClassifiers(1, 2)
        MollifiedExpFamily(normal(2), module, torch.tensor([0.1]), 0.0)
        assert module.training
        assert all(parameter.requires_grad for parameter in module.parameters())

    def test_vmap(self, density: MollifiedExpFamily) -> None:
        if getattr(density.base, "dependence", None) is not None:
            pytest.skip("probabilities of cells under a copula are computed row by row")
        value = density.sample((6,))
        assert torch.allclose(torch.vmap(density.log_prob)(value), density.log_prob(value), atol=1e-5)

    def test_grad_and_hessian(self) -> None:
        density = make_density(normal(2), link="tanh").to(torch.float64)
        value = torch.tensor([0.3, -0.7], dtype=torch.float64)
        gradient = torch.func.grad(density.log_prob)(value)
        hessian = torch.func.hessian(density.log_prob)(value)
        assert hessian.shape == (2, 2)
        step = torch.tensor([1e-5, 0.0], dtype=torch.float64)
        numeric = (torch.func.grad(density.log_prob)(value + step) - gradient) / 1e-5
        assert torch.allclose(hessian[0], numeric, atol=1e-3)
        assert torch.allclose(hessian, torch.autograd.functional.hessian(density.log_prob, value))
        assert torch.vmap(torch.func.grad(density.log_prob))(torch.randn(5, 2).double()).shape == (5, 2)


class TestConstruction:
    @pytest.mark.parametrize(
        ("base", "error", "match"),
        [
            (3, TypeError, "base must be a Pyro or torch distribution"),
            (dist.Normal(torch.zeros(2), torch.ones(2)), ValueError, r"base.to_event\(1\)"),
            (dist.Normal(torch.zeros(2, 2), torch.ones(2, 2)).to_event(2), ValueError, "event shape"),
        ],
    )
    def test_base(self, base: object, error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            MollifiedExpFamily(base, BoundedClassifiers(1, 2), torch.tensor([0.1]), 0.0)  # type: ignore[arg-type]

    def test_statistics(self) -> None:
        with pytest.raises(TypeError, match="statistics must be a torch.nn.Module"):
            MollifiedExpFamily(normal(2), torch.sin, torch.tensor([0.1]), 0.0)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"statistics must map \(1, d\) to \(1, 2\)"):
            MollifiedExpFamily(normal(2), BoundedClassifiers(1, 2), torch.tensor([0.1, 0.2]), 0.0)

    @pytest.mark.parametrize("params", [torch.tensor(0.1), torch.ones(1, 1), torch.ones(0)])
    def test_natural_params_shape(self, params: torch.Tensor) -> None:
        with pytest.raises(ValueError, match=r"natural_params must have shape \(T,\)"):
            MollifiedExpFamily(normal(2), BoundedClassifiers(1, 2), params, 0.0)

    def test_parameters_that_overflow(self) -> None:
        with pytest.raises(ValueError, match="natural_params must be finite"):
            MollifiedExpFamily(normal(2), BoundedClassifiers(2, 2), torch.tensor([1e308, 1e308]).double() * 10, 0.0)

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_not_finite(self, bad: float) -> None:
        with pytest.raises(ValueError, match="natural_params must be finite"):
            MollifiedExpFamily(normal(2), BoundedClassifiers(1, 2), torch.tensor([bad]), 0.0)
        with pytest.raises(ValueError, match="log_normalizer must be finite"):
            MollifiedExpFamily(normal(2), BoundedClassifiers(1, 2), torch.tensor([0.1]), bad)

    def test_public_bounds_clamp_the_tilt(self) -> None:
        bounds = Bounds(-0.1, 0.3)
        statistics = nn.Linear(2, 1, bias=False)
        density = MollifiedExpFamily(normal(2), statistics, torch.tensor([50.0]), 0.0, bounds=bounds)
        tilt = density.tilt(torch.randn(1000, 2))
        assert float(tilt.min()) == -0.1
        assert float(tilt.max()) == 0.3
        assert density.guarantee.epsilon == pytest.approx(0.8)

    def test_a_base_of_the_users_own(self) -> None:
        class Own(dist.Normal):
            """Not one of Pyro's classes."""

        density = make_density(Own(0.0, 1.0))
        assert density.log_prob(density.sample((3,))).shape == (3,)
        with pytest.raises(TypeError, match="must be built from pyro.distributions"):
            density.to(torch.float64)

    def test_import_adds_one_name_to_pyro_and_changes_nothing_else(self) -> None:
        """And what a file may name is known: a density's import registers it, not only what made the density."""
        script = """
import inspect, sys, torch, pyro, pyro.distributions as dist, random, numpy
names, state, threads = set(dir(dist)), torch.get_rng_state(), torch.get_num_threads()
validate = torch.distributions.Distribution._validate_args
known = len(torch.distributions.biject_to._registry), len(torch.distributions.kl._KL_REGISTRY)
import pyro_mbde
assert set(dir(dist)) - names == {"MollifiedExpFamily"}
assert dist.MollifiedExpFamily is pyro_mbde.MollifiedExpFamily
assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads
assert torch.distributions.Distribution._validate_args == validate
assert (len(torch.distributions.biject_to._registry), len(torch.distributions.kl._KL_REGISTRY)) == known

from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.serialization import _OWN_CLASSES
for name in ("copula", "flow_copula", "mixed_base", "row_batch", "base"):
    module = sys.modules["pyro_mbde.density." + name]
    own = [one for one in vars(module).values() if inspect.isclass(one) and one.__module__ == module.__name__]
    registered = [one for one in own if issubclass(one, torch.distributions.Distribution)]
    registered = [one for one in registered if not inspect.isabstract(one)]
    assert registered and all(_OWN_CLASSES.get(one.__name__) is one for one in registered), registered

from pyro_mbde import MBDE, DensityRatio, private_draws, run_mcmc
assert not {"pandas", "sqlalchemy", "jinja2", "matplotlib", "arviz"} & set(sys.modules)
assert all(hasattr(pyro_mbde, name) for name in pyro_mbde.__all__)
assert set(pyro_mbde.__all__) <= set(dir(pyro_mbde))
assert not hasattr(pyro_mbde, "unknown")
"""
        subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)


def test_the_support_of_a_mixture_can_be_mapped_to_unconstrained_space() -> None:
    for name in ("mixture", "mixture-2d"):
        density = make_density(BASES[name]())
        transform = torch.distributions.biject_to(density.support)
        value = density.sample((5,))
        assert torch.equal(transform(transform.inv(value)), value)
    boxes = dist.MixtureSameFamily(
        dist.Categorical(torch.ones(2)), dist.Uniform(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0]))
    )
    assert isinstance(support_of(boxes), torch.distributions.constraints.MixtureSameFamilyConstraint)


#: What takes one density, not one for each of a batch.
OF_ONE_DENSITY: dict[str, Callable[[MollifiedExpFamily, Ledger], object]] = {
    "private_draws": lambda q, ledger: private_draws(q, 2),
    "constant-time draws": lambda q, ledger: private_draws(q, 2, constant_time=True),
    "fresh_chains": lambda q, ledger: fresh_chains(q, 2, 3),
    "release": lambda q, ledger: release(q, 1, ledger, "clinic"),
    "private_report": lambda q, ledger: private_report(q, torch.zeros(3, 2)),
    "posterior_guarantee": lambda q, ledger: posterior_guarantee(q),
    "exact_posterior": lambda q, ledger: exact_posterior(q, normal(2)),
    "IndependenceSampler": lambda q, ledger: IndependenceSampler(q),
    **{kernel: lambda q, ledger, kernel=kernel: run_mcmc(q, kernel, 2, 2, 1, progress=False) for kernel in KERNELS},
}


@pytest.mark.parametrize("name", OF_ONE_DENSITY)
def test_an_expanded_density_is_refused(name: str, plane: MollifiedExpFamily, ledger: Ledger) -> None:
    with pytest.raises(ValueError, match=r"(q|model) must have an empty batch shape, got (q|model)=\(3,\)"):
        OF_ONE_DENSITY[name](plane.expand([3]), ledger)
    assert not ledger.charges("clinic")
