"""What a Markov chain samples: a density or a Pyro model in unconstrained coordinates of unit scale."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from torch import Tensor
from torch.distributions import Distribution, TransformedDistribution, biject_to

from pyro_mbde._checks import argument_error
from pyro_mbde.density.base import LocationScale, location_scale_of_draws, reference_draws, support_of
from pyro_mbde.density.distribution import MollifiedExpFamily

Params = dict[str, Tensor]
Potential = Callable[[Params], Tensor]

#: Draws of the prior that are tried for a starting point with a finite energy.
_MAX_TRIES = 100
_CIRCULAR = ("VonMises", "SineBivariateVonMises", "SineSkewed", "VonMises3D", "ProjectedNormal")
#: Distance from the centre, in scales, beyond which a density may be NaN: diverging trajectories pass there.
_FAR = 30.0


class Target(ABC):
    """A density of unconstrained parameters, and the maps from these to the sites' values and back.

    Parameters are those of one point or have a leading dimension of chains. They are standardised: for a density by its
    base, for a model by draws of its prior.

    Attributes:
        is_batched: whether ``raw_potential_fn`` takes a leading dimension; otherwise ``torch.func.vmap`` adds it.
        supports: for each site, the constraint that its values meet.
        transforms: for each site, the bijection from its unconstrained coordinates to its support.
        spread: for each site, location and scale of its unconstrained coordinates.
        lower_bound_fn: a cheap lower bound of the potential energy; or ``None``.
        has_smooth_energy: whether the smooth energy (:mod:`~pyro_mbde.mcmc.smooth`) differs from the exact one.
    """

    is_batched: bool
    supports: dict[str, Any]
    transforms: dict[str, Any]
    spread: dict[str, LocationScale]
    lower_bound_fn: Potential | None
    has_smooth_energy: bool

    @abstractmethod
    def raw_potential_fn(self, params: Params) -> Tensor:
        """Returns the negative log-density up to a constant, or NaN where it cannot be computed."""

    @abstractmethod
    def raw_smooth_potential_fn(self, params: Params) -> Tensor:
        """Returns what Hamiltonian kernels follow in place of :meth:`raw_potential_fn`."""

    @abstractmethod
    def draw(self) -> Params:
        """Returns one starting point, drawn with torch's generator."""

    @abstractmethod
    def nan_message(self, params: Params) -> str:
        """Says which site the NaN at a point comes from."""

    def potential_fn(self, params: Params) -> Tensor:
        """Returns the potential energy of one point, +inf where it is NaN far from the centre or outside the supports.

        Raises:
            ValueError: the energy is NaN elsewhere; the message names the site.
        """
        return self._settle(self.raw_potential_fn(params), params)

    def smooth_potential_fn(self, params: Params) -> Tensor:
        """Returns the smooth energy of one point (:mod:`~pyro_mbde.mcmc.smooth`), otherwise as :meth:`potential_fn`."""
        return self._settle(self.raw_smooth_potential_fn(params), params)

    def batched_potential_fn(self, params: Params) -> Tensor:
        """Returns the potential energies of ``num_chains`` points, shape ``(num_chains,)``.

        Raises:
            ValueError: as for :meth:`potential_fn`; or the model cannot be vectorised.
        """
        return self._batched(self.raw_potential_fn, params)

    def batched_smooth_potential_fn(self, params: Params) -> Tensor:
        """Returns the smooth energies of ``num_chains`` points, otherwise as :meth:`batched_potential_fn`."""
        return self._batched(self.raw_smooth_potential_fn, params)

    def _batched(self, raw_potential_fn: Potential, params: Params) -> Tensor:
        if self.is_batched:
            return self._settle(raw_potential_fn(params), params)
        if len(next(iter(params.values()))) == 1:
            point = {name: value[0] for name, value in params.items()}
            return self._settle(raw_potential_fn(point), point).reshape(1)
        vectorized: Any = torch.func.vmap(raw_potential_fn, randomness="different")
        try:
            energy = vectorized(params)
        except RuntimeError as error:
            remedy = f"Use another kernel, one chain at a time. torch.vmap says: {str(error).splitlines()[0]}"
            text = argument_error("model", "be one that torch.vmap can vectorise", "one that it cannot", remedy)
            raise ValueError(text) from error
        return self._settle(energy, params)

    def constrain(self, params: Params) -> Params:
        """Returns the values of the sites, each in its own space."""
        return {name: self.transforms[name](value) for name, value in self.locate(params).items()}

    def locate(self, params: Params) -> Params:
        """Returns the sites' own unconstrained coordinates."""
        return {name: self.spread[name].loc + self.spread[name].scale * value for name, value in params.items()}

    def standardize(self, points: Params) -> Params:
        """Returns the parameters that :meth:`locate` maps to ``points``."""
        return {name: (value - self.spread[name].loc) / self.spread[name].scale for name, value in points.items()}

    def unconstrain(self, values: Params) -> Params:
        """Returns the parameters that :meth:`constrain` maps to ``values``."""
        return self.standardize({name: self.transforms[name].inv(value) for name, value in values.items()})

    def starts(self, num_starts: int) -> Params:
        """Returns starting points of finite energy, shape ``(num_starts, ...)``, drawn from the base or the prior.

        Raises:
            ValueError: none was found, or an energy is NaN.
        """
        starts = stack([self.draw() for _ in range(num_starts)])
        for _ in range(_MAX_TRIES):
            wrong = ~self.finite(starts)
            if not bool(wrong.any()):
                return starts
            for index in wrong.nonzero().flatten().tolist():
                for name, value in self.draw().items():
                    starts[name][index] = value
        constraint = f"have a finite density at one of {_MAX_TRIES} prior draws"
        remedy = "Look at the model's data and supports, or pass initial_values."
        raise ValueError(argument_error("model", constraint, "none", remedy))

    def finite(self, params: Params) -> Tensor:
        """Whether each of ``num_chains`` points has a finite energy; bool ``(num_chains,)``."""
        return torch.isfinite(self.log_density(params))

    def log_density(self, params: Params) -> Tensor:
        """Returns the log-density of ``num_chains`` points, one by one if necessary; shape ``(num_chains,)``."""
        with torch.no_grad(), pyro.validation_enabled(False):
            if self.is_batched:
                return -self.batched_potential_fn(params)
            points = (dict(zip(params, values, strict=True)) for values in zip(*params.values(), strict=True))
            return -torch.stack([self.potential_fn(point) for point in points])

    def _settle(self, energy: Tensor, params: Params) -> Tensor:
        """Turns NaN and -inf into +inf far from the centre and outside the supports, where rounding causes them.

        Raises for NaN elsewhere. A chain that reached an energy of -inf would stay there: a value that rounds to the
        edge of its support may have an infinite density.
        """
        wrong = torch.isnan(energy) | (energy == -math.inf)
        if not bool(wrong.any()):
            return energy
        with torch.no_grad():
            near = wrong & self._near(params, energy.shape)
            wrong = wrong & ~near
            near = near & torch.isnan(energy)
            if bool(near.any()):
                first = near.nonzero()[0].tolist()  # the index of a chain; empty for one point
                raise ValueError(self.nan_message({name: value.detach()[(*first,)] for name, value in params.items()}))
        return torch.where(wrong, torch.inf, energy)

    def _near(self, params: Params, shape: torch.Size) -> Tensor:
        """Whether points lie in the supports and not far from the centre."""
        near = torch.ones(shape, dtype=torch.bool, device=next(iter(params.values())).device)
        for name, value in self.constrain(params).items():
            for condition in (params[name].abs() <= _FAR, torch.isfinite(value), self.supports[name].check(value)):
                near &= condition.reshape(*shape, -1).all(-1)
        return near


