"""Boxes with public edges: what is one, and how rows are brought to it."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_mbde.experiments.baselines.box import box_rows, check_box, to_unit


def test_edges_have_one_shape_and_dtype() -> None:
    low, high = check_box(torch.zeros(2, dtype=torch.float64), 3)
    assert (low.tolist(), high.tolist(), high.dtype) == ([0.0, 0.0], [3.0, 3.0], torch.float64)
    low, high = check_box(np.float32(-1), np.int64(2))
    assert (float(low), float(high), low.shape) == (-1.0, 2.0, ())
    for low, high in ((torch.zeros(2, dtype=torch.float64), 0.1), (np.float64(-0.1), torch.zeros(2).double())):
        edges = check_box(low, high)
        assert max(float(edge.abs().max()) for edge in edges) == 0.1  # not float32's
    edge = torch.zeros(3)
    low, _ = check_box(edge, 1.0)
    low[0] = 5.0
    assert not edge.any()


@pytest.mark.parametrize(
    ("low", "high", "error", "match"),
    [
        ("0", 1.0, TypeError, "low must be a number or a tensor"),
        (0.0, True, TypeError, "high must be a number or a tensor"),
        (0.0, np.bool_(True), TypeError, "high must be a number or a tensor"),
        (1.0, 1.0, ValueError, "high must be above low"),
        (math.nan, 1.0, ValueError, "high must be above low"),
        (-math.inf, 1.0, ValueError, "high must be above low"),
        (-3e38, 3e38, ValueError, "high must be no further from low than torch.float32 holds"),
        (torch.zeros(2), torch.ones(3), ValueError, "high must have the shape of low"),
        (torch.zeros(2, 2), 1.0, ValueError, "low must have shape"),
        (torch.zeros(0), 1.0, ValueError, "low must have shape"),
    ],
)
def test_what_is_no_box(low: object, high: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        check_box(low, high)


def test_rows_go_to_the_nearest_point() -> None:
    rows = torch.tensor([[-9.0, 1.0], [0.5, 3.0], [2.0, 1.5]])
    unit = to_unit(rows, torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
    assert unit.tolist() == [[0.0, 0.0], [0.5, 1.0], [1.0, 0.5]]


def test_rows_outside_are_no_matter_of_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = box_rows(pd.DataFrame({"a": [0.5, 7.0]}), torch.tensor(0.0), torch.tensor(1.0))
    assert rows.tolist() == [0.5, 7.0]
