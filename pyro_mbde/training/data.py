"""The table as a tensor of rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.utils.data import DataLoader, Dataset, IterableDataset

from pyro_mbde._checks import argument_error
from pyro_mbde.density.base import PreparedBase, as_features, noted_schema
from pyro_mbde.training.fallback import warn_owner

if TYPE_CHECKING:
    import pandas as pd


def to_rows(data: Any, base: Distribution | PreparedBase, num_samples: int) -> Tensor:
    """Returns the table as rows that fit the base, on its device and in its dtype.

    Rows with values that are NaN or infinite, or fractions for a base of whole numbers, are left out. A
    :class:`~pyro_mbde.training.fallback.FitWarning` says so, but tells no number of the table. There may be any number
    of rows, none included. What raises is public: the kind of table and how many columns it has.

    Args:
        data: tensor or array of shape ``(n, *event_shape)``; DataFrame or Series of numbers; Dataset or DataLoader of
            rows (or of tuples that start with them); or a Distribution to draw rows from.
        base: the public base distribution.
        num_samples: rows to draw where ``data`` is a distribution.

    Returns:
        Tensor of shape ``(n, *event_shape)``, n at least 0.

    Raises:
        TypeError: ``data`` is of no such kind, or does not hold floating-point numbers (integers fit only a discrete
            base, or come in a DataFrame); or it is a DataFrame for the base of a schema.
        ValueError: it has the wrong shape, or rows of different lengths.
    """
    checks = RowChecks(PreparedBase.of(base))
    usable = checks.usable(unchecked_rows(data, base, num_samples))
    checks.warn()
    return usable


def unchecked_rows(data: Any, base: Distribution | PreparedBase, num_samples: int) -> Tensor:
    """Returns the table as a tensor, of any shape and type; arguments and errors are those of :func:`to_rows`."""
    if isinstance(data, Distribution):
        with torch.no_grad():
            drawn: Tensor = data.sample(torch.Size([num_samples]))
        return drawn
    if is_frame(data):
        if noted_schema(PreparedBase.of(base).distribution) is not None:
            remedy = "Its columns have an order and units of the model: pass schema.to_tensor(frame)."
            raise TypeError(argument_error("data", "be rows of the base's schema", type(data).__name__, remedy))
        return _frame_rows(data)
    return _all_rows(data) if isinstance(data, DataLoader | Dataset) else array_rows(data)


def to_network_rows(data: Any, base: Distribution | PreparedBase, num_samples: int) -> Tensor:
    """Returns the table as a network is trained on it: a copy of what :func:`to_rows` returns, floating, ``(n, d)``."""
    prepared = PreparedBase.of(base)
    return as_features(to_rows(data, prepared, num_samples), prepared.distribution, prepared.dtype).clone()


class RowCounts(NamedTuple):
    """Rows that were read, that were left out, and that lie outside the base's support. Private."""

    read: int = 0
    unusable: int = 0
    outside: int = 0


class RowChecks:
    """Brings rows to the base's shape, dtype and device, block by block, and leaves out those that do not fit.

    Attributes:
        counts: of all blocks so far, for one warning at the end. Private.
    """

    def __init__(self, prepared: PreparedBase) -> None:
        self._example = prepared.draws[0]
        self._support: Any = prepared.distribution.support
        self.counts = RowCounts()

    def usable(self, rows: Tensor, *, counted: bool = True) -> Tensor:
        """Returns the rows that can be used, as the base has them.

        Args:
            rows: shape ``(n, *event_shape)``; also ``(n, 1)`` for a scalar base, and ``(0,)``.
            counted: whether they are added to the counts.

        Raises:
            TypeError: they do not hold numbers of the base's kind.
            ValueError: they have the wrong shape.
        """
        if rows.is_complex() or rows.dtype == torch.bool:
            raise TypeError(argument_error("data", "hold real numbers", rows.dtype))
        if not rows.is_floating_point() and not self._support.is_discrete:
            remedy = "Convert counts on purpose: data.to(torch.float32)."
            constraint = "hold floating-point numbers for a continuous base"
            raise TypeError(argument_error("data", constraint, rows.dtype, remedy))
        example = self._example
        event_shape = example.shape
        if rows.shape == (0,):  # the number of columns of a table without rows is unknown
            rows = rows.new_empty(0, *event_shape)
        if rows.dim() == 2 and rows.shape[1] == 1 and not event_shape:
            rows = rows.squeeze(1)  # a one-column table for a scalar base
        if rows.dim() != 1 + len(event_shape) or rows.shape[1:] != event_shape:
            wanted, given = (f"({', '.join(['n', *map(str, shape)])})" for shape in (event_shape, rows.shape[1:]))
            raise ValueError(f"data must have shape {wanted} as the base has, got data of shape {given}.")
        converted = rows.to(example)
        usable = torch.isfinite(rows).to(example.device) & torch.isfinite(converted)
        if not example.is_floating_point():
            usable &= converted == rows.to(example.device)
        usable = usable.reshape(len(rows), event_shape.numel()).all(1)
        if not bool(usable.all()):
            converted = converted[usable]
        if counted:
            outside = int((~self._support.check(converted)).sum()) if len(converted) else 0
            read, unusable, before = self.counts
            self.counts = RowCounts(read + len(rows), unusable + len(rows) - len(converted), before + outside)
        return converted

    def warn(self, counts: Sequence[RowCounts] = ()) -> None:
        """Warns the owner once of rows that were left out, and once of those outside the support.

        Args:
            counts: of several processes, to be added up; by default these.
        """
        read, unusable, outside = map(sum, zip(*(counts or [self.counts]), strict=True))
        if unusable:
            wanted = "finite" if self._example.is_floating_point() else "whole"
            count = f"{unusable:,} of {read:,} rows were left out"
            warn_owner(f"{count}: they do not hold {wanted} numbers of {self._example.dtype}.")
        if outside:
            # Rows outside a box are legal: they are learned from but cannot be drawn.
            count = f"{outside:,} of {read - unusable:,} rows lie"
            warn_owner(f"{count} outside the support of the base and cannot be modelled there.")


