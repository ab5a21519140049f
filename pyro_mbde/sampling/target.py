"""What a Markov chain samples: a density or a Pyro model in unconstrained coordinates of unit scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide.initialization import InitMessenger
from pyro.infer.mcmc.util import initialize_model
from torch import Tensor
from torch.distributions import Distribution, biject_to

from pyro_mbde._runtime import message, seeded
from pyro_mbde.base import Spread, reference_draws, spread_of_draws, support_of
from pyro_mbde.distribution import MollifiedExpFamily

_initialize_model: Any = initialize_model  # Pyro leaves these unannotated
_InitMessenger: Any = InitMessenger
_poutine: Any = poutine

Params = dict[str, Tensor]
Potential = Callable[[Params], Tensor]

#: Draws of a model's prior that its location and scale are computed from.
_NUM_PRIOR_DRAWS = 64
#: Draws of the prior that a start with a finite energy is sought among.
_MAX_TRIES = 100
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
        blame: says of one point, and the values of the sites there, where a NaN comes from.
        lower_bound_fn: a cheap lower bound of the potential energy, of any leading shape; or ``None``.
    """

    raw_potential_fn: Potential
    is_batched: bool
    supports: Mapping[str, Any]
    transforms: Mapping[str, Any]
    spread: Mapping[str, Spread]
    draw: Callable[[], Params]
    blame: Callable[[Params], str]
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
            raise ValueError(message("model", "be one that torch.vmap can vectorise", "another", remedy)) from error
        return self._settle(energy, params)

    def constrain(self, params: Params) -> Params:
        """Returns the values of the sites, each in its own space; leading dimensions are kept."""
        return {
            name: self.transforms[name](self.spread[name].loc + self.spread[name].scale * value)
            for name, value in params.items()
        }

    def unconstrain(self, values: Params) -> Params:
        """Returns the parameters that :meth:`constrain` maps to ``values``."""
        return {
            name: (self.transforms[name].inv(value) - self.spread[name].loc) / self.spread[name].scale
            for name, value in values.items()
        }

    def starts(self, num_starts: int) -> Params:
        """Returns starts of finite energy, shape ``(num_starts, ...)``, drawn from the base or the prior.

        Raises:
            ValueError: none was found, or an energy is NaN.
        """
        starts = _stack([self.draw() for _ in range(num_starts)])
        for _ in range(_MAX_TRIES):
            wrong = ~self.finite(starts)
            if not bool(wrong.any()):
                return starts
            for index in wrong.nonzero().flatten().tolist():
                for name, value in self.draw().items():
                    starts[name][index] = value
        remedy = "Look at the model's data and supports, or pass initial_values."
        raise ValueError(message("model", f"have a finite density at one of {_MAX_TRIES} prior draws", "none", remedy))

    def finite(self, params: Params) -> Tensor:
        """Whether each of ``num_chains`` points has a finite energy; bool ``(num_chains,)``."""
        with torch.no_grad(), pyro.validation_enabled(False):
            if self.is_batched:
                return torch.isfinite(self.batched_potential_fn(params))
            count = next(iter(params.values())).shape[0]
            points = ({name: value[index] for name, value in params.items()} for index in range(count))
            return torch.stack([torch.isfinite(self.potential_fn(point)) for point in points])

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
                raise ValueError(self.blame(point))
        return torch.where(wrong, torch.inf, energy)

    def _far(self, params: Params, shape: torch.Size) -> Tensor:
        inside = torch.ones(shape, dtype=torch.bool, device=next(iter(params.values())).device)
        for name, value in self.constrain(params).items():
            inside &= _all(params[name].abs() <= _FAR, shape)
            inside &= _all(torch.isfinite(value), shape) & _all(self.supports[name].check(value), shape)
        return ~inside


def _all(condition: Tensor, shape: torch.Size) -> Tensor:
    return condition.reshape(*shape, -1).all(-1)


def _stack(points: list[Params]) -> Params:
    return {name: torch.stack([point[name] for point in points]) for name in points[0]}


def describe_point(values: Params) -> str:
    """Says where a point is, in a line: site=value, long values shortened."""
    return ", ".join(
        f"{name}={value.tolist() if value.numel() <= 4 else f'tensor of shape {tuple(value.shape)}'}"
        for name, value in values.items()
    )


def density_target(density: Distribution) -> Target:
    """A density in unconstrained coordinates in which its base has unit scale, as site ``x``.

    For a distribution that is no exponential family over a base, the distribution is its own base.

    Args:
        density: a distribution with continuous support and empty batch shape.

    Returns:
        The target, batched.

    Raises:
        ValueError: the support is discrete, or there is a batch shape.
    """
    support = support_of(density)
    if support.is_discrete:
        remedy = "Draw exactly: q.sample((n,)). Or use the independence kernel."
        raise ValueError(message("model", "have continuous support for this kernel", density, remedy))
    if density.batch_shape:
        raise ValueError(message("model", "have an empty batch shape", tuple(density.batch_shape)))
    fitted = density if isinstance(density, MollifiedExpFamily) else None
    base: Any = density if fitted is None else fitted.base_dist
    transform: Any = biject_to(support)
    unconstrained = transform.inv(reference_draws(base))
    flat = spread_of_draws(unconstrained.reshape(len(unconstrained), -1))
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

    def blame(params: Params) -> str:
        value = transform(loc + scale * params["x"])
        return message("log-density of site 'x'", "be a number", torch.nan, f"There, {describe_point({'x': value})}.")

    def draw() -> Params:
        return {"x": (transform.inv(base.sample()) - loc) / scale}

    bound = None if fitted is None else lower_bound_fn
    return Target(potential_fn, True, {"x": support}, {"x": transform}, {"x": Spread(loc, scale)}, draw, blame, bound)


