"""A picture of how chains have mixed."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.distributions import Distribution

from pyro_mbde._checks import counted
from pyro_mbde._torch_state import seeded, single_thread
from pyro_mbde.diagnostics.checks import MIN_BFMI, mixing_report
from pyro_mbde.diagnostics.exact import Reference, exact_coordinates, log_prob_or_outside
from pyro_mbde.diagnostics.parameters import Array, column_names, scalar_parameters
from pyro_mbde.diagnostics.report import MixingReport, ParameterSummary, shorten
from pyro_mbde.mcmc.chains import Chains
from pyro_mbde.pictures import check_picture_path, import_arviz, new_figure, write_picture
from pyro_mbde.tables.schema import Schema

if TYPE_CHECKING:  # imported where used: it takes a while
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart by people with colour-blindness, and in grey by their lightness and line styles.
_COLORS = ("#0b3c6f", "#d55e00", "#3fa7d6", "#8a8a00")
_STYLES: tuple[Literal["-", "--", "-.", ":"], ...] = ("-", "--", "-.", ":")
_INK, _GREY, _PALE = "#222222", "#767676", "#d4d4d4"
_MAX_ROWS, _MAX_CHAINS, _MAX_REASONS = 4, 4, 5
_MAX_POINTS = 2_000  # of a trace
_NUM_BINS = 20
_WIDTH, _ROW_HEIGHT = 13.0, 2.3  # inches
_LEGEND: dict[str, Any] = {"fontsize": 7.5, "frameon": False, "loc": "upper right", "handlelength": 1.8}


def plot_mixing(
    chains: Chains,
    path: str | os.PathLike[str] | None = None,
    *,
    sites: Iterable[str] | None = None,
    reference: Reference | None = None,
    names: Sequence[str] | Schema | None = None,
    seed: int | None = 0,
) -> Figure:
    """Draws traces, ranks, autocorrelations and histograms of the parameters that mix worst, and the energies.

    Where the chains mix, traces look like one band, each chain's ranks are uniform, autocorrelations fall to 0 soon,
    and the histogram follows the exact density.

    Privacy:
        As sensitive as the table that the density was fitted to: not for release. A file in a folder that holds the
        card of a release is warned of.

    Args:
        chains: the chains.
        path: file to write, by its ending a PNG, PDF or SVG, which only its owner may read; ``None`` writes none.
        sites: sites to show; all by default.
        reference: as for :func:`~pyro_mbde.mixing_report`.
        names: as for :func:`~pyro_mbde.mixing_report`.
        seed: as for :func:`~pyro_mbde.mixing_report`.

    Returns:
        The figure, which a notebook shows. It belongs to no pyplot window.

    Raises:
        ValueError: there are no draws, no such site, names do not fit, or the path has another ending.

    References:
        Vehtari, Gelman, Simpson, Carpenter and Bürkner, "Rank-normalization, folding, and localization: an improved
        R-hat for assessing convergence of MCMC", Bayesian Analysis 16, 2021, section 5 (rank plots).

        Betancourt, "Diagnosing suboptimal cotangent disintegrations in Hamiltonian Monte Carlo", 2016,
        arXiv:1604.00695 (energies).

    Example:
        >>> import torch
        >>> chains = Chains({"x": torch.randn(4, 200)}, {}, (1, 2, 3, 4), 0, "nuts")
        >>> [axis.get_title(loc="left") for axis in plot_mixing(chains).axes]
        ['Trace', 'Ranks', 'Autocorrelation', 'Density']
    """
    if path is not None:
        check_picture_path(path)
    parameters = scalar_parameters(chains, sites)
    renamed = {} if names is None else column_names(chains, names)
    report = mixing_report(chains, reference=reference, seed=seed)
    figure = draw_mixing(chains, report, parameters, renamed, reference=reference, seed=seed)
    if path is not None:
        write_picture(figure, path)
    return figure


def draw_mixing(
    chains: Chains,
    report: MixingReport,
    parameters: Mapping[str, Array],
    names: Mapping[str, str],
    *,
    reference: Reference | None = None,
    seed: int | None = 0,
) -> Figure:
    """Returns what :func:`plot_mixing` draws, from an existing report; ``names`` renames the report's parameters."""
    worst = [parameter for parameter in report.worst_first if parameter.name in parameters]
    shown = worst[:_MAX_ROWS]
    energy = chains.sample_stats.get("energy")
    num_rows = len(shown) + (energy is not None)
    caption = _caption(report.renamed(names))
    heights = 0.7 + _ROW_HEIGHT * num_rows, 0.25 + 0.18 * len(caption)  # inches, of the panels and of the caption
    figure = new_figure(_WIDTH, sum(heights))
    panels: Any = figure.subfigures(2, 1, height_ratios=heights)
    body, foot = panels
    part = "" if len(shown) == len(worst) else f"; the worst {len(shown)} of {len(worst):,} parameters"
    body.suptitle(report.title + part, x=0.008, ha="left", fontsize=12, fontweight="bold", color=_INK, parse_math=False)
    foot.text(0.008, 0.98, "\n".join(caption), ha="left", va="top", fontsize=9, color=_INK, parse_math=False)
    grid = body.add_gridspec(num_rows, 4, width_ratios=(1.6, 1.0, 1.0, 1.0))
    with seeded(seed), single_thread(), torch.no_grad(), np.errstate(all="ignore"):
        exact = exact_coordinates(chains, reference)
        curve = _density_curve(chains, reference)
        selected = _select(parameters[shown[0].name])
        for row, summary in enumerate(shown):
            axes = [body.add_subplot(grid[row, column]) for column in range(4)]
            values = np.where(np.isfinite(parameters[summary.name]), parameters[summary.name], np.nan)
            label = shorten(names.get(summary.name, summary.name), 28)
            _draw_trace(axes[0], values, selected, summary, label)
            _draw_ranks(axes[1], values, selected)
            _draw_autocorrelation(axes[2], values, selected)
            _draw_density(axes[3], values, exact.get(summary.name), curve if summary.name in exact else None)
            for axis in (axes[0], axes[2]):
                axis.locator_params(axis="x", nbins=6, integer=True)
            axes[3].set_xlabel(label, parse_math=False)
            if row == 0:
                for axis, heading in zip(axes, ("Trace", "Ranks", "Autocorrelation", "Density"), strict=True):
                    axis.set_title(heading, loc="left", fontsize=10, color=_INK)
                for axis in axes[1:]:
                    axis.legend(*axis.get_legend_handles_labels(), **_LEGEND)
        if energy is not None:
            axes = [body.add_subplot(grid[-1, :2]), body.add_subplot(grid[-1, 2:])]
            _draw_energy(axes[0], energy.detach().cpu().double().numpy())
            _draw_bfmi(axes[1], report.bfmi)
    for axis in body.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(_GREY)
        axis.tick_params(labelsize=8, colors=_INK)
        axis.xaxis.label.set_fontsize(8.5)
        axis.yaxis.label.set_fontsize(8.5)
    return figure


