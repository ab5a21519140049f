"""What public knowledge in a base is worth: releases of the medical table over bases that know more or less."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from pyro_mbde._torch_state import seeded, single_thread
from pyro_mbde.cli.forward import PrintingCommand
from pyro_mbde.density.base import prepare
from pyro_mbde.density.base_draws import quasi_draws
from pyro_mbde.experiments.bench_batches import Case, Record, Way, fit_scores, row_law
from pyro_mbde.experiments.medical import load_table, split_rows, whole_schema
from pyro_mbde.experiments.row_laws import Array
from pyro_mbde.private_files import write_atomically
from pyro_mbde.releases.distances import COLUMN_LEVELS, PAIR_LEVELS, shares_in, total_variation
from pyro_mbde.tables.columns import FACTS
from pyro_mbde.tables.correlations import Correlation
from pyro_mbde.tables.public_rows import learn_from_public_rows
from pyro_mbde.tables.schema import Schema

#: Epsilon in all, and rows.
RELEASES = ((1.0, 20), (3.0, 20), (10.0, 20), (10.0, 5))
TABLES = ("medical", "cost-sharing")
#: Columns that tell which plan a row is on, or what it paid.
_OF_THE_PLAN = ("coinsurance", "deductible_plan", "incentive", "max_expense")
#: A pair of columns is strongly correlated from here on.
_STRONG = 0.3
_NUM_DRAWS, _NUM_QUICK_DRAWS = 2**18, 2**13


class Sample(NamedTuple):
    """Rows as codes and the cells that they are compared on, those of the table in all ways alike.

    Attributes:
        rows: shape ``(n, d)``.
        grids: for each column, edges of the cells of a single column, then of a column of a pair.
    """

    rows: Array
    grids: tuple[tuple[Array, Array], ...]


def without_facts(schema: Schema) -> Schema:
    """The schema without what it knows beyond the ranges and the levels.

    Example:
        >>> from pyro_mbde import Column
        >>> without_facts(Schema((Column("age", 0, 110, mean=40, sd=10),))) == Schema((Column("age", 0, 110),))
        True
    """
    unknown: dict[str, Any] = dict.fromkeys([*FACTS, "missing_share"])
    return Schema(tuple(replace(column, **unknown) for column in schema.columns))


def grids(schema: Schema, samples: Sequence[Array]) -> tuple[tuple[Array, Array], ...]:
    """Edges of the cells on which rows are compared.

    A level is a cell. Numbers share the cells between quantiles of the samples: deciles, and quartiles in pairs.
    """
    found = []
    for at, column in enumerate(schema.columns):
        if column.kind in ("real", "integer"):
            edges = [
                np.unique(np.concatenate([np.quantile(sample[:, at], levels) for sample in samples]))
                for levels in (COLUMN_LEVELS, PAIR_LEVELS)
            ]
        else:
            values = np.unique(np.concatenate([sample[:, at] for sample in samples]))
            edges = [values[:-1], values[:-1]]
        found.append((edges[0], edges[1]))
    return tuple(found)


def distances(table: Sample, rows: Array, weights: Array | None = None) -> tuple[float, float]:
    """Mean total variation to the table, over single columns and over pairs.

    Args:
        table: whose cells are taken.
        rows: as codes, shape ``(m, d)``.
        weights: of the rows; alike by default.

    Example:
        >>> table = Sample(np.array([[0.0, 0.0], [1.0, 1.0]]), ((np.zeros(1), np.zeros(1)),) * 2)
        >>> distances(table, np.array([[0.0, 1.0], [1.0, 0.0]]))
        (0.0, 1.0)
    """
    means = []
    for size in (1, 2):
        found = []
        for columns in combinations(range(len(table.grids)), size):
            shares = []
            for sample, of_sample in ((table.rows, None), (rows, weights)):
                cell, num_cells = np.zeros(len(sample), dtype=np.int64), 1
                for at in columns:
                    edges = table.grids[at][size - 1]
                    cell = cell * (len(edges) + 1) + np.searchsorted(edges, sample[:, at], "left")
                    num_cells *= len(edges) + 1
                shares.append(shares_in(cell, num_cells, of_sample))
            found.append(total_variation(*shares))
        means.append(float(np.mean(found)))
    return means[0], means[1]


def correlations(rows: Array, weights: Array | None = None) -> Array:
    """Pearson correlations of the codes, one for each pair of columns; 0 where a column is constant."""
    covariance = np.atleast_2d(np.cov(rows.T, aweights=weights))
    scale = np.sqrt(np.diag(covariance))
    product = np.outer(scale, scale)
    matrix: Array = np.divide(covariance, product, out=np.zeros_like(covariance), where=product > 0)
    return matrix[np.triu_indices(len(matrix), 1)]


def share_of_strong_correlations(of_table: Array, of_rows: Array) -> tuple[int, int]:
    """How many of the table's strong correlations rows have at least half of, and how many there are.

    Example:
        >>> share_of_strong_correlations(np.array([0.8, -0.4, 0.1]), np.array([0.5, -0.1, 0.9]))
        (1, 2)
    """
    strong = abs(of_table) > _STRONG
    return int((of_rows[strong] / of_table[strong] >= 0.5).sum()), int(strong.sum())


def closed(far: float, near: float, distance: float) -> float:
    """The share of the way from the box to the other half of the table that a distance has gone."""
    return (far - distance) / (far - near)


def measure(
    name: str, cases: dict[str, Case], table: Sample, half: Array, releases: Sequence[tuple[float, int]] = RELEASES
) -> Iterator[Record]:
    """Yields how far rows are from a table: of each base alone, of single draws and of one batch over it, of the table.

    Args:
        name: of the table.
        cases: bases by name, each with its draws and their scores; the first is the box.
        table: rows that no fit has seen.
        half: the rows that fits have seen.
        releases: epsilon in all, and rows.
    """
    of_table = correlations(table.rows)
    near = distances(table, half)
    boxed = next(iter(cases.values())).base_columns
    assert boxed is not None
    far = distances(table, boxed)

    def record(base: str, way: str, rows: Array, weights: Array | None = None, **key: Any) -> Record:
        columns, pairs = distances(table, rows, weights)
        strong, num_strong = share_of_strong_correlations(of_table, correlations(rows, weights))
        return {
            "table": name,
            "base": base,
            "way": way,
            **key,
            "columns": columns,
            "pairs": pairs,
            "strong": strong,
            "num_strong": num_strong,
            "closed": closed(far[0], near[0], columns),
            "closed_pairs": closed(far[1], near[1], pairs),
        }

    yield record("-", "half", half)
    for base, case in cases.items():
        assert case.base_columns is not None
        yield record(base, "base", case.base_columns)
        for total, num_rows in releases:
            for way, placed in (("draws", Way(num_rows, 1)), ("batch", Way(1, num_rows))):
                found = row_law(case, case.base_scores, total, placed)
                assert found is not None
                law, epsilon = found
                weights = law.log_ratio(case.base_scores).softmax(0).numpy()
                yield record(base, way, case.base_columns, weights, total=total, num_rows=num_rows, epsilon=epsilon)


def cases(
    schemas: dict[str, Schema], frame: pd.DataFrame, seed: int, *, quick: bool
) -> tuple[dict[str, Case], Sample, Array]:
    """Fits to half of a table over each base; returns these, the other half and the half that was seen."""
    num_draws = _NUM_QUICK_DRAWS if quick else _NUM_DRAWS
    found: dict[str, Case] = {}
    seen = unseen = torch.empty(0)
    for name, schema in schemas.items():
        seen, unseen = split_rows(schema.to_tensor(frame), 0.5, seed)
        base = schema.base()
        draws = quasi_draws(base, num_draws)
        scores = fit_scores(base, seen, draws, seed, quick=quick)
        found[name] = Case(name, prepare(base), scores, scores, base_columns=_codes(draws))
    first = next(iter(found.values())).base_columns
    assert first is not None
    return found, Sample(_codes(unseen), grids(next(iter(schemas.values())), [_codes(unseen), first])), _codes(seen)


def _codes(rows: Tensor) -> Array:
    return rows.numpy().astype(np.float64)


def medical_schemas(name: str) -> tuple[dict[str, Schema], pd.DataFrame]:
    """Bases by name, the box first, and the table that is released.

    ``medical`` is the whole table. ``cost-sharing`` are the rows of those who pay a share of their bills. Its public
    rows are those of the free plan: another population, of the same experiment. Families were assigned at random, so
    the two differ by what a price does. The columns of the plan are left out of both.
    """
    frame, schema = load_table(), whole_schema()
    if name == "medical":
        return {"box": without_facts(schema), "codebook": schema}, frame
    free = (frame["coinsurance"] == "0") & ~frame["deductible_plan"]
    frame = frame.drop(columns=list(_OF_THE_PLAN))
    schema = _without(schema, _OF_THE_PLAN)
    learned = learn_from_public_rows(without_facts(schema).columns, frame[free])
    stated = tuple(Correlation(**one) for one in learned.correlations)
    public = Schema(learned.columns, stated, public_rows="the experiment's free plan")
    return {"box": without_facts(schema), "codebook": schema, "public rows": public}, frame[~free]


def _without(schema: Schema, names: Sequence[str]) -> Schema:
    """The schema of a table that has lost columns, without what was stated of them."""
    content: dict[str, Any] = schema.to_dict()
    content["columns"] = [one for one in content["columns"] if one["name"] not in names]
    content["correlations"] = [one for one in content.get("correlations", ()) if not set(one["columns"]) & set(names)]
    content["constraints"] = [one for one in content.get("constraints", ()) if not any(name in one for name in names)]
    return Schema.from_dict({key: value for key, value in content.items() if value})


def _line(record: Record) -> str:
    def number(name: str, form: str) -> str:
        return format(record[name], form) if name in record else "-"

    return (
        f"{record['table']:<13}{record['base']:<12}{record['way']:<6}{number('total', 'g'):>4}"
        f"{number('num_rows', 'd'):>4}{number('epsilon', '.3f'):>8}{record['columns']:>9.3f}{record['closed']:>8.0%}"
        f"{record['pairs']:>8.3f}{record['closed_pairs']:>8.0%}{record['strong']:>6} of {record['num_strong']}"
    )


@click.command(cls=PrintingCommand)
@click.option("--table", "names", multiple=True, type=click.Choice(TABLES), default=TABLES, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--records", type=click.Path(dir_okay=False, path_type=Path), help="JSON file for every number.")
@click.option("--quick", is_flag=True, help="Few draws and short training, to check that everything runs.")
def bases(names: tuple[str, ...], seed: int, records: Path | None, quick: bool) -> None:
    """What public knowledge is worth: releases of the medical table over the box, its codebook, and public rows.

    Total variation of a released row to half of the table, its mean over columns and over pairs, and how much of the
    way from the box to the table's other half that is; then how many of the table's strong correlations a row has.
    """
    measured: list[Record] = []
    with single_thread(), seeded(seed), tqdm(total=len(names), desc="tables") as bar:
        bar.write(
            f"{'table':<13}{'base':<12}{'way':<6}{'E':>4}{'k':>4}{'epsilon':>8}{'columns':>9}{'closed':>8}"
            f"{'pairs':>8}{'closed':>8}{'strong':>9}"
        )
        for name in names:
            fitted, table, half = cases(*medical_schemas(name), seed, quick=quick)
            for record in measure(name, fitted, table, half):
                bar.write(_line(record))
                measured.append(record)
            bar.update()
    if records is not None:
        write_atomically(lambda file: file.write(json.dumps(measured, indent=1).encode()), records)
        click.echo(str(records))
