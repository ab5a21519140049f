"""Chains that run in this process, where a test asks for no others: forking it takes longer than a short chain."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many processes are used by default."""
    if hasattr(os, "sched_getaffinity"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
