"""What a public base is and knew, in words for a card. All of it is public."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.distributions import Distribution, Independent, Uniform

from pyro_mbde._checks import counted, shown
from pyro_mbde.density.copula import GaussianCopula
from pyro_mbde.density.flow_copula import FlowCopula
from pyro_mbde.density.mixed_base import MixedBase
from pyro_mbde.releases.columns import ReleasedColumn, readable
from pyro_mbde.serialization import encode
from pyro_mbde.tables.schema import Schema

#: Items of a list that a page shows, and names that a sentence does.
_MAX_SHOWN, _MAX_NAMES = 8, 6
#: Numbers that describe a base, at most; a longer description is replaced by its hash.
_MAX_NUMBERS = 5000
_FACTS = {
    "mean": ("the mean of", "the means of"),
    "quantiles": ("quantiles of", "quantiles of"),
    "shares": ("the shares of", "the shares of"),
    "histogram": ("a histogram of", "histograms of"),
    "distribution": ("a distribution of", "distributions of"),
}
#: What was learned of how the columns of public rows go together; a flow is mentioned with the base's dependence.
_LEARNED = {"copula": ", with their correlations", "flow": ""}


def json_values(node: Any) -> Any:
    """Returns dicts, lists, tuples and tensors as dicts, lists and numbers of JSON; named tuples as dicts."""
    if isinstance(node, Tensor):
        if node.dim():
            return [json_values(item) for item in node]
        number = readable(node) if node.is_floating_point() else node.item()
        return number if math.isfinite(number) else str(number)
    if hasattr(node, "_asdict"):
        node = node._asdict()
    if isinstance(node, dict):
        return {key: json_values(value) for key, value in node.items()}
    return [json_values(item) for item in node] if isinstance(node, list | tuple) else node


def base_values(base: Distribution) -> Any:
    """Returns a base as plain values; of one that takes very many numbers, their SHA-256 in place of them."""
    described = encode(base)
    if _num_numbers(described) <= _MAX_NUMBERS:
        return json_values(described)
    digest = hashlib.sha256(json.dumps(json_values(described), sort_keys=True).encode()).hexdigest()
    return {"distribution": described["distribution"], "sha256": digest}


def _num_numbers(node: Any) -> int:
    if isinstance(node, Tensor):
        return node.numel()
    if isinstance(node, dict):
        return sum(map(_num_numbers, node.values()))
    return sum(map(_num_numbers, node)) if isinstance(node, list | tuple) else 1


def base_text(base: Distribution) -> str:
    """Returns the base in a line, long lists of numbers shortened.

    Example:
        >>> import torch
        >>> base_text(torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0)))
        'Normal(loc=0, scale=1)'
    """
    if isinstance(base, MixedBase):
        kinds = Counter(one.kind for one in base.marginals)
        parts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        dependence = "" if base.dependence is None else f"; dependent by a {type(base.dependence).__name__}"
        predicates = f"; restricted by {counted(len(base.predicates), 'predicate')}" if base.predicates else ""
        return f"MixedBase({counted(len(base.marginals), 'column')}: {parts}{dependence}{predicates})"
    return _text(json_values(encode(base)))


def _text(node: Any) -> str:
    if isinstance(node, dict):
        kind = str(node.get("distribution", node.get("transform"))).partition(".")[2].removeprefix("Closed")
        arguments = node["arguments"]
        if kind == "Independent":  # which only says which numbers make one row
            return _text(arguments["base_distribution"])
        return (
            f"{kind}({', '.join(f'{name}={_text(value)}' for name, value in arguments.items() if value is not None)})"
        )
    if isinstance(node, list):
        first = [_text(item) for item in node[:_MAX_SHOWN]]
        more = [f"… {len(node) - _MAX_SHOWN} more"] if len(node) > _MAX_SHOWN else []
        return f"[{', '.join(first + more)}]"
    return shown(node) if isinstance(node, float) else str(node)


def base_knowledge(base: Distribution, columns: Sequence[ReleasedColumn], schema: Schema | None) -> str:
    """Returns what was publicly known of the table, and so is in the base, in a few sentences; else nothing.

    Privacy:
        For release.

    Args:
        base: of one row.
        columns: of the rows.
        schema: that the base was made from; None where there is none.

    Example:
        >>> from pyro_mbde import Column
        >>> ward = Column("ward", kind="category", levels=["A", "B", "C"])
        >>> schema = Schema((Column("age", 0, 110, "integer", mean=40), ward))
        >>> print(base_knowledge(schema.base(), [], schema))
        The base knew range or levels of each column, and the mean of age; beyond that it is even. Its columns are
        independent of one another.
    """
    if not isinstance(base, MixedBase):
        return ""
    known, rest = _known(base, columns, schema)
    even = "; beyond that it is even" if rest else ""
    sentences = [f"The base knew range or levels of each column{''.join(f', {one}' for one in known[:-1])}"]
    sentences[0] += f"{', and ' + known[-1] if known else ''}{even}."
    sentences.append(_dependence(base, [one.name for one in columns] if schema is None else schema.names))
    if schema is not None and schema.constraints:
        sentences.append(f"In every row, by definition: {_listed(list(schema.constraints))}.")
    if schema is not None and schema.condition:
        sentences.append(f"Only rows are modelled for which {schema.condition}.")
    if schema is not None and schema.public_rows:
        sentences.append(f"Public rows: {_public_rows_in_words(schema.public_rows.rstrip('.'))}.")
    if schema is None and base.predicates:
        sentences.append(f"Its rows satisfy {counted(len(base.predicates), 'public predicate')}.")
    return " ".join(sentences)


def _dependence(base: MixedBase, names: Sequence[str]) -> str:
    """How columns go together: what the base has, whatever a schema states."""
    copula = base.dependence
    if isinstance(copula, FlowCopula):
        return "Its columns depend on one another as in a flow learned from public rows."
    if isinstance(copula, GaussianCopula):
        matrix = copula.correlation.tril(-1).T
        places = matrix.nonzero().tolist()
        pairs = [f"{names[one]} and {names[other]} ({matrix[one, other]:g})" for one, other in places]
        if pairs:
            return f"It has the correlations of {_listed(pairs)}."
    elif copula is not None:
        return f"Its columns depend on one another by a {type(copula).__name__}."
    if base.predicates:
        return "Apart from its rules, its columns are independent of one another."
    return "Its columns are independent of one another."


def _known(base: MixedBase, columns: Sequence[ReleasedColumn], schema: Schema | None) -> tuple[list[str], bool]:
    """What is known of single columns, and whether nothing is of some."""
    if schema is None:
        shaped = [column.name for column, one in zip(columns, base.marginals, strict=True) if not one.is_flat]
        known = [f"a distribution of {_listed(shaped)}"] if shaped else []
        return known, len(shaped) < len(base.marginals)
    known, stated = [], 0
    for key, (one, several) in _FACTS.items():
        names = [column.name for column in schema.columns if getattr(column, key) is not None]
        stated += len(names)
        if names:
            known.append(f"{one if len(names) == 1 else several} {_listed(names)}")
    missing = [column.name for column in schema.columns if column.keeps_missing]
    if missing:
        known.append(f"the share of missing values of {_listed(missing)}")
    return known, stated < len(schema.columns)


def _public_rows_in_words(note: str) -> str:
    """A note as people read it: of those that :func:`~pyro_mbde.tables.public_rows.follow_public_rows` writes."""
    return re.sub(
        r"^([\d,]+) public (rows? of .*), (copula|flow)$",
        lambda found: f"{found[1]} {found[2]}{_LEARNED[found[3]]}",
        note,
    )


def _is_even(base: MixedBase, schema: Schema | None) -> bool:
    """Whether nothing is known of columns but ranges, levels and scales."""
    if schema is None:
        return all(one.is_flat and not one.missing_share for one in base.marginals)
    return not any(getattr(one, key) is not None for one in schema.columns for key in (*_FACTS, "missing_share"))


def _listed(names: Sequence[str]) -> str:
    if len(names) > _MAX_NAMES:
        return f"{', '.join(names[:_MAX_NAMES])} and {len(names) - _MAX_NAMES} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def base_in_words(base: Distribution, columns: Sequence[ReleasedColumn], schema: Schema | None = None) -> str:
    """Returns what drawing from a base means, in a few words.

    Privacy:
        For release.

    Args:
        base: of one row.
        columns: of the rows.
        schema: that the base was made from; None where there is none.

    Example:
        >>> base_in_words(Uniform(0.0, 1.0), [ReleasedColumn("share", 0.0, 1.0, False)])
        'the public base, evenly over the ranges of the columns below'
    """
    while isinstance(base, Independent):
        base = base.base_dist
    ranges = "ranges"
    if isinstance(base, MixedBase):
        if base.dependence is not None or base.predicates or not _is_even(base, schema):
            return "the public base, which knew what is stated below"
        ranges = "ranges and levels" if any(column.levels for column in columns) else ranges
    elif not isinstance(base, Uniform):
        return "the public base"
    logarithms = [column.name for column in columns if column.scale == "log1p"]
    scale = f" ({', '.join(logarithms)} on a logarithmic scale)" if logarithms else ""
    return f"the public base, evenly over the {ranges} of the columns below{scale}"


def base_units(base: Distribution, columns: Sequence[ReleasedColumn]) -> str:
    """Returns the units of the base of an earlier schema where they differ from those of the columns; else nothing.

    Example:
        >>> print(base_units(Uniform(0.0, 4.2), [ReleasedColumn("visits", 0.0, 61.0, True, "log1p")]))
        The base is in modelled units. A whole number n is spread over [n, n + 1): up to 62 stands for up to 61. Of
        visits, ln(1 + v) is modelled.
    """
    if isinstance(base, MixedBase):  # whose rows are the columns' own values, or codes of them
        return ""
    parts = []
    whole = next((column for column in columns if column.whole), None)
    if whole is not None and isinstance(whole.high, float):
        parts.append(
            f"A whole number n is spread over [n, n + 1): up to {shown(whole.high + 1)} stands for up to "
            f"{shown(whole.high)}."
        )
    logarithms = [column.name for column in columns if column.scale == "log1p"]
    if logarithms:
        parts.append(f"Of {', '.join(logarithms)}, ln(1 + v) is modelled.")
    return " ".join(["The base is in modelled units.", *parts]) if parts else ""
