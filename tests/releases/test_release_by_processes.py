"""Releases whose rows several processes draw: charged once, drawn in order, whole also where one is lost."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from densities import make_density, normal
from rank_processes import run_ranks, values_of

from pyro_mbde import BudgetExceededError, Ledger, MollifiedExpFamily
from pyro_mbde._signals import finished_once_begun
from pyro_mbde.ranks import LostRankError, Ranks
from pyro_mbde.releases import release as releasing
from pyro_mbde.sampling import ranked
from pyro_mbde.sampling.private import draw_rows
from pyro_mbde.sampling.ranked import DrawingRanks, serve_draws

HERE = Path(__file__)


def open_budget(folder: str, name: str) -> Ledger:
    ledger = Ledger(f"{folder}/{name}.db")
    ledger.open_account("clinic", epsilon=1000.0)
    return ledger


def try_release(q: MollifiedExpFamily, ranks: Ranks, folder: str, name: str, num_rows: int, **options: Any) -> Any:
    """One release: the number of rows, what was charged, and how many draws each process made."""
    drawn: list[int] = []

    def noted(q: MollifiedExpFamily, plan: Any, count: int, **arguments: Any) -> torch.Tensor:
        drawn.append(count)
        return draw_rows(q, plan, count, **arguments)

    vars(ranked)["draw_rows"] = vars(releasing)["draw_rows"] = noted
    if not ranks.is_first:
        serve_draws(q, ranks)
        return drawn
    with open_budget(folder, name) as ledger, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            released = releasing.release(q, num_rows, ledger, "clinic", ranks=ranks, progress=False, **options)
            rows = released.rows
        except (BudgetExceededError, LostRankError, ValueError) as error:
            return f"{type(error).__name__}: {error}", len(ledger.charges("clinic"))
        charges = [charge.num_draws for charge in ledger.charges("clinic")]
        return len(rows), len(rows.drop_duplicates()), charges, drawn, [str(each.message) for each in said]


def releases(ranks: Ranks, model: str, folder: str) -> list[Any]:
    """Several releases one after the other, with the same processes."""
    q = MollifiedExpFamily.load(model)
    found = [
        try_release(q, ranks, folder, "constant", 101),
        try_release(q, ranks, folder, "exact", 100, constant_time=False),
        try_release(q, ranks, folder, "chains", 50, num_steps=5),
        try_release(q, ranks, folder, "one", 1),
        try_release(q, ranks, folder, "seeded", 20, seed=1),
        try_release(q, ranks, folder, "too much", 100_000),
        try_release(q, ranks, folder, "files", 6, path=Path(folder) / "rows.csv"),
    ]
    other = make_density(normal(2)) if ranks.rank == 1 else q
    if ranks.rank == 1:
        q.certificate_mismatch = lambda: "other values"  # type: ignore[method-assign]  # an a-priori density needs none
    found.append(try_release(q, ranks, folder, "a priori", 10))
    found.append(try_release(other, ranks, folder, "other", 10))
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    make_density(normal(2)).save(tmp_path / "model.pt")
    return tmp_path / "model.pt"


def test_rows_are_shared_out_and_charged_once(model: Path, tmp_path: Path) -> None:
    first, second = values_of(run_ranks(HERE, "releases", 2, str(model), str(tmp_path)))
    assert first[0] == (101, 101, [101], [51], [])
    assert first[1] == (100, 100, [100], [50], [])
    assert first[2] == (50, 50, [50], [25], [])
    assert first[3] == (1, 1, [1], [1], [])
    assert first[4][:4] == (20, 20, [20], [20])
    assert first[5][0].startswith("BudgetExceededError") and first[5][1] == 0
    assert first[6] == (6, 6, [6], [3], [])
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 7
    assert first[7] == (10, 10, [10], [5], [])
    assert first[8] == (
        "ValueError: Processes must hold the same density, got another one in process 1. "
        "Give all of them the same model file.",
        0,
    )
    assert second == [[50], [50], [25], [], [], [], [3], [5], []]


def lose(ranks: Ranks, model: str, folder: str, when: str) -> Any:
    """Process 1 is killed before the charge, while it draws, or fails to draw."""
    q = MollifiedExpFamily.load(model)
    if ranks.rank == 1:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)

        def end(*arguments: Any, **options: Any) -> Any:
            if when == "failing":
                raise MemoryError
            os.kill(os.getpid(), signal.SIGKILL)

        vars(ranked)["draw_rows"] = end
        serve_draws(q, ranks)
        return "served"
    return try_release(q, ranks, folder, "budget", 30)


@pytest.mark.parametrize(
    "when", ["failing", *(pytest.param(when, marks=pytest.mark.slow) for when in ("before", "drawing"))]
)
def test_a_lost_process(when: str, model: Path, tmp_path: Path) -> None:
    """Before the charge nothing is charged; after it, all rows are there."""
    first, lost, other = run_ranks(HERE, "lose", 3, str(model), str(tmp_path), when, seconds=60)
    assert first.code == 0, first.error
    if when == "before":
        assert (lost.code, other.code, other.value) == (-signal.SIGKILL, 0, [])
        assert first.value[0].startswith("LostRankError") and first.value[1] == 0
        return
    rows, different, charges, drawn, said = first.value
    assert (rows, different, charges, drawn) == (30, 30, [30], [10, 10])
    assert said == ["Process 1 did not send its rows: they are drawn in the first process."]
    assert other.value == [10]
    assert lost.value == ("served" if when == "failing" else None)


def three(ranks: Ranks, model: str, folder: str) -> Any:
    """Process 1 holds another density."""
    q = make_density(normal(2)) if ranks.rank == 1 else MollifiedExpFamily.load(model)
    return try_release(q, ranks, folder, "budget", 9)


@pytest.mark.slow
def test_all_processes_are_heard_before_one_is_refused(model: Path, tmp_path: Path) -> None:
    first, *others = values_of(run_ranks(HERE, "three", 3, str(model), str(tmp_path)))
    assert first[0].startswith("ValueError: Processes must hold the same density, got another one in process 1.")
    assert others == [[], []]


def without_a_bar(ranks: Ranks, model: str, folder: str) -> Any:
    """The first process's progress bar cannot be written."""
    q = MollifiedExpFamily.load(model)
    if not ranks.is_first:
        serve_draws(q, ranks)
        return None
    asked: list[tuple[int, bool]] = []

    def unwritten(q: MollifiedExpFamily, plan: Any, count: int, *, progress: bool, **options: Any) -> torch.Tensor:
        asked.append((count, progress))
        if progress:
            raise BrokenPipeError
        return draw_rows(q, plan, count, progress=False, **options)

    vars(releasing)["draw_rows"] = unwritten
    with open_budget(folder, "budget") as ledger:
        return len(releasing.release(q, 30, ledger, "clinic", ranks=ranks).rows), asked


