"""The smooth energy of a target: that with a smoother tilt for the fitted densities that its latents are drawn from.

It is what Hamiltonian kernels follow. For one draw of one density the tilt is left out: what remains is the base, and
no other smooth energy was better. Where the tilts of several draws add up, each is damped: left out, the exact energies
would reject most of what was followed. A tilt elsewhere, of observed values or in a factor, stays as it is: over many
values it is as informative as any likelihood, and as smooth in the latents.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.mcmc.damped_tilt import DampedTilt

_Messenger: Any = Messenger  # Pyro leaves it unannotated
SmoothTilt = Callable[[MollifiedExpFamily, Tensor], Tensor]


def no_tilt(q: MollifiedExpFamily, value: Tensor) -> Tensor:
    """Returns a tilt of 0."""
    return value.new_zeros(())


def density_in(distribution: Any) -> MollifiedExpFamily | None:
    """Returns the fitted density in a distribution, under masks, transforms and dependent dimensions; or None."""
    while distribution is not None and not isinstance(distribution, MollifiedExpFamily):
        distribution = getattr(distribution, "base_dist", None)
    return distribution


class SmoothLatents(_Messenger):  # type: ignore[misc]  # Pyro's class is unannotated
    """A handler under which a model has smoother tilts.

    Attributes:
        tilts: what replaces the tilt, for each latent that the first run of the model draws from a fitted density.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tilts: dict[str, SmoothTilt] = {}

    def take(self, distributions: dict[str, Any]) -> None:
        """Chooses the tilts for the distributions of a model's latents."""
        densities = {name: density_in(distribution) for name, distribution in distributions.items()}
        num_draws = sum(q.batch_shape.numel() for q in densities.values() if q is not None)
        damped: dict[int, SmoothTilt] = {}  # sites may share a density
        for name, q in densities.items():
            if q is not None and num_draws == 1:
                self.tilts[name] = no_tilt
            elif q is not None:
                key = id(q.statistics)
                damped[key] = self.tilts[name] = damped.get(key) or DampedTilt(q)

    def _pyro_sample(self, msg: Any) -> None:
        # Another run may draw the latent from something else.
        if msg["name"] in self.tilts and density_in(msg["fn"]) is not None:
            msg["fn"] = _smoothed(msg["fn"], self.tilts[msg["name"]])


def _smoothed(distribution: Any, tilt: SmoothTilt) -> Any:
    """Returns a distribution with another tilt of the fitted density in it."""
    if isinstance(distribution, MollifiedExpFamily):
        return distribution.smoothed(tilt)
    new = copy.copy(distribution)
    new.base_dist = _smoothed(distribution.base_dist, tilt)
    return new
