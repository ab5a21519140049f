"""A real medical table: the RAND Health Insurance Experiment's, and three columns of it over their public ranges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_mbde._checks import argument_error, check_count, check_number
from pyro_mbde._torch_state import seeded
from pyro_mbde.tables.columns import Column
from pyro_mbde.tables.earlier import SpreadSchema
from pyro_mbde.tables.schema import Schema

TABLE = Path(__file__).with_name("data") / "randhie.csv"
#: What is public about all its columns, with a source for each number.
WHOLE_SCHEMA = TABLE.with_name("randhie.schema.toml")
#: Public ranges of three columns, from the experiment's design and codebook. None of it comes from the rows. A box: the
#: methods that are compared need densities on one.
SCHEMA = SpreadSchema(
    (
        Column("visits", 0, 99, "integer", "log1p"),  # to a doctor in a year: 100 are not expected
        Column("coinsurance_%", 0, 100, "integer", "log1p"),  # the share of the bill that a family pays
        Column("diseases", 0, 60, decimals=1),  # chronic ones, out of a list of about 60
    )
)
#: Names of the modelled columns, and what axes call them.
LABELS = {
    "log_visits": "ln(1 + visits to a doctor)",
    "log_coinsurance": "ln(1 + coinsurance rate in %)",
    "diseases": "chronic diseases",
}


def load_rows(seed: int | None = None) -> Tensor:
    """Reads the table and returns its rows in the modelled units, shape (n, 3).

    Args:
        seed: of the spreading of whole numbers, see ``SpreadSchema.to_tensor``; ``None`` draws from torch's
            global generator.

    Raises:
        FileNotFoundError: the table is not there.
    """
    table = _read_table()
    coinsurance = np.expm1(table["lncoins"]).round()  # stored as ln(1 + rate)
    frame = pd.DataFrame({"visits": table["mdvis"], "coinsurance_%": coinsurance, "diseases": table["disea"]})
    return SCHEMA.to_tensor(frame, seed=seed)


def load_table() -> pd.DataFrame:
    """Reads all ten columns and returns them as people have them: eight columns, a row for each person and year.

    Privacy:
        The table is the private one: none of what is computed from it may be public.

    Raises:
        FileNotFoundError: the table is not there.
    """
    table = _read_table()
    rate = np.expm1(table["lncoins"]).round().astype(int)  # stored as ln(1 + rate)
    # Stored as ln(max(1, maximum / share that is paid)), and as 0 where there is no maximum.
    maximum = np.exp(table["fmde"]).where(table["fmde"] > 0, 0.0) * rate / 100
    incentive = np.exp(table["lpi"]).where(table["lpi"] > 0, 0.0)  # stored as ln(max(1, payment))
    grades = [table["hlthg"] == 1, table["hlthf"] == 1, table["hlthp"] == 1]
    return pd.DataFrame(
        {
            "visits": table["mdvis"],
            "coinsurance": rate.astype(str),
            "deductible_plan": table["idp"] == 1,
            "incentive": incentive.round().astype(int),
            "max_expense": maximum.round().astype(int),
            "limitation": table["physlm"] >= 0.5,  # fractions are imputed means, here and of diseases
            "diseases": table["disea"].round().astype(int),
            "health": np.select(grades, ["good", "fair", "poor"], "excellent"),
        }
    )


def whole_schema() -> Schema:
    """Returns what is public about the columns of :func:`load_table`: ranges, marginals, correlations, constraints.

    Written by hand from the codebook, the design and national statistics, each number with its source in
    ``data/randhie.schema.toml``.
    """
    return Schema.from_toml(WHOLE_SCHEMA)


def _read_table() -> pd.DataFrame:
    if not TABLE.exists():
        remedy = "It comes with a clone of the repository: run from there, installed by `pip install --editable .`."
        raise FileNotFoundError(f"The medical table is not at {str(TABLE)!r}. {remedy}")
    return pd.read_csv(TABLE)


def split_rows(rows: Tensor, share: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Returns the rows to train on and those held out, chosen at random.

    Args:
        rows: shape ``(n, ...)``.
        share: of rows held out, in (0, 1); rounded up to whole rows, except that one is left to train on.
        seed: which rows.

    Raises:
        ValueError: an argument is out of its range, or there are fewer than two rows.

    Example:
        >>> train, held_out = split_rows(torch.arange(10.0), 0.2)
        >>> len(train), len(held_out), torch.cat([train, held_out]).sort().values.tolist() == list(range(10))
        (8, 2, True)
    """
    if not isinstance(rows, Tensor):
        raise TypeError(argument_error("rows", "be a tensor", rows))
    if rows.dim() == 0 or len(rows) < 2:
        raise ValueError(argument_error("rows", "be at least two", tuple(rows.shape)))
    share = check_number("share", share, "be in (0, 1)", lambda value: 0 < value < 1)
    num_train = max(int((1 - share) * len(rows)), 1)
    with seeded(check_count("seed", seed, minimum=0)):
        order = torch.randperm(len(rows))
    return rows[order[:num_train]], rows[order[num_train:]]


def public_base() -> dist.TorchDistribution:
    """Returns the base Q0: uniform on the box of the public ranges."""
    base: dist.TorchDistribution = SCHEMA.base()
    return base


def in_natural_units(rows: Tensor) -> pd.DataFrame:
    """Turns modelled rows back into readable ones. Post-processing: it costs no privacy.

    Args:
        rows: shape ``(n, 3)``.
    """
    return SCHEMA.to_frame(rows)
