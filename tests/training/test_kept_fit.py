"""A fit that is kept: a checkpoint that cannot be written, and calibrations that were cut off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from densities import normal, scale_calibration

from pyro_mbde import DensityRatio, LogRatio
from pyro_mbde.calibration import placement
from pyro_mbde.calibration.certificate import SampleBounds
from pyro_mbde.density.bounds import Certificate
from pyro_mbde.training.checkpoint import Checkpoint

ROWS = torch.linspace(-1, 1, 300).unsqueeze(1)


@pytest.fixture(autouse=True)
def quick_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    scale_calibration(monkeypatch)


def trainer(path: Path | None, num_steps: int = 4) -> DensityRatio:
    made = DensityRatio(normal(1), seed=0, progress=False, checkpoint=path, checkpoint_steps=1)
    made.weak_learner = replace(made.weak_learner, num_steps=num_steps)
    return made


def deltas_claimed(ratio: LogRatio, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The deltas of all attempts at a certificate, none of which succeeds."""
    claimed = []

    def failing(blocks: Any, limits: SampleBounds, certificate: Certificate) -> bool:
        claimed.append(certificate.delta)
        return len(next(blocks)) == 0

    with monkeypatch.context() as patched:
        patched.setattr(placement, "certify", failing)
        assert ratio.mollify(1.0, delta=1e-6).guarantee.delta == 1e-6
    return claimed


def test_all_calibrations_of_a_fit_together_claim_no_more_than_delta(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = deltas_claimed(trainer(tmp_path / "kept").fit(ROWS), monkeypatch)
    for _ in range(4):
        claimed += deltas_claimed(trainer(tmp_path / "kept").fit(ROWS, resume=True), monkeypatch)
    assert len(claimed) == 10
    assert sum(claimed) <= 1e-6
    assert claimed[0] == 1e-6 / 4
    assert claimed == sorted(claimed, reverse=True)


def test_a_fit_that_is_not_kept_has_all_of_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(deltas_claimed(trainer(None).fit(ROWS), monkeypatch)) == 1e-6


def test_a_fit_cut_off_before_its_calibration_has_none_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Checkpoint.write

    def stopping(self: Checkpoint, settings: Any, table: str, state: dict[str, Any]) -> None:
        write(self, settings, table, state)
        if state["step"] == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "write", stopping)
        with pytest.raises(KeyboardInterrupt):
            trainer(tmp_path / "kept").fit(ROWS)
    claimed = deltas_claimed(trainer(tmp_path / "kept").fit(ROWS, resume=True), monkeypatch)
    assert claimed[0] == 1e-6 / 4


@pytest.mark.parametrize("error", [OSError, RuntimeError])
def test_a_checkpoint_that_cannot_be_written_is_an_error(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a fit that failed: what came out would be the base, and the last good checkpoint would be removed."""

    def full(*arguments: object) -> None:
        raise error(28, "No space left on device")

    monkeypatch.setattr(Checkpoint, "write", full)
    with pytest.raises(OSError, match="No space left"):
        trainer(tmp_path / "kept").fit(ROWS)
