"""The pages on the mathematics and on patients: every number in their text, and their pictures."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

from pyro_mbde.density.bounds import skewed_bounds
from pyro_mbde.experiments import explained, explained_draws
from pyro_mbde.experiments.__main__ import main as draw
from pyro_mbde.experiments.explained_draws import EXPLAINED, largest_belief
from pyro_mbde.privacy.advice import distance_from_base
from pyro_mbde.privacy.group import GroupGuarantee
from pyro_mbde.privacy.release_plan import constant_time_count
from pyro_mbde.releases.card_words import row_distance
from pyro_mbde.theory import post_processing_bounds

DOCS = Path(__file__).parents[1] / "docs"
IMAGES = DOCS / "images"
MATHEMATICS, PATIENTS = ((DOCS / f"{name}.md").read_text() for name in ("mathematics", "patients"))
EPSILONS, SKEW = (0.5, 1.0, 3.0, 5.0), 0.3
#: Rows of the tables on the page for patients, as cells.
ROWS = [re.split(r" *\| *", line.strip("| ")) for line in PATIENTS.splitlines() if re.match(r"\| [\w.]", line)]


def table(title: str) -> list[list[str]]:
    """The rows under a title, up to the next table's."""
    start = next(place for place, row in enumerate(ROWS) if row[0] == title)
    widths = [len(row) for row in ROWS]
    end = next((place for place in range(start + 1, len(ROWS)) if not re.match(r"[\d.,]+$", ROWS[place][0])), len(ROWS))
    assert set(widths[start:end]) == {widths[start]}
    return ROWS[start + 1 : end]


def rounded_up(share: float) -> str:
    """Of a hundred, towards less protection; with a decimal where whole numbers would say nothing."""
    places = 1 if share < 0.01 or share > 0.99 else 0
    number = math.ceil(round(100 * share * 10**places, 9)) / 10**places
    return f"{number:g}"


def test_what_a_suspicion_can_become() -> None:
    rows = table("true of so many in 100 before")
    assert len(rows) == 4
    for row in rows:
        assert row[1:] == [rounded_up(largest_belief(float(row[0]) / 100, epsilon)) for epsilon in EPSILONS]
    factors = next(row for row in ROWS if row[0].startswith("the odds are multiplied"))
    assert factors[1:] == ["1.7", "2.8", "21", "149"]
    for factor, epsilon in zip(factors[1:], EPSILONS, strict=True):
        assert 0 <= float(factor) - math.exp(epsilon) < 1


def test_a_belief_is_bayes_rule_at_the_largest_ratio() -> None:
    """A release that is as likely as may be where the statement holds, and as unlikely where it does not."""
    for epsilon in EPSILONS:
        _, if_true = post_processing_bounds(0.2, epsilon)
        for prior in (0.01, 0.1, 0.5):
            after = prior * if_true / (prior * if_true + (1 - prior) * 0.2)
            assert after <= largest_belief(prior, epsilon) + 1e-12
            before = largest_belief(prior, epsilon) / (1 - largest_belief(prior, epsilon))
            assert before == pytest.approx(math.exp(epsilon) * prior / (1 - prior))


def test_groups() -> None:
    rows = table("people in the group")
    assert len(rows) == 5
    for size, *cells in rows:
        of_one = [GroupGuarantee(epsilon).for_group(int(size.replace(",", ""))).epsilon for epsilon in (0.5, 0.1)]
        for epsilon, cell in zip([*of_one, 0.5], cells, strict=True):
            belief = largest_belief(0.1, epsilon)
            expected = "no useful limit" if belief > 0.99 else f"{rounded_up(belief)} in 100"
            assert cell == expected


def test_rows_from_public_knowledge() -> None:
    """As the card of a release states them."""
    for row, epsilon in zip(table("total epsilon"), EPSILONS, strict=True):
        distances = [row_distance(epsilon, SKEW, size) for size in (10, 20)]
        distances.append(distance_from_base(epsilon, SKEW))
        assert [float(row[0]), *map(int, row[1:])] == [epsilon, *(math.floor(100 * (1 - d)) for d in distances)]


def test_shares_of_a_kind() -> None:
    """Rounded outwards, to three digits."""
    rows = [row for row in ROWS if len(row) == 3 and row[0] in ("0.5", "1", "3", "5")]
    assert [float(row[0]) for row in rows] == list(EPSILONS)
    for (_, least, most), epsilon in zip(rows, EPSILONS, strict=True):
        assert 0 <= math.exp(-SKEW * epsilon) - float(least) < 1e-3
        assert 0 <= float(most) / math.exp((1 - SKEW) * epsilon) - 1 < 1e-2


def test_the_story() -> None:
    alone = 100 * (1 - (1 - 1 / 2000) ** 10)
    assert round(alone, 1) == 0.5
    assert 0 <= alone * math.exp(-SKEW) - 0.36 < 0.01
    assert 0 <= 1.1 - alone * math.exp(1 - SKEW) < 0.1
    assert rounded_up(largest_belief(0.1, 1.0)) == "24"
    assert rounded_up(largest_belief(0.1, 2.0)) == "46"
    assert math.ceil(2000 * largest_belief(1 / 2000, 1.0)) == 3
    for words in ("in 0.36 of 100 at least and in 1.1 of 100 at most", "at most go from 10 up to 46", "3 in 2,000"):
        assert words in PATIENTS


