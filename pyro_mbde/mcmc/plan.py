"""The arguments of run_mcmc, checked: a kernel by name, its options, and its target."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._checks import argument_error
from pyro_mbde._torch_state import seeded
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.mcmc.chains import ChainState
from pyro_mbde.mcmc.hamiltonian import RecordingHMC, RecordingNUTS, check_options
from pyro_mbde.mcmc.independence import IndependenceSampler
from pyro_mbde.mcmc.model_target import model_target
from pyro_mbde.mcmc.random_walk import LockstepRandomWalk
from pyro_mbde.mcmc.target import Params, Target, check_not_batched, density_target

_CLASSES: dict[str, Any] = {
    "random_walk": LockstepRandomWalk,
    "hmc": RecordingHMC,
    "nuts": RecordingNUTS,
    "lockstep_random_walk": LockstepRandomWalk,
    "independence": IndependenceSampler,
}
KERNELS = tuple(_CLASSES)
#: Arguments of kernels that run_mcmc gives them itself.
_GIVEN = ("self", "model", "q", "potential_fn", "lower_bound_fn", "num_chains", "transforms", "init_strategy")


@dataclass(frozen=True, eq=False)
class Sampling:
    """A kernel by name and what it samples: a target, or for the independence kernel a fitted density itself."""

    kernel: str
    options: dict[str, Any]
    density: Distribution | None
    target: Target | None

    @property
    def names(self) -> list[str]:
        """Names of the sites."""
        return ["x"] if self.target is None else list(self.target.transforms)

    def starts(self, num_chains: int) -> Params:
        """Starts with a leading dimension of chains."""
        if self.target is not None:
            return self.target.starts(num_chains)
        base: Any = cast("MollifiedExpFamily", self.density).base
        return {"x": base.sample(torch.Size([num_chains]))}

    def check_values(self, values: Mapping[str, Tensor], num_chains: int) -> Params:
        """Turns values of the sites into starts, or raises."""
        if not isinstance(values, Mapping):
            raise TypeError(argument_error("initial_values", "be a dict of tensors, one a site", type(values).__name__))
        if set(values) != set(self.names):
            raise ValueError(
                argument_error("initial_values", f"have the sites {', '.join(self.names)}", ", ".join(values))
            )
        with seeded(0):
            like = self.starts(1)
        starts = {name: torch.as_tensor(values[name], dtype=like[name].dtype) for name in like}
        shapes = {name: (num_chains, *value.shape[1:]) for name, value in self.constrain(like).items()}
        for name, shape in shapes.items():
            whole = not starts[name].is_floating_point()  # a base of whole numbers: nothing may be cut off
            if whole and not torch.equal(starts[name].double(), torch.as_tensor(values[name]).double()):
                raise ValueError(argument_error(f"initial_values[{name!r}]", "be of the density's type", values[name]))
            if tuple(starts[name].shape) != shape:
                raise ValueError(
                    argument_error(f"initial_values[{name!r}]", f"have shape {shape}", tuple(starts[name].shape))
                )
        inside = [self._support(name).check(value).reshape(num_chains, -1).all(-1) for name, value in starts.items()]
        usable = torch.stack(inside).all(0)
        if self.target is not None and bool(usable.all()):
            starts = self.target.unconstrain(starts)
            usable = self.target.finite(starts)
        if not bool(usable.all()):
            wrong = (~usable).nonzero().flatten().tolist()
            remedy = "These are the first chains that are not."
            raise ValueError(
                argument_error("initial_values", "have a density above 0 in every chain", wrong[:5], remedy)
            )
        return starts

    def check_states(self, states: tuple[ChainState, ...]) -> None:
        """Raises if the log-density of chains' states is not what it was: the target is another one."""
        for state in states:
            if state.lp is None:
                continue
            try:
                lp = self._log_density(state.params)
            except RuntimeError:  # of another shape
                lp = torch.full_like(state.lp, math.nan)
            if not torch.allclose(lp.double(), state.lp.double(), rtol=1e-3, atol=1e-2):
                remedy = "Its log-density is another where the chains stopped."
                raise ValueError(argument_error("model", "be the one that the chains ran on", "another", remedy))

    def _log_density(self, params: Params) -> Tensor:
        if self.target is None:
            return cast("Distribution", self.density).log_prob(params["x"])
        return self.target.log_density(params)

    def _support(self, name: str) -> Any:
        return cast("Any", self.density).support if self.target is None else self.target.supports[name]

    def constrain(self, params: Params) -> Params:
        """Maps parameters to the sites' own spaces; leading dimensions are kept."""
        return params if self.target is None else self.target.constrain(params)

    def build(self) -> Any:
        """Builds a kernel, not yet started."""
        known = inspect.signature(_CLASSES[self.kernel]).parameters
        unknown = [name for name in self.options if name not in known or name in _GIVEN]
        if unknown:
            options = ", ".join(name for name in known if name not in _GIVEN)
            raise TypeError(argument_error("kernel_options", f"be among {options}", ", ".join(unknown)))
        if self.target is None:
            return IndependenceSampler(cast("MollifiedExpFamily", self.density), **self.options)
        if self.kernel in ("random_walk", "lockstep_random_walk"):
            potential_fn, lower_bound_fn = self.target.batched_potential_fn, self.target.lower_bound_fn
            return LockstepRandomWalk(potential_fn=potential_fn, lower_bound_fn=lower_bound_fn, **self.options)
        check_options(self.options)
        if self.kernel == "nuts":
            return RecordingNUTS(potential_fn=self.target.potential_fn, **self.options)
        # A quarter of the period of a unit normal: half of it or all of it, Pyro's default, returns to the start.
        length = {} if "num_steps" in self.options else {"trajectory_length": math.pi / 2}
        return RecordingHMC(potential_fn=self.target.potential_fn, **{**length, **self.options})


def prepare_sampling(
    model: Distribution | Callable[..., Any],
    kernel: str,
    model_args: tuple[Any, ...],
    model_kwargs: Mapping[str, Any] | None,
    options: dict[str, Any],
) -> Sampling:
    """Returns what :func:`~pyro_mbde.run_mcmc` was asked to sample, from its arguments, checked.

    Raises:
        ValueError: the model cannot be sampled by this kernel, or an option is out of its range.
    """
    if not isinstance(model_args, tuple | list):
        raise TypeError(argument_error("model_args", "be a tuple", type(model_args).__name__))
    if model_kwargs is not None and not isinstance(model_kwargs, Mapping):
        raise TypeError(argument_error("model_kwargs", "be a dict", model_kwargs))
    if not (callable(model) or isinstance(model, Distribution)) or isinstance(model, type):
        raise TypeError(argument_error("model", "be a distribution or a Pyro model", model))
    if kernel == "independence":
        if not isinstance(model, MollifiedExpFamily):
            raise TypeError(argument_error("model", "be a MollifiedExpFamily for the independence kernel", model))
        check_not_batched(model, "model")
        return Sampling(kernel, options, model, None)
    if isinstance(model, Distribution):
        return Sampling(kernel, options, model, density_target(model, "model"))
    return Sampling(kernel, options, None, model_target(model, tuple(model_args), dict(model_kwargs or {})))
