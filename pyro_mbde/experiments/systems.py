"""What is compared: our two fits, the most that can be reached, and the baselines, each as a function of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._checks import check_choice
from pyro_mbde.experiments.baselines.bernstein import BernsteinKDE
from pyro_mbde.experiments.baselines.dpgan import DPGAN
from pyro_mbde.experiments.baselines.flow import DPFlow
from pyro_mbde.experiments.baselines.histogram import LinearMixture, MinimaxSampler
from pyro_mbde.experiments.baselines.kde import KDE
from pyro_mbde.experiments.baselines.mst import MST
from pyro_mbde.experiments.baselines.unbounded import UnboundedMBDE
from pyro_mbde.experiments.style import BLUE, GREEN, INK, ORANGE, PALE, PURPLE, SKY, YELLOW, Look
from pyro_mbde.training.density_ratio import DensityRatio
from pyro_mbde.training.mbde import MBDE


class Table(NamedTuple):
    """A table with what is public about it.

    Attributes:
        rows: shape ``(n, *event_shape)``.
        base: Q0.
        low: of the public range, of the event's shape.
        high: of the public range.
        box: lower and upper edge of a cube for quadrature; None beyond two dimensions.
    """

    rows: Tensor
    base: Distribution
    low: Tensor
    high: Tensor
    box: tuple[float, float] | None


class Setting(NamedTuple):
    """What a system is run with.

    Attributes:
        epsilon: of one draw for ours, a row or a batch; of the whole density for baselines; in nats.
        delta: of baselines that need one.
        group_size: rows replaced that a baseline protects together; None for all of them.
        seed: of the fit.
        quick: whether to train too little, to see that everything runs.
        num_steps: of a GAN's critic.
        num_rows: of a batch, for the projection; 1 for single rows.
    """

    epsilon: float
    delta: float
    group_size: int | None
    seed: int
    quick: bool
    num_steps: int = 10_000
    num_rows: int = 1


def _paper(table: Table, setting: Setting) -> Distribution:
    """Section 5 of the paper, with exact draws of Q_{t-1} in place of the Markov chain that tends to it."""
    trainer = MBDE.paper(table.base, setting.epsilon, sampler="rejection", seed=setting.seed, progress=False)
    if setting.quick:
        trainer.weak_learner = dataclasses.replace(trainer.weak_learner, num_steps=40)
        trainer.num_samples = 1000
    return trainer.fit(table.rows)


def _projection(table: Table, setting: Setting) -> Distribution:
    """One log density ratio, projected on the set of skew 0.3: of single rows, or of batches."""
    trainer = DensityRatio(table.base, seed=setting.seed, progress=False)
    if setting.quick:
        trainer.weak_learner = dataclasses.replace(trainer.weak_learner, num_steps=60)
        trainer.ensemble_size = 2
    num_rows = None if setting.num_rows == 1 else setting.num_rows
    return trainer.fit(table.rows).mollify(setting.epsilon, num_rows=num_rows)


def _unbounded(table: Table, setting: Setting) -> Distribution:
    """The authors' published code. Not private."""
    if table.box is None:
        raise ValueError("box must be given: the unbounded variant is normalised by quadrature.")
    trainer = UnboundedMBDE(table.base, setting.epsilon, box=table.box, seed=setting.seed, progress=False)
    if setting.quick:
        trainer.weak_learner = dataclasses.replace(trainer.weak_learner, num_steps=40)
    return trainer.fit(table.rows)


def _bernstein(table: Table, setting: Setting) -> Distribution:
    """DPB with a public bandwidth, noise by the true sensitivity and values clipped at 0."""
    return BernsteinKDE(**_on_box(table, setting), group_size=setting.group_size).fit(table.rows)


def _bernstein_paper(table: Table, setting: Setting) -> Distribution:
    """DPB as the paper runs it: bandwidth by cross-validation, which is not private."""
    return BernsteinKDE.paper(**_on_box(table, setting), group_size=setting.group_size).fit(table.rows)


def _mst(table: Table, setting: Setting) -> Distribution:
    """A spanning tree of noisy marginals over binned columns."""
    return MST(**_on_box(table, setting), **_by_rows_added(setting)).fit(table.rows)


