"""Whether the guarantee holds: how often certificates are wrong, and how near hostile tables come to the bound."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._torch_state import seeded, single_thread
from pyro_mbde.auditing.hostile_tables import TablePair, hostile_pairs, rows_at_the_peak
from pyro_mbde.auditing.search import Peak, log_ratio_of, search, starting_points
from pyro_mbde.calibration.certificate import ROUNDING_RESERVE, SampleBounds, certify
from pyro_mbde.calibration.plan import plan_certificate
from pyro_mbde.calibration.projection import project
from pyro_mbde.cli.forward import PrintingCommand
from pyro_mbde.density.bounds import Bounds, Certificate, clip_score, skewed_bounds
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.experiments.problems import EPSILONS, ring
from pyro_mbde.metrics import quadrature_grid
from pyro_mbde.training.density_ratio import DensityRatio

#: step: two values, the largest variance; slope: the ratio of two normals; waves: many modes.
SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "step": lambda x: 1e3 * (x - 0.3),
    "slope": lambda x: 3 * x,
    "waves": lambda x: 4 * (7 * x).sin() + x,
}
#: Draws in a certificate of the attack, and the tolerance that they are about right for, in widths of the tilt.
_ATTACK_DRAWS, _ATTACK_TOLERANCE = 8192, 0.02
#: Rows of the largest table that fits are attacked with.
_NUM_EQUAL_ROWS = 1_000_000


class KnownTilt(NamedTuple):
    """A tilt on N(0, 1) whose log-normaliser is known by quadrature, and the bounds that hold it."""

    tilt: Callable[[Tensor], Tensor]
    bounds: Bounds


def known_tilt(score: Callable[[Tensor], Tensor], bounds: Bounds, phi: float) -> KnownTilt:
    """A clipped score, moved so that its log-normaliser is phi."""
    points, _ = quadrature_grid((-9.0, 9.0), torch.Size([]), 200_000)
    points = points.double()
    log_weights = -points.square() / 2
    shift = project(score(points), log_weights, bounds)
    clipped = clip_score(score(points), shift, bounds)
    move = phi - float(torch.logsumexp(clipped + log_weights, 0) - torch.logsumexp(log_weights, 0))
    return KnownTilt(
        lambda x: clip_score(score(x), shift, bounds) + move, Bounds(bounds.low + move, bounds.high + move)
    )


def rate_of_wrong_certificates(
    score: Callable[[Tensor], Tensor], epsilon: float, skew: float, delta: float, trials: int, sign: int
) -> float:
    """How often phi is certified to be within a tolerance that it is just outside of."""
    width = 0.99 * epsilon
    bounds, claim = skewed_bounds(width, skew), Certificate(_ATTACK_TOLERANCE * width, delta)
    # Just outside what is proved, and inside eta by the reserve for rounding: every certificate given is wrong.
    known = known_tilt(score, bounds, sign * (claim.tolerance - ROUNDING_RESERVE) * 1.0001)

    def draw(num_draws: int) -> Tensor:
        return known.tilt(torch.randn(num_draws, dtype=torch.float64)).exp()

    limits = SampleBounds(math.exp(known.bounds.low), math.exp(known.bounds.high), float(draw(2**14).var()))
    wrong = sum(certify(torch.split(draw(_ATTACK_DRAWS), 1024), limits, claim) for _ in range(trials))
    return wrong / trials


@click.command(cls=PrintingCommand)
@click.option("--trials", type=click.IntRange(1), default=10_000, show_default=True)
@click.option("--delta", type=float, default=0.05, show_default=True)
def certificate(trials: int, delta: float) -> None:
    """How often a certificate is given where phi is just beyond the tolerance, and what the tolerance costs."""
    click.echo(
        f"Wrong certificates of {trials:,} at delta = {delta:g}, phi known by quadrature and beyond the tolerance"
    )
    click.echo(f"{'tilt':<8}{'epsilon':>8}{'skew':>6}{'phi above':>11}{'phi below':>11}")
    with single_thread(), torch.random.fork_rng():
        torch.manual_seed(0)
        for name, score in SCORES.items():
            for epsilon, skew in ((0.1, 0.5), (1.0, 0.3), (5.0, 0.3)):
                rates = [rate_of_wrong_certificates(score, epsilon, skew, delta, trials, sign) for sign in (1, -1)]
                click.echo(f"{name:<8}{epsilon:>8g}{skew:>6g}" + "".join(f"{rate:>11.4f}" for rate in rates))
    click.echo("\nWhat the tolerance costs at delta = 1e-9, in per cent of epsilon/2")
    click.echo(f"{'epsilon':>8}" + "".join(f"{f'skew {skew:g}':>10}" for skew in (0.5, 0.3, 0.1)))
    for epsilon in EPSILONS:
        shares = [200 * plan_certificate(epsilon, 1e-9, skew)[1].tolerance / epsilon for skew in (0.5, 0.3, 0.1)]
        click.echo(f"{epsilon:>8g}" + "".join(f"{share:>10.2f}" for share in shares))


def hostile_tables(base: Distribution, epsilon: float) -> list[TablePair]:
    """Returns all of the audit's pairs, a pair of large tables, and one outside the support where it is bounded.

    Only pairs that epsilon decides differ between calls.
    """
    with seeded(0):
        pairs = hostile_pairs(base, epsilon, num_pairs=sys.maxsize)
        half = math.sqrt(3) / 2 * base.stddev  # from 0.25 to 0.75 on the unit interval
        equal = [place.expand(_NUM_EQUAL_ROWS, 2) for place in (base.mean - half, base.mean + half)]
        pairs.append(TablePair("million equal rows", *equal))
        outside = [torch.rand(1000, 2) + shift for shift in (-3, 3)]
        support: Any = base.support
        if not any(bool(support.check(rows).any()) for rows in outside):
            pairs.append(TablePair("outside the box", *outside))
    return pairs


def find_peaks(base: Distribution, pairs: Sequence[TablePair], skew: float) -> list[Peak]:
    """Returns where densities fitted to a pair of tables differ most, for each epsilon and its pair."""
    peaks: list[Peak] = []
    fitted: TablePair | None = None
    for epsilon, pair in zip(EPSILONS, pairs, strict=True):
        if fitted is None or not (torch.equal(pair.table, fitted.table) and torch.equal(pair.other, fitted.other)):
            fitted = pair
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that tables are odd is the point
                ratios = [DensityRatio(base, seed=seed, progress=False).fit(rows) for seed, rows in enumerate(pair[1:])]
        q, other = (ratio.mollify(epsilon, skew=skew) for ratio in ratios)
        peaks.append(find_peak(q, other))
    return peaks


def find_peak(q: MollifiedExpFamily, other: MollifiedExpFamily) -> Peak:
    """Returns where the audit's search finds two densities over one base to differ most."""
    log_ratio = log_ratio_of(q, other, same_base=True)
    return search(log_ratio, starting_points(q.base, q.support, []), q.support)


