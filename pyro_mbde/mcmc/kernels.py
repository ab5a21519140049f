"""The kernels of run_mcmc by name.

To add a kernel, write its class in a file of this folder, add a line to ``KERNELS``, and its run lengths to
``NUM_SAMPLES`` in tests/mcmc/test_chains_against_truth.py. The class has Pyro's interface
(``initial_params``, ``setup``, ``sample``) and three additions:

* ``for_target(target, **options)``, a class method, builds it;
* ``stats()`` returns what is known of the last step, as tensors, with ``lp`` among them;
* ``adaptation`` is what it learned in warmup, and can be set before ``setup``.

Its other arguments are options of ``run_mcmc``, except those in ``Kernel.given``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any


@dataclass(frozen=True)
class Kernel:
    """A kernel and how it is run.

    Attributes:
        path: file and class, imported only when used, so that the command line can list the names without torch.
        lockstep: whether one instance advances all chains; otherwise each chain has its own instance and seed, and can
            run in its own process.
        has_chain_dim: whether parameters and statistics have a leading dimension of chains.
        own_space: whether it samples a fitted density in the density's own space
            (:class:`~pyro_mbde.mcmc.target.FittedTarget`), on any base; otherwise it samples unconstrained coordinates.
            Such a kernel has to advance all chains.
        follows_gradient: whether it follows the gradient of the smooth energy.
        given: arguments of the class that ``for_target`` or the run sets, so that they are not options.
    """

    path: str
    lockstep: bool = False
    has_chain_dim: bool = True
    own_space: bool = False
    follows_gradient: bool = False
    given: tuple[str, ...] = (
        "model",
        "potential_fn",
        "smooth_potential_fn",
        "lower_bound_fn",
        "num_chains",
        "transforms",
        "init_strategy",
    )

    def __post_init__(self) -> None:
        """Checks the pair of flags: how long a worker may take is known only in unconstrained coordinates."""
        if self.own_space and not self.lockstep:
            # Without _checks, which imports NumPy.
            raise ValueError(f"lockstep must be True for a kernel with own_space, got lockstep={self.lockstep!r}.")

    @property
    def cls(self) -> Any:
        """The class."""
        return resolve_name(f"pyro_mbde.mcmc.{self.path}")


KERNELS = {
    "random_walk": Kernel("random_walk:LockstepRandomWalk"),
    "hmc": Kernel("hamiltonian:LockstepHMC", follows_gradient=True),
    "nuts": Kernel("nuts:RecordingNUTS", has_chain_dim=False, follows_gradient=True),
    "lockstep_random_walk": Kernel("random_walk:LockstepRandomWalk", lockstep=True),
    "lockstep_hmc": Kernel("hamiltonian:LockstepHMC", lockstep=True, follows_gradient=True),
    "independence": Kernel(
        "independence:IndependenceSampler", lockstep=True, own_space=True, given=("q", "num_chains")
    ),
}
