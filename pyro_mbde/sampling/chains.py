"""What Markov chains leave behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, NamedTuple

from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._runtime import import_arviz


class ChainState(NamedTuple):
    """What is needed to go on with chains that were advanced together, as plain data.

    Attributes:
        params: last unconstrained parameters, per site.
        adaptation: what the kernel learned in warmup, as ``step_size``.
        generator: state of torch's generator after the last step.
    """

    params: dict[str, Tensor]
    adaptation: dict[str, Any]
    generator: Tensor


@dataclass(frozen=True, eq=False)
class Chains:
    """Draws of several Markov chains and how they were made. As sensitive as the table that the density was fitted to.

    Trajectories carry no privacy guarantee: hand out exact draws instead.

    Attributes:
        draws: per site, shape ``(num_chains, num_samples, *event_shape)``, in the site's own space.
        sample_stats: per statistic, shape ``(num_chains, num_samples)``: ``lp`` (log-density of the unconstrained
            parameters, up to a constant), ``acceptance_rate``, and by kernel ``step_size``, ``energy`` and
            ``diverging`` (HMC and NUTS), ``total_variation`` (independence: a bound on the distance of the draw's law
            from the target).
        seeds: seed of each chain; one for all where chains are advanced together.
        warmup_steps: steps made before, which adapted the kernel and are not kept.
        kernel: name of the kernel.
        density: the distribution that was sampled, whose exact draws the chains can be tested against; ``None`` for a
            model.
        states: where each chain, or group of chains advanced together, stopped; to resume from.
    """

    draws: dict[str, Tensor]
    sample_stats: dict[str, Tensor]
    seeds: tuple[int, ...]
    warmup_steps: int
    kernel: str
    density: Distribution | None = None
    states: tuple[ChainState, ...] = field(default=(), repr=False)

    @property
    def num_chains(self) -> int:
        """Number of chains."""
        return next(iter(self.draws.values())).shape[0]

    @property
    def num_samples(self) -> int:
        """Draws of each chain."""
        return next(iter(self.draws.values())).shape[1]

    def to_arviz(self) -> Any:
        """Returns the chains as ArviZ wants them: ``InferenceData`` before ArviZ 1.0, a ``DataTree`` since.

        Example:
            >>> import torch
            >>> chains = Chains({"x": torch.randn(4, 100)}, {}, (1, 2, 3, 4), 0, "nuts")
            >>> chains.to_arviz()["posterior"]["x"].shape
            (4, 100)
        """
        groups = {
            "posterior": {name: value.cpu().numpy() for name, value in self.draws.items()},
            "sample_stats": {name: value.cpu().numpy() for name, value in self.sample_stats.items()},
        }
        attrs = {
            "inference_library": "pyro_mbde",
            "inference_library_version": version("pyro_mbde"),
            "sampler": self.kernel,
            "warmup_steps": self.warmup_steps,
            "seeds": list(self.seeds),
        }
        arviz = import_arviz()
        if int(arviz.__version__.split(".")[0]) >= 1:
            return arviz.from_dict(groups, attrs={"posterior": attrs})
        return arviz.from_dict(**groups, posterior_attrs=attrs)
