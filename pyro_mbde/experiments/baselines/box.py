"""Boxes with public edges, and densities on them."""

from __future__ import annotations

import numbers
import warnings
from typing import Any

import torch
from pyro.distributions import constraints
from torch import Tensor

from pyro_mbde._checks import argument_error
from pyro_mbde.density.base import ClosedUniform
from pyro_mbde.experiments.baselines.common import FittedDensity
from pyro_mbde.privacy.group import GroupGuarantee
from pyro_mbde.privacy.guarantee import Guarantee
from pyro_mbde.training.data import to_rows


class BoxDensity(FittedDensity):
    """A density on a box, both edges included.

    Args:
        low: lower edges of the box, shape () or (d,).
        high: upper edges.
        guarantee: of the density, all draws of it together; or of one draw.
        chunk: points to evaluate at a time, at least 1.
    """

    def __init__(self, low: Tensor, high: Tensor, guarantee: GroupGuarantee | Guarantee, *, chunk: int = 2**15) -> None:
        self.low, self.high = low, high
        self._log_volume = float((high.double() - low.double()).log().sum())
        interval: Any = constraints.interval  # torch leaves it and its kin unannotated
        support = interval(low, high)
        if low.dim():
            independent: Any = constraints.independent
            support = independent(support, 1)
        super().__init__(support, low + (high - low) / 2, guarantee, chunk=chunk)

    def _from_unit(self, unit: Tensor) -> Tensor:
        """Points of the box from those of the unit cube, float64."""
        low, high = self.low.double(), self.high.double()
        return torch.minimum(torch.maximum(low + (high - low) * unit, low), high)


def to_unit(rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Returns rows of a box as points of the unit cube, those outside at its nearest point.

    Example:
        >>> to_unit(torch.tensor([[-1.0], [2.0], [9.0]]), torch.tensor(0.0), torch.tensor(8.0)).flatten()
        tensor([0.0000, 0.2500, 1.0000])
    """
    low, high = low.to(rows), high.to(rows)
    return ((rows - low) / (high - low)).clamp(0, 1)


def check_box(low: float | Tensor, high: float | Tensor) -> tuple[Tensor, Tensor]:
    """Returns the edges as two tensors of one shape and dtype."""
    given = [edge.dtype for edge in (low, high) if isinstance(edge, Tensor) and edge.is_floating_point()]
    edges = []
    for name, edge in (("low", low), ("high", high)):
        if isinstance(edge, bool) or not isinstance(edge, numbers.Real | Tensor):
            raise TypeError(argument_error(name, "be a number or a tensor", edge))
        # A number takes the dtype of the other edge, which might not be the default one.
        number_dtype = given[0] if given else torch.get_default_dtype()
        tensor = edge.detach().cpu() if isinstance(edge, Tensor) else torch.tensor(float(edge), dtype=number_dtype)
        edges.append(tensor if tensor.is_floating_point() else tensor.to(number_dtype))
    dtype = torch.promote_types(edges[0].dtype, edges[1].dtype)
    broadcast: Any = torch.broadcast_tensors  # torch leaves it unannotated
    try:
        lower, upper = (edge.to(dtype).clone() for edge in broadcast(*edges))
    except RuntimeError as error:
        raise ValueError(argument_error("high", "have the shape of low", tuple(edges[1].shape))) from error
    if lower.dim() > 1 or not lower.numel():
        raise ValueError(argument_error("low", "have shape () or (d,)", tuple(lower.shape)))
    if not bool(torch.isfinite(lower).all() and torch.isfinite(upper).all() and (lower < upper).all()):
        raise ValueError(argument_error("high", "be above low, both finite", high))
    if not bool(torch.isfinite(upper - lower).all()):
        raise ValueError(argument_error("high", f"be no further from low than {dtype} holds", high))
    return lower, upper


def box_rows(data: Any, low: Tensor, high: Tensor) -> Tensor:
    """Returns the table as rows of the shape of a box; those outside are left where they are, to be moved."""
    edges: Any = ClosedUniform  # Pyro leaves it unannotated
    box = edges(low, high)
    with warnings.catch_warnings():
        # Said of a base that cannot model rows outside: here they count at the nearest place of the box.
        warnings.filterwarnings("ignore", ".* outside the support of the base", UserWarning)
        return to_rows(data, box.to_event(1) if low.dim() else box, 10_000)
