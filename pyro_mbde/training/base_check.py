"""Warnings for an owner whose base was made from the table."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.utils.data import DataLoader, TensorDataset

from pyro_mbde.density.mixed_base import MixedBase
from pyro_mbde.private_files import PrivacyLeakWarning

#: Numbers that differ by less, relative to their size and their column's deviation, may be one, summed in float32: a
#: sum of n numbers in pairs, as torch adds them, is off by up to log2(n) 2^-24 of the sum of their sizes, which is
#: 1.4e-6 for 2^24 rows, and a variance by twice that.
_TOLERANCE = 4e-6
#: How near 0 and 1 the moments of a column are that was standardised by them, in float32:
#: a mean that is 100 deviations from 0 is rounded by up to 100 * 2^-24 = 6e-6 deviations before it is subtracted.
_STANDARDISED = 1e-5
#: Components of a mixture that are looked at.
_MAX_COMPONENTS = 1000
#: Fewer rows have moments that are round by chance.
_MIN_ROWS = 8

_REMEDY = (
    "The guarantee holds for a base that was fixed without looking at the table, and is void for another. Take its "
    "numbers from a codebook, from what is known of the matter, or from a table that is public. If they are public and "
    "only happen to coincide, ignore this. Keep this warning to yourself: it depends on the table."
)


def warn_of_leaks(base: Distribution, data: Any, rows: Tensor, *, stacklevel: int = 3) -> None:
    """Warns if a base seems to be made from the table, or the table to be scaled by itself.

    Looked for are: memory that base and table share; parameters that are a column's mean, median, deviation, variance,
    covariance, minimum or maximum to float precision; columns that all have mean 0 and deviation 1. Numbers of one or
    two digits are taken for public, since ranges such as 0 to 100 are often met exactly; so are ln(1 + x) of such a
    number x, ends of a range that several rows share, since clipping to the range makes these, and tables of fewer than
    8 rows. Parameters computed in another way, or rounded, are not detected.

    Privacy:
        The warning depends on the table, and is for its owner. It contains no number of the table.

    Args:
        base: as it was given, before it was copied.
        data: as it was given.
        rows: the same as a tensor of shape ``(n,)`` or ``(n, d)``.
        stacklevel: of the warning.
    """
    if isinstance(data, Distribution):  # known in full, so it protects no rows
        return
    parameters = list(_parameters(base))
    if shared := _sharing(parameters, data):
        text = f"The base's {shared} is part of the table itself, in the same memory. {_REMEDY}"
        warnings.warn(text, PrivacyLeakWarning, stacklevel=stacklevel)
        return
    rows = rows.detach().double().cpu()
    rows = rows if rows.dim() > 1 else rows.unsqueeze(-1)
    if len(rows) < _MIN_ROWS or not rows.numel():
        return
    if found := _coinciding(parameters, rows):
        text = f"The base's {found[0]} equals the {found[1]} of the table. {_REMEDY}"
        warnings.warn(text, PrivacyLeakWarning, stacklevel=stacklevel)
    elif _is_standardised(rows):
        text = (
            "All columns of the table have mean 0 and deviation 1: they seem to be standardised by their own moments, "
            "which no guarantee covers; to read released rows one would have to hand them out. Scale columns by public "
            "numbers. Keep this warning to yourself: it depends on the table."
        )
        warnings.warn(text, PrivacyLeakWarning, stacklevel=stacklevel)


def _parameters(base: Distribution) -> Iterator[tuple[str, Tensor]]:
    """Names and values of all parameters of a base, of what it is made of, and of its transforms."""
    seen: set[int] = set()

    def visit(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
        if isinstance(value, Tensor):
            yield name, value.detach()
        elif isinstance(value, bool | str | None) or id(value) in seen:
            return
        elif isinstance(value, int | float):
            yield name, torch.tensor(float(value))
        elif isinstance(value, list | tuple):
            seen.add(id(value))
            for item in value:
                yield from visit(item, name)
        elif isinstance(value, Distribution | torch.distributions.Transform):
            seen.add(id(value))
            for key, item in vars(value).items():
                if key not in ("_validate_args", "_event_dim", "event_dim", "reinterpreted_batch_ndims", "_cache_size"):
                    yield from visit(item, key.lstrip("_").removeprefix("unbroadcasted_"))

    if isinstance(base, MixedBase):  # what a schema states of its columns is compared where the schema reads a table
        # Of columns of points, such as dates, some row often has the first or the last one.
        low, high = (
            [getattr(one, end) if one.kind == "real" else math.nan for one in base.marginals] for end in ("low", "high")
        )
        yield "low", torch.tensor(low, dtype=torch.float64)
        yield "high", torch.tensor(high, dtype=torch.float64)
        return
    yield from visit(base, "base")


def _sharing(parameters: list[tuple[str, Tensor]], data: Any) -> str | None:
    """The name of a parameter that lies in the table's memory."""
    if isinstance(data, DataLoader):
        data = data.dataset
    tables = data.tensors if isinstance(data, TensorDataset) else (data,)
    places = [place for place in map(_memory, tables) if place]
    for name, value in parameters:
        own = _memory(value)
        if own and any(own[0] < end and start < own[1] for start, end in places):
            return name
    return None


