"""What a release of k rows at a total epsilon comes to: one batch, blocks, separate draws, the base, the table."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor
from tqdm import tqdm

from pyro_mbde._torch_state import seeded, single_thread
from pyro_mbde.calibration.plan import plan_calibration
from pyro_mbde.cli.forward import PrintingCommand
from pyro_mbde.density.base import PreparedBase, prepare
from pyro_mbde.density.base_draws import quasi_draws
from pyro_mbde.experiments.medical import SCHEMA, load_rows, public_base, split_rows
from pyro_mbde.experiments.problems import Problem, find_problem
from pyro_mbde.experiments.row_laws import (
    Array,
    RowLaw,
    histogram_distance,
    marginal_distances,
    total_variation_to,
)
from pyro_mbde.privacy.accounting import DrawBudget, epsilon_per_draw
from pyro_mbde.privacy.placement import filled_share_skew
from pyro_mbde.privacy.release_plan import MAX_BATCH_EPSILON
from pyro_mbde.private_files import write_atomically
from pyro_mbde.training.density_ratio import DensityRatio

Record = dict[str, Any]

TOTALS, NUM_ROWS = (1.0, 3.0, 10.0), (5, 10, 20, 100)
#: Numbers of blocks that are tried, where they divide the rows.
_BLOCKS = (2, 4, 5, 10, 20, 50)
_DELTA, _CERTIFICATE_DELTA = 1e-6, 1e-9
#: Scored draws of the base and of a known target.
_NUM_DRAWS, _NUM_QUICK_DRAWS = 2**18, 2**13
#: Scores that exact draws gather at a time.
_CHUNK = 2**22
WAYS = ("batch", "blocks", "draws", "base", "target")


def _over_normal(name: str, target: dist.TorchDistribution) -> Problem:
    return Problem(name, target, dist.Normal(0.0, 1.0), (-9.0, 9.0))


def _two_normals() -> Problem:
    """Half N(-1, .3), half N(1, .3)."""
    target = dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), dist.Normal(torch.tensor([-1.0, 1.0]), 0.3))
    return _over_normal("two-normals", target)


#: Scored by their true log-ratio, so that no fit adds an error.
KNOWN = {
    "normal": lambda: _over_normal("normal", dist.Normal(1.0, 0.5)),
    "near-normal": lambda: _over_normal("near-normal", dist.Normal(0.5, 1.0)),
    "two-normals": _two_normals,
}
#: Scored by a fit to a table.
LEARNED = ("ring-tight", "ring-box", "spikes", "mixture-5d", "medical")


class Case(NamedTuple):
    """A base and what is released over it, with their scores.

    Attributes:
        name: of the problem.
        base: Q0, prepared.
        base_scores: scores u of draws of the base, shape ``(n,)``.
        target_scores: scores of rows of the target: drawn from it, or of the half of a table that no fit has seen.
        base_log_ratio: log p/q0 at the draws of the base; None where the target is a table.
        target_log_ratio: at the rows of the target.
        base_columns: draws of the base in the table's units, shape ``(n, d)``; None where the target is known.
        target_columns: likewise of the rows of the target.
        half_distances: of the two halves of a table; zeros where the target is known.
    """

    name: str
    base: PreparedBase
    base_scores: Tensor
    target_scores: Tensor
    base_log_ratio: Tensor | None = None
    target_log_ratio: Tensor | None = None
    base_columns: Array | None = None
    target_columns: Array | None = None
    half_distances: tuple[float, float] = (0.0, 0.0)


class Way(NamedTuple):
    """How rows are released within the total."""

    num_draws: int
    rows_per_draw: int
    skew: float = 0.3
    filled_share: float | None = None


def known_case(problem: Problem, num_draws: int) -> Case:
    """A problem that is scored by its true log-ratio."""
    at_base, at_target = quasi_draws(problem.base, num_draws), problem.target.sample(torch.Size([num_draws]))
    of_base, of_target = (_log_ratio(problem, rows) for rows in (at_base, at_target))
    return Case(problem.name, prepare(problem.base), of_base, of_target, of_base, of_target)


def learned_case(problem: Problem, num_rows: int, seed: int, num_draws: int, *, quick: bool) -> Case:
    """A problem that is scored by a fit to a table of so many rows."""
    ratio = _trainer(problem.base, seed, quick=quick).fit(problem.target.sample(torch.Size([num_rows])))
    at_base, at_target = quasi_draws(problem.base, num_draws), problem.target.sample(torch.Size([num_draws]))
    return Case(
        problem.name,
        prepare(problem.base),
        _in_parts(ratio.log_ratio, at_base),
        _in_parts(ratio.log_ratio, at_target),
        _log_ratio(problem, at_base),
        _log_ratio(problem, at_target),
    )


def medical_case(seed: int, num_draws: int, *, quick: bool) -> Case:
    """The medical table over the box of its schema: fitted to one half, compared with the other."""
    base = public_base()
    seen, unseen = split_rows(load_rows(seed=0), 0.5, seed)
    ratio = _trainer(base, seed, quick=quick).fit(seen)
    draws = quasi_draws(base, num_draws)
    columns = [SCHEMA.to_frame(rows).to_numpy(dtype=np.float64) for rows in (draws, unseen, seen)]
    return Case(
        "medical",
        prepare(base),
        _in_parts(ratio.log_ratio, draws),
        _in_parts(ratio.log_ratio, unseen),
        base_columns=columns[0],
        target_columns=columns[1],
        half_distances=marginal_distances(columns[1], columns[2]),
    )


def fit_scores(base: Any, seen: Tensor, draws: Tensor, seed: int, *, quick: bool) -> Tensor:
    """Scores of draws of a base by a fit to rows."""
    return _in_parts(_trainer(base, seed, quick=quick).fit(seen).log_ratio, draws)


def _trainer(base: Any, seed: int, *, quick: bool) -> DensityRatio:
    trainer = DensityRatio(base, seed=seed, progress=False)
    if quick:
        trainer.weak_learner = dataclasses.replace(trainer.weak_learner, num_steps=60)
        trainer.ensemble_size = 2
    return trainer


def _in_parts(function: Any, rows: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([function(part).double() for part in torch.split(rows, 2**15)])


def _log_ratio(problem: Problem, rows: Tensor) -> Tensor:
    return _in_parts(lambda part: problem.target.log_prob(part).double() - problem.base.log_prob(part).double(), rows)


@functools.cache
def _budget(total: float, num_draws: int, skew: float, filled_share: float | None) -> DrawBudget:
    return epsilon_per_draw(
        total,
        num_draws,
        _CERTIFICATE_DELTA if num_draws == 1 else _DELTA,  # one draw costs what it says
        certificate_delta=_CERTIFICATE_DELTA,
        skew=skew,
        filled_share=filled_share,
    )


def row_law(case: Case, scores: Tensor, total: float, way: Way) -> tuple[RowLaw, float] | None:
    """The law of a released row and the epsilon of a draw; None where a batch may not cost as much."""
    budget = _budget(total, way.num_draws, way.skew, way.filled_share)
    num_rows = None if way.rows_per_draw == 1 else way.rows_per_draw
    if num_rows is not None and budget.epsilon > MAX_BATCH_EPSILON:
        return None
    bounds, certificate = plan_calibration(case.base, budget.epsilon, budget.delta, budget.skew, num_rows)
    return RowLaw(scores, way.rows_per_draw, bounds, calibrated=certificate is not None), budget.epsilon


def distances(case: Case, law: RowLaw | None) -> Record:
    """How far rows of a law are from the target; without a law, rows of the base."""
    if case.target_log_ratio is not None:
        log_ratio = torch.zeros_like(case.target_scores) if law is None else law.log_ratio(case.target_scores)
        return {"distance": total_variation_to(case.target_log_ratio, log_ratio)}
    assert case.target_columns is not None and case.base_columns is not None
    weights = None if law is None else law.log_ratio(case.base_scores).softmax(0).numpy()
    columns, pairs = marginal_distances(case.target_columns, case.base_columns, weights)
    return {"distance": columns, "pairs": pairs}


def drawn_distance(case: Case, law: RowLaw, num_batches: int) -> float:
    """Total variation to the target of rows that are drawn: batches of scored rows of the base, accepted exactly."""
    assert case.base_log_ratio is not None and case.target_log_ratio is not None
    accepted: list[Tensor] = []
    size = max(_CHUNK // law.num_rows, 1)
    while sum(map(len, accepted)) < num_batches:
        rows = torch.randint(len(case.base_scores), (size, law.num_rows))
        accepted.append(rows[law.accepts(case.base_scores[rows])])
    rows = torch.cat(accepted)[:num_batches]
    return histogram_distance(case.target_log_ratio, case.base_log_ratio[rows].flatten())


def measure_release(
    case: Case, total: float, num_rows: int, names: tuple[str, ...], placements: list[Record], released: int = 0
) -> Iterator[Record]:
    """Yields what each way to release k rows at a total comes to: of blocks, every number of them.

    Args:
        case: what is released.
        total: epsilon of all rows, in nats.
        num_rows: k.
        names: of :data:`WAYS`.
        placements: ``skew`` or ``filled_share`` of each placement to try.
        released: batches to draw as well; none by default.
    """
    key: Record = {"problem": case.name, "total": total, "num_rows": num_rows}
    counts = {"batch": [1], "blocks": [n for n in _BLOCKS if n < num_rows and num_rows % n == 0], "draws": [num_rows]}
    for placement in placements:
        for name in names:
            for num_draws in counts.get(name, []):
                way = Way(num_draws, num_rows // num_draws, **placement)
                placed = row_law(case, case.base_scores, total, way)
                if placed is not None:
                    yield {**key, "way": name, **_measured(case, total, way, *placed, released)}
    if "base" in names:
        yield {**key, "way": "base", "nats": 0.0, **distances(case, None)}
    if "target" in names:
        nats = None if case.target_log_ratio is None else float(case.target_log_ratio.mean())
        columns, pairs = case.half_distances
        yield {**key, "way": "target", "nats": nats, "distance": columns, "pairs": None if nats is not None else pairs}


def _measured(case: Case, total: float, way: Way, law: RowLaw, epsilon: float, released: int) -> Record:
    skew = way.skew if way.filled_share is None else filled_share_skew(epsilon, way.filled_share)
    record: Record = {"num_draws": way.num_draws, "epsilon": epsilon, "skew": skew, "filled_share": way.filled_share}
    nats = law.gain(case.target_scores)
    record |= {"nats": nats, **distances(case, law)}
    if way.num_draws == 1 and case.base_log_ratio is not None and case.target_log_ratio is not None:
        best = row_law(case, case.base_log_ratio, total, way)
        assert best is not None
        record["share"] = nats / best[0].gain(case.target_log_ratio)
        if released:
            record["drawn"] = drawn_distance(case, law, released)
    return record


def shown(records: list[Record]) -> list[Record]:
    """Returns the records to print: of blocks, those whose rows are nearest to the target."""
    kept: list[Record] = []
    best: dict[tuple[Any, ...], Record] = {}
    for record in records:
        key = tuple(record.get(name) for name in ("problem", "total", "num_rows", "way"))
        placed = record.get("filled_share") or ("skew", record.get("skew"))
        if record["way"] != "blocks":
            kept.append(record)
        elif (key, placed) not in best:
            best[key, placed] = record
            kept.append(record)
        elif float(record["distance"] or 0) < float(best[key, placed]["distance"] or 0):
            kept[kept.index(best[key, placed])] = record
            best[key, placed] = record
    return kept


def _line(record: Record) -> str:
    def cell(name: str, digits: int = 3, width: int = 8) -> str:
        value = record.get(name)
        return f"{value:>{width}.{digits}f}" if isinstance(value, float) else f"{'-':>{width}}"

    share = record.get("filled_share")
    placed = f"share {share:g}" if share else (f"{record['skew']:g}" if "skew" in record else "-")
    draws = record.get("num_draws", "-")
    return (
        f"{record['problem']:<12}{record['total']:>5g}{record['num_rows']:>5}  {record['way']:<7}{draws:>5}"
        f"{placed:>11}{cell('epsilon')}{cell('nats')}{cell('distance')}{cell('pairs')}{cell('share')}{cell('drawn')}"
    )


@click.command(cls=PrintingCommand)
@click.option("--problem", "names", multiple=True, type=click.Choice([*KNOWN, *LEARNED]), help="Several may be named.")
@click.option("--total", "totals", multiple=True, type=float, default=TOTALS, show_default=True, help="Epsilon in all.")
@click.option("--num-rows", "counts", multiple=True, type=click.IntRange(2), default=NUM_ROWS, show_default=True)
@click.option("--way", "ways", multiple=True, type=click.Choice(WAYS), default=WAYS, show_default=True)
@click.option("--skew", "skews", multiple=True, type=float, help="Where the tilt lies.  [default: 0.3]")
@click.option("--filled-share", "shares", multiple=True, type=float, help="Sets the skew; several may be named.")
@click.option("--rows", type=click.IntRange(2), default=10_000, show_default=True, help="Rows of a table to fit to.")
@click.option("--fitted", is_flag=True, help="Score the first three problems by a fit as well.")
@click.option("--released", type=click.IntRange(0), default=0, help="Batches to draw as well; known targets only.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--records", type=click.Path(dir_okay=False, path_type=Path), help="JSON file for every number.")
@click.option("--quick", is_flag=True, help="Few draws and short training, to check that everything runs.")
def batches(
    names: tuple[str, ...],
    totals: tuple[float, ...],
    counts: tuple[int, ...],
    ways: tuple[str, ...],
    skews: tuple[float, ...],
    shares: tuple[float, ...],
    rows: int,
    fitted: bool,
    released: int,
    seed: int,
    records: Path | None,
    quick: bool,
) -> None:
    """Rows of a release at a total: nats that a row gains, and total variation of a row to the target.

    For tables the distance is the mean over single columns, then over pairs. SHARE is of the best reachable gain of the
    batch; DRAWN is the distance of rows that were drawn. The first three problems are scored by their true log-ratio.
    """
    placements: list[Record] = [{"skew": skew} for skew in skews or (() if shares else (0.3,))]
    placements += [{"filled_share": share} for share in shares]
    names = names or (*KNOWN, *LEARNED)
    columns = "".join(f"{name:>8}" for name in ("epsilon", "nats", "dist.", "pairs", "share", "drawn"))
    measured: list[Record] = []
    with single_thread(), seeded(seed), tqdm(total=len(names) * len(totals) * len(counts), desc="releases") as bar:
        bar.write(f"{'problem':<12}{'E':>5}{'k':>5}  {'way':<7}{'draws':>5}{'skew':>11}{columns}")
        for name in names:
            case = _case(name, rows, seed, fitted=fitted, quick=quick)
            for total in totals:
                for count in counts:
                    found = list(measure_release(case, total, count, ways, placements, released))
                    for record in shown(found):
                        bar.write(_line(record))
                    measured += found
                    bar.update()
    if records is not None:
        write_atomically(lambda file: file.write(json.dumps(measured, indent=1).encode()), records)
        click.echo(str(records))


def _case(name: str, num_rows: int, seed: int, *, fitted: bool, quick: bool) -> Case:
    num_draws = _NUM_QUICK_DRAWS if quick else _NUM_DRAWS
    if name == "medical":
        return medical_case(seed, num_draws, quick=quick)
    problem = KNOWN[name]() if name in KNOWN else find_problem(name)
    if name in KNOWN and not fitted:
        return known_case(problem, num_draws)
    return learned_case(problem, num_rows, seed, num_draws, quick=quick)
