"""Releases: paid for before drawn, written whole or not at all, nothing handed out that is not covered."""

from __future__ import annotations

import os
import pickle
import re
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
from densities import BASES, make_density, normal
from scipy import stats
from torch import Tensor, nn

from pyro_mbde import (
    BoundedClassifiers,
    BudgetExceededError,
    Column,
    DensityRatio,
    Ledger,
    MollifiedExpFamily,
    Schema,
    UnwrittenReleaseError,
    WeakLearner,
    exact_posterior,
    fresh_chains,
    private_report,
    release,
    run_mcmc,
)
from pyro_mbde.ledger import ledger as ledger_module
from pyro_mbde.releases import release as releasing
from pyro_mbde.releases import writing as files
from pyro_mbde.releases.columns import released_columns
from pyro_mbde.releases.writing import write_together
from pyro_mbde.tables.files import TableModel


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
def test_every_base(name: str, ledger: Ledger) -> None:
    density = make_density(BASES[name]())
    try:
        released = release(density, 3, ledger, "clinic", progress=False)
    except TypeError as error:  # a base that no file can describe has no fingerprint
        assert "base must" in str(error)
        assert ledger.charges("clinic") == []
        return
    values = torch.tensor(released.rows.to_numpy()).reshape(3, *density.event_shape)
    assert bool(torch.isfinite(density.log_prob(values)).all())


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
            with pytest.raises(kind, match="num_draws must be"):
                release(plane, count, watched, "clinic")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="q must have an empty batch shape"):
            release(plane.expand([3]), 3, watched, "clinic")
        with pytest.raises(ValueError, match="num_draws must be at most .* in constant time"):
            release(plane, 10, watched, "clinic", num_steps=10**9)
        with pytest.raises(ValueError, match="num_draws must be at most .* in constant time"):
            release(make_density(normal(2), epsilon=60.0, num_rounds=30), 3, watched, "clinic")
        assert watched.mock_calls == []
        with pytest.raises(ValueError, match=r"name must be that of an account \('clinic'\)"):
            release(plane, 3, ledger, "other")
        assert ledger.charges("clinic") == []
        assert list(tmp_path.iterdir()) == []


