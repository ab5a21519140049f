"""``pyro-mbde reproduce`` and ``pyro-mbde bench``: commands of the experiments, imported when they are used."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
from typing import Any, TextIO

import click

from pyro_mbde.cli.console import Console
from pyro_mbde.cli.shared import SHARED_OPTIONS


class LazyCommand(click.Command):
    """Stands for a command that is imported when it runs, shows its help, or has a table in the file of options.

    Args:
        name: of the command.
        module: where it is, as ``main``.
        short_help: in the list of commands.
    """

    def __init__(self, name: str, module: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self._module = module

    @property
    def loaded(self) -> click.Command:
        """The command itself."""
        command: click.Command = importlib.import_module(self._module).main
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Returns the context of the command itself, which runs in this one's place."""
        return self.loaded.make_context(info_name, args, parent, **extra)


class PrintingCommand(click.Command):
    """A command that prints lines as it goes: with --json they are one document, with --quiet there are no bars."""

    def __init__(self, *args: Any, **options: Any) -> None:
        # Its own, as the first context that a command is run in decides which options show its help.
        options.setdefault("context_settings", {"help_option_names": ["-h", "--help"]})
        super().__init__(*args, **options)
        for option in SHARED_OPTIONS:
            option(self)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses arguments, and notes them for the answer: all of them, where this is a command of a group."""
        ctx.meta.setdefault(__name__, [word for word in args if word not in ("--json", "--quiet")])
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        """Runs the command."""
        console = Console(ctx.params.pop("as_json"), ctx.params.pop("quiet"))
        arguments, output = ctx.meta[__name__], io.StringIO()
        with contextlib.ExitStack() as stack:
            if console.as_json:
                stack.enter_context(contextlib.redirect_stdout(output))
            if console.quiet:
                stack.enter_context(contextlib.redirect_stderr(_WithoutBars(sys.stderr)))
            super().invoke(ctx)
        if console.as_json:
            console.answer({"arguments": arguments, "output": output.getvalue().splitlines()}, "")


class PrintingGroup(PrintingCommand, click.Group):
    """A group of commands that print."""

    command_class = PrintingCommand


class _WithoutBars(io.TextIOBase):
    """A stream without progress bars, which begin with a carriage return, and without the empty lines they leave."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if "\r" not in text and text.strip():
            self._stream.write(text)
        return len(text)


reproduce_command = LazyCommand(
    "reproduce",
    "pyro_mbde.experiments.__main__",
    "Measure and draw the figures of the paper and of the documentation.",
)
bench_command = LazyCommand(
    "bench", "pyro_mbde.experiments.bench", "Measure how good and how fast the library is on the paper's problems."
)
