"""What is wrong with a table's file, in words without its cells."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyro_mbde._checks import argument_error


class UnusableTableError(Exception):
    """What is wrong with a file that could be parsed; its text goes into the error of ``read_table``."""


class ChangedFileError(ValueError):
    """A table's file is no longer what it was when its parts were counted: it was written to, or replaced."""


@contextmanager
def naming_the_file(name: str, encoding: str, place: str = "") -> Iterator[None]:
    """Turns whatever reading a file raises into one error that names the file, the cause and a remedy.

    Errors of the operating system, as of a file that is not there, are raised as they are.

    Args:
        name: of the file.
        encoding: of a CSV file.
        place: a sentence that says which part of the file is read; nothing for the whole of it.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install 'pyro_mbde[parquet]'") from error
    except ChangedFileError:
        raise
    except Exception as error:  # a damaged file raises almost anything, some of it with cells in its text
        if isinstance(error, OSError) and error.errno is not None:
            raise
        cause = f"{place} {_cause(error, encoding)}".lstrip()
        raise ValueError(argument_error("path", "hold a table", name, cause)) from None


def longer_rows(where: str) -> str:
    """Says that rows have more cells than the header."""
    causes = "a title or comment above the header, a decimal comma (--decimal), an unquoted separator in a cell (--sep)"
    return f"There are more cells in {where} than names in its first line, the header. Look for {causes}."


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
