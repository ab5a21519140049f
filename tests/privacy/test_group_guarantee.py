"""Guarantees for groups and zCDP, against brute force and closed forms."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats

from pyro_mbde.privacy.group import GroupGuarantee, record_budget
from pyro_mbde.privacy.zcdp import zcdp_epsilon, zcdp_rho


def gaussian_delta(epsilon: float, shift: float) -> float:
    """The exact curve of N(0, 1) against N(shift, 1) (Balle & Wang 2018, Theorem 8)."""
    upper = stats.norm.cdf(shift / 2 - epsilon / shift)
    return float(upper - math.exp(epsilon) * stats.norm.cdf(-shift / 2 - epsilon / shift))


def test_pure_guarantees_add_up() -> None:
    assert GroupGuarantee(0.1).for_group(10) == GroupGuarantee(1.0, 0.0, 10)
    assert GroupGuarantee(0.5, group_size=10).for_group(11) == GroupGuarantee(1.0, 0.0, 11)
    assert GroupGuarantee(math.inf).for_group(3).epsilon == math.inf
    assert GroupGuarantee(0.0).for_group(1000).epsilon == 0


def test_fields_are_plain_and_checked() -> None:
    guarantee = GroupGuarantee(np.float32(0.5), np.float64(0.0), np.int64(3), np.bool_(False))
    assert repr(guarantee) == "GroupGuarantee(epsilon=0.5, delta=0.0, group_size=3, replaced=False)"
    with pytest.raises(TypeError, match="replaced must be True or False"):
        GroupGuarantee(0.5, replaced="yes")


@pytest.mark.parametrize("size", [1, 5, 10])
def test_smaller_groups_have_the_same_guarantee(size: int) -> None:
    guarantee = GroupGuarantee(0.5, 1e-6, 10)
    assert guarantee.for_group(size) is guarantee


def test_integral_guarantees_hold_for_every_group() -> None:
    guarantee = GroupGuarantee(0.5, group_size=None)
    assert guarantee.for_group(10**9) is guarantee


def test_delta_of_a_group_in_closed_form() -> None:
    """Two steps: delta (1 + e^eps); without epsilon: delta a step."""
    assert GroupGuarantee(0.3, 1e-6).for_group(2).delta == pytest.approx(1e-6 * (1 + math.exp(0.3)), rel=1e-12)
    assert GroupGuarantee(0.0, 1e-6).for_group(7).delta == pytest.approx(7e-6, rel=1e-12)
    assert GroupGuarantee(1e-12, 1e-6).for_group(7).delta == pytest.approx(7e-6, rel=1e-9)


def test_added_rows_stay_added() -> None:
    assert not GroupGuarantee(0.1, replaced=False).for_group(3).replaced


def test_a_chain_of_two_point_mechanisms_meets_the_bound() -> None:
    """The bound is tight: laws on two points, each as far from the one before as (epsilon, delta) allows."""
    epsilon, delta, steps = 0.4, 1e-3, 5
    guarantee = GroupGuarantee(epsilon, delta).for_group(steps)
    mass = start = 1e-3  # of the first point
    for _ in range(steps):
        mass = math.exp(epsilon) * mass + delta
    assert mass == pytest.approx(math.exp(guarantee.epsilon) * start + guarantee.delta, rel=1e-12)


@pytest.mark.parametrize("group_size", [2, 4, 9])
def test_laplace_pairs_stay_within_the_bound(group_size: int) -> None:
    """Laplace laws that a group moves apart: delta at the group's epsilon, by quadrature, is 0."""
    epsilon = 0.5
    x = torch.linspace(-60, 60, 200_001, dtype=torch.float64)
    density = torch.exp(-x.abs() * epsilon) * epsilon / 2
    moved = torch.exp(-(x - group_size).abs() * epsilon) * epsilon / 2
    group = GroupGuarantee(epsilon).for_group(group_size).epsilon
    assert float((density - math.exp(group) * moved).clamp(min=0).sum()) * 120 / 200_000 < 1e-12
    assert float((density - math.exp(0.9 * group) * moved).clamp(min=0).sum()) * 120 / 200_000 > 1e-4


@pytest.mark.parametrize("group_size", [2, 5, 20])
@pytest.mark.parametrize("epsilon", [0.2, 0.3, 0.5])
def test_gaussian_groups_stay_within_the_bound(group_size: int, epsilon: float) -> None:
    """Normals that one row moves by 0.1 and g rows by 0.1 g: the exact curve is below the group's bound."""
    delta = gaussian_delta(epsilon, 0.1)
    guarantee = GroupGuarantee(epsilon, delta).for_group(group_size)
    assert 0 < gaussian_delta(guarantee.epsilon, 0.1 * group_size) <= guarantee.delta


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 10.0, 600.0])
@pytest.mark.parametrize("group_size", [1, 2, 100, 10_000])
def test_record_budget_is_the_way_back(epsilon: float, group_size: int) -> None:
    per_row, delta = record_budget(epsilon, 1e-5, group_size)
    guarantee = GroupGuarantee(per_row, delta).for_group(group_size)
    assert guarantee.epsilon == pytest.approx(epsilon, rel=1e-11)
    assert guarantee.delta == pytest.approx(1e-5, rel=1e-8)


