"""The base of a batch: several independent rows of a base, drawn together."""

from __future__ import annotations

from typing import Any

import torch
from pyro.distributions import TorchDistribution, constraints
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._checks import argument_error, check_count, check_number
from pyro_mbde.serialization import register_distribution

#: Rows of a batch, at most: as many as :func:`~pyro_mbde.density.tilt.sum_of_scores` adds up exactly.
MAX_ROWS = 2**22


@register_distribution
class RowBatch(TorchDistribution):
    r"""k independent rows of a base distribution, as one event: :math:`Q_0^k`.

    The base of a batch density, of which one draw is a batch at one price. Proof: docs/proofs.md, *Batches*.

    Args:
        row: distribution of one row, with empty batch shape and event shape () or (d,).
        num_rows: k, from 1 to :data:`MAX_ROWS`.
        validate_args: as for any distribution.

    Example:
        >>> row = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(2), 1.0), 1)
        >>> batch = RowBatch(row, num_rows=5)
        >>> batch.event_shape, batch.log_prob(batch.sample((3,))).shape
        (torch.Size([5, 2]), torch.Size([3]))
    """

    arg_constraints: dict[str, Any] = {}

    def __init__(self, row: Distribution, num_rows: int, validate_args: bool | None = None) -> None:
        if row.batch_shape:
            raise ValueError(argument_error("row", "have an empty batch shape", tuple(row.batch_shape)))
        self.row = row
        self.num_rows = check_count("num_rows", num_rows)
        check_number("num_rows", self.num_rows, f"be at most {MAX_ROWS:,}", lambda value: value <= MAX_ROWS)
        event_shape = torch.Size([self.num_rows]) + row.event_shape
        super().__init__(torch.Size(), event_shape, validate_args=validate_args)

    @constraints.dependent_property
    def support(self) -> Any:
        """That of a row, in every row."""
        support: Any = constraints  # Pyro leaves it unannotated
        return support.independent(self.row.support, 1)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008  # torch's own signature
        """Returns draws of shape ``sample_shape + (num_rows,) + row.event_shape``."""
        rows: Tensor = self.row.sample(torch.Size(sample_shape) + torch.Size([self.num_rows]))
        return rows

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of batches: the sum of that of their rows, shape ``(...)``."""
        return self.row.log_prob(value).sum(-1)

    @property
    def mean(self) -> Tensor:
        """Mean of a row, in every row."""
        return self.row.mean.expand(self.event_shape)

    @property
    def variance(self) -> Tensor:
        """Variance of a row, in every row."""
        return self.row.variance.expand(self.event_shape)
