"""Broken chains are failed, each for its own reason; good chains pass; tables and pictures."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import pyro.distributions as dist
import pytest
import torch
from chain_gallery import (
    CORRELATED,
    GALLERY,
    SHAPE,
    all_in_one_mode,
    autoregressive,
    by_hand,
    good_antithetic,
    good_autoregressive,
    good_bimodal,
    good_counts,
    good_independent,
    make_ring,
    missing_ring,
    outside_the_support,
    same_seeds,
    short,
    single,
    wrong_correlation,
    wrong_scale,
)
from densities import BASES, DISCRETE, make_density, normal
from matplotlib.figure import Figure

from pyro_mbde import Chains, Column, Schema, run_mcmc
from pyro_mbde.diagnostics import exact
from pyro_mbde.diagnostics.checks import mixing_report
from pyro_mbde.diagnostics.parameters import scalar_parameters
from pyro_mbde.diagnostics.plot import plot_mixing
from pyro_mbde.tables.earlier import SpreadSchema


@pytest.fixture(autouse=True)
def fewer_exact_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth: shares have larger errors by chance, which the comparison takes into account."""
    monkeypatch.setattr(exact, "_NUM_EXACT_DRAWS", exact._NUM_EXACT_DRAWS // 5)


@pytest.mark.parametrize(("make", "reason"), GALLERY, ids=lambda value: getattr(value, "__name__", ""))
def test_gallery(make: Callable[[], Chains], reason: str) -> None:
    report = mixing_report(make())
    assert not report.passed
    assert any(re.match(reason, failure) for failure in report.failures), report.failures
    assert "FAILED" in str(report)


@pytest.mark.parametrize("make", [wrong_scale, wrong_correlation, all_in_one_mode, outside_the_support, same_seeds])
def test_only_what_is_wrong_is_blamed(make: Callable[[], Chains]) -> None:
    failed = [check.name for check in mixing_report(make()).checks if check.failures]
    assert failed == (["draws"] if make is same_seeds else ["exact draws"])


def test_chains_that_are_only_too_short_are_not_said_to_disagree() -> None:
    """And as many more draws as it says do, or nearly."""
    report = mixing_report(short())
    failures = " ".join(report.failures)
    assert "too short" in failures and "disagree" not in failures and "differ in spread" not in failures
    factor = max(float(number) for number in re.findall(r"about ([\d.]+) times", failures))
    longer = by_hand(autoregressive(0.97, 16, int(2000 * factor * 2), 1)[..., 0] * 6.5 + 125)
    assert mixing_report(longer).passed


def test_one_chain_has_one_reason() -> None:
    report = mixing_report(single())
    assert [failure[:22] for failure in report.failures] == ["one chain cannot be co"]
    assert "not a number" not in str(report) and "largest nan" not in str(report)
    assert [check.outcome for check in report.checks if check.name == "R-hat"] == ["skipped"]


def test_columns_of_a_schema_say_how_they_are_modelled() -> None:
    schema = Schema((Column("smoker", 0, 1, "integer"), Column("age", 18, 100)))
    chains = Chains({"x": schema.base().sample(torch.Size([4, 1000]))}, {}, (1, 2, 3, 4), 0, "exact")
    spread = SpreadSchema(schema.columns)
    for names, expected in ((schema, ["smoker", "age"]), (spread, ["smoker + [0, 1)", "age"])):
        assert [parameter.name for parameter in mixing_report(chains, names=names).parameters] == expected
    assert isinstance(plot_mixing(chains, names=schema), Figure)


@pytest.mark.parametrize("num_samples", [1, 2, 3])
@pytest.mark.parametrize("num_chains", [1, 4])
def test_too_few_draws(num_samples: int, num_chains: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    chains = by_hand(torch.randn(num_chains, num_samples, 2), CORRELATED, energy=torch.randn(num_chains, num_samples))
    report = mixing_report(chains)
    assert any("too few: R-hat and ESS need 4" in failure for failure in report.failures)
    assert math.isfinite(report.parameters[0].mean)
    assert math.isnan(report.parameters[0].rhat)
    assert "skipped exact draws" in str(report)
    assert isinstance(plot_mixing(chains), Figure)
    assert not caplog.records  # ArviZ 1 logs what it cannot compute


def test_four_draws_are_few_but_enough_to_compute() -> None:
    report = mixing_report(by_hand(torch.randn(4, 4), dist.Normal(0.0, 1.0)))
    assert any("ESS" in failure for failure in report.failures)
    assert math.isfinite(report.parameters[0].rhat)


@pytest.mark.parametrize(
    "make",
    [good_independent, good_autoregressive, good_bimodal, good_counts, good_antithetic],
    ids=lambda f: f.__name__,
)
def test_good_chains_pass(make: Callable[[], Chains]) -> None:
    reports = []
    for seed in range(6):
        torch.manual_seed(seed)
        reports.append(mixing_report(make(), seed=seed))
    assert sum(report.passed for report in reports) >= 5
    smallest = sorted(report.deviations[0].p_value * len(report.deviations) for report in reports)
    assert smallest[0] > 1e-4
    assert smallest[3] > 0.1  # so the comparisons are no stricter than they say


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if place % 2 else []) for place, name in enumerate(sorted(BASES))],
)
def test_exact_draws_of_every_base_pass(name: str) -> None:
    density = BASES[name]()
    report = mixing_report(by_hand(density.sample((4, 500)), density))
    if name in DISCRETE:  # R-hat and ESS of rare values are not what they are for
        assert report.checks[-1].outcome == "ok", report.failures
    else:
        assert report.passed, report.failures
    assert report.checks[-1].name == "exact draws"
    assert not report.checks[-1].skipped


