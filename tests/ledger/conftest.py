"""Databases that ledgers are kept in."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger_stores import (
    POSTGRESQL,
    Store,
    admin,
)
from sqlalchemy import make_url

from pyro_mbde import Ledger


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        yield Store(str(tmp_path / "budget.db"), tmp_path / "budget.db")
        return
    if not POSTGRESQL:
        pytest.skip("PYRO_MBDE_TEST_POSTGRESQL names no server: see .ci/postgresql")
    name = f"test_{uuid.uuid4().hex}"
    with admin(POSTGRESQL) as execute:
        execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
    yield Store(make_url(POSTGRESQL).set(database=name).render_as_string(hide_password=False))
    with admin(POSTGRESQL) as execute:
        execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def ledger(store: Store) -> Iterator[Ledger]:
    with Ledger(store.url) as ledger:
        yield ledger


@pytest.fixture
def file(tmp_path: Path) -> Store:
    """SQLite only, with an account."""
    store = Store(str(tmp_path / "budget.db"), tmp_path / "budget.db")
    with Ledger(store.url) as ledger:
        ledger.open_account("large", 1e6)
    return store
