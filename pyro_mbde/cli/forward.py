"""``pyro-mbde reproduce`` and ``pyro-mbde bench``: the commands of the experiments, under this one."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
from typing import Any, TextIO, cast

import click

from pyro_mbde.cli.config import check_section
from pyro_mbde.cli.console import Console
from pyro_mbde.cli.shared import EXAMPLES, shared_options


class WithoutBars(io.TextIOBase):
    """A stream without progress bars, which begin with a carriage return, and without the empty lines that they leave.

    Args:
        stream: where the rest goes.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes text, unless it belongs to a bar."""
        if "\r" not in text and text.strip():
            self._stream.write(text)
        return len(text)


class Forward(click.Command):
    """A command that hands its arguments on to another one, and shows that one's help beside its own."""

    forwards = True
    target: str

    def load(self) -> click.Command:
        """Imports the other command."""
        return cast("click.Command", importlib.import_module(self.target).main)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the other command's help, then what this one adds."""
        other = self.load()
        with click.Context(other, info_name=ctx.command_path) as inner:
            other.format_help(inner, formatter)
        with formatter.section("Options of pyro-mbde"):
            options = (option for option in self.get_params(ctx) if isinstance(option, click.Option))
            records = (option.get_help_record(ctx) for option in options)
            formatter.write_dl([record for record in records if record is not None])
        self.format_epilog(ctx, formatter)


def _forward(name: str, target: str, summary: str, epilog: str) -> click.Command:
    @click.command(
        name,
        cls=Forward,
        short_help=summary,
        help=summary,
        epilog=f"\b\n{EXAMPLES}\n{epilog}",
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @shared_options
    @click.pass_context
    def run(ctx: click.Context, console: Console, arguments: tuple[str, ...]) -> None:
        if arguments and arguments[0] in ("-h", "--help"):
            click.echo(ctx.get_help())
            return
        command: Any = ctx.command
        other = command.load()
        own = ("as_json", "quiet")
        section = {key: value for key, value in (ctx.default_map or {}).items() if key not in own}
        options: dict[str, Any] = {}
        if section:
            try:
                options["default_map"] = check_section(other, section, f"[{name}]")
            except ValueError as error:
                raise click.UsageError(str(error), ctx) from error
        output = io.StringIO()
        with contextlib.ExitStack() as stack:
            if console.as_json:
                stack.enter_context(contextlib.redirect_stdout(output))
            if console.quiet:
                stack.enter_context(contextlib.redirect_stderr(WithoutBars(sys.stderr)))
            other.main(list(arguments), prog_name=ctx.command_path, standalone_mode=False, **options)
        if console.as_json:
            console.answer({"arguments": arguments, "output": output.getvalue().splitlines()}, "")

    run.target = target
    return run


reproduce_command = _forward(
    "reproduce",
    "pyro_mbde.experiments.__main__",
    "Measure and draw the figures of the paper and of the documentation.",
    """  pyro-mbde reproduce --quick
  pyro-mbde reproduce ring metrics --workers 4
  pyro-mbde reproduce gain --redraw
""",
)
bench_command = _forward(
    "bench",
    "pyro_mbde.experiments.bench",
    "Measure how good and how fast the library is on the paper's problems.",
    """  pyro-mbde bench gain
  pyro-mbde bench fit --repeats 5
""",
)
