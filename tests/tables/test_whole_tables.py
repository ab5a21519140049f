"""Tables with columns of all kinds, from a frame to released rows: what is drawn is a table that the schema allows."""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from densities import scale_calibration
from hostile_scores import HOSTILE, density_of

from pyro_mbde import Column, DensityRatio, FitWarning, Ledger, LogRatio, Schema, release
from pyro_mbde.density.base import PreparedBase
from pyro_mbde.density.base_draws import SystemSource, system_generator
from pyro_mbde.sampling.constant_time import constant_time_draws
from pyro_mbde.sampling.private import private_draws
from pyro_mbde.tables.files import TableModel, read_table
from pyro_mbde.training.weak_learner import WeakLearner

QUICK = WeakLearner(hidden_sizes=(16,), num_steps=20, batch_size=128)
WARDS, STAGES = ["Medicine", "Surgery, day", "Maternity", "größe \u2603"], ["I", "II", "III"]
PATIENTS = Schema(
    (
        Column("age", 0, 110, "integer", mean=48, sd=22),
        Column("income", 0, 250_000, scale="log1p", decimals=2, quantiles={0.5: 20_000, 0.9: 60_000}),
        Column("rent", 0, 90_000, scale="log1p", decimals=-1),
        Column("weight", 1, 300, decimals=1, mean=70, sd=20, missing="level", missing_share=0.2),
        Column("score", -1, 1, missing="level"),
        Column("visits", 0, 99, "integer", "log1p", missing="level"),
        Column("ward", kind="category", levels=WARDS, shares=dict(zip(WARDS, [0.4, 0.3, 0.2, 0.1], strict=True))),
        Column("stage", kind="ordered", levels=STAGES, missing="level", missing_share=0.3),
        Column("smoker", kind="boolean", shares={False: 0.8, True: 0.2}),
        Column("insured", kind="boolean", missing="level"),
        Column("admitted", "2020-01", "2024-12", "date", resolution="month"),
        Column("left", "2020-01-01", "2025-06-30", "date", missing="level"),
        Column("seen", "2020-01-01", "2024-12-31 23:00", "datetime", resolution="hour"),
    ),
    correlations=({"columns": ["age", "weight"], "value": 0.3}, {"columns": ["income", "rent"], "value": 0.6}),
    constraints=(
        "rent <= income / 2",
        "left >= admitted + 31",
        "not smoker and weight <= 20.3 + 5 * age where age < 14",
    ),
    condition="ward != Maternity and stage >= II",
)
NAMES = list(PATIENTS.names)
DTYPES = {
    **dict.fromkeys(["age"], "int64"),
    **dict.fromkeys(["income", "rent", "weight", "score"], "float64"),
    **{"visits": "Int64", "ward": "category", "stage": "category", "smoker": "bool", "insured": "boolean"},
    **dict.fromkeys(["admitted", "left", "seen"], "datetime64[s]"),
}


def patients(num_rows: int, seed: int = 0) -> pd.DataFrame:
    """A table as its owner has it, whose rows satisfy all that the schema says, far from what the base expects."""
    random = np.random.default_rng(seed)
    age = random.integers(20, 60, num_rows)
    income = random.gamma(4, 5000, num_rows).clip(100, 2e5).round(2)
    admitted = pd.Timestamp("2021-01-01") + pd.to_timedelta(random.integers(0, 700, num_rows), unit="D")
    stage = random.choice(["II", "III"], num_rows, p=[0.9, 0.1])
    return pd.DataFrame(
        {
            "name": "somebody",
            "age": age,
            "income": income,
            "rent": (income * random.uniform(0, 0.4, num_rows)).round(-1),
            "weight": np.where(random.random(num_rows) < 0.5, np.nan, (60 + age / 4).round(1)),
            "score": random.beta(5, 2, num_rows),
            "visits": pd.array(random.poisson(3, num_rows), dtype="Int64"),
            "ward": pd.Categorical(random.choice(["Medicine", "größe \u2603"], num_rows)),
            "stage": stage,
            "smoker": age > 40,
            "insured": pd.array(random.choice([True, False], num_rows), dtype="boolean"),
            "admitted": admitted.strftime("%Y-%m"),
            "left": admitted + pd.Timedelta(days=90),
            "seen": admitted + pd.Timedelta(hours=13),
        }
    )


