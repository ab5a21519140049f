"""The exponential that accepts proposals is within 2^-52, relative, of the true one: exact arithmetic against torch."""

from __future__ import annotations

from decimal import Decimal, getcontext

import pytest
import torch
from torch import Tensor

#: Of the true exponential: 2^-52, one unit in the last place. docs/proofs.md, *Rejection: the law in floating point*.
BOUND = 2.0**-52


def largest_error(values: Tensor) -> float:
    """Largest relative error of torch's exponential, against 40 decimal digits."""
    getcontext().prec = 40
    computed = values.exp().tolist()
    worst = Decimal(0)
    for value, found in zip(values.tolist(), computed, strict=True):
        true = Decimal(value).exp()
        worst = max(worst, abs(Decimal(found) - true) / true)
    return float(worst)


@pytest.mark.parametrize("width", [0.05, 0.7, 3.0, 12.0, 40.0])
def test_the_exponential_is_within_one_unit_in_the_last_place(width: float) -> None:
    """Log-acceptances lie in [-R, 0]; a tilt is at its bounds often, and near multiples of log 2 exponents change."""
    generator = torch.Generator().manual_seed(0)
    inside = -width * torch.rand(4000, generator=generator, dtype=torch.float64)
    steps = torch.arange(0, width, 0.6931471805599453 / 2, dtype=torch.float64)
    nearby = torch.tensor([-1e-15, 0.0, 1e-15, -(2.0**-53), 2.0**-53], dtype=torch.float64)
    edges = (-steps[:, None] + nearby).clamp(max=0.0).flatten()
    error = largest_error(torch.cat([inside, edges]))
    assert 0.2 * BOUND < error <= BOUND  # and the measurement is fine enough to see rounding itself


def test_every_size_of_a_chunk_takes_an_exponential_as_good() -> None:
    """Vectorised kernels treat the last few values of a tensor apart."""
    generator = torch.Generator().manual_seed(1)
    for size in (*range(1, 20), 512):
        assert largest_error(-3 * torch.rand(size, generator=generator, dtype=torch.float64)) <= BOUND
