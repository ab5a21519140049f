"""Cards and reports: public facts on one, private ones on the other, and never the two together."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from html import unescape
from pathlib import Path

import pyro.distributions as dist
import pytest
import torch
from cards import Links, hostile, pair
from densities import make_density, normal

from pyro_mbde import (
    BoundedClassifiers,
    Bounds,
    Column,
    Guarantee,
    Ledger,
    MollifiedExpFamily,
    Schema,
    release,
)
from pyro_mbde.ledger import ledger as ledger_module
from pyro_mbde.releases import release as releasing
from pyro_mbde.releases.card_words import column_values, likeness, percent, round_up, short_number
from pyro_mbde.tables.earlier import SpreadSchema
from pyro_mbde.theory import post_processing_bounds


def private_numbers(q: MollifiedExpFamily) -> list[float]:
    """What must not be on a card."""
    numbers = [q.log_normalizer.value, q.log_normalizer.standard_error, q.acceptance_rate, q.offset, q.shrinkage]
    numbers += q.natural_params.tolist() + [q.bounds.high - q.log_normalizer.value]
    for value in q.statistics.state_dict().values():
        if value.is_floating_point() and value.numel() <= 1000:
            numbers += [number for number in value.flatten().tolist() if number not in (0.0, 1.0)]
    return numbers


def significant(number: float) -> str:
    """The first five digits of a number, however it is scaled."""
    return f"{abs(number):.4e}".partition("e")[0].replace(".", "")


@pytest.mark.parametrize("index", range(12))
def test_nothing_private_is_on_a_card(
    index: int, make_ledger: Callable[..., Ledger], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Property: five digits in a row of any private number, or the fingerprint, are nowhere in what is written."""
    q = hostile(index)
    q = q if index % 3 else q.to(torch.float64)
    monkeypatch.setattr("getpass.getuser", lambda: "login-name")
    ledger = make_ledger(epsilon=20.0, delta=1e-6)
    released = release(q, 4, ledger, "clinic", path=tmp_path / "rows.csv", purpose="test", progress=False)
    texts = [(tmp_path / f"rows.card.{kind}").read_text() for kind in ("json", "html")] + [json.dumps(released.card)]
    for text in texts:
        digits = text.replace(".", "")
        for number in private_numbers(q):
            if len(significant(number).rstrip("0")) >= 5:
                assert significant(number) not in digits, number
        assert q.fingerprint not in text
        assert released.charge.hash not in text
        assert released.charge.who == "login-name"
        assert "login-name" not in text
        for word in ("acceptance", "shrinkage", "offset", "log_normalizer", "fingerprint", "natural"):
            assert word not in text.lower().replace("bernoulli", "")


@pytest.fixture
def fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the ledgers' date from changing between two releases."""
    monkeypatch.setattr(ledger_module, "_now", lambda: datetime(2026, 1, 31, 12, tzinfo=UTC))


