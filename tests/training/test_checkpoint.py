"""A fit that was interrupted and taken up gives the bits of one that was not."""

from __future__ import annotations

import math
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from densities import normal, scale_calibration
from streamed_tables import QUICK, TABLES, Sliced, are_same, fit, networks_of, outcome
from torch import Tensor

from pyro_mbde import DensityRatio, FitWarning, PrivacyLeakWarning, WeakLearner
from pyro_mbde.serialization import canonical_digest, read_file, write_file
from pyro_mbde.training.checkpoint import Checkpoint
from pyro_mbde.training.interrupts import interrupts_put_off
from pyro_mbde.training.optimisation import Optimisation

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(autouse=True)
def default_interrupts() -> Iterator[None]:
    """Ctrl-C raises, as in a terminal: jobs in the background of a shell are started without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def quick_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    scale_calibration(monkeypatch)


def same(first: tuple[dict[str, Tensor], Tensor, float], second: tuple[dict[str, Tensor], Tensor, float]) -> bool:
    return are_same(first[0], second[0]) and torch.equal(first[1], second[1]) and first[2] == second[2]


@pytest.mark.parametrize("kind", ["rows", "slices", "blocks"])
@pytest.mark.parametrize("seed", [0, None])
def test_the_same_bits_after_an_interrupt_at_any_step(kind: str, seed: int | None, tmp_path: Path) -> None:
    path = tmp_path / "fit.checkpoint"
    torch.manual_seed(1)
    whole = outcome(fit(kind, seed=seed))
    for stop in random.Random(f"{kind} {seed}").sample(range(1, 40), 1) + [7, 40]:
        torch.manual_seed(1)
        assert fit(kind, seed=seed, checkpoint=path, checkpoint_steps=7, stop=stop) is None
        if seed is None:
            torch.manual_seed(2)  # another process starts elsewhere
        else:
            torch.manual_seed(1)
        again = fit(kind, seed=seed, checkpoint=path, checkpoint_steps=7, resume=True)
        assert same(outcome(again), whole), stop


@pytest.mark.parametrize("kind", ["rows", "slices", "blocks"])
def test_the_same_bits_from_the_last_file_of_a_fit_that_was_killed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two writes nothing is kept: what a kill leaves."""
    path = tmp_path / "fit.checkpoint"
    whole = networks_of(fit(kind))
    keep = Optimisation._keep

    def keep_on_time(self: Optimisation, *arguments: Any) -> None:
        if self._step % 5 == 0:
            keep(self, *arguments)

    monkeypatch.setattr(Optimisation, "_keep", keep_on_time)
    for stop in random.Random(kind).sample(range(6, 40), 3):
        assert fit(kind, checkpoint=path, checkpoint_steps=5, stop=stop) is None
        state = read_file(path, "checkpoint", (1,))["state"]
        assert state["step"] == stop // 5 * 5
        assert are_same(networks_of(fit(kind, checkpoint=path, checkpoint_steps=3, resume=True)), whole), stop


def test_a_fit_that_is_taken_up_reads_no_window_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows: list[list[int]] = []
    read = Sliced.read

    def noted(self: Sliced, slices: Any, **options: Any) -> Tensor:
        windows.append(list(slices))
        return read(self, slices, **options)

    monkeypatch.setattr(Sliced, "read", noted)
    fit("slices")
    whole = windows.copy()
    assert len(whole) == 3
    windows.clear()
    fit("slices", checkpoint=tmp_path / "fit", stop=30)  # in the third window
    windows.clear()
    fit("slices", checkpoint=tmp_path / "fit", resume=True)
    assert windows == whole[2:]


def test_optimisers_are_taken_up(tmp_path: Path) -> None:
    for optimizer in ("sgd", "nesterov", "adamw"):
        learner = WeakLearner(hidden_sizes=(8,), optimizer=optimizer, num_steps=12, batch_size=16)
        options: dict[str, Any] = {"weak_learner": learner, "checkpoint": tmp_path / optimizer}
        whole = networks_of(fit("slices", **options))
        fit("slices", stop=5, **options)
        assert are_same(networks_of(fit("slices", resume=True, **options)), whole)


def test_a_checkpoint_changes_nothing(tmp_path: Path) -> None:
    for kind in ("rows", "slices"):
        assert are_same(networks_of(fit(kind)), networks_of(fit(kind, checkpoint=tmp_path / kind, checkpoint_steps=1)))