def assert_allowed(frame: pd.DataFrame) -> None:
    """What the schema says of patients, said again in pandas alone."""
    assert dict(frame.dtypes.astype(str)) == DTYPES
    for column in ("age", "income", "rent", "ward", "stage", "smoker", "admitted", "seen"):
        assert not frame[column].isna().any()
    assert frame["ward"].cat.categories.tolist() == WARDS and not frame["ward"].cat.ordered
    assert frame["stage"].cat.categories.tolist() == STAGES and frame["stage"].cat.ordered
    ranges = [("age", 0, 110), ("income", 0, 250_000), ("rent", 0, 90_000), ("weight", 1, 300), ("score", -1, 1)]
    for column, low, high in [*ranges, ("visits", 0, 99)]:
        assert frame[column].dropna().between(low, high).all()
    assert (frame["rent"] % 10 == 0).all()
    assert (frame["income"].round(2) == frame["income"]).all()
    weight = frame["weight"].dropna()
    assert (weight.round(1) == weight).all()
    assert frame["admitted"].between("2020-01-01", "2024-12-01").all() and (frame["admitted"].dt.day == 1).all()
    left = frame["left"].dropna()
    assert left.between("2020-01-01", "2025-06-30").all() and (left.dt.normalize() == left).all()
    assert frame["seen"].between("2020-01-01", "2024-12-31 23:00").all() and (frame["seen"].dt.minute == 0).all()
    assert (frame["rent"] <= frame["income"] / 2).all()
    assert ((frame["left"] >= frame["admitted"] + pd.Timedelta(days=31)) | frame["left"].isna()).all()
    child = frame["age"] < 14
    assert not (child & frame["smoker"]).any()
    assert not (child & (frame["weight"] > 20.3 + 5 * frame["age"])).any()
    assert not (frame["ward"] == "Maternity").any()
    assert (frame["stage"] >= "II").all()


@pytest.fixture(scope="module", autouse=True)
def fewer_draws() -> Iterator[None]:
    """Certificates are proved on fewer draws, which leaves them valid and makes tolerances wider."""
    with pytest.MonkeyPatch.context() as patch:
        scale_calibration(patch, 1 / 64)
        yield


@pytest.fixture(scope="module")
def fitted(fewer_draws: None) -> LogRatio:
    rows = PATIENTS.to_tensor(patients(2000))
    return DensityRatio(PATIENTS.base(), ensemble_size=1, weak_learner=QUICK, seed=0, progress=False).fit(rows)


def test_the_table_itself_is_allowed() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Notes on the table")  # scores have two digits in no cell
        frame = PATIENTS.to_frame(PATIENTS.to_tensor(patients(3000)))
    assert len(frame) == 3000
    assert_allowed(frame)


class TestDrawsDecodeToAllowedRows:
    def test_draws(self, fitted: LogRatio) -> None:
        assert_allowed(PATIENTS.to_frame(private_draws(fitted.mollify(1.0), 1000, progress=False)))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("way", "num_blocks", "num_rows"),
        [
            ("base where nothing is accepted", 1, 20_000),
            ("rejection", 1, 5000),
            ("constant time", 1, 2000),
            ("batches", 1, 2000),
        ],
    )
    def test_many_draws(self, way: str, num_blocks: int, num_rows: int, fitted: LogRatio) -> None:
        """Many in blocks, of the base that all others are accepted from; fewer of these."""
        q = fitted.mollify(1.0, num_rows=20 if way == "batches" else None)
        seen = torch.zeros(len(NAMES), dtype=torch.bool)
        for _ in range(num_blocks):
            if way == "base where nothing is accepted":
                with system_generator():
                    rows = constant_time_draws(SystemSource(q.base), q.accepted_tilt, q.bounds, num_rows, 1)
            else:
                num_draws = num_rows // (20 if way == "batches" else 1)
                rows = private_draws(q, num_draws, constant_time=way == "constant time", progress=False)
            frame = PATIENTS.to_frame(rows)
            assert len(frame) == num_rows
            assert_allowed(frame)
            seen |= torch.tensor([bool(frame[name].isna().any()) for name in NAMES])
        kept = [one.keeps_missing and one.name != "stage" for one in PATIENTS.columns]
        assert seen.tolist() == kept

    def test_constraints_hold_to_the_last_bit(self) -> None:
        """Numbers that are not rounded: what is released is what the constraint was checked on."""
        columns = tuple(Column(name, 0, 1e6, scale="log1p") for name in ("low", "high"))
        rows = (torch.rand(200_000, 1, dtype=torch.float64) * math.log1p(1e6)).float().expand(-1, 2)
        frame = Schema(columns).to_frame(rows)
        for edge in frame["low"].iloc[:50]:
            schema = Schema(columns, constraints=(f"low <= {edge!r}", f"high >= {edge!r}"))
            met = schema._meeting_predicates(rows)[0]
            released = schema.to_frame(met)
            assert (released["low"] == edge).all() and len(released) == (frame["low"] == edge).sum() > 0


