"""Whether chains have mixed and sample what they should: statistics of ArviZ, and a test against exact draws."""

from __future__ import annotations

import html
import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._runtime import check_seed, import_arviz, message, seeded, single_thread
from pyro_mbde.sampling.chains import Chains

Array = NDArray[np.float64]
Reference = Distribution | Mapping[str, Tensor]

#: Vehtari et al. (2021), section 4: R-hat below 1.01, and an effective sample size of 100 a chain.
MAX_RHAT, MIN_ESS_PER_CHAIN = 1.01, 100
#: E-BFMI below which momentum refreshes are too small for the spread of energies: the bound used since Betancourt 2016.
MIN_BFMI = 0.3
#: How often good chains fail the test against exact draws, at most, over all its comparisons.
_FALSE_ALARM_RATE = 1e-3
#: A split chain's autocorrelation can be estimated from this many draws on.
_MIN_DRAWS = 4
#: Effective draws from which on shares are compared: with fewer, their own number is too uncertain.
_MIN_ESS_TO_TEST = 50
_LEVELS, _SPREAD_LEVELS, _PRODUCT_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95), (0.5, 0.9), (0.25, 0.5, 0.75)
#: Coordinates up to which each pair is tested for dependence; beyond, this many random directions are.
_MAX_PAIRWISE, _NUM_DIRECTIONS = 12, 32
#: Exact draws, and how many numbers they may hold.
_NUM_EXACT_DRAWS, _MAX_VALUES = 50_000, 5_000_000
#: Mean acceptance probability of a chain that is taken for none.
_MIN_ACCEPTANCE_RATE = 1e-6
#: Which draws a share counts, in the words of a report.
_BELOW_AT = "at or below the exact {level:.0%} quantile, {at:.3g}"
_BELOW_PRODUCT = "at or below the exact {level:.0%} quantile of the product of their normal scores"
_MIDDLE = "in the middle {level:.0%} of exact draws"
_MAX_ROWS, _MAX_NAMED, _WIDTH = 20, 3, 100
_CHUNK = 2**15  # points whose densities are evaluated at a time


class ParameterSummary(NamedTuple):
    """One scalar parameter over all chains.

    Attributes:
        name: of the site, with the coordinate's index.
        mean: of the draws.
        sd: standard deviation of the draws.
        mcse: Monte Carlo standard error of the mean.
        q5: 5 % quantile.
        median: 50 % quantile.
        q95: 95 % quantile.
        rhat: rank-normalised split R-hat.
        ess_bulk: effective sample size of ranks.
        ess_tail: the smaller effective sample size of the 5 % and 95 % quantiles.
    """

    name: str
    mean: float
    sd: float
    mcse: float
    q5: float
    median: float
    q95: float
    rhat: float
    ess_bulk: float
    ess_tail: float


class Check(NamedTuple):
    """One thing that was checked.

    Attributes:
        name: what.
        detail: the figures in a sentence.
        failures: a reason for each failure; empty where there is none.
        skipped: whether it could not be checked.
    """

    name: str
    detail: str
    failures: tuple[str, ...] = ()
    skipped: bool = False

    @property
    def outcome(self) -> str:
        """``ok``, ``FAILED`` or ``skipped``."""
        return "FAILED" if self.failures else "skipped" if self.skipped else "ok"


class Deviation(NamedTuple):
    """A share of the chains' draws beside that of exact draws.

    Attributes:
        subject: the coordinate, the pair of coordinates, the direction, or the log-density.
        event: which draws are counted.
        share: of the chains' draws.
        expected: of exact draws.
        standard_error: of the difference, from the effective number of draws.
        p_value: two-sided, of this comparison alone.
    """

    subject: str
    event: str
    share: float
    expected: float
    standard_error: float
    p_value: float


