"""Chains in ArviZ's format, with observations, their log-likelihood, and predictions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_mbde._checks import argument_error
from pyro_mbde.pictures import import_arviz

Groups = dict[str, Mapping[str, Any]]
Array = np.ndarray[Any, np.dtype[Any]]


def to_arviz(
    groups: Mapping[str, Mapping[str, Any]],
    coords: Mapping[str, Sequence[Any]] | None,
    dims: Mapping[str, Sequence[str]] | None,
    pred_dims: Mapping[str, Sequence[str]] | None,
    attrs: Mapping[str, Any],
) -> Any:
    """Returns groups of variables as ``InferenceData`` before ArviZ 1.0, as a ``DataTree`` since.

    Variables have shape ``(num_chains, num_draws, ...)``, without these two dimensions in groups of data. Empty groups
    are left out. The other arguments are those of :meth:`~pyro_mbde.Chains.to_arviz`.

    Raises:
        ValueError: ``coords``, ``dims`` or ``pred_dims`` do not fit, or ArviZ cannot hold a variable of this name.
    """
    arviz = import_arviz()
    is_tree = int(arviz.__version__.split(".")[0]) >= 1
    arrays = {group: {name: as_array(value) for name, value in of.items()} for group, of in groups.items() if of}
    for name in {name for of in arrays.values() for name in of}:
        if name in ("chain", "draw") or (is_tree and "/" in name):
            remedy = "ArviZ uses these for other purposes: rename the site."
            raise ValueError(argument_error("site", "not be called chain or draw, nor contain a slash", name, remedy))
    for argument, given in (("coords", coords), ("dims", dims), ("pred_dims", pred_dims)):
        of_sequences = isinstance(given, Mapping) and not any(isinstance(value, str) for value in given.values())
        if given is not None and not of_sequences:
            raise TypeError(argument_error(argument, "map names to sequences", given))
    predicted = {group: of for group, of in arrays.items() if group.startswith("predictions")}
    observed = {group: of for group, of in arrays.items() if group not in predicted}
    for sizes in (_apply_dims("dims", dims or {}, observed), _apply_dims("pred_dims", pred_dims or {}, predicted)):
        for name, labels in (coords or {}).items():
            if len(labels) != sizes.get(name, len(labels)):
                raise ValueError(argument_error("coords", f"hold {sizes[name]} labels for {name}", list(labels)))
    with warnings.catch_warnings():  # ArviZ suspects a mistake if chains outnumber draws; here it is none
        warnings.filterwarnings("ignore", "More chains|Found chain dimension", UserWarning)
        if is_tree:
            return arviz.from_dict(
                arrays, coords=coords, dims=dims, pred_dims=pred_dims, pred_coords=coords, attrs={"posterior": attrs}
            )
        return arviz.from_dict(
            **arrays, coords=coords, dims=dims, pred_dims=pred_dims or {}, pred_coords=coords, posterior_attrs=attrs
        )


def as_array(value: Any) -> Array:
    """Returns values as a NumPy array; bfloat16, which NumPy does not have, becomes float32."""
    if isinstance(value, Tensor):
        value = (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()
    return np.asarray(value)


def by_chain(group: str, values: Any, shape: tuple[int, int] | None, known: Mapping[str, Sequence[int]]) -> Groups:
    """Returns a group that holds what ``Predictive`` returned, arranged by chain; without values, no group.

    Values have shape ``(n, ...)`` or ``(num_chains, num_samples, ...)``; without ``shape`` they count as one chain.
    Sites get their ``known`` shapes, because ``Predictive`` adds dimensions of size 1 where other sites have plates.
    """
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise TypeError(argument_error(group, "be a dict of tensors, as Predictive returns", type(values).__name__))
    grouped = {}
    for name, value in values.items():
        array = as_array(value)
        lead = (1, len(array)) if shape is None else shape
        own = array.shape[1:] if shape is None or array.shape[:2] != shape else array.shape[2:]
        if array.size != math.prod(lead) * math.prod(own):
            constraint = f"have {math.prod(lead)} draws, as the chains have"
            raise ValueError(argument_error(f"{group}[{name!r}]", constraint, array.shape))
        wanted = tuple(known.get(name, own))
        grouped[name] = array.reshape(*lead, *(wanted if math.prod(wanted) == math.prod(own) else own))
    return {group: grouped}


def _apply_dims(
    argument: str, dims: Mapping[str, Sequence[str]], groups: Mapping[str, dict[str, Array]]
) -> dict[str, int]:
    """Drops dimensions of size 1 that were given no name; returns the size of each name, or raises."""
    sizes: dict[str, int] = {}
    for variable, names in dims.items():
        holding = [group for group, of in groups.items() if variable in of]
        if not holding:
            sites = dict.fromkeys(name for group, of in groups.items() if group != "sample_stats" for name in of)
            raise ValueError(argument_error(argument, f"name sites among {', '.join(sites)}", variable))
        kept: list[int] = []
        for group in sorted(holding, key="log_likelihood".__eq__):  # last: it has no event dimensions to name
            array = groups[group][variable]
            lead, own = array.shape[: _lead(group)], array.shape[_lead(group) :]
            if group != "log_likelihood":
                kept = _kept(argument, variable, names, own)
                for name, index in zip(names, kept, strict=True):
                    if sizes.setdefault(name, own[index]) != own[index]:
                        constraint = f"use each name for one size, and {name} has size {sizes[name]}"
                        raise ValueError(argument_error(argument, constraint, own[index]))
            groups[group][variable] = array.reshape(*lead, *(own[index] for index in kept if index < len(own)))
    return sizes


def _lead(group: str) -> int:
    """Returns how many dimensions come before a variable's own."""
    return 0 if group.endswith("_data") else 2


def _kept(argument: str, variable: str, names: Sequence[str], shape: tuple[int, ...]) -> list[int]:
    """Returns the indices of the dimensions that ``names`` stand for, or raises."""
    for kept in (list(range(len(shape))), [index for index, size in enumerate(shape) if size != 1]):
        if len(kept) == len(names) and not {"chain", "draw"} & set(names):
            return kept
    remedy = "The dimensions chain and draw are named already; a dimension of size 1 may be left out."
    raise ValueError(argument_error(argument, f"name the {len(shape)} event dimensions of {variable}", names, remedy))
