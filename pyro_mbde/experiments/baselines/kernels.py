"""Gaussian kernel density estimates on a lattice: their values, what one row adds to them, their bandwidth."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from tqdm import tqdm

#: Numbers held at a time while kernels are evaluated.
_NUM_HELD = 2**22
#: Cross-validation: folds, rows of each that are scored, and bandwidths in units of the box's side.
_NUM_FOLDS, _NUM_SCORED = 10, 60
_BANDWIDTHS = torch.logspace(math.log10(0.0005), math.log10(0.3), 25, dtype=torch.float64)


def kernel_sum_bound(bandwidth: float, lattice_size: int, num_dims: int) -> float:
    r"""Returns an upper bound of what one row adds to all values on the lattice together, times the number of rows.

    That bounds :math:`\max_x \sum_{v \in \{0..k\}^d} K_h(v/k - x)` by the d-th power of the smaller of
    :math:`\sum_{v \in \mathbb{Z}} K_h(v/k)` and k + 1 times the kernel's peak, both for d = 1. Proof: docs/proofs.md,
    *Sums of a kernel over a lattice*.

    Args:
        bandwidth: h, above 0.
        lattice_size: k, at least 1.
        num_dims: d, at least 1.

    Example:
        >>> round(kernel_sum_bound(0.05, 20, 2), 6)  # 400 up to a part in 10^8; the peak times 21^2 is 28074
        400.000004
    """
    width = bandwidth * lattice_size  # in lattice steps
    peak = 1 / (math.sqrt(2 * math.pi) * bandwidth)
    # Whichever series converges at once: what is left out of either is below exp(-600).
    if width < 1:
        terms = [math.exp(-((index / width) ** 2) / 2) for index in range(1, 41)]
        largest = peak * (1 + 2 * math.fsum(terms))
    else:
        terms = [math.exp(-2 * (math.pi * width * index) ** 2) for index in range(1, 7)]
        largest = lattice_size * (1 + 2 * math.fsum(terms))
    # Rounded up, well beyond what float64 loses in these few operations.
    return (min(largest, (lattice_size + 1) * peak) * (1 + 1e-13)) ** num_dims * (1 + 1e-13)


def lattice_values(unit: Tensor, bandwidth: float, lattice_size: int) -> Tensor:
    """Returns the kernel density estimate of rows ``(n, d)`` of the unit cube on the lattice, ``(k + 1,) * d``."""
    num_rows, num_dims = unit.shape
    size = lattice_size + 1
    lattice = torch.arange(size, dtype=unit.dtype) / lattice_size
    total = unit.new_zeros(size ** (num_dims - 1), size)
    for part in torch.split(unit, max(1, _NUM_HELD // size ** max(num_dims - 1, 1))):
        # The kernel is a product over the coordinates: an outer product of d - 1 of them a row, summed over the rows
        # by a matrix product with the last.
        kernels = torch.exp(-((part.unsqueeze(-1) - lattice) ** 2) / (2 * bandwidth**2))
        outer = part.new_ones(len(part), 1)
        for axis in range(num_dims - 1):
            outer = (outer.unsqueeze(-1) * kernels[:, axis].unsqueeze(1)).flatten(1)
        total += outer.T @ kernels[:, -1]
    peak = (math.sqrt(2 * math.pi) * bandwidth) ** -num_dims
    return total.mul(peak / num_rows).reshape((size,) * num_dims)


def cross_validate(unit: Tensor, progress: bool) -> float:
    """Returns the bandwidth with the best log-likelihood in a 10-fold cross-validation: private."""
    num_rows, num_dims = unit.shape
    order = torch.randperm(num_rows)
    scores = torch.zeros_like(_BANDWIDTHS)
    folds = order.tensor_split(min(_NUM_FOLDS, num_rows))
    for index, fold in enumerate(tqdm(folds, desc="BernsteinKDE", unit="fold", disable=not progress)):
        training = unit[torch.cat([*folds[:index], *folds[index + 1 :]])]
        distances = torch.cdist(unit[fold[:_NUM_SCORED]], training) ** 2
        nearest = distances.amin(1, keepdim=True)  # taken out of the exponents, which would underflow
        excess = distances - nearest
        for place, bandwidth in enumerate(_BANDWIDTHS.tolist()):
            sums = torch.exp(excess / (-2 * bandwidth**2)).mean(1).log() - nearest.squeeze(1) / (2 * bandwidth**2)
            # Folds of equal weight, however many of their rows are scored.
            scores[place] += sums.mean() - num_dims * math.log(bandwidth)
    return float(_BANDWIDTHS[scores.argmax()])
