"""Error texts of the command: options and files in place of the library's arguments."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Any

import click

#: Arguments of the library that an option has another name for.
_OPTIONS = {"total_epsilon": "epsilon", "expected_head": "head", "num_rows": "rows"}
#: The one form of argument errors, see ``pyro_mbde._checks.argument_error``.
_ARGUMENT = re.compile(
    r"""(?P<name>\w+)\ must\ (?P<constraint>.*?),\ got\ (?P=name)=
        (?P<value>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s]+?)\.(?P<rest>(?:\s.*)?)""",
    re.DOTALL | re.VERBOSE,
)
#: What a user can correct; anything else is a mistake of the library's and shows where it comes from.
USER_ERRORS = (ValueError, TypeError, OSError, ImportError, RuntimeError)
_COMMAND = "_pyro_mbde_command"


def note_command(error: Exception, ctx: click.Context) -> None:
    """Notes on an error the command that ended with it."""
    setattr(error, _COMMAND, ctx)


def error_text(error: Exception) -> str:
    """Returns what an error of a command says, of options and files in place of the library's arguments."""
    if isinstance(error, OSError) and error.errno in errno.errorcode and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    text = str(error) or type(error).__name__
    found = _ARGUMENT.fullmatch(text)
    if found is None:
        return text
    name, constraint, value, rest = found.group("name", "constraint", "value", "rest")
    if name == "path":
        return f"{value} must {constraint}.{rest}"
    ctx: click.Context | None = getattr(error, _COMMAND, None)
    label = None if ctx is None else _label(ctx, {name, _OPTIONS.get(name, name)}, value)
    return text if label is None else f"{label} must {constraint}, got {value}.{rest}"


def is_unexpected(error: Exception) -> bool:
    """Returns whether an error of a command may be a mistake of the library's, not one that it raises on purpose."""
    if type(error) not in (TypeError, RuntimeError):
        return False
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    inside = frame is not None and "pyro_mbde" in Path(frame.tb_frame.f_code.co_filename).parts
    return not (inside and str(error).endswith("."))  # it raises sentences, and Python does not


def _label(ctx: click.Context, names: set[str], value: str) -> str | None:
    """What the command line calls an argument: by its name, or by the text that it was given."""
    for parameter in ctx.command.params:
        if parameter.name in names:
            return _called(parameter)
    for parameter in ctx.command.params:
        given: Any = ctx.params.get(parameter.name or "")
        if isinstance(given, str) and given and repr(given) == value:
            return _called(parameter)
    return None


def _called(parameter: click.Parameter) -> str:
    flags = [flag for flag in parameter.opts if flag.startswith("--")]
    return flags[0] if flags else parameter.human_readable_name