class TestFiles:
    def test_csv(self, plane: MollifiedExpFamily, ledger: Ledger, tmp_path: Path) -> None:
        released = release(plane, 5, ledger, "clinic", path=tmp_path / "rows.csv", columns=["a", "b"])
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["rows.card.html", "rows.card.json", "rows.csv"]
        read = pd.read_csv(tmp_path / "rows.csv", dtype=np.float32)
        pd.testing.assert_frame_equal(read, released.rows)

    def test_parquet(self, plane: MollifiedExpFamily, ledger: Ledger, tmp_path: Path) -> None:
        pytest.importorskip("pyarrow")
        released = release(plane, 5, ledger, "clinic", path=str(tmp_path / "rows.parquet"))
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "rows.parquet"), released.rows)

    def test_without_pyarrow(
        self, plane: MollifiedExpFamily, watched: Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "find_spec", lambda name: None)
        with pytest.raises(ImportError, match=re.escape("pip install 'pyro_mbde[parquet]'")):
            release(plane, 5, watched, "clinic", path=tmp_path / "rows.parquet")
        assert watched.mock_calls == []

    @pytest.mark.parametrize("name", ["rows.csv", "rows.card.json", "rows.card.html"])
    def test_nothing_is_overwritten(self, plane: MollifiedExpFamily, watched: Mock, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_text("mine")
        with pytest.raises(FileExistsError, match="A release is never overwritten"):
            release(plane, 1, watched, "clinic", path=tmp_path / "rows.csv")
        assert watched.mock_calls == []
        assert (tmp_path / name).read_text() == "mine"

    def test_a_file_that_appears_meanwhile(
        self, plane: MollifiedExpFamily, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rows that are paid for are not lost, and no card is left without them."""

        def draw(q: MollifiedExpFamily, plan: object, num_draws: int, **options: object) -> Tensor:
            (tmp_path / "rows.csv").write_text("another's")
            return torch.zeros(num_draws, 2)

        monkeypatch.setattr(releasing, "draw_rows", draw)
        with pytest.raises(UnwrittenReleaseError, match="paid for and drawn, but were not written") as caught:
            release(plane, 2, ledger, "clinic", path=tmp_path / "rows.csv")
        assert caught.value.release.rows.shape == (2, 2)
        assert ledger.charges("clinic") == [caught.value.release.charge]
        assert [entry.name for entry in tmp_path.iterdir()] == ["rows.csv"]
        assert (tmp_path / "rows.csv").read_text() == "another's"

    @pytest.mark.parametrize("fails_at", range(3))
    @pytest.mark.parametrize("call", ["fsync", "link"])
    def test_all_or_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int, call: str) -> None:
        real, count = getattr(os, call), iter(range(100))

        def fail(*arguments: object) -> None:
            if next(count) == fails_at:
                raise KeyboardInterrupt
            real(*arguments)

        monkeypatch.setattr(files.os, call, fail)
        with pytest.raises(KeyboardInterrupt):
            write_together([(tmp_path / name, b"x") for name in "abc"])
        assert list(tmp_path.iterdir()) == []

    def test_file_systems_without_links(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*arguments: object) -> None:
            raise PermissionError("no links here")

        monkeypatch.setattr(files.os, "link", refuse)
        write_together([(tmp_path / name, name.encode()) for name in "ab"])
        assert [(tmp_path / name).read_text() for name in "ab"] == ["a", "b"]
        with pytest.raises(FileExistsError):
            write_together([(tmp_path / name, b"x") for name in "cab"])
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a", "b"]
        assert (tmp_path / "a").read_text() == "a"

    def test_a_folder_that_cannot_be_written_to(
        self, plane: MollifiedExpFamily, watched: Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*arguments: object) -> int:
            raise PermissionError("read-only")

        monkeypatch.setattr(files.os, "open", refuse)
        with pytest.raises(PermissionError):
            release(plane, 1, watched, "clinic", path=tmp_path / "rows.csv")
        assert watched.mock_calls == []


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
        draws = release(make_density(BASES["gamma"]()), 3, ledger, "clinic").card["draws"]
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
        """Two-sample test of each coordinate, level 1e-6."""
        density = make_density(normal(2), epsilon=3.0)
        rows = release(density, 4000, make_ledger(epsilon=1e5), "clinic", progress=False).rows
        exact = density.sample((20_000,))
        for index in range(2):
            assert stats.ks_2samp(rows.iloc[:, index], exact[:, index].numpy()).pvalue > 1e-6


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("uniform-scalar", [(-1.0, 3.0, False)]),
        ("uniform-box", [(0.0, 1.0, False), (10.0, 30.0, False)]),
        ("normal-2d", [(None, None, False)] * 2),
        ("mixture-2d", [(None, None, False)] * 2),
        ("gamma", [(0.0, None, False)]),
        ("logit-normal", [(0.0, 1.0, False)]),
        ("dirichlet", [(0.0, 1.0, False)] * 3),
        ("poisson", [(0.0, None, True)]),
        ("categorical", [(0.0, 3.0, True)]),
        ("bernoulli-3d", [(0.0, 1.0, True)] * 3),
        ("one-hot", [(0.0, 1.0, True)] * 3),
    ],
)
def test_public_ranges(name: str, expected: list[object]) -> None:
    columns = released_columns(make_density(BASES[name]()), None)
    assert [tuple(column)[1:4] for column in columns] == expected


def test_names_of_columns() -> None:
    assert [column.name for column in released_columns(make_density(normal(2)), None)] == ["x0", "x1"]
    assert [column.name for column in released_columns(make_density(dist.Normal(0.0, 1.0)), None)] == ["x"]


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


class TestSchema:
    SCHEMA = Schema((Column("age", 0, 110, kind="integer"), Column("weight", 1, 300, decimals=1)))

    def test_rows_in_the_tables_own_units(self, make_ledger: Callable[..., Ledger]) -> None:
        q, ledger = make_density(self.SCHEMA.base()), make_ledger(epsilon=1e3)
        released = release(q, 8, ledger, "clinic", columns=self.SCHEMA, progress=False)
        assert list(released.rows) == ["age", "weight"]
        assert released.rows["age"].dtype.kind == "i"
        assert released.rows["age"].between(0, 110).all()
        assert (released.rows["weight"].mul(10).round() == released.rows["weight"] * 10).all()
        ranges = [tuple(column.values()) for column in released.card["columns"]]
        assert ranges == [("age", 0.0, 110.0, True, "linear", None), ("weight", 1.0, 300.0, False, "linear", 1)]

    @pytest.mark.parametrize("way", ["model file", "own file", "converted", "pickled", "copied twice", "mollified"])
    def test_a_density_knows_its_table(self, way: str, make_ledger: Callable[..., Ledger], tmp_path: Path) -> None:
        """Attack: whatever way it came, no rows leave in the units that columns are modelled in."""
        schema = Schema((Column("smoker", 0, 1, "integer"), Column("visits", 0, 99, "integer", "log1p")))
        q, path = make_density(schema.base()), tmp_path / "q.pt"
        box: Any = q.support
        plain = dist.Uniform(box.base_constraint.lower_bound, box.base_constraint.upper_bound)
        if way == "model file":
            TableModel(make_density(plain.to_event(1)), schema).save(path)
            q = MollifiedExpFamily.load(path)
        elif way in ("own file", "copied twice"):
            q.save(path)
            for _ in range(2 if way == "copied twice" else 1):
                q = MollifiedExpFamily.load(path)
                q.save(path)
            assert TableModel.load(path).schema == schema
        elif way == "converted":
            q = q.to(torch.float64).to(torch.float32)
        elif way == "pickled":
            q = pickle.loads(pickle.dumps(q))
        else:
            q = DensityRatio(schema.base(), ensemble_size=1, progress=False).fit(schema.base().sample((50,))).mollify(1)
        released = release(q, 20, make_ledger(epsilon=1e3, delta=1e-6), "clinic", progress=False)
        assert list(released.rows) == ["smoker", "visits"]
        assert set(released.rows["smoker"]) == {0, 1}
        assert released.rows["visits"].between(0, 99).all() and released.rows["visits"].max() > 5
        assert [column["scale"] for column in released.card["columns"]] == ["linear", "log1p"]
        assert private_report(q)["comparison"]["columns"][1]["name"] == "visits"

    @pytest.mark.parametrize("names", [["a", "b"], ["weight", "age"], ["age"], "ab"])
    def test_names_take_no_schemas_place(self, names: Any, ledger: Ledger) -> None:
        q = make_density(self.SCHEMA.base())
        with pytest.raises(ValueError, match=r"columns must be those of .*\['age', 'weight'\].*Leave columns out"):
            release(q, 1, ledger, "clinic", columns=names)
        assert ledger.charges("clinic") == []
        rows = release(q, 1, ledger, "clinic", columns=["age", "weight"], progress=False).rows
        assert rows["age"].dtype.kind == "i"

    def test_columns_of_one_range_do_not_change_places(self, ledger: Ledger) -> None:
        first = Schema((Column("smoker", 0, 1, "integer"), Column("sex", 0, 1, "integer")))
        with pytest.raises(ValueError, match="columns must be the schema that the density's base was made from"):
            release(make_density(first.base()), 1, ledger, "clinic", columns=Schema(first.columns[::-1]))

    @pytest.mark.parametrize(
        "columns",
        [
            [Column("age", 0, 110, kind="integer")],
            [Column("age", 0, 110, kind="integer"), Column("weight", 1, 301, decimals=1)],
        ],
    )
    def test_another_schema_is_refused_before_a_charge(self, columns: list[Column], ledger: Ledger) -> None:
        q = make_density(self.SCHEMA.base())
        with pytest.raises(ValueError, match="columns must be the schema that the density's base was made from"):
            release(q, 1, ledger, "clinic", columns=Schema(tuple(columns)), progress=False)
        assert ledger.charges("clinic") == []

    def test_ranges_are_compared_by_their_width(self, ledger: Ledger) -> None:
        first, second = (Schema((Column("time", 1600000000 + start, 1600000100),)) for start in (0, 50))
        q = MollifiedExpFamily(first.base(), BoundedClassifiers(1, 1).double(), torch.tensor([0.1]), 0.0)
        with pytest.raises(
            ValueError, match="got 1600000050 for the lower edge of 'time', of which the base has 1600000000"
        ):
            release(q, 1, ledger, "clinic", columns=second, progress=False)
        rows = release(q, 2, ledger, "clinic", columns=first, progress=False).rows
        assert rows["time"].between(1600000000, 1600000100, inclusive="neither").all()


def test_a_line_says_what_was_released(plane: MollifiedExpFamily, ledger: Ledger) -> None:
    released = release(plane, 3, ledger, "clinic", columns=["age", "weight"], progress=False)
    assert repr(released) == "Release(3 rows of age, weight; epsilon=3, account='clinic')"
    assert "\n" not in repr(released) and plane.fingerprint not in repr(released)


def test_what_a_killed_release_left_is_removed_by_the_next(
    plane: MollifiedExpFamily, make_ledger: Callable[..., Ledger], tmp_path: Path
) -> None:
    """Of its own name and an hour old: another may be at work on a young one, and other files are not ours."""
    random, hour_ago = "0123456789abcdef", datetime.now(UTC).timestamp() - 4000
    stale = [tmp_path / f".r.{kind}.{random}.tmp" for kind in ("csv", "card.html", "card.json")]
    kept = [tmp_path / name for name in (f".s.csv.{random}.tmp", ".r.csv.tmp", f".r.csv.{random}.tmp.bak", "r.csv.tmp")]
    for path in (*stale, *kept):
        path.write_text("")
        os.utime(path, (hour_ago, hour_ago))
    young = tmp_path / f".r.csv.{random[::-1]}.tmp"
    young.write_text("")
    release(plane, 1, make_ledger(), "clinic", path=tmp_path / "r.csv", progress=False)
    assert not any(path.exists() for path in stale)
    assert all(path.exists() for path in (*kept, young))
