"""Errors in the words of the command line, and numbers as it takes them."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
import torch
from cli_words import FIT, Run, commands

from pyro_mbde._checks import argument_error, check_count, check_number
from pyro_mbde.cli import main
from pyro_mbde.cli.errors import error_text, is_unexpected, note_command
from pyro_mbde.cli.numbers import NUMBER, Whole

CONTEXT = click.Context(main.commands["release"], info_name="release")
CONTEXT.params = {"account": "it's 2026. ok", "num_rows": 3, "purpose": ""}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (argument_error("num_rows", "be at most 5", 6, "Ask less."), "NUM_ROWS must be at most 5, got 6. Ask less."),
        (argument_error("ledger", "name a file", "x. y"), "--ledger must name a file, got 'x. y'."),
        (argument_error("name", "be there", "it's 2026. ok"), '--account must be there, got "it\'s 2026. ok".'),
        (
            argument_error("path", "hold a table", "a b.csv", "It is empty."),
            "'a b.csv' must hold a table. It is empty.",
        ),
        (argument_error("expected_head", "be whole", "f"), "expected_head must be whole, got expected_head='f'."),
        (argument_error("columns", "be Columns", (1, 2)), "columns must be Columns, got columns=(1, 2)."),
        ("column 'age': low must be finite, got low=inf.", "column 'age': low must be finite, got low=inf."),
        ("Nothing of the kind.", "Nothing of the kind."),
        ("", "ValueError"),
    ],
)
def test_options_in_place_of_arguments(text: str, said: str) -> None:
    error = ValueError(text)
    note_command(error, CONTEXT)
    assert error_text(error) == said
    assert error_text(ValueError("num_draws must be at most 5, got num_draws=6.")).startswith("num_draws must")


def test_an_error_of_the_operating_system() -> None:
    error = FileNotFoundError(2, "No such file or directory", "x.csv")
    assert error_text(error) == "No such file or directory: x.csv"


def test_what_may_be_a_mistake_of_the_library() -> None:
    def caught(action: object, *words: object) -> Exception:
        with pytest.raises((TypeError, RuntimeError, ValueError)) as caught:
            action(*words)  # type: ignore[operator]
        return caught.value

    assert is_unexpected(caught(lambda: 1 + "1"))  # type: ignore[operator]
    assert is_unexpected(caught(torch.zeros(2).__matmul__, torch.zeros(3)))
    assert is_unexpected(caught(check_number, "x", 1, "be", None))  # raised by Python, in the library
    assert not is_unexpected(caught(check_count, "x", "1"))
    assert not is_unexpected(caught(check_count, "x", 0))


def test_a_table_of_another_form_is_not_a_mistake_of_the_library(run: Run) -> None:
    Path("table.csv").write_text("age,visits\n1,unknown\n")
    assert "PYRO_MBDE_DEBUG" not in run(*FIT, code=1).stderr


def test_a_mistake_of_the_library(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro_mbde.tables.files.read_table", lambda path, **_: path + 1)
    said = run(*FIT, code=1).stderr
    assert said.endswith("This is a TypeError; PYRO_MBDE_DEBUG=1 shows where it comes from.\n")


@pytest.mark.parametrize(
    "text", ["1_0", "\uff11", "1,5", "0x1F", "", " 1", "1 ", "1e", "--1", "1.5.2", "Infinity", True]
)
def test_what_is_not_a_number(text: object) -> None:
    with pytest.raises(click.BadParameter, match="is not a number"):
        NUMBER.convert(text, None, None)
    with pytest.raises(click.BadParameter, match="is not a whole number"):
        Whole(1).convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), ("-0.5", -0.5), (".5", 0.5), ("5.", 5), ("+1e-6", 1e-6), ("inf", float("inf")), (3, 3)],
)
def test_numbers(text: object, number: float) -> None:
    assert NUMBER.convert(text, None, None) == number
    assert Whole(1).convert(str(7), None, None) == 7
    for fraction in ("1.5", 1.5, 20.0, "1e3", "9" * 401):
        with pytest.raises(click.BadParameter, match="is not a whole number"):
            Whole(1).convert(fraction, None, None)
    with pytest.raises(click.BadParameter, match="is too large"):
        NUMBER.convert(10**400, None, None)


def test_every_number_of_a_command_is_plain() -> None:
    """Python's own types take underscores and the digits of all scripts, and cut off what is behind a point."""
    for words in commands():
        command: click.Command = main
        for word in words:
            assert isinstance(command, click.Group)
            command = command.commands[word]
        for parameter in command.params:
            assert type(parameter.type) not in (click.types.IntParamType, click.IntRange), (words, parameter.name)
            assert type(parameter.type) not in (click.types.FloatParamType, click.FloatRange), (words, parameter.name)
