"""A synthetic table of any length whose law is known in full, to measure fits to tables beyond memory."""

from __future__ import annotations

import datetime
import importlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyro_mbde._checks import argument_error, check_choice, check_count
from pyro_mbde._torch_state import seeded
from pyro_mbde.private_files import write_atomically
from pyro_mbde.tables.columns import FACTS, Column
from pyro_mbde.tables.schema import Schema

#: Rows of a block: all rows of one are drawn at once, from its number and the seed alone.
BLOCK_ROWS = 100_000
#: The first block of rows that no table holds.
FIRST_HELD_OUT = 10**9
ENDINGS = (".parquet", ".csv")

#: Share of the first group of people.
SHARE = 0.35
#: What is public of the columns.
COLUMNS = (
    Column("age", 18, 100, mean=50, sd=20),
    Column("height", 120, 220, mean=170, sd=12),
    Column("weight", 30, 200, mean=75, sd=15),
    Column("pressure", 60, 240, mean=130, sd=20),
    Column("income", 0, 1_000_000, scale="log1p", distribution={"name": "lognorm", "s": 0.8, "scale": 30_000}),
    Column("visits", 0, 99, "integer", mean=7, sd=8),
    Column("children", 0, 12, "integer", mean=1.5, sd=1.5),
    Column("admitted", "2012-01-01", "2027-12-31", kind="date", mean="2019-12-01", sd=700),
    Column("region", kind="category", levels=("north", "east", "south", "west", "abroad"), missing="level"),
    Column("health", kind="ordered", levels=("poor", "fair", "good", "excellent")),
)
#: What is true of the two groups: independent columns within each, so that columns of the table depend on one another.
_GROUPS: tuple[dict[str, dict[str, Any]], ...] = (
    {
        "age": {"mean": 72, "sd": 9},
        "height": {"mean": 166, "sd": 8},
        "weight": {"mean": 82, "sd": 14},
        "pressure": {"mean": 146, "sd": 17},
        "income": {"distribution": {"name": "lognorm", "s": 0.7, "scale": 18_000}},
        "visits": {"mean": 14, "sd": 8},
        "children": {"mean": 2.6, "sd": 1.4},
        "admitted": {"mean": "2021-06-30", "sd": 450},
        "region": {
            "shares": {"north": 0.5, "east": 0.25, "south": 0.1, "west": 0.1, "abroad": 0.05},
            "missing_share": 0.04,
        },
        "health": {"shares": {"poor": 0.4, "fair": 0.35, "good": 0.2, "excellent": 0.05}},
    },
    {
        "age": {"mean": 38, "sd": 11},
        "height": {"mean": 174, "sd": 9},
        "weight": {"mean": 72, "sd": 11},
        "pressure": {"mean": 121, "sd": 11},
        "income": {"distribution": {"name": "lognorm", "s": 0.5, "scale": 42_000}},
        "visits": {"mean": 3, "sd": 3},
        "children": {"mean": 1.1, "sd": 1.1},
        "admitted": {"mean": "2019-01-01", "sd": 500},
        "region": {
            "shares": {"north": 0.1, "east": 0.15, "south": 0.3, "west": 0.35, "abroad": 0.1},
            "missing_share": 0.12,
        },
        "health": {"shares": {"poor": 0.05, "fair": 0.2, "good": 0.45, "excellent": 0.3}},
    },
)


def public_schema() -> Schema:
    """Returns what is public about the table: ranges, levels, and the distribution of most columns, roughly.

    Example:
        >>> len(public_schema().names)
        10
    """
    return Schema(COLUMNS)