@pytest.mark.parametrize("name", EXPLAINED)
def test_pictures_are_drawn_from_their_tables(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.csv").write_text((IMAGES / f"{name}.csv").read_text())
    result = CliRunner().invoke(draw, [name, "--output", str(tmp_path), "--redraw"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    page = PATIENTS if name in ("odds", "people") else MATHEMATICS
    assert f"images/{name}.png" in page and (IMAGES / f"{name}.png").exists()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in ("rows", "certificate", "accounts")))
        for name in EXPLAINED
    ],
)
def test_tables_are_what_is_measured(name: str) -> None:
    measured = EXPLAINED[name][0]().reset_index(drop=True)
    kept = pd.read_csv(IMAGES / f"{name}.csv")
    numbers = measured.select_dtypes("number").columns
    assert list(kept.columns) == list(measured.columns)
    np.testing.assert_allclose(kept[numbers], measured[numbers], atol=2e-6, rtol=1e-4)


def test_densities_of_three_tables_are_in_one_set() -> None:
    measured = explained.measure_pairs()
    of_tables = measured[["first", "second", "third"]].to_numpy()
    assert np.abs(of_tables).max() <= 0.5 + 1e-12
    assert (of_tables.max(1) - of_tables.min(1)).max() == pytest.approx(1.0)  # they reach epsilon, and not more
    mass = np.exp(measured["log_base"].to_numpy()[:, None] + of_tables).sum(0) * 0.02
    np.testing.assert_allclose(mass, 1, atol=1e-3)


def test_figures_in_the_text_on_mathematics() -> None:
    def read(name: str) -> pd.DataFrame:
        return pd.read_csv(IMAGES / f"{name}.csv")

    def gains(frame: pd.DataFrame, columns: list[str]) -> list[float]:
        return [round(float(frame[column].iloc[0]), 2) for column in columns]

    places = read("places")
    wide, narrow = ([f"gain {target} {skew}" for skew in explained.SKEWS] for target in ("N(1, 0.5)", "N(2, 0.3)"))
    assert gains(places, wide) == [0.19, 0.39, 0.42]
    assert gains(places, narrow) == [0.84, 0.70, 0.50]
    assert gains(read("projection"), ["gain 0.5", "gain 1", "gain 3"]) == [0.17, 0.27, 0.45]
    target = explained.two_normals()
    assert round(explained.gain(target, target - explained.LOG_BASE), 2) == 0.56
    bets = read("certificate").dropna()
    reached = [bets.loc[bets[name] >= 9, "draws"].min() for name in ("against phi >= eta", "against phi <= -eta")]
    assert round(max(reached) / 1e6, 1) == 3.5
    assert read("rejection")["accepted"].sum() == 84
    assert [constant_time_count(width) for width in explained.EPSILONS] == [40, 81, 720]
    rows = read("rows").set_index(["total", "num_rows", "way"])["distance"].round(2)
    assert [rows[total, 10, way] for total in (3, 10) for way in ("batch", "draws")] == [0.43, 0.49, 0.15, 0.38]
    assert rows[3, 10, "base"] == 0.55
    costs = read("accounts").set_index("draws").loc[100].round(1)
    assert list(costs[["pure", "zcdp", "placement", "iid"]]) == [10, 5.2, 3.6, 2.2]
    assert round(math.e * 0.05, 2) == 0.14  # the power of a test of level 0.05


def test_chains() -> None:
    """A last state after a fresh start is within 2R at every step; a trajectory is not, and a repetition shows more."""
    measured = explained_draws.measure_trajectories()
    assert measured["fresh"].max() <= 1.0
    assert measured["trajectory"].tolist() == pytest.approx([0] + [0.5 * (step // 2 + 1) for step in range(12)])
    assert int(measured.loc[measured["trajectory"] > 1.0 + 1e-9, "step"].min()) == 5
    log_base = explained.LOG_BASE[::10].log_softmax(0)
    points = explained.POINTS[::10]
    bounds = skewed_bounds(0.5, 0.5)
    target = explained.normal_log_prob(points, 1.0, 0.5) - explained.normal_log_prob(points)
    chain = explained_draws._Chain(log_base, target, bounds, 0)
    rejected = 1 - chain.moves.exp().sum(1)
    lowest = points < 0  # where the tilt is at its lower end
    assert float(rejected[lowest].abs().max()) < 1e-12
    assert float(rejected[points.sub(1).abs().argmin()]) > 0.2
    for _ in range(200):
        chain.advance()
    kernel = chain.moves.exp() + torch.diag(rejected)
    assert torch.allclose(chain.fresh @ kernel, chain.fresh, atol=1e-12)  # it leaves a law invariant
    assert torch.allclose(chain.fresh, chain.at_row, atol=1e-12)