def test_record_budget_at_the_extremes() -> None:
    assert record_budget(math.inf, 1e-5, 10) == (math.inf, 0.0)
    assert record_budget(5000.0, 1e-5, 10) == (pytest.approx(500.0), 0.0)
    assert record_budget(1.0, 0.0, 10) == (pytest.approx(0.1), 0.0)
    deltas = [record_budget(1.0, 1e-5, size)[1] for size in (1, 2, 10, 100, 1000)]
    assert deltas == sorted(deltas, reverse=True)


def test_a_delta_of_one_guarantees_nothing() -> None:
    with pytest.raises(ValueError, match="size must be small enough"):
        GroupGuarantee(1.0, 1e-3).for_group(10)
    with pytest.raises(ValueError, match="size must be small enough"):
        GroupGuarantee(1.0, 1e-300).for_group(10_000)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"epsilon": -0.1}, ValueError),
        ({"epsilon": math.nan}, ValueError),
        ({"epsilon": "1"}, TypeError),
        ({"epsilon": 1.0, "delta": 1.0}, ValueError),
        ({"epsilon": 1.0, "group_size": 0}, ValueError),
        ({"epsilon": 1.0, "group_size": 1.5}, TypeError),
    ],
)
def test_arguments_are_checked(arguments: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match="must"):
        GroupGuarantee(**arguments)


def test_guarantees_are_values() -> None:
    guarantee = GroupGuarantee(1, 0)
    assert guarantee == GroupGuarantee(1.0)
    assert isinstance(guarantee.epsilon, float)
    with pytest.raises(dataclasses.FrozenInstanceError):
        guarantee.epsilon = 2.0


@pytest.mark.parametrize("rho", [1e-6, 1e-3, 0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2, 0.5])
def test_zcdp_is_never_below_the_gaussian_mechanism(rho: float, delta: float) -> None:
    """N(0, 1) and N(sqrt(2 rho), 1) are rho-zCDP exactly: what zCDP says must hold for them."""
    epsilon = zcdp_epsilon(rho, delta)
    assert gaussian_delta(epsilon, math.sqrt(2 * rho)) <= delta * (1 + 1e-9)


@pytest.mark.parametrize("rho", [1e-4, 0.03, 0.5, 20.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5])
def test_zcdp_finds_the_infimum(rho: float, delta: float) -> None:
    """Better than the textbook's conversion, and no order of a fine grid is better by more than a part in 10^5."""
    epsilon = zcdp_epsilon(rho, delta)
    assert epsilon < rho + 2 * math.sqrt(rho * math.log(1 / delta))
    excess = torch.logspace(-8, 8, 200_001, dtype=torch.float64)
    alpha = 1 + excess
    bound = rho * alpha + (-math.log(delta) - alpha.log()) / excess - torch.log1p(1 / excess)
    assert epsilon <= float(bound.min()) * (1 + 1e-5)


def test_zcdp_is_monotone() -> None:
    rhos = [0.0, 1e-9, 1e-4, 1e-2, 1.0, 100.0, 1e6]
    epsilons = [zcdp_epsilon(rho, 1e-6) for rho in rhos]
    assert epsilons[0] == 0
    assert epsilons == sorted(epsilons)
    at_deltas = [zcdp_epsilon(0.1, delta) for delta in (1e-100, 1e-10, 1e-3, 0.3, 0.999)]
    assert at_deltas == sorted(at_deltas, reverse=True)
    assert at_deltas[-1] >= 0


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_zcdp_round_trip(epsilon: float, delta: float) -> None:
    rho = zcdp_rho(epsilon, delta)
    assert rho > 0
    assert zcdp_epsilon(rho, delta) <= epsilon
    assert zcdp_epsilon(rho * (1 + 1e-6), delta) > epsilon * (1 - 1e-5)


def test_zcdp_arguments_are_checked() -> None:
    for rho, delta in ((-1.0, 0.1), (math.inf, 0.1), (1.0, 0.0), (1.0, 1.0)):
        with pytest.raises(ValueError, match="must"):
            zcdp_epsilon(rho, delta)
    for epsilon in (0.0, math.inf):
        with pytest.raises(ValueError, match="epsilon must"):
            zcdp_rho(epsilon, 1e-5)


class TestExtremes:
    def test_smallest_rho(self) -> None:
        assert 0 <= zcdp_epsilon(1e-320, 1e-9) < 1e-100

    def test_largest_epsilon(self) -> None:
        assert 0 < zcdp_rho(1.7e308, 1e-9) <= 1e100

    @pytest.mark.parametrize("size", [2**53 + 1, 10**400])
    def test_absurd_groups(self, size: int) -> None:
        with pytest.raises(ValueError, match="be at most 2"):
            GroupGuarantee(1.0).for_group(size)
        with pytest.raises(ValueError, match="be at most 2"):
            record_budget(1.0, 1e-5, size)

    def test_no_guarantee_promises_no_group_anything(self) -> None:
        assert GroupGuarantee(math.inf, 0.1).for_group(10) == GroupGuarantee(math.inf, 0.1, 10)

    def test_what_is_divided_never_adds_up_to_more(self) -> None:
        for group_size in (2, 3, 7, 10, 99, 1234, 10_000):
            for epsilon in (1e-3, 0.1, 0.7, 1.0, 3.3, 10.0):
                one = GroupGuarantee(*record_budget(epsilon, 1e-5, group_size)).for_group(group_size)
                assert one.epsilon <= epsilon
                assert one.delta <= 1e-5
