"""A table beside density and base: distances that are known, pictures whose areas are shares, and the verdict."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import torch
from densities import make_density, normal
from torch import Tensor

from pyro_mbde import DensityRatio, MollifiedExpFamily, Schema, WeakLearner, private_report
from pyro_mbde.releases.comparison import Comparison, _furthest_first, compare
from pyro_mbde.releases.distances import (
    COLUMN_LEVELS,
    PAIR_LEVELS,
    Distances,
    Samples,
    cells_of,
    closed_share,
    distances,
    joint,
)
from pyro_mbde.releases.histograms import Bars
from pyro_mbde.releases.picture import HEIGHT, WIDTH, picture

SCHEMA = Schema.from_dict(
    {
        "columns": [
            {"name": "age", "low": 0, "high": 110, "decimals": 1},
            {"name": "sex", "low": 0, "high": 1, "kind": "integer"},
            {"name": "visits", "low": 0, "high": 365, "kind": "integer", "scale": "log1p"},
            {"name": "systolic", "low": 50, "high": 300, "kind": "integer"},
            {"name": "income", "low": -0.5, "high": 1e7, "scale": "log1p"},
        ]
    }
)


def step_density(shift: float) -> MollifiedExpFamily:
    """Of the standard normal of the plane: e^shift times as likely on the right as on the left."""

    class Right(torch.nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return torch.where(value[..., :1] > 0, 0.5, -0.5)

    phi = math.log(math.cosh(shift / 2))
    return MollifiedExpFamily(normal(2), Right(), torch.tensor([shift]), phi)


@pytest.fixture(scope="module")
def compared() -> Comparison:
    base = SCHEMA.base()
    return compare(make_density(base), base.sample(torch.Size([20_000])), SCHEMA)


@pytest.fixture(scope="module")
def ratio_and_table() -> tuple[Any, Tensor]:
    table = 0.5 * torch.randn(5000, generator=torch.Generator().manual_seed(0)) + 1
    learner = WeakLearner(hidden_sizes=(32,), num_steps=150)
    trainer = DensityRatio(dist.Normal(0.0, 1.0), weak_learner=learner, seed=0, ensemble_size=1, progress=False)
    ratio = trainer.fit(table)
    return ratio, table


class TestDistances:
    @pytest.fixture(autouse=True)
    def fewer_draws(self) -> None:
        """None here, in place of the other tests' of releases: distances are compared with exact ones."""

    def test_of_a_density_that_is_known(self) -> None:
        compared = compare(step_density(1.0), None)
        exact = 0.5 * math.tanh(0.5)  # the shares of both halves move by so much
        first, second = (column.distances for column in compared.columns)
        (pair,) = compared.pairs
        for distance in (first.density_to_base, compared.density_to_base, pair.distances.density_to_base):
            assert distance == pytest.approx(exact, abs=0.005)
        assert second.density_to_base < 0.005
        assert (first.table_to_base, first.table_to_density, first.chance) == (None, None, None)

    @pytest.mark.parametrize("num_rows", [200, 5000])
    def test_a_table_of_the_density_itself_is_as_far_as_chance_has_it(self, num_rows: int) -> None:
        """On average over 100 tables and sets of draws; 4 standard errors are 6 to 8 per cent."""
        generator = np.random.default_rng(num_rows)
        excess: list[list[float]] = []
        for _ in range(100):
            base, table = generator.normal(size=(2**13, 2)), generator.normal(size=(num_rows, 2))
            weights = np.where(base[:, 0] > 0, math.e, 1.0)  # e times as likely on the right as on the left
            table[:, 0] = abs(table[:, 0]) * np.where(generator.random(num_rows) < math.e / (1 + math.e), 1, -1)
            weights /= weights.sum()
            samples = [Samples(table[:, index], base[:, index], weights) for index in range(2)]
            cells = [cells_of(one, COLUMN_LEVELS) for one in samples]
            cells.append(joint(*(cells_of(one, PAIR_LEVELS) for one in samples)))
            found = [distances(one, weights) for one in cells]
            excess.append([one.table_to_density / one.chance - 1 for one in found])  # type: ignore[operator]
        errors = np.std(excess, 0) / math.sqrt(len(excess))
        assert errors.max() < 0.025
        assert (abs(np.mean(excess, 0)) < 4 * errors).all()

    def test_of_a_shifted_table(self) -> None:
        compared = compare(step_density(1.0), torch.randn(20_000, 2) + torch.tensor([1.0, 0.0]))
        exact = math.erf(0.5 / math.sqrt(2))  # total variation of N(0, 1) and N(1, 1)
        distances = compared.columns[0].distances
        assert distances.table_to_base == pytest.approx(exact, abs=0.015)
        assert distances.table_to_density is not None
        assert distances.table_to_density < exact

    def test_a_pair_at_no_distance_from_the_table_comes_last(self) -> None:
        pairs = [Distances(0.5, 0.0, 0.9, 0.01), Distances(0.5, 0.1, 0.2, 0.01), Distances(None, None, 0.3, None)]
        assert [distances.density_to_base for distances in sorted(pairs, key=_furthest_first)] == [0.3, 0.2, 0.9]

    def test_correlation_is_seen_in_pairs_alone(self) -> None:
        first = torch.randn(20_000)
        table = torch.stack([first, 0.9 * first + math.sqrt(0.19) * torch.randn(20_000)], -1)
        compared = compare(step_density(0.01), table)
        assert len(compared.columns) == 2
        for column in compared.columns:
            assert column.distances.table_to_base is not None
            assert column.distances.table_to_base < 0.02
        assert compared.pairs[0].distances.table_to_base is not None
        assert compared.pairs[0].distances.table_to_base > 0.3
        assert compared.verdict.startswith("Your rows will look like the public base, hardly like your table: they")
        assert "in single columns" not in compared.verdict

    def test_weights_stand_for_draws(self) -> None:
        q = make_density(SCHEMA.base(), epsilon=8.0, gain=30.0)
        compared = compare(q, q.sample(torch.Size([50_000])), SCHEMA)
        for column in compared.columns:
            assert np.abs(np.subtract(column.bars.table, column.bars.density)).max() < 0.01

    def test_the_caller_s_generator_is_left_alone(self) -> None:
        q, state = step_density(1.0), torch.get_rng_state()
        assert compare(q, None) == compare(q, None)
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.parametrize("num_rows", [0, 1])
    def test_tables_of_few_rows(self, num_rows: int) -> None:
        compared = compare(step_density(1.0), torch.zeros(num_rows, 2))
        assert (compared.columns[0].distances.table_to_base is None) == (num_rows == 0)

    @pytest.mark.parametrize("base", [dist.Poisson(3.0), dist.Bernoulli(0.3), dist.Normal(0.0, 1.0)])
    def test_one_column(self, base: Any) -> None:
        q = make_density(base)
        compared = compare(q, q.sample(torch.Size([500])), ["count"])
        assert [column.name for column in compared.columns] == ["count"]
        assert compared.pairs == ()
        assert "in pairs" not in compared.verdict


