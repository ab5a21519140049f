"""Tables that a fit reads in parts, and fits of them: alone, interrupted, and in several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
from densities import normal
from torch import Tensor

from pyro_mbde import DensityRatio, WeakLearner
from pyro_mbde.ranks import ALONE, Ranks
from pyro_mbde.training import iterated_rows
from pyro_mbde.training.density_ratio import LogRatio
from pyro_mbde.training.optimisation import Optimisation
from pyro_mbde.training.row_source import ShuffledRows

QUICK = WeakLearner(hidden_sizes=(16,), num_frequencies=4, num_steps=40, batch_size=64)


class Sliced:
    """A table in slices of 40 rows by default, around (1, 1)."""

    def __init__(self, num_slices: int = 40, num_rows: int = 40) -> None:
        self.num_slices, self.num_rows = num_slices, num_rows
        self.fingerprint = f"{num_slices} times {num_rows}"

    def read(self, slices: Sequence[int], *, is_counted: bool = True) -> Tensor:
        parts = [torch.zeros(0, 2)]
        for number in slices:
            generator = torch.Generator().manual_seed(number)
            parts.append(0.5 * torch.randn(self.num_rows, 2, generator=generator) + 1)
        return torch.cat(parts)

    def warn(self, ranks: Ranks = ALONE) -> None:
        pass


class Blocks:
    """The rows of thirty slices, in blocks, which can be handed over again and again."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(Sliced().read(range(30)).split(40))


#: A table of each kind.
TABLES: dict[str, Callable[[], Any]] = {
    "rows": lambda: Sliced().read(range(10)),
    "slices": Sliced,
    "blocks": Blocks,
    "no rows": lambda: Sliced(num_rows=0),
}


class Bar:
    """A progress bar that interrupts a fit after a step."""

    def __init__(self, stop: int | None) -> None:
        self._stop, self.num_steps = stop, 0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, steps: int = 1) -> None:
        self.num_steps += steps
        if self.num_steps == self._stop:
            raise KeyboardInterrupt


def fit(
    kind: str, *, ranks: Ranks = ALONE, resume: bool = False, stop: int | None = None, **options: Any
) -> LogRatio | None:
    """Fits a table of a kind, in windows of 100 rows where it comes in blocks; None if it was interrupted."""
    options = {"weak_learner": QUICK, "ensemble_size": 4, "seed": 0, "progress": False, **options}
    bar = Bar(stop)
    with (
        mock.patch.object(iterated_rows, "WINDOW_ROWS", 100),
        mock.patch("pyro_mbde.training.density_ratio.tqdm", lambda **_: bar),
    ):
        try:
            return DensityRatio(normal(2), ranks=ranks, **options).fit(TABLES[kind](), resume)
        except KeyboardInterrupt:
            return None


def networks_of(ratio: LogRatio | None) -> dict[str, Tensor]:
    assert ratio is not None
    return {name: value.clone() for name, value in ratio._networks.state_dict().items()}


def are_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def outcome(ratio: LogRatio | None) -> tuple[dict[str, Tensor], Tensor, float]:
    """Networks, the first quasi-random scores, and the next number of torch's generator."""
    networks = networks_of(ratio)
    scores: Any = ratio._calibrator._scores if ratio is not None else None
    return networks, scores.scores, float(torch.rand(()))


def fits_over_ranks(ranks: Ranks, jobs: Sequence[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Networks, or None, of several fits in these processes, without draws for a calibration."""
    found: list[Any] = []
    with mock.patch("pyro_mbde.training.density_ratio.LogRatio", lambda *arguments, **_: arguments[1]):
        for kind, options in jobs:
            networks: Any = fit(kind, ranks=ranks, **options)
            found.append(None if networks is None else dict(networks.state_dict()))
    return found


#: Parts of training that may fail in one process, as one that runs out of memory does.
PARTS: dict[str, tuple[type, str]] = {
    "rows": (ShuffledRows, "_advance"),
    "optimizer": (WeakLearner, "_optimizer"),
    "gradient": (Optimisation, "_gradient"),
    "update": (Optimisation, "_update"),
    "state": (Optimisation, "_own_state"),
    "networks": (Optimisation, "_whole_networks"),
}


def failing(part: str) -> Any:
    """A block in which a part of training fails."""
    return mock.patch.object(*PARTS[part], mock.Mock(side_effect=MemoryError("too much")))


def failures_over_ranks(ranks: Ranks, splits: Sequence[str]) -> list[tuple[str, str, float]]:
    """Fits of which each fails in the last process; the largest logit of what they come back with."""
    found = []
    with mock.patch("pyro_mbde.training.density_ratio.LogRatio", lambda *arguments, **_: arguments[1]):
        for split in splits:
            for part in PARTS:
                with failing(part) if ranks.rank == ranks.size - 1 else nullcontext():
                    networks: Any = fit("slices", ranks=ranks, split=split)
                found.append((split, part, float(networks.logits(torch.randn(9, 2)).abs().max())))
    return found


def error_over_ranks(ranks: Ranks, options: Sequence[dict[str, Any]], tables: Sequence[str]) -> str:
    """What a fit raises whose processes differ."""
    try:
        fit(tables[ranks.rank], ranks=ranks, **options[ranks.rank])
    except ValueError as error:
        return str(error)
    return ""
