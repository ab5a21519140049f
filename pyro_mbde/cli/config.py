"""Options from one TOML file: a table for each command, and the schema."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from pyro_mbde.cli.numbers import HOW_TO_WRITE_WHOLE, is_whole, shortened

#: Keys of a schema; those of ``tables/schema.py``, which would import torch.
SCHEMA_KEYS = ("columns", "correlations", "constraints", "condition", "public_rows")
_PATH, _CONTENT, _READ = (f"pyro_mbde.cli.config.{name}" for name in ("path", "content", "read"))
_IN_TOML = "Write a table for each command, such as [fit], and below it an option on each line: epsilon = 0.5"


def config_columns(ctx: click.Context) -> dict[str, Any] | None:
    """Returns the schema in the file, as plain values, or None where there is none."""
    content = ctx.meta.get(_CONTENT, {})
    return {key: content[key] for key in SCHEMA_KEYS if key in content} or None


def config_files(ctx: click.Context) -> list[Path]:
    """Returns the files of options that were read."""
    return list(ctx.meta.get(_READ, []))


def _read(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    path = value or ctx.meta.get(_PATH)
    if path is None:
        return
    ctx.meta[_PATH] = path
    if _CONTENT not in ctx.meta or value is not None:
        ctx.meta[_CONTENT] = _load(ctx, path)
        ctx.meta[_READ] = [*config_files(ctx), path]
    section: Any = ctx.meta[_CONTENT]
    for name in _names(ctx):
        section = section.get(name, {})
    # A command may take options of another where its own table has none.
    source, keys = getattr(ctx.command, "inherits", ("", ()))
    inherited = ctx.meta[_CONTENT].get(source, {})
    ctx.default_map = {**{key: inherited[key] for key in keys if key in inherited}, **section}


def _load(ctx: click.Context, path: Path) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}", ctx) from error
    try:
        content = tomllib.loads(raw.decode("utf-8-sig"))
    except ValueError as error:  # of TOML and of UTF-8
        from pyro_mbde.tables.toml import toml_fault

        raise click.UsageError(f"{path}: {toml_fault(raw, str(path), error, _IN_TOML)}", ctx) from error
    try:
        return check_section(ctx.find_root().command, content, "")
    except ValueError as error:
        raise click.UsageError(f"{path}: {error}", ctx) from error


config_option = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="TOML",
    is_eager=True,
    expose_value=False,
    callback=_read,
    help="File of options: a table for each command, [[columns]] for the schema. Flags override it.",
)


def _names(ctx: click.Context) -> list[str]:
    """The commands that lead to this one, without the first."""
    return [] if ctx.parent is None else [*_names(ctx.parent), ctx.info_name or ""]


def check_section(command: click.Command, content: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Returns a command's table with its keys as parameters are named.

    Args:
        command: whose table.
        content: the table.
        place: what to call it in errors; empty for the whole file.
    """
    command = getattr(command, "loaded", command)
    subcommands = getattr(command, "commands", None)
    if subcommands is not None:
        return _check_group(subcommands, content, place)
    parameters = {_key(parameter): parameter for parameter in command.params if parameter.name not in _UNNAMEABLE}
    checked = {}
    for key, value in content.items():
        parameter = parameters.get(key.replace("_", "-"))
        if parameter is None:
            raise ValueError(_unknown(place, parameters, key))
        checked[parameter.name] = _check_value(parameter, value, f"{key} in {place}")
    return checked


_UNNAMEABLE = ("help", "config")


def _check_group(subcommands: Mapping[str, click.Command], content: Mapping[str, Any], place: str) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for key, value in content.items():
        if not place and key in SCHEMA_KEYS:
            checked[key] = value  # checked with the schema
            continue
        if key not in subcommands:
            raise ValueError(_unknown(place, [*subcommands, *([] if place else SCHEMA_KEYS)], key))
        inner = f"[{f'{place[1:-1]}.' if place else ''}{key}]"
        if not isinstance(value, dict):
            raise ValueError(f"{key} must be a table, {inner}.")
        checked[key] = check_section(subcommands[key], value, inner)
    return checked


def _unknown(place: str, known: Iterable[str], key: str) -> str:
    close = get_close_matches(key.replace("_", "-"), known, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{place or 'the file'} must have keys among {', '.join(known)}, got the key {key!r}.{hint}"


def _key(parameter: click.Parameter) -> str:
    """How a parameter is called in the file: as its long flag, or as the argument's name."""
    flags = [flag for flag in parameter.opts if flag.startswith("--")]
    return flags[0].removeprefix("--") if flags else str(parameter.name).replace("_", "-")


def _check_value(parameter: click.Parameter, value: Any, subject: str) -> Any:
    if parameter.multiple or parameter.nargs != 1:
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list):
            raise ValueError(f"{subject} must be a text or a list of texts.")
        return [_check_one(parameter, item, subject) for item in value]
    return _check_one(parameter, value, subject)


def _check_one(parameter: click.Parameter, value: Any, subject: str) -> Any:
    is_flag = getattr(parameter, "is_flag", False)
    if isinstance(value, bool) != is_flag or not isinstance(value, bool | int | float | str):
        raise ValueError(f"{subject} must be {'true or false' if is_flag else 'a number or text'}.")
    # Click would cut off the fraction.
    if isinstance(parameter.type, click.types.IntParamType) and not is_whole(value):
        raise ValueError(f"{subject} must be a whole number, got {shortened(value)}. {HOW_TO_WRITE_WHOLE}")
    return value