def test_a_fit_that_is_done_leaves_its_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill while the density is certified costs no training."""
    path = tmp_path / "fit.checkpoint"
    whole = networks_of(fit("slices", checkpoint=path))
    monkeypatch.setattr(Optimisation, "_gradient", lambda *_: pytest.fail("trains again"))
    assert are_same(networks_of(fit("slices", checkpoint=path, resume=True)), whole)
    trainer = DensityRatio(normal(2), checkpoint=path)
    assert trainer.checkpoint is not None and trainer.checkpoint.exists()
    trainer.checkpoint.remove()
    trainer.checkpoint.remove()
    assert os.listdir(tmp_path) == []


def test_for_the_owner_alone_and_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "fit.checkpoint"
    fit("slices", checkpoint=path, stop=13)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == [path.name]
    content = read_file(path, "checkpoint", (1,))
    assert content["state"]["positions"][0]["next_window"] == 1
    shapes: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, Tensor):
            shapes.append(tuple(node.shape))
        for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            visit(value)

    visit(content)
    assert all(shape in [(), (2,)] or shape[0] == 4 or shape == (5056,) for shape in shapes)  # networks; a generator
    (tmp_path / "rows.card.json").write_text("{}")
    with pytest.warns(PrivacyLeakWarning, match="A checkpoint is as sensitive as the table"):
        fit("slices", checkpoint=path, stop=3)


def test_without_a_file_a_fit_starts_from_the_beginning(tmp_path: Path) -> None:
    with pytest.warns(FitWarning, match="There is no checkpoint .*: the fit starts from the beginning"):
        again = fit("slices", checkpoint=tmp_path / "fit.checkpoint", resume=True)
    assert are_same(networks_of(again), networks_of(fit("slices")))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"ensemble_size": 3}, "'ensemble_size'"),
        ({"seed": 1}, "'seed'"),
        ({"split": "rows"}, "'split'"),
        (
            {"weak_learner": WeakLearner(hidden_sizes=(16,), num_frequencies=4, num_steps=41)},
            r"'weak_learner \(steps and networks\)'",
        ),
        ({"seed": 1, "ensemble_size": 3}, "'ensemble_size', 'seed'"),
    ],
)
def test_other_settings_are_named(options: dict[str, Any], named: str, tmp_path: Path) -> None:
    path = tmp_path / "fit.checkpoint"
    fit("slices", checkpoint=path, stop=5)
    with pytest.raises(ValueError, match=f"is of a fit with another value of {named}. Use the same settings"):
        fit("slices", checkpoint=path, resume=True, **options)


def test_another_base_and_another_table_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "fit.checkpoint"
    fit("slices", checkpoint=path, stop=5)
    wide = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(2), 2 * torch.ones(2)), 1)
    options: dict[str, Any] = {"weak_learner": QUICK, "ensemble_size": 4, "seed": 0, "progress": False}
    with pytest.raises(ValueError, match="another value of 'base'"):
        DensityRatio(wide, checkpoint=path, **options).fit(TABLES["slices"](), resume=True)
    for kind in ("rows", "blocks"):
        with pytest.raises(ValueError, match="is of another table, or a file of the table was changed"):
            fit(kind, checkpoint=path, resume=True)
    fit("rows", checkpoint=path, stop=5)
    with pytest.raises(ValueError, match="is of another table"):
        DensityRatio(normal(2), checkpoint=path, **options).fit(torch.zeros(400, 2) + 0.5, resume=True)


def test_files_that_are_damaged_or_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "fit.checkpoint"
    fit("slices", checkpoint=path, stop=5)
    raw = path.read_bytes()
    for damaged in (b"", raw[:1000], raw[:-200], b"no checkpoint"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="is damaged, or another kind of file. Start from the beginning"):
            fit("slices", checkpoint=path, resume=True)
    path.write_bytes(raw)
    content = read_file(path, "checkpoint", (1,))
    changed = {name: value for name, value in content.items() if name not in ("format", "version")}
    write_file(path, "checkpoint", 2, changed)
    with pytest.raises(ValueError, match="file version must be 1, got .*2. Update pyro_mbde"):
        fit("slices", checkpoint=path, resume=True)
    older = {**changed, "torch": "1.0"}
    del older["digest"]
    write_file(path, "checkpoint", 1, {**older, "digest": canonical_digest(older)})
    with pytest.warns(FitWarning, match="written with PyTorch 1.0"):
        fit("slices", checkpoint=path, resume=True)
    write_file(path, "checkpoint", 1, {"state": {}})
    with pytest.raises(ValueError, match="is damaged"):
        fit("slices", checkpoint=path, resume=True)


def test_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="checkpoint must be a file in an existing folder"):
        DensityRatio(normal(2), checkpoint=tmp_path / "missing" / "fit")
    with pytest.raises(ValueError, match="checkpoint must be a file, not a folder"):
        Checkpoint(tmp_path)
    with pytest.raises(ValueError, match="checkpoint_steps must be at least 1"):
        DensityRatio(normal(2), checkpoint=tmp_path / "fit", checkpoint_steps=0)
    with pytest.raises(ValueError, match="resume must be False without a checkpoint"):
        fit("rows", resume=True)


def test_a_fit_that_fails_leaves_no_networks(tmp_path: Path) -> None:
    wild = WeakLearner(optimizer="sgd", learning_rate=1e30, num_steps=20, num_frequencies=0)
    for kind in ("slices", "no rows"):
        with pytest.warns(FitWarning, match="Training failed"):
            ratio = fit(kind, checkpoint=tmp_path / kind, weak_learner=wild)
        assert ratio is not None and float(ratio.log_ratio(torch.randn(9, 2)).abs().max()) == 0
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_put_off_until_a_step_is_done(kind: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[int] = []
    before = signal.getsignal(kind)
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    with interrupts_put_off() as interrupted:
        assert interrupted() is None
        os.kill(os.getpid(), kind)
        time.sleep(0.01)
        assert interrupted() == kind
        assert not raised
        if kind == signal.SIGINT:
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), kind)
                time.sleep(0.01)
    assert raised == [kind]
    assert signal.getsignal(kind) is before


def test_signals_that_others_handle_are_left_to_them() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        with interrupts_put_off() as interrupted:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            assert came == [signal.SIGTERM]
            assert interrupted() is None
    finally:
        signal.signal(signal.SIGTERM, before)
    thread = threading.Thread(target=lambda: interrupts_put_off().__enter__())
    thread.start()
    thread.join()


def test_ctrl_c_during_a_step_keeps_the_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "fit.checkpoint"
    gradient, calls = Optimisation._gradient, []

    def interrupted_gradient(self: Optimisation, *arguments: Any) -> Tensor:
        calls.append(1)
        if len(calls) == 9:
            signal.raise_signal(signal.SIGINT)
        return gradient(self, *arguments)

    monkeypatch.setattr(Optimisation, "_gradient", interrupted_gradient)
    assert fit("slices", checkpoint=path) is None
    assert read_file(path, "checkpoint", (1,))["state"]["step"] == 9
    again = networks_of(fit("slices", checkpoint=path, resume=True))
    assert len(calls) == 40
    assert are_same(again, networks_of(fit("slices")))


@pytest.mark.slow
def test_a_process_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "fit.checkpoint"
    script = f"""
