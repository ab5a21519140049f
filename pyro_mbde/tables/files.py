"""Tables and fitted models in files."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from pyro_mbde._runtime import message
from pyro_mbde.distribution import MollifiedExpFamily
from pyro_mbde.parts import FILE_FORMAT, read_parts_file
from pyro_mbde.serialization import damaged_file
from pyro_mbde.tables.schema import Schema

#: Endings of the tables that can be read and written.
TABLE_ENDINGS = (".csv", ".csv.gz", ".parquet")


def read_table(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Reads a table from a CSV file with a header, or a Parquet file.

    Privacy:
        Errors never tell a value of the table, but for the table's owner alone they are all the same.

    Args:
        path: the file, ending in .csv, .csv.gz or .parquet.

    Raises:
        ImportError: Parquet needs pyarrow, and it is not there.
        OSError: the file cannot be read.
        ValueError: its ending is another, or it is no such table.
    """
    name = os.fspath(path)
    if not name.lower().endswith(TABLE_ENDINGS):
        raise ValueError(message("path", f"end in {', '.join(TABLE_ENDINGS)}", name))
    try:
        if name.lower().endswith(".parquet"):
            return pd.read_parquet(path)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
            return pd.read_csv(path, low_memory=False, index_col=False)
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install 'pyro_mbde[parquet]'") from error
    except (ValueError, pd.errors.ParserWarning) as error:  # of parsers, UTF-8 and Arrow, some with cells in their text
        line = re.search(r"\bline \d+\b", str(error))
        where = f" near {line.group()}" if line else ""
        problem = f"got {type(error).__name__}{where}. Look for rows longer than the header, and for text not in UTF-8."
        raise ValueError(f"path must name a table, CSV with a header or Parquet: path={name!r}, {problem}") from None


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

        Raises:
            TypeError: the density cannot be taken apart.
        """
        schema = None if self.schema is None else self.schema.to_dict()
        self.density._parts().write(path, {"schema": schema, "settings": dict(self.settings)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TableModel:
        """Reads what :meth:`save` or :meth:`MollifiedExpFamily.save` wrote; runs no code from the file.

        Args:
            path: the file.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is damaged, of another kind, or from a later version of the library.
        """
        content = read_parts_file(path)
        schema, settings = content.get("schema"), content.get("settings", {})
        try:
            if not isinstance(settings, dict):
                raise TypeError("settings must be a dict")
            return cls(MollifiedExpFamily.load(path), None if schema is None else Schema.from_dict(schema), settings)
        except TypeError as error:
            raise damaged_file(path, FILE_FORMAT) from error
