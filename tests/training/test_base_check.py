"""Warnings where the base was made from the table, or shares its memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pandas as pd
import pyro.distributions as dist
import pytest
import torch
from densities import normal
from pyro.distributions import transforms
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from pyro_mbde import MBDE, Column, DensityRatio, PrivacyLeakWarning, Schema, WeakLearner
from pyro_mbde.training.base_check import warn_of_leaks

QUICK = WeakLearner(hidden_sizes=(4,), num_frequencies=0, num_steps=2, batch_size=None)

TABLE = torch.tensor([[0.37, 5.1], [1.91, -2.7]]) @ torch.randn(2, 201, generator=torch.Generator().manual_seed(1)) + (
    torch.tensor([[3.3], [-70.1]])
)

ROWS = TABLE.T.contiguous()

Base = Callable[[Tensor], torch.distributions.Distribution]

LEAKING: dict[str, Base] = {
    "its moments": lambda rows: dist.Normal(rows.mean(0), rows.std(0)).to_event(1),
    "its mean alone": lambda rows: dist.Normal(rows.mean(0), 10.0).to_event(1),
    "one column's mean": lambda rows: dist.Normal(torch.stack([rows[:, 0].mean(), torch.tensor(-50.0)]), 30.0).to_event(
        1
    ),
    "its deviation alone": lambda rows: dist.Normal(torch.zeros(2), rows.std(0)).to_event(1),
    "its population deviation": lambda rows: dist.Laplace(torch.zeros(2), rows.std(0, correction=0)).to_event(1),
    "its median": lambda rows: dist.StudentT(3.0, rows.median(0).values, torch.ones(2)).to_event(1),
    "its range": lambda rows: dist.Uniform(rows.min(0).values, rows.max(0).values).to_event(1),
    "its covariance": lambda rows: dist.MultivariateNormal(torch.zeros(2), rows.T.cov()),
    "a factor of its covariance": lambda rows: dist.MultivariateNormal(
        torch.zeros(2), scale_tril=torch.linalg.cholesky(rows.T.cov())
    ),
    "a transform by its moments": lambda rows: dist.TransformedDistribution(
        normal(2), [transforms.AffineTransform(rows.mean(0), rows.std(0))]
    ),
    "a mixture's component": lambda rows: dist.MixtureSameFamily(
        dist.Categorical(torch.ones(2)),
        dist.Independent(dist.Normal(torch.stack([rows.mean(0), torch.zeros(2)]), torch.full((2, 2), 9.0)), 1),
    ),
    "in double": lambda rows: dist.Normal(rows.double().mean(0).float(), 10.0).to_event(1),
}


@pytest.mark.parametrize("name", LEAKING)
def test_a_base_made_from_the_table(name: str) -> None:
    with pytest.warns(PrivacyLeakWarning, match="The base's .* equals the .* of the table.*void"):
        warn_of_leaks(LEAKING[name](ROWS), ROWS, ROWS)


def test_a_scalar_base() -> None:
    rows = ROWS[:, :1]
    locs = torch.stack([rows.median(), torch.tensor(5.0)])
    mixture = dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), dist.Normal(locs, torch.ones(2)))
    for base in (dist.Normal(rows.mean(), 1.0), dist.Exponential(rows.std()), mixture):
        with pytest.warns(PrivacyLeakWarning, match="equals the"):
            warn_of_leaks(base, rows, rows)


@pytest.mark.parametrize("end", ["low", "high"])
def test_a_range_that_values_were_clipped_to_is_not_of_the_table(end: str) -> None:
    """An end that is met by itself, and one that is met because values were moved there; in any copy of the rows."""
    schema = Schema((Column("x", -1.2345, 6.789),))
    values = [*torch.linspace(0, 3.3, 30, dtype=torch.float64).tolist(), {"low": -1.2345, "high": 6.789}[end]]
    rows = schema.to_tensor(pd.DataFrame({"x": values}))
    with pytest.warns(PrivacyLeakWarning, match=f"The base's {end} equals"):
        warn_of_leaks(schema.base(), rows, rows)
    values[-1:] = [2 * values[-1], 3 * values[-1]]
    with pytest.warns(UserWarning, match="2 of .* are outside"):
        rows = schema.to_tensor(pd.DataFrame({"x": values}))
    assert float(rows.min()) == pytest.approx(-1.2345) or float(rows.max()) == pytest.approx(6.789)
    for copy in (rows, rows[2:], rows.double(), rows.flip(0).clone()):
        warn_of_leaks(schema.base(), copy, copy)


@pytest.mark.parametrize(("high", "is_round"), [(100.0, True), (5e5, True), (0.25, True), (123.4, False)])
def test_a_range_that_is_round_in_the_table_s_own_units(high: float, is_round: bool) -> None:
    schema = Schema((Column("x", 0, high, scale="log1p"),))
    values = [*torch.linspace(0.1, 0.9, 30, dtype=torch.float64).mul(high).tolist(), 2 * high]
    with pytest.warns(UserWarning, match="1 of 31 values is outside"):
        rows = schema.to_tensor(pd.DataFrame({"x": values}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_leaks(schema.base(), rows, rows)
    assert [warning.category for warning in caught] == ([] if is_round else [PrivacyLeakWarning])


def test_no_number_of_the_table_is_told() -> None:
    with pytest.warns(PrivacyLeakWarning) as caught:
        warn_of_leaks(LEAKING["its moments"](ROWS), ROWS, ROWS)
    assert not any(character.isdigit() for character in str(caught[0].message))


@pytest.mark.parametrize("kind", ["tensor", "array", "read-only array", "dataset", "loader"])
def test_shared_memory(kind: str) -> None:
    if kind.endswith("array"):
        data = ROWS.numpy().copy()
        base = dist.Normal(torch.from_numpy(data)[4], 10.0).to_event(1)
        data.flags.writeable = kind == "array"
        given: object = data[10:]
    else:
        base = dist.Normal(ROWS[4], torch.tensor(10.0)).to_event(1)
        dataset = TensorDataset(ROWS)
        given = {"tensor": ROWS[10:], "dataset": dataset, "loader": DataLoader(dataset, batch_size=8)}[kind]
    with pytest.warns(PrivacyLeakWarning, match="The base's loc is part of the table itself"):
        warn_of_leaks(base, given, ROWS[10:])


@pytest.mark.parametrize(
    "rows",
    [
        torch.arange(202.0).remainder(101.0).reshape(101, 2),  # 0 to 100, met exactly
        torch.rand(300, 2).round(),
        torch.rand(300, 2),
        torch.randn(300, 2),
        torch.linspace(-1, 1, 400).reshape(200, 2),
        torch.tensor([[-1.0, 1.0], [1.0, -1.0]]),
        torch.ones(50, 2),
        torch.full((50, 2), 3.14159),
        ROWS,
    ],
)
@pytest.mark.parametrize(
    "base",
    [
        normal(2),
        dist.Uniform(torch.zeros(2), torch.full((2,), 100.0)).to_event(1),
        dist.Uniform(torch.full((2,), -1.0), torch.ones(2)).to_event(1),
        dist.Normal(torch.full((2,), 0.5), torch.full((2,), 0.5)).to_event(1),
        dist.MultivariateNormal(torch.zeros(2), torch.tensor([[2.0, 0.5], [0.5, 1.0]])),
        dist.StudentT(3.0, torch.zeros(2), torch.ones(2)).to_event(1),
        dist.Normal(torch.tensor([3.14159, 70.123]), torch.tensor([1.2345, 6.789])).to_event(1),
        dist.TransformedDistribution(
            normal(2), [transforms.SigmoidTransform(), transforms.AffineTransform(0.0, 100.0)]
        ),
    ],
)
def test_no_false_alarm(rows: Tensor, base: torch.distributions.Distribution) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_leaks(base, rows, rows)


@pytest.mark.parametrize("correction", [0, 1])
def test_standardised_by_itself(correction: int) -> None:
    rows = (ROWS - ROWS.mean(0)) / ROWS.std(0, correction=correction)
    with pytest.warns(PrivacyLeakWarning, match="standardised by their own moments.*Scale columns by public"):
        warn_of_leaks(normal(2), rows, rows)


def test_known_distributions_protect_no_rows() -> None:
    rows = ROWS
    base = LEAKING["its moments"](rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_leaks(base, base, rows)


@pytest.mark.parametrize("data", [ROWS, ROWS.numpy(), pd.DataFrame(ROWS.numpy())], ids=["tensor", "array", "frame"])
def test_trainers_warn(data: object) -> None:
    base = LEAKING["its moments"](ROWS)
    trainers = [
        MBDE(base, 1.0, 1, weak_learner=QUICK, num_samples=50, progress=False),
        DensityRatio(base, weak_learner=QUICK, ensemble_size=1, progress=False),
    ]
    for trainer in trainers:
        with pytest.warns(PrivacyLeakWarning, match="The base's loc equals the mean"):
            trainer.fit(data)


def test_trainers_see_memory_through_their_copies() -> None:
    base = dist.Normal(ROWS[4], torch.tensor(10.0)).to_event(1)
    with pytest.warns(PrivacyLeakWarning, match="is part of the table itself"):
        MBDE(base, 1.0, 1, weak_learner=QUICK, num_samples=50, progress=False).fit(ROWS)
