"""The state of training an ensemble, shared out over processes and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_mbde.density.statistics import BoundedClassifiers

#: Of the state of networks, what all of them share.
_SHARED = ("loc", "scale")


def shares(num_networks: int, size: int) -> list[range]:
    """Returns which networks each of ``size`` processes trains, as even as can be, in order.

    Example:
        >>> shares(6, 4)
        [range(0, 1), range(1, 3), range(3, 4), range(4, 6)]
    """
    edges = [num_networks * rank // size for rank in range(size + 1)]
    return [range(first, last) for first, last in zip(edges, edges[1:], strict=False)]


def part_of_networks(networks: BoundedClassifiers, share: range) -> BoundedClassifiers:
    """Returns some networks of an ensemble, as a copy."""
    state = _part_of_state(networks.state_dict(), share)
    config = {**networks.config(), "num_classifiers": len(share)}
    return BoundedClassifiers.from_state(config, state).train(networks.training)


def part_of(state: dict[str, Any], share: range) -> dict[str, Any]:
    """Returns the state of some networks out of that of an ensemble, as :func:`joined` makes it."""
    optimizer = {key: _part_of_state(kept, share) for key, kept in state["optimizer"]["state"].items()}
    return {
        **state,
        "networks": _part_of_state(state["networks"], share),
        "optimizer": {**state["optimizer"], "state": optimizer},
    }


def joined(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the state of an ensemble from those of its parts, in order.

    Networks and what an optimiser keeps of each are stacked along the first dimension; what is the same for all is the
    first part's.
    """
    kept = [state["optimizer"]["state"] for state in states]
    optimizer = {key: _joined_states([part[key] for part in kept]) for key in kept[0]}
    return {
        **states[0],
        "networks": _joined_states([state["networks"] for state in states]),
        "optimizer": {**states[0]["optimizer"], "state": optimizer},
    }


def _part_of_state(state: dict[str, Any], share: range) -> dict[str, Any]:
    chosen = slice(share.start, share.stop)
    return {name: value[chosen].clone() if _is_stacked(name, value) else value for name, value in state.items()}


def _joined_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: torch.cat([state[name] for state in states]) if _is_stacked(name, value) else value
        for name, value in states[0].items()
    }


def _is_stacked(name: str, value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and name not in _SHARED
