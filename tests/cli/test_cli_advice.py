"""What the commands say of an epsilon, on public numbers alone."""

from __future__ import annotations

import json

import pytest
from cli_words import FIT, RELEASE, Run
from densities import make_density

from pyro_mbde import Schema
from pyro_mbde.tables.files import TableModel

WEAK = "is a weak promise"
SHARE = "could just as well have been drawn from the public base"
BASE = "will look like the public base"
OPEN = ("budget", "open", "clinic", "--delta", 1e-6, "--ledger", "budget.db", "--epsilon")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*OPEN, 2), []),
        ((*OPEN, 4), [WEAK]),
        (("budget", "plan", "--epsilon", 2, "--num-draws", 4, "--delta", 0), [BASE]),  # a priori, half as wide
        (("budget", "plan", "--epsilon", 2, "--num-draws", 4, "--delta", 1e-6), [SHARE]),
        (("budget", "plan", "--epsilon", 10, "--num-draws", 4, "--delta", 1e-6), [WEAK, SHARE]),
        (("budget", "plan", "--epsilon", 10, "--num-draws", 500, "--delta", 1e-6), [WEAK, BASE]),
        (FIT, [SHARE]),
        ((*FIT, "--epsilon", 5), [WEAK, SHARE]),
        ((*FIT, "--epsilon", 0.4), [BASE]),
        ((*FIT, "--epsilon", 0.5, "--delta", 0), [BASE]),
        ((*FIT, "--epsilon", 0.5, "--method", "mbde-paper", "--rounds", 1), [BASE]),
    ],
)
def test_advice(words: tuple[object, ...], said: list[str], run: Run) -> None:
    result = run(*words, "--json")
    remarks = json.loads(result.stdout)["advice"]
    assert all(text in remark for text, remark in zip(said, remarks, strict=True))
    assert [text for text in (WEAK, BASE) if text in result.stderr] == [text for text in said if text != SHARE]
    assert ("a row, at least" in result.stderr) == (words[1] != "open")


def test_quiet(run: Run) -> None:
    assert run(*OPEN, 10, "--quiet").stderr == ""


@pytest.mark.parametrize(
    ("total", "row", "said"), [(3, 1.0, [SHARE]), (3, 0.5, [BASE]), (6, 0.5, [WEAK, BASE])]
)  # a priori, as far from the base as 0.25 calibrated
def test_advice_on_a_release(total: float, row: float, said: list[str], run: Run) -> None:
    schema = Schema.from_toml("schema.toml")
    TableModel(make_density(schema.base(), epsilon=row), schema).save("model.pt")
    run(*OPEN, total)
    result = run(*RELEASE, "--json")
    remarks = json.loads(result.stdout)["advice"]
    assert all(text in remark for text, remark in zip(said, remarks, strict=True))
    assert (BASE in result.stderr) == (BASE in said)
    assert result.stderr == "".join(f"{remark}\n" for remark in remarks)


def test_advice_comes_before_the_question(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro_mbde.cli.console.is_terminal", lambda stream: True)
    said = run(*OPEN, 10, code=1, input="n\n").stderr
    assert said.index(WEAK) < said.index("Open it?")