class TestReleases:
    @pytest.mark.parametrize("ending", [pytest.param("csv", marks=pytest.mark.slow), "parquet"])
    @pytest.mark.parametrize("rows_of_batch", [None, pytest.param(5, marks=pytest.mark.slow)])
    def test_released_rows_are_a_table_of_the_schema(
        self,
        ending: str,
        rows_of_batch: int | None,
        fitted: LogRatio,
        make_ledger: Callable[..., Ledger],
        tmp_path: Path,
    ) -> None:
        if ending == "parquet":
            pytest.importorskip("pyarrow")
        TableModel(fitted.mollify(1.0, num_rows=rows_of_batch), PATIENTS).save(tmp_path / "model.pt")
        model = TableModel.load(tmp_path / "model.pt")
        assert model.schema == PATIENTS
        path = tmp_path / "released" / f"rows.{ending}"
        path.parent.mkdir()
        ledger = make_ledger(epsilon=100, delta=1e-6)
        released = release(model.density, 40, ledger, "clinic", path=path, progress=False)
        assert_allowed(released.rows)
        read = read_table(path)
        assert list(read) == NAMES
        codes = PATIENTS.to_tensor(released.rows)  # a note would be an error
        assert torch.equal(PATIENTS.to_tensor(read), codes)
        again = PATIENTS.to_frame(PATIENTS.to_tensor(read))
        pd.testing.assert_frame_equal(again, released.rows)
        if ending == "parquet":
            pd.testing.assert_frame_equal(read.astype(DTYPES), released.rows)
            assert {name for name in NAMES if str(read[name].dtype) != DTYPES[name]} <= {"admitted", "left", "seen"}


#: What tables could be that is worst for a fit.
TABLES: dict[str, Callable[[], pd.DataFrame]] = {
    "normal": lambda: patients(400),
    "one row": lambda: patients(1),
    "empty": lambda: patients(400).iloc[:0],
    "constant": lambda: pd.concat([patients(1)] * 400, ignore_index=True),
    "all missing": lambda: patients(400).assign(**dict.fromkeys(NAMES)),
    "missing where that is kept": lambda: patients(400).assign(weight=None, score=np.nan, visits=pd.NA, left=pd.NaT),
    "none meets the condition": lambda: patients(400).assign(ward="Maternity"),
    "all break a constraint": lambda: patients(400).assign(rent=80_000, income=10.0),
    "unknown levels": lambda: patients(400).assign(ward="elsewhere"),
    "all outside": lambda: patients(400).assign(age=-5, income=np.inf, rent=-np.inf, weight=1e9, seen="1066-10-14"),
}