@dataclass(frozen=True, repr=False)
class MixingReport:
    """What is known of chains: a summary of each parameter, the checks, and in plain words what failed.

    Prints as a table in a terminal and in a notebook.

    Privacy:
        As sensitive as the table that the density was fitted to: not for release.

    Attributes:
        kernel: name of the kernel.
        num_chains: number of chains.
        num_samples: draws of each chain.
        parameters: one summary a scalar parameter.
        bfmi: E-BFMI of each chain; empty where no energies were kept.
        deviations: the comparisons with exact draws, most improbable first; empty where there was no test.
        checks: what was checked, and the reasons for what failed.
    """

    kernel: str
    num_chains: int
    num_samples: int
    parameters: tuple[ParameterSummary, ...]
    bfmi: tuple[float, ...]
    deviations: tuple[Deviation, ...]
    checks: tuple[Check, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """A reason for each failure; empty for chains that passed."""
        return tuple(reason for check in self.checks for reason in check.failures)

    @property
    def passed(self) -> bool:
        """Whether nothing failed. What was skipped has not failed."""
        return not self.failures

    @property
    def worst_first(self) -> tuple[ParameterSummary, ...]:
        """The parameters, those with a missing or large R-hat and few effective draws first."""

        def goodness(parameter: ParameterSummary) -> tuple[float, float]:
            excess = parameter.rhat - 1
            return (-math.inf, 0.0) if math.isnan(excess) else (-round(excess, 3), parameter.ess_bulk)

        return tuple(sorted(self.parameters, key=goodness))

    def to_frame(self) -> pd.DataFrame:
        """Returns the summaries of all parameters as a table, one row a parameter."""
        return pd.DataFrame(self.parameters, columns=ParameterSummary._fields).set_index("name")

    @property
    def title(self) -> str:
        """The verdict in a line."""
        return (
            f"{'Passed' if self.passed else 'FAILED'}: {_count(self.num_chains, 'chain')} of "
            f"{_count(self.num_samples, 'draw')}, {self.kernel}"
        )

    def _rows(self) -> tuple[list[tuple[str, ...]], str]:
        """The header and the rows to show as text, and a note on what is not shown."""
        total = len(self.parameters)
        shown, note = self.parameters, ""
        if total > _MAX_ROWS:
            shown = self.worst_first[:_MAX_ROWS]
            note = f"The worst {_MAX_ROWS} of {total:,} parameters, by R-hat and effective sample size."
        header = ("parameter", "mean", "sd", "mcse", "5%", "50%", "95%", "rhat", "ess_bulk", "ess_tail")
        return [header, *(_cells(parameter) for parameter in shown)], note

    def __str__(self) -> str:
        """The table, the checks and the reasons, for a terminal."""
        rows, note = self._rows()
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        widths[0] = max(min(widths[0], _WIDTH - sum(widths[1:]) - 2 * len(widths[1:])), 9)
        lines = [self.title, ""]
        for row in rows:
            cells = [_shorten(row[0], widths[0]).ljust(widths[0])]
            cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            lines.append("  ".join(cells))
        lines += [note, ""] if note else [""]
        for check in self.checks:
            lines += _wrap(f"{check.outcome:<8}{check.name}: {check.detail}", 8)
        if self.failures:
            lines += ["", "Why it failed"]
            for reason in self.failures:
                lines += _wrap(f"- {reason}", 2)
        return "\n".join(lines)

    def __repr__(self) -> str:
        """The class and how much it holds."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        shown = ", ".join(f"{name}=({len(v)} items)" if isinstance(v, tuple) else f"{name}={v!r}" for name, v in values)
        return f"{type(self).__name__}({shown})"

    def _repr_html_(self) -> str:
        rows, note = self._rows()
        left, right = "text-align:left;padding:2px 10px", "text-align:right;padding:2px 10px"

        def cells(row: tuple[str, ...], tag: str) -> str:
            styles = (left, *(right for _ in row[1:]))
            return "".join(
                f'<{tag} style="{style}">{html.escape(cell)}</{tag}>' for style, cell in zip(styles, row, strict=True)
            )

        body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows[1:])
        checks = "".join(
            f'<tr>{cells((check.name, check.outcome), "td")}<td style="{left}">{html.escape(check.detail)}</td></tr>'
            for check in self.checks
        )
        reasons = "".join(f"<li>{html.escape(reason)}</li>" for reason in self.failures)
        failed = f"<p><b>Why it failed</b></p><ul>{reasons}</ul>" if reasons else ""
        return (
            f"<div><p><b>{html.escape(self.title)}</b></p>"
            f"<table><thead><tr>{cells(rows[0], 'th')}</tr></thead><tbody>{body}</tbody></table>"
            f"<p>{html.escape(note)}</p><table><tbody>{checks}</tbody></table>{failed}</div>"
        )


def _cells(parameter: ParameterSummary) -> tuple[str, ...]:
    numbers = (f"{value:.3g}" for value in parameter[1:7])
    ess = (f"{value:.0f}" for value in parameter[8:])
    return (parameter.name, *numbers, f"{parameter.rhat:.3f}", *ess)


def _shorten(name: str, width: int) -> str:
    """A long name without its middle: its end tells coordinates apart."""
    if len(name) <= width:
        return name
    tail = (width - 1) * 2 // 3
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"


def _wrap(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False) or [text]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _named(noun: str, items: Iterable[Any]) -> str:
    """As ``chains 0, 1, 2 and 5 more``."""
    names = [str(item) for item in items]
    listed, rest = ", ".join(names[:_MAX_NAMED]), len(names) - _MAX_NAMED
    return f"{noun}{'' if len(names) == 1 else 's'} {listed}{f' and {rest:,} more' if rest > 0 else ''}"


def scalar_parameters(chains: Chains, sites: Iterable[str] | None = None) -> dict[str, Array]:
    """Returns the draws coordinate by coordinate, each of shape ``(num_chains, num_samples)``, as ``x[0,1]``.

    Args:
        chains: the chains.
        sites: names of the sites; all by default.

    Raises:
        TypeError: ``chains`` is no :class:`~pyro_mbde.Chains`, or ``sites`` no list of names.
        ValueError: there are no draws, or no site of that name.
    """
    if not isinstance(chains, Chains):
        raise TypeError(message("chains", "be Chains, as run_mcmc returns them", type(chains).__name__))
    if isinstance(sites, str):
        raise TypeError(message("sites", "be a list of names", sites, f"Write [{sites!r}]."))
    shapes = {name: tuple(value.shape) for name, value in chains.draws.items()}
    if not shapes or any(0 in shape or len(shape) < 2 for shape in shapes.values()):
        raise ValueError(message("chains.draws", "hold a draw of each site at least", shapes))
    if len({shape[:2] for shape in shapes.values()}) > 1:
        raise ValueError(message("chains.draws", "be of as many chains and draws for each site", shapes))
    parameters: dict[str, Array] = {}
    for site in shapes if sites is None else sites:
        if site not in shapes:
            raise ValueError(message("sites", f"be among {', '.join(shapes)}", site))
        parameters |= _coordinates(site, chains.draws[site], 2)
    return parameters


def _coordinates(site: str, draws: Tensor, num_leading: int) -> dict[str, Array]:
    """The draws of a site, coordinate by coordinate, with their leading dimensions."""
    values = draws.detach().cpu().double().numpy()
    indices = np.ndindex(values.shape[num_leading:])
    return {f"{site}[{','.join(map(str, i))}]" if i else site: values[(..., *i)] for i in indices}


def mixing_report(chains: Chains, *, reference: Reference | None = None, seed: int | None = 0) -> MixingReport:
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
        seed: of the exact draws and of the random directions; ``None`` takes torch's global generator.

    Returns:
        :class:`MixingReport`.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: there are no draws to check, or the reference is not one of the chains' sites.

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
    finite = all(bool(np.isfinite(values).all()) for values in parameters.values())
    with seeded(seed), single_thread(), torch.no_grad(), np.errstate(all="ignore"):
        exact = _exact_draws(chains, reference)
        summaries = tuple(_summarize(name, values) for name, values in parameters.items())
        bfmi = _bfmi(chains)
        checks = [_check_draws(chains, parameters), *_check_rates(chains)]
        if chains.num_samples >= _MIN_DRAWS:
            checks += [_check_rhat(summaries, parameters), _check_ess(summaries, chains.num_chains)]
        if bfmi:
            checks.append(_check_bfmi(bfmi))
        deviations: tuple[Deviation, ...] = ()
        if isinstance(exact, str):
            checks.append(Check("exact draws", exact, skipped=True))
        elif not finite or chains.num_samples < _MIN_DRAWS:
            checks.append(Check("exact draws", "the chains' draws are too few or not all finite", skipped=True))
        else:
            deviations = _compare(chains, exact)
            checks.append(_check_exact(chains, exact, deviations))
    return MixingReport(
        kernel=chains.kernel,
        num_chains=chains.num_chains,
        num_samples=chains.num_samples,
        parameters=summaries,
        bfmi=bfmi,
        deviations=deviations,
        checks=tuple(checks),
    )


def _summarize(name: str, values: Array) -> ParameterSummary:
    """What ArviZ makes of a parameter; NaN where it cannot be computed."""
    missing = ParameterSummary(name, *[math.nan] * 9)
    if not np.isfinite(values).all():
        return missing
    quantiles = np.quantile(values, [0.05, 0.5, 0.95])
    summary = missing._replace(
        mean=float(values.mean()),
        sd=float(values.std(ddof=min(1, values.size - 1))),
        q5=float(quantiles[0]),
        median=float(quantiles[1]),
        q95=float(quantiles[2]),
    )
    if values.shape[1] < _MIN_DRAWS or values.min() == values.max():
        return summary
    arviz = import_arviz()
    return summary._replace(
        mcse=float(arviz.mcse(values, method="mean")),
        rhat=float(arviz.rhat(values, method="rank")) if len(values) > 1 else math.nan,
        ess_bulk=float(arviz.ess(values, method="bulk")),
        ess_tail=float(arviz.ess(values, method="tail", prob=(0.05, 0.95))),
    )


def _check_draws(chains: Chains, parameters: Mapping[str, Array]) -> Check:
    """Whether there are draws to judge: enough, finite, of chains that move, no two of them the same."""
    reasons = []
    if chains.num_samples < _MIN_DRAWS:
        reasons.append(f"{_count(chains.num_samples, 'draw')} a chain are too few: R-hat and ESS need {_MIN_DRAWS}")
    if chains.num_chains == 1:
        reasons.append("one chain cannot be compared with others: run at least 2, better 4")
    broken = {name: ~np.isfinite(values) for name, values in parameters.items() if not np.isfinite(values).all()}
    for name, where in list(broken.items())[:_MAX_NAMED]:
        which = _named("chain", np.flatnonzero(where.any(1)))
        reasons.append(f"{name}: {_count(int(where.sum()), 'draw')} NaN or infinite, in {which}")
    if len(broken) > _MAX_NAMED:
        reasons.append(f"{len(broken) - _MAX_NAMED:,} more parameters with NaN or infinite draws")
    reasons += _frozen(parameters) if chains.num_samples > 1 else []
    reasons += _duplicates(chains)
    return Check("draws", "see below" if reasons else "finite, moving, no chain like another", tuple(reasons))


def _frozen(parameters: Mapping[str, Array]) -> list[str]:
    """Reasons for parameters of which all draws in a chain are equal."""
    still = {name: (values == values[:, :1]).all(1) for name, values in parameters.items()}
    everywhere = np.logical_and.reduce(list(still.values()))
    reasons = []
    if everywhere.any():
        which = _named("chain", np.flatnonzero(everywhere))
        reasons.append(f"{which}: frozen, all draws are equal")
    part = {name: where & ~everywhere for name, where in still.items() if (where & ~everywhere).any()}
    for name, where in list(part.items())[:_MAX_NAMED]:
        reasons.append(f"{name}: constant in {_named('chain', np.flatnonzero(where))}")
    if len(part) > _MAX_NAMED:
        reasons.append(f"{len(part) - _MAX_NAMED:,} more parameters constant in a chain")
    return reasons


def _duplicates(chains: Chains) -> list[str]:
    """Reasons for chains that repeat one another."""
    reasons = []
    repeated = {seed for seed, times in Counter(chains.seeds).items() if times > 1}
    if repeated and len(chains.seeds) == chains.num_chains:
        which = _named("chain", (index for index, seed in enumerate(chains.seeds) if seed in repeated))
        reasons.append(f"{which}: same seed, so they are not independent")
    elif repeated:
        reasons.append(f"{_named('seed', repeated)}: given to several groups of chains")
    groups: dict[bytes, list[int]] = {}
    shape = chains.num_chains, chains.num_samples, -1
    sites = [value.detach().cpu().double().reshape(shape).numpy() for value in chains.draws.values()]
    for index in range(chains.num_chains):
        rows = np.concatenate([site[index] for site in sites], axis=1)
        if np.isfinite(rows).all() and (rows != rows[:1]).any() and not _may_recur(rows, chains.num_chains):
            groups.setdefault(rows.tobytes(), []).append(index)
    repeats = [same for same in groups.values() if len(same) > 1]
    reasons += [f"{_named('chain', same)}: equal draws, so they are one chain" for same in repeats[:_MAX_NAMED]]
    return reasons


def _may_recur(rows: Array, num_chains: int) -> bool:
    """Whether another of the chains may have the same draws by chance, being few and of whole numbers."""
    if (rows != rows.round()).any():
        return False
    counts = np.unique(rows, axis=0, return_counts=True)[1]
    return bool(num_chains**2 * float(np.square(counts / len(rows)).sum()) ** len(rows) > 1e-6)


def _check_rates(chains: Chains) -> list[Check]:
    """Whether each chain accepted proposals, and none of its steps diverged, as far as that was kept."""
    checks = []
    if "acceptance_rate" in chains.sample_stats:
        rates = chains.sample_stats["acceptance_rate"].double().mean(1).cpu().numpy()
        stuck = np.flatnonzero(~(rates > _MIN_ACCEPTANCE_RATE))
        reason = f"{_named('chain', stuck)}: acceptance rate zero or not a number, no proposal was accepted"
        detail = f"{rates.min():.2f} to {rates.max():.2f} by chain"
        checks.append(Check("acceptance rate", detail, (reason,) if len(stuck) else ()))
    if "diverging" in chains.sample_stats:
        counts = (chains.sample_stats["diverging"] != 0).sum(1).cpu().numpy()
        steps = f"{_count(int(counts.sum()), 'step')} diverged"
        remedy = "the density bends too sharply there for the step size: raise target_accept_prob, or reparametrise"
        reason = f"{steps}, in {_named('chain', np.flatnonzero(counts))}: {remedy}"
        checks.append(Check("divergences", steps, (reason,) if counts.any() else ()))
    return checks


def _bfmi(chains: Chains) -> tuple[float, ...]:
    """E-BFMI of each chain; empty where no energies were kept."""
    energy = chains.sample_stats.get("energy")
    if energy is None or chains.num_samples < _MIN_DRAWS:
        return ()
    return tuple(float(value) for value in import_arviz().bfmi(energy.detach().cpu().double().numpy()))


def _check_bfmi(bfmi: tuple[float, ...]) -> Check:
    low = [index for index, value in enumerate(bfmi) if not value >= MIN_BFMI]
    lowest = min(bfmi, key=lambda value: -math.inf if math.isnan(value) else value)
    detail = f"lowest {lowest:.2f}, {MIN_BFMI} needed"
    remedy = "the energy moves too slowly to reach the tails: reparametrise, or run longer"
    reason = f"{_named('chain', low)}: E-BFMI {lowest:.2f} is not {MIN_BFMI} or more, {remedy}"
    return Check("E-BFMI", detail, (reason,) if low else ())


def _check_rhat(summaries: Iterable[ParameterSummary], parameters: Mapping[str, Array]) -> Check:
    """Whether the chains agree with one another and each half of them with the other."""
    rhats = {summary.name: summary.rhat for summary in summaries}
    missing = [name for name, rhat in rhats.items() if math.isnan(rhat)]
    failed = sorted((name for name, rhat in rhats.items() if rhat >= MAX_RHAT), key=lambda name: -rhats[name])
    reasons = [f"{name}: R-hat {rhats[name]:.3f}, {_disagreement(parameters[name])}" for name in failed[:_MAX_NAMED]]
    if len(failed) > _MAX_NAMED:
        reasons.append(f"{len(failed) - _MAX_NAMED:,} more parameters with an R-hat of {MAX_RHAT} or more")
    if missing:
        reasons.append(f"{_named('parameter', missing)}: R-hat is not a number")
    worst = max(rhats, key=lambda name: math.inf if math.isnan(rhats[name]) else rhats[name])
    return Check("R-hat", f"largest {rhats[worst]:.3f} ({worst}), below {MAX_RHAT} needed", tuple(reasons))


def _disagreement(values: Array) -> str:
    """What a large R-hat of these draws comes from, in words."""
    sd, half = float(values.std()), values.shape[1] // 2
    shifts = (values[:, -half:].mean(1) - values[:, :half].mean(1)) / sd
    shift = float(shifts.mean())
    means, sds = values.mean(1), values.std(1)
    spread = float(means.max() - means.min()) / sd
    if abs(shift) > 0.3 and abs(shift) > 4 * float(shifts.std()) / math.sqrt(len(shifts)):
        side = "above" if shift > 0 else "below"
        return f"drift: second halves lie {abs(shift):.1f} standard deviations {side} first halves, warm up longer"
    if spread > 0.3:
        low, high = int(means.argmin()), int(means.argmax())
        return f"the chains disagree: mean {means[low]:.3g} in chain {low}, {means[high]:.3g} in chain {high}"
    if sds.max() > 1.2 * sds.min():
        low, high = int(sds.argmin()), int(sds.argmax())
        return f"the chains differ in spread: {sds[low]:.3g} in chain {low}, {sds[high]:.3g} in chain {high}"
    return "the chains are too short for how slowly they move"


def _check_ess(summaries: Sequence[ParameterSummary], num_chains: int) -> Check:
    """Whether the draws are worth enough independent ones for the other statistics to be trusted."""
    needed = MIN_ESS_PER_CHAIN * num_chains
    smallest = {item.name: min(item.ess_bulk, item.ess_tail) for item in summaries}
    missing = [name for name, ess in smallest.items() if math.isnan(ess)]
    failed = sorted((item for item in summaries if smallest[item.name] < needed), key=lambda item: smallest[item.name])
    reasons = [
        f"{item.name}: bulk ESS {item.ess_bulk:,.0f} and tail ESS {item.ess_tail:,.0f}, {needed:,} needed, run longer"
        for item in failed[:_MAX_NAMED]
    ]
    if len(failed) > _MAX_NAMED:
        reasons.append(f"{len(failed) - _MAX_NAMED:,} more parameters with an ESS below {needed:,}")
    if missing:
        reasons.append(f"{_named('parameter', missing)}: ESS is not a number")
    worst = min(smallest, key=lambda name: -math.inf if math.isnan(smallest[name]) else smallest[name])
    return Check("ESS", f"smallest {smallest[worst]:,.0f} ({worst}), {needed:,} needed", tuple(reasons))


class _Exact(NamedTuple):
    """Exact draws per site, shape ``(n, *event_shape)``, and the distribution they are of, if it is known."""

    draws: dict[str, Tensor]
    density: Distribution | None


def _exact_draws(chains: Chains, reference: Reference | None) -> _Exact | str:
    """Exact draws to test against, or why there are none."""
    density = chains.density if reference is None else reference
    if density is None:
        return "none to compare with: pass reference, a distribution or exact draws per site"
    if isinstance(density, Mapping):
        for site, draws in density.items():
            if site not in chains.draws:
                raise ValueError(message("reference", f"name sites among {', '.join(chains.draws)}", site))
            event_shape = tuple(chains.draws[site].shape[2:])
            if not isinstance(draws, Tensor):
                raise TypeError(message(f"reference[{site!r}]", "be a tensor", type(draws).__name__))
            if tuple(draws.shape[1:]) != event_shape or len(draws) < 100 or not torch.isfinite(draws).all():
                constraint = f"hold 100 finite draws or more, shape (n, {', '.join(map(str, event_shape))})"
                raise ValueError(message(f"reference[{site!r}]", constraint, tuple(draws.shape)))
        if not density or len({len(draws) for draws in density.values()}) > 1:
            raise ValueError(message("reference", "hold as many draws for each site", list(density)))
        return _Exact(dict(density), None)
    if not isinstance(density, Distribution):
        raise TypeError(message("reference", "be a distribution or exact draws per site", density))
    site = next(iter(chains.draws)) if len(chains.draws) == 1 else "x"
    if site not in chains.draws:
        raise ValueError(message("reference", "be exact draws per site, for chains without a site x", density))
    if density.batch_shape or density.event_shape != chains.draws[site].shape[2:]:
        shape = (tuple(density.batch_shape), tuple(density.event_shape))
        constraint = f"have batch shape () and event shape {tuple(chains.draws[site].shape[2:])}"
        raise ValueError(message("reference", constraint, shape))
    num_draws = min(max(_MAX_VALUES // max(density.event_shape.numel(), 1), 2_000), _NUM_EXACT_DRAWS)
    try:
        return _Exact({site: density.sample(torch.Size([num_draws]))}, density)
    except NotImplementedError:
        if reference is None:
            return "the density cannot be drawn from exactly"
        raise ValueError(message("reference", "be a distribution that can be drawn from", density)) from None


def exact_coordinates(chains: Chains, reference: Reference | None) -> dict[str, Array]:
    """Returns what chains are tested against, coordinate by coordinate, each of shape ``(n,)``; empty without it."""
    exact = _exact_draws(chains, reference)
    if isinstance(exact, str):
        return {}
    return {name: of for site, draws in exact.draws.items() for name, of in _coordinates(site, draws, 1).items()}


def _compare(chains: Chains, exact: _Exact) -> tuple[Deviation, ...]:
    """Compares shares of the draws with those of exact draws; most improbable first."""
    scores: dict[str, _Pair] = {}
    deviations: list[Deviation] = []
    for site, draws in exact.draws.items():
        theirs = _coordinates(site, draws, 1)
        for name, values in _coordinates(site, chains.draws[site], 2).items():
            deviations += _shares(name, _BELOW_AT, _Pair(values, theirs[name]), _LEVELS)
            scores[name] = _normal_scores(_Pair(values, theirs[name]))
            deviations += _shares(name, _MIDDLE, _absolute(scores[name]), _SPREAD_LEVELS)
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


def _absolute(pair: _Pair) -> _Pair:
    return _Pair(abs(pair.ours), abs(pair.theirs))


def _compare_pairs(scores: Mapping[str, _Pair]) -> list[Deviation]:
    """Compares products of two coordinates' scores, or of their distances from the middle: is one large with the other?

    The distances see what correlations do not: a ring, or a scale that depends on another coordinate.
    """
    folded = {name: _normal_scores(_absolute(pair)) for name, pair in scores.items()}
    deviations: list[Deviation] = []
    for first, second in combinations(scores, 2):
        for one, is_folded in ((scores[first], ""), (folded[first], "spread of ")):
            for other, is_other_folded in ((scores[second], ""), (folded[second], "spread of ")):
                subject = f"{is_folded}{first} with {is_other_folded}{second}"
                product = _Pair(one.ours * other.ours, one.theirs * other.theirs)
                deviations += _shares(subject, _BELOW_PRODUCT, product, _PRODUCT_LEVELS)
    return deviations


def _compare_directions(scores: Mapping[str, _Pair]) -> list[Deviation]:
    """Compares the spread of the scores along random directions, which correlations widen or narrow."""
    deviations: list[Deviation] = []
    weights = torch.randn(_NUM_DIRECTIONS, len(scores), dtype=torch.float64).tolist()
    for index, weight in enumerate(weights):
        ours = sum(w * pair.ours for w, pair in zip(weight, scores.values(), strict=True))
        theirs = sum(w * pair.theirs for w, pair in zip(weight, scores.values(), strict=True))
        direction = _absolute(_Pair(np.asarray(ours), np.asarray(theirs)))
        deviations += _shares(f"random direction {index}", _MIDDLE, direction, _SPREAD_LEVELS)
    return deviations


def _normal_scores(pair: _Pair) -> _Pair:
    """Quantiles of the standard normal at mid-ranks among exact draws."""
    ordered, count = np.sort(pair.theirs), len(pair.theirs)

    def scores(values: Array) -> Array:
        ranks = (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / 2
        array: Array = torch.special.ndtri(torch.from_numpy(ranks.clip(0.5, count - 0.5) / count)).numpy()
        return array

    return _Pair(scores(pair.ours), scores(pair.theirs))


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
) -> list[Deviation]:
    """Compares the shares of draws at or below exact quantiles; nothing for too few effective draws."""
    ours, theirs = pair
    arviz = import_arviz()
    varies = bool(ours.min() < ours.max())
    # -inf has no autocorrelation: any value below all others will do in its place.
    floor = min(ours[np.isfinite(ours)].min(initial=0.0), theirs[np.isfinite(theirs)].min(initial=0.0)) - 1.0
    bulk = float(arviz.ess(np.maximum(ours, floor), method="bulk")) if varies else float(ours.size)
    if not bulk >= _MIN_ESS_TO_TEST:
        return []
    deviations = []
    thresholds = {float(np.quantile(theirs, level, method="inverted_cdf")): level for level in reversed(levels)}
    for at, level in thresholds.items():
        edge = at + tolerance * (1 + abs(at))
        below = (ours <= edge).astype(float)
        share, expected = float(below.mean()), (float((theirs <= edge).sum()) + 0.5) / (len(theirs) + 1)
        ess = min(float(arviz.ess(below, method="mean")) if 0 < share < 1 else bulk, bulk, float(ours.size))
        num_effective = 1 / (1 / ess + 1 / len(theirs))
        divergence = sum(a * math.log(a / b) for a, b in ((share, expected), (1 - share, 1 - expected)) if a > 0)
        deviations.append(
            Deviation(
                subject,
                event.format(level=level, at=at),
                share,
                expected,
                math.sqrt(expected * (1 - expected) / num_effective),
                math.erfc(math.sqrt(max(num_effective * divergence, 0.0))),
            )
        )
    return deviations


def _check_exact(chains: Chains, exact: _Exact, deviations: tuple[Deviation, ...]) -> Check:
    """Whether the smallest p-value is too small for the number of comparisons, and every draw in the support."""
    reasons = []
    if exact.density is not None:
        ((site, _),) = exact.draws.items()
        outside = int((~_inside(exact.density, chains.draws[site].flatten(0, 1))).sum())
        if outside:
            reasons.append(f"{site}: {_count(outside, 'draw')} outside the target's support")
    if not deviations and not reasons:
        detail = f"no statistic with {_MIN_ESS_TO_TEST} effective draws to compare by"
        return Check("exact draws", detail, skipped=True)
    failed: dict[str, Deviation] = {}
    for deviation in deviations:
        if deviation.p_value * len(deviations) < _FALSE_ALARM_RATE:
            failed.setdefault(deviation.subject, deviation)
    for subject, worst in list(failed.items())[:_MAX_NAMED]:
        reasons.append(
            f"{subject}: wrong target, {worst.share:.1%} of the draws lie {worst.event}, "
            f"where {worst.expected:.1%} belong (standard error {worst.standard_error:.1%})"
        )
    if len(failed) > _MAX_NAMED:
        reasons.append(f"{len(failed) - _MAX_NAMED:,} more statistics that are not the target's")
    smallest = min(1.0, deviations[0].p_value * len(deviations)) if deviations else math.nan
    num_draws = len(next(iter(exact.draws.values())))
    detail = f"{len(deviations):,} comparisons with {num_draws:,} exact draws, smallest adjusted p-value {smallest:.2g}"
    return Check("exact draws", detail, tuple(reasons))
