"""The report for the owner: what is in it, and where it may not go."""

from __future__ import annotations

import json
import math
import stat
from pathlib import Path

import pyro.distributions as dist
import pytest
import torch
from cards import Links, pair
from densities import make_density, normal
from torch import Tensor

from pyro_mbde import MBDE, MollifiedExpFamily, private_report


@pytest.fixture(scope="module")
def fitted() -> tuple[MollifiedExpFamily, MBDE, Tensor]:
    rows = torch.randn(200, 2, generator=torch.Generator().manual_seed(0)) + 1
    trainer = MBDE(normal(2), 1.0, 2, seed=0, num_samples=200, progress=False)
    return trainer.fit(rows), trainer, rows


class TestPrivateReport:
    @pytest.mark.parametrize("kind", ["html", "json"])
    def test_what_is_in_it(self, kind: str, fitted: tuple[MollifiedExpFamily, MBDE, Tensor], tmp_path: Path) -> None:
        q, trainer, rows = fitted
        path = tmp_path / f"report.{kind}"
        report = private_report(q, rows, path=path, history=trainer.history)
        text = path.read_text()
        assert "PRIVATE - do not hand out" in text[: text.index("</h1>")] if kind == "html" else text[:60]
        assert report["fit"]["acceptance_rate"] == q.acceptance_rate
        assert report["fit"]["fingerprint"] == q.fingerprint
        expected = float(-q.log_prob(rows).double().mean())
        assert report["scores"]["negative_log_likelihood"] == pytest.approx(expected)
        assert len(report["history"]) == 2
        assert q.fingerprint in text
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        if kind == "json":
            assert json.loads(text) == report
        else:
            parser = Links()
            parser.feed(text)
            assert parser.loaded == parser.open == []

    def test_certificates(self) -> None:
        outcomes = [private_report(q)["fit"]["certificate"] for q in (*pair(), make_density(normal(2)))]
        assert outcomes == ["reached", "failed", "none needed"]

    def test_rows_outside_the_support(self) -> None:
        q = make_density(dist.Uniform(0.0, 1.0))
        with pytest.warns(UserWarning, match="outside the support"):
            scores = private_report(q, torch.tensor([0.5, 0.25, 7.0]))["scores"]
        assert (scores["num_rows"], scores["num_rows_outside_the_support"]) == (3, 1)
        assert math.isfinite(scores["negative_log_likelihood"])

    def test_an_error_of_rounding_is_left_out(self) -> None:
        q = make_density(normal(2))
        assert private_report(q, torch.randn(50, 2))["scores"]["standard_error_of_the_gain"] > 1e-9
        scores = private_report(q, torch.ones(50, 2))["scores"]
        assert scores["standard_error_of_the_gain"] is None and scores["gain_in_nats"] is not None

    def test_own_statistics_have_no_fingerprint(self) -> None:
        class Own(torch.nn.Module):
            def forward(self, value: Tensor) -> Tensor:
                return value[..., :1]

        q = MollifiedExpFamily(normal(2), Own(), torch.tensor([0.1]), 0.0)
        assert private_report(q)["fit"]["fingerprint"] is None

    def test_arguments(self, tmp_path: Path) -> None:
        q = make_density(normal(2))
        with pytest.raises(TypeError, match="q must be a MollifiedExpFamily"):
            private_report(normal(2))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="path must be a path"):
            private_report(q, path=3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="history must be a trainer's history"):
            private_report(q, history=[1])  # type: ignore[list-item]
        for name in ("report.txt", "report.card.html", "report.card.json"):
            with pytest.raises(ValueError, match="path must end in .html or .json"):
                private_report(q, path=tmp_path / name)
