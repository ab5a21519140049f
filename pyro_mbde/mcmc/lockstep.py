"""What kernels share that advance many chains in one tensor: starting points, energies, and what they adapt."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from pyro.ops.dual_averaging import DualAveraging
from torch import Tensor

from pyro_mbde._checks import argument_error, check_count, check_flag, check_number
from pyro_mbde.mcmc.collected import ChainsFirst, EverySite
from pyro_mbde.mcmc.model_target import ModelTarget
from pyro_mbde.mcmc.target import Params, Potential, Target

_DualAveraging: Any = DualAveraging  # Pyro leaves it unannotated

#: Fractions of warmup after which a covariance is learned, each time from the steps since the last.
_WINDOWS = (0.15, 0.4, 0.8)
#: Shortest warmup in which a covariance is learned.
_MIN_WARMUP = 20


class LockstepKernel(MCMCKernel):
    """Many chains, advanced together in one tensor, that learn a step size and a covariance from each other in warmup.

    A subclass makes one step of all chains in :meth:`_move`, says how far its proposals were from the best acceptance
    rate, and how many steps forget a state.

    Args:
        model: a Pyro model that ``torch.vmap`` can vectorise; ``None`` if ``potential_fn`` is given.
        potential_fn: negative log-density, up to a constant, of unconstrained parameters, each of shape ``(num_chains,
            ...)``; returns shape ``(num_chains,)``. Needs ``initial_params``, set on the kernel or given to ``MCMC``.
        num_chains: number of chains, at least 1; with ``potential_fn`` it follows from ``initial_params``.
        init_step_size: first step size, in standard deviations of the target, above 0; ``None`` for the kernel's own.
        target_accept_prob: acceptance rate to adapt to, in (0, 1); ``None`` for the kernel's own.
        adapt_step_size: whether to adapt the step size in warmup.
        adapt_covariance: whether to learn the covariance in warmup.
        pooled: whether all chains share the step size; else each has its own.
    """

    #: How slowly dual averaging moves.
    _gamma = 0.05
    #: Steps per dimension after which a chain has roughly forgotten where it was.
    _steps_per_dimension = 1

    def __init__(
        self,
        model: Callable[..., Any] | None,
        potential_fn: Potential | None,
        num_chains: int,
        init_step_size: float | None,
        target_accept_prob: float | None,
        adapt_step_size: bool,
        adapt_covariance: bool,
        pooled: bool,
    ) -> None:
        if (model is None) == (potential_fn is None):
            raise ValueError(argument_error("model", "be given, or potential_fn, and not both", model))
        if model is not None and not callable(model):
            raise TypeError(argument_error("model", "be a Pyro model", model))
        self.model = model
        self.num_chains = check_count("num_chains", num_chains)
        self.transforms: Any = None if potential_fn is None else EverySite()
        self._potential_fn = potential_fn
        self._init_step_size = init_step_size
        if init_step_size is not None:
            check_number("init_step_size", init_step_size, "be finite and above 0", lambda step: 0 < step < math.inf)
        self._target_rate = target_accept_prob
        if target_accept_prob is not None:
            check_number("target_accept_prob", target_accept_prob, "be in (0, 1)", lambda rate: 0 < rate < 1)
        self._adapts_step = check_flag("adapt_step_size", adapt_step_size)
        self._adapts_covariance = check_flag("adapt_covariance", adapt_covariance)
        self._pooled = check_flag("pooled", pooled)
        self._initial_params: Params | None = None
        self._restored: dict[str, Any] = {}
        super().__init__()

    @classmethod
    def for_target(cls, target: Target, **options: Any) -> Self:
        """Builds the kernel for a target."""
        kernel = cls(potential_fn=target.batched_potential_fn, **options)
        kernel._take(target)
        return kernel

    @abstractmethod
    def _take(self, target: Target) -> None:
        """Keeps what a kernel needs of a target beside its potential."""

    @abstractmethod
    def _best(self, num_dims: int) -> tuple[float, float]:
        """Returns the first step size, and the acceptance rate to adapt to."""

    @abstractmethod
    def _move(self, position: Tensor) -> Tensor:
        """Returns the next states of all chains, shape ``(num_chains, d)``; sets ``accept_prob`` and ``_rates``."""

    @property
    def initial_params(self) -> Params:
        """Starting points, unconstrained, shape ``(num_chains, ...)``; after setup in the kernel's coordinates."""
        if self._initial_params is None:
            raise ValueError(argument_error("initial_params", "be given with potential_fn", None))
        return self._initial_params

    @initial_params.setter
    def initial_params(self, params: Params) -> None:
        self._initial_params = params

    @property
    def adaptation(self) -> dict[str, Any]:
        """What was learned in warmup: ``step_size``, ``()`` or ``(num_chains,)``; ``factor`` L, ``(d,)`` or ``(d, d)``.

        If set before ``setup``, the kernel starts with it.
        """
        return {"step_size": self._step_size.clone(), "factor": self._factor.clone()}

    @adaptation.setter
    def adaptation(self, learned: dict[str, Any]) -> None:
        self._restored = dict(learned)

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Finds starting points and prepares the adaptation; called by ``MCMC`` with the model's arguments."""
        target = None if self.model is None else ModelTarget(self.model, args, kwargs)
        if target is not None:
            self._potential_fn = target.batched_potential_fn
            self._take(target)
            given = self._initial_params
            self._initial_params = target.starts(self.num_chains) if given is None else target.standardize(given)
        params = self.initial_params
        self.num_chains = next(iter(params.values())).shape[0]
        self._shapes = {name: value.shape[1:] for name, value in params.items()}
        self.transforms = {
            name: ChainsFirst(len(shape), None if target is None else partial(_constrain, target, name))
            for name, shape in self._shapes.items()
        }
        self._energy = self._energy_at(params)
        wrong = (~torch.isfinite(self._energy)).nonzero().flatten().tolist()
        if wrong:
            raise ValueError(argument_error("initial_params", "have a finite energy", f"none for chains {wrong[:5]}"))
        self._warmup_steps, self._t, self._sum_rates = warmup_steps, 0, 0.0
        flat = self._flatten(params)
        num_dims = flat.shape[1]
        first, rate = self._best(num_dims)
        step_size = flat.new_full((() if self._pooled else (self.num_chains,)), self._init_step_size or first)
        self._step_size: Tensor = self._restored.get("step_size", step_size)
        self._factor: Tensor = self._restored.get("factor", flat.new_ones(num_dims))
        self._rate = self._target_rate or rate
        learns = self._adapts_covariance and warmup_steps >= _MIN_WARMUP
        self._windows = {round(share * warmup_steps) for share in _WINDOWS} if learns else set()
        self._averaging: Any = _DualAveraging(prox_center=self._step_size.log(), gamma=self._gamma)
        self._forget()
        self.accept_prob = self._rates = flat.new_zeros(self.num_chains)

    def sample(self, params: Params) -> Params:
        """Makes one step of every chain; learns only during warmup."""
        position = self._move(self._flatten(params))
        self._t += 1
        if self._t <= self._warmup_steps:
            self._adapt(position)
        else:
            self._sum_rates += float(self.accept_prob.mean())
        return self._unflatten(position)

    def stats(self) -> dict[str, Tensor]:
        """Returns what is known of the last step, each of shape ``(num_chains,)``."""
        step_size = self._step_size.expand(self.num_chains)
        return {"lp": -self._energy, "acceptance_rate": self.accept_prob, "step_size": step_size}

    def logging(self) -> OrderedDict[str, str]:
        """Returns what Pyro's progress bar shows."""
        step_size, rate = float(self._step_size.mean()), float(self.accept_prob.mean())
        return OrderedDict([("step size", f"{step_size:.2e}"), ("acc. prob", f"{rate:.3f}")])

    def diagnostics(self) -> dict[str, Any]:
        """Returns the mean acceptance probability after warmup, and divergences, of which a random walk has none."""
        return {"acceptance rate": self._sum_rates / max(self._t - self._warmup_steps, 1), "divergences": []}

    def cleanup(self) -> None:
        """Forgets the starting points."""
        self._initial_params = None

    def _along(self, vectors: Tensor) -> Tensor:
        """Applies the factor L to vectors of shape ``(n, d)``."""
        return vectors * self._factor if self._factor.dim() == 1 else vectors @ self._factor.T

    def _energy_at(self, params: Params) -> Tensor:
        """Returns the exact energies of points, +inf where a point is not finite and its energy is not a number."""
        assert self._potential_fn is not None  # set up
        with torch.no_grad():
            return checked_energy(self._potential_fn(params), params, "potential_fn")

    def _flatten(self, params: Params) -> Tensor:
        return torch.cat([params[name].reshape(self.num_chains, -1) for name in self._shapes], -1)

    def _unflatten(self, flat: Tensor) -> Params:
        pieces = torch.split(flat, [shape.numel() for shape in self._shapes.values()], -1)
        named = zip(self._shapes.items(), pieces, strict=True)
        return {name: piece.reshape(-1, *shape) for (name, shape), piece in named}

    def _forget(self) -> None:
        """Starts a new window: number of states, their sum and the sum of their outer products."""
        num_dims = self._factor.shape[0]
        self._count = 0
        self._sum = self._factor.new_zeros(num_dims, dtype=torch.float64)
        self._outer = self._factor.new_zeros((num_dims, num_dims), dtype=torch.float64)

    def _adapt(self, position: Tensor) -> None:
        """Makes a step of dual averaging; at the end of a window, proposals take the covariance of its steps."""
        if self._adapts_step:
            self._averaging.step(self._rate - (self._rates.mean() if self._pooled else self._rates))
            now, average = self._averaging.get_state()
            self._step_size = (average if self._t == self._warmup_steps else now).exp()
        if not self._windows:
            return
        wide = position.double()
        self._count += len(wide)
        self._sum += wide.sum(0)
        self._outer += wide.T @ wide
        if self._t in self._windows:
            self._learn_covariance(position)

            self._forget()

    def _learn_covariance(self, like: Tensor) -> None:
        num_dims = like.shape[1]
        mean = self._sum / self._count
        covariance = self._outer / self._count - torch.outer(mean, mean)
        # Shrunk while there are few independent steps, by the weights that Stan uses: towards its diagonal or, if only
        # the diagonal is learned, towards a small number.
        independent = self._count / (self._steps_per_dimension * num_dims)
        weight = independent / (independent + 5)
        diagonal = covariance.diagonal().clamp(min=0)
        if independent > 4 * num_dims:
            shrunk = weight * covariance + (1 - weight) * torch.diag(diagonal)
            factor, failed = torch.linalg.cholesky_ex(shrunk)
            usable = not bool(failed) and bool((diagonal > 0).all())
        else:
            factor, usable = (weight * diagonal + (1 - weight) * 1e-3).sqrt(), True
        if not usable or not bool(torch.isfinite(factor).all()):
            return
        self._factor = factor.to(like)
        if self._adapts_step:
            self._step_size = like.new_full(self._step_size.shape, self._best(num_dims)[0])
            self._averaging = _DualAveraging(prox_center=self._step_size.log(), gamma=self._gamma)


def checked_energy(energy: Tensor, params: Params, name: str) -> Tensor:
    """Returns the energies that a function of that name gives points, NaN at a point that is not finite as +inf.

    Raises:
        ValueError: the energies are not one for each point; or NaN at a finite point.
    """
    num_points = next(iter(params.values())).shape[0]
    if energy.shape != (num_points,):
        raise ValueError(argument_error(name, f"return shape ({num_points},)", tuple(energy.shape)))
    wrong = torch.isnan(energy)
    if not bool(wrong.any()):
        return energy
    is_finite = torch.stack([torch.isfinite(value).flatten(1).all(1) for value in params.values()]).all(0)
    if bool((wrong & is_finite).any()):
        remedy = f"At that point, all of {', '.join(params)} are finite."
        raise ValueError(argument_error("potential energy", "be a number", math.nan, remedy))
    return torch.where(wrong, torch.inf, energy)


def _constrain(target: Target, name: str, values: Tensor) -> Tensor:
    """Maps parameters of a site to its own space."""
    return target.constrain({name: values})[name]
