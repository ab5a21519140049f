"""Whether draws follow their density, are independent of one another, and are made afresh each time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from scipy import stats  # type: ignore[import-untyped]  # SciPy ships no types
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde.auditing.checks import log_ratio_over
from pyro_mbde.auditing.report import Evidence, PendingTest, fault, note
from pyro_mbde.auditing.search import in_chunks, inside, rows_of_a_draw
from pyro_mbde.density.finite import enumerate_points
from pyro_mbde.density.mixed_base import MixedBase

#: Base draws that are thinned to the density: for each draw, and at most in rows, but so many batches in any case; and
#: the fewest left that are worth a test.
_PROPOSALS_PER_DRAW, _MAX_PROPOSALS, _MIN_PROPOSALS, _MIN_DRAWS = 8, 2**17, 2**14, 300
#: Columns that are tested.
_NUM_COLUMNS = 8
#: Share of draws that may repeat earlier ones, beyond what floats of the base repeat.
_REPEATED = 0.005


def check_draws(name: str, density: Any, base: Distribution | None, draws: Tensor) -> Iterator[Evidence]:
    """Returns what draws, in the order in which they are released, say against the density of a table."""
    held = inside(getattr(density, "support", None), draws)
    if not bool(held.all()):
        text = f"{int((~held).sum())} draws of {name} are not finite, or outside the support"
        yield fault("draws", text, float((~held).sum()))
        draws = draws[held]
    if len(draws) < _MIN_DRAWS:
        yield note(f"too few draws of {name} to test them", float(len(draws)))
        return
    for index, column in enumerate(_columns(draws)):
        yield from _serial_tests(f"column {index} of draws of {name}", column)
    yield from _check_repeats(name, base, draws)
    if base is not None and hasattr(density, "log_prob"):
        yield from _goodness_of_fit(name, density, base, draws)


def _columns(draws: Tensor) -> list[Tensor]:
    return list(draws.reshape(len(draws), -1)[:, :_NUM_COLUMNS].double().unbind(1))


def check_repeated_release(name: str, first: Tensor, second: Tensor) -> list[Evidence]:
    """Returns whether two releases of one density share their rows: a generator that is seeded again."""
    size = min(len(first), len(second))
    if size and torch.equal(first[:size], second[:size]) and len(torch.unique(first, dim=0)) > 1:
        text = f"two releases of {name} are the same: their generators start in the same state"
        return [fault("repeated", text, float(size))]
    return []


def _serial_tests(what: str, column: Tensor) -> Iterator[Evidence]:
    r"""Rank correlation of rows and the rows that follow, at lags that are powers of 2 and of 10.

    Of rows in an order that means nothing, ranks are a random permutation, ties broken at random; the correlation at
    any lag is then near normal with mean -1/n and variance 1/n.
    """
    size = len(column)
    shuffled = torch.randperm(size)
    ranks = torch.empty(size, dtype=torch.float64)
    ranks[shuffled[column[shuffled].argsort()]] = torch.arange(size, dtype=torch.float64)
    centred = ranks - ranks.mean()
    lags = sorted({lag for base in (2, 10) for power in range(12) if (lag := base**power) <= size // 4})
    for lag in lags:
        correlation = float((centred * centred.roll(-lag)).mean() / centred.square().mean())
        z_score = (correlation + 1 / size) * math.sqrt(size)
        text = f"{what}: rank correlation {correlation:.3g} at lag {lag}, so the draws are not independent"
        p_value = math.erfc(abs(z_score) / math.sqrt(2))
        yield PendingTest(p_value, fault("dependent", text, correlation))


def _check_repeats(name: str, base: Distribution | None, draws: Tensor) -> Iterator[Evidence]:
    """Continuous draws that repeat one another far more often than base draws do: a chain that stays where it is."""
    support: Any = getattr(base, "support", None)
    if support is None or not draws.is_floating_point():
        return
    assert base is not None
    if not (_has_numbers(base) if isinstance(base, MixedBase) else not support.is_discrete):
        return
    usual = _repeated_share(base.sample(torch.Size([len(draws)])))
    share = _repeated_share(draws)
    if share > 10 * usual + _REPEATED:
        yield fault("dependent", f"{100 * share:.2g} per cent of the draws of {name} repeat earlier ones", share)


def _has_numbers(base: MixedBase) -> bool:
    """Whether a column has real numbers, of which none comes twice."""
    return any(not marginal.is_discrete for marginal in base.marginals)


def _repeated_share(draws: Tensor) -> float:
    return 1 - len(torch.unique(draws, dim=0)) / len(draws)


def _goodness_of_fit(name: str, density: Any, base: Distribution, draws: Tensor) -> Iterator[Evidence]:
    """Draws against base draws thinned by log_prob: what an envelope that is too small cuts off is missing."""
    log_ratio = log_ratio_over(density, base)
    points = enumerate_points(base)
    if points is not None:
        yield _fit_to_probabilities(name, points, log_ratio(points) + base.log_prob(points).double(), draws)
        return
    most = max(_MAX_PROPOSALS // (rows_of_a_draw(density) or 1), _MIN_PROPOSALS)
    proposals = base.sample(torch.Size([min(_PROPOSALS_PER_DRAW * len(draws), most)]))
    log_weights = in_chunks(log_ratio, proposals)
    log_of_draws = in_chunks(log_ratio, draws)
    if not bool(torch.isfinite(log_of_draws).all()) or bool(log_weights.isnan().any()):
        yield fault("draws", f"draws of {name} have no finite density", float((~log_of_draws.isfinite()).sum()))
        return
    largest = float(torch.maximum(log_weights.max(), log_of_draws.max()))
    kept = torch.rand(len(proposals), dtype=torch.float64) < (log_weights - largest).exp()
    thinned, log_of_thinned = proposals[kept], log_weights[kept]
    if len(thinned) < _MIN_DRAWS:
        text = f"base draws meet the density of {name} too rarely to test that draws follow it"
        yield note(text, float(len(thinned)))
        return
    columns = zip(_columns(draws), _columns(thinned), strict=True)
    pairs = {"log q/q0": (log_of_draws, log_of_thinned)} | {f"column {i}": pair for i, pair in enumerate(columns)}
    for what, (first, second) in pairs.items():
        distance, p_value = map(float, stats.ks_2samp(first, second, method="asymp"))
        text = f"draws of {name} do not follow its log_prob: {what} is off by {distance:.3g} in distribution"
        yield PendingTest(p_value, fault("draws", text, distance))


def _fit_to_probabilities(name: str, points: Tensor, log_prob: Tensor, draws: Tensor) -> PendingTest:
    """Draws over a finite base against the probabilities of its points: weights that are not the law of the draws.

    By the distance of the distribution functions along the points (Massart. The tight constant in the
    Dvoretzky-Kiefer-Wolfowitz inequality. 1990).
    """
    # Numbered together, so that draws which are none of the points count too.
    flat = torch.cat([points, draws.to(points)]).reshape(len(points) + len(draws), -1)
    distinct, numbers = torch.unique(flat, dim=0, return_inverse=True)
    probabilities = torch.zeros(len(distinct), dtype=torch.float64)
    probabilities.index_add_(0, numbers[: len(points)], log_prob.exp())
    shares = torch.bincount(numbers[len(points) :], minlength=len(distinct)).double() / len(draws)
    distance = float((shares - probabilities).cumsum(0).abs().max())
    text = f"draws of {name} do not follow its log_prob: a probability is off by {distance:.3g}"
    p_value = min(1.0, 2 * math.exp(-2 * distance**2 * len(draws)))
    return PendingTest(p_value, fault("draws", text, distance))
