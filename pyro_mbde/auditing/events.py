"""Lower bounds on epsilon from draws alone: an event is chosen on half of them and counted on the other half."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from scipy import stats  # type: ignore[import-untyped]  # SciPy ships no types
from torch import Tensor

from pyro_mbde._checks import check_count, check_number
from pyro_mbde._torch_state import with_gradients
from pyro_mbde.auditing.search import in_chunks
from pyro_mbde.density.base import LocationScale, location_scale_of_draws
from pyro_mbde.training.weak_learner import WeakLearner

#: The classifier that learns to tell the draws apart, and how many draws it sees.
_LEARNER = WeakLearner(
    hidden_sizes=(32,), num_frequencies=16, frequency_scale=(0.5, 4.0), num_steps=150, batch_size=512
)
_NUM_TRAINING = 2**14
#: Thresholds tried for each score, columns that are scores themselves, and rows of a table that draws are held
#: against.
_NUM_THRESHOLDS, _NUM_COLUMNS, _NUM_ROWS = 64, 8, 64
#: Most distinct rows for which each is a cell.
_NUM_CELLS = 512
#: Relative error of a quantile, which bounds are rounded outwards by.
_ROUNDING = 1e-9


class Event(NamedTuple):
    """A lower bound by counting.

    Attributes:
        epsilon: lower bound, in nats; 0 where nothing was proved.
        text: the event.
        estimate: log-ratio of how often the event was counted, less delta, in nats; not a bound.
        upper: upper bound on the log-ratio of this event, in nats, each count wrong with the same probability.
    """

    epsilon: float
    text: str
    estimate: float = 0.0
    upper: float = 0.0


def clopper_pearson(count: int, num_trials: int, error: float) -> tuple[float, float]:
    """Returns a lower and an upper bound on a probability, each wrong with probability at most ``error``.

    Args:
        count: events seen, from 0 to ``num_trials``.
        num_trials: at least 1.
        error: of each bound, in (0, 1).

    References:
        Clopper, Pearson. The use of confidence or fiducial limits illustrated in the case of the binomial. 1934.

    Example:
        >>> low, high = clopper_pearson(0, 100, 0.05)
        >>> low, round(high, 5)  # 1 - 0.05^(1/100)
        (0.0, 0.02951)
    """
    num_trials = check_count("num_trials", num_trials)
    count = check_count("count", count, minimum=0)
    check_number("count", count, f"be at most {num_trials}", lambda value: value <= num_trials)
    check_number("error", error, "be in (0, 1)", lambda value: 0 < value < 1)
    lower = 0.0 if count == 0 else float(stats.beta.ppf(error, count, num_trials - count + 1))
    upper = 1.0 if count == num_trials else float(stats.beta.isf(error, count + 1, num_trials - count))
    return lower * (1 - _ROUNDING), min(upper * (1 + _ROUNDING), 1.0)


def epsilon_lower_bound(
    draws: Tensor,
    other_draws: Tensor,
    rows: Tensor,
    other_rows: Tensor,
    *,
    error: float,
    delta: float,
    num_rows: int = 1,
) -> Event:
    r"""Returns the largest epsilon that draws of two densities prove, either way.

    For an event S with :math:`\Pr[S] \le e^\epsilon \Pr[S'] + \delta` claimed,

    .. math::
        \epsilon \ge \log \frac{\underline{\Pr}[S] - \delta}{\overline{\Pr}[S']} ,

    with Clopper and Pearson's bounds, each wrong with a quarter of ``error``: there are two ways, and two bounds for
    each. S is the set above or below a threshold of a score; score and threshold are chosen on the first half of the
    draws, and counted on the second, which the choice does not depend on: one event each way, so no multiplicity is
    left to pay for.

    Args:
        draws: of one density, shape ``(n, d)``, or ``(n, num_rows * d)`` for batches.
        other_draws: of the other.
        rows: of the first density's table, to measure distances to, shape ``(m, d)``.
        other_rows: of the other's.
        error: probability that the result is above epsilon though the claim holds.
        delta: of the claim.
        num_rows: rows of a draw; the score of a batch is the sum of those of its rows.

    References:
        Jagielski, Ullman, Oprea. Auditing Differentially Private Machine Learning. 2020.
    """
    (first, second), (other_first, other_second) = (torch.tensor_split(part, 2) for part in (draws, other_draws))
    width = draws.shape[1] // num_rows
    parts = [part.double().reshape(-1, width) for part in (first, other_first, second, other_second)]
    scores = {
        name if num_rows == 1 else f"{name}, summed over rows": [score.reshape(-1, num_rows).sum(1) for score in found]
        for name, found in _scores(parts, rows, other_rows).items()
    }
    best = Event(0.0, "")
    for way in (0, 1):
        found = {name: _best_threshold(parts[way], parts[1 - way], delta) for name, parts in scores.items()}
        name = max(found, key=lambda name: found[name][2])
        threshold, above, promise = found[name]
        if promise == -math.inf:
            continue
        counted = [scores[name][2 + way], scores[name][3 - way]]
        counts = [int(((part >= threshold) == above).sum()) for part in counted]
        lower, most = clopper_pearson(counts[0], len(counted[0]), error / 4)
        least, upper = clopper_pearson(counts[1], len(counted[1]), error / 4)
        epsilon = math.log((lower - delta) / upper) if lower > delta else 0.0
        if epsilon > best.epsilon:
            share, other_share = (count / len(part) for count, part in zip(counts, counted, strict=True))
            best = Event(
                epsilon,
                f"{name} {'>=' if above else '<'} {threshold:.4g}",
                math.log((share - delta) / other_share) if other_share else math.inf,
                math.log((most - delta) / least) if least else math.inf,
            )
    return best


def _scores(parts: list[Tensor], rows: Tensor, other_rows: Tensor) -> dict[str, list[Tensor]]:
    """Scores of the first and second halves; nothing in them depends on the second ones."""
    spread = location_scale_of_draws(torch.cat(parts[:2]))
    standard = [(part - spread.loc) / spread.scale for part in parts]
    columns = range(parts[0].shape[1])[:_NUM_COLUMNS]
    scores = {f"column {index}": [part[:, index] for part in parts] for index in columns}
    cells = _cells(parts)
    if cells is not None:
        scores["log-ratio of the value's share"] = cells
    else:
        scores["learned log-ratio"] = _learned(standard)
    for name, table in (("distance to a row of the table", rows), ("distance to a row of the other table", other_rows)):
        if not len(table):
            continue
        places = (torch.unique(table.double(), dim=0) - spread.loc) / spread.scale
        places = places[torch.randperm(len(places))[:_NUM_ROWS]]
        scores[name] = [in_chunks(partial(_distance, places), part) for part in standard]
    return scores


def _distance(places: Tensor, values: Tensor) -> Tensor:
    """Distance to the nearest place, exactly 0 at one."""
    return (values.unsqueeze(1) - places).square().sum(2).min(1).values.sqrt()


def _cells(parts: list[Tensor]) -> list[Tensor] | None:
    """Log-ratio of how often each distinct row was seen in the first halves, 0 for others; None where they are many."""
    if len(torch.unique(torch.cat(parts[:2]), dim=0)) > _NUM_CELLS:  # the halves that are counted decide nothing
        return None
    distinct, index = torch.unique(torch.cat(parts), dim=0, return_inverse=True)
    indices = torch.split(index, [len(part) for part in parts])
    shares = [(torch.bincount(part, minlength=len(distinct)) + 0.5).log() for part in indices[:2]]
    return [(shares[0] - shares[1])[part] for part in indices]


def _learned(standard: list[Tensor]) -> list[Tensor]:
    num_dims = standard[0].shape[1]
    # Draws of an attacked density may be far out: the learner sees them clamped.
    held = [part.clamp(-1e3, 1e3).float() for part in standard]
    with with_gradients():
        unit = LocationScale(torch.zeros(num_dims), torch.ones(num_dims))
        classifier = _LEARNER.fit(held[0][:_NUM_TRAINING], held[1][:_NUM_TRAINING], unit).classifier
    return [in_chunks(lambda part: classifier.logits(part).squeeze(-1).double(), part) for part in held]


def _best_threshold(scores: Tensor, other_scores: Tensor, delta: float) -> tuple[float, bool, float]:
    """The threshold and side that promise the largest bound, by three standard errors on either count."""
    pooled = torch.cat([scores, other_scores]).sort().values
    places = torch.linspace(0, len(pooled) - 1, _NUM_THRESHOLDS).long()
    tails = torch.tensor([2**power for power in range(5, 20) if 2**power < len(pooled) // 2], dtype=torch.long)
    thresholds = pooled[torch.cat([places, tails, len(pooled) - tails])]
    shares = []
    for part in (scores, other_scores):
        below = torch.searchsorted(part.sort().values, thresholds).double()
        shares.append(torch.stack([len(part) - below, below]))  # rows: at or above, below
    count, other_count = shares
    lower = (count - 3 * count.sqrt()) / len(scores) - delta
    upper = (other_count + 3 * other_count.sqrt() + 4) / len(other_scores)
    promise = torch.where(lower > 0, (lower.clamp(min=1e-300) / upper).log(), -math.inf)
    index = int(promise.argmax())
    side, place = divmod(index, len(thresholds))
    return float(thresholds[place]), side == 0, float(promise.flatten()[index])
