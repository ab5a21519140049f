"""Help: examples that parse, completion, and a start without PyTorch."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest
from cli_words import ROOT, Run, commands
from click.testing import CliRunner


class TestHelp:
    @pytest.mark.parametrize("words", [(), *commands()], ids=" ".join)
    def test_every_command_has_examples(self, words: tuple[str, ...], run: Run) -> None:
        text = run(*words, "--help").stdout
        assert text.startswith(f"Usage: {' '.join(['pyro-mbde', *words])}")
        assert "Examples:\n    pyro-mbde " in text
        if words and words not in (("budget",), ("schema",)):
            assert "--json" in text
            assert "--quiet" in text
            assert "--config" in text

    def test_help_of_what_is_handed_on(self, run: Run) -> None:
        assert "--repeats" in run("bench", "fit", "--help").stdout
        assert "FIGURE" in run("reproduce", "-h").stdout

    @pytest.mark.parametrize(
        ("module", "words"), [("experiments.__main__", ["reproduce"]), ("experiments.bench", ["bench", "gain"])]
    )
    def test_help_where_the_command_was_run_by_itself_before(self, run: Run, module: str, words: list[str]) -> None:
        """A command keeps the options that its first context gave it."""
        command = importlib.import_module(f"pyro_mbde.{module}").main
        CliRunner().invoke(command, [*words[1:], "--help"])
        assert "Usage" in run(*words, "-h").stdout

    def test_exit_codes_are_told(self, run: Run) -> None:
        assert "3 the budget refused" in run("--help").stdout

    def test_version(self, run: Run) -> None:
        assert run("--version").stdout.startswith("pyro-mbde, version ")

    @pytest.mark.parametrize(
        "words", [["--help"], ["fit", "--help"], ["budget", "open", "-h"], ["--version"]], ids=" ".join
    )
    def test_help_does_not_import_the_library(self, words: list[str]) -> None:
        script = (
            "import sys\n"
            "from pyro_mbde.cli import main\n"
            f"try: main({words!r}, prog_name='pyro-mbde')\n"
            "except SystemExit as end: assert end.code == 0\n"
            "heavy = {'torch', 'pyro', 'numpy', 'pandas', 'matplotlib', 'pyro_mbde.tables'} & set(sys.modules)\n"
            "assert not heavy, heavy\n"
        )
        subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True)

    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_completion_scripts(self, shell: str) -> None:
        completed = spawn({"_PYRO_MBDE_COMPLETE": f"{shell}_source"})
        assert completed.returncode == 0
        assert f"_PYRO_MBDE_COMPLETE={shell}_complete" in completed.stdout

    @pytest.mark.parametrize(
        ("typed", "expected"),
        [
            ("pyro-mbde bu", "plain,budget"),
            ("pyro-mbde fit --met", "plain,--method"),
            ("pyro-mbde budget ver", "plain,verify"),
        ],
    )
    def test_completion(self, typed: str, expected: str) -> None:
        asked = {"_PYRO_MBDE_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
        assert spawn(asked).stdout.splitlines() == [expected]


def spawn(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs the command without words in a separate process."""
    known = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-m", "pyro_mbde.cli"]
    return subprocess.run(command, env=known, capture_output=True, text=True, timeout=300)
