"""The smooth energy of a target: that with something smoother for the fitted densities that its latents are drawn from.

It is what Hamiltonian kernels follow. For one draw of one density it is the base. Where the tilts of several draws add
up, the exact energy would reject most of what follows the bases, so each density is damped; so is one over columns,
whose base may have jumps. A density elsewhere, of observed values or in a factor, stays as it is: over many values it
is as informative as any likelihood, and as smooth in the latents.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.mcmc.damped_density import DampedDensity, has_jumps

_Messenger: Any = Messenger  # Pyro leaves it unannotated
LogDensity = Callable[[MollifiedExpFamily, Tensor], Tensor]


def log_prob_of_base(q: MollifiedExpFamily, value: Tensor) -> Tensor:
    """Returns the log-density of the base."""
    base: Any = q.base
    log_prob: Tensor = base.log_prob(value)
    return log_prob


def density_in(distribution: Any) -> MollifiedExpFamily | None:
    """Returns the fitted density in a distribution, under masks, transforms and dependent dimensions; or None."""
    while distribution is not None and not isinstance(distribution, MollifiedExpFamily):
        distribution = getattr(distribution, "base_dist", None)
    return distribution


class SmoothLatents(_Messenger):  # type: ignore[misc]  # Pyro's class is unannotated
    """A handler under which a model's latents have smoother densities.

    Attributes:
        followed: what replaces the density, for each latent that the first run of the model draws from a fitted one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.followed: dict[str, LogDensity] = {}

    def take(self, distributions: dict[str, Any]) -> None:
        """Chooses what is followed, for the distributions of a model's latents."""
        found = {name: density_in(distribution) for name, distribution in distributions.items()}
        densities = {name: q for name, q in found.items() if q is not None}
        num_draws = sum(q.batch_shape.numel() for q in densities.values())
        damped: dict[int, LogDensity] = {}  # latents may share a density
        for name, q in densities.items():
            if num_draws == 1 and not has_jumps(q):
                self.followed[name] = log_prob_of_base
            else:
                key = id(q.statistics)
                damped[key] = self.followed[name] = damped.get(key) or DampedDensity(q)

    def _pyro_sample(self, msg: Any) -> None:
        # Another run may draw the latent from something else.
        if msg["name"] in self.followed and density_in(msg["fn"]) is not None:
            msg["fn"] = _smoothed(msg["fn"], self.followed[msg["name"]])


def _smoothed(distribution: Any, followed: LogDensity) -> Any:
    """Returns a distribution with another log-density of the fitted density in it."""
    if isinstance(distribution, MollifiedExpFamily):
        return distribution.smoothed(followed)
    new = copy.copy(distribution)
    new.base_dist = _smoothed(distribution.base_dist, followed)
    return new