def largest_log_ratio(q: MollifiedExpFamily, other: MollifiedExpFamily) -> float:
    """Returns the largest absolute log-ratio that the audit's search finds between two densities over one base."""
    return find_peak(q, other).epsilon


@click.command(cls=PrintingCommand)
@click.option("--skew", type=float, default=0.3, show_default=True)
def attack(skew: float) -> None:
    """The largest log-ratio between fits to the audit's hostile tables, found by search over x, in per cent of epsilon.

    Over the standard normal in the plane and over the unit square.
    """
    uniform: Any = dist.Uniform  # Pyro leaves it unannotated
    box = uniform(torch.zeros(2), torch.ones(2)).to_event(1)
    with single_thread(), torch.random.fork_rng():
        torch.manual_seed(0)
        for title, base in {"normal": ring().base, "box": box}.items():
            click.echo(f"{title:<20}" + "".join(f"{epsilon:>9g}" for epsilon in EPSILONS))
            found = []
            for pairs in zip(*(hostile_tables(base, epsilon) for epsilon in EPSILONS), strict=True):
                found.append(find_peaks(base, pairs, skew))
                _print_shares(pairs[0].name, found[-1])
            highest = [max(peaks, key=lambda peak: peak.epsilon) for peaks in zip(*found, strict=True)]
            last = [rows_at_the_peak(base, peak.place) for peak in highest]
            _print_shares(last[0].name, find_peaks(base, last, skew))


def _print_shares(name: str, peaks: Sequence[Peak]) -> None:
    shares = [100 * peak.epsilon / epsilon for epsilon, peak in zip(EPSILONS, peaks, strict=True)]
    click.echo(f"{name:<20}" + "".join(f"{share:>9.2f}" for share in shares))