class TwoGroups(TorchDistribution):
    """The law of a row: a mixture of two groups of people, with independent columns in each.

    Example:
        >>> law = TwoGroups()
        >>> law.log_prob(law.sample((3,))).shape
        torch.Size([3])
    """

    arg_constraints: dict[str, Any] = {}

    def __init__(self) -> None:
        groups = []
        for stated in _GROUPS:
            facts: dict[str, dict[str, Any]] = {name: dict.fromkeys(FACTS) | of for name, of in stated.items()}
            groups.append(Schema(tuple(replace(column, **facts[column.name]) for column in COLUMNS)))
        self.groups = [group.base() for group in groups]
        super().__init__(torch.Size(), self.groups[0].event_shape, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density over the mixed measure of the base, float64 of shape ``(...)``."""
        first, second = (group.log_prob(value).double() for group in self.groups)
        return torch.logaddexp(first + float(np.log(SHARE)), second + float(np.log1p(-SHARE)))

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008  # torch's own signature
        """Returns draws of shape ``sample_shape + (d,)``."""
        shape = torch.Size(sample_shape)
        is_first = torch.rand(shape.numel()) < SHARE
        rows = torch.empty(shape.numel(), *self.event_shape)
        for group, chosen in zip(self.groups, (is_first, ~is_first), strict=True):
            rows[chosen] = group.sample((int(chosen.sum()),))
        return rows.reshape(shape + self.event_shape)


def block(law: TwoGroups, seed: int, number: int) -> Tensor:
    """Returns the rows of a block, shape ``(BLOCK_ROWS, d)``: those numbered from ``number * BLOCK_ROWS`` on."""
    words = np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)
    with seeded(int(words[0])):
        return law.sample((BLOCK_ROWS,))


def blocks(num_rows: int, seed: int, *, first: int = 0) -> Iterator[Tensor]:
    """Yields rows block by block, with a last block that may be shorter."""
    law = TwoGroups()
    for number in range(-(-num_rows // BLOCK_ROWS)):
        yield block(law, seed, first + number)[: num_rows - number * BLOCK_ROWS]


def held_out_rows(num_rows: int, seed: int = 0) -> Tensor:
    """Returns rows of the law that no table of this seed holds, shape ``(num_rows, d)``.

    Example:
        >>> held_out_rows(5).shape
        torch.Size([5, 10])
    """
    return torch.cat(list(blocks(num_rows, seed, first=FIRST_HELD_OUT)))


def to_arrow(rows: Tensor) -> Any:
    """Returns rows as an Arrow table in the table's own units: what :meth:`Schema.to_frame` gives, four times as fast.

    Args:
        rows: shape ``(n, d)``.
    """
    arrow: Any = importlib.import_module("pyarrow")  # an extra
    arrays = {}
    for column, values in zip(COLUMNS, rows.T.numpy(), strict=True):
        codes = column.of_kind.from_modelled(column, values.astype(np.float64))
        if column.kind == "real":
            # As few digits as tell rows apart, except of incomes: a column whose values are all rounded is noted.
            array = arrow.array(codes.astype(np.float32 if column.scale == "linear" else np.float64))
        elif column.kind == "date":
            first = (datetime.date.fromisoformat(str(column.low)) - datetime.date(1970, 1, 1)).days
            array = arrow.array(np.rint(codes).astype(np.int32) + first).cast(arrow.date32())
        elif column.levels is not None:
            low, high = column.modelled_range
            missing = values < low - (high - low) / 2  # as Schema.to_frame has it
            places = np.where(missing, 0, np.rint(codes)).astype(np.int8)
            array = arrow.DictionaryArray.from_arrays(arrow.array(places, mask=missing), list(column.levels))
        else:
            array = arrow.array(np.rint(codes).astype(np.int32))
        arrays[column.name] = array
    return arrow.table(arrays)


def write_table(
    path: str | os.PathLike[str],
    num_rows: int,
    *,
    seed: int = 0,
    group_rows: int = BLOCK_ROWS,
    sort_by: str | None = None,
) -> Path:
    """Writes the table, in memory of one row group whatever its length; tables of one seed begin with the same rows.

    Args:
        path: ending in .parquet or .csv.
        num_rows: at least 1.
        seed: of the rows.
        group_rows: rows of a Parquet row group.
        sort_by: a column to sort all rows by, which takes memory for all of them.

    Returns:
        The path.

    Raises:
        ValueError: an argument is out of its range.
    """
    target = Path(path)
    check_choice("path", target.suffix, ENDINGS)
    check_count("num_rows", num_rows)
    check_count("group_rows", group_rows)
    if sort_by is not None and sort_by not in public_schema().names:
        raise ValueError(argument_error("sort_by", "name a column", sort_by))
    arrow: Any = importlib.import_module("pyarrow")
    parquet, csv = importlib.import_module("pyarrow.parquet"), importlib.import_module("pyarrow.csv")

    def pieces() -> Iterator[Any]:
        held: list[Any] = []
        for rows in blocks(num_rows, seed):
            held.append(to_arrow(rows))
            if sort_by is None and sum(len(one) for one in held) >= group_rows:
                yield arrow.concat_tables(held)
                held = []
        if held:
            table = arrow.concat_tables(held)
            yield table if sort_by is None else table.sort_by(sort_by)

    def write(file: Any) -> None:
        columns = to_arrow(held_out_rows(1)).schema
        is_csv = target.suffix == ".csv"
        with csv.CSVWriter(file, columns) if is_csv else parquet.ParquetWriter(file, columns) as writer:
            for piece in pieces():
                writer.write_table(piece, group_rows)

    write_atomically(write, target)
    return target
