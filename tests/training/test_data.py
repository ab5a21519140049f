"""The table as rows: every kind of input, and one clear error for each that does not fit."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import torch
from densities import normal
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from pyro_mbde import FitWarning
from pyro_mbde.training.data import to_rows


class Rows(IterableDataset[torch.Tensor]):
    """A stream of rows."""

    def __iter__(self) -> object:
        return iter(torch.ones(6, 2))


class Ragged(Dataset[torch.Tensor]):
    """Rows of different lengths."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(index + 1)


class TestData:
    @pytest.mark.parametrize(
        "data",
        [
            torch.ones(6, 2),
            torch.ones(6, 2, dtype=torch.float64, requires_grad=True),
            np.ones((6, 2)),
            [[1.0, 1.0]] * 6,
            np.ones((6, 2))[::-1],
            np.ones((6, 2)).astype(">f8"),
            np.ones((6, 2), dtype=np.longdouble),
            np.ma.masked_array(np.ones((6, 2))),
            pd.DataFrame({"a": pd.array([1] * 6, dtype="Int64"), "b": np.ones(6)}),
            pd.DataFrame({"a": np.ones(6), "b": np.ones(6, dtype=int)}),
            TensorDataset(torch.ones(6, 2)),
            TensorDataset(torch.ones(6, 2), torch.zeros(6)),
            DataLoader(TensorDataset(torch.ones(6, 2)), batch_size=4),
            Rows(),
            DataLoader(Rows(), batch_size=4),
            dist.Delta(torch.ones(2)).to_event(1),
        ],
        ids=lambda data: type(data).__name__,
    )
    def test_kinds(self, data: object) -> None:
        rows = to_rows(data, normal(2), num_samples=6)
        assert torch.equal(rows, torch.ones(6, 2))
        assert not rows.requires_grad

    def test_scalar_bases(self) -> None:
        base = dist.Normal(0.0, 1.0)
        for data in (torch.ones(6), torch.ones(6, 1), pd.Series(np.ones(6)), pd.DataFrame({"a": np.ones(6)})):
            assert torch.equal(to_rows(data, base, 6), torch.ones(6))

    @pytest.mark.parametrize(
        ("data", "error", "match"),
        [
            (Ragged(), ValueError, "data must have rows of one length"),
            (
                torch.zeros(5, 3),
                ValueError,
                r"data must have shape \(n, 2\) as the base has, got data of shape \(n, 3\)",
            ),
            (torch.zeros(5), ValueError, "data must have shape"),
            (torch.zeros(5, 2, 1), ValueError, "data must have shape"),
            (torch.zeros(5, 2, dtype=torch.int64), TypeError, "data must hold floating-point numbers"),
            (np.zeros((5, 2), dtype=np.int32), TypeError, "data must hold floating-point numbers"),
            (torch.zeros(5, 2, dtype=torch.bool), TypeError, "data must hold real numbers"),
            (torch.zeros(5, 2, dtype=torch.complex64), TypeError, "data must hold real numbers"),
            (np.array([["a", "b"], ["c", "d"]]), TypeError, "data must hold numbers"),
            (pd.DataFrame({"a": ["x", "y"], "b": [1.0, 2.0]}), TypeError, r"numeric columns, got data=\['a'\]"),
            ([[1.0, 2.0], [1.0]], ValueError, "data must have rows of one length"),
            ("rows.csv", TypeError, "data must hold numbers"),
            (None, TypeError, "data must be a tensor, array, DataFrame, Dataset, DataLoader or Distribution"),
            (torch.zeros(5, 2).to_sparse(), TypeError, "data must be a dense tensor"),
            (pd.DataFrame({"a": [True, False], "b": [1.0, 2.0]}), TypeError, "data must be a DataFrame of numeric"),
            (pd.DataFrame({"a": [1j, 2j], "b": [1.0, 2.0]}), TypeError, "data must be a DataFrame of numeric"),
        ],
    )
    def test_errors(self, data: object, error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            to_rows(data, normal(2), num_samples=6)

    @pytest.mark.parametrize(
        ("data", "left"),
        [
            (torch.tensor([[0.0, math.nan], [0.0, 0.0]]), 1),
            (torch.tensor([[0.0, math.inf], [0.0, -math.inf]]), 0),
            (pd.DataFrame({"a": [1.0, None], "b": [1.0, 2.0]}), 1),
            (torch.full((5, 2), 1e300, dtype=torch.float64), 0),  # infinite in the base's own type
            (np.ma.masked_less(np.arange(10.0).reshape(5, 2), 3), 3),
            (np.ma.masked_less(np.arange(10, dtype=np.float32).reshape(5, 2), 3), 3),
        ],
    )
    def test_rows_that_cannot_be_used_are_left_out(self, data: object, left: int) -> None:
        with pytest.warns(FitWarning, match=r"\d of \d+ rows were left out: they do not hold finite numbers of"):
            rows = to_rows(data, normal(2), num_samples=6)
        assert rows.shape == (left, 2)
        assert bool(torch.isfinite(rows).all())

    @pytest.mark.parametrize("data", [torch.zeros(0, 2), torch.zeros(1, 2), TensorDataset(torch.zeros(0, 2)), []])
    def test_tables_of_any_length(self, data: Any) -> None:
        rows = to_rows(data, normal(2), num_samples=6)
        assert rows.shape == (len(data), 2)

    def test_rows_outside_the_support_are_told_without_telling_them(self) -> None:
        base = dist.Uniform(torch.zeros(2), torch.ones(2)).to_event(1)
        with pytest.warns(UserWarning, match="outside the support of the base") as caught:
            to_rows(torch.full((50, 2), 7.25), base, num_samples=6)
        text = str(caught[0].message)
        assert text.startswith("50 of 50 rows lie outside")
        assert "7" not in text

    def test_integers_fit_a_discrete_base(self) -> None:
        rows = to_rows(torch.arange(4), dist.Categorical(torch.ones(4)), 4)
        assert rows.dtype == torch.int64

    def test_fractions_do_not_fit_a_base_of_integers(self) -> None:
        with pytest.warns(FitWarning, match="whole numbers of torch.int64"):
            assert to_rows(torch.tensor([1.5, 2.0]), dist.Categorical(torch.ones(4)), 4).tolist() == [2]
        assert to_rows(torch.tensor([1.0, 2.0]), dist.Categorical(torch.ones(4)), 4).tolist() == [1, 2]

    @pytest.mark.parametrize("value", [math.nan, 1e300, 123.456])
    def test_no_message_tells_a_value_nor_an_error_the_number_of_rows(self, value: float) -> None:
        data = torch.full((777, 3), value, dtype=torch.float64)
        for base in (normal(2), normal(3)):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    to_rows(data, base, 6)
                    said = " ".join(str(warning.message) for warning in caught)
                except ValueError as error:
                    said = str(error)
                    assert "777" not in said
            assert "123" not in said and "e+300" not in said
