"""Sources of rows: what a batch holds, what is in memory, and where reading goes on."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyro.distributions as dist
import pytest
import torch
from densities import normal
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from pyro_mbde import FitWarning
from pyro_mbde.ranks import ALONE, Ranks
from pyro_mbde.training import iterated_rows
from pyro_mbde.training.fallback import ReadingError
from pyro_mbde.training.iterated_rows import IteratedRows
from pyro_mbde.training.opened_table import open_table
from pyro_mbde.training.row_source import HeldRows, RowSource, WindowedRows

SCALAR = dist.Normal(0.0, 1.0)


class Numbered:
    """A table in slices, whose rows are numbers from 0 on; some slices may be empty."""

    fingerprint = "numbers"

    def __init__(self, num_slices: int, num_rows: int = 10, full: Callable[[int], bool] = lambda _: True) -> None:
        self.num_slices, self._num_rows, self._full = num_slices, num_rows, full
        self.was_read: list[int] = []
        self.was_counted: list[int] = []
        self.num_warnings = 0

    def read(self, slices: Any, *, is_counted: bool = True) -> Tensor:
        self.was_read += slices
        self.was_counted += slices if is_counted else []
        parts = [torch.arange(self._num_rows) + self._num_rows * number for number in slices if self._full(number)]
        return torch.cat([torch.zeros(0), *parts]).to(torch.float32)

    def warn(self, ranks: Ranks = ALONE) -> None:
        self.num_warnings += 1


class Blocks:
    """Ten blocks of 30 numbers."""

    def __init__(self, num_blocks: int = 10) -> None:
        self.num_blocks, self.num_starts = num_blocks, 0

    def __iter__(self) -> Iterator[Tensor]:
        self.num_starts += 1
        return iter(torch.arange(30.0 * self.num_blocks).split(30))


class Stream(IterableDataset[Tensor]):
    """Rows one by one."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.arange(300.0))


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterated_rows, "WINDOW_ROWS", 70)


def source_of(data: Any, ranks: Ranks | None = None, base: Any = SCALAR) -> RowSource:
    torch.manual_seed(0)
    return open_table(data, base, 100, ranks=ranks or Ranks()).source


def taken(source: RowSource, num_rows: int, size: int = 7) -> list[float]:
    rows = []
    while len(rows) < num_rows:
        rows += source.batch(min(size, num_rows - len(rows))).squeeze(1).tolist()
    return rows


def test_held_rows_are_drawn_as_torch_draws_numbers() -> None:
    rows = torch.randn(50, 2)
    torch.manual_seed(1)
    batch = HeldRows(rows).batch(8)
    torch.manual_seed(1)
    assert torch.equal(batch, rows[torch.randint(50, (8,))])
    assert HeldRows(rows).batch(None) is rows
    with pytest.raises(ValueError, match="positives must have at least one row"):
        HeldRows(rows[:0]).batch(3)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_windows_hand_out_every_row_once_a_pass(size: int) -> None:
    table = Numbered(100)
    sources = [source_of(table, Ranks(rank, size)) for rank in range(size)]
    assert all(isinstance(source, WindowedRows) for source in sources)
    # Four windows a pass, of 320, 320, 320 and 40 rows; ranks take them in turn.
    shares = [sum(320 if window % 4 < 3 else 40 for window in range(rank, 4 * size, size)) for rank in range(size)]
    rows = [row for source, share in zip(sources, shares, strict=True) for row in taken(source, share)]
    assert sorted(rows) == sorted(list(range(1000)) * size)
    assert sum(shares) == 1000 * size


def test_a_batch_may_be_larger_than_a_window_and_what_is_held_is_one() -> None:
    source = source_of(Numbered(70))
    assert source.held.shape == (320, 1)
    assert source.batch(None) is source.held
    batch = source.batch(1500)  # two passes of 700 rows and a little more
    assert len(batch) == 1500
    assert sorted(batch[:700, 0].tolist()) == list(range(700))
    assert sorted(batch[700:1400, 0].tolist()) == list(range(700))
    assert source.held.shape == (320, 1)


@pytest.mark.parametrize("make", [lambda: Numbered(100), Blocks], ids=["slices", "blocks"])
@pytest.mark.usefixtures("small_windows")
def test_a_source_goes_on_where_another_stopped(make: Callable[[], Any]) -> None:
    uninterrupted = source_of(make()).batch(60 * 11 + 150)
    source = source_of(make())
    for first in range(0, 60 * 11, 11):
        other = source_of(make())
        other.go_to([source.position()])
        assert torch.equal(other.batch(150), uninterrupted[first : first + 150])
        source.batch(11)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_of_several_ranks_one_counts_a_slice(size: int) -> None:
    tables = [Numbered(100) for _ in range(size)]
    for rank, table in enumerate(tables):
        source_of(table, Ranks(rank, size)).batch(4000)
    counted = [set(table.was_counted) for table in tables]
    assert sorted(number for numbers in counted for number in numbers) == list(range(100))


