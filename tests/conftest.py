"""Fixtures: every test starts from the same seed on one thread and leaves torch and Pyro as it found them."""

from __future__ import annotations

import copy
import functools
import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pyro
import pytest
import torch

# ArviZ 0.23 announces its successor with a warning at its first import.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    import arviz  # noqa: F401

from densities import BASES, BATCHES, density_over, normal

from pyro_mbde import DensityRatio, Ledger, MollifiedExpFamily, WeakLearner

torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Spares the garbage collector the modules and ten thousand tests, which stay: a twentieth of all time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def fixed_seed() -> Iterator[None]:
    """Forks the generators, seeds them, and clears Pyro's parameters."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would format the stack for each kind of device that is not there: a millisecond a test.
        torch.default_generator.manual_seed(20240229)
        pyro.clear_param_store()
        yield


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains run in this process where a test asks for no others: forking it takes longer than a short chain."""
    if hasattr(os, "sched_getaffinity"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})


@pytest.fixture(autouse=True)
def global_state_guard() -> Iterator[None]:
    """Fails a test that changes a global setting of torch, or leaves figures open."""

    def settings() -> dict[str, object]:
        pyplot = sys.modules.get("matplotlib.pyplot")
        return {
            "validate_args": torch.distributions.Distribution._validate_args,
            "pyro_validation": (pyro.distributions.is_validation_enabled(), pyro.infer.is_validation_enabled()),
            "threads": torch.get_num_threads(),
            "dtype": torch.get_default_dtype(),
            "grad": torch.is_grad_enabled(),
            "figures": pyplot.get_fignums() if pyplot else [],
        }

    before = settings()
    yield
    assert settings() == before


@pytest.fixture(params=sorted(BASES | BATCHES))
def density(request: pytest.FixtureRequest) -> MollifiedExpFamily:
    """A density over each of the bases, and over batches; made once, and copied for each test."""
    return density_over(request.param)


@pytest.fixture
def plane() -> MollifiedExpFamily:
    """A density over the standard normal in the plane."""
    return density_over("normal-2d")


@pytest.fixture
def line() -> MollifiedExpFamily:
    """A density over the standard normal on the line."""
    return density_over("line")


@pytest.fixture
def make_ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Ledger]]:
    """Makes ledgers with an account "clinic", each on a file in its own folder."""
    with ExitStack() as stack:

        def make(epsilon: float = 10.0, delta: float = 0.0, rule: str = "pure") -> Ledger:
            ledger = stack.enter_context(Ledger(tmp_path_factory.mktemp("ledger") / "budget.db"))
            ledger.open_account("clinic", epsilon, delta, rule)
            return ledger

        yield make


@pytest.fixture
def ledger(make_ledger: Callable[..., Ledger]) -> Ledger:
    """A ledger whose account "clinic" has an epsilon of 10 and no delta."""
    return make_ledger()


@functools.cache
def _calibrated_once() -> MollifiedExpFamily:
    learner = WeakLearner(hidden_sizes=(32, 32), num_steps=200)
    table = 0.3 * torch.randn(500, 2, generator=torch.Generator().manual_seed(0)) + 1
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(20240229)
        trainer = DensityRatio(normal(2), weak_learner=learner, ensemble_size=2, seed=0, progress=False)
        return trainer.fit(table).mollify(1.0)


@pytest.fixture(scope="module")
def calibrated() -> MollifiedExpFamily:
    """A calibrated density in the plane."""
    return copy.deepcopy(_calibrated_once())
