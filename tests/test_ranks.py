"""Processes that work together: what they add up and hand round, and how they end when one of them does."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_processes import refuse_steps, run_ranks, values_of

from pyro_mbde import ranks as joining
from pyro_mbde.ranks import ALONE, LostRankError, Ranks, joined_ranks, launched_ranks

HERE = Path(__file__)


def exchange(ranks: Ranks) -> dict[str, Any]:
    """Every method, once."""
    rank = ranks.rank
    gradients = [torch.full((2, 3), float(rank)), torch.arange(4.0, dtype=torch.float64) * (rank + 1), torch.ones(())]
    torch.manual_seed(rank)
    noise = torch.randn(10_001)
    ranks.average([*gradients, noise])
    found: dict[str, Any] = {
        "patience": refuse_steps(),
        "average": gradients,
        "noise": noise,
        "broadcast": ranks.broadcast({"from": rank}),
        "gather": ranks.gather(rank * 10),
        "claim": ranks.gather(ranks.claim("speaks")),
        "first": ranks.is_first,
    }
    if ranks.is_first:
        found["received"] = [int(ranks.receive(other, torch.zeros(1))) for other in range(ranks.size - 1, 0, -1)]
    else:
        ranks.send(torch.tensor([float(rank)]))
    ranks.broadcast(None)
    return found


def test_what_processes_exchange() -> None:
    found = values_of(run_ranks(HERE, "exchange", 3))
    for each in found:
        assert each["patience"] == 86_400  # others wait for the first process, however short a step may be
        assert torch.equal(each["average"][0], torch.ones(2, 3))
        assert torch.equal(each["average"][1], torch.arange(4.0, dtype=torch.float64) * 2)
        assert float(each["average"][2]) == 1
        assert torch.equal(each["noise"], found[0]["noise"])
        assert each["broadcast"] == {"from": 0}
        assert each["gather"] == [0, 10, 20]
        assert sum(each["claim"]) == 1
    assert [each["first"] for each in found] == [True, False, False]
    assert found[0]["received"] == [2, 1]


def lose_one(ranks: Ranks) -> None:
    """Process 1 is killed in the middle of its steps."""
    for step in range(10_000):
        ranks.average([torch.ones(1000)])
        if ranks.rank == 1 and step == 100:
            os.kill(os.getpid(), signal.SIGKILL)


def fail_in_one(ranks: Ranks) -> None:
    """Process 1 fails while the others wait for its results."""
    if ranks.rank == 1:
        raise MemoryError("too much")
    ranks.gather(0)


@pytest.mark.slow
@pytest.mark.parametrize(("function", "code"), [("lose_one", -9), ("fail_in_one", 1)])
@pytest.mark.parametrize("size", [2, 3])
def test_a_lost_process_ends_the_others(function: str, code: int, size: int) -> None:
    ended = run_ranks(HERE, function, size)
    assert ended[1].code == code
    for rank in set(range(size)) - {1}:
        assert ended[rank].code == 1
        work = "averaging a step" if function == "lose_one" else "collecting results"
        assert ended[rank].error.startswith(f"LostRankError: Process {rank} of {size} failed while {work} (")
        assert "). Another process may have ended: look for its message first. Start all" in ended[rank].error
        assert "with --resume" in ended[rank].error


def test_an_error_of_torch_is_told_as_it_is() -> None:
    """Its cause is not known: that another process ended is only one."""
    ranks = Ranks(1, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joining, "_joined", joining._Joined(None, None, None))
        for error, said in ((RuntimeError("too long: 8 vs 4\nmore"), "too long: 8 vs 4"), (RuntimeError(), "Runtime")):
            with pytest.raises(LostRankError) as raised, ranks._together("collecting results"):
                raise error
            assert str(raised.value).startswith(f"Process 1 of 2 failed while collecting results ({said}")
            assert "more" not in str(raised.value)


def test_alone() -> None:
    ALONE.average([torch.ones(3)])
    assert ALONE.claim("name") and ALONE.claim("name")
    with joined_ranks() as ranks:
        assert ranks is ALONE
    with pytest.raises(LostRankError, match="can only be called inside joined_ranks"):
        Ranks(0, 2).gather(1)
    with pytest.raises(ValueError, match="rank must be in"):
        Ranks(2, 2)


def test_what_a_launcher_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "localhost")):
        monkeypatch.setenv(name, value)
    assert launched_ranks() == ALONE  # not all is said
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert launched_ranks() == Ranks(1, 4)
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(ValueError, match="WORLD_SIZE must be whole numbers, got RANK='one' and WORLD_SIZE='4'. Start"):
        launched_ranks()


def test_processes_that_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LostRankError, match="did not meet all others at 127.0.0.1:1 within 1 seconds"):
        with joined_ranks(timeout=1):
            pass