@pytest.mark.parametrize("size", [2, 3])
def test_after_an_interrupt_ranks_count_the_pass_at_hand(size: int) -> None:
    old = [source_of(Numbered(100), Ranks(rank, size)) for rank in range(size)]
    for source in old:
        source.batch(700)
    tables = [Numbered(100) for _ in range(2)]
    for rank, table in enumerate(tables):
        source = source_of(table, Ranks(rank, 2))
        source.go_to([one.position() for one in old])
        source.batch(4000)
    counted = [number for table in tables for number in table.was_counted]
    assert 0 < len(counted) == len(set(counted))


class Mirrored(Ranks):
    """Processes that all hold what this one does."""

    def gather(self, value: Any) -> list[Any]:
        return [value] * self.size


@pytest.mark.parametrize(("num_slices", "num_warnings"), [(3, [1, 0]), (100, [1, 1])])
def test_every_rank_with_rows_of_its_own_is_asked_what_became_of_them(num_slices: int, num_warnings: list[int]) -> None:
    tables = [Numbered(num_slices), Numbered(num_slices)]
    for rank, table in enumerate(tables):
        open_table(table, SCALAR, 100, ranks=Mirrored(rank, 2)).warn()
    assert [table.num_warnings for table in tables] == num_warnings


def test_other_numbers_of_ranks_go_on_without_loss() -> None:
    old = [source_of(Numbered(100), Ranks(rank, 3)) for rank in range(3)]
    rows = taken(old[0], 50) + taken(old[1], 330) + taken(old[2], 7)
    new = [source_of(Numbered(100), Ranks(rank, 2)) for rank in range(2)]
    for source in new:
        source.go_to([source.position() for source in old])
    left = [source.position() for source in new]
    assert [len(one["leftovers"]) for one in left] == [2, 2]  # windows 0, 2 and 4 begun; 3 was never begun
    assert [one["next_window"] for one in left] == [5, 6]
    # Of windows 0 to 4, 1320 rows: the first pass, and the first window of the second.
    amounts = [(320 - 50) + 40, (320 - 7) + (320 - 10)]
    rows += [row for source, amount in zip(new, amounts, strict=True) for row in taken(source, amount)]
    assert len(rows) == 1320
    assert set(rows) == set(range(1000))


def test_nothing_but_numbers_is_kept_of_a_table() -> None:
    source = source_of(Numbered(100))
    source.batch(11)
    position = source.position()
    assert position["leftovers"] == [[0, 11]]
    assert (position["next_window"], position["stride"]) == (1, 1)


@pytest.mark.parametrize("num_slices", [0, 32, 33, 100])
@pytest.mark.parametrize("size", [1, 2])
def test_a_table_without_a_row_that_is_kept_ends(num_slices: int, size: int) -> None:
    table = Numbered(num_slices, full=lambda _: False)
    for rank in range(size):
        source = source_of(table, Ranks(rank, size))
        assert source.held.shape == (0, 1)
        with pytest.raises(ValueError, match="positives must have at least one row"):
            source.batch(3)
    assert len(table.was_read) <= size * 2 * (num_slices + 32)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_few_slices_with_rows_are_found_by_every_rank(size: int) -> None:
    for rank in range(size):
        source = source_of(Numbered(128, full=lambda number: number == 77), Ranks(rank, size))
        assert set(taken(source, 25)) <= set(range(770, 780))


def test_small_tables_are_held_whole_in_their_order() -> None:
    source = source_of(Numbered(32))
    assert isinstance(source, HeldRows)
    assert torch.equal(source.held, torch.arange(320.0).unsqueeze(1))
    assert source.fingerprint == "numbers"


def test_errors_of_reading_are_told_from_those_of_training() -> None:
    class Damaged(Numbered):
        def read(self, slices: Any, *, is_counted: bool = True) -> Tensor:
            raise ValueError("row group 3 is damaged")

    with pytest.raises(ReadingError, match="row group 3 is damaged"):
        _ = source_of(Damaged(100)).held
    with pytest.raises(ValueError, match="row group 3 is damaged"):
        source_of(Damaged(3))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("window", [70, 60, 90, 30])
