"""What a model observed, and how likely each observation is under each draw of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from pyro_mbde._checks import argument_error
from pyro_mbde._torch_state import seeded
from pyro_mbde.mcmc.model_target import is_subsample
from pyro_mbde.mcmc.target import stack

_poutine: Any = poutine  # Pyro leaves these unannotated
_scale_and_mask: Any = scale_and_mask

#: Draws on which a model is run at once, at most.
_CHUNK_SIZE = 512


def observations(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the values of a model's observed sites, without factors and deterministic sites."""
    return {name: node["value"].detach() for name, node in _observed(_run(model, args, kwargs)).items()}


def pointwise_log_likelihood(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], draws: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Returns the log-density of every observation at every draw, 0 where it is masked.

    The model runs on many draws at once where ``torch.vmap`` can vectorise it, and otherwise on one after another.

    Args:
        model: a Pyro model.
        args: its positional arguments.
        kwargs: its keyword arguments.
        draws: values of all its latent sites, each of shape ``(n, ...)``.

    Returns:
        For each observed site, shape ``(n, *batch_shape)``.

    Raises:
        ValueError: the model has latent sites for which there are no draws.
    """
    trace = _run(model, args, kwargs)
    observed = _observed(trace)
    missing = [name for name, node in trace.iter_stochastic_nodes() if name not in draws and not is_subsample(node)]
    if missing:
        constraint = "have no latent sites except those of the chains"
        remedy = "Write a mixture without its assignments, as MixtureSameFamily does; or pass log_likelihood=False."
        raise ValueError(argument_error("model", constraint, ", ".join(missing), remedy))

    def score(values: dict[str, Tensor]) -> dict[str, Tensor]:
        nodes = _poutine.trace(_poutine.condition(model, values)).get_trace(*args, **kwargs).nodes
        found = {name: nodes[name] for name in observed}
        return {
            name: _scale_and_mask(node["fn"].log_prob(node["value"]), mask=node["mask"]) for name, node in found.items()
        }

    with seeded(0), torch.no_grad(), pyro.validation_enabled(False):
        try:
            vectorized: Any = torch.func.vmap(score, randomness="different", chunk_size=_CHUNK_SIZE)
            scores: dict[str, Tensor] = vectorized(dict(draws))
            return scores
        except RuntimeError:  # the model branches on values
            points = (dict(zip(draws, values, strict=True)) for values in zip(*draws.values(), strict=True))
            return stack([score(point) for point in points])


def _run(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    with seeded(0), torch.no_grad(), pyro.validation_enabled(False):
        return _poutine.trace(model).get_trace(*args, **kwargs)


def _observed(trace: Any) -> dict[str, Any]:
    """The sites of a trace that hold data."""
    return {
        name: node
        for name, node in trace.nodes.items()
        if node["type"] == "sample"
        and node["is_observed"]
        and not node["infer"].get("_deterministic")
        and not isinstance(node["fn"], pyro.distributions.Unit)
        and not is_subsample(node)
    }