def test_chains_of_a_fitted_density() -> None:
    density = make_density(normal(2), epsilon=20.0, link="tanh", gain=10.0)
    chains = run_mcmc(density, "lockstep_random_walk", 300, 200, num_chains=16, seed=2, progress=False)
    assert chains.density is density
    report = mixing_report(chains)
    assert report.checks[-1].outcome == "ok", report.failures
    assert len(report.deviations) == 43
    base = by_hand(density.base.sample(SHAPE), density)
    assert mixing_report(base).checks[-1].outcome == "FAILED"
    assert mixing_report(base, reference=density.base).passed


def test_exact_draws_of_several_sites() -> None:
    shape = (4, 1000)
    scale = dist.LogNormal(0.0, 0.5).sample(shape)
    chains = Chains({"scale": scale, "y": torch.randn(shape) * scale}, {}, (1, 2, 3, 4), 0, "by hand")
    assert mixing_report(chains).checks[-1].detail.startswith("none to compare with")
    exact = {"scale": dist.LogNormal(0.0, 0.5).sample((20_000,))}
    exact["y"] = torch.randn(20_000) * exact["scale"]
    assert mixing_report(chains, reference=exact).passed
    shifted = by_hand_of(chains, y=chains.draws["y"] + 0.3)
    assert any(failure.startswith("y: wrong target") for failure in mixing_report(shifted, reference=exact).failures)
    apart = by_hand_of(chains, y=chains.draws["y"].flip(1))  # the same margins, but |y| does not grow with the scale
    (failure,) = mixing_report(apart, reference=exact).failures
    assert failure.startswith("scale with spread of y: wrong target")
    assert mixing_report(apart, reference={"y": exact["y"]}).passed  # of one site alone


def by_hand_of(chains: Chains, **draws: torch.Tensor) -> Chains:
    return dataclasses.replace(chains, draws={**chains.draws, **draws})


def of_sites(chains: Chains, *names: str) -> Chains:
    return dataclasses.replace(chains, draws=dict.fromkeys(names, chains.draws["x"]))


def test_one_distribution_for_a_site_among_several() -> None:
    chains = of_sites(good_independent(), "z", "x")
    assert mixing_report(chains, reference=CORRELATED).passed
    assert mixing_report(of_sites(chains, "only"), reference=CORRELATED).passed


def test_a_disc_in_place_of_a_ring() -> None:
    exact = {"x": make_ring(20_000)}
    assert mixing_report(by_hand(make_ring(4000).reshape(*SHAPE, 2)), reference=exact).passed
    (failure, *_) = mixing_report(missing_ring(), reference=exact).failures
    assert failure.startswith("spread of x[0] with spread of x[1]: wrong target")


@pytest.mark.slow
def test_dependence_in_many_dimensions() -> None:
    factor = 0.7 * torch.ones(30, 1)
    density = dist.LowRankMultivariateNormal(torch.zeros(30), factor, 0.51 * torch.ones(30))
    assert mixing_report(by_hand(density.sample(SHAPE), density)).passed
    independent = by_hand(torch.randn(*SHAPE, 30), density)
    assert any("log-density" in failure for failure in mixing_report(independent).failures)
    without_density = mixing_report(independent, reference={"x": density.sample((20_000,))})
    assert any("random direction" in failure for failure in without_density.failures)


