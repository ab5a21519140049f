"""Releases of batches: several rows for one price, paid for before drawn, in the table's units."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import torch
from densities import BASES, make_batch, make_density, normal
from scipy import stats
from torch import Tensor, nn

from pyro_mbde import BudgetExceededError, Column, Ledger, MollifiedExpFamily, Schema, release
from pyro_mbde.density.row_batch import RowBatch
from pyro_mbde.ledger import ledger as ledger_module
from pyro_mbde.releases import release as releasing
from pyro_mbde.releases.card_text import card_text
from pyro_mbde.releases.card_words import batches_in_words, likeness, row_distance

SCHEMA = Schema((Column("age", 18, 100, "integer"), Column("cost", 0, 1e4, scale="log1p", decimals=2)))


@pytest.fixture
def roomy(make_ledger: Callable[..., Ledger]) -> Ledger:
    """A ledger whose account has room for certificates."""
    return make_ledger(epsilon=10.0, delta=1e-6)


def test_a_batch_is_charged_once(roomy: Ledger) -> None:
    q = make_batch(normal(2), 4, epsilon=3.0)
    released = release(q, 8, roomy, "clinic", columns=["height", "weight"])
    assert released.rows.shape == (8, 2)
    assert list(released.rows.columns) == ["height", "weight"]
    charged = released.charge.guarantee
    assert (released.charge.num_draws, charged.epsilon, charged.delta) == (2, 3.0, 1e-9)
    assert 0 <= charged.total_variation - q.guarantee.total_variation < 1e-8  # rounded up
    assert released.card["num_rows"] == 8
    assert released.card["cost_of_this_release"]["epsilon"] == released.card["account"]["spent"]["epsilon"] == 6.0
    assert released.card["account"]["epsilon_left"] == 4.0


@pytest.mark.parametrize("name", ["normal-scalar", "poisson", "bernoulli-3d", "gamma", "uniform-box", "categorical"])
def test_rows_are_those_of_the_batches_in_order(name: str, roomy: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    q = make_batch(BASES[name](), 3)
    drawn: list[Tensor] = []
    draw = releasing.draw_rows

    def kept(*words: object, **options: object) -> Tensor:
        drawn.append(draw(*words, **options))  # type: ignore[arg-type]
        return drawn[-1]

    monkeypatch.setattr(releasing, "draw_rows", kept)
    rows = release(q, 6, roomy, "clinic", progress=False).rows
    assert drawn[0].shape == (2, *q.event_shape)
    np.testing.assert_array_equal(rows.to_numpy(), drawn[0].reshape(6, -1).numpy())


def test_rows_in_the_tables_own_units(roomy: Ledger, tmp_path: Path) -> None:
    q = make_batch(SCHEMA.base(), 5, epsilon=2.0)
    q.save(tmp_path / "q.pt")
    for density in (q, MollifiedExpFamily.load(tmp_path / "q.pt")):
        released = release(density, 5, roomy, "clinic", progress=False)
        assert list(released.rows) == ["age", "cost"]
        assert released.rows["age"].dtype == np.int64
        assert released.rows["age"].between(18, 100).all()
        assert (released.rows["cost"] == released.rows["cost"].round(2)).all()
        assert [column["high"] for column in released.card["columns"]] == [100.0, 1e4]
        assert released.card["density"]["base_text"] == "MixedBase(2 columns: 1 integer, 1 real)"
    with pytest.raises(ValueError, match="columns must be the schema"):
        release(q, 5, roomy, "clinic", columns=Schema((Column("age", 18, 90, "integer"), SCHEMA.columns[1])))


def test_paid_before_drawn(make_ledger: Callable[..., Ledger], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    q, ledger = make_batch(normal(2), 4, epsilon=2.0), make_ledger(epsilon=3.0, delta=1e-6)
    drawn: list[int] = []

    def record(q: MollifiedExpFamily, plan: object, num_draws: int, **options: object) -> Tensor:
        assert sum(charge.num_draws for charge in ledger.charges("clinic")) == num_draws
        drawn.append(num_draws)
        return torch.zeros(num_draws, 4, 2)

    monkeypatch.setattr(releasing, "draw_rows", record)
    with pytest.raises(BudgetExceededError, match=r"num_draws must be at most 1 .* A draw .* is a batch of 4 rows\."):
        release(q, 8, ledger, "clinic", path=tmp_path / "rows.csv")
    with pytest.raises(ValueError, match="num_rows must be a multiple of 4, .* got num_rows=6"):
        release(q, 6, ledger, "clinic", path=tmp_path / "rows.csv")
    assert (drawn, ledger.charges("clinic"), list(tmp_path.iterdir())) == ([], [], [])
    assert len(release(q, 4, ledger, "clinic").rows) == 4
    with pytest.raises(BudgetExceededError):
        release(q, 4, ledger, "clinic")
    assert drawn == [1]


def test_a_refusal_of_single_rows_counts_rows(ledger: Ledger) -> None:
    with pytest.raises(BudgetExceededError, match="^num_rows must be at most 10 in account .*got num_rows=11"):
        release(make_density(normal(2)), 11, ledger, "clinic")


def test_an_interrupt_leaves_a_charge_and_no_rows(
    roomy: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(*arguments: object, **options: object) -> Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(releasing, "draw_rows", interrupt)
    with pytest.raises(KeyboardInterrupt):
        release(make_batch(normal(2), 4), 8, roomy, "clinic", path=tmp_path / "rows.csv")
    assert [charge.num_draws for charge in roomy.charges("clinic")] == [2]
    assert list(tmp_path.iterdir()) == []


class _Hostile(nn.Module):
    """Statistics at an end of their bounds, NaN or infinite, from row to row."""

    def forward(self, value: Tensor) -> Tensor:
        first = value[..., :1]
        wild = torch.where(first > 1, torch.nan, torch.where(first > 0, 1e30, -1e30))
        return torch.where(first < -1, -torch.inf, wild)


def test_a_hostile_density_never_exceeds_its_bounds(make_ledger: Callable[..., Ledger]) -> None:
    """Attack: batches of a density with wild statistics are no likelier, against the base, than epsilon allows."""
    base = normal(1)
    q = MollifiedExpFamily(RowBatch(base, 3), _Hostile(), torch.tensor([1e6]), 0.0, bounds=make_batch(base, 3).bounds)
    batches = q.base.sample(torch.Size([8000]))
    tilts = q.accepted_tilt(batches)
    assert bool(((tilts >= q.bounds.low) & (tilts <= q.bounds.high)).all())
    assert tilts.max() - tilts.min() == pytest.approx(q.bounds.width)  # it does go to both ends
    positive = (batches.squeeze(-1) > 0).sum(-1)
    drawn = releasing.draw_rows(q, releasing.plan_draws(q), 8000, progress=False)
    drawn_positive = (drawn.squeeze(-1) > 0).sum(-1)
    for number in range(4):
        share, public = float((drawn_positive == number).double().mean()), math.comb(3, number) / 8
        error = 5 * math.sqrt(0.25 / 8000) / public
        assert abs(share / public) <= math.exp(q.bounds.width) * (1 + error)
        assert share / public >= math.exp(-q.bounds.width) * (1 - error)
    assert int(positive.max()) == 3


@pytest.mark.slow
def test_rows_of_a_batch_follow_the_density(make_ledger: Callable[..., Ledger]) -> None:
    """Two-sample test of the mean of a batch and of its rows, level 1e-9."""
    q = make_batch(dist.Normal(0.0, 1.0), 4, epsilon=3.0, gain=10.0)
    ledger = make_ledger(epsilon=1e5, delta=1e-6)
    rows = release(q, 8000, ledger, "clinic", progress=False).rows["x"].to_numpy().reshape(2000, 4)
    exact = q.sample((10_000,)).numpy()
    assert stats.ks_2samp(rows.mean(1), exact.mean(1)).pvalue > 1e-9
    assert stats.ks_2samp(rows.ravel(), exact.ravel()).pvalue > 1e-9


@pytest.fixture
def fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the ledgers' date from changing between two releases."""
    monkeypatch.setattr(ledger_module, "_now", lambda: datetime(2026, 1, 31, 12, tzinfo=UTC))


