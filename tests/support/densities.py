"""Densities to test on: one of each kind of base, with untrained networks of large weights in place of a fit."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import transforms
from torch import Tensor

from pyro_mbde import BoundedClassifiers, MollifiedExpFamily
from pyro_mbde.calibration import placement as calibration
from pyro_mbde.calibration import plan
from pyro_mbde.density.base import PreparedBase
from pyro_mbde.density.bounds import spending_natural_params
from pyro_mbde.density.copula import GaussianCopula
from pyro_mbde.density.marginals import Marginal
from pyro_mbde.density.mixed_base import MixedBase
from pyro_mbde.density.row_batch import RowBatch
from pyro_mbde.privacy import release_plan


def num_features(base: torch.distributions.Distribution) -> int:
    """How many numbers networks see of a row."""
    return int(getattr(base, "num_features", max(base.event_shape.numel(), 1)))


def make_density(
    base: torch.distributions.Distribution,
    epsilon: float = 1.0,
    num_rounds: int = 3,
    *,
    gain: float = 3.0,
    num_draws: int = 2**12,
    dtype: torch.dtype = torch.float32,
    **network: object,
) -> MollifiedExpFamily:
    """A density with random classifiers; ``gain`` multiplies the logits, so that they often meet their bound."""
    row = base.row if isinstance(base, RowBatch) else base
    classifiers = BoundedClassifiers(num_rounds, num_features(row), **network).to(dtype)
    with torch.no_grad():
        classifiers.weights[-1].mul_(gain)
    natural_params = spending_natural_params(epsilon, num_rounds)
    return MollifiedExpFamily.normalized(base, classifiers, natural_params, num_draws=num_draws)


def make_batch(
    base: torch.distributions.Distribution, num_rows: int, epsilon: float = 1.0, *, gain: float = 3.0, skew: float = 0.3
) -> MollifiedExpFamily:
    """A calibrated density of batches, with random classifiers; nothing was proved of its normaliser."""
    classifiers = BoundedClassifiers(3, num_features(base)).to(PreparedBase.of(base).dtype)
    with torch.no_grad():
        classifiers.weights[-1].mul_(gain)
    bounds, certificate = plan.plan_calibration(base, epsilon, 1e-9, skew, num_rows)
    return MollifiedExpFamily(
        RowBatch(base, num_rows), classifiers, torch.ones(3), 0.0, bounds=bounds, certificate=certificate
    )


def scale_calibration(monkeypatch: pytest.MonkeyPatch, scale: float = 1 / 16) -> None:
    """Multiplies all numbers of draws that certificates rest on; a sixteenth makes tolerances four times as wide."""
    for number in ("_DRAWS_PLANNED", "_MOST_DRAWS_PLANNED"):
        monkeypatch.setattr(plan, number, int(scale * getattr(plan, number)))
    monkeypatch.setattr(plan, "_TOLERANCE_SHARE", plan._TOLERANCE_SHARE / math.sqrt(scale))
    for number in ("_FIRST_QUASI_DRAWS", "_MAX_QUASI_DRAWS", "_MAX_QUASI_DRAWS_OF_BATCHES", "_BLOCK_SIZE"):
        monkeypatch.setattr(calibration, number, int(scale * getattr(calibration, number)))
    monkeypatch.setattr(release_plan, "BATCH_TOLERANCE", release_plan.BATCH_TOLERANCE / math.sqrt(scale))


class Remembered:
    """A distribution that is evaluated once at the points of a grid, however often it is asked."""

    def __init__(self, distribution: Any) -> None:
        self.event_shape, self._distribution = distribution.event_shape, distribution
        self._log_prob: Tensor | None = None

    def log_prob(self, points: Tensor) -> Tensor:
        if self._log_prob is None:
            self._log_prob = self._distribution.log_prob(points)
        return self._log_prob


def normal(num_dims: int) -> dist.TorchDistribution:
    """Standard normal with event shape (num_dims,)."""
    return dist.Normal(torch.zeros(num_dims), torch.ones(num_dims)).to_event(1)


def marginal(kind: str, edges: list[float], left: list[float], right: list[float], **known: Any) -> Marginal:
    """The public distribution of a column, by its density at both ends of its cells."""
    return Marginal(torch.tensor(edges), torch.tensor(left), torch.tensor(right), kind, **known)


def level_marginal(shares: list[float], kind: str = "category", **known: Any) -> Marginal:
    """The public distribution of a column of levels, by their shares."""
    return marginal(kind, [float(code) for code in range(len(shares) + 1)], shares, shares, **known)


def column_marginals() -> list[Marginal]:
    """One column of each kind: a number, whole numbers, an order, levels, and numbers of which some are missing."""
    return [
        marginal("real", [0.0, 1.0, 3.0], [0.2, 1.0], [1.0, 0.1]),
        marginal("integer", [0.0, 20.0, 111.0], [1.0, 1.0], [1.0, 0.0], periods=[30.5]),
        level_marginal([0.5, 0.3, 0.2], "ordered"),
        level_marginal([0.6, 0.4], missing_share=0.1),
        marginal("real", [-2.0, 2.0], [1.0], [1.0], missing_share=0.2),
    ]


def correlation(num_columns: int) -> Tensor:
    """A correlation matrix whose numbers fall with the distance of columns."""
    places = torch.arange(float(num_columns))
    return 0.6 ** (places - places[:, None]).abs()


#: Predicates: over whole numbers and an order, over numbers, and over levels.
OLD_OR_FIRST = ["true", ["or", [">=", ["code", 1, -1.0], ["number", 30.0]], ["=", ["code", 2, -1.0], ["number", 0.0]]]]
BELOW = ["true", ["<", ["code", 1, -9.0], ["code", 0, -9.0]]]
NOT_BOTH = ["not_false", ["not", ["and", ["=", ["code", 0, -1.0], ["number", 3.0]], ["missing", ["code", 1, -1.0]]]]]

BASES: dict[str, Callable[[], torch.distributions.Distribution]] = {
    "normal-scalar": lambda: dist.Normal(0.5, 2.0),
    "normal-1d": lambda: normal(1),
    "normal-2d": lambda: normal(2),
    "normal-10d": lambda: normal(10),
    "student-t": lambda: dist.StudentT(3.0, 0.0, 1.0),
    "uniform-scalar": lambda: dist.Uniform(-1.0, 3.0),
    "uniform-box": lambda: dist.Uniform(torch.tensor([0.0, 10.0]), torch.tensor([1.0, 30.0])).to_event(1),
    "multivariate-normal": lambda: dist.MultivariateNormal(torch.ones(2), torch.tensor([[2.0, 0.5], [0.5, 1.0]])),
    "mixture": lambda: dist.MixtureSameFamily(
        dist.Categorical(torch.tensor([0.3, 0.7])), dist.Normal(torch.tensor([-2.0, 1.0]), torch.tensor([0.5, 1.0]))
    ),
    "mixture-2d": lambda: dist.MixtureSameFamily(
        dist.Categorical(torch.ones(3)), dist.Normal(torch.randn(3, 2), torch.ones(3, 2)).to_event(1)
    ),
    "log-normal": lambda: dist.LogNormal(0.0, 0.5),
    "transformed": lambda: dist.TransformedDistribution(
        dist.Normal(torch.zeros(2), torch.ones(2)).to_event(1), [transforms.AffineTransform(1.0, 2.0)]
    ),
    "logit-normal": lambda: dist.TransformedDistribution(dist.Normal(0.0, 1.0), [transforms.SigmoidTransform()]),
    "exponential": lambda: dist.Exponential(2.0),
    "gamma": lambda: dist.Gamma(2.0, 1.0),
    "dirichlet": lambda: dist.Dirichlet(torch.tensor([2.0, 3.0, 4.0])),
    "poisson": lambda: dist.Poisson(3.0),
    "categorical": lambda: dist.Categorical(torch.tensor([0.1, 0.2, 0.3, 0.4])),
    "bernoulli": lambda: dist.Bernoulli(0.3),
    "bernoulli-3d": lambda: dist.Bernoulli(torch.tensor([0.2, 0.5, 0.9])).to_event(1),
    "one-hot": lambda: dist.OneHotCategorical(torch.tensor([0.2, 0.3, 0.5])),
    "zero-inflated-poisson": lambda: dist.ZeroInflatedPoisson(torch.tensor(2.0), gate=torch.tensor(0.3)),
    "multivariate-student-t": lambda: dist.MultivariateStudentT(5.0, torch.zeros(2), torch.eye(2)),
    "masked": lambda: dist.Normal(0.0, 1.0).mask(torch.tensor(True)),
    "torch-normal": lambda: torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0)),
    "expanded": lambda: dist.Normal(0.0, 1.0).expand([3]).to_event(1),
    "columns": lambda: MixedBase(column_marginals()),
    "columns-real": lambda: MixedBase(
        [column_marginals()[0], marginal("real", [-1.0, 0.0, 3.0], [0.5, 1.0], [0.5, 0.2])]
    ),
    "columns-finite": lambda: MixedBase(
        [level_marginal([0.1, 0.2, 0.3, 0.4]), level_marginal([0.7, 0.3], missing_share=0.2)]
    ),
}
#: Columns with a dependence between them, with predicates over them, and both.
BASES |= {
    "columns-correlated": lambda: MixedBase(column_marginals()[2:], GaussianCopula(correlation(3))),
    "columns-restricted": lambda: MixedBase(column_marginals(), None, [OLD_OR_FIRST]),
    "columns-real-restricted": lambda: MixedBase(BASES["columns-real"]().marginals, None, [BELOW]),
    "columns-finite-both": lambda: MixedBase(
        BASES["columns-finite"]().marginals, GaussianCopula(correlation(2)), [NOT_BOTH]
    ),
}
#: Batches: of rows of one number, of vectors, in a box, and of a finite base.
BATCHES: dict[str, Callable[[], torch.distributions.Distribution]] = {
    "batch-scalar": lambda: RowBatch(dist.Normal(0.5, 2.0), 3),
    "batch-2d": lambda: RowBatch(normal(2), 4),
    "batch-box": lambda: RowBatch(BASES["uniform-box"](), 2),
    "batch-categorical": lambda: RowBatch(BASES["categorical"](), 3),
    "batch-columns": lambda: RowBatch(BASES["columns"](), 2),
}


@functools.cache
def _made_once(name: str) -> MollifiedExpFamily:
    line = {"line": lambda: dist.Normal(0.0, 1.0)}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(20240229)
        return make_density((BASES | BATCHES | line)[name]())


def density_over(name: str) -> MollifiedExpFamily:
    """The density over a base, or over a batch, of the tables above; made once, and copied for each caller."""
    return copy.deepcopy(_made_once(name))


DISCRETE = {
    *("poisson", "categorical", "bernoulli", "bernoulli-3d", "one-hot", "zero-inflated-poisson"),
    *("columns-finite", "columns-finite-both"),
}
#: With columns of both kinds, or parts of the space that are left out.
MIXED = {"columns", "columns-correlated", "columns-restricted", "columns-real-restricted"}
CONTINUOUS = sorted(set(BASES) - DISCRETE - MIXED)
