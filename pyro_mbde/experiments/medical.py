"""A real medical table: three columns of the RAND Health Insurance Experiment, with their public ranges."""

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

TABLE = Path(__file__).with_name("data") / "randhie.csv"
#: Public ranges, from the experiment's design and codebook. None of it comes from the rows. A box: the methods that are
#: compared need densities on one.
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
    if not TABLE.exists():
        remedy = "It comes with a clone of the repository: run from there, installed by `pip install --editable .`."
        raise FileNotFoundError(f"The medical table is not at {str(TABLE)!r}. {remedy}")
    table = pd.read_csv(TABLE)
    coinsurance = np.expm1(table["lncoins"]).round()  # stored as ln(1 + rate)
    frame = pd.DataFrame({"visits": table["mdvis"], "coinsurance_%": coinsurance, "diseases": table["disea"]})
    return SCHEMA.to_tensor(frame, seed=seed)


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
    return SCHEMA.base()


def in_natural_units(rows: Tensor) -> pd.DataFrame:
    """Turns modelled rows back into readable ones. Post-processing: it costs no privacy.

    Args:
        rows: shape ``(n, 3)``.
    """
    return SCHEMA.to_frame(rows)
