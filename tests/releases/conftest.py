"""Certificates and reports of released densities."""

from __future__ import annotations

import pytest
from densities import scale_calibration

from pyro_mbde.releases import comparison


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """For certificates, which leaves them valid and makes tolerances wider, and for reports."""
    scale_calibration(monkeypatch)
    monkeypatch.setattr(comparison, "_NUM_DRAWS", 2**14)
