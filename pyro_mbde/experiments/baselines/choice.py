"""How the MST mechanism spends its budget, and how it chooses the pairs of columns that it measures."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_mbde._checks import check_number
from pyro_mbde.experiments.baselines.tree import Pair

#: Kept back of rho for the rounding of what is computed from it.
_RESERVE = 1e-12


class Noise(NamedTuple):
    """What the mechanism spends its rho on.

    Attributes:
        column_scale: deviation of the noise of each count of a column.
        choice_epsilon: of each choice of the exponential mechanism.
        pair_scale: deviation of the noise of each count of a pair of columns.
    """

    column_scale: float
    choice_epsilon: float
    pair_scale: float


def plan_noise(rho: float, num_dims: int) -> Noise:
    r"""Returns the noise that makes the mechanism rho-zCDP for one row added or left out.

    Such a row changes one count of each table by 1. Gaussian noise of deviation :math:`\sigma` on each of m tables,
    together a vector of L2 sensitivity :math:`\sqrt{m}`, is :math:`m/(2 \sigma^2)`-zCDP. A choice by the exponential
    mechanism at :math:`\epsilon` is :math:`\epsilon^2/8`-zCDP. All of it adds up:

    .. math::
        \rho = \frac{d}{2 \sigma_1^2} + (d - 1) \frac{\epsilon^2}{8} + \frac{d - 1}{2 \sigma_2^2} ,

    a third each. Two columns leave nothing to choose, and the third goes to the measurement of their pair; one column
    gets everything.

    References:
        Bun, Steinke. Concentrated Differential Privacy: Simplifications, Extensions, and Lower Bounds. 2016.
        Propositions 1.6 and 1.7.
        Cesar, Rogers. Bounding, Concentrating, and Truncating: Unifying Privacy Loss Composition. 2021. Lemma 3.2.

    Example:
        >>> plan_noise(0.5, 1).column_scale
        1.0000000000005
    """
    check_number("rho", rho, "be above 0", lambda value: value > 0, remedy="Epsilon is too small for such a group.")
    rho *= 1 - _RESERVE
    if num_dims == 1:
        return Noise(math.sqrt(1 / (2 * rho)), 0.0, 0.0)
    num_pairs = num_dims - 1
    choice_rho, pair_rho = (rho / 3, rho / 3) if num_dims > 2 else (0.0, 2 * rho / 3)
    return Noise(
        math.sqrt(num_dims / (2 * rho / 3)),
        math.sqrt(8 * choice_rho / num_pairs),
        math.sqrt(num_pairs / (2 * pair_rho)),
    )


def choose_pairs(bins: Tensor, columns: list[Tensor], noise: Noise) -> list[Pair]:
    """Returns the d - 1 pairs of columns that form the tree, each the choice of an exponential mechanism.

    Args:
        bins: of the rows, shape ``(n, d)``.
        columns: noisy counts of each column's bins.
        noise: says at what epsilon a choice is made.
    """
    num_dims = bins.shape[1]
    if num_dims <= 2:
        return [(0, 1)][: num_dims - 1]
    scores = {(i, j): _dependence(bins, columns, i, j) for i, j in itertools.combinations(range(num_dims), 2)}
    pairs: list[Pair] = []
    trees = list(range(num_dims))  # the tree that each column is in so far
    for _ in range(num_dims - 1):
        joining = [(i, j) for i, j in scores if trees[i] != trees[j]]
        i, j = joining[_choose(torch.stack([scores[pair] for pair in joining]), noise.choice_epsilon)]
        pairs.append((i, j))
        trees = [trees[i] if tree == trees[j] else tree for tree in trees]
    return pairs


def _dependence(bins: Tensor, columns: list[Tensor], i: int, j: int) -> Tensor:
    """The score of a pair: the L1 distance of its counts from independent ones."""
    first, second = (columns[index].clamp(min=0) for index in (i, j))
    total = max(1.0, float(first.sum() + second.sum()) / 2)
    # Shares of either column; none of them if the noise left none.
    shares = [counts / max(float(counts.sum()), 1e-300) for counts in (first, second)]
    size = len(second)
    counts = counts_of(bins[:, i] * size + bins[:, j], len(first) * size)
    return (counts - total * torch.outer(*shares).flatten()).abs().sum()


def _choose(scores: Tensor, epsilon: float) -> int:
    """The exponential mechanism for scores of sensitivity 1: chances proportional to exp(epsilon score / 2)."""
    if epsilon == math.inf:
        return int(scores.argmax())
    return int(torch.multinomial(torch.softmax(epsilon / 2 * scores, 0), 1))


def counts_of(values: Tensor, size: int) -> Tensor:
    """Returns how often each whole number below ``size`` is among the values, float64 of shape ``(size,)``."""
    return torch.bincount(values, minlength=size).double()
