"""The MST mechanism: a spanning tree of noisy marginals over binned columns, a differentially private baseline."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_mbde._checks import check_count, check_epsilon, check_number
from pyro_mbde.experiments.baselines.box import box_rows, check_box
from pyro_mbde.experiments.baselines.choice import Noise, choose_pairs, counts_of, plan_noise
from pyro_mbde.experiments.baselines.common import Trainer, added_or_left_out, group_guarantee, require
from pyro_mbde.experiments.baselines.tree import MSTDensity, Pair, bins_of, directed
from pyro_mbde.privacy.group import check_group_size
from pyro_mbde.privacy.zcdp import zcdp_rho

#: Steps of mirror descent in one call of mbi, blocks of them at most, and the relative gain of a block that ends it.
_STEPS_PER_BLOCK, _MAX_BLOCKS, _TOLERANCE = 50, 100, 1e-4
#: Bins whose noisy count is below this many deviations of its noise are merged, as the mechanism's authors do.
_RARE = 3.0


class MST(Trainer[MSTDensity]):
    r"""Maximum spanning tree mechanism on equal-width bins.

    Each column is cut into bins of equal width between public edges. The counts of every column are measured with
    Gaussian noise; bins whose noisy count is below three deviations of it are merged. d - 1 pairs of columns that form
    a spanning tree are chosen one by one by the exponential mechanism, where a pair scores

    .. math::
        \sum_{a, b} \left| n_{ij}(a, b) - \hat{n}_i(a) \hat{n}_j(b) / \hat{n} \right| ,

    the L1 distance of its counts from what independent columns with the noisy counts would have: one row changes that
    by 1 at most. The counts of these pairs are measured with Gaussian noise. The model is the tree-shaped Markov random
    field whose marginals are nearest to all measurements, found by private-pgm's mirror descent. The density is uniform
    inside each bin.

    One row's :math:`\rho` of zCDP is :math:`g^2 \rho` for g rows. So the mechanism runs at

    .. math::
        \rho_1 = \rho(\epsilon, \delta) / g^2 ,

    with :math:`\rho(\epsilon, \delta)` of :func:`~pyro_mbde.privacy.zcdp.zcdp_rho`, split by
    :func:`~pyro_mbde.experiments.baselines.choice.plan_noise`.

    Privacy:
        The density, with all its draws and everything else computed from it, carries ``guarantee``: for ``group_size``
        rows added or left out, of which g replaced ones are 2g. The number n of rows is private, except for
        ``group_size=None``, where it is public and all rows may be exchanged: 2n steps. The model uses the total of the
        noisy counts. The edges and all settings must be chosen without looking at the table; rows outside are moved to
        the nearest point of the box. A seed that others know voids the guarantee: seeded fits are for experiments.
        Noise is made in floating point without hardening (Mironov 2012), by torch's generator: this is a baseline to
        compare with, not a way to hand rows out.

    Args:
        low: lower edge of the box, a number or a tensor of shape () or (d,).
        high: upper edge, likewise.
        epsilon: privacy parameter of the whole density, in nats; in (0, inf], ``inf`` for no noise.
        delta: of the whole density, in (0, 1).
        group_size: rows added or left out that are protected together, at least 1; ``None`` for all of them exchanged.
        num_bins: of a column, at least 1.
        uniform_share: of the uniform density, mixed in so that no bin is empty; in [0, 1).
        seed: for a reproducible fit; ``None`` draws from torch's global generator.
        progress: whether to show a progress bar.

    References:
        McKenna, Miklau, Sheldon. Winning the NIST Contest: A Scalable and General Approach to Differentially Private
        Synthetic Data. 2021.
        McKenna, Sheldon, Miklau. Graphical-model Based Estimation and Inference for Differential Privacy. 2019.
        Bun, Steinke. Concentrated Differential Privacy: Simplifications, Extensions, and Lower Bounds. 2016.
        Proposition 1.9.
        Mironov. On Significance of the Least Significant Bits for Differential Privacy. 2012.

    Example:
        >>> rows = torch.rand(1000, 2, generator=torch.Generator().manual_seed(0))
        >>> density = MST(torch.zeros(2), torch.ones(2), epsilon=1.0, num_bins=8, seed=0, progress=False).fit(rows)
        >>> density
        MSTDensity(epsilon=1, num_bins=8, edges=((0, 1),), event_shape=(2,))
        >>> density.guarantee
        GroupGuarantee(epsilon=1.0, delta=1e-05, group_size=1, replaced=False)
    """

    def __init__(
        self,
        low: float | Tensor,
        high: float | Tensor,
        epsilon: float,
        *,
        delta: float = 1e-5,
        group_size: int | None = 1,
        num_bins: int = 32,
        uniform_share: float = 0.01,
        seed: int | None = None,
        progress: bool = True,
    ) -> None:
        super().__init__(seed=seed, progress=progress)
        self.low, self.high = check_box(low, high)
        self.epsilon = check_epsilon(epsilon)
        self.delta = check_number("delta", delta, "be in (0, 1)", lambda value: 0 < value < 1)
        self.group_size = None if group_size is None else check_group_size("group_size", group_size)
        self.num_bins = check_count("num_bins", num_bins)
        self.uniform_share = check_number("uniform_share", uniform_share, "be in [0, 1)", lambda value: 0 <= value < 1)
        with _mbi():  # said at once if it is missing
            pass

    def _bar(self) -> dict[str, Any]:
        return {"desc": "MST", "unit": "block"}

    def _rows(self, data: Any) -> Tensor:
        return box_rows(data, self.low, self.high)

    def rho(self, group_size: int) -> float:
        """Returns what the mechanism may spend on one row, in zCDP, where groups of a size are protected.

        Example:
            >>> trainer = MST(0.0, 1.0, epsilon=1.0)
            >>> round(trainer.rho(1) / trainer.rho(10), 6)
            100.0
        """
        return math.inf if self.epsilon == math.inf else zcdp_rho(self.epsilon, self.delta) / group_size**2

    @torch.no_grad()
    def _fit(self, rows: Tensor, on_step: Callable[[], object]) -> MSTDensity:
        bins = bins_of(rows.double().reshape(len(rows), -1), self.low, self.high, self.num_bins)
        noise = plan_noise(self.rho(added_or_left_out(self.group_size, len(rows))), bins.shape[1])
        columns = [_add_noise(counts_of(column, self.num_bins), noise.column_scale) for column in bins.unbind(-1)]
        groups = [_group_rare(counts, noise.column_scale) for counts in columns]
        grouped = torch.stack([group[column] for group, column in zip(groups, bins.unbind(-1), strict=True)], -1)
        sizes = [int(group.max()) + 1 for group in groups]
        pairs = choose_pairs(grouped, [_sum_groups(*both) for both in zip(columns, groups, strict=True)], noise)
        tables = {
            (i, j): _add_noise(
                counts_of(grouped[:, i] * sizes[j] + grouped[:, j], sizes[i] * sizes[j]), noise.pair_scale
            )
            for i, j in pairs
        }
        # From here on the table is not looked at.
        edges = directed(pairs, bins.shape[1])
        root, *others = _estimate(columns, groups, tables, noise, on_step, [(0,), *edges])
        return MSTDensity(
            self.low,
            self.high,
            root,
            edges,
            tuple(others),
            uniform_share=self.uniform_share,
            guarantee=group_guarantee(self.epsilon, self.delta, self.group_size),
        )

    def __repr__(self) -> str:
        """Shows the settings, which are public."""
        return (
            f"MST(epsilon={self.epsilon:.6g}, delta={self.delta!r}, group_size={self.group_size!r}, "
            f"num_bins={self.num_bins}, uniform_share={self.uniform_share!r})"
        )


def _add_noise(counts: Tensor, scale: float) -> Tensor:
    return counts + scale * torch.randn(counts.shape, dtype=torch.float64)


def _group_rare(counts: Tensor, scale: float) -> Tensor:
    """The group of each bin: its own, or for rare bins a common one, the last."""
    is_rare = counts < _RARE * scale
    return torch.where(is_rare, (~is_rare).sum(), (~is_rare).cumsum(0) - 1)


def _sum_groups(counts: Tensor, group: Tensor) -> Tensor:
    return torch.zeros(int(group.max()) + 1, dtype=counts.dtype).index_add(0, group, counts)


def _spread(weights: Tensor, groups: list[Tensor]) -> Tensor:
    """Weights of bins from those of groups, the same for all bins of a group."""
    for axis, group in enumerate(groups):
        size = torch.bincount(group)[group].reshape([-1 if index == axis else 1 for index in range(len(groups))])
        weights = weights.index_select(axis, group) / size
    return weights


def _estimate(
    columns: list[Tensor],
    groups: list[Tensor],
    tables: dict[Pair, Tensor],
    noise: Noise,
    on_block: Callable[[], object],
    asked: list[tuple[int, ...]],
) -> list[Tensor]:
    """The marginals that are asked for of the model whose marginals are nearest to the noisy counts.

    Near is meant in units of the noise's deviation.
    """
    with _mbi() as mbi:
        names = range(len(columns))
        domain = mbi.Domain(names, [len(counts) for counts in columns])
        merged = mbi.Domain(names, [int(group.max()) + 1 for group in groups])
        mapping = {index: group.numpy() for index, group in enumerate(groups)}
        measured = [
            mbi.LinearMeasurement(counts.numpy(), (index,), noise.column_scale or 1.0).compress(mapping, domain)
            for index, counts in enumerate(columns)
        ]
        measured += [
            mbi.LinearMeasurement(counts.numpy(), pair, noise.pair_scale or 1.0) for pair, counts in tables.items()
        ]
        model = mbi.estimation.MirrorDescent().estimate(
            merged,
            measured,
            known_total=max(1.0, float(torch.stack(columns).sum(1).mean())),
            iters=_STEPS_PER_BLOCK * _MAX_BLOCKS,
            callback_fn=lambda state: on_block(),
            tol=_TOLERANCE,
        )
        marginals = {names: np.asarray(model.project(names).values, dtype=np.float64) for names in asked}
    return [_spread(torch.tensor(weights), [groups[name] for name in names]) for names, weights in marginals.items()]


@contextmanager
def _mbi() -> Iterator[Any]:
    """Gives private-pgm's package with JAX in float64, in this block alone, and without what it says when imported."""
    jax = require("jax")
    with jax.enable_x64(True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            mbi = require("mbi")
        yield mbi