class TestBars:
    def test_shares(self, compared: Comparison) -> None:
        for column in compared.columns:
            for shares in (column.bars.table, column.bars.density, column.bars.base):
                assert shares is not None
                assert sum(shares) == pytest.approx(1)

    def test_the_base_is_flat_on_the_scale_that_it_is_flat_on(self, compared: Comparison) -> None:
        """Bars that cut whole numbers in two, or are drawn where they do not belong, would be uneven."""
        for column in compared.columns:
            heights = np.array(column.bars.base) / np.diff(column.bars.places)
            assert np.abs(heights - 1).max() < 0.1, column.name

    def test_edges(self, compared: Comparison) -> None:
        edges = {column.name: column.bars.edges for column in compared.columns}
        assert edges["sex"] == [0, 1, 2]
        assert (edges["visits"][:3], edges["visits"][-1]) == ([0, 1, 2], 366)
        assert (edges["age"][0], edges["age"][-1], len(edges["age"])) == (0, 110, 31)
        assert all(edge == round(edge) for edge in edges["systolic"])
        assert (edges["income"][0], edges["income"][-1]) == (-0.5, 1e7)

    def test_without_ends(self) -> None:
        bars = compare(step_density(1.0), torch.randn(500, 2)).columns[0].bars
        assert -3.3 < bars.edges[0] < -2.9
        assert 2.9 < bars.edges[-1] < 3.3


class TestPicture:
    def test_paths(self) -> None:
        bars = Bars([0, 1, 3], [0.0, 0.25, 1.0], [0.5, 0.5], [0.25, 0.75], [0.4, 0.6])
        drawn = picture(bars, whole=False)
        assert drawn.density == f"M0,60V60H75V60H{WIDTH}"
        assert drawn.base == f"M0,24V24H75V72H{WIDTH}"
        assert drawn.table == f"M0,0V0H75V80H{WIDTH}V{HEIGHT}H0Z"
        assert not drawn.cut
        assert [label.text for label in drawn.labels] == ["0", "1", "3"]

    def test_a_spike_is_cut_off(self) -> None:
        drawn = picture(Bars([0, 1, 11], [0.0, 0.1, 1.0], [1.0, 0.0], [0.1, 0.9], [0.1, 0.9]), whole=False)
        assert drawn.cut
        assert drawn.base == f"M0,72V72H30V72H{WIDTH}"
        assert drawn.table.startswith("M0,0V0H30V120")

    def test_labels(self) -> None:
        few = picture(Bars([3, 4, 5, 6], [0, 1 / 3, 2 / 3, 1], None, [0.2, 0.3, 0.5], [0.3, 0.3, 0.4]), whole=True)
        assert [(label.text, label.place, label.anchor) for label in few.labels] == [
            ("3", 50, "middle"),
            ("4", pytest.approx(150), "middle"),
            ("5", pytest.approx(250), "middle"),
        ]
        assert few.table == ""
        many = picture(Bars([-50, 100, 12501], [0, 0.5, 1], None, [0.5, 0.5], [0.5, 0.5]), whole=True)
        assert [label.text for label in many.labels] == ["\N{MINUS SIGN}50", "100", "12,500"]
        huge = picture(Bars([0, 1e6, 1e7], [0, 0.5, 1], None, [0.5, 0.5], [0.5, 0.5]), whole=False)
        assert [label.text for label in huge.labels] == ["0", "1e6", "1e7"]