def _caption(report: MixingReport) -> list[str]:
    """The verdict and how to read the panels, in lines."""
    if report.passed:
        verdict = ["Every check passed. " + "; ".join(f"{check.name}: {check.detail}" for check in report.checks) + "."]
    else:
        rest = len(report.failures) - _MAX_REASONS
        verdict = [f"\N{BULLET} {reason}" for reason in report.failures[:_MAX_REASONS]]
        verdict += [f"\N{BULLET} and {rest:,} more: print the report"] if rest > 0 else []
    reading = (
        "How to read it: mixed chains have traces like one band, uniform ranks (grey: two standard errors around it), "
        "autocorrelations that soon reach 0, and the exact density."
    )
    return [line for text in (*verdict, reading) for line in textwrap.wrap(text, 185)]


def _say(axis: Axes, text: str) -> None:
    """Writes why a panel is empty, or some of it."""
    axis.text(0.5, 0.55, text, transform=axis.transAxes, ha="center", fontsize=8, color=_INK)


def _select(values: Array) -> list[int]:
    """A few chains to show: all, or those with the lowest and highest means and two between."""
    if len(values) <= _MAX_CHAINS:
        return list(range(len(values)))
    order = np.argsort(np.nan_to_num(values.mean(1), nan=math.inf, posinf=math.inf))
    places = np.linspace(0, len(order) - 1, _MAX_CHAINS).round().astype(int)
    return sorted(int(index) for index in order[places])


