"""Audits: every planted fault is found, nothing sound is accused, and most of epsilon is proved spent."""

from __future__ import annotations

import pytest
from planted_faults import BASE, EPSILON, FAULTS

from pyro_mbde import audit


@pytest.mark.parametrize("fit", FAULTS, ids=lambda fit: fit.__name__)
def test_a_planted_fault_is_found(fit: object) -> None:
    report = audit(fit, EPSILON, base=BASE, num_pairs=2, num_draws=4000, seed=0, progress=False)
    assert not report.passed
    print(report)
    assert {finding.kind for finding in report.faults} >= FAULTS[fit], report
