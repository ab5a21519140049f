"""The pictures of the guide: what epsilon, skew, batches and the base buy, and the paper's mollifiers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyro.distributions as dist
import torch
from tqdm import tqdm

from pyro_mbde._torch_state import seeded
from pyro_mbde.calibration.projection import project
from pyro_mbde.density.bounds import clip_score, skewed_bounds
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.experiments.bench_batches import Case, learned_case
from pyro_mbde.experiments.bench_batches import measure_release as measure_release_of
from pyro_mbde.experiments.problems import DOMAINS, EPSILONS, Problem, find_problem, ring
from pyro_mbde.experiments.style import BLUE, GREEN, INK, ORANGE, PALE
from pyro_mbde.limits import best_reachable
from pyro_mbde.metrics import kl_gain, negative_log_likelihood
from pyro_mbde.pictures import new_figure
from pyro_mbde.theory import gain_limit
from pyro_mbde.training.density_ratio import DensityRatio
from pyro_mbde.training.mbde import MBDE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SKEWS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
SCALES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_SEED = 0
_NUM_ROWS = 10_000
_TITLES = {
    "ring": "ring",
    "ring-tight": "ring-tight",
    "mixture-1d": "1-D mixture",
    "ring-box": "ring, over its box",
    "spikes": "spikes",
}
#: Of releases: problems, totals, rows, draws that a law of rows is computed from; of placements: skews and totals.
_RELEASED, _TOTALS, _RELEASE_ROWS = (
    ("ring-box", "ring-tight", "spikes"),
    (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 12.0),
    (5, 20, 100),
)
_NUM_DRAWS = 2**16
_PLACED, _PLACED_TOTALS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), (1.0, 10.0)


def _rows(problem: Problem) -> torch.Tensor:
    with seeded(1000 + _SEED):
        return problem.target.sample(torch.Size([_NUM_ROWS]))


def measure_gain() -> pd.DataFrame:
    """Nats gained on the base at every epsilon: limits, best reachable, and fits of one seed."""
    records = []
    with tqdm(total=len(DOMAINS) * len(EPSILONS), desc="gain", unit="epsilon") as bar:
        for name, make in DOMAINS.items():
            problem = make()
            rows = _rows(problem)
            ratio = DensityRatio(problem.base, seed=_SEED, progress=False).fit(rows)

            def gain(density: MollifiedExpFamily, problem: Problem = problem) -> float:
                return kl_gain(problem.target, problem.base, density, problem.box).value

            for epsilon in EPSILONS:
                record: dict[str, Any] = {"problem": name, "epsilon": epsilon}
                for skew in (0.5, 0.3):
                    best = best_reachable(problem.target, problem.base, epsilon, skew, box=problem.box)
                    record[f"best, skew {skew}"] = best.gain
                    record[f"DensityRatio, skew {skew}"] = gain(ratio.mollify(epsilon, skew=skew))
                for label, trainer in (("MBDE default", MBDE), ("MBDE paper", MBDE.paper)):
                    fitted = trainer(problem.base, epsilon, seed=_SEED, progress=False).fit(rows)
                    record[label] = gain(fitted)
                records.append(record)
                bar.update()
    return pd.DataFrame(records)


def plot_gain(table: pd.DataFrame) -> Figure:
    """One panel a domain, both axes logarithmic."""
    figure = new_figure(11, 4.2)
    axes: Any = figure.subplots(1, len(DOMAINS), sharex=True)
    for axis, name in zip(axes, DOMAINS, strict=True):
        part = table[table["problem"] == name]
        epsilon = part["epsilon"].to_numpy()
        axis.plot(epsilon, [gain_limit(e) for e in epsilon], color=PALE, linestyle=":", label="limit of the paper, ε/2")
        for skew, color in ((0.5, BLUE), (0.3, ORANGE)):
            axis.plot(
                epsilon, part[f"best, skew {skew}"], color=color, linewidth=1, label=f"best reachable, skew {skew}"
            )
            axis.plot(
                epsilon,
                part[f"DensityRatio, skew {skew}"],
                color=color,
                linestyle="",
                marker="o",
                label=f"DensityRatio, skew {skew}",
            )
        axis.plot(epsilon, part["MBDE default"], color=GREEN, marker="^", linestyle="--", label="MBDE default")
        axis.plot(epsilon, part["MBDE paper"], color=INK, marker="x", linestyle="-.", label="MBDE paper")
        axis.set(xscale="log", yscale="log", title=_TITLES[name], xlabel="ε of one draw, nats")
    axes[0].set_ylabel("nats gained on the base")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def measure_skew() -> pd.DataFrame:
    """Nats gained at epsilon = 1, at every skew."""
    records = []
    for name, make in tqdm(DOMAINS.items(), desc="skew"):
        problem = make()
        ratio = DensityRatio(problem.base, seed=_SEED, progress=False).fit(_rows(problem))
        for skew in SKEWS:
            best = best_reachable(problem.target, problem.base, 1.0, skew, box=problem.box)
            density = ratio.mollify(1.0, skew=skew)
            gain = kl_gain(problem.target, problem.base, density, problem.box).value
            records.append({"problem": name, "skew": skew, "best": best.gain, "DensityRatio": gain})
    return pd.DataFrame(records)


def plot_skew(table: pd.DataFrame) -> Figure:
    """All domains in one panel."""
    figure = new_figure(6.4, 4.2)
    axis = figure.subplots()
    axis.plot(SKEWS, [gain_limit(1.0, skew) for skew in SKEWS], color=PALE, linestyle=":", label="limit, 1 - skew")
    for (name, color), line in zip(zip(DOMAINS, (BLUE, ORANGE, GREEN), strict=True), ("-", "--", "-."), strict=True):
        part = table[table["problem"] == name]
        axis.plot(part["skew"], part["best"], color=color, linestyle=line, linewidth=1, label=f"{_TITLES[name]}, best")
        axis.plot(
            part["skew"], part["DensityRatio"], color=color, linestyle="", marker="o", label=f"{_TITLES[name]}, fit"
        )
    axis.axvline(0.3, color=PALE, linewidth=0.8)
    axis.text(0.305, 0.02, "default", color=INK, fontsize="small")
    axis.set(xlabel="skew", ylabel="nats gained on the base, ε = 1", ylim=(0, 1))
    axis.legend(frameon=False, fontsize="small", ncols=2)
    return figure


def _cases() -> Iterator[Case]:
    for name in tqdm(_RELEASED, desc="problems"):
        with seeded(1000 + _SEED):
            yield learned_case(find_problem(name), _NUM_ROWS, _SEED, _NUM_DRAWS, quick=False)


def measure_release() -> pd.DataFrame:
    """Nats and total variation of a row of a release, against its total epsilon: one batch, and separate draws."""
    records: list[dict[str, Any]] = []
    for case in _cases():
        for total in _TOTALS:
            for num_rows in _RELEASE_ROWS:
                records += measure_release_of(case, total, num_rows, ("batch", "draws", "base"), [{"skew": 0.3}])
    return pd.DataFrame(records)[["problem", "total", "num_rows", "way", "epsilon", "nats", "distance"]]


def plot_release(table: pd.DataFrame) -> Figure:
    """One panel a problem: total variation of a row to the target."""
    figure = new_figure(11, 4.4)
    axes: Any = figure.subplots(1, len(_RELEASED), sharex=True)
    for axis, name in zip(axes, _RELEASED, strict=True):
        part = table[table["problem"] == name]
        for num_rows, line in zip(_RELEASE_ROWS, ("-", "--", ":"), strict=True):
            for way, color, label in (("batch", ORANGE, "one batch of"), ("draws", BLUE, "separate draws of")):
                rows = part[(part["way"] == way) & (part["num_rows"] == num_rows)]
                axis.plot(rows["total"], rows["distance"], color=color, linestyle=line, label=f"{label} {num_rows}")
        base = float(part.loc[part["way"] == "base", "distance"].iloc[0])
        axis.axhline(base, color=PALE, linewidth=1, label="public base alone")
        axis.set(xscale="log", ylim=(0, None), title=_TITLES[name], xlabel="total ε of the release, nats")
        axis.set_xticks([1, 2, 5, 10], ["1", "2", "5", "10"])
        axis.minorticks_off()
    axes[0].set_ylabel("total variation of a row to the target")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def measure_placement() -> pd.DataFrame:
    """Nats and total variation of a row of a batch of 20, at every skew."""
    records: list[dict[str, Any]] = []
    placements = [{"skew": skew} for skew in _PLACED]
    for case in _cases():
        for total in _PLACED_TOTALS:
            records += measure_release_of(case, total, 20, ("batch", "base"), placements)
    return pd.DataFrame(records)[["problem", "total", "way", "skew", "nats", "distance"]]


def plot_placement(table: pd.DataFrame) -> Figure:
    """Nats above, total variation below, a panel for each total."""
    figure = new_figure(10, 6.2)
    axes: Any = figure.subplots(2, len(_PLACED_TOTALS), sharex=True, sharey="row", squeeze=False)
    for column, total in enumerate(_PLACED_TOTALS):
        for name, color, line in zip(_RELEASED, (BLUE, ORANGE, GREEN), ("-", "--", "-."), strict=True):
            part = table[(table["problem"] == name) & (table["total"] == total)]
            rows, base = part[part["way"] == "batch"], part[part["way"] == "base"]
            axes[0, column].plot(rows["skew"], rows["nats"], color=color, linestyle=line, label=_TITLES[name])
            axes[1, column].plot(rows["skew"], rows["distance"], color=color, linestyle=line)
            axes[1, column].axhline(float(base["distance"].iloc[0]), color=color, linewidth=0.6, alpha=0.6)
        for axis in axes[:, column]:
            axis.axvline(0.3, color=PALE, linewidth=0.8)
        axes[0, column].set_title(f"20 rows at a total of {total:g}")
        axes[1, column].set(xlabel="skew", ylim=(0, None))
    axes[0, 0].set_ylabel("nats that a row gains")
    axes[1, 0].set_ylabel("total variation to the target\n(thin: of the base)")
    axes[0, 0].legend(frameon=False, fontsize="small")
    return figure


def measure_scale() -> pd.DataFrame:
    """Negative log-likelihood on the ring at epsilon = 1, for bases of every scale."""
    problem = ring()
    rows = _rows(problem)
    records = []
    for scale in tqdm(SCALES, desc="scale"):
        unannotated: Any = dist.Normal(torch.zeros(2), torch.full((2,), scale))
        base = unannotated.to_event(1)
        box = (-max(12.0, 6 * scale), max(12.0, 6 * scale))
        ratio = DensityRatio(base, seed=_SEED, progress=False).fit(rows)
        record = {"scale": scale, "base": negative_log_likelihood(problem.target, base, box).value}
        record["best"] = best_reachable(problem.target, base, 1.0, 0.3, box=box).nll
        fits = {
            "DensityRatio": ratio.mollify(1.0),
            "MBDE paper": MBDE.paper(base, 1.0, seed=_SEED, progress=False).fit(rows),
        }
        for label, density in fits.items():
            record[label] = negative_log_likelihood(problem.target, density, box).value
        records.append(record)
    return pd.DataFrame(records)


def plot_scale(table: pd.DataFrame) -> Figure:
    """One panel."""
    figure = new_figure(6.4, 4.2)
    axis = figure.subplots()
    axis.plot(table["scale"], table["base"], color=PALE, linestyle=":", marker="s", label="base alone")
    axis.plot(table["scale"], table["MBDE paper"], color=INK, linestyle="-.", marker="x", label="MBDE paper, ε = 1")
    axis.plot(
        table["scale"], table["DensityRatio"], color=ORANGE, linestyle="", marker="o", label="DensityRatio, ε = 1"
    )
    axis.plot(table["scale"], table["best"], color=ORANGE, linewidth=1, label="best reachable, ε = 1, skew 0.3")
    axis.set(
        xlabel="standard deviation of the normal base", ylabel="negative log-likelihood on the ring, nats", yscale="log"
    )
    axis.set_yticks([4, 6, 10, 20, 40], ["4", "6", "10", "20", "40"])
    axis.minorticks_off()
    axis.legend(frameon=False)
    return figure


def measure_mollifier() -> pd.DataFrame:
    """A target on [0, 1] over the uniform base: scaled and shifted, and clipped, into the sets of two epsilons."""
    x = torch.linspace(0, 1, 501, dtype=torch.float64)
    bumps = [(0.45, 0.25, 0.05), (0.35, 0.6, 0.09), (0.2, 0.85, 0.03)]
    target = torch.stack([w / scale * (-((x - loc) / scale).square() / 2).exp() for w, loc, scale in bumps]).sum(0)
    target = target / target.mean()
    columns = {"x": x, "target": target}
    for epsilon in (1.0, 0.2):
        bounds = skewed_bounds(epsilon, 0.5)
        # The most of the target that 1 - a + a p takes without leaving [exp(-eps/2), exp(eps/2)].
        share = min(
            math.expm1(bounds.high) / float(target.max() - 1), -math.expm1(bounds.low) / float(1 - target.min())
        )
        columns[f"scaled, {epsilon}"] = 1 - share + share * target
        shift = project(target.log(), torch.zeros_like(x), bounds)
        columns[f"clipped, {epsilon}"] = clip_score(target.log(), shift, bounds).exp()
    return pd.DataFrame({name: column.numpy() for name, column in columns.items()})


def plot_mollifier(table: pd.DataFrame) -> Figure:
    """Left, the ranges of two epsilons with densities in them; right, two ways into a set."""
    figure = new_figure(10, 5)
    left, right = figure.subplots(1, 2)
    x = table["x"]
    left.axhspan(math.exp(-0.2), math.exp(0.2), color=BLUE, alpha=0.12, label="necessary beside the base, ε = 0.2")
    left.axhspan(math.exp(-0.1), math.exp(0.1), color=BLUE, alpha=0.3, label="sufficient, ε = 0.2")
    for edge in (-0.5, 0.5):
        left.axhline(math.exp(edge), color=ORANGE, linestyle=":", label="sufficient, ε = 1" if edge < 0 else None)
    for epsilon, color in ((1.0, ORANGE), (0.2, BLUE)):
        for kind, line in (("scaled", "--"), ("clipped", "-")):
            left.plot(x, table[f"{kind}, {epsilon}"], color=color, linestyle=line, label=f"{kind}, ε = {epsilon:g}")
    left.set(xlabel="x", ylabel="density", ylim=(0.5, 1.75), title="Mollifiers over the uniform base")
    left.legend(frameon=False, fontsize="small", ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    right.plot(x, table["target"], color=PALE, label="target")
    for kind, line in (("scaled", "--"), ("clipped", "-")):
        density = table[f"{kind}, 1.0"]
        gain = float(np.average(np.log(density), weights=table["target"]))
        label = f"{'scale and shift' if kind == 'scaled' else 'clip'}, ε = 1: gains {gain:.2f} nats"
        right.plot(x, density, color=ORANGE, linestyle=line, label=label)
    right.set(xlabel="x", ylabel="density", title="Two ways into the set of ε = 1")
    right.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.12))
    return figure


#: What is measured and how it is drawn, by name.
GUIDE: dict[str, tuple[Callable[[], pd.DataFrame], Callable[[pd.DataFrame], Figure]]] = {
    "gain": (measure_gain, plot_gain),
    "skew": (measure_skew, plot_skew),
    "release": (measure_release, plot_release),
    "placement": (measure_placement, plot_placement),
    "scale": (measure_scale, plot_scale),
    "mollifier": (measure_mollifier, plot_mollifier),
}
