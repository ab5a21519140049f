"""What a Markov chain samples: a density or a Pyro model in unconstrained coordinates of unit scale."""

from __future__ import annotations

import math
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

#: Draws of the prior that a start with a finite energy is sought among.
_MAX_TRIES = 100
_CIRCULAR = ("VonMises", "SineBivariateVonMises", "SineSkewed", "VonMises3D", "ProjectedNormal")
#: Scales from the middle beyond which no density need be computable: trajectories that diverge pass there.
_FAR = 30.0


@dataclass(frozen=True, eq=False)
class Target:
    """A density of unconstrained parameters, ``num_chains`` at a time or one, and the way to the sites and back.

    Parameters are standardised: by the base of a fitted density, by draws of a model's prior.

    Attributes:
        raw_potential_fn: negative log-density, up to a constant, of parameters of any leading shape or of one point.
        is_batched: whether it takes any leading shape; else ``torch.func.vmap`` gives it one.
        supports: per site, the constraint that its values meet.
        transforms: per site, the bijection from its unconstrained coordinates to its support.
        spread: per site, location and scale of its unconstrained coordinates.
        draw: one start, from torch's generator.
        nan_message: says of one point which site its NaN comes from.
        lower_bound_fn: a cheap lower bound of the potential energy, of any leading shape; or ``None``.
    """

    raw_potential_fn: Potential
    is_batched: bool
    supports: Mapping[str, Any]
    transforms: Mapping[str, Any]
    spread: Mapping[str, LocationScale]
    draw: Callable[[], Params]
    nan_message: Callable[[Params], str]
    lower_bound_fn: Potential | None = None

    def potential_fn(self, params: Params) -> Tensor:
        """Returns the potential energy of one point, +inf where it cannot be computed and need not be.

        Raises:
            ValueError: the energy is NaN at a place where the density should be known; the message names the site.
        """
        return self._settle(self.raw_potential_fn(params), params)

    def batched_potential_fn(self, params: Params) -> Tensor:
        """Returns the potential energies of ``num_chains`` points, shape ``(num_chains,)``.

        Raises:
            ValueError: as for one point; or the model cannot be vectorised.
        """
        if self.is_batched:
            return self._settle(self.raw_potential_fn(params), params)
        num_chains = next(iter(params.values())).shape[0]
        if num_chains == 1:
            return self.potential_fn({name: value[0] for name, value in params.items()}).reshape(1)
        vectorized: Any = torch.func.vmap(self.raw_potential_fn, randomness="different")
        try:
            energy = vectorized(params)
        except RuntimeError as error:
            remedy = f"Use another kernel, one chain at a time. torch.vmap says: {str(error).splitlines()[0]}"
            raise ValueError(
                argument_error("model", "be one that torch.vmap can vectorise", "one that it cannot", remedy)
            ) from error
        return self._settle(energy, params)

    def constrain(self, params: Params) -> Params:
        """Returns the values of the sites, each in its own space; leading dimensions are kept."""
        return {
            name: self.transforms[name](self.spread[name].loc + self.spread[name].scale * value)
            for name, value in params.items()
        }

    def standardize(self, points: Params) -> Params:
        """Returns the parameters of points in the sites' own unconstrained coordinates."""
        return {name: (value - self.spread[name].loc) / self.spread[name].scale for name, value in points.items()}

    def unconstrain(self, values: Params) -> Params:
        """Returns the parameters that :meth:`constrain` maps to ``values``."""
        return self.standardize({name: self.transforms[name].inv(value) for name, value in values.items()})

    def starts(self, num_starts: int) -> Params:
        """Returns starts of finite energy, shape ``(num_starts, ...)``, drawn from the base or the prior.

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
        remedy = "Look at the model's data and supports, or pass initial_values."
        raise ValueError(
            argument_error("model", f"have a finite density at one of {_MAX_TRIES} prior draws", "none", remedy)
        )

    def finite(self, params: Params) -> Tensor:
        """Whether each of ``num_chains`` points has a finite energy; bool ``(num_chains,)``."""
        return torch.isfinite(self.log_density(params))

    def log_density(self, params: Params) -> Tensor:
        """Returns the log-density of ``num_chains`` points, one after the other if need be; shape ``(num_chains,)``."""
        with torch.no_grad(), pyro.validation_enabled(False):
            if self.is_batched:
                return -self.batched_potential_fn(params)
            count = next(iter(params.values())).shape[0]
            points = ({name: value[index] for name, value in params.items()} for index in range(count))
            return -torch.stack([self.potential_fn(point) for point in points])

    def _settle(self, energy: Tensor, params: Params) -> Tensor:
        """Turns NaN into +inf far out and outside the supports, where rounding makes it; an error elsewhere."""
        wrong = torch.isnan(energy)
        if not bool(wrong.any()):
            return energy
        with torch.no_grad():
            near = wrong & ~self._far(params, energy.shape)
            if bool(near.any()):
                first = near.reshape(-1).nonzero()[0]
                point = {
                    name: value.detach().reshape(-1, *value.shape[energy.dim() :])[first].squeeze(0)
                    for name, value in params.items()
                }
                raise ValueError(self.nan_message(point))
        return torch.where(wrong, torch.inf, energy)

    def _far(self, params: Params, shape: torch.Size) -> Tensor:
        inside = torch.ones(shape, dtype=torch.bool, device=next(iter(params.values())).device)
        for name, value in self.constrain(params).items():
            inside &= _all(params[name].abs() <= _FAR, shape)
            inside &= _all(torch.isfinite(value), shape) & _all(self.supports[name].check(value), shape)
        return ~inside


@dataclass(frozen=True, eq=False)
class FittedTarget:
    """A fitted density as site ``x`` in its own space, discrete or not, with the interface of :class:`Target`."""

    density: MollifiedExpFamily

    @property
    def supports(self) -> Mapping[str, Any]:
        """The support."""
        return {"x": self.density.support}

    def constrain(self, params: Params) -> Params:
        """Returns the parameters, which are values."""
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


def _all(condition: Tensor, shape: torch.Size) -> Tensor:
    return condition.reshape(*shape, -1).all(-1)


def stack(points: list[Params]) -> Params:
    """Stacks points into parameters with a leading dimension."""
    return {name: torch.stack([point[name] for point in points]) for name in points[0]}


def nan_text(where: str, names: Iterable[str]) -> str:
    """Says that the log-density of ``where`` is NaN. Not at which values: they are of a trajectory, and private."""
    remedy = f"The values of {', '.join(names)} are finite and in their supports there."
    return argument_error(f"log-density of {where}", "be a number", math.nan, remedy)


def density_target(density: Distribution, name: str = "density") -> Target:
    """A density in unconstrained coordinates in which its base has unit scale, as site ``x``.

    For a distribution that is not an exponential family over a base, the distribution is its own base.

    Args:
        density: a distribution with continuous support and empty batch shape.
        name: what errors call it.

    Returns:
        The target, batched.

    Raises:
        ValueError: the support is discrete, or there is a batch shape.
    """
    support = support_of(density)
    if support.is_discrete:
        remedy = "Draw exactly: q.sample((n,)). Or use the independence kernel."
        raise ValueError(argument_error(name, "have continuous support for this kernel", density, remedy))
    check_not_batched(density, name)
    check_not_circular(density, name)
    fitted = density if isinstance(density, MollifiedExpFamily) else None
    base: Any = density if fitted is None else fitted.base
    transform: Any = biject_to(support)
    unconstrained = transform.inv(reference_draws(base))
    flat = location_scale_of_draws(unconstrained.reshape(len(unconstrained), -1))
    loc, scale = (value.to(unconstrained).reshape(unconstrained.shape[1:]) for value in flat)

    def log_base(params: Params) -> tuple[Tensor, Tensor]:
        point = loc + scale * params["x"]
        value = transform(point)
        return value, base.log_prob(value) + transform.log_abs_det_jacobian(point, value)

    def potential_fn(params: Params) -> Tensor:
        # The transform maps into the support, so a fitted density needs none of the checks of its log_prob.
        value, log_prob = log_base(params)
        return -(log_prob if fitted is None else log_prob + fitted.tilt(value).to(value))

    def lower_bound_fn(params: Params) -> Tensor:
        assert fitted is not None
        return -(log_base(params)[1] + fitted.bounds.high)  # no tilt is above its upper bound

    def nan_message(params: Params) -> str:
        return nan_text("site 'x'", params)

    def draw() -> Params:
        return {"x": (transform.inv(base.sample()) - loc) / scale}

    bound = None if fitted is None else lower_bound_fn
    spread = {"x": LocationScale(loc, scale)}
    return Target(potential_fn, True, {"x": support}, {"x": transform}, spread, draw, nan_message, bound)


def check_not_batched(density: Distribution, name: str) -> None:
    """Raises for a distribution with a batch shape.

    Args:
        density: any distribution.
        name: what the error calls it.

    Raises:
        ValueError: it has one.
    """
    if density.batch_shape:
        declared = f"declare its dimensions dependent: {name}.to_event({len(density.batch_shape)})"
        remedy = f"Pass it before it is expanded, or {declared}."
        raise ValueError(argument_error(name, "have an empty batch shape", tuple(density.batch_shape), remedy))


def check_not_circular(distribution: Any, name: str) -> None:
    """Raises for distributions of angles: their densities repeat, so that they are improper on the real line."""
    while not isinstance(distribution, TransformedDistribution):
        if isinstance(distribution, MollifiedExpFamily):
            distribution = distribution.base
        elif hasattr(distribution, "base_dist"):
            distribution = distribution.base_dist
        else:
            break
    if type(distribution).__name__ in _CIRCULAR:
        remedy = "Draw from it exactly, or use a transformed normal in its place."
        raise ValueError(
            argument_error(name, "not be an angle for a Markov chain", type(distribution).__name__, remedy)
        )
