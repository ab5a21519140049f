"""Hamiltonian Monte Carlo that follows a smooth energy and selects states by the exact one.

A density is a base times a tilt, which is bounded but steep: steps along its gradient have to be tiny. So trajectories
follow the *smooth* energy, in which the tilt of a latent's density is left out, or the density damped
(:mod:`~pyro_mbde.mcmc.smooth`), and states are selected by the *exact* energy. Leapfrog steps along any gradient are
reversible and keep volume, so the chains leave exactly the density invariant (docs/proofs.md, "Exact chains along a
smooth energy"). Step sizes are adapted to the error of the smooth energy; adapted to the exact one they would collapse.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_mbde._checks import argument_error, check_count
from pyro_mbde.mcmc.lockstep import LockstepKernel, check_step_size, checked_energy
from pyro_mbde.mcmc.target import Potential, Target

#: Limit on the mean number of leapfrog steps of trajectories, so that the longest take about as many as NUTS makes at
#: most by default. Without it, they would take millions if the step size collapsed.
MAX_MEAN_STEPS = 512
#: A trajectory whose smooth energy rises by more than this, in nats, diverged: Pyro's limit.
_MAX_ENERGY_ERROR = 1000.0


class LockstepHMC(LockstepKernel):
    r"""Hamiltonian Monte Carlo for many chains, advanced together in one tensor, on exact energies.

    A trajectory has L leapfrog steps of size s, with the current state at a random place among its L + 1 points. The
    next state is one of the others, chosen by their weights :math:`e^{-H}`, or the current one (Metropolised Gibbs
    sampling). Trajectories follow the smooth energy and H is exact: the networks of latents' densities are evaluated
    once for all points of a trajectory, and never differentiated.

    L is drawn uniformly from 1 to :math:`2m - 1`, for all chains together, where m steps have the length of a
    trajectory: no period of the target can then resonate with it. In warmup the chains learn the covariance of the
    target and the step size from each other; after it they are independent of each other given the L.

    Works with ``pyro.infer.MCMC(kernel, ..., num_chains=1)``, which returns the samples as those of ``num_chains``
    chains: ``get_samples()`` has shape ``(num_chains * num_samples, ...)``.

    Privacy:
        For inference and checks, not for release: trajectories are not covered by a density's guarantee.

    Args:
        model: a Pyro model that ``torch.vmap`` can vectorise; ``None`` if ``potential_fn`` is given.
        potential_fn: negative log-density, up to a constant, of unconstrained parameters, each of shape ``(num_chains,
            ...)``; returns shape ``(num_chains,)``. Needs ``initial_params``, set on the kernel or given to ``MCMC``.
        smooth_potential_fn: what trajectories follow, with the same argument; ``None`` for ``potential_fn``.
        num_chains: number of chains, at least 1; with ``potential_fn`` it follows from ``initial_params``.
        init_step_size: first step size s, in standard deviations of the target, in [1e-12, 1e12]; defaults to 1.4 /
            d^(1/4).
        target_accept_prob: what the mean acceptance probability of a trajectory's points would be if the smooth energy
            were the exact one, in (0, 1); steps are adapted to it; defaults to 0.8.
        trajectory_length: mean length of trajectories, s times m, in standard deviations of the target, in [1e-12,
            1e12].
        num_steps: m, in 1 to 512, whatever s is; ``None`` for the steps that ``trajectory_length`` takes, at most 512.
        adapt_step_size: whether to adapt s in warmup.
        adapt_covariance: whether to learn the covariance in warmup.
        pooled: whether all chains share s; else each has its own, and the m of their mean.

    Raises:
        ValueError: there are no starting points, one of them has zero density, or an energy is NaN during the run.

    References:
        Duane, Kennedy, Pendleton, Roweth. Hybrid Monte Carlo. 1987.
        Neal. An improved acceptance procedure for the hybrid Monte Carlo algorithm. 1994 (windows of states).
        Liu. Peskun's theorem and a modified discrete-state Gibbs sampler. 1996.
        Hoffman, Radul, Sountsov. An adaptive-MCMC scheme for setting trajectory lengths. 2021 (jitter, lockstep).

    Example:
        >>> from pyro.infer import MCMC
        >>> kernel = LockstepHMC(potential_fn=lambda params: params["x"].square().sum(-1) / 2)
        >>> mcmc = MCMC(kernel, 10, 50, initial_params={"x": torch.randn(100, 2)}, disable_progbar=True)
        >>> mcmc.run()
        >>> mcmc.get_samples(group_by_chain=True)["x"].shape
        torch.Size([100, 10, 2])
    """

    def __init__(
        self,
        model: Callable[..., Any] | None = None,
        *,
        potential_fn: Potential | None = None,
        smooth_potential_fn: Potential | None = None,
        num_chains: int = 64,
        init_step_size: float | None = None,
        target_accept_prob: float | None = None,
        trajectory_length: float = 3.0,
        num_steps: int | None = None,
        adapt_step_size: bool = True,
        adapt_covariance: bool = True,
        pooled: bool = True,
    ) -> None:
        super().__init__(
            model,
            potential_fn,
            num_chains,
            init_step_size=init_step_size,
            target_accept_prob=target_accept_prob,
            adapt_step_size=adapt_step_size,
            adapt_covariance=adapt_covariance,
            pooled=pooled,
        )
        self._smooth_potential_fn = smooth_potential_fn
        self._may_not_vectorize = False
        self._length = check_step_size("trajectory_length", trajectory_length)
        self._num_steps = None if num_steps is None else check_count("num_steps", num_steps)
        if (self._num_steps or 1) > MAX_MEAN_STEPS:
            raise ValueError(argument_error("num_steps", f"be at most {MAX_MEAN_STEPS}", num_steps))

    def _bind(self, target: Target) -> None:
        self._smooth_potential_fn = target.batched_smooth_potential_fn if target.has_smooth_energy else None
        self._may_not_vectorize = not target.is_batched

    def _defaults(self, num_dims: int) -> tuple[float, float]:
        return 1.4 * num_dims**-0.25, 0.8

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Finds starting points and prepares the adaptation; called by ``MCMC`` with the model's arguments."""
        super().setup(warmup_steps, *args, **kwargs)
        self._smooth_energy, self._gradient = self._follow(self._flatten(self.initial_params))
        self._total_energy, self._smooth_accept_prob = self._energy, self._adapted_rates
        self._diverging = torch.zeros(self.num_chains, dtype=torch.bool)
        self._last_num_steps = 0
        self._divergences: list[int] = []

    def stats(self) -> dict[str, Tensor]:
        """Returns what is known of the last step, each of shape ``(num_chains,)``."""
        return {
            **super().stats(),
            "smooth_acceptance_rate": self._smooth_accept_prob,
            "energy": self._total_energy,
            "diverging": self._diverging,
            "n_steps": torch.full((self.num_chains,), self._last_num_steps),
        }

    def diagnostics(self) -> dict[str, Any]:
        """Returns the mean acceptance probability after warmup, and the steps in which a chain diverged."""
        return {**super().diagnostics(), "divergences": list(self._divergences)}

    def _move(self, position: Tensor) -> Tensor:
        num_steps = self._draw_num_steps()
        points, kinetic, smooth, gradients = self._trajectory(position, num_steps)
        energies = smooth if self._smooth_potential_fn is None else self._exact(points)
        chosen = self._choose(energies + kinetic)
        self._record(smooth + kinetic, energies + kinetic)
        chains = torch.arange(self.num_chains, device=position.device)
        self._energy, self._smooth_energy = energies[chosen, chains], smooth[chosen, chains]
        self._gradient = gradients[chosen, chains]
        moved: Tensor = points[chosen, chains]
        return moved

    def _draw_num_steps(self) -> int:
        mean = self._num_steps or round(self._length / float(self._step_size.mean()))
        mean = max(1, min(mean, MAX_MEAN_STEPS))
        return int(torch.randint(1, 2 * mean, ()))

    def _trajectory(self, position: Tensor, num_steps: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns the points of a trajectory, the current one first, with kinetic and smooth energies and gradients.

        Each chain makes its steps forward first and the others backward, from the start once more.
        """
        step = self._step_size.reshape(-1, 1)
        forward = torch.randint(0, num_steps + 1, (self.num_chains, 1), device=position.device)
        start = torch.randn_like(position)
        at, momentum, gradient = position, start, self._gradient
        points, kinetic = [at], [start.square().sum(-1) / 2]
        smooth, gradients = [self._smooth_energy], [gradient]
        for index in range(num_steps):
            turns = forward == index
            at, momentum = torch.where(turns, position, at), torch.where(turns, -start, momentum)
            momentum = momentum - step / 2 * self._along_transposed(torch.where(turns, self._gradient, gradient))
            at = at + step * self._along(momentum)
            energy, gradient = self._follow(at)
            momentum = momentum - step / 2 * self._along_transposed(gradient)
            points.append(at)
            kinetic.append(momentum.square().sum(-1) / 2)
            smooth.append(energy)
            gradients.append(gradient)
        return torch.stack(points), torch.stack(kinetic), torch.stack(smooth), torch.stack(gradients)

    def _along_transposed(self, gradient: Tensor) -> Tensor:
        """Applies the transposed factor to gradients of shape ``(n, d)``."""
        return gradient * self._factor if self._factor.dim() == 1 else gradient @ self._factor

    def _follow(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the smooth energies of points and their gradients, 0 where these are not finite.

        An energy without a slope, as in a kink, is an energy all the same: the choice needs it.
        """
        name = "potential_fn" if self._smooth_potential_fn is None else "smooth_potential_fn"
        potential_fn = self._smooth_potential_fn or self._potential_fn
        assert potential_fn is not None  # set up
        with torch.enable_grad():
            leaf = position.detach().requires_grad_()
            params = self._unflatten(leaf)
            energy = checked_energy(potential_fn(params), params, name)
            is_flat = not energy.requires_grad  # as that of a uniform base
            gradient = torch.zeros_like(leaf) if is_flat else _gradient(energy.sum(), leaf)
        usable = torch.isfinite(gradient).all(-1) & torch.isfinite(energy)
        return energy.detach(), torch.where(usable.unsqueeze(-1), gradient, 0.0)

    def _exact(self, points: Tensor) -> Tensor:
        """Returns the exact energies of a trajectory's points: that of the first is known."""
        if self.num_chains == 1 and self._may_not_vectorize:  # as a model with discrete sites, or with branches
            return torch.stack([self._energy, *(self._energy_at(self._unflatten(point)) for point in points[1:])])
        new = points[1:].flatten(0, 1)
        energies = self._energy_at(self._unflatten(new)).reshape(len(points) - 1, -1)
        return torch.cat([self._energy.unsqueeze(0), energies])

    def _choose(self, energies: Tensor) -> Tensor:
        """Returns the index of each chain's next state among points of total energies ``(L + 1, num_chains)``."""
        moves = _move_probabilities(energies)
        stays = (1 - moves.sum(0, keepdim=True)).clamp(min=0)
        return torch.multinomial(torch.cat([stays, moves]).T, 1).squeeze(-1)

    def _record(self, smooth: Tensor, exact: Tensor) -> None:
        """Keeps what is known of a trajectory from total energies of its points, each ``(L + 1, num_chains)``."""
        errors = (smooth[1:] - smooth[0]).nan_to_num(nan=math.inf)
        self._adapted_rates = (-errors).clamp(max=0).exp().mean(0)
        self._diverging = (errors > _MAX_ENERGY_ERROR).any(0)
        self.accept_prob, self._smooth_accept_prob = (
            _move_probabilities(totals).sum(0).to(smooth.dtype) for totals in (exact, smooth)
        )
        self._total_energy, self._last_num_steps = exact[0], len(errors)
        if self._t >= self._warmup_steps and bool(self._diverging.any()):
            self._divergences.append(self._t - self._warmup_steps)


def _gradient(total: Tensor, leaf: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(total, leaf, allow_unused=True, materialize_grads=True)
    return gradient


def _move_probabilities(energies: Tensor) -> Tensor:
    r"""Returns the probabilities of moving to each other point of a trajectory, float64 of shape ``(L, num_chains)``.

    For normalised weights w of the points and :math:`w_0` of the current state, Metropolised Gibbs sampling proposes j
    with probability :math:`w_j / (1 - w_0)` and accepts with :math:`\min(1, (1 - w_0) / (1 - w_j))`: together
    :math:`w_j / \max(1 - w_0, 1 - w_j)`, whose denominator is at least 1/2.

    Args:
        energies: total energies, that of the current state first, which is finite; NaN counts as +inf.
    """
    weights = torch.softmax(-torch.nan_to_num(energies.double(), nan=math.inf, posinf=math.inf), 0)
    return weights[1:] / torch.maximum(1 - weights[0], 1 - weights[1:])
