"""The law of a row of a batch: sums of scores, and clipped tilts averaged over them."""

from __future__ import annotations

import pytest
import torch

from pyro_mbde.calibration.row_law import row_log_ratio, sum_law
from pyro_mbde.density.bounds import Bounds, clip_score

TWO = torch.tensor([-1.0, 2.0], dtype=torch.float64)


def test_sums() -> None:
    values, weights = sum_law(TWO, 3, 0.005)
    for value, share in ((-3.0, 1 / 8), (0.0, 3 / 8), (3.0, 3 / 8), (6.0, 1 / 8)):
        near = (values - value).abs() < 0.3
        assert float(weights[near].sum()) == pytest.approx(share, abs=1e-9)
    assert float(weights @ values) == pytest.approx(1.5, abs=1e-9)
    assert [float(part) for part in sum_law(TWO, 0, 1.0)] == [0.0, 1.0]


@pytest.mark.parametrize("shrinkage", [1.0, 0.4, 0.0])
@pytest.mark.parametrize("num_rows", [1, 2, 7])
def test_averages_over_the_other_rows(num_rows: int, shrinkage: float) -> None:
    """Against the sum over all of them, by hand."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(500, generator=generator, dtype=torch.float64)
    values, shares = sum_law(scores, num_rows - 1, 0.01)
    bounds, shift = Bounds(-0.5, 1.5), 0.3
    found = row_log_ratio(scores, (values, shares), shift, bounds, shrinkage)
    tilts = shrinkage * clip_score(scores[:, None] + values, shift, bounds)
    assert torch.allclose(found, (tilts.exp() @ shares).log(), atol=1e-9)
