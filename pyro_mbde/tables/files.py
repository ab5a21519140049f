"""Tables and fitted models in files."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyro_mbde._checks import argument_error
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.parts import FILE_FORMAT, read_parts_file
from pyro_mbde.serialization import damaged_file
from pyro_mbde.tables.csv_text import UnusableTableError, check_repeats, csv_format, longer_rows, read_csv
from pyro_mbde.tables.earlier import read_noted
from pyro_mbde.tables.schema import Schema

if TYPE_CHECKING:
    import pandas as pd

#: Endings of the tables that can be read and written.
TABLE_ENDINGS = (".csv", ".csv.gz", ".parquet")


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
    try:
        if name.lower().endswith(".parquet"):
            return _read_parquet(name)
        return read_csv(name, sep, decimal, encoding)
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install 'pyro_mbde[parquet]'") from error
    except Exception as error:  # a damaged file raises almost anything, some of it with cells in its text
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(argument_error("path", "hold a table", name, _cause(error, encoding))) from None


def _read_parquet(name: str) -> pd.DataFrame:
    import pandas as pd

    parquet: Any = importlib.import_module("pyarrow.parquet")  # an extra
    check_repeats(parquet.read_schema(name).names)
    return pd.read_parquet(name, engine="pyarrow")


def _cause(error: Exception, encoding: str) -> str:
    """What is wrong with a file, and what to do; without its cells."""
    import pandas as pd

    text, line = str(error), re.search(r"\bline \d+\b", str(error))
    if isinstance(error, UnusableTableError):
        return text
    if isinstance(error, UnicodeError):
        remedy = "Name its encoding, for example encoding='latin-1' (--encoding latin-1)."
        return f"It is not {encoding.removesuffix('-sig')} text. {remedy}"
    if isinstance(error, EOFError):
        return "It ends too early: it was cut off. Copy it again."
    if isinstance(error, pd.errors.EmptyDataError):
        return "It is empty. A table has at least a line with the names of its columns."
    if line and "Expected" in text:
        return longer_rows(line.group())
    if isinstance(error, MemoryError):
        return "It needs more memory than there is."
    if "EOF inside string" in text:
        return "A quotation mark in it is not closed."
    return f"It is damaged, or of another format than its ending says ({type(error).__name__})."


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
