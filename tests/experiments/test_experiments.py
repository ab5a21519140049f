"""The paper's problems, their measurement, and the benchmark commands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from click.testing import CliRunner

from pyro_mbde import MBDE, DensityRatio
from pyro_mbde.auditing.hostile_tables import hostile_pairs
from pyro_mbde.experiments import bench, bench_batches, bench_certificate, bench_gain, guide, medical
from pyro_mbde.experiments.__main__ import main as draw
from pyro_mbde.experiments.problems import DIMENSIONS, DOMAINS, PROBLEMS, SCALES, Problem, mixture_1d, ring, ring_tight
from pyro_mbde.metrics import kl_gain, quadrature_grid
from pyro_mbde.training.base_check import warn_of_leaks
from pyro_mbde.training.weak_learner import WeakLearner


@pytest.mark.parametrize("name", sorted({**DOMAINS, **SCALES}))
def test_boxes_hold_the_targets(name: str) -> None:
    problem = PROBLEMS[name]()
    assert problem.name == name
    assert problem.box is not None
    points, volume = quadrature_grid(problem.box, problem.base.event_shape)
    for density in (problem.target, problem.base):
        assert float(density.log_prob(points).double().exp().sum() * volume) == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize(
    ("problem", "divergence"), [(ring, 10.338 - 4.142), (mixture_1d, 1.092 - 0.175), (ring_tight, 1.316)]
)
def test_published_figures(problem: Callable[[], Problem], divergence: float) -> None:
    """KL(P, Q0), known for these problems as the base's NLL less the target's entropy."""
    _, target, base, box, _ = problem()
    assert kl_gain(target, base, target, box).value == pytest.approx(divergence, abs=2e-3)


@pytest.fixture
def quick_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the trainers of the benchmark by ones that hardly train."""
    learner = WeakLearner(hidden_sizes=(8,), num_frequencies=0, num_steps=5, batch_size=32)

    def quick(base: dist.TorchDistribution, epsilon: float, **options: object) -> MBDE:
        return MBDE(base, epsilon, weak_learner=learner, num_samples=200, **options)  # type: ignore[arg-type]

    for name in bench_gain.A_PRIORI:
        monkeypatch.setitem(bench_gain.A_PRIORI, name, quick)
    quick_ratio = partial(DensityRatio, weak_learner=learner, ensemble_size=1)
    monkeypatch.setattr(bench, "MBDE", SimpleNamespace(paper=quick))
    for module in (bench, bench_certificate):
        monkeypatch.setattr(module, "EPSILONS", (0.25, 1.0))
    monkeypatch.setattr(guide, "SKEWS", (0.2, 0.5))
    for name, value in {
        "_TOTALS": (1.0,),
        "_NUM_DRAWS": 2**12,
        "_PLACED": (0.2, 0.5),
        "_PLACED_TOTALS": (1.0,),
    }.items():
        monkeypatch.setattr(guide, name, value)
    for module in (bench_batches, bench_gain, bench_certificate, guide, bench):
        monkeypatch.setattr(module, "DensityRatio", quick_ratio)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["gain", "--seeds", "2", "--epsilon", "1", "--problem", "mixture-1d"], "mixture-1d         1  default"),
        (["fit", "--repeats", "1"], "ratio"),
        (["mollify", "--repeats", "1"], " s, mollify "),
        (
            ["reach", "--seeds", "2", "--epsilon", "1", "--problem", "mixture-1d", "--rows", "100"],
            "mixture-1d    0.5       1",
        ),
        (["certificate", "--trials", "2"], "of 2 at delta = 0.05"),
        (["attack"], "outside the box"),
    ],
)
@pytest.mark.usefixtures("quick_systems")
@pytest.mark.slow
def test_bench_commands(arguments: list[str], shown: str) -> None:
    result = CliRunner().invoke(bench.main, arguments)
    assert result.exit_code == 0, result.output
    assert shown in result.output


def test_the_attack_has_all_pairs_and_those_outside() -> None:
    box: Any = dist.Uniform(torch.zeros(2), torch.ones(2))
    for base, num_more in ((ring().base, 1), (box.to_event(1), 2)):
        at_half, at_five = (bench_certificate.hostile_tables(base, epsilon) for epsilon in (0.5, 5.0))
        audits = [pair.name for pair in hostile_pairs(base, 1.0, num_pairs=100)]
        more = ["million equal rows", "outside the box"][:num_more]
        assert [pair.name for pair in at_half] == [pair.name for pair in at_five] == audits + more
        assert len(audits) == 10
        assert len(at_half[10].table) == 1_000_000
        # The audit makes its first pair for an epsilon; the others are fitted once.
        same = [
            torch.equal(one.table, two.table) and torch.equal(one.other, two.other)
            for one, two in zip(at_half, at_five, strict=True)
        ]
        assert same == [False] + [True] * (9 + num_more)


