"""Pictures of the mathematics page: sets of densities, the projection and its proof, on the line and by sums."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_mbde.calibration.plan import plan_calibration
from pyro_mbde.calibration.projection import project, project_a_priori
from pyro_mbde.density.bounds import Bounds, clip_score, skewed_bounds
from pyro_mbde.experiments.style import BLUE, GREEN, INK, ORANGE, PALE
from pyro_mbde.pictures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def normal_log_prob(points: Tensor, mean: float = 0.0, scale: float = 1.0) -> Tensor:
    """Returns the log-density of a normal distribution."""
    return -((points - mean) / scale).square() / 2 - math.log(scale * math.sqrt(2 * math.pi))


#: The base of all these pictures is N(0, 1); sums stand for integrals.
POINTS = torch.linspace(-4, 4, 1601, dtype=torch.float64)
LOG_BASE = normal_log_prob(POINTS)
_STEP = float(POINTS[1] - POINTS[0])
EPSILONS, SKEWS = (0.5, 1.0, 3.0), (0.1, 0.3, 0.5)
SKEW = 0.3
#: Of the picture of a certificate: epsilon, delta, draws, and draws between two points of a line.
_PROVED, _DELTA, _NUM_DRAWS, _STRIDE = 1.0, 1e-9, 2**22, 2**14
_SEED = 0


def two_normals() -> Tensor:
    """Returns the log-density of half N(-1, 0.3), half N(1, 0.3)."""
    return torch.logaddexp(normal_log_prob(POINTS, -1.0, 0.3), normal_log_prob(POINTS, 1.0, 0.3)) - math.log(2)


#: One fills a good part of the base, the other a small one.
_TARGETS = {"N(1, 0.5)": normal_log_prob(POINTS, 1.0, 0.5), "N(2, 0.3)": normal_log_prob(POINTS, 2.0, 0.3)}


def projected(log_target: Tensor, bounds: Bounds) -> tuple[Tensor, float]:
    """Returns log q/q0 of the KL projection at the points, and its shift."""
    log_ratio = log_target - LOG_BASE
    shift = project(log_ratio, LOG_BASE, bounds)
    return clip_score(log_ratio, shift, bounds), shift


def gain(log_target: Tensor, log_ratio: Tensor) -> float:
    """Returns how many nats nearer to the target than the base a density is: the mean of log q/q0 under the target."""
    return float((log_target.exp() * log_ratio).sum()) * _STEP


def measure_pairs() -> pd.DataFrame:
    """Densities for three tables at epsilon = 1, skew 1/2: each the projection of another target."""
    targets = {
        "first": normal_log_prob(POINTS, 1.0, 0.5),
        "second": normal_log_prob(POINTS, -1.2, 0.4),
        "third": two_normals(),
    }
    bounds = skewed_bounds(1.0, 0.5)
    table = pd.DataFrame({"x": POINTS.numpy(), "log_base": LOG_BASE.numpy()})
    for name, log_target in targets.items():
        table[name] = projected(log_target, bounds)[0].numpy()
    return table.iloc[::4]


def plot_pairs(table: pd.DataFrame) -> Figure:
    """Left, the set with three of its densities; right, the log-ratios of all pairs."""
    figure = new_figure(7.6, 5.1)
    left, right = figure.subplots(1, 2)
    x, base = table["x"], np.exp(table["log_base"])
    edges = [math.exp(edge) * base for edge in (-0.5, 0.5)]
    left.fill_between(x, *edges, color=BLUE, alpha=0.15, linewidth=0, label="the set, ε = 1")
    left.plot(x, base, color=INK, linestyle=":", label="base $q_0$")
    looks = {"first": (BLUE, "-"), "second": (ORANGE, "--"), "third": (GREEN, "-.")}
    for name, (color, line) in looks.items():
        left.plot(x, base * np.exp(table[name]), color=color, linestyle=line, label=f"{name} table")
    left.set(xlabel="x", ylabel="density", xlim=(-3.2, 3.2), ylim=(0, None), title="Densities for three tables")
    pairs = (("first", "second"), ("first", "third"), ("second", "third"))
    for (one, two), (color, line) in zip(pairs, looks.values(), strict=True):
        right.plot(x, table[one] - table[two], color=color, linestyle=line, label=f"{one} over {two}")
    for edge in (-1, 1):
        right.axhline(edge, color=INK, linewidth=0.9)
    right.text(3.1, 1.04, "ε", ha="right", va="bottom")
    right.text(3.1, -1.05, "−ε", ha="right", va="top")
    right.set(xlabel="x", ylabel="log q/q'", xlim=(-3.2, 3.2), ylim=(-1.3, 1.3), title="Log-ratios of their pairs")
    for axis in (left, right):
        axis.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    return figure


def measure_places() -> pd.DataFrame:
    """The projections of a wide and a narrow target at epsilon = 1, for intervals at three places."""
    columns = {"x": POINTS.numpy()}
    for skew in SKEWS:
        for name, target in _TARGETS.items():
            log_ratio = projected(target, skewed_bounds(1.0, skew))[0]
            columns[f"{name} {skew}"] = log_ratio.numpy()
            columns[f"gain {name} {skew}"] = np.full(len(POINTS), gain(target, log_ratio))
    return pd.DataFrame(columns).iloc[::4]


def plot_places(table: pd.DataFrame) -> Figure:
    """A panel for each place."""
    figure = new_figure(7.6, 3.9)
    axes: Any = figure.subplots(1, len(SKEWS), sharey=True)
    for axis, skew in zip(axes, SKEWS, strict=True):
        axis.axhspan(-skew, 1 - skew, color=BLUE, alpha=0.15, linewidth=0, label="interval of width 1")
        axis.axhline(0, color=INK, linestyle=":", linewidth=1, label="base")
        reached = []
        for name, color, line in zip(_TARGETS, (BLUE, ORANGE), ("--", "-"), strict=True):
            axis.plot(table["x"], table[f"{name} {skew}"], color=color, linestyle=line, label=f"projection of {name}")
            reached.append(f"{table[f'gain {name} {skew}'].iloc[0]:.2f}")
        axis.set(xlabel="x", title=f"skew {skew:g}\ngains {' and '.join(reached)}")
    axes[0].set_ylabel("log q/q₀")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def measure_projection() -> pd.DataFrame:
    """The projection of two normals at skew 0.3 and three epsilons, with its shift and gain."""
    target = two_normals()
    columns = {"x": POINTS.numpy(), "log_base": LOG_BASE.numpy(), "target": (target - LOG_BASE).numpy()}
    for epsilon in EPSILONS:
        log_ratio, shift = projected(target, skewed_bounds(epsilon, SKEW))
        held = {"shift": shift, "gain": gain(target, log_ratio)}
        columns[f"epsilon {epsilon:g}"] = log_ratio.numpy()
        columns |= {f"{name} {epsilon:g}": np.full(len(POINTS), value) for name, value in held.items()}
    return pd.DataFrame(columns).iloc[::4]


def plot_projection(table: pd.DataFrame) -> Figure:
    """Log-ratios to the base on the left, densities on the right."""
    figure = new_figure(7.6, 4.4)
    left, right = figure.subplots(1, 2)
    x, base = table["x"], np.exp(table["log_base"])
    left.plot(x, table["target"], color=PALE, label="target p")
    right.plot(x, base * np.exp(table["target"]), color=PALE)
    left.plot(x, 0 * x, color=INK, linestyle=":", label="base $q_0$")
    right.plot(x, base, color=INK, linestyle=":")
    for epsilon, color, line in zip(EPSILONS, (BLUE, ORANGE, GREEN), ("-.", "--", "-"), strict=True):
        reached = float(table[f"gain {epsilon:g}"].iloc[0])
        label = f"ε = {epsilon:g}: gains {reached:.2f} nats"
        left.plot(x, table[f"epsilon {epsilon:g}"], color=color, linestyle=line, label=label)
        right.plot(x, base * np.exp(table[f"epsilon {epsilon:g}"]), color=color, linestyle=line)
    left.set(xlabel="x", ylabel="log-ratio to the base", xlim=(-3, 3), ylim=(-2, 2.4), title="Shift, then clip")
    right.set(xlabel="x", ylabel="density", xlim=(-3, 3), title="The densities")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def measure_certificate() -> pd.DataFrame:
    """Widths that one epsilon buys, and the capital of gamblers who bet against a certificate.

    The bets are those of docs/proofs.md, *The certificate*, each of one size, without the control variate that the
    library adds. Two gamblers bet against a density whose log-normaliser is 0. A third one bets against one whose
    log-normaliser is the tolerance, so that what the gambler bets on is true.
    """
    target = normal_log_prob(POINTS, 1.0, 0.5)
    log_ratio = target - LOG_BASE
    half = skewed_bounds(_PROVED / 2, 0.5)
    a_priori = clip_score(log_ratio, project_a_priori(log_ratio, LOG_BASE, half), half)
    a_priori = a_priori - (LOG_BASE.softmax(0) @ a_priori.exp()).log()
    bounds, certificate = plan_calibration(dist.Normal(0.0, 1.0), _PROVED, _DELTA, SKEW)
    assert certificate is not None
    calibrated, shift = projected(target, bounds)
    parts = {
        "x": POINTS.numpy(),
        "a priori": a_priori.numpy(),
        "calibrated": calibrated.numpy(),
        "gain a priori": np.full(len(POINTS), gain(target, a_priori)),
        "gain calibrated": np.full(len(POINTS), gain(target, calibrated)),
    }
    densities = pd.DataFrame(parts).iloc[::4]
    capital = pd.DataFrame(_capitals(bounds, certificate.tolerance, shift))
    return pd.concat([densities.reset_index(drop=True), capital], axis=1)


def _capitals(bounds: Bounds, tolerance: float, shift: float) -> dict[str, Any]:
    """Logarithms (base 10) of what gamblers hold, every so many draws of the base, whose seed is fixed: a picture."""
    generator = torch.Generator().manual_seed(_SEED)
    draws = torch.randn(_NUM_DRAWS, dtype=torch.float64, generator=generator)
    score = normal_log_prob(draws, 1.0, 0.5) - normal_log_prob(draws)
    true_value = clip_score(score, shift, bounds).exp()
    # A shift that leaves a log-normaliser of just the tolerance: phi falls as the shift grows.
    low, high = shift - 1, shift
    for _ in range(60):
        middle = (low + high) / 2
        tilt = clip_score(normal_log_prob(POINTS, 1.0, 0.5) - LOG_BASE, middle, bounds)
        low, high = (middle, high) if float((LOG_BASE.softmax(0) @ tilt.exp()).log()) > tolerance else (low, middle)
    false_value = clip_score(score, low, bounds).exp()
    upper, lower = math.exp(tolerance), math.exp(-tolerance)
    bet = tolerance / float(true_value.var())
    factors = {
        "against phi >= eta": 1 + bet * (upper - true_value),
        "against phi <= -eta": 1 + bet * (true_value - lower),
        "in vain": 1 + bet * (upper - false_value),
    }
    held = {name: factor.log10().cumsum(0)[_STRIDE - 1 :: _STRIDE].numpy() for name, factor in factors.items()}
    return {"draws": np.arange(1, _NUM_DRAWS // _STRIDE + 1) * _STRIDE, **held}


def plot_certificate(table: pd.DataFrame) -> Figure:
    """Left, what one epsilon buys with and without a proof; right, the bets of the proof."""
    figure = new_figure(7.6, 4.2)
    left, right = figure.subplots(1, 2)
    for name, color, line in (("a priori", BLUE, "--"), ("calibrated", ORANGE, "-")):
        values = table[name].dropna()
        width = values.max() - values.min()
        reached = float(table[f"gain {name}"].iloc[0])
        label = f"{name}: {width:.2f} wide,\ngains {reached:.2f} nats"
        left.plot(table["x"], table[name], color=color, linestyle=line, label=label)
    left.axhline(0, color=INK, linestyle=":", linewidth=1, label="base")
    left.set(xlabel="x", ylabel="log q/q₀", ylim=(-0.5, 1.5), title="Both cost ε = 1")
    left.set_yticks([-0.5, 0, 0.5, 1])
    left.legend(frameon=False, fontsize="small", loc="upper left")
    draws = table["draws"].dropna() / 1e6
    lines = {
        "against phi >= eta": ("against φ ≥ η", BLUE, "-"),
        "against phi <= -eta": ("against φ ≤ −η", ORANGE, "--"),
        "in vain": ("against φ ≥ η, where φ = η", GREEN, "-."),
    }
    for name, (label, color, line) in lines.items():
        right.plot(draws, table[name].dropna(), color=color, linestyle=line, label=label)
    right.axhline(-math.log10(_DELTA), color=INK, linewidth=0.9)
    right.text(0, -math.log10(_DELTA) + 0.3, "1/δ: proved", va="bottom")
    right.set(xlabel="draws of the base, millions", ylabel="capital", ylim=(-12, 20), title="Bets against the contrary")
    right.yaxis.set_major_formatter(lambda value, _: f"$10^{{{value:.0f}}}$")
    right.legend(frameon=False, fontsize="small", loc="upper left")
    return figure
