"""Comparison of chains with exact draws, by shares below exact quantiles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import combinations, product
from operator import mul
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import ndtri  # type: ignore[import-untyped]  # SciPy ships no types
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._checks import argument_error, counted
from pyro_mbde.diagnostics.parameters import Array, coordinates
from pyro_mbde.diagnostics.report import Check, Deviation, first_few
from pyro_mbde.mcmc.chains import Chains
from pyro_mbde.pictures import import_arviz

Reference = Distribution | Mapping[str, Tensor]

#: How often good chains fail the test against exact draws, at most, over all its comparisons.
_FALSE_ALARM_RATE = 1e-3
#: Effective draws from which on shares are compared: with fewer, their own number is too uncertain.
_MIN_ESS_TO_TEST = 50
#: The outermost ones see outliers and tails that are cut off.
_LEVELS = (0.001, 0.005, 0.05, 0.25, 0.5, 0.75, 0.95, 0.995, 0.999)
_SPREAD_LEVELS, _PRODUCT_LEVELS = (0.5, 0.9), (0.25, 0.5, 0.75)
#: Coordinates up to which each pair is tested for dependence; beyond, this many random directions are.
_MAX_PAIRWISE, _NUM_DIRECTIONS = 12, 32
#: Exact draws, and how many numbers they may hold.
_NUM_EXACT_DRAWS, _MAX_VALUES = 50_000, 5_000_000
#: Which draws a share counts, in the words of a report.
_BELOW_AT = "at or below the exact {percent:g}% quantile, {at:.3g}"
_BELOW_PRODUCT = "at or below the exact {percent:g}% quantile of the product of their normal scores"
_MIDDLE = "in the middle {percent:g}% of exact draws"
_CHUNK = 2**15  # points whose densities are evaluated at a time


class ExactDraws(NamedTuple):
    """Exact draws per site, shape ``(n, *event_shape)``, and the distribution they are of, if it is known."""

    draws: dict[str, Tensor]
    density: Distribution | None


def exact_draws(chains: Chains, reference: Reference | None) -> ExactDraws | str:
    """Exact draws to test against, or why there are none."""
    density = chains.density if reference is None else reference
    if density is None:
        return "none to compare with: pass reference, a distribution or exact draws per site"
    if isinstance(density, Mapping):
        return _check_given(chains, density)
    if not isinstance(density, Distribution):
        raise TypeError(argument_error("reference", "be a distribution or exact draws per site", density))
    site = next(iter(chains.draws)) if len(chains.draws) == 1 else "x"
    if site not in chains.draws:
        raise ValueError(argument_error("reference", "be exact draws per site, for chains without a site x", density))
    if density.batch_shape or density.event_shape != chains.draws[site].shape[2:]:
        shape = (tuple(density.batch_shape), tuple(density.event_shape))
        constraint = f"have batch shape () and event shape {tuple(chains.draws[site].shape[2:])}"
        raise ValueError(argument_error("reference", constraint, shape))
    num_draws = min(max(_MAX_VALUES // max(density.event_shape.numel(), 1), 2_000), _NUM_EXACT_DRAWS)
    try:
        return ExactDraws({site: density.sample(torch.Size([num_draws]))}, density)
    except NotImplementedError:
        if reference is None:
            return "the density cannot be drawn from exactly"
        raise ValueError(argument_error("reference", "be a distribution that can be drawn from", density)) from None


def _check_given(chains: Chains, given: Mapping[str, Tensor]) -> ExactDraws:
    """Exact draws that the caller has, checked."""
    for site, draws in given.items():
        name = f"reference[{site!r}]"
        if site not in chains.draws:
            raise ValueError(argument_error("reference", f"name sites among {', '.join(chains.draws)}", site))
        if not isinstance(draws, Tensor):
            raise TypeError(argument_error(name, "be a tensor", type(draws).__name__))
        event_shape = chains.draws[site].shape[2:]
        if not draws.dim() or draws.shape[1:] != event_shape or len(draws) < 100 or not draws.isfinite().all():
            constraint = f"hold 100 finite draws or more, shape (n, {', '.join(map(str, event_shape))})"
            raise ValueError(argument_error(name, constraint, tuple(draws.shape)))
    if len({len(draws) for draws in given.values()}) != 1:
        raise ValueError(argument_error("reference", "hold as many draws for each site", list(given)))
    return ExactDraws(dict(given), None)


def exact_coordinates(chains: Chains, reference: Reference | None) -> dict[str, Array]:
    """Returns what chains are tested against, coordinate by coordinate, each of shape ``(n,)``; empty without it."""
    exact = exact_draws(chains, reference)
    if isinstance(exact, str):
        return {}
    return {name: of for site, draws in exact.draws.items() for name, of in coordinates(site, draws, 1).items()}


def compare_with_exact(chains: Chains, exact: ExactDraws) -> tuple[Deviation, ...]:
    """Compares shares of the draws with those of exact draws; most improbable first."""
    scores: dict[str, _Pair] = {}
    deviations: list[Deviation] = []
    for site, draws in exact.draws.items():
        theirs = coordinates(site, draws, 1)
        for name, values in coordinates(site, chains.draws[site], 2).items():
            deviations += _shares(name, _BELOW_AT, _Pair(values, theirs[name]), _LEVELS)
            scores[name] = _normal_scores(_Pair(values, theirs[name]))
            deviations += _shares(name, _MIDDLE, _Pair(*map(abs, scores[name])), _SPREAD_LEVELS)
    deviations += _compare_pairs(scores) if len(scores) <= _MAX_PAIRWISE else _compare_directions(scores)
    if exact.density is not None:
        ((site, draws),) = exact.draws.items()
        log_prob = _Pair(
            log_prob_or_outside(exact.density, chains.draws[site], 2), log_prob_or_outside(exact.density, draws, 1)
        )
        # Equal draws of a discrete density may differ in the last digits of a network's output.
        deviations += _shares("log-density", _BELOW_AT, log_prob, _LEVELS, tolerance=1e-4)
    return tuple(sorted(deviations, key=lambda deviation: deviation.p_value))


class _Pair(NamedTuple):
    """A statistic of the chains' draws, shape ``(num_chains, num_samples)``, and of exact draws, shape ``(n,)``."""

    ours: Array
    theirs: Array


