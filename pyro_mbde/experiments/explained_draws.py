"""Pictures of what is drawn and what it costs: rejection, chains, batches, many draws; and epsilon in odds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pyro_mbde._torch_state import seeded
from pyro_mbde.calibration.projection import project_a_priori
from pyro_mbde.density.bounds import Bounds, Certificate, calibrated_guarantee, clip_score, skewed_bounds
from pyro_mbde.experiments import explained
from pyro_mbde.experiments.bench_batches import KNOWN, known_case, measure_release
from pyro_mbde.experiments.explained import EPSILONS, LOG_BASE, POINTS, SKEW, normal_log_prob, projected
from pyro_mbde.experiments.style import BLUE, GREEN, INK, ORANGE, PALE
from pyro_mbde.pictures import new_figure
from pyro_mbde.privacy.accounting import compose
from pyro_mbde.privacy.group import GroupGuarantee
from pyro_mbde.privacy.guarantee import Guarantee
from pyro_mbde.privacy.placement import placement_epsilon
from pyro_mbde.privacy.release_plan import constant_time_count
from pyro_mbde.privacy.zcdp import zcdp_epsilon

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SEED, _NUM_PROPOSALS = 0, 600
#: Steps of the chains, and every how many points of the line their base has one: 161 points in all.
_NUM_STEPS, _EVERY = 12, 10
_TOTALS, _NUM_ROWS, _NUM_SCORED = (3.0, 10.0), (1, 2, 3, 5, 10, 20, 50, 100), 2**16
_COUNTS, _DRAW_EPSILON, _DELTA = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000), 0.1, 1e-6
#: Of a hundred people: how many a reader counts with before a release.
PRIORS = (1, 10, 50)
_GROUPS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100)


def largest_belief(prior: float, epsilon: float) -> float:
    r"""Returns the most that a belief about a table can become by a release.

    Let a reader hold a statement about the table for true with probability p. By Bayes' rule the release multiplies the
    odds by the ratio of its probabilities where the statement is true and where it is not. Each is an average over
    tables, so the ratio is at most :math:`e^{\epsilon}`:

    .. math::
        p' \le \frac{p\, e^{\epsilon}}{1 - p + p\, e^{\epsilon}} .

    Args:
        prior: p, in [0, 1].
        epsilon: of all that is released, in nats, at least 0.

    Example:
        >>> round(largest_belief(0.1, 1.0), 3), round(largest_belief(0.5, 3.0), 3)
        (0.232, 0.953)
    """
    return prior / (prior + (1 - prior) * math.exp(-epsilon))


def measure_rejection() -> pd.DataFrame:
    """Proposals from the base at epsilon = 3, and how likely it is that none of so many is accepted."""
    bounds = skewed_bounds(3.0, SKEW)
    shift = projected(normal_log_prob(POINTS, 1.0, 0.5), bounds)[1]
    generator = torch.Generator().manual_seed(_SEED)
    x = torch.randn(_NUM_PROPOSALS, dtype=torch.float64, generator=generator)
    height = torch.rand(_NUM_PROPOSALS, dtype=torch.float64, generator=generator)
    tilt = clip_score(normal_log_prob(x, 1.0, 0.5) - normal_log_prob(x), shift, bounds)
    proposals = {"x": x, "height": height * normal_log_prob(x).exp(), "accepted": height < (tilt - bounds.high).exp()}
    parts = [pd.DataFrame({name: column.numpy() for name, column in proposals.items()}).astype(float)]
    counts = np.unique(np.logspace(0, 3, 60).astype(int))
    missed = {f"missed {width:g}": counts * math.log10(-math.expm1(-width)) for width in EPSILONS}
    parts.append(pd.DataFrame({"count": counts, **missed}))
    return pd.concat(parts, axis=1)


def plot_rejection(table: pd.DataFrame) -> Figure:
    """Left, proposals that are accepted and rejected; right, why a public number of proposals is enough."""
    figure = new_figure(7.6, 4.4)
    left, right = figure.subplots(1, 2)
    points = table.dropna(subset=["x"])
    for accepted, color, marker, label in ((0.0, PALE, "x", "rejected"), (1.0, ORANGE, "o", "accepted")):
        part = points[points["accepted"] == accepted]
        left.scatter(part["x"], part["height"], s=12, color=color, marker=marker, linewidths=0.8, label=label)
    bounds = skewed_bounds(3.0, SKEW)
    left.plot(POINTS, LOG_BASE.exp(), color=INK, linestyle=":", label="base $q_0$")
    log_ratio = projected(normal_log_prob(POINTS, 1.0, 0.5), bounds)[0]
    left.plot(POINTS, (LOG_BASE + log_ratio - bounds.high).exp(), color=BLUE, label="$q_0$ exp(f - hi)")
    left.set(xlabel="x", ylabel="density", xlim=(-3.2, 3.2), title=f"{len(points)} proposals, ε = 3")
    for width, color, line in zip(EPSILONS, (BLUE, ORANGE, GREEN), ("-.", "--", "-"), strict=True):
        number = constant_time_count(width)
        label = f"width {width:g}: N = {number}"
        right.plot(table["count"], table[f"missed {width:g}"], color=color, linestyle=line, label=label)
        right.plot(number, number * math.log10(-math.expm1(-width)), color=color, marker="o")
    right.axhline(-53 * math.log10(2), color=INK, linewidth=0.9)
    right.set(xscale="log", xlabel="proposals", ylabel="probability that none is accepted,\nat most", ylim=(-17, 0.5))
    right.yaxis.set_major_formatter(lambda value, _: f"$10^{{{value:.0f}}}$")
    right.set_title("Constant time")
    for axis, columns in ((left, 2), (right, 1)):
        axis.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=columns)
    return figure


def measure_trajectories() -> pd.DataFrame:
    """Worst log-ratios of what two tables' chains show, of independence samplers on a base of 161 points, exactly."""
    log_base = LOG_BASE[::_EVERY].log_softmax(0)
    bounds, points = skewed_bounds(0.5, 0.5), POINTS[::_EVERY]
    laws = []
    for mean in (1.0, -1.0):
        log_ratio = normal_log_prob(POINTS, mean, 0.5)[::_EVERY] - LOG_BASE[::_EVERY]
        laws.append(_Chain(log_base, log_ratio, bounds, int((points - mean).abs().argmin())))
    records = [_worst(laws, 0)]
    for step in range(1, _NUM_STEPS + 1):
        for law in laws:
            law.advance()
        records.append(_worst(laws, step))
    worst, path = torch.zeros(len(log_base), dtype=torch.float64), [0.0]
    accepted = laws[0].moves - laws[1].moves
    for _ in range(_NUM_STEPS):
        worst = (worst[:, None] + accepted).max(0).values  # the worst path to each point, a step longer
        path.append(float(worst.max()))
    return pd.DataFrame(records).assign(trajectory=path)


