"""How small a fault each tester finds; run as a program, it prints the table of docs/claims.md."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from divergence_testers import TESTERS, Tester
from quick_fits import BASE, BATCH_ROWS, quick_ratio
from torch import Tensor

from pyro_mbde import MollifiedExpFamily
from pyro_mbde._torch_state import seeded, single_thread
from pyro_mbde.auditing.events import epsilon_lower_bound
from pyro_mbde.auditing.hostile_tables import hostile_pairs
from pyro_mbde.density.base_draws import TorchSource
from pyro_mbde.sampling.constant_time import constant_time_draws, constant_time_proposals


def constant_time(q: MollifiedExpFamily, count: int) -> Tensor:
    """Draws in constant time, from a seed."""
    num_proposals = constant_time_proposals(q.bounds)
    return constant_time_draws(TorchSource(q.base), q.accepted_tilt, q.bounds, count, num_proposals)


#: What is drawn from a learned log-ratio at an epsilon: single rows, batches, single rows in constant time.
KINDS: dict[str, Callable[[Any, float, int], Tensor]] = {
    "rows": lambda ratio, epsilon, count: ratio.mollify(epsilon).sample((count,)),
    "batches": lambda ratio, epsilon, count: (
        ratio.mollify(epsilon, 1e-4, num_rows=BATCH_ROWS).sample((count,)).reshape(count, -1)
    ),
    "constant time": lambda ratio, epsilon, count: constant_time(ratio.mollify(epsilon), count),
}
#: A fault: fitted at this multiple of the epsilon that is claimed.
EXCESSES = (1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)


def own_audit(num_rows: int, tables: tuple[Tensor, Tensor]) -> Tester:
    """The audit's own attack by draws, as a tester."""
    rows = [table[torch.randperm(len(table))[:256]] for table in tables]

    def tester(first: Tensor, other: Tensor, epsilon: float, delta: float, error: float) -> bool:
        found = epsilon_lower_bound(first, other, *rows, error=error, delta=delta, num_rows=num_rows)
        return found.epsilon > epsilon

    return tester


def drawn_pair(kind: str, epsilon: float, count: int, pair: int = 2) -> tuple[list[Tensor], tuple[Tensor, Tensor]]:
    """Draws of the densities fitted to two hostile tables, by default the two halves of the base; and the tables."""
    with seeded(3), single_thread():
        made = hostile_pairs(BASE, 1.0, pair + 1)[pair]
        draws = [KINDS[kind](quick_ratio(table), epsilon, count) for table in (made.table, made.other)]
    return draws, (made.table, made.other)


def smallest_found(
    kind: str, claimed: float, count: int, error: float, excesses: Sequence[float] = EXCESSES
) -> Iterator[tuple[str, float | None]]:
    """For each tester the smallest excess from which on the fault is found, or None."""
    found: dict[str, list[bool]] = {}
    for excess in excesses:
        draws, tables = drawn_pair(kind, claimed * excess, count)
        testers = {"own audit": own_audit(BATCH_ROWS if kind == "batches" else 1, tables), **TESTERS}
        with seeded(1), single_thread():
            for name, tester in testers.items():
                found.setdefault(name, []).append(tester(draws[0], draws[1], claimed, 1e-4, error))
    for name, whether in found.items():
        last_miss = max((place for place, hit in enumerate(whether) if not hit), default=-1)
        yield name, excesses[last_miss + 1] if last_miss + 1 < len(excesses) else None


if __name__ == "__main__":
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    for name in KINDS:
        # In constant time a draw takes about 37 e^epsilon proposals, of which 8 would be too many.
        for stated in (0.5,) if name == "constant time" else (0.5, 1.0):
            print(name, stated, dict(smallest_found(name, stated, size, 0.05)), flush=True)
