"""Fits of tables that are read in parts: as good as of tables that are held, and always with a result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from densities import normal, scale_calibration
from streamed_tables import QUICK, Blocks, Sliced, are_same, fit, networks_of
from torch import Tensor

from pyro_mbde import MBDE, DensityRatio, FitWarning, PrivacyLeakWarning, WeakLearner
from pyro_mbde.training.row_source import WindowedRows

OPTIONS: dict[str, Any] = {"weak_learner": QUICK, "seed": 0, "progress": False}


@pytest.fixture(autouse=True)
def quick_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    scale_calibration(monkeypatch)


def test_windows_teach_what_held_rows_do() -> None:
    ratios = []
    for data in (Sliced(), Sliced().read(range(40)), Blocks()):
        learner = WeakLearner(hidden_sizes=(16,), num_frequencies=0, num_steps=200, batch_size=256)
        ratios.append(DensityRatio(normal(2), **{**OPTIONS, "weak_learner": learner}).fit(data))
    points = 0.5 * torch.randn(500, 2) + 1
    held = ratios[1].log_ratio(points)
    for ratio in ratios:
        assert float((ratio.log_ratio(points) - held).abs().mean()) < 0.15


def test_a_small_stream_is_the_tensor() -> None:
    """At most 32 slices are held whole, in natural order."""
    stream = DensityRatio(normal(2), **OPTIONS).fit(Sliced(32))
    tensor = DensityRatio(normal(2), **OPTIONS).fit(Sliced(32).read(range(32)))
    assert are_same(networks_of(stream), networks_of(tensor))


class Bad(Sliced):
    """A table whose rows cannot be used, or whose files cannot be read."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.num_read = 0

    def read(self, slices: Sequence[int], *, is_counted: bool = True) -> Tensor:
        self.num_read += 1
        rows = super().read(slices)
        if self.what == "missing":
            return torch.full_like(rows, math.nan)
        if self.what == "huge":
            return torch.full_like(rows, 3e38)
        if self.num_read > 1:
            raise ValueError("The file 'a.parquet' has changed since its slices were counted.")
        return rows


@pytest.mark.parametrize("trainer", ["DensityRatio", "MBDE"])
@pytest.mark.parametrize("what", ["missing", "huge"])
def test_every_stream_gives_a_result(trainer: str, what: str) -> None:
    with pytest.warns(FitWarning) as caught:
        if trainer == "MBDE":
            density = MBDE(normal(2), 1.0, 2, num_samples=200, **OPTIONS).fit(Bad(what))
        else:
            density = DensityRatio(normal(2), ensemble_size=2, **OPTIONS).fit(Bad(what)).mollify(1.0)
    assert float(density.tilt(torch.randn(99, 2)).abs().max()) < 1e-9
    texts = [str(warning.message) for warning in caught]
    assert sum("Training failed" in text for text in texts) == 1
    if what == "missing":
        assert sum("1,600 of 1,600 rows were left out" in text for text in texts) == 1


@pytest.mark.parametrize("trainer", ["DensityRatio", "MBDE"])
def test_files_that_change_raise(trainer: str) -> None:
    learner = WeakLearner(hidden_sizes=(8,), num_steps=40, batch_size=64)
    options = {**OPTIONS, "weak_learner": learner}
    with pytest.raises(ValueError, match="^The file 'a.parquet' has changed"):
        if trainer == "MBDE":
            MBDE(normal(2), 1.0, 1, num_samples=200, **options).fit(Bad("changed"))
        else:
            DensityRatio(normal(2), **options).fit(Bad("changed"))


def test_boosting_sees_the_window_in_memory() -> None:
    for calibrated in (False, True):
        trainer = MBDE(normal(2), 2.0, 2, num_samples=500, calibrated=calibrated, reweighted=True, **OPTIONS)
        density = trainer.fit(Sliced())
        assert len(trainer.history) == 2
        assert trainer.history[0].gamma_p > 0
        assert float(density.tilt(torch.ones(1, 2))) > float(density.tilt(-torch.ones(1, 2)))


def test_full_batches_are_what_is_held() -> None:
    learner = WeakLearner(hidden_sizes=(4,), num_frequencies=0, num_steps=3, batch_size=None)
    sizes: list[int] = []

    class Noted(WindowedRows):
        def batch(self, size: int | None) -> Tensor:
            sizes.append(len(super().batch(size)))
            return super().batch(size)

    source = Noted(Sliced(), lambda rows, _: rows, lambda rows: rows, torch.zeros(0, 2), 0)
    learner.fit(source, torch.randn(50, 2), DensityRatio(normal(2))._prepared.feature_scale)
    assert sizes == [32 * 40] * 3


def test_leaks_are_looked_for_where_all_rows_are_held() -> None:
    table = Sliced(10, 7)
    rows = table.read(range(10))
    base = torch.distributions.Independent(torch.distributions.Normal(rows.mean(0), torch.ones(2)), 1)
    with pytest.warns(PrivacyLeakWarning, match="equals the mean of the table"):
        DensityRatio(base, **OPTIONS).fit(table)
    table.num_slices = 40
    DensityRatio(base, **OPTIONS).fit(table)


def test_the_loss_is_that_of_the_last_tenth() -> None:
    rows, losses = torch.randn(200, 2) + 1, []
    learner = WeakLearner(hidden_sizes=(4,), num_frequencies=0, num_steps=40, batch_size=None, optimizer="sgd")
    spread = DensityRatio(normal(2))._prepared.feature_scale
    draws = torch.randn(100, 2)
    for num_steps in (37, 38, 39, 40):  # a constant rate: shorter fits are the beginnings of longer ones
        torch.manual_seed(0)
        shorter = WeakLearner(**{**vars(learner), "num_steps": num_steps - 1})
        network = shorter.fit(rows, draws, spread).classifier
        losses.append(
            torch.nn.functional.softplus(-network.logits(rows)).mean()
            + torch.nn.functional.softplus(network.logits(draws)).mean()
        )
    torch.manual_seed(0)
    assert learner.fit(rows, draws, spread).loss == pytest.approx(float(torch.stack(losses).mean()), rel=1e-6)


def test_devices_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="device must be of type cpu or cuda"):
        DensityRatio(normal(2), device="meta")
    for device in ("nonsense", "cuda" if not torch.cuda.is_available() else "cuda:99"):
        with pytest.raises(ValueError, match="device must be a device of this machine"):
            DensityRatio(normal(2), device=device)
    with pytest.raises(TypeError, match="device must be a device"):
        DensityRatio(normal(2), device=1)  # type: ignore[arg-type]


def test_the_cpu_by_name_is_what_is_taken_by_default() -> None:
    assert are_same(networks_of(fit("slices", device="cpu")), networks_of(fit("slices")))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["rows", "slices", "blocks"])
def test_training_on_cuda(kind: str, tmp_path: Any) -> None:
    ratio = fit(kind, device="cuda")
    whole = networks_of(ratio)
    assert all(value.device.type == "cpu" for value in whole.values())
    points = 0.5 * torch.randn(500, 2) + 1
    alone = fit(kind)
    assert ratio is not None and alone is not None
    assert float((ratio.log_ratio(points) - alone.log_ratio(points)).abs().mean()) < 0.3
    assert fit(kind, device="cuda", checkpoint=tmp_path / "fit", stop=11) is None
    again = networks_of(fit(kind, device="cuda", checkpoint=tmp_path / "fit", resume=True))
    assert all(torch.allclose(again[name], whole[name], atol=1e-4) for name in whole)
