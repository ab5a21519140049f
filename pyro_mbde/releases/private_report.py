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
from pyro_mbde.density.clipped_ratio import ClippedRatio
from pyro_mbde.density.distribution import MollifiedExpFamily, check_density
from pyro_mbde.private_files import holds_release_card, write_atomically
from pyro_mbde.releases.associations import Association
from pyro_mbde.releases.base_words import json_values
from pyro_mbde.releases.card import templates
from pyro_mbde.releases.columns import released_columns, row_base, schema_of
from pyro_mbde.releases.comparison import (
    ColumnComparison,
    Comparison,
    PairComparison,
    Weighted,
    compare,
    weighted_draws,
)
from pyro_mbde.releases.picture import Picture, level_picture, picture
from pyro_mbde.releases.prediction import predict
from pyro_mbde.tables.earlier import SpreadSchema
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
#: What measures are, by SDMetrics' names for them.
_SIMILARITIES = {
    "TVComplement": "columns of levels: 1 less the total variation",
    "KSComplement": "numbers and dates: 1 less the largest difference of distribution functions",
    "MissingValueSimilarity": "1 less the difference of the shares of missing values",
    "ContingencySimilarity": "pairs of columns of levels: 1 less the total variation",
    "CorrelationSimilarity": "other pairs with an order: 1 less half the difference of their rank correlations",
}


def private_report(
    q: MollifiedExpFamily,
    data: Any = None,
    *,
    path: str | os.PathLike[str] | None = None,
    columns: Sequence[str] | Schema | None = None,
    history: Sequence[RoundRecord] | None = None,
    target: str | None = None,
) -> dict[str, Any]:
    """Returns how rows will look, beside the table and the base, and how the fit went.

    Table, density and base are compared column by column and pair by pair, in the table's own units, as a page with a
    picture of each column: total variation of their histograms, correlations and the like, and the similarities that
    SDMetrics defines. Of a density of batches, one row is shown by itself, and gains are by the row. With a target, a
    predictor of that column is trained on rows of the density, and tested on the table.

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
        target: name of a column to predict from the others; ``None`` for none. Without a table there is no result.

    Returns:
        The report. The standard error of the gain is None where it is not known or below 1e-9. The estimated divergence
        is what the learned log-ratio says of its own table: None for a density without one, such as those of
        :class:`~pyro_mbde.MBDE`.

    Raises:
        TypeError: ``data`` holds something else than numbers in the columns that are wanted.
        ValueError: ``q`` has a batch shape, the path has another ending, its folder holds the card of a release,
            columns do not fit, or the target is none of them.

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
    page = None if path is None else _check_path(path)
    records = [] if history is None else list(history)
    if not all(isinstance(record, RoundRecord) for record in records):
        raise TypeError(argument_error("history", "be a trainer's history", history))
    base = PreparedBase.of(q.base).row
    support = support_of(base.distribution)
    named, schema = released_columns(q, columns), schema_of(q, columns)  # refuses another schema
    if target is not None and target not in [column.name for column in named]:
        raise ValueError(argument_error("target", f"name one of {[column.name for column in named]}", target))
    if schema is not None and isinstance(columns, Schema) and isinstance(data, pd.DataFrame):
        # The whole numbers of earlier schemas are spread: the same report for the same table.
        data = schema.to_tensor(data, seed=0) if isinstance(schema, SpreadSchema) else schema.to_tensor(data)
    rows = None if data is None else to_rows(data, base, 10_000)
    inside = rows if rows is None or not len(rows) else rows[support.check(rows)]
    drawn = weighted_draws(q)
    comparison = compare(q, inside, columns, drawn)
    predicted = None
    if target is not None and inside is not None:
        predicted = predict(q, inside, target, named, schema, drawn)
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
        "scores": None if rows is None or inside is None else _scores(q, inside, len(rows), drawn),
        "prediction": json_values(predicted),
        "history": [record._asdict() for record in records],
    }
    if page is not None:
        content = _page(report, comparison) if page.suffix == ".html" else json.dumps(report, indent=2) + "\n"
        write_atomically(lambda file: file.write(content.encode()), page)
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


def _scores(q: MollifiedExpFamily, rows: Tensor, num_given: int, drawn: Weighted) -> dict[str, Any]:
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
        "estimated_divergence": _estimated_divergence(q, rows, drawn),
    }


def _estimated_divergence(q: MollifiedExpFamily, rows: Tensor, drawn: Weighted) -> float | None:
    r"""Of table to base, by the learned log-ratio u: the mean of u over the table, less log E e^u over the base.

    Of a fixed u that is at most KL (Donsker, Varadhan. 1975); of one that was fitted to these rows it may be above.
    """
    if not isinstance(q.statistics, ClippedRatio) or not len(rows):
        return None
    of_base = q.row_scores(drawn.draws)
    return float(q.row_scores(rows).mean() - of_base.logsumexp(0)) + math.log(len(of_base))


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
        pictures=[(column, _drawing(column)) for column in comparison.columns],
        pairs=comparison.pairs[:_MAX_PAIRS],
        strongest=_strongest(comparison.pairs),
        similarities=[(*one, _SIMILARITIES[one.name]) for one in comparison.similarities],
        with_table=bool(chances),
        chance=max(chances, default=None),
    )


def _drawing(column: ColumnComparison) -> Picture:
    if column.levels is not None:
        return level_picture(column.levels)
    assert column.bars is not None
    return picture(column.bars, whole=column.whole)


def _strongest(pairs: Sequence[PairComparison]) -> list[Association]:
    """The associations that are strongest, in the table if there is one."""

    def size(one: Association) -> float:
        return abs((one.density if one.table is None else one.table) or 0.0)

    return sorted((pair.association for pair in pairs), key=size, reverse=True)[:_MAX_PAIRS]
