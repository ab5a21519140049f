"""What a density asks of its statistics: whose class they are, copies with public weights, descriptions for files."""

from __future__ import annotations

import copy
import math
from typing import Any, cast

import torch
from torch import nn

from pyro_mbde._checks import argument_error
from pyro_mbde.density.clipped_ratio import ClippedRatio
from pyro_mbde.density.statistics import BoundedClassifiers

_KINDS: dict[str, type[BoundedClassifiers] | type[ClippedRatio]] = {
    kind.__name__: kind for kind in (BoundedClassifiers, ClippedRatio)
}


def is_own(statistics: nn.Module) -> bool:
    """Whether statistics are of a class of this library's, each row by itself; a subclass may do anything."""
    return type(statistics.networks if type(statistics) is ClippedRatio else statistics) is BoundedClassifiers


def aligned(statistics: nn.Module) -> nn.Module:
    """Returns the same statistics in layers of aligned sizes, if they are of a class of this library's."""
    return cast("BoundedClassifiers | ClippedRatio", statistics).aligned() if is_own(statistics) else statistics


def with_public_weights(statistics: nn.Module) -> nn.Module:
    """Returns a copy of a module in which random numbers, always the same, stand in for all that was fitted.

    Matrices have entries of the size that keeps their products near 1, vectors entries in [1/2, 3/2).
    """
    public = copy.deepcopy(statistics).requires_grad_(False).eval()
    generator = torch.Generator().manual_seed(0)
    for tensor in (*public.parameters(), *public.buffers()):
        if tensor.is_floating_point() and tensor.dim() < 2:
            tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
        elif tensor.is_floating_point():
            tensor.copy_(torch.randn(tensor.shape, generator=generator) / math.sqrt(max(*tensor.shape[-2:], 1)))
    return public


def describe_statistics(statistics: nn.Module) -> dict[str, Any]:
    """Returns statistics as a plain dict of tensors, numbers and text, for a file."""
    kind = type(statistics).__name__
    if not is_own(statistics):
        remedy = f"Use {' or '.join(_KINDS)}, or pickle the density."
        raise TypeError(argument_error("statistics", "be of this library to be saved", kind, remedy))
    config = cast("BoundedClassifiers | ClippedRatio", statistics).config()
    return {"kind": kind, "config": config, "state": dict(statistics.state_dict())}


def rebuild_statistics(description: dict[str, Any]) -> nn.Module:
    """Returns the statistics that :func:`describe_statistics` described."""
    return _KINDS[description["kind"]].from_state(description["config"], description["state"])