def test_blocks_are_shared_out_and_started_again(size: int, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterated_rows, "WINDOW_ROWS", window)
    sources = [source_of(Blocks(), Ranks(rank, size)) for rank in range(size)]
    assert all(isinstance(source, IteratedRows) for source in sources)
    shares = [30 * len(range(rank, 10, size)) for rank in range(size)]
    for _ in range(3):
        rows = [row for source, share in zip(sources, shares, strict=True) for row in taken(source, share)]
        assert sorted(rows) == list(range(300))
    assert max(len(source.held) for source in sources) <= window


@pytest.mark.parametrize(("num_blocks", "size"), [(3, 4), (4, 5), (3, 9)])
@pytest.mark.usefixtures("small_windows")
def test_a_rank_without_a_block_takes_them_all(num_blocks: int, size: int) -> None:
    num_rows = 30 * num_blocks
    for rank in range(size):
        own = list(range(30 * rank, 30 * rank + 30)) if rank < num_blocks else list(range(num_rows))
        source = source_of(Blocks(num_blocks), Ranks(rank, size))
        assert len(source.held) > 0
        for _ in range(3):
            assert sorted(taken(source, len(own))) == own
        other = source_of(Blocks(num_blocks), Ranks(rank, size))
        other.go_to([source.position()] * size)
        assert torch.equal(other.batch(100), source.batch(100))


