"""Short audits, and the training function that most of them attack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quick_fits import BASE, EPSILON, quick_fit

from pyro_mbde import AuditReport, audit

Fit = Callable[[Any], Any]


def quick_audit(fit: Fit, epsilon: float = EPSILON, **options: Any) -> AuditReport:
    settings = {"base": BASE, "num_pairs": 2, "num_draws": 4000, "seed": 0, "progress": False} | options
    return audit(fit, epsilon, **settings)


def boosted(epsilon: float = EPSILON, **options: Any) -> Fit:
    return lambda table: quick_fit(table, epsilon, **options)