def _memory(value: Any) -> tuple[int, int] | None:
    """First address and end of the memory that a tensor or array is a view of."""
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.is_nested:
            return None
        storage = value.untyped_storage()
        start, size = storage.data_ptr(), storage.nbytes()
    elif isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        start, size = value.ctypes.data, value.nbytes
    else:
        return None
    return (start, start + size) if size else None


def _coinciding(parameters: list[tuple[str, Tensor]], rows: Tensor) -> tuple[str, str] | None:
    """Names of a parameter and of the statistic of a column that it equals, if it is not round.

    An end that several rows share is where a table that reaches beyond its public range was clipped.
    """
    ends = torch.stack([rows.min(0).values, rows.max(0).values])
    are_shared = torch.stack([(rows == end).sum(0) > 1 for end in ends])
    smallest, largest = torch.where(are_shared, torch.nan, ends)
    deviation = rows.std(0)
    statistics = [
        ("mean", rows.mean(0)),
        ("median", rows.median(0).values),
        ("standard deviation", deviation),
        ("standard deviation", rows.std(0, correction=0)),
        ("variance", rows.var(0)),
        ("variance", rows.var(0, correction=0)),
        ("minimum", smallest),
        ("maximum", largest),
    ]
    if len(rows) % 2 == 0:  # where torch's median is the lower of the two in the middle
        statistics.append(("median", (rows.median(0).values - (-rows).median(0).values) / 2))
    num_columns = rows.shape[1]
    squares = {}
    if 1 < num_columns <= 256:
        covariance = rows.T.cov()
        squares = {
            "covariance": covariance,
            "Cholesky factor of the covariance": torch.linalg.cholesky_ex(covariance).L,
        }
    for name, parameter in parameters:
        value = parameter.double().cpu()
        if value.shape == (num_columns, num_columns):
            for kind, square in squares.items():
                if bool(torch.isfinite(square).all()) and torch.allclose(value, square, rtol=1e-5, atol=0.0):
                    return name, kind
        if value.numel() == 1:
            value = value.reshape(1, 1)
        elif num_columns != 1 and (value.dim() == 0 or value.shape[-1] != num_columns):
            continue
        # One row for each component of a mixture.
        value = value.reshape(-1, value.shape[-1] if value.shape[-1] == num_columns else 1)[:_MAX_COMPONENTS]
        usable = torch.isfinite(value) & ~_is_round(value) & (deviation > 0)
        for kind, statistic in statistics:
            scale = torch.minimum(statistic.abs() + deviation, 1e3 * deviation)
            if bool((usable & ((value - statistic).abs() <= _TOLERANCE * scale)).any()):
                return name, kind
    return None


def _is_round(values: Tensor) -> Tensor:
    """Whether numbers x, or e^x - 1, have at most two digits, as far as x in float32 tells."""
    natural = values.expm1()
    natural_error = 1e-7 * values.abs() * (natural + 1)  # d(e^x - 1) = e^x dx
    return _has_two_digits(values, 1e-7 * values.abs()) | _has_two_digits(natural, natural_error)


def _has_two_digits(values: Tensor, error: Tensor) -> Tensor:
    rounded = torch.tensor([float(f"{value:.1e}") for value in values.flatten().tolist()], dtype=torch.float64)
    return (values - rounded.reshape(values.shape)).abs() <= error


def _is_standardised(rows: Tensor) -> bool:
    deviations = (rows.std(0), rows.std(0, correction=0))
    centred = bool((rows.mean(0).abs() <= _STANDARDISED).all())
    return centred and any(bool(((deviation - 1).abs() <= _STANDARDISED).all()) for deviation in deviations)