def _minimax(table: Table, setting: Setting) -> Distribution:
    """The minimax clip of a histogram; epsilon is of one draw, for any tables, as ours is."""
    return MinimaxSampler(**_on_box(table, setting)).fit(table.rows)


def _mixture(table: Table, setting: Setting) -> Distribution:
    """A histogram mixed with the uniform density; epsilon as above."""
    return LinearMixture(**_on_box(table, setting)).fit(table.rows)


def _on_box(table: Table, setting: Setting) -> dict[str, Any]:
    return {"low": table.low, "high": table.high, "epsilon": setting.epsilon, "seed": setting.seed, "progress": False}


def _by_rows_added(setting: Setting) -> dict[str, Any]:
    """To replace a row is to leave one out and add one."""
    return {"delta": setting.delta, "group_size": None if setting.group_size is None else 2 * setting.group_size}


def _over_base(table: Table, setting: Setting) -> dict[str, Any]:
    options = {"base": table.base, "epsilon": setting.epsilon, "seed": setting.seed, "progress": False}
    return options | _by_rows_added(setting)


def _gan(table: Table, setting: Setting) -> Distribution:
    """Wasserstein GAN with a critic trained by DP-SGD."""
    num_steps, num_draws = (50, 100) if setting.quick else (setting.num_steps, 2000)
    gan = DPGAN(**_over_base(table, setting), num_steps=num_steps, num_density_draws=num_draws)
    return gan.fit(table.rows)


def _flow(table: Table, setting: Setting) -> Distribution:
    """Neural spline flow trained by DP-SGD."""
    return DPFlow(**_over_base(table, setting), num_steps=20 if setting.quick else 500).fit(table.rows)


def _kde(table: Table, setting: Setting) -> Distribution:
    """Kernel density estimate without privacy."""
    return KDE(table.base, seed=setting.seed).fit(table.rows)


def _base(table: Table, setting: Setting) -> Distribution:
    """Q0 itself, which costs nothing."""
    return table.base


class System(NamedTuple):
    """What is compared.

    Attributes:
        fit: to a table, at a setting.
        look: in figures, if it is in any.
        decides: whether it is a baseline of the decision picture.
    """

    fit: Callable[[Table, Setting], Distribution]
    look: Look | None = None
    decides: bool = False


#: By the names that jobs use.
SYSTEMS = {
    "mbde-paper": System(_paper, Look("MBDE as in the paper", INK, "-.", "x")),
    "projection": System(_projection, Look("KL projection, skew 0.3", ORANGE, "-", "o")),
    "unbounded": System(_unbounded, Look("unbounded logits, NOT private", PALE, ":", "*")),
    "dpb": System(_bernstein, Look("DPB, one row protected", SKY, "--", "^"), decides=True),
    "dpb-paper": System(_bernstein_paper, Look("DPB as in the paper", BLUE, "--", "s")),
    "dpgan": System(_gan, Look("DPGAN", GREEN, ":", "D"), decides=True),
    "flow": System(_flow, Look("Spline flow by DP-SGD", PURPLE, "-.", "v"), decides=True),
    "mst": System(_mst, Look("MST", YELLOW, "--", "P"), decides=True),
    "minimax": System(_minimax),
    "mixture": System(_mixture),
    "kde": System(_kde),
    "base": System(_base),
}
#: Of the decision picture.
BASELINES = tuple(name for name, system in SYSTEMS.items() if system.decides)
#: Of systems, and of two of them at other settings.
LOOKS = {name: system.look for name, system in SYSTEMS.items() if system.look} | {
    "projection-box": Look("KL projection, base uniform\non DPB's box", GREEN, "-", "D"),
    "dpb-all": Look("DPB, all rows protected", PURPLE, "--", "v"),
}


def fit(system: str, table: Table, setting: Setting) -> Distribution:
    """Returns the density that a system fits to a table."""
    check_choice("system", system, tuple(SYSTEMS))
    with torch.inference_mode(False):
        return SYSTEMS[system].fit(table, setting)
