"""The owner's report on a density of batches: one row by itself, beside table and base."""

from __future__ import annotations

import math
from html import unescape
from pathlib import Path

import pyro.distributions as dist
import pytest
import torch
from densities import BASES, make_batch, normal
from known_ratio import known_density
from torch import Tensor

from pyro_mbde import Column, MollifiedExpFamily, Schema, private_report
from pyro_mbde.releases import comparison
from pyro_mbde.releases.comparison import compare

BASE, TARGET = dist.Normal(0.0, 1.0), dist.Normal(1.0, 0.5)


@pytest.fixture(autouse=True)
def fewer_draws() -> None:
    """None here, in place of the other tests' of releases: a batch and a row are compared, to the tolerance of both."""


@pytest.fixture
def fewer_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is compared to a tolerance."""
    monkeypatch.setattr(comparison, "_NUM_DRAWS", 2**14)


@pytest.fixture(scope="module")
def batch() -> MollifiedExpFamily:
    """Ten rows at 3 nats, of N(1, 0.5) over N(0, 1)."""
    return known_density(TARGET, BASE, 3.0, num_rows=10)


def shares(values: Tensor, edges: Tensor) -> Tensor:
    """Of values in the cells between edges, the outer cells included."""
    cells = torch.bucketize(values.reshape(-1), edges)
    return torch.bincount(cells, minlength=len(edges) + 1).double() / values.numel()


def test_a_row_by_itself_is_as_far_from_base_and_table_as_its_draws(batch: MollifiedExpFamily) -> None:
    """Draws of whole batches, of which every row counts: 200,000, so that a share is off by 0.001."""
    table = TARGET.sample((20_000,))
    compared = compare(batch, table)
    drawn, edges = batch.sample((20_000,)), torch.linspace(-3, 3, 61)
    law = shares(drawn, edges)
    base = torch.cat([torch.zeros(1), BASE.cdf(edges), torch.ones(1)]).diff()
    assert compared.density_to_base == pytest.approx(float(0.5 * (law - base).abs().sum()), abs=0.01)
    (column,) = compared.columns
    levels = torch.arange(1, 10) / 10
    coarse = torch.cat([torch.quantile(table, levels), BASE.icdf(levels)]).sort().values
    away = 0.5 * (shares(drawn, coarse) - shares(table, coarse)).abs().sum()
    assert column.distances.table_to_density == pytest.approx(float(away), abs=0.015)
    assert "could just as well have been drawn from the public base" in compared.verdict


def test_a_batch_of_one_row_is_a_row() -> None:
    single, batch = known_density(TARGET, BASE, 2.0), known_density(TARGET, BASE, 2.0, num_rows=1)
    table = TARGET.sample((2000,))
    of_single, of_batch = compare(single, table), compare(batch, table)
    assert of_batch.density_to_base == pytest.approx(of_single.density_to_base, abs=0.01)
    gains = [private_report(q, table)["scores"]["gain_in_nats"] for q in (single, batch)]
    assert gains[1] == pytest.approx(gains[0], abs=0.02)


def test_gains_are_by_the_row(batch: MollifiedExpFamily) -> None:
    """Against batches of the target itself, by hand; the standard error is below 0.001."""
    report = private_report(batch, TARGET.sample((20_000,)))
    many = TARGET.sample((20_000, 10))
    log_ratios = batch.log_prob(many).double() - BASE.log_prob(many).double().sum(-1)
    scores = report["scores"]
    assert scores["gain_in_nats"] == pytest.approx(float(log_ratios.mean()) / 10, abs=0.003)
    assert scores["gain_in_nats"] <= scores["most_that_can_be_gained"] == pytest.approx(0.21)
    difference = scores["negative_log_likelihood_of_the_base"] - scores["negative_log_likelihood"]
    assert difference == pytest.approx(scores["gain_in_nats"])
    assert report["rows_of_batch"] == 10
    assert "base=Normal, event_shape=(10,), num_rows=10)" in report["density"]


@pytest.mark.slow
def test_the_error_of_a_gain() -> None:
    """Gains of many small tables scatter as each says of itself, where the tilt is hardly clipped."""
    q = make_batch(normal(2), 5, epsilon=6.0, gain=0.3)
    scores = [private_report(q, 0.5 * torch.randn(200, 2) + 1)["scores"] for _ in range(12)]
    gains = torch.tensor([one["gain_in_nats"] for one in scores])
    said = torch.tensor([one["standard_error_of_the_gain"] for one in scores]).mean()
    assert 0.4 < float(gains.std() / said) < 1.9  # the chi distribution with 11 degrees of freedom, level 1e-3


@pytest.mark.usefixtures("fewer_weights")
@pytest.mark.parametrize("name", ["normal-2d", "bernoulli-3d", "poisson", "gamma", "categorical"])
def test_every_kind_of_base(name: str) -> None:
    base = BASES[name]()
    report = private_report(make_batch(base, 3, epsilon=2.0), base.sample(torch.Size([500])))
    assert 0 <= report["comparison"]["density_to_base"] <= 0.5
    assert math.isfinite(report["scores"]["gain_in_nats"])


@pytest.mark.usefixtures("fewer_weights")
@pytest.mark.parametrize("num_rows", [0, 1])
def test_tables_of_hardly_a_row(num_rows: int) -> None:
    scores = private_report(make_batch(normal(2), 4), torch.zeros(num_rows, 2))["scores"]
    assert (scores["gain_in_nats"] is None) == (num_rows == 0)
    assert scores["standard_error_of_the_gain"] is None


@pytest.mark.usefixtures("fewer_weights")
def test_the_page_says_what_is_shown(tmp_path: Path) -> None:
    schema = Schema((Column("age", 18, 100, "integer"), Column("cost", 0, 1e4, scale="log1p", decimals=2)))
    q = make_batch(schema.base(), 6, epsilon=2.0)
    report = private_report(q, schema.base().sample(torch.Size([300])), path=tmp_path / "report.html")
    page = unescape((tmp_path / "report.html").read_text())
    assert "One draw is a batch of 6 rows, which depend on one another." in page
    assert "nats a row closer to the table than the base" in page
    assert [column["name"] for column in report["comparison"]["columns"]] == ["age", "cost"]
