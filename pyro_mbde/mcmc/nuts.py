"""Pyro's NUTS, following the base of a density and choosing by the density itself, as hamiltonian.py describes."""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro.infer import NUTS
from torch import Tensor

from pyro_mbde._checks import check_count, check_number
from pyro_mbde.mcmc.target import Params, Potential, Target

# Pyro leaves it unannotated. It keeps what is known of a step in private attributes, which is why the project names the
# Pyro versions that it has been tested with.
_NUTS: Any = NUTS
#: Logarithm of the weight of a point that is never chosen.
_LOWEST_LOG_WEIGHT = -1e30


class _Followed:
    """The exact potential energy of one point, with the gradient of the smooth one.

    Attributes:
        smooth_energy: smooth energy of the last point.
    """

    def __init__(self, exact: Potential, smooth: Potential | None) -> None:
        self.exact, self.smooth = exact, smooth
        self.smooth_energy = torch.tensor(0.0)

    def __call__(self, params: Params) -> Tensor:
        if self.smooth is None:
            energy = self.exact(params)
            self.smooth_energy = energy.detach()
            return energy
        followed = self.smooth(params)
        self.smooth_energy = followed.detach()
        with torch.no_grad():
            exact = self.exact(params)
        slope = followed - self.smooth_energy  # 0, with the gradient: the exact energy keeps its bits
        return exact + torch.where(torch.isfinite(slope), slope, 0.0)


class RecordingNUTS(_NUTS):  # type: ignore[misc]  # Pyro's class is unannotated
    """Pyro's NUTS on exact energies and smooth gradients, with a record of each step.

    Trees grow along the smooth energy and end at its U-turns; their points are chosen by the exact energy. Its
    adaptation, to the smooth energy, can be read after warmup and taken over by another kernel before it is set up.
    """

    _energy = 0.0
    _smooth_start = 0.0
    _restored: dict[str, Any] | None = None

    @classmethod
    def for_target(cls: Any, target: Target, **options: Any) -> Any:
        """Builds the kernel; raises if an option would make it stand still, run forever or divide by zero."""
        if options.get("step_size") is not None:
            check_number("step_size", options["step_size"], "be finite and above 0", lambda value: 0 < value < math.inf)
        if "target_accept_prob" in options:
            rate = options["target_accept_prob"]
            check_number("target_accept_prob", rate, "be in (0, 1)", lambda value: 0 < value < 1)
        if options.get("max_tree_depth") is not None:
            check_count("max_tree_depth", options["max_tree_depth"])
        smooth = target.smooth_potential_fn if target.has_smooth_energy else None
        return cls(potential_fn=_Followed(target.potential_fn, smooth), **options)

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
        super().setup(warmup_steps, *args, **kwargs)
        self._rates: list[float] = []
        self._smooth_rates: list[float] = []
        if self._restored:
            self._adapter.step_size = self._restored["step_size"]
            self.mass_matrix_adapter.inverse_mass_matrix = self._restored["inverse_mass_matrix"]

    def _find_reasonable_step_size(self: Any, z: Params) -> float:
        followed = self.potential_fn
        self.potential_fn = followed.smooth or followed.exact
        try:
            return float(super()._find_reasonable_step_size(z))
        finally:
            self.potential_fn = followed

    def _sample_r(self: Any, name: str) -> Any:
        # A step begins with a fresh momentum: from here on, the energy of the trajectory is known.
        momentum, unscaled = super()._sample_r(name)
        kinetic = float(self._kinetic_energy(unscaled))
        self._energy = kinetic + float(self._potential_energy_last)
        if isinstance(self.potential_fn, _Followed) and self.potential_fn.smooth is not None:
            with torch.no_grad():
                self._smooth_start = kinetic + float(self.potential_fn.smooth(self._z_last))
        return momentum, unscaled

    def _build_basetree(self: Any, *args: Any) -> Any:
        tree = super()._build_basetree(*args)
        self._rates.append(float(tree.sum_accept_probs))
        if self.potential_fn.smooth is None:
            self._smooth_rates.append(self._rates[-1])
            return tree
        # What Pyro adapts to comes from the smooth energy: for the exact one the step size would go to 0.
        kinetic = self._kinetic_energy(tree.r_left_unscaled)
        error = float(kinetic + self.potential_fn.smooth_energy) - self._smooth_start
        rate = math.exp(-max(error, 0.0)) if error == error else 0.0
        self._smooth_rates.append(rate)
        # A divergence is one of both energies: where a predicate fails, only the exact energy is infinite, and the tree
        # grows past it. Its weight there is finite, for the logarithm of a sum of two of them.
        return tree._replace(
            sum_accept_probs=torch.as_tensor(rate, dtype=tree.sum_accept_probs.dtype),
            diverging=bool(tree.diverging) and not error <= self._max_sliced_energy,
            weight=tree.weight.clamp(min=_LOWEST_LOG_WEIGHT),
        )

    def sample(self: Any, params: Params) -> Params:
        """Makes one step."""
        self._rates, self._smooth_rates = [], []
        moved: Params = super().sample(params)
        return moved

    def stats(self: Any) -> dict[str, Tensor]:
        """Returns what is known of the last step, as scalars."""
        step = self._t - self._warmup_steps - 1
        return {
            "lp": -self._potential_energy_last,
            "acceptance_rate": torch.tensor(sum(self._rates) / len(self._rates)),
            "smooth_acceptance_rate": torch.tensor(sum(self._smooth_rates) / len(self._smooth_rates)),
            "step_size": torch.tensor(float(self.step_size)),
            "energy": torch.tensor(self._energy),
            "diverging": torch.tensor(step >= 0 and step in self._divergences[-1:]),
            "n_steps": torch.tensor(len(self._rates)),
        }
