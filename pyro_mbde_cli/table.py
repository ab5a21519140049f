"""Options that say how a table is written down."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

TABLE_OPTIONS = ("sep", "decimal", "encoding")


def table_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a CSV file to a command, which gets them as ``csv_format``."""

    @click.option("--sep", default=",", show_default=True, help="Separator of a CSV file's columns; 'tab' for tabs.")
    @click.option("--decimal", default=".", show_default=True, help="Decimal point of a CSV file.")
    @click.option("--encoding", default="utf-8", show_default=True, help="Encoding of a CSV file, such as latin-1.")
    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        csv_format = {name: options.pop(name) for name in TABLE_OPTIONS}
        return function(*args, csv_format=csv_format, **options)

    return run
