"""Tables and fitted models in files."""

from __future__ import annotations

import codecs
import importlib
import os
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyro_mbde._checks import argument_error
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.parts import FILE_FORMAT, read_parts_file
from pyro_mbde.serialization import damaged_file
from pyro_mbde.tables.schema import Schema
from pyro_mbde.tables.written import as_written, first_longer_line, other_format

if TYPE_CHECKING:
    import pandas as pd

#: Endings of the tables that can be read and written.
TABLE_ENDINGS = (".csv", ".csv.gz", ".parquet")
_SEPARATORS = (",", ";", "\t", "|")


def read_table(
    path: str | os.PathLike[str], *, sep: str = ",", decimal: str = ".", encoding: str = "utf-8"
) -> pd.DataFrame:
    """Reads a table from a CSV file with a header, or a Parquet file.

    Blanks around the names in a CSV header, and before its cells, are taken off. A row that is shorter than the header
    has missing values; a longer one is an error.

    Privacy:
        Errors tell numbers of columns and of lines, never a value of the table, nor a name: the first line may be a
        row of the table. They are for the table's owner alone all the same.

    Args:
        path: the file, ending in .csv, .csv.gz or .parquet.
        sep: what separates the columns of a CSV file, one character; ``tab`` for tabs.
        decimal: what stands before the decimals in a CSV file, one character.
        encoding: of a CSV file, as Python names it: ``utf-8``, ``latin-1``, ``cp1252``, ``utf-16``.

    Raises:
        ImportError: Parquet needs pyarrow, which is not installed.
        OSError: the file cannot be read.
        ValueError: an argument is out of its range; or the file is not such a table: damaged, empty, in another
            encoding, with a column twice, with another separator.
    """
    name = os.fspath(path)
    if not name.lower().endswith(TABLE_ENDINGS):
        raise ValueError(argument_error("path", f"end in {', '.join(TABLE_ENDINGS)}", name))
    sep, encoding = _check_format(sep, decimal, encoding)
    try:
        if name.lower().endswith(".parquet"):
            return _read_parquet(name)
        return _read_csv(name, sep, decimal, encoding)
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install 'pyro_mbde[parquet]'") from error
    except Exception as error:  # a damaged file raises almost anything, some of it with cells in its text
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(argument_error("path", "hold a table", name, _cause(error, encoding))) from None


class _UnusableTableError(Exception):
    """What is wrong with a file that could be parsed; its text goes into the one error of :func:`read_table`."""


def _check_format(sep: Any, decimal: Any, encoding: Any) -> tuple[str, str]:
    for name, value in (("sep", sep), ("decimal", decimal), ("encoding", encoding)):
        if not isinstance(value, str):
            raise TypeError(argument_error(name, "be a string", value))
    sep = "\t" if sep in ("tab", "\\t") else sep
    if len(sep) != 1 or not sep.isascii() or sep.isalnum() or sep in "\"'\r\n.+-":
        raise ValueError(argument_error("sep", "be one character such as , or ; or |, or 'tab'", sep))
    if decimal not in (".", ","):
        raise ValueError(argument_error("decimal", "be . or ,", decimal))
    if sep == decimal:
        raise ValueError(
            argument_error("decimal", "differ from sep", decimal, "Say what separates the columns: sep (--sep).")
        )
    try:
        codec = codecs.lookup(encoding).name
        "".encode(codec)  # some codecs are not of text
    except LookupError:
        known = "be one that Python knows, such as utf-8, latin-1, cp1252 or utf-16"
        raise ValueError(argument_error("encoding", known, encoding)) from None
    return sep, "utf-8-sig" if codec == "utf-8" else codec  # also reads what has no byte-order mark


def _read_csv(name: str, sep: str, decimal: str, encoding: str) -> pd.DataFrame:
    import pandas as pd

    with open(name, "rb") as file:
        if (other := other_format(file.read(8), encoding)) is not None and not name.lower().endswith(".gz"):
            raise _UnusableTableError(other)
    how: dict[str, Any] = {"sep": sep, "encoding": encoding, "skipinitialspace": True}
    # Read as a row: as a header, pandas would give repeated names numbers.
    header = pd.read_csv(name, header=None, nrows=1, dtype=str, keep_default_na=False, **how)
    names = [cell.strip() for cell in header.iloc[0]]
    _check_header(names, sep)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
            frame: pd.DataFrame = pd.read_csv(name, low_memory=False, index_col=False, decimal=decimal, **how)
    except pd.errors.ParserWarning:
        raise _UnusableTableError(_longer(first_longer_line(name, sep, encoding))) from None
    frame.columns = pd.Index(names)
    for number, column in enumerate(names):
        cells = frame.iloc[:, number]
        if column and not pd.api.types.is_numeric_dtype(cells.dtype):
            frame[column] = as_written(cells, decimal)
    return frame


def _check_header(names: list[str], sep: str) -> None:
    if len(names) == 1 and (other := [mark for mark in _SEPARATORS if mark != sep and mark in names[0]]):
        found = max(other, key=names[0].count)
        shown = "tab" if found == "\t" else found
        remedy = f"Pass sep={shown!r} (--sep '{shown}')."
        raise _UnusableTableError(f"Separated by {sep!r}, its first line is one name with {shown!r} in it. {remedy}")
    _check_repeats(names)


def _check_repeats(names: Sequence[str]) -> None:
    """Raises if columns have the same name; tells which, not the name: a row may stand in the header's place."""
    for name, count in Counter(names).items():
        if name and count > 1:
            first, *_, last = (str(number) for number, other in enumerate(names, 1) if other == name)
            remedy = "Name each differently; the first line of a CSV file must name the columns."
            raise _UnusableTableError(f"Columns {first} and {last} have the same name. {remedy}")


def _read_parquet(name: str) -> pd.DataFrame:
    import pandas as pd

    parquet: Any = importlib.import_module("pyarrow.parquet")  # an extra
    _check_repeats(parquet.read_schema(name).names)
    return pd.read_parquet(name, engine="pyarrow")


def _cause(error: Exception, encoding: str) -> str:
    """What is wrong with a file, and what to do; without its cells."""
    import pandas as pd

    text, line = str(error), re.search(r"\bline \d+\b", str(error))
    if isinstance(error, _UnusableTableError):
        return text
    if isinstance(error, UnicodeError):
        remedy = "Name its encoding, for example encoding='latin-1' (--encoding latin-1)."
        return f"It is not {encoding.removesuffix('-sig')} text. {remedy}"
    if isinstance(error, EOFError):
        return "It ends too early: it was cut off. Copy it again."
    if isinstance(error, pd.errors.EmptyDataError):
        return "It is empty. A table has at least a line with the names of its columns."
    if line and "Expected" in text:
        return _longer(line.group())
    if isinstance(error, MemoryError):
        return "It needs more memory than there is."
    if "EOF inside string" in text:
        return "A quotation mark in it is not closed."
    return f"It is damaged, or of another format than its ending says ({type(error).__name__})."


def _longer(where: str) -> str:
    causes = "a title or comment above the header, a decimal comma (--decimal), an unquoted separator in a cell (--sep)"
    return f"There are more cells in {where} than names in its first line, the header. Look for {causes}."


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
        schema = {} if self.schema is None else {"schema": self.schema.to_dict()}
        self.density._parts().write(path, {**schema, "settings": dict(self.settings)})

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
