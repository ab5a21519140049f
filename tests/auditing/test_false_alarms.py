"""How often an audit's tests accuse draws that are as they should be: their p-values are not too small too often."""

from __future__ import annotations

import math

import pytest
import torch
from audits import quick_audit
from quick_fits import BASE, Overridden, quick_fit
from torch import Tensor

from pyro_mbde import MollifiedExpFamily
from pyro_mbde._torch_state import seeded
from pyro_mbde.auditing.attack import _FALSE_ALARMS, Attack
from pyro_mbde.auditing.draws import _serial_tests, check_draws
from pyro_mbde.auditing.hostile_tables import hostile_pairs
from pyro_mbde.auditing.progress import AuditProgress
from pyro_mbde.auditing.report import PendingTest, fault


def test_serial_tests_are_asymptotically_right() -> None:
    """Of 400 samples, ten lags each: 1% and 0.1% of p-values lie below 1% and 0.1%."""
    p_values = torch.tensor(
        [test.p_value for _ in range(400) for test in _serial_tests("x", torch.randn(1000).double())]
    )
    for level in (0.01, 0.001):
        expected = level * len(p_values)
        assert int((p_values < level).sum()) <= expected + 4 * math.sqrt(expected) + 2
    assert float((p_values < 0.5).double().mean()) > 0.45  # and they are not all near 1


def test_draws_of_a_sound_density_are_rarely_accused() -> None:
    q = quick_fit(hostile_pairs(BASE, 1.0, 1)[0].table)
    found = [item for _ in range(60) for item in check_draws("q", q, BASE, q.sample((1500,)))]
    p_values = torch.tensor([item.p_value for item in found if isinstance(item, PendingTest)])
    assert len(p_values) == len(found)  # no finding that needs no test
    expected = 0.01 * len(p_values)
    # Correlated p-values, of two columns of one sample: five deviations.
    assert int((p_values < 0.01).sum()) <= expected + 5 * math.sqrt(expected) + 2
    assert float(p_values.min()) > _FALSE_ALARMS / len(p_values)


def test_levels_share_out_one_in_ten_thousand() -> None:
    """With uniform p-values a report accuses something with the probability that the docstring states."""
    attack = Attack(lambda table: None, 1.0, 1000, 0.05, AuditProgress(1, show=False))
    generator, accused, trials = torch.Generator().manual_seed(0), 0, 4000
    scale = 0.02 / _FALSE_ALARMS  # p-values are divided by it, so that what is counted comes about 80 times
    for _ in range(trials):
        p_values = (torch.rand(40, generator=generator, dtype=torch.float64) / scale).tolist()
        attack._evidence = [PendingTest(value, fault("draws", "made up")) for value in p_values]
        accused += bool(attack.verdict())
    assert 0.02 * trials - 5 * math.sqrt(0.02 * trials) < accused < 0.02 * trials + 5 * math.sqrt(0.02 * trials)


@pytest.mark.parametrize("num_draws", [1000, 4000])
def test_a_seed_that_is_used_again_is_found_whatever_is_drawn_at_a_time(num_draws: int) -> None:
    """Releases of two sizes from one seed may differ from the first row on, as batches of proposals do."""

    def draw(q: MollifiedExpFamily, count: int) -> Tensor:
        with seeded(count):
            return q.rejection_draws(count).values

    report = quick_audit(lambda table: Overridden(quick_fit(table), draw), num_pairs=1, num_draws=num_draws)
    assert "repeated" in {finding.kind for finding in report.faults}
