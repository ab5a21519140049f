"""Regroups the draws of lockstep kernels by chain, as Pyro's MCMC expects."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


class ChainsFirst:
    """Takes the place of a site's transform in a kernel: Pyro's ``MCMC`` keeps what its ``inv`` returns as the draws.

    ``MCMC`` collects values of shape ``(k, num_samples, num_chains, ...)`` from k runs of a kernel. They become ``(k *
    num_chains, num_samples, ...)``, as from that many runs of a kernel with one chain each: ``get_samples``,
    ``summary``, ``Predictive`` and ArviZ then treat that dimension as chains, not as part of the parameters.

    Args:
        num_dims: number of dimensions of the site's parameter; ``None`` if it is not known, which works with ``MCMC``
            but not with ``StreamingMCMC``.
        constrain: maps the kernel's parameters to the site's own space; ``None`` where these are the same.
    """

    def __init__(self, num_dims: int | None = None, constrain: Callable[[Tensor], Tensor] | None = None) -> None:
        self._num_dims, self._constrain = num_dims, constrain

    def inv(self, values: Tensor) -> Tensor:
        """Returns the draws of a site; those of one step, as ``StreamingMCMC`` passes them, keep their shape."""
        if self._num_dims is None or values.dim() == self._num_dims + 3:
            values = values.transpose(1, 2).flatten(0, 1)
        return values if self._constrain is None else self._constrain(values)


class EverySite:
    """The transforms of a kernel whose sites are not known before it is set up."""

    def __contains__(self, name: object) -> bool:
        """Whether there is a transform of this name."""
        return True

    def __getitem__(self, name: str) -> ChainsFirst:
        """Returns the transform of a site."""
        return ChainsFirst()