@pytest.mark.usefixtures("fixed_clock")
def test_same_rows_same_bytes(
    make_ledger: Callable[..., Ledger],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Attack: two tables whose draws coincide differ in no byte of card, page, rows or output."""
    rows = torch.randn(5, 2)
    monkeypatch.setattr(releasing, "draw_rows", lambda *arguments, **options: rows)
    written = []
    for index, q in enumerate(pair()):
        folder = tmp_path / str(index)
        folder.mkdir()
        ledger = make_ledger(delta=1e-6)
        released = release(q, 5, ledger, "clinic", path=folder / "rows.csv", purpose="p", who="w")
        captured = capfdbinary.readouterr()
        files = {entry.name: entry.read_bytes() for entry in sorted(folder.iterdir())}
        written.append((files, captured.out, captured.err, json.dumps(released.card)))
    assert written[0] == written[1]
    assert len(written[0][0]) == 3


@pytest.mark.usefixtures("fixed_clock")
def test_draws_that_coincide_by_themselves(make_ledger: Callable[..., Ledger], tmp_path: Path) -> None:
    """The same with the real sampler: a constant tilt, of whichever sign, accepts or not by one seed alike."""

    def flat(theta: float) -> MollifiedExpFamily:
        network = BoundedClassifiers(1, 2)
        with torch.no_grad():
            network.weights[-1].zero_()
        return MollifiedExpFamily(
            normal(2), network, torch.tensor([theta], dtype=torch.float64), 0.0, bounds=Bounds(-1.0, 0.0)
        )

    written = []
    for index, theta in enumerate((0.2, 0.7)):
        folder = tmp_path / str(index)
        folder.mkdir()
        with pytest.warns(UserWarning, match="seeded"):
            release(flat(theta), 5, make_ledger(), "clinic", path=folder / "rows.csv", seed=3)
        written.append({entry.name: entry.read_bytes() for entry in folder.iterdir()})
    assert written[0] == written[1]


def test_the_page_needs_nothing_else(ledger: Ledger, tmp_path: Path) -> None:
    release(make_density(normal(2)), 3, ledger, "clinic", path=tmp_path / "rows.csv")
    page = (tmp_path / "rows.card.html").read_text()
    parser = Links()
    parser.feed(page)
    assert parser.loaded == []
    assert parser.open == []
    assert not re.search(r"https?:|url\(|@import", page)
    for needed in ("viewport", "prefers-color-scheme: dark", "@media print", "<title>3 rows released"):
        assert needed in page


def test_what_is_put_in_is_escaped(ledger: Ledger, tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>&"
    release(
        make_density(normal(1)),
        1,
        ledger,
        "clinic",
        path=tmp_path / "rows.csv",
        purpose=evil,
        who=evil,
        columns=[evil],
    )
    page = (tmp_path / "rows.card.html").read_text()
    assert "<script>" not in page
    assert page.count("&lt;script&gt;") == 3
    assert json.loads((tmp_path / "rows.card.json").read_text())["purpose"] == evil


def test_facts_of_a_card(make_ledger: Callable[..., Ledger]) -> None:
    q, ledger = pair()[0], make_ledger(delta=1e-6)
    card = release(q, 1, ledger, "clinic").card
    assert card["title"] == "1 row released under integral privacy"
    assert card["who"] is None
    tau = pytest.approx(1 - math.exp(-0.31))
    assert card["guarantee_of_one_row"] == {
        "epsilon": 1.02,
        "delta": 1e-9,
        "log_ratio_range": 2.0,
        "total_variation": tau,
    }
    density = card["density"]
    assert (density["form"], density["tolerance"], density["skew"]) == ("calibrated", 0.01, pytest.approx(0.31 / 1.02))
    assert (density["tilt_low"], density["tilt_high"]) == (-0.3, 0.7)
    assert density["base_text"] == "Normal(loc=[0, 0], scale=[1, 1])"
    for rule in ("zcdp", "iid"):
        ledger = make_ledger(30.0, 1e-6, rule)
        many = release(q, 4, ledger, "clinic").card
        spent = ledger.spent("clinic")
        assert many["cost_of_this_release"]["delta"] <= 1e-6
        assert (many["account"]["name"], many["account"]["rule"]) == ("clinic", rule)
        assert many["account"]["spent"] == {"epsilon": spent.epsilon, "delta": spent.delta, "rule": spent.rule}
        assert many["account"]["epsilon_left"] == pytest.approx(30.0 - spent.epsilon)


@pytest.mark.parametrize("width", [0.02, 0.25, 0.5, 1.0, 2.5, 8.0])
@pytest.mark.parametrize("form", ["a priori", "calibrated", "chains"])
def test_likeness_to_the_base_is_true_of_the_worst_density(form: str, width: float) -> None:
    """Attack: steps from the lowest to the highest tilt, on every share of the base."""
    share = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    base, ratio = torch.stack([1 - share, share], -1), torch.tensor([1.0, math.exp(width)], dtype=torch.float64)
    density = base * ratio / (base * ratio).sum(-1, keepdim=True)
    skew = None
    if form == "chains":
        law = base
        for _ in range(3):
            stay = torch.minimum(torch.ones(2, 2, dtype=torch.float64), ratio[None, :] / ratio[:, None])
            moves = base[:, None, :] * stay
            law = torch.einsum("ki,kij->kj", law, moves) + law * (1 - moves.sum(-1))
        density = law
        guarantee = Guarantee(2 * width, 0.0, 4 * width)
    elif form == "calibrated":
        skew = 0.3
        low, high = math.exp(-skew * width), math.exp((1 - skew) * width)
        mass = torch.minimum(share * high, 1 - (1 - share) * low)  # as far up as a mean of 1 allows
        density = torch.stack([1 - mass, mass], -1)
        guarantee = Guarantee(width, 1e-9)
    else:
        guarantee = Guarantee(2 * width, 0.0, 2 * width)
    of = likeness(guarantee, skew=skew, fresh_chains=form == "chains", where="the public base")
    distance = 0.5 * (density - base).abs().sum(-1)
    assert distance.max() <= of["largest_distance_from_base"] + 1e-6
    assert of["of_100_rows"] <= 100 * (1 - distance.max())
    assert of["of_100_rows"] >= 100 * (1 - of["largest_distance_from_base"]) - 1.001
    assert "are not those of the table" in of["text"]


def test_likeness_follows_the_guarantee_that_holds(make_ledger: Callable[..., Ledger]) -> None:
    """A certificate that has lapsed, and chains of fixed length, promise less of the base than a certified density."""
    q, ledger = pair()[0], make_ledger(epsilon=30.0, delta=1e-6)
    shares = {}
    for name, density, steps in (("calibrated", q, None), ("lapsed", q.to(torch.float64), None), ("chains", q, 5)):
        card = release(density, 1, ledger, "clinic", num_steps=steps).card
        shares[name] = card["likeness"]["of_100_rows"]
        assert card["density"]["form"] == ("calibrated" if name == "calibrated" else "a priori")
        assert ("probability of 1e-9" in card["likeness"]["text"]) == (name == "calibrated")
    assert shares == {"calibrated": 78, "lapsed": 75, "chains": 53}


def test_a_card_tells_whose_units_the_base_is_in(ledger: Ledger, tmp_path: Path) -> None:
    schema = Schema(
        (Column("smoker", 0, 1, "integer"), Column("visits", 0, 61, "integer", "log1p"), Column("bmi", 12, 60))
    )
    card = release(make_density(schema.base()), 1, ledger, "clinic", path=tmp_path / "r.csv").card
    assert card["density"]["base_units"] == ""
    assert "evenly over the ranges of the columns below (visits on a logarithmic scale)" in card["likeness"]["text"]
    spread = release(
        make_density(SpreadSchema(schema.columns).base()), 1, ledger, "clinic", path=tmp_path / "earlier.csv"
    ).card
    assert "up to 2 stands for up to 1. Of visits, ln(1 + v) is modelled." in spread["density"]["base_units"]
    assert "evenly over the ranges of the columns below (visits on a logarithmic scale)" in spread["likeness"]["text"]
    page = unescape((tmp_path / "earlier.card.html").read_text())
    assert spread["density"]["base_units"] in page and spread["likeness"]["text"] in page
    assert "whole numbers; modelled as ln(1 + v)" in page
    plain = release(make_density(dist.Poisson(2.0)), 1, ledger, "clinic").card
    assert plain["density"]["base_units"] == ""
    assert "drawn from the public base, whatever" in plain["likeness"]["text"]


@pytest.mark.parametrize(
    ("decimals", "text"),
    [
        (None, "numbers"),
        (0, "whole numbers"),
        (1, "numbers, 1 decimal"),
        (3, "numbers, 3 decimals"),
        (-2, "in 100s"),
    ],
)
def test_what_values_are(decimals: int | None, text: str) -> None:
    assert column_values({"whole": False, "scale": "linear", "decimals": decimals}) == text
    assert column_values({"whole": False}) == "numbers"  # an older card


def test_a_weak_promise_is_called_weak(ledger: Ledger) -> None:
    q = make_density(normal(1))
    weak = release(q, 4, ledger, "clinic").card
    strong = release(q, 1, ledger, "clinic").card
    defended = release(q, 3, ledger, "clinic").card
    assert any("weak" in text for text in weak["meaning"])
    assert not any("weak" in text for text in strong["meaning"] + defended["meaning"])
    assert "2.72 times as likely" in " ".join(strong["meaning"])


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 4.0, 10.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 0.3])
@pytest.mark.parametrize("chance", [0.0, 0.1, 0.5, 1.0])
def test_examples_are_what_the_guarantee_allows(epsilon: float, delta: float, chance: float) -> None:
    """The two ends satisfy both inequalities of the definition, and anything further breaks one."""
    low, high = post_processing_bounds(chance, epsilon, delta)
    assert -1e-12 <= low <= chance + 1e-12
    assert chance - 1e-12 <= high <= 1 + 1e-12
    factor = math.exp(min(epsilon, 700))

    def allowed(other: float) -> bool:
        slack = 1e-9
        return (
            other <= factor * chance + delta + slack
            and chance <= factor * other + delta + slack
            and 1 - other <= factor * (1 - chance) + delta + slack
            and 1 - chance <= factor * (1 - other) + delta + slack
        )

    assert allowed(low)
    assert allowed(high)
    assert high >= 1 - 1e-6 or not allowed(high + 1e-6)


def test_examples_of_a_promise_of_nothing() -> None:
    assert post_processing_bounds(0.1, 1000.0) == (0.0, 1.0)  # e^-1000 is below every float
    assert 0.0 < post_processing_bounds(0.1, 700.0)[0] < 1e-300


@pytest.mark.parametrize("value", [1e-300, 1.23456e-9, 0.1, 1 / 3, 1.0, 7.12345, 99999.5, 1e12])
def test_costs_are_rounded_up(value: float) -> None:
    shown = float(round_up(value))
    assert value * (1 - 1e-11) <= shown <= value * 1.001


def test_numbers_as_text() -> None:
    assert [round_up(number) for number in (0.0, 4.0, 1e-6, math.inf)] == ["0", "4", "1e-6", "inf"]
    assert [short_number(number) for number in (None, -0.25, 1e-9, 60.0)] == ["–", "\N{MINUS SIGN}0.25", "1e-9", "60"]
    assert [percent(number) for number in (0.0, 1.0, 0.5, 0.9999999, 1e-9)] == [
        "0%",
        "100%",
        "50%",
        "> 99.9%",
        "< 0.1%",
    ]
