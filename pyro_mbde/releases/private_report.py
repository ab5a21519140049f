"""A report on a fitted density for the owner of the table alone."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from pyro_mbde._checks import argument_error
from pyro_mbde._torch_state import seeded
from pyro_mbde.density.base import PreparedBase, support_of
from pyro_mbde.density.distribution import MollifiedExpFamily, check_density
from pyro_mbde.private_files import holds_release_card, write_atomically
from pyro_mbde.releases.card import json_values, templates
from pyro_mbde.releases.columns import released_columns, row_base
from pyro_mbde.releases.comparison import Comparison, compare
from pyro_mbde.releases.picture import picture
from pyro_mbde.tables.schema import Schema
from pyro_mbde.training.data import to_rows
from pyro_mbde.training.rounds import RoundRecord

PRIVATE = "PRIVATE - do not hand out"
#: Pairs of columns that a page lists at most.
_MAX_PAIRS = 20
#: A standard error below it is left out: it is that of rounding, of a density that is the base.
_LEAST_ERROR = 1e-9
#: Batches of the table's rows that the gain of a density of batches is averaged over.
_NUM_BATCHES = 4096


def private_report(
    q: MollifiedExpFamily,
    data: Any = None,
    *,
    path: str | os.PathLike[str] | None = None,
    columns: Sequence[str] | Schema | None = None,
    history: Sequence[RoundRecord] | None = None,
) -> dict[str, Any]:
    """Returns how rows will look, beside the table and the base, and how the fit went.

    Total variation between table, density and base is of histograms, column by column and pair by pair, in the table's
    own units; as a page, with a picture of each column. Of a density of batches, one row is shown by itself, and gains
    are by the row.

    Privacy:
        As sensitive as the table, all of it: not for release, not even in part. Only its owner may read the file, and
        it is refused a place beside the card of a release.

    Args:
        q: the fitted density.
        data: rows to compare, as for ``fit``; ``None`` for none. With a schema in ``columns`` a DataFrame is taken for
            the table in its own units, as by :meth:`~pyro_mbde.Schema.to_tensor`: columns by name, others left out.
        path: where the report goes, ending in ``.html`` or ``.json``; replaced only once all is written. ``None`` to
            write nothing.
        columns: names of the columns, or the schema that the base was made from, as for :func:`~pyro_mbde.release`.
        history: of the trainer, :attr:`pyro_mbde.MBDE.history`.

    Returns:
        The report. The standard error of the gain is None where it is not known or below 1e-9.

    Raises:
        TypeError: ``data`` holds something else than numbers in the columns that are wanted.
        ValueError: ``q`` has a batch shape, the path has another ending, its folder holds the card of a release, or
            columns do not fit.

    Example:
        >>> from pyro_mbde import MBDE
        >>> base = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
        >>> trainer, rows = MBDE(base, epsilon=1.0, seed=0, progress=False), torch.linspace(0, 1, 500)
        >>> report = private_report(trainer.fit(rows), rows, columns=["weight"], history=trainer.history)
        >>> report["notice"], report["scores"]["gain_in_nats"] > 0.1, len(report["history"])
        ('PRIVATE - do not hand out', True, 3)
        >>> print(report["comparison"]["verdict"])
        Your rows will look more like the public base than like your table: they cover 21% in single columns of
        the distance from the public base to your table; 88 in 100 could just as well have been drawn from the public
        base.
    """
    check_density(q)
    target = None if path is None else _check_path(path)
    records = [] if history is None else list(history)
    if not all(isinstance(record, RoundRecord) for record in records):
        raise TypeError(argument_error("history", "be a trainer's history", history))
    base = PreparedBase.of(q.base).row
    support = support_of(base.distribution)
    if isinstance(columns, Schema) and isinstance(data, pd.DataFrame):
        released_columns(q, columns)  # refuses another schema
        with seeded(0):  # earlier models spread whole numbers: the same report for the same table
            data = columns.to_tensor(data)
    rows = None if data is None else to_rows(data, base, 10_000)
    inside = rows if rows is None or not len(rows) else rows[support.check(rows)]
    comparison = compare(q, inside, columns)
    shortfall = q.shrinkage < 1
    report: dict[str, Any] = {
        "notice": PRIVATE,
        "density": repr(q),
        "rows_of_batch": PreparedBase.of(q.base).num_rows,
        "comparison": json_values(comparison),
        "fit": {
            "acceptance_rate": q.acceptance_rate,
            "least_acceptance_rate": math.exp(-q.bounds.width),
            "log_normalizer": q.log_normalizer.value,
            "log_normalizer_standard_error": q.log_normalizer.standard_error,
            "offset": q.offset,
            "shrinkage": q.shrinkage,
            "certificate": "none needed" if q.certificate is None else "failed" if shortfall else "reached",
            "natural_params": q.natural_params.tolist(),
            "fingerprint": _fingerprint(q),
        },
        "scores": None if rows is None or inside is None else _scores(q, inside, len(rows)),
        "history": [record._asdict() for record in records],
    }
    if target is not None:
        content = _page(report, comparison) if target.suffix == ".html" else json.dumps(report, indent=2) + "\n"
        write_atomically(lambda file: file.write(content.encode()), target)
    return report


def _check_path(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(argument_error("path", "be a path", path))
    target = Path(path)
    if target.suffix not in (".html", ".json") or target.name.endswith((".card.html", ".card.json")):
        raise ValueError(argument_error("path", "end in .html or .json, and not as a release card does", str(target)))
    if holds_release_card(target.parent):
        remedy = "Whoever is given that folder gets both. Keep the report elsewhere."
        raise ValueError(argument_error("path", "lie in a folder without release cards", str(target), remedy))
    return target


def _fingerprint(q: MollifiedExpFamily) -> str | None:
    try:
        return q.fingerprint
    except TypeError:  # statistics that cannot be written down
        return None


def _scores(q: MollifiedExpFamily, rows: Tensor, num_given: int) -> dict[str, Any]:
    """Average log-densities of the rows in the support, by the row; others, which have none, are counted."""
    num_rows, rows_of_batch = len(rows), PreparedBase.of(q.base).num_rows
    width = q.bounds.width if q.certificate is None else q.bounds.high + q.certificate.tolerance
    with torch.no_grad():
        base = row_base(q).log_prob(rows).double() if num_rows else rows.double()
        if rows_of_batch is None:
            gain, error = _averaged(q.log_prob(rows).double() - base)
        else:
            gain, error = _gain_of_batches(q, rows, rows_of_batch)
    if error is not None and error < _LEAST_ERROR:
        error = None
    likelihood = float(base.mean()) if num_rows else None
    return {
        "num_rows": num_given,
        "num_rows_outside_the_support": num_given - num_rows,
        "negative_log_likelihood": None if likelihood is None or gain is None else -likelihood - gain,
        "negative_log_likelihood_of_the_base": None if likelihood is None else -likelihood,
        "gain_in_nats": gain,
        "standard_error_of_the_gain": error,
        "most_that_can_be_gained": width / (rows_of_batch or 1),
    }


def _averaged(values: Tensor) -> tuple[float | None, float | None]:
    """Mean and standard error; None where they are not known."""
    mean = float(values.mean()) if len(values) else None
    return mean, float(values.std() / math.sqrt(len(values))) if len(values) > 1 else None


def _gain_of_batches(q: MollifiedExpFamily, rows: Tensor, num_rows: int) -> tuple[float | None, float | None]:
    """As :func:`_averaged`, of the log-ratio of batches of the table's rows, drawn with replacement, a row."""
    if not len(rows):
        return None, None
    with seeded(0):
        chosen = torch.randint(len(rows), (_NUM_BATCHES, num_rows))
    gains = torch.cat([q.accepted_tilt(rows[part]) for part in torch.split(chosen, 2**16 // num_rows + 1)])
    gains = (gains - q.log_normalizer.value) / num_rows
    # The mean over batches of n rows is at most as uncertain as that of n/k batches without a row in common.
    error = float(gains.std()) * math.sqrt(num_rows / len(rows)) if len(rows) > 1 else None
    return float(gains.mean()), error


def _page(report: dict[str, Any], comparison: Comparison) -> str:
    chances = [column.distances.chance for column in comparison.columns if column.distances.chance is not None]
    template = templates().get_template("report.html.j2")
    return template.render(
        report=report,
        pictures=[(column, picture(column.bars, whole=column.whole)) for column in comparison.columns],
        pairs=comparison.pairs[:_MAX_PAIRS],
        with_table=bool(chances),
        chance=max(chances, default=None),
    )
