"""What Markov chains leave behind."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._runtime import import_arviz, message


class ChainState(NamedTuple):
    """What is needed to go on with chains that were advanced together, as plain data.

    Attributes:
        params: last unconstrained parameters, per site.
        adaptation: what the kernel learned in warmup, as ``step_size``.
        generators: states of torch's generators after the last step, the CPU's first.
        lp: log-density of ``params``, shape ``(num_chains,)``, by which the target is recognised; ``None`` before the
            first step.
    """

    params: dict[str, Tensor]
    adaptation: dict[str, Any]
    generators: tuple[Tensor, ...]
    lp: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Chains:
    """Draws of several Markov chains and how they were made. As sensitive as the table that the density was fitted to.

    Trajectories carry no privacy guarantee: hand out exact draws instead.

    Attributes:
        draws: per site, shape ``(num_chains, num_samples, *event_shape)``, in the site's own space.
        sample_stats: per statistic, shape ``(num_chains, num_samples)``: ``lp`` (log-density of the unconstrained
            parameters, up to a constant; for the independence kernel of the draw itself), ``acceptance_rate`` (of each
            proposal; where a bound rejects, 0 or more than the probability, which it is on average), and by kernel
            ``step_size``, ``energy`` (where the trajectory starts) and ``diverging`` (HMC and NUTS),
            ``total_variation`` (independence: a bound on the distance of the draw's law from the target).
        seeds: seed of each chain; one for all where chains are advanced together.
        warmup_steps: steps made before, which adapted the kernel and are not kept.
        kernel: name of the kernel.
        density: the distribution that was sampled, whose exact draws the chains can be tested against; ``None`` for a
            model.
        kernel_options: options that the kernel was given.
        states: where each chain, or group of chains advanced together, stopped; to resume from. As sensitive as the
            draws.
    """

    draws: dict[str, Tensor]
    sample_stats: dict[str, Tensor]
    seeds: tuple[int, ...]
    warmup_steps: int
    kernel: str
    density: Distribution | None = None
    kernel_options: dict[str, Any] = field(default_factory=dict)
    states: tuple[ChainState, ...] = field(default=(), repr=False)

    @property
    def num_chains(self) -> int:
        """Number of chains."""
        return next(iter(self.draws.values())).shape[0]

    @property
    def num_samples(self) -> int:
        """Draws of each chain."""
        return next(iter(self.draws.values())).shape[1]

    def to_arviz(
        self, coords: Mapping[str, Sequence[Any]] | None = None, dims: Mapping[str, Sequence[str]] | None = None
    ) -> Any:
        """Returns the chains as ArviZ wants them: ``InferenceData`` before ArviZ 1.0, a ``DataTree`` since.

        Privacy:
            As sensitive as the draws themselves: not for release.

        Args:
            coords: labels along a dimension, by its name, as ``{"column": ["age", "income"]}``.
            dims: names of a site's event dimensions, by site, as ``{"x": ["column"]}``.

        Returns:
            Groups ``posterior`` (the draws) and, where there are any, ``sample_stats``. The posterior's attributes say
            how the chains were made.

        Raises:
            TypeError: ``coords`` or ``dims`` is no mapping of names to sequences.
            ValueError: they do not fit the draws, or ArviZ can hold no site of such a name.

        Example:
            >>> import torch
            >>> chains = Chains({"x": torch.randn(4, 100, 2)}, {}, (1, 2, 3, 4), 0, "nuts")
            >>> data = chains.to_arviz({"column": ["age", "income"]}, {"x": ["column"]})
            >>> data["posterior"]["x"].sel(column="age").shape
            (4, 100)
        """
        arviz = import_arviz()
        is_tree = int(arviz.__version__.split(".")[0]) >= 1
        for name in self.draws:
            if name in ("chain", "draw") or (is_tree and "/" in name):
                remedy = "ArviZ has other uses for these: rename the site."
                raise ValueError(message("site", "not be called chain or draw, nor contain a slash", name, remedy))
        _check_labels(self.draws, coords, dims)
        groups = {"posterior": self.draws} | ({"sample_stats": self.sample_stats} if self.sample_stats else {})
        arrays = {group: {name: _as_array(value) for name, value in of.items()} for group, of in groups.items()}
        attrs = {
            "inference_library": "pyro_mbde",
            "inference_library_version": version("pyro_mbde"),
            "sampler": self.kernel,
            "warmup_steps": self.warmup_steps,
            "seeds": list(self.seeds),
        }
        with warnings.catch_warnings():  # ArviZ takes more chains than draws for a mistake; here the order is certain
            warnings.filterwarnings("ignore", "More chains|Found chain dimension", UserWarning)
            if is_tree:
                return arviz.from_dict(arrays, coords=coords, dims=dims, attrs={"posterior": attrs})
            return arviz.from_dict(**arrays, coords=coords, dims=dims, posterior_attrs=attrs)


def _as_array(value: Tensor) -> np.ndarray[Any, np.dtype[Any]]:
    """Returns a tensor's values; NumPy has no bfloat16."""
    value = value.detach().cpu()
    array: np.ndarray[Any, np.dtype[Any]] = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return array


def _check_labels(draws: Mapping[str, Tensor], coords: Any, dims: Any) -> None:
    """Raises if labels or names of dimensions do not fit the draws."""
    for argument, given in (("coords", coords), ("dims", dims)):
        of_sequences = isinstance(given, Mapping) and not any(isinstance(value, str) for value in given.values())
        if given is not None and not of_sequences:
            raise TypeError(message(argument, "map names to sequences", given))
    sizes: dict[str, int] = {}
    for site, names in (dims or {}).items():
        if site not in draws:
            raise ValueError(message("dims", f"name sites among {', '.join(draws)}", site))
        event_shape = tuple(draws[site].shape[2:])
        if len(names) != len(event_shape) or {"chain", "draw"} & set(names):
            remedy = "The dimensions chain and draw are named already."
            raise ValueError(message("dims", f"name the {len(event_shape)} event dimensions of {site}", names, remedy))
        for name, size in zip(names, event_shape, strict=True):
            if sizes.setdefault(name, size) != size:
                raise ValueError(message("dims", f"name dimensions of one size alike, {name} is {sizes[name]}", size))
    for name, labels in (coords or {}).items():
        if len(labels) != sizes.get(name, len(labels)):
            raise ValueError(message("coords", f"hold {sizes[name]} labels for {name}", list(labels)))
