"""The checks that chains pass or fail."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_mbde._checks import check_seed, counted
from pyro_mbde._torch_state import seeded, single_thread
from pyro_mbde.diagnostics.exact import Reference, check_exact, compare_with_exact, exact_draws
from pyro_mbde.diagnostics.parameters import Array, column_names, scalar_parameters
from pyro_mbde.diagnostics.report import MAX_NAMED, Check, MixingReport, ParameterSummary, first_few, named
from pyro_mbde.mcmc.chains import Chains
from pyro_mbde.pictures import import_arviz
from pyro_mbde.tables.schema import Schema

#: Vehtari et al. (2021), section 4: R-hat below 1.01, and an effective sample size of 100 a chain.
MAX_RHAT, MIN_ESS_PER_CHAIN = 1.01, 100
#: Means of chains differ by chance by up to this many Monte Carlo standard errors.
_MAX_ERRORS = 4
#: R-hat from which on the report does not say how many more draws are needed.
_FAR_APART = 1.1
#: E-BFMI below which momentum refreshes are too small for the spread of energies: the bound used since Betancourt 2016.
MIN_BFMI = 0.3
#: Fewest draws from which a split chain's autocorrelation can be estimated.
_MIN_DRAWS = 4
#: Share of a chain's values that others may have as well, by coincidence in float32, up to this many distinct values.
_MAX_SHARED, _MAX_DISTINCT = 0.1, 500_000
#: By how much acceptance rates with and without the tilts of densities have to differ for the report to name both.
_CLEAR_DIFFERENCE = 0.1
#: A chain whose mean acceptance probability is not above this accepted nothing.
_MIN_ACCEPTANCE_RATE = 1e-6


def mixing_report(
    chains: Chains,
    *,
    reference: Reference | None = None,
    names: Sequence[str] | Schema | None = None,
    seed: int | None = 0,
) -> MixingReport:
    r"""Checks whether chains have mixed and, where exact draws can be had, whether they sample the right density.

    Passed are chains of which every parameter has R-hat below 1.01 and bulk and tail effective sample sizes of 100 per
    chain; for HMC and NUTS, none of whose steps diverged and all of whose E-BFMI are at least 0.3; and which agree with
    exact draws. For that, shares of the draws below exact quantiles are compared: of each coordinate, of its distance
    from the middle, of products of two of these (of random directions, for more than 12), and of the log-density.
    With a share :math:`s` of :math:`n` effective draws where :math:`p` is right,

    .. math::
        r = \pm \sqrt{2 n \left( s \log \frac{s}{p} + (1 - s) \log \frac{1 - s}{1 - p} \right)}

    is nearly standard normal, in the tails too. The effective number is ArviZ's for the indicator, no more than that
    of the statistic's ranks, and counts the exact draws. Good chains fail this test in about one of 1,000 reports.

    Privacy:
        As sensitive as the table that the density was fitted to: not for release.

    Args:
        chains: the chains.
        reference: what the chains should sample: a distribution of their only site or of site ``x``, or exact draws
            per site, shape ``(n, *event_shape)``. Defaults to ``chains.density``; without either there is no such test.
        names: of the coordinates of the chains' only site, in their order, as the columns of a table, or the table's
            schema, which also tells which are shifted or logarithms; ``None`` for ``x[0]`` and so on.
        seed: of the exact draws and of the random directions; ``None`` takes torch's global generator.

    Returns:
        :class:`MixingReport`.

    Raises:
        ValueError: there are no draws to check, the reference is not one of the chains' sites, or names do not fit.

    References:
        Vehtari, Gelman, Simpson, Carpenter and Bürkner, "Rank-normalization, folding, and localization: an improved
        R-hat for assessing convergence of MCMC", Bayesian Analysis 16, 2021.

        Betancourt, "Diagnosing suboptimal cotangent disintegrations in Hamiltonian Monte Carlo", 2016,
        arXiv:1604.00695, section 3.

    Example:
        >>> import pyro.distributions as dist
        >>> from pyro_mbde import run_mcmc
        >>> chains = run_mcmc(dist.Normal(0.0, 1.0), "nuts", num_samples=500, seed=0, progress=False)
        >>> mixing_report(chains).passed
        True
    """
    check_seed(seed)
    parameters = scalar_parameters(chains)
    renamed = {} if names is None else column_names(chains, names)
    fixed = _fixed(parameters)
    parameters = {name: values for name, values in parameters.items() if name not in fixed}
    finite = all(bool(np.isfinite(values).all()) for values in parameters.values())
    with seeded(seed), single_thread(), torch.no_grad(), np.errstate(all="ignore"):
        exact = exact_draws(chains, reference)
        summaries = tuple(_summarize(name, values) for name, values in parameters.items())
        bfmi = _bfmi(chains)
        checks = [_check_draws(chains, parameters, fixed), *_check_rates(chains)]
        if chains.num_samples >= _MIN_DRAWS:
            checks += [_check_rhat(summaries, parameters, chains.num_chains), _check_ess(summaries, chains)]
        checks += [_check_bfmi(bfmi)] if bfmi else []
        if not isinstance(exact, str) and (not finite or chains.num_samples < _MIN_DRAWS):
            exact = "the chains' draws are too few or not all finite"
        deviations = () if isinstance(exact, str) else compare_with_exact(chains, exact)
        checks.append(check_exact(chains, exact, deviations))
    return MixingReport(
        kernel=chains.kernel,
        num_chains=chains.num_chains,
        num_samples=chains.num_samples,
        parameters=summaries,
        bfmi=bfmi,
        deviations=deviations,
        checks=tuple(checks),
    ).renamed(renamed)


def _summarize(name: str, values: Array) -> ParameterSummary:
    """Statistics of a parameter; NaN where they cannot be computed."""
    if not np.isfinite(values).all():
        values = np.full(values.shape, math.nan)
    arviz = import_arviz()
    varies = values.shape[1] >= _MIN_DRAWS and bool(values.min() < values.max())
    q5, median, q95 = np.quantile(values, [0.05, 0.5, 0.95]).tolist()
    return ParameterSummary(
        name,
        mean=float(values.mean()),
        sd=float(values.std(ddof=min(1, values.size - 1))),
        mcse=float(arviz.mcse(values, method="mean")) if varies else math.nan,
        q5=q5,
        median=median,
        q95=q95,
        rhat=float(arviz.rhat(values, method="rank")) if varies and len(values) > 1 else math.nan,
        ess_bulk=float(arviz.ess(values, method="bulk")) if varies else math.nan,
        ess_tail=float(arviz.ess(values, method="tail", prob=(0.05, 0.95))) if varies else math.nan,
    )


def _check_draws(chains: Chains, parameters: Mapping[str, Array], fixed: Iterable[str]) -> Check:
    """Whether there are draws to judge: enough, finite, of chains that move, no two of them the same."""
    reasons = []
    if chains.num_samples < _MIN_DRAWS:
        reasons.append(f"{counted(chains.num_samples, 'draw')} a chain are too few: R-hat and ESS need {_MIN_DRAWS}")
    if chains.num_chains == 1:
        reasons.append("one chain cannot be compared with others: run at least 2, better 4")
    broken = {name: ~np.isfinite(values) for name, values in parameters.items() if not np.isfinite(values).all()}
    reasons += first_few(
        broken,
        lambda name: f"{name}: {counted(int(broken[name].sum()), 'draw')} NaN or infinite, in {_chains(broken[name])}",
        "parameters with NaN or infinite draws",
    )
    reasons += _frozen(parameters) if chains.num_samples > 1 and parameters else []
    reasons += _duplicates(chains)
    detail = "see below" if reasons else "finite, moving, no chain like another"
    held = named("parameter", sorted(fixed))
    return Check("draws", f"{detail}; {held}: the same in all draws, left out" if fixed else detail, tuple(reasons))


def _fixed(parameters: Mapping[str, Array]) -> set[str]:
    """Coordinates that the model fixes, as the zeros of a triangular matrix: the same in all chains, others not."""
    fixed = {name for name, values in parameters.items() if len(values) > 1 and values.min() == values.max()}
    sites = {name.partition("[")[0] for name in set(parameters) - fixed}
    return {name for name in fixed if name.partition("[")[0] in sites}


def _frozen(parameters: Mapping[str, Array]) -> list[str]:
    """Reasons for parameters of which all draws in a chain are equal."""
    still = {name: (values == values[:, :1]).all(1) for name, values in parameters.items()}
    everywhere = np.logical_and.reduce(list(still.values()))
    reasons = [f"{_chains(everywhere)}: frozen, all draws are equal"] if everywhere.any() else []
    still = {name: where & ~_may_stay(parameters[name]) for name, where in still.items()}
    part = {name: where & ~everywhere for name, where in still.items() if (where & ~everywhere).any()}
    return reasons + first_few(
        part, lambda name: f"{name}: constant in {_chains(part[name])}", "parameters constant in a chain"
    )


def _may_stay(values: Array) -> NDArray[np.bool_]:
    """Which chains may well have missed rare whole numbers: at the usual one, with less than ten of others expected."""
    usual = float(np.median(values))
    share = float((values != usual).mean())
    is_rare = 0 < share < 10 / MIN_ESS_PER_CHAIN and bool((values == values.round()).all())
    still: NDArray[np.bool_] = (values == usual).all(1) & is_rare
    return still


def _chains(where: np.ndarray[Any, Any]) -> str:
    """The chains in which something holds, from an array with a leading dimension of chains."""
    return named("chain", np.flatnonzero(where.reshape(len(where), -1).any(1)))


def _duplicates(chains: Chains) -> list[str]:
    """Reasons for chains that repeat one another."""
    reasons = []
    repeated = {seed for seed, times in Counter(chains.seeds).items() if times > 1}
    if repeated and len(chains.seeds) == chains.num_chains:
        which = named("chain", (index for index, seed in enumerate(chains.seeds) if seed in repeated))
        reasons.append(f"{which}: same seed, so they are not independent")
    elif repeated:
        reasons.append(f"{named('seed', repeated)}: given to several groups of chains")
    groups: dict[bytes, list[int]] = {}
    shape = chains.num_chains, chains.num_samples, -1
    sites = [value.detach().cpu().double().reshape(shape).numpy() for value in chains.draws.values()]
    for index in range(chains.num_chains):
        rows = np.concatenate([site[index] for site in sites], axis=1)
        if np.isfinite(rows).all() and (rows != rows[:1]).any() and not _may_recur(rows, chains.num_chains):
            groups.setdefault(rows.tobytes(), []).append(index)
    repeats = [same for same in groups.values() if len(same) > 1]
    reasons += [f"{named('chain', same)}: equal draws, so they are one chain" for same in repeats[:MAX_NAMED]]
    return reasons if reasons else _shared(chains)


def _shared(chains: Chains) -> list[str]:
    """Reasons for chains that have many draws in common, in whatever order; of continuous sites, where none recur."""
    for site, draws in chains.draws.items():
        if not draws.is_floating_point():
            continue
        rows = draws.detach().cpu().double().reshape(chains.num_chains, chains.num_samples, -1).numpy()
        for column in range(rows.shape[-1]):
            if (rows[..., column] == rows[..., column].round()).all():
                continue
            own = [np.unique(rows[index, :, column]) for index in range(chains.num_chains)]
            if min(len(values) for values in own) < _MIN_DRAWS:
                continue
            distinct, times = np.unique(np.concatenate(own), return_counts=True)
            is_copy = np.array([np.isin(values, distinct[times > 1]).mean() for values in own]) > _MAX_SHARED
            # Of few distinct values, or of too many for the type, chains may well share some.
            if is_copy.sum() > 1 and rows[..., column].size / 20 <= len(distinct) < _MAX_DISTINCT:
                return [f"{_chains(is_copy)}: share draws of {site}, so they are not independent"]
            break  # one moving coordinate is enough
    return []


def _may_recur(rows: Array, num_chains: int) -> bool:
    """Whether another of the chains may have the same draws by chance, being few and of whole numbers."""
    if (rows != rows.round()).any():
        return False
    counts = np.unique(rows, axis=0, return_counts=True)[1]
    return bool(num_chains**2 * float(np.square(counts / len(rows)).sum()) ** len(rows) > 1e-6)


def _check_rates(chains: Chains) -> Iterator[Check]:
    """Whether each chain accepted proposals, and none of its steps diverged, as far as that was kept."""
    if "acceptance_rate" in chains.sample_stats:
        rates = chains.sample_stats["acceptance_rate"].double().mean(1).cpu().numpy()
        stuck = ~(rates > _MIN_ACCEPTANCE_RATE)
        reason = (
            f"{_chains(stuck)}: acceptance rate zero or not a number, no proposal was accepted. "
            "Pass other starts (initial_values)"
        )
        detail = f"{rates.min():.2f} to {rates.max():.2f} by chain"
        if (by_tilt := _rejection_by_tilt(chains)) is not None:
            detail += f"; by the smooth energy {by_tilt.smooth_rate:.2f}"
        yield Check("acceptance rate", detail, (reason,) if stuck.any() else ())
    if "diverging" in chains.sample_stats:
        counts = (chains.sample_stats["diverging"] != 0).sum(1).cpu().numpy()
        steps = f"{counted(int(counts.sum()), 'step')} diverged"
        reason = (
            f"{steps}, in {_chains(counts)}: the energy that is followed bends too sharply there for the step size. "
            'Raise the target (kernel_options={"target_accept_prob": 0.95})'
        )
        yield Check("divergences", steps, (reason,) if counts.any() else ())


class _Rates(NamedTuple):
    """Mean acceptance rates of all chains: as they are, and as they would be by the energy that is followed."""

    rate: float
    smooth_rate: float


def _rejection_by_tilt(chains: Chains) -> _Rates | None:
    """Acceptance rates that the tilts of densities lower clearly; None where they do not, or that was not kept."""
    if not {"acceptance_rate", "smooth_acceptance_rate"} <= set(chains.sample_stats):
        return None
    names = "acceptance_rate", "smooth_acceptance_rate"
    rates = _Rates(*(float(chains.sample_stats[name].double().mean()) for name in names))
    return rates if rates.smooth_rate - rates.rate > _CLEAR_DIFFERENCE else None


def _bfmi(chains: Chains) -> tuple[float, ...]:
    """E-BFMI of each chain; empty where no energies were kept."""
    energy = chains.sample_stats.get("energy")
    if energy is None or chains.num_samples < _MIN_DRAWS:
        return ()
    return tuple(float(value) for value in import_arviz().bfmi(energy.detach().cpu().double().numpy()))


def _check_bfmi(bfmi: tuple[float, ...]) -> Check:
    low = [index for index, value in enumerate(bfmi) if not value >= MIN_BFMI]
    lowest = min(bfmi, key=lambda value: (not math.isnan(value), value))
    detail = f"lowest {lowest:.2f}, {MIN_BFMI} needed"
    remedy = "the energy moves too slowly to reach the tails: reparametrise, or run longer"
    reason = f"{named('chain', low)}: E-BFMI {lowest:.2f} is not {MIN_BFMI} or more, {remedy}"
    return Check("E-BFMI", detail, (reason,) if low else ())


def _check_rhat(summaries: Iterable[ParameterSummary], parameters: Mapping[str, Array], num_chains: int) -> Check:
    """Whether the chains agree with one another and each half of them with the other."""
    if num_chains == 1:
        return Check("R-hat", "needs at least 2 chains", skipped=True)
    rhats = {summary.name: summary.rhat for summary in summaries}
    failed = sorted((name for name, rhat in rhats.items() if rhat >= MAX_RHAT), key=lambda name: -rhats[name])
    reasons = first_few(
        failed,
        lambda name: f"{name}: R-hat {rhats[name]:.3f}, {_disagreement(parameters[name], rhats[name])}",
        f"parameters with an R-hat of {MAX_RHAT} or more",
    )
    worst = max(rhats, key=lambda name: (math.isnan(rhats[name]), rhats[name]))
    detail = f"largest {rhats[worst]:.3f} ({worst}), below {MAX_RHAT} needed"
    return Check("R-hat", detail, (*reasons, *_missing("R-hat", rhats)))


def _missing(statistic: str, values: Mapping[str, float]) -> list[str]:
    names = [name for name, value in values.items() if math.isnan(value)]
    return [f"{named('parameter', names)}: {statistic} is not a number"] if names else []


def _disagreement(values: Array, rhat: float) -> str:
    """What a large R-hat of these draws comes from, in words."""
    sd, half = float(values.std()), values.shape[1] // 2
    shifts = (values[:, -half:].mean(1) - values[:, :half].mean(1)) / sd
    shift = float(shifts.mean())
    means, sds = values.mean(1), values.std(1)
    if abs(shift) > 0.3 and abs(shift) > 4 * float(shifts.std()) / math.sqrt(len(shifts)):
        side = "above" if shift > 0 else "below"
        return f"drift: second halves lie {abs(shift):.1f} standard deviations {side} first halves, warm up longer"
    arviz = import_arviz()
    sizes = np.array([float(arviz.ess(one[None], method="mean")) if one.std() > 0 else math.inf for one in values])
    errors = sds / np.sqrt(sizes)
    together = math.sqrt(float(np.square(errors).sum())) / len(errors)
    apart = np.abs(means - means.mean()) > _MAX_ERRORS * np.hypot(errors, together)
    if apart.any():
        low, high = int(means.argmin()), int(means.argmax())
        return f"the chains disagree: mean {means[low]:.3g} in chain {low}, {means[high]:.3g} in chain {high}"
    # The logarithm of a standard deviation of n effective normal draws is off by 1 / sqrt(2 n).
    logs = np.log(np.maximum(sds, 1e-300))
    if (np.abs(logs - np.median(logs)) > _MAX_ERRORS / np.sqrt(2 * sizes)).any() and sds.max() > 1.2 * sds.min():
        low, high = int(sds.argmin()), int(sds.argmax())
        return f"the chains differ in spread: {sds[low]:.3g} in chain {low}, {sds[high]:.3g} in chain {high}"
    # Of chains that have settled, R-hat^2 - 1 falls as one over their length.
    return f"the chains are too short: {_more((rhat**2 - 1) / (MAX_RHAT**2 - 1))}"


def _more(factor: float) -> str:
    """How many more draws, in at most two digits, rounded up."""
    factor = math.ceil(10 * factor) / 10 if factor < 10 else math.ceil(factor)
    return f"about {factor:,} times as many draws are needed"


def _check_ess(summaries: Sequence[ParameterSummary], chains: Chains) -> Check:
    """Whether the draws are worth enough independent ones for the other statistics to be trusted."""
    needed = MIN_ESS_PER_CHAIN * chains.num_chains
    smallest = {item.name: min(item.ess_bulk, item.ess_tail) for item in summaries}
    failed = sorted((item for item in summaries if smallest[item.name] < needed), key=lambda item: smallest[item.name])

    def reason(item: ParameterSummary) -> str:
        sizes = f"bulk ESS {item.ess_bulk:,.0f} and tail ESS {item.ess_tail:,.0f}, {needed:,} needed"
        # Chains that are far apart are worth no more if they are longer.
        return f"{item.name}: {sizes}" + ("" if item.rhat >= _FAR_APART else f": {_more(needed / smallest[item.name])}")

    reasons = first_few(failed, reason, f"parameters with an ESS below {needed:,}")
    by_tilt = _rejection_by_tilt(chains)
    if failed and by_tilt is not None:
        rates = (
            f"the acceptance rate is {by_tilt.rate:.2f}, and by the smooth energy would be {by_tilt.smooth_rate:.2f}"
        )
        reasons.append(f"the density's tilt rejects proposals: {rates}. Smaller steps do not help, more draws do")
    worst = min(smallest, key=lambda name: (not math.isnan(smallest[name]), smallest[name]))
    detail = f"smallest {smallest[worst]:,.0f} ({worst}), {needed:,} needed"
    return Check("ESS", detail, (*reasons, *_missing("ESS", smallest)))
