"""What is public about a table: its columns, how they depend on one another, and what holds for all of its rows."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_mbde._checks import argument_error
from pyro_mbde.density.base import note_schema
from pyro_mbde.names import check_distinct, same_names
from pyro_mbde.tables.cells import TABLE, Flags, Numbers, Source, check_form
from pyro_mbde.tables.columns import DEFAULT_MISSING_SHARE, Column
from pyro_mbde.tables.correlations import Correlation, correlation_matrix, read_correlations
from pyro_mbde.tables.leaks import warn_of_stated_statistics
from pyro_mbde.tables.notes import BrokenRule, Note, texts_of
from pyro_mbde.tables.policies import apply_policies
from pyro_mbde.tables.schema_files import IN_TOML, check_keys, read_columns, read_content, read_toml, write_toml

if TYPE_CHECKING:
    import pandas as pd

    from pyro_mbde.density.copula import Copula
    from pyro_mbde.density.mixed_base import MixedBase
    from pyro_mbde.tables.row_files import Places
    from pyro_mbde.tables.streams import TableStream

#: Of what :meth:`Schema.to_dict` returns. The first version had no number: see ``earlier.py``.
VERSION = 2


class Rows(NamedTuple):
    """A table's rows as codes, after all policies. Private.

    Attributes:
        codes: float64 ``(n, d)``, in the columns' own units where they are numbers; arbitrary where missing.
        missing: which cells are missing and kept, bool ``(n, d)``.
        notes: what was done; as many for each table.
        num_rows: of the table.
    """

    codes: Numbers
    missing: Flags
    notes: tuple[Note, ...]
    num_rows: int


@dataclass(frozen=True)
class Schema:
    """What is public about a table: the columns that are modelled, in order, and what is known of them.

    It gives the public base, turns the table into rows of a tensor, and draws back into a table.

    Privacy:
        A schema is public, so nothing of it may come from the table: no observed minimum, maximum, mean or category.
        It is fixed before the table is seen. A schema that is changed after a look at the table, at what
        :meth:`to_tensor` said of it or at a result has no guarantee.

    Args:
        columns: at least one, with different names.
        correlations: public correlations of pairs of columns, ``Correlation`` or ``{"columns": [...], "value":
            ...}``. Of levels, it is that of their order.
        constraints: what holds for every row by definition, as texts such as ``"discharged >= admitted"``. Rows that
            violate one are left out, and never drawn.
        condition: what the rows of interest have in common, as one such text. Others are left out, and never drawn.
        public_rows: a note that names the public rows from which facts were taken; ``None`` where there are none.

    Example:
        >>> import pandas as pd
        >>> stage = Column("stage", kind="ordered", levels=["I", "II", "III"], missing="level")
        >>> schema = Schema((Column("age", 18, 100, "integer"), stage))
        >>> rows = schema.to_tensor(pd.DataFrame({"age": [30, 44], "stage": ["II", None], "name": ["A", "B"]}))
        >>> rows
        tensor([[30.,  1.],
                [44., -3.]])
        >>> schema.to_frame(rows)
           age stage
        0   30    II
        1   44   NaN
    """

    columns: tuple[Column, ...]
    correlations: tuple[Correlation, ...] = ()
    constraints: tuple[str, ...] = ()
    condition: str | None = None
    public_rows: str | None = None

    def __post_init__(self) -> None:
        """Checks the columns, and what is said of them."""
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
        object.__setattr__(self, "correlations", read_correlations(self.correlations, names))
        if isinstance(self.constraints, str) or not isinstance(self.constraints, Iterable):
            raise TypeError(argument_error("constraints", "be a list of texts", self.constraints))
        object.__setattr__(self, "constraints", tuple(self.constraints))
        texts = [("constraints", text) for text in self.constraints]
        for name, text in [*texts, ("condition", self.condition), ("public_rows", self.public_rows)]:
            if text is not None and not isinstance(text, str):
                raise TypeError(argument_error(name, "be text", text))
        _ = self.predicates  # checks them

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of rows: float32, or float64 where that would mix up neighbouring values."""
        return torch.float64 if any(column.dtype == torch.float64 for column in self.columns) else torch.float32

    @cached_property
    def predicates(self) -> tuple[list[Any], ...]:
        """Constraints and condition as predicates over rows, in this order."""
        if not self.constraints and self.condition is None:
            return ()
        from pyro_mbde.tables.constraints import compile_condition, compile_constraint  # which reads columns

        compiled = [compile_constraint(text, self.columns) for text in self.constraints]
        if self.condition is not None:
            compiled.append(compile_condition(self.condition, self.columns))
        return tuple(compiled)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Schema:
        """Reads a schema from plain values, as a TOML or JSON file has them.

        Args:
            content: ``{"columns": [{"name": ..., "low": ..., "high": ..., ...}, ...], "constraints": [...], ...}``.

        Example:
            >>> Schema.from_dict({"columns": [{"name": "age", "low": 0, "high": 110}]}).names
            ('age',)
        """
        if not isinstance(content, Mapping):
            raise TypeError(argument_error("schema", "be a table of columns", type(content).__name__))
        check_keys("schema", content, ["version", *SCHEMA_KEYS], ["columns"], IN_TOML)
        if content.get("version", VERSION) != VERSION:
            remedy = "A later pyro_mbde reads it." if isinstance(content["version"], int) else ""
            raise ValueError(argument_error("version", f"be {VERSION}", content["version"], remedy))
        rest = {key: content[key] for key in SCHEMA_KEYS[1:] if key in content}
        return cls(tuple(read_columns(content["columns"])), **rest)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Schema:
        """Reads a schema from a TOML file of ``[[columns]]``, or from a JSON file.

        Args:
            path: the file; what ends in .json is read as JSON.
        """
        return cls.from_dict(read_content(path))

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Schema:
        """Reads a schema from a TOML file of ``[[columns]]``.

        Args:
            path: the file.
        """
        return cls.from_dict(read_toml(path))

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values that :meth:`from_dict` reads.

        Example:
            >>> Schema((Column("age", 0, 110, missing=40),)).to_dict()
            {'version': 2, 'columns': [{'name': 'age', 'low': 0.0, 'high': 110.0, 'kind': 'real', 'scale': 'linear',
            'outside': 'clip', 'missing': 40.0}]}
        """
        content: dict[str, Any] = {"version": VERSION, "columns": [column.to_dict() for column in self.columns]}
        content["correlations"] = [{"columns": list(one.columns), "value": one.value} for one in self.correlations]
        content |= {"constraints": list(self.constraints), "condition": self.condition, "public_rows": self.public_rows}
        return {key: value for key, value in content.items() if value is not None and value != []}

    def to_toml(self) -> str:
        """Returns the text of a TOML file that :meth:`read` reads.

        Example:
            >>> print(Schema((Column("age", 0, 110, decimals=1),)).to_toml())
            [[columns]]
            name = "age"
            kind = "real"
            low = 0
            high = 110
            decimals = 1
            <BLANKLINE>
        """
        return write_toml(self.to_dict())

    def base(self, dependence: Copula | None = None) -> MixedBase:
        """Returns the public base Q0: of what is stated of each column, with the correlations and constraints.

        A column of which nothing is stated is uniform on its range or levels; with the scale ``log1p``, ln(1 + x) is.
        Densities over it remember this schema, and :func:`~pyro_mbde.release` brings their rows into the table's units.

        Args:
            dependence: on the unit cube of d dimensions, in place of the one that the correlations give.

        Returns:
            A distribution with event shape ``(d,)``.
        """
        from pyro_mbde.density.marginals import Marginal
        from pyro_mbde.density.mixed_base import MixedBase, RareRowsError
        from pyro_mbde.tables.marginals import density_table

        marginals = []
        for column in self.columns:
            edges, left, right = (torch.as_tensor(part, dtype=self.dtype) for part in density_table(column))
            share = column.missing_share or (DEFAULT_MISSING_SHARE if column.keeps_missing else 0.0)
            marginals.append(Marginal(edges, left, right, column.of_kind.distribution, share, column.periods))
        if dependence is None and self.correlations:
            from pyro_mbde.density.copula import GaussianCopula

            dependence = GaussianCopula(correlation_matrix(self.names, self.correlations))
        try:
            base = MixedBase(marginals, dependence, list(self.predicates))
        except RareRowsError as error:
            text = [*self.constraints, self.condition][error.index]
            raise ValueError(f"{error} Predicate {error.index + 1} is {text!r}.") from None
        note_schema(base, self.to_dict())
        return base

    def to_tensor(self, frame: pd.DataFrame) -> Tensor:
        """Returns the table as rows: one coordinate for each column.

        Real numbers are in the modelled units, whole numbers are themselves, a level is its place in ``levels``, a
        boolean 0 or 1, a date the number of units since ``low``. Columns that the schema does not name are left out;
        names in the table that are not texts count as texts. Values that a column cannot hold are moved, or their
        rows left out, as the column says, and so are rows that violate a constraint or do not meet the condition; a
        warning counts them, for the table's owner alone. It also names columns whose values are all rounded where
        released ones will not be.

        Privacy:
            Errors and warnings tell column names and counts, never a value: names in the schema, and those of the table
            where they are plausibly a header. Counts are private too, so that both are for the table's owner alone. The
            guarantee holds for whatever is done to the table here, except that an error tells tables apart: of tables
            of the right form, only those with values that a column refuses raise.

        Args:
            frame: the table.

        Returns:
            Tensor of shape ``(n, d)`` and type :attr:`dtype`, inside the support of :meth:`base`. n is the number of
            rows that were kept, which may be 0.

        Raises:
            TypeError: ``frame`` is not a DataFrame, or a column holds something of another kind.
            ValueError: a column is missing or repeated, or has values that it refuses.
        """
        return self._to_tensor(frame, TABLE)

    def stream(self, places: Places, *, sep: str = ",", decimal: str = ".", encoding: str = "utf-8") -> TableStream:
        """Returns the rows of a table in files as a stream that :class:`~pyro_mbde.DensityRatio` fits in flat memory.

        Args:
            places: a file ending in .csv or .parquet, a folder, a pattern such as ``visits/*.parquet``, or several.
            sep: what separates the columns of CSV files, one character; ``tab`` for tabs.
            decimal: what stands before the decimals in CSV files, one character.
            encoding: of CSV files, as Python names it; one whose ASCII characters are bytes of their own.

        Raises:
            FileNotFoundError: there is nothing at one of the places.
            ValueError: files are of several kinds, lack a column of the schema, or are damaged.

        Example:
            >>> import os, pandas as pd, tempfile
            >>> table = os.path.join(tempfile.mkdtemp(), "visits.csv")
            >>> pd.DataFrame({"age": [30, 44]}).to_csv(table, index=False)
            >>> Schema((Column("age", 0, 110),)).stream(table).read([0])
            tensor([[30.],
                    [44.]])
        """
        from pyro_mbde.tables.row_files import RowFiles
        from pyro_mbde.tables.streams import TableStream

        return TableStream(RowFiles.find(places, sep=sep, decimal=decimal, encoding=encoding), self)

    def _to_tensor(self, frame: pd.DataFrame, source: Source) -> Tensor:
        """Rows of the private table, or public rows, of which it is not checked that they differ from the schema."""
        rows, notes, num_rows = self._converted(self._read(frame, source))
        self._warn(notes, len(rows), num_rows, source)
        return rows

    def _converted(self, read: Rows) -> tuple[Tensor, tuple[Note, ...], int]:
        """Rows in the modelled units, what was done, and the number of rows in the table."""
        low, high = self._box()
        modelled = [
            column.of_kind.modelled(column, codes) for column, codes in zip(self.columns, read.codes.T, strict=True)
        ]
        rows = torch.from_numpy(np.stack(modelled, -1)).to(self.dtype).clamp(low, high)
        rows = torch.where(torch.from_numpy(read.missing), low - (high - low), rows)
        rows, notes = self._meeting_predicates(rows)
        return rows, (*read.notes, *notes), read.num_rows

    def to_frame(self, rows: Any) -> pd.DataFrame:
        """Turns rows into a table in its own units: rounded, and clipped into the public ranges.

        Privacy:
            Post-processing: of draws that may be handed out, so may be the table.

        Args:
            rows: tensor or array of shape ``(n, d)``, or ``(n, k, d)`` for n batches of k rows.

        Returns:
            The table, rows of batches one below another. Columns are of type float64, int64, category, bool or
            datetime64; whole numbers and booleans with missing values of pandas' Int64 and boolean.
        """
        import pandas as pd

        array = self._checked_rows(rows)
        cells = {}
        for column, values in zip(self.columns, array.T, strict=True):
            kind, (low, high) = column.of_kind, column.modelled_range
            # A missing value is as far below the range as it is wide.
            missing = values < low - (high - low) / 2 if column.keeps_missing else None
            cells[column.name] = kind.write(column, kind.from_modelled(column, values), missing)
        return pd.DataFrame(cells)

    def _read(self, frame: pd.DataFrame, source: Source, *, is_whole: bool = True) -> Rows:
        """The table's rows as codes; raises for tables of another form, and for what the schema refuses.

        Stated facts are compared with the private table where the frame is the whole of it.
        """
        import pandas as pd

        if not isinstance(frame, pd.DataFrame):
            remedy = "Pass frame.to_pandas()." if hasattr(frame, "to_pandas") else ""
            raise TypeError(argument_error("frame", "be a DataFrame", type(frame).__name__, remedy))
        frame = frame.set_axis([str(label) for label in frame.columns], axis=1)
        frame = frame.rename(columns=same_names(self.names, frame.columns))
        check_form(frame, self.names, source)
        readings = [column.of_kind.read(column, frame[column.name]) for column in self.columns]
        unreadable = [
            f"column {column.name!r}: {reading.unreadable}"
            for column, reading in zip(self.columns, readings, strict=True)
            if reading.unreadable is not None and len(frame)
        ]
        if unreadable:
            lead = f"{source.name} must hold what {source.possessive} schema says, numbers, levels or dates:"
            raise TypeError("\n  ".join([lead, *unreadable, source.closing]).rstrip())
        cells = [apply_policies(*one) for one in zip(self.columns, readings, strict=True)]
        if refused := [problem for one in cells for problem in one.refused]:
            remedy = [_REFUSED, source.closing] if source == TABLE else []
            raise ValueError(
                "\n  ".join([f"{source.name} must hold what {source.possessive} schema allows:", *refused, *remedy])
            )
        if source == TABLE and is_whole:
            warn_of_stated_statistics(self.columns, readings, stacklevel=5)
        kept = np.logical_and.reduce([one.kept for one in cells])
        codes = np.stack([one.codes[kept] for one in cells], -1)
        missing = np.stack([one.missing[kept] for one in cells], -1)
        return Rows(codes, missing, tuple(note for one in cells for note in one.notes), len(kept))

    def _meeting_predicates(self, rows: Tensor) -> tuple[Tensor, list[Note]]:
        """Rows that no predicate forbids, and what was left out."""
        if not self.predicates:
            return rows, []
        from pyro_mbde.density.predicates import evaluate

        named = [*(f"constraint {text!r}" for text in self.constraints), f"condition {self.condition!r}"]
        kept = torch.ones(len(rows), dtype=torch.bool)
        notes: list[Note] = []
        for predicate, text in zip(self.predicates, named, strict=False):
            holds = evaluate(predicate, rows)
            notes.append(BrokenRule(text, int((~holds).sum()), len(rows)))
            kept &= holds
        return rows[kept], notes

    def _warn(
        self,
        notes: Sequence[Note],
        num_kept: int,
        num_rows: int,
        source: Source,
        extent: Sequence[str] = (),
        stacklevel: int = 4,
    ) -> None:
        """Warns of what was done; ``extent`` says of which part of the table, in sentences."""
        if not (texts := texts_of(notes)):
            return
        left = [f"{num_kept:,} of {num_rows:,} rows are left."] if num_kept < num_rows else []
        remedy = [_CORRECT, source.closing] if source == TABLE else []
        lead = f"Notes on {source.name[0].lower()}{source.name[1:]} and {source.possessive} schema:"
        text = "\n  ".join([lead, *texts, *left, *extent, *remedy])
        warnings.warn(text, stacklevel=stacklevel)

    def _checked_rows(self, rows: Any) -> Numbers:
        array = np.asarray(rows.detach().cpu() if isinstance(rows, Tensor) else rows, dtype=np.float64)
        num_columns = len(self.columns)
        if array.ndim not in (2, 3) or array.shape[-1] != num_columns:
            shapes = f"have shape (n, {num_columns}), or (n, k, {num_columns}) for batches"
            raise ValueError(argument_error("rows", shapes, array.shape))
        array = array.reshape(-1, num_columns)
        if not np.isfinite(array).all():
            raise ValueError("rows must be finite, got NaN or infinite values.")
        return array

    def _box(self) -> tuple[Tensor, Tensor]:
        low, high = torch.tensor([column.modelled_range for column in self.columns], dtype=self.dtype).unbind(-1)
        return low, high


#: Keys of a schema, as files have them.
SCHEMA_KEYS = ("columns", "correlations", "constraints", "condition", "public_rows")


_CORRECT = (
    "If a public source (the codebook) says otherwise, correct the schema by it and fit again; never fit the schema to "
    "these counts."
)
_REFUSED = "Correct them by a public rule. A schema that is changed after a look at the table has no guarantee."