def _compare_pairs(scores: Mapping[str, _Pair]) -> Iterator[Deviation]:
    """Compares products of two coordinates' scores, or of their distances from the middle: is one large with the other?

    The distances see what correlations do not: a ring, or a scale that depends on another coordinate.
    """
    views = {
        name: [(name, pair), (f"spread of {name}", _normal_scores(_Pair(*map(abs, pair))))]
        for name, pair in scores.items()
    }
    for first, second in combinations(views.values(), 2):
        for (name, one), (other_name, other) in product(first, second):
            products = _Pair(one.ours * other.ours, one.theirs * other.theirs)
            yield from _shares(f"{name} with {other_name}", _BELOW_PRODUCT, products, _PRODUCT_LEVELS)


def _compare_directions(scores: Mapping[str, _Pair]) -> Iterator[Deviation]:
    """Compares the spread of the scores along random directions, which correlations widen or narrow."""
    weights = torch.randn(_NUM_DIRECTIONS, len(scores), dtype=torch.float64).tolist()
    for index, weight in enumerate(weights):
        sums = (sum(map(mul, weight, parts)) for parts in zip(*scores.values(), strict=True))  # ours, theirs
        yield from _shares(f"random direction {index}", _MIDDLE, _Pair(*map(np.abs, sums)), _SPREAD_LEVELS)


