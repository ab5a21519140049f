"""The command and what it exits with."""

from __future__ import annotations

import io
import os
import sys
import warnings
from importlib.metadata import version
from typing import Any

import click

from pyro_mbde._signals import finished_once_begun
from pyro_mbde.cli.audit import audit_command
from pyro_mbde.cli.budget import budget_group
from pyro_mbde.cli.config import config_option
from pyro_mbde.cli.console import flush_streams, tell
from pyro_mbde.cli.diagnose import diagnose_command
from pyro_mbde.cli.errors import USER_ERRORS, error_text, is_unexpected
from pyro_mbde.cli.fit import fit_command
from pyro_mbde.cli.forward import bench_command, reproduce_command
from pyro_mbde.cli.preview import preview_command
from pyro_mbde.cli.ranked import check_one_process, speaker
from pyro_mbde.cli.release import release_command
from pyro_mbde.cli.report import report_command
from pyro_mbde.cli.schema import schema_group
from pyro_mbde.cli.shared import BUDGET_REFUSED, EXAMPLES, INTERRUPTED, USER_ERROR


class Application(click.Group):
    """A group of commands that turns every outcome into an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Lists the commands in the order in which they are used."""
        return list(self.commands)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Runs the command and, in click's standalone mode, exits with its code."""
        if not extra.pop("standalone_mode", True):
            return self._start(*args, **extra)
        with finished_once_begun():
            with warnings.catch_warnings():
                if not sys.warnoptions:
                    warnings.simplefilter("ignore")
                    warnings.simplefilter("default", UserWarning)
                warnings.showwarning = _show_warning
                code = self._run(*args, **extra)
            flush_streams()
        sys.exit(code)

    def _start(self, *args: Any, **extra: Any) -> Any:
        start: Any = super().main
        return start(*args, **extra, standalone_mode=False)

    def _run(self, *args: Any, **extra: Any) -> int:
        try:
            outcome = self._start(*args, **extra)
            return outcome if isinstance(outcome, int) else 0
        except click.Abort as error:
            if speaker(error) is not None:
                tell("Interrupted.")
            return INTERRUPTED
        except click.ClickException as error:
            shown = io.StringIO()
            error.show(shown)
            whose = speaker(error)
            if whose is not None:
                tell(whose + shown.getvalue().rstrip("\n"))
            return error.exit_code
        except USER_ERRORS as error:
            if os.environ.get("PYRO_MBDE_DEBUG", "0") != "0":
                raise
            whose = speaker(error)
            if whose is not None:
                tell(f"Error: {whose}{error_text(error)}")
            if whose is not None and is_unexpected(error):
                tell(f"This is a {type(error).__name__}; PYRO_MBDE_DEBUG=1 shows where it comes from.")
            return BUDGET_REFUSED if _is_refusal(error) else USER_ERROR


def _is_refusal(error: Exception) -> bool:
    ledger: Any = sys.modules.get("pyro_mbde.ledger.ledger")
    return ledger is not None and isinstance(error, ledger.BudgetExceededError)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: object = None,
) -> None:
    tell(f"Warning: {message}")


@click.group(
    cls=Application,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=f"""\b
{EXAMPLES}
  pyro-mbde budget open clinic-2026 --epsilon 3 --ledger budget.db
  pyro-mbde fit patients.csv --schema schema.toml --epsilon 3 --rows 10 -o model.pt
  pyro-mbde release model.pt --ledger budget.db --account clinic-2026 -o public/rows.csv
  pyro-mbde budget verify --ledger budget.db

\b
Exit codes:
  0 done, 1 an error that you can correct, 2 wrong usage, 3 the budget refused,
  4 a verification, audit or check of chains failed, 130 interrupted.
  0 also if something was charged or opened and the answer could not be shown.

\b
Set PYRO_MBDE_DEBUG=1 to see where an error comes from. Completion of commands and options in bash (or zsh, fish):
  eval "$(_PYRO_MBDE_COMPLETE=bash_source pyro-mbde)"
""",
)
@config_option
@click.version_option(version("pyro_mbde"), prog_name="pyro-mbde")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Fit integrally private densities to tables, hand out rows drawn from them, and keep the budget.

    Epsilon, delta, skew, the schema and the number of rows must be chosen without looking at the table or at a result.
    """
    check_one_process(ctx.invoked_subcommand)


for command in (
    schema_group,
    preview_command,
    fit_command,
    release_command,
    budget_group,
    report_command,
    diagnose_command,
    audit_command,
    reproduce_command,
    bench_command,
):
    main.add_command(command)
