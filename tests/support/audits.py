"""Short audits, and the training function that most of them attack."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from quick_fits import BASE, EPSILON, quick_fit

from pyro_mbde import AuditReport, audit
from pyro_mbde.auditing import checks, events, search

Fit = Callable[[Any], Any]


def scale_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shorter search and training, and normalisers on fewer draws: audits are as sound, and find a little less."""
    monkeypatch.setattr(search, "_NUM_STARTS", 2**9)
    monkeypatch.setattr(search, "_NUM_STEPS", 20)
    monkeypatch.setattr(search, "_NUM_TRIES", 8)
    monkeypatch.setattr(checks, "_REPLICATE_SIZE", 2**8)
    monkeypatch.setattr(events, "_LEARNER", dataclasses.replace(events._LEARNER, num_steps=60, batch_size=256))


def quick_audit(fit: Fit, epsilon: float = EPSILON, **options: Any) -> AuditReport:
    settings = {"base": BASE, "num_pairs": 2, "num_draws": 4000, "seed": 0, "progress": False} | options
    return audit(fit, epsilon, **settings)


def boosted(epsilon: float = EPSILON, **options: Any) -> Fit:
    return lambda table: quick_fit(table, epsilon, **options)
