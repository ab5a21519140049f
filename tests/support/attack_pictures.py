"""Draws docs/images/attack.png, audits of sound fits and of planted faults; run as a program."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import planted_faults as faults
from audits import boosted
from densities import BASES
from quick_fits import BASE, BATCH_ROWS, EPSILON, DrawsAlone, quick_ratio
from torch import Tensor

from pyro_mbde import AuditReport, audit, fresh_chains, private_draws
from pyro_mbde.auditing.picture import draw_audits
from pyro_mbde.pictures import write_picture


def calibrated(table: Tensor) -> Any:
    return quick_ratio(table).mollify(EPSILON)


def batches(table: Tensor) -> Any:
    return quick_ratio(table).mollify(EPSILON, num_rows=BATCH_ROWS)


def constant_time(table: Tensor) -> Any:
    q = calibrated(table)
    return DrawsAlone(lambda count: private_draws(q, count, constant_time=True, progress=False))


def last_states(table: Tensor) -> Any:
    q = boosted()(table)
    return DrawsAlone(lambda count: fresh_chains(q, count, 5, progress=False).values)


SOUND: dict[str, Callable[[Tensor], Any]] = {
    "rows, a priori": boosted(),
    "rows, calibrated": calibrated,
    "rows in constant time (draws alone)": constant_time,
    f"batches of {BATCH_ROWS} rows, calibrated": batches,
    "rows of columns of all kinds": boosted(base=BASES["columns"]()),
    "last states of fresh chains (draws alone)": last_states,
}
FAULTY: dict[str, Callable[[Tensor], Any]] = {
    "fitted at 2 epsilon": faults.theta_twice_too_large,
    "fitted at 8 epsilon (draws alone)": faults.theta_too_large_behind_draws,
    "clamp removed": faults.clamp_removed,
    "no bound at all": faults.unbounded_boosting,
    "base scaled to the table": faults.standardised_base,
    "one draw in ten is a row of the table": faults.rows_among_the_draws,
    "normaliser never certified": faults.calibration_without_certificate,
    "batch fitted at 2 epsilon": faults.batch_at_the_price_of_a_smaller_epsilon,
    "separate rows sold as one batch": faults.separate_rows_at_the_price_of_one,
    "epsilon picked by the table, below 1": faults.epsilon_picked_by_the_table,
    "seed used for every release": faults.seed_reused,
}


def audited(fit: Callable[[Tensor], Any], base: Any) -> AuditReport:
    return audit(fit, EPSILON, base=base, num_pairs=3, num_draws=20_000, seed=0, progress=False)


def main(folder: Path) -> None:
    """Audits all of them, and draws what was found."""
    sound = {name: audited(fit, BASES["columns"]() if "columns" in name else BASE) for name, fit in SOUND.items()}
    faulty = {name: audited(fit, BASE) for name, fit in FAULTY.items()}
    for name, report in {**sound, **faulty}.items():
        print(f"{name}: {str(report).splitlines()[0]}; black-box {report.black_box:.3g}", flush=True)
    write_picture(draw_audits({"Sound fits": sound, "Planted faults": faulty}), folder / "attack.png", dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
