"""Integrally private sampling for Pyro.

Fits a boosted density to a sensitive table, makes it a Pyro distribution and draws from it exactly, with a guarantee
that protects every group of any size.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyro_mbde import _pyro
from pyro_mbde._version import __version__ as __version__

if TYPE_CHECKING:
    from pyro_mbde.auditing.audit import audit
    from pyro_mbde.auditing.report import AuditReport, Finding, PairResult
    from pyro_mbde.calibration.recertify import recertify
    from pyro_mbde.density.bounds import Bounds, Certificate
    from pyro_mbde.density.distribution import MollifiedExpFamily
    from pyro_mbde.density.normalizer import LogNormalizer
    from pyro_mbde.density.statistics import BoundedClassifiers
    from pyro_mbde.diagnostics.checks import mixing_report
    from pyro_mbde.diagnostics.plot import plot_mixing
    from pyro_mbde.diagnostics.report import MixingReport
    from pyro_mbde.ledger.accounts import Account, BudgetExceededError, Charge
    from pyro_mbde.ledger.errors import LedgerError
    from pyro_mbde.ledger.ledger import Ledger
    from pyro_mbde.mcmc.chains import Chains
    from pyro_mbde.mcmc.hamiltonian import LockstepHMC
    from pyro_mbde.mcmc.independence import IndependenceSampler
    from pyro_mbde.mcmc.random_walk import LockstepRandomWalk
    from pyro_mbde.mcmc.run import resume_mcmc, run_mcmc
    from pyro_mbde.privacy.accounting import DrawBudget, TotalCost, compose, compose_fits, epsilon_per_draw
    from pyro_mbde.privacy.guarantee import Guarantee
    from pyro_mbde.private_files import PrivacyLeakWarning
    from pyro_mbde.ranks import LostRankError, Ranks, joined_ranks
    from pyro_mbde.releases.private_report import private_report
    from pyro_mbde.releases.release import Release, UnwrittenReleaseError, release
    from pyro_mbde.sampling.fresh import FreshDraws, fresh_chains
    from pyro_mbde.sampling.independence import total_variation_bound
    from pyro_mbde.sampling.posterior import exact_posterior, posterior_guarantee
    from pyro_mbde.sampling.private import private_draws
    from pyro_mbde.tables.columns import Column
    from pyro_mbde.tables.row_files import RowFiles
    from pyro_mbde.tables.schema import Schema
    from pyro_mbde.tables.streams import TableStream
    from pyro_mbde.tables.table_errors import ChangedFileError
    from pyro_mbde.training.density_ratio import DensityRatio, LogRatio
    from pyro_mbde.training.fallback import FitWarning
    from pyro_mbde.training.mbde import MBDE
    from pyro_mbde.training.rounds import RoundRecord
    from pyro_mbde.training.weak_learner import WeakLearner


__all__ = [
    "MBDE",
    "Account",
    "AuditReport",
    "BoundedClassifiers",
    "Bounds",
    "BudgetExceededError",
    "Certificate",
    "Chains",
    "ChangedFileError",
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
    "LockstepHMC",
    "LockstepRandomWalk",
    "LogNormalizer",
    "LogRatio",
    "LostRankError",
    "MixingReport",
    "MollifiedExpFamily",
    "PrivacyLeakWarning",
    "Ranks",
    "Release",
    "PairResult",
    "RoundRecord",
    "RowFiles",
    "Schema",
    "TableStream",
    "TotalCost",
    "UnwrittenReleaseError",
    "WeakLearner",
    "audit",
    "compose",
    "compose_fits",
    "epsilon_per_draw",
    "exact_posterior",
    "fresh_chains",
    "joined_ranks",
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
    "auditing.audit": "audit",
    "auditing.report": "AuditReport Finding PairResult",
    "calibration.recertify": "recertify",
    "density.bounds": "Bounds Certificate",
    "density.distribution": "MollifiedExpFamily",
    "density.normalizer": "LogNormalizer",
    "density.statistics": "BoundedClassifiers",
    "diagnostics.checks": "mixing_report",
    "diagnostics.plot": "plot_mixing",
    "diagnostics.report": "MixingReport",
    "ledger.accounts": "Account BudgetExceededError Charge",
    "ledger.errors": "LedgerError",
    "ledger.ledger": "Ledger",
    "mcmc.chains": "Chains",
    "mcmc.hamiltonian": "LockstepHMC",
    "mcmc.independence": "IndependenceSampler",
    "mcmc.random_walk": "LockstepRandomWalk",
    "mcmc.run": "resume_mcmc run_mcmc",
    "privacy.accounting": "DrawBudget TotalCost compose compose_fits epsilon_per_draw",
    "privacy.guarantee": "Guarantee",
    "private_files": "PrivacyLeakWarning",
    "ranks": "LostRankError Ranks joined_ranks",
    "releases.private_report": "private_report",
    "releases.release": "Release UnwrittenReleaseError release",
    "sampling.fresh": "FreshDraws fresh_chains",
    "sampling.independence": "total_variation_bound",
    "sampling.posterior": "exact_posterior posterior_guarantee",
    "sampling.private": "private_draws",
    "tables.columns": "Column",
    "tables.row_files": "RowFiles",
    "tables.schema": "Schema",
    "tables.streams": "TableStream",
    "tables.table_errors": "ChangedFileError",
    "training.density_ratio": "DensityRatio LogRatio",
    "training.fallback": "FitWarning",
    "training.mbde": "MBDE",
    "training.rounds": "RoundRecord",
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
_pyro.add_to_distributions()
