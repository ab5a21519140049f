"""Several processes find the same networks, as good as those of one, and take up one another's fits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from densities import normal, scale_calibration
from rank_processes import run_ranks, values_of
from streamed_tables import PARTS, QUICK, TABLES, are_same, failing, fit, networks_of

from pyro_mbde import DensityRatio, FitWarning
from pyro_mbde.density.statistics import BoundedClassifiers
from pyro_mbde.ranks import Ranks
from pyro_mbde.training.ensemble_state import joined, part_of, part_of_networks, shares
from pyro_mbde.training.optimisation import Course, Optimisation
from pyro_mbde.training.row_source import HeldRows

FITS = Path(__file__).parents[1] / "support" / "streamed_tables.py"


def test_networks_are_shared_out_evenly() -> None:
    for num_networks in range(1, 9):
        for size in range(1, num_networks + 1):
            found = shares(num_networks, size)
            assert [network for share in found for network in share] == list(range(num_networks))
            assert max(map(len, found)) - min(map(len, found)) <= 1


@pytest.mark.parametrize("optimizer", ["adamw", "nesterov", "sgd"])
def test_states_of_parts_are_those_of_the_whole(optimizer: str) -> None:
    networks = BoundedClassifiers(5, 2, hidden_sizes=(3,), num_frequencies=2)
    make: Any = {
        "adamw": lambda one: torch.optim.AdamW(one.parameters(), fused=True),
        "nesterov": lambda one: torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9, nesterov=True),
        "sgd": lambda one: torch.optim.SGD(one.parameters(), lr=0.1),
    }[optimizer]
    made = make(networks)
    networks.logits(torch.randn(9, 2)).sum().backward()  # type: ignore[no-untyped-call]
    made.step()
    state = {"networks": networks.state_dict(), "optimizer": made.state_dict(), "step": 1}
    for size in range(1, 6):
        again = joined([part_of(state, share) for share in shares(5, size)])
        assert are_same(again["networks"], state["networks"])
        for key, kept in state["optimizer"]["state"].items():
            for name, value in kept.items():
                found = again["optimizer"]["state"][key][name]
                assert found is value or torch.equal(found, value), name
        rows = torch.randn(4, 2)
        parts = [part_of_networks(networks, share).logits(rows) for share in shares(5, size)]
        assert torch.allclose(torch.cat(parts, 1), networks.logits(rows), atol=1e-6)


@pytest.mark.parametrize(
    ("split", "size", "by_networks"),
    [
        ("auto", 1, False),
        ("auto", 2, True),
        ("auto", 3, True),
        ("auto", 4, False),
        ("auto", 6, True),
        ("auto", 7, False),
        ("rows", 2, False),
        ("networks", 4, True),
        ("networks", 1, False),
    ],
)
def test_how_work_is_split(split: str, size: int, by_networks: bool) -> None:
    trainer = DensityRatio(normal(2), ranks=Ranks(0, size), split=split)
    rows = HeldRows(torch.zeros(5, 2))
    assert trainer._splits_networks(rows) is by_networks
    rows.is_whole = False  # of files each process would read as many rows as one alone
    assert trainer._splits_networks(rows) is (by_networks and split == "networks")


def test_arguments() -> None:
    with pytest.raises(ValueError, match="at most ensemble_size=6 to share out networks"):
        DensityRatio(normal(2), ranks=Ranks(0, 7), split="networks")
    with pytest.raises(ValueError, match="split must be one of auto, rows, networks"):
        DensityRatio(normal(2), split="columns")
    with pytest.raises(TypeError, match="ranks must be Ranks"):
        DensityRatio(normal(2), ranks=2)  # type: ignore[arg-type]


class Mirrored(Ranks):
    """Processes that all do what this one does, so that one test sees what each would."""

    def average(self, tensors: Any) -> None:
        pass

    def start_average(self, tensors: Any) -> Callable[[], None]:
        return lambda: self.average(tensors)

    def broadcast(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value] * self.size


def test_each_rank_has_draws_of_its_own_from_the_same_start() -> None:
    starts, draws = [], []
    for rank in range(3):
        torch.manual_seed(0)
        networks = BoundedClassifiers(2, 2, hidden_sizes=(3,))
        optimisation = Optimisation(networks, QUICK._optimizer, 5, 10, Course(ranks=Mirrored(rank, 3)))
        starts.append(optimisation._networks.state_dict())
        draws.append(float(torch.rand(())))
    assert are_same(starts[0], starts[1]) and are_same(starts[0], starts[2])
    assert len(set(draws)) == 3


def test_a_rank_that_fails_stops_all_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others hear of it with the gradients of the step."""

    class OtherFails(Mirrored):
        def average(self, tensors: Any) -> None:
            tensors[-1][1] = 1 / 2

    scale_calibration(monkeypatch)
    for ranks, match in (
        (OtherFails(0, 2), "RuntimeError: another process could not train, so all of them stop"),
        (Mirrored(1, 2), "MemoryError: too much"),
    ):
        if ranks.rank == 1:
            monkeypatch.setattr(Optimisation, "_gradient", lambda *_: (_ for _ in ()).throw(MemoryError("too much")))
        monkeypatch.setattr("pyro_mbde.training.density_ratio.LogRatio", lambda *arguments, **_: arguments[1])
        with pytest.warns(FitWarning, match=match):
            networks: Any = fit("rows", ranks=ranks, split="rows")
        assert float(networks.logits(torch.randn(9, 2)).abs().max()) == 0


