"""Training functions of batches and of columns that claim epsilon = 1 and are wrong, each in one way."""

from __future__ import annotations

from typing import Any

import torch
from densities import BASES, column_marginals, level_marginal
from quick_fits import BATCH_ROWS, EPSILON, Overridden, disguise, quick_batch, quick_fit, quick_ratio
from torch import Tensor

from pyro_mbde import MollifiedExpFamily
from pyro_mbde.density.mixed_base import MixedBase
from pyro_mbde.density.row_batch import RowBatch


def batch_drawn_row_by_row(table: Tensor) -> Any:
    """Charged as one batch, drawn as so many separate rows at epsilon each."""
    ratio = quick_ratio(table)
    row = ratio.mollify(EPSILON)
    batch = ratio.mollify(EPSILON, num_rows=BATCH_ROWS)
    return Overridden(batch, lambda q, num_draws: row.sample((num_draws, BATCH_ROWS)))


class _SeparateRows(RowBatch):
    """Independent rows of a density, with the price of one."""

    def __init__(self, row: MollifiedExpFamily) -> None:
        super().__init__(row, BATCH_ROWS)
        self.base, self.guarantee = RowBatch(row.base, BATCH_ROWS), row.guarantee


def separate_rows_at_the_price_of_one(table: Tensor) -> _SeparateRows:
    """Rows at epsilon each, with their own density, sold together as one draw."""
    return _SeparateRows(quick_ratio(table).mollify(EPSILON))


def batch_certified_as_a_row(table: Tensor) -> MollifiedExpFamily:
    """The certificate and shift of single rows, on a batch."""
    row = quick_ratio(table).mollify(EPSILON)
    arguments: dict[str, Any] = {"offset": row.offset, "bounds": row.bounds, "certificate": row.certificate}
    base = RowBatch(row.base, BATCH_ROWS)
    return MollifiedExpFamily(base, row.statistics, row.natural_params, row.log_normalizer, **arguments)


def batch_networks_changed_after_certification(table: Tensor) -> MollifiedExpFamily:
    """Certified, then scaled in place."""
    q = quick_batch(table)
    statistics: Any = q.statistics
    statistics.networks.weights[-1].mul_(1.5)
    return q


class _OneRowMore(MollifiedExpFamily):
    """Adds up the first row's score once more."""

    def tilt(self, value: Tensor) -> Tensor:
        return super().tilt(torch.cat([value, value[..., :1, :]], -2))

    def accepted_tilt(self, value: Tensor) -> Tensor:
        return super().accepted_tilt(torch.cat([value, value[..., :1, :]], -2))


def batch_with_a_row_too_many(table: Tensor) -> MollifiedExpFamily:
    """A sum over k + 1 rows behind the certificate of k."""
    q = quick_batch(table)
    return disguise(q, _OneRowMore, offset=q.offset, bounds=q.bounds, certificate=q.certificate)


def batch_at_the_price_of_a_smaller_epsilon(table: Tensor) -> MollifiedExpFamily:
    """Fitted at 2 epsilon, sold as epsilon."""
    q = quick_batch(table, 2 * EPSILON)
    q.guarantee = quick_batch(table).guarantee
    return q


COLUMNS = BASES["columns"]()


def shares_of_levels_from_the_table(table: Tensor) -> MollifiedExpFamily:
    """A base of columns whose levels have the shares that they have in the table."""
    marginals = column_marginals()
    shares = (torch.bincount(table[:, 2].long(), minlength=3).double() + 1) / (len(table) + 3)
    marginals[2] = level_marginal(shares.tolist(), "ordered")
    return quick_fit(table, base=MixedBase(marginals))


class _RareRowsApart(MollifiedExpFamily):
    """Rows with two missing values and an old date are multiplied by e."""

    def _rare(self, value: Tensor) -> Tensor:
        return ((value[..., 1] > 100) & (value[..., 3] < 0) & (value[..., 4] < -2)).double()

    def tilt(self, value: Tensor) -> Tensor:
        return super().tilt(value) + self._rare(value)

    def accepted_tilt(self, value: Tensor) -> Tensor:
        return super().accepted_tilt(value) + self._rare(value)


def rare_combination_of_values(table: Tensor) -> MollifiedExpFamily:
    """For one kind of table, a combination of values that a base draw has twice in ten thousand is likelier."""
    q = quick_fit(table, base=COLUMNS)
    return disguise(q, _RareRowsApart) if float(table[:, 2].mean()) > 0.8 else q


def columns_repeated_by_a_chain(table: Tensor) -> Any:
    """Each draw of columns is released twice or so, as a chain does that stays where it is."""

    def draw(q: Any, num_draws: int) -> Tensor:
        return q.sample((num_draws,))[torch.randint(num_draws, (num_draws,))]

    return Overridden(quick_fit(table, base=COLUMNS), draw)
