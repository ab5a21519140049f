"""A real medical table: three columns of the RAND Health Insurance Experiment, with their public ranges."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_mbde._checks import argument_error, check_count, check_number, check_seed
from pyro_mbde._torch_state import seeded

TABLE = Path(__file__).with_name("data") / "randhie.csv"
#: Of the unit that a whole number is spread over, what is left out at either end.
_MARGIN = 2.0**-8


class Column(NamedTuple):
    """A column with its public range, in the units it is modelled in. None of it comes from the rows.

    Attributes:
        name: short.
        label: for axes.
        low: lower edge of the range.
        high: upper edge.
    """

    name: str
    label: str
    low: float
    high: float


#: From the experiment's design and codebook.
COLUMNS = [
    # mdvis, visits to a doctor in a year: nobody is expected to go 100 times. Modelled as ln(1 + visits).
    Column("log_visits", "ln(1 + visits to a doctor)", 0.0, math.log(101)),
    # lncoins = ln(1 + coinsurance rate), the share of the bill that a family pays, 0 to 100 per cent.
    Column("log_coinsurance", "ln(1 + coinsurance rate in %)", 0.0, math.log(102)),
    # disea, the number of chronic diseases out of a list of about 60.
    Column("diseases", "chronic diseases", 0.0, 60.0),
]


def load_rows(seed: int | None = None) -> Tensor:
    """Reads the table and returns its rows in the modelled units, shape (n, 3).

    Visits and rates are whole numbers: they are spread over the unit above them, as a density is no good at spikes, but
    for its edges, where rows would meet the ends of the public ranges as if these had been read off them.
    :func:`in_natural_units` undoes it by rounding down. The guarantee holds for whatever the owner does to the table.

    Args:
        seed: of the spreading; ``None`` draws from torch's global generator.

    Raises:
        FileNotFoundError: the table is not there.
    """
    seed = check_seed(seed)
    if not TABLE.exists():
        remedy = "It comes with a clone of the repository: run from there, installed by `pip install --editable .`."
        raise FileNotFoundError(f"The medical table is not at {str(TABLE)!r}. {remedy}")
    table = pd.read_csv(TABLE)
    visits = torch.tensor(table["mdvis"].to_numpy(), dtype=torch.float64)
    coinsurance = torch.tensor(np.expm1(table["lncoins"].to_numpy())).round()
    with seeded(seed):
        log_visits, log_coinsurance = (
            (1 + count + _MARGIN + (1 - 2 * _MARGIN) * torch.rand_like(count)).log() for count in (visits, coinsurance)
        )
    return torch.stack([log_visits, log_coinsurance, torch.tensor(table["disea"].to_numpy())], -1).float()


def split_rows(rows: Tensor, share: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Returns the rows to train on and those held out, chosen at random.

    Args:
        rows: shape ``(n, ...)``.
        share: of rows held out, in (0, 1); rounded up to whole rows, except that one is left to train on.
        seed: which rows.

    Raises:
        TypeError: an argument is of the wrong kind.
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
    low, high = (torch.tensor([getattr(column, end) for column in COLUMNS]) for end in ("low", "high"))
    uniform: Any = dist.Uniform  # Pyro leaves it unannotated
    base: dist.TorchDistribution = uniform(low, high).to_event(1)
    return base


def in_natural_units(rows: Tensor) -> pd.DataFrame:
    """Turns modelled rows back into readable ones. Post-processing: it costs no privacy.

    Args:
        rows: shape ``(n, 3)``.
    """
    log_visits, log_coinsurance, diseases = rows.double().numpy().T
    return pd.DataFrame(
        {
            "visits": np.expm1(log_visits).astype(int),
            "coinsurance_%": np.expm1(log_coinsurance).astype(int),
            "diseases": diseases.round(1),
        }
    )
