"""Certificates of released densities."""

from __future__ import annotations

import pytest
from densities import scale_calibration


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are proved on fewer draws, which leaves them valid and makes tolerances wider."""
    scale_calibration(monkeypatch)