class _Chain:
    """The laws of a chain's state after a fresh start, and after a start at a row."""

    def __init__(self, log_base: Tensor, log_ratio: Tensor, bounds: Bounds, row: int) -> None:
        tilt = clip_score(log_ratio, project_a_priori(log_ratio, log_base, bounds), bounds)
        #: Logarithms of the probabilities of accepted moves, from a point (rows) to a point.
        self.moves = log_base + (tilt - tilt[:, None]).clamp(max=0)
        kernel = self.moves.exp()
        self._kernel = kernel + torch.diag(1 - kernel.sum(1))
        self.fresh, self.at_row = log_base.exp(), torch.zeros_like(log_base)
        self.at_row[row] = 1

    def advance(self) -> None:
        self.fresh, self.at_row = self.fresh @ self._kernel, self.at_row @ self._kernel


def _worst(laws: list[_Chain], step: int) -> dict[str, float]:
    one, two = laws
    ratios = {"fresh": one.fresh.log() - two.fresh.log(), "at a row": one.at_row.log() - two.at_row.log()}
    return {
        "step": step,
        **{name: float(ratio.nan_to_num(0.0, math.inf, -math.inf).abs().max()) for name, ratio in ratios.items()},
    }


def plot_trajectories(table: pd.DataFrame) -> Figure:
    """One panel: log-ratios against steps."""
    figure = new_figure(7.0, 4.2)
    axis = figure.subplots()
    axis.plot(
        table["step"], table["trajectory"], color=ORANGE, marker="x", label="whole trajectory, accepted moves alone"
    )
    started = table[np.isfinite(table["at a row"])]
    axis.plot(
        started["step"],
        started["at a row"],
        color=GREEN,
        linestyle="-.",
        marker="^",
        label="last state, started at a row",
    )
    axis.plot(
        table["step"], table["fresh"], color=BLUE, linestyle="--", marker="o", label="last state of a fresh chain"
    )
    axis.axhline(1, color=INK, linewidth=0.9)
    axis.text(table["step"].max(), 1.05, "2R: what a last state costs", ha="right", va="bottom")
    axis.set(xlabel="steps", ylabel="largest log-ratio of two tables", ylim=(0, None))
    axis.legend(frameon=False)
    return figure