def is_frame(data: Any) -> bool:
    """Whether data come from pandas, which takes long to import: who has some has imported it."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame | pandas.Series)


def _frame_rows(frame: pd.DataFrame | pd.Series[Any]) -> Tensor:
    import pandas as pd

    columns = frame.to_frame() if isinstance(frame, pd.Series) else frame
    types = pd.api.types
    wrong = [
        str(name)
        for name, dtype in columns.dtypes.items()
        if not types.is_numeric_dtype(dtype) or types.is_bool_dtype(dtype) or types.is_complex_dtype(dtype)
    ]
    if wrong:
        raise TypeError(
            argument_error("data", "be a DataFrame of numeric columns", wrong, "Encode or drop these columns.")
        )
    return torch.tensor(frame.to_numpy(dtype=np.float64, na_value=np.nan))


def _all_rows(data: DataLoader[Any] | Dataset[Any]) -> Tensor:
    if isinstance(data, DataLoader):
        return concatenated([array_rows(_first(item)) for item in data], data)
    items: Iterable[Any]
    if isinstance(data, IterableDataset):
        items = data
    else:
        items = (data[index] for index in range(dataset_length(data)))
    return stacked([array_rows(_first(item)) for item in items], data)


def dataset_length(data: Dataset[Any]) -> int:
    """Returns the number of rows of a Dataset.

    Raises:
        TypeError: it has none.
    """
    if not isinstance(data, Sized):
        raise TypeError(argument_error("data", "be a Dataset with a length", type(data).__name__))
    return len(data)


def block_rows(item: Any) -> Tensor:
    """Returns a block of rows as a tensor: a tensor, array or DataFrame, or a tuple or list that starts with one."""
    item = _first(item) if isinstance(item, tuple) or _starts_with_rows(item) else item
    return _frame_rows(item) if is_frame(item) else array_rows(item)


def _starts_with_rows(item: Any) -> bool:
    return isinstance(item, list) and bool(item) and (isinstance(item[0], Tensor | np.ndarray) or is_frame(item[0]))


def one_row(item: Any) -> Tensor:
    """Returns a row of a Dataset as a tensor, without a label beside it."""
    return array_rows(_first(item))


def stacked(rows: list[Tensor], data: Any) -> Tensor:
    """Returns single rows as one tensor; ``(0,)`` for none.

    Raises:
        ValueError: they have different lengths.
    """
    return _joined(torch.stack, rows, data)


def concatenated(blocks: list[Tensor], data: Any) -> Tensor:
    """Returns blocks of rows as one tensor; ``(0,)`` for none.

    Raises:
        ValueError: their rows have different lengths.
    """
    return _joined(torch.cat, blocks, data)


def _joined(join: Callable[[list[Tensor]], Tensor], parts: list[Tensor], data: Any) -> Tensor:
    if not parts:
        return torch.empty(0)
    try:
        return join(parts)
    except RuntimeError as error:
        raise ValueError(argument_error("data", "have rows of one length", type(data).__name__)) from error


def _first(item: Any) -> Any:
    """The row itself, where a dataset pairs it with a label."""
    return item[0] if isinstance(item, tuple | list) else item


def array_rows(data: Any) -> Tensor:
    """Returns a tensor or an array of numbers as a tensor that torch can compute with.

    Raises:
        TypeError: it holds no numbers, or is not dense.
        ValueError: it has rows of different lengths.
    """
    if isinstance(data, Tensor):
        if data.layout is not torch.strided or data.is_nested:
            raise TypeError(
                argument_error("data", "be a dense tensor", data.layout, "Convert it with data.to_dense().")
            )
        return data.detach()
    if isinstance(data, np.ma.MaskedArray) and np.ma.is_masked(data):
        unmasked: Any = data.astype(np.result_type(data.dtype, np.float64))
        data = unmasked.filled(np.nan)
    try:
        array = np.asarray(data)
    except ValueError as error:  # rows of different lengths
        raise ValueError(argument_error("data", "have rows of one length", type(data).__name__)) from error
    if array.dtype.kind in "US" or (array.dtype.kind == "O" and array.ndim):
        raise TypeError(
            argument_error("data", "hold numbers", str(array.dtype), "Encode text and categories as numbers first.")
        )
    if array.dtype.kind not in "fiub":
        kinds = "be a tensor, array, DataFrame, Dataset, DataLoader or Distribution of numbers"
        raise TypeError(argument_error("data", kinds, type(data).__name__))
    # As torch takes it: native byte order, at most 64 bits, no negative strides.
    wide = np.float64 if array.dtype.kind == "f" and array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
    return torch.tensor(np.ascontiguousarray(array.astype(wide)))