def model_target(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Target:
    """A Pyro model's posterior, discrete sites summed out, in coordinates in which its prior has unit scale.

    The prior's location and scale come from draws with a seed of their own, so that they are always the same.

    Args:
        model: a Pyro model with a continuous latent site.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Returns:
        The target, for one point at a time.

    Raises:
        ValueError: there is no continuous latent site, or a discrete one that cannot be enumerated.
    """
    tracer = _poutine.trace(_InitMessenger(_init_to_prior)(model))
    with seeded(0), pyro.validation_enabled(False):
        try:
            _, enumerated_potential_fn, inverses, prototype = _initialize_model(
                model,
                model_args=args,
                model_kwargs=kwargs,
                max_plate_nesting=_plate_nesting(tracer.get_trace(*args, **kwargs)),
                init_strategy=_init_to_prior,
                initial_params={},
            )
        except NotImplementedError as error:
            remedy = f"Sum the others out. {str(error).splitlines()[0]}"
            constraint = "have latent sites that are continuous or can be enumerated"
            raise ValueError(message("model", constraint, model, remedy)) from error
        if not inverses:
            raise ValueError(message("model", "have a continuous latent site to sample", model))

        def prior_draw() -> Params:
            with pyro.validation_enabled(False):
                trace = tracer.get_trace(*args, **kwargs)
            return {name: inverse(trace.nodes[name]["value"].detach()) for name, inverse in inverses.items()}

        prior = _stack([prior_draw() for _ in range(_NUM_PRIOR_DRAWS)])
    spread = {}
    for name, draws in prior.items():
        flat = spread_of_draws(draws.reshape(len(draws), -1))
        spread[name] = Spread(*(value.to(draws).reshape(draws.shape[1:]) for value in flat))
    supports = {name: prototype.nodes[name]["fn"].support for name in inverses}
    transforms = {name: inverse.inv for name, inverse in inverses.items()}

    def locate(params: Params) -> Params:
        return {name: spread[name].loc + spread[name].scale * value for name, value in params.items()}

    def plain_potential_fn(points: Params) -> Tensor:
        values = {name: transforms[name](point) for name, point in points.items()}
        log_prob: Tensor = _poutine.trace(_poutine.condition(model, values)).get_trace(*args, **kwargs).log_prob_sum()
        for name, point in points.items():
            log_prob = log_prob + transforms[name].log_abs_det_jacobian(point, values[name]).sum()
        return -log_prob

    # Pyro's own potential runs the model under its handler for discrete sites also where there are none, which takes
    # time and which torch.vmap cannot see through.
    is_enumerated = any(site["fn"].has_enumerate_support for _, site in prototype.iter_stochastic_nodes())
    at = enumerated_potential_fn if is_enumerated else plain_potential_fn

    def raw(params: Params) -> Tensor:
        energy: Tensor = at(locate(params))
        return energy

    def draw() -> Params:
        return {name: (value - spread[name].loc) / spread[name].scale for name, value in prior_draw().items()}

    def blame(params: Params) -> str:
        values = {name: transforms[name](point) for name, point in locate(params).items()}
        with pyro.validation_enabled(False):
            trace = _poutine.trace(_poutine.condition(model, values)).get_trace(*args, **kwargs)
            trace.compute_log_prob()
        wrong = [
            name
            for name, node in trace.nodes.items()
            if node["type"] == "sample" and bool(torch.isnan(node["log_prob"]).any())
        ]
        sites = " and ".join(f"site {name!r}" for name in wrong) or "the model"
        return message(f"log-density of {sites}", "be a number", torch.nan, f"There, {describe_point(values)}.")

    return Target(raw, False, supports, transforms, spread, draw, blame)


def _plate_nesting(trace: Any) -> int:
    """Returns how many dimensions the plates of a model take."""
    sites = (node for node in trace.nodes.values() if node["type"] == "sample")
    return max((-frame.dim for site in sites for frame in site["cond_indep_stack"] if frame.vectorized), default=0)


def _init_to_prior(site: Any = None) -> Any:
    """Pyro's initialisation at a draw of the prior; where that is improper, uniform in (-2, 2), unconstrained."""
    if site is None:
        return _init_to_prior
    try:
        value = site["fn"].sample().detach()
    except NotImplementedError:
        transform: Any = biject_to(site["fn"].support)
        value = transform(4 * torch.rand(transform.inverse_shape(site["fn"].shape())) - 2)
    value._pyro_custom_init = False
    return value