@pytest.mark.usefixtures("small_windows")
def test_a_rank_whose_blocks_cannot_be_used_takes_them_all() -> None:
    class Partly(Blocks):
        def __iter__(self) -> Iterator[Tensor]:
            return (
                block + 0 if number % 2 == 0 else block * math.nan for number, block in enumerate(super().__iter__())
            )

    used = [row for row in range(300) if row // 30 % 2 == 0]
    for rank in range(2):
        source = source_of(Partly(), Ranks(rank, 2))
        assert sorted(taken(source, 150)) == used


@pytest.mark.parametrize("num_rows", [3, 300])
def test_several_ranks_cannot_share_an_iterator(num_rows: int) -> None:
    for rank in range(2):
        with pytest.raises(TypeError, match="Pass an iterable that can be started again"):
            open_table(iter(torch.arange(float(num_rows)).split(30)), SCALAR, 100, ranks=Ranks(rank, 2))


@pytest.mark.usefixtures("small_windows")
def test_one_large_block_is_cut() -> None:
    sources = [source_of([torch.arange(300.0)], Ranks(rank, 2)) for rank in range(2)]
    rows = [row for source, share in zip(sources, (160, 140), strict=True) for row in taken(source, share)]
    assert sorted(rows) == list(range(300))


@pytest.mark.usefixtures("small_windows")
def test_an_iterator_that_ends_is_drawn_from() -> None:
    source = source_of(iter(Blocks()))
    assert sorted(taken(source, 300)) == list(range(300))
    with pytest.warns(FitWarning, match="its last 70 rows are drawn from, with replacement"):
        rows = taken(source, 500)
    assert set(rows) <= set(range(230, 300))
    assert len(set(rows)) > 60


@pytest.mark.parametrize("data", [[], iter([]), [torch.full((80,), math.nan)]], ids=["list", "iterator", "missing"])
@pytest.mark.usefixtures("small_windows")
def test_blocks_without_rows(data: Any) -> None:
    table = open_table(data, SCALAR, 100)
    assert table.source.held.shape == (0, 1)
    with pytest.raises(ValueError, match="positives must have at least one row"):
        table.source.batch(3)


@pytest.mark.usefixtures("small_windows")
def test_a_table_that_loses_all_its_rows_after_the_first_pass_ends() -> None:
    class Once:
        num_starts = 0

        def __iter__(self) -> Iterator[Tensor]:
            self.num_starts += 1
            return iter(torch.arange(300.0).split(30) if self.num_starts == 1 else [])

    source = source_of(Once())
    assert sorted(taken(source, 300)) == list(range(300))
    with pytest.raises(ValueError, match="positives must have at least one row"):
        source.batch(3)


@pytest.mark.usefixtures("small_windows")
def test_kinds_of_blocks() -> None:
    rows = torch.arange(600.0).reshape(300, 2)
    for data in (
        DataLoader(TensorDataset(rows), batch_size=30),
        DataLoader(TensorDataset(rows, torch.zeros(300)), batch_size=30, shuffle=True),
        rows.split(30),
        list(rows.numpy().reshape(10, 30, 2)),
        [pd.DataFrame(block.numpy()) for block in rows.split(30)],
        ((block, torch.zeros(30)) for block in rows.split(30)),
    ):
        source = source_of(data, base=normal(2))
        assert isinstance(source, IteratedRows)
        assert sorted(source.batch(300)[:, 0].tolist()) == list(range(0, 600, 2)), type(data)


def test_what_fits_a_window_is_held_whole() -> None:
    for data in (Blocks(), iter(Blocks()), Stream(), DataLoader(TensorDataset(torch.arange(300.0)), batch_size=7)):
        source = source_of(data)
        assert isinstance(source, HeldRows), type(data)
        assert torch.equal(source.held, torch.arange(300.0).unsqueeze(1))


def test_datasets_with_a_length_are_read_by_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro_mbde.training.opened_table.SLICE_ROWS", 7)
    source = source_of(TensorDataset(torch.arange(300.0)))
    assert isinstance(source, WindowedRows)
    assert sorted(taken(source, 300)) == list(range(300))


@pytest.mark.usefixtures("small_windows")
def test_reading_blocks_leaves_the_generator_alone() -> None:
    data = DataLoader(TensorDataset(torch.arange(300.0)), batch_size=30, shuffle=True)
    orders = []
    for rank in range(2):
        source = source_of(data, Ranks(rank, 2))
        before = torch.get_rng_state()
        orders.append(taken(source, 1500))
        assert torch.equal(before, torch.get_rng_state())
    # All see the same order of blocks, so that none is used twice.
    assert sorted(orders[0][:150] + orders[1][:150]) == list(range(300))


def test_rows_that_cannot_be_used_are_told_once() -> None:
    class Partly(Numbered):
        def read(self, slices: Any, *, is_counted: bool = True) -> Tensor:
            rows = super().read(slices)
            rows[rows % 10 == 0] = math.nan
            return rows

    table = open_table(data := Partly(100), dist.Uniform(torch.tensor(-1.0), torch.tensor(500.5)), 100)
    for _ in range(5):
        table.source.batch(900)  # five passes
    with pytest.warns(FitWarning) as caught:
        table.warn()
    texts = [str(warning.message) for warning in caught]
    assert texts[0].startswith("100 of 1,000 rows were left out: they do not hold finite numbers")
    assert texts[1].startswith("450 of 900 rows lie outside the support")
    assert len(texts) == 2
    assert data.num_warnings == 1


@pytest.mark.parametrize("data", [array("f", range(6)), memoryview(array("f", range(6))), [0.0, 1, 2, 3, 4, 5]])
def test_sequences_of_numbers_are_rows(data: Any) -> None:
    assert open_table(data, SCALAR, 100).source.held.squeeze(1).tolist() == list(range(6))


def test_of_several_processes_with_the_same_rows_one_speaks() -> None:
    for data in (
        torch.tensor([math.nan, 1.0]),
        [torch.tensor([math.nan, 1.0])],
        TensorDataset(torch.full((2,), math.nan)),
    ):
        open_table(data, SCALAR, 100, ranks=Ranks(1, 2)).warn()
        with pytest.warns(FitWarning, match="rows were left out"):
            open_table(data, SCALAR, 100, ranks=Ranks(0, 2)).warn()


def test_datasets_of_one_length_are_told_apart() -> None:
    tables = [TensorDataset(torch.zeros(9)), TensorDataset(torch.arange(9.0))]
    assert len({source_of(table).fingerprint for table in tables}) == 2


@pytest.mark.parametrize("data", [{"a": 1}, "rows.csv", b"rows", {1.0, 2.0}, 7.5, None])
def test_what_is_not_a_table(data: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="data must"):
        open_table(data, normal(2), 100)


def test_positions_of_another_kind_are_refused() -> None:
    for source, other in ((HeldRows(torch.zeros(3, 1)), Numbered(100)), (source_of(Numbered(100)), Numbered(3))):
        with pytest.raises(ValueError, match="is read in another way than before"):
            source.go_to([source_of(other).position()])


@pytest.mark.parametrize("size", [3, 50, 500])
def test_a_window_that_is_read_ahead_changes_no_batch_and_no_position(size: int) -> None:
    """Whenever it is read; a source that goes on from there has the same rows too."""

    def source() -> WindowedRows:
        return WindowedRows(Numbered(100), lambda rows, _: rows, lambda rows: rows.unsqueeze(1), torch.zeros(0, 1), 3)

    plain, ahead = source(), source()
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        assert ahead.position() == plain.position()
        if ahead.is_short(size) or torch.rand((), generator=generator) < 0.3:
            ahead.read_ahead()
            assert not ahead.is_short(size)
        other = source()
        other.go_to([ahead.position()])
        batch = plain.batch(size)
        assert torch.equal(ahead.batch(size), batch)
        assert torch.equal(other.batch(size), batch)
