"""A folder to work in, the command to run, and a clock that stands still."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from cli_words import Run
from click.testing import CliRunner, Result
from densities import make_density, scale_calibration
from schemas import TOML

from pyro_mbde import MollifiedExpFamily, Schema
from pyro_mbde.cli import main
from pyro_mbde.ledger import ledger as ledger_module
from pyro_mbde.tables.files import TableModel


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table and its schema, to work in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYRO_MBDE_DEBUG", raising=False)
    generator = np.random.default_rng(0)
    table = pd.DataFrame({"name": "x", "age": generator.uniform(20, 40, 300), "visits": generator.poisson(3, 300)})
    table.to_csv("table.csv", index=False)
    Path("schema.toml").write_text(TOML)
    return tmp_path


@pytest.fixture
def run() -> Run:
    """Runs the command with words, and checks its exit code."""

    def invoke(*words: Any, code: int = 0, **options: Any) -> Result:
        result = CliRunner().invoke(main, [str(word) for word in words], prog_name="pyro-mbde", **options)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result

    return invoke


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates are proved on fewer draws, which leaves them valid and makes tolerances wider."""
    scale_calibration(monkeypatch)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the ledgers' clock."""
    monkeypatch.setattr(ledger_module, "_now", lambda: datetime(2026, 1, 2, tzinfo=UTC))


@functools.cache
def _density() -> MollifiedExpFamily:
    schema = Schema.from_toml("schema.toml")  # as every test begins with
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(20240229)
        return make_density(schema.base())


@pytest.fixture
def model() -> Path:
    """A model that nothing was fitted for."""
    path, schema = Path("model.pt"), Schema.from_toml("schema.toml")
    TableModel(_density(), schema, {"epsilon": 1.0}).save(path)
    return path