def measure_rows() -> pd.DataFrame:
    """Total variation of a row to N(1, 0.5) over N(0, 1), against the rows that share a total, at skew 0.3."""
    records: list[dict[str, Any]] = []
    with seeded(_SEED):
        case = known_case(KNOWN["normal"](), _NUM_SCORED)
        for total in _TOTALS:
            for num_rows in _NUM_ROWS:
                records += measure_release(case, total, num_rows, ("batch", "draws", "base"), [{"skew": SKEW}])
    return pd.DataFrame(records)[["total", "num_rows", "way", "epsilon", "distance"]]


def plot_rows(table: pd.DataFrame) -> Figure:
    """A panel for each total."""
    figure = new_figure(7.6, 3.9)
    axes: Any = figure.subplots(1, len(_TOTALS), sharey=True)
    for axis, total in zip(axes, _TOTALS, strict=True):
        for way, color, line, marker, label in (
            ("draws", BLUE, "--", "s", "rows drawn one by one"),
            ("batch", ORANGE, "-", "o", "one batch"),
        ):
            part = table[(table["total"] == total) & (table["way"] == way)]
            axis.plot(part["num_rows"], part["distance"], color=color, linestyle=line, marker=marker, label=label)
        base = float(table.loc[table["way"] == "base", "distance"].iloc[0])
        axis.axhline(base, color=INK, linestyle=":", linewidth=1, label="public base alone")
        axis.set(xscale="log", ylim=(0, 0.6), xlabel="rows", title=f"total ε of {total:g}")
        axis.set_xticks([1, 3, 10, 30, 100], ["1", "3", "10", "30", "100"])
        axis.minorticks_off()
    axes[0].set_ylabel("distance of a row to the target")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def measure_accounts() -> pd.DataFrame:
    """What draws at epsilon = 0.1 cost together under each rule, at delta = 1e-6."""
    certificate = Certificate(0.0, 1e-9)
    calibrated = calibrated_guarantee(skewed_bounds(_DRAW_EPSILON, SKEW), certificate)
    a_priori = Guarantee(_DRAW_EPSILON, log_ratio_range=_DRAW_EPSILON)
    rho = min(_DRAW_EPSILON**2 / 2, calibrated.log_ratio_range**2 / 8)
    rest = _DELTA - certificate.delta
    return pd.DataFrame(
        {
            "draws": count,
            "pure": count * _DRAW_EPSILON,
            "zcdp": zcdp_epsilon(count * rho, rest),
            "placement": placement_epsilon(calibrated, count, rest),
            "iid": compose(a_priori, count, _DELTA).epsilon,
        }
        for count in _COUNTS
    )


def plot_accounts(table: pd.DataFrame) -> Figure:
    """One panel, both axes logarithmic."""
    figure = new_figure(7.0, 4.2)
    axis = figure.subplots()
    lines = {
        "pure": ("pure", INK, ":", ""),
        "zcdp": ("zcdp", GREEN, "-.", "^"),
        "placement": ("placement, calibrated at skew 0.3", ORANGE, "-", "o"),
        "iid": ("iid, a priori (half the width)", BLUE, "--", "s"),
    }
    for name, (label, color, line, marker) in lines.items():
        axis.plot(table["draws"], table[name], color=color, linestyle=line, marker=marker, label=label)
    axis.axhspan(1, 3, color=BLUE, alpha=0.12, linewidth=0)
    axis.text(1, 1.7, "totals that can be defended", va="center", fontsize="small")
    axis.set(xscale="log", yscale="log", xlabel="draws at ε = 0.1", ylabel="total ε", ylim=(0.05, 200))
    axis.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axis.set_xticks([1, 10, 100, 1000, 10_000], ["1", "10", "100", "1,000", "10,000"])
    axis.minorticks_off()
    axis.legend(frameon=False)
    return figure


