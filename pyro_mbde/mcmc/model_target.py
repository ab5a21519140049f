"""A Pyro model's posterior as a target: its prior's spread, its masked entries, and the structure it must keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide.initialization import InitMessenger
from pyro.infer.mcmc.util import initialize_model
from torch import Tensor
from torch.distributions import biject_to
from torch.distributions.constraints import Constraint

from pyro_mbde._checks import argument_error
from pyro_mbde._torch_state import seeded
from pyro_mbde.density.base import LocationScale, location_scale_of_draws
from pyro_mbde.mcmc.target import Params, Target, check_not_circular, nan_message, stack

_initialize_model: Any = initialize_model  # Pyro leaves these unannotated
_InitMessenger: Any = InitMessenger
_poutine: Any = poutine

#: Draws of a model's prior that its location, scale and structure are taken from.
_NUM_PRIOR_DRAWS = 64


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
            if "subsample" in str(error):
                remedy = "An energy must be of all rows: leave subsample_size out."
                raise ValueError(
                    argument_error("model", "have no subsampled plates for a Markov chain", model, remedy)
                ) from error
            remedy = f"Sum the others out. {str(error).splitlines()[0]}"
            constraint = "have latent sites that are continuous or can be enumerated"
            raise ValueError(argument_error("model", constraint, model, remedy)) from error
        for name in inverses:
            check_not_circular(prototype.nodes[name]["fn"], f"site {name!r}")
        if not inverses:
            raise ValueError(argument_error("model", "have a continuous latent site to sample", model))

        def prior_draw() -> Params:
            with pyro.validation_enabled(False):
                trace = tracer.get_trace(*args, **kwargs)
            _check_structure(trace, prototype, set(inverses))
            return {name: inverse(trace.nodes[name]["value"].detach()) for name, inverse in inverses.items()}

        prior = stack([prior_draw() for _ in range(_NUM_PRIOR_DRAWS)])
        idle = {name: _idle(prototype.nodes[name], prior[name][0]) for name in inverses}
    spread = {}
    for name, draws in prior.items():
        flat = location_scale_of_draws(draws.reshape(len(draws), -1))
        spread[name] = LocationScale(*(value.to(draws).reshape(draws.shape[1:]) for value in flat))
    supports = {name: prototype.nodes[name]["fn"].support for name in inverses}
    transforms = {name: inverse.inv for name, inverse in inverses.items()}

    def locate(params: Params) -> Params:
        return {name: spread[name].loc + spread[name].scale * value for name, value in params.items()}

    def plain_potential_fn(points: Params) -> Tensor:
        values = {name: transforms[name](point) for name, point in points.items()}
        trace = _poutine.trace(_poutine.condition(model, values)).get_trace(*args, **kwargs)
        _check_latents(trace, set(values))
        log_prob: Tensor = trace.log_prob_sum()
        for name, point in points.items():
            log_prob = log_prob + transforms[name].log_abs_det_jacobian(point, values[name]).sum()
        return -log_prob

    # Pyro's own potential runs the model under its handler for discrete sites also where there are none, which takes
    # time and which torch.vmap cannot see through.
    is_enumerated = any(site["fn"].has_enumerate_support for _, site in prototype.iter_stochastic_nodes())
    at = enumerated_potential_fn if is_enumerated else plain_potential_fn

    def raw(params: Params) -> Tensor:
        energy: Tensor = at(locate(params))
        for name, entries in idle.items():
            if entries is not None:
                energy = energy + (entries * params[name].square()).sum() / 2
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
        return nan_message(sites, values)

    return Target(raw, False, supports, transforms, spread, draw, blame)


def _check_latents(trace: Any, names: set[str]) -> None:
    """Raises if a conditioned run of a model has latent sites that are not conditioned on, or lacks some."""
    sites = {name for name, node in trace.nodes.items() if node["type"] == "sample" and not is_subsample(node)}
    free = {name for name in sites if not trace.nodes[name]["is_observed"]}
    if free or not names <= sites:
        changing = ", ".join(sorted(free | (names - sites)))
        remedy = "Where the model branches, sample what both branches need before."
        raise ValueError(
            argument_error("model", "have the same latent sites in every run", f"sometimes {changing}", remedy)
        )


def _check_structure(trace: Any, prototype: Any, names: set[str]) -> None:
    """Raises if another run of a model has other continuous sites, or sites of other shapes or supports."""
    latent = {
        name
        for name, node in trace.iter_stochastic_nodes()
        if not is_subsample(node) and not node["fn"].has_enumerate_support
    }
    if latent != names:
        changing = ", ".join(sorted(latent ^ names))
        remedy = "Where the model branches, sample what both branches need before."
        raise ValueError(
            argument_error("model", "have the same latent sites in every run", f"sometimes {changing}", remedy)
        )
    for name in names:
        nodes = trace.nodes[name], prototype.nodes[name]
        if nodes[0]["value"].shape != nodes[1]["value"].shape:
            shapes = " and ".join(str(tuple(node["value"].shape)) for node in nodes)
            raise ValueError(argument_error(f"site {name!r}", "have the same shape in every run", shapes))
        if not _same(nodes[0]["fn"].support, nodes[1]["fn"].support):
            remedy = "A chain would keep the support of its first run: sample in (0, 1), and scale the value."
            constraint = "have a support that does not depend on other sites"
            raise ValueError(argument_error(f"site {name!r}", constraint, nodes[0]["fn"].support, remedy))


def _same(first: Any, second: Any) -> bool:
    """Whether two constraints, or what they are made of, are the same."""
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        return torch.equal(torch.as_tensor(first), torch.as_tensor(second))
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(_same, first, second))
    if isinstance(first, Constraint):
        parts, others = vars(first), vars(second)
        return type(first) is type(second) and all(_same(parts[name], others.get(name)) for name in parts)
    return bool(first == second)


def _idle(node: Any, like: Tensor) -> Tensor | None:
    """Which unconstrained entries of a site are masked out, so that nothing in the model holds them; or ``None``.

    They are sampled as standard normals, to keep the target proper; their draws mean nothing.
    """
    masks = [mask for mask in (node.get("mask"), getattr(node["fn"], "_mask", None)) if mask is not None]
    if not masks:
        return None
    used = torch.ones(node["fn"].batch_shape, dtype=torch.bool)
    for mask in masks:
        used = used & torch.as_tensor(mask).cpu()
    if bool(used.all()):
        return None
    shape = used.shape + (1,) * (like.dim() - used.dim())
    return (~used).reshape(shape).expand(like.shape).to(like)


def is_subsample(node: Any) -> bool:
    """Returns whether a node of a trace holds the indices that a plate draws of its own accord.

    Args:
        node: a sample site; Pyro has no public name for the distribution of those of a plate.
    """
    return type(node["fn"]).__name__ == "_Subsample"


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
