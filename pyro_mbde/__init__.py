"""Integrally private sampling for Pyro.

Fits a boosted density to a sensitive table, makes it a Pyro distribution and draws from it exactly, with a guarantee
that protects every group of any size.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyro.distributions

from pyro_mbde.distribution import MollifiedExpFamily

if TYPE_CHECKING:
    from pyro_mbde.calibration import recertify
    from pyro_mbde.diagnostics.checks import mixing_report
    from pyro_mbde.diagnostics.plot import plot_mixing
    from pyro_mbde.diagnostics.report import MixingReport
    from pyro_mbde.mollifier import Bounds, Certificate
    from pyro_mbde.normalizer import LogNormalizer
    from pyro_mbde.privacy.accounting import DrawBudget, TotalCost, compose, compose_fits, epsilon_per_draw
    from pyro_mbde.privacy.accounts import Account, BudgetExceededError, Charge
    from pyro_mbde.privacy.audit import audit
    from pyro_mbde.privacy.audit_report import AuditReport, Finding, PairResult
    from pyro_mbde.privacy.guarantee import Guarantee
    from pyro_mbde.privacy.leaks import PrivacyLeakWarning
    from pyro_mbde.privacy.ledger import Ledger
    from pyro_mbde.privacy.ledger_errors import LedgerError
    from pyro_mbde.releases.releasing import Release, UnwrittenReleaseError, release
    from pyro_mbde.releases.report import private_report
    from pyro_mbde.sampling.chains import Chains
    from pyro_mbde.sampling.fresh import FreshDraws, fresh_chains
    from pyro_mbde.sampling.independence import IndependenceSampler, total_variation_bound
    from pyro_mbde.sampling.kernels import LockstepRandomWalk
    from pyro_mbde.sampling.mcmc import resume_mcmc, run_mcmc
    from pyro_mbde.sampling.posterior import exact_posterior, posterior_guarantee
    from pyro_mbde.sampling.private import private_draws
    from pyro_mbde.statistics import BoundedClassifiers
    from pyro_mbde.tables.columns import Column
    from pyro_mbde.tables.schema import Schema
    from pyro_mbde.training.density_ratio import DensityRatio, LogRatio
    from pyro_mbde.training.fallback import FitWarning
    from pyro_mbde.training.mbde import MBDE, RoundRecord
    from pyro_mbde.training.weak_learner import WeakLearner

__version__ = "0.1.0.dev0"

__all__ = [
    "MBDE",
    "Account",
    "AuditReport",
    "BoundedClassifiers",
    "Bounds",
    "BudgetExceededError",
    "Certificate",
    "Chains",
    "Column",
    "Charge",
    "DensityRatio",
    "DrawBudget",
    "Finding",
    "FitWarning",
    "FreshDraws",
    "Guarantee",
    "IndependenceSampler",
    "Ledger",
    "LedgerError",
    "LockstepRandomWalk",
    "LogNormalizer",
    "LogRatio",
    "MixingReport",
    "MollifiedExpFamily",
    "PrivacyLeakWarning",
    "Release",
    "PairResult",
    "RoundRecord",
    "Schema",
    "TotalCost",
    "UnwrittenReleaseError",
    "WeakLearner",
    "audit",
    "compose",
    "compose_fits",
    "epsilon_per_draw",
    "exact_posterior",
    "fresh_chains",
    "mixing_report",
    "plot_mixing",
    "posterior_guarantee",
    "private_draws",
    "private_report",
    "recertify",
    "release",
    "resume_mcmc",
    "run_mcmc",
    "total_variation_bound",
]

#: The module that each name comes from. It is imported when the name is first asked for: pandas, SQLAlchemy and Jinja
#: take longer than all that a model needs.
_MODULES = {
    "calibration": "recertify",
    "diagnostics.checks": "mixing_report",
    "diagnostics.plot": "plot_mixing",
    "diagnostics.report": "MixingReport",
    "mollifier": "Bounds Certificate",
    "normalizer": "LogNormalizer",
    "privacy.accounting": "DrawBudget TotalCost compose compose_fits epsilon_per_draw",
    "privacy.accounts": "Account BudgetExceededError Charge",
    "privacy.audit": "audit",
    "privacy.audit_report": "AuditReport Finding PairResult",
    "privacy.guarantee": "Guarantee",
    "privacy.leaks": "PrivacyLeakWarning",
    "privacy.ledger": "Ledger",
    "privacy.ledger_errors": "LedgerError",
    "releases.releasing": "Release UnwrittenReleaseError release",
    "releases.report": "private_report",
    "sampling.chains": "Chains",
    "sampling.fresh": "FreshDraws fresh_chains",
    "sampling.independence": "IndependenceSampler total_variation_bound",
    "sampling.kernels": "LockstepRandomWalk",
    "sampling.mcmc": "resume_mcmc run_mcmc",
    "sampling.posterior": "exact_posterior posterior_guarantee",
    "sampling.private": "private_draws",
    "statistics": "BoundedClassifiers",
    "tables.columns": "Column",
    "tables.schema": "Schema",
    "training.density_ratio": "DensityRatio LogRatio",
    "training.fallback": "FitWarning",
    "training.mbde": "MBDE RoundRecord",
    "training.weak_learner": "WeakLearner",
}
_SOURCES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Imports a public name."""
    if name not in _SOURCES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_SOURCES[name]}"), name)
    return value


def __dir__() -> list[str]:
    """Lists the public names, imported or not."""
    return sorted({*globals(), *__all__})


# Where a Pyro user looks for a distribution. Nothing else outside this package is changed.
setattr(pyro.distributions, "MollifiedExpFamily", MollifiedExpFamily)  # noqa: B010  # mypy knows no such attribute