def test_chains_advanced_together_share_a_seed() -> None:
    chains = by_hand(torch.randn(64, 400), dist.Normal(0.0, 1.0), seeds=(7,))
    assert mixing_report(chains).passed
    groups = by_hand(torch.randn(64, 400), seeds=(7, 7))
    assert mixing_report(groups).failures == ("seed 7: given to several groups of chains",)


def test_short_chains_of_whole_numbers_may_be_equal() -> None:
    draws = torch.tensor([[0, 1, 1, 0], [0, 1, 1, 0]])
    assert not any("equal draws" in failure for failure in mixing_report(by_hand(draws)).failures)
    draws = torch.randint(2, (1, 200)).expand(2, 200)
    assert any("equal draws" in failure for failure in mixing_report(by_hand(draws)).failures)


def test_a_report_is_reproducible_and_leaves_the_generator_alone() -> None:
    chains = good_independent()
    state = torch.get_rng_state()
    first, second = mixing_report(chains), mixing_report(chains)
    plot_mixing(chains)
    assert torch.equal(torch.get_rng_state(), state)
    assert first == second
    assert first.deviations != mixing_report(chains, seed=1).deviations


def test_table() -> None:
    report = mixing_report(good_independent())
    lines = str(report).splitlines()
    assert lines[0] == "Passed: 4 chains of 1,000 draws, by hand"
    assert lines[2].split() == ["parameter", "mean", "sd", "mcse", "5%", "50%", "95%", "rhat", "ess_bulk", "ess_tail"]
    assert max(map(len, lines)) <= 100
    frame = report.to_frame()
    assert list(frame.index) == ["x[0]", "x[1]"]
    assert frame.loc["x[0]", "sd"] == pytest.approx(1.0, abs=0.1)
    assert frame.loc["x[0]", "q5"] < frame.loc["x[0]", "median"] < frame.loc["x[0]", "q95"]
    assert frame.loc["x[0]", "mcse"] == pytest.approx(1 / math.sqrt(4000), rel=0.2)
    assert repr(report).startswith(
        "MixingReport(kernel='by hand', num_chains=4, num_samples=1000, parameters=(2 items)"
    )


def test_hundreds_of_parameters() -> None:
    draws = torch.randn(4, 200, 300)
    draws[0, :, 123] += 2
    name = "a_site_with_a_long_name.of_a_module_within_a_module.that_goes_on"
    report = mixing_report(Chains({name: draws}, {}, (1, 2, 3, 4), 0, "by hand"))
    lines = str(report).splitlines()
    assert "[123]" in lines[3]  # the worst comes first
    assert max(map(len, lines)) <= 100
    assert "The worst 20 of 300 parameters, by R-hat and effective sample size." in lines
    assert len(lines) < 60
    assert len(report.parameters) == 300


