"""Schemas whose whole numbers are spread over the unit above them: of models saved before schemas had a version."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_mbde._checks import argument_error, check_seed
from pyro_mbde._torch_state import seeded
from pyro_mbde.density.base import note_schema
from pyro_mbde.density.copula import Copula
from pyro_mbde.tables.cells import TABLE, Numbers, Source
from pyro_mbde.tables.columns import Column
from pyro_mbde.tables.schema import Schema

if TYPE_CHECKING:
    import pandas as pd

#: A whole number n is spread over [n + margin, n + 1 - margin], so that rounding, to a dtype and by a scale, never
#: carries it into the next unit.
_MARGIN = 2.0**-8

_PLAIN = "A SpreadSchema has independent columns of numbers: use Schema for all else."


def read_noted(content: Mapping[str, Any]) -> Schema:
    """Returns the schema that a model was fitted with, from the plain values in its file."""
    return Schema.from_dict(content) if "version" in content else SpreadSchema.from_dict(content)


@dataclass(frozen=True)
class SpreadSchema(Schema):
    """A schema over a uniform box, in which a whole number n stands for the interval [n, n + 1).

    Models saved before schemas had a version are over such a base, and densities on the plane of the experiments.
    Columns are real or whole numbers.

    Privacy:
        That of :class:`~pyro_mbde.Schema`.
    """

    def __post_init__(self) -> None:
        """Checks the columns."""
        super().__post_init__()
        for column in self.columns:
            if column.kind not in ("real", "integer") or column.keeps_missing:
                raise ValueError(argument_error("columns", "be numbers without missing values", column, _PLAIN))
        for key in ("correlations", "constraints", "condition"):
            if given := getattr(self, key):
                raise ValueError(argument_error(key, "be left out", given, _PLAIN))

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of rows: float32, or float64 where that would mix up neighbouring values."""
        return torch.float32 if all(map(_fits_float32, self.columns)) else torch.float64

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values without a version, which :func:`read_noted` reads."""
        return {"columns": super().to_dict()["columns"]}

    def base(self, dependence: Copula | None = None) -> Any:
        """Returns the public base: uniform on the box of the columns' ranges, in the modelled units."""
        if dependence is not None:
            raise ValueError(argument_error("dependence", "be left out", dependence, _PLAIN))
        uniform: Any = dist.Uniform  # Pyro leaves it unannotated
        base = uniform(*self._box()).to_event(1)
        note_schema(base, self.to_dict())
        return base

    def stream(self, places: Any, **csv_format: Any) -> Any:
        """Not supported: whole numbers are spread at random, so that rows differ each time they are read."""
        raise ValueError("A SpreadSchema must convert a table as a whole. Use Schema for tables in parts.")

    def to_tensor(self, frame: pd.DataFrame, *, seed: int | None = None) -> Tensor:
        """Returns the table as rows in the modelled units, whole numbers spread evenly over the unit above them.

        Args:
            frame: the table.
            seed: of the spreading; ``None`` draws from torch's global generator.
        """
        return self._to_tensor(frame, TABLE, check_seed(seed))

    def _to_tensor(self, frame: pd.DataFrame, source: Source, seed: int | None = None) -> Tensor:
        read = self._read(frame, source)
        rows = to_earlier(self, read.codes, seed)
        self._warn(read.notes, len(rows), read.num_rows, source)
        return rows

    def to_frame(self, rows: Any) -> pd.DataFrame:
        """Turns rows in the modelled units into a table in its own."""
        import pandas as pd

        natural = from_earlier(self, self._checked_rows(rows))
        cells = zip(self.columns, natural.T, strict=True)
        return pd.DataFrame({column.name: column.of_kind.write(column, values, None) for column, values in cells})

    def _box(self) -> tuple[Tensor, Tensor]:
        low, high = torch.tensor([_range(column) for column in self.columns], dtype=self.dtype).unbind(-1)
        return low, high


def to_earlier(schema: SpreadSchema, codes: Numbers, seed: int | None) -> Tensor:
    """Returns numbers in the table's units, shape ``(n, d)``, as rows in the modelled ones, whole numbers spread."""
    columns = []
    with seeded(seed):
        for column, values in zip(schema.columns, torch.from_numpy(codes).unbind(-1), strict=True):
            if column.kind == "integer":
                values = values + _MARGIN + (1 - 2 * _MARGIN) * torch.rand_like(values)
            columns.append(values.log1p() if column.scale == "log1p" else values)
    return torch.stack(columns, -1).to(schema.dtype).clamp(*schema._box())


def from_earlier(schema: SpreadSchema, rows: Numbers) -> Numbers:
    """Returns rows in the modelled units, shape ``(n, d)``, as numbers in the table's, whole numbers rounded down."""
    columns = []
    for column, values in zip(schema.columns, rows.T, strict=True):
        if column.kind == "integer":
            natural = np.expm1(values) if column.scale == "log1p" else values
            columns.append(np.floor(natural).clip(column.low, column.high))
        else:
            columns.append(column.of_kind.from_modelled(column, values))
    return np.stack(columns, -1)


def _range(column: Column) -> tuple[float, float]:
    ends = column.low, column.high + (column.kind == "integer")
    return (math.log1p(ends[0]), math.log1p(ends[1])) if column.scale == "log1p" else ends


def _fits_float32(column: Column) -> bool:
    if column.kind != "integer":
        return column.dtype == torch.float32
    spacing = _MARGIN / (1 + column.high) if column.scale == "log1p" else _MARGIN
    return torch.finfo(torch.float32).eps * max(map(abs, _range(column))) <= spacing
