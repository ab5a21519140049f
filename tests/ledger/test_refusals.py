"""What a refused charge says: what is in the way, what is left, and the one thing to do."""

from __future__ import annotations

import math
from typing import Any

import pytest
from ledger_stores import DENSITIES, ONE, TWO, UNIT

from pyro_mbde import BudgetExceededError, Guarantee, Ledger


@pytest.mark.parametrize("rule", ["pure", "iid"])
def test_a_refusal_names_what_is_in_the_way(ledger: Ledger, rule: str) -> None:
    ledger.open_account("clinic", 2.0, 1e-8, rule)
    with pytest.raises(BudgetExceededError) as caught:
        ledger.charge("clinic", Guarantee(1.0, 1e-7), 1, fingerprint=ONE)
    left = "1e-08" if rule == "pure" else "1e-09"
    assert str(caught.value) == (
        f"The account 'clinic' pays for certificates of at most delta={left} in all, and that of this density has "
        "delta=1e-07. Nothing was charged, and nothing may be drawn. Fit with delta=0 (a-priori), which needs none, or "
        f"with a delta of at most {left}."
    )
    with pytest.raises(BudgetExceededError) as caught:
        ledger.charge("clinic", Guarantee(1.0, 1e-10), 3, fingerprint=ONE)
    assert str(caught.value) == (
        "num_draws must be at most 2 in account 'clinic': epsilon=0 of its epsilon=2 are spent, added up by the rule "
        f"{rule!r} at delta=1e-08, and one draw of this density has epsilon=1, got num_draws=3. Nothing was charged, "
        "and nothing may be drawn. Ask for fewer."
    )
    ledger.charge("clinic", Guarantee(0.39999999999999997, 1e-10), 5, fingerprint=ONE)
    with pytest.raises(BudgetExceededError) as caught:
        ledger.charge("clinic", Guarantee(0.39999999999999997, 1e-10), 90, fingerprint=ONE)
    assert str(caught.value) == (
        "The account 'clinic' is spent: epsilon 2 of 2. No more rows of this table may be released from it. "
        "Nothing was charged, and nothing may be drawn."
    )


@pytest.mark.parametrize(
    ("rule", "spent"),
    [
        *(("pure", spent) for spent in (0, 3, 6)),
        *(("zcdp", spent) for spent in (0, 3, 6)),
        ("placement", 0),
        ("iid", 0),
    ],
)
@pytest.mark.parametrize("calibrated", [True, False])
def test_what_a_refusal_says_is_left_can_be_charged(ledger: Ledger, rule: str, calibrated: bool, spent: int) -> None:
    """And hardly anything above it; whoever is told that an account is spent finds nothing in it."""
    spread = 2.0 if calibrated else 1.0
    ledger.open_account("clinic", 2.0, 1e-6, rule)
    for number in range(spent):
        ledger.charge("clinic", Guarantee(0.15, 0.0, 0.15 * spread), 1, fingerprint=DENSITIES[number + 3])
    with pytest.raises(BudgetExceededError) as caught:
        ledger.charge("clinic", Guarantee(60.0, 1e-9, 60.0 * spread), 1, fingerprint=ONE)
    text = str(caught.value)
    assert "cannot afford a draw of this density: epsilon=" in text and "if its delta is at most 1e-0" in text
    most = float(text.partition("an epsilon of at most ")[2].split()[0])
    with pytest.raises(BudgetExceededError):
        ledger.charge("clinic", Guarantee(most * 1.0001, 0.0, most * 1.0001 * spread), 1, fingerprint=TWO)
    ledger.charge("clinic", Guarantee(most, 1e-10, most * spread), 1, fingerprint=TWO)
    ends = "is spent" if rule == "pure" else "is spent|cannot afford a draw|name the one density|must have epsilon="
    for epsilon in (60.0, 1e-3):
        with pytest.raises(BudgetExceededError, match=ends):
            ledger.charge("clinic", Guarantee(epsilon, 1e-10, epsilon * spread), 10**6, fingerprint=ONE)


