"""Certificates and reports of released densities."""

from __future__ import annotations

import pytest
from densities import scale_calibration

from pyro_mbde.releases import comparison


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates are proved on fewer draws, which leaves them valid and makes tolerances wider; so are reports made."""
    scale_calibration(monkeypatch)
    monkeypatch.setattr(comparison, "_NUM_DRAWS", 2**14)