def _normal_scores(pair: _Pair) -> _Pair:
    """Quantiles of the standard normal at mid-ranks among exact draws."""
    ordered, count = np.sort(pair.theirs), len(pair.theirs)

    def scores(values: Array) -> Array:
        ranks = (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / 2
        array: Array = ndtri(ranks.clip(0.5, count - 0.5) / count)
        return array

    return _Pair(*map(scores, pair))


def log_prob_or_outside(density: Distribution, values: Tensor, num_leading: int) -> Array:
    """Returns the log-density of values with leading dimensions; -inf outside the support, and for NaN."""
    rows = values.flatten(0, num_leading - 1)
    parts = []
    for part in torch.split(rows, _CHUNK):
        inside = _inside(density, part)
        log_prob = torch.full(part.shape[:1], -math.inf, dtype=torch.float64)
        if inside.any():
            log_prob[inside.cpu()] = density.log_prob(part[inside]).double().cpu()
        parts.append(log_prob.nan_to_num(nan=-math.inf))
    array: Array = torch.cat(parts).reshape(values.shape[:num_leading]).numpy()
    return array


def _inside(density: Distribution, rows: Tensor) -> Tensor:
    """Which rows lie in the support, shape ``(n,)``."""
    support: Any = density.support
    inside: Tensor = support.check(rows)
    return inside.reshape(len(rows), -1).all(1)


def _shares(
    subject: str, event: str, pair: _Pair, levels: tuple[float, ...], *, tolerance: float = 0.0
) -> Iterator[Deviation]:
    """Compares the shares of draws at or below exact quantiles; nothing for too few effective draws."""
    ours, theirs = pair
    arviz = import_arviz()
    varies = bool(ours.min() < ours.max())
    # -inf has no autocorrelation: any value below all others will do in its place.
    floor = min(ours[np.isfinite(ours)].min(initial=0.0), theirs[np.isfinite(theirs)].min(initial=0.0)) - 1.0
    bulk = float(arviz.ess(np.maximum(ours, floor), method="bulk")) if varies else float(ours.size)
    if not bulk >= _MIN_ESS_TO_TEST:
        return
    thresholds = {float(np.quantile(theirs, level, method="inverted_cdf")): level for level in reversed(levels)}
    for at, level in thresholds.items():
        edge = at + tolerance * (1 + abs(at))
        below = (ours <= edge).astype(float)
        share, expected = float(below.mean()), (float((theirs <= edge).sum()) + 0.5) / (len(theirs) + 1)
        ess = min(float(arviz.ess(below, method="mean")) if 0 < share < 1 else bulk, bulk, float(ours.size))
        num_effective = 1 / (1 / ess + 1 / len(theirs))
        divergence = sum(a * math.log(a / b) for a, b in ((share, expected), (1 - share, 1 - expected)) if a > 0)
        standard_error = math.sqrt(expected * (1 - expected) / num_effective)
        p_value = math.erfc(math.sqrt(max(num_effective * divergence, 0.0)))
        words = event.format(percent=100 * level, at=at)
        yield Deviation(subject, words, share, expected, standard_error, p_value)


def check_exact(chains: Chains, exact: ExactDraws | str, deviations: tuple[Deviation, ...]) -> Check:
    """Whether the smallest p-value is too small for the number of comparisons, and every draw in the support."""
    if isinstance(exact, str):
        return Check("exact draws", exact, skipped=True)
    reasons = []
    if exact.density is not None:
        ((site, _),) = exact.draws.items()
        outside = int((~_inside(exact.density, chains.draws[site].flatten(0, 1))).sum())
        if outside:
            reasons.append(f"{site}: {counted(outside, 'draw')} outside the target's support")
    if not deviations and not reasons:
        detail = f"no statistic with {_MIN_ESS_TO_TEST} effective draws to compare by"
        return Check("exact draws", detail, skipped=True)
    failed: dict[str, Deviation] = {}
    for deviation in deviations:
        if deviation.p_value * len(deviations) < _FALSE_ALARM_RATE:
            failed.setdefault(deviation.subject, deviation)
    reasons += first_few(
        failed.values(),
        lambda worst: (
            f"{worst.subject}: wrong target, {worst.share:.1%} of the draws lie {worst.event}, "
            f"where {worst.expected:.1%} belong (standard error {worst.standard_error:.1%})"
        ),
        "statistics that are not the target's",
    )
    smallest = min(1.0, deviations[0].p_value * len(deviations)) if deviations else math.nan
    num_draws = len(next(iter(exact.draws.values())))
    detail = f"{len(deviations):,} comparisons with {num_draws:,} exact draws, smallest adjusted p-value {smallest:.2g}"
    return Check("exact draws", detail, tuple(reasons))