def test_where_delta_is_spent_a_smaller_epsilon_alone_is_not_advised(ledger: Ledger) -> None:
    ledger.open_account("clinic", 2.0, 1e-9)
    ledger.charge("clinic", Guarantee(1.5, 1e-9), 1, fingerprint=ONE)
    for density in (ONE, TWO):
        with pytest.raises(BudgetExceededError) as caught:
            ledger.charge("clinic", Guarantee(1.5, 1e-9), 1, fingerprint=density)
        assert "epsilon of at most 0.5" in str(caught.value)
        assert "delta=0" in str(caught.value)
    ledger.charge("clinic", Guarantee(0.5), 1, fingerprint=TWO)


@pytest.mark.parametrize("rule", ["pure", "zcdp", "placement"])
def test_where_certificates_are_used_up_the_first_way_out_is_the_density_that_has_one(
    ledger: Ledger, rule: str
) -> None:
    ledger.open_account("adm-one", 6.0, 1e-9 if rule == "pure" else 1e-6, rule, None if rule == "pure" else 1e-9)
    first = Guarantee(0.2, 1e-9, 0.4)
    ledger.charge("adm-one", first, 1, fingerprint=ONE)
    with pytest.raises(BudgetExceededError) as caught:
        ledger.charge("adm-one", first, 1, fingerprint=TWO)
    a_priori = ", or fit with delta=0 (a-priori), which needs none" if rule != "placement" else ""
    assert str(caught.value) == (
        "The account 'adm-one' pays for certificates of at most delta=1e-09 in all, the densities charged before have "
        "used all of it, and that of this density has delta=1e-09. Nothing was charged, and nothing may be drawn. Draw "
        f"again from the density already charged, which needs no further certificate{a_priori}."
    )
    shortage = ledger.shortage("adm-one", first, TWO)
    assert shortage is not None and shortage.limit == "certificates"
    assert shortage.reason == (
        "the account 'adm-one' pays for certificates of at most delta=1e-09 in all, the densities charged before have "
        "used all of it, and that of this density has delta=1e-09"
    )
    assert ledger.shortage("adm-one", first, ONE) is None
    ledger.charge("adm-one", first, 1, fingerprint=ONE)


def test_a_density_that_cannot_be_drawn_again_is_not_advised(ledger: Ledger) -> None:
    ledger.open_account("adm-one", 2.0, 1e-9)
    ledger.charge("adm-one", Guarantee(1.5, 1e-9), 1, fingerprint=ONE)
    with pytest.raises(BudgetExceededError, match="drawn. Fit with delta=0 .a-priori., which needs none"):
        ledger.charge("adm-one", Guarantee(0.5, 1e-9), 1, fingerprint=TWO)


def test_the_kinds_of_shortage(ledger: Ledger) -> None:
    """Where one is named nothing can be charged, and where none is something can."""

    def found(name: str, guarantee: Guarantee, density: str) -> tuple[str, str] | None:
        shortage = ledger.shortage(name, guarantee, density)
        assert (ledger.affordable(name, guarantee, density) == 0) == (shortage is not None)
        return shortage

    half = Guarantee(0.5, log_ratio_range=1.0)
    for name in ("pure", "other", "iid", "placement"):
        ledger.open_account(name, 1.0, 1e-6, name if name != "other" else "pure")
    assert found("pure", Guarantee(2.0), ONE) == (
        "epsilon",
        "epsilon 0 of 1 is spent, and one more draw of epsilon 2 exceeds it",
    )
    ledger.charge("pure", half, 2, fingerprint=ONE)
    assert found("pure", half, ONE) == ("epsilon", "epsilon 1 of 1 is spent")
    assert found("other", half, ONE) == ("account", "the account 'pure' is charged for this density already")
    ledger.charge("iid", half, 1, fingerprint=TWO)
    assert found("iid", half, DENSITIES[4]) == (
        "rule",
        "by the rule 'iid' the account is for one density, which the first charge fixed",
    )
    ledger.charge("placement", half, 1, fingerprint=DENSITIES[5])
    assert found("placement", Guarantee(0.25, log_ratio_range=0.5), DENSITIES[6]) == (
        "rule",
        "by the rule 'placement' the account is for densities of one epsilon and total variation, which the first "
        "charge fixed",
    )
    assert found("placement", half, DENSITIES[6]) is None
    ledger.close_account("other")
    assert found("other", half, DENSITIES[7]) == ("account", "the account is closed")


