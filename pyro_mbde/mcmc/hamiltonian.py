"""Pyro's HMC and NUTS, with a record of each step."""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro.infer import HMC, NUTS
from torch import Tensor

from pyro_mbde._checks import check_count, check_number
from pyro_mbde.mcmc.target import Params, Target

# Pyro leaves these unannotated. They keep what is known of a step in private attributes, which is why the project names
# the Pyro versions that it has been tested with.
_HMC: Any = HMC
_NUTS: Any = NUTS


class _Recording:
    """Records energy, acceptance and divergence of each step. Mixed into Pyro's kernels.

    Their adaptation can be read after warmup, and taken over by another kernel before it is set up.
    """

    _energy = 0.0
    _rate = 0.0
    _mean = 0.0
    _restored: dict[str, Any] | None = None

    @classmethod
    def for_target(cls: Any, target: Target, **options: Any) -> Any:
        """Builds the kernel; raises if an option would make it stand still, run forever or divide by zero."""
        for name in ("step_size", "trajectory_length"):
            if options.get(name) is not None:
                check_number(name, options[name], "be finite and above 0", lambda value: 0 < value < math.inf)
        if "target_accept_prob" in options:
            rate = options["target_accept_prob"]
            check_number("target_accept_prob", rate, "be in (0, 1)", lambda value: 0 < value < 1)
        for name in ("num_steps", "max_tree_depth"):
            if options.get(name) is not None:
                check_count(name, options[name])
        return cls(potential_fn=target.potential_fn, **options)

    @property
    def adaptation(self: Any) -> dict[str, Any]:
        """What was learned in warmup: step size and inverse mass matrix."""
        matrices = {names: matrix.clone() for names, matrix in self.inverse_mass_matrix.items()}
        return {"step_size": float(self.step_size), "inverse_mass_matrix": matrices}

    @adaptation.setter
    def adaptation(self: Any, learned: dict[str, Any]) -> None:
        self._restored = learned
        self._adapter.adapt_step_size = False
        self._adapter._adaptation_disabled = True

    def setup(self: Any, warmup_steps: int, *args: object, **kwargs: object) -> None:
        """Starts a chain at ``initial_params``."""
        super().setup(warmup_steps, *args, **kwargs)  # type: ignore[misc]  # of Pyro's kernel
        self._mean = 0.0
        if self._restored:
            self._adapter.step_size = self._restored["step_size"]
            self.mass_matrix_adapter.inverse_mass_matrix = self._restored["inverse_mass_matrix"]

    def _sample_r(self: Any, name: str) -> Any:
        # A step begins with a fresh momentum: from here on, the energy of the trajectory is known.
        momentum, unscaled = super()._sample_r(name)  # type: ignore[misc]  # of Pyro's kernel
        self._energy = float(self._kinetic_energy(unscaled) + self._potential_energy_last)
        return momentum, unscaled

    def sample(self: Any, params: Params) -> Params:
        """Makes one step."""
        step = self._t - self._warmup_steps if self._t >= self._warmup_steps else self._t
        previous = self._mean if step else 0.0
        moved: Params = super().sample(params)  # type: ignore[misc]  # of Pyro's kernel
        # The kernels keep only the running mean of the acceptance probabilities: its change gives the last one.
        self._mean = self._mean_accept_prob
        self._rate = min(max((step + 1) * self._mean - step * previous, 0.0), 1.0)
        return moved

    def stats(self: Any) -> dict[str, Tensor]:
        """Returns what is known of the last step, as scalars."""
        step = self._t - self._warmup_steps - 1
        return {
            "lp": -self._potential_energy_last,
            "acceptance_rate": torch.tensor(self._rate),
            "step_size": torch.tensor(float(self.step_size)),
            "energy": torch.tensor(self._energy),
            "diverging": torch.tensor(step >= 0 and step in self._divergences[-1:]),
        }


#: Limit on the leapfrog steps of one HMC trajectory, about as many as NUTS makes at most by default. Without it,
#: a trajectory would take millions of steps if the step size collapsed.
_MAX_LEAPFROG_STEPS = 1024


class RecordingHMC(_Recording, _HMC):  # type: ignore[misc]  # Pyro's class is unannotated
    """Pyro's HMC on a potential function, recording its steps."""

    @classmethod
    def for_target(cls, target: Target, **options: Any) -> Any:
        """Builds the kernel. A trajectory is by default a quarter of the period of a unit normal.

        A whole period, Pyro's default, would return to the start, and half of a period to its mirror image.
        """
        length = {} if "num_steps" in options else {"trajectory_length": math.pi / 2}
        return super().for_target(target, **length | options)

    @property
    def num_steps(self) -> int:
        """Leapfrog steps of a trajectory."""
        # Rounded, where Pyro truncates: with a step size of 0.8, a trajectory of pi/2 takes two steps, not one.
        num_steps = round(float(self.trajectory_length) / float(self.step_size))
        return max(1, min(num_steps, _MAX_LEAPFROG_STEPS))


class RecordingNUTS(_Recording, _NUTS):  # type: ignore[misc]  # Pyro's class is unannotated
    """Pyro's NUTS on a potential function, recording its steps."""
