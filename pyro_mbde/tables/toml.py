"""Messages on files that are not TOML."""

from __future__ import annotations

import json
import re

#: Comments and blank lines, then what begins a document, a list or a key.
_YAML_START = re.compile(rb"(?:[ \t]*(?:#[^\n]*)?\r?\n)*(?:---|- \w|\w+:(?:\s|$))")
_DECIMAL_COMMA = re.compile(r"=\s*[-+]?[0-9]+,[0-9]+\s*(#.*)?")


def toml_fault(raw: bytes, path: str, error: ValueError, in_toml: str) -> str:
    """Returns what a file is that cannot be read as TOML, and what to do about it.

    Args:
        raw: its content.
        path: its name.
        error: of reading it: of TOML, or of UTF-8.
        in_toml: how to write such a file in TOML.
    """
    if found := _other_format(raw, path):
        return f"It is {found}. {in_toml}"
    if isinstance(error, UnicodeError):
        return "It is not UTF-8 text. Save it as UTF-8."
    line = re.search(r"\bline (\d+)", str(error))
    lines = raw.decode("utf-8-sig").splitlines()
    number = int(line.group(1)) if line else 0
    if 0 < number <= len(lines) and _DECIMAL_COMMA.search(lines[number - 1]):
        return f"{error}. Write decimals with a point, as 0.5."
    if "overwrite a value" in str(error):
        return f"{error}. A key stands twice in a column: delete one of the two lines."
    return f"{error}."


def _other_format(raw: bytes, path: str) -> str | None:
    """The format that a file which is not TOML has in its place, where that can be seen."""
    try:
        json.loads(raw)
        return "JSON"
    except ValueError:
        is_yaml = path.lower().endswith((".yaml", ".yml")) or _YAML_START.match(raw)
        return "YAML" if is_yaml else None
