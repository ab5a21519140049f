"""Train on released, test on real: one column predicted from the others, by what each law teaches. Private."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_mbde._checks import argument_error, counted
from pyro_mbde._torch_state import seeded
from pyro_mbde.density.base import PreparedBase, as_features
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.mixed_base import MixedBase
from pyro_mbde.releases.columns import Codes, ReleasedColumn, column_codes, row_base
from pyro_mbde.releases.comparison import Weighted
from pyro_mbde.tables.schema import Schema

#: Rows of density and base that a predictor is trained on, and the number of random halves that results are averaged
#: over.
NUM_ROWS, _NUM_SPLITS = 2000, 5
#: Rows of the base that proposals of real batches may take, and batches drawn at most.
_MAX_PROPOSED, _MAX_BATCHES = 2e6, 5
#: Rows of a half of the table, at least, and rows of it that a predictor is trained on, at most.
_MIN_HALF, _MAX_TRAINED = 10, 10_000
#: Penalties of a ridge regression, of which generalised cross-validation chooses, in units of the number of rows.
_PENALTIES = np.logspace(-5, 1, 25)


class TrainedOn(NamedTuple):
    """What a predictor reaches on rows of the table that it was not trained on.

    Attributes:
        rows: what it was trained on, in words.
        value: of the measure, on average; None where it could not be trained.
    """

    rows: str
    value: float | None


class Prediction(NamedTuple):
    """How well one column is predicted from the others, on the table, by what each law teaches.

    Attributes:
        target: name of the column.
        measure: ``R²`` for numbers and dates, on the scale that they are modelled on; ``AUC`` for two levels,
            ``accuracy`` for more.
        uninformed: the measure of a predictor that knows nothing of the other columns, trained on the table.
        results: by what was trained on.
    """

    target: str
    measure: str
    uninformed: float
    results: tuple[TrainedOn, ...]


class _Set(NamedTuple):
    features: Any
    values: Codes


def predict(
    q: MollifiedExpFamily,
    rows: Tensor,
    target: str,
    columns: Sequence[ReleasedColumn],
    schema: Schema | None,
    drawn: Weighted,
) -> Prediction | None:
    """Trains a predictor on rows of the density, of the base and of half of the table, and tests it on the other half.

    It is a ridge regression on what networks see of the other columns; of levels, one on an indicator for each. Its
    penalty is chosen by generalised cross-validation.

    Privacy:
        As sensitive as the table. The rows of the density that it draws are not handed out.

    Args:
        q: the fitted density.
        rows: of the table.
        target: name of the column to predict.
        columns: of the rows.
        schema: of the rows; None where there is none.
        drawn: draws that stand for density and base.

    Returns:
        The results; None where the table has too few rows, or its column does not vary.

    Raises:
        ValueError: there is no such column, or no other one.
    """
    names = [column.name for column in columns]
    if target not in names:
        raise ValueError(argument_error("target", f"name one of the columns {names}", target))
    if len(names) < 2:
        raise ValueError(
            argument_error("target", "be one of several columns", target, "There is nothing to predict from.")
        )
    place = names.index(target)
    task = _Task(columns[place])

    def as_set(values: Tensor) -> _Set:
        codes = column_codes(values, row_base(q), columns, schema)[place]
        return _Set(_features(q, values, place), task.values(codes))

    num_rows = PreparedBase.of(q.base).num_rows
    with seeded(0), torch.no_grad():
        table = as_set(rows)
        there = np.flatnonzero(~np.isnan(table.values))
        if len(there) < 2 * _MIN_HALF or len(np.unique(table.values[there])) < 2:
            return None
        chosen = [torch.multinomial(drawn.weights, NUM_ROWS, replacement=True) for _ in range(_NUM_SPLITS)]
        sets = {f"{NUM_ROWS:,} rows of the density": [as_set(drawn.draws[one]) for one in chosen]}
        if num_rows is not None:
            sets[f"one batch of {counted(num_rows, 'row')}"] = [as_set(batch) for batch in _batches(q, num_rows)]
        sets[f"{NUM_ROWS:,} rows of the base"] = [as_set(drawn.draws[:NUM_ROWS])]
    trained = {name: [_ridge(one, task) for one in given] for name, given in sets.items()}
    own = f"{counted(min(len(there) // 2, _MAX_TRAINED), 'row')} of the table"
    found: dict[str, list[float]] = {name: [] for name in [own, *trained]}
    generator = np.random.default_rng(0)
    for _ in range(_NUM_SPLITS):
        order = generator.permutation(there)
        half, tested = order[: len(order) // 2][:_MAX_TRAINED], order[len(order) // 2 :]
        test = _Set(table.features[tested], table.values[tested])
        trained[own] = [_ridge(_Set(table.features[half], table.values[half]), task)]
        for name, given in trained.items():
            scores = [task.score(one, test) for one in given]
            found[name].extend(score for score in scores if score is not None)
    uninformed = task.uninformed(table.values[there])
    results = tuple(TrainedOn(name, float(np.mean(scores)) if scores else None) for name, scores in found.items())
    return Prediction(target, task.measure, uninformed, results)


class _Task:
    """What is predicted of a column, and how well."""

    def __init__(self, column: ReleasedColumn) -> None:
        self._log = column.scale == "log1p"
        self.num_levels = None if column.levels is None else len(column.levels) + column.may_be_missing
        self.measure = "R²" if self.num_levels is None else "AUC" if self.num_levels == 2 else "accuracy"

    def values(self, codes: Codes) -> Codes:
        """The values; a missing level is one more, a missing number NaN."""
        if self.num_levels is not None:
            return np.where(np.isnan(codes), self.num_levels - 1, codes)
        return np.log1p(codes) if self._log else codes

    def targets(self, values: Codes) -> Any:
        """What a regression fits, shape ``(n, m)``."""
        if self.num_levels is None:
            return values[:, None]
        indicators = (values[:, None] == np.arange(self.num_levels)).astype(float)
        return indicators[:, 1:] if self.num_levels == 2 else indicators

    def score(self, predict: Callable[[Any], Any] | None, test: _Set) -> float | None:
        """The measure on a test set; None where it is not known."""
        if predict is None:
            return None
        predicted = predict(test.features)
        if self.measure == "accuracy":
            return float((predicted.argmax(1) == test.values).mean())
        if self.measure == "AUC":
            return _auc(predicted[:, 0], test.values == 1)
        spread = float(((test.values - test.values.mean()) ** 2).sum())
        return 1 - float(((predicted[:, 0] - test.values) ** 2).sum()) / spread if spread > 0 else None

    def uninformed(self, values: Codes) -> float:
        """The measure of a constant."""
        if self.measure == "accuracy":
            return float(np.unique(values, return_counts=True)[1].max() / len(values))
        return 0.5 if self.measure == "AUC" else 0.0


def _features(q: MollifiedExpFamily, rows: Tensor, place: int) -> Any:
    """What networks see of rows, the target taken out: it is the same in all of them."""
    base = row_base(q)
    hidden = rows.clone()
    hidden[:, place] = base.marginals[place].low if isinstance(base, MixedBase) else 0
    return as_features(hidden, base, torch.float64).double().cpu().numpy()


def _batches(q: MollifiedExpFamily, num_rows: int) -> list[Tensor]:
    """Real batches, as many as can be drawn in reasonable time."""
    count = min(int(_MAX_PROPOSED * q.acceptance_rate / num_rows), _MAX_BATCHES)
    return list(q.sample(torch.Size([count]))) if count else []


def _ridge(train: _Set, task: _Task) -> Callable[[Any], Any] | None:
    """A ridge regression, as a function of features; None for fewer than two rows."""
    there = ~np.isnan(train.values)
    features, targets = train.features[there], task.targets(train.values[there])
    if len(features) < 2:
        return None
    centre, scale, mean = features.mean(0), features.std(0), targets.mean(0)
    scale = np.where(scale > 1e-9, scale, np.inf)  # what does not vary tells nothing
    rows, singular, axes = np.linalg.svd((features - centre) / scale, full_matrices=False)
    along = rows.T @ (targets - mean)
    best = None
    for penalty in _PENALTIES * len(features):
        kept = singular**2 / (singular**2 + penalty)
        rest = ((targets - mean - rows @ (kept[:, None] * along)) ** 2).sum()
        error = rest / (len(features) - 1 - min(float(kept.sum()), len(features) - 1.001)) ** 2
        if best is None or error < best[0]:
            best = error, axes.T @ ((singular / (singular**2 + penalty))[:, None] * along)
    assert best is not None
    weights = best[1]
    return lambda given: mean + ((given - centre) / scale) @ weights


def _auc(scores: Codes, positive: Any) -> float | None:
    """The chance that a positive row has a higher score than another; ties count half."""
    if positive.all() or not positive.any():
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[inverse]
    num_positive = int(positive.sum())
    below = ranks[positive].sum() - num_positive * (num_positive + 1) / 2
    return float(below / (num_positive * (len(scores) - num_positive)))