@dataclass(frozen=True, eq=False)
class FittedTarget:
    """A fitted density as site ``x`` in its own space, discrete or not, with the interface of :class:`Target`."""

    density: MollifiedExpFamily

    @property
    def supports(self) -> Mapping[str, Any]:
        """The support."""
        return {"x": self.density.support}

    def constrain(self, params: Params) -> Params:
        """Returns the parameters, which are the values themselves."""
        return params

    unconstrain = constrain

    def starts(self, num_starts: int) -> Params:
        """Returns draws of the base."""
        base: Any = self.density.base
        return {"x": base.sample(torch.Size([num_starts]))}

    def finite(self, params: Params) -> Tensor:
        """Whether each point has a density above 0."""
        return torch.isfinite(self.log_density(params))

    def log_density(self, params: Params) -> Tensor:
        """Returns the log-density of points."""
        return self.density.log_prob(params["x"])


def stack(points: list[Params]) -> Params:
    """Stacks points into parameters with a leading dimension."""
    return {name: torch.stack([point[name] for point in points]) for name in points[0]}


def nan_text(where: str, names: Iterable[str]) -> str:
    """Says that the log-density of ``where`` is NaN, but not at which values: these come from a private trajectory."""
    remedy = f"The values of {', '.join(names)} are finite and in their supports there."
    return argument_error(f"log-density of {where}", "be a number", math.nan, remedy)


