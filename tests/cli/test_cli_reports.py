"""``report``, ``audit``, and what is handed on to other commands."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import click
import pytest
from cli_words import RELEASE, Run
from schemas import TOML

import pyro_mbde
from pyro_mbde import AuditReport
from pyro_mbde.cli.forward import PrintingCommand


class TestReport:
    def test_model(self, model: Path, run: Run) -> None:
        result = run("report", model, "--table", "table.csv")
        assert result.stdout.startswith("model.report.html\nYour rows will look like the public base")
        assert "as sensitive as the table" in result.stderr
        page = Path("model.report.html").read_text()
        assert "PRIVATE - do not hand out" in page
        assert "<figcaption>visits</figcaption>" in page
        run("report", model, code=1)
        document = json.loads(run("report", model, "-o", "r.html", "--json").stdout)
        assert document["report"] == "r.html"
        assert document["verdict"].startswith("Of your rows, ")
        run("report", model, "-o", "r.json", "--table", "table.csv")
        assert json.loads(Path("r.json").read_text())["scores"]["num_rows"] == 300

    def test_target(self, model: Path, run: Run) -> None:
        text = run("report", model, "-o", "r.json", "--table", "table.csv", "--target", "visits").stdout
        assert re.search(r"visits predicted from the other columns, R², trained on .* -?\d\.\d\d", text)
        assert json.loads(Path("r.json").read_text())["prediction"]["target"] == "visits"
        said = " ".join(run("report", model, "--target", "visits", code=2).stderr.split())
        assert "--target needs the table" in said
        said = run("report", model, "-o", "s.json", "--table", "table.csv", "--target", "visit", code=1).stderr
        assert "target must name one of" in said

    @pytest.mark.parametrize("source", ["model.pt", "table.csv", "options.toml"])
    def test_what_it_reads_is_never_replaced(self, source: str, model: Path, run: Run) -> None:
        Path("options.toml").write_text("[report]\nquiet = true\n")
        before = Path(source).read_bytes()
        words = ("report", model, "--table", "table.csv", "--config", "options.toml", "-o", source, "--force")
        assert f"'--output' names {source}, which this command reads" in run(*words, code=2).stderr
        assert Path(source).read_bytes() == before

    def test_card(self, model: Path, run: Run) -> None:
        run("budget", "open", "clinic", "--epsilon", 5, "--ledger", "budget.db")
        run(*RELEASE)
        text = run("report", "rows.card.json").stdout
        page = unescape(re.sub("<[^>]+>", " ", Path("rows.card.html").read_text())).replace("\xa0", " ")
        for heading in re.findall("<h2>(.*)</h2>", Path("rows.card.html").read_text()):
            assert f"\n{heading}\n-" in text
        told, said = " ".join(page.split()), " ".join(text.split())
        card = json.loads(Path("rows.card.json").read_text())
        for words in (card["likeness"]["text"], card["protects"], *card["meaning"], *card["does_not_promise"]):
            assert words in told and words in said
        assert re.search(r"visits +\S+ +\S+  ", text)
        assert max(map(len, text.splitlines())) <= 100
        assert "{" not in text and "_" not in text.replace("pyro_mbde", "").replace("D_", "")
        Path("old.card.json").write_text(json.dumps({key: card[key] for key in card if key != "likeness"}))
        assert "What the rows are like" not in run("report", "old.card.json").stdout
        Path("odd.card.json").write_text(json.dumps(card | {"purpose": "a\x1b[2Jb"}))
        assert "\x1b" not in run("report", "odd.card.json").stdout
        assert json.loads(run("report", "rows.card.json", "--json").stdout) == json.loads(
            Path("rows.card.json").read_text()
        )
        run("report", "rows.card.json", "--table", "table.csv", code=2)
        assert "without release cards" in run("report", model, code=1).stderr

    def test_rows_point_to_their_card(self, model: Path, run: Run) -> None:
        run("budget", "open", "clinic", "--epsilon", 5, "--ledger", "budget.db")
        run(*RELEASE)
        for name in ("rows.csv", "rows.card.html"):
            said = " ".join(run("report", name, code=2).stderr.split())
            assert (
                f"{name} was released: what is guaranteed is on its card. Run: pyro-mbde report rows.card.json" in said
            )
        said = " ".join(run("report", "table.csv", code=2).stderr.split())
        assert "table.csv must be a model that `pyro-mbde fit` wrote, or the card beside released rows" in said
        assert not Path("table.report.html").exists()

    @pytest.mark.parametrize("content", ["[1]", "{"])
    def test_files_that_are_not_cards(self, content: str, run: Run) -> None:
        Path("x.json").write_text(content)
        assert "must be a card" in run("report", "x.json", code=1).stderr


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{}", "must be a card, which a release writes"),
        ('{"format": "pyro_mbde.release_card", "version": 1, "account": 3}', "must be a whole card"),
        ('{"format": "pyro_mbde.release_card", "version": 99}', "must be a card of version 1. Update pyro_mbde"),
    ],
)
def test_json_that_is_not_a_card(content: str, text: str, run: Run) -> None:
    Path("card.json").write_text(content)
    assert text in run("report", "card.json", code=1).stderr


class TestAudit:
    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """What an audit is asked for, which then does less; 'claimed' in it is claimed in place of what was asked."""
        asked: dict[str, Any] = {}
        real = pyro_mbde.audit

        def audit(fit: Callable[[Any], Any], epsilon: float, **options: Any) -> AuditReport:
            def fitting(table: Any) -> Any:
                asked["density"] = fit(table)
                return asked["density"]

            asked.update(options, epsilon=epsilon)
            return real(fitting, asked.get("claimed", epsilon), **{**options, "num_pairs": 1, "num_draws": 1000})

        monkeypatch.setattr(pyro_mbde, "audit", audit)
        return asked

    def test_passed(self, asked: dict[str, Any], run: Run) -> None:
        result = run("audit", "--epsilon", 1, "--steps", 2, "--seed", 0)
        text = result.stdout
        assert "fitting 'tail against rest', first table" in result.stderr  # also without a terminal: it takes minutes
        assert text.startswith("claimed epsilon 1, proven ")
        assert "; passed\n" in text
        assert asked["density"].guarantee.delta == 1e-9
        assert asked["base"].event_shape == (2,)
        assert (asked["num_pairs"], asked["num_draws"], asked["confidence"]) == (6, 20_000, 0.95)

    def test_failed(self, asked: dict[str, Any], run: Run) -> None:
        """An epsilon is claimed that the trainer does not keep to."""
        asked["claimed"] = 0.01
        words = ("--epsilon", 1, "--steps", 2, "--method", "mbde-paper", "--rounds", 1, "--json", "--quiet")
        result = run("audit", *words, code=4)
        assert result.stderr == ""
        document = json.loads(result.stdout)
        assert not document["passed"]
        assert {finding["severity"] for finding in document["findings"]} >= {"fault"}
        assert document["recipe"]["method"] == "mbde-paper"

    def test_what_the_file_fits_with(self, asked: dict[str, Any], run: Run) -> None:
        text = "[fit]\nepsilon = 3\nsteps = 2\nmethod = 'mbde'\nrounds = 1\noutput = 'm.pt'\n[audit]\nepsilon = 2\n"
        Path("c.toml").write_text(text + TOML)
        run("audit", "--config", "c.toml")
        assert asked["epsilon"] == 2
        assert len(asked["density"].natural_params) == 1
        assert asked["base"].marginals[0].high == 110


class TestHandedOn:
    def test_arguments(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        draw = "pyro_mbde.experiments.__main__._draw_guide"
        monkeypatch.setattr(draw, lambda name, *where, **how: print(name, *where))
        result = run("reproduce", "mollifier", "--output", "here", "skew", "--redraw")
        assert result.stdout == "mollifier here\nskew here\n"
        document = json.loads(run("reproduce", "--json", "mollifier", "--output", "here").stdout)
        assert document == {"arguments": ["mollifier", "--output", "here"], "output": ["mollifier here"]}

    @pytest.mark.parametrize("words", [("--json", "told"), ("told", "--json")])
    def test_commands_of_a_group(self, words: tuple[str, ...], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        bench = importlib.import_module("pyro_mbde.experiments.bench").main
        told = PrintingCommand("told", callback=lambda: click.echo("a line"))
        monkeypatch.setitem(bench.commands, "told", told)
        assert json.loads(run("bench", *words).stdout) == {"arguments": ["told"], "output": ["a line"]}

    @pytest.mark.parametrize(("words", "code"), [(("nothing",), 2), (("--bogus",), 2), (("metrics", "--redraw"), 1)])
    def test_errors(self, words: tuple[str, ...], code: int, run: Run) -> None:
        assert run("reproduce", *words, "--output", "here", code=code).stderr

    def test_quiet_leaves_out_bars(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        from tqdm import tqdm

        def draw(*_: object, **__: object) -> None:
            for _ in tqdm(range(3)):
                pass
            click.echo("a warning", err=True)

        monkeypatch.setattr("pyro_mbde.experiments.__main__._draw_guide", draw)
        assert "100%" in run("reproduce", "mollifier").stderr
        assert run("reproduce", "mollifier", "--quiet").stderr == "a warning\n"