@pytest.mark.parametrize("name", sorted(DIMENSIONS))
def test_more_dimensions(name: str) -> None:
    """Four modes, told apart, whose target is what its density says."""
    problem = DIMENSIONS[name]()
    assert problem.box is None
    draws = problem.base.sample(torch.Size([400_000]))
    ratio = (problem.target.log_prob(draws) - problem.base.log_prob(draws)).double().exp()
    assert float(ratio.mean()) == pytest.approx(1, abs=5 * float(ratio.std()) / 400_000**0.5)  # E_Q0[p/q0] = 1
    mixture: Any = problem.target
    assert len(mixture.component_distribution.base_dist.loc.unique(dim=0)) == 4


@pytest.mark.parametrize(
    "name", ["mollifier", *(pytest.param(name, marks=pytest.mark.slow) for name in ("skew", "release", "placement"))]
)
@pytest.mark.usefixtures("quick_systems")
def test_figures(name: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(draw, [name, "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    before = (tmp_path / f"{name}.csv").read_text()
    assert CliRunner().invoke(draw, [name, "--output", str(tmp_path), "--redraw"]).exit_code == 0
    assert (tmp_path / f"{name}.csv").read_text() == before


@pytest.mark.parametrize("name", sorted(guide.GUIDE))
def test_the_documentations_figures_are_drawn_from_their_tables(name: str, tmp_path: Path) -> None:
    images = Path(__file__).parents[2] / "docs" / "images"
    (tmp_path / f"{name}.csv").write_text((images / f"{name}.csv").read_text())
    result = CliRunner().invoke(draw, [name, "--output", str(tmp_path), "--redraw"])
    assert result.exit_code == 0, result.output
    assert (images / f"{name}.png").exists()


class TestMedicalTable:
    def test_base_does_not_depend_on_the_table(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_table(*_: object) -> None:
            raise AssertionError("the base read the table")

        monkeypatch.setattr(medical, "load_rows", no_table)
        monkeypatch.setattr(medical.pd, "read_csv", no_table)
        assert medical.public_base().event_shape == (3,)

    def test_rows_are_inside_the_public_ranges(self) -> None:
        rows = medical.load_rows(seed=0)
        assert rows.shape == (20_190, 3)
        assert bool(medical.public_base().support.check(rows).all())  # type: ignore[attr-defined]  # Pyro's constraint
        assert torch.equal(rows, medical.load_rows(seed=0))
        assert not torch.equal(rows, medical.load_rows(seed=1))

    @pytest.mark.parametrize("seed", range(10))
    def test_no_row_makes_a_public_range_look_as_if_read_off_the_table(self, seed: int) -> None:
        rows, base = medical.load_rows(seed), medical.public_base()
        warn_of_leaks(base, rows, rows)  # warnings are errors

    def test_natural_units(self) -> None:
        counts = torch.tensor([[0.0, 0.0, 7.3], [4.0, 95.0, 0.0], [77.0, 100.0, 60.0]])
        modelled = torch.stack([(counts[:, 0] + 1.5).log(), (counts[:, 1] + 1.5).log(), counts[:, 2]], -1)
        natural = medical.in_natural_units(modelled)
        assert natural["visits"].tolist() == [0, 4, 77]
        assert natural["coinsurance_%"].tolist() == [0, 95, 100]
        assert natural["diseases"].tolist() == pytest.approx([7.3, 0.0, 60.0])
        base: Any = medical.public_base()
        top = medical.in_natural_units(base.base_dist.high.unsqueeze(0))
        assert top["visits"].item() <= 100
        assert top["coinsurance_%"].item() <= 101

    def test_split(self) -> None:
        rows = torch.arange(101.0)
        train, held_out = medical.split_rows(rows, 0.1, seed=3)
        assert (len(train), len(held_out)) == (90, 11)
        assert torch.equal(torch.cat([train, held_out]).sort().values, rows)
        assert not torch.equal(held_out, medical.split_rows(rows, 0.1, seed=4)[1])
        with pytest.raises(ValueError, match="share must be in"):
            medical.split_rows(rows, 1.0)

    def test_a_missing_table_is_named(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(medical, "TABLE", tmp_path / "none.csv")
        with pytest.raises(FileNotFoundError, match="comes with a clone"):
            medical.load_rows()


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "expected"), [(ring_tight, 0.154), (mixture_1d, 0.253)])
def test_paper_preset_lands_where_it_is_known_to(problem: Callable[[], Problem], expected: float) -> None:
    """Gain at epsilon 1; the default is above it."""
    _, target, base, box, _ = problem()
    densities = [trainer(base, 1.0, seed=0, progress=False).fit(target) for trainer in (MBDE.paper, MBDE)]
    paper, default = (kl_gain(target, base, density, box).value for density in densities)
    assert paper == pytest.approx(expected, rel=0.2)
    assert paper < default <= 0.5
