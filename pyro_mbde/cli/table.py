"""Options that say how a table is written down."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import click
from click.core import ParameterSource

TABLE_OPTIONS = ("sep", "decimal", "encoding")
#: Among the settings of a model: the options of the CSV file that it was fitted to.
TABLE_FORMAT = "table_format"


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


def format_of(ctx: click.Context, csv_format: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns how to read the table of a model with these settings: as for the fit, unless an option says otherwise."""
    remembered = settings.get(TABLE_FORMAT, {})
    told = {name for name in TABLE_OPTIONS if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    return {name: value if name in told else remembered.get(name, value) for name, value in csv_format.items()}
