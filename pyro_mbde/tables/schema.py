"""What is public about a table: its columns' names, ranges and kinds, stated without looking at it."""

from __future__ import annotations

import os
import tomllib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_mbde._checks import argument_error, check_seed
from pyro_mbde._torch_state import seeded
from pyro_mbde.density.base import note_schema
from pyro_mbde.names import check_distinct, same_names
from pyro_mbde.tables.cells import OWNER, check_form
from pyro_mbde.tables.columns import Column
from pyro_mbde.tables.policies import apply_policies
from pyro_mbde.tables.toml import toml_fault

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Schema:
    """What is public about a table: the columns that are modelled, in order.

    It gives the public base, turns the table into rows of a tensor, and draws back into a table.

    Privacy:
        A schema is public, so nothing of it may come from the table: no observed minimum, maximum, mean or category.
        It is fixed before the table is seen. A schema that is changed after a look at the table, at what
        :meth:`to_tensor` said of it or at a result has no guarantee.

    Args:
        columns: at least one, with different names.

    Example:
        >>> import pandas as pd
        >>> schema = Schema((Column("age", 18, 100, "integer"), Column("cost", 0, 1e6, scale="log1p", decimals=2)))
        >>> rows = schema.to_tensor(pd.DataFrame({"age": [30, 44], "cost": [0.0, 1234.5], "name": ["A", "B"]}), seed=0)
        >>> schema.base().support.check(rows)
        tensor([True, True])
        >>> schema.to_frame(rows)
           age    cost
        0   30     0.0
        1   44  1234.5
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        """Checks the columns."""
        columns = tuple(self.columns) if isinstance(self.columns, Iterable) else (self.columns,)
        for column in columns:
            if not isinstance(column, Column):
                raise TypeError(argument_error("columns", "be Columns", column))
        if not columns:
            raise ValueError(argument_error("columns", "name at least one", columns))
        names = [column.name for column in columns]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(argument_error("columns", "have different names", name, "It is there twice."))
        check_distinct("columns", names)
        object.__setattr__(self, "columns", columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of rows: float32, or float64 where that would mix up neighbouring values."""
        return torch.float64 if any(column.dtype == torch.float64 for column in self.columns) else torch.float32

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Schema:
        """Reads a schema from plain values, as a TOML or JSON file has them.

        Args:
            content: ``{"columns": [{"name": ..., "low": ..., "high": ..., ...}, ...]}``.

        Example:
            >>> Schema.from_dict({"columns": [{"name": "age", "low": 0, "high": 110}]}).names
            ('age',)
        """
        if not isinstance(content, Mapping):
            raise TypeError(argument_error("schema", "be a table of columns", type(content).__name__))
        _check_keys("schema", content, ["columns"], ["columns"])
        if not isinstance(content["columns"], list | tuple):
            found = "one table" if isinstance(content["columns"], Mapping) else type(content["columns"]).__name__
            remedy = "In TOML, write [[columns]], with two brackets on each side, above each column."
            raise TypeError(f"columns must be a list of tables, got {found}. {remedy}")
        columns: list[Column] = []
        errors: list[TypeError | ValueError] = []
        for number, entry in enumerate(content["columns"], 1):
            try:
                columns.append(_read_column(f"column {number}", entry))
            except (TypeError, ValueError) as error:
                errors.append(error)
        if len(errors) > 1:
            found = f"schema must be free of mistakes, got {len(errors)}:"
            raise type(errors[0])("\n  ".join([found, *map(str, errors)]))
        if errors:
            raise errors[0]
        return cls(tuple(columns))

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Schema:
        """Reads a schema from a TOML file of ``[[columns]]``.

        Args:
            path: the file.
        """
        raw = Path(path).read_bytes()
        try:
            content = tomllib.loads(raw.decode("utf-8-sig"))
        except ValueError as error:  # of TOML and of UTF-8
            fault = toml_fault(raw, os.fspath(path), error, _IN_TOML)
            raise ValueError(argument_error("path", "hold TOML", os.fspath(path), fault)) from error
        return cls.from_dict(content)

    def to_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Returns plain values that :meth:`from_dict` reads.

        Example:
            >>> Schema((Column("age", 0, 110, missing=40),)).to_dict()
            {'columns': [{'name': 'age', 'low': 0.0, 'high': 110.0, 'kind': 'real', 'scale': 'linear',
            'outside': 'clip', 'missing': 40.0}]}
        """
        columns = [asdict(column) for column in self.columns]
        return {"columns": [{key: value for key, value in one.items() if value is not None} for one in columns]}

    def base(self) -> dist.TorchDistribution:
        """Returns the public base Q0: uniform on the box of the columns' ranges, in the modelled units.

        Densities over it remember this schema, and :func:`~pyro_mbde.release` brings their rows into the table's units.

        Returns:
            A distribution with event shape ``(d,)``.
        """
        low, high = self._box()
        uniform: Any = dist.Uniform  # Pyro leaves it unannotated
        base: dist.TorchDistribution = uniform(low, high).to_event(1)
        note_schema(base, self.to_dict())
        return base

    def to_tensor(self, frame: pd.DataFrame, *, seed: int | None = None) -> Tensor:
        """Returns the table as rows in the modelled units.

        A density cannot follow spikes, so whole numbers are spread evenly over the unit above them; :meth:`to_frame`
        rounds them down again. Columns that the schema does not name are left out. Values that a column cannot hold are
        moved, or their rows left out, as the column says; a warning counts them, for the table's owner alone. It also
        names columns whose values are all rounded where released ones will not be.

        Privacy:
            Errors and warnings tell column names and counts, never a value: names in the schema, and those of the table
            where they are plausibly a header. Counts are private too, so that both are for the table's owner alone. The
            guarantee holds for whatever is done to the table here, except that an error tells tables apart: of tables
            of the right form, only those with values that a column refuses raise.

        Args:
            frame: the table.
            seed: of the spreading; ``None`` draws from torch's global generator.

        Returns:
            Tensor of shape ``(n, d)`` and type :attr:`dtype`, inside the support of :meth:`base`. n is the number of
            rows that were kept, which may be 0.

        Raises:
            TypeError: ``frame`` is not a DataFrame, or a column holds something else than real numbers.
            ValueError: a column is missing or repeated, or has values that it refuses.
        """
        import pandas as pd

        seed = check_seed(seed)
        if not isinstance(frame, pd.DataFrame):
            raise TypeError(argument_error("frame", "be a DataFrame", type(frame).__name__))
        frame = frame.rename(columns=same_names(self.names, frame.columns))
        check_form(frame, self.names)
        cells = [apply_policies(column, frame[column.name]) for column in self.columns]
        if refused := [problem for one in cells for problem in one.refused]:
            raise ValueError("\n  ".join(["The table must hold what its schema allows:", *refused, _REFUSED, OWNER]))
        kept = np.logical_and.reduce([one.kept for one in cells])
        if notes := [note for one in cells for note in one.notes]:
            if not kept.all():
                notes.append(f"{int(kept.sum()):,} of {len(kept):,} rows are left.")
            warnings.warn("\n  ".join(["Notes on the table and its schema:", *notes, _CORRECT, OWNER]), stacklevel=2)
        low, high = self._box()
        with seeded(seed):
            modelled = [
                column._to_modelled(torch.from_numpy(one.values[kept]))
                for column, one in zip(self.columns, cells, strict=True)
            ]
        return torch.stack(modelled, -1).to(self.dtype).clamp(low, high)

    def to_frame(self, rows: Any) -> pd.DataFrame:
        """Turns rows in the modelled units into a table in its own: rounded, and clipped into the public ranges.

        Privacy:
            Post-processing: of draws that may be handed out, so may be the table.

        Args:
            rows: tensor or array of shape ``(n, d)``, or ``(n, k, d)`` for n batches of k rows.

        Returns:
            The table, rows of batches one below another; whole numbers are of type int64.
        """
        import pandas as pd

        array = np.asarray(rows.detach().cpu() if isinstance(rows, Tensor) else rows, dtype=np.float64)
        num_columns = len(self.columns)
        if array.ndim not in (2, 3) or array.shape[-1] != num_columns:
            shapes = f"have shape (n, {num_columns}), or (n, k, {num_columns}) for batches"
            raise ValueError(argument_error("rows", shapes, array.shape))
        array = array.reshape(-1, num_columns)
        if not np.isfinite(array).all():
            raise ValueError("rows must be finite, got NaN or infinite values.")
        return pd.DataFrame(
            {column.name: column._to_natural(values) for column, values in zip(self.columns, array.T, strict=True)}
        )

    def _box(self) -> tuple[Tensor, Tensor]:
        low, high = torch.tensor([column.modelled_range for column in self.columns], dtype=self.dtype).unbind(-1)
        return low, high


def _check_keys(subject: str, content: Mapping[str, Any], known: list[str], required: list[str]) -> None:
    for key in content:
        if key not in known:
            close = get_close_matches(str(key), known, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"{subject} must have keys among {', '.join(known)}, got the key {key!r}.{hint}")
    for key in required:
        if key not in content:
            raise ValueError(f"{subject} must have the key {key!r}, which is not there.")


def _read_column(subject: str, entry: Any) -> Column:
    if not isinstance(entry, Mapping):
        raise TypeError(argument_error(subject, "be a table of name, low and high", entry))
    if isinstance(name := entry.get("name"), str) and name:
        subject = f"column {name!r}"
    required = [field.name for field in fields(Column) if field.default is MISSING]
    _check_keys(subject, entry, [field.name for field in fields(Column)], required)
    return Column(**entry)


_IN_TOML = 'Write each column as [[columns]] and below it, on a line each, name = "...", low = ... and high = ...'
_CORRECT = (
    "If a public source (the codebook) says otherwise, correct the schema by it and fit again; never fit the schema to "
    "these counts."
)
_REFUSED = "Correct them by a public rule. A schema that is changed after a look at the table has no guarantee."
