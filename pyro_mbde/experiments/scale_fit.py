"""A fit to the synthetic table, timed, and how near it comes to the law; also as a program for several ranks.

``torchrun --nproc-per-node=2 -m pyro_mbde.experiments.scale_fit '{"table": "rows.parquet", "split": "rows"}'``
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyro_mbde._torch_state import seeded, single_thread
from pyro_mbde.calibration.projection import project
from pyro_mbde.density.base_draws import quasi_draws
from pyro_mbde.density.bounds import clip_score, skewed_bounds
from pyro_mbde.experiments.scale_table import TwoGroups, held_out_rows, public_schema
from pyro_mbde.ranks import ALONE, Ranks, joined_ranks
from pyro_mbde.training.density_ratio import DensityRatio, LogRatio

Record = dict[str, Any]
#: Epsilon of a single row, and where the interval of its tilt lies.
EPSILONS, SKEW = (1.0, 3.0, 10.0), 0.3
NUM_HELD_OUT, _SEED_OF_DRAWS = 200_000, 5


class Yardstick:
    """Rows that no fit has seen, and what the law itself reaches on them.

    Args:
        num_rows: held-out rows, and quasi-random draws of the base.
    """

    def __init__(self, num_rows: int = NUM_HELD_OUT) -> None:
        self.base = public_schema().base()
        law = TwoGroups()
        self.rows = held_out_rows(num_rows)
        with seeded(_SEED_OF_DRAWS):
            self._draws = quasi_draws(self.base, num_rows)
        self._base_log_prob = self.base.log_prob(self.rows).double()
        log_prob = law.log_prob(self.rows)
        self._of_law = log_prob - self._base_log_prob
        self._of_law_at_draws = law.log_prob(self._draws) - self.base.log_prob(self._draws).double()
        #: Entropy of the law, in nats: no density has a lower negative log-likelihood.
        self.entropy = -float(log_prob.mean())

    def best_gain(self, epsilon: float) -> float:
        """Returns the most that a calibrated density can gain on the base, in nats.

        Args:
            epsilon: of one row.
        """
        bounds = skewed_bounds(epsilon, SKEW)
        shift = project(self._of_law_at_draws, torch.zeros(len(self._draws)), bounds)
        return float(clip_score(self._of_law, shift, bounds).mean())

    def gain(self, log_prob: Tensor) -> float:
        """Returns the nats that a density gains on the base.

        Args:
            log_prob: of the held-out rows, shape ``(n,)``.
        """
        return float((log_prob.double() - self._base_log_prob).mean())

    def nll(self, ratio: LogRatio) -> float:
        """Returns the negative log-likelihood of the unbounded ratio's density, in nats, normalised on base draws.

        Args:
            ratio: a fit.
        """
        log_normalizer = (
            float(torch.logsumexp(ratio.log_ratio(self._draws), 0)) - torch.tensor(float(len(self._draws))).log().item()
        )
        return log_normalizer - float((self._base_log_prob + ratio.log_ratio(self.rows)).mean())


def fit_and_score(
    table: str | Sequence[str],
    yardstick: Yardstick,
    *,
    steps: int | None = None,
    seed: int = 0,
    epsilons: Sequence[float] = EPSILONS,
    split: str = "auto",
    ranks: Ranks = ALONE,
) -> Record:
    """Fits one ratio to files of the table, and scores a density of it at each epsilon.

    Args:
        table: its files.
        yardstick: rows to score on.
        steps: of training; the trainer's own by default.
        seed: of the fit.
        epsilons: of single rows.
        split: how ranks share the work.
        ranks: that this process is one of.

    Returns:
        Seconds of each part, ``gain`` and ``best`` by epsilon, ``nll`` beside the law's ``entropy``.
    """
    clock = time.perf_counter()

    def lap() -> float:
        nonlocal clock
        before, clock = clock, time.perf_counter()
        return clock - before

    with single_thread(), torch.no_grad():
        schema = public_schema()
        trainer = DensityRatio(schema.base(), seed=seed, progress=False, ranks=ranks, split=split)
        if steps is not None:
            trainer.weak_learner = replace(trainer.weak_learner, num_steps=steps)
        lap()
        stream = schema.stream(table)
        index_seconds = lap()
        ratio = trainer.fit(stream)
        training_seconds = lap()
        densities = [ratio.mollify(epsilon, skew=SKEW) for epsilon in epsilons]
        calibration_seconds = lap()
        return {
            "steps": trainer.weak_learner.num_steps,
            "seed": seed,
            "split": split,
            "ranks": ranks.size,
            "index_seconds": index_seconds,
            "training_seconds": training_seconds,
            "calibration_seconds": calibration_seconds,
            "gain": {
                str(epsilon): yardstick.gain(density.log_prob(yardstick.rows))
                for epsilon, density in zip(epsilons, densities, strict=True)
            },
            "best": {str(epsilon): yardstick.best_gain(epsilon) for epsilon in epsilons},
            "nll": yardstick.nll(ratio),
            "entropy": yardstick.entropy,
        }


def main(arguments: Sequence[str]) -> None:
    """Runs one fit on all ranks; the first of them prints what it measured as JSON.

    Args:
        arguments: one JSON object: keywords of :func:`fit_and_score`, and ``num_held_out``.
    """
    options = json.loads(arguments[0])
    yardstick = Yardstick(options.pop("num_held_out", NUM_HELD_OUT))
    with joined_ranks() as ranks:
        record = fit_and_score(options.pop("table"), yardstick, ranks=ranks, **options)
        if ranks.is_first:
            print(json.dumps(record))  # noqa: T201  # the answer of a program


if __name__ == "__main__":
    main(sys.argv[1:])
