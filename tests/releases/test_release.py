"""Releases: paid for before drawn, drawn as asked, nothing handed out that is not covered."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import torch
from densities import BASES, density_over, make_density, normal
from scipy import stats
from torch import Tensor, nn

from pyro_mbde import (
    BudgetExceededError,
    DensityRatio,
    Ledger,
    MollifiedExpFamily,
    WeakLearner,
    exact_posterior,
    fresh_chains,
    release,
    run_mcmc,
)
from pyro_mbde.ledger import ledger as ledger_module
from pyro_mbde.releases import release as releasing


@pytest.fixture
def watched(ledger: Ledger) -> Mock:
    """The ledger, every call to which is noted."""
    return Mock(wraps=ledger)


def test_rows_and_charge(plane: MollifiedExpFamily, ledger: Ledger) -> None:
    released = release(plane, 7, ledger, "clinic", purpose="a look", who="owner", columns=["height", "weight"])
    assert list(released.rows.columns) == ["height", "weight"]
    assert released.rows.shape == (7, 2)
    assert ledger.charges("clinic") == [released.charge]
    assert (released.charge.fingerprint, released.charge.num_draws) == (plane.fingerprint, 7)
    assert (released.charge.guarantee, released.charge.purpose) == (plane.guarantee, "a look")
    assert released.card["account"]["spent"]["epsilon"] == released.card["cost_of_this_release"]["epsilon"] == 7.0
    assert released.card["account"]["epsilon_left"] == 3.0
    assert plane.fingerprint not in repr(released)
    assert ledger.verify().ok


@pytest.mark.parametrize("name", sorted(BASES))
def test_every_base(name: str, ledger: Ledger, tmp_path: Path) -> None:
    """Rows are of its support, and the card is JSON."""
    density = density_over(name)
    try:
        released = release(density, 3, ledger, "clinic", path=tmp_path / "rows.csv", progress=False)
    except TypeError as error:  # a base that no file can describe has no fingerprint
        assert name == "masked"
        assert "base must" in str(error)
        assert ledger.charges("clinic") == []
        return
    values = torch.tensor(released.rows.to_numpy()).reshape(3, *density.event_shape)
    assert bool(torch.isfinite(density.log_prob(values)).all())
    assert json.loads((tmp_path / "rows.card.json").read_text()) == released.card


def test_paid_before_drawn(
    plane: MollifiedExpFamily,
    make_ledger: Callable[..., Ledger],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    ledger = make_ledger(epsilon=3.0)
    drawn: list[int] = []

    def record(q: MollifiedExpFamily, plan: object, num_draws: int, **options: object) -> Tensor:
        assert [charge.num_draws for charge in ledger.charges("clinic")] == [num_draws]
        drawn.append(num_draws)
        return torch.zeros(num_draws, 2)

    monkeypatch.setattr(releasing, "draw_rows", record)
    release(plane, 3, ledger, "clinic")
    with pytest.raises(BudgetExceededError):
        release(plane, 1, ledger, "clinic", path=tmp_path / "rows.csv")
    assert drawn == [3]
    assert len(ledger.charges("clinic")) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_a_charge_and_no_rows(
    plane: MollifiedExpFamily, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(*arguments: object, **options: object) -> Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(releasing, "draw_rows", interrupt)
    with pytest.raises(KeyboardInterrupt):
        release(plane, 1, ledger, "clinic", path=tmp_path / "rows.csv")
    assert len(ledger.charges("clinic")) == 1
    assert list(tmp_path.iterdir()) == []


class TestRefused:
    @pytest.fixture
    def refuse(self, watched: Mock) -> Callable[[object, str], None]:
        """Checks that a release is refused before the ledger is asked anything."""

        def check(q: object, reason: str) -> None:
            with pytest.raises(TypeError, match=reason):
                release(q, 3, watched, "clinic")  # type: ignore[arg-type]
            assert watched.mock_calls == []

        return check

    def test_chains(self, plane: MollifiedExpFamily, refuse: Callable[[object, str], None]) -> None:
        for kernel in ("random_walk", "hmc"):
            chains = run_mcmc(plane, kernel=kernel, num_samples=5, warmup_steps=5, num_chains=1, progress=False)
            refuse(chains, "got a Chains.*A chain's states are not private.*num_steps")
            refuse(chains.draws, "From numbers nobody can tell")

    def test_draws_that_are_made(self, plane: MollifiedExpFamily, refuse: Callable[[object, str], None]) -> None:
        refuse(fresh_chains(plane, 3, 5, progress=False), "charged before they are made")
        refuse(plane.sample((3,)), "got a Tensor.*nobody can tell")
        refuse(np.zeros((3, 2)), "nobody can tell")
        refuse(pd.DataFrame({"a": [1.0]}), "nobody can tell")

    def test_what_has_no_guarantee(self, refuse: Callable[[object, str], None]) -> None:
        refuse(normal(2), "carry no integral-privacy guarantee")
        learner = WeakLearner(hidden_sizes=(4,), num_frequencies=0, num_steps=1, batch_size=None)
        ratio = DensityRatio(normal(2), weak_learner=learner, ensemble_size=1, progress=False).fit(torch.randn(20, 2))
        refuse(ratio, "learned ratio has no bound.*mollify")
        refuse("q", "Pass what MBDE.fit")

    def test_what_has_no_name(self, ledger: Ledger) -> None:
        class Own(nn.Module):
            def forward(self, value: Tensor) -> Tensor:
                return value[..., :1]

        density = MollifiedExpFamily(normal(2), Own(), torch.tensor([0.1]), 0.0)
        with pytest.raises(TypeError, match="statistics must be of this library"):
            release(density, 3, ledger, "clinic")
        assert ledger.charges("clinic") == []

    def test_arguments(self, plane: MollifiedExpFamily, ledger: Ledger, watched: Mock, tmp_path: Path) -> None:
        for error, match, options in (
            (ValueError, "columns must be 2 as a row of q has", {"columns": ["a"]}),
            (ValueError, "differ from one another", {"columns": ["a", "a"]}),
            (ValueError, "be printable", {"columns": ["a", "b\n"]}),
            (TypeError, "columns must be a list of strings", {"columns": "ab"}),
            (TypeError, "columns must be a list of strings", {"columns": [1, 2]}),
            (TypeError, "purpose must be a string", {"purpose": 3}),
            (TypeError, "who must be a string", {"who": 3}),
            (TypeError, "path must be a path", {"path": 3}),
            (ValueError, "path must end in .csv or .parquet", {"path": tmp_path / "rows.txt"}),
            (FileNotFoundError, "folder that exists", {"path": tmp_path / "no" / "rows.csv"}),
            (ValueError, "num_steps must be at least 0", {"num_steps": -1}),
            (TypeError, "constant_time must be True or False", {"constant_time": "yes"}),
            (ValueError, "seed must be at least 0", {"seed": -1}),
        ):
            with pytest.raises(error, match=match):
                release(plane, 3, watched, "clinic", **options)
        for count, kind in ((0, ValueError), (2.0, TypeError), (True, TypeError)):
            with pytest.raises(kind, match="num_rows must be"):
                release(plane, count, watched, "clinic")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="q must have an empty batch shape"):
            release(plane.expand([3]), 3, watched, "clinic")
        with pytest.raises(ValueError, match="num_rows must be at most .* in constant time"):
            release(plane, 10, watched, "clinic", num_steps=10**9)
        with pytest.raises(ValueError, match="num_rows must be at most .* in constant time"):
            release(make_density(normal(2), epsilon=60.0, num_rounds=30), 3, watched, "clinic")
        assert watched.mock_calls == []
        with pytest.raises(ValueError, match=r"name must be that of an account \('clinic'\)"):
            release(plane, 3, ledger, "other")
        assert ledger.charges("clinic") == []
        assert list(tmp_path.iterdir()) == []


class TestWaysOfDrawing:
    def test_default_is_constant_time(self, plane: MollifiedExpFamily, ledger: Ledger) -> None:
        draws = release(plane, 3, ledger, "clinic").card["draws"]
        assert draws["fixed_work"]
        assert draws["num_proposals"] == 40
        assert "cryptographic" in draws["randomness"]

    def test_exact(self, plane: MollifiedExpFamily, ledger: Ledger) -> None:
        card = release(plane, 3, ledger, "clinic", constant_time=False).card
        assert not card["draws"]["fixed_work"]
        assert any("may depend on the table" in limit for limit in card["does_not_promise"])

    def test_last_states_of_fresh_chains(self, plane: MollifiedExpFamily, ledger: Ledger) -> None:
        released = release(plane, 4, ledger, "clinic", num_steps=20)
        assert released.charge.guarantee == fresh_chains(plane, 1, 1, progress=False).guarantee
        assert released.card["guarantee_of_one_row"]["log_ratio_range"] == 2.0
        assert released.card["draws"]["num_steps"] == 20
        assert released.rows.shape == (4, 2)

    def test_a_base_without_inverse_is_told(self, ledger: Ledger) -> None:
        draws = release(density_over("gamma"), 3, ledger, "clinic").card["draws"]
        assert "whose whole state the system fills again" in draws["randomness"]

    def test_an_exact_posterior(self, ledger: Ledger) -> None:
        prior = make_density(dist.Normal(0.0, 1.0))
        posterior = exact_posterior(prior, dist.Normal(0.5, 0.5**0.5))
        released = release(posterior, 2, ledger, "clinic")
        assert released.card["guarantee_of_one_row"]["epsilon"] == posterior.guarantee.epsilon
        assert released.card["density"]["base_text"] == "Normal(loc=0.5, scale=0.707107)"

    def test_a_seed_is_reported_everywhere(self, plane: MollifiedExpFamily, ledger: Ledger, tmp_path: Path) -> None:
        with pytest.warns(UserWarning, match="not private"):
            first = release(plane, 3, ledger, "clinic", seed=5, path=tmp_path / "rows.csv")
        with pytest.warns(UserWarning, match="not private"):
            second = release(plane, 3, ledger, "clinic", seed=5)
        pd.testing.assert_frame_equal(first.rows, second.rows)
        assert first.card["test_only"]
        assert "TEST ONLY" in (tmp_path / "rows.card.html").read_text()

    def test_rows_follow_the_density(self, make_ledger: Callable[..., Ledger]) -> None:
        """Two-sample test of each coordinate, level 1e-9."""
        density = make_density(normal(2), epsilon=3.0, num_rounds=1, gain=30.0)  # far from the base
        rows = release(density, 1500, make_ledger(epsilon=1e5), "clinic", progress=False).rows
        exact = density.sample((20_000,))
        for index in range(2):
            assert stats.ks_2samp(rows.iloc[:, index], exact[:, index].numpy()).pvalue > 1e-9


def test_a_card_that_cannot_be_made_costs_nothing(
    plane: MollifiedExpFamily, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(card: object) -> bytes:
        raise RuntimeError("template")

    monkeypatch.setattr(releasing, "card_page", fail)
    with pytest.raises(RuntimeError, match="template"):
        release(plane, 1, ledger, "clinic")
    assert ledger.charges("clinic") == []


def test_a_progress_bar_that_cannot_be_written_costs_no_rows(
    plane: MollifiedExpFamily, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are paid for by then."""
    draw, asked = releasing.draw_rows, []

    def unwritten(*words: Any, progress: bool, **options: Any) -> torch.Tensor:
        asked.append(progress)
        if progress or len(asked) > 2:
            raise BrokenPipeError
        return draw(*words, progress=progress, **options)

    monkeypatch.setattr(releasing, "draw_rows", unwritten)
    assert len(release(plane, 2, ledger, "clinic").rows) == 2
    assert asked == [True, False]
    assert [charge.num_draws for charge in ledger.charges("clinic")] == [2]
    with pytest.raises(BrokenPipeError):
        release(plane, 2, ledger, "clinic", progress=False)


def test_the_date_is_that_of_the_charge(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    q, when = make_density(normal(1)), datetime(2026, 1, 31, 23, 59, tzinfo=UTC)
    monkeypatch.setattr(ledger_module, "_now", lambda: when)
    released = release(q, 1, ledger, "clinic")
    assert (released.charge.when, released.card["date"]) == (when, "2026-01-31")


def test_a_line_says_what_was_released(plane: MollifiedExpFamily, ledger: Ledger) -> None:
    released = release(plane, 3, ledger, "clinic", columns=["age", "weight"], progress=False)
    assert repr(released) == "Release(3 rows of age, weight; epsilon=3, account='clinic')"
    assert "\n" not in repr(released) and plane.fingerprint not in repr(released)