def _looks(selected: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Colour and line style of each chain."""
    for index, color, style in zip(selected, _COLORS, _STYLES, strict=False):
        yield index, {"color": color, "linestyle": style}


def _draw_trace(axis: Axes, values: Array, selected: list[int], summary: ParameterSummary, label: str) -> None:
    """Draws against their number."""
    num_chains, num_samples = values.shape
    step = -(-num_samples // _MAX_POINTS)
    marker = "o" if num_samples <= 20 else ""
    for index, color in zip(selected, _COLORS, strict=False):
        y, moves = values[index, ::step], bool((values[index] != values[index, 0]).any())
        x, width = np.arange(num_samples)[::step], 0.6 if moves else 2.0
        axis.plot(x, y, color=color, linewidth=width, zorder=2 if moves else 3, marker=marker, markersize=3)
    axis.set_xlabel("draw" if num_chains == len(selected) else f"draw ({len(selected)} of {num_chains:,} chains)")
    axis.set_ylabel(label, parse_math=False)
    lost = int(np.isnan(values).sum())
    text = f"R-hat {summary.rhat:.3f}, bulk ESS {summary.ess_bulk:,.0f}" + (f", {lost:,} not finite" if lost else "")
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5}
    axis.text(0.01, 0.98, text, transform=axis.transAxes, va="top", fontsize=8, color=_INK, bbox=box)
    axis.margins(x=0.01, y=0.18)


def _draw_ranks(axis: Axes, values: Array, selected: list[int]) -> None:
    """How often each chain has draws of each rank among all, in units of how often it should."""
    num_samples = values.shape[1]
    num_bins = int(np.clip(num_samples // 10, 4, _NUM_BINS))
    distinct, counts = np.unique(values[np.isfinite(values)], return_counts=True)
    ranks = np.concatenate([[0.0], counts.cumsum() / max(counts.sum(), 1)])
    # By what each chain on its own is worth: that it disagrees with others must not widen the band.
    each = [_ess(values[index]) for index in selected]
    margin = min(2 * math.sqrt((num_bins - 1) / float(np.median(each))), 1.0)
    axis.axhspan(1 - margin, 1 + margin, color=_PALE, alpha=0.6, linewidth=0)
    axis.axhline(1, color=_GREY, linewidth=0.8, label="uniform")
    highest = 1 + margin
    for index, look in _looks(selected):
        chain = values[index][np.isfinite(values[index])]
        if not len(chain):
            continue
        # Equal draws share the ranks that they take up: each counts in parts for all of these.
        below = np.concatenate([[0.0], np.searchsorted(np.sort(chain), distinct, "right") / len(chain)])
        edges = np.linspace(0, 1, num_bins + 1)
        relative = num_bins * np.diff(np.interp(edges, ranks, below))
        axis.stairs(relative, edges, baseline=None, linewidth=1.2, **look)
        highest = max(highest, float(relative.max()))
    axis.set(xlim=(0, 1), ylim=(0, 1.25 * highest), xlabel="rank, as a share of all draws", ylabel="draws / uniform")


def _ess(chain: Array) -> float:
    """Effective sample size of one chain alone; its length where there is none."""
    if len(chain) < 4 or not np.isfinite(chain).all() or chain.min() == chain.max():
        return float(len(chain))
    return float(import_arviz().ess(chain[None], method="bulk"))


def _draw_autocorrelation(axis: Axes, values: Array, selected: list[int]) -> None:
    """Correlation of draws with those a number of steps later."""
    num_samples = values.shape[1]
    curves = {index: _autocorrelation(values[index]) for index in selected if np.ptp(values[index]) > 0}
    num_lags = 20
    for curve in curves.values():  # until it fell, and as much again
        below = np.flatnonzero(curve < 0.05)
        num_lags = max(num_lags, 2 * int(below[0]) if len(below) else num_samples)
    num_lags = min(num_lags, num_samples - 1, 200)
    axis.axhline(0, color=_GREY, linewidth=0.8)
    marker = "o" if num_samples <= 20 else ""
    for index, look in _looks(selected):
        curve = curves.get(index, np.empty(0))[: num_lags + 1]
        axis.plot(curve, linewidth=1.2, marker=marker, markersize=3, label=f"chain {index}", **look)
    lost = len(selected) - len(curves)
    if lost:
        _say(axis, f"none for {counted(lost, 'frozen or broken chain')}")
    axis.set(xlim=(0, max(num_lags, 1)), ylim=(-0.35, 1.05), xlabel="lag, draws", ylabel="autocorrelation")


def _autocorrelation(chain: Array) -> Array:
    """Autocorrelation of one chain at every lag."""
    # Padded to twice the length, so that the end is not correlated with the start.
    spectrum = np.abs(np.fft.rfft(chain - chain.mean(), 2 * len(chain))) ** 2
    covariance = np.fft.irfft(spectrum)[: len(chain)]
    correlation: Array = covariance / covariance[0]
    return correlation


def _density_curve(chains: Chains, reference: Reference | None) -> Callable[[Array], Array] | None:
    """The exact density where there is one of a single coordinate that is continuous."""
    density = chains.density if reference is None else reference
    support: Any = getattr(density, "support", None)
    if not isinstance(density, Distribution) or density.event_shape.numel() != 1 or support.is_discrete:
        return None
    dtype = next(iter(chains.draws.values())).dtype

    def curve(points: Array) -> Array:
        rows = torch.as_tensor(points, dtype=dtype).reshape(-1, *density.event_shape)
        return np.exp(log_prob_or_outside(density, rows, 1))

    return curve


def _draw_density(axis: Axes, values: Array, exact: Array | None, curve: Callable[[Array], Array] | None) -> None:
    """Histogram of all chains with the exact density."""
    pooled = values[np.isfinite(values)]
    axis.set(ylabel="density")
    if not len(pooled):
        return _say(axis, "no finite draws")
    sets = [pooled] if exact is None else [pooled, exact]
    low, high = (float(f(np.quantile(of, level) for of in sets)) for f, level in ((min, 0.002), (max, 0.998)))
    if (pooled == pooled.round()).all() and high - low <= 60:
        bins = np.arange(math.floor(low), math.ceil(high) + 2) - 0.5
    else:
        middle, width = (low + high) / 2, max(high - low, 1e-3 * max(abs(low), 1.0))
        num_bins = int(np.clip(2 * math.sqrt(len(pooled)), 6, 40))
        bins = np.linspace(middle - 0.55 * width, middle + 0.55 * width, num_bins + 1)
    axis.hist(pooled, bins.tolist(), density=True, color=_COLORS[2], alpha=0.55, label="chains")
    if curve is not None:
        points = np.linspace(bins[0], bins[-1], 400)
        axis.plot(points, curve(points), color=_INK, linewidth=1.3, label="exact density")
    elif exact is not None:
        heights, edges = np.histogram(exact, bins, density=True)
        axis.stairs(heights, edges, color=_INK, linewidth=1.3, label="exact draws")
    axis.set_ylim(top=1.3 * axis.get_ylim()[1])


def _draw_energy(axis: Axes, energy: Array) -> None:
    """Spread of the energies, and of their changes from step to step, which must be no narrower."""
    axis.set_title("Energy", loc="left", fontsize=10, color=_INK)
    axis.set(xlabel="energy less its mean, or its change in a step; nats", ylabel="density")
    marginal = (energy - energy.mean(1, keepdims=True)).ravel()
    changes = np.diff(energy, axis=1).ravel()
    marginal, changes = marginal[np.isfinite(marginal)], changes[np.isfinite(changes)]
    if not len(marginal) or not len(changes):
        return _say(axis, "no finite energies")
    width = max(float(np.quantile(np.abs(np.concatenate([marginal, changes])), 0.998)), 1e-6)
    bins = np.linspace(-1.05 * width, 1.05 * width, 61)
    axis.hist(marginal, bins.tolist(), density=True, color=_COLORS[2], alpha=0.55, label="energy")
    heights, edges = np.histogram(changes, bins, density=True)
    axis.stairs(heights, edges, color=_INK, linewidth=1.3, label="change in a step")
    axis.legend(**_LEGEND)


def _draw_bfmi(axis: Axes, bfmi: tuple[float, ...]) -> None:
    """E-BFMI of each chain with the least that passes."""
    axis.set_title("E-BFMI", loc="left", fontsize=10, color=_INK)
    axis.axhline(MIN_BFMI, color=_COLORS[1], linestyle="--", linewidth=1.2, label=f"least allowed, {MIN_BFMI}")
    axis.plot(bfmi, color=_INK, linestyle="", marker="o", markersize=5 if len(bfmi) <= 20 else 2)
    highest = max([value for value in bfmi if math.isfinite(value)], default=1.0)
    axis.set(xlabel="chain", ylabel="E-BFMI", ylim=(0, 1.35 * max(highest, 2 * MIN_BFMI)))
    axis.locator_params(axis="x", integer=True)
    axis.legend(**_LEGEND)
