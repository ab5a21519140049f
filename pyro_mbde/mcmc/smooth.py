"""The smooth energy of a target: that with a smoother tilt for the fitted densities that its latents are drawn from.

It is what Hamiltonian kernels follow. For one draw of one density the tilt is left out: what remains is the base, and
no other smooth energy was better. Where the tilts of several draws add up, each is damped: left out, the exact energies
would reject most of what was followed. A tilt elsewhere, of observed values or in a factor, stays as it is: over many
values it is as informative as any likelihood, and as smooth in the latents.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.mcmc.damped_tilt import DampedTilt

_Messenger: Any = Messenger  # Pyro leaves it unannotated
SmoothTilt = Callable[[MollifiedExpFamily, Tensor], Tensor]
_smooth: ContextVar[bool] = ContextVar("smooth", default=False)


@contextmanager
def smooth_energies() -> Iterator[None]:
    """Makes the energies of targets the smooth ones within the block."""
    token = _smooth.set(True)
    try:
        yield
    finally:
        _smooth.reset(token)


def are_energies_smooth() -> bool:
    """Returns whether the caller is in :func:`smooth_energies`."""
    return _smooth.get()


def no_tilt(q: MollifiedExpFamily, value: Tensor) -> Tensor:
    """Returns a tilt of 0."""
    return value.new_zeros(())


def density_in(distribution: Any) -> MollifiedExpFamily | None:
    """Returns the fitted density in a distribution, under masks, transforms and dependent dimensions; or None."""
    while distribution is not None and not isinstance(distribution, MollifiedExpFamily):
        distribution = getattr(distribution, "base_dist", None)
    return distribution


class SmoothLatents(_Messenger):  # type: ignore[misc]  # Pyro's class is unannotated
    """Runs a model with smoother tilts, where energies are smooth.

    Attributes:
        tilts: for each latent that is drawn from a fitted density, what its tilt is replaced by.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tilts: dict[str, SmoothTilt] = {}

    def take(self, distributions: dict[str, Any]) -> None:
        """Chooses the tilts for the distributions of a model's latents."""
        densities = {name: density_in(distribution) for name, distribution in distributions.items()}
        num_draws = sum(q.batch_shape.numel() for q in densities.values() if q is not None)
        for name, q in densities.items():
            if q is not None:
                self.tilts[name] = DampedTilt(q) if num_draws > 1 else no_tilt

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self.tilts and are_energies_smooth():
            msg["fn"] = _smoothed(msg["fn"], self.tilts[msg["name"]])


def _smoothed(distribution: Any, tilt: SmoothTilt) -> Any:
    """Returns a distribution with another tilt of the fitted density in it."""
    if isinstance(distribution, MollifiedExpFamily):
        return distribution.smoothed(tilt)
    new = copy.copy(distribution)
    new.base_dist = _smoothed(distribution.base_dist, tilt)
    return new