def spread_of(draws: Tensor) -> LocationScale:
    """Returns location and scale of each coordinate of draws, in their shape and type."""
    flat = location_scale_of_draws(draws.reshape(len(draws), -1))
    return LocationScale(*(value.to(draws).reshape(draws.shape[1:]) for value in flat))


class DensityTarget(Target):
    """A density in unconstrained coordinates in which its base has unit scale, as site ``x``.

    A distribution that is not an exponential family over a base is its own base.

    Args:
        density: a distribution with continuous support and empty batch shape.
        name: its name in errors.

    Raises:
        ValueError: the support is discrete, there is a batch shape, or the distribution is of angles.
    """

    is_batched = True

    def __init__(self, density: Distribution, name: str = "density") -> None:
        support = support_of(density)
        if support.is_discrete:
            remedy = "Draw exactly: q.sample((n,)). Or use the independence kernel."
            raise ValueError(argument_error(name, "have continuous support for this kernel", density, remedy))
        check_not_batched(density, name)
        check_not_circular(density, name)
        self._fitted = density if isinstance(density, MollifiedExpFamily) else None
        self._base: Any = density if self._fitted is None else self._fitted.base
        self.lower_bound_fn = None if self._fitted is None else self._lower_bound
        self.has_smooth_energy = self._fitted is not None
        self.supports, self.transforms = {"x": support}, {"x": biject_to(support)}
        self.spread = {"x": spread_of(self.transforms["x"].inv(reference_draws(self._base)))}

    def _log_base(self, params: Params) -> tuple[Tensor, Tensor]:
        """The value, and the log-density of the base in unconstrained coordinates."""
        point = self.locate(params)["x"]
        value = self.transforms["x"](point)
        return value, self._base.log_prob(value) + self.transforms["x"].log_abs_det_jacobian(point, value)

    def raw_potential_fn(self, params: Params) -> Tensor:
        """Returns the negative log-density without the log-normaliser of a fitted density."""
        # The transform maps into the support, so the checks in a fitted density's log_prob are not needed.
        value, log_prob = self._log_base(params)
        return -(log_prob if self._fitted is None else log_prob + self._fitted.tilt(value).to(value))

    def raw_smooth_potential_fn(self, params: Params) -> Tensor:
        """Returns the negative log-density of the base."""
        return -self._log_base(params)[1]

    def _lower_bound(self, params: Params) -> Tensor:
        assert self._fitted is not None
        return -(self._log_base(params)[1] + self._fitted.bounds.high)  # no tilt is above its upper bound

    def draw(self) -> Params:
        """Returns a draw of the base."""
        return self.unconstrain({"x": self._base.sample()})

    def nan_message(self, params: Params) -> str:
        """Names the only site."""
        return nan_text("site 'x'", params)


def check_not_batched(density: Distribution, name: str) -> None:
    """Raises ValueError for a distribution with a batch shape, which the error calls ``name``."""
    if density.batch_shape:
        declared = f"declare its dimensions dependent: {name}.to_event({len(density.batch_shape)})"
        remedy = f"Pass it before it is expanded, or {declared}."
        raise ValueError(argument_error(name, "have an empty batch shape", tuple(density.batch_shape), remedy))


def check_not_circular(distribution: Any, name: str) -> None:
    """Raises for distributions of angles: their densities are periodic, and so improper on the real line."""
    inner = distribution
    while inner is not None and not isinstance(inner, TransformedDistribution):
        distribution = inner
        inner = inner.base if isinstance(inner, MollifiedExpFamily) else getattr(inner, "base_dist", None)
    kind = type(distribution).__name__
    if kind in _CIRCULAR:
        remedy = "Draw from it exactly, or use a transformed normal in its place."
        raise ValueError(argument_error(name, "not be an angle for a Markov chain", kind, remedy))