@pytest.mark.parametrize("split", ["rows", "networks"])
@pytest.mark.parametrize("part", PARTS)
def test_a_rank_that_fails_anywhere_tells_the_others(part: str, split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []

    class Listening(Mirrored):
        def average(self, tensors: Any) -> None:
            told.append(bool(tensors[-1][1]))

        def gather(self, value: Any) -> list[Any]:
            told.append(value is None or value is True)
            return [value] * self.size

    scale_calibration(monkeypatch)
    monkeypatch.setattr("pyro_mbde.training.density_ratio.LogRatio", lambda *arguments, **_: arguments[1])
    with pytest.warns(FitWarning, match="MemoryError: too much"), failing(part):
        networks: Any = fit("slices", ranks=Listening(0, 2), split=split)
    assert any(told)
    assert float(networks.logits(torch.randn(9, 2)).abs().max()) == 0


def test_the_first_rank_tells_the_others_that_it_could_not_keep_a_fit() -> None:
    def keep(state: Any) -> None:
        raise OSError("no space left")

    networks = BoundedClassifiers(2, 2, hidden_sizes=(3,))
    for num_steps in (3, 2):  # at a step, and at the end
        course = Course(ranks=Mirrored(0, 2), keep=keep, keep_steps=2)
        optimisation = Optimisation(networks, QUICK._optimizer, num_steps, 10, course)
        with pytest.raises(OSError, match="no space left"):
            optimisation.train(HeldRows(torch.randn(20, 2)), torch.randn(20, 2), lambda: None)


@pytest.mark.parametrize("keep_steps", [1, 4, None])
def test_batches_are_made_ahead_only_where_nothing_is_kept(keep_steps: int | None) -> None:
    """What a fit finds, and where its generator stands when it is kept, are those of one that makes none ahead."""
    kept: list[list[tuple[int, list[Any]]]] = []
    found = []
    rows, num_ahead = torch.randn(50, 2), 0

    class Waiting(Mirrored):
        def start_average(self, tensors: Any) -> Callable[[], None]:
            nonlocal num_ahead
            state = torch.get_rng_state()

            def finish() -> None:
                nonlocal num_ahead
                num_ahead += not torch.equal(state, torch.get_rng_state())

            return finish

    for makes_ahead in (True, False):
        torch.manual_seed(0)
        states: list[tuple[int, list[Any]]] = []
        keep: Any = None if keep_steps is None else lambda state: states.append((state["step"], state["generators"]))  # noqa: B023
        course = Course(ranks=Waiting(0, 2), keep=keep, keep_steps=keep_steps or 100)
        optimisation = Optimisation(BoundedClassifiers(2, 2, hidden_sizes=(3,)), QUICK._optimizer, 9, 10, course)
        if not makes_ahead:
            optimisation._prepare = lambda *_: None  # type: ignore[method-assign]
        networks, _ = optimisation.train(HeldRows(rows), lambda number: torch.randn(number, 2), lambda: None)
        found.append({name: value.clone() for name, value in networks.state_dict().items()})
        kept.append(states)
    assert num_ahead == {1: 0, 4: 6, None: 8}[keep_steps]
    assert are_same(found[0], found[1])
    assert [step for step, _ in kept[0]] == {1: list(range(1, 10)), 4: [4, 8, 9], None: []}[keep_steps]
    for one, other in zip(kept[0], kept[1], strict=True):
        assert one[0] == other[0] and torch.equal(one[1][0][0], other[1][0][0])


def test_a_parameter_without_a_gradient_is_averaged_like_others() -> None:
    shapes: list[list[Any]] = []

    class Noting(Mirrored):
        def average(self, tensors: Any) -> None:
            shapes.append([tensor.shape for tensor in tensors])

    networks = BoundedClassifiers(2, 2, hidden_sizes=(3,))
    next(iter(networks.parameters())).requires_grad_(False)
    for loss in (torch.zeros(()), None):
        optimisation = Optimisation(networks, QUICK._optimizer, 5, 10, Course(ranks=Noting(0, 2)))
        with nullcontext() if loss is not None else pytest.raises(RuntimeError, match="could not train"):
            optimisation._average(loss, HeldRows(torch.zeros(1, 2)), lambda: None)
    assert shapes[0] == shapes[1]


def gain(networks: dict[str, torch.Tensor]) -> float:
    """Mean ratio of rows, less that of draws of the base, in nats."""
    config = BoundedClassifiers(4, 2, hidden_sizes=(16,), num_frequencies=4, activation="silu").config()
    module = BoundedClassifiers.from_state(config, networks)
    rows = TABLES["slices"]().read(range(40))
    return float((module.logits(rows).mean() - module.logits(torch.randn(2000, 2)).mean()).detach())


@pytest.mark.slow
def test_all_ranks_find_the_same() -> None:
    jobs = [(kind, {"split": split}) for kind in TABLES for split in ("rows", "networks")]
    found = values_of(run_ranks(FITS, "fits_over_ranks", 2, jobs, seconds=400))
    for (kind, options), *every in zip(jobs, *found, strict=True):
        assert all(are_same(networks, every[0]) for networks in every[1:]), (kind, options)
        if kind != "no rows":
            alone = gain(networks_of(fit(kind)))
            assert 0.6 * alone < gain(every[0]) < 1.5 * alone, (kind, options)


@pytest.mark.slow
def test_all_ranks_stop_where_one_fails() -> None:
    for found in values_of(run_ranks(FITS, "failures_over_ranks", 2, ["rows", "networks"], seconds=200)):
        assert [one[:2] for one in found] == [(split, part) for split in ("rows", "networks") for part in PARTS]
        assert all(largest == 0 for _, _, largest in found), found


@pytest.mark.slow
@pytest.mark.parametrize("split", ["rows", "networks", "auto"])
def test_a_fit_is_taken_up_by_other_numbers_of_ranks(split: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"split": split, "checkpoint": tmp_path / "fit", "checkpoint_steps": 6}
    jobs = [("slices", {**options, "stop": 14}), ("slices", {**options, "resume": True})]
    kept = values_of(run_ranks(FITS, "fits_over_ranks", 2, [("slices", {"split": split}), jobs[0]], seconds=200))
    assert [one[1] for one in kept] == [None, None]
    file = (tmp_path / "fit").read_bytes()
    again = values_of(run_ranks(FITS, "fits_over_ranks", 2, jobs[1:], seconds=200))
    # As many ranks as before find what they would have found.
    assert all(are_same(one[0], kept[0][0]) for one in (*again, *kept))
    for size in (3, 1):
        (tmp_path / "fit").write_bytes(file)
        if size == 1:
            found = [[networks_of(fit("slices", resume=True, **options))]]
        else:
            found = values_of(run_ranks(FITS, "fits_over_ranks", size, jobs[1:], seconds=200))
        assert all(are_same(one[0], found[0][0]) for one in found)
        alone = gain(networks_of(fit("slices")))
        assert 0.6 * alone < gain(found[0][0]) < 1.5 * alone


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "tables", "match"),
    [
        ([{"seed": 0}, {"seed": 1}], ["rows", "rows"], "2 processes were started with different values of 'seed'"),
        ([{}, {}], ["rows", "slices"], "2 processes were given different tables"),
    ],
)
def test_ranks_that_differ_say_so(options: list[dict[str, Any]], tables: list[str], match: str) -> None:
    errors = values_of(run_ranks(FITS, "error_over_ranks", 2, options, tables, seconds=100))
    assert all(match in error for error in errors)
