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
from pyro_mbde.mcmc.smooth import SmoothLatents
from pyro_mbde.mcmc.target import Params, Potential, Target, check_not_circular, nan_text, spread_of, stack

_initialize_model: Any = initialize_model  # Pyro leaves these unannotated
_InitMessenger: Any = InitMessenger
_poutine: Any = poutine

#: Draws of a model's prior from which its location and scale are taken, and by which its structure is checked.
_NUM_PRIOR_DRAWS = 64


class ModelTarget(Target):
    """A Pyro model's posterior, with discrete sites summed out, in coordinates in which its prior has unit scale.

    The prior's location and scale come from draws with a fixed seed, so that they are always the same.

    Args:
        model: a Pyro model with a continuous latent site.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Raises:
        ValueError: there is no continuous latent site, or there is a discrete one that cannot be enumerated; or Markov
            chains on the model would be wrong (angles, subsampled plates, a structure that differs between runs).
    """

    is_batched = False
    lower_bound_fn = None

    def __init__(self, model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._model, self._args, self._kwargs = model, args, kwargs
        self._tracer = _poutine.trace(_InitMessenger(_init_to_prior)(model))
        with seeded(0), pyro.validation_enabled(False):
            enumerated_energy, self._inverses, self._prototype = self._initialize()
            for name in self._inverses:
                check_not_circular(self._prototype.nodes[name]["fn"], f"site {name!r}")
            if not self._inverses:
                raise ValueError(argument_error("model", "have a continuous latent site to sample", model))
            prior = stack([self._prior_draw() for _ in range(_NUM_PRIOR_DRAWS)])
        self.supports = {name: self._prototype.nodes[name]["fn"].support for name in self._inverses}
        self.transforms = {name: inverse.inv for name, inverse in self._inverses.items()}
        self.spread = {name: spread_of(draws) for name, draws in prior.items()}
        idle = {name: _idle(self._prototype.nodes[name], draws[0]) for name, draws in prior.items()}
        self._idle = {name: entries for name, entries in idle.items() if entries is not None}
        # Pyro's potential runs the model under its handler for discrete sites even if there are none, which takes time
        # and which torch.vmap cannot vectorise.
        is_enumerated = any(site["fn"].has_enumerate_support for _, site in self._prototype.iter_stochastic_nodes())
        self._plain_energy = enumerated_energy if is_enumerated else self._conditioned_energy
        self._smooth = SmoothLatents()
        self._smooth.take({name: self._prototype.nodes[name]["fn"] for name in self._inverses})
        self.has_smooth_energy = bool(self._smooth.tilts)

    def _initialize(self) -> tuple[Potential, dict[str, Any], Any]:
        """Returns Pyro's potential energy, the transforms to unconstrained coordinates, and a trace."""
        try:
            _, energy, inverses, prototype = _initialize_model(
                self._model,
                model_args=self._args,
                model_kwargs=self._kwargs,
                max_plate_nesting=_plate_nesting(self._tracer.get_trace(*self._args, **self._kwargs)),
                init_strategy=_init_to_prior,
                initial_params={},
            )
        except NotImplementedError as error:
            constraint = "have latent sites that are continuous or can be enumerated"
            remedy = f"Sum out the others. {str(error).splitlines()[0]}"
            if "subsample" in str(error):
                constraint = "have no subsampled plates for a Markov chain"
                remedy = "The energy must cover all rows: leave out subsample_size."
            raise ValueError(argument_error("model", constraint, self._model, remedy)) from error
        return energy, inverses, prototype

    def _prior_draw(self) -> Params:
        """A draw of the prior, unconstrained."""
        with pyro.validation_enabled(False):
            trace = self._tracer.get_trace(*self._args, **self._kwargs)
        _check_structure(trace, self._prototype, set(self._inverses))
        return {name: inverse(trace.nodes[name]["value"].detach()) for name, inverse in self._inverses.items()}

    def _conditioned_trace(self, values: Params) -> Any:
        return _poutine.trace(_poutine.condition(self._model, values)).get_trace(*self._args, **self._kwargs)

    def _conditioned_energy(self, points: Params) -> Tensor:
        """The potential energy of unconstrained points, for a model without discrete sites."""
        values = {name: self.transforms[name](point) for name, point in points.items()}
        trace = self._conditioned_trace(values)
        _check_latents(trace, set(values))
        log_prob: Tensor = trace.log_prob_sum()
        for name, point in points.items():
            log_prob = log_prob + self.transforms[name].log_abs_det_jacobian(point, values[name]).sum()
        return -log_prob

    def raw_potential_fn(self, params: Params) -> Tensor:
        """Returns the potential energy of one point."""
        energy = self._plain_energy(self.locate(params))
        for name, entries in self._idle.items():
            energy = energy + (entries * params[name].square()).sum() / 2
        return energy

    def raw_smooth_potential_fn(self, params: Params) -> Tensor:
        """Returns the potential energy of one point with smoother tilts."""
        with self._smooth:
            return self.raw_potential_fn(params)

    def draw(self) -> Params:
        """Returns a draw of the prior."""
        return self.standardize(self._prior_draw())

    def nan_message(self, params: Params) -> str:
        """Says which sites make the log-density of a point NaN."""
        values = self.constrain(params)
        with pyro.validation_enabled(False):
            trace = self._conditioned_trace(values)
            trace.compute_log_prob()
        wrong = [
            name
            for name, node in trace.nodes.items()
            if node["type"] == "sample" and bool(torch.isnan(node["log_prob"]).any())
        ]
        return nan_text(" and ".join(f"site {name!r}" for name in wrong) or "the model", values)


def _check_latents(trace: Any, names: set[str]) -> None:
    """Raises if a conditioned run of a model has latent sites that are not conditioned on, or lacks some that are."""
    sites = {name for name, node in trace.nodes.items() if node["type"] == "sample" and not is_subsample(node)}
    free = {name for name in sites if not trace.nodes[name]["is_observed"]}
    _check_constant(free | (names - sites))


def _check_constant(changing: set[str]) -> None:
    """Raises if there are latent sites that only some runs of a model have."""
    if changing:
        remedy = "If the model branches, sample the sites of all branches before it does."
        found = f"sometimes {', '.join(sorted(changing))}"
        raise ValueError(argument_error("model", "have the same latent sites in every run", found, remedy))


def _check_structure(trace: Any, prototype: Any, names: set[str]) -> None:
    """Raises if a run of a model has other continuous sites, shapes or supports than its first run."""
    latent = {
        name
        for name, node in trace.iter_stochastic_nodes()
        if not is_subsample(node) and not node["fn"].has_enumerate_support
    }
    _check_constant(latent ^ names)
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
    """Returns which unconstrained entries of a site are masked out; ``None`` if there are none.

    Nothing in the model constrains such entries. They are sampled as standard normals, to keep the target proper; their
    draws mean nothing.
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
    """Returns whether a sample site of a trace holds the indices that a plate draws by itself."""
    return type(node["fn"]).__name__ == "_Subsample"  # not public in Pyro


def _plate_nesting(trace: Any) -> int:
    """Returns how many dimensions the plates of a model take."""
    sites = (node for node in trace.nodes.values() if node["type"] == "sample")
    return max((-frame.dim for site in sites for frame in site["cond_indep_stack"] if frame.vectorized), default=0)


def _init_to_prior(site: Any = None) -> Any:
    """Initialises Pyro at a draw of the prior or, if that is improper, uniformly in (-2, 2), unconstrained."""
    if site is None:
        return _init_to_prior
    try:
        value = site["fn"].sample().detach()
    except NotImplementedError:
        transform: Any = biject_to(site["fn"].support)
        value = transform(4 * torch.rand(transform.inverse_shape(site["fn"].shape())) - 2)
    value._pyro_custom_init = False
    return value
