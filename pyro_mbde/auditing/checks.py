"""Checks of the public facts of a density, and of its own claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from scipy import stats  # type: ignore[import-untyped]  # SciPy ships no types
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde.auditing.report import NOTE, Evidence, Finding, PendingTest, fault
from pyro_mbde.auditing.search import in_chunks, inside, is_tilted, log_ratio_to_base
from pyro_mbde.density.base import reference_draws
from pyro_mbde.density.base_draws import quasi_draws
from pyro_mbde.density.bounds import a_priori_guarantee, calibrated_guarantee
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.density.finite import enumerate_points
from pyro_mbde.privacy.guarantee import Guarantee

#: Facts of a density that must not depend on the table.
PUBLIC_FACTS = ("bounds", "guarantee", "certificate", "event_shape", "dtype")
#: Independent replicates of quasi-random draws of the base, and draws in each.
_NUM_REPLICATES, _REPLICATE_SIZE = 33, 2**11
#: Nats that log_prob may be off the tilt that draws follow: it adds the same networks up in another order, in float32.
_MAX_REORDERING = 1e-4
#: Numbers of a point that texts show.
_NUM_SHOWN = 12


def base_of(density: Any) -> Any:
    """The base that a density tilts, or None."""
    return getattr(density, "base", None)


def same_base(first: Any, second: Any) -> bool:
    """Whether two densities lie over equal bases: with equal draws from one seed, and equal densities there."""
    base, other = (base_of(density) for density in (first, second))
    if base is None or other is None or base is other:
        return base is other
    if base.event_shape != other.event_shape:
        return False
    draws = reference_draws(base)
    return torch.equal(draws, reference_draws(other)) and torch.equal(base.log_prob(draws), other.log_prob(draws))


def check_public_facts(name: str, density: Any, first: Any) -> Iterator[Finding]:
    """Returns in what public facts, which must not depend on the table, a density differs from the first one."""
    if not same_base(density, first):
        text = f"the base of the density of {name} is not that of the first: a base must not depend on the table"
        yield fault("base", text)
    for fact in PUBLIC_FACTS:
        values = [getattr(fitted, fact, None) for fitted in (first, density)]
        if values[0] != values[1]:
            text = f"{fact} of the density of {name} is {values[1]}, of the first {values[0]}: the table decides it"
            yield fault("public", text)
    params, other = (getattr(fitted, "natural_params", None) for fitted in (first, density))
    if isinstance(params, Tensor) and isinstance(other, Tensor) and not torch.equal(params, other):
        text = f"natural_params of the density of {name} are not those of the first: right only behind public bounds"
        yield Finding("public", NOTE, text, 0.0)


def check_claim(name: str, density: Any, epsilon: float) -> Iterator[Finding]:
    """Returns whether what a density claims is more than asked for, or not what its bounds and certificate imply."""
    guarantee = getattr(density, "guarantee", None)
    if not isinstance(guarantee, Guarantee):
        return
    if guarantee.epsilon > epsilon:
        text = f"the density of {name} itself claims no less than {guarantee.epsilon:.6g}, above {epsilon:.6g}"
        yield fault("claim", text, guarantee.epsilon)
    if not isinstance(density, MollifiedExpFamily):
        return
    bounds, certificate = density.bounds, density.certificate
    a_priori = a_priori_guarantee(bounds)  # holds with a certificate too
    mismatch = density.certificate_mismatch()
    if mismatch and guarantee.epsilon < a_priori.epsilon:
        text = f"the certificate of {name} was proved for another function than the draws follow: {mismatch}"
        yield fault("certificate", text, guarantee.epsilon)
    implied = a_priori if certificate is None else calibrated_guarantee(bounds, certificate)
    if not any(guarantee.epsilon >= held.epsilon and guarantee.delta >= held.delta for held in (implied, a_priori)):
        text = (
            f"the density of {name} claims ({guarantee.epsilon:.6g}, {guarantee.delta:.3g}); its bounds and "
            f"certificate imply ({implied.epsilon:.6g}, {implied.delta:.3g})"
        )
        yield fault("claim", text, implied.epsilon)


def check_values(name: str, density: Any, values: Tensor) -> Iterator[Finding]:
    """Returns where a density is NaN, its tilt leaves its bounds, or its log-density is not base, tilt and normaliser.

    There is no slack for the bounds: they hold in floats.
    """
    log_density = in_chunks(density.log_prob, values)
    broken = log_density.isnan() | (log_density == math.inf)
    if bool(broken.any()):
        text = f"the density of {name} is NaN or infinite, at x = {describe(values[broken][0])} for one"
        yield fault("not-finite", text, float(broken.sum()))
    if not torch.equal(torch.nan_to_num(log_density), torch.nan_to_num(in_chunks(density.log_prob, values))):
        yield fault("normalizer", f"log_prob of {name} gives another answer each time")
    if not is_tilted(density):
        return
    tilt = density.accepted_tilt(values)
    for excess, end in ((tilt - density.bounds.high, "above"), (density.bounds.low - tilt, "below")):
        worst = torch.nan_to_num(excess, nan=math.inf).max(0)
        if float(worst.values) > 0:
            text = (
                f"the tilt of {name} is {float(worst.values):.3g} nats {end} its bound at "
                f"x = {describe(values[worst.indices])}"
            )
            yield fault("tilt", text, float(worst.values))
    log_base = in_chunks(density.base.log_prob, values).double()
    expected = log_base + in_chunks(lambda part: log_ratio_to_base(density, part), values)
    rounding = 8 * torch.finfo(log_density.dtype).eps * (1 + log_base.abs())
    apart = torch.where(torch.isfinite(expected), (log_density.double() - expected).abs() - rounding, 0.0)
    if float(apart.max()) > _MAX_REORDERING:
        text = f"log_prob of {name} is {float(apart.max()):.3g} nats off base, tilt and normaliser"
        yield fault("normalizer", text, float(apart.max()))


def check_normalizer(name: str, density: Any, base: Distribution, seen: Tensor) -> list[Evidence]:
    r"""Returns tests of whether a density integrates to 1, and a calibrated one lies where its certificate says.

    Both from :math:`E_{Q_0}\, q/q_0`, on quasi-random draws of the base in 33 independent replicates, with Student's t;
    a finite base is summed. The largest and the smallest tilt are taken on the points ``seen``.
    """
    log_ratio = log_ratio_over(density, base)
    points = enumerate_points(base)
    if points is not None:
        log_weights = base.log_prob(points).double().log_softmax(0)
        log_mass, error, known = float((log_weights + in_chunks(log_ratio, points)).logsumexp(0)), 1e-6, True
    else:
        log_ratios = [in_chunks(log_ratio, quasi_draws(base, _REPLICATE_SIZE)) for _ in range(_NUM_REPLICATES)]
        replicates = torch.stack(log_ratios).logsumexp(1) - math.log(_REPLICATE_SIZE)
        if not bool(torch.isfinite(replicates).all()):
            return []  # said of its values
        log_mass, known = float(replicates.logsumexp(0)) - math.log(_NUM_REPLICATES), False
        masses = (replicates - replicates.max()).exp()
        error = float(masses.std() / masses.mean()) / math.sqrt(_NUM_REPLICATES)
    stated = density.log_normalizer.standard_error if isinstance(density, MollifiedExpFamily) else 0.0
    off = max(abs(log_mass) - 4 * torch.finfo(torch.float32).eps, 0.0)
    text = f"the density of {name} integrates to exp({log_mass:.4g}), not to 1 (standard error {error:.2g})"
    p_value = _tail(off, math.hypot(error, stated), known and not stated, 14)
    tests: list[Evidence] = [PendingTest(p_value, fault("normalizer", text, log_mass))]
    if isinstance(density, MollifiedExpFamily) and density.certificate is not None:
        tests.append(_check_certificate(name, density, log_mass, error, known, seen))
    return tests


def _check_certificate(
    name: str, density: MollifiedExpFamily, log_mass: float, error: float, known: bool, seen: Tensor
) -> PendingTest:
    certificate, bounds = density.certificate, density.bounds
    assert certificate is not None
    phi = density.log_normalizer.value + log_mass
    tilt = density.accepted_tilt(seen)
    # Either phi is within the tolerance, or the tilt is shrunk so far that the density is in the set all the same.
    outside = max(
        float(tilt.max()) - phi - bounds.high - certificate.tolerance,
        bounds.low - certificate.tolerance - float(tilt.min()) + phi,
    )
    beyond = abs(phi) - certificate.tolerance if density.shrinkage == 1 else outside
    excess = max(outside, beyond, 0.0)
    text = (
        f"the density of {name} has phi = {phi:.4g} (standard error {error:.2g}), certified to be within "
        f"{certificate.tolerance:.4g}, or else log q/q0 in its bounds"
    )
    return PendingTest(_tail(excess, error, known, _NUM_REPLICATES - 1), fault("certificate", text, phi))


def log_ratio_over(density: Any, base: Distribution) -> Callable[[Tensor], Tensor]:
    """Returns log q/q0 as a function, float64; -inf outside the density's support."""

    def log_ratio(values: Tensor) -> Tensor:
        if is_tilted(density):
            return log_ratio_to_base(density, values)
        usable = inside(getattr(density, "support", None), values)
        interior = values[usable]
        ratio = torch.full((len(values),), -math.inf, dtype=torch.float64)
        ratio[usable] = density.log_prob(interior).double() - base.log_prob(interior).double()
        return ratio

    return log_ratio


def _tail(excess: float, error: float, known: bool, freedom: int) -> float:
    """Two-sided tail of Student's t; of an error that is rounding alone, certainty."""
    if excess <= 0:
        return 1.0
    if known:
        return 0.0 if excess > error else 1.0
    if error == 0:
        return 0.0
    return float(2 * stats.t.sf(excess / error, freedom))


def describe(value: Tensor) -> str:
    """Returns a point as text; of a batch of many numbers the first ones."""
    entries = [f"{entry:.4g}" for entry in value.flatten().tolist()]
    return f"({', '.join(entries[:_NUM_SHOWN])}{', ...' if len(entries) > _NUM_SHOWN else ''})"
