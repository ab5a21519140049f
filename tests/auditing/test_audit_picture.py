"""The picture of an audit: every line is there, and nothing is drawn outside of its axis."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from audits import boosted, quick_audit
from click.testing import CliRunner

from pyro_mbde import AuditReport
from pyro_mbde.auditing.picture import draw_audit, draw_audits
from pyro_mbde.auditing.report import PairResult, fault
from pyro_mbde.cli import main
from pyro_mbde.pictures import write_picture

REPORT = AuditReport(
    1.0,
    pairs=(
        PairResult("corners", 0.9, 1.2, (0.5,), 0.4, "column 0 >= 1", 0.6, 0.8),
        PairResult("draws alone", black_box=0.0),
        PairResult("broken", math.inf, math.inf, (), 30.0, "column 0 < 1", math.inf, math.inf),
    ),
    findings=(fault("epsilon", "too large"),),
)


@pytest.mark.parametrize("report", [REPORT, AuditReport(2.0, pairs=REPORT.pairs[:1]), AuditReport(1.0)])
def test_one_audit(report: AuditReport, tmp_path: Path) -> None:
    figure = draw_audit(report)
    axis = figure.axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == [pair.name for pair in report.pairs]
    low, high = axis.get_xlim()
    for line in axis.lines:
        assert all(low <= float(x) <= high for x in line.get_xdata())
    assert len(axis.get_legend().get_texts()) == 3  # also where no line has one of the markers
    title = axis.get_title(loc="left")
    assert ("nothing attacked" in title) == (not report.pairs)
    assert ("fault (epsilon)" in title) == bool(report.faults)
    write_picture(figure, tmp_path / "audit.png")
    assert (tmp_path / "audit.png").stat().st_size > 5000


def test_several_audits() -> None:
    sound = {"one": AuditReport(1.0, pairs=REPORT.pairs[:2]), "nothing": AuditReport(1.0)}
    figure = draw_audits({"Sound": sound, "Faults": {"two": REPORT}})
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["Sound", "Faults"]
    assert [text.get_text() for text in figure.axes[1].texts] == ["found by: epsilon"]


def test_estimates_lie_between_their_bounds() -> None:
    pairs = [pair for pair in quick_audit(boosted(), num_draws=4000).pairs if pair.estimate is not None]
    assert pairs
    for pair in pairs:
        assert pair.black_box is not None and pair.upper is not None and pair.estimate is not None
        assert pair.black_box < pair.estimate < pair.upper


def test_command(tmp_path: Path) -> None:
    words = ["audit", "--epsilon", "1", "--method", "mbde", "--num-pairs", "1", "--num-draws", "1000", "--quiet"]
    refused = CliRunner().invoke(main, [*words, "--picture", str(tmp_path / "audit.txt")], prog_name="pyro-mbde")
    assert refused.exit_code == 2
    assert "must end in .png" in refused.stderr
    elsewhere = CliRunner().invoke(main, [*words, "--picture", str(tmp_path / "no" / "audit.png")])
    assert "is not there. Make it first." in elsewhere.stderr  # before the audit
    there = tmp_path / "audit.png"
    there.touch()
    assert "pass --force" in CliRunner().invoke(main, [*words, "--picture", str(there)]).stderr


@pytest.mark.slow
def test_command_draws_a_picture(tmp_path: Path) -> None:
    words = ["audit", "--epsilon", "1", "--method", "mbde", "--num-pairs", "1", "--num-draws", "1000", "--quiet"]
    done = CliRunner().invoke(main, [*words, "--picture", str(tmp_path / "audit.png")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "audit.png").stat().st_size > 5000