class TestVerdict:
    @pytest.mark.parametrize(
        ("epsilon", "said"),
        [
            (0.15, "like the public base, hardly like your table"),
            (1.0, "more like the public base than like your table"),
            (4.0, "like a blurred copy of your table"),
            (12.0, "much like your table"),
        ],
    )
    def test_it_follows_epsilon(self, epsilon: float, said: str, ratio_and_table: tuple[Any, Tensor]) -> None:
        ratio, table = ratio_and_table
        verdict = compare(ratio.mollify(epsilon), table).verdict
        assert verdict.startswith(f"Your rows will look {said}: they cover ")
        assert "in 100 could just as well have been drawn from the public base." in verdict

    def test_a_table_like_the_base(self) -> None:
        verdict = compare(step_density(0.01), torch.randn(20_000, 2)).verdict
        assert verdict.startswith("Your table looks like the public base, and so will your rows: 99 in 100")

    def test_without_a_table(self) -> None:
        verdict = compare(step_density(1.0), None).verdict
        assert verdict.startswith(
            "Of your rows, 76 in 100 could just as well have been drawn from the public base. How far"
        )

    def test_closed_share(self) -> None:
        far, near = Distances(0.5, 0.5, 0.1, 0.01), Distances(0.5, 0.005, 0.5, 0.01)
        assert closed_share([far]) == pytest.approx(0)
        assert closed_share([near]) == pytest.approx(1)
        assert closed_share([far, near]) == pytest.approx(0.5)
        assert closed_share([Distances(None, None, 0.1, None)]) is None
        assert closed_share([Distances(0.02, 0.3, 0.3, 0.01)]) is None
        assert closed_share([]) is None


class TestFrames:
    """Tables in their own units, with columns that the schema does not name."""

    FRAME = pd.DataFrame(
        {"name": ["Ann", "Bo", "Cy"], "income": [9.0, 1e4, 2e5], "visits": [3, 4, 0], "systolic": [120, 150, 130]}
    ).assign(sex=[0, 1, 1], age=[30.0, 40.5, 51.2])

    def test_columns_are_taken_by_name(self) -> None:
        q = make_density(SCHEMA.base())
        report = private_report(q, self.FRAME, columns=SCHEMA)
        assert report == private_report(q, SCHEMA.to_tensor(self.FRAME), columns=SCHEMA)
        assert report == private_report(q, self.FRAME, columns=SCHEMA)
        assert report["scores"]["num_rows"] == 3

    def test_a_frame_that_does_not_fit(self) -> None:
        q = make_density(SCHEMA.base())
        with pytest.raises(ValueError, match="age"):
            private_report(q, self.FRAME.drop(columns="age"), columns=SCHEMA)
        with pytest.raises(ValueError, match="columns must be the schema"):
            private_report(q, self.FRAME, columns=Schema(SCHEMA.columns[:4]))
        with pytest.raises(TypeError, match="schema.to_tensor"):
            private_report(q, self.FRAME)  # as fit takes it: modelled units


class TestPage:
    def test_names_are_escaped(self, tmp_path: Any) -> None:
        names = ["<script>alert(1)</script>", 'b"c']
        private_report(step_density(1.0), torch.randn(50, 2), path=tmp_path / "r.html", columns=names)
        text = (tmp_path / "r.html").read_text()
        assert "<script" not in text
        assert "&lt;script&gt;" in text
        assert 'aria-label="b&#34;c: histogram' in text

    def test_columns_and_pairs(self, tmp_path: Any) -> None:
        frame = pd.DataFrame(
            {"age": [30.0, 40.5], "sex": [0, 1], "visits": [3, 4], "systolic": [120, 150], "income": 9.0}
        )
        q = make_density(SCHEMA.base())
        report = private_report(q, SCHEMA.to_tensor(frame), path=tmp_path / "r.html", columns=SCHEMA)
        text = (tmp_path / "r.html").read_text()
        assert text.count("<svg") == 6  # and the associations
        assert text.count('<path class="table"') == 5
        assert "All pairs, those first" in text
        assert report["comparison"]["verdict"] in text
        assert [column["name"] for column in report["comparison"]["columns"]] == list(SCHEMA.names)
        assert len(report["comparison"]["pairs"]) == 10
        private_report(q, path=tmp_path / "bare.html")
        bare = (tmp_path / "bare.html").read_text()
        assert '<path class="table"' not in bare
        assert "age, sex" in bare

    def test_many_columns(self, tmp_path: Any) -> None:
        report = private_report(make_density(normal(10)), torch.randn(90, 10), path=tmp_path / "r.html")
        assert len(report["comparison"]["pairs"]) == 45
        assert "20 of 45 pairs, those first" in (tmp_path / "r.html").read_text()

    def test_columns_that_do_not_fit(self) -> None:
        with pytest.raises(ValueError, match="columns must be 2"):
            private_report(step_density(1.0), columns=["a"])