def measure_odds() -> pd.DataFrame:
    """Largest beliefs after a release, by epsilon; and by the size of a group, where single people are protected."""
    epsilons = np.linspace(0, 6, 61)
    beliefs = {f"prior {prior}": [100 * largest_belief(prior / 100, e) for e in epsilons] for prior in PRIORS}
    groups: dict[str, Any] = {"group": _GROUPS}
    for epsilon in (0.1, 0.5):
        of_group = [GroupGuarantee(epsilon).for_group(size).epsilon for size in _GROUPS]
        groups[f"one person, {epsilon}"] = [100 * largest_belief(0.1, e) for e in of_group]
    groups["all, 0.5"] = 100 * largest_belief(0.1, 0.5)
    return pd.concat([pd.DataFrame({"epsilon": epsilons, **beliefs}), pd.DataFrame(groups)], axis=1)


def plot_odds(table: pd.DataFrame) -> Figure:
    """Left, beliefs by epsilon; right, by the size of the group that they are about."""
    figure = new_figure(7.6, 4.4)
    left, right = figure.subplots(1, 2, sharey=True)
    for prior, color, line in zip(PRIORS, (BLUE, ORANGE, GREEN), ("-.", "--", "-"), strict=True):
        left.plot(
            table["epsilon"], table[f"prior {prior}"], color=color, linestyle=line, label=f"{prior} in 100 before"
        )
    left.axvspan(1, 3, color=BLUE, alpha=0.12, linewidth=0, label="can be defended")
    left.set(xlabel="total ε of all that is released", ylabel="at most so many in 100 after it", ylim=(0, 102))
    left.set_title("What a reader can come to believe")
    part = table.dropna(subset=["group"])
    for name, color, line, marker, label in (
        ("one person, 0.5", BLUE, "--", "s", "ε = 0.5 for one person"),
        ("one person, 0.1", GREEN, "-.", "^", "ε = 0.1 for one person"),
        ("all, 0.5", ORANGE, "-", "", "ε = 0.5 for everybody at once"),
    ):
        right.plot(part["group"], part[name], color=color, linestyle=line, marker=marker, label=label)
    right.set(xscale="log", xlabel="people whom the statement is about", title="10 in 100 before")
    right.set_xticks([1, 3, 10, 30, 100], ["1", "3", "10", "30", "100"])
    right.minorticks_off()
    for axis in (left, right):
        axis.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    return figure


def measure_people() -> pd.DataFrame:
    """Of a hundred people in the same position, how many a reader counts with: 10 before, at most so many after."""
    epsilons = (0.0, 0.5, 1.0, 3.0, 5.0)
    return pd.DataFrame(
        {"epsilon": epsilon, "most": math.ceil(round(100 * largest_belief(0.1, epsilon), 9))} for epsilon in epsilons
    )


def plot_people(table: pd.DataFrame) -> Figure:
    """A hundred dots for each epsilon."""
    figure = new_figure(7.6, 2.5)
    axes: Any = figure.subplots(1, len(table))
    places = np.arange(100)
    for axis, epsilon, most in zip(axes, table["epsilon"], table["most"], strict=True):
        colors = np.where(places < most, ORANGE, "none")
        edges = np.where(places < most, ORANGE, PALE)
        axis.scatter(places % 10, places // 10, s=26, c=colors, edgecolors=edges, linewidths=0.9)
        axis.set(xlim=(-0.8, 9.8), ylim=(9.8, -0.8), aspect="equal", xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
        axis.set_title("before" if epsilon == 0 else f"ε = {epsilon:g}", fontsize=11)
        axis.set_xlabel(f"{most} in 100" if epsilon == 0 else f"at most {most}", fontsize=11)
    return figure


#: What is measured and how it is drawn, by name; all in less than a minute.
EXPLAINED: dict[str, tuple[Callable[[], pd.DataFrame], Callable[[pd.DataFrame], Figure]]] = {
    "pairs": (explained.measure_pairs, explained.plot_pairs),
    "places": (explained.measure_places, explained.plot_places),
    "projection": (explained.measure_projection, explained.plot_projection),
    "certificate": (explained.measure_certificate, explained.plot_certificate),
    "rejection": (measure_rejection, plot_rejection),
    "trajectories": (measure_trajectories, plot_trajectories),
    "rows": (measure_rows, plot_rows),
    "accounts": (measure_accounts, plot_accounts),
    "odds": (measure_odds, plot_odds),
    "people": (measure_people, plot_people),
}