@pytest.mark.slow
def test_a_bar_that_cannot_be_written_loses_no_shares(model: Path, tmp_path: Path) -> None:
    first, _ = values_of(run_ranks(HERE, "without_a_bar", 2, str(model), str(tmp_path)))
    assert first == (30, [(15, True), (15, False)])


def asked_to_end(ranks: Ranks, model: str, folder: str, when: str) -> None:
    """The first process is asked to end before the charge, or while it draws."""
    q = MollifiedExpFamily.load(model)
    if not ranks.is_first:
        serve_draws(q, ranks)
        return

    def end_first(call: Any) -> Any:
        def ended(*arguments: Any, **options: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            return call(*arguments, **options)

        return ended

    with open_budget(folder, "budget") as ledger, finished_once_begun():
        if when == "waiting":
            vars(ledger)["charge"] = end_first(ledger.charge)
        else:
            vars(releasing)["draw_rows"] = end_first(draw_rows)
        releasing.release(q, 30, ledger, "clinic", ranks=ranks, path=Path(folder) / "rows.csv", progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["waiting", "drawing"])
def test_a_release_can_be_ended_until_it_is_charged(when: str, model: Path, tmp_path: Path) -> None:
    first, _ = run_ranks(HERE, "asked_to_end", 2, str(model), str(tmp_path), when)
    assert first.code == -signal.SIGTERM, first.error
    assert (tmp_path / "rows.csv").exists() == (when == "drawing")
    with Ledger(tmp_path / "budget.db") as ledger:
        assert [charge.num_draws for charge in ledger.charges("clinic")] == [30] * (when == "drawing")


def test_only_the_first_process_releases() -> None:
    with pytest.raises(ValueError, match="ranks must be those of the first process"):
        DrawingRanks(Ranks(1, 2))
