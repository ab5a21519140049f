"""Tables and fitted models in files."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyro_mbde._checks import argument_error
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.parts import FILE_FORMAT, read_parts_file
from pyro_mbde.serialization import damaged_file
from pyro_mbde.tables.csv_text import check_repeats, csv_format, read_csv
from pyro_mbde.tables.earlier import read_noted
from pyro_mbde.tables.row_files import TABLE_ENDINGS
from pyro_mbde.tables.schema import Schema
from pyro_mbde.tables.table_errors import naming_the_file

if TYPE_CHECKING:
    import pandas as pd


def read_table(
    path: str | os.PathLike[str], *, sep: str = ",", decimal: str = ".", encoding: str = "utf-8"
) -> pd.DataFrame:
    """Reads a table from a CSV file with a header, or a Parquet file.

    Blanks around the names in a CSV header, and before its cells, are taken off. A row that is shorter than the header
    has missing values; a longer one is an error. Cells such as ``None``, ``NA`` or ``null`` are missing, as pandas has
    it: a level with such a name must be called otherwise in a CSV file.

    Privacy:
        Errors tell numbers of columns and of lines, never a value of the table, nor a name: the first line may be a
        row of the table. They are for the table's owner alone all the same.

    Args:
        path: the file, ending in .csv, .csv.gz or .parquet.
        sep: what separates the columns of a CSV file, one character; ``tab`` for tabs.
        decimal: what stands before the decimals in a CSV file, one character.
        encoding: of a CSV file, as Python names it: ``utf-8``, ``latin-1``, ``cp1252``, ``utf-16``.

    Raises:
        ValueError: the file is not such a table: damaged, empty, in another encoding, with a column twice, with another
            separator.
    """
    name = os.fspath(path)
    if not name.lower().endswith(TABLE_ENDINGS):
        raise ValueError(argument_error("path", f"end in {', '.join(TABLE_ENDINGS)}", name))
    sep, encoding = csv_format(sep, decimal, encoding)
    is_parquet = name.lower().endswith(".parquet")
    with naming_the_file(name, "" if is_parquet else encoding):
        if is_parquet:
            return _read_parquet(name)
        return read_csv(name, sep, decimal, encoding)


def _read_parquet(name: str) -> pd.DataFrame:
    import pandas as pd

    parquet: Any = importlib.import_module("pyarrow.parquet")  # an extra
    check_repeats(parquet.read_schema(name).names)
    return pd.read_parquet(name, engine="pyarrow")


@dataclass(frozen=True)
class TableModel:
    """A density fitted to a table, with what is public about the table and the fit.

    Privacy:
        The density and the file are as sensitive as the table. Schema and settings are public.

    Attributes:
        density: the fitted density, in the modelled units.
        schema: of the table; None for a density that was saved alone.
        settings: how it was fitted, as plain values.
    """

    density: MollifiedExpFamily
    schema: Schema | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file that :meth:`MollifiedExpFamily.load` reads too; only its owner may read it.

        Args:
            path: where to; replaced only once all is written.
        """
        schema = {} if self.schema is None else {"schema": self.schema.to_dict()}
        self.density._parts().write(path, {**schema, "settings": dict(self.settings)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TableModel:
        """Reads what :meth:`save` or :meth:`MollifiedExpFamily.save` wrote; runs no code from the file.

        Args:
            path: the file.

        """
        content = read_parts_file(path)
        schema, settings = content.get("schema"), content.get("settings", {})
        try:
            if not isinstance(settings, dict):
                raise TypeError("settings must be a dict")
            return cls(MollifiedExpFamily.load(path), None if schema is None else read_noted(schema), settings)
        except TypeError as error:
            raise damaged_file(path, FILE_FORMAT) from error