import sys, time
sys.path.insert(0, {str(SUPPORT)!r})
import torch
from streamed_tables import Sliced, fit
torch.set_num_threads(1)
read = Sliced.read
fit("slices", checkpoint={str(path)!r}, checkpoint_steps=1, ensemble_size=4)
"""
    slow = script.replace(
        'fit("slices"',
        "from streamed_tables import Bar\nsteps = iter(range(99))\n"
        'Bar.update = lambda *_: time.sleep(0.1 if next(steps) < 30 else 3600)\nfit("slices"',
    )
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT.parents[1])}
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", slow], env=environment)
    while process.poll() is None:
        if path.exists() and read_file(path, "checkpoint", (1,))["state"]["step"] >= 5:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert 5 <= read_file(path, "checkpoint", (1,))["state"]["step"] < 40
    again = networks_of(fit("slices", checkpoint=path, resume=True))
    assert are_same(again, networks_of(fit("slices")))


def test_a_file_that_was_damaged_since_is_not_taken_up(tmp_path: Path) -> None:
    """Whatever was changed: a state that loads but is another one gives another density, in silence."""
    path = tmp_path / "fit.checkpoint"
    fit("slices", checkpoint=path, stop=5)
    content = torch.load(path, weights_only=True)
    for change in ("networks", "step", "start", "positions"):
        state = dict(content["state"])
        if change == "networks":
            state["networks"] = {name: torch.full_like(one, math.nan) for name, one in state["networks"].items()}
        elif change == "step":
            state["step"] = 40
        else:
            del state[change]
        torch.save({**content, "state": state}, path)
        with pytest.raises(ValueError, match="is damaged"):
            fit("slices", checkpoint=path, resume=True)