class TestCard:
    @pytest.mark.usefixtures("fixed_clock")
    def test_two_tables_have_one_card(
        self, make_ledger: Callable[..., Ledger], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Attack: two tables whose draws coincide differ in no byte of card, page or rows."""
        draws = torch.randn(2, 3, 2)
        monkeypatch.setattr(releasing, "draw_rows", lambda *arguments, **options: draws)
        written = []
        for gain in (0.1, 40.0):
            folder = tmp_path / str(gain)
            folder.mkdir()
            q, ledger = make_batch(normal(2), 3, gain=gain), make_ledger(delta=1e-6)
            released = release(q, 6, ledger, "clinic", path=folder / "rows.csv", who="w")
            written.append([entry.read_bytes() for entry in sorted(folder.iterdir())] + [repr(released.card)])
        assert written[0] == written[1]

    @pytest.mark.parametrize("batches", [1, 2])
    def test_it_has_a_price_for_a_batch_and_none_for_a_row(self, batches: int, roomy: Ledger, tmp_path: Path) -> None:
        q = make_batch(SCHEMA.base(), 5, epsilon=3.0)
        card = release(q, 5 * batches, roomy, "clinic", path=tmp_path / "rows.csv").card
        assert json.loads((tmp_path / "rows.card.json").read_text()) == card
        assert "guarantee_of_one_row" not in card
        assert card["guarantee_of_one_batch"]["epsilon"] == 3.0
        assert (card["batches"]["number"], card["batches"]["rows_of_each"]) == (batches, 5)
        assert card["title"] == f"{5 * batches} rows released under integral privacy"
        page, text = unescape((tmp_path / "rows.card.html").read_text()), card_text(card)
        for shown in (page, text):
            shown = " ".join(shown.replace("\u00a0", " ").split())
            assert "One batch, one price" in shown
            assert card["batches"]["text"] in shown
            assert "one batch of 5 rows" in shown
            assert "ε = 3 covers the whole batch" in shown
            assert "That the rows of a batch are independent of one another." in shown
            assert "for every batch, whatever" in shown
            assert "one row" not in shown.lower()
            assert "3 a row" not in shown

    def test_single_rows_have_the_old_fields(self, ledger: Ledger) -> None:
        card = release(make_density(normal(2)), 2, ledger, "clinic").card
        assert "batches" not in card and "guarantee_of_one_batch" not in card
        assert card["guarantee_of_one_row"]["epsilon"] == 1.0
        assert "batch" not in card_text(card).lower()

    @pytest.mark.parametrize("number", [1, 3])
    def test_words(self, number: int) -> None:
        text = batches_in_words(number, 1, 2.5)
        assert "1 row" in text and "1 rows" not in text and "ε = 2.5" in text
        assert ("together" in text) == (number == 1)


@pytest.mark.parametrize("num_rows", [1, 2, 5, 20])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("skew", [0.05, 0.3, 0.5, 0.84, None])
def test_likeness_is_true_of_the_worst_batches(skew: float | None, epsilon: float, num_rows: int) -> None:
    """Attack: over coins, batches with the most heads are made as much likelier as the guarantee allows."""
    width = epsilon / 2 if skew is None else epsilon
    heads = np.arange(num_rows + 1)
    for chance in (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98):
        base = stats.binom.pmf(heads, num_rows, chance)
        for first in range(1, num_rows + 1):
            up = heads >= first
            if skew is None:
                ratio = np.where(up, math.exp(width), 1.0) / (base * np.where(up, math.exp(width), 1.0)).sum()
            else:
                low, high = math.exp(-skew * width), math.exp((1 - skew) * width)
                mass, rest = base[up].sum(), base[~up].sum()
                # These up as far, or the others down as far, as a mean of 1 allows.
                lift = (1 - rest * low) / mass
                ratio = np.where(up, high, (1 - mass * high) / rest) if lift > high else np.where(up, lift, low)
            law = base * ratio
            of_row = abs((law * heads).sum() / num_rows - chance)  # the total variation of two coins
            calibrated = skew is not None
            assert of_row <= row_distance(epsilon, skew or 0.5, num_rows, calibrated=calibrated) + 1e-9
            of = likeness(
                releasing.Guarantee(epsilon),
                skew=skew,
                fresh_chains=False,
                where="the base",
                rows_of_batch=num_rows,
            )
            assert of["of_100_rows"] <= 100 * (1 - of_row)
            assert of["of_100_batches"] <= 100 * (1 - 0.5 * np.abs(law - base).sum()) + 1e-6
            assert of["of_100_rows"] >= of["of_100_batches"]


def test_last_states_of_fresh_chains(roomy: Ledger) -> None:
    q = make_batch(normal(2), 4)
    released = release(q, 8, roomy, "clinic", num_steps=20)
    assert released.card["guarantee_of_one_batch"]["epsilon"] == pytest.approx(2 * q.bounds.width)
    assert released.rows.shape == (8, 2)


def test_a_seed_gives_the_same_batches(roomy: Ledger) -> None:
    q = make_batch(normal(2), 4)
    with pytest.warns(UserWarning, match="not private"):
        first = release(q, 8, roomy, "clinic", seed=5)
    with pytest.warns(UserWarning, match="not private"):
        pd.testing.assert_frame_equal(first.rows, release(q, 8, roomy, "clinic", seed=5).rows)
    assert not first.rows.iloc[:4].reset_index(drop=True).equals(first.rows.iloc[4:].reset_index(drop=True))