def test_html_is_escaped() -> None:
    name = "<script>alert('x')</script>"
    chains = Chains({name: torch.full(SHAPE, math.nan)}, {}, (1, 2, 3, 4), 0, "<b>kernel</b>")
    text = mixing_report(chains)._repr_html_()
    assert "<script>" not in text
    assert "<b>kernel" not in text
    assert "&lt;script&gt;" in text
    assert "Why it failed" in text
    assert text.count("<table") == text.count("</table>") == 2
    assert "Why it failed" not in mixing_report(good_independent())._repr_html_()


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, marks=[pytest.mark.slow] if place % 12 else [])
        for place, make in enumerate(sorted({make for make, _ in GALLERY}, key=lambda make: make.__name__))
    ],
)
def test_pictures_of_the_gallery(make: Callable[[], Chains], tmp_path: Path) -> None:
    path = tmp_path / "mixing.png"
    figure = plot_mixing(make(), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "FAILED" in figure.subfigs[0].get_suptitle()
    assert plt.get_fignums() == []


def test_picture_of_good_chains(tmp_path: Path) -> None:
    chains = dataclasses.replace(good_autoregressive(), sample_stats={"energy": torch.randn(SHAPE)})
    figure = plot_mixing(chains, tmp_path / "mixing.svg")
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == ["Trace", "Ranks", "Autocorrelation", "Density", "", "", "", "", "Energy", "E-BFMI"]
    assert "Every check passed." in figure.subfigs[1].texts[0].get_text()
    assert all(axis.get_xlabel() and axis.get_ylabel() for axis in figure.axes)
    labels = [text.get_text() for text in figure.axes[3].get_legend().get_texts()]
    assert labels == ["chains", "exact draws"]
    curve = plot_mixing(good_bimodal()).axes[3]
    assert [text.get_text() for text in curve.get_legend().get_texts()] == ["chains", "exact density"]
    counts = plot_mixing(good_counts())
    assert [text.get_text() for text in counts.axes[3].get_legend().get_texts()] == labels
    for outline in counts.axes[1].patches[1:]:  # equal draws share their ranks, so that these are uniform too
        assert abs(outline.get_data().values - 1).max() < 0.5


def test_picture_of_many_parameters_and_chains(tmp_path: Path) -> None:
    chains = Chains(
        {"a$b$": torch.randn(1024, 8), "weights": torch.randn(1024, 8, 5)}, {}, (1,), 0, "lockstep_random_walk"
    )
    figure = plot_mixing(chains, tmp_path / "mixing.pdf")
    assert "the worst 4 of 6 parameters" in figure.subfigs[0].get_suptitle()
    assert len(figure.axes[0].lines) == 4
    assert figure.axes[0].get_xlabel() == "draw (4 of 1,024 chains)"
    assert len(plot_mixing(chains, sites=["a$b$"]).axes) == 4


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda c: mixing_report(c.draws),
            TypeError,
            "chains must be Chains, as run_mcmc returns them, got chains='dict'",
        ),
        (lambda c: mixing_report(c, seed=-1), ValueError, "seed must be at least 0"),
        (
            lambda c: mixing_report(c, reference=3),
            TypeError,
            "reference must be a distribution or exact draws per site",
        ),
        (lambda c: mixing_report(c, reference=normal(3)), ValueError, r"batch shape \(\) and event shape \(2,\)"),
        (lambda c: mixing_report(c, reference={"y": c.draws["x"][0]}), ValueError, "reference must name sites among x"),
        (lambda c: mixing_report(c, reference={"x": [1.0]}), TypeError, r"reference\['x'\] must be a tensor"),
        (lambda c: mixing_report(c, reference={"x": torch.zeros(99, 2)}), ValueError, "hold 100 finite draws or more"),
        (lambda c: mixing_report(c, reference={"x": torch.zeros(200)}), ValueError, "hold 100 finite draws or more"),
        (lambda c: mixing_report(c, reference={}), ValueError, "reference must hold as many draws for each site"),
        (lambda c: mixing_report(by_hand(torch.zeros(4, 0))), ValueError, "chains.draws must hold a draw of each site"),
        (lambda c: mixing_report(by_hand_of(c, y=torch.zeros(4, 5))), ValueError, "as many chains and draws"),
        (
            lambda c: mixing_report(of_sites(c, "z", "y"), reference=CORRELATED),
            ValueError,
            "for chains without a site x",
        ),
        (
            lambda c: scalar_parameters(c, "x"),
            TypeError,
            r"sites must be a list of names, got sites='x'. Write \['x'\]",
        ),
        (lambda c: plot_mixing(c, sites=["y"]), ValueError, "sites must be among x, got sites='y'"),
    ],
)
def test_arguments(call: Callable[[Chains], object], error: type[Exception], match: str) -> None:
    chains = by_hand(CORRELATED.sample((4, 50)))
    with pytest.raises(error, match=match):
        call(chains)


def test_a_density_without_exact_draws() -> None:
    class Unnormalised(dist.Normal):
        def sample(self, sample_shape: torch.Size = torch.Size()) -> torch.Tensor:  # noqa: B008
            raise NotImplementedError

    density = Unnormalised(0.0, 1.0)
    report = mixing_report(by_hand(torch.randn(SHAPE), density))
    assert report.passed
    assert "skipped exact draws: the density cannot be drawn from exactly" in str(report)
    with pytest.raises(ValueError, match="reference must be a distribution that can be drawn from"):
        mixing_report(by_hand(torch.randn(SHAPE)), reference=density)