def test_pure_accounts_without_delta_say_so(ledger: Ledger) -> None:
    ledger.open_account("clinic", 2.0, delta=0)
    with pytest.raises(
        BudgetExceededError, match="pays for no certificates, and .* has delta=1e-09.*Fit with delta=0 "
    ):
        ledger.charge("clinic", Guarantee(1.0, 1e-9), 1, fingerprint=ONE)


def test_a_refusal_charges_nothing_and_tells_public_numbers(ledger: Ledger) -> None:
    ledger.open_account("clinic", 10.0, 1e-6)
    ledger.charge("clinic", UNIT, 95, fingerprint=ONE)
    head = ledger.head()
    with pytest.raises(BudgetExceededError) as caught:
        ledger.charge("clinic", Guarantee(0.2), 3, fingerprint=TWO)
    for part in ("at most 2", "epsilon=10", "delta=1e-06", "epsilon=9.5", "num_draws=3", "epsilon=0.2", "'clinic'"):
        assert part in str(caught.value)
    assert ledger.head() == head
    assert ledger.affordable("clinic", Guarantee(0.2), TWO) == 2
    ledger.charge("clinic", Guarantee(0.2), 2, fingerprint=TWO)
    ledger.charge("clinic", UNIT, 1, fingerprint=ONE)
    assert ledger.spent("clinic").epsilon == 10.0
    assert ledger.affordable("clinic", Guarantee(1e-300), TWO) == 0
    assert ledger.verify().ok


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        ({"num_draws": 0}, ValueError, "num_draws must be at least 1"),
        ({"num_draws": -1}, ValueError, "num_draws must be at least 1"),
        ({"num_draws": 10**13}, ValueError, "num_draws must be at most 1,000,000,000,000"),
        ({"num_draws": 1.0}, TypeError, "num_draws must be a whole number"),
        ({"num_draws": True}, TypeError, "num_draws must be a whole number"),
        ({"guarantee": 0.1}, TypeError, "guarantee must be a Guarantee"),
        (
            {"guarantee": Guarantee(math.inf)},
            BudgetExceededError,
            "cannot afford a draw of this density.*of at most [01]",
        ),
        ({"guarantee": Guarantee(1e308), "num_draws": 10**12}, BudgetExceededError, "cannot afford a draw"),
        ({"fingerprint": "xyz"}, ValueError, "fingerprint must be 32 to 128 hexadecimal digits"),
        ({"fingerprint": "ab"}, ValueError, "fingerprint must be 32 to 128 hexadecimal digits"),
        ({"fingerprint": None}, TypeError, "fingerprint must be a string"),
        ({"purpose": "a\nb"}, ValueError, "purpose must consist of printable"),
        ({"purpose": "a" * 2001}, ValueError, "purpose must be at most"),
        ({"purpose": 1}, TypeError, "purpose must be a string"),
        ({"who": 1}, TypeError, "who must be a string"),
        ({"account_name": "other"}, ValueError, r"name must be that of an account \('a', 'b'\)"),
        ({"account_name": 1}, TypeError, "account_name must be a string"),
    ],
)
@pytest.mark.parametrize("rule", ["pure", "zcdp"])
def test_odd_charges_are_refused(
    ledger: Ledger, rule: str, arguments: dict[str, Any], kind: type[Exception], match: str
) -> None:
    ledger.open_account("a", 1.0, 1e-6, rule)
    ledger.open_account("b", 1.0)
    given = {"account_name": "a", "guarantee": UNIT, "num_draws": 1, "fingerprint": ONE, **arguments}
    with pytest.raises(kind, match=match):
        ledger.charge(**given)
    assert ledger.charges("a") == []
    assert ledger.verify().ok
