"""The arguments of run_mcmc, checked: a kernel by name, its options, and its target."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._checks import argument_error
from pyro_mbde._torch_state import seeded
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.mcmc.chains import ChainState
from pyro_mbde.mcmc.kernels import KERNELS, Kernel
from pyro_mbde.mcmc.latent_target import LatentTarget, columns_of, is_box
from pyro_mbde.mcmc.model_target import ModelTarget
from pyro_mbde.mcmc.target import DensityTarget, FittedTarget, Params, Target, check_not_batched


@dataclass(frozen=True, eq=False)
class Sampling:
    """A kernel, its options and its target; ``density`` is the distribution, if the target is one."""

    name: str
    options: dict[str, Any]
    target: Target | FittedTarget
    density: Distribution | None

    @property
    def kernel(self) -> Kernel:
        """The kernel's entry in the table."""
        return KERNELS[self.name]

    def check_values(self, values: Mapping[str, Tensor], num_chains: int) -> Params:
        """Turns values of the sites into starting points, or raises."""
        target = self.target
        sites = ", ".join(target.supports)
        if not isinstance(values, Mapping):
            raise TypeError(argument_error("initial_values", "be a dict with a tensor per site", type(values).__name__))
        if set(values) != set(target.supports):
            raise ValueError(argument_error("initial_values", f"have the sites {sites}", ", ".join(values)))
        with seeded(0):
            like = target.constrain(target.starts(1))
        starts = {name: torch.as_tensor(values[name], dtype=like[name].dtype) for name in like}
        for name, start in starts.items():
            whole = not start.is_floating_point()  # a base of whole numbers: no fraction may be cut off
            if whole and not torch.equal(start.double(), torch.as_tensor(values[name]).double()):
                raise ValueError(argument_error(f"initial_values[{name!r}]", "be of the density's type", values[name]))
            shape = (num_chains, *like[name].shape[1:])
            if tuple(start.shape) != shape:
                raise ValueError(argument_error(f"initial_values[{name!r}]", f"have shape {shape}", tuple(start.shape)))
        inside = [target.supports[name].check(start).reshape(num_chains, -1).all(-1) for name, start in starts.items()]
        usable = torch.stack(inside).all(0)
        if bool(usable.all()):
            starts = target.unconstrain(starts)
            usable = target.finite(starts)
        if not bool(usable.all()):
            wrong = (~usable).nonzero().flatten().tolist()
            constraint, remedy = "have a density above 0 in every chain", "These are the first chains where it is not."
            raise ValueError(argument_error("initial_values", constraint, wrong[:5], remedy))
        return starts

    def check_states(self, states: tuple[ChainState, ...]) -> None:
        """Raises if the target's log-density at the states of chains differs from the one recorded in them."""
        for state in states:
            if state.lp is None:
                continue
            try:
                lp = self.target.log_density(state.params)
            except RuntimeError:  # of another shape
                lp = torch.full_like(state.lp, math.nan)
            if not torch.allclose(lp.double(), state.lp.double(), rtol=1e-3, atol=1e-2):
                raise ValueError(
                    "model must be the one that the chains ran on, got one whose log-density differs where the chains "
                    "stopped."
                )

    def build(self) -> Any:
        """Builds a kernel, which is not yet set up."""
        cls = self.kernel.cls
        known = [name for name in inspect.signature(cls).parameters if name not in self.kernel.given]
        unknown = [name for name in self.options if name not in known]
        if unknown:
            constraint = f"be among {', '.join(known)}" if known else f"be left out with {self.name}, which has none"
            raise TypeError(argument_error("kernel_options", constraint, ", ".join(unknown)))
        return cls.for_target(self.target, **self.options)


def prepare_sampling(
    model: Distribution | Callable[..., Any],
    kernel: str,
    model_args: tuple[Any, ...],
    model_kwargs: Mapping[str, Any] | None,
    options: dict[str, Any],
) -> Sampling:
    """Checks the arguments of :func:`~pyro_mbde.run_mcmc` and returns what it was asked to sample."""
    if not isinstance(model_args, tuple | list):
        raise TypeError(argument_error("model_args", "be a tuple", type(model_args).__name__))
    if model_kwargs is not None and not isinstance(model_kwargs, Mapping):
        raise TypeError(argument_error("model_kwargs", "be a dict", model_kwargs))
    if not (callable(model) or isinstance(model, Distribution)) or isinstance(model, type):
        raise TypeError(argument_error("model", "be a distribution or a Pyro model", model))
    if KERNELS[kernel].own_space:
        if not isinstance(model, MollifiedExpFamily):
            raise TypeError(argument_error("model", f"be a MollifiedExpFamily for the {kernel} kernel", model))
        check_not_batched(model, "model")
        return Sampling(kernel, options, FittedTarget(model), model)
    if isinstance(model, Distribution):
        columns = columns_of(model)
        # Normal scores for kernels that follow gradients: the density of a column may have jumps.
        if columns is None or (is_box(columns) and not KERNELS[kernel].follows_gradient):
            return Sampling(kernel, options, DensityTarget(model, "model"), model)
        return Sampling(kernel, options, LatentTarget(model, "model"), model)
    return Sampling(kernel, options, ModelTarget(model, tuple(model_args), dict(model_kwargs or {})), None)