def test_entries_that_a_model_fixes_are_not_frozen_chains() -> None:
    """A Cholesky factor's zeros and its corner are the same in every draw."""
    draws = dist.LKJCholesky(3, 1.5).sample((4, 1000))
    report = mixing_report(Chains({"factor": draws}, {}, (1, 2, 3, 4), 0, "nuts"))
    assert report.passed, report.failures
    assert {parameter.name for parameter in report.parameters} == {
        "factor[1,0]",
        "factor[1,1]",
        "factor[2,0]",
        "factor[2,1]",
        "factor[2,2]",
    }


@pytest.mark.parametrize("kind", ["outliers", "few outliers", "clamped"])
def test_tails_that_are_not_the_targets(kind: str) -> None:
    draws = torch.randn(4, 1000)
    if kind == "clamped":
        draws = draws.clamp(-2.5, 2.5)
    else:
        share = 0.01 if kind == "outliers" else 0.005
        draws = torch.where(torch.rand_like(draws) < share, 1e6, draws)
    report = mixing_report(Chains({"x": draws}, {}, (1, 2, 3, 4), 0, "nuts", dist.Normal(0.0, 1.0)))
    assert any("wrong target" in reason for reason in report.failures)


@pytest.mark.parametrize("kind", ["first half", "reversed", "shifted"])
def test_chains_that_share_draws(kind: str) -> None:
    draws = torch.randn(4, 1000, 2)
    if kind == "first half":
        draws[:, :500] = draws[0, :500]
    elif kind == "reversed":
        draws[1] = draws[0].flip(0)
    else:
        draws[1] = draws[0].roll(1, 0)
    report = mixing_report(Chains({"x": draws}, {}, (1, 2, 3, 4), 0, "nuts"))
    assert any("share draws of x, so they are not independent" in reason for reason in report.failures)


def test_hand_made_chains_that_are_invalid() -> None:
    with pytest.raises(TypeError, match="must be real numbers"):
        mixing_report(Chains({"x": torch.zeros(4, 9, dtype=torch.complex64)}, {}, (1,), 0, "nuts"))
    with pytest.raises(ValueError, match="must be of as many chains and draws"):
        mixing_report(Chains({"x": torch.randn(4, 9)}, {"lp": torch.zeros(4)}, (1,), 0, "nuts"))
    with pytest.raises(ValueError, match="hold 100 finite draws or more"):
        mixing_report(Chains({"x": torch.randn(4, 9)}, {}, (1,), 0, "nuts"), reference={"x": torch.tensor(1.0)})
    odd = Chains({"x\n\x1b[31m": torch.randn(4, 9)}, {}, (1,), 0, "nuts")
    assert "\x1b" not in str(mixing_report(odd))
    assert not mixing_report(Chains({"x": torch.rand(4, 900) < 0.5}, {}, (1, 2, 3, 4), 0, "nuts")).failures


def test_names_of_columns() -> None:
    draws = torch.randn(4, 200, 12)
    draws[0, :, 1] += 3
    draws[:, :, 10] = math.nan
    chains = Chains({"x": draws}, {}, (1, 2, 3, 4), 0, "nuts")
    names = [f"column {index}" for index in range(11)] + ["a\nb"]
    report, figure = mixing_report(chains, names=names), plot_mixing(chains, names=names)
    assert [parameter.name for parameter in report.parameters] == [*names[:-1], r"'a\nb'"]
    assert {axis.get_ylabel() for axis in figure.axes} > {"column 1", "column 10"}
    for text in (str(report), figure.subfigs[1].texts[0].get_text()):
        assert "column 1: R-hat" in text
        assert "column 10: 800 draws NaN" in text
        assert "x[" not in text
    exact = mixing_report(good_independent(), names=["age", "income"])
    subjects = {subject for deviation in exact.deviations for subject in deviation.subject.split(" with ")}
    assert subjects == {"age", "income", "spread of age", "spread of income", "log-density"}


@pytest.mark.parametrize(
    ("names", "error"), [("xy", TypeError), ([1, 2], TypeError), (["x"], ValueError), (["x", "x"], ValueError)]
)
@pytest.mark.parametrize("function", [mixing_report, plot_mixing])
def test_names_that_do_not_fit(function: Callable[..., object], names: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="names must"):
        function(good_independent(), names=names)
    with pytest.raises(ValueError, match="of one site"):
        function(of_sites(good_independent(), "y", "z"), names=["a", "b"])