class TestNoTableShows:
    @pytest.mark.parametrize(
        ("names", "rows_of_batch"),
        [
            (("normal", "all missing"), None),
            pytest.param(TABLES, None, marks=pytest.mark.slow),
            pytest.param(TABLES, 3, marks=pytest.mark.slow),
        ],
        ids=["some", "all", "all in batches"],
    )
    def test_public_facts_are_the_same_whatever_the_table(
        self,
        names: Any,
        rows_of_batch: int | None,
        make_ledger: Callable[..., Ledger],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        scale_calibration(monkeypatch, 1 / 4)
        facts = {}
        for name in names:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # notes and FitWarnings, for the owner
                rows = PATIENTS.to_tensor(TABLES[name]())
                fit = DensityRatio(PATIENTS.base(), ensemble_size=1, weak_learner=QUICK, progress=False).fit(rows)
            q = fit.mollify(1.0, num_rows=rows_of_batch)
            ledger = make_ledger(epsilon=30, delta=1e-6)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                released = release(q, 3, ledger, "clinic", progress=False)
            assert_allowed(released.rows)
            assert not said
            card = {key: value for key, value in released.card.items() if key != "date"}
            account = ledger.account("clinic")
            facts[name] = (q.guarantee, q.bounds, q.certificate, repr(q), card, ledger.charges("clinic")[0].spent)
            facts[name] += (account.epsilon,)
        assert all(fact == facts["normal"] for fact in facts.values()), facts

    @pytest.mark.parametrize(
        "name",
        [
            "empty",
            pytest.param("all missing", marks=pytest.mark.slow),
            pytest.param("none meets the condition", marks=pytest.mark.slow),
            "all break a constraint",
        ],
    )
    def test_without_rows_the_density_is_the_base(self, name: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = PATIENTS.to_tensor(TABLES[name]())
        assert rows.shape == (0, len(NAMES))
        with pytest.warns(FitWarning, match="keep it"):
            fit = DensityRatio(PATIENTS.base(), ensemble_size=1, weak_learner=QUICK, progress=False).fit(rows)
        q = fit.mollify(1.0)
        draws = q.base.sample((100,))
        assert torch.equal(q.log_prob(draws), q.base.log_prob(draws))


class TestFramesAsPeopleHaveThem:
    LEVELS = [f"Straße {number}" for number in range(300)]
    SIZE = "Größe (cm) \u2603"
    SCHEMA = Schema(
        (
            Column("0", 0, 9, "integer", missing="level"),
            Column("1", kind="category", levels=LEVELS),
            Column(SIZE, 40, 230, decimals=1),
            Column("coded", kind="ordered", levels=[1, 2, 3], missing="level"),
            Column("smoker", kind="boolean", levels=["no", "yes"], missing="level"),
            Column("seen", "2020-01-01", "2020-12-31", "datetime", resolution="minute", timezone="Europe/Berlin"),
            Column("day", "2020-01-01", "2020-12-31", "date", missing="level"),
        )
    )

    def frame(self, num_rows: int) -> pd.DataFrame:
        """Integer and repeated names, nullable and Arrow types, decimals, unused levels, objects of many kinds."""
        arrow = pytest.importorskip("pyarrow")
        cells: dict[Any, Any] = {
            0: pd.array([3, pd.NA], dtype="Int64"),
            1: pd.Categorical(["Straße 7"] * 2, categories=["unused", *self.LEVELS[::-1]]),
            self.SIZE: pd.Series([Decimal("170.5"), Decimal("42")], dtype=object),
            "coded": pd.Series([1, "3.0"], dtype=object),
            "smoker": pd.Series(["yes", None], dtype=pd.ArrowDtype(arrow.string())),
            "seen": pd.to_datetime(["2020-06-01 22:30", "2020-01-02 00:00"], utc=True).tz_convert("America/Lima"),
            "day": pd.Series([date(2020, 1, 2), None], dtype=pd.ArrowDtype(arrow.date32())),
        }
        frame = pd.concat([pd.DataFrame(cells)] * (num_rows // 2 + 1), ignore_index=True).iloc[:num_rows]
        frame["extra"] = [[number] for number in range(num_rows)]
        frame.insert(0, "extra", 1, allow_duplicates=True)
        frame.index = pd.Index(["same"] * num_rows)
        return frame

    @pytest.mark.parametrize("num_rows", [1, 100])
    def test_what_is_drawn_is_such_a_table(self, num_rows: int) -> None:
        """A row comes back as it was, and draws of a density that was fitted to it are rows of such a table."""
        rows = self.SCHEMA.to_tensor(self.frame(num_rows))
        assert len(rows) == num_rows
        first = self.SCHEMA.to_frame(rows).iloc[0].tolist()
        seen = pd.Timestamp("2020-06-02 00:30")
        assert first == [3, "Straße 7", 170.5, 1, True, seen, pd.Timestamp("2020-01-02")]
        fit = DensityRatio(self.SCHEMA.base(), ensemble_size=1, weak_learner=QUICK, seed=0, progress=False).fit(rows)
        draws = private_draws(fit.mollify(1.0), 500, progress=False)
        frame = self.SCHEMA.to_frame(draws)
        codes = self.SCHEMA.to_tensor(frame)
        points = [place for place, name in enumerate(self.SCHEMA.names) if name != self.SIZE]  # which is rounded
        assert torch.equal(codes[:, points], draws[:, points])
        pd.testing.assert_frame_equal(self.SCHEMA.to_frame(codes), frame)

    def test_a_frame_is_not_taken_for_rows(self) -> None:
        """Its columns may come in another order and in other units."""
        frame = self.SCHEMA.to_frame(self.SCHEMA.base().sample((50,)))
        trainer = DensityRatio(self.SCHEMA.base(), progress=False)
        for given in (frame, frame[["0"]], frame["0"]):
            with pytest.raises(TypeError, match=r"rows of the base's schema.*pass schema.to_tensor\(frame\)"):
                trainer.fit(given)

    @pytest.mark.parametrize(
        ("name", "cells", "remedy"),
        [
            (SIZE, [170, "1.70 m"], "Write numbers in plain digits, without units"),
            ("coin", [3, "4"], "Convert the column to numbers"),
            ("seen", ["01.06.2020 22:30", None], "Write dates as 2020-01-31"),
            ("day", [20200102, 2], "Write dates as 2020-01-31"),
        ],
    )
    def test_one_error_names_column_and_remedy(self, name: str, cells: Any, remedy: str) -> None:
        schema = Schema((*self.SCHEMA.columns, Column("coin", 0, 9)))
        frame = self.frame(2).assign(coin=1.0).assign(**{name: cells})
        with pytest.raises(TypeError, match=re.escape(remedy)) as caught:
            schema.to_tensor(frame)
        assert str(caught.value).count("column '") == 1 and f"column {name!r}: " in str(caught.value)


LEVELS = Column("a", kind="category", levels=["x", "y", "z"], shares={"x": 0.7, "y": 0.2, "z": 0.1}, missing="level")
SMALL = {
    "independent": Schema((LEVELS, Column("b", 0, 3, "integer"), Column("c", kind="boolean"))),
    "copula and constraint": Schema(
        (Column("a", kind="ordered", levels=["x", "y", "z"], missing="level"), Column("b", 0, 3, "integer", mean=1)),
        correlations=({"columns": ["a", "b"], "value": 0.7},),
        constraints=("a = x where b = 0",),
        condition="b != 2",
    ),
}


class TestHostileTables:
    @pytest.mark.parametrize("name", SMALL)
    @pytest.mark.parametrize("num_rows", [None, pytest.param(2, marks=pytest.mark.slow)])
    @pytest.mark.parametrize("epsilon", [0.3, 2.0])
    def test_two_densities_of_a_finite_base_are_at_most_epsilon_apart(
        self, name: str, num_rows: int | None, epsilon: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The laws that draws follow, at every point: weights of the base's points times e^f, summed."""
        if num_rows is not None:  # a sixty-fourth of the draws leaves certificates of batches to chance
            scale_calibration(monkeypatch, 8)
        base = SMALL[name].base()
        finite = PreparedBase.of(base).finite
        assert finite is not None
        points, log_weights = finite.points, finite.log_weights
        rows = points
        if num_rows is not None:
            pairs = torch.tensor(list(itertools.product(range(len(points)), repeat=num_rows)))
            rows, log_weights = points[pairs], log_weights[pairs].sum(-1)
        laws = {}
        for score_name, score in HOSTILE.items():
            q = density_of(base, score, epsilon, num_rows)
            assert q.guarantee.epsilon == epsilon
            tilt = q.accepted_tilt(rows)
            assert q.bounds.low <= float(tilt.min()) and float(tilt.max()) <= q.bounds.high
            laws[score_name] = tilt - (log_weights + tilt).logsumexp(0)
        reached = {pair: float((laws[pair[0]] - laws[pair[1]]).abs().max()) for pair in itertools.combinations(laws, 2)}
        assert max(reached.values()) <= epsilon * (1 + 1e-9)
        assert reached["high", "low"] >= (0.9 if num_rows is None else 0.6) * epsilon  # tolerances are wide here

    @pytest.mark.parametrize(
        ("size", "num_rows", "names"),
        [
            (20_000, None, ["infinite"]),
            pytest.param(200_000, None, HOSTILE, marks=pytest.mark.slow),
            pytest.param(200_000, 2, HOSTILE, marks=pytest.mark.slow),
        ],
        ids=["few", "many", "many in batches"],
    )
    def test_tilts_stay_in_their_bounds(self, size: int, num_rows: int | None, names: Any, fitted: LogRatio) -> None:
        """At draws of the base, and at the ends of all columns, missing values among them."""
        base = PATIENTS.base()
        ends = torch.tensor([[one.low, one.high, one.missing_value] for one in base.marginals], dtype=base.dtype)
        choice = torch.randint(3, (4096, len(NAMES)))
        edges = ends[torch.arange(len(NAMES)), choice]
        densities = [density_of(base, HOSTILE[name], 1.0, num_rows) for name in names]
        densities.append(fitted.mollify(1.0, num_rows=num_rows))
        for q in densities:
            for rows in (q.base.sample((size // len(densities),)), *([edges] if num_rows is None else [])):
                tilt = q.accepted_tilt(rows)
                assert q.bounds.low <= float(tilt.min()) and float(tilt.max()) <= q.bounds.high
