"""``report``, ``diagnose``, ``audit``, and what is handed on to other commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from cli_words import RELEASE, Run
from schemas import TOML

import pyro_mbde
from pyro_mbde import AuditReport
from pyro_mbde.sampling.plan import KERNELS
from pyro_mbde_cli import diagnose


class TestReport:
    def test_model(self, model: Path, run: Run) -> None:
        result = run("report", model, "--table", "table.csv")
        assert result.stdout == "model.report.html\n"
        assert "as sensitive as the table" in result.stderr
        assert "PRIVATE - do not hand out" in Path("model.report.html").read_text()
        run("report", model, code=1)
        assert json.loads(run("report", model, "-o", "r.html", "--json").stdout) == {"report": "r.html"}
        run("report", model, "-o", "r.json", "--table", "table.csv")
        assert json.loads(Path("r.json").read_text())["scores"]["num_rows"] == 300

    def test_card(self, model: Path, run: Run) -> None:
        run("budget", "open", "clinic", "--epsilon", 5, "--ledger", "budget.db")
        run(*RELEASE)
        text = run("report", "rows.card.json").stdout
        assert "guarantee of one row:\n  epsilon: 1\n" in text
        assert "columns:\n  - name age, low 0, high 110, whole no\n  - name visits," in text
        assert "draws:\n  fixed work: yes\n" in text
        assert "\ndoes not promise:\n  - That the rows are true of anybody" in text
        assert "who" not in [line.partition(":")[0] for line in text.splitlines()]  # nobody was named
        assert json.loads(run("report", "rows.card.json", "--json").stdout) == json.loads(
            Path("rows.card.json").read_text()
        )
        run("report", "rows.card.json", "--table", "table.csv", code=2)
        assert "without release cards" in run("report", model, code=1).stderr
        card = {"format": "pyro_mbde.release_card", "version": 1, "left": 0.39999999999999997, "tags": ["a", "b"]}
        Path("short.card.json").write_text(json.dumps(card))
        assert run("report", "short.card.json").stdout.endswith("\nleft: 0.4\ntags: a, b\n")

    @pytest.mark.parametrize("content", ["[1]", "{"])
    def test_no_card(self, content: str, run: Run) -> None:
        Path("x.json").write_text(content)
        assert "must be a card" in run("report", "x.json", code=1).stderr


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{}", "must be a card, which a release writes"),
        ('{"format": "pyro_mbde.release_card", "version": 99}', "must be a card of version 1. Update pyro_mbde"),
    ],
)
def test_what_is_no_card(content: str, text: str, run: Run) -> None:
    Path("card.json").write_text(content)
    assert text in run("report", "card.json", code=1).stderr


class TestDiagnose:
    def test_the_kernels_are_all_there(self) -> None:
        assert set(diagnose.KERNELS) == set(KERNELS)

    def test_passed(self, model: Path, run: Run) -> None:
        words = ("diagnose", model, "--seed", 0, "--num-samples", 1500, "--num-chains", 8)
        result = run(*words, "--json")
        document = json.loads(result.stdout)
        assert document["passed"]
        assert [parameter["name"] for parameter in document["parameters"]] == ["x[0]", "x[1]"]
        assert Path("model.mixing.png").read_bytes().startswith(b"\x89PNG")
        assert "as sensitive as the table" in result.stderr
        assert "--force" in run(*words, code=1).stderr

    def test_failed(self, model: Path, run: Run) -> None:
        words = ("--num-samples", 10, "--num-chains", 2, "--warmup-steps", 0, "-o", "m.svg")
        assert "FAILED" in run("diagnose", model, *words, code=4).stdout
        assert "<svg" in Path("m.svg").read_text()
        run("diagnose", model, "-o", "m.txt", code=2)

    def test_interrupted(self, model: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        real = pyro_mbde.run_mcmc
        monkeypatch.setattr(
            pyro_mbde, "run_mcmc", lambda *words, num_samples, **how: real(*words, num_samples=num_samples // 2, **how)
        )
        words = ("--num-samples", 40, "--num-chains", 2, "--warmup-steps", 10)
        assert "20 draws" in run("diagnose", model, *words, code=130).stdout


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
        text = run("audit", "--epsilon", 1, "--steps", 2, "--seed", 0).stdout
        assert text.startswith("claimed epsilon 1, proven ")
        assert "; passed\n" in text
        assert asked["density"].guarantee.delta == 1e-9
        assert asked["base"].event_shape == (2,)
        assert (asked["num_pairs"], asked["num_draws"], asked["confidence"]) == (6, 20_000, 0.95)

    def test_failed(self, asked: dict[str, Any], run: Run) -> None:
        """An epsilon is claimed that the trainer does not keep to."""
        asked["claimed"] = 0.01
        result = run("audit", "--epsilon", 1, "--steps", 2, "--method", "mbde-paper", "--rounds", 1, "--json", code=4)
        document = json.loads(result.stdout)
        assert not document["passed"]
        assert {finding["severity"] for finding in document["findings"]} >= {"fault"}
        assert document["recipe"]["method"] == "mbde-paper"

    def test_what_the_file_fits_with(self, asked: dict[str, Any], run: Run) -> None:
        text = "[fit]\nepsilon = 3\nsteps = 2\nmethod = 'mbde'\nrounds = 2\noutput = 'm.pt'\n[audit]\nepsilon = 2\n"
        Path("c.toml").write_text(text + TOML)
        run("audit", "--config", "c.toml")
        assert asked["epsilon"] == 2
        assert len(asked["density"].natural_params) == 2
        assert asked["base"].base_dist.high[0] == 110


class TestHandedOn:
    def test_arguments(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        draw = "pyro_mbde.experiments.__main__._draw_guide"
        monkeypatch.setattr(draw, lambda name, *where, **how: print(name, *where))
        result = run("reproduce", "mollifier", "--output", "here", "skew", "--redraw")
        assert result.stdout == "mollifier here\nskew here\n"
        document = json.loads(run("reproduce", "--json", "mollifier", "--output", "here").stdout)
        assert document == {"arguments": ["mollifier", "--output", "here"], "output": ["mollifier here"]}

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
