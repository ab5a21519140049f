"""Schemas in files: TOML and JSON, and the mistakes that people make in them."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyro_mbde._checks import argument_error
from pyro_mbde.names import near_miss_hint
from pyro_mbde.tables.columns import COLUMN_KEYS, Column
from pyro_mbde.tables.toml import toml_fault

IN_TOML = 'Write each column as [[columns]] and below it, on a line each, name = "...", low = ... and high = ...'
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
#: Keys of a column whose value may be "?" in earnest; at others it is a question of a draft.
_ANY_TEXT, _ASKED = ("name", "missing"), "Put in what the codebook says."
#: What a list may fill of a line.
_MAX_LINE = 100
#: Keys of a column in the order of a file, those of which nothing is said where they are as by default.
_DEFAULTS = {"scale": "linear", "outside": "clip", "missing": "drop"}
_ORDER = ["name", "kind", *(key for key in COLUMN_KEYS if key not in ("name", "kind"))]


def read_content(path: str | os.PathLike[str]) -> Any:
    """Returns the plain values in a TOML file, or in a JSON file whose name ends in .json."""
    if not os.fspath(path).lower().endswith(".json"):
        return read_toml(path)
    try:
        return json.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except ValueError as error:
        raise ValueError(argument_error("path", "hold JSON", os.fspath(path), f"{error}.")) from error


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the plain values in a TOML file."""
    raw = Path(path).read_bytes()
    try:
        return tomllib.loads(raw.decode("utf-8-sig"))
    except ValueError as error:  # of TOML and of UTF-8
        fault = toml_fault(raw, os.fspath(path), error, IN_TOML)
        raise ValueError(argument_error("path", "hold TOML", os.fspath(path), fault)) from error


def check_keys(
    subject: str, content: Mapping[str, Any], known: Sequence[str], required: Sequence[str], remedy: str
) -> None:
    """Raises for an unknown key, with the one that was probably meant, and for one that is missing, with a remedy."""
    for key in content:
        if key not in known:
            hint = near_miss_hint(str(key), known)
            found = f"{subject} must not have the key {key!r}. {hint}".rstrip()
            raise ValueError(f"{found} Its keys are {', '.join(known)}.")
    for key in required:
        if key not in content:
            raise ValueError(f"{subject} must have the key {key!r}, which is not there. {remedy}")


def read_columns(given: Any) -> list[Column]:
    """Returns the columns in plain values; all mistakes in one error."""
    if not isinstance(given, list | tuple):
        found = "one table" if isinstance(given, Mapping) else type(given).__name__
        remedy = "In TOML, write [[columns]], with two brackets on each side, above each column."
        raise TypeError(f"columns must be a list of tables, got {found}. {remedy}")
    columns: list[Column] = []
    errors: list[TypeError | ValueError] = []
    for number, entry in enumerate(given, 1):
        try:
            columns.append(_read_column(f"column {number}", entry))
        except (TypeError, ValueError) as error:
            errors.append(error)
    if len(errors) > 1:
        found = f"The schema has {len(errors)} mistakes:"
        raise type(errors[0])("\n  ".join([found, *map(str, errors)]))
    if errors:
        raise errors[0]
    return columns


def _read_column(subject: str, entry: Any) -> Column:
    if not isinstance(entry, Mapping):
        raise TypeError(argument_error(subject, "be a table of name, low and high", entry))
    if isinstance(name := entry.get("name"), str) and name:
        subject = f"column {name!r}"
    check_keys(subject, entry, COLUMN_KEYS, ["name"], 'Write name = "...", as the table calls it.')
    if asked := [key for key, value in entry.items() if key not in _ANY_TEXT and value in ("?", ["?"])]:
        raise ValueError(f'{subject} must have values in place of "?" at {" and ".join(asked)}. {_ASKED}')
    return Column(**entry)


def write_toml(content: Mapping[str, Any]) -> str:
    """Returns a schema's plain values as TOML, as people would write them.

    Args:
        content: as :meth:`pyro_mbde.Schema.to_dict` returns it.
    """
    lines = [f"{key} = {toml_value(content[key])}" for key in ("condition", "public_rows") if key in content]
    if "constraints" in content:
        lines.append(f"constraints = {toml_value(content['constraints'])}")
    parts = ["\n".join(lines)] if lines else []
    for column in content["columns"]:
        shown = {key: column[key] for key in _ORDER if key in column and _DEFAULTS.get(key) != column[key]}
        parts.append(_table("columns", shown))
    parts += [_table("correlations", one) for one in content.get("correlations", ())]
    return "\n\n".join(parts) + "\n"


def _table(name: str, content: Mapping[str, Any]) -> str:
    lines = (f"{key} = {toml_value(value, shorten=key != 'levels')}" for key, value in content.items())
    return "\n".join([f"[[{name}]]", *lines])


def toml_value(value: Any, *, shorten: bool = True) -> str:
    """Returns a plain value as TOML writes it; whole numbers without a point, unless ``shorten`` is off."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {toml_value(one)}" for key, one in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, list):
        items = [toml_value(one, shorten=shorten) for one in value]
        line = f"[{', '.join(items)}]"
        return line if len(line) <= _MAX_LINE else "\n".join(["[", *(f"    {item}," for item in items), "]"])
    if isinstance(value, float) and value.is_integer() and shorten and abs(value) < 2**53:
        return str(int(value))
    return repr(value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else toml_value(key)
